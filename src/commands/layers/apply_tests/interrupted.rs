//! An apply that is interrupted: it is ended where it stopped, and what was prepared is removed.

use super::*;

#[test]
fn an_apply_that_is_killed_after_any_step_is_ended_there() -> Tested<()> {
    let count = Fixture::new()?.staged()?.1.len();
    assert_eq!(count, 13);
    for cut in 0..=count {
        let mut fixture = Fixture::new()?;
        fixture.begin()?;
        let (staging, steps) = fixture.recorded()?;
        for (number, step) in steps.iter().enumerate().take(cut) {
            assert_eq!(take(&fixture.host, &staging, number, step), Ok(()), "{step:?}");
        }
        let mut before = fixture.tree()?;
        before.retain(|name, _| !name.contains(".cofferdam-apply-"));
        assert_eq!(fixture.end(), Ok(Interrupted { written: cut, all: count }));
        assert_eq!(fixture.tree()?, before, "killed after {cut} steps");
        assert!(!is_unfinished(&fixture.layer)?);
        // The rest is not in conflict with what was written.
        let changes = fixture.changes()?;
        assert_eq!(fixture.conflicts()?, [""; 0], "killed after {cut} steps");
        assert_eq!(changes.len(), count - cut, "killed after {cut} steps: {changes:?}");
        fixture.recorded()?;
        let finished = fixture.finish().map_err(stopped)?;
        assert_eq!((finished.done, finished.left), (count - cut, Vec::new()));
        assert_eq!(fixture.tree()?, expected(), "killed after {cut} steps");
        // The layer has no change left; directories that the host had before the rest may be.
        assert_eq!(fixture.changes()?, []);
        let left = fs::read_dir(fixture.path("upper"))?.count();
        assert!(left == 0 || cut > 0, "killed after {cut} steps");
    }
    Ok(())
}

#[test]
fn a_file_of_the_host_that_was_closed_after_an_interruption_is_not_replaced() -> Tested<()> {
    let mut fixture = Fixture::new()?;
    fixture.begin()?;
    fixture.recorded()?;
    std::thread::sleep(std::time::Duration::from_millis(20));
    let changed = fixture.path("host/changed");
    fs::set_permissions(&changed, PermissionsExt::from_mode(0o600))?;
    assert_eq!(fixture.end().map(|ended| ended.written), Ok(0));
    assert_eq!(fixture.conflicts()?, ["changed"]);
    assert_eq!(fs::read_to_string(changed)?, "before\n");
    // Neither is one that is closed during the apply itself.
    let fixture = Fixture::new()?;
    fixture.recorded()?;
    let changed = fixture.path("host/changed");
    fs::set_permissions(&changed, PermissionsExt::from_mode(0o600))?;
    let left = fixture.finish().map(|finished| finished.left);
    assert_eq!(left, Ok(vec![(b"changed".to_vec(), Left::Changed)]));
    assert_eq!(fs::read_to_string(changed)?, "before\n");
    Ok(())
}

#[test]
fn a_closed_directory_of_the_user_is_not_taken_for_one_of_the_apply() -> Tested<()> {
    for (mode, opened) in [(0o700, 0o700), (0o1700, 0o755)] {
        let fixture = Fixture::new()?;
        fs::set_permissions(fixture.path("host"), PermissionsExt::from_mode(0o755))?;
        let (staging, _) = fixture.recorded()?;
        let new = fixture.path("host/new");
        fs::create_dir(&new)?;
        fs::set_permissions(&new, PermissionsExt::from_mode(mode))?;
        drop(staging);
        assert_eq!(fixture.end().map(|ended| ended.written), Ok(1));
        assert_eq!(new.metadata()?.permissions().mode() & 0o7777, opened, "{mode:o}");
    }
    Ok(())
}

#[test]
fn an_apply_that_is_killed_before_its_journal_is_written_has_changed_nothing() -> Tested<()> {
    let fixture = Fixture::new()?;
    let before = fixture.tree()?;
    let changes = fixture.changes()?;
    fixture.staged()?;
    assert!(is_unfinished(&fixture.layer)?);
    assert_eq!(fixture.end(), Ok(Interrupted { written: 0, all: 0 }));
    assert_eq!(fixture.tree()?, before);
    assert_eq!(fixture.changes()?, changes);
    assert!(!is_unfinished(&fixture.layer)?);
    Ok(())
}

#[test]
fn an_apply_without_its_staging_directory_is_neither_ended_nor_forgotten() -> Tested<()> {
    let fixture = Fixture::new()?;
    let before = fixture.tree()?;
    let changes = fixture.changes()?;
    fixture.recorded()?;
    let name = fixture.staging_name();
    let staging = fixture.path("host").join(&name);
    let aside = fixture.path("aside");
    fs::rename(&staging, &aside)?;
    let lost = Err(Stopped::StagingLost(name.clone()));
    assert_eq!(fixture.end().map(|ended| ended.written), lost);
    assert_eq!(fixture.tree()?, before);
    // Another directory at its name is neither used nor removed, nor is a link to the right one.
    fs::create_dir(&staging)?;
    fs::set_permissions(&staging, PermissionsExt::from_mode(0o700))?;
    fs::write(staging.join("0"), "another\n")?;
    assert_eq!(fixture.end().map(|ended| ended.written), lost);
    assert_eq!(fs::read_to_string(staging.join("0"))?, "another\n");
    fs::remove_dir_all(&staging)?;
    symlink(&aside, &staging)?;
    assert_eq!(fixture.end().map(|ended| ended.written), lost);
    fs::remove_file(&staging)?;
    assert_eq!(fixture.tree()?, before);
    assert_eq!(fixture.changes()?, changes);
    // Put back, it is ended, and the rest can be applied.
    fs::rename(&aside, &staging)?;
    assert_eq!(fixture.end(), Ok(Interrupted { written: 0, all: 13 }));
    assert_eq!(fixture.tree()?, before);
    assert_eq!(fixture.changes()?, changes);
    Ok(())
}

#[test]
fn a_directory_that_is_left_after_the_journal_is_removed() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (staging, steps) = fixture.recorded()?;
    for (number, step) in steps.iter().enumerate() {
        assert_eq!(take(&fixture.host, &staging, number, step), Ok(()));
    }
    fs::remove_file(fixture.path("layer/journal.json"))?;
    assert!(is_unfinished(&fixture.layer)?);
    assert_eq!(fixture.end().map(|ended| ended.written), Ok(0));
    assert_eq!(fixture.tree()?, expected());
    assert!(!is_unfinished(&fixture.layer)?);
    // The layer shows no change, though its files were not removed.
    assert_eq!(fixture.changes()?, []);
    Ok(())
}

#[test]
fn a_staging_directory_without_its_identity_is_removed_only_if_it_is_empty() -> Tested<()> {
    for (made, is_left) in [(None, false), (Some(None), false), (Some(Some("file")), true)] {
        let fixture = Fixture::new()?;
        let name = format!(".cofferdam-apply-{:032x}", 7);
        let record = format!("{{\"version\":1,\"name\":\"{name}\",\"identity\":null}}");
        fs::write(fixture.path("layer/staged.json"), record)?;
        let staging = fixture.path("host").join(&name);
        if let Some(file) = made {
            fs::create_dir(&staging)?;
            if let Some(file) = file {
                fs::write(staging.join(file), "the host's\n")?;
            }
        }
        assert_eq!(fixture.end().map(|ended| ended.written), Ok(0));
        assert_eq!(staging.exists(), is_left, "{made:?}");
        assert!(!is_unfinished(&fixture.layer)?);
    }
    Ok(())
}

#[test]
fn a_journal_that_this_version_cannot_read_is_kept() -> Tested<()> {
    for (text, why) in [
        (&b"{\"version\":2,\"steps\":\"otherwise\"}"[..], Stopped::OtherVersion),
        (b"{\"version\":1}", Stopped::Damaged),
        (b"", Stopped::Damaged),
        (b"not JSON", Stopped::Damaged),
    ] {
        let fixture = Fixture::new()?;
        let before = fixture.tree()?;
        fixture.recorded()?;
        fs::write(fixture.path("layer/journal.json"), text)?;
        assert_eq!(fixture.end().map(|ended| ended.written), Err(why));
        assert_eq!(fs::read(fixture.path("layer/journal.json"))?, text);
        File::options()
            .write(true)
            .open(fixture.path("layer/journal.json"))?
            .set_len((256 << 20) + 1)?;
        assert_eq!(fixture.end().map(|ended| ended.written), Err(Stopped::Damaged));
        fs::remove_dir_all(fixture.path("host").join(fixture.staging_name()))?;
        assert_eq!(fixture.tree()?, before);
    }
    Ok(())
}

#[test]
fn an_apply_is_ended_where_the_device_has_another_number_now() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (staging, steps) = fixture.recorded()?;
    for (number, step) in steps.iter().enumerate() {
        assert_eq!(take(&fixture.host, &staging, number, step), Ok(()), "{step:?}");
    }
    let device = fstat(&fixture.host)?.st_dev;
    let journal = fs::read_to_string(fixture.path("layer/journal.json"))?;
    let another = journal.replace(&format!("\"device\":{device}"), "\"device\":987654321");
    assert_ne!(another, journal);
    fs::write(fixture.path("layer/journal.json"), another)?;
    assert_eq!(fixture.end(), Ok(Interrupted { written: 13, all: 13 }));
    assert_eq!(fixture.tree()?, expected());
    Ok(())
}

#[test]
fn an_apply_that_is_given_up_leaves_no_staging_directory() -> Tested<()> {
    for (has_journal, is_changed) in [(false, false), (true, false), (true, true)] {
        let fixture = Fixture::new()?;
        let (_, steps) = if has_journal { fixture.recorded()? } else { fixture.staged()? };
        let number = steps.iter().position(|step| step.path() == b"removed").unwrap_or_default();
        let staging = fixture.path("host").join(fixture.staging_name());
        if is_changed {
            fs::rename(fixture.path("host/removed"), staging.join(number.to_string()))?;
            fs::write(staging.join(number.to_string()), "saved meanwhile\n")?;
        }
        give_up(&fixture.layer, &fixture.host, fixture.owner).map_err(stopped)?;
        assert!(!staging.exists());
        let kept = fs::read_to_string(fixture.path("host/removed.cofferdam-kept")).ok();
        assert_eq!(kept.as_deref(), is_changed.then_some("saved meanwhile\n"));
    }
    Ok(())
}
