//! Sockets that the operator grants: `--socket NAME=PATH` and `[nested] sockets`, examined before
//! any cell.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};

use super::config_paths::HostTree;
use super::error::CliError;
use super::wiring::Settings;
use cell::report::raw;
use model::job::Access;
use model::outcome::{errno_text, in_words};
use model::profile::{SocketName, UnixSockets};
use supervisor::Socket;
use sys::mount::open_resolved;

/// Sockets that one server grants, at most: each is a mount in every cell.
const MOST: usize = 16;
/// Permission bits of a socket that are forbidden to all but its owner, and those that the owner
/// needs.
const OTHERS: u32 = 0o177;
const OWNER: u32 = 0o600;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Hint for sockets that no profile in use takes.
pub(super) const LET_A_PROFILE: &str =
    "let a rule of the policy, or --profile, name `nested` or one like it";

/// Origin of a socket's name, and its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketRequest {
    /// Origin: `--socket`, or the line of a file.
    pub by: String,
    pub host: PathBuf,
}

/// Sockets by their names.
pub(crate) type SocketRequests = BTreeMap<SocketName, SocketRequest>;

impl Settings {
    /// Adds the sockets that the configuration names and those that `flags` name, for the profiles
    /// that take them.
    ///
    /// # Errors
    /// A socket that is refused; a flag if no profile in use takes sockets.
    pub fn with_sockets(mut self, flags: &[String]) -> Result<Self, CliError> {
        let named = &self.loaded.config.nested_sockets;
        let asks = configured(&named.value, &named.source.to_string());
        let asks = with_flags(asks, flags)?;
        if !self.takes_sockets() {
            return match flags.first() {
                None => Ok(self),
                Some(flag) => Err(CliError::new(format!(
                    "--socket: `{flag}`: no profile in use has `unix_sockets`"
                ))
                .with_hint(LET_A_PROFILE)),
            };
        }
        self.sockets = hold(&asks)?;
        self.apart_from_workspaces()?;
        let names: Vec<SocketName> = asks.into_keys().collect();
        self.loaded.profiles.grant_sockets(&names);
        self.profiles.iter_mut().for_each(|profile| profile.grant_sockets(&names));
        Ok(self)
    }

    /// Returns true if a profile in use has `unix_sockets`.
    pub(super) fn takes_sockets(&self) -> bool {
        self.profiles.iter().any(|profile| profile.unix_sockets == UnixSockets::Private)
    }

    /// Refuses a socket in a directory that a cell may write to: the cell could put its own server
    /// in its place, for every client on the host.
    fn apart_from_workspaces(&self) -> Result<(), CliError> {
        let granted = self.granted.iter().flatten();
        let writable = granted.filter(|granted| granted.access != Access::ReadOnly);
        for granted in writable {
            let ground = HostTree::of(&granted.host).map_err(|error| {
                CliError::new(format!("`{}`: {}", granted.host.display(), in_words(&error)))
            })?;
            let lies =
                |socket: &&Socket| ground.reaches(std::slice::from_ref(&socket.host)).is_some();
            if let Some(Socket { name, .. }) = self.sockets.iter().find(lies) {
                return Err(CliError::new(format!(
                    "the socket `{name}` lies in a directory that is granted for writing"
                ))
                .with_hint("have its server listen in a directory of its own, mode 0700"));
            }
        }
        Ok(())
    }
}

/// Adds the flags to the configured sockets; a flag has precedence.
///
/// # Errors
/// A flag that is not `NAME=PATH`, or a name given twice.
pub(crate) fn with_flags(
    mut asks: SocketRequests,
    flags: &[String],
) -> Result<SocketRequests, CliError> {
    let mut typed = SocketRequests::new();
    for flag in flags {
        let bad = |why: &str| {
            CliError::new(format!("--socket: `{flag}` {why}"))
                .with_hint("write NAME=PATH, such as skills=/run/user/1000/skills.sock")
        };
        let (name, path) = flag.split_once('=').ok_or_else(|| bad("has no `=`"))?;
        let name = SocketName::new(name).ok_or_else(|| {
            bad("has a name that is not lower-case letters, digits and dashes, at most 32")
        })?;
        let host = std::path::absolute(path).map_err(|_| bad("names no socket"))?;
        if typed.insert(name, SocketRequest { by: "--socket".to_owned(), host }).is_some() {
            return Err(bad("names a socket that was named before"));
        }
    }
    asks.extend(typed);
    Ok(asks)
}

/// Examines every socket and holds it.
///
/// # Errors
/// The first that is not a socket of the operator's alone, with a hint.
pub(crate) fn hold(asks: &SocketRequests) -> Result<Vec<Socket>, CliError> {
    if asks.len() > MOST {
        return Err(CliError::new(format!(
            "{} sockets are named, at most {MOST} are granted",
            asks.len()
        )));
    }
    let hold = |(name, ask): (&SocketName, &SocketRequest)| {
        let (host, held) = checked(ask)?;
        Ok(Socket { name: name.clone(), host, held: Arc::new(held) })
    };
    asks.iter().map(hold).collect()
}

fn checked(ask: &SocketRequest) -> Result<(PathBuf, OwnedFd), CliError> {
    let shown = ask.host.display();
    let bad = |why: &str| CliError::new(format!("{}: `{shown}` {why}", ask.by));
    let failed = |errno: Errno| {
        let error = bad(&format!("cannot be granted: {}", errno_text(raw(errno))));
        if errno == Errno::ENOENT {
            return error.with_hint("start the server that listens there first");
        }
        error
    };
    let (Some(parent), Some(name)) = (ask.host.parent(), ask.host.file_name()) else {
        return Err(bad("is no socket"));
    };
    let parent = parent.canonicalize().map_err(|error| failed(cell::errno_of(&error)))?;
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    // A link that has come into its path since is not followed.
    let directory = cell::c_path(&parent).and_then(|path| open_resolved(&path)).map_err(failed)?;
    let held = openat(&directory, name, flags, Mode::empty()).map_err(failed)?;
    let (around, socket) = (fstat(&directory).map_err(failed)?, fstat(&held).map_err(failed)?);
    judge(&around, &socket, nix::unistd::geteuid().as_raw()).map_err(
        |SocketRefusal { why, hint }| bad(&why).with_hint(hint.replace("{}", &shown.to_string())),
    )?;
    Ok((parent.join(name), held))
}

/// Reason why a file is not granted as a socket, and a hint; `{}` stands for its path.
#[derive(Debug, PartialEq, Eq)]
struct SocketRefusal {
    why: String,
    hint: &'static str,
}

/// Accepts a socket file of the operator's to which no other user can connect. For root, it may be
/// any user's in whose place no other can act.
fn judge(directory: &FileStat, file: &FileStat, euid: u32) -> Result<(), SocketRefusal> {
    let unfit = |why: String, hint| Err(SocketRefusal { why, hint });
    match kind(file) {
        SFlag::S_IFSOCK => {}
        SFlag::S_IFLNK => {
            return unfit("is a symbolic link".to_owned(), "name the socket that it leads to");
        }
        other => {
            let what = match other {
                SFlag::S_IFDIR => "a directory",
                SFlag::S_IFIFO => "a FIFO",
                SFlag::S_IFREG => "a regular file",
                _ => "a device",
            };
            return unfit(format!("is {what}"), "name the file of a Unix socket");
        }
    }
    if euid != 0 && file.st_uid != euid {
        let why = format!("belongs to uid {}, and cells could not connect", file.st_uid);
        return unfit(why, "start cofferdam as the user of that server");
    }
    let mode = file.st_mode & 0o777;
    if mode & OTHERS != 0 || mode & OWNER != OWNER {
        return unfit(
            format!("has mode {mode:04o}, and a granted socket is its owner's alone (0600)"),
            "chmod 600 {}",
        );
    }
    let open_to_others = directory.st_mode & OTHERS_WRITE != 0;
    let kept_apart = directory.st_mode & STICKY != 0 && file.st_uid == euid;
    if open_to_others && !kept_apart {
        return unfit(
            "lies in a directory where others can replace it".to_owned(),
            "have the server listen in a directory of its own, mode 0700",
        );
    }
    Ok(())
}

fn kind(file: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(file.st_mode & SFlag::S_IFMT.bits())
}

/// Returns the sockets as the configuration names them.
pub(crate) fn configured(sockets: &BTreeMap<SocketName, PathBuf>, by: &str) -> SocketRequests {
    let ask = |host: &Path| SocketRequest { by: by.to_owned(), host: host.to_owned() };
    sockets.iter().map(|(name, path)| (name.clone(), ask(path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(flags: &[&str]) -> Result<Vec<String>, String> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let asks = with_flags(SocketRequests::new(), &flags).map_err(|error| error.text())?;
        Ok(asks.iter().map(|(name, ask)| format!("{name} {}", ask.host.display())).collect())
    }

    fn status(mode: u32, uid: u32) -> std::io::Result<FileStat> {
        let mut status = fstat(std::fs::File::open("/")?)?;
        (status.st_mode, status.st_uid) = (mode, uid);
        Ok(status)
    }

    fn judged(directory: u32, file: (u32, u32), euid: u32) -> std::io::Result<String> {
        let verdict = judge(&status(directory, 0)?, &status(file.0, file.1)?, euid);
        Ok(verdict.map_or_else(|unfit| unfit.why, |()| "granted".to_owned()))
    }

    #[test]
    fn a_flag_names_a_socket_and_counts_more_than_a_file() -> Result<(), CliError> {
        assert_eq!(
            flags(&["skills=/a/s", "b=/c=d"]),
            Ok(vec!["b /c=d".into(), "skills /a/s".into()])
        );
        for bad in ["skills", "Skills=/a", "=/a", "a="] {
            let told = flags(&[bad]);
            let named = format!("cofferdam: --socket: `{bad}` ");
            assert!(told.as_ref().is_err_and(|told| told.starts_with(&named)), "{told:?}");
        }
        assert!(flags(&["a=/b", "a=/c"]).is_err_and(|told| told.contains("named before")));
        let name = SocketName::new("skills").unwrap_or_else(|| unreachable!("well formed"));
        let file = configured(&BTreeMap::from([(name, PathBuf::from("/file"))]), "here");
        let both = with_flags(file, &["skills=/flag".to_owned()])?;
        assert_eq!(
            both.values().map(|ask| ask.host.as_path()).collect::<Vec<_>>(),
            [Path::new("/flag")]
        );
        Ok(())
    }

    #[test]
    fn only_a_socket_that_nobody_else_can_use_or_replace_is_granted() -> std::io::Result<()> {
        let socket = libc::S_IFSOCK | 0o600;
        assert_eq!(judged(0o700, (socket, 7), 7)?, "granted");
        // Root may grant another user's server.
        assert_eq!(judged(0o700, (socket, 7), 0)?, "granted");
        assert_eq!(judged(0o700, (socket, 8), 7)?, "belongs to uid 8, and cells could not connect");
        assert_eq!(judged(0o1777, (socket, 7), 7)?, "granted");
        let replaced = "lies in a directory where others can replace it";
        assert_eq!(judged(0o1777, (socket, 7), 0)?, replaced);
        assert_eq!(judged(0o770, (socket, 7), 7)?, replaced);
        for (kind, what) in [
            (libc::S_IFIFO, "is a FIFO"),
            (libc::S_IFREG, "is a regular file"),
            (libc::S_IFLNK, "is a symbolic link"),
            (libc::S_IFDIR, "is a directory"),
            (libc::S_IFCHR, "is a device"),
        ] {
            assert_eq!(judged(0o700, (kind | 0o600, 7), 7)?, what);
        }
        for mode in [0o755, 0o660, 0o602, 0o400, 0o700] {
            let why =
                format!("has mode {mode:04o}, and a granted socket is its owner's alone (0600)");
            assert_eq!(judged(0o700, (libc::S_IFSOCK | mode, 7), 7)?, why);
        }
        Ok(())
    }
}
