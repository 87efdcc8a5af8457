//! Messages of a supervisor, for tests that are its front end themselves.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use model::wire::{self, Event, FRAME_BYTES};
use sys::socket::{self, PacketWait, Received};

/// The next event of the link.
pub fn event(link: &OwnedFd, patience: Duration) -> Result<(Event, Received), String> {
    let mut buffer = vec![0; FRAME_BYTES];
    let end = Instant::now() + patience;
    while Instant::now() < end {
        match socket::receive(link, &mut buffer, PacketWait::No) {
            Ok(received) if received.bytes == 0 => return Err("the link ended".to_owned()),
            Ok(received) => {
                let bytes = buffer.get(..received.bytes).unwrap_or_default();
                let event = wire::decode(bytes).map_err(|error| error.to_string())?;
                return Ok((event, received));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Err("no answer in time".to_owned())
}
