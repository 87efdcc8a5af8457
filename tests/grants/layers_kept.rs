//! Layers are kept whole: through kills, full disks, replaced directories and names that cells choose,
//! and root's review has no more rights than the owner of the directory.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::layers::older;
use crate::layers_ends::at_end;
use crate::support::{
    Caller, Check, Claim, Failed, Finished, For, Need, claim, equal, holds, patience, soon,
};

pub const CLAIMS: &[Claim] = &[
    claim("another_filesystem_at_the_path_is_another_directory", replaced)
        .only(For::Root)
        .needs(&[Need::TmpfsAttributes]),
    claim("root_applies_with_the_rights_of_the_directorys_owner", owners).only(For::Root),
    claim("an_owner_who_swaps_names_gets_no_file_of_root", swapped)
        .only(For::Root)
        .needs(&[Need::Python]),
    claim("a_layer_that_is_mounted_is_mounted_once", mounted_once).only(For::Root),
    claim("a_killed_start_keeps_its_layer_until_its_cells_are_gone", killed_start),
    claim("an_apply_that_is_killed_at_any_system_call_is_finished", killed_apply)
        .needs(&[Need::Python])
        .thorough_as_root(),
    claim("a_full_filesystem_leaves_a_whole_state", full)
        .only(For::Root)
        .needs(&[Need::TmpfsAttributes]),
    claim("odd_names_keep_nothing_else_back", odd_names).needs(&[Need::Python]),
    claim("paths_that_fill_the_memory_are_not_listed", long_paths).needs(&[Need::Python]),
    claim("holes_of_a_file_are_not_written", sparse),
    claim("a_list_is_applied_as_it_was_seen_or_not", seen),
    claim("an_apply_in_parts_is_in_no_conflict_with_itself", parts),
    claim("a_layer_with_any_journal_can_be_discarded", damaged),
    claim("layers_are_never_shown_to_cells", hidden),
    // Cells that root starts cannot change files with lists of other users (docs/review.md).
    claim("access_lists_and_masks_are_not_widened", rights).only(For::User).needs(&[Need::Python]),
];

/// Makes a project of the caller's by a script.
fn project(caller: &Caller, name: &str, script: &str) -> Result<String, Failed> {
    let path = caller.directory(name)?.display().to_string();
    let made = caller.bash_outside(&format!("cd {path} && {{ {script}; }} && echo made"))?;
    equal("a project", made.trimmed(), "made")?;
    // The kernel's clock for files moves on: the layer is made later than the project.
    std::thread::sleep(Duration::from_millis(20));
    Ok(path)
}

fn in_layer(caller: &Caller, path: &str, script: &str) -> Check {
    let output = caller.run(&["--cow", path], &["bash", "-c", script])?;
    equal("in the cell", (output.code, output.stderr.as_str()), (0, at_end(path).as_str()))
}

fn review(caller: &Caller, arguments: &[&str]) -> Result<Finished, Failed> {
    let words = [&["review"], arguments].concat();
    Finished::run(caller.cofferdam(&words), patience())
}

fn says(output: &Finished, code: i32, text: &str) -> Check {
    equal(text, output.code, code)?;
    holds(text, &output.stderr, output.stderr.contains(text))
}

/// Describes every file of a tree: kind, mode, link and contents.
fn tree(caller: &Caller, path: &str) -> Result<String, Failed> {
    let script = format!(
        "cd {path} && find . -printf '%p %y %m %U %l\\n' | LC_ALL=C sort && \
         find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum"
    );
    Ok(caller.bash_outside(&script)?.stdout)
}

fn replaced(caller: &Caller) -> Check {
    let path = caller.directory("project")?.display().to_string();
    let binary = caller.binary().display().to_string();
    // The top of each tmpfs has the same inode number.
    let script = format!(
        "mount -t tmpfs one {path}; stat -c %i {path}; cd /
         {binary} run --cow {path} -- sh -c 'echo agent > new'
         umount {path}; mount -t tmpfs two {path}; stat -c %i {path}
         {binary} review {path} --apply; echo $?; ls -A {path}
         {binary} run --cow {path} -- sh -c 'ls -A; echo second > second'
         {binary} review --list | wc -l
         {binary} review {path} --layer $({binary} review --list | head -n1 | cut -d' ' -f1) --discard; echo $?
         {binary} review {path} --apply; echo $?; ls -A {path}"
    );
    let output = caller.outside("/usr/bin/unshare").args(["-m", "bash", "-c", &script]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let (one, two) = (lines.first().copied(), lines.get(1).copied());
    equal("the inode numbers", one, two)?;
    let rest: Vec<&str> = lines.into_iter().skip(2).collect();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    equal(&errors, rest, vec!["125", "2", "0", "0", "second"])?;
    holds("the reason", &errors, errors.contains("the layer belongs to the directory that was"))
}

/// User of a directory that root reviews.
const OWNER: u32 = 54_321;

fn owners(caller: &Caller) -> Check {
    let made = format!(
        "echo mine > mine; mkdir roots open; echo closed > roots/file
         chown -R {OWNER}:{OWNER} .; chmod 755 ."
    );
    let path = project(caller, "project", &made)?;
    in_layer(
        caller,
        &path,
        "echo agent >> mine; echo agent > roots/file; echo agent > roots/new
         mkdir dir; echo new > dir/new; ln -s mine link; rm -r open",
    )?;
    // The owner may not write there any more.
    caller.bash_outside(&format!("chown 0:0 {path}/roots"))?;
    let applied = review(caller, &[&path, "--apply"])?;
    equal("some are left", applied.code, 1)?;
    for name in ["roots/file", "roots/new"] {
        let line = format!("{name} was not applied: Permission denied");
        holds(&line, &applied.stderr, applied.stderr.contains(&line))?;
    }
    equal("roots/file", std::fs::read_to_string(format!("{path}/roots/file"))?, "closed\n")?;
    for (name, text) in [("mine", "mine\nagent\n"), ("dir/new", "new\n")] {
        let file = format!("{path}/{name}");
        equal(name, std::fs::read_to_string(&file)?, text)?;
        equal(name, std::fs::metadata(&file)?.uid(), OWNER)?;
    }
    equal("a link", std::fs::symlink_metadata(format!("{path}/link"))?.uid(), OWNER)?;
    let left = caller.bash_outside(&format!("cd {path} && find . -user 0; ls -A"))?;
    equal("of root", left.trimmed(), "./roots\ndir\nlink\nmine\nroots")?;
    equal("discarded", review(caller, &[&path, "--discard"])?.code, 0)
}

/// Replaces each staging directory that appears, as the owner of the directory.
const SWAPPER: &str = "
import os, sys
os.setgroups([]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))
os.chdir(sys.argv[1])
print('ready', flush=True)
count = 0
while os.path.exists('go'):
    for name in os.listdir('.'):
        if not name.startswith('.cofferdam-apply-') or os.path.islink(name):
            continue
        count += 1
        try:
            os.rename(name, 'aside%d' % count)
            if count % 3 == 0:
                os.symlink(sys.argv[2], name)
            elif count % 3 == 1:
                os.mkdir(name, 0o700)
            else:
                os.rename('aside%d' % count, name)
        except OSError:
            pass
";

fn swapped(caller: &Caller) -> Check {
    let made = format!("touch go; chown -R {OWNER}:{OWNER} .; chmod 755 .");
    let path = project(caller, "project", &made)?;
    let victim = project(caller, "victim", "echo victim > file; chmod 755 .; chmod 644 file")?;
    let before = tree(caller, &victim)?;
    let mut command = caller.outside("/usr/bin/python3");
    command.args(["-c", SWAPPER, &path, &victim, &OWNER.to_string()]);
    let live = crate::support::Live::start(command)?;
    let mut codes = Vec::new();
    for round in 0..12 {
        let script = format!(
            "for i in $(seq 40); do echo {round} > f$i; done; ln -sf f1 l{round}; mkdir -p d{round}"
        );
        let made = caller.run(&["--cow", &path], &["bash", "-c", &script])?;
        // A layer whose staging directory was taken away is refused until it is discarded.
        if made.code == 0 {
            codes.push(review(caller, &[&path, "--apply"])?.code);
        }
        review(caller, &[&path, "--discard"])?;
    }
    drop(live);
    let roots = caller.bash_outside(&format!("find {path} -user 0"))?;
    equal("files of root", roots.trimmed(), "")?;
    equal("elsewhere", tree(caller, &victim)?, before)?;
    holds("some were applied or refused", &codes, !codes.is_empty())
}

fn mounted_once(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let live = caller.live(&["--cow", &path], "echo live > live; sleep 1000")?;
    let layers = caller.home.join(".local/state/cofferdam/layers");
    let end = Instant::now() + soon(10);
    while review(caller, &[&path])?.trimmed() != "A live" {
        holds("the change is listed", &path, Instant::now() < end)?;
    }
    let script = format!(
        "mount -t tmpfs t /mnt; mkdir /mnt/upper /mnt/work /mnt/m; cd {layers}/*/
         try() {{ mount -t overlay -o lowerdir={path},upperdir=$1,workdir=/mnt/work,userxattr,index=on o /mnt/m \
           >/mnt/said 2>&1; echo $? $(grep -o 'already mounted' /mnt/said); }}
         try /mnt/upper; umount /mnt/m; rm -rf /mnt/work; mkdir work2
         mount -t overlay -o lowerdir={path},upperdir=$PWD/upper,workdir=$PWD/work2,userxattr,index=on o /mnt/m \
           >/mnt/said 2>&1; echo $? $(grep -o 'already mounted' /mnt/said)",
        layers = layers.display(),
    );
    let tried = caller.outside("/usr/bin/unshare").args(["-m", "bash", "-c", &script]).output()?;
    let tried = String::from_utf8_lossy(&tried.stdout).into_owned();
    equal("the control, then a second mount", tried.as_str(), "0\n32 already mounted\n")?;
    drop(live);
    Ok(())
}

fn killed_start(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    for attempt in 0..4 {
        let script = format!("echo {attempt} > n; while :; do echo more >> log; done");
        let mut command = caller.run_command(&["--cow", &path], &["bash", "-c", &script]);
        let mut child = command.spawn()?;
        let end = Instant::now() + soon(10);
        let written = format!("+{attempt}\n");
        while !review(caller, &[&path, "--diff"])?.stdout.contains(&written) {
            holds("the cell runs", attempt, Instant::now() < end)?;
        }
        child.kill()?;
        child.wait()?;
        // Either the layer is still in use, or no cell changes it any more.
        let applied = review(caller, &[&path, "--apply"])?;
        equal(&applied.stderr, applied.code, 0)?;
        let size = std::fs::metadata(format!("{path}/log"))?.len();
        std::thread::sleep(Duration::from_millis(100));
        equal("nothing is left", review(caller, &["--list"])?.stdout, String::new())?;
        equal("the log", std::fs::metadata(format!("{path}/log"))?.len(), size)?;
    }
    Ok(())
}

/// Runs a command, and kills it as it enters the system call with this number, counted from its first
/// mkdirat(2). Prints the number of these calls if it ended before.
const KILLER: &str = "
import ctypes, os, platform, signal, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
MKDIRAT = {'x86_64': 258, 'aarch64': 34}[platform.machine()]
last = int(sys.argv[1])
pid = os.fork()
if pid == 0:
    libc.ptrace(0, 0, None, None)
    os.dup2(os.open('/dev/null', os.O_WRONLY), 1)
    os.execv(sys.argv[2], sys.argv[2:])
os.waitpid(pid, 0)
libc.ptrace(0x4200, pid, None, 0x100001)
count = 0
info = ctypes.create_string_buffer(88)
while True:
    libc.ptrace(24, pid, None, None)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSTOPPED(status):
        print(count, os.waitstatus_to_exitcode(status))
        break
    if os.WSTOPSIG(status) != signal.SIGTRAP | 0x80:
        continue
    libc.ptrace(0x420e, pid, 88, info)
    if info.raw[0] != 1:
        continue
    number = struct.unpack_from('Q', info.raw, 24)[0]
    count += 1 if count or number == MKDIRAT else 0
    if count == last:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        print('killed')
        break
";

fn killed_apply(caller: &Caller) -> Check {
    const MAX_KILLS: usize = 30;
    let files =
        "echo before > changed; echo gone > removed; mkdir old; echo x > old/x; echo k > kind
        echo stays > stays";
    let path = project(caller, "project", files)?;
    let binary = caller.binary().display().to_string();
    let script = "echo after > changed; rm removed; rm -r old; rm kind; mkdir kind; echo n > kind/n
        mkdir -p new/deep; echo n > new/deep/n; ln -s stays link";
    let first = tree(caller, &path)?;
    let killed = |at: usize| {
        let mut command = caller.outside("/usr/bin/python3");
        command.args(["-c", KILLER, &at.to_string(), &binary, "review", &path, "--apply"]);
        Finished::run(command, patience())
    };
    let again = format!("cd {path} && rm -r changed kind new link && {files}");
    in_layer(caller, &path, script)?;
    // Without a kill, for the number of calls.
    let whole = killed(usize::MAX)?;
    let count = whole.trimmed().strip_suffix(" 0").and_then(|count| count.parse().ok());
    let count: usize = count.ok_or_else(|| format!("no count: {whole:?}"))?;
    holds("the calls of an apply", count, count > 100)?;
    let last = tree(caller, &path)?;
    for kill in 0..MAX_KILLS {
        caller.bash_outside(&again)?;
        equal("as at first", tree(caller, &path)?, first.clone())?;
        older(caller, &path)?;
        in_layer(caller, &path, script)?;
        let at = 1 + kill * count / MAX_KILLS;
        equal("the end", killed(at)?.trimmed(), "killed")?;
        let changed = std::fs::read_to_string(Path::new(&path).join("changed"))?;
        holds("a whole file", (at, &changed), ["before\n", "after\n"].contains(&changed.as_str()))?;
        let finished = review(caller, &[&path, "--apply"])?;
        equal(&format!("after call {at}: {}", finished.stderr), finished.code, 0)?;
        equal(&format!("after call {at}"), tree(caller, &path)?, last.clone())?;
        // At most an empty one.
        equal("no changes are left", review(caller, &["--list"])?.code, 0)?;
    }
    Ok(())
}

fn full(caller: &Caller) -> Check {
    let path = caller.directory("project")?.display().to_string();
    let state = caller.directory("state")?.display().to_string();
    let binary = caller.binary().display().to_string();
    let out = caller.home.join("out").display().to_string();
    // For each amount of free space: what the apply leaves is the first state or the last.
    let script = format!(
        "set -u; export XDG_STATE_HOME={state}; tree() {{ (cd {path}; find . ! -name filler ! -name . -printf '%p %y\\n' | LC_ALL=C sort; cat changed); }}
         mount -t tmpfs -o size=4m,nr_inodes=200 t {path}; mount -t tmpfs -o size=64m s {state}; cd /
         for which in {path} {state}; do for free in 0 4 8 12 16 20 40 100 400 900 1300; do
           rm -rf {path}/*; echo before > {path}/changed; echo gone > {path}/removed; sleep 0.02
           {binary} run --cow {path} -- sh -c 'echo after > changed; rm removed; mkdir new
             head -c 500000 /dev/zero | tr \"\\\\0\" x > new/large; for i in $(seq 40); do echo $i > new/$i; done' || exit 9
           first=$(tree)
           all=$(df --output=avail -k $which | tail -n1); head -c $(((all - free) * 1024)) /dev/zero > $which/filler
           {binary} review {path} --apply > {out} 2>&1; code=$?
           case $code in 0) done=1;; *) done=0; grep -q 'nothing was applied' {out} || first=$(tree); [ \"$(tree)\" = \"$first\" ] || echo \"$which $free: $code $(tree) $(cat {out})\";; esac
           rm -f $which/filler
           {binary} review {path} --apply > {out} 2>&1 || echo \"$which $free again: $(cat {out})\"
           [ \"$(tree | wc -l) $(tail -n1 {path}/changed)\" = '44 after' ] || echo \"$which $free: $(tree)\"
           echo $done; done; done | sort | uniq -c"
    );
    let output = caller.outside("/usr/bin/unshare").args(["-m", "bash", "-c", &script]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let counts: Vec<(usize, &str)> = text
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .filter_map(|(count, what)| Some((count.parse().ok()?, what)))
        .collect();
    let kinds: Vec<&str> = counts.iter().map(|(_, what)| *what).collect();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    equal(&format!("{text}{errors}"), kinds, vec!["0", "1"])?;
    equal("all", counts.iter().map(|(count, _)| count).sum::<usize>(), 22)
}

fn odd_names(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let make = "
import os
long = b'n' * 255
os.makedirs('closed/below'); open('closed/below/x', 'w').write('x')
for name in [b'%41', b'esc\\x1b[2Jname', b'line\\nbreak', b'\\xff\\xfe', b'\\xe2\\x80\\xaeevil', b' ',
             b'a  [executable]', long]:
    open(name, 'w').write('odd')
os.mkdir('deep')
here = os.open('deep', os.O_RDONLY)
for depth in range(60):
    os.mkdir(long, dir_fd=here)
    here = os.open(long, os.O_RDONLY, dir_fd=here)
    os.close(os.open('file', os.O_WRONLY | os.O_CREAT, dir_fd=here))
open('harmless', 'w').write('harmless')
os.remove('a'); os.chmod('closed/below', 0); os.chmod('closed', 0); os.chmod('.', 0)
";
    let output = caller.run(&["--cow", &path], &["python3", "-c", make])?;
    equal("in the cell", (output.code, output.stderr.as_str()), (0, at_end(&path).as_str()))?;
    let listed = review(caller, &[&path])?;
    equal(&listed.stderr, listed.code, 1)?;
    for line in [
        "D a",
        "A harmless",
        "A \"a  [executable]\"",
        "A \"line\\nbreak\"",
        "A \"\\377\\376\"",
        "A \"esc\\033[2Jname\"",
    ] {
        holds(line, &listed.stdout, listed.stdout.lines().any(|shown| shown == line))?;
    }
    equal("lines of the diff", review(caller, &[&path, "--diff"])?.code, 1)?;
    let json = review(caller, &[&path, "--json"])?.stdout;
    let json: Value = serde_json::from_str(&json)?;
    let encoded = json.pointer("/changes").and_then(Value::as_array).map(|rows| {
        rows.iter().filter_map(|row| row.pointer("/path_encoded")?.as_str()).collect::<Vec<_>>()
    });
    equal("a name that is no text", encoded, Some(vec!["%FF%FE"]))?;
    let applied = review(caller, &[&path, "--apply"])?;
    equal(&applied.stderr, applied.code, 1)?;
    equal("a file", std::fs::read_to_string(format!("{path}/harmless"))?, "harmless")?;
    let count = "find . -type f -name file | wc -l; find . -mindepth 1 -maxdepth 1 -printf x";
    let count = caller.bash_outside(&format!("cd {path} && {{ {count}; }}"))?;
    // Root can read the closed directory.
    let names = if caller.uid() == 0 { 11 } else { 10 };
    equal("on the host", count.trimmed(), format!("11\n{}", "x".repeat(names)))?;
    // Guarded names are not found below paths that the kernel does not take in one call.
    let left = applied.trimmed();
    let (deep, closed): (Vec<&str>, Vec<&str>) =
        left.lines().partition(|line| line.ends_with("/  [held back: too deep in directories]"));
    equal("what is too deep", deep.len(), 1)?;
    let expected: &[&str] =
        if caller.uid() == 0 { &[] } else { &["A closed/  [held back: it cannot be read]"] };
    equal("what else is left", closed.as_slice(), expected)?;
    equal("discarded", review(caller, &[&path, "--discard"])?.code, 0)?;
    equal("no layer is left", review(caller, &["--list"])?.stdout, String::new())?;
    // Nothing of it keeps a layer from being discarded before that, either.
    let again = project(caller, "again", "echo a > a")?;
    let output = caller.run(&["--cow", &again], &["python3", "-c", make])?;
    equal("in the cell", (output.code, output.stderr.as_str()), (0, at_end(&again).as_str()))?;
    equal("discarded", review(caller, &[&again, "--discard"])?.code, 0)?;
    equal("no layer is left", review(caller, &["--list"])?.stdout, String::new())
}

fn long_paths(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let make = "
import os
here = os.open('.', os.O_RDONLY)
for depth in range(11):
    os.mkdir('n' * 250, dir_fd=here)
    here = os.open('n' * 250, os.O_RDONLY, dir_fd=here)
for number in range(26000):
    os.symlink('x', str(number), dir_fd=here)
open('plain', 'w').write('plain')
";
    let output = caller.run(&["--cow", &path], &["python3", "-c", make])?;
    equal("in the cell", (output.code, output.stderr.as_str()), (0, at_end(&path).as_str()))?;
    let many = "the layer has too many changes to list";
    for arguments in [&[path.as_str()][..], &[&path, "--diff"], &[&path, "--apply"]] {
        says(&review(caller, arguments)?, 125, many)?;
    }
    says(&review(caller, &[&path, "--apply", "plain", "--if", "0"])?, 125, many)?;
    says(&review(caller, &[&path, "--apply", "nnn"])?, 125, "no change at `nnn`")?;
    let applied = review(caller, &[&path, "--apply", "plain"])?;
    says(&applied, 1, "other changes of the layer are not listed")?;
    equal("a file", std::fs::read_to_string(format!("{path}/plain"))?, "plain")?;
    says(&review(caller, &[&path])?, 125, many)?;
    says(&review(caller, &[&path, "--discard"])?, 0, "discarded the layer")
}

fn sparse(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    in_layer(
        caller,
        &path,
        "truncate -s 400M sparse; printf end >> sparse; truncate -s 300M hole; truncate -s 200M a",
    )?;
    let applied = review(caller, &[&path, "--apply"])?;
    equal(&applied.stderr, applied.code, 0)?;
    for (name, size) in [("sparse", (400 << 20) + 3), ("hole", 300 << 20), ("a", 200 << 20)] {
        let found = std::fs::metadata(format!("{path}/{name}"))?;
        equal(name, found.len(), size)?;
        holds(name, found.blocks(), found.blocks() < 100)?;
    }
    let end = caller.bash_outside(&format!("cd {path} && tail -c 3 sparse; head -c 2 a"))?;
    equal("the data", end.stdout, "enda\n")
}

/// Returns the digest once the cells of the last start have let the layer go.
fn digest(caller: &Caller, path: &str) -> Result<String, Failed> {
    let end = Instant::now() + soon(10);
    loop {
        let json: Value = serde_json::from_str(&review(caller, &[path, "--json"])?.stdout)?;
        if let Some(digest) = json.pointer("/digest").and_then(Value::as_str) {
            return Ok(digest.to_owned());
        }
        holds("a digest", &json, Instant::now() < end)?;
    }
}

fn seen(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    in_layer(caller, &path, "echo b > b; echo first >> a")?;
    let first = digest(caller, &path)?;
    equal("again", digest(caller, &path)?, first.clone())?;
    // The same size and the same times as far as a cell can set them.
    in_layer(caller, &path, "touch -r b t; echo c > b; touch -r t b; rm t")?;
    let refused = review(caller, &[&path, "--apply", "--if", &first])?;
    says(&refused, 125, "nothing was applied: the list has changed")?;
    holds("not there", &path, !Path::new(&path).join("b").exists())?;
    let second = digest(caller, &path)?;
    caller.bash_outside(&format!("echo host >> {path}/a"))?;
    says(&review(caller, &[&path, "--apply", "--if", &second])?, 125, "the list has changed")?;
    let third = digest(caller, &path)?;
    equal("b", review(caller, &[&path, "--apply", "b", "--if", &third])?.code, 1)?;
    equal("b", std::fs::read_to_string(format!("{path}/b"))?, "c\n")
}

fn parts(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a; mkdir d; echo b > d/b")?;
    in_layer(caller, &path, "mv a moved; mv d/b d/moved; echo c > c; echo c > d/c")?;
    // What is prepared for the first part changes the directory, which is no change of the host's.
    equal("a part", review(caller, &[&path, "--apply", "c", "d/c"])?.code, 1)?;
    let rest = review(caller, &[&path, "--apply"])?;
    equal("the rest", (rest.code, rest.trimmed()), (0, ""))?;
    let host = caller.bash_outside(&format!("cd {path} && cat moved d/moved && ls . d"))?;
    equal("on the host", host.stdout, "a\nb\n.:\nc\nd\nmoved\n\nd:\nc\nmoved\n")?;
    // A directory in place of a file comes with what is chosen in it.
    in_layer(caller, &path, "rm c; mkdir c; echo e > c/e; echo f > c/f")?;
    equal("a part of it", review(caller, &[&path, "--apply", "c/e"])?.code, 1)?;
    let host = caller.bash_outside(&format!("cd {path} && cat c/e && ls c"))?;
    equal("the part", host.stdout, "e\ne\n")
}

fn damaged(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let layers = caller.home.join(".local/state/cofferdam/layers").display().to_string();
    for journal in ["", "no JSON", "{\"version\":9}", "{\"version\":1}"] {
        in_layer(caller, &path, "echo agent > a")?;
        caller
            .bash_outside(&format!("cd {layers}/*/ && printf '%s' '{journal}' > journal.json"))?;
        says(&review(caller, &[&path, "--apply"])?, 125, "an interrupted apply cannot be ended")?;
        let started = caller.run(&["--cow", &path], &["true"])?;
        says(&started, 125, "an interrupted apply of the layer")?;
        equal("listed", review(caller, &[&path])?.trimmed(), "M a")?;
        let doctor = Finished::run(caller.cofferdam(&["doctor"]), patience())?;
        let row = "1 kept, 1 with changes, 0 in use; an apply was interrupted: project-";
        holds(row, &doctor.stdout, doctor.stdout.contains(row))?;
        says(&review(caller, &[&path, "--discard"])?, 0, "an interrupted apply was not ended")?;
        equal("no layer is left", review(caller, &["--list"])?.stdout, String::new())?;
    }
    equal("the host", std::fs::read_to_string(format!("{path}/a"))?, "a\n")?;
    // A directory that is no layer of this version is named and left.
    in_layer(caller, &path, "echo agent > a")?;
    caller.bash_outside(&format!(
        "mkdir -m 700 {layers}/other && echo '{{}}' > {layers}/other/base.json"
    ))?;
    says(&review(caller, &["--list"])?, 1, "the layer other cannot be read by this version")?;
    equal("the other", review(caller, &[&path, "--discard"])?.code, 0)
}

fn hidden(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    in_layer(caller, &path, "echo b > b")?;
    let layers = caller.home.join(".local/state/cofferdam/layers");
    let layer = std::fs::read_dir(&layers)?.next().ok_or("no layer")??.path();
    for shown in [&layers, &layer, &layer.join("upper"), &caller.home.join(".local")] {
        let refused = caller.run(&["--ro", &shown.display().to_string()], &["true"])?;
        says(&refused, 125, "would show cofferdam's layers")?;
    }
    let other = caller.home.join(".local/other");
    std::fs::create_dir(&other)?;
    caller.own(&other)?;
    equal("the control", caller.run(&["--ro", &other.display().to_string()], &["true"])?.code, 0)
}

fn rights(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a; chmod 660 a; mkdir given; chmod 700 given")?;
    // `user::rwx,user:4711:r-x,group::---,mask::rwx,other::---`
    let list = "
import os, struct
def acl(*entries): return struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *entry) for entry in entries)
none = 0xffffffff
reader = acl((1, 7, none), (2, 5, 4711), (4, 0, none), (16, 7, none), (32, 0, none))
";
    let set = format!(
        "{list}
os.chdir('{path}')
os.setxattr('a', 'system.posix_acl_access', reader)
for name in ['.', 'given']: os.setxattr(name, 'system.posix_acl_default', reader)
open('given/control', 'w').close()"
    );
    equal("the lists", caller.python_outside(&set)?.stderr, "")?;
    std::thread::sleep(Duration::from_millis(20));
    in_layer(
        caller,
        &path,
        "echo b >> a; echo n > given/n; echo p > p; mkdir d; echo x > d/x; chmod 777 d/x",
    )?;
    let mut command = caller.outside("/bin/bash");
    let script = format!("umask 0; exec {} review {path} --apply", caller.binary().display());
    command.args(["-c", &script]);
    let applied = Finished::run(command, patience())?;
    equal(&applied.stderr, applied.code, 0)?;
    let look = format!(
        "{list}
os.chdir('{path}')
def of(name): return (os.getxattr(name, 'system.posix_acl_access'), oct(os.stat(name).st_mode & 0o7777))
print(of('a') == (reader, '0o770'), of('given/n') == of('given/control'), of('p') == of('given/control'))
print(os.getxattr('d', 'system.posix_acl_default') == reader, of('d/x')[1])"
    );
    let looked = caller.python_outside(&look)?;
    equal(&looked.stderr, looked.trimmed(), "True True True\nTrue 0o770")
}
