//! `ahead`: the program that a cell executes before its job arrives.
//!
//! The setting comes from the profile, where only the operator writes: neither a client nor a front
//! end can start a program that was not called.

use super::layer::Layer;
use crate::document::Mistake;
use model::call::{Argv, Env};
use model::profile::{Ahead, Exec};

/// Takes the setting of the last layer that has one, unless a later layer executes another program.
///
/// It must be the only program of a cell without a workspace: a single process waits then, which
/// cannot start another one and has no data of a client. A profile that inherits the setting but
/// does not meet this condition ignores it.
pub(super) fn resolve(
    chain: &[&Layer<'_>],
    exec: &Exec,
    workspace: bool,
) -> Result<Option<Ahead>, Mistake> {
    let deciding_layer = chain
        .iter()
        .rev()
        .find(|layer| layer.written.ahead.is_some() || layer.written.exec.is_some());
    let Some((layer, written)) =
        deciding_layer.and_then(|layer| Some((layer, layer.written.ahead.as_ref()?)))
    else {
        return Ok(None);
    };
    let mistake = |span, message: String| layer.document.mistake(span, message);
    if *exec == Exec::Any || workspace {
        let inherited = chain.last().is_none_or(|last| last.written.ahead.is_none());
        if inherited {
            return Ok(None);
        }
        let message = "`ahead` is for one program alone, in a cell without a workspace".to_owned();
        let hint = "name the program in `exec`, and leave `workspace` out";
        return Err(mistake(written.argv.span(), message).with_hint(hint));
    }
    let argv = Argv::new(written.argv.get_ref().clone())
        .map_err(|error| mistake(written.argv.span(), error.to_string()))?;
    let variables = written.env.iter();
    let variables =
        variables.map(|(name, value)| (name.clone(), value.get_ref().clone())).collect();
    let env =
        Env::new(variables).map_err(|error| mistake(written.argv.span(), error.to_string()))?;
    Ok(Some(Ahead { argv, env }))
}

#[cfg(test)]
mod tests {
    use super::super::{Profiles, shipped};
    use super::*;
    use crate::document::Document;
    use model::job::ProfileName;

    /// Returns the setting in a profile `a` that extends `bc` and has these lines.
    fn parsed(lines: &str) -> Result<Option<Ahead>, String> {
        let head = "schema = 1\nname = \"a\"\ndescription = \"d\"\nextends = \"bc\"\n";
        let given = [Document::new("a.toml", &format!("{head}{lines}"))];
        let profiles = Profiles::parse(&shipped(), &given).map_err(|error| error.to_string())?;
        let name = ProfileName::new("a").ok_or("a name")?;
        Ok(profiles.get(&name).ok_or("a profile")?.ahead.clone())
    }

    fn words(ahead: Option<Ahead>) -> Option<Vec<String>> {
        ahead.map(|ahead| ahead.argv.words().to_vec())
    }

    #[test]
    fn the_setting_is_inherited_replaced_and_dropped_for_another_program() {
        let bc = ["bc", "-l", "-q"].map(str::to_owned).to_vec();
        assert_eq!(parsed("").map(words), Ok(Some(bc)));
        let replacement = "ahead = { argv = [\"bc\"], why = \"w\" }\n";
        let exec = "exec = { program = \"/usr/bin/bc\", why = \"w\" }\n";
        assert_eq!(parsed(replacement).map(words), Ok(Some(vec!["bc".to_owned()])));
        assert_eq!(parsed(exec), Ok(None));
        assert_eq!(
            parsed(&format!("{exec}{replacement}")).map(words),
            Ok(Some(vec!["bc".to_owned()]))
        );
    }

    #[test]
    fn the_setting_needs_a_single_program_without_a_workspace_and_allowed_variables() {
        let setting = "ahead = { argv = [\"bc\"], why = \"w\" }\n";
        let alone = "a.toml:5:18: `ahead` is for one program alone, in a cell without a workspace\n\
            hint: name the program in `exec`, and leave `workspace` out";
        let any = "exec = { program = \"any\", why = \"w\" }\n";
        assert_eq!(parsed(&format!("{setting}{any}")), Err(alone.to_owned()));
        let workspace = "workspace = { why = \"w\" }\n[limits]\nmemory = \"2G\"\n";
        assert_eq!(parsed(&format!("{setting}{workspace}")), Err(alone.to_owned()));
        assert_eq!(parsed(workspace), Ok(None), "inherited, but ignored");
        let cases = [
            ("ahead = { argv = [], why = \"w\" }\n", "a.toml:5:18: argv is empty"),
            (
                "ahead = { argv = [\"bc\"], env = { LD_PRELOAD = \"x\" }, why = \"w\" }\n",
                "a.toml:5:18: env `LD_PRELOAD` is refused: it changes what programs load or run",
            ),
        ];
        for (lines, mistake) in cases {
            assert_eq!(parsed(lines), Err(mistake.to_owned()));
        }
    }
}
