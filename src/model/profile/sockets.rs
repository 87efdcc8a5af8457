//! Host sockets that a cell may connect to: `unix_sockets`, and the sockets that the operator
//! named.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Profile;
use super::name::is_word;

/// Directory of granted sockets in a cell.
pub const SOCKETS_DIRECTORY: &str = "/tmp/mcp-sockets";
/// The socket that gets its path in a variable.
const SKILLS: &str = "skills";

/// Sockets named by the operator that a profile's cells may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnixSockets {
    /// No sockets: the cell cannot connect to the host.
    None,
    /// All named sockets, and only those, in a private directory of the cell.
    Private,
}

impl UnixSockets {
    /// Returns its name, the value of the profile key `unix_sockets`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Private => "private",
        }
    }
}

/// Name of a granted socket: `skills` is at `/tmp/mcp-sockets/skills.sock`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketName(String);

impl SocketName {
    /// Accepts lower-case letters, digits and dashes, starting with a letter; at most 32 bytes.
    pub fn new(name: &str) -> Option<Self> {
        is_word(name, 32).then(|| Self(name.to_owned()))
    }

    /// Returns the name of its file in the cell's directory.
    pub fn file(&self) -> String {
        format!("{}.sock", self.0)
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Profile {
    /// Grants the sockets that the operator named, if the profile takes any, and sets the variables
    /// by which programs find them.
    pub fn grant_sockets(&mut self, names: &[SocketName]) {
        if self.unix_sockets == UnixSockets::None || names.is_empty() {
            return;
        }
        self.granted_sockets = names.to_vec();
        let mut set = |name: &str, value: String| self.env.insert(name.to_owned(), value);
        set("MCP_NESTED", "1".to_owned());
        set("MCP_SOCKET_DIR", SOCKETS_DIRECTORY.to_owned());
        if let Some(skills) = names.iter().find(|name| name.0 == SKILLS) {
            set("MCP_SKILLS_SOCKET", format!("{SOCKETS_DIRECTORY}/{}", skills.file()));
        }
    }

    /// Returns the names of the granted sockets as text.
    pub fn sockets_text(&self) -> String {
        let names: Vec<String> = self.granted_sockets.iter().map(SocketName::to_string).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<SocketName> {
        names.iter().filter_map(|name| SocketName::new(name)).collect()
    }

    fn granted(unix_sockets: UnixSockets, given: &[&str]) -> Vec<String> {
        let mut profile = Profile { unix_sockets, ..Profile::nothing() };
        profile.grant_sockets(&names(given));
        profile.env.iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn a_name_is_one_word_that_is_no_path() {
        for bad in ["", "Skills", "a/b", "..", "-a", "1a", "a.b", "a b", &"a".repeat(33)] {
            assert_eq!(SocketName::new(bad), None, "{bad:?}");
        }
        assert_eq!(names(&["skills", "a-1"]).len(), 2);
    }

    #[test]
    fn the_variables_are_there_with_a_granted_socket_and_only_then() {
        let nested = ["MCP_NESTED=1", "MCP_SOCKET_DIR=/tmp/mcp-sockets"];
        assert_eq!(granted(UnixSockets::Private, &["other"]), nested);
        let skills = "MCP_SKILLS_SOCKET=/tmp/mcp-sockets/skills.sock";
        assert_eq!(granted(UnixSockets::Private, &["skills"]), [nested[0], skills, nested[1]]);
        assert_eq!(granted(UnixSockets::Private, &[]), [""; 0]);
        assert_eq!(granted(UnixSockets::None, &["skills"]), [""; 0]);
    }
}
