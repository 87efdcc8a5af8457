//! The terminals of a session: a separate devpts, in which only the supervisor can open new ones.
//!
//! A call that asks for a terminal gets a new one. The cell sees those that its calls have, by number,
//! and `ptmx` with no mode at all: a program can neither make a terminal nor reach one of another
//! session or of the host, whose devpts is not mounted anywhere in the cell.

use std::os::fd::OwnedFd;

use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, mkdirat};

use crate::rootfs::terminals::{PTMX, Terminal, open_in};
use cell::mounts::{HIDDEN_TERMINALS, MAILBOX};
use model::profile::TerminalSize;
use sys::Result;

/// Maximum terminals of one session at once, including those whose command has ended and that
/// background processes still hold.
const MAX_TERMINALS: u32 = 64;
/// Size that programs see, in characters.
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

/// Name of their directory in the mailbox.
const DIRECTORY: &str = "pts";

/// The devpts of a session.
#[derive(Debug)]
pub(crate) struct Terminals(OwnedFd);

impl Terminals {
    /// Mounts a devpts on the mailbox, in the mount namespace of this process. Its terminals belong to
    /// `owner`.
    ///
    /// # Errors
    /// The errno with which a kernel or a container refuses it: then the session has no terminals.
    pub(crate) fn set_up(mailbox: &OwnedFd, owner: u32) -> Result<Self> {
        const NONE: Option<&str> = None;
        mkdirat(mailbox, DIRECTORY, Mode::from_bits_truncate(0o755))?;
        let hidden = HIDDEN_TERMINALS;
        let shown = format!("{MAILBOX}/{DIRECTORY}");
        let shown = shown.as_str();
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
        let options =
            format!("mode=0600,ptmxmode=0000,uid={owner},gid={owner},max={MAX_TERMINALS}");
        mount(Some("devpts"), hidden, Some("devpts"), flags, Some(options.as_str()))?;
        mount(Some(hidden), shown, NONE, MsFlags::MS_BIND, NONE)?;
        // Terminals are read and written all the same; nothing else here is for the cell to change.
        let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(NONE, shown, NONE, flags | read_only, NONE)?;
        let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        openat(AT_FDCWD, hidden, directory, Mode::empty()).map(Self)
    }

    /// Opens a new terminal.
    ///
    /// # Errors
    /// ENOSPC: [`MAX_TERMINALS`] are in use.
    pub(crate) fn open(&self) -> Result<Terminal> {
        // The supervisor has no rights above its owner's. If it runs as an ordinary user, that is the
        // cell's uid too: a program that opens `ptmx` at this moment gets one more terminal.
        self.mode(Mode::S_IRUSR | Mode::S_IWUSR)?;
        let terminal = open_in(&self.0, TerminalSize { rows: ROWS, columns: COLUMNS });
        self.mode(Mode::empty())?;
        terminal
    }

    /// Sets the mode of `ptmx`.
    fn mode(&self, mode: Mode) -> Result<()> {
        fchmodat(&self.0, PTMX, mode, FchmodatFlags::FollowSymlink)
    }
}
