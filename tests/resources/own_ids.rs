//! Host ids of an ordinary user's cells if subuid(5) and newuidmap(1) provide a range of them.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

use std::time::{Duration, Instant};

use crate::server::{Server, story};
use crate::support::ids::{COUNT, FIRST};
use crate::support::{
    Caller, Check, Claim, Failed, For, Need, USER, children, equal, holds, patience, soon, status,
};
use serde_json::{Value, json};

pub const CLAIMS: &[Claim] = &[
    claim("cells_without_a_grant_have_separate_ids", separate_ids),
    claim("cells_at_once_and_servers_at_once_have_ids_apart", apart),
    claim("a_granted_directory_keeps_the_users_ids", granted),
    claim("a_private_profile_path_keeps_the_users_id", listed),
    claim("a_cell_at_per_user_limits_harms_no_host_process", counts),
    claim("session_files_share_the_sessions_id", files),
    claim("whatever_stands_in_the_way_leaves_the_users_id", fallbacks),
    claim("a_broken_newuidmap_keeps_the_users_id", programs),
    claim("doctor_reports_shared_counts_with_a_hint", doctor),
];

const fn claim(name: &'static str, check: fn(&Caller) -> Check) -> Claim {
    const NEEDS: &[Need] = &[Need::Python, Need::RootLooks, Need::Setpriv, Need::Unshare];
    crate::support::claim(name, check).only(For::User).needs(NEEDS).wants(&[Need::NewUidMap])
}

/// Returns the ids in the receipt of an answer: the host uid, the supplementary groups.
fn ids_in_receipt(answer: &Value) -> (u32, Value) {
    let measured = &answer["_meta"]["cofferdam/receipt"]["measured"];
    let uid = measured["host_uid"].as_u64().unwrap_or_default();
    (u32::try_from(uid).unwrap_or_default(), measured["supplementary_groups"].clone())
}

fn is_given(id: u32) -> bool {
    (FIRST..FIRST + COUNT).contains(&id)
}

/// Returns all descendants of this process.
fn below(pid: u32) -> Vec<u32> {
    let own = children(pid);
    own.iter().copied().chain(own.iter().flat_map(|child| below(*child))).collect()
}

/// Returns the processes of a server that run `sleep 77`, with their ids and groups as the host sees them.
fn sleepers(server: &Server) -> Vec<(Vec<u32>, Vec<u32>, Vec<u32>)> {
    let all = below(server.child.id()).into_iter();
    let sleeps = all.filter(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x0077\0")
    });
    let seen = sleeps.filter_map(|pid| status(pid).ok());
    seen.map(|seen| (seen.ids("Uid"), seen.ids("Gid"), seen.ids("Groups"))).collect()
}

fn separate_ids(caller: &Caller) -> Check {
    let caller = caller.given(|given| Ok(given.with_groups()))?;
    equal("outside", caller.bash_outside("id -G")?.trimmed(), format!("{} 4 64322", caller.gid()))?;
    let mut server = Server::start(&caller, "")?;
    let answer = server.bash("sleep 77 & echo $!; id -G")?;
    let (uid, groups) = ids_in_receipt(&answer);
    holds("the receipt's uid", uid, is_given(uid))?;
    equal("the receipt's groups", groups, json!([]))?;
    holds("in the cell", story(&answer), story(&answer).1.ends_with("\n1000\n"))?;
    let seen = sleepers(&server);
    equal("as the host sees it", seen, [(vec![uid; 4], vec![uid; 4], Vec::new())])?;
    // By what the kernel counts the supervisor: its real uid.
    let supervisor = children(server.child.id());
    let ids: Vec<_> = supervisor.iter().filter_map(|pid| status(*pid).ok()).collect();
    let ids: Vec<_> = ids.iter().map(|seen| seen.ids("Uid")).collect();
    let real = ids.first().and_then(|ids| ids.first()).copied().unwrap_or_default();
    holds("its own as well", (real, uid), is_given(real) && real != uid)?;
    equal("the supervisor", ids, [[real, caller.uid(), caller.uid(), caller.uid()]])
}

fn apart(caller: &Caller) -> Check {
    let (caller, other) = (caller.given(Ok)?, caller.given(Ok)?);
    let mut one = Server::start(&caller, "")?;
    let (first, _) = ids_in_receipt(&one.with(&json!({ "command": "true", "session": "a" }))?);
    let (second, _) = ids_in_receipt(&one.with(&json!({ "command": "true", "session": "b" }))?);
    holds("two sessions", (first, second), first != second)?;
    let mut two = Server::start(&other, "")?;
    let (third, _) = ids_in_receipt(&two.with(&json!({ "command": "true", "session": "a" }))?);
    let ids = [first, second, third];
    holds("all of the range", ids, ids.iter().all(|id| is_given(*id)))?;
    holds("another block", ids, third.abs_diff(first) >= 1000)
}

fn granted(caller: &Caller) -> Check {
    let caller = caller.given(|given| Ok(given.with_groups()))?;
    let path = caller.directory("tree")?;
    let private = caller.file("tree/private", "of the user\n")?;
    crate::support::mode(&private, 0o600)?;
    let tree = path.display().to_string();
    let mut server = Server::configured(&caller, "", &[], &["--workspace", &tree])?;
    let answer = server.bash("cat private; echo made > file")?;
    equal("a private file", story(&answer), (Some(0), "of the user\n".to_owned()))?;
    equal("the receipt", ids_in_receipt(&answer), (caller.uid(), json!([4, 64322])))?;
    use std::os::unix::fs::MetadataExt;
    let made = std::fs::metadata(path.join("file"))?;
    equal("whose it is", (made.uid(), made.gid()), (caller.uid(), caller.gid()))?;
    drop(server);
    std::fs::remove_dir_all(caller.home.join("configuration"))?;
    let read_only = format!("{tree}:ro");
    let mut server = Server::configured(&caller, "", &[], &["--workspace", &read_only])?;
    let answer = server.bash("cat private")?;
    equal("read-only", story(&answer), (Some(0), "of the user\n".to_owned()))?;
    equal("the receipt", ids_in_receipt(&answer), (caller.uid(), json!([4, 64322])))
}

const POLICY: &str = r#"schema = 1

[[rule]]
id = "shell"
tools = ["bash"]
action = "allow"
profile = "mine"
why = "contained, with a tool of the user's"
matches = [{ tool = "bash" }]
not_matches = [{ tool = "bash_exec" }]
"#;

fn listed(caller: &Caller) -> Check {
    let caller = caller.given(Ok)?;
    let tool = caller.file("tool", "mine\n")?;
    let profile = format!(
        "schema = 1\nname = \"mine\"\nextends = \"bash\"\ndescription = \"with a tool\"\n\
         [[path]]\nhost = {:?}\ncell = \"/opt/tool\"\nwhy = \"a test\"\n",
        tool.display().to_string()
    );
    let files = [("sandbox-profiles", profile.as_str()), ("policies", POLICY)];
    let uid = |mode: u32, owner: u32| {
        crate::support::mode(&tool, mode)?;
        std::os::unix::fs::chown(&tool, Some(owner), Some(owner))?;
        let configuration = caller.home.join("configuration");
        if configuration.exists() {
            std::fs::remove_dir_all(configuration)?;
        }
        let mut server = Server::with_files(&caller, "", &files)?;
        let answer = server.bash("cat /opt/tool")?;
        equal("it is read", story(&answer), (Some(0), "mine\n".to_owned()))?;
        Ok::<_, Failed>(ids_in_receipt(&answer).0)
    };
    equal("the user's, closed to others", uid(0o600, caller.uid())?, caller.uid())?;
    equal("the user's", uid(0o644, caller.uid())?, caller.uid())?;
    let open = uid(0o644, 0)?;
    holds("root's, open to all", open, is_given(open))
}

/// Holds descriptors in flight and fills pipes, then says how far it came and waits.
const FILL: &str = r#"
import array, fcntl, os, resource, socket, time
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held, flying = [], 0
descriptor = array.array("i", [0] * 250)
while flying < 1250:
    pair = socket.socketpair()
    held.append(pair)
    try:
        pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)])
    except OSError as error:
        break
    flying += 250
pipes = []
while len(pipes) < 100:
    ends = os.pipe()
    pipes.append(ends)
    try:
        fcntl.fcntl(ends[0], 1031, 1 << 20)
    except PermissionError:
        break
def fill():
    size = 65536
    while size == 65536 and len(pipes) < 500:
        pipes.append(os.pipe())
        size = fcntl.fcntl(pipes[-1][0], 1032)
    return size
print(flying, fill(), flush=True)
# Other programs of the same user end meanwhile.
while True:
    time.sleep(0.05)
    fill()
"#;

/// Script that prints what a program of the user can still use.
const USE: &str = r#"
import array, errno, fcntl, os, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
pair = socket.socketpair()
try:
    pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
    print("sent")
except OSError as error:
    print(errno.errorcode[error.errno])
print(fcntl.fcntl(os.pipe()[0], 1032))
"#;

/// Returns that script's output once it is `expected`, else its last output.
fn used(caller: &Caller, expected: &str) -> Result<String, Failed> {
    let end = Instant::now() + patience();
    loop {
        let found = caller.python_outside(USE)?;
        if found.trimmed() == expected || Instant::now() > end {
            return Ok(found.trimmed().to_owned());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn counts(caller: &Caller) -> Check {
    let seen = |what: &str, caller: &Caller, expected: &str| {
        // Resources held by an earlier server are released with its last process.
        equal("before", used(caller, "sent\n65536")?, "sent\n65536")?;
        let mut server = Server::start(caller, "")?;
        let answer = server.bash(&format!("python3 -c '{FILL}' & sleep 3"))?;
        equal("what it holds", story(&answer), (Some(0), "1250 8192\n".to_owned()))?;
        equal(what, used(caller, expected)?, expected)
    };
    // Without separate ids the cell's counts are those of the user.
    let without = caller.given(|given| given.ranges(""))?;
    seen("without own ids", &without, "ETOOMANYREFS\n8192")?;
    seen("with own ids", &caller.given(Ok)?, "sent\n65536")
}

fn files(caller: &Caller) -> Check {
    let caller = caller.given(Ok)?;
    let mut server = Server::configured(&caller, "", &[], &["--tools", "shell,exec,files"])?;
    let first = server.bash("umask 077; echo private > f; mkfifo q; stat -c %a f")?;
    equal("made", story(&first), (Some(0), "600\n".to_owned()))?;
    let other = server.tool("bash_exec", &json!({ "command": "cat f; stat -c %U f" }))?;
    equal("next to it", story(&other), (Some(0), "private\nagent\n".to_owned()))?;
    equal("by the same id", ids_in_receipt(&other).0, ids_in_receipt(&first).0)?;
    holds("of the range", ids_in_receipt(&first), is_given(ids_in_receipt(&first).0))?;
    let terminal = server.with(&json!({ "command": "tty", "tty": true }))?;
    equal("a terminal", terminal["structuredContent"]["exit_code"].clone(), json!(0))
}

fn uid_of_a_cell(caller: &Caller) -> Result<u32, Failed> {
    let answer = Server::start(caller, "")?.bash("cat /proc/self/status > /dev/null")?;
    equal("it runs", story(&answer).0, Some(0))?;
    Ok(ids_in_receipt(&answer).0)
}

fn fallbacks(caller: &Caller) -> Check {
    let is_the_users =
        |what: &str, caller: &Caller| equal(what, uid_of_a_cell(caller)?, caller.uid());
    is_the_users("no range", &caller.given(|given| given.ranges(""))?)?;
    let short = format!("tester:{FIRST}:1000\n");
    is_the_users("a short range", &caller.given(|given| given.ranges(&short))?)?;
    is_the_users("no privilege", &caller.given(|given| Ok(given.without_privileges()))?)?;
    let by_number = format!("{}:{FIRST}:{COUNT}\n", caller.uid());
    let uid = uid_of_a_cell(&caller.given(|given| given.ranges(&by_number))?)?;
    holds("a range by number", uid, is_given(uid))?;
    // One call is not worth the time.
    let once = caller.given(Ok)?.json(&[], &["true"])?;
    equal("of `run`", once.pointer("/receipt/measured/host_uid"), Some(&json!(caller.uid())))
}

fn programs(caller: &Caller) -> Check {
    for name in ["newuidmap", "newgidmap"] {
        for script in ["exit 1", "exit 0", "sleep 1000"] {
            let caller = caller.given(|given| given.with_program(name, script))?;
            let began = Instant::now();
            let uid = uid_of_a_cell(&caller)?;
            equal(&format!("{name}: {script}"), uid, caller.uid())?;
            holds("within its time", began.elapsed(), began.elapsed() < soon(20))?;
        }
    }
    Ok(())
}

fn doctor(caller: &Caller) -> Check {
    let layer = |caller: &Caller| {
        let report = crate::support::Finished::run(
            caller.cofferdam(&["doctor", "--json"]),
            crate::support::patience(),
        )?;
        let report: Value = serde_json::from_str(&report.stdout)?;
        let layers = report["layers"].as_array().cloned().unwrap_or_default();
        let counts = layers.into_iter().find(|layer| layer["name"] == "counts of a user");
        Ok::<_, Failed>(counts.ok_or("no such layer")?)
    };
    equal("own ids", &layer(&caller.given(Ok)?)?["state"], &json!("ok"))?;
    let weak = layer(&caller.given(|given| given.ranges("other:100000:65536\n"))?)?;
    equal("no range", &weak["state"], &json!("weak"))?;
    let remedy = weak["remedy"].as_str().unwrap_or_default();
    holds("its remedy", remedy, remedy.contains("`tester:165536:65536`"))?;
    let weak = layer(&caller.given(|given| Ok(given.without_privileges()))?)?;
    let remedy = weak["remedy"].as_str().unwrap_or_default();
    holds("its remedy", remedy, remedy.contains("NoNewPrivileges=no"))?;
    let weak = layer(&caller.given(|given| given.with_open_locks())?)?;
    let how = weak["how"].as_str().unwrap_or_default();
    holds("its reason", &weak, how.contains(&format!("/run/user/{USER}, where")))?;
    let weak = layer(&caller.given(|given| given.with_program("newuidmap", "exit 1"))?)?;
    let remedy = weak["remedy"].as_str().unwrap_or_default();
    holds("its remedy", remedy, remedy.contains("getsubids tester"))
}
