//! Tests of the gateway process: calls begin, workers end with their cell, and a worker that lies
//! is killed.

use std::os::fd::AsRawFd;

use model::egress::frames::{SocketAnswer, SocketRequest};
use model::egress::{Connection, ConnectionEnd, Protocol};
use nix::sys::signal::Signal;
use nix::sys::socket::Shutdown;

use super::*;
use crate::cells::{Links, Sockets, links};

const KEY: CellKey = CellKey { slot: 1, generation: 4 };
const OTHER: CellKey = CellKey { slot: 2, generation: 5 };

fn spec() -> GatewaySpec {
    GatewaySpec {
        profiles: Vec::new(),
        resolvers: Vec::new(),
        hosts: Vec::new(),
        roots: Vec::new(),
        secrets: Vec::new(),
        id: None,
    }
}

/// Makes a gateway with one cell, whose worker sleeps and owes the tally of call 9. Returns also
/// the worker's ends of the links for frames and for sockets.
fn gateway<'a>(
    link: &'a OwnedFd,
    spec: &'a GatewaySpec,
) -> (Gateway<'a>, OwnedFd, (OwnedFd, OwnedFd)) {
    let sleep = || std::thread::sleep(std::time::Duration::from_secs(60));
    let (gateway, worker, theirs, _) = gateway_with_worker(link, spec, sleep);
    (gateway, worker, theirs)
}

/// Makes a gateway like the function above, with a worker that runs `act` and exits with code 0.
/// Returns the cell's end of the lifeline too.
fn gateway_with_worker<'a>(
    link: &'a OwnedFd,
    spec: &'a GatewaySpec,
    act: impl FnOnce(),
) -> (Gateway<'a>, OwnedFd, (OwnedFd, OwnedFd), OwnedFd) {
    // Not a pipe: children of other tests may hold a copy of its end, while a shutdown affects all
    // copies.
    let (lifeline, init) = pair().expect("a pair");
    let Side::Parent(worker) = fork().expect("a child") else {
        drop(init);
        act();
        process::exit_now(0);
    };
    let Links { ours: (frames, sockets), theirs } = links().expect("two pairs");
    let state = State::Working {
        link: frames,
        sockets: Sockets { link: sockets, waiting: None, open: true },
        pidfd: worker.pidfd.try_clone().expect("a copy"),
        lifeline: Some(lifeline),
        ending: Ending::No,
        open: true,
        open_questions: vec![9],
    };
    let begun = Some(CurrentCall { call: 9, only: None });
    let egress = Arc::new(Egress::default());
    let cell = Cell { egress, profile: 0, seed: [0; 16], begun, unlisted: 0, state };
    let gateway = Gateway {
        link,
        spec,
        profiles: Vec::new(),
        prepared: Prepared::new(spec).expect("nothing to prepare"),
        hosts: Arc::default(),
        connector: Connector::new(Vec::new()).expect("a socket"),
        cells: HashMap::from([(KEY, cell)]),
        last_tallies: LastTallies::default(),
        // Without processes that close: those of tests that run at once would hold each other's ends
        // open, and none would end.
        closer: pair().expect("a pair").0,
        pending: VecDeque::new(),
    };
    (gateway, worker.pidfd, theirs, init)
}

/// Makes a report of a connection.
fn a_connection() -> Connection {
    Connection {
        protocol: Protocol::Tcp,
        name: None,
        address: ([203, 0, 113, 1], 80).into(),
        rule: None,
        sent: 0,
        received: 0,
        milliseconds: 0,
        end: ConnectionEnd::Relayed,
        request: None,
    }
}

/// Reads all frames that the supervisor has received.
fn received_frames(supervisor: &OwnedFd) -> Vec<FromGateway> {
    let mut buffer = vec![0; FRAME_BYTES];
    let mut frames = Vec::new();
    while let Ok(received) = receive(supervisor, &mut buffer, PacketWait::No) {
        frames.push(decode(buffer.get(..received.bytes).expect("read")).expect("a frame"));
    }
    frames
}

/// Returns true if the worker was killed, and makes sure that it ends.
fn killed(worker: &OwnedFd) -> bool {
    let mut waited = [PollFd::new(worker.as_fd(), PollFlags::POLLIN)];
    let killed = poll(&mut waited, PollTimeout::from(500_u16)).expect("waited") == 1;
    // Fails only if the worker has ended already.
    process::signal(worker, Signal::SIGKILL).unwrap_or_default();
    killed
}

/// Passes frames to a gateway as those of a worker that owes the tally of call 9. Returns what the
/// supervisor receives, and whether the worker was killed.
fn frames_and_kill(frames: &[FromGateway]) -> (Vec<FromGateway>, bool) {
    let (supervisor, link) = pair().expect("a pair");
    let spec = spec();
    let (mut gateway, worker, (theirs, _sockets)) = gateway(&link, &spec);
    for frame in frames {
        send_now(&theirs, &encode(frame).expect("it fits"), &[]).expect("sent");
        gateway.worker_frame(KEY);
    }
    let received = received_frames(&supervisor);
    let killed = killed(&worker);
    process::wait(&worker).expect("its end");
    (received, killed)
}

#[test]
fn a_call_that_its_worker_does_not_accept_loses_its_network() {
    let (supervisor, link) = pair().expect("a pair");
    let spec = spec();
    let (mut gateway, worker, _theirs) = gateway(&link, &spec);
    let begin = |gateway: &mut Gateway<'_>, call| {
        let frame = ToGateway::Begin { cell: KEY, call, only: None };
        gateway.begin(KEY, CurrentCall { call, only: None }, &encode(&frame).expect("it fits"));
    };
    // Positive control: an accepted call is reported to the supervisor by no frame, and the worker
    // lives.
    begin(&mut gateway, 10);
    assert_eq!(received_frames(&supervisor), []);
    // The worker reads nothing, so the link fills up.
    let mut call = 10;
    while gateway.pass(KEY, &[0; 512]) {
        assert!(call < 100_000, "the link takes everything");
        call += 1;
    }
    begin(&mut gateway, call);
    let mut waited = [PollFd::new(worker.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut waited, PollTimeout::from(5_000_u16)), Ok(1), "it was not killed");
    gateway.exited(KEY);
    let failed = FromGateway::Failed { cell: Some(KEY), why: WORKER_DIED.to_owned() };
    let answers = received_frames(&supervisor);
    assert_eq!(answers.first(), Some(&failed), "{answers:?}");
    // Later calls of the cell fail the same way, and so do calls of a cell that is gone.
    begin(&mut gateway, call + 1);
    assert_eq!(received_frames(&supervisor), [failed]);
    gateway.cells.clear();
    begin(&mut gateway, call + 2);
    assert!(matches!(received_frames(&supervisor).as_slice(), [FromGateway::Failed { .. }]));
}

/// Returns how far the shutdown of the cell's worker has come; `None` once the cell is forgotten.
fn ending(gateway: &Gateway<'_>) -> Option<Ending> {
    match &gateway.cells.get(&KEY)?.state {
        State::Working { ending, .. } => Some(*ending),
        State::Waiting { .. } | State::Failed => None,
    }
}

#[test]
fn a_worker_that_outlives_its_cell_gets_no_more_sockets_and_is_killed() {
    let (supervisor, link) = pair().expect("a pair");
    let spec = spec();
    let sleep = || std::thread::sleep(Duration::from_secs(60));
    let (mut gateway, worker, (_frames, sockets), _init) = gateway_with_worker(&link, &spec, sleep);
    let ask_for_socket = |gateway: &mut Gateway<'_>, protocol| {
        let to = "203.0.113.7:80".parse().expect("an address");
        let ask = SocketRequest::Destination { protocol, to };
        send_now(&sockets, &encode(&ask).expect("it fits"), &[]).expect("sent");
        gateway.serve_sockets(KEY);
        let mut buffer = [0; 4_096];
        let received = receive(&sockets, &mut buffer, PacketWait::No).expect("an answer");
        decode::<SocketAnswer>(buffer.get(..received.bytes).expect("read")).expect("an answer")
    };
    // Positive control: before the cell ends each request is judged (the cell has no rule), and the
    // loop has no deadline.
    let is_judged = |answer: &SocketAnswer| matches!(answer, SocketAnswer::Refused { .. });
    assert!(is_judged(&ask_for_socket(&mut gateway, Protocol::Tcp)));
    assert_eq!(gateway.poll_timeout(), PollTimeout::NONE);
    let close = encode(&ToGateway::Close { cell: KEY }).expect("it fits");
    send_now(&supervisor, &close, &[]).expect("sent");
    gateway.turn().expect("a turn");
    let Some(Ending::By(by)) = ending(&gateway) else { panic!("{:?}", gateway.cells) };
    let ended = SocketAnswer::Failed { errno: sys::raw(Errno::ETIMEDOUT) };
    assert_eq!(ask_for_socket(&mut gateway, Protocol::Tcp), ended);
    // The last datagrams are still judged.
    assert!(is_judged(&ask_for_socket(&mut gateway, Protocol::Udp)));
    // A second report of the end does not extend the deadline.
    gateway.close(KEY);
    assert_eq!(ending(&gateway), Some(Ending::By(by)));
    while let Some(Ending::By(_)) = ending(&gateway) {
        gateway.turn().expect("a turn");
    }
    assert_eq!(ending(&gateway), Some(Ending::Killed));
    while gateway.cells.contains_key(&KEY) {
        gateway.turn().expect("a turn");
    }
    drop(worker);
}

#[test]
fn a_worker_that_exits_before_its_cell_counts_as_died() {
    for cell_ends in [false, true] {
        let (supervisor, link) = pair().expect("a pair");
        let spec = spec();
        let (mut gateway, worker, _theirs, init) = gateway_with_worker(&link, &spec, || ());
        let mut waited = [PollFd::new(worker.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut waited, PollTimeout::from(5_000_u16)), Ok(1), "it has not ended");
        // If the cell has ended, which the worker saw first, the exit is an ordinary one.
        if cell_ends {
            nix::sys::socket::shutdown(init.as_raw_fd(), Shutdown::Both).expect("shut");
        }
        gateway.exited(KEY);
        let failed = FromGateway::Failed { cell: Some(KEY), why: WORKER_DIED.to_owned() };
        let tally = Tally { incomplete: true, ..Tally::default() };
        let tally = FromGateway::Tally { cell: KEY, call: 9, tally };
        let expected = if cell_ends { vec![tally] } else { vec![failed, tally] };
        assert_eq!(received_frames(&supervisor), expected, "{cell_ends}");
        assert_eq!(gateway.cells.is_empty(), cell_ends);
    }
}

#[test]
fn the_tally_of_a_worker_that_has_just_exited_is_sent() {
    let (supervisor, link) = pair().expect("a pair");
    let spec = spec();
    let (mut gateway, worker, (frames, sockets), init) = gateway_with_worker(&link, &spec, || ());
    // After a quick call, the cell ends, its worker leaves a tally and exits, and the supervisor asks
    // for the tally, all before the loop runs again.
    nix::sys::socket::shutdown(init.as_raw_fd(), Shutdown::Both).expect("shut");
    let tally = Tally { unlisted: 3, ..Tally::default() };
    let last = FromGateway::Last { cell: KEY, call: 10, tally: tally.clone() };
    send_now(&frames, &encode(&last).expect("it fits"), &[]).expect("sent");
    // Children of other tests may hold copies of both.
    for link in [frames, sockets] {
        nix::sys::socket::shutdown(link.as_raw_fd(), Shutdown::Both).expect("shut");
    }
    let mut waited = [PollFd::new(worker.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut waited, PollTimeout::from(5_000_u16)), Ok(1), "it has not ended");
    let ask = encode(&ToGateway::Ask { cell: KEY, call: 10 }).expect("it fits");
    send_now(&supervisor, &ask, &[]).expect("sent");
    while gateway.cells.contains_key(&KEY) {
        gateway.turn().expect("a turn");
    }
    let answers = received_frames(&supervisor);
    let answer = FromGateway::Tally { cell: KEY, call: 10, tally };
    assert!(answers.contains(&answer), "{answers:?}");
}

#[test]
fn a_worker_that_floods_its_link_does_not_block_the_gateway() {
    let (supervisor, link) = pair().expect("a pair");
    let spec = spec();
    let (mut gateway, worker, (frames, _sockets)) = gateway(&link, &spec);
    nix::sys::socket::shutdown(frames.as_raw_fd(), Shutdown::Read).expect("shut");
    let frame = FromGateway::Connection { cell: KEY, call: 9, connection: a_connection() };
    let frame = encode(&frame).expect("it fits");
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // Bounded, so that a gateway that reads all frames fails the test and does not
                // hang.
                let mut sent = 0;
                while sent < 20_000 && !over.load(std::sync::atomic::Ordering::Relaxed) {
                    sent += i32::from(send_now(&frames, &frame, &[]).is_ok());
                }
            });
        }
        // The link is full before the question comes.
        while send_now(&frames, &frame, &[]).is_ok() {}
        gateway.ask(KEY, 10, b"a question");
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let unlisted = gateway.cells.get(&KEY).map_or(0, |cell| cell.unlisted);
    let read =
        received_frames(&supervisor).len() + usize::try_from(unlisted).expect("a small number");
    assert!((100..=MAX_WORKER_FRAMES).contains(&read), "{read}");
    assert!(killed(&worker));
    process::wait(&worker).expect("its end");
}

#[test]
fn unanswered_questions_are_bounded_and_kill_no_honest_worker() {
    let (supervisor, link) = pair().expect("a pair");
    let spec = spec();
    let (mut gateway, worker, (frames, _sockets)) = gateway(&link, &spec);
    let limit = CallId::try_from(MAX_OPEN_QUESTIONS).expect("a small number");
    for call in 10..10 + limit {
        let ask = encode(&ToGateway::Ask { cell: KEY, call }).expect("it fits");
        gateway.ask(KEY, call, &ask);
    }
    // The last question exceeded the limit: its tally is marked incomplete.
    let tally = |call, incomplete| FromGateway::Tally {
        cell: KEY,
        call,
        tally: Tally { incomplete, ..Tally::default() },
    };
    assert_eq!(received_frames(&supervisor), [tally(9 + limit, true)]);
    send_now(&frames, &encode(&tally(9, false)).expect("it fits"), &[]).expect("sent");
    assert!(gateway.worker_frame(KEY));
    assert_eq!(received_frames(&supervisor), [tally(9, false)]);
    assert!(!killed(&worker));
    process::wait(&worker).expect("its end");
}

#[test]
fn a_waiting_packet_is_handled_before_its_call_is_tallied() {
    for closes in [false, true] {
        for sends in [false, true] {
            let (_supervisor, link) = pair().expect("a pair");
            let spec = spec();
            let (mut gateway, worker, _theirs) = gateway(&link, &spec);
            process::signal(&worker, Signal::SIGKILL).expect("sent");
            let (packets, cell_packets) = pair().expect("a pair");
            let (lifeline, _init) = pair().expect("a pair");
            gateway.cells.get_mut(&KEY).expect("the cell").state =
                State::Waiting { packets, lifeline };
            if sends {
                send_now(&cell_packets, b"x", &[]).expect("sent");
            }
            match closes {
                true => gateway.close(KEY),
                false => gateway.ask(KEY, 9, b"a question"),
            }
            assert_eq!(kill_worker(&gateway), sends, "{closes}");
        }
    }
}

/// Kills the worker that the gateway itself has forked. Returns false if the cell has none.
///
/// Its lifeline does not end it: the children of other tests hold copies of the other end.
fn kill_worker(gateway: &Gateway<'_>) -> bool {
    match gateway.cells.get(&KEY).map(|cell| &cell.state) {
        Some(State::Working { pidfd, .. }) => {
            process::signal(pidfd, Signal::SIGKILL).expect("sent");
            process::wait(pidfd).expect("its end");
            true
        }
        Some(State::Waiting { .. } | State::Failed) | None => false,
    }
}

#[test]
fn a_packet_and_the_end_of_its_call_in_one_turn_leave_the_worker() {
    let (supervisor, link) = pair().expect("a pair");
    let spec = spec();
    let (mut gateway, worker, _theirs) = gateway(&link, &spec);
    process::signal(&worker, Signal::SIGKILL).expect("sent");
    process::wait(&worker).expect("its end");
    let (packets, cell_packets) = pair().expect("a pair");
    let (lifeline, _init) = pair().expect("a pair");
    gateway.cells.get_mut(&KEY).expect("the cell").state = State::Waiting { packets, lifeline };
    send_now(&cell_packets, b"x", &[]).expect("sent");
    let ask = encode(&ToGateway::Ask { cell: KEY, call: 9 }).expect("it fits");
    send_now(&supervisor, &ask, &[]).expect("sent");
    gateway.turn().expect("a turn");
    let failed = received_frames(&supervisor);
    let failed = failed.iter().any(|frame| matches!(frame, FromGateway::Failed { .. }));
    assert!(kill_worker(&gateway) && !failed, "{:?}", gateway.cells);
}

#[test]
fn a_call_may_begin_after_its_cell_has_ended() {
    let (supervisor, link) = pair().expect("a pair");
    let spec = spec();
    let (mut gateway, worker, _theirs) = gateway(&link, &spec);
    process::signal(&worker, Signal::SIGKILL).expect("sent");
    process::wait(&worker).expect("its end");
    let (packets, _cell_packets) = pair().expect("a pair");
    let (lifeline, init) = pair().expect("a pair");
    let cell = gateway.cells.get_mut(&KEY).expect("the cell");
    (cell.state, cell.begun) = (State::Waiting { packets, lifeline }, None);
    nix::sys::socket::shutdown(init.as_raw_fd(), Shutdown::Both).expect("shut");
    let ask = || ToGateway::Ask { cell: KEY, call: 9 };
    // The first turn has no frame of the call, and another one to wake it.
    for frame in [
        ToGateway::Ask { cell: OTHER, call: 3 },
        ToGateway::Begin { cell: KEY, call: 9, only: None },
        ask(),
        ToGateway::Close { cell: KEY },
        ask(),
    ] {
        send_now(&supervisor, &encode(&frame).expect("it fits"), &[]).expect("sent");
        gateway.turn().expect("a turn");
    }
    let incomplete = Tally { incomplete: true, ..Tally::default() };
    let tally = |cell, call, tally| FromGateway::Tally { cell, call, tally };
    let whole = tally(KEY, 9, Tally::default());
    let expected = [tally(OTHER, 3, incomplete), whole.clone(), whole];
    assert_eq!(received_frames(&supervisor), expected);
    assert!(gateway.cells.is_empty());
}

#[test]
fn a_worker_that_does_not_read_its_sockets_gets_no_more() {
    let (_supervisor, link) = pair().expect("a pair");
    let spec = spec();
    let (mut gateway, worker, (_frames, sockets)) = gateway(&link, &spec);
    let ask = SocketRequest::Own { addresses: vec![[203, 0, 113, 7].into()] };
    let ask = encode(&ask).expect("it fits");
    let mut answered = 0;
    for _ in 0..1_000 {
        if send_now(&sockets, &ask, &[]).is_err() {
            break;
        }
        gateway.serve_sockets(KEY);
    }
    // About thirty answers wait, then one that does not fit; after it no request is read.
    let cell = gateway.cells.get(&KEY).expect("the cell");
    let State::Working { sockets: ours, .. } = &cell.state else { panic!("{cell:?}") };
    assert!(ours.waiting.is_some());
    let mut buffer = [0; 4_096];
    while receive(&sockets, &mut buffer, PacketWait::No).is_ok() {
        answered += 1;
    }
    assert!((2..100).contains(&answered), "{answered}");
    // Once the worker reads, it is served again; a malformed request kills it.
    gateway.serve_sockets(KEY);
    assert!(receive(&sockets, &mut buffer, PacketWait::No).is_ok());
    while receive(&sockets, &mut buffer, PacketWait::No).is_ok() {
        gateway.serve_sockets(KEY);
    }
    send_now(&sockets, &[0xff; 9], &[]).expect("sent");
    gateway.serve_sockets(KEY);
    assert!(killed(&worker));
    process::wait(&worker).expect("its end");
}

#[test]
fn a_worker_may_only_answer_questions_about_its_cell() {
    let tally = |cell, call| FromGateway::Tally { cell, call, tally: Tally::default() };
    let connection = |cell| FromGateway::Connection { cell, call: 9, connection: a_connection() };
    let honest = [connection(KEY), tally(KEY, 9), connection(KEY)];
    assert_eq!(frames_and_kill(&honest), (honest.to_vec(), false));
    let other = CellKey { slot: 2, ..KEY };
    for hostile in [
        vec![tally(KEY, 8)],
        vec![tally(other, 9)],
        vec![connection(other)],
        vec![FromGateway::Up],
        vec![FromGateway::Failed { cell: Some(other), why: String::new() }],
    ] {
        assert_eq!(frames_and_kill(&hostile), (Vec::new(), true), "{hostile:?}");
    }
    // A second answer to one question is not forwarded.
    let twice = [tally(KEY, 9), tally(KEY, 9)];
    assert_eq!(frames_and_kill(&twice), (vec![tally(KEY, 9)], true));
}
