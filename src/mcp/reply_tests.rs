//! Compares replies word for word.
#![expect(clippy::unwrap_used, reason = "a missing part of a reply is a failed test")]
#![expect(clippy::indexing_slicing, reason = "a missing field compares as null")]

use std::time::Duration;

use serde_json::json;

use super::calculations::calculated;
use super::*;
use model::outcome::{DENIALS_COUNTED, Ended, Failure, LimitKind, Usage};
use service::denied::DenialReport;
use service::report::{
    Calculated, Exact, Renewed, SessionReport, ShellState, StreamReport, ValueOrigin,
};

fn ran(outcome: Outcome) -> CommandReport {
    let usage = Usage {
        wall: Duration::from_millis(12),
        user: Duration::from_millis(1),
        system: Duration::from_millis(3),
        peak_memory: 3_145_728,
        ..Usage::default()
    };
    CommandReport {
        ended: Ended { outcome, usage, ..Ended::failed(Failure::Lost) },
        remarks: Vec::new(),
        stdout: StreamReport::default(),
        stderr: StreamReport::default(),
        denials: Vec::new(),
        cwd: "/workspace".to_owned(),
        timeout: Duration::from_secs(600),
        clamped: Clamped::No,
        receipt: None,
        unrecorded: None,
        output_id: None,
        session: None,
    }
}

fn text(result: &CallToolResult) -> String {
    result.content.first().unwrap().as_text().unwrap().text.clone()
}

fn printed(text: &str) -> StreamReport {
    StreamReport {
        text: text.to_owned(),
        bytes: u64::try_from(text.len()).unwrap(),
        cut: Cut::Whole,
    }
}

#[test]
fn a_call_is_small_unless_its_detail_is_asked_for() {
    let mut hi = ran(Outcome::Exited { code: 0 });
    hi.stdout = printed("hi\n");
    let fields = of_command(&hi, Detail::Small).structured_content.unwrap();
    let expected = json!({
        "outcome": "exited", "exit_code": 0, "stdout": "hi\n", "stderr": "", "duration_ms": 12,
        "cwd": "/workspace"
    });
    assert_eq!(fields, expected);
    let fields = of_command(&hi, Detail::Full).structured_content.unwrap();
    let expected = json!({
        "outcome": "exited", "exit_code": 0, "stdout": "hi\n", "stderr": "", "stdout_bytes": 3,
        "stderr_bytes": 0, "truncated": false, "duration_ms": 12,
        "usage": { "user_ms": 1, "system_ms": 3, "peak_memory_bytes": 3_145_728 },
        "denials": [], "cwd": "/workspace"
    });
    assert_eq!(fields, expected);
    hi.stdout.cut = Cut::HeadAndTail;
    let fields = of_command(&hi, Detail::Small).structured_content.unwrap();
    assert_eq!(fields["truncated"], json!(true), "what was cut is counted");
    let fields = of_command(&ran(Outcome::Timeout), Detail::Small).structured_content.unwrap();
    assert!(fields["usage"].is_object(), "what met a limit says what it used");
}

#[test]
fn a_non_zero_exit_is_data_and_output_comes_before_the_status() {
    let mut call = ran(Outcome::Exited { code: 2 });
    call.stdout = printed("out");
    call.stderr = printed("err\n");
    let result = of_command(&call, Detail::Full);
    assert_eq!(result.is_error, Some(false));
    assert_eq!(text(&result), "out\n[stderr]\nerr\n[exit 2 in 12 ms; time limit 600 s]");
}

#[test]
fn every_other_end_is_an_error_and_says_what_happened() {
    let cases = [
        (
            Outcome::Timeout,
            "[timed out after 600 s; the cell was killed; it had printed nothing; \
             time limit 600 s]",
        ),
        (
            Outcome::Limit(LimitKind::FileSize),
            "[limit reached: file size after 12 ms; the cell was killed; it had printed \
             nothing; time limit 600 s]",
        ),
        (
            Outcome::Cancelled,
            "[cancelled after 12 ms; the cell was killed; it had printed nothing; \
             time limit 600 s]",
        ),
        (Outcome::Failed(Failure::Supervisor), "[failed: supervisor failure; time limit 600 s]"),
    ];
    for (outcome, expected) in cases {
        let result = of_command(&ran(outcome), Detail::Full);
        assert_eq!((text(&result).as_str(), result.is_error), (expected, Some(true)));
    }
}

#[test]
fn the_output_of_a_killed_call_is_pointed_at() {
    let mut call = ran(Outcome::Timeout);
    call.stdout = printed("half\n");
    assert_eq!(
        text(&of_command(&call, Detail::Full)),
        "half\n[timed out after 600 s; the cell was killed; output above is what it had printed; \
         time limit 600 s]"
    );
}

#[test]
fn a_signal_is_data_with_its_name() {
    let result = of_command(&ran(Outcome::Signaled { signal: 11 }), Detail::Full);
    assert_eq!(text(&result), "[ended by SIGSEGV after 12 ms; time limit 600 s]");
    assert_eq!(result.is_error, Some(false));
    assert_eq!(result.structured_content.unwrap()["signal"], json!("SIGSEGV"));
}

#[test]
fn the_time_it_had_is_stated_and_whether_it_was_clamped() {
    let mut call = ran(Outcome::Exited { code: 0 });
    call.clamped = Clamped::Yes;
    let result = of_command(&call, Detail::Full);
    assert_eq!(
        text(&result),
        "[exit 0 in 12 ms; time limit 600 s, which is less than was asked for]"
    );
    assert_eq!(
        serde_json::to_value(result.meta.unwrap()).unwrap(),
        json!({ "cofferdam/timeout": { "timeout_s": 600, "clamped": true } })
    );
}

#[test]
fn denials_are_listed_with_the_grant_or_that_no_grant_exists() {
    let mut call = ran(Outcome::Exited { code: 1 });
    call.denials = vec![
        DenialReport { syscall: "ptrace".to_owned(), count: 3, grant: None, reason: None },
        DenialReport {
            syscall: "mount".to_owned(),
            count: 1,
            grant: None,
            reason: Some("why".to_owned()),
        },
        DenialReport {
            syscall: "socket".to_owned(),
            count: DENIALS_COUNTED,
            grant: Some("families".to_owned()),
            reason: None,
        },
    ];
    let result = of_command(&call, Detail::Full);
    assert_eq!(
        text(&result),
        "[exit 1 in 12 ms; time limit 600 s]\n\
         [denied: system call ptrace, 3 times; nothing grants it]\n\
         [denied: system call mount, once; nothing grants it: why]\n\
         [denied: system call socket, ≥ 10000 times; the operator can grant it: families]"
    );
    let fields = result.structured_content.unwrap();
    assert_eq!(
        fields["denials"],
        json!([
            { "syscall": "ptrace", "count": 3 },
            { "syscall": "mount", "count": 1 },
            { "syscall": "socket", "count": 10_000, "grant": "families" }
        ])
    );
    assert_eq!(fields["notes"], json!(["mount was denied: why"]));
}

#[test]
fn a_denied_call_is_an_error_with_its_hint_and_an_outcome() {
    let message = "denied by rule `none`: no rule allows it";
    let denied = Refused::new(RefusedKind::Denied, message).with_hint("ask the operator");
    let result = refused(&denied, "bash");
    assert_eq!(
        (text(&result).as_str(), result.is_error),
        ("[denied by rule `none`: no rule allows it]\nhint: ask the operator", Some(true))
    );
    let fields = result.structured_content.unwrap();
    assert_eq!(fields["outcome"], json!("denied"));
    assert_eq!((&fields["error"], &fields["hint"]), (&json!(message), &json!("ask the operator")));
}

#[test]
fn the_fields_alone_say_why_a_command_did_not_end_by_itself() {
    let fields = of_command(&ran(Outcome::Timeout), Detail::Full).structured_content.unwrap();
    assert_eq!(fields["error"], json!("timed out after 600 s; the cell was killed"));
    let failed = of_command(&ran(Outcome::Failed(Failure::Supervisor)), Detail::Full);
    assert_eq!(failed.structured_content.unwrap()["error"], json!("supervisor failure"));
    let plain =
        of_command(&ran(Outcome::Exited { code: 1 }), Detail::Full).structured_content.unwrap();
    assert_eq!((plain.get("error"), plain.get("hint"), plain.get("notes")), (None, None, None));
}

#[test]
fn the_fields_alone_say_that_limits_were_lowered_and_the_shell_has_ended() {
    let mut call = ran(Outcome::Exited { code: 0 });
    call.clamped = Clamped::Yes;
    call.stdout.cut = Cut::HeadAndTail;
    call.output_id = Some("7".to_owned());
    call.session = Some(SessionReport {
        name: "default".to_owned(),
        began: "/workspace".to_owned(),
        output_id: "7".to_owned(),
        shell: ShellState::Ended,
        renewed: Renewed {
            shell: Some("the one before has ended".to_owned()),
            ..Renewed::default()
        },
    });
    assert_eq!(
        of_command(&call, Detail::Full).structured_content.unwrap()["notes"],
        json!([
            "time limit 600 s, which is less than was asked for",
            "bash_output with output_id 7 reads the rest of the output",
            "a new shell: the one before has ended",
            "the shell has ended; the next call starts a new one"
        ])
    );
}

#[test]
fn calculations_keep_the_seeds_fields_and_say_when_digits_are_not_sure() {
    let done = Calculated {
        result: "0.5".to_owned(),
        shortened: None,
        exact: Exact::Yes,
        warnings: Vec::new(),
        took: Duration::from_millis(4),
        ran: ValueOrigin::InCell(None),
        unrecorded: None,
    };
    let sure = calculated(&done, "1/2", 20).structured_content.unwrap();
    assert_eq!(
        sure,
        json!({ "result": "0.5", "expression": "1/2", "precision": 20, "executionTimeMs": 4 })
    );
    let unsure = calculated(&Calculated { exact: Exact::No, ..done.clone() }, "1/2", 20);
    assert_eq!(unsure.structured_content.unwrap()["exact"], json!(false));
    let silent = calculated(&Calculated { result: String::new(), ..done }, "a=1", 20);
    assert_eq!(text(&silent), "nothing printed");
}

#[test]
fn a_value_that_was_calculated_before_comes_with_the_word_that_no_cell_ran() {
    let done = Calculated {
        result: "0.5".to_owned(),
        shortened: None,
        exact: Exact::Yes,
        warnings: Vec::new(),
        took: Duration::from_millis(0),
        ran: ValueOrigin::Remembered,
        unrecorded: None,
    };
    let meta = calculated(&done, "1/2", 20).meta.unwrap();
    let expected = json!({ RECEIPT_KEY: { "cached": true, "cell": "none ran" } });
    assert_eq!(serde_json::to_value(meta).unwrap(), expected);
}
