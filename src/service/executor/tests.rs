//! Two clients of one executor, over a link whose other end these tests hold.

use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use policy::Policy;
use profile::Profiles;

use super::*;
use config::{Config, Origin};
use model::call::Cwd;

type Failed = Box<dyn std::error::Error>;

/// Makes an executor of the shipped configuration, and the supervisor's end of its link.
fn executor() -> Result<(Arc<Executor>, OwnedFd), Failed> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (own, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    let profiles = Profiles::compiled_in();
    let policy = Policy::parse(&policy::shipped(), &profiles)?;
    let (config, origin) = (Config::parse(None, 1)?, Origin::Embedded);
    let setup = Setup {
        loaded: Loaded { config, policy, profiles, origin },
        workspace: Workspace::Fresh,
        granted: None,
        command_timeout: None,
    };
    Ok((Arc::new(Executor::new(setup, Link::attach(own)?, Audit::off())), other))
}

#[tokio::test]
async fn two_clients_share_the_queue_and_nothing_that_one_has_set() -> Result<(), Failed> {
    let (executor, _supervisor) = executor()?;
    let (one, other) = (executor.scope(Principal::local()), executor.scope(Principal::local()));
    let (ours, theirs) = (one.client(), other.client());
    let (places, tmp) = (Precision::new(50).ok_or("out of range")?, Cwd::new("cwd", "/tmp")?);
    ours.precision.set(places);
    ours.working_dir.set(tmp.clone());
    ours.macros.save("build", vec!["make".to_owned()])?;
    assert_eq!((ours.precision.get(), ours.working_dir.get()), (places, tmp));
    assert_eq!(theirs.precision.get(), Precision::DEFAULT);
    assert_eq!(theirs.working_dir.get(), other.exec_options().working_dir);
    assert_eq!(theirs.macros.get("build"), None);
    assert!(!Arc::ptr_eq(&ours.history, &theirs.history));

    let turn = one.workbench.queue.place()?;
    assert_eq!((one.pending(), other.pending()), (1, 1));
    drop(turn);
    assert_eq!((one.pending(), other.pending()), (0, 0));
    Ok(())
}
