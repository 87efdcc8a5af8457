//! What root looks up for a directory of another user: that user's configuration shows nothing of a
//! file that only root can read, in a list, to an agent, or in a direct grant.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use serde_json::{Value, json};

use crate::layers::{in_layer, project, review, reviewed};
use crate::server::{Server, text};
use crate::support::{Caller, Check, Claim, Failed, For, claim, equal, holds};

pub const CLAIMS: &[Claim] = &[
    claim("roots_review_shows_nothing_of_a_file_that_its_owner_cannot_read", reviews)
        .only(For::Root),
    claim("an_agent_of_roots_server_has_the_same_list", served).only(For::Root),
    claim("a_direct_grant_of_root_follows_what_the_owner_can_read", granted).only(For::Root),
];

/// User of a directory that root reviews.
const OWNER: u32 = 64_321;
const UNSEEN: &str = "[held back: not everything that the host obeys could be found]";
const NAMED: &str =
    "[held back: the host's configuration names it as something that runs or is obeyed]";
const REFUSED: &str = "names a path that its owner may not read: root did not follow it";

/// A project of another user, whose configuration includes a file outside of it.
struct Owned {
    path: String,
    included: std::path::PathBuf,
}

impl Owned {
    fn new(caller: &Caller) -> Result<Self, Failed> {
        let included = caller.home.join("included");
        let made = format!(
            "mkdir -p .git/objects .git/refs; echo 'ref: refs/heads/main' > .git/HEAD
             printf '[include]\\n path = {}\\n' > .git/config; chown -R {OWNER}:{OWNER} .; chmod 711 .. .",
            included.display()
        );
        Ok(Self { path: project(caller, "project", &made)?, included })
    }

    /// Writes the included file: it names this file of the project, and belongs to this user alone.
    fn include(&self, name: &str, user: u32) -> Check {
        let text = format!("[core]\n hooksPath = {}/{name}\n", self.path);
        std::fs::write(&self.included, text)?;
        std::fs::set_permissions(&self.included, PermissionsExt::from_mode(0o600))?;
        Ok(chown(&self.included, Some(user), Some(user))?)
    }
}

fn reviews(caller: &Caller) -> Check {
    let owned = Owned::new(caller)?;
    let path = owned.path.as_str();
    owned.include("guess", OWNER)?;
    equal("in the cell", in_layer(caller, path, "echo x > guess; echo x > plain")?.code, 0)?;
    // The control: the owner's own file is obeyed.
    let list = format!("A guess  {NAMED}\nA plain");
    equal("the owner's", reviewed(caller, &[path])?, (1, list.clone()))?;
    // The same list, whatever is in the file of root.
    for name in ["guess", "other"] {
        owned.include(name, 0)?;
        let listed = review(caller, &[path])?;
        let unseen = format!("A guess  {UNSEEN}\nA plain  {UNSEEN}");
        equal(name, (listed.code, listed.trimmed()), (1, unseen.as_str()))?;
        let why = format!("everything is held back, as a part of the directory {REFUSED}");
        holds(name, &listed.stderr, listed.stderr.contains(&why))?;
    }
    equal("applied", review(caller, &[path, "--apply"])?.code, 1)?;
    holds("nothing", path, !Path::new(path).join("plain").exists())?;
    owned.include("guess", OWNER)?;
    equal("applied", review(caller, &[path, "--apply"])?.code, 1)?;
    let found = ["guess", "plain"].map(|name| Path::new(path).join(name).exists());
    equal("on the host", found, [false, true])?;
    // Nor is a file of root's hidden from root by a name that it has in another user's configuration.
    owned.include("other", 0)?;
    let config = format!("[core]\n hooksPath = {path}/guess\n");
    std::fs::write(caller.home.join(".gitconfig"), config)?;
    std::fs::write(Path::new(path).join(".git/config"), "")?;
    equal("root's", reviewed(caller, &[path])?.1, format!("A guess  {NAMED}"))
}

fn served(caller: &Caller) -> Check {
    let owned = Owned::new(caller)?;
    owned.include("guess", OWNER)?;
    let workspace = format!("{}:cow", owned.path);
    let mut server = Server::configured(caller, "", &[], &["--workspace", &workspace])?;
    server.gives("echo x > guess; echo x > plain", 0, "")?;
    let mut list = || -> Result<Value, Failed> { server.tool("workspace_changes", &json!({})) };
    let shown = list()?;
    let expected = format!("A guess  {NAMED}\nA plain\n");
    holds("the owner's", &shown, text(&shown).starts_with(&expected))?;
    owned.include("guess", 0)?;
    let shown = list()?;
    let expected = format!("A guess  {UNSEEN}\nA plain  {UNSEEN}\n");
    holds("root's", &shown, text(&shown).starts_with(&expected))?;
    owned.include("other", 0)?;
    equal("another name", text(&list()?), text(&shown))
}

fn granted(caller: &Caller) -> Check {
    let owned = Owned::new(caller)?;
    let run = || caller.run(&["--rw", &owned.path], &["bash", "-c", "echo x > guess"]);
    owned.include("guess", OWNER)?;
    let refused = run()?;
    holds("guarded", &refused, refused.code == 1 && !refused.stderr.contains(REFUSED))?;
    owned.include("guess", 0)?;
    let written = run()?;
    holds("unseen", &written, written.code == 0 && written.stderr.contains(REFUSED))?;
    owned.include("other", 0)?;
    let again = run()?;
    equal("another name", (again.code, again.stderr), (written.code, written.stderr))
}
