//! Answers one question about the layer, in a process that does nothing else.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::stat::fstat;
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};

use super::OpenLayer;
use crate::commands::error::CliError;
use crate::commands::format::plain;
use crate::commands::layers::applied::AppliedFiles;
use crate::commands::layers::change::{Act, Change, Kind};
use crate::commands::layers::changes;
use crate::commands::layers::judge::Judge;
use crate::commands::layers::owner;
use crate::commands::review::confine::confine;
use crate::commands::review::print::{Output, row_json};
use crate::commands::review::{self, diff};
use crate::commands::terminal::colour::Colour;
use cell::caps;
use service::layer::{LayerAnswer, LayerChanges, LayerDiff, LayerQuery, LayerRow, MAX_SHOWN};
use sys::process::{self, Dumpable};

/// Maximum number of attempts to list a layer while cells change it.
const MAX_ATTEMPTS: u8 = 20;
/// Longest line of a diff in bytes; more of it is counted.
const MAX_LINE_BYTES: usize = 4000;
/// Rows as they are on standard output that is no terminal.
const ROWS: Output = Output { json: false, colour: Colour::Off, is_terminal: false };

/// Answers a question. The calling process is confined meanwhile, for the rest of its life.
pub(super) fn to(opened: &OpenLayer, query: &[u8]) -> LayerAnswer {
    let answered = ConfinedReader::prepare(opened).and_then(|reader| reader.answer(query));
    answered.unwrap_or_else(|(message, hint)| LayerAnswer::Refused { message, hint })
}

/// A message, and the way out.
type Unanswered = (String, Option<String>);

fn failed(errno: Errno) -> Unanswered {
    (format!("the layer cannot be read: {}", errno.desc()), None)
}

/// What is compared, in a process that can read nothing else.
struct ConfinedReader<'a> {
    opened: &'a OpenLayer,
    host: OwnedFd,
    upper: OwnedFd,
    judge: Judge,
}

impl<'a> ConfinedReader<'a> {
    /// Opens the directories, finds what the host obeys, and confines the process.
    fn prepare(opened: &'a OpenLayer) -> Result<Self, Unanswered> {
        let layer = &opened.layer;
        // Their texts have paths of the host, which are not shown to an agent.
        let hidden = |_: CliError| {
            let hint = "`cofferdam review` shows the operator why";
            ("the layer cannot be read".to_owned(), Some(hint.to_owned()))
        };
        let host = layer.host().map_err(failed)?;
        let judge = review::judge(layer, &host, &layer.base.guard_names).map_err(hidden)?;
        take_ids(opened, &host).map_err(failed)?;
        let upper = layer.upper().map_err(|errno| {
            let hint = "a command may have closed it: chmod u+rwx /workspace";
            (failed(errno).0, Some(hint.to_owned()))
        })?;
        confine(layer, &host, false).map_err(hidden)?;
        Ok(Self { opened, host, upper, judge })
    }

    fn answer(&self, query: &[u8]) -> Result<LayerAnswer, Unanswered> {
        let query = serde_json::from_slice(query);
        match query.map_err(|_| failed(Errno::EPROTO))? {
            LayerQuery::Changes { path, offset, limit } => {
                let changes = self.listed(path.as_deref())?;
                Ok(part_of(&changes, offset, limit))
            }
            LayerQuery::Diff { path, offset } => {
                let changes = self.listed(path.as_deref())?;
                let mut window = LineWindow::starting_at(offset);
                for change in changes.iter().filter(|change| change.kind != Kind::Directory) {
                    if window.is_full() {
                        break;
                    }
                    self.push_lines(change, &mut window);
                }
                Ok(LayerAnswer::Diff(window.part()))
            }
        }
    }

    /// Lists the changes, or those at or below a path.
    fn listed(&self, path: Option<&str>) -> Result<Vec<Change>, Unanswered> {
        let only: Vec<&[u8]> = path.iter().map(|path| path.as_bytes()).collect();
        let layer = &self.opened.layer;
        let attempt = || {
            let applied = AppliedFiles::read(&layer.directory)?;
            let since = layer.base.since;
            changes::list(&self.upper, &self.host, since, &self.judge, &applied, &only)
        };
        let mut result = attempt();
        for _ in 1..MAX_ATTEMPTS {
            // Cells that use the layer may remove what is being listed.
            if !matches!(result, Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EINVAL)) {
                break;
            }
            result = attempt();
        }
        let mut list = result.map_err(not_listed)?;
        if let Some(path) = path {
            let path = path.as_bytes();
            list.retain(|change| is_at_or_below(&change.path, path));
        }
        Ok(list)
    }

    /// Adds the lines of a change.
    fn push_lines(&self, change: &Change, window: &mut LineWindow) {
        let before = match change.act {
            Act::Add => diff::Side::Absent,
            Act::Change | Act::Delete => diff::side(&self.host, change),
        };
        let after = match change.act {
            Act::Delete => diff::Side::Absent,
            Act::Add | Act::Change => diff::side(&self.upper, change),
        };
        for (_, line) in diff::unified(change, &before, &after) {
            let line = String::from_utf8_lossy(&line);
            line.trim_end_matches('\n').split('\n').for_each(|line| window.push(line));
        }
    }
}

/// Gives up root's rights for those of the directory's owner and group: cells have no others.
fn take_ids(opened: &OpenLayer, host: &OwnedFd) -> Result<(), Errno> {
    if let Some((uid, _)) = opened.takes_ids {
        let uid = Uid::from_raw(uid);
        let gid = Gid::from_raw(owner::group_of(&fstat(host)?));
        setgroups(&[])?;
        setresgid(gid, gid, gid)?;
        // The kernel empties the capabilities too.
        setresuid(uid, uid, uid)?;
    }
    if geteuid().is_root() {
        caps::clear_current()?;
    }
    // A change of ids resets both.
    process::set_death_signal(nix::sys::signal::Signal::SIGKILL)?;
    process::set_dumpable(Dumpable::No)
}

fn not_listed(errno: Errno) -> Unanswered {
    if errno == Errno::EFBIG {
        let message = format!("the layer has more than {} changes", changes::MAX_CHANGES);
        return (message, Some("name a `path` to list what is below it".to_owned()));
    }
    if [Errno::ENOENT, Errno::ENOTDIR, Errno::EINVAL].contains(&errno) {
        let message = "the layer changes faster than it can be listed".to_owned();
        return (message, Some("wait for the commands that run, or name a `path`".to_owned()));
    }
    failed(errno)
}

fn is_at_or_below(path: &[u8], directory: &[u8]) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

/// Returns the changes from `offset` on: as many as `limit` and the room for rows allow.
fn part_of(changes: &[Change], offset: usize, limit: usize) -> LayerAnswer {
    let mut lines = String::new();
    let mut rows = Vec::new();
    let shown = changes.get(offset..).unwrap_or_default();
    for change in shown.iter().take(limit) {
        // One row is shown however long it is.
        if lines.len() >= MAX_SHOWN {
            break;
        }
        lines.push_str(&ROWS.row(change));
        rows.extend(serde_json::from_value::<LayerRow>(row_json(change)));
    }
    let end = offset.saturating_add(rows.len());
    let list = LayerChanges {
        total: changes.len(),
        applicable: changes.iter().filter(|change| change.is_applicable()).count(),
        changes: rows,
        next_offset: (end < changes.len()).then_some(end),
    };
    LayerAnswer::Changes { lines, list }
}

/// The lines of a diff from one of them on, as far as there is room.
struct LineWindow {
    skipped: usize,
    offset: usize,
    lines: usize,
    text: String,
    has_more: bool,
}

impl LineWindow {
    fn starting_at(offset: usize) -> Self {
        Self { skipped: 0, offset, lines: 0, text: String::new(), has_more: false }
    }

    /// Returns true if a line did not fit.
    fn is_full(&self) -> bool {
        self.has_more
    }

    fn push(&mut self, line: &str) {
        if self.skipped < self.offset {
            self.skipped += 1;
            return;
        }
        if self.text.len() >= MAX_SHOWN {
            self.has_more = true;
            return;
        }
        let kept = line.get(..line.floor_char_boundary(MAX_LINE_BYTES)).unwrap_or_default();
        // Tabs belong to the text.
        let parts: Vec<String> = kept.split('\t').map(plain).collect();
        self.text.push_str(&parts.join("\t"));
        if kept.len() < line.len() {
            let more = line.len() - kept.len();
            self.text.push_str(&format!(" [{more} more bytes in this line]"));
        }
        self.text.push('\n');
        self.lines += 1;
    }

    fn part(self) -> LayerDiff {
        let end = self.offset.saturating_add(self.lines);
        LayerDiff { diff: self.text, lines: self.lines, next_offset: self.has_more.then_some(end) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_is_shown_in_parts_whose_lines_are_those_of_the_whole() {
        let all: Vec<String> = (0..20_000).map(|number| format!("+line {number}")).collect();
        let mut seen = Vec::new();
        let mut offset = Some(0);
        let mut parts = 0;
        while let Some(from) = offset {
            let mut window = LineWindow::starting_at(from);
            all.iter().for_each(|line| window.push(line));
            let part = window.part();
            assert!(part.diff.len() < MAX_SHOWN + MAX_LINE_BYTES, "{}", part.diff.len());
            seen.extend(part.diff.lines().map(str::to_owned));
            offset = part.next_offset;
            parts += 1;
        }
        assert_eq!(seen, all);
        assert!(parts > 2, "{parts}");
    }

    #[test]
    fn a_line_keeps_its_tabs_and_nothing_that_a_terminal_obeys() {
        let mut window = LineWindow::starting_at(0);
        window.push("+\ta\u{1b}[2J\r");
        window.push(&"x".repeat(MAX_LINE_BYTES + 7));
        let part = window.part();
        let long = "x".repeat(MAX_LINE_BYTES);
        let expected = format!("+\ta\\u{{1b}}[2J \n{long} [7 more bytes in this line]\n");
        assert_eq!(part.diff, expected);
    }
}
