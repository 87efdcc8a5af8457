//! Files of a listener: the condition under which each is read, and what is taken out of it.
//!
//! Of a token only the hash is kept, so no text of a token leaves the function that reads its file.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::commands::error::CliError;
use config::HostContext;
use config::clients::client_fault;
use config::http::{secret, trusted};
use config::policy::Principal;
use http::access::ClientRights;
use http::access::tokens::Token;

/// Maximum size of a file in bytes.
pub(super) const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of tokens in a list.
pub(super) const MAX_LISTED: usize = 4096;

/// Content of a file, and the condition under which it is read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FileKind {
    /// The token of one client. No other user may read it.
    Token { client: String, rights: ClientRights },
    /// Tokens of many clients, one a line. No other user may read it.
    TokenList,
    /// The private key of this server. No other user may read it.
    Key,
    /// No other user may write it, since it decides who is a client.
    Trusted,
    /// A certificate of this server, which clients verify.
    Certificate,
}

/// A file of a listener.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListenerFile {
    pub(super) path: PathBuf,
    pub(super) kind: FileKind,
}

/// What is taken out of a file.
#[derive(Debug, Clone)]
pub(super) enum FileContent {
    Text(String),
    Tokens(Vec<Token>),
}

/// The content of a file, or the reason why it cannot be used. The reason has no text of the file.
pub(super) type FileResult = Result<FileContent, CliError>;

impl FileContent {
    /// Returns the text of a file of another kind than tokens.
    pub(super) fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::Tokens(_) => None,
        }
    }

    /// Returns the tokens of a file of tokens.
    pub(super) fn into_tokens(self) -> Option<Vec<Token>> {
        match self {
            Self::Tokens(tokens) => Some(tokens),
            Self::Text(_) => None,
        }
    }
}

impl ListenerFile {
    /// Reads the file. An error names the path and the reason.
    pub(super) fn read(&self, host: &HostContext) -> FileResult {
        let path = self.path.as_path();
        let unread = |error: &dyn std::fmt::Display| CliError::new(format!("http: {error}"));
        let token_text =
            || secret(path, host).map_err(|error| CliError::new(format!("http: token: {error}")));
        let origin = || path.display().to_string();
        match &self.kind {
            FileKind::Token { client, rights } => {
                let token = token(&token_text()?, client, *rights, &origin())?;
                Ok(FileContent::Tokens(vec![token]))
            }
            FileKind::TokenList => listed(&token_text()?, &origin()).map(FileContent::Tokens),
            FileKind::Key => {
                secret(path, host).map(FileContent::Text).map_err(|error| unread(&error))
            }
            FileKind::Trusted => {
                trusted(path, host).map(FileContent::Text).map_err(|error| unread(&error))
            }
            FileKind::Certificate => certificate(path).map(FileContent::Text).map_err(|error| {
                let reason = model::outcome::in_words(&error);
                unread(&format_args!("{}: {reason}", path.display()))
            }),
        }
    }
}

fn certificate(path: &Path) -> std::io::Result<String> {
    // The open of a FIFO could wait for ever, and that of a device could have an effect.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = fs::File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Errno::EINVAL.into());
    }
    let mut text = String::new();
    let length = file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    match u64::try_from(length) {
        Ok(length) if length <= MAX_BYTES => Ok(text),
        _ => Err(Errno::EFBIG.into()),
    }
}

/// Makes the token of a client from the text of its file or variable.
///
/// # Errors
/// A text that is no token; the error names `origin`, and nothing of the text.
pub(super) fn token(
    secret: &str,
    client: &str,
    rights: ClientRights,
    origin: &str,
) -> Result<Token, CliError> {
    let token = Token::new(secret.trim(), Principal::named(client)).map_err(|fault| {
        CliError::new(format!("http: {origin}: {fault}"))
            .with_hint("make one: openssl rand -hex 32")
    })?;
    Ok(token.with_rights(rights))
}

/// Reads a list of tokens: a line is empty, begins with `#`, or has a client, its token, and the word `operator` if the
/// token is one of the operator. An error names a line, and nothing that is in it.
fn listed(text: &str, path: &str) -> Result<Vec<Token>, CliError> {
    let mut tokens = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let origin = format!("{path}:{number}");
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (client, secret, rights) = match words.as_slice() {
            [] => continue,
            [first, ..] if first.starts_with('#') => continue,
            [client, secret] => (client, secret, ClientRights::Agent),
            [client, secret, "operator"] => (client, secret, ClientRights::Operator),
            _ => {
                let message = format!("http: {origin}: a line is `CLIENT TOKEN`");
                return Err(CliError::new(message)
                    .with_hint("add the word `operator` for a token of the operator"));
            }
        };
        if let Some(fault) = client_fault(client) {
            return Err(CliError::new(format!("http: {origin}: {fault}")));
        }
        tokens.push(token(secret, client, rights, &origin)?);
        if tokens.len() > MAX_LISTED {
            return Err(CliError::new(format!("http: {path}: has more than {MAX_LISTED} tokens")));
        }
    }
    // An empty file is one that is being written, or was lost: it would end the sessions of every client.
    if tokens.is_empty() {
        return Err(CliError::new(format!("http: {path}: has no token"))
            .with_hint("remove `token_list` from the configuration if no client is to have one"));
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use nix::sys::stat::Mode;

    use super::*;

    const LONG: &str = "0123456789abcdef0123456789abcdef";

    fn fault(text: &str) -> Option<String> {
        listed(text, "/t").err().map(|error| error.text())
    }

    #[test]
    fn a_list_has_a_client_and_its_token_on_each_line() {
        let text = format!("# of this month\n\nci {LONG}\nci {LONG}0\nops {LONG}1 operator\n");
        let tokens = listed(&text, "/t").map_err(|error| error.text()).expect("right");
        let of = |token: &Token| (token.principal.name().to_owned(), token.rights);
        let found: Vec<_> = tokens.iter().map(of).collect();
        let agent = ("ci".to_owned(), ClientRights::Agent);
        assert_eq!(found, [agent.clone(), agent, ("ops".to_owned(), ClientRights::Operator)]);
    }

    #[test]
    fn a_fault_in_a_list_is_named_without_a_token() {
        let many: String = (0..=MAX_LISTED).map(|number| format!("ci {number:032}\n")).collect();
        for (text, expected) in [
            (format!("{LONG}\n"), "/t:1: a line is `CLIENT TOKEN`"),
            (format!("ci {LONG} admin\n"), "/t:1: a line is `CLIENT TOKEN`"),
            (format!("\nCI {LONG}\n"), "/t:2: a client's name"),
            (format!("local {LONG}\n"), "/t:1: this name is"),
            ("ci short-one\n".to_owned(), "/t:1: a token has 32 characters at least"),
            (many, "/t: has more than 4096 tokens"),
            (String::new(), "/t: has no token"),
            ("# nothing yet\n\n".to_owned(), "/t: has no token"),
        ] {
            let fault = fault(&text).expect(expected);
            assert!(fault.contains(expected), "{fault}");
            assert!(!fault.contains(LONG) && !fault.contains("short-one"), "{fault}");
        }
    }

    fn kinds() -> [FileKind; 5] {
        let client = "ci".to_owned();
        let token = FileKind::Token { client, rights: ClientRights::Agent };
        [token, FileKind::TokenList, FileKind::Key, FileKind::Trusted, FileKind::Certificate]
    }

    #[test]
    fn each_kind_of_file_has_its_condition() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let host = HostContext::of_this_process();
        let read = |mode, kind: &FileKind| {
            let text =
                if *kind == FileKind::TokenList { format!("ci {LONG}") } else { LONG.into() };
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("its mode");
            let read = ListenerFile { path: path.clone(), kind: kind.clone() }.read(&host);
            read.map(drop).map_err(|error| error.text())
        };
        let [token, list, key, trusted, certificate] = kinds();
        for secret in [token, list, key] {
            assert_eq!(read(0o600, &secret), Ok(()), "{secret:?}");
            let refused = read(0o640, &secret).expect_err("others can read it");
            assert!(refused.contains("others can read"), "{refused}");
        }
        assert_eq!(read(0o644, &trusted), Ok(()));
        assert!(read(0o666, &trusted).is_err_and(|bad| bad.contains("others can write")));
        assert_eq!(read(0o666, &certificate), Ok(()));
    }

    #[test]
    fn a_fifo_and_a_file_over_its_bound_are_refused_at_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let host = HostContext::of_this_process();
        let path = directory.path().join("file");
        let full = usize::try_from(MAX_BYTES).expect("it fits");
        let comment =
            |length: usize| format!("ci {LONG}\n#{}", " ".repeat(length - 4 - LONG.len() - 1));
        for (length, is_right) in [(full, true), (full + 1, false)] {
            std::fs::write(&path, comment(length)).expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("its mode");
            // A file of one token is shorter than the bound.
            for kind in kinds().into_iter().skip(1) {
                let read = ListenerFile { path: path.clone(), kind: kind.clone() }.read(&host);
                assert_eq!(read.is_ok(), is_right, "{kind:?}");
            }
        }
        std::fs::remove_file(&path).expect("removed");
        nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).expect("a FIFO");
        for kind in kinds() {
            let read = ListenerFile { path: path.clone(), kind: kind.clone() }.read(&host);
            assert!(read.is_err(), "{kind:?}");
        }
    }
}
