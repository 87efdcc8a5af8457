//! Checks the hooks of a declared tool, and adds those of the tool that it extends.

use std::time::Duration;

use crate::document::{Document, Mistake};
use crate::policy::hooks::{FlagCheck, HookPoint, HookScript, Hooks, LineReader, Replacement};
use crate::policy::pattern::LazyRegex;
use crate::policy::schema::{
    WrittenCheck, WrittenCommand, WrittenHook, WrittenReader, WrittenReplacement,
};
use crate::policy::summary::Summary;
use crate::policy::values::plain;

/// Timeout of a hook's script, unless the file says otherwise, and its upper bound.
const TIME: Duration = Duration::from_secs(5);
const MAX_TIME: Duration = Duration::from_secs(60);
/// Maximum number of scripts among the hooks of one tool. Each runs in a cell before or after that
/// of the call.
const MAX_SCRIPTS: usize = 4;
/// Maximum length of a script in bytes.
const SCRIPT_BYTES: usize = 64 << 10;

/// Adds the hooks of the extended tool: always its checks and its search for a target, and every
/// other kind of hook if the tool has no hook of that kind.
fn inherited(mut hooks: Hooks, base: Option<&Hooks>) -> Hooks {
    let Some(base) = base else { return hooks };
    hooks.checks.splice(0..0, base.checks.iter().cloned());
    if hooks.replacements.is_empty() {
        hooks.replacements.clone_from(&base.replacements);
    }
    if hooks.readers.is_empty() {
        hooks.readers.clone_from(&base.readers);
        hooks.summary.clone_from(&base.summary);
    }
    let is_before = |hook: &&HookScript| hook.at != HookPoint::Output;
    let (before, after): (Vec<&HookScript>, Vec<&HookScript>) =
        base.scripts.iter().partition(|hook| is_before(hook));
    if !hooks.scripts.iter().any(|hook| is_before(&hook)) {
        hooks.scripts.splice(0..0, before.into_iter().cloned());
    } else {
        // The checks of the extended tool apply even if the tool has other scripts.
        let checks = before.into_iter().filter(|hook| hook.at != HookPoint::Transform);
        hooks.scripts.splice(0..0, checks.cloned());
    }
    if !hooks.scripts.iter().any(|hook| hook.at == HookPoint::Output) {
        hooks.scripts.extend(after.into_iter().cloned());
    }
    hooks
}

/// Reads the hooks of one declared tool and adds those of `base`, the tool that it extends.
pub(super) fn hooks(
    document: &Document,
    written: &WrittenCommand,
    base: Option<&Hooks>,
) -> Result<Hooks, Mistake> {
    let checks = written.checks.iter().map(|one| check(document, one));
    let replacements = written.replacements.iter().map(|one| replacement(document, one));
    let scripts = written.hooks.iter().map(|one| script(document, one));
    let mut readers: Vec<LineReader> = Vec::new();
    for one in &written.readers {
        let reader = reader(document, one)?;
        if readers.iter().any(|other| other.name == reader.name) {
            let message = format!("there are two readers `{}`", reader.name);
            return Err(document.mistake(one.name.span(), message));
        }
        readers.push(reader);
    }
    if let Some(excess) = written.hooks.get(MAX_SCRIPTS) {
        let message = format!("a tool has {MAX_SCRIPTS} hooks at most: each is a cell");
        return Err(document.mistake(excess.script.span(), message));
    }
    let new_hooks = Hooks {
        checks: checks.collect::<Result<_, _>>()?,
        replacements: replacements.collect::<Result<_, _>>()?,
        readers,
        summary: None,
        scripts: scripts.collect::<Result<_, _>>()?,
    };
    let mut all = inherited(new_hooks, base);
    if let Some(text) = &written.summary {
        let has = |name: &str, group: Option<&str>| {
            all.readers.iter().any(|one| one.name == name && one.has(group))
        };
        let summary = Summary::parse(text.get_ref(), has);
        all.summary = Some(summary.map_err(|why| document.mistake(text.span(), why))?);
    }
    Ok(all)
}

fn check(document: &Document, written: &WrittenCheck) -> Result<FlagCheck, Mistake> {
    if written.needs.is_empty() && written.excludes.is_empty() {
        let message = "a check with no `needs` and no `excludes` refuses nothing";
        return Err(document.mistake(written.why.span(), message));
    }
    Ok(FlagCheck {
        given: written.given.clone(),
        needs: written.needs.clone(),
        excludes: written.excludes.clone(),
        why: written.why.get_ref().as_str().to_owned(),
    })
}

fn replacement(document: &Document, written: &WrittenReplacement) -> Result<Replacement, Mistake> {
    let word = written.word.get_ref();
    let by = written.by.get_ref();
    if let Some(bad) = [word].into_iter().chain(by).find_map(|word| plain(word).err()) {
        return Err(document.mistake(written.word.span(), format!("a word of a replacement {bad}")));
    }
    Ok(Replacement { word: word.clone(), by: by.clone() })
}

fn reader(document: &Document, written: &WrittenReader) -> Result<LineReader, Mistake> {
    let name = written.name.get_ref();
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
        let message = "a reader's name is lower-case letters and underscores";
        return Err(document.mistake(written.name.span(), message));
    }
    let Some(pattern) = LazyRegex::new(document, written.pattern.get_ref()) else {
        return Err(document.mistake(written.pattern.span(), "`pattern` is no regular expression"));
    };
    let reader = LineReader {
        name: name.clone(),
        pattern,
        all: written.all,
        metric: written.metric.as_ref().map(|metric| *metric.get_ref()),
        health: written.health,
        why: written.why.as_str().to_owned(),
    };
    match &written.metric {
        Some(metric) if !reader.has(None) => {
            let message = "a `metric` is one number: `all`, or a pattern without named groups";
            Err(document.mistake(metric.span(), message))
        }
        Some(_) | None => Ok(reader),
    }
}

fn script(document: &Document, written: &WrittenHook) -> Result<HookScript, Mistake> {
    let text = written.script.get_ref();
    if text.trim().is_empty() || text.contains('\0') || text.len() > SCRIPT_BYTES {
        let message = "a script is text of 64 KiB at most, and no NUL is in it";
        return Err(document.mistake(written.script.span(), message));
    }
    if written.remember && !matches!(written.at, HookPoint::Check | HookPoint::Transform) {
        let message = "`remember` is for a check or a transform: what others see may change";
        return Err(document.mistake(written.script.span(), message));
    }
    let timeout = match &written.timeout {
        None => TIME,
        Some(time) if time.get_ref().0.is_zero() || time.get_ref().0 > MAX_TIME => {
            return Err(document.mistake(time.span(), "`timeout` is above 0 and 1m at most"));
        }
        Some(time) => time.get_ref().0,
    };
    Ok(HookScript { at: written.at, script: text.clone(), timeout, remember: written.remember })
}
