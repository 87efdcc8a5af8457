//! `[[http.certificates]]` of `cofferdam.toml`: clients that are known by a certificate.

use toml::Spanned;

use super::clients::checked_client;
use super::settings::Kind;
use crate::document::{Item, Read, ReadError};

/// Maximum length of a name in a certificate, in bytes.
const MAX_NAME: usize = 256;

/// Name in a certificate, and the client that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateSetting {
    pub client: String,
    /// Host name in lower case, or URI.
    pub name: String,
    /// True for a certificate of the operator, which controls the server and runs nothing.
    pub operator: bool,
}

table! {
    /// Client that is known by a certificate of an authority in `client_ca`.
    pub struct WrittenCertificate {
        /// Name of the client in the audit log: lower-case letters, digits and dashes. Example: `"ci"`.
        client: Spanned<String>,
        /// Name that the certificate has in its subject alternative names: a host name, or a URI.
        /// The whole name is compared; there are no wildcards. Example: `"spiffe://example.org/ci"`.
        name: Spanned<String>,
        /// Marks a certificate of the operator, as for tokens.
        ///
        /// Default: `false`. Example: `true`.
        operator: bool = false,
    }
}

/// Clients that are known by certificates.
pub struct CertificateNames;

impl Kind for CertificateNames {
    type Value = Vec<CertificateSetting>;
    type Written = Vec<WrittenCertificate>;

    fn read(item: Item<'_>) -> Result<Vec<CertificateSetting>, ReadError> {
        let mut all: Vec<CertificateSetting> = Vec::new();
        for item in item.items()? {
            let one = certificate(item)?;
            if all.iter().any(|other| other.name == one.name) {
                return Err(item.error("another client has a certificate of this name"));
            }
            all.push(one);
        }
        Ok(all)
    }

    fn show(certificates: &Vec<CertificateSetting>) -> String {
        let name = |one: &CertificateSetting| match one.operator {
            true => format!("{} (operator)", one.client),
            false => one.client.clone(),
        };
        certificates.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

fn certificate(item: Item<'_>) -> Result<CertificateSetting, ReadError> {
    let WrittenCertificate { client, name, operator } = WrittenCertificate::read(item)?;
    let client = checked_client(client)?;
    let text = name.get_ref();
    let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
    if text.is_empty() || text.len() > MAX_NAME || !is_visible || text.contains('*') {
        let what = "a name is a host name or a URI of visible ASCII characters, without `*`";
        return Err(ReadError::new(name.span(), what));
    }
    // Case matters in URIs, and not in names of hosts.
    let name = if text.contains(':') { text.clone() } else { text.to_ascii_lowercase() };
    Ok(CertificateSetting { client, name, operator })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::document::Document;

    fn read(entries: &[(&str, &str)]) -> Result<Vec<CertificateSetting>, String> {
        let mut text =
            "schema = 1\n[http]\ncertificate = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"\n"
                .to_owned();
        for (client, name) in entries {
            text += &format!("[[http.certificates]]\nclient = \"{client}\"\nname = \"{name}\"\n");
        }
        let config = Config::parse(Some(&Document::new("f", &text)), 2);
        config.map(|config| config.http.certificates.value).map_err(|bad| bad.to_string())
    }

    #[test]
    fn a_name_is_one_host_or_uri_of_one_client() {
        let all = read(&[("ci", "CI.Example"), ("bot", "spiffe://Example/Bot")]);
        let names = all.map(|all| all.into_iter().map(|one| one.name).collect::<Vec<_>>());
        assert_eq!(names, Ok(vec!["ci.example".to_owned(), "spiffe://Example/Bot".to_owned()]));
        for (entries, expected) in [
            (&[("ci", "*.example")][..], "without `*`"),
            (&[("ci", "")], "without `*`"),
            (&[("ci", "a b")], "without `*`"),
            (&[("ci", "a.example"), ("bot", "A.example")], "another client"),
            (&[("http", "a.example")], "without a token"),
        ] {
            let bad = read(entries).expect_err(expected);
            assert!(bad.contains(expected), "{bad}");
        }
    }
}
