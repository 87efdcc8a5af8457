//! Builds the freestanding programs: static and without a C library, so that a cell needs no other
//! file to run them.

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=probe");
    println!("cargo::rerun-if-changed=clerk");
    println!("cargo::rerun-if-changed=runner");
    // Set only here; built as examples of the package, the programs are ordinary ones.
    println!("cargo::rustc-check-cfg=cfg(freestanding)");
    freestanding("probe")?;
    freestanding("clerk")?;
    freestanding("runner")
}

/// Compiles the program in this directory.
fn freestanding(name: &str) -> Result<(), Box<dyn Error>> {
    let variable = |name: &str| std::env::var_os(name).ok_or(format!("cargo has set no {name}"));
    let program = PathBuf::from(variable("OUT_DIR")?).join(format!("cofferdam-{name}"));
    let mut command = Command::new(variable("RUSTC")?);
    command.arg(format!("--crate-name=cofferdam_{name}"));
    command.args(["--crate-type=bin", "--edition=2024"]);
    command.args([
        "--cfg=freestanding",
        "-Copt-level=s",
        "-Clto",
        "-Cpanic=abort",
        "-Cstrip=symbols",
    ]);
    command.args(["-Crelocation-model=static", "-Ctarget-feature=+crt-static"]);
    command.args(["-Clink-arg=-nostdlib", "-Clink-arg=-nostartfiles", "-Clink-arg=-static"]);
    // Leaves out page-sized padding, as the program is embedded.
    command.args(["-Clink-arg=-Wl,-z,noseparate-code,--build-id=none"]);
    command.arg("--target").arg(variable("TARGET")?);
    if let Some(linker) = std::env::var_os("RUSTC_LINKER") {
        let mut flag = OsString::from("-Clinker=");
        flag.push(linker);
        command.arg(flag);
    }
    command.arg("-o").arg(&program).arg(format!("{name}/main.rs"));
    let status = command.status()?;
    if !status.success() {
        return Err(format!("cofferdam-{name} cannot be built: {status}").into());
    }
    Ok(())
}
