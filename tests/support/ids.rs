//! A caller with ids from subuid(5), in a separate mount namespace, so that the machine's files stay unchanged.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Failed, USER};

/// First id of the ordinary user's range there: unused on any machine.
pub const FIRST: u32 = 1_900_000_000;
pub const COUNT: u32 = 65_536;

/// Binds the files that the directory `$1` has, and its `run` as the place of the user's own, then becomes the user `$2` with the groups `$3`, and
/// gives no privilege to programs where `$4` says so.
const ENTER: &str = r#"
for file in passwd subuid subgid; do mount --bind "$1/$file" "/etc/$file" || exit 99; done
for file in newuidmap newgidmap; do
    if [ -e "$1/$file" ]; then mount --bind "$1/$file" "/usr/bin/$file" || exit 99; fi
done
if [ ! -d /run/user ]; then mount -t tmpfs none /run && mkdir /run/user || exit 99; fi
mount --bind "$1/run" /run/user || exit 99
id=$2 groups=$3 more=$4
shift 4
exec setpriv --reuid "$id" --regid "$id" $groups $more "$@"
"#;

/// Files that the caller finds in place of the machine's own.
#[derive(Debug, Clone)]
pub struct Given {
    directory: PathBuf,
    groups: &'static str,
    more: &'static str,
}

impl Given {
    /// Files in `directory` that give the user a range, with `runtime` in the place of `/run/user`.
    pub fn new(directory: &Path, runtime: &Path) -> Result<Self, Failed> {
        let given = Self { directory: directory.to_owned(), groups: "--clear-groups", more: "" };
        let accounts = std::fs::read_to_string("/etc/passwd")?;
        given.file("passwd", &format!("{accounts}tester:x:{USER}:{USER}::/:/bin/sh\n"))?;
        std::os::unix::fs::symlink(runtime, given.directory.join("run"))?;
        given.ranges(&format!("tester:{FIRST}:{COUNT}\n"))
    }

    /// The same with these lines in both files of ranges.
    pub fn ranges(self, lines: &str) -> Result<Self, Failed> {
        self.file("subuid", lines)?;
        self.file("subgid", lines)?;
        Ok(self)
    }

    /// The same for a user with the groups 4 and 64322.
    pub fn with_groups(self) -> Self {
        Self { groups: "--groups 4,64322", ..self }
    }

    /// The same where others can write where the user's locks are.
    pub fn with_open_locks(self) -> Result<Self, Failed> {
        let run = self.directory.join("run");
        std::fs::remove_file(&run)?;
        std::fs::create_dir(&run)?;
        user_s_own(&run)?;
        super::mode(&run.join(USER.to_string()), 0o777)?;
        Ok(self)
    }

    /// The same for a process that can gain no privilege.
    pub fn without_privileges(self) -> Self {
        Self { more: "--no-new-privs", ..self }
    }

    /// The same with `script` in the place of newuidmap or newgidmap.
    pub fn with_program(self, name: &str, script: &str) -> Result<Self, Failed> {
        let path = self.file(name, &format!("#!/bin/sh\n{script}\n"))?;
        super::mode(&path, 0o755)?;
        Ok(self)
    }

    fn file(&self, name: &str, text: &str) -> Result<PathBuf, Failed> {
        let path = self.directory.join(name);
        std::fs::write(&path, text)?;
        super::mode(&path, 0o644)?;
        Ok(path)
    }

    /// The start of a command line that ends with a program and its arguments.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", ENTER, "sh"]);
        command.arg(&self.directory).arg(USER.to_string()).args([self.groups, self.more]);
        command.arg(program);
        command
    }
}

/// Makes what the ordinary user has below `/run/user`, in a directory that stands for that.
pub fn user_s_own(runtime: &Path) -> std::io::Result<()> {
    let own = runtime.join(USER.to_string());
    std::fs::create_dir(&own)?;
    std::os::unix::fs::chown(&own, Some(USER), Some(USER))?;
    super::mode(&own, 0o700)?;
    super::mode(runtime, 0o755)
}
