//! Where names are made: each by init, for the caller that waits, or refused.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, RenameFlags, renameat2};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat, mkdirat, mknodat};
use nix::unistd::{fchdir, ftruncate, linkat, symlinkat};

use super::Guard;
use super::caller::{Caller, Umasks};
use super::calls::Named;
use super::instances::Instances;
use super::judge::Judge;
use super::moving::rename_file;
use super::names::Renames;
use super::opening::{finished, hand_over, later, opened};
use super::paths::{Found, Links, Spot, Target};
use super::waiting::{MADE, Pending, Waiting, blocked, unblocked};
use sys::Result;
use sys::lookup::{self, Follow};
use sys::notify::{self, Notification};

/// What became of a call that init was asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// Answered: made, or refused as the kernel refused it.
    Answered,
    /// Refused for the name, or for whose socket it is.
    Guarded,
    /// None of the guard's: nobody has answered yet.
    NotMine,
}

/// What a call made.
pub enum Made {
    Name,
    /// A descriptor for the caller, with the flags that it asked for.
    File(OwnedFd, i32),
    /// Nothing that has a name: a connection, a watch. The number is what the caller is told.
    Number(i64),
    /// It waits for somebody else.
    Later(Pending),
    /// The call goes on by itself, as its registers have it.
    Itself,
}

/// Why a call made nothing.
pub enum Unmade {
    Guarded,
    Errno(Errno),
}

impl From<Errno> for Unmade {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// The guard at work, in the init of one cell.
#[derive(Debug)]
pub struct Gate<'a> {
    pub guard: &'a Guard,
    pub judge: Judge<'a>,
    umasks: Cell<Umasks>,
    pub instances: Instances,
    pub waiting: Waiting,
}

impl<'a> Gate<'a> {
    /// In a box and by a call: of 27 KiB on its stack every init would touch each page, and most
    /// cells have no guard.
    #[inline(never)]
    pub fn new(guard: &'a Guard, proc: OwnedFd) -> Result<Box<Self>> {
        let judge = Judge::new(guard, proc)?;
        // Where init says by a path which of its own descriptors it means.
        fchdir(&judge.proc)?;
        let umasks = Cell::new(Umasks::Inherited);
        let (instances, waiting) = (Instances::default(), Waiting::default());
        Ok(Box::new(Self { guard, judge, umasks, instances, waiting }))
    }

    /// Serves a call and answers it, unless it is none of the guard's.
    ///
    /// # Errors
    /// The listener does not take the answer.
    pub fn serve(&mut self, listener: impl AsFd, call: Notification) -> Result<Served> {
        let listener = listener.as_fd();
        let Some(watched) = self.guard.watched(call) else { return Ok(Served::NotMine) };
        let target = Target { proc: self.judge.proc.as_fd(), pid: call.pid };
        let umasks = self.umasks.get();
        let caller = Caller { target, listener, notification: call, umasks };
        match (watched.row.handler)(self, &caller, &call.arguments) {
            Ok(Made::Name) => notify::succeed(listener, call)?,
            Ok(Made::Number(number)) => notify::answer(listener, call, number)?,
            Ok(Made::Itself) => notify::proceed(listener, call)?,
            Ok(Made::File(file, flags)) => hand_over(listener, call, &file, flags)?,
            Ok(Made::Later(pending)) => {
                // No more can wait than there are places: then as if the caller would not wait.
                if let Err(errno) = self.waiting.park(call, pending) {
                    notify::refuse(listener, call, errno)?;
                }
            }
            Err(Unmade::Errno(errno)) => notify::refuse(listener, call, errno)?,
            Err(Unmade::Guarded) => {
                notify::refuse(listener, call, Errno::EPERM)?;
                return Ok(Served::Guarded);
            }
        }
        Ok(Served::Answered)
    }

    /// Tries again what waits for the other end of a FIFO.
    pub fn retry(&mut self, listener: impl AsFd) -> Result<()> {
        self.waiting.retry(&self.judge.proc, listener.as_fd())
    }

    /// mkdir(2).
    pub fn directory(
        &self,
        caller: &Caller<'_>,
        path: Named,
        mode: u32,
    ) -> std::result::Result<Made, Unmade> {
        let spot = self.free(caller, path)?;
        caller.lend_umask()?;
        caller.still_waits()?;
        mkdirat(&spot.parent, spot.last()?, Mode::from_bits_truncate(mode))?;
        Ok(Made::Name)
    }

    /// mknod(2).
    pub fn node(
        &self,
        caller: &Caller<'_>,
        path: Named,
        mode: u32,
        device: u64,
    ) -> std::result::Result<Made, Unmade> {
        let spot = self.free(caller, path)?;
        caller.lend_umask()?;
        caller.still_waits()?;
        let (kind, mode) = (SFlag::from_bits_truncate(mode), Mode::from_bits_truncate(mode));
        mknodat(&spot.parent, spot.last()?, kind, mode, device)?;
        Ok(Made::Name)
    }

    /// symlink(2); `content` is where its text is.
    pub fn symlink(
        &self,
        caller: &Caller<'_>,
        content: u64,
        path: Named,
    ) -> std::result::Result<Made, Unmade> {
        let content = caller.target.text(content)?;
        let spot = self.free(caller, path)?;
        caller.still_waits()?;
        symlinkat(content.as_c()?, &spot.parent, spot.last()?)?;
        Ok(Made::Name)
    }

    /// umask(2), which changes no file: from now on each caller's umask is looked up. Set before
    /// the call goes on.
    pub fn umask_differs(&self) -> Made {
        self.umasks.set(Umasks::Various);
        Made::Itself
    }

    /// The spot of a name that is to be made, if it may be.
    fn free(&self, caller: &Caller<'_>, path: Named) -> std::result::Result<Spot, Unmade> {
        let spot = caller.target.spot(path)?;
        if self.judge.is_guarded(&spot)? {
            // As without the guard, where it is there already.
            return match look(&spot)? {
                Some(_) => Err(Unmade::Errno(Errno::EEXIST)),
                None => Err(Unmade::Guarded),
            };
        }
        Ok(spot)
    }

    /// open(2).
    pub fn open(
        &self,
        caller: &Caller<'_>,
        path: Named,
        flags: i32,
        mode: u32,
    ) -> std::result::Result<Made, Unmade> {
        // Flags that exclude each other are told before anything of the path, as kernels differ in.
        if flags & libc::O_DIRECTORY != 0
            && let Err(Errno::EINVAL) = lookup::open(AT_FDCWD, c"", flags, mode, Follow::Nothing)
        {
            return Err(Unmade::Errno(Errno::EINVAL));
        }
        let creates = flags & libc::O_CREAT != 0;
        let exclusive = creates && flags & libc::O_EXCL != 0;
        let stays = exclusive || flags & libc::O_NOFOLLOW != 0;
        let links = if stays { Links::Stay } else { Links::Follow };
        let spot = match caller.target.find(path, links)? {
            Found::Spot(spot) => spot,
            Found::Descriptor(_) if exclusive => return Err(Unmade::Errno(Errno::EEXIST)),
            Found::Descriptor(_) if stays => return Err(Unmade::Errno(Errno::ELOOP)),
            Found::Descriptor(number) => return self.reopen(caller, number, flags),
        };
        if !spot.is_no_file() && self.judge.is_guarded(&spot)? {
            return match look(&spot)? {
                None if creates => Err(Unmade::Guarded),
                None => Err(Unmade::Errno(Errno::ENOENT)),
                Some(_) if exclusive => Err(Unmade::Errno(Errno::EEXIST)),
                Some(kind) if kind == SFlag::S_IFDIR => Err(Unmade::Errno(Errno::EISDIR)),
                Some(_) => self.open_kept(caller, &spot, flags & !libc::O_CREAT),
            };
        }
        if creates {
            caller.lend_umask()?;
        }
        caller.still_waits()?;
        opened(&self.judge, &spot, flags, mode)
    }

    /// Opens what is at a guarded name, to write only where that changes nothing the host obeys.
    fn open_kept(
        &self,
        caller: &Caller<'_>,
        spot: &Spot,
        flags: i32,
    ) -> std::result::Result<Made, Unmade> {
        caller.still_waits()?;
        let writes = flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0;
        if writes && self.judge.keeps(spot)? {
            // What the kernel refuses by itself, by a read-only mount, is told as that.
            opened(&self.judge, spot, flags & !libc::O_TRUNC | libc::O_NONBLOCK, 0)?;
            return Err(Unmade::Guarded);
        }
        opened(&self.judge, spot, flags, 0)
    }

    /// Opens anew what one of the caller's descriptors is open on.
    fn reopen(
        &self,
        caller: &Caller<'_>,
        number: u32,
        flags: i32,
    ) -> std::result::Result<Made, Unmade> {
        caller.still_waits()?;
        let wanted = OFlag::from_bits_retain(unblocked(flags & !MADE));
        let held = caller.target.descriptor(number, OFlag::O_PATH | OFlag::O_CLOEXEC)?;
        if fstat(&held)?.st_mode & libc::S_IFMT == libc::S_IFDIR {
            return Err(Unmade::Errno(Errno::EISDIR));
        }
        let writes = flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0;
        if writes && self.judge.keeps_file(&held)? {
            return Err(Unmade::Guarded);
        }
        // The file that was judged, whatever the number stands for by now.
        match self.judge.open_held(&held, wanted) {
            Ok(file) => finished(file, flags),
            Err(errno) if blocked(errno, flags) => later(&self.judge, held, flags, errno),
            Err(errno) => Err(errno.into()),
        }
    }

    /// link(2).
    pub fn link(
        &self,
        caller: &Caller<'_>,
        old: Named,
        new: Named,
        flags: i32,
    ) -> std::result::Result<Made, Unmade> {
        const EMPTY: i32 = libc::AT_EMPTY_PATH;
        const FOLLOW: i32 = libc::AT_SYMLINK_FOLLOW;
        if flags & !(EMPTY | FOLLOW) != 0 {
            return Err(Unmade::Errno(Errno::EINVAL));
        }
        let target = &caller.target;
        let found = if flags & EMPTY != 0 && target.text(old.text)?.bytes().is_empty() {
            Found::Descriptor(u32::try_from(old.from).map_err(|_| Errno::ENOENT)?)
        } else if flags & FOLLOW != 0 {
            target.find(old, Links::Follow)?
        } else {
            Found::Spot(target.spot(old)?)
        };
        let to = self.free(caller, new)?;
        caller.still_waits()?;
        match found {
            // Under another name it could be written to.
            Found::Spot(spot) if self.judge.keeps(&spot)? => return Err(Unmade::Guarded),
            Found::Spot(spot) => {
                linkat(&spot.parent, spot.last()?, &to.parent, to.last()?, AtFlags::empty())?;
            }
            // A file that was opened without a name gets its first.
            Found::Descriptor(number) => {
                let held = target.descriptor(number, OFlag::O_PATH | OFlag::O_CLOEXEC)?;
                if self.judge.keeps_file(&held)? {
                    return Err(Unmade::Guarded);
                }
                // What was judged, whatever the number stands for by now.
                let mut buffer = [0; 64];
                let own = self.judge.own();
                let entry = own.entry(&mut buffer, format_args!("fd/{}", held.as_raw_fd()))?;
                let follow = AtFlags::AT_SYMLINK_FOLLOW;
                linkat(own.proc, entry, &to.parent, to.last()?, follow)?;
            }
        }
        Ok(Made::Name)
    }

    /// rename(2).
    pub fn rename(
        &self,
        caller: &Caller<'_>,
        old: Named,
        new: Named,
        flags: u32,
    ) -> std::result::Result<Made, Unmade> {
        let (from, to) = (caller.target.spot(old)?, caller.target.spot(new)?);
        let flags = RenameFlags::from_bits_retain(flags);
        let swaps = flags.contains(RenameFlags::RENAME_EXCHANGE);
        if self.judge.is_guarded(&to)? || (swaps && self.judge.is_guarded(&from)?) {
            return Err(Unmade::Guarded);
        }
        let renames = match self.judge.is_private(&to.parent)? {
            true => Renames::Anything,
            false => self.judge.renames(&from, &to)?,
        };
        caller.still_waits()?;
        match renames {
            Renames::Anything => {
                renameat2(&from.parent, from.last()?, &to.parent, to.last()?, flags)?;
            }
            Renames::Files if flags.is_empty() => rename_file(&from, &to)?,
            // As between filesystems: mv(1) then copies, name by name.
            Renames::Files | Renames::Nothing => return Err(Unmade::Errno(Errno::EXDEV)),
        }
        Ok(Made::Name)
    }

    /// truncate(2).
    pub fn truncate(
        &self,
        caller: &Caller<'_>,
        path: Named,
        length: i64,
    ) -> std::result::Result<Made, Unmade> {
        if length < 0 {
            return Err(Unmade::Errno(Errno::EINVAL));
        }
        let hold = libc::O_PATH | libc::O_CLOEXEC;
        let held = match caller.target.find(path, Links::Follow)? {
            Found::Spot(spot) => {
                let follow = if spot.is_no_file() { Follow::Texts } else { Follow::Nothing };
                lookup::open(&spot.parent, spot.last()?, hold, 0, follow)?
            }
            Found::Descriptor(number) => {
                caller.target.descriptor(number, OFlag::O_PATH | OFlag::O_CLOEXEC)?
            }
        };
        caller.still_waits()?;
        match fstat(&held)?.st_mode & libc::S_IFMT {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(Unmade::Errno(Errno::EISDIR)),
            _ => return Err(Unmade::Errno(Errno::EINVAL)),
        }
        let write = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = self.judge.open_held(&held, write)?;
        // What the kernel refuses by itself, by a read-only mount, is told as that.
        if self.judge.keeps_file(&held)? {
            return Err(Unmade::Guarded);
        }
        if length > fstat(&file)?.st_size {
            caller.may_grow_to(length)?;
        }
        ftruncate(file, length)?;
        Ok(Made::Name)
    }
}

/// What is at a spot: its kind, if anything.
pub fn look(spot: &Spot) -> Result<Option<SFlag>> {
    match fstatat(&spot.parent, spot.last()?, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(SFlag::from_bits_truncate(found.st_mode & libc::S_IFMT))),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}
