//! A server of the operator: listens on a Unix socket outside of any cell, answers and reports its peer.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{Shutdown, getsockopt, shutdown, sockopt::PeerCredentials};

use crate::support::{self, Caller, Failed};

/// Listens until it is closed.
pub struct Peer {
    pub path: PathBuf,
    listener: UnixListener,
}

impl Peer {
    /// Listens on a socket of the caller in their directory `place`, mode 0600. Answers `word` to every client.
    pub fn listen(caller: &Caller, path: &str, name: &str) -> Result<Self, Failed> {
        Self::saying(caller, path, name, "hello")
    }

    pub fn saying(
        caller: &Caller,
        target: &str,
        name: &str,
        word: &'static str,
    ) -> Result<Self, Failed> {
        let directory = caller.home.join(target);
        if !directory.exists() {
            caller.directory(target)?;
            support::mode(&directory, 0o700)?;
        }
        let path = directory.join(name);
        let listener = UnixListener::bind(&path)?;
        caller.own(&path)?;
        support::mode(&path, 0o600)?;
        let accepting = listener.try_clone()?;
        std::thread::spawn(move || {
            // Each connection is one request; a broken connection is ignored.
            for stream in accepting.incoming().map_while(Result::ok) {
                answer(stream, word).unwrap_or_default();
            }
        });
        Ok(Self { path, listener })
    }

    pub fn flag(&self, name: &str) -> String {
        format!("{name}={}", self.path.display())
    }

    /// Listens no more; its file stays.
    pub fn close(&self) -> Result<(), Failed> {
        Ok(shutdown(self.listener.as_raw_fd(), Shutdown::Both)?)
    }

    pub fn is_a_socket(&self) -> bool {
        Path::symlink_metadata(&self.path).is_ok_and(|file| file.file_type().is_socket())
    }
}

fn answer(mut stream: UnixStream, word: &str) -> std::io::Result<()> {
    let mut question = [0; 64];
    let length = stream.read(&mut question)?;
    let known = question.get(..length) == Some(b"who?");
    let uid = getsockopt(&stream, PeerCredentials)?.uid();
    stream.write_all(format!("{word} {} {uid}", if known { "to" } else { "?" }).as_bytes())
}
