//! Faults: what is killed, what runs out, and what is fuzzed under a running server. Every call gets
//! one true answer or its client sees the end, and nothing is left on the host.

mod calls;
mod grants;
mod kernel;
mod own_filters;
mod storms;
mod wants;

use crate::support::{Claim, For, Need, claim};

pub fn claims() -> Vec<Claim> {
    let claims = [
        claim("killed_cells_leave_one_true_answer_for_each_call", storms::cells).thorough(),
        claim("killed_shells_leave_one_true_answer_for_each_call", storms::shells).thorough(),
        claim("a_killed_supervisor_ends_calls_with_a_reason", storms::supervisor).thorough(),
        claim("a_killed_front_end_leaves_nothing_behind", storms::front).thorough(),
        claim("groups_of_killed_servers_go_when_the_next_starts", storms::groups)
            .only(For::Root)
            .needs(&[Need::MemoryCgroup]),
        claim("a_failing_supervisor_syscall_ends_one_call", calls::of_the_supervisor)
            .needs(&[Need::Strace, Need::RootLooks])
            .thorough(),
        claim("a_failing_front_end_syscall_ends_one_call", calls::of_the_front_end)
            .needs(&[Need::Strace, Need::RootLooks])
            .thorough(),
        claim(
            "the_owner_of_a_socket_is_served_and_no_other_user",
            own_filters::the_owner_of_a_socket_is_served,
        ),
        claim("server_processes_make_no_filtered_calls", own_filters::refuse_nothing).needs(&[
            Need::Strace,
            Need::RootLooks,
            Need::Setpriv,
        ]),
        claim("a_client_that_reads_no_log_is_served", calls::unread_log),
        claim("mounts_that_a_filesystem_refuses_refuse_the_start", grants::refuse_the_start)
            .only(For::Root)
            .needs(&[Need::Strace]),
        claim("mounts_that_fail_after_the_start_refuse_each_call", grants::refuse_each_call)
            .only(For::Root)
            .needs(&[Need::Strace]),
        claim(
            "a_child_that_makes_mounts_ends_with_the_supervisor",
            grants::end_with_the_supervisor,
        )
        .only(For::Root)
        .needs(&[Need::Strace]),
        claim("a_lack_of_descriptors_is_reported", wants::descriptors).needs(&[Need::Prlimit]),
        claim("a_lack_of_processes_is_reported", wants::processes).needs(&[Need::Prlimit]),
        claim("want_of_memory_is_an_answer_or_an_end", wants::memory).needs(&[Need::Prlimit]),
        claim("a_full_audit_disk_is_reported_in_replies", wants::audit_continues)
            .only(For::Root)
            .needs(&[Need::Unshare]),
        claim("a_full_audit_disk_stops_calls_where_it_should", wants::audit_stops)
            .only(For::Root)
            .needs(&[Need::Unshare]),
        claim("system_calls_fuzzed_in_a_cell_end_no_server", kernel::fuzzed)
            .needs(&[Need::StressNg])
            .thorough(),
    ];
    claims.map(Claim::alone).into()
}
