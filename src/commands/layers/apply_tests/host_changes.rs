//! A host that changes while changes are applied, and before the next apply.

use super::*;

#[test]
fn what_the_host_changes_after_the_journal_was_written_stays_the_hosts() -> Tested<()> {
    let fixture = Fixture::new()?;
    fixture.recorded()?;
    let path = |name: &str| fixture.held.path().join("host").join(name);
    for name in ["changed", "removed", "old/a", "script"] {
        fs::write(path(name), "the host's own version\n")?;
    }
    let finished = fixture.finish().map_err(stopped)?;
    let left: BTreeSet<(Vec<u8>, String)> =
        finished.left.into_iter().map(|(path, why)| (path, format!("{why:?}"))).collect();
    let changed = ["changed", "removed", "old/a", "script"].map(|name| (name, "Changed"));
    let expected_left: BTreeSet<(Vec<u8>, String)> = changed
        .into_iter()
        .chain([("old", "NotEmpty")])
        .map(|(name, why)| (name.as_bytes().to_vec(), why.to_owned()))
        .collect();
    assert_eq!(left, expected_left);
    for name in ["changed", "removed", "old/a", "script"] {
        assert_eq!(fs::read_to_string(path(name))?, "the host's own version\n", "{name}");
    }
    // Both versions are kept: the layer still has its own.
    let layers = fixture.held.path().join("upper");
    assert_eq!(fs::read_to_string(layers.join("changed"))?, "after\n");
    Ok(())
}

#[test]
fn a_file_that_slips_in_during_an_exchange_is_put_back() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (staging, steps) = fixture.staged()?;
    let number = steps.iter().position(|step| step.path() == b"changed").unwrap_or_default();
    let step = steps.get(number).ok_or(std::io::ErrorKind::NotFound)?;
    // As after a kill between the exchange and its check: another file came out than was judged.
    let host = fixture.held.path().join("host");
    fs::write(host.join("slipped"), "slipped in\n")?;
    let own = format!("host/{}/{number}", fixture.staging_name());
    fs::rename(fixture.held.path().join(&own), host.join("changed"))?;
    fs::rename(host.join("slipped"), fixture.held.path().join(&own))?;
    assert_eq!(take(&fixture.host, &staging, number, step), Err(Left::Changed));
    assert_eq!(fs::read_to_string(host.join("changed"))?, "slipped in\n");
    Ok(())
}

#[test]
fn a_file_of_the_host_that_changed_since_the_layer_was_made_is_a_conflict() -> Tested<()> {
    let mut fixture = Fixture::new()?;
    assert!(fixture.changes()?.iter().all(|change| !change.is_conflict));
    fixture.since = Stamp(0, 0);
    let changes = fixture.changes()?;
    let conflicts = changes.iter().filter(|change| change.is_conflict);
    let conflicts: Vec<&[u8]> = conflicts.map(|change| change.path.as_slice()).collect();
    let expected: [&[u8]; 8] = [
        b"becomes-link",
        b"changed",
        b"kind",
        b"old/a",
        b"old/deep/b",
        b"old/deep",
        b"old",
        b"removed",
    ];
    assert_eq!(conflicts, expected);
    Ok(())
}

#[test]
fn an_edit_of_the_host_during_an_apply_stays_a_conflict_for_the_next() -> Tested<()> {
    let mut fixture = Fixture::new()?;
    fixture.begin()?;
    let (staging, steps) = fixture.staged()?;
    record(&fixture.layer, &staging, &fixture.host, fixture.since, steps.clone())?;
    for (number, step) in steps.iter().enumerate() {
        assert_eq!(take(&fixture.host, &staging, number, step), Ok(()), "{step:?}");
    }
    // After their steps, and before they are noted: one is edited, one made again, one left alone.
    fs::write(fixture.path("host/changed"), "the host's edit\n")?;
    fs::write(fixture.path("host/removed"), "made by the host\n")?;
    fixture.finish().map_err(stopped)?;
    // Cells go on.
    for name in ["changed", "removed", "script"] {
        fs::write(fixture.path("upper").join(name), "the agent's next version\n")?;
    }
    assert_eq!(fixture.conflicts()?, ["changed", "removed"]);
    let changes = fixture.changes()?;
    let script = changes.iter().find(|change| change.path == b"script");
    assert!(script.is_some_and(Change::is_applicable), "the control: {changes:?}");
    Ok(())
}

#[test]
fn a_directory_that_the_host_moves_in_during_an_apply_is_not_taken_for_the_layers() -> Tested<()> {
    for is_moved in [false, true] {
        let mut fixture = Fixture::new()?;
        fs::create_dir_all(fixture.path("other/moved"))?;
        fs::write(fixture.path("other/moved/old"), "older than the layer\n")?;
        fs::create_dir(fixture.path("host/mixed"))?;
        fs::write(fixture.path("host/mixed/stays"), "")?;
        fs::create_dir(fixture.path("upper/mixed"))?;
        fs::write(fixture.path("upper/mixed/new"), "")?;
        fixture.begin()?;
        let (staging, steps) = fixture.staged()?;
        record(&fixture.layer, &staging, &fixture.host, fixture.since, steps)?;
        if is_moved {
            fs::rename(fixture.path("other/moved"), fixture.path("host/mixed/moved"))?;
        }
        fixture.finish().map_err(stopped)?;
        // Cells remove the whole directory.
        match fs::remove_dir_all(fixture.path("upper/mixed")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        mknod(&fixture.path("upper/mixed"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
        let conflicts = fixture.conflicts()?;
        let expected: &[&str] = match is_moved {
            true => &["mixed/moved/old", "mixed/moved", "mixed/new", "mixed/stays", "mixed"],
            false => &[],
        };
        assert_eq!(conflicts, expected, "moved: {is_moved}");
    }
    Ok(())
}

#[test]
fn what_the_host_moved_into_a_removed_directory_is_a_conflict() -> Tested<()> {
    for hidden in ["whiteout", "opaque"] {
        let mut fixture = Fixture::new()?;
        fs::create_dir_all(fixture.path("other/moved/deep"))?;
        fs::write(fixture.path("other/moved/deep/file"), "older than the layer\n")?;
        fs::create_dir_all(fixture.path("host/still"))?;
        fs::write(fixture.path("host/still/a"), "")?;
        mknod(&fixture.path("upper/still"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
        if hidden == "opaque" {
            fs::remove_file(fixture.path("upper/old"))?;
            fs::create_dir_all(fixture.path("upper/old/moved/deep"))?;
            fs::write(fixture.path("upper/old/moved/deep/file"), "the agent's\n")?;
            let directory = File::open(fixture.path("upper/old"))?;
            sys::xattr::set(&directory, crate::commands::layers::files::OPAQUE, b"y")?;
        }
        fixture.begin()?;
        assert_eq!(fixture.conflicts()?, Vec::<String>::new(), "before, {hidden}");
        fs::rename(fixture.path("other/moved"), fixture.path("host/old/moved"))?;
        // With a change in it, the directory looks as if it had always been there.
        fs::write(fixture.path("host/old/moved/later"), "")?;
        let conflicts = fixture.conflicts()?;
        for path in ["old/a", "old/deep/b", "old/moved/deep/file", "old/moved/later"] {
            assert!(conflicts.iter().any(|one| one == path), "{hidden}, {path}: {conflicts:?}");
        }
        assert!(!conflicts.iter().any(|one| one.starts_with("still")), "{conflicts:?}");
        let applicable = fixture.changes()?;
        let applicable: Vec<&Change> =
            applicable.iter().filter(|change| change.is_applicable()).collect();
        let mut staging =
            Staging::make(&fixture.layer, &fixture.host, &fixture.upper, fixture.owner)?;
        let (steps, _) = staging.stage(&applicable)?;
        record(&fixture.layer, &staging.directory, &fixture.host, fixture.since, steps)?;
        fixture.finish().map_err(stopped)?;
        let file = fixture.path("host/old/moved/deep/file");
        assert_eq!(fs::read_to_string(file)?, "older than the layer\n", "{hidden}");
        assert!(!fixture.path("host/still").exists(), "the control");
    }
    Ok(())
}

#[test]
fn the_top_is_known_after_an_apply_without_the_staging_directory() -> Tested<()> {
    for is_changed in [false, true] {
        let mut fixture = Fixture::new()?;
        fixture.begin()?;
        fixture.recorded()?;
        if is_changed {
            fs::write(fixture.path("host/made-by-the-host"), "")?;
        }
        fixture.finish().map_err(stopped)?;
        let top = Seen::from(&fstat(&fixture.host)?);
        let applied = AppliedFiles::read(&fixture.layer)?;
        assert_eq!(applied.has(b"", &top), !is_changed, "changed by the host: {is_changed}");
    }
    Ok(())
}

#[test]
fn a_second_save_during_a_step_is_kept() -> Tested<()> {
    for (path, is_free) in [("changed", true), ("changed", false), ("removed", true)] {
        let fixture = Fixture::new()?;
        let (_, steps) = fixture.recorded()?;
        let number = steps.iter().position(|step| step.path() == path.as_bytes());
        let number = number.unwrap_or_default().to_string();
        let own = fixture.path("host").join(fixture.staging_name()).join(number);
        // As after the exchange back: the second save is in the staging directory, the first one in
        // its place.
        fs::write(fixture.path("second"), "second\n")?;
        fs::rename(fixture.path("second"), &own)?;
        fs::write(fixture.path("host").join(path), "the first save\n")?;
        if !is_free {
            fs::write(fixture.path("host/changed.cofferdam-kept"), "the host's\n")?;
        }
        let finished = fixture.finish().map_err(stopped)?;
        assert_eq!(finished.left, [(path.as_bytes().to_vec(), Left::Changed)]);
        let end = if is_free { "" } else { "-2" };
        let kept = fixture.path("host").join(format!("{path}.cofferdam-kept{end}"));
        assert_eq!(fs::read_to_string(fixture.path("host").join(path))?, "the first save\n");
        assert_eq!(fs::read_to_string(kept)?, "second\n");
        assert!(!own.exists() && !is_unfinished(&fixture.layer)?);
    }
    Ok(())
}
