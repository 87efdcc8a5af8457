//! Links the program without shared libraries and, in a release, with identical functions folded.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    folded()?;
    without_shared_libraries()
}

/// Makes the linker fold functions with the same instructions into one, in a release.
///
/// Two functions can then have one address. No code here compares addresses of functions, which Rust does not
/// promise to differ; the runtime compares those of its tables of wakers, which are data and are not folded. A
/// backtrace may have the name of another function with the same instructions.
fn folded() -> Result<(), Box<dyn Error>> {
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_release && takes(FOLDED)? {
        link_with(FOLDED);
    }
    Ok(())
}

/// The option of lld that folds functions; the GNU linker lacks it.
const FOLDED: &str = "-Wl,--icf=all";

/// Links `cofferdam` as a static-pie where the C library's archives are installed: a process that loads
/// no libraries starts in two thirds of the time, and the clones of it that cells begin as have a third
/// of the mappings. Its addresses are randomized as before.
///
/// `-C target-feature=+crt-static` is the usual way, but it needs `--target`, which puts the program in
/// another directory. Here the linker finds archives where it first looks for libraries.
fn without_shared_libraries() -> Result<(), Box<dyn Error>> {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if !is("CARGO_CFG_TARGET_OS", "linux") || !is("CARGO_CFG_TARGET_ENV", "gnu") {
        return Ok(());
    }
    let is_native = std::env::var_os("TARGET") == std::env::var_os("HOST");
    let own = is_native.then(|| OsString::from("cc"));
    // The linker finds only the archives of its architecture: without a linker for another one, link as usual.
    let Some(linker) = std::env::var_os("RUSTC_LINKER").or(own) else { return Ok(()) };
    // If one of them is not installed, the program has shared libraries.
    let Some([c, m, eh, gcc, _start]) =
        found(&linker, ["libc.a", "libm.a", "libgcc_eh.a", "libgcc.a", "rcrt1.o"])
    else {
        return Ok(());
    };
    let directory = PathBuf::from(variable("OUT_DIR")?).join("archives");
    fs::create_dir_all(&directory)?;
    // Scripts of the linker. The first two name each other's functions.
    let unwinding = format!("{} {}", eh.display(), gcc.display());
    let both = format!("GROUP ( {} {unwinding} )\n", c.display());
    let maths = fs::read(&m)?;
    // On x86_64 it is a script itself.
    let maths = match maths.starts_with(b"!<arch>") {
        true => format!("GROUP ( {} )\n", m.display()).into_bytes(),
        false => maths,
    };
    fs::write(directory.join("libm.a"), maths)?;
    for name in ["libc.a", "libgcc_s.a"] {
        fs::write(directory.join(name), &both)?;
    }
    // Parts of the C library by now.
    for name in ["libpthread.a", "libdl.a", "librt.a", "libutil.a"] {
        fs::write(directory.join(name), "!<arch>\n")?;
    }
    let mut arguments = vec!["-static-pie".to_owned(), format!("-L{}", directory.display())];
    if packs_relocations(&c)? && takes(PACKED)? {
        // 400 KB fewer to read and to go through at each start.
        arguments.push(PACKED.to_owned());
    }
    arguments.iter().for_each(|argument| link_with(argument));
    Ok(())
}

/// Passes an argument to the linker, for the program and for the benchmark: it starts a supervisor in itself, so what it
/// measures is linked as what is shipped. The package in Cargo's registry has no benchmark, and Cargo refuses the
/// instruction there.
fn link_with(argument: &str) {
    println!("cargo::rustc-link-arg-bin=cofferdam={argument}");
    if Path::new("benches").exists() {
        println!("cargo::rustc-link-arg-benches={argument}");
    }
}

/// Has the linker pack relocations.
const PACKED: &str = "-Wl,-z,pack-relative-relocs";

/// Returns true if a program can be linked with this argument, by the linker and with the flags that the program
/// gets.
fn takes(argument: &str) -> Result<bool, Box<dyn Error>> {
    let directory = PathBuf::from(variable("OUT_DIR")?);
    let source = directory.join("tried.rs");
    fs::write(&source, "fn main() {}\n")?;
    let mut rustc = Command::new(variable("RUSTC")?);
    rustc.arg(&source).arg("--out-dir").arg(&directory).arg("--target").arg(variable("TARGET")?);
    if let Some(linker) = std::env::var_os("RUSTC_LINKER") {
        let mut chosen = OsString::from("-Clinker=");
        chosen.push(linker);
        rustc.arg(chosen);
    }
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    Ok(rustc.arg(format!("-Clink-arg={argument}")).output()?.status.success())
}

fn variable(name: &str) -> Result<OsString, String> {
    std::env::var_os(name).ok_or_else(|| format!("cargo has set no {name}"))
}

/// Returns true if a program that this C library starts relocates itself by DT_RELR, which it does from 2.36
/// on. An older one would leave those relocations out. The version is in a text of its archive.
fn packs_relocations(archive: &Path) -> Result<bool, Box<dyn Error>> {
    const BEFORE: &[u8] = b"release version 2.";
    let bytes = fs::read(archive)?;
    let after = bytes.windows(BEFORE.len()).position(|here| here == BEFORE);
    let minor = after.and_then(|at| {
        let digits =
            bytes.get(at + BEFORE.len()..)?.iter().take_while(|byte| byte.is_ascii_digit());
        String::from_utf8(digits.copied().collect()).ok()?.parse::<u32>().ok()
    });
    Ok(minor.is_some_and(|minor| minor >= 36))
}

/// Returns the paths of these files as the linker finds them, or `None` if one is missing.
fn found<const N: usize>(linker: &OsStr, names: [&str; N]) -> Option<[PathBuf; N]> {
    let place = |name: &str| {
        let output = Command::new(linker).arg(format!("-print-file-name={name}")).output().ok()?;
        // The linker prints only the name of a file that it does not find.
        let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        path.is_absolute().then_some(path).filter(|path| path.is_file())
    };
    let places: Vec<PathBuf> = names.into_iter().filter_map(place).collect();
    places.try_into().ok()
}
