//! Makes `cofferdam-probe`, the helper of the self-test, for the library to embed: a static program
//! without a C library, so that a self-test needs neither a compiler nor a second file.

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=probe");
    // Set for the helper alone, here; as an example of the package it is an ordinary program.
    println!("cargo::rustc-check-cfg=cfg(freestanding)");
    let variable = |name: &str| std::env::var_os(name).ok_or(format!("cargo has set no {name}"));
    let helper = PathBuf::from(variable("OUT_DIR")?).join("cofferdam-probe");
    let mut command = Command::new(variable("RUSTC")?);
    command.args(["--crate-name=cofferdam_probe", "--crate-type=bin", "--edition=2024"]);
    command.args([
        "--cfg=freestanding",
        "-Copt-level=s",
        "-Clto",
        "-Cpanic=abort",
        "-Cstrip=symbols",
    ]);
    command.args(["-Crelocation-model=static", "-Ctarget-feature=+crt-static"]);
    command.args(["-Clink-arg=-nostdlib", "-Clink-arg=-nostartfiles", "-Clink-arg=-static"]);
    // Page after page of padding is left out: it is embedded.
    command.args(["-Clink-arg=-Wl,-z,noseparate-code,--build-id=none"]);
    command.arg("--target").arg(variable("TARGET")?);
    if let Some(linker) = std::env::var_os("RUSTC_LINKER") {
        let mut flag = OsString::from("-Clinker=");
        flag.push(linker);
        command.arg(flag);
    }
    command.arg("-o").arg(&helper).arg("probe/main.rs");
    let status = command.status()?;
    if !status.success() {
        return Err(format!("cofferdam-probe cannot be made: {status}").into());
    }
    Ok(())
}
