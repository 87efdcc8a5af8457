//! Controls of the operator over a server that runs. No call of an agent leads here: a front door asks for the
//! operator's own token first, and the command line for a signal.

use std::sync::PoisonError;

use tracing::info;

use super::Executor;
use crate::client_terms::withheld;
use config::{Loaded, ShownLine};

/// Choice of whether a tool is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolSwitch {
    On,
    Off,
}

/// Reason why a control does nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoControl {
    #[error("there is no tool `{0}`")]
    Unknown(String),
    /// The configuration leaves it out, and its cells were never prepared.
    #[error("`{0}` is off in the configuration, which is read at the start")]
    Configured(String),
    #[error("`{0}` is no command-line tool, and has no circuit breaker")]
    NoBreaker(String),
}

impl Executor {
    /// Offers a tool, or withholds it until it is switched on again; returns true if that changed something.
    ///
    /// # Errors
    /// There is no such tool, or the configuration leaves it out.
    pub fn switch(&self, tool: &str, to: ToolSwitch) -> Result<bool, NoControl> {
        if !self.knows(tool) {
            return Err(NoControl::Unknown(tool.to_owned()));
        }
        // One that some clients alone may call can be switched off too.
        let of = |policy| Loaded { policy, ..self.shared.terms.loaded.clone() };
        if self
            .shared
            .policy
            .per_client()
            .into_iter()
            .all(|policy| withheld(&of(policy), tool).is_some())
        {
            return Err(NoControl::Configured(tool.to_owned()));
        }
        let changed = {
            let mut off = self.shared.switched_off.write().unwrap_or_else(PoisonError::into_inner);
            match to {
                ToolSwitch::On => off.remove(tool),
                ToolSwitch::Off => off.insert(tool.to_owned()),
            }
        };
        if changed {
            self.clear_caches();
            self.shared.switches.send_modify(|count| *count += 1);
            info!(tool, on = to == ToolSwitch::On, "tool.switched");
        }
        Ok(changed)
    }

    /// Closes the circuit breaker of a tool, or of every tool; returns the number of those that were not closed.
    ///
    /// # Errors
    /// There is no such tool, or it has no breaker.
    pub fn reset_breakers(&self, tool: Option<&str>) -> Result<usize, NoControl> {
        let Some(tool) = tool else {
            return Ok(self.shared.tools.all().filter(|state| state.reset()).count());
        };
        match self.shared.tools.get(tool) {
            Some(state) => Ok(usize::from(state.reset())),
            None if self.knows(tool) => Err(NoControl::NoBreaker(tool.to_owned())),
            None => Err(NoControl::Unknown(tool.to_owned())),
        }
    }

    /// Returns the configuration in force. Values name files of the host, which must be left out where it is shown.
    pub fn configuration(&self) -> Vec<ShownLine> {
        self.shared.terms.loaded.config.shown()
    }

    /// Forgets what was remembered of earlier calls: values of the calculator, answers of hooks.
    pub fn clear_caches(&self) {
        self.shared.answers.clear();
        let caches = self.shared.caches.lock().unwrap_or_else(PoisonError::into_inner);
        caches.values().for_each(|cache| cache.clear());
        info!("caches.cleared");
    }

    fn knows(&self, tool: &str) -> bool {
        config::policy::tools::NAMES.contains(&tool)
            || self.shared.terms.loaded.policy.declares(tool)
    }
}
