//! Tests of the control groups that root gives to its supervisor.

use super::*;

fn mode(path: &Path) -> std::io::Result<u32> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o777)
}

#[test]
fn a_directory_made_under_any_umask_can_be_entered_by_the_supervisor()
-> Result<(), Box<dyn std::error::Error>> {
    let uid = nix::unistd::geteuid().as_raw();
    let lock = Flock::lock(tempfile::tempfile()?, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, errno)| errno)?;
    let instance = Instance { number: 0, first: uid, count: 1, _lock: ManuallyDrop::new(lock) };
    let parent = tempfile::tempdir()?;
    let directory = parent.path().join("cofferdam-0");
    fs::DirBuilder::new().mode(0o000).create(&directory)?;
    assert_eq!(mode(&directory)?, 0);
    assert!(delegate(parent.path(), &instance, &[]).is_some());
    assert_eq!(mode(&directory)?, 0o755);
    Ok(())
}
