//! The root of a cell: what is there of the host, and what may be done with it.

use crate::support::{
    CALLS, Caller, Check, Claim, Failed, Finished, For, Need, claim, equal, holds, patience,
};

pub const CLAIMS: &[Claim] = &[
    claim("the_root_contains_only_the_profiles_paths", root_listing),
    claim("the_devices_are_listed_and_no_disk", devices),
    claim("etc_is_made_up", etc),
    claim("host_files_are_read_only", read_only),
    claim("paths_of_the_host_are_not_there", absent),
    claim("links_and_dots_stay_in_the_cell", tricks),
    claim("every_mount_is_nosuid_and_host_mounts_read_only", flags),
    claim("devices_and_mounts_cannot_be_created", mount_calls).needs(&[Need::Python]),
    claim("a_filesystem_of_the_cell_is_full_at_its_cap", full).needs(&[Need::Python]),
    claim("inodes_are_full_at_their_cap", inodes).needs(&[Need::Python]),
    claim("a_read_only_grant_is_read_only_for_its_owner", ro_grant),
    claim("a_writable_grant_is_written_as_its_owner", rw_grant),
    claim("a_call_finds_nothing_that_another_left", residue),
    claim("grants_of_the_whole_machine_are_refused", refused_grants),
    claim("a_grant_that_leads_to_the_configuration_is_refused", configuration),
    claim("nor_is_one_in_which_a_mount_shows_it", mounted_configuration)
        .only(For::Root)
        .needs(&[Need::Unshare]),
];

fn root_listing(caller: &Caller) -> Check {
    let output =
        caller.bash("cd /; echo *; echo .[!.]*; for d in *; do [ -L $d ] && readlink $d; done")?;
    let listed: Vec<&str> = output.stdout.lines().next().unwrap_or_default().split(' ').collect();
    let own = ["dev", "etc", "mnt", "proc", "sys", "tmp", "usr", "var", "workspace"];
    // On merged systems these are links into /usr; a system may lack any of them.
    let of_usr = ["bin", "lib", "lib32", "lib64", "libx32", "sbin"];
    let expected: Vec<&str> = {
        let there = |name: &&str| std::fs::symlink_metadata(format!("/{name}")).is_ok();
        let mut all: Vec<&str> = own.into_iter().chain(of_usr.into_iter().filter(there)).collect();
        all.sort_unstable();
        all
    };
    equal("ls /", listed, expected)?;
    equal("what is hidden", output.stdout.lines().nth(1), Some(".cofferdam"))?;
    equal(
        "a program of ours",
        caller.bash("cd /.cofferdam; stat -c '%a %n' *")?.trimmed(),
        "555 clerk",
    )?;
    equal("/mnt", caller.bash("echo /mnt/*")?.trimmed(), "/mnt/*")
}

fn devices(caller: &Caller) -> Check {
    let output = caller.bash(
        "cd /dev; echo *; ls -A session; stat -Lc '%n %F %t,%T' null zero full random urandom tty ptmx",
    )?;
    let node = |name: &str, major: u8, minor: u8| {
        format!("{name} character special file {major},{minor}\n")
    };
    let device = |name: &str, minor: u8| node(name, 1, minor);
    let expected = format!(
        // A session has its mailbox there; here it is empty.
        "fd full null ptmx pts random session shm stderr stdin stdout tty urandom zero\n{}{}{}{}{}{}{}",
        device("null", 3),
        device("zero", 5),
        device("full", 7),
        device("random", 8),
        device("urandom", 9),
        node("tty", 5, 0),
        node("ptmx", 5, 2)
    );
    equal("/dev", output.stdout, expected)?;
    let used = caller.bash("echo x >/dev/null && head -c2 /dev/zero | wc -c && head -c2 /dev/urandom | wc -c; echo x >/dev/full")?;
    equal("they work", used.trimmed(), "2\n2")?;
    holds("full", &used.stderr, used.stderr.contains("No space left on device"))
}

fn etc(caller: &Caller) -> Check {
    let output = caller.bash("cd /etc; cat passwd group hosts hostname")?;
    let expected = "root:x:0:0:root:/nonexistent:/bin/false\n\
        agent:x:1000:1000:agent:/tmp/home:/bin/bash\n\
        nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n\
        root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n\
        127.0.0.1 localhost cofferdam\n::1 localhost\ncofferdam\n";
    // `packages` has the rest.
    equal("passwd, group, hosts, hostname", output.stdout.as_str(), expected)
}

fn read_only(caller: &Caller) -> Check {
    for path in [
        "/x",
        "/usr/x",
        "/usr/bin/x",
        "/etc/x",
        "/etc/ssl/x",
        "/dev/x",
        "/mnt/x",
        "/proc/self/root/usr/x",
    ] {
        let output = caller.bash(&format!("> {path}"))?;
        let expected = format!("bash: line 1: {path}: Read-only file system\n");
        equal(path, (output.code, output.stderr), (1, expected))?;
    }
    for (what, script) in [
        ("a link", "ln -s /tmp /usr/x"),
        ("a rename", "mv /etc/hosts /etc/gone"),
        ("a removal", "rm -f /etc/hosts"),
    ] {
        let output = caller.bash(script)?;
        let refused = output.stderr.contains("Read-only file system");
        holds(what, &output, output.code == 1 && refused)?;
    }
    let own =
        caller.bash("for d in /workspace /tmp /tmp/home /dev/shm; do > $d/x && echo $d; done")?;
    equal("the cell's own", own.trimmed(), "/workspace\n/tmp\n/tmp/home\n/dev/shm")
}

fn absent(caller: &Caller) -> Check {
    let paths = "/etc/shadow /etc/ssl/private /root /home /var/log /run /sys/fs /sys/class /boot /opt /srv \
        /var/run/docker.sock /dev/kmsg /dev/mem /dev/console /dev/tty0 /dev/vcs /dev/sda /dev/kvm /dev/fuse";
    let script = format!("for p in {paths}; do [ -e $p ] && echo $p; done; cat /etc/shadow");
    let output = caller.bash(&script)?;
    let expected = "cat: /etc/shadow: No such file or directory\n";
    equal(
        "what is there of them",
        (output.stdout.as_str(), output.stderr.as_str()),
        ("", expected),
    )?;
    let home = caller.home.display().to_string();
    let look = format!("[ -e {home} ] && echo there; :");
    equal("the caller's directory outside", caller.bash_outside(&look)?.trimmed(), "there")?;
    equal("and in a cell", caller.bash(&look)?.trimmed(), "")
}

fn tricks(caller: &Caller) -> Check {
    let secret = caller.file("secret", "of the host\n")?;
    let granted = caller.directory("granted")?;
    std::os::unix::fs::symlink(&secret, granted.join("link"))?;
    std::os::unix::fs::symlink("../secret", granted.join("up"))?;
    let outside = std::fs::read_to_string(granted.join("up"))?;
    equal("outside the links lead to it", outside.as_str(), "of the host\n")?;
    let script = "cd /workspace; for p in link up ../secret ../../../../../../etc/shadow \
        /proc/self/cwd/../secret /proc/self/root/../etc/shadow /proc/1/root/etc/shadow \
        /proc/1/cwd/secret; do cat $p; done; ln -s /etc/shadow s; cat s; ln /etc/passwd h; :";
    let ask = granted.display().to_string();
    let output = caller.run(&["--rw", &ask], &["bash", "-c", script])?;
    equal("nothing was read", output.stdout.as_str(), "")?;
    let none = output.stderr.matches("No such file or directory").count();
    let denied = output.stderr.matches("Permission denied").count();
    let cross = output.stderr.matches("Invalid cross-device link").count();
    equal("seven absent, two of init denied, one across devices", (none, denied, cross), (7, 2, 1))
}

fn flags(caller: &Caller) -> Check {
    let live = caller.live(&[], "sleep 60")?;
    let table = crate::support::proc_file(live.payload()?, "mountinfo")?;
    let table = String::from_utf8(table)?;
    let own = ["/proc", "/dev/shm", "/workspace", "/tmp"];
    let mut count = 0;
    for line in table.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let (Some(target), Some(options)) = (fields.get(4), fields.get(5)) else { continue };
        let has = |option: &str| options.split(',').any(|one| one == option);
        holds("nosuid", line, has("nosuid"))?;
        // nodev would make the devices useless: they are bound one by one.
        holds("nodev", line, has("nodev") || target.starts_with("/dev/"))?;
        holds("read-only", line, has("ro") || own.contains(target))?;
        count += 1;
    }
    holds("a root, the host's programs, the cell's own", count, count > 10)
}

fn mount_calls(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
print(call(133, b'/tmp/b', 0o60666, 0x801), call(133, b'/tmp/c', 0o20666, 0x103), call(259, -100, b'/tmp/d', 0o60666, 0x801))
print(call(133, b'/tmp/f', 0o10666, 0), call(133, b'/tmp/r', 0o100666, 0))
print([call(n, *a) for n, a in {{165: (b'none', b'/tmp', b'tmpfs', 0, None), 1165: (0,), 166: (b'/proc/stat', 2),
  155: (b'/tmp', b'/tmp'), 161: (b'/tmp',), 430: (b'tmpfs', 0), 431: (0, 0, 0, 0, 0), 432: (0, 0, 0), 433: (0, b'/', 0),
  428: (0, b'/', 0), 429: (0, b'', 0, b'', 0), 442: (0, b'/', 0, 0, 0), 304: (0, 0, 0), 457: (0, 0, 0, 0), 458: (0, 0, 0, 0)}}.items() if n < 1000])"
    );
    let output = caller.python(&script)?;
    let expected = format!("EPERM EPERM EPERM\n0 0\n[{}]", ["'EPERM'"; 14].join(", "));
    equal("devices; a FIFO and a file; the mount calls", output.trimmed(), expected)?;
    let remount = caller.bash("mount -o remount,rw / ; umount /proc/stat; head -c9 /proc/stat")?;
    equal("the mask is still there", remount.trimmed(), "cpu  0 0")
}

const FILL: &str = "import os, errno
def fill(path):
    total, block = 0, bytes(1 << 20)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while True: total += os.write(fd, block)
    except OSError as error:
        os.ftruncate(fd, 0)
        return total >> 20, errno.errorcode[error.errno]
";

fn full(caller: &Caller) -> Check {
    let output = caller.python(&format!(
        "{FILL}\nfor d in ('/workspace', '/tmp', '/dev/shm'): print(fill(d + '/f'))"
    ))?;
    equal("MiB and errno", output.trimmed(), "(384, 'ENOSPC')\n(128, 'ENOSPC')\n(64, 'ENOSPC')")
}

fn inodes(caller: &Caller) -> Check {
    let script = "import os, errno
n = 0
try:
    while True: os.mknod(f'/dev/shm/{n}'); n += 1
except OSError as error: print(n, errno.errorcode[error.errno])
print(os.statvfs('/dev/shm').f_files)";
    // The directory itself is one of the 100,000.
    equal("files and errno", caller.python(script)?.trimmed(), "99999 ENOSPC\n100000")
}

fn ro_grant(caller: &Caller) -> Check {
    let granted = caller.directory("granted")?;
    let file = caller.file("granted/file", "before\n")?;
    let ask = granted.display().to_string();
    let script =
        "cat file; echo after > file; > new; rm -f file; chmod 777 file; mkdir d; touch file";
    let output =
        caller.run(&["--ro", &ask], &["bash", "-c", &format!("cd /mnt/granted; {script}")])?;
    equal("it can be read", output.stdout.as_str(), "before\n")?;
    equal("six refusals", output.stderr.matches("Read-only file system").count(), 6)?;
    equal("from outside", std::fs::read_to_string(&file)?.as_str(), "before\n")?;
    equal("nothing new", std::fs::read_dir(&granted)?.count(), 1)?;
    let place = format!("{ask}:/opt/here");
    let output = caller.run(&["--ro", &place], &["cat", "/opt/here/file"])?;
    equal("at another place", output.stdout.as_str(), "before\n")
}

fn rw_grant(caller: &Caller) -> Check {
    use std::os::unix::fs::MetadataExt;
    let granted = caller.directory("granted")?;
    caller.file("granted/old", "old\n")?;
    let ask = granted.display().to_string();
    let script =
        "cat old; echo more >> old; mkdir -p a/b; echo hi > a/b/f; stat -c %U:%G . old a/b/f";
    let output = caller.run(&["--rw", &ask], &["bash", "-c", script])?;
    let agents = "agent:agent\n".repeat(3);
    equal("in the cell", output.stdout, format!("old\n{agents}"))?;
    equal("appended", std::fs::read_to_string(granted.join("old"))?.as_str(), "old\nmore\n")?;
    equal("made", std::fs::read_to_string(granted.join("a/b/f"))?.as_str(), "hi\n")?;
    for path in ["a", "a/b", "a/b/f", "old"] {
        let metadata = std::fs::metadata(granted.join(path))?;
        equal(path, (metadata.uid(), metadata.gid()), (caller.uid(), caller.gid()))?;
    }
    Ok(())
}

fn residue(caller: &Caller) -> Check {
    let mark = "for d in /workspace /tmp /tmp/home /dev/shm; do ls -A $d; > $d/mark; done";
    equal("the first call", caller.bash(mark)?.trimmed(), "home")?;
    equal("the second call", caller.bash(mark)?.trimmed(), "home")?;
    // And from outside, while a cell that has made one runs.
    let _live = caller.live(&[], "sleep 60")?;
    let name = format!("residue-{}-{}", std::process::id(), caller.uid());
    let output = caller.bash(&format!("> /tmp/{name}; > /dev/shm/{name}; ls /tmp"))?;
    holds("it is there in the cell", &output.stdout, output.stdout.contains(&name))?;
    let host =
        ["/tmp", "/dev/shm"].map(|directory| std::path::Path::new(directory).join(&name).exists());
    equal("not on the host", host, [false, false])
}

/// Runs with a writable grant of `grant`: the exit code and what was said.
fn granted(caller: &Caller, home: &std::path::Path, grant: &str) -> Result<(i32, String), Failed> {
    let mut command = caller.run_command(&["--rw", grant], &["true"]);
    command.env("HOME", home);
    let output = Finished::run(command, patience())?;
    Ok((output.code, output.stderr))
}

fn configuration(caller: &Caller) -> Check {
    use std::os::unix::fs::symlink;
    for name in [".config", ".config/cofferdam", "grant", "alias", "alias/home"] {
        caller.directory(name)?;
    }
    let at = |name: &str| caller.home.join(name);
    let grant = at("grant").display().to_string();
    let refused = |grant: &str, target: &std::path::Path| {
        let hint = "an agent must not be able to change its own limits, and";
        let target = target.display();
        let reason = "holds cofferdam's own configuration";
        (125, format!("cofferdam: --rw: `{grant}` {reason}\nhint: {hint} `{target}` leads there\n"))
    };
    equal("next to it", granted(caller, &caller.home, &grant)?, (0, String::new()))?;
    // A file of it is a link into the grant, there or not.
    let file = at(".config/cofferdam/cofferdam.toml");
    symlink(at("grant/server.toml"), &file)?;
    caller.file("grant/server.toml", "schema = 1\n")?;
    equal("a link", granted(caller, &caller.home, &grant)?, refused(&grant, &file))?;
    // Another name of a file of it, which may be in the grant.
    std::fs::remove_file(&file)?;
    std::fs::hard_link(at("grant/server.toml"), &file)?;
    let (code, text) = granted(caller, &caller.home, &grant)?;
    let hint = format!("`{}` has another name as well (a hard link)", file.display());
    holds("a hard link", &text, code == 125 && text.contains(&hint))?;
    std::fs::remove_file(&file)?;
    equal("the control", granted(caller, &caller.home, &grant)?, (0, String::new()))?;
    // The home is reached through a link, and nothing is configured yet.
    symlink(at("alias/home"), at("alias/link"))?;
    let below = at("alias/home").display().to_string();
    let found = granted(caller, &at("alias/link"), &below)?;
    holds("a home by a link", &found, found.0 == 125)?;
    caller.directory("alias/home/.config")?;
    let below = at("alias/home/.config").display().to_string();
    let expected = refused(&below, &at("alias/link/.config/cofferdam"));
    equal("below a home by a link", granted(caller, &at("alias/link"), &below)?, expected)
}

/// A mount shows the configuration in a granted directory.
fn mounted_configuration(caller: &Caller) -> Check {
    for name in ["config", "config/policies", "grant", "grant/sub", "other"] {
        caller.directory(name)?;
    }
    let config = caller.home.join("config").display().to_string();
    let binary = caller.binary().display().to_string();
    let run = |bind: &str| {
        let line = format!(
            "cd {} && {bind} && exec {binary} --config {config} run --rw grant -- echo ran",
            caller.home.display()
        );
        let mut command = caller.outside("unshare");
        command.args(["--mount", "bash", "-c", &line]);
        Finished::run(command, patience())
    };
    equal("nothing of it", run("mount --bind other grant/sub")?.trimmed(), "ran")?;
    for bind in [
        "mount --bind config grant/sub",
        "mount --bind config grant",
        "mount --bind . grant/sub",
        "mount --bind config/policies grant/sub",
        "mount --bind grant/sub config/policies",
    ] {
        let output = run(bind)?;
        let reason = "grant` holds cofferdam's own configuration\n";
        let is_refused = output.code == 125 && output.stderr.contains(reason);
        holds(bind, &output, is_refused)?;
    }
    Ok(())
}

fn refused_grants(caller: &Caller) -> Check {
    let home = caller.home.display().to_string();
    for ask in ["/", home.as_str()] {
        let output = caller.run(&["--rw", ask], &["true"])?;
        let expected = format!(
            "cofferdam: --rw: `{ask}` is never granted as a whole\n\
             hint: grant the one directory that is needed\n"
        );
        equal("refused", (output.code, output.stderr), (125, expected))?;
    }
    // Grants for reading are refused too, also by a link.
    let link = caller.directory("links")?.join("to");
    // A directory that contains the home shows it as well.
    let above = caller.home.parent().unwrap_or(&caller.home).display().to_string();
    for (ask, reason) in [
        ("/", "is never granted as a whole"),
        (above.as_str(), "is never granted as a whole"),
        (home.as_str(), "is never granted as a whole"),
        ("/proc", "shows the processes of the host"),
        ("/sys/fs", "shows the processes of the host"),
    ] {
        std::fs::remove_file(&link).unwrap_or_default();
        std::os::unix::fs::symlink(ask, &link)?;
        for host in [ask, &link.display().to_string()] {
            let output = caller.run(&["--ro", &format!("{host}:/mnt/x")], &["true"])?;
            holds(host, &output, output.code == 125 && output.stderr.contains(reason))?;
        }
    }
    for place in ["/", "/a/../b", "/../x", "/etc", "/lib/x", "/usr"] {
        let ask = format!("/usr/share:{place}");
        let output: Finished =
            Finished::run(caller.run_command(&["--ro", &ask], &["true"]), patience())?;
        holds(
            "no place in the cell",
            &output,
            output.code == 125 && output.stderr.contains("--ro"),
        )?;
    }
    Ok(())
}
