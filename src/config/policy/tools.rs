//! Table of the built-in tools: name, group, the rule that allows a call, and where the call runs.
//!
//! To add a tool, add a row here and a file in `src/mcp/tools/` with the type of its arguments,
//! which the row names. The crate `mcp` makes its table of calls from the same rows: a row without
//! its type does not compile.

use crate::policy::group::ToolGroup;
use model::job::ListChanges;

/// Passes the rows to a macro, in the order in which a client sees the tools. A row consists of the
/// type of the arguments, the name, the group, the rule and the place where a call runs.
#[macro_export]
macro_rules! with_tools {
    ($macro:ident) => {
        $macro! {
            BashArguments "bash": Some(Shell), OwnRule, Session;
            BashOutputArguments "bash_output": Some(Shell), RuleOf("bash"), Session;
            BashInputArguments "bash_input": Some(Shell), RuleOf("bash"), Session;
            BashJobsArguments "bash_jobs": Some(Shell), RuleOf("bash"), Session;
            BashKillArguments "bash_kill": Some(Shell), RuleOf("bash"), Session;
            CalculateArguments "calculate": Some(Calc), OwnRule, Calculator;
            CalculateAdvancedArguments "calculate_advanced": Some(Calc), OwnRule, Calculator;
            CalculateBatchArguments "calculate_batch": Some(Math), OwnRule, Calculator;
            CalculatePlotArguments "calculate_plot": Some(Math), OwnRule, Calculator;
            CalculateFunctionsArguments "calculate_functions": Some(Math), NoRule, Server;
            CalculateStatsArguments "calculate_stats": Some(Math), NoRule, Server;
            CalculateHistoryArguments "calculate_history": Some(Math), NoRule, Server;
            SetPrecisionArguments "set_precision": Some(Calc), NoRule, Server;
            SandboxRulesArguments "sandbox_rules": None, NoRule, Server;
            GetToolInfoArguments "get_tool_info": None, NoRule, Server;
            BashExecArguments "bash_exec": Some(Exec), OwnRule, FreshCell(ListChanges::Yes);
            BashExecStreamArguments "bash_exec_stream": Some(Exec), OwnRule, FreshCell(ListChanges::Yes);
            PipelineArguments "pipeline": Some(Exec), RuleOf("bash_exec"), FreshCell(ListChanges::Yes);
            GetWorkingDirArguments "get_working_dir": Some(Exec), NoRule, Server;
            SetWorkingDirArguments "set_working_dir": Some(Exec), OwnRule, FreshCell(ListChanges::No);
            GetEnvArguments "get_env": Some(Info), OwnRule, EmptyCell;
            SystemInfoArguments "system_info": Some(Info), OwnRule, EmptyCell;
            ProcessInfoArguments "process_info": Some(Info), OwnRule, EmptyCell;
            WhichCommandArguments "which_command": Some(Info), OwnRule, EmptyCell;
            CommandHelpArguments "command_help": Some(Info), OwnRule, EmptyCell;
            ManPageArguments "man_page": Some(Info), OwnRule, EmptyCell;
            HistorySearchArguments "history_search": Some(History), NoRule, Server;
            HistoryReplayArguments "history_replay": Some(History), RuleOf("bash_exec"), FreshCell(ListChanges::Yes);
            MacroSaveArguments "macro_save": Some(History), RuleOf("bash_exec"), Server;
            MacroRunArguments "macro_run": Some(History), RuleOf("bash_exec"), FreshCell(ListChanges::Yes);
            MacroListArguments "macro_list": Some(History), RuleOf("bash_exec"), Server;
            MacroDeleteArguments "macro_delete": Some(History), RuleOf("bash_exec"), Server;
            EditArguments "edit": Some(Files), RuleOf("bash"), Session;
            PutFileArguments "put_file": Some(Files), RuleOf("bash"), Session;
            GetFileArguments "get_file": Some(Files), RuleOf("bash"), Session;
            WorkspaceChangesArguments "workspace_changes": Some(Shell), RuleOf("bash"), Server;
            WorkspaceDiffArguments "workspace_diff": Some(Shell), RuleOf("bash"), Server;
        }
    };
}

/// Prefix of the names by which rules know the tools of a script project. The rule of `project`
/// allows them, but a rule that names a tool can still deny it.
pub const PROJECT_PREFIX: &str = "project:";

/// Prefix of the names by which hooks of declared tools are recorded. The rule of `hook` allows
/// them.
pub(crate) const HOOK_PREFIX: &str = "hook:";

/// Prefix of the names by which hooks that look for a target are recorded. The rule of `reach`
/// allows them, because its profile has a network.
pub(crate) const REACH_PREFIX: &str = "reach:";

/// Prefix of the names by which downloads for a script project are recorded. The rule of
/// `project-fetch` allows them, but a rule that names the project can still deny them.
pub const FETCH_PREFIX: &str = "project-fetch:";

/// Name by which rules know downloads for a script project. Also the profile that gets the
/// operator's hosts.
pub const FETCH: &str = "project-fetch";

/// Names of rules for calls that are not tools of a client.
pub(crate) const RESERVED: [&str; 3] = ["project", "hook", "reach"];

/// A built-in tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolSpec {
    pub name: &'static str,
    /// Group with which the tool is shown. A tool without a group is always shown.
    pub group: Option<ToolGroup>,
    pub rule: RuledBy,
    pub runs: Runs,
}

/// The rule that allows a call of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuledBy {
    /// A rule that names the tool.
    OwnRule,
    /// The rule of another tool that can do the same. A rule that names the tool can still deny it.
    RuleOf(&'static str),
    /// No rule: the tool runs nothing.
    NoRule,
}

/// The place where a call of a tool runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// In the server, without a cell.
    Server,
    /// In the cell of a calculator.
    Calculator,
    /// In a fresh cell with an empty workspace.
    EmptyCell,
    /// In a fresh cell with the workspace of the default session. The reply can list the changes in
    /// it.
    FreshCell(ListChanges),
    /// In the cell of a session.
    Session,
}

macro_rules! table {
    ($($arguments:ident $name:literal: $group:expr, $rule:expr, $runs:expr;)*) => {
        /// Every built-in tool, in the order in which a client sees them.
        pub const TOOLS: &[ToolSpec] = {
            use ToolGroup::{Calc, Exec, Files, History, Info, Math, Shell};
            use RuledBy::{NoRule, OwnRule, RuleOf};
            use Runs::{Calculator, EmptyCell, FreshCell, Server, Session};
            &[$(ToolSpec { name: $name, group: $group, rule: $rule, runs: $runs }),*]
        };

        /// The names of these tools.
        pub const NAMES: &[&str] = &[$($name),*];
    };
}

with_tools!(table);

impl ToolSpec {
    /// Returns the built-in tool of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TOOLS.iter().find(|tool| tool.name == name)
    }
}

impl ToolGroup {
    /// Returns the names of the tools in this group.
    pub fn tools(self) -> impl Iterator<Item = &'static str> {
        TOOLS.iter().filter(move |tool| tool.group == Some(self)).map(|tool| tool.name)
    }

    /// Returns the group of a tool.
    pub fn of_tool(tool: &str) -> Option<Self> {
        ToolSpec::named(tool).and_then(|tool| tool.group)
    }
}

/// Returns true if a rule decides each call of a tool. A declared tool has no row here and always
/// needs a rule.
pub fn asks_a_rule(tool: &str) -> bool {
    ToolSpec::named(tool).is_none_or(|tool| tool.rule != RuledBy::NoRule)
}

/// Returns the class name of a tool in the reference implementation of command-line tools:
/// `NmapTool` for `cli_nmap`.
pub fn class_name(tool: &str) -> String {
    let bare = tool.strip_prefix("cli_").unwrap_or(tool);
    let part = |part: &str| {
        let mut letters = part.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    bare.split('_').map(part).chain(["Tool".to_owned()]).collect()
}

/// Returns the tool whose rule allows the calls of this one. It is the same tool unless the
/// tool belongs to another.
pub fn ruled_by(tool: &str) -> &str {
    if tool.starts_with(PROJECT_PREFIX) {
        return "project";
    }
    if tool.starts_with(HOOK_PREFIX) {
        return "hook";
    }
    if tool.starts_with(REACH_PREFIX) {
        return "reach";
    }
    if tool.starts_with(FETCH_PREFIX) {
        return FETCH;
    }
    match ToolSpec::named(tool).map(|tool| tool.rule) {
        Some(RuledBy::RuleOf(other)) => other,
        Some(RuledBy::OwnRule | RuledBy::NoRule) | None => tool,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::policy::{Policy, Profiles};

    #[test]
    fn names_are_unique_and_the_rule_of_another_tool_exists() {
        let names: BTreeSet<&str> = NAMES.iter().copied().collect();
        assert_eq!(names.len(), TOOLS.len());
        for tool in TOOLS {
            assert_eq!(ToolSpec::named(tool.name), Some(tool));
            if let RuledBy::RuleOf(other) = tool.rule {
                let rule = ToolSpec::named(other).map(|other| other.rule);
                assert_eq!(rule, Some(RuledBy::OwnRule), "{}", tool.name);
            }
        }
    }

    #[test]
    fn the_shipped_policy_has_a_rule_for_each_tool_that_asks_one() {
        let profiles = Profiles::compiled_in();
        let policy =
            Policy::parse(&crate::policy::shipped(), &profiles).unwrap_or_else(|e| panic!("{e}"));
        for tool in TOOLS {
            let allowed = policy.terms(tool.name, &profiles).is_ok();
            assert_eq!(allowed, asks_a_rule(tool.name), "{}", tool.name);
            // No tool runs in a cell without a rule that allows it.
            assert!(asks_a_rule(tool.name) || tool.runs == Runs::Server, "{}", tool.name);
        }
    }

    #[test]
    fn a_tool_has_a_class_name() {
        let named = ["cli_nmap", "cli_nmap_intrusive", "scan"].map(class_name);
        assert_eq!(named, ["NmapTool", "NmapIntrusiveTool", "ScanTool"]);
    }

    #[test]
    fn only_tools_about_other_tools_are_in_no_group() {
        let alone = TOOLS.iter().filter(|tool| tool.group.is_none()).map(|tool| tool.name);
        assert_eq!(alone.collect::<Vec<_>>(), ["sandbox_rules", "get_tool_info"]);
    }
}
