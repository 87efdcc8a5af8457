//! Handlers of the calls that make, rename and open names, and the state that all handlers of a
//! cell share.

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, RenameFlags, renameat2};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat, mknodat};
use nix::unistd::{fchdir, ftruncate, linkat, symlinkat};

use super::Mediation;
use super::caller::{TargetCall, Umasks};
use super::counted::CountedFiles;
use super::guard::{NameGuard, RefusalReason};
use super::locks::{self, OwnLocks};
use super::names::{self, Renames};
use super::open::{
    NAME_FLAGS, blocked, controlling_terminal, create, finished, hand_over, is_tty_device, later,
    opened, unblocked,
};
use super::paths::{FoundFile, LastLink, Spot, TargetThread};
use super::pending::PendingCalls;
use super::records::{self, Record};
use super::refusals::GuardedName;
use super::registers::PathArgument;
use super::rename::{rename_file, source_of};
use super::response::{CallError, Response};
use sys::Result;
use sys::lookup::{self, Follow};
use sys::notify::{self, Notification};

/// Result of one notification.
#[derive(Debug)]
pub enum Served {
    /// Answered with the result that the kernel would have returned.
    Answered,
    /// Refused by the guard: because of the name, or of the socket's owner.
    Guarded(GuardedName),
    /// Failed because init cannot read the caller's memory or descriptors.
    Unreadable,
    /// Answered with ENETUNREACH: the cell has no route to the destination.
    Unreachable(SocketAddr),
    /// No row of the table applies, and no answer was sent.
    NotMediated,
}

/// State that the handlers of one cell share.
#[derive(Debug)]
pub struct Handlers<'a> {
    pub mediation: &'a Mediation,
    pub name_guard: NameGuard<'a>,
    umasks: Cell<Umasks>,
    /// Instances of epoll.
    pub instances: CountedFiles,
    /// Sockets of route netlink.
    pub route_sockets: CountedFiles,
    pub pending_calls: PendingCalls,
    own_locks: OwnLocks,
}

impl<'a> Handlers<'a> {
    /// Allocates the state on the heap, in a separate function: 27 KiB on the stack would touch
    /// pages in every init, and most cells mediate no call.
    #[inline(never)]
    pub fn new(mediation: &'a Mediation, proc: OwnedFd) -> Result<Box<Self>> {
        let name_guard = NameGuard::new(mediation, proc)?;
        // Paths of init's descriptors are relative to this procfs.
        fchdir(&name_guard.proc)?;
        let umasks = Cell::new(Umasks::Inherited);
        let instances = CountedFiles::default();
        let route_sockets = CountedFiles::default();
        let pending_calls = PendingCalls::default();
        let own_locks = OwnLocks::default();
        Ok(Box::new(Self {
            mediation,
            name_guard,
            umasks,
            instances,
            route_sockets,
            pending_calls,
            own_locks,
        }))
    }

    /// Serves a call and answers it, unless the table has no row for it.
    ///
    /// # Errors
    /// The listener rejects the answer.
    pub fn serve(&mut self, listener: impl AsFd, call: Notification) -> Result<Served> {
        let listener = listener.as_fd();
        let Some(mediated) = self.mediation.find(call) else { return Ok(Served::NotMediated) };
        let target = TargetThread { proc: self.name_guard.proc.as_fd(), pid: call.pid };
        let umasks = self.umasks.get();
        let caller = TargetCall { target, listener, notification: call, umasks };
        match (mediated.row.handler)(self, &caller, &call.arguments) {
            Ok(Response::Done) => notify::succeed(listener, call)?,
            Ok(Response::Value(number)) => notify::answer(listener, call, number)?,
            Ok(Response::Continue) => notify::proceed(listener, call)?,
            Ok(Response::Descriptor(file, flags)) => {
                self.pending_calls.notice_readers();
                hand_over(listener, call, &file, flags)?;
            }
            Ok(Response::Later(pending)) => {
                // If too many calls wait already, the caller gets the errno of a non-blocking call.
                if let Err(errno) = self.pending_calls.park(call, pending) {
                    notify::refuse(listener, call, errno)?;
                }
            }
            Err(CallError::Errno(errno)) => {
                let is_unreadable =
                    matches!(errno, Errno::EPERM | Errno::EACCES) && target.is_unreadable();
                notify::refuse(listener, call, errno)?;
                if is_unreadable {
                    return Ok(Served::Unreadable);
                }
            }
            Err(CallError::Guarded(name)) => {
                notify::refuse(listener, call, Errno::EPERM)?;
                return Ok(Served::Guarded(name));
            }
            Err(CallError::Unreachable(to)) => {
                notify::refuse(listener, call, Errno::ENETUNREACH)?;
                return Ok(Served::Unreachable(to));
            }
        }
        Ok(Served::Answered)
    }

    /// Retries the calls that wait for the other end of a FIFO or of a connection.
    pub(crate) fn retry(&mut self, listener: impl AsFd, is_woken: bool) -> Result<()> {
        self.pending_calls.retry(&self.name_guard.proc, listener.as_fd(), is_woken)
    }

    /// Serves mkdir(2).
    pub fn directory(
        &self,
        caller: &TargetCall<'_>,
        path: PathArgument,
        mode: u32,
    ) -> std::result::Result<Response, CallError> {
        let spot = self.new_name(caller, path, NameGuard::is_guarded_directory)?;
        caller.lend_umask()?;
        caller.still_waits()?;
        mkdirat(&spot.parent, spot.last()?, Mode::from_bits_truncate(mode))?;
        Ok(Response::Done)
    }

    /// Serves mknod(2).
    pub fn node(
        &self,
        caller: &TargetCall<'_>,
        path: PathArgument,
        mode: u32,
        device: u64,
    ) -> std::result::Result<Response, CallError> {
        let spot = self.new_name(caller, path, NameGuard::is_guarded)?;
        caller.lend_umask()?;
        caller.still_waits()?;
        let kind = SFlag::from_bits_truncate(mode);
        let mode = Mode::from_bits_truncate(mode);
        mknodat(&spot.parent, spot.last()?, kind, mode, device)?;
        Ok(Response::Done)
    }

    /// Serves symlink(2); `content` is the address of the link's text.
    pub fn symlink(
        &self,
        caller: &TargetCall<'_>,
        content: u64,
        path: PathArgument,
    ) -> std::result::Result<Response, CallError> {
        let content = caller.target.text(content)?;
        let spot = self.new_name(caller, path, NameGuard::is_guarded)?;
        let enters_cache = names::leads_to_caches(content.bytes());
        if self.name_guard.is_holder(&spot)?
            || self.name_guard.refuses_links(&spot.parent)?
            || enters_cache && !self.name_guard.is_free(&spot.parent)?
        {
            return Err(CallError::Guarded(GuardedName::Other));
        }
        caller.still_waits()?;
        symlinkat(content.as_c()?, &spot.parent, spot.last()?)?;
        Ok(Response::Done)
    }

    /// Serves umask(2). Records that umasks differ, so that init reads each caller's from now on,
    /// and then lets the kernel execute the call.
    pub(crate) fn umask_differs(&self) -> Response {
        self.umasks.set(Umasks::Various);
        Response::Continue
    }

    /// Resolves the path of a new name, and checks that the name may be made.
    fn new_name(
        &self,
        caller: &TargetCall<'_>,
        path: PathArgument,
        is_guarded: impl Fn(&NameGuard<'a>, &Spot) -> Result<bool>,
    ) -> std::result::Result<Spot, CallError> {
        let spot = caller.target.spot(path)?;
        if is_guarded(&self.name_guard, &spot)? {
            // An existing name gives EEXIST, as without the guard.
            return match spot.kind()? {
                Some(_) => Err(CallError::Errno(Errno::EEXIST)),
                None => Err(self.refused(spot)),
            };
        }
        Ok(spot)
    }

    /// Makes the refusal of a guarded name, with what the name would have made.
    fn refused(&self, spot: Spot) -> CallError {
        // Only the reply depends on the reason.
        let reason = self.name_guard.reason(&spot).unwrap_or(RefusalReason::Other);
        CallError::Guarded(match reason {
            RefusalReason::Repository => GuardedName::Repository { parent: spot.parent },
            RefusalReason::Configuration => GuardedName::Configuration,
            RefusalReason::Other => GuardedName::Other,
        })
    }

    /// Serves open(2).
    pub fn open(
        &self,
        caller: &TargetCall<'_>,
        path: PathArgument,
        flags: i32,
        mode: u32,
    ) -> std::result::Result<Response, CallError> {
        // Some kernels reject these flags together, so ask this one. The kernel checks the flags before the path.
        if flags & libc::O_DIRECTORY != 0
            && let Err(Errno::EINVAL) = lookup::open(AT_FDCWD, c"", flags, mode, Follow::Nothing)
        {
            return Err(CallError::Errno(Errno::EINVAL));
        }
        let creates = flags & libc::O_CREAT != 0;
        let exclusive = creates && flags & libc::O_EXCL != 0;
        let stays = exclusive || flags & libc::O_NOFOLLOW != 0;
        let links = if stays { LastLink::Stay } else { LastLink::Follow };
        let spot = match caller.target.find(path, links)? {
            FoundFile::Spot(spot) => spot,
            FoundFile::Descriptor(_) if exclusive => return Err(CallError::Errno(Errno::EEXIST)),
            FoundFile::Descriptor(_) if stays => return Err(CallError::Errno(Errno::ELOOP)),
            FoundFile::Descriptor(number) => return self.reopen(caller, number, flags),
        };
        if !spot.is_no_file() && self.name_guard.is_guarded(&spot)? {
            let kind = spot.kind()?;
            if self.name_guard.is_lock(&spot)?
                && let Some(opened) = self.open_lock(caller, &spot, kind, (flags, mode))?
            {
                return Ok(opened);
            }
            return match kind {
                None if creates && self.name_guard.may_be_file(&spot)? => {
                    create(caller, &spot, flags, mode)
                }
                None if creates => Err(self.refused(spot)),
                None => Err(CallError::Errno(Errno::ENOENT)),
                Some(_) if exclusive => Err(CallError::Errno(Errno::EEXIST)),
                Some(kind) if kind == SFlag::S_IFDIR => Err(CallError::Errno(Errno::EISDIR)),
                Some(_) => self.open_kept(caller, &spot, flags & !libc::O_CREAT),
            };
        }
        if creates {
            caller.lend_umask()?;
        }
        caller.still_waits()?;
        let writes = flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0;
        if writes && !exclusive && !spot.is_no_file() && self.name_guard.may_be_shared(&spot)? {
            return self.open_if_not_shared(caller, &spot, flags, mode);
        }
        match opened(&self.name_guard, &spot, flags, mode) {
            Err(CallError::Errno(Errno::ENXIO)) => {
                let hold = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
                let held = lookup::open(&spot.parent, spot.last()?, hold, 0, Follow::Nothing)?;
                match is_tty_device(&held)? {
                    true => controlling_terminal(caller, flags),
                    false => Err(Errno::ENXIO.into()),
                }
            }
            answer => answer,
        }
    }

    /// Opens the new version of a file with paths, if a program of the cell makes it or has made it.
    fn open_lock(
        &self,
        caller: &TargetCall<'_>,
        spot: &Spot,
        kind: Option<SFlag>,
        (flags, mode): (i32, u32),
    ) -> std::result::Result<Option<Response>, CallError> {
        let creates = flags & libc::O_CREAT != 0;
        let is_exclusive = creates && flags & libc::O_EXCL != 0;
        match kind {
            None if creates => {
                let created = create(caller, spot, flags, mode)?;
                if let Response::Descriptor(file, _) = &created {
                    self.own_locks.note(&self.name_guard, file)?;
                }
                Ok(Some(created))
            }
            Some(SFlag::S_IFREG) if !is_exclusive => match self.own_locks.find(spot)? {
                Some(held) => {
                    caller.still_waits()?;
                    let wanted = OFlag::from_bits_retain(unblocked(flags & !NAME_FLAGS));
                    let file = self.name_guard.open_held(&held, wanted)?;
                    finished(file, flags).map(Some)
                }
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// Opens a file for writing, unless it is a guarded one under another name.
    fn open_if_not_shared(
        &self,
        caller: &TargetCall<'_>,
        spot: &Spot,
        flags: i32,
        mode: u32,
    ) -> std::result::Result<Response, CallError> {
        // Attempts while other processes remove the name and make it again.
        const MAX_ATTEMPTS: u8 = 8;
        let nothing = Follow::Nothing;
        let open = |flags: i32| lookup::open(&spot.parent, spot.last()?, flags, mode, nothing);
        for _ in 0..MAX_ATTEMPTS {
            match open(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC) {
                // The file that is checked is the one that is opened.
                Ok(held) => return self.open_found(caller, held, flags),
                Err(Errno::ENOENT) if flags & libc::O_CREAT != 0 => {}
                Err(errno) => return Err(errno.into()),
            }
            match open(unblocked(flags | libc::O_EXCL)) {
                Ok(file) => return finished(file, flags),
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(CallError::Errno(Errno::EAGAIN))
    }

    /// Opens an existing file with a guarded name; for writing only if the host does not obey the
    /// file.
    fn open_kept(
        &self,
        caller: &TargetCall<'_>,
        spot: &Spot,
        flags: i32,
    ) -> std::result::Result<Response, CallError> {
        caller.still_waits()?;
        let writes = flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0;
        if writes && self.name_guard.keeps(spot)? {
            // The errno of a read-only mount takes precedence.
            opened(&self.name_guard, spot, flags & !libc::O_TRUNC | libc::O_NONBLOCK, 0)?;
            return Err(CallError::Guarded(GuardedName::Other));
        }
        if writes && self.name_guard.may_be_shared(spot)? {
            return self.open_if_not_shared(caller, spot, flags, 0);
        }
        opened(&self.name_guard, spot, flags, 0)
    }

    /// Reopens the file behind one of the caller's descriptors.
    fn reopen(
        &self,
        caller: &TargetCall<'_>,
        number: u32,
        flags: i32,
    ) -> std::result::Result<Response, CallError> {
        caller.still_waits()?;
        let held = caller.target.descriptor(number, OFlag::O_PATH | OFlag::O_CLOEXEC)?;
        // The file that was checked is opened: the caller may have replaced its descriptor since.
        self.open_found(caller, held, flags)
    }

    /// Opens a held file; for writing only if the host does not obey it.
    fn open_found(
        &self,
        caller: &TargetCall<'_>,
        held: OwnedFd,
        flags: i32,
    ) -> std::result::Result<Response, CallError> {
        let wanted = OFlag::from_bits_retain(unblocked(flags & !NAME_FLAGS));
        if fstat(&held)?.st_mode & libc::S_IFMT == libc::S_IFDIR {
            return Err(CallError::Errno(Errno::EISDIR));
        }
        let writes = flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0;
        if writes && self.name_guard.keeps_file(&held)? {
            return Err(CallError::Guarded(GuardedName::Other));
        }
        match self.name_guard.open_held(&held, wanted) {
            Ok(file) => finished(file, flags),
            Err(Errno::ENXIO) if is_tty_device(&held)? => controlling_terminal(caller, flags),
            Err(errno) if blocked(errno, flags) => later(&self.name_guard, held, flags, errno),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Serves link(2).
    pub fn link(
        &self,
        caller: &TargetCall<'_>,
        old: PathArgument,
        new: PathArgument,
        flags: i32,
    ) -> std::result::Result<Response, CallError> {
        const EMPTY: i32 = libc::AT_EMPTY_PATH;
        const FOLLOW: i32 = libc::AT_SYMLINK_FOLLOW;
        if flags & !(EMPTY | FOLLOW) != 0 {
            return Err(CallError::Errno(Errno::EINVAL));
        }
        let target = &caller.target;
        let source = if flags & EMPTY != 0 && target.text(old.text)?.bytes().is_empty() {
            FoundFile::Descriptor(u32::try_from(old.from).map_err(|_| Errno::ENOENT)?)
        } else if flags & FOLLOW != 0 {
            target.find(old, LastLink::Follow)?
        } else {
            FoundFile::Spot(target.spot(old)?)
        };
        let to = self.new_name(caller, new, NameGuard::is_guarded)?;
        // The file that gets a second name may be a symbolic link.
        if self.name_guard.is_holder(&to)? {
            return Err(CallError::Guarded(GuardedName::Other));
        }
        let refuses_links = self.name_guard.refuses_links(&to.parent)?;
        caller.still_waits()?;
        match source {
            // A second name would make the file writable.
            FoundFile::Spot(spot) if self.name_guard.keeps(&spot)? => {
                return Err(CallError::Guarded(GuardedName::Other));
            }
            FoundFile::Spot(spot)
                if refuses_links && !self.name_guard.refuses_links(&spot.parent)? =>
            {
                return Err(CallError::Errno(Errno::EXDEV));
            }
            // An object that another repository has too would be written to by its new name.
            FoundFile::Spot(spot)
                if !refuses_links && self.name_guard.refuses_links(&spot.parent)? =>
            {
                return Err(CallError::Errno(Errno::EXDEV));
            }
            FoundFile::Spot(spot) => {
                linkat(&spot.parent, spot.last()?, &to.parent, to.last()?, AtFlags::empty())?;
            }
            // For example a file opened with O_TMPFILE, which gets its first name.
            FoundFile::Descriptor(number) => {
                let held = target.descriptor(number, OFlag::O_PATH | OFlag::O_CLOEXEC)?;
                if self.name_guard.keeps_file(&held)? {
                    return Err(CallError::Guarded(GuardedName::Other));
                }
                let is_link = fstat(&held)?.st_mode & libc::S_IFMT == libc::S_IFLNK;
                if is_link && refuses_links {
                    return Err(CallError::Errno(Errno::EXDEV));
                }
                // Links the file that was checked: the caller may have replaced its descriptor
                // since.
                let mut buffer = [0; 64];
                let init = self.name_guard.init_thread();
                let entry = init.entry(&mut buffer, format_args!("fd/{}", held.as_raw_fd()))?;
                let follow = AtFlags::AT_SYMLINK_FOLLOW;
                linkat(init.proc, entry, &to.parent, to.last()?, follow)?;
            }
        }
        Ok(Response::Done)
    }

    /// Serves rename(2).
    pub fn rename(
        &self,
        caller: &TargetCall<'_>,
        old: PathArgument,
        new: PathArgument,
        flags: u32,
    ) -> std::result::Result<Response, CallError> {
        let from = caller.target.spot(old)?;
        let to = caller.target.spot(new)?;
        let flags = RenameFlags::from_bits_retain(flags);
        if let Some(record) = self.name_guard.record(&to)? {
            return self.replace_record(caller, (&from, &to), flags, record);
        }
        // Otherwise by a mount only, which is gone once the host replaces what was there.
        if self.name_guard.holds_repository(&from)? || self.name_guard.holds_repository(&to)? {
            return Err(CallError::Errno(Errno::EBUSY));
        }
        let swaps = flags.contains(RenameFlags::RENAME_EXCHANGE);
        let mut new_lock = None;
        if self.name_guard.is_guarded(&to)? {
            // A program that git runs with the lock as the index renames its own one to it.
            let is_own = flags.is_empty()
                && self.name_guard.is_lock(&to)?
                && !self.name_guard.is_lock(&from)?
                && matches!(self.own_locks.find(&to), Ok(Some(_)));
            if !is_own {
                return Err(self.refused(to));
            }
            new_lock = Some(locks::hold(&from)?);
        }
        if swaps && self.name_guard.is_guarded(&from)? {
            return Err(self.refused(from));
        }
        let gets_holder =
            self.name_guard.is_holder(&to)? || (swaps && self.name_guard.is_holder(&from)?);
        let renames = match self.name_guard.is_free(&to.parent)? {
            true => Renames::Anything,
            false => match (self.name_guard.renames(&from, &to)?, gets_holder) {
                (Renames::Nothing, _) => Renames::Nothing,
                (Renames::Anything | Renames::Files | Renames::Regular, true) => Renames::Regular,
                (Renames::Anything, false) => Renames::Anything,
                (Renames::Files | Renames::Regular, false) => Renames::Files,
            },
        };
        caller.still_waits()?;
        match renames {
            Renames::Anything => {
                renameat2(&from.parent, from.last()?, &to.parent, to.last()?, flags)?;
            }
            Renames::Files | Renames::Regular if flags.is_empty() => {
                rename_file(&from, &to, renames)?;
            }
            // EXDEV makes mv(1) copy each file by name, as between filesystems.
            Renames::Files | Renames::Regular | Renames::Nothing => {
                return Err(CallError::Errno(Errno::EXDEV));
            }
        }
        if let Some(lock) = new_lock {
            self.own_locks.note(&self.name_guard, &lock)?;
        }
        Ok(Response::Done)
    }

    /// Replaces a file with paths by a copy of the renamed one, if these paths are all of the work tree.
    fn replace_record(
        &self,
        caller: &TargetCall<'_>,
        (from, to): (&Spot, &Spot),
        flags: RenameFlags,
        record: Record,
    ) -> std::result::Result<Response, CallError> {
        let decided = self.name_guard.renames(from, to)?;
        let is_plain = flags.is_empty() || flags == RenameFlags::RENAME_NOREPLACE;
        if !is_plain || decided == Renames::Nothing {
            return Err(CallError::Errno(Errno::EXDEV));
        }
        let (source, status) = source_of(from, to)?;
        if records::is_same(&status, to)? {
            return Ok(Response::Done);
        }
        caller.may_grow_to(status.st_size)?;
        caller.still_waits()?;
        match records::replace(source, &status, (from, to), flags, record) {
            Err(Errno::EBADMSG) => Err(CallError::Guarded(GuardedName::Other)),
            replaced => Ok(replaced.map(|()| Response::Done)?),
        }
    }

    /// Serves truncate(2).
    pub fn truncate(
        &self,
        caller: &TargetCall<'_>,
        path: PathArgument,
        length: i64,
    ) -> std::result::Result<Response, CallError> {
        if length < 0 {
            return Err(CallError::Errno(Errno::EINVAL));
        }
        let hold = libc::O_PATH | libc::O_CLOEXEC;
        let held = match caller.target.find(path, LastLink::Follow)? {
            FoundFile::Spot(spot) => {
                let follow = if spot.is_no_file() { Follow::Texts } else { Follow::Nothing };
                lookup::open(&spot.parent, spot.last()?, hold, 0, follow)?
            }
            FoundFile::Descriptor(number) => {
                caller.target.descriptor(number, OFlag::O_PATH | OFlag::O_CLOEXEC)?
            }
        };
        caller.still_waits()?;
        match fstat(&held)?.st_mode & libc::S_IFMT {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(CallError::Errno(Errno::EISDIR)),
            _ => return Err(CallError::Errno(Errno::EINVAL)),
        }
        let write = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = self.name_guard.open_held(&held, write)?;
        // The open above returns the errno of a read-only mount first.
        if self.name_guard.keeps_file(&held)? {
            return Err(CallError::Guarded(GuardedName::Other));
        }
        if length > fstat(&file)?.st_size {
            caller.may_grow_to(length)?;
        }
        ftruncate(file, length)?;
        Ok(Response::Done)
    }
}
