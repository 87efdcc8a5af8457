//! Changes that belong together: what cannot be applied without a change that is held back or in
//! conflict is held back too.

use super::change::{Act, Change, Kind};
use super::judge::Held;

/// Holds back what cannot be applied without another change that is held back or in conflict: what is
/// in a new directory, the removal of a directory, and what takes or leaves a place.
pub(super) fn settle(changes: &mut [Change]) {
    let mut around: Vec<(Vec<u8>, Option<Held>, bool)> = Vec::new();
    for change in changes.iter_mut() {
        while around.last().is_some_and(|(path, ..)| !is_below(&change.path, path)) {
            around.pop();
        }
        if let Some((_, held, is_conflict)) = around.last() {
            change.held = change.held.or(*held);
            change.is_conflict |= *is_conflict;
        }
        if change.act == Act::Add && change.kind == Kind::Directory && !change.is_applicable() {
            around.push((change.path.clone(), change.held, change.is_conflict));
        }
    }
    // A removal comes before what takes its place, and that of a directory after what is in it.
    let mut replacing: Option<Vec<u8>> = None;
    for change in changes.iter_mut().rev() {
        let is_held = |path: &Vec<u8>| change.path == *path || is_below(&change.path, path);
        if change.act == Act::Delete && replacing.as_ref().is_some_and(is_held) {
            change.held = change.held.or(Some(Held::Replaced));
        }
        if change.act == Act::Add && !change.is_applicable() {
            replacing = Some(change.path.clone());
        }
    }
    let mut stays: Option<Vec<u8>> = None;
    for change in changes.iter_mut() {
        let is_around = |path: &Vec<u8>| is_below(path, &change.path);
        let is_directory = change.act == Act::Delete && change.kind == Kind::Directory;
        if is_directory && stays.as_ref().is_some_and(is_around) && change.is_applicable() {
            change.held = Some(Held::InTheWay);
        }
        if change.act == Act::Delete && !change.is_applicable() {
            stays = Some(change.path.clone());
        }
    }
}

pub(super) fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.first() == Some(&b'/'))
}
