//! Files that describe a machine of the cell's size: its ids, and its processors in `/sys`.
//!
//! The ids say nothing about the host: that of the machine is the same everywhere, and that of the
//! boot is random and belongs to the template.

use std::path::Path;

use nix::errno::Errno;

use super::detached::{directories, hidden_here, write_file};
use super::synthetic::SETTINGS;

/// Maximum processors that have a directory with their place among the others.
const MAX_PLACED: usize = 64;

/// The id of every machine (machine-id(5)), with the version and the variant of a random one.
const MACHINE_ID: &str = "c0ffe2da0000400080000000000c0ffe";

/// Writes the files below the current directory, the root of a template. Files that exist are left
/// as they are: paths of the profile, and files of an earlier try.
///
/// # Errors
/// The error of getrandom(2), mkdir(2), open(2) or write(2).
pub(super) fn write(processors: usize) -> std::io::Result<()> {
    write_missing(Path::new("etc/machine-id"), &format!("{MACHINE_ID}\n"))?;
    let boot = hidden_here().join(SETTINGS).join("kernel/random/boot_id");
    write_missing(&boot, &format!("{}\n", uuid(random_id()?)))?;
    let cpus = Path::new("sys/devices/system/cpu");
    directories(cpus)?;
    for (path, text) in cpu_files(processors) {
        let path = cpus.join(path);
        path.parent().map_or(Ok(()), directories)?;
        write_missing(&path, &text)?;
    }
    Ok(())
}

fn write_missing(path: &Path, text: &str) -> std::io::Result<()> {
    match write_file(path, text) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        written => written,
    }
}

fn random_id() -> std::io::Result<u128> {
    let mut bytes = [0; 16];
    let length = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if length < bytes.len() {
        return Err(Errno::EIO.into());
    }
    // Version 4 and variant 1 of RFC 9562.
    let fields = u128::from_be_bytes(bytes) & !(0xf << 76 | 0x3 << 62);
    Ok(fields | 0x4 << 76 | 0x2 << 62)
}

/// Formats an id as RFC 9562 does, with dashes.
fn uuid(id: u128) -> String {
    let digits = format!("{id:032x}");
    [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| digits.get(part).unwrap_or_default()).join("-")
}

/// Returns files of `/sys/devices/system/cpu` (sysfs of Linux, `cputopology`): one socket, with one
/// thread in each core.
fn cpu_files(processors: usize) -> Vec<(String, String)> {
    let last = processors.saturating_sub(1);
    let all = if last == 0 { "0".to_owned() } else { format!("0-{last}") };
    let whole = |name: &str, text: &str| (name.to_owned(), format!("{text}\n"));
    let mut files = vec![
        whole("kernel_max", &last.to_string()),
        whole("offline", ""),
        whole("online", &all),
        whole("possible", &all),
        whole("present", &all),
    ];
    let every = mask(0..processors, processors);
    for number in 0..processors.min(MAX_PLACED) {
        let own = mask(number..number + 1, processors);
        let number = number.to_string();
        for (name, text) in [
            ("core_cpus_list", &number),
            ("core_id", &number),
            ("core_siblings", &every),
            ("core_siblings_list", &all),
            ("physical_package_id", &"0".to_owned()),
            ("thread_siblings", &own),
            ("thread_siblings_list", &number),
        ] {
            files.push((format!("cpu{number}/topology/{name}"), format!("{text}\n")));
        }
    }
    files
}

/// Formats a set of processors: groups of eight hexadecimal digits, the highest first.
fn mask(set: std::ops::Range<usize>, processors: usize) -> String {
    let groups = processors.div_ceil(32).max(1);
    let group = |index: usize| {
        let bits = (0..32).filter(|bit| set.contains(&(index * 32 + bit)));
        bits.fold(0_u32, |mask, bit| mask | 1 << bit)
    };
    let texts: Vec<String> =
        (0..groups).rev().map(|index| format!("{:08x}", group(index))).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_uuids_of_version_4() {
        let one = random_id().map(uuid).unwrap_or_default();
        let other = random_id().map(uuid).unwrap_or_default();
        assert_ne!(one, other);
        let parts: Vec<&str> = one.split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts.get(2).is_some_and(|part| part.starts_with('4')), "{one}");
        assert!(parts.get(3).is_some_and(|part| part.starts_with(['8', '9', 'a', 'b'])), "{one}");
    }

    #[test]
    fn processors_are_numbered_from_zero() {
        let text = |processors, name: &str| {
            cpu_files(processors).into_iter().find(|(path, _)| path == name).map(|(_, text)| text)
        };
        assert_eq!(text(1, "online").as_deref(), Some("0\n"));
        assert_eq!(text(4, "possible").as_deref(), Some("0-3\n"));
        assert_eq!(text(4, "cpu3/topology/thread_siblings").as_deref(), Some("00000008\n"));
        assert_eq!(text(4, "cpu4/topology/core_id"), None);
        assert_eq!(
            text(40, "cpu33/topology/thread_siblings").as_deref(),
            Some("00000002,00000000\n")
        );
        assert_eq!(text(40, "cpu0/topology/core_siblings").as_deref(), Some("000000ff,ffffffff\n"));
    }
}
