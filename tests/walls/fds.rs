//! Descriptors: a program has the three it was given, and nothing behind them but streams.

use std::fs::File;
use std::process::Stdio;

use crate::support::{Caller, Check, Claim, Finished, Need, claim, equal, holds, patience};

pub const CLAIMS: &[Claim] = &[
    claim("a_program_has_three_descriptors", three),
    // The input is a file; at its end a server gives running calls one second more.
    claim("a_script_over_mcp_is_not_left_open_to_its_programs", script).needs(&[Need::FullSpeed]),
    claim("inherited_descriptors_do_not_reach_a_cell", leaked).needs(&[Need::RootLooks]),
    claim("a_directory_as_stdin_opens_no_host_file", directory).needs(&[Need::Python]),
    claim("standard_input_is_carried_whole", carried),
    claim("a_program_can_reopen_its_output_but_not_read_it", reopened),
    claim("a_file_as_stdout_cannot_be_read_or_truncated", output_file).needs(&[Need::Python]),
];

/// Lists descriptors without opening one, by fcntl.
const LIST: &str = "import fcntl, os
def there(fd):
    try: fcntl.fcntl(fd, fcntl.F_GETFD); return True
    except OSError: return False
print([fd for fd in range(4096) if there(fd)])";

fn three(caller: &Caller) -> Check {
    // From outside, of the program itself.
    let live = caller.live(&[], "sleep 60")?;
    let list = std::fs::read_dir(format!("/proc/{}/fd", live.payload()?))?;
    let mut numbers: Vec<String> =
        list.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    numbers.sort_unstable();
    // 255 is bash's own for a script file; with -c there is no 255.
    equal("bash", numbers, ["0", "1", "2"])?;
    if Need::Python.is_met() {
        equal("python", caller.python(LIST)?.trimmed(), "[0, 1, 2]")?;
    }
    Ok(())
}

/// A pipe is of the process that made it, which is another user than the program.
fn reopened(caller: &Caller) -> Check {
    let look = "echo out >/dev/stdout; echo err >/dev/stderr; echo more >>/dev/fd/1; \
                exec 5</dev/stdout; echo \"read: $?\"; exec 5</proc/$$/fd/2; echo \"read: $?\"";
    let output = caller.bash(look)?;
    equal("stdout", output.stdout.as_str(), "out\nmore\nread: 1\nread: 1\n")?;
    let denied = output.stderr.matches("Permission denied").count();
    equal("standard error", (output.stderr.starts_with("err\n"), denied), (true, 2))
}

/// `bash` over MCP hands the script over as descriptor 3; see that its children lack it.
fn script(caller: &Caller) -> Check {
    let call = |script: &str| {
        format!(
            "{}\n{}\n{}\n",
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            serde_json::json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
                "params": {"name": "bash", "arguments": {"command": script}}}),
        )
    };
    let requests = caller.file("requests", &call("ls /proc/self/fd; ls -l /proc/self/fd/3 >&2"))?;
    let mut command = caller.cofferdam(&["serve"]);
    command.stdin(File::open(requests)?);
    let output = Finished::run(command, patience())?;
    let reply = output.stdout.lines().find(|line| line.contains("\"id\":2")).unwrap_or_default();
    let reply: serde_json::Value = serde_json::from_str(reply)?;
    let stdout = reply.pointer("/result/structuredContent/stdout").and_then(|text| text.as_str());
    // 3 is the directory that ls itself lists, and its target is gone when the second ls looks.
    equal("descriptors of ls", stdout, Some("0\n1\n2\n3\n"))?;
    let stderr = reply.pointer("/result/structuredContent/stderr").and_then(|text| text.as_str());
    let stderr = stderr.unwrap_or_default();
    holds("nothing of the script", stderr, stderr.contains("No such file or directory"))
}

fn leaked(caller: &Caller) -> Check {
    let secret = caller.file("secret", "of the host\n")?;
    let secret = secret.display();
    let binary = caller.binary();
    let look = "cat <&9";
    let open = format!("exec 9<{secret} 77</; ");
    let control = caller.bash_outside(&format!("{open} bash -c '{look}'"))?;
    equal("outside", control.stdout.as_str(), "of the host\n")?;
    let cell =
        format!("{open} exec {} run -- bash -c '{look}; ls /proc/self/fd'", binary.display());
    let output = caller.bash_outside(&cell)?;
    equal("in a cell", output.stdout.as_str(), "0\n1\n2\n3\n")?;
    holds("errno", &output.stderr, output.stderr.contains("9: Bad file descriptor"))?;
    // Nor do the front end, the supervisor and init keep it.
    let live = crate::support::Live::start({
        let mut command = caller.outside("/bin/bash");
        let line =
            format!("{open} exec {} run -- bash -c 'echo ready; sleep 60'", binary.display());
        command.args(["-c", &line]);
        command
    })?;
    for (role, pid) in [("supervisor", live.supervisor()?), ("init", live.init()?)] {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
        let targets: Vec<_> = open.flat_map(|fd| std::fs::read_link(fd.path())).collect();
        let leaked = targets.iter().any(|path| path.ends_with("secret"));
        holds(role, &targets, !leaked)?;
    }
    Ok(())
}

/// Landlock does not stop fchdir(2) through a descriptor (kernel-facts: "Descriptors").
fn directory(caller: &Caller) -> Check {
    caller.file("secret", "of the host\n")?;
    // Python itself does not start with a directory as its standard input.
    let look = "exec 5<&0 </dev/null; /usr/bin/python3 -c \"
import os
def tried(action):
    try: return action()
    except OSError as error: return error.strerror
print(tried(lambda: os.fchdir(5)), tried(lambda: os.stat('secret', dir_fd=5).st_size))\"";
    let with_directory =
        |mut command: std::process::Command| -> Result<Finished, crate::support::Failed> {
            command.stdin(Stdio::from(File::open(&caller.home)?));
            Finished::run(command, patience())
        };
    let mut outside = caller.outside("/bin/bash");
    outside.args(["-c", look]);
    equal("outside", with_directory(outside)?.trimmed(), "None 12")?;
    let output = with_directory(caller.run_command(&[], &["bash", "-c", look]))?;
    let refused = output.code == 125 && output.stdout.is_empty();
    let harmless = output.trimmed() == "Not a directory Not a directory";
    holds("refused, or a stream and no directory", &output, refused || harmless)
}

fn carried(caller: &Caller) -> Check {
    let text = "0123456789abcdef".repeat(65_536);
    let input = caller.file("input", &text)?;
    let mut command = caller.run_command(&[], &["bash", "-c", "wc -c; cat | wc -c"]);
    command.stdin(File::open(input)?);
    equal("bytes, and the end", Finished::run(command, patience())?.trimmed(), "1048576\n0")
}

fn output_file(caller: &Caller) -> Check {
    let path = caller.file("output", "before\n")?;
    let look = "import os
def tried(action):
    try: action(); return 'done'
    except OSError as error: return error.strerror
print(tried(lambda: os.ftruncate(1, 0)), tried(lambda: os.pread(1, 9, 0)), sep='; ', file=__import__('sys').stderr)
print('after')";
    let mut command = caller.run_command(&[], &["/usr/bin/python3", "-c", look]);
    let file = File::options().append(true).open(&path)?;
    command.stdout(Stdio::from(file)).stderr(Stdio::piped());
    let output = command.spawn()?.wait_with_output()?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    equal("a pipe stands between", printed.trim(), "Invalid argument; Illegal seek")?;
    equal("the file", std::fs::read_to_string(path)?.as_str(), "before\nafter\n")
}
