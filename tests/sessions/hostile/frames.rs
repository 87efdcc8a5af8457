//! Random frames in random order with random descriptors, sent by a front end that is confined.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use model::egress::Only;
use model::job::{
    GrantId, JobMode, JobSignal, Limits, ListChanges, ProfileName, SessionId, StartDirectory,
    Within, Workspace,
};
use model::shells::ShellKind;
use model::wire::{self, Carried, FRAME_BYTES, JobInput, Request, Start};
use sys::memory;

use super::link::{Check, Link, block};
use crate::dice::Dice;

/// Numbers that are used again and again, some while they are in use.
const CROWDED: u64 = 8;
/// Maximum number of surplus descriptors with one frame: far more than any frame or its ancillary data may hold.
const SURPLUS: u64 = 40;
const SCRIPTS: [&str; 6] = [
    "true",
    "exit 3",
    "cat",
    "sleep 0.05",
    "head -c 300000 /dev/zero",
    "trap '' TERM; sleep 5 & sleep 5",
];

/// Descriptors that may be sent with the bytes, opened before confinement.
pub struct Hoard(Vec<OwnedFd>);

impl Hoard {
    pub fn new() -> Check<Self> {
        let wrong = |error: std::io::Error| error.to_string();
        let mut all: Vec<OwnedFd> = Vec::new();
        for script in SCRIPTS {
            all.push(block(&["bash", "-c", script])?);
        }
        all.push(block(&["/nowhere/at-all"])?);
        all.push(memory::sealed(c"noise", &[0xff; 4096]).map_err(wrong)?);
        all.push(memory::sealed(c"empty", &[]).map_err(wrong)?);
        all.push(memory::sealed(c"large", &vec![7; 1 << 20]).map_err(wrong)?);
        for path in ["/", "/dev/null", "/dev/zero", "/proc/self/mem"] {
            all.push(File::open(path).map_err(wrong)?.into());
        }
        let (read, write) = std::io::pipe().map_err(wrong)?;
        let (one, other) = std::os::unix::net::UnixStream::pair().map_err(wrong)?;
        all.extend([read.into(), write.into(), one.into(), other.into()]);
        Ok(Self(all))
    }
}

/// Sends `count` frames, then takes everything back. Each event is checked on the way.
pub fn storm(link: &mut Link, hoard: &Hoard, honest: &Start, dice: &mut Dice, count: u32) -> Check {
    for _ in 0..count {
        let (bytes, whole) = frame(link, honest, dice)?;
        let wanted = match (whole, wire::decode::<Request>(&bytes)) {
            (true, Ok(Request::Start(start))) => start.descriptors(),
            _ => 0,
        };
        let own = link.socket().try_clone_to_owned().map_err(|error| error.to_string())?;
        let fds = descriptors(hoard, &own, wanted, dice);
        link.send(&bytes, &fds)?;
        if dice.one_in(3) {
            link.listen()?;
        }
        if dice.one_in(200) {
            std::thread::sleep(Duration::from_millis(dice.below(30)));
        }
    }
    link.settle()
}

/// Bytes of a frame, and whether they are what an honest front end could send.
fn frame(link: &mut Link, honest: &Start, dice: &mut Dice) -> Check<(Vec<u8>, bool)> {
    let encode = |request: &Request| wire::encode(request).map_err(|error| error.to_string());
    let crowded = 1 + dice.below(CROWDED);
    match dice.below(18) {
        0 => Ok((dice.bytes(200), false)),
        // No bytes at all: not the end of the link, which has more to say.
        1 => Ok((Vec::new(), false)),
        2 => Ok((vec![0xff; FRAME_BYTES], false)),
        3 => {
            let mut bytes = encode(&Request::Start(odd(honest, link.fresh(), dice)))?;
            let place = usize::try_from(dice.below(64)).unwrap_or_default();
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= 1 << dice.below(8);
            }
            Ok((bytes, false))
        }
        4 => encode(&Request::Restart { session: SessionId(dice.below(3)) })
            .map(|bytes| (bytes, true)),
        5 => encode(&Request::Forget { session: SessionId(dice.below(3)) })
            .map(|bytes| (bytes, true)),
        6 => encode(&Request::Cancel { call: crowded }).map(|bytes| (bytes, true)),
        7 => encode(&Request::OutputLimit { call: crowded }).map(|bytes| (bytes, true)),
        16 => {
            let signals = [JobSignal::Terminate, JobSignal::Kill];
            let signal = dice.pick(&signals).copied().unwrap_or(JobSignal::Kill);
            encode(&Request::Signal { call: crowded, signal }).map(|bytes| (bytes, true))
        }
        17 => {
            let number = u32::try_from(dice.below(1 << 33)).unwrap_or(u32::MAX);
            encode(&Request::AskInput { call: crowded, number }).map(|bytes| (bytes, true))
        }
        8..=10 => encode(&Request::Start(odd(honest, crowded, dice))).map(|bytes| (bytes, true)),
        11..=13 => {
            encode(&Request::Start(odd(honest, link.fresh(), dice))).map(|bytes| (bytes, true))
        }
        _ => {
            let start = Start { call: link.fresh(), ..honest.clone() };
            encode(&Request::Start(start)).map(|bytes| (bytes, true))
        }
    }
}

fn carried(dice: &mut Dice) -> Carried {
    if dice.one_in(2) { Carried::Sealed } else { Carried::Inline(dice.bytes(2000)) }
}

/// Limits of which many are at an end of their range.
fn odd_limits(dice: &mut Dice) -> Limits {
    let mut number = || match dice.below(5) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => dice.below(1 << 20),
        _ => dice.next(),
    };
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Limits {
        wall: Duration::from_millis(number() % 1000),
        cpu: Duration::from_secs(number()),
        processors: Some(small(number())),
        memory: number(),
        processes: small(number()),
        open_files: small(number()),
        file_size: number(),
        workspace_bytes: number(),
        tmp_bytes: number(),
        shm_bytes: number(),
        inodes: small(number()),
        output: Some(number()),
    }
}

/// A job of which some parts are not what they should be.
fn odd(honest: &Start, call: u64, dice: &mut Dice) -> Start {
    let names = ["bash", "bc", "base", "none", "other"];
    let name = dice.pick(&names).and_then(|name| ProfileName::new(name));
    let limits = odd_limits(dice);
    let limits = if dice.one_in(2) { limits } else { honest.limits };
    let workspaces = [
        Workspace::Fresh,
        Workspace::Granted(GrantId(0)),
        Workspace::Granted(GrantId(u16::MAX)),
        Workspace::Session(SessionId(dice.below(3))),
        Workspace::Session(SessionId(u64::MAX)),
    ];
    Start {
        call,
        profile: if dice.one_in(3) { name } else { None }.unwrap_or(honest.profile.clone()),
        workspace: match dice.one_in(5) {
            true => dice.pick(&workspaces).copied().unwrap_or(Workspace::Fresh),
            false => Workspace::Fresh,
        },
        only: dice.one_in(4).then(|| Only {
            rules: Some(vec!["r".repeat(dice.below(600).try_into().unwrap_or(0)); 40]),
            ..Only::default()
        }),
        session_profile: dice
            .one_in(4)
            .then(|| dice.pick(&names).and_then(|name| ProfileName::new(name)))
            .flatten(),
        session: dice.one_in(9).then(|| Within {
            session: SessionId(dice.below(3)),
            directory: if dice.one_in(2) { StartDirectory::Stay } else { StartDirectory::Given },
            mode: if dice.one_in(2) { JobMode::Foreground } else { JobMode::Background },
            shell: dice.pick(&ShellKind::ALL).copied().unwrap_or_default(),
        }),
        changes: if dice.one_in(2) { ListChanges::Yes } else { ListChanges::No },
        limits,
        stdin: match dice.below(4) {
            0 => JobInput::Empty,
            1 => JobInput::Pipe,
            2 => JobInput::Terminal,
            _ => JobInput::Bytes(carried(dice)),
        },
        script: dice.one_in(2).then(|| carried(dice)),
        block: match dice.below(4) {
            0 => Carried::Inline(dice.bytes(300)),
            1 => Carried::Inline(Vec::new()),
            _ => honest.block.clone(),
        },
    }
}

/// Descriptors for a frame that wants `wanted`: mostly as many, of the first kind that belongs there.
fn descriptors<'a>(
    hoard: &'a Hoard,
    own: &'a OwnedFd,
    wanted: usize,
    dice: &mut Dice,
) -> Vec<BorrowedFd<'a>> {
    let any = |dice: &mut Dice| match dice.one_in(20) {
        // The link through the link.
        true => own.as_fd(),
        false => dice.pick(&hoard.0).unwrap_or(own).as_fd(),
    };
    if dice.one_in(8) {
        let count = dice.below(SURPLUS);
        return (0..count).map(|_| any(dice)).collect();
    }
    let blocks = hoard.0.get(..SCRIPTS.len()).unwrap_or_default();
    (0..wanted)
        .map(|place| match (place, dice.one_in(10)) {
            (0, false) => dice.pick(blocks).unwrap_or(own).as_fd(),
            (_, false) => hoard.0.get(SCRIPTS.len() + 1).unwrap_or(own).as_fd(),
            (_, true) => any(dice),
        })
        .collect()
}
