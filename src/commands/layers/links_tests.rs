//! Links of a host and of a layer, and what of the layer is held back for them.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::*;
use crate::commands::layers::applied::AppliedFiles;
use crate::commands::layers::changes;
use crate::commands::layers::files::Stamp;
use supervisor::{Granted, protect};

type Tested<T> = Result<T, Box<dyn std::error::Error>>;

/// Files of a directory, by path: a link with its text, or a plain file. Directories end with a
/// slash.
fn plant(root: &Path, files: &[&str]) -> Tested<()> {
    for file in files {
        let (path, text) = match file.split_once(" -> ") {
            Some((path, text)) => (path, Some(text)),
            None => (*file, None),
        };
        let place = root.join(path);
        fs::create_dir_all(place.parent().unwrap_or(root))?;
        match text {
            Some(text) => symlink(text, place)?,
            None if path.ends_with('/') => fs::create_dir_all(place)?,
            None => fs::write(place, "")?,
        }
    }
    Ok(())
}

/// Returns the paths that are held back, each with the reason, for a host and a layer.
fn held(host: &[&str], layer: &[&str]) -> Tested<Vec<(String, Held)>> {
    let root = tempfile::tempdir()?;
    let path = root.path().canonicalize()?;
    for (name, files) in [("host", host), ("upper", layer)] {
        fs::create_dir(path.join(name))?;
        plant(&path.join(name), files)?;
    }
    let granted = Granted::now(
        path.join("host"),
        PathBuf::from("/workspace"),
        model::job::Access::ReadWrite,
    )?;
    let found = protect::scan_whole(&[granted])?;
    let found = found.first().ok_or("one list")?;
    let judge = Judge::new(&path.join("host"), found, &BTreeSet::new());
    let open = |name: &str| File::open(path.join(name)).map(OwnedFd::from);
    let Stamp(seconds, fraction) = Stamp::now()?;
    let since = Stamp(seconds + 60, fraction);
    let applied = AppliedFiles::default();
    let changes = changes::list(&open("upper")?, &open("host")?, since, &judge, &applied, &[])?;
    let name = |change: &Change| String::from_utf8_lossy(&change.path).into_owned();
    let held = changes.iter().filter_map(|change| Some((name(change), change.held?)));
    Ok(held.collect())
}

/// A host, a layer, and what of the layer is held back.
type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a [(&'a str, Held)]);

fn check(cases: &[Case]) -> Tested<()> {
    for (host, layer, expected) in cases {
        let expected: Vec<(String, Held)> =
            expected.iter().map(|(path, held)| ((*path).to_owned(), *held)).collect();
        assert_eq!(held(host, layer)?, expected, "{host:?} {layer:?}");
    }
    Ok(())
}

#[test]
fn a_link_by_itself_stays_in_the_directory_and_away_from_what_is_obeyed() -> Tested<()> {
    use Held::{LinkOut, LinkToGuarded};
    check(&[
        (&[], &["a -> /etc/passwd"], &[("a", LinkOut)]),
        (&[], &["a -> .."], &[("a", LinkOut)]),
        (&[], &["a -> ../x"], &[("a", LinkOut)]),
        (&[], &["a/b -> ../../x"], &[("a/b", LinkOut)]),
        (&[], &["a/b -> c/../../../x"], &[("a/b", LinkOut)]),
        (&[], &["a/b -> missing/.."], &[("a/b", LinkOut)]),
        (&["f"], &["a -> f/.."], &[("a", LinkOut)]),
        (&[], &["a -> .git/config"], &[("a", LinkToGuarded)]),
        (&[], &["a/b -> ../.Envrc"], &[("a/b", LinkToGuarded)]),
        (&[], &["a -> .github/hooks/x"], &[("a", LinkToGuarded)]),
        (&[], &["a -> .GITHUB/workflows"], &[("a", LinkToGuarded)]),
        (&["b.git/HEAD", "b.git/refs/"], &["a -> b.git/x"], &[("a", LinkToGuarded)]),
        (
            &["d/x"],
            &[
                "a -> b",
                "c/b -> ../d/x",
                "c/e -> ./f/g",
                "h -> missing",
                "i -> d/../d/x",
                "j -> .",
                "k/l -> ..",
                "m -> m",
                "o -> o/x",
                "n -> .github/workflows/x",
            ],
            &[],
        ),
    ])
}

#[test]
fn a_link_through_a_link_of_the_host_is_judged_by_its_end() -> Tested<()> {
    use Held::{LinkOut, LinkToGuarded};
    check(&[
        (&["out -> /etc"], &["a -> out/passwd"], &[("a", LinkOut)]),
        (&["up -> ../.."], &["a -> up/x"], &[("a", LinkOut)]),
        (&["d/up -> ..", "d/x"], &["a -> d/up/.."], &[("a", LinkOut)]),
        (&["deep/er/x", "in -> deep/er"], &["a -> in/x", "b -> in/../er/x"], &[]),
        (&["d/e -> ../.git", ".git/HEAD"], &["a -> d/e/config"], &[("a", LinkToGuarded)]),
        (&["one -> two", "two -> /etc"], &["a -> one"], &[("a", LinkOut)]),
    ])
}

#[test]
fn links_of_one_layer_are_judged_together() -> Tested<()> {
    use Held::{LinkOut, LinkToGuarded};
    check(&[
        // Harmless alone: one leads to a directory, the other through it.
        (&["d/e/f/"], &["a -> d/e", "b/c -> ../a/../../x"], &[("b/c", LinkOut)]),
        (&["d/"], &["k/b -> ../d", "k/a -> b/../../x"], &[("k/a", LinkOut)]),
        (&[".github/x"], &["g -> .github", "h -> g/hooks"], &[("h", LinkToGuarded)]),
        (
            &["d/.vscode/x", "d/y"],
            &["g -> d", "h -> g/.vscode", "i -> g/y"],
            &[("h", LinkToGuarded)],
        ),
        // A directory in place of the host's link: both versions count.
        (&["b -> /etc"], &["a -> b/x", "b/y"], &[("a", LinkOut)]),
    ])
}

#[test]
fn a_way_that_takes_too_long_holds_back_its_links_alone() -> Tested<()> {
    use Held::{LongWay, Redirects};
    let long = |count: usize| "a/../".repeat(count);
    let bomb = format!("bomb/l -> {}", long(680));
    check(&[
        (
            &["d/", "h -> d/x", "k -> m/n"],
            &["bomb/a/", &bomb, "good -> d/x", "m -> bomb/l", "new/f"],
            &[("bomb/l", LongWay), ("m", LongWay)],
        ),
        // Short alone, and too long together with the rest of the link of the host.
        (
            &["a/", &format!("h -> m/{}", long(400)), "t/"],
            &[&format!("m -> ./{}", long(250)), "new/f"],
            &[("m", Redirects)],
        ),
    ])
}

#[test]
fn a_link_that_was_just_applied_is_one_of_the_host() -> Tested<()> {
    let root = tempfile::tempdir()?;
    plant(&root.path().join("host"), &["a -> m/../../x", "t/"])?;
    plant(&root.path().join("upper"), &["m/", "plain"])?;
    let open = |name: &str| File::open(root.path().join(name)).map(OwnedFd::from);
    let host = open("host")?;
    let seen = look(&host, c"a")?.ok_or("a link")?;
    let applied = serde_json::to_string(&BTreeMap::from([("a", seen)]))?;
    for (applied, expected) in [("{}", None), (applied.as_str(), Some(Held::Redirects))] {
        let applied: AppliedFiles = serde_json::from_str(applied)?;
        let judge = Judge::default();
        let since = Stamp(i64::MAX, 0);
        let changes = changes::list(&open("upper")?, &host, since, &judge, &applied, &[])?;
        let held: Vec<_> = changes.iter().map(|change| change.held).collect();
        assert_eq!(held, [expected, None]);
    }
    Ok(())
}

#[test]
fn a_link_of_the_host_is_not_led_elsewhere() -> Tested<()> {
    use Held::{Named, Redirects, Replaced};
    check(&[
        // `link` led to `x`, and would lead out of the directory.
        (
            &["k/b/", "x", "t/", "k/a -> b/../../x"],
            &["k/b -> ../t"],
            &[("k/b", Replaced), ("k/b", Redirects)],
        ),
        // `link` was dangling.
        (&["a -> m/../../x"], &["m/"], &[("m", Redirects)]),
        (&["a -> m/hooks", ".github/y"], &["m -> .github"], &[("m", Redirects)]),
        // The same, where the host's link leads out anyway, or stays inside.
        (&["a -> ../m/x"], &["m/"], &[]),
        (&["a -> m/x", "t/"], &["m -> t"], &[]),
        // The way of a link that the host obeys is guarded by name.
        (
            &[".vscode -> cfg/vscode", "cfg/vscode/x"],
            &["cfg/vscode -> ../t"],
            &[("cfg/vscode/x", Named), ("cfg/vscode", Named), ("cfg/vscode", Named)],
        ),
    ])
}
