//! State inherited from the process that starts cofferdam: it must not hang, break or weaken a call.

use std::process::{Command, Output};

/// Runs `cofferdam run` under `prelude`, a line of shell that sets something to inherit.
fn run_under(prelude: &str, words: &str) -> std::io::Result<Output> {
    let script = format!("{prelude}; exec \"$0\" run --timeout 5 -- {words}");
    Command::new("bash").args(["-c", &script, env!("CARGO_BIN_EXE_cofferdam")]).output()
}

fn code_and_stdout(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns true if this machine can make cells at all; without them there is nothing to test.
fn can_run() -> std::io::Result<bool> {
    let can = run_under(":", "echo ok")?.status.success();
    let must = std::env::var_os("COFFERDAM_MUST_RUN").is_some();
    assert!(can || !must, "no cell can be made here and COFFERDAM_MUST_RUN is set");
    Ok(can)
}

#[test]
fn inherited_signal_masks_and_limits_do_not_matter() -> std::io::Result<()> {
    if !can_run()? {
        return Ok(());
    }
    let preludes = [
        "trap '' CHLD",
        "umask 077",
        "umask 777",
        // The remains of the case before are no hindrance.
        ":",
        "ulimit -n 512",
        "ulimit -t 30",
        "ulimit -f 1000",
    ];
    for prelude in preludes {
        let output = run_under(prelude, "echo ok")?;
        assert_eq!(code_and_stdout(&output), (Some(0), "ok\n".to_owned()), "{prelude}: {output:?}");
    }
    Ok(())
}

#[test]
fn programs_start_with_default_signals() -> std::io::Result<()> {
    if !can_run()? {
        return Ok(());
    }
    let ignoring = "trap '' HUP INT QUIT PIPE USR1 TERM CHLD XFSZ RTMIN+5";
    let look = "grep -E '^Sig(Blk|Ign):' /proc/self/status";
    let none = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n".to_owned();
    let outside = format!("{ignoring}; exec {look}");
    let outside = code_and_stdout(&Command::new("bash").args(["-c", &outside]).output()?);
    assert_ne!(outside, (Some(0), none.clone()), "outside they are ignored");
    let inside = run_under(ignoring, look)?;
    assert_eq!(code_and_stdout(&inside), (Some(0), none), "{inside:?}");
    Ok(())
}

#[test]
fn a_long_program_name_does_not_kill_the_supervisor() -> std::io::Result<()> {
    if !can_run()? {
        return Ok(());
    }
    let output = run_under(":", "$(printf 'x%.0s' {1..100000})")?;
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    Ok(())
}

#[test]
fn a_signal_that_the_program_sends_itself_is_no_limit() -> std::io::Result<()> {
    if !can_run()? {
        return Ok(());
    }
    let output = run_under(":", "bash -c 'kill -XCPU $$'")?;
    assert_eq!(output.status.code(), Some(128 + 24), "{output:?}");
    Ok(())
}
