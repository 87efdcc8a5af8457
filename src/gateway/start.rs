//! Starts the gateway from main, and takes the new process from clone to its confinement.

use std::os::fd::{AsFd, OwnedFd};

use model::egress::frames::{FromGateway, encode};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::Mode;

use cell::ids::{Supplementary, become_id, write_map};
use cell::{fds, tied};
use sys::process::{self, ArgumentPages, Dumpable, Side};
use sys::signals;
use sys::socket::{PacketWait, receive, send};

use crate::intercept::Prepared;
use crate::{GatewaySpec, confine, event_loop};

/// Reasons why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayStartError {
    #[error("the gateway's namespaces cannot be made: {0}")]
    Clone(Errno),
    #[error("the gateway's ids cannot be mapped: {0}")]
    Maps(Errno),
    /// From reading secrets, making the authority or reading roots.
    #[error("requests cannot be read: {0}")]
    Prepare(String),
}

/// A gateway that is starting. Its first frame on the link reports whether it came up.
#[derive(Debug)]
pub struct StartedGateway {
    pub pid: i32,
    pub pidfd: OwnedFd,
    /// DER certificate of the authority that cells of profiles with interception must trust; empty
    /// if no profile has interception.
    pub authority: Vec<u8>,
}

/// Maximum size of the authority's certificate, which lists each intercepted name.
const MAX_AUTHORITY_BYTES: usize = 64 << 10;
/// First byte of the gateway's report: a certificate follows.
const PREPARED: u8 = b'+';
/// First byte of the gateway's report: the text of an error follows.
const NOT_PREPARED: u8 = b'-';

/// Neither CLONE_NEWNET, as the gateway makes its connections from the host, nor CLONE_NEWCGROUP.
const NAMESPACES: nix::libc::c_int = nix::libc::CLONE_NEWUSER
    | nix::libc::CLONE_NEWNS
    | nix::libc::CLONE_NEWPID
    | nix::libc::CLONE_NEWIPC
    | nix::libc::CLONE_NEWUTS;

/// Starts the gateway with `link` as its end of the link. Call it from `main` while there is one
/// thread, before the supervisor is cloned. The gateway ends when main does, or when the other end
/// of the link closes.
///
/// # Errors
/// The step of main that failed. A failed step of the gateway arrives as the first frame on the
/// link.
pub fn start(link: OwnedFd, spec: GatewaySpec) -> Result<StartedGateway, GatewayStartError> {
    let (go, wait) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .map_err(GatewayStartError::Clone)?;
    match process::clone3(NAMESPACES, None).map_err(GatewayStartError::Clone)? {
        Side::Child => {
            drop(go);
            run(link, &wait, spec)
        }
        Side::Parent(child) => {
            drop((wait, link));
            map(child.pid, spec.id).map_err(GatewayStartError::Maps)?;
            let authority = prepared(&go)?;
            send(&go, b"go", &[]).map_err(GatewayStartError::Maps)?;
            Ok(StartedGateway { pid: child.pid, pidfd: child.pidfd, authority })
        }
    }
}

/// Waits until the gateway is prepared; returns the certificate of its authority.
fn prepared(go: &OwnedFd) -> Result<Vec<u8>, GatewayStartError> {
    let mut buffer = vec![0; MAX_AUTHORITY_BYTES];
    let received = receive(go, &mut buffer, PacketWait::Yes)
        .map_err(|errno| GatewayStartError::Prepare(errno.desc().to_owned()))?;
    match buffer.get(..received.bytes).and_then(<[u8]>::split_first) {
        Some((&PREPARED, authority)) => Ok(authority.to_vec()),
        Some((_, reason)) => {
            Err(GatewayStartError::Prepare(String::from_utf8_lossy(reason).into_owned()))
        }
        None => Err(GatewayStartError::Prepare("the gateway has ended".to_owned())),
    }
}

/// Writes the id maps: one id of the host becomes id 0 of the gateway.
fn map(pid: i32, id: Option<u32>) -> Result<(), Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = open(format!("/proc/{pid}").as_str(), flags, Mode::empty())?;
    let uid = id.unwrap_or_else(|| nix::unistd::geteuid().as_raw());
    let gid = id.unwrap_or_else(|| nix::unistd::getegid().as_raw());
    if id.is_none() {
        // Without this an ordinary user may not write a gid map (user_namespaces(7)).
        write_map(directory.as_fd(), "setgroups", "deny")?;
    }
    write_map(directory.as_fd(), "gid_map", &format!("0 {gid} 1"))?;
    write_map(directory.as_fd(), "uid_map", &format!("0 {uid} 1"))
}

/// Runs the gateway; never returns.
fn run(link: OwnedFd, wait: &OwnedFd, spec: GatewaySpec) -> ! {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // A file with a secret may be on a file system that does not answer. The change of ids resets it.
        if process::set_death_signal(Signal::SIGKILL).is_err() {
            return;
        }
        let Some(prepared) = prepare(wait, &spec) else { return };
        match forget_environment().and_then(|()| enter(&link, wait, spec.id.is_some())) {
            Ok(()) => event_loop::serve(&link, &spec, prepared),
            Err((step, errno)) => {
                let why = format!("{step}: {}", errno.desc());
                let frame = encode(&FromGateway::Failed { cell: None, why }).unwrap_or_default();
                // Without a reader, the closed link itself reports the failure.
                send(&link, &frame, &[]).unwrap_or_default();
            }
        }
    }));
    process::exit_now(i32::from(outcome.is_err()));
}

/// Reads the secrets and makes the authority, then reports to main. Runs before the gateway drops
/// the operator's ids and root directory, which are needed to read the secrets.
fn prepare(wait: &OwnedFd, spec: &GatewaySpec) -> Option<Prepared> {
    let (report, prepared) = match Prepared::new(spec) {
        Ok(prepared) => ([vec![PREPARED], prepared.authority()].concat(), Some(prepared)),
        Err(error) => ([vec![NOT_PREPARED], with_causes(&error).into_bytes()].concat(), None),
    };
    // Main would receive a truncated certificate.
    let (report, prepared) = match report.len() > MAX_AUTHORITY_BYTES {
        true => ([&[NOT_PREPARED], "there are too many hosts".as_bytes()].concat(), None),
        false => (report, prepared),
    };
    send(wait, &report, &[]).ok()?;
    prepared
}

/// Erases the operator's arguments and environment, which may hold secrets of other profiles or of
/// no profile: a worker that is taken over has the gateway's memory.
fn forget_environment() -> Result<(), (&'static str, Errno)> {
    let pages = ArgumentPages::locate();
    let pages = pages.map_err(|error| ("finding the environment", cell::errno_of(&error)))?;
    pages.clear("cofferdam-gateway");
    Ok(())
}

/// Returns an error's message with those of its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Takes the gateway from the clone to its confinement.
fn enter(link: &OwnedFd, wait: &OwnedFd, by_root: bool) -> Result<(), (&'static str, Errno)> {
    let at = |step: &'static str| move |errno: Errno| (step, errno);
    let mut go = [0; 8];
    let received = receive(wait, &mut go, PacketWait::Yes).map_err(at("waiting for main"))?;
    if received.bytes == 0 {
        return Err(("waiting for main", Errno::EPIPE));
    }
    // Keeps signals of the operator's terminal away.
    nix::unistd::setsid().map(drop).map_err(at("starting a session"))?;
    // Only root's gateway drops its groups; an ordinary user may not.
    let groups = if by_root { Supplementary::Dropped } else { Supplementary::Kept };
    become_id(0, groups).map_err(at("changing ids"))?;
    // After the last change of ids, which resets both.
    process::set_death_signal(Signal::SIGKILL).map_err(at("setting the death signal"))?;
    process::set_dumpable(Dumpable::No).map_err(at("becoming untraceable"))?;
    if !process::is_open(link).map_err(at("looking at the link"))? {
        return Err(("looking at the link", Errno::EPIPE));
    }
    tied::silence().map_err(at("replacing the operator's streams"))?;
    fds::keep_only([link.as_fd()].into_iter()).map_err(at("closing descriptors"))?;
    signals::default_signals().map_err(at("resetting signals"))?;
    confine::gateway().map_err(at("confining the gateway"))
}
