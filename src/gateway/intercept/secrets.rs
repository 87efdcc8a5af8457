//! Secrets: only the gateway reads them, only one header of one rule's requests gets them, and they
//! are never shown.

use std::fmt;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use model::egress::{SecretForm, SecretSource, SecretUse};
use zeroize::Zeroizing;

use super::scan::Needles;
use super::traces::Traces;
use crate::refusal::NetworkRefusal;

/// Allowed length of a secret: a shorter one would be found in texts by chance.
const ALLOWED_BYTES: std::ops::RangeInclusive<usize> = 8..=4096;

/// Why a secret cannot be used. No error holds a part of its value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("secret `{name}`: its file cannot be read")]
    Unreadable { name: String, source: std::io::Error },
    #[error("secret `{0}`: it is not in a regular file")]
    NotAFile(String),
    #[error("secret `{0}`: other users may read its file; chmod o-rwx")]
    Readable(String),
    #[error("secret `{0}`: systemd gave this service no credentials directory")]
    NoCredentials(String),
    #[error("secret `{name}`: the variable `{variable}` is not set")]
    Unset { name: String, variable: String },
    #[error("secret `{0}`: it must be 8 to 4096 visible ASCII characters without blanks")]
    Form(String),
}

/// The value of a secret. Erased on drop and never printed.
#[derive(Clone)]
pub struct SecretValue(Zeroizing<Vec<u8>>);

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(hidden)")
    }
}

impl SecretValue {
    /// Reads a secret. Only the gateway calls this.
    ///
    /// # Errors
    /// If it cannot be read, if other users may read its file, or if it cannot be sent in a header.
    pub(crate) fn read(name: &str, source: &SecretSource) -> Result<Self, SecretError> {
        let named = || name.to_owned();
        let text = match source {
            SecretSource::File(path) => file(name, path)?,
            SecretSource::Credential(credential) => {
                let directory = std::env::var_os("CREDENTIALS_DIRECTORY");
                let directory = directory.ok_or_else(|| SecretError::NoCredentials(named()))?;
                file(name, &PathBuf::from(directory).join(credential))?
            }
            SecretSource::Env(variable) => {
                let text = std::env::var(variable).map_err(|_| SecretError::Unset {
                    name: named(),
                    variable: variable.clone(),
                })?;
                Zeroizing::new(text.into_bytes())
            }
        };
        Self::new(name, &text)
    }

    /// Takes a value without its final line break.
    fn new(name: &str, text: &[u8]) -> Result<Self, SecretError> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if !ALLOWED_BYTES.contains(&text.len()) || !text.iter().all(u8::is_ascii_graphic) {
            return Err(SecretError::Form(name.to_owned()));
        }
        Ok(Self(Zeroizing::new(text.to_vec())))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Reads the file of a secret, up to the maximum length.
fn file(name: &str, path: &PathBuf) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let unreadable = |source| SecretError::Unreadable { name: name.to_owned(), source };
    // Without blocking: a FIFO without a writer would hang the start.
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY);
    let file = file.open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(SecretError::NotAFile(name.to_owned()));
    }
    if metadata.mode() & 0o007 != 0 {
        return Err(SecretError::Readable(name.to_owned()));
    }
    // Reserved in advance: a buffer that grows leaves copies behind that are not erased.
    let mut text = Zeroizing::new(Vec::with_capacity(ALLOWED_BYTES.end() + 64));
    let limit = u64::try_from(ALLOWED_BYTES.end() + 8).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut text).map_err(unreadable)?;
    Ok(text)
}

/// How a rule uses a secret: in which header and in which form.
#[derive(Debug, Clone)]
pub(crate) struct Injection {
    name: String,
    header: HeaderName,
    form: SecretForm,
    value: SecretValue,
    /// The texts by which the secret shows in an answer.
    pub(super) traces: Traces,
}

impl Injection {
    /// Joins a rule's use of a secret with its value; `None` if the header name is invalid.
    pub(crate) fn new(secret_use: &SecretUse, value: SecretValue) -> Option<Self> {
        let header = HeaderName::from_bytes(secret_use.header.as_bytes()).ok()?;
        let traces = Traces::new(value.bytes());
        Some(Self { name: secret_use.name.clone(), header, form: secret_use.form, value, traces })
    }

    /// Replaces the cell's placeholder by the secret. Returns true if it did; headers without a
    /// placeholder stay as they are.
    pub(super) fn put(
        &self,
        headers: &mut HeaderMap,
        seed: &[u8; 16],
        placeholders: &Needles,
    ) -> Result<bool, NetworkRefusal> {
        let mut values = headers.get_all(&self.header).iter();
        let Some(value) = values.next() else { return Ok(false) };
        if values.next().is_some() {
            return Err(NetworkRefusal::new(format!(
                "the header {} is there more than once",
                self.header
            )));
        }
        if !self.holds_placeholder(value, placeholders) {
            return Ok(false);
        }
        let placeholder = model::egress::placeholder(&self.name, seed);
        let put = self.replaced(value.as_bytes(), placeholder.as_bytes());
        let put = put.ok_or_else(|| NetworkRefusal::new(self.misplaced()))?;
        let mut put =
            HeaderValue::from_bytes(&put).map_err(|_| NetworkRefusal::new(self.misplaced()))?;
        // Keeps HPACK from indexing the value, and `Debug` from printing it.
        put.set_sensitive(true);
        headers.insert(&self.header, put);
        Ok(true)
    }

    /// Returns true if a value holds a placeholder, also within the encoding of `Basic`.
    fn holds_placeholder(&self, value: &HeaderValue, placeholders: &Needles) -> bool {
        let decoded =
            credentials(value.as_bytes(), "basic").and_then(|text| STANDARD.decode(text).ok());
        placeholders.are_in(value.as_bytes())
            || decoded.is_some_and(|decoded| placeholders.are_in(&decoded))
    }

    /// Returns the value with the placeholder replaced by the secret; `None` if the placeholder is
    /// not exactly the credential.
    fn replaced(&self, value: &[u8], placeholder: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let secret = self.value.bytes();
        let joined = |parts: [&[u8]; 2]| Zeroizing::new(parts.concat());
        match self.form {
            SecretForm::Plain => (value == placeholder).then(|| joined([b"", secret])),
            SecretForm::Bearer => {
                (credentials(value, "bearer")? == placeholder).then(|| joined([b"Bearer ", secret]))
            }
            SecretForm::Basic => {
                let pair = STANDARD.decode(credentials(value, "basic")?).ok()?;
                let colon = pair.iter().position(|byte| *byte == b':')?;
                let user = pair.get(..colon)?;
                let password = pair.get(colon + 1..)?;
                // Some services take the token as the user name, with any password.
                let pair = if password == placeholder && user != placeholder {
                    Zeroizing::new([user, b":", secret].concat())
                } else if user == placeholder {
                    Zeroizing::new([secret, b":", password].concat())
                } else {
                    return None;
                };
                let encoded = Zeroizing::new(STANDARD.encode(&pair).into_bytes());
                Some(joined([b"Basic ", &encoded]))
            }
        }
    }

    fn misplaced(&self) -> String {
        let form = match self.form {
            SecretForm::Basic => "the password of `Basic`",
            SecretForm::Bearer => "the whole of `Bearer`",
            SecretForm::Plain => "the whole value",
        };
        format!(
            "the placeholder of secret {} must be {form} in the header {}",
            self.name, self.header
        )
    }
}

/// Returns what follows the scheme of an authorization; the case of the scheme does not matter.
fn credentials<'a>(value: &'a [u8], scheme: &str) -> Option<&'a [u8]> {
    let (first, rest) = value.split_at_checked(scheme.len())?;
    let rest = rest.strip_prefix(b" ")?;
    first.eq_ignore_ascii_case(scheme.as_bytes()).then(|| rest.trim_ascii())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SEED: [u8; 16] = [0xa5; 16];

    fn injection(form: SecretForm) -> (Injection, String, Needles) {
        let secret_use = SecretUse {
            name: "github".into(),
            header: "authorization".into(),
            form,
            env: "GH_TOKEN".into(),
        };
        let value = SecretValue::new("github", b"ghp_real-value\n").expect("a secret");
        let needles = Needles::new([model::egress::placeholder_mark(&SEED).as_bytes()]);
        let placeholder = model::egress::placeholder("github", &SEED);
        (Injection::new(&secret_use, value).expect("a header"), placeholder, needles)
    }

    /// Puts the secret into one value; returns the value sent, or the refusal.
    fn sent(form: SecretForm, value: &str) -> Result<String, String> {
        let (injection, _, needles) = injection(form);
        let mut headers = HeaderMap::new();
        headers.insert("authorization", value.parse().expect("a value"));
        let put = injection.put(&mut headers, &SEED, &needles).map_err(|refusal| refusal.reason)?;
        let value = headers.get("authorization").expect("it is there").clone();
        assert_eq!(value.is_sensitive(), put);
        Ok(value.to_str().expect("text").to_owned())
    }

    #[test]
    fn a_placeholder_is_replaced_as_a_whole_value_of_its_form() {
        let (_, placeholder, _) = injection(SecretForm::Plain);
        assert_eq!(sent(SecretForm::Plain, &placeholder).as_deref(), Ok("ghp_real-value"));
        for scheme in ["Bearer", "bearer", "BEARER"] {
            let value = format!("{scheme} {placeholder}");
            assert_eq!(sent(SecretForm::Bearer, &value).as_deref(), Ok("Bearer ghp_real-value"));
        }
        let basic = |pair: String| format!("Basic {}", STANDARD.encode(pair));
        let token = "x-access-token:ghp_real-value".to_owned();
        assert_eq!(
            sent(SecretForm::Basic, &basic(format!("x-access-token:{placeholder}"))),
            Ok(basic(token))
        );
        assert_eq!(
            sent(SecretForm::Basic, &basic(format!("{placeholder}:x"))),
            Ok(basic("ghp_real-value:x".into()))
        );
        // Without a placeholder, credentials of the cell itself pass.
        for value in ["Bearer own", "Basic b3duOm93bg=="] {
            assert_eq!(sent(SecretForm::Bearer, value).as_deref(), Ok(value));
        }
    }

    #[test]
    fn a_placeholder_in_another_form_or_with_text_around_it_is_refused() {
        let (_, placeholder, _) = injection(SecretForm::Plain);
        let other = model::egress::placeholder("other", &SEED);
        let basic = |pair: String| format!("Basic {}", STANDARD.encode(pair));
        for (form, value) in [
            (SecretForm::Plain, format!("x{placeholder}")),
            (SecretForm::Plain, format!("Bearer {placeholder}")),
            (SecretForm::Plain, other.clone()),
            (SecretForm::Bearer, placeholder.clone()),
            (SecretForm::Bearer, format!("Bearer {placeholder}x")),
            (SecretForm::Bearer, format!("Bearer {other}")),
            (SecretForm::Bearer, basic(format!("a:{placeholder}"))),
            (SecretForm::Basic, format!("Bearer {placeholder}")),
            (SecretForm::Basic, basic(format!("a:{placeholder}x"))),
            (SecretForm::Basic, basic(placeholder.clone())),
            (SecretForm::Basic, basic(format!("a:{other}"))),
        ] {
            assert!(sent(form, &value).is_err(), "{form:?} {value}");
        }
    }

    #[test]
    fn a_secret_is_not_printed_and_only_its_owner_may_read_its_file() {
        let value = SecretValue::new("x", b"ghp_real-value").expect("a secret");
        assert!(!format!("{value:?} {:?}", injection(SecretForm::Plain)).contains("real"));
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        std::fs::write(&path, "ghp_real-value\r\n").expect("a file");
        let source = SecretSource::File(path.clone());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).expect("a mode");
        let refused = SecretValue::read("x", &source);
        assert!(matches!(refused, Err(SecretError::Readable(_))), "{refused:?}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("a mode");
        let read = SecretValue::read("x", &source).expect("a secret");
        assert_eq!(read.bytes(), b"ghp_real-value");
        for text in ["short", "with a blank in it", "with\0nul-bytes", "two-lines\n\n", ""] {
            std::fs::write(&path, text).expect("a file");
            let refused = SecretValue::read("x", &source);
            assert!(matches!(refused, Err(SecretError::Form(_))), "{text:?}");
        }
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).expect("a fifo");
        for path in [fifo, directory.path().to_owned()] {
            let refused = SecretValue::read("x", &SecretSource::File(path));
            assert!(matches!(refused, Err(SecretError::NotAFile(_))), "{refused:?}");
        }
        let missing = SecretValue::read("x", &SecretSource::File(directory.path().join("none")));
        assert!(matches!(missing, Err(SecretError::Unreadable { .. })));
        let unset = SecretValue::read("x", &SecretSource::Env("COFFERDAM_TEST_UNSET".into()));
        assert!(matches!(unset, Err(SecretError::Unset { .. })));
    }
}
