//! Shell sessions over the real server: what lasts, what ends, and that nothing in a command can
//! wedge a session or be taken for its protocol.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

mod ahead;
mod background;
#[path = "../support/client.rs"]
mod client;
mod commands;
#[path = "../support/dice.rs"]
mod dice;
mod faults;
mod forging;
mod frames;
#[path = "../support/host.rs"]
mod host;
mod hostile;
mod input;
mod interrupts;
mod jobs;
#[path = "../support/link.rs"]
mod link;
mod newcomer;
mod one_shot;
mod progress;
mod pseudo_terminals;
mod server;
mod shells;
mod single;
mod slow;
mod stall;
mod story;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod traps;
mod waiting;
#[path = "../weight/mod.rs"]
mod weight;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use server::{Server, story, text};
use support::{
    Caller, Check, Claim, Failed, Need, Part, claim, equal, gone, holds, patience, soon,
};

fn main() -> ExitCode {
    // Tests of these modules start this program again: a supervisor starts only from a process with one thread.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [ahead::FLAG] => ahead::main(),
        [frames::FLAG] => frames::main(),
        [weight::front::FLAG, config, counts] => return weight::front::main(config, counts),
        [weight::front::FRONT_FLAG, config] => return weight::front::front(config),
        [hostile::front::FLAG, role, home, other, seed] => {
            return hostile::front::main(role, home.into(), other, seed);
        }
        _ => {}
    }
    support::run(support::Mostly::Wait, |tests| {
        if Part::Usual.is_asked() {
            tests.each("ahead", &ahead::names(), ahead::check);
            tests.each("frames", &frames::names(), frames::check);
        }
        tests.claims("", &all_claims());
        tests.plain("newcomer", newcomer::TESTS, newcomer::lacks());
        tests.claims("story", &story::claims());
        tests.claims("hostile", &hostile::claims());
        tests.claims("faults", &faults::claims());
        tests.claims("weight", &weight::claims());
    })
}

fn shells() -> Vec<Claim> {
    vec![
        claim("shell_state_lasts_between_calls", lasts),
        claim("an_ended_shell_is_replaced", ends),
        claim("restart_gives_a_new_shell_in_the_same_workspace", restart),
        claim("no_command_wedges_the_session_or_forges_its_end", tricks).thorough_as_root(),
        claim("no_process_left_behind_ends_a_later_call_of_bash", forging::bash),
        claim("no_process_left_behind_ends_a_later_call_of_sh", forging::sh),
        claim("no_process_left_behind_ends_a_later_call_of_zsh", forging::zsh).needs(&[Need::Zsh]),
        claim("no_process_left_behind_ends_a_later_call_of_fish", forging::fish)
            .needs(&[Need::Fish]),
        claim("flooding_the_report_ends_only_that_session", forging::flood),
        claim("both_streams_are_exact_at_a_megabyte_each", exact),
        claim("what_comes_after_the_end_is_not_in_the_next_reply", late),
        claim("nothing_is_written_to_a_call_before_it_begins", early),
        claim("env_cwd_and_stdin_are_of_one_call", one_call),
        claim("a_timeout_interrupts_and_keeps_the_shell", timeouts),
        claim("a_cancel_interrupts_and_keeps_the_shell", cancel),
        claim("sessions_do_not_see_each_other", apart),
        claim("session_receipts_show_the_age_of_their_clocks", ages).needs(&[Need::TimeNamespace]),
        claim("sessions_are_capped_and_end_when_idle", capped),
        claim("at_the_cap_the_session_ends_that_was_unused_for_longest", room),
        claim("calls_to_one_session_run_one_after_the_other", in_turn),
        claim("exit_trap_output_is_in_the_last_reply", traps::exits),
        claim("debug_traps_fire_for_user_commands_only", traps::others),
        claim("an_interrupt_leaves_later_calls_intact", interrupts::any_moment),
        claim("a_job_timed_out_at_its_start_leaves_nothing", interrupts::at_the_start)
            .thorough_as_root(),
        claim("the_call_after_one_that_ended_its_shell_runs", interrupts::and_its_shell)
            .needs(&[Need::Fish]),
        claim("an_interrupt_keeps_the_shells_options", interrupts::modes),
        claim("a_limit_interrupts_no_earlier_commands_processes", interrupts::of_one_command)
            .thorough_as_root()
            .needs(&[Need::Python]),
        claim("nothing_is_left_when_the_server_is_killed", killed),
        claim("a_slow_ending_session_delays_no_other_call", slow::in_time).needs(&[Need::Python]),
    ]
}

fn side_by_side() -> Vec<Claim> {
    vec![
        claim("new_sessions_at_once_do_not_take_one_room_twice", at_once),
        claim("a_one_shot_call_has_room_at_the_session_cap", one_shot_at_the_cap),
        claim("a_session_works_without_proc", without_proc),
        claim("a_shell_full_of_watches_holds_no_other_session_up", stall::watches)
            .needs(&[Need::Python]),
        claim("many_posix_locks_delay_no_other_session", stall::posix_locks).needs(&[Need::Python]),
        claim("many_ofd_locks_delay_no_other_session", stall::ofd_locks).needs(&[Need::Python]),
        claim("a_full_epoll_instance_delays_no_other_session", stall::epoll).needs(&[Need::Python]),
    ]
}

fn others() -> Vec<Claim> {
    vec![
        claim("sh_keeps_its_state_between_calls", shells::sh),
        claim("zsh_keeps_its_state_between_calls", shells::zsh).needs(&[Need::Zsh]),
        claim("fish_keeps_its_state_between_calls", shells::fish).needs(&[Need::Fish]),
        claim("a_long_command_becomes_a_job", jobs),
        claim("a_job_is_read_piece_by_piece_with_nothing_lost", jobs::pieces),
        claim("reading_a_job_waits_for_output_or_its_end", jobs::waits),
        claim("job_output_is_filtered_by_grep_and_tail", jobs::lines),
        claim("a_job_is_interrupted_or_killed_with_its_shell", jobs::kill),
        claim("a_signal_to_a_job_keeps_the_shell", jobs::signals),
        claim("an_idle_shell_has_no_child_and_can_be_interrupted", jobs::between),
        claim("a_kill_that_is_repeated_gives_no_more_time", jobs::repeated),
        claim("jobs_are_listed_and_unknown_ones_refused", jobs::listed),
        claim("shortened_output_can_be_read_after_a_timeout", jobs::rest),
        claim("the_oldest_outputs_expire_with_a_message", jobs::forgotten),
        claim("job_actions_are_audited_under_the_bash_rule", jobs::recorded),
        claim("tools_of_jobs_are_off_where_bash_is", jobs::off),
        claim("a_job_is_fed_while_it_runs_until_its_end_is_given", input::fed),
        claim("input_is_empty_unless_requested", input::by_default),
        claim("full_input_reports_the_bytes_taken", input::bounded),
        claim("input_without_a_reader_is_reported", input::reported),
        claim("output_is_sent_as_progress", progress::while_it_runs),
        claim("progress_ends_when_a_command_becomes_a_job", progress::until_it_is_a_job),
        claim("waiting_for_input_is_reported_at_once", waiting::reported),
        claim("waiting_is_reported_again_after_each_input", waiting::again),
        claim("other_waits_are_not_reported_as_input", waiting::others).thorough_as_root(),
        claim("a_job_that_waits_for_input_is_reported", waiting::background),
        claim("waiting_for_a_terminal_without_one_is_reported", waiting::no_terminal)
            .needs(&[Need::Python]),
        claim("bash_exec_shares_files_with_the_default_session", one_shot::shares),
        claim("bash_exec_shares_no_process_or_variable", one_shot::apart),
        claim("one_shot_calls_run_concurrently_with_a_session", one_shot::at_once),
        claim("a_session_outlives_one_shot_calls", one_shot::outlives),
        claim("another_profile_has_a_separate_workspace", one_shot::elsewhere),
        claim("declared_commands_see_default_session_files", commands::see),
        claim("declared_commands_share_only_the_workspace", commands::apart),
        claim("writing_commands_share_files_with_the_shell", commands::writes),
        claim("the_mounts_of_commands_go_with_their_session", commands::end)
            .only(support::For::Root),
        claim("a_terminal_prompts_and_echoes_input", terminal::prompts),
        claim("a_terminal_is_one_of_80_by_24_and_loses_no_output", terminal::is_one),
        claim("control_characters_interrupt_and_stop_commands", terminal::control),
        claim("a_terminal_is_private_and_refuses_tiocsti", terminal::private),
        claim("a_command_at_a_terminal_leaves_the_shell_as_it_was", terminal::shell),
    ]
}

fn all_claims() -> Vec<Claim> {
    [shells(), side_by_side(), others(), pseudo_terminals(), in_the_background()].concat()
}

fn pseudo_terminals() -> Vec<Claim> {
    let script: &[Need] = &[Need::Script];
    vec![
        claim("programs_of_a_session_make_terminals", pseudo_terminals::made).needs(script),
        claim("programs_find_their_terminal_by_every_name", pseudo_terminals::found).needs(script),
        claim("terminals_work_where_init_opens_files", pseudo_terminals::granted).needs(script),
        claim("a_tmux_server_stays_with_its_session", pseudo_terminals::kept).needs(&[Need::Tmux]),
        claim("every_forbidden_request_on_a_made_terminal_is_refused", pseudo_terminals::requests)
            .needs(&[Need::Python]),
        claim("a_session_has_sixteen_terminals", pseudo_terminals::counted).needs(&[Need::Python]),
        claim("terminals_of_a_session_end_with_its_shell", pseudo_terminals::ended)
            .needs(&[Need::Python]),
        claim("signals_of_a_made_terminal_stay_in_its_session", pseudo_terminals::signals)
            .needs(&[Need::Python]),
        claim("a_cell_of_one_call_has_no_terminals", pseudo_terminals::of_one_call),
        claim("a_session_without_a_devpts_works_and_says_so", pseudo_terminals::refused)
            .only(support::For::Root)
            .needs(&[Need::Strace]),
    ]
}

fn in_the_background() -> Vec<Claim> {
    vec![
        claim("job_tools_reach_background_jobs", background::reached).needs(&[Need::Python]),
        claim("a_background_job_is_a_copy_of_the_shell", background::copy),
        claim("a_background_job_ends_alone", background::ended),
        claim("background_jobs_are_bounded_by_their_shell", background::with_the_shell),
        claim("no_command_wedges_the_start_of_a_background_job", background::tricks),
        claim("a_background_job_needs_a_free_process", background::no_room).needs(&[Need::Zsh]),
    ]
}

fn lasts(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("cd /usr/bin; x='a b'; declare -A m=([k]=v); f() { echo f $1; }", 0, "")?;
    server.gives("shopt -s nullglob; set -o pipefail; sleep 1000 &", 0, "")?;
    let command = r#"pwd; echo "$x ${m[k]}"; f 1; shopt -q nullglob; echo $?; false | true"#;
    server.gives(command, 1, "/usr/bin\na b v\nf 1\n0\n")?;
    server.gives("jobs; kill %1; wait", 0, "[1]+  Running                 sleep 1000 &\n")?;
    equal("the directory", &server.bash("true")?["structuredContent"]["cwd"], &json!("/usr/bin"))
}

fn ends(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("x=1; echo kept > f", 0, "")?;
    let ended = server.bash("echo last; exit 9")?;
    equal("the end", story(&ended), (Some(9), "last\n".to_owned()))?;
    equal(
        "reported",
        &ended["structuredContent"]["session"],
        &json!({"id": "default", "shell": "ended"}),
    )?;
    holds("reported in the text", &ended, text(&ended).contains("the shell has ended"))?;
    let next = server.bash("echo ${x-gone}; cat f")?;
    equal("a new shell", story(&next), (Some(0), "gone\nkept\n".to_owned()))?;
    equal(
        "reported",
        &next["structuredContent"]["session"],
        &json!({"id": "default", "shell": "new"}),
    )?;
    holds("with the reason", &next, text(&next).contains("the last one ended with exit 9"))?;
    let after = server.bash("true")?;
    equal("reported once", &after["structuredContent"]["session"], &serde_json::Value::Null)
}

fn restart(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("x=1; echo kept > f; sleep 4711 &", 0, "")?;
    let answer = server.with(&json!({ "restart": true }))?;
    equal("restarted", &answer["structuredContent"]["outcome"], &json!("restarted"))?;
    for _ in 0..5 {
        server.with(&json!({ "command": "sleep 1000", "background": true }))?;
        server.with(&json!({ "restart": true }))?;
        let answer = server.with(&json!({ "command": "echo next" }))?;
        equal("the job is gone", story(&answer), (Some(0), "next\n".to_owned()))?;
    }
    server.gives("echo ${x-gone}; cat f; pgrep -x sleep", 1, "gone\nkept\n")?;
    let answer = server.with(&json!({ "restart": true, "command": "echo at once" }))?;
    equal("with a command", story(&answer), (Some(0), "at once\n".to_owned()))
}

/// Commands that try to break the shell's loop, to end it from within, or to speak in its place;
/// each with the code and the output it has all the same. `None`: it may end as it likes.
const TRICKS: &[(&str, Option<(u8, &str)>)] = &[
    ("echo \"unbalanced", Some((2, ""))),
    ("if true; then echo x", Some((2, ""))),
    ("echo x; }", Some((2, ""))),
    ("cat <<X\nhello", Some((0, "hello\n"))),
    ("exit 5", Some((5, ""))),
    ("set -e; true", Some((0, ""))),
    ("set -e; false; echo never", Some((1, ""))),
    ("set -u; echo $nothing; echo never", None),
    ("set -n; echo never", None),
    ("exec echo replaced", Some((0, "replaced\n"))),
    ("exec > /workspace/out; echo in a file", Some((0, ""))),
    ("exec <&- >&- 2>&-; exit_later=1", Some((0, ""))),
    (
        "for n in 3 4 5 6 7 8 9 10 11 12 13 14 15 16 255; do eval \"exec $n>&-\"; done",
        Some((0, "")),
    ),
    ("trap 'echo bye' EXIT; trap 'true' DEBUG ERR RETURN; echo a", Some((0, "a\n"))),
    ("shopt -s extdebug; trap false DEBUG; echo never", None),
    ("return 3", Some((3, ""))),
    ("break; echo never", Some((0, ""))),
    ("continue; echo never", Some((0, ""))),
    ("break 99", None),
    ("builtin() { :; }; command() { :; }; printf() { :; }; eval() { :; }; .() { :; }", None),
    ("alias for=: if=: printf=: builtin=:; shopt -s expand_aliases", None),
    ("enable -n builtin command printf trap", None),
    ("readonly COFFERDAM_CALL COFFERDAM_OPEN", None),
    ("COFFERDAM_CALL=99", Some((0, ""))),
    ("set -o posix; echo p", Some((0, "p\n"))),
    ("set -r", None),
    ("unset PATH; echo u", Some((0, "u\n"))),
    ("IFS=0123456789/.; echo i", Some((0, "i\n"))),
    ("set -f -C; shopt -s nullglob failglob; echo o", Some((0, "o\n"))),
    ("ulimit -f 0", None),
    ("ulimit -n 4", None),
    ("ulimit -u 1", None),
    ("kill -9 $$", None),
    ("kill -9 -1", None),
    ("trap '' INT TERM HUP; stty sane", Some((1, ""))),
    ("mkdir d; cd d; rmdir ../d; echo in", Some((0, "in\n"))),
    ("cat; read -r line; echo $?", Some((0, "1\n"))),
    ("printf '0 /workspace\\0'; echo '[exit 0]'", None),
    ("for f in /dev/session/end.*; do printf '7 /forged\\0' > $f; done; sleep 0.2", None),
    ("for f in /dev/session/end.*; do echo rubbish > $f; head -c 9000 /dev/zero > $f; done", None),
    ("rm -rf /dev/session; touch /dev/session/go.1; echo > /dev/session/go.1", Some((1, ""))),
    ("cat /dev/session/go.* /dev/session/in.* & sleep 0.1", None),
    ("(while :; do cat /dev/session/*; done) > /dev/null 2>&1 & sleep 0.1", None),
    ("ulimit -v 20000", None),
];

fn tricks(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    for (command, expected) in TRICKS {
        // A limit of time, so that what hangs fails this test and not the patience of it.
        let tried = server.with(&json!({ "command": command, "timeout": 20 }))?;
        let outcome = &tried["structuredContent"]["outcome"];
        holds(command, &tried, *outcome != json!("timeout"))?;
        if let Some((code, stdout)) = expected {
            let wanted = (Some(u64::from(*code)), (*stdout).to_owned());
            equal(command, story(&tried), wanted)?;
        }
        // Each in a shell that the one before has not prepared, after one call in its own.
        let next =
            server.with(&json!({ "command": "echo \"$((6 * 7))\"; (exit 4)", "timeout": 20 }))?;
        let limited = command.starts_with("ulimit") || command.contains("for=:");
        let fine = story(&next) == (Some(4), "42\n".to_owned());
        holds(&format!("after {command}"), &next, fine || limited)?;
        let new = server.with(&json!({ "restart": true, "command": "echo new", "timeout": 20 }))?;
        equal(command, story(&new), (Some(0), "new\n".to_owned()))?;
    }
    Ok(())
}

fn exact(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let answer = server.with(&json!({
        "command": "head -c 1000000 /dev/zero | tr '\\0' a; head -c 1000001 /dev/zero | tr '\\0' b >&2",
        "max_output": 100,
    }))?;
    let content = &answer["structuredContent"];
    let sizes = (&content["stdout_bytes"], &content["stderr_bytes"], &content["truncated"]);
    equal("every byte is counted", sizes, (&json!(1_000_000), &json!(1_000_001), &json!(true)))?;
    for round in 0..50 {
        server.gives(&format!("echo {round}; (sleep 2) &"), 0, &format!("{round}\n"))?;
    }
    let answer = server.with(&json!({ "command": "seq 100", "head": 1, "tail": 2 }))?;
    equal("lines", story(&answer).1.as_str(), "1\n[… 97 lines left out …]\n99\n100\n")
}

fn late(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives(
        "(sleep 0.3; echo late; echo late >&2; echo done > /tmp/done) & echo now",
        0,
        "now\n",
    )?;
    server.gives("until [ -e /tmp/done ]; do sleep 0.05; done; echo next", 0, "next\n")
}

/// A process of an earlier call tries the files of the next while the session is idle. They are not there: one that is
/// there at a moment before it is closed to the cell could be opened then.
fn early(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let command = "echo > /tmp/control; (sleep 0.5; cd /dev/session; \
                   for f in /tmp/control end.* out.* err.*; do \
                   printf '7 /forged\\0' > $f && echo ${f##*/}; done > /tmp/opened; \
                   ls end.* out.* err.* | wc -l >> /tmp/opened) > /dev/null 2>&1 & echo now";
    server.gives(command, 0, "now\n")?;
    std::thread::sleep(Duration::from_secs(3));
    server.gives("cat /tmp/opened", 0, "control\n0\n")
}

fn one_call(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("mkdir sub; A=mine; cd /usr", 0, "")?;
    let answer = server.with(&json!({
        "command": "pwd; cat; echo; bash -c 'echo $A'", "cwd": "sub", "stdin": "it's\n\"in\"",
        "env": { "A": "it's $(x) \"theirs\"" },
    }))?;
    let expected = "/workspace/sub\nit's\n\"in\"\nit's $(x) \"theirs\"\n";
    equal("given", story(&answer), (Some(0), expected.to_owned()))?;
    server.gives("pwd; echo $A; cat", 0, "/usr\nmine\n")?;
    let answer = server.with(&json!({ "command": "echo never", "cwd": "nowhere" }))?;
    equal("no such directory", story(&answer), (Some(1), String::new()))?;
    let large = "x".repeat(3 << 20);
    let answer = server.with(&json!({ "command": "wc -c", "stdin": large }))?;
    equal("much input", story(&answer), (Some(0), format!("{}\n", 3 << 20)))
}

fn timeouts(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("x=1; f() { sleep 600; echo in f; }; g() { f; echo in g; }", 0, "")?;
    let loops = [
        "sleep 600",
        "g",
        "while :; do :; done",
        "while :; do sleep 0.1; done",
        "(sleep 600; echo s) | cat",
        "y=$(sleep 600)",
        "eval 'sleep 600; echo e'",
        "sleep 600 & wait",
        "kill -STOP $$",
    ];
    for command in loops {
        let command = format!("echo before; {command}; echo after");
        let answer = server.with(&json!({ "command": command, "timeout": 0.3 }))?;
        let content = &answer["structuredContent"];
        equal(&command, &content["outcome"], &json!("timeout"))?;
        equal(&command, &content["stdout"], &json!("before\n"))?;
        holds(&command, &answer, text(&answer).contains("the shell is kept"))?;
        server.gives("echo $x; shopt -q extdebug; echo $?", 0, "1\n1\n")?;
    }
    let stubborn = "trap '' INT; echo before; sleep 600; echo after";
    let began = Instant::now();
    let answer = server.with(&json!({ "command": stubborn, "timeout": 0.3 }))?;
    let content = &answer["structuredContent"];
    equal("stubborn", &content["outcome"], &json!("timeout"))?;
    equal("stubborn", &content["session"]["shell"], &json!("ended"))?;
    equal("partial output", &content["stdout"], &json!("before\n"))?;
    holds("in time", began.elapsed(), began.elapsed() < soon(6))?;
    server.gives("echo ${x-gone}", 0, "gone\n")
}

fn cancel(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("x=1", 0, "")?;
    let id = server.ask(&json!({ "command": "touch started; sleep 600; echo never > f" }))?;
    std::thread::sleep(Duration::from_secs(2));
    let params = json!({ "requestId": id });
    server
        .say(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }))?;
    server.gives("echo $x; ls; pgrep -x sleep", 1, "1\nstarted\n")
}

fn apart(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let mut waiting = Vec::new();
    for name in ["a", "b", "c"] {
        let command =
            format!("x={name}; echo {name} > /tmp/f; echo {name} > f; sleep 600 & sleep 0.3");
        waiting.push(server.ask(&json!({ "command": command, "session": name }))?);
    }
    for id in waiting {
        equal("started", story(&server.answer(id)?).0, Some(0))?;
    }
    for name in ["a", "b", "c"] {
        let command = "echo $x; cat /tmp/f f; pgrep -xc sleep; ls /dev/session | wc -l";
        let answer = server.with(&json!({ "command": command, "session": name }))?;
        // The files of this call, the gate of the next, the lines after an interrupt, and
        // two for each digit of exit codes.
        let expected = format!("{name}\n{name}\n{name}\n1\n41\n");
        equal(name, story(&answer), (Some(0), expected))?;
    }
    Ok(())
}

/// `/proc/uptime` is written before each call: processes that it starts are not older than the machine.
fn ages(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let mut age = || -> Result<f64, Failed> {
        let answer = server.bash("cut -d' ' -f1 /proc/uptime")?;
        let output = story(&answer).1;
        output.trim().parse().map_err(|error| Failed::from(format!("{output}: {error}")))
    };
    let first = age()?;
    std::thread::sleep(Duration::from_millis(1200));
    let second = age()?;
    holds("of a server that has just started", first, (0.9..60.0).contains(&first))?;
    holds("and it grows", (first, second), second - first > 1.1)
}

fn capped(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[sessions]\nmost = 2\nidle = \"3s\"\n")?;
    // No session can be ended: one has a process in the background, one a job.
    server.with(&json!({ "command": "echo 1 > f; sleep 600 &", "session": "a" }))?;
    jobs::job(&mut server, "b", "echo 1 > f; sleep 1000")?;
    let answer = server.with(&json!({ "command": "true", "session": "c" }))?;
    equal("the third", &answer["isError"], &json!(true))?;
    holds("why", &answer, text(&answer).contains("sessions of the server are in use"))?;
    let error = answer["structuredContent"]["error"].as_str().unwrap_or_default();
    holds("both are listed", &answer, error.contains("yours: `a`, `b` (runs c2)"))?;
    let hint = answer["structuredContent"]["hint"].as_str().unwrap_or_default();
    holds("the way out", &answer, hint.contains("`end` with the `session`"))?;
    let answer = server.with(&json!({ "end": true, "session": "b" }))?;
    equal("the way works", &answer["structuredContent"]["outcome"], &json!("ended"))?;
    let answer = server.with(&json!({ "command": "cat f", "session": "c" }))?;
    equal("there is room", story(&answer).0, Some(1))?;
    server.with(&json!({ "end": true, "session": "a" }))?;
    std::thread::sleep(Duration::from_secs(5));
    for name in ["a", "c"] {
        let answer = server.with(&json!({ "command": "cat f", "session": name }))?;
        equal(name, story(&answer), (Some(1), String::new()))?;
        let output = text(&answer).contains("nobody used it");
        equal("reported to its client", output, name == "c")?;
    }
    Ok(())
}

/// At the cap, the session ends that was unused for longest, with what was lost in the replies.
fn room(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[sessions]\nmost = 3\n")?;
    for name in ["a", "b", "c"] {
        server.with(&json!({ "command": "echo 1 > f", "session": name }))?;
    }
    // Unused for longest, but a background process runs there.
    server.with(&json!({ "command": "sleep 600 & disown", "session": "a" }))?;
    server.with(&json!({ "command": "true", "session": "c" }))?;
    server.with(&json!({ "command": "true", "session": "b" }))?;
    let answer = server.with(&json!({ "command": "echo new", "session": "d" }))?;
    equal("it has room", story(&answer), (Some(0), "new\n".to_owned()))?;
    let notes = answer["structuredContent"]["notes"].to_string();
    holds("which one ended", &answer, notes.contains("the session `c` was ended to make room"))?;
    holds("in the text too", &answer, text(&answer).contains("`c` was ended to make room"))?;
    for (name, code, lost) in [("a", 0, false), ("d", 1, false), ("c", 1, true)] {
        let answer = server.with(&json!({ "command": "cat f", "session": name }))?;
        equal(name, story(&answer).0, Some(code))?;
        let reason = "had been ended to make room";
        equal("why its files are gone", text(&answer).contains(reason), lost)?;
    }
    let absent = server.with(&json!({ "end": true, "session": "b" }))?;
    equal("no session", &absent["isError"], &json!(true))?;
    let error = absent["structuredContent"]["error"].as_str().unwrap_or_default();
    let expected = "there is no session `b`; yours: `a`, `c`, `d`";
    equal("those that are", error, expected)?;
    let both = server.with(&json!({ "end": true, "command": "true" }))?;
    equal("not with a command", &both["isError"], &json!(true))?;
    // After `end` the name starts a new session, and nothing was lost against the client's will.
    server.with(&json!({ "end": true, "session": "a" }))?;
    let answer = server.with(&json!({ "command": "cat f", "session": "a" }))?;
    equal("a new one", story(&answer).0, Some(1))?;
    equal("no note", &answer["structuredContent"]["notes"], &serde_json::Value::Null)
}

/// One session fits, and another has to end for the other that begins at the same time.
fn at_once(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[sessions]\nmost = 4\n")?;
    for round in 0..8 {
        for name in ["a", "b", "c"] {
            let answer = server.with(&json!({ "command": "true", "session": name }))?;
            equal(name, story(&answer).0, Some(0))?;
        }
        let new = ["x", "y"].map(|name| format!("{name}{round}"));
        let mut request = Vec::new();
        for name in &new {
            request.push(server.ask(&json!({ "command": "echo new", "session": name }))?);
        }
        let mut ended = 0;
        for id in request {
            let answer = server.answer(id)?;
            equal("it has room", story(&answer), (Some(0), "new\n".to_owned()))?;
            ended += text(&answer).matches("was ended to make room").count();
        }
        equal("sessions that ended for both", ended, 1)?;
        for name in &new {
            server.with(&json!({ "end": true, "session": name }))?;
        }
    }
    Ok(())
}

/// Init, which sees how a command ends, finds no `/proc` then.
fn without_proc(caller: &Caller) -> Check {
    let profile = "schema = 1\nname = \"noproc\"\nextends = \"bash\"\ndescription = \"no /proc\"\n\
        proc = { view = \"none\", why = \"a test\" }\n";
    let rule = "schema = 1\n[[rule]]\nid = \"shell\"\ntools = [\"bash\"]\naction = \"allow\"\n\
        profile = \"noproc\"\nwhy = \"a test\"\nmatches = [{ tool = \"bash\" }]\n\
        not_matches = [{ tool = \"calculate\" }]\n";
    let files = [("sandbox-profiles", profile), ("policies", rule)];
    let mut server = Server::with_files(caller, "", &files)?;
    let control = "x=5; [ -e /proc ] || echo no proc; sh -c 'exit 203'";
    server.gives(control, 203, "no proc\n")?;
    let answer = server.with(&json!({ "command": "echo $x; cat", "stdin": "given" }))?;
    equal("the same shell", story(&answer), (Some(0), "5\ngiven".to_owned()))
}

/// Begins the default session for a call outside of it; another session has to end.
fn one_shot_at_the_cap(caller: &Caller) -> Check {
    let config = "[sessions]\nmost = 2\n";
    let mut server = Server::configured(caller, config, &[], &["--tools", "shell,exec"])?;
    for name in ["a", "b"] {
        let answer = server.with(&json!({ "command": "true", "session": name }))?;
        equal(name, story(&answer).0, Some(0))?;
    }
    let ask = |server: &mut Server| {
        let arguments = json!({ "name": "bash_exec", "arguments": { "command": "echo on" } });
        server.request("tools/call", &arguments)
    };
    let request = [ask(&mut server)?, ask(&mut server)?];
    for id in request {
        let answer = server.answer(id)?;
        equal("it has room", &answer["structuredContent"]["stdout"], &json!("on\n"))?;
    }
    // One ended for both, the one that was unused for longest.
    for (name, is_lost) in [("b", false), ("a", true)] {
        let answer = server.with(&json!({ "command": "true", "session": name }))?;
        let reason = "had been ended to make room";
        equal(name, text(&answer).contains(reason), is_lost)?;
    }
    Ok(())
}

fn in_turn(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let mut waiting = Vec::new();
    for number in 0..6 {
        let command = format!("n={number}; sleep 0.05; echo $n");
        waiting.push((number, server.ask(&json!({ "command": command }))?));
    }
    for (number, id) in waiting {
        let answer = server.answer(id)?;
        equal("each its own", story(&answer), (Some(0), format!("{number}\n")))?;
    }
    Ok(())
}

fn jobs(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[sessions]\nyield = \"1s\"\n")?;
    let answer = server.bash("echo begun; sleep 600")?;
    let content = &answer["structuredContent"];
    equal("it continues", &content["outcome"], &json!("running"))?;
    equal("what it printed", &content["stdout"], &json!("begun\n"))?;
    let answer = server.bash("echo never")?;
    let busy = format!("runs job {}", content["job"].as_str().unwrap_or_default());
    holds("busy", &answer, text(&answer).contains(&busy))?;
    let error = answer["structuredContent"]["error"].as_str().unwrap_or_default();
    holds("the fields alone say that it is busy", &answer, error.contains(&busy))?;
    let answer = server.with(&json!({ "command": "echo other", "session": "other" }))?;
    equal("another session", story(&answer), (Some(0), "other\n".to_owned()))?;
    let answer = server.with(&json!({ "command": "echo new", "restart": true }))?;
    equal("restart ends it", story(&answer), (Some(0), "new\n".to_owned()))
}

fn killed(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    // Only of this claim, which runs for two callers at once.
    static CLAIMS: AtomicU32 = AtomicU32::new(0);
    let claim = CLAIMS.fetch_add(1, Ordering::Relaxed);
    let seconds = format!("9{claim}{:08}", std::process::id());
    server.gives(&format!("sleep {seconds} & setsid sleep {seconds} &"), 0, "")?;
    equal("they run", support::present(&seconds, 2, patience()), 2)?;
    server.child.kill()?;
    server.child.wait()?;
    equal("none is left", gone(&seconds, patience()), Vec::<u32>::new())
}
