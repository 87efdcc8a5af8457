//! The mailbox of a session: files and FIFOs by which its shell gets calls and reports their ends.
//!
//! The mailbox is a small filesystem that only the supervisor writes. The cell has it read-only at `/dev/session`:
//! a program can open its files, and can neither make, remove nor change any. The
//! supervisor keeps the writable mount as a descriptor; no path of the host is opened.
//!
//! Call `N` has the files `cmd.N` (the command), `run.N` (the lines around it, or nothing if the shell has them
//! already), `in.N`, `out.N`, `err.N` (its streams), `end.N` (where the shell rings), `fed.N` (a line before the command, where the input is a
//! pipe or a terminal) and `go.N`: opening it waits until the supervisor
//! opens it too. A wait cannot be stolen, as bytes in a pipe can.
//! Each call has separate names, so the later output of a background process reaches the reader of
//! the call that started it. The names of the call that runs are open to every process of the session, so what
//! comes in `end.N` is not trusted: it makes the supervisor look at the shell (`shell/shown.rs`). `sixteens.D`
//! and `ones.D` are empty; which of them the shell holds is the exit code. `unstop` has lines that bash reads after an
//! interrupt.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, fstat, mkdirat, mknodat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use super::loops::{self, CallLines, ONES, SIXTEENS};
use crate::cells::attachments::Attachment;
use crate::cells::streams::FarEnds;
use crate::rootfs::terminals::{self, Terminal};
use cell::errno_of;
use cell::mounts::{HIDDEN_MAILBOX, MAILBOX, SHOWN_MAILBOX, TERMINALS, Tmpfs, WORKSPACE};
use cell::report::{Digits, InputFile, Marks};
use model::call::{Cwd, Env, SCRIPT_BYTES, STDIN_BYTES};
use model::job::JobMode;
use model::profile::TerminalSize;
use model::shells::ShellKind;
use model::wire::StdinKind;
use sys::mount::{attach, clone_tree};

/// Options of the filesystem: room for the command and the input of a call (at most 9 MiB), and for files that
/// programs keep open.
const OPTIONS: &str = "size=24m,nr_inodes=288,mode=0755";
/// Files of one call.
const NAMES: [&str; 8] = ["in", "out", "err", "end", "cmd", "fed", "run", GATE];
/// Directory of the filesystem that the cell has. FIFOs are made outside it: the cell may have the supervisor's uid,
/// and could open those that are not finished.
const SHOWN: &str = "shown";
/// Files that the shell writes to.
const OUTPUT: [&str; 3] = ["out", "err", "end"];
/// File at which the shell waits.
const GATE: &str = "go";
/// Size of a call's terminal that programs see.
const TERMINAL_SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

/// The mailbox as the supervisor holds it.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// The directory that the cell has.
    directory: OwnedFd,
    /// The whole filesystem, in which the output of the next call is made.
    store: OwnedFd,
    /// The session's devpts; `None` where the kernel or a container refuses one.
    terminals: Option<Rc<OwnedFd>>,
    /// Number of the next call. It is not reset with a new shell, so that no name is used twice.
    next: u64,
    /// Device number of the filesystem.
    device: u64,
    /// Files that stand for exit codes.
    digits: Digits,
    /// Output of the next call, made while the session was idle.
    prepared: Option<Output>,
    /// A call that is over, whose files still exist. They are open as long as they have names: the shell may be
    /// late, and would wait forever at a FIFO without another end.
    over: Option<PendingCall>,
}

/// FIFOs of a call's output and report.
#[derive(Debug)]
struct Output {
    /// Ends that keep a stream from ending before the shell has opened it.
    held: Vec<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
    end: OwnedFd,
}

/// The files that the supervisor holds open while a call runs.
#[derive(Debug)]
pub(crate) struct PendingCall {
    pub number: u64,
    /// The report's reading end.
    pub end: OwnedFd,
    /// Ends that keep a stream from ending before the shell has opened it, and the gate.
    _held: Vec<OwnedFd>,
    /// Both ends of an input, until the shell has it open.
    input: Option<OwnedFd>,
    /// Files by which the shell shows its end.
    pub marks: Marks,
    /// The input that stays open.
    pub input_file: Option<InputFile>,
    /// The command's end of its terminal, which has not ended before the command has opened it.
    pub terminal: Option<OwnedFd>,
}

/// A call that could not be delivered; the shell saw nothing of it.
#[derive(Debug)]
pub(crate) struct Undelivered {
    pub errno: Errno,
    pub lacks: Lacks,
    pub shell: ShellWait,
}

/// The part of a call that could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacks {
    File,
    Terminal,
}

/// The gate at which the shell waits after a call that could not be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShellWait {
    /// At the gate of the next call, which will be opened.
    ForNextCall,
    /// At a gate that nothing opens any more.
    Forever,
}

impl PendingCall {
    /// Closes the input, which the shell has open: from here on the caller ends it.
    pub(crate) fn opened(&mut self) {
        self.input = None;
    }
}

/// Makes a copy of `template`'s mounts in which the private workspace of a session is mounted, and nothing else of
/// what `session`, the mount namespace of its shell, has.
///
/// # Errors
/// The errno of the step that failed; the mounts are gone with it.
pub(crate) fn with_workspace(
    template: &OwnedFd,
    session: &OwnedFd,
    proc: &OwnedFd,
) -> Result<OwnedFd, Errno> {
    setns(session, CloneFlags::CLONE_NEWNS)?;
    let workspace = clone_tree(WORKSPACE)?;
    setns(template, CloneFlags::CLONE_NEWNS)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    attach(workspace, WORKSPACE)?;
    own_namespace(proc)
}

/// Opens the mount namespace that this process is in.
fn own_namespace(proc: &OwnedFd) -> Result<OwnedFd, Errno> {
    openat(proc, "self/ns/mnt", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
}

/// The supervisor's ends of a call's input.
#[derive(Debug, Default)]
struct Input {
    /// Writing end for the caller.
    writer: Option<OwnedFd>,
    /// Both ends in one descriptor.
    ends: Option<OwnedFd>,
}

/// The parts of a call that go into the mailbox.
#[derive(Debug)]
pub(crate) struct CallRequest<'a> {
    pub script: &'a Attachment,
    /// The whole input, if it is known: then it is a file, at whose end the input ends.
    pub input: Option<&'a Attachment>,
    pub env: &'a Env,
    pub cwd: Option<&'a Cwd>,
    pub stdin: StdinKind,
    pub mode: JobMode,
    pub shell: ShellKind,
}

impl Mailbox {
    /// Makes a copy of `template`'s mounts with a mailbox in it, and `workspace` where the session
    /// has a private one. Cells of the session are cloned from it, one after the other.
    ///
    /// # Errors
    /// The errno of the step that failed; the mounts are gone with it.
    pub(crate) fn set_up(
        template: &OwnedFd,
        proc: &OwnedFd,
        workspace: Option<&Tmpfs>,
        owner: u32,
    ) -> Result<(Self, OwnedFd), Errno> {
        const NONE: Option<&str> = None;
        setns(template, CloneFlags::CLONE_NEWNS)?;
        unshare(CloneFlags::CLONE_NEWNS)?;
        workspace.map_or(Ok(()), Tmpfs::mount)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("tmpfs"), HIDDEN_MAILBOX, Some("tmpfs"), flags, Some(OPTIONS))?;
        let opened = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let store = openat(AT_FDCWD, HIDDEN_MAILBOX, opened, Mode::empty())?;
        let mode = READABLE | Mode::S_IWUSR | Mode::S_IXUSR | Mode::S_IXGRP | Mode::S_IXOTH;
        mkdirat(&store, SHOWN, mode)?;
        // mkdir(2) leaves out what the operator's umask takes away.
        fchmodat(&store, SHOWN, mode, FchmodatFlags::FollowSymlink)?;
        mount(Some(SHOWN_MAILBOX), MAILBOX, NONE, MsFlags::MS_BIND, NONE)?;
        let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(NONE, MAILBOX, NONE, flags | read_only, NONE)?;
        let directory = openat(&store, SHOWN, opened, Mode::empty())?;
        let terminals = match terminals::mount_at(TERMINALS, owner) {
            Ok(terminals) => Some(Rc::new(terminals)),
            Err(errno) => {
                tracing::warn!(%errno, "sessions have no terminals here");
                None
            }
        };
        let shell = own_namespace(proc)?;
        let digits = Digits::default();
        let device = fstat(&directory)?.st_dev;
        let mut mailbox = Self {
            directory,
            store,
            terminals,
            next: 1,
            device,
            digits,
            prepared: None,
            over: None,
        };
        mailbox.gate(mailbox.next)?;
        for (file, text) in loops::CONSTANT_FILES {
            mailbox.write(file, text.as_bytes())?;
        }
        mailbox.digits =
            Digits { sixteens: mailbox.make_digits(SIXTEENS)?, ones: mailbox.make_digits(ONES)? };
        Ok((mailbox, shell))
    }

    /// Returns the session's devpts, which is mounted in the session's mounts.
    pub(crate) fn terminals(&self) -> Option<Rc<OwnedFd>> {
        self.terminals.clone()
    }

    /// Returns the number of the next call, whose gate exists already.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Makes the files that stand for one digit of exit codes.
    fn make_digits(&self, part: &str) -> Result<[u64; 16], Errno> {
        let mut inodes = [0; 16];
        for (digit, inode) in (0..).zip(&mut inodes) {
            let file = self.write(&name(part, digit), &[])?;
            *inode = fstat(&file)?.st_ino;
        }
        Ok(inodes)
    }

    fn gate(&self, number: u64) -> Result<(), Errno> {
        match self.fifo(&name(GATE, number), READABLE) {
            // The delivery that made it failed later.
            Err(Errno::EEXIST) => Ok(()),
            made => made,
        }
    }

    /// Makes the files of the next call, runs `last`, and opens the gate: the shell takes the call now, or once it
    /// gets there.
    ///
    /// # Errors
    /// ENOSPC: programs keep too many files of earlier calls open.
    pub(crate) fn deliver(
        &mut self,
        order: &CallRequest<'_>,
        last: impl FnOnce(),
    ) -> Result<(PendingCall, FarEnds), Undelivered> {
        self.tidy();
        let number = self.next;
        // First: nothing has to be taken back where there is no terminal.
        let terminal = match self.terminal(order.stdin) {
            Ok(terminal) => terminal,
            Err(errno) => {
                let shell = ShellWait::ForNextCall;
                return Err(Undelivered { errno, lacks: Lacks::Terminal, shell });
            }
        };
        let prepared = self.prepared.take();
        let errno = match self.make(number, order, prepared, terminal, last) {
            Ok(made) => {
                self.next += 1;
                return Ok(made);
            }
            Err(errno) => errno,
        };
        self.remove_output();
        let shell = match self.undo(number) {
            Ok(()) => ShellWait::ForNextCall,
            Err(left) => {
                tracing::warn!(errno = %left, "the files of a session's call stay");
                // No name is used twice: the next shell begins with the next number.
                self.next += 1;
                ShellWait::Forever
            }
        };
        Err(Undelivered { errno, lacks: Lacks::File, shell })
    }

    /// Removes the files of a call that the shell has not seen. The shell waits at the gate, which must stay the same
    /// file: a new one of this name would not wake it.
    fn undo(&self, number: u64) -> Result<(), Errno> {
        self.remove_all(number, |part| part != GATE)?;
        self.remove(number.saturating_add(1))?;
        self.mode(&name(GATE, number), READABLE)
    }

    /// Opens the terminal of a call that has one.
    fn terminal(&self, stdin: StdinKind) -> Result<Option<Terminal>, Errno> {
        match stdin {
            StdinKind::Terminal => {
                let directory = self.terminals.as_deref().ok_or(Errno::ENOTTY)?;
                terminals::open_in(directory, TERMINAL_SIZE).map(Some)
            }
            StdinKind::Pipe | StdinKind::Bytes | StdinKind::Empty => Ok(None),
        }
    }

    /// Makes the input of a call.
    fn input(
        &self,
        number: u64,
        order: &CallRequest<'_>,
        terminal: Option<&Terminal>,
    ) -> Result<Input, Errno> {
        let path = name("in", number);
        let nothing = || symlinkat("/dev/null", &self.directory, path.as_str());
        let line = |line: String| self.write(&name("fed", number), line.as_bytes()).map(drop);
        match order.stdin {
            StdinKind::Pipe => {
                self.fifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
                // Without a reader the caller's first write would fail before the shell is there, and
                // without a writer the shell would wait where the caller has closed its own.
                let ends = Some(self.open(&path, OFlag::O_RDWR)?);
                if order.mode == JobMode::Foreground {
                    line(loops::piped_input(order.shell, number))?;
                }
                let writer = Some(self.open(&path, OFlag::O_WRONLY)?);
                self.mode(&path, READABLE)?;
                Ok(Input { writer, ends })
            }
            StdinKind::Terminal => {
                let terminal = terminal.ok_or(Errno::ENOTTY)?;
                line(loops::at_terminal(order.shell, number, terminal.number))?;
                nothing().map(|()| Input::default())
            }
            StdinKind::Bytes => {
                let bytes = order.input.ok_or(Errno::EBADF)?;
                self.write(&path, &bytes.read(STDIN_BYTES)?)?;
                Ok(Input::default())
            }
            StdinKind::Empty => nothing().map(|()| Input::default()),
        }
    }

    /// Makes the FIFOs of a call's output and report, where the cell has nothing.
    fn output(&self) -> Result<Output, Errno> {
        let open =
            |stream: &str, access| openat(&self.store, stream, access | OPENED, Mode::empty());
        // For both: the stream has not ended before the shell has opened it, and opening it does not
        // wait for a reader that may be gone.
        let make = |stream: &str| {
            mknodat(&self.store, stream, SFlag::S_IFIFO, OWNERS, 0)?;
            open(stream, OFlag::O_RDWR)
        };
        let show =
            |stream: &str| fchmodat(&self.store, stream, WRITABLE, FchmodatFlags::FollowSymlink);
        let mut held = Vec::new();
        let mut reader = |stream: &str| {
            held.push(make(stream)?);
            let reader = open(stream, OFlag::O_RDONLY)?;
            show(stream)?;
            Ok::<_, Errno>(reader)
        };
        let stdout = reader("out")?;
        let stderr = reader("err")?;
        // It never reaches its end: the supervisor itself reads it, by the descriptor that is for both.
        let end = make("end")?;
        show("end")?;
        Ok(Output { held, stdout, stderr, end })
    }

    /// Removes what is left of an output that no call gets.
    fn remove_output(&self) {
        for stream in OUTPUT {
            match unlinkat(&self.store, stream, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => tracing::warn!(%errno, "the output of a session's call stays"),
            }
        }
    }

    fn make(
        &self,
        number: u64,
        order: &CallRequest<'_>,
        prepared: Option<Output>,
        terminal: Option<Terminal>,
        last: impl FnOnce(),
    ) -> Result<(PendingCall, FarEnds), Errno> {
        let Input { writer: stdin, ends: input } = self.input(number, order, terminal.as_ref())?;
        let Output { mut held, stdout, stderr, end } = match prepared {
            Some(output) => output,
            None => self.output()?,
        };
        // Not before: output of a process of an earlier call would be in this one's.
        for stream in OUTPUT {
            renameat(&self.store, stream, &self.directory, name(stream, number).as_str())?;
        }
        self.write(&name("cmd", number), &order.script.read(SCRIPT_BYTES)?)?;
        let CallRequest { env, cwd, mode, .. } = *order;
        let call = CallLines { number, env, cwd, input: order.stdin, mode };
        let lines = loops::lines(order.shell, call);
        let lines = fstat(self.write(&name("run", number), lines.as_bytes())?)?.st_ino;
        let marks = Marks { device: self.device, lines, digits: self.digits };
        let (terminal, ends) = match terminal {
            Some(Terminal { master, slave, .. }) => {
                let stdin = Some(master.try_clone().map_err(|error| errno_of(&error))?);
                (Some(slave), FarEnds { stdin, stdout: master, stderr })
            }
            None => (None, FarEnds { stdin, stdout, stderr }),
        };
        let file = input.as_ref().or(terminal.as_ref()).map(fstat).transpose()?;
        let input_file = file.map(|file| InputFile { device: file.st_dev, inode: file.st_ino });
        self.gate(number.saturating_add(1))?;
        last();
        // From here on the shell reads, and nothing of it can be taken back. For reading too: then it
        // opens whether the shell waits already or not.
        let gate = name(GATE, number);
        let opened = READABLE | Mode::S_IWUSR;
        match self.mode(&gate, opened) {
            // The call before could not be delivered, and its files stayed.
            Err(Errno::ENOENT) => {
                self.gate(number)?;
                self.mode(&gate, opened)?;
            }
            done => done?,
        }
        held.push(self.open(&gate, OFlag::O_RDWR)?);
        Ok((PendingCall { number, end, _held: held, input, marks, input_file, terminal }, ends))
    }

    /// Notes that a call is over: lets its terminal go. Its files go with [`Mailbox::tidy`].
    pub(crate) fn clear_up(&mut self, mut pending: PendingCall) {
        self.tidy_over();
        drop(pending.terminal.take());
        self.over = Some(pending);
    }

    /// Removes the files of the call that is over and prepares the output of the next, and the gate at which the shell
    /// waits after it: work for which no answer should wait. A step that fails here is tried again, and its failure
    /// reported, with the next call.
    pub(crate) fn tidy(&mut self) {
        self.tidy_over();
        if self.prepared.is_some() {
            return;
        }
        if let Err(errno) = self.gate(self.next.saturating_add(1)) {
            tracing::debug!(%errno, "the gate after a session's next call is not prepared");
        }
        self.prepared = self
            .output()
            .inspect_err(|errno| {
                tracing::debug!(%errno, "the output of a session's next call is not prepared");
                self.remove_output();
            })
            .ok();
    }

    /// Removes and closes the files of the last call. Processes that have them open keep them. A file that cannot be
    /// removed takes room only in this session's mailbox, and no later call uses its name.
    fn tidy_over(&mut self) {
        let Some(pending) = self.over.take() else { return };
        if let Err(errno) = self.remove(pending.number) {
            tracing::warn!(%errno, "the files of a session's call stay");
        }
    }

    fn remove(&self, number: u64) -> Result<(), Errno> {
        self.remove_all(number, |_| true)
    }

    fn remove_all(&self, number: u64, which: impl Fn(&str) -> bool) -> Result<(), Errno> {
        for part in NAMES.into_iter().filter(|part| which(part)) {
            let path = name(part, number);
            match unlinkat(&self.directory, path.as_str(), UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Makes a FIFO. Its mode may be changed after the supervisor has opened it.
    fn fifo(&self, path: &str, mode: Mode) -> Result<(), Errno> {
        mknodat(&self.directory, path, SFlag::S_IFIFO, mode, 0)?;
        self.mode(path, mode)
    }

    /// Sets the exact mode, as mknod(2) applies the operator's umask.
    fn mode(&self, path: &str, mode: Mode) -> Result<(), Errno> {
        fchmodat(&self.directory, path, mode, FchmodatFlags::FollowSymlink)
    }

    fn open(&self, path: &str, access: OFlag) -> Result<OwnedFd, Errno> {
        openat(&self.directory, path, access | OPENED, Mode::empty())
    }

    /// Writes a new file that the cell may read.
    fn write(&self, path: &str, bytes: &[u8]) -> Result<File, Errno> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&self.directory, path, flags, READABLE)?);
        file.write_all(bytes).map_err(|error| errno_of(&error))?;
        self.mode(path, READABLE)?;
        Ok(file)
    }
}

/// Mode that the supervisor's umask does not change, as that takes nothing from the owner.
const OWNERS: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);
/// Flags with which the supervisor opens files of a mailbox.
const OPENED: OFlag = OFlag::O_NONBLOCK.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
const READABLE: Mode = Mode::S_IRUSR.union(Mode::S_IRGRP).union(Mode::S_IROTH);
const WRITABLE: Mode = Mode::S_IWUSR.union(Mode::S_IWGRP).union(Mode::S_IWOTH);

fn name(part: &str, number: u64) -> String {
    format!("{part}.{number}")
}
