//! Files of `/etc` that a cell has because a package shipped them: which, and which never.
//!
//! Each test runs on a host that it makes: a mount namespace with other files at
//! `/etc/cofferdam-test` and another database of dpkg.

use std::path::Path;

use crate::support::{
    Caller, Check, Claim, Failed, Finished, For, Need, claim, equal, holds, patience,
};

pub const CLAIMS: &[Claim] = &[
    claim("only_what_a_package_shipped_is_copied", shipped_only)
        .only(For::Root)
        .needs(&[Need::Unshare]),
    claim("a_user_s_cells_have_the_same_files", shipped_only_for_a_user)
        .only(For::Root)
        .needs(&[Need::Unshare]),
    claim("a_change_on_the_host_does_not_reach_a_cell", changed_while_it_runs)
        .only(For::Root)
        .needs(&[Need::Unshare]),
    claim("copies_are_limited_in_number_and_size", limits).only(For::Root).needs(&[Need::Unshare]),
    claim("all_files_in_etc_have_a_reason", reasons).needs(&[Need::Python]),
    claim("the_process_that_reads_them_sees_only_etc", only_etc).needs(&[Need::Strace]),
    claim("the_machine_is_made_up", machine).needs(&[Need::Python]),
    claim("temporary_files_are_the_cell_s_own", temporary_files),
    claim("programs_find_their_configuration", programs),
];

/// Makes the host's `/etc` with the files of the tests, and dpkg's database of them. `list` adds a
/// file to dpkg's database as it is, `hand` to that of ucf, and `ship` to the files that a package
/// has in `/usr`.
const HOST: &str = r#"set -e
mount -t tmpfs none /mnt
cp -a /etc /mnt/etc
mkdir -p /mnt/dpkg /mnt/ucf /mnt/etc/cofferdam-test/open /mnt/etc/cofferdam-test/closed
mkdir -p /var/lib/dpkg /var/lib/ucf
chmod 755 /mnt /mnt/dpkg /mnt/ucf
mount --bind /mnt/etc /etc
mount --bind /mnt/dpkg /var/lib/dpkg
mount --bind /mnt/ucf /var/lib/ucf
cd /etc/cofferdam-test
printf 'Package: test\nStatus: install ok installed\nConffiles:\n' > /var/lib/dpkg/status
list() { printf ' /etc/cofferdam-test/%s %s%s\n' "$1" "$(md5sum < "$1" | cut -d' ' -f1)" "$2" >> /var/lib/dpkg/status; }
mkdir /var/lib/dpkg/info; touch /var/lib/ucf/hashfile /var/lib/ucf/registry; chmod -R a+rX /var/lib/dpkg
hand() { md5sum "/etc/cofferdam-test/$1" >> /var/lib/ucf/hashfile; printf 'handing \t /etc/cofferdam-test/%s\n' "$1" >> /var/lib/ucf/registry; }
ship() { printf '%s  usr/share/handing/%s\n' "$(md5sum < "$1" | cut -d' ' -f1)" "$1" >> /var/lib/dpkg/info/handing.md5sums; }
"#;

/// Files of each kind; those with the word `canary` must not be in a cell.
const FILES: &str = r#"
echo shipped > same; list same
echo shipped > open/same; list open/same
printf '#!/bin/sh\necho program\n' > program; chmod 755 program; list program
: > empty; list empty
echo shipped > obsolete; list obsolete ' obsolete'
echo shipped > changed; list changed; echo canary >> changed
echo canary > own
echo handed > handed; hand handed; ship handed
echo canary > generated; hand generated
echo edited > edited; hand edited; ship edited; echo canary >> edited
echo unhanded canary > unhanded; ship unhanded
echo hidden canary > hidden; hand hidden; ship hidden; chmod 640 hidden
echo canary > group; list group; chmod 640 group
echo canary > owner; list owner; chmod 604 owner
echo canary > closed/same; list closed/same; chmod 750 closed
echo shipped > replaced; list replaced; rm replaced; mkfifo replaced
echo shipped > linked; list linked; rm linked; echo canary > /mnt/secret; ln -s /mnt/secret linked
echo canary > mounted; list mounted; echo canary > /mnt/other; mount --bind /mnt/other mounted
ln -s same link
ln -s /etc/cofferdam-test/link chain
ln -s ../ssl/certs up
ln -s /usr/bin/env link-env
ln -s ../../usr link-usr
mkdir -p plain/deep; chmod 755 plain plain/deep; ln -s ../same plain/link; ln -s ../../same plain/deep/link
ln -s changed link-changed
ln -s /etc/shadow link-shadow
ln -s open link-directory
chmod 755 /etc/cofferdam-test open
"#;

/// Runs cofferdam on that host as the user of `switch`, with `script` in a cell.
fn on_host(caller: &Caller, files: &str, script: &str, switch: &str) -> Result<Finished, Failed> {
    let binary = caller.binary().display().to_string();
    let line = format!("{HOST}{files}\ncd /\n{switch} {binary} run -- bash -c '{script}'");
    let mut command = caller.outside("unshare");
    command.args(["--mount", "bash", "-c", &line]);
    Finished::run(command, patience())
}

const LOOK: &str = "cd /etc/cofferdam-test && find . -type f | sort; find . -type l | sort; \
    cat same open/same empty obsolete handed; ./program; stat -c %a same program open; \
    timeout 10 cat replaced; cat linked mounted; ls -a closed; grep -r canary /etc; :";

const SHOWN: &str = "./empty\n./handed\n./obsolete\n./open/same\n./program\n./same\n\
    ./chain\n./link\n./link-directory\n./plain/link\n./up\n\
    shipped\nshipped\nshipped\nhanded\nprogram\n644\n755\n755\n";

fn shipped_only(caller: &Caller) -> Check {
    let output = on_host(caller, FILES, LOOK, "")?;
    equal("files, links, bytes, modes", output.stdout.as_str(), SHOWN)?;
    let absent = output.stderr.matches("No such file or directory").count();
    equal("replaced, linked, mounted, closed", absent, 4)?;
    // The control: outside, root reads them all.
    let line = format!("{HOST}{FILES}\ngrep -rl canary /etc/cofferdam-test 2>/dev/null | wc -l");
    let mut command = caller.outside("unshare");
    command.args(["--mount", "bash", "-c", &line]);
    equal("canaries outside", Finished::run(command, patience())?.trimmed(), "10")
}

/// Changes to a user who belongs to a group that may read one of the files.
const USER: &str = "chgrp 4712 /etc/cofferdam-test/group; \
    exec setpriv --reuid 4711 --regid 4711 --groups 4712 env -i PATH=/usr/bin:/bin HOME=/";

fn shipped_only_for_a_user(caller: &Caller) -> Check {
    let output = on_host(caller, FILES, LOOK, USER)?;
    equal("files, links, bytes, modes", output.stdout.as_str(), SHOWN)?;
    // The control: this user may read the file of its group.
    let line = format!("{HOST}{FILES}\ncd /\n{USER} cat /etc/cofferdam-test/group");
    let mut command = caller.outside("unshare");
    command.args(["--mount", "bash", "-c", &line]);
    equal("outside", Finished::run(command, patience())?.trimmed(), "canary")
}

/// A file is changed, replaced and made while a cell runs.
fn changed_while_it_runs(caller: &Caller) -> Check {
    let files = r#"
echo shipped > same; list same
echo shipped > replaced; list replaced
echo canary > late; list late; rm late
chmod 755 /etc/cofferdam-test
mkfifo /mnt/from /mnt/to
exec 3<> /mnt/from 4<> /mnt/to
change() {
    read -r go <&3
    echo canary >> same; echo canary > new; mv new replaced; echo canary > late
    grep -c canary same replaced late
    echo go >&4
}
change >&2 &
"#;
    let binary = caller.binary().display().to_string();
    let script =
        "cd /etc/cofferdam-test; cat same replaced; echo >&2; read go; cat same replaced; ls";
    let line = format!("{HOST}{files}\ncd /\n{binary} run -- bash -c '{script}' <&4 2>&3");
    let mut command = caller.outside("unshare");
    command.args(["--mount", "bash", "-c", &line]);
    let output = Finished::run(command, patience())?;
    let twice = "shipped\nshipped\nshipped\nshipped\nreplaced\nsame\n";
    equal("before and after", output.stdout.as_str(), twice)?;
    equal("the host's files", output.stderr.as_str(), "same:1\nreplaced:1\nlate:1\n")
}

fn limits(caller: &Caller) -> Check {
    let files = r#"
mkdir many; chmod 755 /etc/cofferdam-test many; cd many
for n in $(seq 4500); do echo $n > $n; done
md5sum * | sed 's,^\([^ ]*\)  \(.*\), /etc/cofferdam-test/many/\2 \1,' >> /var/lib/dpkg/status
cd ..; head -c 9000000 /dev/zero > huge; list huge
"#;
    let output = on_host(caller, files, "cd /etc/cofferdam-test; ls; ls many | wc -l", "")?;
    warned(&output)?;
    let (listed, count) = output.trimmed().split_once('\n').ok_or("two lines")?;
    equal("without the huge one", listed, "many")?;
    let count: usize = count.parse()?;
    // Directories and other files of the host count too.
    holds("about 4,000", count, (2_500..=4_000).contains(&count))?;
    let files = r#"
for n in 1 2 3 4; do head -c 3000000 /dev/zero > large$n; list large$n; done
echo shipped > same; list same; chmod 755 /etc/cofferdam-test
"#;
    let output = on_host(caller, files, "cd /etc/cofferdam-test; ls", "")?;
    equal("two of 3 MB in 8 MiB", output.trimmed(), "large1\nlarge2\nsame")?;
    warned(&output)?;
    // The control: no warning without a limit.
    let files = "echo shipped > same; list same; chmod 755 /etc/cofferdam-test";
    let output = on_host(caller, files, "cd /etc/cofferdam-test; ls", "")?;
    equal("all files", output.trimmed(), "same")?;
    equal("warnings", output.stderr.matches("exceed a limit").count(), 0)
}

fn warned(output: &Finished) -> Check {
    equal("warnings", output.stderr.matches("exceed a limit").count(), 1)
}

/// Each file in a cell's `/etc` is made up, a path of the profile, or has the digest of a package.
fn reasons(caller: &Caller) -> Check {
    let script = "import hashlib, os
for d, _, names in os.walk('/etc'):
    for n in names:
        p = os.path.join(d, n)
        if not os.path.islink(p): print(hashlib.md5(open(p, 'rb').read()).hexdigest(), p)";
    let output = caller.python(script)?;
    let made_up =
        ["passwd", "group", "nsswitch.conf", "hosts", "resolv.conf", "hostname", "machine-id"];
    let rows = [
        "R/Renviron",
        "alternatives",
        "fonts",
        "java-17-openjdk/security",
        "java-21-openjdk/security",
        "java-25-openjdk/security",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "localtime",
        "mime.types",
        "os-release",
        "protocols",
        "services",
        "ssl/certs",
        "texmf",
    ];
    let database = std::fs::read_to_string("/var/lib/dpkg/status").unwrap_or_default();
    let mut shipped = 0;
    for line in output.stdout.lines() {
        let (digest, path) = line.split_once(' ').ok_or("no digest")?;
        let below = Path::new(path).strip_prefix("/etc")?;
        if made_up.iter().chain(&rows).any(|name| below.starts_with(name)) {
            continue;
        }
        let is_shipped =
            database.contains(&format!(" {path} {digest}")) || is_in_a_package(digest)?;
        holds("shipped by a package", path, is_shipped)?;
        shipped += 1;
    }
    // The control, where there is dpkg: not all systems have it.
    holds("some are", shipped, shipped > 20 || database.is_empty())
}

/// Returns true if dpkg lists the digest for a file in `/usr`.
fn is_in_a_package(digest: &str) -> Result<bool, Failed> {
    for entry in std::fs::read_dir("/var/lib/dpkg/info")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md5sums")
            && std::fs::read_to_string(path)?.lines().any(|line| line.starts_with(digest))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The process of `run` that reads the host's files enters `/etc` before it opens anything.
fn only_etc(caller: &Caller) -> Check {
    let traces = caller.directory("traces")?;
    let mut command = caller.outside("strace");
    // A file for each process, so that no call is cut in two by those of another.
    command.args(["-ff", "-q", "-e", "trace=chroot,openat,openat2,getdents64", "-o"]);
    command.arg(traces.join("of")).arg(caller.binary()).args(["run", "--", "/bin/true"]);
    equal("code", Finished::run(command, patience())?.code, 0)?;
    let mut entered = Vec::new();
    for entry in std::fs::read_dir(traces)? {
        let text = std::fs::read_to_string(entry?.path())?;
        // strace(1) cannot read the path, as the process is not dumpable.
        entered.extend(text.contains("chroot(").then_some(text));
    }
    let [calls] = entered.as_slice() else { return Err(format!("{entered:?}").into()) };
    let first = calls.lines().next().unwrap_or_default();
    holds("the first call", first, first.starts_with("chroot(") && first.ends_with("= 0"))?;
    let listings = calls.lines().filter(|line| line.starts_with("getdents64(")).count();
    holds("it lists directories", listings, listings > 10)
}

/// Ids are not the host's, and processors are those of the cell.
fn machine(caller: &Caller) -> Check {
    let script = "import os, uuid
boot = '/proc/sys/kernel/random/boot_id'
print(uuid.UUID(open(boot).read().strip()).version)
ids = {open('/proc/sys/kernel/random/uuid').read() for _ in range(3)}
print(len(ids), sorted(os.listdir('/proc/sys')), sorted(os.listdir('/proc/sys/kernel/random')))
print(len(open('/etc/machine-id').read()), os.listdir('/sys'), os.listdir('/sys/devices/system'))
print(os.cpu_count() == len([n for n in os.listdir('/sys/devices/system/cpu') if n[3:].isdigit()]))
print(os.sysconf('SC_NPROCESSORS_CONF') == os.cpu_count())";
    let output = caller.python(script)?;
    let expected = "4\n3 ['kernel'] ['boot_id', 'uuid']\n33 ['devices'] ['cpu']\nTrue\nTrue";
    equal("a machine", output.trimmed(), expected)?;
    let ids = "cat /proc/sys/kernel/random/boot_id /etc/machine-id";
    let first = caller.bash(ids)?;
    equal("lines", first.trimmed().lines().count(), 2)?;
    for line in caller.bash_outside(ids)?.trimmed().lines() {
        holds("an id of the host", line, !first.stdout.contains(line))?;
    }
    let again = caller.bash(ids)?;
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let first = lines(&first.stdout);
    let again = lines(&again.stdout);
    holds("another boot", (&first, &again), first.first() != again.first())?;
    equal("the same machine", first.get(1), again.get(1))?;
    let written =
        caller.bash("for f in /proc/sys/kernel/random/* /sys/x /proc/sys/x; do > $f; done")?;
    equal("refusals", written.stderr.matches("Read-only file system").count(), 4)
}

fn temporary_files(caller: &Caller) -> Check {
    let script = "readlink /var/tmp; echo x > /var/tmp/y && cat /tmp/y; ls -A /var; > /var/x";
    let output = caller.bash(script)?;
    let listed = output.trimmed().lines().filter(|line| *line != "lib").collect::<Vec<_>>();
    equal("a link to /tmp", listed, ["/tmp", "x", "tmp"])?;
    holds("read-only", &output.stderr, output.stderr.contains("Read-only file system"))?;
    // A grant below it is at its path, and the directory is not the host's.
    let grant = tempfile::Builder::new().prefix("grant").tempdir_in("/var/tmp")?;
    caller.own(grant.path())?;
    let path = grant.path().display().to_string();
    let output = caller.run(&["--ro", &format!("{path}:{path}")], &["ls", "/var/tmp"])?;
    let name = grant.path().file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    equal("the grant alone", output.trimmed(), name)
}

/// Programs of Debian that did not work without their files. Each is tried where it is installed.
fn programs(caller: &Caller) -> Check {
    for (program, line) in [
        ("getent", "getent services ssh domain; getent protocols tcp"),
        ("cat", "cat /etc/os-release /etc/mime.types | wc -l"),
        ("mvn", "mvn -v | grep -c 'Apache Maven'"),
        ("aspell", "echo helo | aspell -a | cut -c1-15"),
        ("nproc", "nproc --all"),
        // Their configuration is handed to ucf.
        ("php", "php -m; php -r 'echo ini_get(\"memory_limit\");'"),
        ("Rscript", "Rscript -e 'cat(median(c(1, 2, 6)))' 2>&1"),
        (
            "python3",
            "/usr/bin/python3 -c 'import matplotlib; print(matplotlib.__version__)' 2>&1 | tail -1",
        ),
        ("lscpu", "lscpu | grep -c Architecture"),
        (
            "pdflatex",
            r"pdflatex -output-directory /tmp -interaction batchmode '\documentclass{article}\begin{document}x\end{document}' | tail -1",
        ),
    ] {
        let is_there = caller.bash_outside(&format!("command -v {program}"))?.code == 0;
        if !is_there {
            continue;
        }
        let outside = caller.bash_outside(line)?;
        let inside = caller.bash(line)?;
        equal(program, (inside.code, inside.stdout), (outside.code, outside.stdout))?;
    }
    Ok(())
}
