//! The conditions on arguments at their corners.

use super::*;

/// Returns true if `call` is allowed with these arguments.
fn allows(call: &str, arguments: &[u64]) -> bool {
    let mut six = [0; 6];
    for (slot, argument) in six.iter_mut().zip(arguments) {
        *slot = *argument;
    }
    condition(call, MemoryHold::CgroupV2).is_some_and(|verdict| verdict.allows(&six))
}

/// The value with every bit of its upper half set, which the kernel ignores in an `int`.
fn dirty(value: u64) -> u64 {
    value | 0xffff_ffff_0000_0000
}

#[test]
fn clone_makes_threads_and_processes_and_no_namespace() {
    for flags in [17, 0x3d_0f00, 0x4111, 0x0120_0011] {
        assert!(allows("clone", &[flags]), "{flags:#x}");
    }
    let namespaces = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ];
    for flag in namespaces {
        let flag = u64::try_from(flag).unwrap_or(u64::MAX);
        assert!(!allows("clone", &[flag | 17]), "{flag:#x}");
        assert!(!allows("clone", &[dirty(flag)]), "{flag:#x} with a full upper half");
    }
    assert!(!allows("clone", &[0x8000 | 17]), "CLONE_PARENT");
}

#[test]
fn unshare_splits_descriptors_and_no_namespace() {
    assert!(allows("unshare", &[0x600]));
    for flag in [0x80, 0x2_0000, 0x0200_0000, 0x1000_0000, 0x4000_0000, 1 << 33] {
        assert!(!allows("unshare", &[flag]), "{flag:#x}");
    }
}

#[test]
fn ioctl_refuses_what_reaches_a_terminal_whatever_the_upper_half_holds() {
    for request in [0x5401, 0x5413, 0x541b, 0x5421, 0x5410, 0x4004_9409] {
        assert!(allows("ioctl", &[0, request]), "{request:#x}");
    }
    // TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD, FIOSETOWN, SIOCSPGRP, FS_IOC_SETFLAGS, NS_GET_USERNS, SIOCSIFFLAGS.
    let refused = [0x5412, 0x541c, 0x541d, 0x5423, 0x8901, 0x8902, 0x4008_6602, 0xb701, 0x8914];
    for request in refused {
        assert!(!allows("ioctl", &[0, request]), "{request:#x}");
        assert!(!allows("ioctl", &[0, dirty(request)]), "{request:#x} with a full upper half");
    }
}

#[test]
fn ioctl_allows_these_requests_of_terminals_and_no_other() {
    // Plain numbers of asm-generic/ioctls.h, by which the requests of terminals and of each file are made.
    let plain = [0x5401..=0x5411, 0x5413..=0x541b, 0x5420..=0x5422, 0x5424..=0x5429];
    let files = [0x5441..=0x5441, 0x5450..=0x5452, 0x5460..=0x5460];
    let allowed: Vec<u64> = plain.into_iter().chain(files).flatten().collect();
    for request in 0x5400..=0x54ff {
        assert_eq!(allows("ioctl", &[0, request]), allowed.contains(&request), "{request:#x}");
    }
    // With a direction and a size: TCGETS2, TCSETS2, TCSETSW2, TCSETSF2, TIOCGPTN, TIOCSPTLCK.
    let encoded = [0x802c_542a, 0x402c_542b, 0x402c_542c, 0x402c_542d, 0x8004_5430, 0x4004_5431];
    for direction in [0x4000_0000, 0x8000_0000, 0xc000_0000_u64] {
        for size in [4_u64, 8, 16, 32, 40, 44, 64] {
            for low in 0..=0xff {
                let request = direction | size << 16 | 0x5400 | low;
                let is_listed = encoded.contains(&request);
                assert_eq!(allows("ioctl", &[0, request]), is_listed, "{request:#x}");
            }
        }
    }
    // Requests of the console (ioctl_console(2)) and of virtual terminals.
    for request in (0x4b00..=0x4bff).chain(0x5600..=0x56ff) {
        assert!(!allows("ioctl", &[0, request]), "{request:#x}");
    }
}

#[test]
fn fcntl_sets_no_signal_owner_and_no_lease() {
    for command in [0, 1, 2, 3, 4, 5, 6, 7, 37, 1030, 1031, 1032, 1034] {
        assert!(allows("fcntl", &[0, command]), "{command}");
    }
    for command in [8, 10, 15, 1024, 1026, 1040] {
        assert!(!allows("fcntl", &[0, command]), "{command}");
        assert!(!allows("fcntl", &[0, dirty(command)]), "{command} with a full upper half");
    }
}

#[test]
fn with_a_pid_namespace_a_process_gets_a_descriptors_signals_and_init_does_not() {
    let verdict = signal_owners();
    let allows = |command: u64, who: u64| verdict.allows(&[0, command, who, 0, 0, 0]);
    let group = |number: u64| number.wrapping_neg();
    for who in [0, 2, 3, 4096, group(2), group(3), 1 << 31] {
        assert!(allows(8, who) && allows(dirty(8), dirty(who)), "{who:#x}");
    }
    for who in [1, group(1), 0xffff_ffff, 1 << 32 | 1, dirty(1)] {
        assert!(!allows(8, who) && !allows(dirty(8), who), "{who:#x}");
    }
    for command in [10, 15, 1024, 1026] {
        assert!(!allows(command, 3), "{command}");
    }
    assert!(allows(2, 1), "F_SETFD with FD_CLOEXEC");
}

#[test]
fn prctl_names_threads_and_installs_no_filter() {
    for option in [1, 3, 15, 16, 23, 38, 39, 0x5356_4d41] {
        assert!(allows("prctl", &[option]), "{option}");
    }
    // SET_SECCOMP, CAPBSET_DROP, SET_SECUREBITS, SET_MM, SET_SPECULATION_CTRL, dispatch, SCHED_CORE, SET_PTRACER.
    for option in [22, 24, 28, 35, 53, 59, 62, 0x5961_6d61] {
        assert!(!allows("prctl", &[option]), "{option}");
        assert!(!allows("prctl", &[dirty(option)]), "{option} with a full upper half");
    }
}

#[test]
fn no_process_becomes_untraceable() {
    let verdict = condition("prctl", MemoryHold::CgroupV2).expect("a condition");
    let answer = |option, value| {
        let arguments = [option, value, 0, 0, 0, 0];
        (verdict.allows(&arguments), verdict.quiet(&arguments))
    };
    assert_eq!(answer(4, 0), (false, Some(0)), "returns 0 without effect");
    assert_eq!(answer(dirty(4), 0), (false, Some(0)), "with a full upper half");
    // The kernel compares the whole register, and refuses these values.
    for value in [1, 2, 1 << 32, u64::MAX] {
        assert_eq!(answer(4, value), (true, None), "{value:#x}");
    }
    assert_eq!(answer(3, 0), (true, None), "PR_GET_DUMPABLE");
}

#[test]
fn no_file_takes_room_past_its_limit() {
    for mode in [0, 3, 8, 0x10] {
        assert!(allows("fallocate", &[0, mode, 0, 1]), "{mode:#x}");
    }
    for mode in [1, 0x11, 0x20, 0x40, 0x80, 9] {
        assert!(!allows("fallocate", &[0, mode, 0, 1]), "{mode:#x}");
        assert!(!allows("fallocate", &[0, dirty(mode), 0, 1]), "{mode:#x} with a full upper half");
    }
}

#[test]
fn personality_is_asked_for_and_not_changed() {
    assert!(allows("personality", &[0]));
    assert!(allows("personality", &[0xffff_ffff]));
    // ADDR_NO_RANDOMIZE, READ_IMPLIES_EXEC, PER_LINUX32, MMAP_PAGE_ZERO.
    for persona in [0x4_0000, 0x40_0000, 8, 0x10_0000] {
        assert!(!allows("personality", &[persona]), "{persona:#x}");
    }
}

#[test]
fn other_processes_keep_their_limits_and_priorities() {
    assert!(allows("prlimit64", &[0, 7]));
    assert!(!allows("prlimit64", &[1, 7]));
    assert!(allows("setpriority", &[0]) && allows("setpriority", &[1]));
    assert!(!allows("setpriority", &[2]), "PRIO_USER");
    assert!(allows("ioprio_set", &[1]) && !allows("ioprio_set", &[3]));
    assert!(allows("sched_setscheduler", &[0, 0x4000_0003]));
    assert!(!allows("sched_setscheduler", &[0, 1]), "SCHED_FIFO");
    assert!(!allows("sched_setscheduler", &[0, 5]), "SCHED_IDLE");
    assert!(!allows("sched_setscheduler", &[0, 6]), "SCHED_DEADLINE");
}

#[test]
fn nodes_are_files_fifos_and_sockets() {
    for mode in [0o644, 0o100_644, 0o010_666, 0o140_777] {
        assert!(allows("mknodat", &[0, 0, mode]), "{mode:o}");
        assert!(allows("mknod", &[0, mode]), "{mode:o}");
    }
    for mode in [0o020_666, 0o060_666, 0o120_777, 0o104_755] {
        assert!(!allows("mknodat", &[0, 0, mode]), "{mode:o}");
        assert!(!allows("mknod", &[0, mode]), "{mode:o}");
    }
}

#[test]
fn no_file_gets_a_set_id_bit() {
    let creates = 0o101;
    assert!(allows("chmod", &[0, 0o1777]) && !allows("chmod", &[0, 0o4755]));
    assert!(allows("fchmod", &[0, 0o755]) && !allows("fchmod", &[0, 0o2755]));
    assert!(!allows("fchmodat", &[0, 0, 0o4755]) && !allows("fchmodat2", &[0, 0, 0o4755]));
    assert!(allows("openat", &[0, 0, creates, 0o644]));
    assert!(!allows("openat", &[0, 0, creates, 0o4755]));
    assert!(!allows("openat", &[0, 0, 0o20_200_000 | 2, 0o4755]), "O_TMPFILE");
    assert!(allows("openat", &[0, 0, 0, u64::MAX]), "no file is made: the mode is not read");
    assert!(!allows("open", &[0, creates, 0o4755]) && !allows("creat", &[0, 0o4755]));
}

#[test]
fn sockets_take_listed_options_and_nothing_that_the_kernel_has_to_run_or_parse() {
    // SO_REUSEADDR, SO_KEEPALIVE, SO_SNDBUF, SO_REUSEPORT, SO_SNDTIMEO_NEW, SO_INQ, TCP_NODELAY, TCP_KEEPIDLE, TCP_FASTOPEN, IPV6_V6ONLY, IP_TOS,
    // IP_ADD_MEMBERSHIP, UDP_SEGMENT.
    let listed = [
        (1, 2),
        (1, 9),
        (1, 7),
        (1, 15),
        (1, 67),
        (1, 84),
        (6, 1),
        (6, 4),
        (6, 23),
        (41, 26),
        (0, 1),
        (0, 35),
        (17, 103),
    ];
    for (level, option) in listed {
        assert!(allows("setsockopt", &[0, level, option]), "{level} {option}");
        assert!(allows("setsockopt", &[0, dirty(level), dirty(option)]), "{level} {option}");
    }
    // SO_ATTACH_FILTER, SO_ATTACH_BPF, reuseport programs, SOL_TLS, UDP_ENCAP, SOL_ALG, SOL_PACKET.
    let programs = [(1, 26), (1, 50), (1, 51), (1, 52), (282, 1), (17, 100), (279, 1), (263, 1)];
    // SO_BUSY_POLL, SO_ZEROCOPY, SO_TXTIME, SO_PREFER_BUSY_POLL, SO_BUSY_POLL_BUDGET, SO_RESERVE_MEM, memory of
    // devices; what no kernel has yet.
    let lent = [46, 60, 61, 69, 70, 73, 78, 79, 80, 85, 86, 200, 0x7fff_ffff, 0xffff_ffff];
    let lent = lent.map(|option| (1, option));
    // TCP_CONGESTION, TCP_MD5SIG, TCP_REPAIR, TCP_ULP, TCP_FASTOPEN_KEY, TCP_ZEROCOPY_RECEIVE.
    let tcp = [(6, 13), (6, 14), (6, 19), (6, 31), (6, 33), (6, 35)];
    // IP_OPTIONS, IP_IPSEC_POLICY, IP_MSFILTER, IPT_SO_SET_REPLACE, MRT_INIT.
    let ip = [(0, 4), (0, 16), (0, 41), (0, 64), (0, 200)];
    // IPV6_ADDRFORM, IPV6_FLOWLABEL_MGR, IPV6_HOPOPTS, IPV6_RTHDR, IPV6_DSTOPTS, MCAST_MSFILTER.
    let ipv6 = [(41, 1), (41, 32), (41, 54), (41, 57), (41, 59), (41, 48)];
    for (level, option) in [&programs[..], &lent, &tcp, &ip, &ipv6].concat() {
        assert!(!allows("setsockopt", &[0, level, option]), "{level} {option}");
        assert!(!allows("setsockopt", &[0, dirty(level), dirty(option)]), "{level} {option}");
    }
}

#[test]
fn the_buffer_of_a_socket_is_unchanged_where_nothing_counts_it() {
    let verdict = |memory| condition("setsockopt", memory).unwrap_or(Verdict::Errno(libc::EIO));
    let answer = |memory, option| {
        let arguments = [0, dirty(1), dirty(option), 0, 0, 0];
        (verdict(memory).allows(&arguments), verdict(memory).quiet(&arguments))
    };
    // SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE.
    for option in [7, 8, 32, 33] {
        assert_eq!(answer(MemoryHold::BestEffort, option), (false, Some(0)), "{option}");
        assert_eq!(answer(MemoryHold::CgroupV1, option), (true, None), "{option}");
    }
    // Their neighbours; and of another level.
    for option in [6, 9, 31, 34] {
        assert_eq!(answer(MemoryHold::BestEffort, option), (true, None), "{option}");
    }
    assert_eq!(verdict(MemoryHold::BestEffort).quiet(&[0, 6, 7, 0, 0, 0]), None);
    assert_eq!(answer(MemoryHold::BestEffort, 26), (false, None), "a filter is told");
}

#[test]
fn no_socket_borrows_pages_where_nothing_counts_what_it_holds() {
    for (call, flags) in [("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)] {
        let sent = |memory, value| {
            let mut arguments = [0; 6];
            if let Some(place) = arguments.get_mut(flags) {
                *place = dirty(value);
            }
            condition(call, memory).is_some_and(|verdict| verdict.allows(&arguments))
        };
        // MSG_ZEROCOPY, MSG_NOSIGNAL with MSG_DONTWAIT.
        assert!(!sent(MemoryHold::BestEffort, 0x400_0000), "{call}");
        assert!(sent(MemoryHold::BestEffort, 0x4040), "{call}");
        assert!(sent(MemoryHold::CgroupV2, 0x400_0000), "{call}");
    }
}

#[test]
fn futexes_wait_wake_and_requeue_and_lend_no_priority() {
    let absent = |op| condition("futex", MemoryHold::CgroupV2)?.quiet(&[0, op, 0, 0, 0, 0]);
    for flags in [0, 128, 256, 384] {
        for op in [0, 1, 3, 4, 5, 9, 10] {
            assert!(allows("futex", &[0, dirty(op | flags)]), "{op} {flags}");
        }
        for op in [6, 7, 8, 11, 12, 13] {
            assert!(!allows("futex", &[0, op | flags]), "{op} {flags}");
            assert_eq!(absent(dirty(op | flags)), Some(libc::ENOSYS), "{op} {flags}");
        }
        for op in [2, 14, 15, 16, 64, 512] {
            assert!(!allows("futex", &[0, op | flags]), "{op} {flags}");
        }
    }
}

#[test]
fn nothing_is_sent_out_of_band() {
    let oob = 1;
    let ordinary = 0x4040;
    for (call, place) in [("sendto", 3), ("sendmmsg", 3), ("sendmsg", 2)] {
        let with = |flags| {
            let mut arguments = [0; 6];
            if let Some(argument) = arguments.get_mut(place) {
                *argument = flags;
            }
            allows(call, &arguments)
        };
        assert!(with(0) && with(ordinary), "{call}");
        assert!(!with(oob) && !with(oob | ordinary) && !with(dirty(oob)), "{call}");
    }
}

#[test]
fn pages_are_not_merged_reclaimed_or_collapsed() {
    let other =
        |advice| condition("madvise", MemoryHold::CgroupV2)?.quiet(&[0, 0, advice, 0, 0, 0]);
    for advice in [0, 3, 4, 8, 9, 14, 15, 16, 18, 19, 22, 23, 24, 102] {
        assert!(allows("madvise", &[0, 0, dirty(advice)]), "{advice}");
    }
    // MERGEABLE, UNMERGEABLE, COLD, PAGEOUT, COLLAPSE, HWPOISON, SOFT_OFFLINE.
    for advice in [12, 13, 20, 21, 25, 100, 101] {
        assert!(!allows("madvise", &[0, 0, advice]), "{advice}");
        assert_eq!(other(dirty(advice)), Some(libc::EINVAL), "{advice}");
    }
}

#[test]
fn memory_that_init_could_not_count_in_time_is_refused_where_it_counts() {
    let answer = |memory, call, arguments: [u64; 6]| {
        let verdict = condition(call, memory);
        (
            verdict.as_ref().is_none_or(|verdict| verdict.allows(&arguments)),
            verdict.and_then(|verdict| verdict.quiet(&arguments)),
        )
    };
    let refused = (false, Some(libc::EINVAL));
    // MADV_POPULATE_READ, MADV_POPULATE_WRITE.
    for advice in [22, 23, dirty(23)] {
        let arguments = [0, 0, advice, 0, 0, 0];
        assert_eq!(answer(MemoryHold::BestEffort, "madvise", arguments), refused, "{advice}");
        assert_eq!(answer(MemoryHold::CgroupV1, "madvise", arguments), (true, None), "{advice}");
    }
    assert_eq!(answer(MemoryHold::BestEffort, "madvise", [0, 0, 24, 0, 0, 0]), (true, None));
    // MAP_PRIVATE and MAP_ANONYMOUS, and with MAP_GROWSDOWN.
    let mapping = |flags| [0, 4096, 3, flags, u64::MAX, 0];
    assert_eq!(answer(MemoryHold::BestEffort, "mmap", mapping(0x22)), (true, None));
    for flags in [0x122, 0x102, dirty(0x122)] {
        assert_eq!(answer(MemoryHold::BestEffort, "mmap", mapping(flags)), refused, "{flags:#x}");
        assert_eq!(answer(MemoryHold::CgroupV2, "mmap", mapping(flags)), (true, None));
    }
}

#[test]
fn a_read_does_not_show_what_is_in_memory() {
    for call in ["preadv2", "pwritev2"] {
        let quiet = |flags| condition(call, MemoryHold::CgroupV2)?.quiet(&[0, 0, 0, 0, 0, flags]);
        for flags in [0, 1, 2, 4, 0x10, 0x20, 0x40, 0x77, dirty(0x13)] {
            assert!(allows(call, &[0, 0, 0, 0, 0, flags]), "{call} {flags:#x}");
        }
        // RWF_NOWAIT, alone and with others; RWF_DONTCACHE; flags that no kernel has yet.
        for flags in [8, 9, 0x1f, 0x80, 0x100, 0x8000_0000, dirty(8)] {
            assert!(!allows(call, &[0, 0, 0, 0, 0, flags]), "{call} {flags:#x}");
            assert_eq!(quiet(flags), Some(libc::EOPNOTSUPP), "{call} {flags:#x}");
        }
    }
}

#[test]
fn no_advice_drops_a_file_from_memory() {
    let quiet =
        |advice| condition("fadvise64", MemoryHold::CgroupV2)?.quiet(&[4, 4, 4, advice, 4, 4]);
    for advice in [0, 1, 2, 3, 5, 6, 7, u64::from(u32::MAX), dirty(3)] {
        assert!(allows("fadvise64", &[4, 4, 4, advice, 4, 4]), "{advice}");
        assert_eq!(quiet(advice), None, "{advice}");
    }
    for advice in [4, dirty(4)] {
        assert!(!allows("fadvise64", &[0, 0, 0, advice]), "{advice}");
        assert_eq!(quiet(advice), Some(0), "{advice}");
    }
}

#[test]
fn timers_and_sleeps_go_by_real_time() {
    for call in ["timer_create", "clock_nanosleep"] {
        for clock in [0, 1, 7, 11] {
            assert!(allows(call, &[clock]), "{call} {clock}");
        }
        // Processor time of the process, of the thread, and of another (-6 and -2 - 8 * pid).
        for clock in [2, 3, 0xffff_fffa, 0xffff_fff6, dirty(2), u64::MAX] {
            assert!(!allows(call, &[clock]), "{call} {clock:#x}");
        }
    }
}

/// Returns true if the verdicts of a profile's key allow `call`.
fn keyed(verdicts: &[(&str, Verdict)], call: &str, arguments: [u64; 6]) -> bool {
    verdicts.iter().any(|(name, verdict)| *name == call && verdict.allows(&arguments))
}

#[test]
fn sockets_are_of_granted_families_and_ordinary_types() {
    let verdicts = sockets(&BTreeSet::from([Family::Unix, Family::Inet]), NetworkClass::Loopback);
    let socket =
        |family, kind, protocol| keyed(&verdicts, "socket", [family, kind, protocol, 0, 0, 0]);
    assert!(socket(1, 1, 0) && socket(1, 5 | 0x80000, 0) && socket(1, 2 | 0x800, 0));
    assert!(socket(2, 1, 6) && socket(2, 2 | 0x80800, 17) && socket(2, 1, 0));
    assert!(!socket(10, 1, 0), "inet6 is not granted");
    assert!(!socket(2, 3, 0) && !socket(2, 3, 1), "raw");
    assert!(!socket(2, 2, 1), "ping");
    assert!(!socket(2, 1, 262), "MPTCP");
    assert!(!socket(2, 1, 132) && !socket(2, 5, 132), "SCTP");
    for family in (0..64).filter(|family| ![1, 2].contains(family)) {
        for kind in 0..16 {
            assert!(!socket(family, kind, 0), "family {family}, type {kind}");
        }
    }
    assert!(keyed(&verdicts, "socketpair", [1, 1, 0, 0, 0, 0]));
    assert!(!keyed(&verdicts, "socketpair", [2, 1, 0, 0, 0, 0]));
}

#[test]
fn only_libcs_question_for_addresses_is_refused_quietly() {
    let verdicts = sockets(&BTreeSet::from([Family::Unix]), NetworkClass::Loopback);
    let quiet = |family, kind, protocol| {
        let socket = verdicts.iter().find(|(name, _)| *name == "socket");
        socket.and_then(|(_, verdict)| verdict.quiet(&[family, kind, protocol, 0, 0, 0]))
    };
    let probe = Some(libc::EAFNOSUPPORT);
    assert_eq!([quiet(16, 3, 0), quiet(16, 3 | 0x80000, 0), quiet(dirty(16), 3, 0)], [probe; 3]);
    // Another type, another protocol (audit, netfilter, kobject events), another family, a
    // family that is not granted, one that is.
    let answer =
        [(16, 2, 0), (16, 3, 9), (16, 3, 12), (16, 3, 15), (17, 3, 0), (2, 1, 0), (1, 1, 0)];
    assert_eq!(answer.map(|(family, kind, protocol)| quiet(family, kind, protocol)), [None; 7]);
}

#[test]
fn no_family_means_no_socket() {
    assert_eq!(sockets(&BTreeSet::new(), NetworkClass::Loopback), []);
}

#[test]
fn one_program_is_executed_by_its_descriptor_only() {
    let verdicts = exec(&Exec::Only("/usr/bin/bc".into()));
    assert!(keyed(&verdicts, "execveat", [1000, 0, 0, 0, 0x1000, 0]));
    assert!(!keyed(&verdicts, "execveat", [3, 0, 0, 0, 0x1000, 0]));
    assert!(!keyed(&verdicts, "execveat", [1000, 0, 0, 0, 0, 0]), "a path could be named");
    assert!(!keyed(&verdicts, "execveat", [1000, 0, 0, 0, 0x1100, 0]), "a further flag");
    assert!(!keyed(&verdicts, "execve", [0; 6]));
}

#[test]
fn ping_sockets_are_of_networks_beyond_loopback_alone() {
    let made = |class, arguments: &[u64]| {
        let mut six = [0; 6];
        six.iter_mut().zip(arguments).for_each(|(slot, argument)| *slot = *argument);
        let verdicts = sockets(&[Family::Inet, Family::Inet6].into(), class);
        verdicts.iter().any(|(call, verdict)| *call == "socket" && verdict.allows(&six))
    };
    let echo = [2, 2, 1];
    let echo6 = [10, 2, 58];
    assert!(made(NetworkClass::AllowList, &echo) && made(NetworkClass::AllowList, &echo6));
    assert!(!made(NetworkClass::Loopback, &echo) && !made(NetworkClass::Loopback, &echo6));
    for raw in [[2, 3, 1], [10, 3, 58], [17, 3, 0], [16, 3, 0], [2, 2, 58], [10, 2, 1]] {
        assert!(!made(NetworkClass::Any, &raw), "{raw:?}");
    }
}
