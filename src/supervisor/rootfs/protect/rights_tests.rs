//! Tests of the rights with which root looks up what the files of another user name.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::prctl;
use nix::sys::signal::Signal;

use super::budget::Extent;
use super::configured::expanded;
use super::rights::Rights;
use super::scan::Scan;
use super::tree::Trees;
use super::*;
use model::accounts;

type Failed = Box<dyn std::error::Error>;
/// Makes something in a world.
type Make = fn(&World) -> std::io::Result<()>;

const OWNER: u32 = 64_321;
const OTHER: u32 = 64_322;

/// Held by each test: groups and PR_SET_DUMPABLE are those of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// A directory with a project, files of root and files of the project's owner.
struct World {
    root: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    /// Makes a world. What the configuration of `secret` names is `tools/guess` in the project.
    fn new() -> Result<Self, Failed> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let world = Self { root: tempfile::tempdir()?, _alone: alone };
        for directory in ["", "project", "project/tools", "closed", "closed/git"] {
            fs::create_dir_all(world.at(directory))?;
            fs::set_permissions(world.at(directory), Permissions::from_mode(0o755))?;
        }
        let names = |name: &str| format!("[core]\n hooksPath = {}\n", world.text(name));
        for (file, text, mode) in [
            ("secret", names("project/tools/guess"), 0o600),
            ("closed/git/config", names("project/tools/guess"), 0o644),
            ("closed/git/HEAD", "ref: refs/heads/main\n".to_owned(), 0o644),
            ("own", names("project/own"), 0o600),
            ("public", names("project/public"), 0o644),
        ] {
            fs::write(world.at(file), text)?;
            fs::set_permissions(world.at(file), Permissions::from_mode(mode))?;
        }
        symlink(world.at("project/tools/guess"), world.at("closed/link"))?;
        fs::set_permissions(world.at("closed"), Permissions::from_mode(0o700))?;
        lchown(world.at("own"), Some(OWNER), Some(OWNER))?;
        Ok(world)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn text(&self, path: &str) -> String {
        self.at(path).display().to_string()
    }

    /// Gives everything in the project to its owner.
    fn give(&self, path: &Path) -> std::io::Result<()> {
        lchown(path, Some(OWNER), Some(OWNER))?;
        if path.is_dir() && !path.is_symlink() {
            for entry in fs::read_dir(path)? {
                self.give(&entry?.path())?;
            }
        }
        Ok(())
    }

    /// Looks at all of a directory. Root has this configuration.
    fn guarded(&self, directory: &str, for_all: &[&str]) -> Result<GuardedPaths, Failed> {
        let host = self.at(directory).canonicalize()?;
        let mut trees = Trees::default();
        trees.hold(&Granted::now(host.clone(), host, Access::ReadWrite)?)?;
        let for_all = for_all.iter().map(|file| self.at(file)).collect();
        let mut scan = Scan::new(trees, for_all, Extent::Whole);
        scan.tops();
        scan.walk();
        scan.configurations();
        Ok(scan.guarded.pop().unwrap_or_default())
    }

    /// Makes a project of its owner at this path, whose configuration names `guess` in its directory
    /// `tools`, and looks at it.
    fn project_at(&self, project: &str, make: Make) -> Result<GuardedPaths, Failed> {
        let named = self.text(&format!("{project}/tools/guess"));
        fs::create_dir_all(self.at(project).join(".git"))?;
        fs::create_dir_all(self.at(project).join("tools"))?;
        let config = format!("[core]\n hooksPath = {named}\n[alias]\n x = !{named}-alias\n");
        fs::write(self.at(project).join(".git/config"), config)?;
        fs::set_permissions(self.at(project), Permissions::from_mode(0o700))?;
        self.give(&self.at(project))?;
        make(self)?;
        self.guarded(project, &[])
    }

    /// Looks at the project, in which `.git/config` has this text and belongs to its owner.
    fn configured(&self, config: &str, for_all: &[&str]) -> Result<GuardedPaths, Failed> {
        fs::create_dir_all(self.at("project/.git"))?;
        fs::write(self.at("project/.git/config"), config)?;
        self.give(&self.at("project"))?;
        self.guarded("project", for_all)
    }
}

fn names(guarded: &GuardedPaths, name: &str) -> bool {
    guarded.all().any(|guarded| guarded.ends_with(name))
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[test]
fn what_an_owners_configuration_names_is_read_with_the_owners_rights() -> Result<(), Failed> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let include = |file: &str| format!("[include]\n path = {}\n", world.text(file));
    // The control: what the owner can read is obeyed, and nothing is missing.
    for file in ["own", "public"] {
        let guarded = world.configured(&include(file), &[])?;
        assert!(names(&guarded, file), "{file}: {guarded:?}");
        assert_eq!(guarded.unseen(), None, "{file}");
    }
    let conditional = include("secret").replace("[include]", "[includeIf \"gitdir:/\"]");
    let worktree = format!("[core]\n worktree = {}\n", world.text("closed/link"));
    let hooks = format!("[core]\n hooksPath = {}\n", world.text("closed/link"));
    let command = format!("[core]\n fsmonitor = {}\n", world.text("closed/link"));
    let through = format!("[include]\n path = {}\n", world.text("closed/git/config"));
    for config in [include("secret"), conditional, worktree, hooks, command, through] {
        let guarded = world.configured(&config, &[])?;
        assert!(!names(&guarded, "guess"), "{config}: {guarded:?}");
        assert!(guarded.unseen().is_some_and(|why| why.contains("its owner")), "{config}");
    }
    Ok(())
}

#[test]
fn links_and_pointers_are_followed_with_their_owners_rights() -> Result<(), Failed> {
    if !is_root() {
        return Ok(());
    }
    let ways: [(&str, Make); 6] = [
        ("a link as configuration", |world| {
            fs::create_dir(world.at("project/.git"))?;
            symlink(world.at("secret"), world.at("project/.git/config"))
        }),
        ("a link as the repository around it", |world| {
            symlink(world.at("closed/git"), world.at("project/.git"))
        }),
        ("a pointer", |world| {
            fs::write(world.at("project/.git"), format!("gitdir: {}\n", world.text("closed/git")))
        }),
        ("a common directory", |world| {
            fs::create_dir(world.at("project/.git"))?;
            fs::write(world.at("project/.git/commondir"), world.text("closed/git"))
        }),
        ("a name that is obeyed", |world| {
            symlink(world.at("closed/link"), world.at("project/.vscode"))
        }),
        ("a name that is obeyed below", |world| {
            symlink(world.at("closed/link"), world.at("project/tools/.vscode"))
        }),
    ];
    for (way, make) in ways {
        let world = World::new()?;
        make(&world)?;
        let granted = if way.ends_with("around it") { "project/tools" } else { "project" };
        // The control: root itself follows them, and finds what they lead to.
        let guarded = world.guarded(granted, &[])?;
        assert!(names(&guarded, "guess"), "{way}: {guarded:?}");
        assert_eq!(guarded.unseen(), None, "{way}");
        world.give(&world.at("project"))?;
        let guarded = world.guarded(granted, &[])?;
        assert!(!names(&guarded, "guess"), "{way}: {guarded:?}");
        assert!(guarded.unseen().is_some_and(|why| why.contains("its owner")), "{way}");
    }
    Ok(())
}

#[test]
fn what_is_named_in_a_grant_is_guarded_below_directories_that_its_owner_cannot_enter()
-> Result<(), Failed> {
    if !is_root() {
        return Ok(());
    }
    let close = |world: &World, directory: &str, mode| {
        fs::set_permissions(world.at(directory), Permissions::from_mode(mode))
    };
    let world = World::new()?;
    close(&world, "closed", 0o755)?;
    // The control: its owner can enter each directory on the way.
    let open = world.project_at("closed/deep/project", |_| Ok(()))?;
    assert!(names(&open, "guess") && names(&open, "guess-alias"), "{open:?}");
    close(&world, "closed", 0o700)?;
    let below = world.project_at("closed/deep/project", |_| Ok(()))?;
    assert_eq!(below, open);
    // In the grant, a cell has closed the directory.
    let inside = world.project_at("closed/deep/project", |world| {
        let tools = world.at("closed/deep/project/tools");
        fs::set_permissions(tools, Permissions::from_mode(0o000))
    })?;
    assert_eq!(inside, open);
    Ok(())
}

#[test]
fn a_grant_in_the_directory_of_a_third_user_is_read_with_its_owners_rights() -> Result<(), Failed> {
    if !is_root() {
        return Ok(());
    }
    for third in [OWNER, OTHER] {
        let world = World::new()?;
        let above = world.at("tools-of-all");
        fs::create_dir(&above)?;
        fs::set_permissions(&above, Permissions::from_mode(0o755))?;
        lchown(&above, Some(third), Some(third))?;
        let guarded = world.project_at("tools-of-all/project", |_| Ok(()))?;
        assert!(names(&guarded, "guess") && names(&guarded, "guess-alias"), "{guarded:?}");
        assert_eq!(guarded.unseen(), None, "{third}");
        // What the third user's directory names itself still has only that user's rights.
        let include = format!("[include]\n path = {}\n", world.text("secret"));
        fs::create_dir(above.join(".git"))?;
        fs::write(above.join(".git/config"), include)?;
        world.give(&above.join(".git"))?;
        let guarded = world.guarded("tools-of-all/project", &[])?;
        assert!(guarded.unseen().is_some_and(|why| why.contains("its owner")), "{guarded:?}");
    }
    Ok(())
}

#[test]
fn a_repository_of_another_user_in_roots_directory_is_not_trusted() -> Result<(), Failed> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let git = world.at("project/tools/.git");
    fs::create_dir(&git)?;
    fs::write(git.join("config"), format!("[include]\n path = {}\n", world.text("secret")))?;
    // The control: a repository of root's.
    let guarded = world.guarded("project", &[])?;
    assert!(names(&guarded, "guess") && guarded.unseen().is_none(), "{guarded:?}");
    world.give(&world.at("project/tools"))?;
    let guarded = world.guarded("project", &[])?;
    assert!(!names(&guarded, "guess") && guarded.unseen().is_some(), "{guarded:?}");
    Ok(())
}

#[test]
fn roots_own_configuration_is_read_with_roots_rights() -> Result<(), Failed> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let include = format!("[include]\n path = {}\n", world.text("closed/git/config"));
    fs::write(world.at("closed/config"), include)?;
    // Also where the owner's configuration names the same file, which root then reads for itself.
    for config in ["", &format!("[include]\n path = {}\n", world.text("secret"))] {
        for file in ["secret", "closed/config"] {
            let guarded = world.configured(config, &[file])?;
            assert!(names(&guarded, "guess"), "{config} {file}: {guarded:?}");
            assert_eq!(guarded.unseen().is_some(), !config.is_empty(), "{config} {file}");
        }
    }
    Ok(())
}

#[test]
fn a_home_in_another_users_configuration_is_that_users() {
    let daemon = 1;
    let home = accounts::home_of_id(daemon);
    assert_eq!(
        expanded(b"~/x", Rights::Of(daemon)),
        home.map(|home| home.join("x")).unwrap_or_default()
    );
    assert_eq!(
        expanded(b"~/x", Rights::Own),
        accounts::home().map(|home| home.join("x")).unwrap_or_default()
    );
    // Of a user without an account, as git would fail.
    assert_eq!(expanded(b"~/x", Rights::Of(OWNER)), Path::new("~/x"));
}

#[test]
fn root_has_its_rights_again_after_a_lookup() -> Result<(), Failed> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    prctl::set_pdeathsig(Signal::SIGUSR1)?;
    let include = format!("[include]\n path = {}\n", world.text("secret"));
    let guarded = world.configured(&include, &[])?;
    let death_signal = prctl::get_pdeathsig()?;
    prctl::set_pdeathsig(None)?;
    assert!(guarded.unseen().is_some());
    assert_eq!(death_signal, Some(Signal::SIGUSR1));
    assert!(prctl::get_dumpable()?);
    assert!(fs::read_to_string(world.at("secret"))?.contains("guess"));
    Ok(())
}
