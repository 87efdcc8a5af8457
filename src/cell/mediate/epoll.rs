//! Limits the number of epoll instances per cell, because the kernel counts their watches for the
//! host's user. A node process needs four or five and exits if it gets none; a test runner with its
//! workers needs some dozens.

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags};

use super::counted::CountedFiles;
use super::guard::NameGuard;
use super::response::{CallError, Response};

/// Serves epoll_create(2), whose size argument has no meaning.
pub(crate) fn create_sized(
    instances: &CountedFiles,
    name_guard: &NameGuard<'_>,
    size: i32,
) -> std::result::Result<Response, CallError> {
    if size <= 0 {
        return Err(CallError::Errno(Errno::EINVAL));
    }
    create(instances, name_guard, 0)
}

/// Serves epoll_create1(2).
///
/// # Errors
/// EMFILE: the cell already has the maximum number of instances.
pub(crate) fn create(
    instances: &CountedFiles,
    name_guard: &NameGuard<'_>,
    flags: i32,
) -> std::result::Result<Response, CallError> {
    if flags & !libc::EPOLL_CLOEXEC != 0 {
        return Err(CallError::Errno(Errno::EINVAL));
    }
    if !instances.has_room(name_guard)? {
        return Err(CallError::Errno(Errno::EMFILE));
    }
    let instance = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    instances.add(&instance.0)?;
    Ok(Response::Descriptor(instance.0, flags))
}
