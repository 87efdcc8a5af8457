//! The demo plays to its end, and fits on a page.

use std::path::Path;
use std::process::Command;

#[test]
fn each_attempt_is_refused_as_the_demo_says() -> std::io::Result<()> {
    let demo = Path::new(env!("CARGO_BIN_EXE_demo"));
    // Built in the same directory by the tests of the whole workspace.
    let cofferdam = demo.with_file_name("cofferdam");
    let output = Command::new(demo).arg(cofferdam).output()?;
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}\n{errors}");
    assert_eq!(printed.matches("refused by").count(), 8, "{printed}");
    assert!(printed.lines().count() < 60, "{printed}");
    Ok(())
}
