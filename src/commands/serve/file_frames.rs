//! Answers of the process that reads the files of a listener: a frame for each file.
//!
//! A token is sent as its client, its hash and its rights. Its text stays in the process that read it.

use std::io;

use serde::{Deserialize, Serialize};

use super::listener_file::{FileContent, FileKind, FileResult, MAX_BYTES, MAX_LISTED};
use crate::commands::error::CliError;
use config::clients::client_fault;
use config::policy::Principal;
use http::access::ClientRights;
use http::access::tokens::Token;

/// Maximum length of a frame in bytes: the text of a file, or the reason why it was not read.
pub(super) const MAX_FRAME: u64 = 2 * MAX_BYTES;

/// The content of a file as it is sent.
#[derive(Debug, Serialize, Deserialize)]
enum SentContent {
    Failed { message: String, hint: Option<String> },
    Text(String),
    Tokens(Vec<SentToken>),
}

/// A token as it is sent.
#[derive(Debug, Serialize, Deserialize)]
struct SentToken {
    client: String,
    is_operator: bool,
    digest: [u8; 32],
}

/// Makes the frame of a file.
///
/// # Errors
/// A frame that cannot be made.
pub(super) fn encode(read: FileResult) -> io::Result<Vec<u8>> {
    let sent = match read {
        Ok(FileContent::Text(text)) => SentContent::Text(text),
        Ok(FileContent::Tokens(tokens)) => {
            SentContent::Tokens(tokens.iter().map(SentToken::new).collect())
        }
        Err(CliError { message, hint, .. }) => SentContent::Failed { message, hint },
    };
    postcard::to_stdvec(&sent).map_err(io::Error::other)
}

/// Reads the frame of a file of this kind.
///
/// # Errors
/// Bytes that are no such frame.
pub(super) fn decode(frame: &[u8], kind: &FileKind) -> io::Result<FileResult> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let (sent, rest) = postcard::take_from_bytes(frame).map_err(|_| malformed())?;
    if !rest.is_empty() {
        return Err(malformed());
    }
    let content = match (sent, kind) {
        (SentContent::Failed { message, hint }, _) => {
            return Ok(Err(CliError { hint, ..CliError::new(message) }));
        }
        (SentContent::Text(text), FileKind::Key | FileKind::Trusted | FileKind::Certificate) => {
            FileContent::Text(text)
        }
        (SentContent::Tokens(tokens), FileKind::TokenList | FileKind::Token { .. }) => {
            let tokens = tokens.into_iter().map(SentToken::token).collect();
            are_of(&tokens, kind).then_some(FileContent::Tokens(tokens)).ok_or_else(malformed)?
        }
        (SentContent::Text(_) | SentContent::Tokens(_), _) => return Err(malformed()),
    };
    Ok(Ok(content))
}

/// Returns true if a file of this kind can have these tokens.
fn are_of(tokens: &Vec<Token>, kind: &FileKind) -> bool {
    match (kind, tokens.as_slice()) {
        (FileKind::Token { client, rights }, [token]) => {
            token.principal.name() == client && token.rights == *rights
        }
        (FileKind::TokenList, tokens) => {
            let is_fit = |token: &Token| client_fault(token.principal.name()).is_none();
            (1..=MAX_LISTED).contains(&tokens.len()) && tokens.iter().all(is_fit)
        }
        (FileKind::Token { .. } | FileKind::Key | FileKind::Trusted | FileKind::Certificate, _) => {
            false
        }
    }
}

impl SentToken {
    fn new(token: &Token) -> Self {
        Self {
            client: token.principal.name().to_owned(),
            is_operator: token.rights == ClientRights::Operator,
            digest: *token.digest(),
        }
    }

    fn token(self) -> Token {
        let rights = if self.is_operator { ClientRights::Operator } else { ClientRights::Agent };
        Token::of_digest(self.digest, Principal::named(self.client), rights)
    }
}

#[cfg(test)]
mod tests {
    use config::HostContext;

    use super::*;
    use crate::commands::serve::listener_file::ListenerFile;

    const ALICE: &str = "alice-0123456789abcdef0123456789";
    const OPS: &str = "ops-0123456789abcdef0123456789ab";

    fn of(client: &str, rights: ClientRights) -> FileKind {
        FileKind::Token { client: client.to_owned(), rights }
    }

    /// Reads a file with this text as the process does.
    fn frame(text: &str, kind: &FileKind) -> Vec<u8> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, text).expect("written");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, private).expect("its mode");
        let file = ListenerFile { path, kind: kind.clone() };
        encode(file.read(&HostContext::of_this_process())).expect("a frame")
    }

    fn contains(frame: &[u8], text: &str) -> bool {
        frame.windows(text.len()).any(|part| part == text.as_bytes())
    }

    fn tokens(frame: &[u8], kind: &FileKind) -> Vec<Token> {
        let content = decode(frame, kind).expect("a frame").expect("a right file");
        content.into_tokens().expect("tokens")
    }

    #[test]
    fn a_frame_has_names_hashes_and_rights_and_no_token() {
        let list = format!("# a note\nalice {ALICE}\nops {OPS} operator\n");
        let sent = frame(&list, &FileKind::TokenList);
        assert!(contains(&sent, "alice") && contains(&sent, "ops"));
        for part in [ALICE, OPS, &ALICE[6..14], &OPS[4..12], "a note"] {
            assert!(!contains(&sent, part), "{part}");
        }
        let received = tokens(&sent, &FileKind::TokenList);
        let [alice, ops] = received.as_slice() else { panic!("two: {received:?}") };
        for (token, text, name, rights) in [
            (alice, ALICE, "alice", ClientRights::Agent),
            (ops, OPS, "ops", ClientRights::Operator),
        ] {
            let expected = Token::new(text, Principal::named(name)).expect("long enough");
            assert!(token.is_same_as(&expected), "{name}");
            assert_eq!((token.principal.name(), token.rights), (name, rights));
        }
        let kind = of("alice", ClientRights::Agent);
        let sent = frame(&format!("{ALICE}\n"), &kind);
        assert!(!contains(&sent, &ALICE[6..14]));
        assert!(tokens(&sent, &kind).iter().all(|token| token.is_same_as(alice)));
    }

    #[test]
    fn a_fault_is_sent_with_its_hint_and_without_the_token() {
        let kind = of("alice", ClientRights::Agent);
        let sent = frame("short-token", &kind);
        assert!(!contains(&sent, "short-token"));
        let fault = decode(&sent, &kind).expect("a frame").expect_err("too short");
        assert!(fault.message.contains("32 characters at least"), "{fault}");
        assert_eq!(fault.hint.as_deref(), Some("make one: openssl rand -hex 32"));
    }

    #[test]
    fn a_frame_that_is_of_another_file_or_malformed_is_refused() {
        let list = frame(&format!("alice {ALICE}\n"), &FileKind::TokenList);
        let agent = of("alice", ClientRights::Agent);
        assert!(decode(&list, &agent).is_ok(), "the control");
        for kind in [
            of("bob", ClientRights::Agent),
            of("alice", ClientRights::Operator),
            FileKind::Key,
            FileKind::Trusted,
            FileKind::Certificate,
        ] {
            assert!(decode(&list, &kind).is_err(), "{kind:?}");
        }
        let text = frame("text", &FileKind::Trusted);
        assert!(decode(&text, &FileKind::Trusted).is_ok(), "the control");
        assert!(decode(&text, &FileKind::TokenList).is_err());
        for length in 0..list.len() {
            let cut = list.get(..length).expect("a part of it");
            assert!(decode(cut, &FileKind::TokenList).is_err(), "{length} bytes");
        }
        let longer = [list.as_slice(), &[0]].concat();
        assert!(decode(&longer, &FileKind::TokenList).is_err(), "a byte follows");
        let named = |name: &str, count: usize| {
            let principal = Principal::named(name);
            let token = Token::of_digest([7; 32], principal, ClientRights::Agent);
            encode(Ok(FileContent::Tokens(vec![token; count]))).expect("a frame")
        };
        assert!(decode(&named("ci", MAX_LISTED), &FileKind::TokenList).is_ok(), "the control");
        for (name, count) in [("local", 1), ("A", 1), ("ci", 0), ("ci", MAX_LISTED + 1)] {
            let refused = decode(&named(name, count), &FileKind::TokenList);
            assert!(refused.is_err(), "{count} of `{name}`");
        }
    }
}
