//! Scripts of a declared tool's hooks, each run in a cell of its own: no network, nothing of a workspace, a rule of
//! their own. What they say of a call can refuse it or change its flags, which are then checked anew.

use serde_json::{Value, json};

use super::Scope;
use crate::cli::hooks::{self, Answer};
use crate::cli::{self, AboutCall, BadRequest, Declared, DeclaredRequest, DeclaredResult};
use crate::cli::{ErrorType, ToolError};
use crate::shell::{self, ScriptArgs};
use crate::{CallReport, Caller, Refusal};
use model::call::{Call, Correlation};
use model::egress::NetworkClass;
use policy::hooks::{HookPoint, HookScript};
use policy::tools::HOOK_PREFIX;

/// Points of the hooks that run before the program.
const BEFORE: [HookPoint; 2] = [HookPoint::Check, HookPoint::Transform];

impl Scope {
    /// Asks the scripts before the program about `call`, in their order; returns the call as they leave it.
    ///
    /// # Errors
    /// The reason of the one that refuses, or words that the list does not take.
    pub(super) async fn hooked(
        &self,
        declared: &Declared,
        request: &DeclaredRequest,
        mut call: Call,
        caller: &Caller,
        about: AboutCall<'_>,
    ) -> Result<Call, ToolError> {
        let mut scripts = declared.command.hooks.scripts_at(&BEFORE).peekable();
        if scripts.peek().is_none() {
            return Ok(call);
        }
        let mut words = cli::words(declared, request)?;
        for hook in scripts {
            match self.answer_of(declared, request, (hook, &words), caller, about).await? {
                Answer::Pass => {}
                Answer::Refuse(reason) => {
                    let message = format!("{}: {reason}", about.tool);
                    return Err(ToolError::new(ErrorType::ValidationError, message));
                }
                Answer::Words(given) => {
                    words = given;
                    let request = hooks::with_words(request, words.clone());
                    call = cli::call(declared, &request, about.correlation).map_err(unfit)?;
                }
            }
        }
        Ok(call)
    }

    async fn answer_of(
        &self,
        declared: &Declared,
        request: &DeclaredRequest,
        (hook, words): (&HookScript, &[String]),
        caller: &Caller,
        about: AboutCall<'_>,
    ) -> Result<Answer, ToolError> {
        let input = hooks::input(declared, request, words).to_string();
        let remembered = &self.executor.answers;
        // Of this client: the time of an answer tells nobody what another has asked.
        let key = format!("{}\0{input}", self.workbench.principal.name());
        if let Some(answer) = remembered.get(&hook.script, &key).filter(|_| hook.remember) {
            return Ok(answer);
        }
        let report = self.run_hook(hook, input.clone(), caller, about).await?;
        let answer = hooks::answer(hook, &report)?;
        if hook.remember {
            remembered.put(&hook.script, &key, answer.clone());
        }
        Ok(answer)
    }

    /// Has the scripts after the program add their data to a result. One that fails leaves a reason in its place.
    pub(super) async fn read_by_hooks(
        &self,
        declared: &Declared,
        request: &DeclaredRequest,
        mut result: DeclaredResult,
        caller: &Caller,
        about: AboutCall<'_>,
    ) -> DeclaredResult {
        let words = cli::words(declared, request).unwrap_or_default();
        for hook in declared.command.hooks.scripts_at(&[HookPoint::Output]) {
            let input = hooks::with_end(hooks::input(declared, request, &words), &result);
            let report = self.run_hook(hook, input.to_string(), caller, about).await;
            let read = report.map_err(|error| error.message);
            let (key, value) = match read.and_then(|report| hooks::data(hook, &report)) {
                Ok(value) => ("parsed", value),
                Err(why) => ("parse_error", json!(why)),
            };
            result.add(key, value);
        }
        result
    }

    async fn run_hook(
        &self,
        hook: &HookScript,
        input: String,
        caller: &Caller,
        about: AboutCall<'_>,
    ) -> Result<CallReport, ToolError> {
        let args = ScriptArgs {
            command: hook.script.clone(),
            stdin: input.into_bytes(),
            timeout: Some(hook.timeout.as_secs_f64()),
            ..ScriptArgs::default()
        };
        let name = format!("{HOOK_PREFIX}{}", about.tool);
        let bad = |why: &dyn std::fmt::Display| hooks::failed(hook, &format!("cannot run: {why}"));
        self.without_a_network(&name).map_err(|why| bad(&why))?;
        let mut call = shell::script(name, args).map_err(|error| bad(&error))?;
        call.correlation = Correlation::new(about.correlation).ok();
        let done = self.workbench.call_alone(call, caller).await;
        done.map_err(|refusal| match refusal {
            full @ Refusal::QueueFull { .. } => {
                ToolError::new(ErrorType::ResourceExhausted, full.to_string())
            }
            other @ (Refusal::Denied(_)
            | Refusal::Unrecorded(_)
            | Refusal::Session(_)
            | Refusal::Job(_)) => bad(&other),
        })
    }

    /// Checks that cells of a hook reach nothing, whatever was added to their profile at the start.
    fn without_a_network(&self, name: &str) -> Result<(), String> {
        let loaded = &self.executor.shared.loaded;
        let terms = loaded.policy.terms(name, &loaded.profiles);
        let terms = terms.map_err(|denial| format!("{denial}; {}", denial.hint))?;
        match terms.profile.egress.class <= NetworkClass::Loopback {
            true => Ok(()),
            false => Err(format!("its profile `{}` has a network", terms.profile.name)),
        }
    }
}

/// Describes words of a transform that the tool does not take.
fn unfit(bad: BadRequest) -> ToolError {
    let error = ToolError::from(bad);
    let message =
        format!("the operator's transform hook made a call that is refused: {}", error.message);
    ToolError { message, ..error }
}

impl DeclaredResult {
    /// Adds a value to the metadata; an object beside one of its name is merged with it.
    fn add(&mut self, key: &str, value: Value) {
        let Some(metadata) = self.metadata.as_object_mut() else { return };
        match (metadata.get_mut(key).and_then(Value::as_object_mut), value) {
            (Some(before), Value::Object(more)) => before.extend(more),
            (_, value) => drop(metadata.insert(key.to_owned(), value)),
        }
    }
}
