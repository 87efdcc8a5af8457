//! Lists: what is one unit, what belongs together, and what is at some paths.

use super::*;

#[test]
fn a_repository_by_its_content_is_one_unit() -> Tested<()> {
    let mut fixture = Fixture::new()?;
    for repository in ["bare", "gone.git", "nested/work"] {
        fs::create_dir_all(fixture.path("host").join(repository).join("objects/aa"))?;
        fs::create_dir_all(fixture.path("host").join(repository).join("refs/heads"))?;
        for file in ["HEAD", "objects/aa/b", "packed-refs", "description"] {
            fs::write(fixture.path("host").join(repository).join(file), "before\n")?;
        }
    }
    // A directory with a HEAD only, to which signs of a repository are added.
    fs::create_dir_all(fixture.path("host/lib"))?;
    fs::write(fixture.path("host/lib/HEAD"), "a source\n")?;
    for path in
        ["upper/bare/refs/heads", "upper/lib/refs", "upper/lib/objects", "upper/new/repo/refs"]
    {
        fs::create_dir_all(fixture.path(path))?;
    }
    for path in [
        "upper/bare/description",
        "upper/bare/refs/heads/main",
        "upper/lib/refs/x",
        "upper/lib/plain",
        "upper/new/repo/HEAD",
        "upper/new/repo/config",
    ] {
        fs::write(fixture.path(path), "the agent's\n")?;
    }
    mknod(&fixture.path("upper/bare/HEAD"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
    mknod(&fixture.path("upper/gone.git"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
    mknod(&fixture.path("upper/nested"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
    fixture.begin()?;
    let changes = fixture.changes()?;
    let held = changes.iter().filter(|change| change.held.is_some());
    let held: Vec<String> =
        held.map(|change| String::from_utf8_lossy(&change.path).into_owned()).collect();
    let expected = [
        "bare",
        "gone.git",
        "lib/objects",
        "lib/refs",
        "lib/refs/x",
        "nested/work",
        "nested",
        "new/repo",
    ];
    assert_eq!(held, expected);
    assert!(changes.iter().any(|change| change.path == b"lib/plain" && change.is_applicable()));
    Ok(())
}

#[test]
fn a_list_of_some_paths_is_a_part_of_the_whole_list() -> Tested<()> {
    let fixture = Fixture::new()?;
    let whole = fixture.changes()?;
    let paths = |changes: &[Change]| -> Vec<String> {
        changes.iter().map(|change| String::from_utf8_lossy(&change.path).into_owned()).collect()
    };
    for (only, expected) in [
        (&["new/deep"][..], &["new", "new/deep", "new/deep/file"][..]),
        (&["old", "changed"], &["changed", "old/a", "old/deep/b", "old/deep", "old"]),
        (&["old/deep/b"], &["old/deep/b", "old/deep", "old"]),
        (&["ne", "new/deep/fil", "missing"], &["new", "new/deep"]),
    ] {
        let only: Vec<&[u8]> = only.iter().map(|path| path.as_bytes()).collect();
        let listed = fixture.changes_at(&only)?;
        assert_eq!(paths(&listed), expected);
        assert!(listed.iter().all(|change| whole.contains(change)));
    }
    assert_eq!(fixture.changes_at(&[b""])?, whole);
    Ok(())
}

#[test]
fn what_cannot_be_applied_alone_is_held_back_together() -> Tested<()> {
    let mut fixture = Fixture::new()?;
    // A directory of the host, and a file, in whose place comes a link that leads out.
    fs::remove_file(fixture.path("upper/kind"))?;
    fs::write(fixture.path("host/kind/k"), "kept\n")?;
    symlink("/etc", fixture.path("upper/kind"))?;
    fs::create_dir_all(fixture.path("host/held"))?;
    fs::write(fixture.path("host/held/.envrc"), "the host's\n")?;
    fs::write(fixture.path("host/held/plain"), "the host's\n")?;
    mknod(&fixture.path("upper/held"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
    fixture.begin()?;
    let changes = fixture.changes()?;
    let of = |path: &str| {
        let found = changes.iter().filter(|change| change.path == path.as_bytes());
        found.map(|change| change.held).collect::<Vec<_>>()
    };
    use crate::commands::layers::judge::Held;
    assert_eq!(of("kind"), [Some(Held::Replaced), Some(Held::LinkOut)]);
    assert_eq!(of("kind/k"), [Some(Held::Replaced)]);
    assert_eq!(of("held"), [Some(Held::InTheWay)]);
    assert_eq!(of("held/plain"), [None]);
    assert!(matches!(of("held/.envrc").as_slice(), [Some(Held::Obeyed(_))]));
    Ok(())
}

#[test]
fn paths_are_listed_next_to_more_names_than_a_list_has() -> Tested<()> {
    let fixture = Fixture::new()?;
    for number in 0..=changes::MAX_CHANGES + 1 {
        File::create(fixture.path("upper").join(format!("n{number}")))?;
    }
    let whole = fixture.changes().err().and_then(|error| error.raw_os_error());
    assert_eq!(whole, Some(libc::EFBIG), "the control");
    let paths: [&[u8]; 4] = [b"new/deep", b"old/deep/b", b"changed", b"n7"];
    let listed = fixture.changes_at(&paths)?;
    let listed: Vec<&[u8]> = listed.iter().map(|change| change.path.as_slice()).collect();
    let expected: [&[u8]; 7] =
        [b"changed", b"n7", b"new", b"new/deep", b"new/deep/file", b"old/deep/b", b"old/deep"];
    let around: &[u8] = b"old";
    assert_eq!(listed, expected.into_iter().chain([around]).collect::<Vec<_>>());
    Ok(())
}
