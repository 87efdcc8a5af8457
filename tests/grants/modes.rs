//! The set-group-id bit: a cell's directories get it, and no file does.

use crate::support::{CALLS, Caller, Check, Claim, Need, Who, claim, denials, equal, holds, text};
use serde_json::Value;

const PYTHON: &[Need] = &[Need::Python];

pub const CLAIMS: &[Claim] = &[
    claim("every_call_sets_the_bit_of_a_directory", directories).needs(PYTHON),
    claim("no_file_gets_the_bit_and_the_reply_says_why", files).needs(PYTHON),
    claim("the_kernel_refuses_what_it_would_refuse_the_program", refused)
        .needs(&[Need::Python, Need::RootLooks]),
    claim("programs_that_share_directories_with_a_group_work", programs).needs(&[Need::Git]),
];

/// `at` is a separate directory, and `mode` shows a mode.
const START: &str = "
import stat
def mode(path): return oct(stat.S_IMODE(os.lstat(path).st_mode))
os.chdir(place); os.mkdir('d'); os.symlink('d', 'link'); open('f', 'w').close(); os.mkfifo('fifo')
held = os.open('d', os.O_RDONLY); file = os.open('f', os.O_RDWR)
";

fn directories(caller: &Caller) -> Check {
    let script = "
print(call(90, b'd', 0o2775), mode('d'), call(91, held, 0o2755), mode('d'), call(268, -100, b'd', 0o2770), mode('d'), call(268, held, b'.', 0o3777), mode('d'))
print(call(452, -100, b'link', 0o2711, 0), mode('d'), call(452, held, b'', 0o2775, 0x1000), mode('d'), call(452, -100, b'link', 0o2775, 0x100), mode('link'))
print(call(90, f'/proc/self/fd/{held}'.encode(), 0o2700), mode('d'), call(90, b'./d/', 1 << 32 | 0o2710), mode('d'), call(90, b'd', 0o750), mode('d'))
print(call(90, b'none', 0o2775), call(90, b'f/x', 0o2775), call(91, 99, 0o2775), call(90, 1, 0o2775), call(90, b'', 0o2775), call(452, -100, b'd', 0o2775, 4))
os.chdir('/'); print(call(452, -100, b'', 0o2775, 0x1000) in ('EROFS', 'EPERM'))";
    let path = caller.directory("grant")?;
    let shown = path.display().to_string();
    for (options, place) in
        [(&[][..], "/workspace"), (&["--rw", &shown], "/workspace"), (&["--rw", &shown], "/tmp")]
    {
        let script = format!("{CALLS}\nplace = {place:?}{START}{script}");
        let report = caller.json(options, &["/usr/bin/python3", "-c", &script])?;
        let expected = "0 0o2775 0 0o2755 0 0o2770 0 0o3777\n0 0o2711 0 0o2775 ENOTSUP 0o777\n\
            0 0o2700 0 0o2710 0 0o750\nENOENT ENOTDIR EBADF EFAULT ENOENT EINVAL\nTrue\n";
        equal(place, (text(&report, "stdout"), text(&report, "stderr")), (expected, ""))?;
        equal("nothing is reported", denials(&report), vec![])?;
    }
    let outside = caller.bash_outside(&format!("stat -c %a {shown}/d"))?;
    equal("on the host", outside.trimmed(), "750")
}

fn files(caller: &Caller) -> Check {
    let script = "
os.symlink('f', 'to-f')
print(call(90, b'f', 0o2755), call(91, file, 0o2755), call(268, -100, b'to-f', 0o2644), call(452, -100, b'fifo', 0o2644, 0))
print(call(90, f'/proc/self/fd/{file}'.encode(), 0o2755), call(452, file, b'', 0o2755, 0x1000), call(90, b'd', 0o6775), call(90, b'd', 0o4755))
print(mode('f'), mode('fifo'), mode('d'))";
    let path = caller.directory("grant")?.display().to_string();
    let script = format!("{CALLS}\nplace = '/workspace'{START}{script}");
    let report = caller.json(&["--rw", &path], &["/usr/bin/python3", "-c", &script])?;
    let refused = "EPERM EPERM EPERM EPERM\n";
    let expected = format!("{refused}{refused}0o644 0o644 0o755\n");
    equal("each", text(&report, "stdout"), expected.as_str())?;
    let counted: u64 = denials(&report).iter().map(|(_, count)| count).sum();
    equal("reported", counted, 8)?;
    let notes = report.get("notes").map(Value::to_string).unwrap_or_default();
    holds("why", &notes, notes.contains("only directories get the set-group-id bit"))?;
    // The control: outside the kernel sets it.
    let outside = caller.bash_outside("touch own && chmod 2755 own && stat -c %a own")?;
    equal("outside", outside.trimmed(), "2755")
}

/// A read-only grant, and a directory that belongs to another user: as for a mode without the bit.
fn refused(caller: &Caller) -> Check {
    let read_only = caller.directory("read-only")?;
    std::fs::create_dir(read_only.join("d"))?;
    let path = caller.directory("grant")?;
    let foreign = path.join("foreign");
    std::fs::create_dir(&foreign)?;
    std::os::unix::fs::chown(&foreign, Some(31_337), Some(31_337))?;
    let ro = format!("{}:/mnt/ro", read_only.display());
    let rw = path.display().to_string();
    let script = format!(
        "{CALLS}
for path in b'/mnt/ro/d', b'/workspace/foreign', b'/usr':
    without, with_bit = call(90, path, 0o755), call(90, path, 0o2755)
    print(with_bit, with_bit == without)"
    );
    let options = ["--ro", &ro, "--rw", &rw];
    let report = caller.json(&options, &["/usr/bin/python3", "-c", &script])?;
    // The owner has no id in the mount of a server that root started.
    let owner = if caller.who == Who::Root { "EOVERFLOW" } else { "EPERM" };
    let expected = format!("EROFS True\n{owner} True\nEROFS True\n");
    equal("each", text(&report, "stdout"), expected.as_str())
}

fn programs(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    let script =
        "umask 022; cd /workspace; mkdir -m 2775 a; install -d -m 2755 b; mkdir c; chmod g+s c
        mkdir c/inherits; chmod 711 c/inherits; chmod g-w,o= a; cp -a c copy
        tar cf /tmp/t.tar a b c; mkdir x; tar xpf /tmp/t.tar -C x
        stat -c '%a %n' a b c c/inherits copy copy/inherits x/a x/c/inherits
        git init -q --shared /tmp/r && stat -c %a /tmp/r/.git/objects";
    let report = caller.json(&["--rw", &path], &["bash", "-c", script])?;
    let expected = "2750 a\n2755 b\n2755 c\n2711 c/inherits\n2755 copy\n2711 copy/inherits\n\
        2750 x/a\n2711 x/c/inherits\n2775\n";
    equal("modes", (text(&report, "stdout"), text(&report, "stderr")), (expected, ""))?;
    equal("nothing is reported", denials(&report), vec![])
}
