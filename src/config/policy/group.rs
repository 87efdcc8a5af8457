//! Groups of tools: a server shows only some of them, so that an agent chooses among few tools.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

words! {
    /// Tools that are shown together or not at all. A tool without a group is always shown.
    #[derive(PartialOrd, Ord)]
    pub enum ToolGroup {
        /// The calculator.
        Calc = "calc",
        /// More of the calculator: batches, plots, the list of functions, the history.
        Math = "math",
        /// A persistent shell.
        Shell = "shell",
        /// Commands in fresh cells, and the directory in which they start.
        Exec = "exec",
        /// Questions about a cell and its programs.
        Info = "info",
        /// Command history.
        History = "history",
        /// Files of the workspace.
        Files = "files",
    }
}

impl ToolGroup {
    /// Returns the groups that a server shows by default: few tools, each different from the
    /// others.
    pub(crate) fn shown_by_default() -> BTreeSet<Self> {
        BTreeSet::from([Self::Calc, Self::Shell])
    }

    /// Returns the setting that shows this group in addition to those that are shown already. A
    /// setting that named it alone would hide the others.
    pub fn remedy(self, shown: &BTreeSet<Self>) -> String {
        let all = Self::ALL.into_iter().filter(|group| *group == self || shown.contains(group));
        let names = all.map(Self::name).collect::<Vec<_>>().join(",");
        format!("the operator can show it with `cofferdam serve --tools {names}`")
    }
}

impl fmt::Display for ToolGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ToolGroup {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|group| group.name() == name);
        named.ok_or_else(|| format!("the groups are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_for_a_group_keeps_the_groups_that_are_shown() {
        let remedy = ToolGroup::Math.remedy(&ToolGroup::shown_by_default());
        assert!(remedy.ends_with(" --tools calc,math,shell`"), "{remedy}");
        let remedy = ToolGroup::Exec.remedy(&BTreeSet::new());
        assert!(remedy.ends_with(" --tools exec`"), "{remedy}");
    }

    #[test]
    fn no_tool_is_in_two_groups_and_each_group_is_found_by_its_name() {
        let all: Vec<&str> = ToolGroup::ALL.iter().flat_map(|group| group.tools()).collect();
        let once: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), once.len());
        for group in ToolGroup::ALL {
            assert_eq!(group.name().parse(), Ok(group));
        }
        assert_eq!(
            "shel".parse::<ToolGroup>(),
            Err("the groups are calc, math, shell, exec, info, history, files".to_owned())
        );
    }
}
