//! Properties of `cofferdam` as a file: the clones from which cells begin have its mappings.

#[path = "../support/copy.rs"]
mod copy;

use elf::ElfBytes;
use elf::abi::{ET_DYN, PT_GNU_RELRO, PT_GNU_STACK, PT_INTERP};
use elf::endian::AnyEndian;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cofferdam");

/// Returns the flags of the segment of this kind, if there is one.
fn segment(kind: u32) -> Option<u32> {
    let bytes = std::fs::read(PROGRAM).ok()?;
    let file = ElfBytes::<AnyEndian>::minimal_parse(&bytes).ok()?;
    file.segments()?.iter().find(|segment| segment.p_type == kind).map(|segment| segment.p_flags)
}

#[test]
fn the_binary_is_pie_with_non_executable_data() -> std::io::Result<()> {
    let bytes = std::fs::read(PROGRAM)?;
    let file = ElfBytes::<AnyEndian>::minimal_parse(&bytes).map_err(std::io::Error::other)?;
    assert_eq!(file.ehdr.e_type, ET_DYN, "it is loaded at one address");
    // Read and write; 1 would be execute (elf(5)).
    assert_eq!(segment(PT_GNU_STACK), Some(6), "its stack can be executed");
    assert!(segment(PT_GNU_RELRO).is_some(), "what is relocated stays writable");
    Ok(())
}

#[test]
fn the_binary_is_static_if_archives_are_installed() -> std::io::Result<()> {
    // The question of build.rs, about the file that C compilers of some systems lack.
    let output = std::process::Command::new("cc").arg("-print-file-name=libc.a").output()?;
    let there = String::from_utf8_lossy(&output.stdout).starts_with('/');
    assert_eq!(segment(PT_INTERP).is_none(), there, "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

#[test]
fn a_user_without_passwd_entry_or_home_is_supported() -> std::io::Result<()> {
    // The user of a container with `--user`. The C library would ask what nsswitch.conf lists.
    let unknown = 2_147_483_000;
    let copied = copy::Copied::of(std::path::Path::new(PROGRAM))?;
    let mut command = std::process::Command::new(copied.path());
    // Nor may the directory of this test be theirs.
    command.current_dir("/");
    command.args(["serve", "--workspace", "~/is-not-there"]).env_remove("HOME");
    if nix::unistd::geteuid().is_root() {
        std::os::unix::process::CommandExt::uid(&mut command, unknown);
    }
    let output = command.output()?;
    let why = "cannot be granted: no such file or directory (ENOENT)\n";
    let is_told = String::from_utf8_lossy(&output.stderr).contains(why);
    assert!(output.status.code() == Some(125) && is_told, "{output:?}");
    Ok(())
}
