//! Sockets that the operator grants: `--socket NAME=PATH` and `[nested] sockets`, examined before
//! any cell.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};

use super::config_paths::{ForbiddenPath, HostMounts, HostTree};
use super::request::SocketFlag;
use crate::commands::error::CliError;
use crate::commands::settings::Settings;
use cell::report::raw;
use model::job::Access;
use model::outcome::{errno_text, in_words};
use model::profile::{SocketName, UnixSockets};
use supervisor::Socket;
use sys::mount::open_resolved;

/// Maximum number of sockets that one server grants: each is a mount in every cell.
const MAX_SOCKETS: usize = 16;
/// Permission bits that a granted socket must not have.
const FORBIDDEN_BITS: u32 = 0o177;
/// Permission bits that a granted socket must have.
const OWNER_BITS: u32 = 0o600;
/// Permission bits of a directory in which others can replace files.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Hint for sockets that no profile in use takes.
pub(crate) const LET_A_PROFILE: &str =
    "let a rule of the policy, or --profile, name `nested` or one like it";

/// Origin of a socket's name, and its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketRequest {
    /// The flag, or the line of a file.
    pub origin: String,
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
    pub(crate) fn grant_sockets(&mut self, flags: &[SocketFlag]) -> Result<(), CliError> {
        let named = &self.loaded.config.nested_sockets;
        let requests = configured(&named.value, &named.source.to_string());
        let requests = with_flags(requests, flags)?;
        if !self.takes_sockets() {
            return match flags.first() {
                None => Ok(()),
                Some(SocketFlag { flag, typed }) => Err(CliError::new(format!(
                    "{flag}: `{typed}`: no profile in use has `unix_sockets`"
                ))
                .with_hint(LET_A_PROFILE)),
            };
        }
        self.sockets = open_all(&requests)?;
        self.check_writable_grants()?;
        let names: Vec<SocketName> = requests.into_keys().collect();
        self.loaded.profiles.grant_sockets(&names);
        self.profiles.iter_mut().for_each(|profile| profile.grant_sockets(&names));
        Ok(())
    }

    /// Returns true if a profile in use has `unix_sockets`.
    pub(crate) fn takes_sockets(&self) -> bool {
        self.profiles.iter().any(|profile| profile.unix_sockets == UnixSockets::Private)
    }

    /// Refuses a socket in a directory that cells may write to: a cell could replace it with a
    /// socket of a server in the cell, for every client on the host.
    fn check_writable_grants(&self) -> Result<(), CliError> {
        let granted = self.granted.iter().flatten();
        let writable = granted.filter(|granted| granted.access != Access::ReadOnly);
        if self.sockets.is_empty() {
            return Ok(());
        }
        let mounts = HostMounts::read()
            .map_err(|error| CliError::new(format!("the host's mounts: {}", in_words(&error))))?;
        let paths = self.sockets.iter().map(|socket| socket.host.clone()).collect();
        let paths = ForbiddenPath::follow(paths, &mounts);
        for granted in writable {
            let tree = HostTree::examine(&granted.host, &mounts).map_err(|error| {
                CliError::new(format!("`{}`: {}", granted.host.display(), in_words(&error)))
            })?;
            let reached = self.sockets.iter().zip(paths.chunks(1));
            let mut reached = reached.filter(|(_, path)| tree.reaches(path).is_some());
            if let Some((Socket { name, .. }, _)) = reached.next() {
                return Err(CliError::new(format!(
                    "the socket `{name}` lies in a directory that is granted for writing"
                ))
                .with_hint("have its server listen in a separate directory, mode 0700"));
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
    mut requests: SocketRequests,
    flags: &[SocketFlag],
) -> Result<SocketRequests, CliError> {
    let mut typed = SocketRequests::new();
    for SocketFlag { flag, typed: text } in flags {
        let bad = |fault: &str| {
            CliError::new(format!("{flag}: `{text}` {fault}"))
                .with_hint("write NAME=PATH, such as skills=/run/user/1000/skills.sock")
        };
        let (name, path) = text.split_once('=').ok_or_else(|| bad("has no `=`"))?;
        let name = SocketName::new(name).ok_or_else(|| {
            bad("has a name that is not lower-case letters, digits and dashes, at most 32")
        })?;
        let host = std::path::absolute(path).map_err(|_| bad("names no socket"))?;
        let origin = (*flag).to_owned();
        if typed.insert(name, SocketRequest { origin, host }).is_some() {
            return Err(bad("names a socket that was named before"));
        }
    }
    requests.extend(typed);
    Ok(requests)
}

/// Examines every socket and opens it.
///
/// # Errors
/// The first socket that not only the operator can use, with a hint.
pub(crate) fn open_all(requests: &SocketRequests) -> Result<Vec<Socket>, CliError> {
    if requests.len() > MAX_SOCKETS {
        return Err(CliError::new(format!(
            "{} sockets are named, at most {MAX_SOCKETS} are granted",
            requests.len()
        )));
    }
    let open = |(name, request): (&SocketName, &SocketRequest)| {
        let (host, socket) = checked(request)?;
        Ok(Socket { name: name.clone(), host, held: Arc::new(socket) })
    };
    requests.iter().map(open).collect()
}

/// Opens a socket that may be granted. Returns its resolved path and the descriptor.
fn checked(request: &SocketRequest) -> Result<(PathBuf, OwnedFd), CliError> {
    let shown = request.host.display();
    let bad = |fault: &str| CliError::new(format!("{}: `{shown}` {fault}", request.origin));
    let failed = |errno: Errno| {
        let error = bad(&format!("cannot be granted: {}", errno_text(raw(errno))));
        if errno == Errno::ENOENT {
            return error.with_hint("start the server that listens there first");
        }
        error
    };
    let (Some(parent), Some(name)) = (request.host.parent(), request.host.file_name()) else {
        return Err(bad("is no socket"));
    };
    let parent = parent.canonicalize().map_err(|error| failed(cell::errno_of(&error)))?;
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    // A link that was put into the path since is not followed.
    let directory = cell::c_path(&parent).and_then(|path| open_resolved(&path)).map_err(failed)?;
    let socket = openat(&directory, name, flags, Mode::empty()).map_err(failed)?;
    let directory_status = fstat(&directory).map_err(failed)?;
    let socket_status = fstat(&socket).map_err(failed)?;
    judge(&directory_status, &socket_status, nix::unistd::geteuid().as_raw()).map_err(
        |SocketRefusal { fault, hint }| {
            bad(&fault).with_hint(hint.replace("{}", &shown.to_string()))
        },
    )?;
    Ok((parent.join(name), socket))
}

/// Reason why a file is not granted as a socket, and a hint, in which `{}` stands for the path.
#[derive(Debug, PartialEq, Eq)]
struct SocketRefusal {
    fault: String,
    hint: &'static str,
}

/// Accepts a socket of the operator to which no other user can connect. Root may grant the socket of any
/// user, if no further user can replace it.
fn judge(directory: &FileStat, file: &FileStat, euid: u32) -> Result<(), SocketRefusal> {
    let unfit = |fault: String, hint| Err(SocketRefusal { fault, hint });
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
        let fault = format!("belongs to uid {}, and cells could not connect", file.st_uid);
        return unfit(fault, "start cofferdam as the user of that server");
    }
    let mode = file.st_mode & 0o777;
    if mode & FORBIDDEN_BITS != 0 || mode & OWNER_BITS != OWNER_BITS {
        return unfit(
            format!("has mode {mode:04o}, and a granted socket is its owner's alone (0600)"),
            "chmod 600 {}",
        );
    }
    let open_to_others = directory.st_mode & OTHERS_WRITE != 0;
    let is_sticky = directory.st_mode & STICKY != 0 && file.st_uid == euid;
    if open_to_others && !is_sticky {
        return unfit(
            "lies in a directory where others can replace it".to_owned(),
            "have the server listen in a separate directory, mode 0700",
        );
    }
    Ok(())
}

fn kind(file: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(file.st_mode & SFlag::S_IFMT.bits())
}

/// Returns the sockets that the configuration names.
pub(crate) fn configured(sockets: &BTreeMap<SocketName, PathBuf>, origin: &str) -> SocketRequests {
    let request = |host: &Path| SocketRequest { origin: origin.to_owned(), host: host.to_owned() };
    sockets.iter().map(|(name, path)| (name.clone(), request(path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(flags: &[&str]) -> Result<Vec<String>, String> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let flags = SocketFlag::all("--socket", &flags);
        let requests = with_flags(SocketRequests::new(), &flags).map_err(|error| error.text())?;
        let shown = |(name, request): (&SocketName, &SocketRequest)| {
            format!("{name} {}", request.host.display())
        };
        Ok(requests.iter().map(shown).collect())
    }

    fn status(mode: u32, uid: u32) -> std::io::Result<FileStat> {
        let mut status = fstat(std::fs::File::open("/")?)?;
        status.st_mode = mode;
        status.st_uid = uid;
        Ok(status)
    }

    fn judged(directory: u32, (mode, uid): (u32, u32), euid: u32) -> std::io::Result<String> {
        let verdict = judge(&status(directory, 0)?, &status(mode, uid)?, euid);
        Ok(verdict.map_or_else(|unfit| unfit.fault, |()| "granted".to_owned()))
    }

    #[test]
    fn a_flag_names_a_socket_and_overrides_a_file() -> Result<(), CliError> {
        assert_eq!(
            flags(&["skills=/a/s", "b=/c=d"]),
            Ok(vec!["b /c=d".into(), "skills /a/s".into()])
        );
        for bad in ["skills", "Skills=/a", "=/a", "a="] {
            let result = flags(&[bad]);
            let expected = format!("cofferdam: --socket: `{bad}` ");
            assert!(result.as_ref().is_err_and(|error| error.starts_with(&expected)), "{result:?}");
        }
        assert!(flags(&["a=/b", "a=/c"]).is_err_and(|error| error.contains("named before")));
        let name = SocketName::new("skills").unwrap_or_else(|| unreachable!("well formed"));
        let file = configured(&BTreeMap::from([(name, PathBuf::from("/file"))]), "here");
        let typed = SocketFlag::all("--nested", &["skills=/flag".to_owned()]);
        let both = with_flags(file, &typed)?;
        assert_eq!(
            both.values()
                .map(|request| (request.origin.as_str(), request.host.as_path()))
                .collect::<Vec<_>>(),
            [("--nested", Path::new("/flag"))]
        );
        Ok(())
    }

    #[test]
    fn a_socket_that_others_can_use_or_replace_is_refused() -> std::io::Result<()> {
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
            let fault =
                format!("has mode {mode:04o}, and a granted socket is its owner's alone (0600)");
            assert_eq!(judged(0o700, (libc::S_IFSOCK | mode, 7), 7)?, fault);
        }
        Ok(())
    }
}
