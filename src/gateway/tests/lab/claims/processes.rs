//! Claims about the gateway's processes: what they hold, and what follows when one is killed or
//! lies.

use model::egress::Only;
use model::egress::frames::{FromGateway, ToGateway};

use super::Claim;
use crate::world::{LIST, Lab};

pub(super) const ALL: &[Claim] = &[
    ("a_killed_worker_is_reported_and_not_restarted", killed_worker),
    ("frames_of_another_cell_change_nothing", other_cells),
    ("gateway_and_worker_hold_no_capability_no_file_and_a_filter", confined),
];

fn killed_worker(lab: &Lab) {
    let cell = lab.cell(LIST);
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    while lab.waiting() {
        lab.frame();
    }
    let workers = lab.workers();
    let worker = *workers.last().expect("a worker");
    let pid = nix::unistd::Pid::from_raw(worker);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("killed");
    let reason = std::iter::from_fn(|| lab.frame()).take(50).find_map(|frame| {
        let FromGateway::Failed { cell: Some(failed), why } = frame else { return None };
        (failed == cell.key).then_some(why)
    });
    assert_eq!(reason.as_deref(), Some("the worker of the cell's network has died"));
    assert_eq!(cell.connect("203.0.113.20", 7), "timeout");
    assert!(cell.tally(1).incomplete);
    // Other cells are not affected.
    assert_eq!(lab.cell(LIST).connect("203.0.113.20", 7), "ok");
}

fn other_cells(lab: &Lab) {
    let cell = lab.cell(LIST);
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    let late = model::egress::frames::CellKey { generation: cell.key.generation - 1, ..cell.key };
    lab.send_frame(&ToGateway::Close { cell: late });
    lab.send_frame(&ToGateway::Begin {
        cell: late,
        call: 9,
        only: Some(Only { ports: vec!["1".parse().expect("a port")], ..Only::default() }),
    });
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    assert_eq!(cell.tally(1).connections, 2);
    // Positive control: a frame with the cell's key closes it.
    lab.send_frame(&ToGateway::Close { cell: cell.key });
    assert_eq!(cell.connect("203.0.113.20", 7), "timeout");
}

fn confined(lab: &Lab) {
    let cell = lab.cell(LIST);
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    let worker = *lab.workers().last().expect("a worker");
    for pid in [lab.gateway, worker] {
        // The lab has an environment, and gateway and worker had it too.
        for (file, left) in [("environ", ""), ("cmdline", "cofferdam-gateway")] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).expect("readable by root");
            let text = String::from_utf8_lossy(&bytes).replace('\0', "");
            assert_eq!(text, left, "{file}");
            assert!(
                std::fs::read("/proc/self/environ").is_ok_and(|environment| environment.len() > 20)
            );
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
        let line = |key: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(key));
            value.map(str::trim).unwrap_or_default().to_owned()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(line(set), "0000000000000000", "{set}");
        }
        assert_eq!((line("NoNewPrivs:").as_str(), line("Seccomp:").as_str()), ("1", "2"));
        let filters: u32 = line("Seccomp_filters:").parse().expect("a number");
        assert_eq!(filters, if pid == worker { 2 } else { 1 });
        if crate::world::by_root() {
            assert_eq!(line("Uid:"), "60000\t60000\t60000\t60000");
        }
        let root = std::fs::read_dir(format!("/proc/{pid}/root/")).map(std::iter::Iterator::count);
        assert_eq!(root.map_err(|error| error.kind()), Ok(0));
        for space in ["user", "mnt", "pid", "ipc", "uts"] {
            let namespace_of = |pid: &str| {
                std::fs::read_link(format!("/proc/{pid}/ns/{space}")).expect("a namespace")
            };
            assert_ne!(namespace_of(&pid.to_string()), namespace_of("self"), "{space}");
        }
    }
}
