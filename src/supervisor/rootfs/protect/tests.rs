//! Tests of which files are guarded in a granted directory before a start.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::budget::Budget;
use super::guarded::quoted;
use super::*;
use crate::patience::soon;
use crate::rootfs::granted::{FileId, Granted};
use cell::c_path;
use sys::mount::open_resolved;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn guarded_in(host: &Path) -> GuardedPaths {
    let guarded = granted(host).map(|directory| scan(&[directory]));
    match guarded {
        Ok(Ok(mut guarded)) => guarded.pop().unwrap_or_default(),
        failed => panic!("{failed:?}"),
    }
}

fn granted(host: &Path) -> Result<Granted, Errno> {
    let file = FileId::of_file(open_resolved(&c_path(host)?)?)?;
    let host = host.to_owned();
    Ok(Granted {
        host,
        file,
        cell: "/workspace".into(),
        access: Access::ReadWrite,
        also: std::rc::Rc::default(),
        is_linked: false,
        layer: None,
    })
}

#[test]
fn a_directory_that_was_replaced_meanwhile_is_refused() -> Outcome {
    let root = made(&["one", "other"], &[], &[("link", "other")])?;
    let checked = granted(&root.path().join("one"))?;
    assert!(scan(std::slice::from_ref(&checked)).is_ok());
    for name in ["other", "link"] {
        let other = Granted { host: root.path().join(name), ..checked.clone() };
        let refused = scan(&[other]);
        assert!(matches!(refused, Err(GrantError::Replaced { .. })), "{name}: {refused:?}");
    }
    Ok(())
}

fn paths(names: &[&str]) -> BTreeSet<PathBuf> {
    names.iter().map(PathBuf::from).collect()
}

fn obeyed(guarded: &GuardedPaths) -> BTreeSet<PathBuf> {
    guarded.obeyed.iter().cloned().collect()
}

/// Makes a directory with these subdirectories, files and links.
fn made(
    directories: &[&str],
    files: &[(&str, &str)],
    links: &[(&str, &str)],
) -> std::io::Result<tempfile::TempDir> {
    let root = tempfile::tempdir()?;
    for directory in directories {
        std::fs::create_dir_all(root.path().join(directory))?;
    }
    for (path, text) in files {
        std::fs::write(root.path().join(path), text)?;
    }
    for (path, text) in links {
        symlink(text, root.path().join(path))?;
    }
    Ok(root)
}

#[test]
fn obeyed_files_are_found_in_nested_repositories_too() -> Outcome {
    let modules = ".git/modules/lib/one/hooks";
    let deep = "sub/deep/.git/hooks";
    let directories = [".git/hooks", modules, deep, ".vscode", "src", "tree", "bare/hooks"];
    let files = [
        ("bare/HEAD", "ref: refs/heads/main"),
        (".git/config", ""),
        (".git/modules/lib/one/HEAD", ""),
        ("sub/.envrc", ""),
        ("src/envrc", ""),
        ("tree/.git", ""),
    ];
    let root = made(&directories, &files, &[])?;
    let guarded = guarded_in(root.path());
    let expected = [
        ".git/config",
        ".git/hooks",
        modules,
        ".vscode",
        "bare/HEAD",
        "bare/hooks",
        "sub/.envrc",
        deep,
        "tree/.git",
    ];
    assert_eq!(obeyed(&guarded), paths(&expected));
    assert_eq!(
        guarded.pinned.iter().cloned().collect::<BTreeSet<_>>(),
        paths(&[".git", "sub/deep/.git"])
    );
    assert_eq!((guarded.named, guarded.notes), (BTreeSet::new(), BTreeSet::new()));
    Ok(())
}

#[test]
fn every_directory_on_the_way_to_a_guarded_path_is_pinned() {
    let guarded = GuardedPaths {
        obeyed: vec!["a/b/.envrc".into()],
        pinned: vec!["c/.git".into()],
        named: paths(&["d/hooks"]),
        ..GuardedPaths::default()
    };
    assert_eq!(guarded.pins(&guarded.obeyed), paths(&["a", "a/b", "c", "c/.git", "d"]));
}

#[test]
fn targets_of_links_are_guarded_and_links_out_of_the_grant_are_noted() -> Outcome {
    let directories = [".git/hooks", "tools", ".claude", "conf/vscode", "env"];
    let files = [("tools/check", ""), ("conf/settings.json", ""), ("env/rc", ""), ("plain", "")];
    let links = [
        (".git/hooks/pre-commit", "../../tools/alias"),
        ("tools/alias", "check"),
        (".claude/settings.json", "../conf/settings.json"),
        (".claude/whole", ".."),
        (".vscode", "conf/vscode"),
        (".envrc", "env/rc"),
        (".idea", "later/idea"),
        (".mcp.json", "/etc/hostname"),
        ("loop", "loop"),
        (".cursor", "loop"),
    ];
    let root = made(&directories, &files, &links)?;
    let guarded = guarded_in(root.path());
    let expected =
        [".git/hooks", ".claude", "tools/check", "conf/settings.json", "conf/vscode", "env/rc"];
    assert_eq!(obeyed(&guarded), paths(&expected));
    let named = ["tools/alias", "tools/check", "conf/vscode", "env/rc", "later", "loop"];
    assert!(paths(&named).is_subset(&guarded.named), "{:?}", guarded.named);
    let notes = guarded.notes(Path::new("/workspace"));
    let starts = [".claude/whole", ".cursor", ".mcp.json"];
    assert_eq!(notes.len(), starts.len(), "{notes:?}");
    for (line, start) in notes.iter().zip(starts) {
        assert!(line.starts_with(&format!("`/workspace/{start}` ")), "{line}");
    }
    Ok(())
}

#[test]
fn another_name_of_a_guarded_file_is_guarded_too() -> Outcome {
    let directories = [".git/hooks", "src/deep"];
    let root = made(&directories, &[(".git/hooks/pre-commit", ""), ("src/plain", "")], &[])?;
    let at = |path: &str| root.path().join(path);
    std::fs::hard_link(at(".git/hooks/pre-commit"), at("src/deep/alias"))?;
    std::fs::hard_link(at("src/plain"), at("src/deep/other"))?;
    let guarded = guarded_in(root.path());
    assert!(guarded.obeyed.contains(&"src/deep/alias".into()), "{guarded:?}");
    assert_eq!(guarded.named, paths(&["src/deep/alias"]));
    Ok(())
}

#[test]
fn no_workspace_can_block_a_scan() -> Outcome {
    let directories = [".git/modules", ".git/worktrees"];
    let links = [
        (".git/modules/a", "."),
        (".git/modules/b", "."),
        (".git/modules/root", "/"),
        (".git/worktrees/x", ".."),
        ("up", "/"),
    ];
    let root = made(&directories, &[(".git/HEAD", "")], &links)?;
    let deep: PathBuf = (0..200).map(|_| "d").collect();
    std::fs::create_dir_all(root.path().join(&deep))?;
    std::fs::write(root.path().join(&deep).join(".envrc"), "")?;
    nix::unistd::mkfifo(&root.path().join(".git/config"), nix::sys::stat::Mode::S_IRWXU)?;
    let start = Instant::now();
    let guarded = guarded_in(root.path());
    assert!(start.elapsed() < soon(5), "{:?}", start.elapsed());
    assert_eq!(
        obeyed(&guarded),
        BTreeSet::from([PathBuf::from(".git/config"), deep.join(".envrc")])
    );
    assert_eq!(guarded.notes(Path::new("/workspace")), Vec::<String>::new());
    Ok(())
}

#[test]
fn a_configuration_that_the_kernel_makes_up_is_not_read_and_noted() -> Outcome {
    for (file, is_unseen) in [("/proc/version", true), ("/etc/passwd", false)] {
        let config = format!("[include]\n path = {file}\n");
        let root = made(&[".git"], &[(".git/config", &config), (".git/HEAD", "")], &[])?;
        let unseen = guarded_in(&root.path().canonicalize()?).unseen();
        assert_eq!(
            unseen.is_some_and(|why| why.contains("kernel")),
            is_unseen,
            "{file}: {unseen:?}"
        );
    }
    Ok(())
}

#[test]
fn entries_beyond_the_budget_are_noted() -> Outcome {
    let root = made(&["a", "b", "b/c"], &[("b/c/.envrc", "")], &[])?;
    let mut trees = Trees::default();
    trees.hold(&granted(root.path())?)?;
    let mut scan = Scan::new(trees, Vec::new(), Extent::InTime);
    scan.budget = Budget::new(2, Duration::from_secs(1000));
    scan.walk();
    let notes: Vec<_> = scan.guarded.iter().flat_map(|guarded| &guarded.notes).collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(scan.guarded.iter().all(|guarded| guarded.obeyed.is_empty()));
    Ok(())
}

#[test]
fn a_whole_scan_has_no_budget_and_keeps_all_links() -> Outcome {
    let root = made(
        &["a", "b", "b/c"],
        &[("b/c/.envrc", ""), ("b/plain", "")],
        &[("b/c/link", "../plain"), (".vscode", "b")],
    )?;
    let mut trees = Trees::default();
    trees.hold(&granted(&root.path().canonicalize()?)?)?;
    let mut scan = Scan::new(trees, Vec::new(), Extent::Whole);
    // The same scan without it ends at the first entry, and says so.
    assert!(scan.budget.spend(10_000_000), "{:?}", scan.budget);
    scan.tops();
    scan.walk();
    scan.configurations();
    let guarded = scan.guarded.pop().unwrap_or_default();
    assert_eq!(guarded.unseen(), None);
    assert!(guarded.obeyed.contains(&PathBuf::from("b/c/.envrc")), "{guarded:?}");
    assert_eq!(guarded.links, [PathBuf::from("b/c/link")]);
    let mut scan = look_at(root.path())?;
    scan.budget = Budget::new(2, Duration::from_secs(1000));
    scan.walk();
    let guarded = scan.guarded.pop().unwrap_or_default();
    assert!(guarded.unseen().is_some(), "{guarded:?}");
    Ok(())
}

#[test]
fn a_link_to_the_whole_directory_guards_all_of_it() -> Outcome {
    let root = made(&["b"], &[], &[(".vscode", "."), ("b/.claude", "..")])?;
    let found = scan_whole(&[granted(&root.path().canonicalize()?)?])?;
    let all: Vec<_> = found.iter().flat_map(GuardedPaths::all).collect();
    assert!(all.contains(&Path::new("")), "{all:?}");
    Ok(())
}

fn look_at(root: &Path) -> Result<Scan, Errno> {
    let mut trees = Trees::default();
    trees.hold(&granted(root)?)?;
    Ok(Scan::new(trees, Vec::new(), Extent::InTime))
}

#[test]
fn files_at_the_top_are_found_before_any_listing() -> Outcome {
    let config = "[core]\n hooksPath = tools\n";
    let files = [(".git/HEAD", ""), (".git/config", config), (".envrc", "")];
    let root = made(&[".git/hooks", ".vscode", ".sl"], &files, &[])?;
    let host = root.path().canonicalize()?;
    let mut scan = look_at(&host)?;
    scan.tops();
    scan.budget = Budget::new(0, Duration::ZERO);
    scan.walk();
    let guarded = scan.guarded.pop().unwrap_or_default();
    let expected = [".git/hooks", ".git/config", ".vscode", ".sl", ".envrc"];
    assert_eq!(obeyed(&guarded), paths(&expected));
    assert_eq!(
        (guarded.pinned, guarded.named),
        (vec![".git".into()], paths(&["tools", ".git/tools"]))
    );
    Ok(())
}

#[test]
fn many_worktrees_of_a_cell_cannot_hide_a_repository() -> Outcome {
    let config = "[core]\n hooksPath = tools\n";
    let root = made(&[".git/worktrees", "z/.git"], &[("z/.git/config", config)], &[])?;
    let host = root.path().canonicalize()?;
    for index in 0..40 {
        let real = host.join(format!(".git/worktrees/real{index}"));
        std::fs::create_dir(&real)?;
        std::fs::write(real.join("gitdir"), "/nowhere/.git\n")?;
        std::fs::write(real.join("config.worktree"), "")?;
        std::fs::create_dir(host.join(format!(".git/worktrees/empty{index}")))?;
    }
    let mut scan = look_at(&host)?;
    scan.walk();
    let linked = scan.repositories.iter().filter(|one| one.is_linked).count();
    assert_eq!((linked, scan.repositories.len()), (40, 42));
    scan.budget = Budget::new(1000, Duration::from_secs(1000));
    scan.configurations();
    assert!(scan.is_spent(), "{:?}", scan.budget);
    let named = scan.guarded.pop().unwrap_or_default().named;
    assert_eq!(named, paths(&["z/tools", "z/.git/tools"]));
    Ok(())
}

/// Scans with time for few entries, so that the walk ends early.
fn hurried(root: &Path, entries: usize) -> Result<GuardedPaths, Box<dyn std::error::Error>> {
    let mut scan = look_at(&root.canonicalize()?)?;
    scan.tops();
    scan.budget = Budget::new(entries, Duration::ZERO);
    scan.walk();
    scan.configurations();
    Ok(scan.guarded.pop().unwrap_or_default())
}

#[test]
fn a_full_repository_directory_cannot_hide_files_of_the_work_tree() -> Outcome {
    for part in [".git/modules", ".git/worktrees"] {
        let config = "[core]\n hooksPath = tools\n";
        let files = [(".git/HEAD", ""), ("sub/.envrc", ""), ("sub/z/.git/config", config)];
        let root = made(&[part, "sub/z/.git"], &files, &[])?;
        for index in 0..3_000 {
            std::fs::create_dir(root.path().join(part).join(index.to_string()))?;
        }
        let guarded = hurried(root.path(), 1_000)?;
        let expected = ["sub/.envrc", "sub/z/.git/config"];
        assert_eq!(obeyed(&guarded), paths(&expected), "{part}");
        assert!(guarded.named.contains(Path::new("sub/z/tools")), "{part}: {guarded:?}");
        let notes = guarded.notes(Path::new("/workspace"));
        let note =
            "`/workspace/.git` has submodules or worktrees that could not be looked at in time";
        assert_eq!(notes, [note], "{part}");
    }
    Ok(())
}

#[test]
fn a_directory_too_full_to_be_listed_is_checked_by_name() -> Outcome {
    let config = "[core]\n hooksPath = tools\n";
    let files = [
        ("full/.git/HEAD", ""),
        ("full/.git/config", config),
        ("full/.envrc", ""),
        ("other/.mcp.json", ""),
    ];
    let directories = ["full/.git/hooks", "full/.vscode", "other"];
    let links = [("full/.idea", "tree")];
    let root = made(&directories, &files, &links)?;
    for index in 0..5_000 {
        std::fs::write(root.path().join(format!("full/{index}")), "")?;
    }
    // The top and its two entries; the next entry is in one of these.
    let guarded = hurried(root.path(), 3)?;
    let expected =
        ["full/.git/hooks", "full/.git/config", "full/.envrc", "full/.vscode", "other/.mcp.json"];
    assert_eq!(obeyed(&guarded), paths(&expected));
    assert_eq!(guarded.named, paths(&["full/tools", "full/.git/tools", "full/tree"]));
    assert_eq!(guarded.notes(Path::new("/workspace")).len(), 1, "{guarded:?}");
    Ok(())
}

#[test]
fn configuration_of_the_user_in_the_grant_is_guarded_without_a_repository() -> Outcome {
    let root = made(&["dotfiles"], &[], &[("dotfiles/git", "real"), ("dotfiles/gone", "later")])?;
    let host = root.path().canonicalize()?;
    let config = format!("[core]\n hooksPath = {}\n", host.join("hooks").display());
    std::fs::write(host.join("dotfiles/real"), config)?;
    let links = [("one", "dotfiles/git"), ("other", "dotfiles/gone")];
    let home = tempfile::tempdir()?;
    for (name, to) in links {
        symlink(host.join(to), home.path().join(name))?;
    }
    let mut scan = look_at(&host)?;
    scan.for_all = links.map(|(name, _)| home.path().join(name)).to_vec();
    scan.configurations();
    let guarded = scan.guarded.pop().unwrap_or_default();
    assert_eq!(obeyed(&guarded), paths(&["dotfiles/real"]));
    let named = ["dotfiles/git", "dotfiles/gone", "dotfiles/later", "dotfiles/real", "hooks"];
    assert_eq!(guarded.named, paths(&named));
    Ok(())
}

#[test]
fn files_that_the_environment_names_are_read_too() {
    let files = configured::files_for_all(|name| match name {
        "XDG_CONFIG_HOME" => Some("/x".into()),
        "GIT_CONFIG_GLOBAL" => Some("/global".into()),
        "GIT_CONFIG_SYSTEM" => Some("relative".into()),
        _ => None,
    });
    for file in ["/x/git/config", "/global", "/etc/gitconfig"] {
        assert!(files.contains(&file.into()), "{file}: {files:?}");
    }
    assert!(files.iter().all(|file| file.is_absolute()), "{files:?}");
}

#[test]
fn every_word_of_a_command_that_is_a_path_is_guarded() -> Outcome {
    let config = "[filter \"x\"]\n clean = python3 later/filter.py %f\n[alias]\n a = -c core.pager=scripts/pager log HEAD\n\
        [imap]\n tunnel = ssh -F conf/ssh\n[lfs \"extension.y\"]\n smudge = tools/y\n[sendemail]\n toCmd = ./to\n\
        [remote \"origin\"]\n url = https://example.org/no/command\n pushurl = ext::ssh -F remote/ssh %S\n[core]\n pager = less scripts/\n";
    let guarded = configured(config)?;
    let named = ["later", "conf", "tools", "to", "scripts/pager", "remote"];
    for name in named {
        assert!(guarded.named.contains(&Path::new("project").join(name)), "{name}: {guarded:?}");
    }
    // A directory is not a command, and git writes to its references.
    for kept in ["project/scripts", "project/.git/HEAD"] {
        assert!(!guarded.obeyed.contains(&kept.into()), "{kept}: {guarded:?}");
    }
    Ok(())
}

/// Returns the guarded paths of a repository in `project` with this configuration.
fn configured(config: &str) -> Result<GuardedPaths, Box<dyn std::error::Error>> {
    let directories = ["project/.git/objects", "project/.git/refs", "project/scripts", "linked"];
    let files = [
        ("project/.git/HEAD", "ref: refs/heads/main\n"),
        ("project/scripts/filter.py", ""),
        (
            "project/more.gitconfig",
            "[include]\n path = missing.gitconfig\n[core]\n hooksPath = nested\n",
        ),
        ("project/README", ""),
    ];
    let root = made(&directories, &files, &[("linked/grant", "..")])?;
    let host = root.path().canonicalize()?;
    let config = config.replace("/srv/grant", host.to_str().unwrap_or_default());
    std::fs::write(host.join("project/.git/config"), config)?;
    Ok(guarded_in(&host))
}

#[test]
fn a_hooks_path_is_found_in_every_notation() -> Outcome {
    for config in [
        "[core]\n\thooksPath = githooks\n",
        "[CORE] HooksPath=\"githooks\" ; ours\n",
        "[core]\nhookspath = git\\\nhooks # ours\n",
        "[core] # see [docs]\n hooksPath = githooks\n",
        "[core]\n hooksPath = \"git\"hooks\n",
        "[user] ; a \\\n[core]\n hooksPath = githooks\n",
        "[core]\n hooksPath = /srv/grant/project/githooks\n",
        "[core]\n hooksPath = /srv/grant/linked/grant/project/githooks\n",
        "[core]\n hooksPath = ./x/../githooks\n",
        "\u{feff}[core]hooksPath=githooks\0junk\n",
        "[core]\n broken line\n hooksPath = githooks\n",
    ] {
        let guarded = configured(config)?;
        assert!(guarded.named.contains(Path::new("project/githooks")), "{config}: {guarded:?}");
    }
    Ok(())
}

#[test]
fn included_files_are_followed_and_missing_ones_named() -> Outcome {
    let config = "[include]\n path = ../more.gitconfig\n[includeIf \"gitdir:~/a].b/\"]\n path = ../../more\n\
        [include]\n path = /etc/gitconfig\n path = ../../../../../../up\n[user]\n path = ../not-this\n";
    let guarded = configured(config)?;
    assert!(guarded.obeyed.contains(&"project/more.gitconfig".into()), "{guarded:?}");
    let named = ["more", "project/more.gitconfig", "project/missing.gitconfig", "project/nested"];
    assert!(paths(&named).is_subset(&guarded.named), "{guarded:?}");
    assert!(!guarded.named.contains(Path::new("not-this")), "{guarded:?}");
    Ok(())
}

#[test]
fn files_that_commands_name_are_guarded() -> Outcome {
    let config = "[core]\n fsmonitor = scripts/watch --quiet\n[filter \"x\"]\n clean = python3 scripts/filter.py %f\n\
        [alias]\n a = !scripts/alias README\n b = log README\n[merge \"y\"]\n driver = scripts/filter.py %O\n";
    let guarded = configured(config)?;
    let named = ["project/scripts/watch", "project/scripts/filter.py", "project/scripts/alias"];
    assert!(paths(&named).is_subset(&guarded.named), "{guarded:?}");
    assert!(guarded.obeyed.contains(&"project/scripts/filter.py".into()), "{guarded:?}");
    let whole = configured("[core]\n hooksPath = .\n")?;
    assert!(whole.named.contains(Path::new("project/pre-commit")), "{whole:?}");
    Ok(())
}

#[test]
fn words_of_an_alias_that_name_no_program_leave_files_writable() -> Outcome {
    let script = "project/scripts/filter.py";
    for alias in ["log README scripts/filter.py", "add README"] {
        let guarded = configured(&format!("[alias]\n a = {alias}\n"))?;
        assert_eq!(
            (&guarded.named, obeyed(&guarded)),
            (&BTreeSet::new(), repository_parts()),
            "{alias}"
        );
    }
    for alias in [
        "!python3 scripts/filter.py",
        "bisect run python3 scripts/filter.py",
        "submodule foreach python3 ../scripts/filter.py",
        "rebase -x scripts/filter.py",
        "rebase --exec=scripts/filter.py",
        "-c core.pager=scripts/filter.py log",
        "-c core.pager='python3 scripts/filter.py' log",
        "b scripts/filter.py\n b = !python3",
        "b scripts/filter.py\n b = bisect run",
    ] {
        let guarded = configured(&format!("[alias]\n a = {alias}\n"))?;
        assert!(guarded.obeyed.contains(&script.into()), "{alias}: {guarded:?}");
    }
    Ok(())
}

/// Guarded paths of the repository of [`configured`] that do not depend on its configuration.
fn repository_parts() -> BTreeSet<PathBuf> {
    paths(&["project/.git/config"])
}

#[test]
fn a_repository_around_the_grant_is_considered() -> Outcome {
    let config = "[core]\n hooksPath = sub/hooks\n";
    let root = made(&[".git", "sub"], &[(".git/config", config)], &[])?;
    let host = root.path().canonicalize()?.join("sub");
    assert_eq!(guarded_in(&host).named, paths(&["hooks"]));
    // A worktree whose repository is in another directory.
    let root = made(&["r/.git/worktrees/w", "w"], &[("r/.git/config", config)], &[])?;
    let host = root.path().canonicalize()?;
    std::fs::write(host.join("r/.git/worktrees/w/commondir"), "../..\n")?;
    let git = format!("gitdir: {}\n", host.join("r/.git/worktrees/w").display());
    std::fs::write(host.join("w/.git"), git)?;
    assert_eq!(guarded_in(&host.join("w")).named, paths(&["sub"]));
    Ok(())
}

#[test]
fn no_name_ends_the_quotes_of_a_note() {
    assert_eq!(quoted(Path::new("/workspace/a b")), "`/workspace/a b`");
    assert_eq!(quoted(Path::new("/w/a` is fine; `b\n")), "`/w/a\\u{60} is fine; \\u{60}b\\n`");
}
