//! Decisions: default deny, the strictest wins, order never matters, examples are tested.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use model::call::{Argv, Env, Script, Stdin};
use model::defaults::{GIB, MIB};

fn profiles() -> Profiles {
    Profiles::parse(&crate::profile::shipped(), &[]).unwrap_or_else(|e| panic!("{e}"))
}

fn parsed(rules: &[&str]) -> Result<Policy, Mistake> {
    let text = format!("schema = 1\n{}", rules.concat());
    Policy::parse(&[Document::new("p.toml", &text)], &profiles())
}

fn policy(rules: &[&str]) -> Policy {
    parsed(rules).unwrap_or_else(|e| panic!("{e}"))
}

fn mistake(rule: &str) -> String {
    parsed(&[rule])
        .map_or_else(|mistake| mistake.to_string(), |policy| format!("taken: {policy:?}"))
}

fn shipped_policy() -> Policy {
    Policy::parse(&super::shipped(), &profiles()).unwrap_or_else(|e| panic!("{e}"))
}

fn call(tool: &'static str, asked: Asked) -> Call {
    Call {
        tool: tool.into(),
        argv: Argv::new(vec!["bash".to_owned()]).unwrap_or_else(|e| panic!("{e}")),
        script: None,
        stdin: Stdin::Empty,
        env: Env::new(BTreeMap::new()).unwrap_or_else(|e| panic!("{e}")),
        cwd: None,
        asked,
        profile: None,
        only: None,
        correlation: None,
    }
}

fn decide(policy: &Policy, tool: &'static str) -> Result<Grant, Denial> {
    policy.decide(
        &Principal::local(),
        call(tool, Asked::default()),
        &profiles(),
        Workspace::Fresh.into(),
    )
}

fn wall(seconds: u64) -> Asked {
    Asked { wall: Some(Duration::from_secs(seconds)), ..Asked::default() }
}

/// Returns an allow rule for `bash` with these limits, in six lines.
fn allow(id: &str, limits: &str) -> String {
    format!(
        "[[rule]]\nid = \"{id}\"\ntools = [\"bash\"]\naction = \"allow\"\nprofile = \"bash\"\n\
         why = \"w\"\nmatches = [{{ tool = \"bash\" }}]\nlimits = {{ {limits} }}\n"
    )
}

const DENY: &str = "[[rule]]\nid = \"no\"\ntools = [\"bash\"]\naction = \"deny\"\nwhy = \"closed today\"\n\
                    matches = [{ tool = \"bash\" }]\n";

/// Returns an allow rule for `bash` under profile `bash` that lets a call choose these profiles.
fn choosing(id: &str, choice: &str) -> String {
    allow(id, "").replace("profile = \"bash\"", &format!("profile = \"bash\"\nchoice = [{choice}]"))
}

fn under(policy: &Policy, profile: &str) -> Result<String, String> {
    let profile = ProfileName::new(profile);
    let call = Call { profile, ..call("bash", Asked::default()) };
    let decided = policy.decide(&Principal::local(), call, &profiles(), Workspace::Fresh.into());
    decided.map(|grant| grant.job().profile.to_string()).map_err(|denial| denial.to_string())
}

#[test]
fn a_call_may_name_a_profile_only_where_every_rule_leaves_it_the_choice() {
    let denied = |rule: &str, profile: &str| {
        Err(format!("denied by rule `{rule}`: it leaves no call of `bash` the profile `{profile}`"))
    };
    let none = policy(&[&allow("a", "")]);
    assert_eq!(under(&none, "bash"), Ok("bash".to_owned()), "its own is no choice");
    assert_eq!(under(&none, "bc"), denied("a", "bc"));
    let one = policy(&[&choosing("a", "\"bc\", \"cli-jq\"")]);
    assert_eq!(under(&one, "bc"), Ok("bc".to_owned()));
    assert_eq!(under(&one, "base"), denied("a", "base"));
    let by_default = decide(&one, "bash").map(|grant| grant.job().profile.to_string());
    assert_eq!(by_default, Ok("bash".to_owned()));
    // The strictest rule wins: a choice that only one of two rules allows is refused.
    let both = policy(&[&choosing("a", "\"bc\", \"cli-jq\""), &choosing("b", "\"cli-jq\"")]);
    assert_eq!(under(&both, "cli-jq"), Ok("cli-jq".to_owned()));
    assert_eq!(under(&both, "bc"), denied("a", "bc"));
    let deny = policy(&[&choosing("a", "\"bc\""), DENY]);
    assert_eq!(under(&deny, "bc"), Err("denied by rule `no`: closed today".to_owned()));
}

#[test]
fn a_rule_lowers_the_limits_of_a_chosen_profile_too() {
    let rule = choosing("a", "\"bc\"").replace("limits = {  }", "limits = { timeout = \"7s\" }");
    let call = Call { profile: ProfileName::new("bc"), ..call("bash", wall(500)) };
    let decided =
        policy(&[&rule]).decide(&Principal::local(), call, &profiles(), Workspace::Fresh.into());
    let limits =
        decided.map(|grant| (grant.job().limits.wall.as_secs(), grant.job().limits.memory));
    assert_eq!(limits, Ok((7, 256 * MIB)));
}

#[test]
fn a_choice_is_of_profiles_that_are_there_and_of_rules_that_allow() {
    assert_eq!(
        mistake(&choosing("a", "\"bcc\"")),
        "p.toml:7:11: there is no profile `bcc` to run under\nhint: did you mean `bc`?"
    );
    let deny = DENY.replace("action = \"deny\"", "action = \"deny\"\nchoice = []");
    assert_eq!(mistake(&deny), "p.toml:6:10: rule `no` denies; a `choice` means nothing there");
}

/// Returns a rule that refuses commands of `bash` by these expressions.
fn refusing(deny: &str, example: &str) -> String {
    format!(
        "[[rule]]\nid = \"no-push\"\ntools = [\"bash\"]\naction = \"deny\"\nwhy = \"people push\"\n\
         commands = {{ deny = [{deny}] }}\nmatches = [{{ tool = \"bash\", command = \"{example}\" }}]\n"
    )
}

#[test]
fn a_rule_refuses_commands_by_their_text() {
    let push = policy(&[&allow("a", ""), &refusing("'git +push', '^sudo '", "git  push origin")]);
    let run = |words: &[&str], script: Option<&str>| {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let call = Call {
            argv: Argv::new(words).unwrap_or_else(|error| panic!("{error}")),
            script: script.map(|text| Script::new("command", text.to_owned()).expect("a script")),
            ..call("bash", Asked::default())
        };
        let decided = push.decide(&Principal::local(), call, &profiles(), Workspace::Fresh.into());
        decided.map(|grant| grant.rule().to_owned()).map_err(|denial| denial.to_string())
    };
    let refused = Err("denied by rule `no-push`: people push".to_owned());
    assert_eq!(run(&["bash", "-c", "git push"], None), refused);
    assert_eq!(run(&["bash"], Some("cd x && git  push -f")), refused);
    assert_eq!(run(&["sudo", "id"], None), refused);
    assert_eq!(run(&["bash"], Some("sudo id")), refused);
    assert_eq!(run(&["bash", "-c", "git pull; echo sudo x"], None), Ok("a".to_owned()));
    // An exception of a rule that allows has that rule's reason.
    let exception = allow("a", "").replace("why", "commands = { deny = ['x'] }\nwhy");
    let excepting = policy(&[&exception]);
    let words = |word: &str| Argv::new(vec![word.to_owned()]).unwrap_or_else(|e| panic!("{e}"));
    let decide = |argv: Argv| {
        let call = Call { argv, ..call("bash", Asked::default()) };
        let decided =
            excepting.decide(&Principal::local(), call, &profiles(), Workspace::Fresh.into());
        decided.map(|_| ()).map_err(|denial| denial.to_string())
    };
    assert_eq!(decide(words("xy")), Err("denied by rule `a`: w".to_owned()));
    assert_eq!(decide(words("y")), Ok(()));
    // The tool itself stays allowed and listed.
    assert!(push.terms("bash", &profiles()).is_ok());
}

#[test]
fn a_rule_of_commands_denies_and_shows_one() {
    assert_eq!(mistake(&refusing("'('", "x")), "p.toml:7:22: `(` is no regular expression");
    assert_eq!(
        mistake(&refusing("'git push'", "git pull")),
        "p.toml:8:12: rule `no-push` should match and does not: `bash`"
    );
    let shows_none = refusing("'git push'", "x").replace(", command = \"x\"", "");
    assert_eq!(
        mistake(&shows_none),
        "p.toml:8:12: rule `no-push` should match and does not: `bash`"
    );
}

#[test]
fn the_compiled_in_rules_are_those_of_the_shipped_file() {
    let read = shipped_policy();
    let made = postcard::to_allocvec(read.rules()).unwrap_or_else(|error| panic!("{error}"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/policy/rules.postcard");
        return std::fs::write(path, &made).unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(made == PREPARED, "UPDATE_SNAPSHOTS=1 makes the bytes again");
    assert_eq!(Policy::compiled_in().rules(), read.rules());
    assert_eq!(Policy::compiled_in().given_commands(), read.given_commands());
}

#[test]
fn without_a_rule_everything_is_denied() {
    let denial = Denial {
        rule: "default-deny".to_owned(),
        why: "no rule allows `bash`".to_owned(),
        hint: "the operator can allow it with a rule under policies/".to_owned(),
    };
    assert_eq!(denial.to_string(), "denied by rule `default-deny`: no rule allows `bash`");
    assert_eq!(decide(&policy(&[]), "bash"), Err(denial));
}

#[test]
fn the_shipped_policy_allows_the_shell_and_the_calculator_and_nothing_else() {
    let decision = |tool| {
        decide(&shipped_policy(), tool)
            .map(|grant| {
                let job = grant.job();
                (grant.rule().to_owned(), job.profile.to_string(), job.limits.wall.as_secs())
            })
            .map_err(|denial| denial.rule)
    };
    let allowed = |rule: &str, profile: &str, wall| Ok((rule.to_owned(), profile.to_owned(), wall));
    assert_eq!(decision("bash"), allowed("shell", "bash", 600));
    assert_eq!(decision("calculate"), allowed("calculator", "bc", 30));
    assert_eq!(decision("calculate_advanced"), allowed("calculator", "bc", 30));
    assert_eq!(decision("python"), Err("default-deny".to_owned()));
}

#[test]
fn a_denial_wins_over_an_allowance_in_any_order() {
    let allow = allow("yes", "");
    for rules in [[DENY, &allow], [&allow, DENY]] {
        let denial = decide(&policy(&rules), "bash").map(|grant| grant.rule().to_owned());
        assert_eq!(denial.map_err(|denial| denial.why), Err("closed today".to_owned()));
    }
}

#[test]
fn the_lowest_of_every_limit_wins_in_any_order() {
    let a = allow("a", "timeout = \"20s\", memory = \"512M\"");
    let b = allow("b", "timeout = 10, processes = 9");
    let c = allow("c", "output = \"1M\"");
    let d = allow("d", "timeout = 10");
    for rules in [[&a, &b, &c, &d], [&d, &c, &b, &a], [&c, &a, &d, &b]] {
        let grant = decide(&policy(&rules.map(String::as_str)), "bash");
        let terms = grant.map(|grant| {
            let limits = grant.job().limits;
            (grant.rule().to_owned(), limits.wall, limits.memory, limits.processes, limits.output)
        });
        let expected = ("b".to_owned(), Duration::from_secs(10), 512 * MIB, 9, Some(MIB));
        assert_eq!(terms, Ok(expected));
    }
}

#[test]
fn a_caller_lowers_limits_and_never_raises_them() {
    let decide = |asked| {
        let grant = shipped_policy().decide(
            &Principal::local(),
            call("bash", asked),
            &profiles(),
            Workspace::Fresh.into(),
        );
        grant.map(|grant| {
            (grant.job().limits.wall.as_secs(), grant.job().limits.memory, grant.clamped())
        })
    };
    assert_eq!(decide(wall(5)), Ok((5, GIB, false)));
    assert_eq!(decide(wall(601)), Ok((600, GIB, true)));
    assert_eq!(decide(Asked { memory: Some(4 * GIB), ..wall(600) }), Ok((600, GIB, true)));
}

#[test]
fn a_granted_workspace_is_for_profiles_that_have_one() {
    let policy = shipped_policy();
    let start = |tool| {
        let grant = policy.decide(
            &Principal::local(),
            call(tool, Asked::default()),
            &profiles(),
            Workspace::Granted(model::job::GrantId(3)).into(),
        );
        grant.map(|grant| (grant.job().workspace, grant.job().cwd.clone()))
    };
    assert_eq!(start("bash"), Ok((Workspace::Granted(model::job::GrantId(3)), Cwd::workspace())));
    assert_eq!(start("calculate"), Ok((Workspace::Fresh, Cwd::tmp())));
}

#[test]
fn the_operator_gets_the_profile_limits_and_no_bound_on_output() {
    let profiles = profiles();
    let bash = ProfileName::new("bash").and_then(|name| profiles.get(&name).cloned());
    let Some(bash) = bash else { panic!("no bash") };
    let grant = Policy::operator(call("run", Asked::default()), &bash, Workspace::Fresh);
    let expected = Limits { output: None, ..bash.limits };
    assert_eq!((grant.rule(), grant.clamped(), grant.job().limits), ("operator", false, expected));
}

#[test]
fn examples_are_tested_when_the_file_is_loaded() {
    let rule = |examples: &str| {
        mistake(&format!(
            "[[rule]]\nid = \"a\"\ntools = [\"bash\"]\naction = \"deny\"\nwhy = \"w\"\n{examples}"
        ))
    };
    assert_eq!(
        rule("matches = [{ tool = \"bash\" }, { tool = \"sh\" }]\n"),
        "p.toml:7:31: rule `a` should match and does not: `sh`"
    );
    assert_eq!(
        rule("matches = [{ tool = \"bash\" }]\nnot_matches = [{ tool = \"bash\" }]\n"),
        "p.toml:8:16: rule `a` should not match and does: `bash`"
    );
    assert_eq!(
        rule(""),
        "p.toml:3:6: rule `a` has no `matches` example\n\
         hint: every rule shows a call it is about: matches = [{ tool = \"…\" }]"
    );
}

#[test]
fn a_mistake_in_a_rule_is_reported_with_its_position_and_a_hint() {
    let good = allow("a", "");
    assert_eq!(
        mistake(&good.replace("profile = \"bash\"", "profile = \"bsh\"")),
        "p.toml:6:11: there is no profile `bsh` to run under\nhint: did you mean `bash`?"
    );
    assert_eq!(
        mistake(&good.replace("action = \"allow\"", "action = \"alow\"")),
        "p.toml:5:10: unknown variant `alow`, expected `allow` or `deny`\nhint: did you mean `allow`?"
    );
    assert_eq!(
        mistake(&good.replace("why = \"w\"\n", "")),
        "p.toml:2:1: missing field `why`\nhint: every grant and every rule says why it is there"
    );
    assert_eq!(
        mistake(&good.replace("profile = \"bash\"\n", "")),
        "p.toml:5:10: rule `a` allows and names no `profile`"
    );
    assert_eq!(
        mistake(&good.replace("\"allow\"", "\"deny\"")),
        "p.toml:6:11: rule `a` denies; a `profile` means nothing there"
    );
    assert_eq!(
        mistake(&allow("a", "timeout = \"601s\"")),
        "p.toml:9:22: `timeout` is above the profile's; a rule can only lower it"
    );
    assert_eq!(
        mistake(&allow("a", "memory = \"4M\"")),
        "p.toml:9:21: `memory` of 4M is less than a cell can start with\n\
         hint: 8M is the least; most programs need more"
    );
    assert_eq!(mistake(&format!("{good}{good}")), "p.toml:11:6: there are two rules `a`");
}

#[test]
fn two_rules_cannot_send_one_tool_to_two_profiles() {
    let other = allow("b", "timeout = 5").replace("profile = \"bash\"", "profile = \"bc\"");
    assert_eq!(
        mistake(&format!("{}{other}", allow("a", ""))),
        "p.toml:11:6: rules `a` and `b` allow `bash` under different profiles, `bash` and `bc`"
    );
}

#[test]
fn a_policy_that_extends_the_shipped_one_has_its_rules_and_replaces_them_by_id() {
    let extending = |rules: &str| format!("extends = \"shipped\"\n{rules}");
    let ids = |policy: &Policy| -> Vec<String> {
        policy.rules().iter().map(|rule| rule.id.clone()).collect()
    };
    let shipped = ids(&shipped_policy());
    let extra = allow("extra", "")
        .replace("\"bash\"]", "\"extra\"]")
        .replace("{ tool = \"bash\" }", "{ tool = \"extra\" }");
    let all = policy(&[&extending(&extra)]);
    assert_eq!(ids(&all), [shipped.clone(), vec!["extra".to_owned()]].concat());

    let mine = allow("shell", "timeout = 5").replace("profile = \"bash\"", "profile = \"bc\"");
    let replaced = policy(&[&extending(&mine)]);
    let shells: Vec<&Rule> = replaced.rules().iter().filter(|rule| rule.id == "shell").collect();
    assert!(matches!(shells.as_slice(), [rule] if rule.file == "p.toml"), "{shells:?}");
    assert_eq!(replaced.rules().len(), shipped.len());

    let other = allow("b", "").replace("profile = \"bash\"", "profile = \"bc\"");
    let message = mistake(&extending(&other));
    let hint = "`bash` and `bc`\nhint: a rule with the id `shell` replaces it";
    assert!(message.ends_with(hint), "{message}");
    let unknown =
        "p.toml:2:11: unknown variant `shiped`, expected `shipped`\nhint: did you mean `shipped`?";
    assert_eq!(mistake("extends = \"shiped\"\n"), unknown);
    // Without `extends` the compiled-in rules do not apply.
    assert_eq!(ids(&policy(&[&extra])), ["extra"]);
}

#[test]
fn every_shipped_rule_says_why() {
    for rule in shipped_policy().rules() {
        assert!(rule.why.len() > 20, "{rule:?}");
    }
}

proptest::proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC*") {
        let _message = mistake(&text);
    }
}

#[test]
fn the_shipped_tools_parse_and_have_unique_names() {
    let (rules, commands) = rules::parse(&[shipped_commands()], &profiles())
        .unwrap_or_else(|mistake| panic!("{mistake}"));
    assert!(rules.is_empty(), "a flag list allows nothing by itself");
    assert_eq!(shipped_policy().commands(), commands);
    let mut names: Vec<&str> = commands.iter().map(|command| command.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, SHIPPED_COMMANDS);
    let unread = shipped_policy();
    assert_eq!(["cli_jq", "bash"].map(|tool| unread.declares(tool)), [true, false]);
    assert!(!Policy::none().declares("cli_jq"));
}

#[test]
fn a_grant_has_its_principal_and_its_context_from_the_start() {
    let owner = ProfileName::new("bash").unwrap_or_else(|| panic!("a name"));
    let context =
        |workspace| JobContext { workspace, owner: Some(owner.clone()), changes: ListChanges::Yes };
    let granted = |tool, workspace| {
        let call = call(tool, Asked::default());
        let local = Principal::local();
        let given = context(workspace);
        let grant = shipped_policy().decide(&local, call, &profiles(), given);
        grant.unwrap_or_else(|denial| panic!("{denial}"))
    };
    let session = Workspace::Session(model::job::SessionId(7));
    let grant = granted("bash", session);
    assert_eq!(grant.principal(), &Principal::local());
    assert_eq!((grant.job().workspace, grant.job().changes), (session, ListChanges::Yes));
    assert_eq!(grant.job().session_profile, None, "the profile of the session is its own");
    // The calculator's profile has no workspace, so no data of a session reaches it.
    let grant = granted("calculate", session);
    assert_eq!(grant.job().workspace, Workspace::Fresh);
    assert_eq!(grant.job().session_profile, None);
}

#[test]
fn a_projects_tools_have_its_rule_and_each_can_be_denied_by_its_name() {
    let rule = |tool: &str, action: &str| {
        format!(
            "[[rule]]\nid = \"{action}\"\ntools = [\"{tool}\"]\naction = \"{action}\"\nwhy = \"test\"\n\
             matches = [{{ tool = \"{tool}\" }}]\nnot_matches = [{{ tool = \"bc\" }}]\n"
        )
    };
    let all = rule("project", "allow") + "profile = \"bash\"\n";
    let some = policy(&[&all, &rule("project:two", "deny")]);
    let rule_of = |tool| decide(&some, tool).map(|grant| grant.rule().to_owned());
    assert_eq!(rule_of("project:one"), Ok("allow".to_owned()));
    assert_eq!(rule_of("project:two").map_err(|denial| denial.rule), Err("deny".to_owned()));
    // The name of a built-in tool after the prefix does not select its rule.
    let shell = allow("shell", "");
    assert!(decide(&policy(&[&shell]), "bash").is_ok());
    assert!(decide(&policy(&[&shell]), "project:bash").is_err());
}

#[test]
fn a_rule_may_be_about_some_clients_and_decides_for_no_other() {
    let deny = "[[rule]]\nid = \"no-shell\"\ntools = [\"bash\"]\nclients = [\"ci\"]\naction = \"deny\"\n\
        why = \"it computes\"\nmatches = [{ tool = \"bash\", client = \"ci\" }]\n\
        not_matches = [{ tool = \"bash\", client = \"bob\" }]\n";
    let lower = "[[rule]]\nid = \"short\"\ntools = [\"bash\"]\nclients = [\"bob\"]\naction = \"allow\"\n\
        profile = \"bash\"\nlimits = { timeout = \"7s\" }\nwhy = \"he is quick\"\nmatches = [{ tool = \"bash\" }]\n";
    let text = format!("schema = 1\nextends = \"shipped\"\n{deny}{lower}");
    let policy = Policy::parse(&[Document::new("f", &text)], &profiles()).expect("it is right");
    let ci = Principal::named("ci");
    let bob = Principal::named("bob");
    let eve = Principal::named("eve");
    let decided = |client: &Principal| {
        let grant = policy.decide(
            client,
            call("bash", Asked::default()),
            &profiles(),
            Workspace::Fresh.into(),
        );
        grant.map(|grant| grant.job().limits.wall.as_secs()).map_err(|denial| denial.rule)
    };
    assert_eq!(decided(&ci), Err("no-shell".to_owned()));
    assert_eq!((decided(&bob), decided(&eve)), (Ok(7), Ok(600)));
    let terms = |client: &Principal| {
        policy
            .for_client(client)
            .terms("bash", &profiles())
            .map(|terms| terms.limits.wall.as_secs())
            .ok()
    };
    assert_eq!((terms(&ci), terms(&bob), terms(&eve)), (None, Some(7), Some(600)));
    let none = text.replace("[\"ci\"]\n", "[]\n");
    let bad = Policy::parse(&[Document::new("f", &none)], &profiles()).expect_err("nobody");
    assert!(bad.to_string().contains("names no client"), "{bad}");
    let wrong = text.replace("client = \"bob\" }", "client = \"ci\" }");
    let bad = Policy::parse(&[Document::new("f", &wrong)], &profiles()).expect_err("an example");
    assert!(bad.to_string().contains("should not match and does"), "{bad}");
}
