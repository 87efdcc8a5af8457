//! Every profile that was loaded, by name; inheritance is followed here.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::account::Account;
use super::layer::Layer;
use super::resolve::resolve;
use super::schema::Written;
use super::{Profile, SocketName};
use crate::document::{Document, Mistake, nearest};
use crate::job::ProfileName;
use crate::receipt::Tier;

/// The profiles that are compiled in: name, the one it extends, text.
const SHIPPED: [(&str, Option<&str>, &str); 7] = [
    ("base", None, include_str!("../../sandbox-profiles/base.toml")),
    ("bash", Some("base"), include_str!("../../sandbox-profiles/bash.toml")),
    ("bc", Some("base"), include_str!("../../sandbox-profiles/bc.toml")),
    ("cli", Some("base"), include_str!("../../sandbox-profiles/cli.toml")),
    ("cli-file", Some("cli"), include_str!("../../sandbox-profiles/cli-file.toml")),
    ("cli-jq", Some("cli"), include_str!("../../sandbox-profiles/cli-jq.toml")),
    ("nested", Some("bash"), include_str!("../../sandbox-profiles/nested.toml")),
];

fn shipped_document(name: &str, text: &'static str) -> Document {
    Document::shipped(&format!("sandbox-profiles/{name}.toml"), text)
}

/// The profiles that are compiled in, as files.
#[must_use]
pub fn shipped() -> Vec<Document> {
    SHIPPED.iter().map(|(name, _, text)| shipped_document(name, text)).collect()
}

/// Of the profiles that are compiled in, this one and what it extends: all that a command needs which
/// runs one call. None where there is no such profile.
#[must_use]
pub fn shipped_with(name: &str) -> Vec<Document> {
    let mut documents = Vec::new();
    let mut next = Some(name);
    while let Some(wanted) = next {
        let Some((name, extends, text)) = SHIPPED.iter().find(|(name, ..)| *name == wanted) else {
            break;
        };
        documents.push(shipped_document(name, text));
        next = *extends;
    }
    documents
}

/// Every profile that was loaded, by name. Clones share them until one is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profiles {
    by_name: Arc<BTreeMap<ProfileName, Profile>>,
    accounts: Arc<BTreeMap<ProfileName, Account>>,
}

impl Profiles {
    /// Reads profiles. One in `given` replaces one in `embedded` of the same name, and may extend any other.
    ///
    /// A profile without `exec` can be extended but not used, and is not in the result.
    ///
    /// # Errors
    /// On the first mistake in any file.
    pub fn parse(embedded: &[Document], given: &[Document]) -> Result<Self, Mistake> {
        Self::stacked(&[embedded, given])
    }

    /// The same for any number of origins, each of which replaces and extends those before it.
    ///
    /// # Errors
    /// On the first mistake in any file.
    pub fn stacked(origins: &[&[Document]]) -> Result<Self, Mistake> {
        let mut layers = BTreeMap::new();
        for origin in origins {
            layers.extend(read(origin)?);
        }
        let (mut by_name, mut accounts) = (BTreeMap::new(), BTreeMap::new());
        for name in layers.keys() {
            let chain = chain(name, &layers)?;
            if chain.iter().any(|layer| layer.written.exec.is_some()) {
                by_name.insert(name.clone(), resolve(name, &chain)?);
                accounts.insert(name.clone(), Account::of(&chain));
            }
        }
        Ok(Self { by_name: Arc::new(by_name), accounts: Arc::new(accounts) })
    }

    /// All of them as they are in a tier, whatever their files say.
    #[must_use]
    pub fn in_tier(mut self, tier: Tier) -> Self {
        if self.iter().any(|profile| profile.tier != tier) {
            for profile in Arc::make_mut(&mut self.by_name).values_mut() {
                *profile = profile.clone().in_tier(tier);
            }
        }
        self
    }

    /// The same without the accounts, which only those who show profiles read.
    #[must_use]
    pub fn unaccounted(self) -> Self {
        Self { accounts: Arc::default(), ..self }
    }

    pub fn get(&self, name: &ProfileName) -> Option<&Profile> {
        self.by_name.get(name)
    }

    /// Where a profile comes from, and the reasons its files give.
    pub fn account(&self, name: &ProfileName) -> Option<&Account> {
        self.accounts.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Profile> {
        self.by_name.values()
    }

    /// Grants the sockets that the operator named to every profile that takes them.
    pub fn grant_sockets(&mut self, names: &[SocketName]) {
        let profiles = Arc::make_mut(&mut self.by_name).values_mut();
        profiles.for_each(|profile| profile.grant_sockets(names));
    }

    /// The name nearest to one that does not exist.
    pub fn nearest(&self, word: &str) -> Option<&str> {
        nearest(word, self.by_name.keys().map(ProfileName::as_str))
    }
}

/// Files to layers by name; two files of one origin with the same name are a mistake.
fn read(documents: &[Document]) -> Result<BTreeMap<ProfileName, Layer<'_>>, Mistake> {
    let mut layers: BTreeMap<ProfileName, Layer<'_>> = BTreeMap::new();
    for document in documents {
        let written: Written = document.read()?;
        let span = written.name.span();
        let name = ProfileName::new(written.name.get_ref()).ok_or_else(|| {
            let message = "a profile's name is lower-case letters, digits and dashes";
            document.mistake(span.clone(), message)
        })?;
        if let Some(other) = layers.get(&name) {
            let message = format!("profile `{name}` is also in {}", other.document.file);
            return Err(document.mistake(span, message));
        }
        layers.insert(name, Layer::new(document, written));
    }
    Ok(layers)
}

/// The profile and what it extends, the furthest ancestor first.
fn chain<'a, 'd>(
    name: &ProfileName,
    layers: &'a BTreeMap<ProfileName, Layer<'d>>,
) -> Result<Vec<&'a Layer<'d>>, Mistake> {
    let mut seen = vec![name.clone()];
    let mut chain: Vec<&Layer<'d>> = layers.get(name).into_iter().collect();
    while let Some(layer) = chain.last().copied() {
        let Some(extends) = &layer.written.extends else { break };
        let mistake = |message: String| layer.document.mistake(extends.span(), message);
        let parent = extends.get_ref();
        let found = ProfileName::new(parent).and_then(|parent| layers.get_key_value(&parent));
        let Some((parent, next)) = found else {
            let error = mistake(format!("there is no profile `{}`", parent.escape_default()));
            let names = layers.keys().map(ProfileName::as_str);
            return Err(match nearest(extends.get_ref(), names) {
                Some(name) => error.with_hint(format!("did you mean `{name}`?")),
                None => error,
            });
        };
        if seen.contains(parent) {
            let names: Vec<&str> = seen.iter().map(ProfileName::as_str).collect();
            return Err(mistake(format!(
                "profiles extend each other in a circle: {} -> {parent}",
                names.join(" -> ")
            )));
        }
        seen.push(parent.clone());
        chain.push(next);
    }
    chain.reverse();
    Ok(chain)
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
