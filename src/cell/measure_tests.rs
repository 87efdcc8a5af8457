//! Tests of how ids, groups, interfaces and limits are read from `/proc/PID`.

use super::*;

/// Returns the ids of an ordinary user 1000 with the group 100 and two more, of which the
/// supervisor's map contains only the first.
fn operator() -> Operator {
    Operator {
        namespaces: Vec::new(),
        time: None,
        uids: HostIds(vec![(0, 1000, 1)]),
        gids: HostIds(vec![(0, 100, 1)]),
        supplementary_groups: vec![4, 24],
    }
}

#[test]
fn groups_are_those_of_the_process_and_not_those_of_the_operator() {
    let host_groups = |line: &str| groups(line, 100, &operator());
    assert_eq!(host_groups(""), Ok(Vec::new()), "they were dropped");
    assert_eq!(host_groups("0"), Ok(Vec::new()), "its primary group is reported elsewhere");
    assert_eq!(host_groups("0 65534 65534"), Ok(vec![4, 24]));
    let other = |count| UnfitCell(format!("{count} unknown supplementary groups where 2 belong"));
    assert_eq!(host_groups("65534"), Err(other(1)));
    assert_eq!(host_groups("0 65534 65534 65534"), Err(other(3)));
}

#[test]
fn groups_in_the_map_are_listed_one_by_one() {
    let gids = HostIds(vec![(100, 100, 1), (4, 4, 1), (24, 24, 1)]);
    let bare = Operator { gids, ..operator() };
    assert_eq!(groups("4 100", 100, &bare), Ok(vec![4]), "one of the operator's two groups");
    assert_eq!(groups("4 24 100", 100, &bare), Ok(vec![4, 24]));
    let unknown = UnfitCell("1 unknown supplementary groups where 0 belong".to_owned());
    assert_eq!(groups("4 25", 100, &bare), Err(unknown));
}

#[test]
fn an_id_is_translated_by_the_range_that_contains_it() {
    let ids = HostIds(vec![(0, 1000, 1), (1, 300_000, 1024)]);
    assert_eq!(one_id("0 0 0 0", &ids), Ok(1000));
    assert_eq!(one_id("7 7 7 7", &ids), Ok(300_006));
    assert_eq!(one_id("7 7 7 0", &ids), Err(UnfitCell("ids differ: 7 7 7 0".to_owned())));
    assert_eq!(
        one_id("1025 1025 1025 1025", &ids),
        Err(UnfitCell("an id outside the map".to_owned()))
    );
}

#[test]
fn a_status_file_with_a_name_that_is_not_utf8_is_read() -> std::io::Result<()> {
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join("status"), b"Name:\ta\xff\nPPid:\t7\n")?;
    let directory = std::fs::File::open(directory.path())?;
    assert_eq!(Fields::read(&directory, "status")?.get("PPid"), "7");
    // Positive control: `read_all` refuses a file that is not UTF-8.
    assert_eq!(read_all(&directory, "status"), Err(Errno::EILSEQ));
    Ok(())
}

#[test]
fn interfaces_must_be_those_of_the_link_and_no_others() -> std::io::Result<()> {
    let measured = |names: &[&str]| {
        let directory = tempfile::tempdir()?;
        std::fs::create_dir(directory.path().join("net"))?;
        let heads = "Inter-|   Receive    |  Transmit\n face |bytes    packets\n".to_owned();
        let lines = names.iter().map(|name| format!("{name:>6}: 0 0 0 0\n"));
        let table: String = std::iter::once(heads).chain(lines).collect();
        std::fs::write(directory.path().join("net/dev"), table)?;
        Ok::<_, std::io::Error>(interfaces(std::fs::File::open(directory.path())?))
    };
    let link = ["lo", "eth0", "out"];
    assert_eq!(measured(&link)?, Ok(link.map(str::to_owned).to_vec()));
    // Fallback tunnels, which modules make in each namespace, are listed but not refused.
    assert!(measured(&["lo", "eth0", "out", "sit0"])?.is_ok_and(|found| found.len() == 4));
    for wrong in [&["lo"][..], &["lo", "eth0"], &["lo", "eth0", "out", "wlan0"]] {
        assert!(measured(wrong)?.is_err(), "{wrong:?}");
    }
    Ok(())
}

/// Writes `/proc/PID/limits` with these values for core files.
fn limits_with(core_files: &str) -> String {
    format!(
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max cpu time              unlimited            unlimited            seconds   \n\
         Max core file size        {core_files} bytes     \n\
         Max open files            1                    1                    files     \n"
    )
}

#[test]
fn a_core_file_limit_with_which_a_crash_starts_a_program_is_refused() -> std::io::Result<()> {
    let directory = tempfile::tempdir()?;
    let settings = directory.path().join("sys/kernel");
    std::fs::create_dir_all(&settings)?;
    std::fs::create_dir(directory.path().join("7"))?;
    let process = std::fs::File::open(directory.path().join("7"))?;
    let check = |core_files: &str| core_limits(&process, &limits_with(core_files));
    let refused =
        |seen: &str| Err(UnfitCell(format!("the limit of core files is {seen}, and not 1 1")));
    let pattern = |text: &str| std::fs::write(settings.join("core_pattern"), text);
    let one = "1                    1                   ";
    let zero = "0                    0                   ";

    assert_eq!((check(one), check(zero)), (Ok(()), refused("0 0")), "no pattern can be read");
    for text in ["|/usr/lib/systemd/systemd-coredump %P\n", "@/run/systemd/coredump\n"] {
        pattern(text)?;
        assert_eq!((check(one), check(zero)), (Ok(()), refused("0 0")), "{text}");
    }
    pattern("core\n")?;
    assert_eq!((check(one), check(zero)), (Ok(()), Ok(())), "files are not written with either");
    assert_eq!(check("0                    1                   "), refused("0 1"));
    assert_eq!(check("1                    2                   "), refused("1 2"));
    assert_eq!(check("unlimited            unlimited           "), refused("unlimited unlimited"));
    assert_eq!(check("1                    unlimited           "), refused("1 unlimited"));
    assert_eq!(core_limits(&process, "Max open files 1 1 files\n"), refused(""));
    Ok(())
}
