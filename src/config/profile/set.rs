//! The set of loaded profiles by name; follows their inheritance.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::account::Account;
use super::layer::{Layer, account};
use super::resolve::resolve;
use super::schema::Written;
use super::shipped;
use crate::document::{Document, Mistake};
use model::egress::EgressRule;
use model::job::ProfileName;
use model::nearest::nearest;
use model::profile::{Profile, ProfileAdditions, SocketName};
use model::receipt::Tier;

/// The loaded profiles by name. Clones share them until one is changed.
#[derive(Debug, Clone)]
pub struct Profiles {
    all: Arc<All>,
    accounts: Arc<BTreeMap<ProfileName, OnceLock<Account>>>,
}

#[derive(Debug, Clone, Default)]
struct All {
    /// Profiles by name. An uninitialised one is compiled in, and parsed on first use.
    by_name: BTreeMap<ProfileName, OnceLock<Profile>>,
    /// Tier to which the initialised profiles were restricted; applied to others when they are
    /// parsed.
    tier: Option<Tier>,
    sockets: Vec<SocketName>,
    additions: ProfileAdditions,
    /// Additional egress rules of single profiles.
    egress: BTreeMap<ProfileName, Vec<EgressRule>>,
}

impl Profiles {
    /// Returns the compiled-in profiles, for an operator without other ones. Each is parsed on
    /// first use, as a server uses two of them.
    #[must_use]
    pub fn compiled_in() -> Self {
        let names: Vec<ProfileName> = shipped::names().filter_map(ProfileName::new).collect();
        let by_name = names.iter().map(|name| (name.clone(), OnceLock::new())).collect();
        let accounts = names.into_iter().map(|name| (name, OnceLock::new())).collect();
        Self { all: Arc::new(All { by_name, ..All::default() }), accounts: Arc::new(accounts) }
    }

    /// Parses profiles. A profile in `given` replaces the one of the same name in `embedded`, and
    /// may extend any other.
    ///
    /// A profile without `exec` can only be extended, and is not in the result.
    ///
    /// # Errors
    /// The first mistake in any file.
    pub fn parse(embedded: &[Document], given: &[Document]) -> Result<Self, Mistake> {
        Self::stacked(&[embedded, given])
    }

    /// Parses the profiles of several origins; each replaces and extends those before it.
    ///
    /// # Errors
    /// The first mistake in any file.
    pub fn stacked(origins: &[&[Document]]) -> Result<Self, Mistake> {
        let mut layers = BTreeMap::new();
        for origin in origins {
            layers.extend(read(origin)?);
        }
        let mut by_name = BTreeMap::new();
        let mut accounts = BTreeMap::new();
        for name in layers.keys() {
            let chain = chain(name, &layers)?;
            if chain.iter().any(|layer| layer.written.exec.is_some()) {
                by_name.insert(name.clone(), OnceLock::from(resolve(name, &chain)?));
                accounts.insert(name.clone(), OnceLock::from(account(&chain)));
            }
        }
        let all = All { by_name, ..All::default() };
        Ok(Self { all: Arc::new(all), accounts: Arc::new(accounts) })
    }

    /// Restricts all profiles to a tier, whatever their files say.
    #[must_use]
    pub fn in_tier(mut self, tier: Tier) -> Self {
        let all = Arc::make_mut(&mut self.all);
        all.tier = Some(tier);
        for profile in all.by_name.values_mut().filter_map(OnceLock::get_mut) {
            if profile.tier != tier {
                *profile = profile.clone().in_tier(tier);
            }
        }
        self
    }

    /// Drops the accounts, which are only needed by commands that show profiles.
    #[must_use]
    pub fn unaccounted(self) -> Self {
        Self { accounts: Arc::default(), ..self }
    }

    /// Returns true if there is a profile with this name.
    #[must_use]
    pub fn has(&self, name: &ProfileName) -> bool {
        self.all.by_name.contains_key(name)
    }

    pub fn get(&self, name: &ProfileName) -> Option<&Profile> {
        let cell = self.all.by_name.get(name)?;
        match cell.get() {
            Some(profile) => Some(profile),
            None => {
                // The tests parse all of these, as a profile with a mistake is missing here.
                let mut profile = shipped::profile(name)?;
                if let Some(tier) = self.all.tier {
                    profile = profile.in_tier(tier);
                }
                profile.grant_sockets(&self.all.sockets);
                profile.add(&self.all.additions);
                profile
                    .add_egress(self.all.egress.get(name).map(Vec::as_slice).unwrap_or_default());
                Some(cell.get_or_init(|| profile))
            }
        }
    }

    /// Returns the origin of a profile, and the reasons in its files.
    pub fn account(&self, name: &ProfileName) -> Option<&Account> {
        let cell = self.accounts.get(name)?;
        match cell.get() {
            Some(account) => Some(account),
            None => {
                let chain = shipped::chain(name.as_str())?;
                Some(cell.get_or_init(|| account(&chain)))
            }
        }
    }

    /// Returns all names in order.
    pub fn names(&self) -> impl Iterator<Item = &ProfileName> {
        self.all.by_name.keys()
    }

    /// Returns all profiles by name.
    pub fn iter(&self) -> impl Iterator<Item = &Profile> {
        self.names().filter_map(|name| self.get(name))
    }

    /// Grants the operator's sockets to every profile that uses them.
    pub fn grant_sockets(&mut self, names: &[SocketName]) {
        if names.is_empty() {
            return;
        }
        let all = Arc::make_mut(&mut self.all);
        all.sockets = names.to_vec();
        let profiles = all.by_name.values_mut().filter_map(OnceLock::get_mut);
        profiles.for_each(|profile| profile.grant_sockets(names));
    }

    /// Applies the operator's additions to every profile with a `/workspace`.
    pub fn add(&mut self, additions: &ProfileAdditions) {
        let all = Arc::make_mut(&mut self.all);
        all.additions = additions.clone();
        let profiles = all.by_name.values_mut().filter_map(OnceLock::get_mut);
        profiles.for_each(|profile| profile.add(additions));
    }

    /// Adds egress rules to one profile, with or without a `/workspace`.
    pub fn add_egress(&mut self, name: &ProfileName, rules: &[EgressRule]) {
        let all = Arc::make_mut(&mut self.all);
        all.egress.entry(name.clone()).or_default().extend_from_slice(rules);
        if let Some(profile) = all.by_name.get_mut(name).and_then(OnceLock::get_mut) {
            profile.add_egress(rules);
        }
    }

    /// Returns the name that is nearest to an unknown one.
    pub fn nearest(&self, word: &str) -> Option<&str> {
        nearest(word, self.names().map(ProfileName::as_str))
    }
}

impl PartialEq for Profiles {
    fn eq(&self, other: &Self) -> bool {
        let accounts = |profiles: &Self| {
            profiles.names().map(|name| profiles.account(name).cloned()).collect::<Vec<_>>()
        };
        self.iter().eq(other.iter()) && accounts(self) == accounts(other)
    }
}

impl Eq for Profiles {}

/// Parses files to layers by name. Two files of one origin with the same name are a mistake.
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

/// Returns a profile's chain: its ancestors, the furthest first, and the profile.
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
        let entry = ProfileName::new(parent).and_then(|parent| layers.get_key_value(&parent));
        let Some((parent, next)) = entry else {
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
