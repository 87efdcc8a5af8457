//! Files that cannot be staged, and a staging directory that others change.

use super::*;

#[test]
fn a_file_that_cannot_be_staged_keeps_no_other_back() -> Tested<()> {
    let fixture = Fixture::new()?;
    let mut changes = fixture.changes()?;
    for change in &mut changes {
        // As if a cell had changed the file after it was judged.
        if let Some(new) = change.new.as_mut().filter(|_| change.path == b"script") {
            new.size += 1;
        }
        // As if the filesystem did not take the file.
        if change.path == b"new/deep/file" {
            change.kind = Kind::Other;
        }
    }
    let changes: Vec<&Change> = changes.iter().collect();
    let mut staging = Staging::make(&fixture.layer, &fixture.host, &fixture.upper, fixture.owner)?;
    let (steps, left) = staging.stage(&changes)?;
    let expected_left = vec![
        (b"new/deep/file".to_vec(), Left::Errno(Errno::EINVAL)),
        (b"script".to_vec(), Left::Changed),
    ];
    assert_eq!(left, expected_left);
    record(&fixture.layer, &staging.directory, &fixture.host, fixture.since, steps)?;
    assert_eq!(fixture.finish().map(|finished| finished.left), Ok(Vec::new()));
    let mut rest = expected();
    for path in ["host/new/deep/file", "host/script"] {
        rest.remove(path);
    }
    assert_eq!(fixture.tree()?, rest);
    Ok(())
}

#[test]
fn files_deeper_than_the_longest_path_are_applied() -> Tested<()> {
    let fixture = Fixture::new()?;
    let name = c_name(&[b'n'; 255])?;
    let path = |depth: usize| {
        let names: Vec<&[u8]> = std::iter::repeat_n(name.to_bytes(), depth).collect();
        names.join(&b'/')
    };
    let added = |depth: usize, directory: &OwnedFd| -> Tested<Change> {
        let new = look(directory, &name)?;
        let kind = new.as_ref().map_or(Kind::Other, Kind::of);
        Ok(Change {
            path: path(depth),
            act: Act::Add,
            kind,
            new,
            old: None,
            target: None,
            held: None,
            is_conflict: false,
            is_movable: true,
        })
    };
    let mut directories = Vec::new();
    let mut inner = fixture.upper.try_clone()?;
    let mut outer = fixture.host.try_clone()?;
    for depth in 0..40 {
        mkdirat(&inner, name.as_c_str(), Mode::S_IRWXU)?;
        let above = inner;
        inner = openat(&above, name.as_c_str(), DIRECTORY, Mode::empty())?;
        // The host has some of the directories.
        if depth < 20 {
            mkdirat(&outer, name.as_c_str(), Mode::S_IRWXU)?;
            outer = openat(&outer, name.as_c_str(), DIRECTORY, Mode::empty())?;
        } else {
            directories.push((depth + 1, above));
        }
    }
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT;
    drop(openat(&inner, name.as_c_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    directories.push((41, inner));
    let changes = directories.iter().map(|(depth, above)| added(*depth, above));
    let changes = changes.collect::<Tested<Vec<Change>>>()?;
    // A list holds all of that back: the guarded names are not found so deep.
    let listed = fixture.changes()?;
    let listed = listed.iter().filter(|change| change.path.starts_with(name.to_bytes()));
    let listed: Vec<_> = listed.map(|change| (change.path.clone(), change.held)).collect();
    assert_eq!(listed, [(path(12), Some(crate::commands::layers::judge::Held::Deep))]);
    let (_, steps) = fixture.recorded_of(&changes)?;
    assert_eq!(steps.len(), 21);
    assert_eq!(fixture.finish().map(|finished| finished.left), Ok(Vec::new()));
    let deepest = open_directory(&fixture.host, &path(40))?;
    assert!(look(&deepest, &name)?.is_some_and(|seen| seen.is(libc::S_IFREG)));
    assert!(matches!(open_directory(&fixture.upper, &path(21)), Err(Errno::ENOENT)));
    cell::removal::remove_all(&fixture.upper, "n")?;
    Ok(cell::removal::remove_all(&fixture.host, "n")?)
}

#[test]
fn a_file_of_the_host_stays_if_its_replacement_cannot_be_staged() -> Tested<()> {
    let fixture = Fixture::new()?;
    fs::write(fixture.path("host/kind/below"), "kept\n")?;
    let mut changes = fixture.changes()?;
    for change in changes.iter_mut().filter(|change| change.act == Act::Add) {
        // As if a cell had changed the file after it was judged, with the same size and time.
        if let Some(new) = change.new.as_mut().filter(|_| change.path == b"kind") {
            new.changed.1 += 1;
        }
    }
    let changes: Vec<&Change> = changes.iter().collect();
    let mut staging = Staging::make(&fixture.layer, &fixture.host, &fixture.upper, fixture.owner)?;
    let (steps, left) = staging.stage(&changes)?;
    let expected_left =
        ["kind", "kind/below", "kind"].map(|path| (path.as_bytes().to_vec(), Left::Changed));
    assert_eq!(left, expected_left);
    record(&fixture.layer, &staging.directory, &fixture.host, fixture.since, steps)?;
    assert_eq!(fixture.finish().map(|finished| finished.left), Ok(Vec::new()));
    let mut rest = expected();
    rest.insert("host/kind".to_owned(), "directory".to_owned());
    rest.insert("host/kind/below".to_owned(), "0 kept\n".to_owned());
    assert_eq!(fixture.tree()?, rest);
    Ok(())
}

#[test]
fn a_directory_of_the_layer_that_its_owner_cannot_write_to_does_not_stop_an_apply() -> Tested<()> {
    let closed_to = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    for (mode, is_held) in [(0o500, false), (0o500, true), (0o100, false), (0o000, true)] {
        let mut fixture = Fixture::new()?;
        as_user(&mut fixture, |_| ())?;
        let mut changes = fixture.changes()?;
        // A file that an apply does not take, so that its directory stays in the layer.
        changes.retain(|change| !is_held || change.path != b"new/deep/file");
        fixture.recorded_of(&changes)?;
        sys::xattr::set(
            open(&fixture.path("upper/new/deep"))?,
            crate::commands::layers::files::OPAQUE,
            b"y",
        )?;
        closed_to(&fixture.path("upper/new/deep"), mode)?;
        closed_to(&fixture.path("upper/new"), mode)?;
        let finished = as_user(&mut fixture, Fixture::finish)?.map_err(stopped)?;
        assert_eq!(finished.left, [], "{mode:o}");
        assert!(!is_unfinished(&fixture.layer)?);
        if mode == 0o500 && !is_held {
            assert_eq!(fs::read_dir(fixture.path("upper"))?.count(), 0);
        }
    }
    Ok(())
}

/// Gives the files of a fixture to a user, and calls a function with that user's rights to files.
fn as_user<T>(fixture: &mut Fixture, act: impl FnOnce(&Fixture) -> T) -> Tested<T> {
    const ID: u32 = 4711;
    if !nix::unistd::geteuid().is_root() {
        return Ok(act(fixture));
    }
    let mut all = vec![fixture.held.path().to_owned()];
    while let Some(path) = all.pop() {
        std::os::unix::fs::lchown(&path, Some(ID), Some(ID))?;
        if path.symlink_metadata()?.is_dir() {
            for entry in fs::read_dir(&path)? {
                all.push(entry?.path());
            }
        }
    }
    fixture.owner = Owner::of(&fstat(&fixture.host)?);
    nix::unistd::setfsgid(nix::unistd::Gid::from_raw(ID));
    nix::unistd::setfsuid(nix::unistd::Uid::from_raw(ID));
    let done = act(fixture);
    nix::unistd::setfsuid(nix::unistd::Uid::from_raw(0));
    nix::unistd::setfsgid(nix::unistd::Gid::from_raw(0));
    Ok(done)
}

#[test]
fn what_is_put_in_a_staged_directory_does_not_reach_the_host() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (_, steps) = fixture.recorded()?;
    let number = steps.iter().position(|step| step.path() == b"new").unwrap_or_default();
    let staged = fixture.path("host").join(fixture.staging_name()).join(number.to_string());
    fs::create_dir(staged.join("hooks"))?;
    fs::write(staged.join("hooks/evil.json"), "evil\n")?;
    fs::set_permissions(&staged, PermissionsExt::from_mode(0o6755))?;
    assert_eq!(fixture.finish().map(|finished| finished.left), Ok(Vec::new()));
    assert_eq!(fixture.tree()?, expected());
    let made = fixture.path("host/new").metadata()?.permissions().mode();
    assert_eq!(made & 0o7777, 0o755);
    Ok(())
}

#[test]
fn another_directory_in_place_of_a_staged_one_is_not_taken_for_it() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (_, steps) = fixture.recorded()?;
    let number = steps.iter().position(|step| step.path() == b"new").unwrap_or_default();
    let staged = fixture.path("host").join(fixture.staging_name()).join(number.to_string());
    fs::rename(&staged, fixture.path("aside"))?;
    symlink(fixture.path("aside"), &staged)?;
    let finished = fixture.finish().map_err(stopped)?;
    assert!(finished.left.contains(&(b"new".to_vec(), Left::Changed)));
    assert!(!fixture.path("host/new").exists());
    assert_eq!(fs::read_to_string(fixture.path("upper/new/deep/file"))?, "new\n");
    Ok(())
}

#[test]
fn a_staged_file_that_is_lost_or_changed_is_not_taken_for_applied() -> Tested<()> {
    for (path, change) in [("script", None), ("changed", None), ("script", Some("another text\n"))]
    {
        let fixture = Fixture::new()?;
        let before = fs::read_to_string(fixture.path("host").join(path)).ok();
        let layers = fs::read_to_string(fixture.path("upper").join(path))?;
        let (_, steps) = fixture.recorded()?;
        let number = steps.iter().position(|step| step.path() == path.as_bytes());
        let number = number.unwrap_or_default().to_string();
        let staged = fixture.path("host").join(fixture.staging_name()).join(number);
        match change {
            None => fs::remove_file(&staged)?,
            Some(text) => fs::write(&staged, text)?,
        }
        let finished = fixture.finish().map_err(stopped)?;
        assert_eq!(finished.left, [(path.as_bytes().to_vec(), Left::Changed)], "{path}");
        assert_eq!(fs::read_to_string(fixture.path("host").join(path)).ok(), before, "{path}");
        assert_eq!(fs::read_to_string(fixture.path("upper").join(path))?, layers, "{path}");
    }
    Ok(())
}

#[test]
fn a_directory_among_the_staged_files_is_neither_removed_nor_moved() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (_, steps) = fixture.recorded()?;
    let number = steps.iter().position(|step| step.path() == b"script").unwrap_or_default();
    let own = fixture.path("host").join(fixture.staging_name()).join(number.to_string());
    fs::remove_file(&own)?;
    fs::create_dir(&own)?;
    fs::write(own.join("file"), "the host's\n")?;
    fixture.finish().map_err(stopped)?;
    assert_eq!(fs::read_to_string(own.join("file"))?, "the host's\n");
    assert!(!fixture.path("host/script").exists() && !is_unfinished(&fixture.layer)?);
    Ok(())
}
