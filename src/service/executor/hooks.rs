//! Runs the scripts of a declared tool's hooks, each in a fresh cell, without the workspace, under their own rule. They
//! have no network, except those that look for the target of a call, which have the call's network. A script can
//! refuse the call or change its flags, which are then checked again. No script runs for a call that the policy denies.

use serde_json::{Value, json};

use super::commands::DeclaredCall;
use crate::Report;
use crate::cli::hooks::{self, Answer};
use crate::cli::{self, BadRequest, DeclaredResult, ErrorType, ToolError};
use crate::shell::{self, ScriptArgs};
use config::policy::Grant;
use config::policy::hooks::{HookPoint, HookScript};
use model::call::{Call, Correlation};
use model::egress::{NetworkClass, Only};
use model::job::Workspace;

/// Points of the hooks that run before the program, in their order in the file.
const BEFORE: [HookPoint; 2] = [HookPoint::Check, HookPoint::Transform];

/// Call as the scripts before the program have left it.
struct Hooked<'g> {
    call: Call,
    words: Vec<String>,
    /// Grant of the call as it came, whose network bounds that of the scripts.
    grant: &'g Grant,
}

impl DeclaredCall<'_> {
    /// Asks the scripts before the program about `call`; returns the call as they leave it. Every check has let the words
    /// through that the program gets, and the target is looked for last.
    ///
    /// # Errors
    /// The reason of the one that refuses, or words that the list does not take.
    pub(super) async fn asked_of_hooks(
        &self,
        call: Call,
        grant: &Grant,
    ) -> Result<Call, ToolError> {
        let hooks = &self.declared.command.hooks;
        if hooks.scripts.is_empty() {
            return Ok(call);
        }
        let words = cli::words(self.declared, self.request)?;
        let mut hooked = Hooked { call, words, grant };
        // Checks, each with the words that it was asked about.
        let mut asked: Vec<(&HookScript, Vec<String>)> = Vec::new();
        for hook in hooks.scripts_at(&BEFORE) {
            if hook.at == HookPoint::Check {
                asked.push((hook, hooked.words.clone()));
            }
            self.ask(hook, &mut hooked).await?;
        }
        // What a transform has made since, the check has not seen.
        for (hook, words) in asked {
            if words != hooked.words {
                self.ask(hook, &mut hooked).await?;
            }
        }
        for hook in hooks.scripts_at(&[HookPoint::Reach]) {
            self.ask(hook, &mut hooked).await?;
        }
        Ok(hooked.call)
    }

    /// Asks one script, and does as it says.
    async fn ask(&self, hook: &HookScript, hooked: &mut Hooked<'_>) -> Result<(), ToolError> {
        match self.answer(hook, hooked).await? {
            Answer::Pass => Ok(()),
            Answer::Refuse(reason) => Err(hooks::refusal(hook, self.about, &reason)),
            Answer::Words(given) => {
                let request = hooks::with_words(self.request, given.clone());
                let call = cli::call(self.declared, &request, self.about.correlation);
                hooked.call = call.map_err(refused_words)?;
                hooked.words = given;
                Ok(())
            }
        }
    }

    /// Returns the answer of one script, which may be remembered.
    async fn answer(&self, hook: &HookScript, hooked: &Hooked<'_>) -> Result<Answer, ToolError> {
        let argv = hooked.call.argv.words();
        let input = hooks::input(self.declared, self.request, &hooked.words, argv).to_string();
        let remembered = &self.workbench.shared.answers;
        // Per client, so that the time of an answer does not reveal another client's calls.
        let key = format!("{}\0{input}", self.workbench.principal.name());
        if let Some(answer) = remembered.get(&hook.script, &key).filter(|_| hook.remember) {
            return Ok(answer);
        }
        let only = match hook.at {
            HookPoint::Reach => Some(self.reach_of_search(hook, hooked)?),
            HookPoint::Check | HookPoint::Transform | HookPoint::Output => None,
        };
        let report = self.run_hook(hook, input.clone(), only).await?;
        let answer = hooks::answer(hook, &report)?;
        if hook.remember {
            remembered.put(&hook.script, &key, answer.clone());
        }
        Ok(answer)
    }

    /// Returns the narrowing of a cell that looks for the target of a call: to what the call names, and to what the call
    /// may reach itself.
    fn reach_of_search(&self, hook: &HookScript, hooked: &Hooked<'_>) -> Result<Only, ToolError> {
        let bad = |why: &str| hooks::failed(hook, &format!("cannot run: {why}"));
        // Without it the cell would have all that its profile has.
        let only = hooked.call.only.clone().ok_or_else(|| bad("the call is held to no target"))?;
        let loaded = &self.workbench.terms.loaded;
        let name = format!("{}{}", hook.at.prefix(), self.about.tool);
        let search = loaded.policy.terms(&name, &loaded.profiles);
        let search = search.map_err(|denial| bad(&format!("{denial}; {}", denial.hint)))?.profile;
        let job = hooked.grant.job();
        let tool = loaded.profiles.get(&job.profile);
        let tool = tool.ok_or_else(|| bad("the profile of the call is not loaded"))?;
        let granted = job.only.as_ref().and_then(|only| only.rules.as_deref());
        // A call that names no target has nothing left already.
        let rules = search.egress.rules_within(&tool.egress, granted);
        match rules.filter(|_| only.rules.is_none()) {
            Some(rules) if rules.is_empty() => Err(bad(&format!(
                "nothing that its profile `{}` reaches is within what the call may reach",
                search.name
            ))),
            Some(rules) => Ok(Only { rules: Some(rules), ..only }),
            None => Ok(only),
        }
    }

    /// Has the scripts after the program, which got `argv`, add their data to a result. One that fails leaves a reason in its place.
    pub(super) async fn read_by_hooks(
        &self,
        argv: &[String],
        mut result: DeclaredResult,
    ) -> DeclaredResult {
        // Words that the list does not take made no call, so there are words.
        let words = cli::words(self.declared, self.request).unwrap_or_default();
        for hook in self.declared.command.hooks.scripts_at(&[HookPoint::Output]) {
            let input = hooks::input(self.declared, self.request, &words, argv);
            let input = hooks::with_end(input, &result);
            let report = self.run_hook(hook, input.to_string(), None).await;
            let read = report.map_err(|error| error.message);
            let (key, value) = match read.and_then(|report| hooks::data(hook, &report)) {
                Ok(value) => ("parsed", value),
                Err(why) => ("parse_error", json!(why)),
            };
            result.add(key, value);
        }
        result
    }

    /// Runs a script in a cell without a network, or with that of a call where it looks for the target.
    async fn run_hook(
        &self,
        hook: &HookScript,
        input: String,
        only: Option<Only>,
    ) -> Result<Report, ToolError> {
        let args = ScriptArgs {
            command: hook.script.clone(),
            stdin: input.into_bytes(),
            timeout: Some(hook.timeout.as_secs_f64()),
            ..ScriptArgs::default()
        };
        let bad = |why: &dyn std::fmt::Display| hooks::failed(hook, &format!("cannot run: {why}"));
        let name = format!("{}{}", hook.at.prefix(), self.about.tool);
        let only = match (hook.at, only) {
            (HookPoint::Reach, Some(only)) => Some(only),
            (HookPoint::Reach, None) => return Err(bad(&"the call is held to no target")),
            (HookPoint::Check | HookPoint::Transform | HookPoint::Output, _) => {
                self.without_a_network(&name).map_err(|why| bad(&why))?;
                None
            }
        };
        let mut call = shell::script(name, args).map_err(|error| bad(&error))?;
        call.correlation = Correlation::new(self.about.correlation).ok();
        call.only = only;
        // On an empty workspace, whatever is granted.
        let options = self.workbench.options(Workspace::Fresh);
        let done = self.workbench.run(call, options, self.caller).await;
        done.map_err(|refusal| match refusal.is_full_queue() {
            true => ToolError::new(ErrorType::ResourceExhausted, refusal.in_full()),
            false => bad(&refusal.in_full()),
        })
    }

    /// Checks that cells of a hook reach nothing, whatever was added to their profile at the start.
    fn without_a_network(&self, name: &str) -> Result<(), String> {
        let loaded = &self.workbench.terms.loaded;
        let terms = loaded.policy.terms(name, &loaded.profiles);
        let terms = terms.map_err(|denial| format!("{denial}; {}", denial.hint))?;
        match terms.profile.egress.class <= NetworkClass::Loopback {
            true => Ok(()),
            false => Err(format!("its profile `{}` has a network", terms.profile.name)),
        }
    }
}

/// Describes words of a transform that the tool does not take.
fn refused_words(bad: BadRequest) -> ToolError {
    let error = ToolError::from(bad);
    let message =
        format!("the operator's transform hook made a call that is refused: {}", error.message);
    ToolError { message, ..error }
}

impl DeclaredResult {
    /// Adds a value to the metadata; an object is merged with an object of the same name.
    fn add(&mut self, key: &str, value: Value) {
        let Some(metadata) = self.metadata.as_object_mut() else { return };
        match (metadata.get_mut(key).and_then(Value::as_object_mut), value) {
            (Some(before), Value::Object(more)) => before.extend(more),
            (_, value) => drop(metadata.insert(key.to_owned(), value)),
        }
    }
}
