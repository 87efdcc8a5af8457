//! `[[secret]]` of `cofferdam.toml`: where the gateway finds what rules of egress put in requests.

use toml::Spanned;

use super::settings::{File, Setting, Settings, ShownLine, ValueSource};
use crate::document::{FileKey, Read, ReadError};
use model::egress::SecretSource;
use model::profile::name::is_dashed_word;

/// Secrets by name. Only the gateway reads their values.
pub(crate) type SecretSettings = Vec<(String, SecretSource)>;

table! {
    /// Secret for egress rules. Only the gateway reads its value, at start; cells never get it.
    struct Written {
        /// Name that rules use: lower-case letters, digits and dashes. Example: `"github"`.
        name: Spanned<String>,
        /// Source of the value: `file:` and an absolute path, `credential:` and the name of a
        /// systemd credential, or `env:` and a variable of the server. Other users must not be able
        /// to read the file. Example: `"file:/run/secrets/github"`.
        from: Spanned<String>,
    }
}

impl Settings for Setting<SecretSettings> {
    fn read(file: Option<File<'_>>) -> Result<Self, ReadError> {
        let absent = Self { value: Vec::new(), source: ValueSource::Default };
        let Some(file) = file else { return Ok(absent) };
        let Some(list) = file.root.table()?.get("secret") else { return Ok(absent) };
        let mut secrets = SecretSettings::new();
        for item in list.items()? {
            let Written { name, from } = Written::read(item)?;
            secrets.push(secret(&name, &from, &secrets)?);
        }
        Ok(file.setting(list, secrets))
    }

    /// Shows names and places, which are not secret.
    fn show(&self, lines: &mut Vec<ShownLine>) {
        let one = |(name, source): &(String, SecretSource)| match source {
            SecretSource::File(path) => format!("{name} from file:{}", path.display()),
            SecretSource::Credential(credential) => format!("{name} from credential:{credential}"),
            SecretSource::Env(variable) => format!("{name} from env:{variable}"),
        };
        let value = self.value.iter().map(one).collect::<Vec<_>>().join(", ");
        lines.push(ShownLine { key: "secret", value, source: self.source.clone() });
    }

    fn keys(keys: &mut Vec<FileKey>) {
        keys.push(FileKey {
            name: "secret",
            comment: "Secrets that rules of egress put in requests.",
            is_required: false,
            form: Vec::<Written>::form(),
        });
    }
}

/// Checks one secret; `others` are those before it in the file.
fn secret(
    name: &Spanned<String>,
    from: &Spanned<String>,
    others: &SecretSettings,
) -> Result<(String, SecretSource), ReadError> {
    let text = name.get_ref();
    if !is_dashed_word(text, 64) {
        let message = "a secret's name is of lower-case letters, digits and dashes";
        return Err(ReadError::new(name.span(), message));
    }
    if others.iter().any(|(known, _)| known == text) {
        return Err(ReadError::new(name.span(), format!("secret `{text}` is there twice")));
    }
    let source = source(from.get_ref()).ok_or_else(|| {
        let message = "write `file:/absolute/path`, `credential:NAME` or `env:NAME`";
        ReadError::new(from.span(), message)
    })?;
    Ok((text.clone(), source))
}

fn source(text: &str) -> Option<SecretSource> {
    let (kind, place) = text.split_once(':')?;
    let is_name = |name: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        !name.is_empty() && !name.starts_with('.') && name.bytes().all(fits)
    };
    match kind {
        "file" if place.starts_with('/') => Some(SecretSource::File(place.into())),
        "credential" if is_name(place) => Some(SecretSource::Credential(place.to_owned())),
        "env" if is_name(place) => Some(SecretSource::Env(place.to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_from_a_file_a_credential_or_a_variable() {
        let file = SecretSource::File("/run/secrets/github".into());
        assert_eq!(source("file:/run/secrets/github"), Some(file));
        assert_eq!(
            source("credential:gh.token"),
            Some(SecretSource::Credential("gh.token".into()))
        );
        assert_eq!(source("env:GH_TOKEN"), Some(SecretSource::Env("GH_TOKEN".into())));
        for text in
            ["", "ghp_value", "file:relative", "credential:../x", "credential:.", "env:", "env:A B"]
        {
            assert_eq!(source(text), None, "{text}");
        }
    }
}
