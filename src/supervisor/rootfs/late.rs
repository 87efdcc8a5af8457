//! The files of a template that are made while its first cell is built.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use nix::sys::stat::{Mode, umask};

use super::machine;
use super::packages::PackageFiles;
use cell::late_files::{Extent, LateFiles, Work};
use cell::{caps, errno_of, fds};
use model::defaults::processors;
use model::profile::{ProcView, Profile};

/// Returns the late files of a template with the writable root `root`. `shown` are the paths of
/// the host that its cells have.
pub(crate) fn late_files(
    profile: &Profile,
    root: &Rc<OwnedFd>,
    packages: Option<&Rc<PackageFiles>>,
    shown: Vec<PathBuf>,
) -> LateFiles {
    let has_machine = profile.proc == ProcView::Own;
    let packages = packages.filter(|_| profile.packaged_etc).cloned();
    if !has_machine && packages.is_none() {
        return LateFiles::none();
    }
    let root = Rc::clone(root);
    let work: Work = Box::new(move || {
        let held = packages.iter().flat_map(|packages| packages.descriptors());
        fds::keep_only(held.chain([root.as_fd()]))?;
        // Reads only what every user may read: no capability of the supervisor helps it.
        caps::clear_current()?;
        // Cells with other ids read the files.
        umask(Mode::from_bits_truncate(0o022));
        nix::unistd::fchdir(&*root)?;
        if has_machine {
            machine::write(processors()).map_err(|error| errno_of(&error))?;
        }
        packages.as_ref().map_or(Ok(Extent::All), |packages| packages.copy(&root, &shown))
    });
    LateFiles::new(work)
}
