//! Tests of cells whose program is executed before the job arrives.

use std::time::Duration;

use model::job::{Limits, ListChanges};
use model::outcome::{LimitKind, Outcome};
use model::wire::{Carried, JobInput};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::AGE;
use super::front::{Check, Front, Job, MARK, expect, words};

const WELL: Outcome = Outcome::Exited { code: 0 };

pub fn lazy(front: &mut Front) -> Check {
    expect(front.waiting(), Vec::<i32>::new())?;
    for _ in 0..2 {
        let job = front.other_job("echo $GIVEN $1 $2");
        expect(front.run(&job)?.report(), (&WELL, "ahead waits-for-its-input other\n", ""))?;
        std::thread::sleep(Duration::from_millis(300));
        expect(front.waiting(), Vec::<i32>::new())?;
    }
    let job = front.job("echo $GIVEN $1");
    let done = front.run(&job)?;
    expect(done.report(), (&WELL, "ahead waits-for-its-input\n", ""))?;
    expect(done.ended.pool.ahead, 0)?;
    front.settled(Duration::ZERO)
}

pub fn waits(front: &mut Front) -> Check {
    front.settled(AGE)?;
    expect(front.waiting().len(), 2)?;
    let job = front.job("((SECONDS > 0)) && echo it waited");
    let done = front.run(&job)?;
    expect(done.report(), (&WELL, "it waited\n", ""))?;
    expect((done.ended.pool.ahead, done.ended.timings.exec), (1, Duration::ZERO))
}

pub fn once(front: &mut Front) -> Check {
    let leave = "x=1; echo $x > /tmp/left; echo ${y-none}; [[ -e /tmp/other ]] || echo nothing";
    let look = "y=1; echo $y > /tmp/other; echo ${x-none}; [[ -e /tmp/left ]] || echo nothing";
    for script in [leave, look, leave, look] {
        front.settled(Duration::ZERO)?;
        let before = front.waiting();
        let job = front.job(script);
        let done = front.run(&job)?;
        expect(done.report(), (&WELL, "none\nnothing\n", ""))?;
        front.settled(Duration::ZERO)?;
        let kept = front.waiting().iter().filter(|pid| before.contains(pid)).count();
        expect(kept, 1)?;
    }
    Ok(())
}

/// A job with one thing changed.
type Change = (&'static str, fn(&mut Job));

const CHANGES: [Change; 12] = [
    ("argv", |job| job.argv.push("more")),
    ("a variable more", |job| job.env.push(("MORE", "1"))),
    ("another value", |job| job.env = vec![("GIVEN", "later")]),
    ("a directory", |job| job.cwd = "/tmp/home"),
    ("less memory", |job| job.start.limits.memory -= 4096),
    ("fewer processes", |job| job.start.limits.processes -= 1),
    ("a script", |job| job.start.script = Some(Carried::Sealed)),
    ("a pipe", |job| job.start.stdin = JobInput::Pipe),
    ("changes listed", |job| job.start.changes = ListChanges::Yes),
    ("no input", |job| job.start.stdin = JobInput::Empty),
    ("input without a byte", |job| job.input.clear()),
    ("more input than a pipe takes", |job| job.input.extend([b'#'; 64 << 10])),
];

pub fn differs(front: &mut Front) -> Check {
    // In a cell without it bash begins with its job; `$0` is the name that it was executed by.
    for (what, change) in CHANGES {
        front.settled(AGE)?;
        let mut job = front.job("((SECONDS == 0)) && echo $0 $GIVEN $PWD ${MORE-}\n");
        change(&mut job);
        let before = front.waiting();
        let done = front.run(&job)?;
        let wanted = match what {
            "a variable more" => "bash ahead /tmp 1\n",
            "another value" => "bash later /tmp\n",
            "a directory" => "bash ahead /tmp/home\n",
            "no input" | "input without a byte" => "",
            _ => "bash ahead /tmp\n",
        };
        expect(done.report(), (&WELL, wanted, "")).map_err(|reason| format!("{what}: {reason}"))?;
        expect(front.waiting(), before).map_err(|reason| format!("{what}: {reason}"))?;
    }
    // Output that the front end holds by itself is not counted for the cell.
    let mut job = front.job("((SECONDS > 0)) && echo it waited");
    job.start.limits = Limits { output: Some(1), wall: Duration::from_secs(9), ..job.start.limits };
    expect(front.run(&job)?.report(), (&WELL, "it waited\n", ""))
}

pub fn walls(front: &mut Front) -> Check {
    // Only the limit of SigQ: the number of waiting signals changes, such as an end of a child that init
    // has yet to read among them.
    let script = "ulimit -a; ulimit -Ha; export -p; pwd; umask; trap -p
        while read -r _ _ _ _ place options _; do echo $place $options; done < /proc/self/mountinfo
        for file in status limits cgroup; do
            while read -r line; do
                case $line in
                    SigQ*) echo \"SigQ ${line#*/}\" ;;
                    Cap*|No*|Seccomp*|Uid*|Gid*|Groups*|Sig*|Shd*|Max*|*/*) echo \"$line\" ;;
                esac
            done < /proc/self/$file
        done
        for fd in /proc/self/fd/*; do echo ${fd##*/}; done; (:); < /etc/shadow; exec /usr/bin/bash";
    let other = front.other_job(script);
    let expected = front.run(&other)?;
    front.settled(AGE)?;
    let job = front.job(script);
    let before = expected.ended.pool.ahead;
    let done = front.run(&job)?;
    expect(done.ended.pool.ahead, before + 1)?;
    for part in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000"] {
        if !done.stdout.contains(part) {
            return Err(format!("{part} is not in {}", done.stdout));
        }
    }
    expect(done.report(), expected.report())?;
    expect(&done.ended.denials, &expected.ended.denials)?;
    let mut receipts = [done.receipt, expected.receipt];
    for receipt in receipts.iter_mut().flatten() {
        // Each slot has its own.
        receipt.measured.host_uid = 0;
        // A namespace is kept for later cells, so the second job may get that of the first one.
        expect(receipt.measured.network_namespace.take().is_some(), true)?;
    }
    let [ahead, plain] = receipts;
    expect(ahead.is_some(), true)?;
    expect(ahead, plain)
}

pub fn limits(front: &mut Front) -> Check {
    // 72 MB in variables, by parts that no limit on one process meets, and 66 MB in files.
    let fill = "printf -v x '%*s' 8000000 ''; for ((i = 0; i < 8; i++)); do a[i]=$x; done
        for ((i = 0; i < 66; i++)); do printf '%s' \"${x:0:1000000}\" >> /tmp/f; done
        while :; do :; done";
    let cases = [
        ("while :; do :; done", Duration::from_secs(60), Outcome::Limit(LimitKind::Cpu)),
        ("while :; do :; done", Duration::from_millis(700), Outcome::Timeout),
        (fill, Duration::from_secs(60), Outcome::Limit(LimitKind::Memory)),
    ];
    for (script, wall, outcome) in cases {
        front.settled(AGE)?;
        for mut job in [front.job(script), front.other_job(script)] {
            job.start.limits.wall = wall;
            let executed = job.argv.last() == Some(&MARK);
            let done = front.run(&job)?;
            // A step of zero duration had begun before.
            expect(done.ended.timings.exec.is_zero(), executed)?;
            expect(&done.ended.outcome, &outcome)
                .map_err(|reason| format!("{script}: {reason}"))?;
            // The time before the job does not count.
            let took = done.ended.usage.wall;
            if outcome == Outcome::Timeout && !(wall..wall * 8).contains(&took) {
                return Err(format!("{took:?} of {wall:?}"));
            }
        }
    }
    Ok(())
}

/// Ends one of the programs that wait.
fn end_one(front: &Front) -> Check {
    let pid = front.waiting().first().copied().ok_or("nothing waits")?;
    kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(words)?;
    // Wait until it is reaped: until then it may hold the pipe for a job's input.
    while std::path::Path::new(&format!("/proc/{pid}")).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

pub fn dies(front: &mut Front) -> Check {
    let serve = |front: &mut Front| {
        let job = front.job("echo served");
        let done = front.run(&job)?;
        expect(done.report(), (&WELL, "served\n", "")).map(|()| done.ended.pool.died)
    };
    // A while before a job, and just before one: there the supervisor may not have heard of it yet.
    let before = serve(front)?;
    front.settled(AGE)?;
    end_one(front)?;
    std::thread::sleep(AGE);
    expect(serve(front)?, before + 1)?;
    for _ in 0..20 {
        front.settled(Duration::ZERO)?;
        end_one(front)?;
        end_one(front)?;
        serve(front)?;
    }
    Ok(())
}
