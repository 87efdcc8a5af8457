//! Runs the scripts of a project, and downloads on their behalf. Downloads have their own rule and profile, and each
//! reaches only the host that it names.

use crate::refused::{Refused, RefusedKind};
use crate::request::FetchPlace;
use crate::shell::{self, ScriptArgs};
use crate::workbench::{RunOptions, Workbench};
use crate::{Caller, Report, Scope};
use config::policy::Terms;
use config::policy::tools::{FETCH_PREFIX, PROJECT_PREFIX};
use model::call::Call;
use model::egress::{HostPattern, Only, PortRange};
use model::job::Workspace;

/// Runs a tool of a script project in a fresh cell. The caller's tap receives its output; its input is `args.stdin`
/// for the record, and comes from the caller's feed.
pub async fn run_script(
    scope: &Scope,
    tool: &str,
    args: ScriptArgs,
    caller: Caller,
) -> Result<Report, Refused> {
    let workbench = &scope.workbench;
    let egress = args.egress.clone();
    let is_read_only = args.is_read_only;
    let mut call = shell::runner(format!("{PROJECT_PREFIX}{tool}"), args)?;
    call.stdin = call.stdin.open();
    if let Some(egress) = egress {
        call.only = Some(asked_egress(workbench, &call, egress)?);
    }
    let workers = &workbench.shared.workers;
    let client = &workbench.principal;
    let Some(_turn) = workers.turn(client, &caller.cancel).await? else {
        return Err(Refused::cancelled());
    };
    let mut context = workbench.job_context(&call.tool);
    if let Some(workspace) = workbench.shared.read_only.filter(|_| is_read_only) {
        context.workspace = workspace;
    }
    // The reader of the tap has the output.
    let options = RunOptions { keep: 0, ..workbench.options(context) };
    Ok(workbench.run(call, options, &caller).await?)
}

/// Downloads something for a project, on behalf of its tool `of`, in a fresh cell that reaches one host of the public
/// network. The caller's tap receives its output.
///
/// # Errors
/// A host that no rule grants, a denial, or a full queue: nothing ran.
pub async fn fetch(
    scope: &Scope,
    of: &str,
    to: FetchPlace,
    args: ScriptArgs,
    caller: Caller,
) -> Result<Report, Refused> {
    let workbench = &scope.workbench;
    let name = format!("{FETCH_PREFIX}{of}");
    let host: HostPattern = to.host.parse().map_err(|_: model::egress::InvalidHost| {
        let why =
            format!("`{}` is no name of a public host, and projects reach no address", to.host);
        Refused::new(RefusedKind::Denied, why)
    })?;
    let loaded = &workbench.terms.loaded;
    // A denial is decided and recorded with the call.
    if let Ok(terms) = loaded.policy.terms(&name, &loaded.profiles)
        && !is_granted(&terms, &to)
    {
        let why = format!("no rule lets a project reach {}:{}", to.host, to.port);
        workbench.audit.invalid(&name, &why);
        let hint =
            format!("the operator can grant it: [project] hosts = [\"{}:{}\"]", to.host, to.port);
        return Err(Refused::new(RefusedKind::Denied, why).with_hint(hint));
    }
    let mut call = shell::script(name, args)?;
    call.only = Some(Only {
        hosts: vec![host],
        ports: vec![PortRange::one(to.port)],
        is_public: true,
        ..Only::default()
    });
    // Downloads have a separate queue, as the script that waits for one keeps its turn in the other. The reader of the
    // tap has the output.
    let queue = &workbench.shared.fetches;
    let options = RunOptions { keep: 0, queue, ..workbench.options(Workspace::Fresh) };
    Ok(workbench.run(call, options, &caller).await?)
}

/// Returns the narrowing of a script's network to the rules that its metadata names.
///
/// # Errors
/// A rule that its profile has not, or that the policy leaves it not. Nothing is granted by asking.
fn asked_egress(workbench: &Workbench, call: &Call, ids: Vec<String>) -> Result<Only, Refused> {
    let loaded = &workbench.terms.loaded;
    // A denial is decided and recorded with the call.
    if let Ok(terms) =
        loaded.policy.terms_under(&call.tool, call.profile.as_ref(), &loaded.profiles)
    {
        let has = |id: &String| {
            let is_left = terms.egress.as_ref().is_none_or(|left| left.contains(id.as_str()));
            is_left && terms.profile.egress.rules.iter().any(|rule| rule.id == *id)
        };
        if let Some(absent) = ids.iter().find(|id| !has(id)) {
            let shown: String = absent.chars().take(80).flat_map(char::escape_default).collect();
            let profile = &terms.profile.name;
            let why = format!("profile `{profile}` leaves no call the egress `{shown}`");
            workbench.audit.invalid(&call.tool, &why);
            let hint = "the metadata asks for it (cofferdam/egress); the operator can grant it with --egress, or by a \
                        profile that has it";
            return Err(Refused::new(RefusedKind::Denied, why).with_hint(hint));
        }
    }
    let only = Only { rules: Some(ids), ..Only::default() };
    match only.is_bounded() {
        true => Ok(only),
        false => Err(Refused::new(RefusedKind::Denied, "the metadata names too much egress")),
    }
}

/// Returns true if a rule that these terms leave has the host by its name, on this port.
fn is_granted(terms: &Terms<'_>, to: &FetchPlace) -> bool {
    terms.profile.egress.rules.iter().any(|rule| {
        terms.egress.as_ref().is_none_or(|ids| ids.contains(rule.id.as_str()))
            && rule.protocols.tcp
            && rule.hosts.iter().any(|host| host.matches(&to.host))
            && rule.ports.iter().any(|range| range.contains(to.port))
    })
}
