//! The escape corpus in this tier: what it lacks is what the files of the corpus say it lacks.

use std::collections::BTreeSet;

use selftest::corpus::corpus;
use serde_json::Value;

use super::TIER;
use crate::support::{Caller, Check, Failed, Finished, equal, holds, patience};

/// Runs the corpus as a user of this tier would: the only breaches are the documented ones, and the exit code is 0.
pub fn corpus_is_held(caller: &Caller) -> Check {
    let output =
        Finished::run(caller.cofferdam(&["selftest", "--tier", TIER, "--json"]), 4 * patience())?;
    let report: Value = serde_json::from_str(&output.stdout)
        .map_err(|error| Failed::from(format!("no JSON ({error}): {output:?}")))?;
    let probes = report.get("probes").and_then(Value::as_array).cloned().unwrap_or_default();
    let of = |verdict: &str| -> Vec<Value> {
        let is = |probe: &&Value| probe.get("verdict").and_then(Value::as_str) == Some(verdict);
        probes.iter().filter(is).cloned().collect()
    };
    equal("undocumented breaches", of("breach"), Vec::<Value>::new())?;
    equal("no verdict", of("no_verdict"), Vec::<Value>::new())?;
    equal("its end", output.code, 0)?;
    let id = |probe: &Value| probe.get("id").and_then(Value::as_str).map(str::to_owned);
    let found: BTreeSet<String> = of("known").iter().filter_map(id).collect();
    // Each documented attack succeeds, so the list excuses no attack that is held.
    let all = corpus().map_err(Failed::from)?;
    let expected = all.iter().filter(|probe| probe.lower.breach.is_some());
    let expected: BTreeSet<String> = expected.map(|probe| probe.id.clone()).collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    equal("documented, but held", missing, Vec::<&String>::new())?;
    holds("most of it is held", of("held").len(), of("held").len() > 270)
}
