//! Claims about intercepted requests and secrets.

use super::Claim;
use crate::world::{Lab, READ, SECRET, SEED};

pub(super) const ALL: &[Claim] = &[
    ("requests_of_a_rule_are_judged_one_by_one", requests),
    ("a_secret_is_put_in_by_the_gateway_and_never_in_the_cell", secret),
];

fn requests(lab: &Lab) {
    let cell = lab.cell(READ);
    let curl =
        |words: &str| cell.run(&format!("curl -sS --cacert {} {words}", lab.path("authority")));
    assert_eq!(curl("https://web.test/ok/a"), "hello web.test 0\n");
    assert_eq!(curl("-6 https://web.test/ok/a"), "hello web.test 0\n");
    assert_eq!(curl("http://api.test/ok/a"), "hello api.test 0\n");
    assert_eq!(
        curl("-T /proc/self/environ https://web.test/ok/a").matches("hello web.test").count(),
        1
    );
    for words in [
        "https://web.test/no",
        "-d x https://web.test/ok/a",
        "http://web.test/no",
        "-H Host:other.test https://web.test/ok/a",
    ] {
        let said = curl(&format!("-i {words}"));
        assert!(said.contains(" 403 ") && said.contains("cofferdam: denied: "), "{words}: {said}");
    }
    // The same address under a name without a rule; then a client without the authority's
    // certificate.
    assert!(curl("https://other.test/ok/a").contains("Could not resolve"), "other.test");
    let trusted = cell.run("curl -sS https://web.test/ok/a");
    assert!(trusted.contains("certificate"), "{trusted}");
    let tally = cell.tally(1);
    let denied: Vec<_> = tally.denied.iter().map(|it| format!("{}; {}", it.to, it.why)).collect();
    assert!(
        denied.contains(&"POST https://web.test/ok/a; rule api takes GET, PUT".to_owned()),
        "{denied:?}"
    );
    assert!(
        denied.contains(&"GET http://web.test/no; rule api takes GET for other paths".to_owned()),
        "{denied:?}"
    );
    assert!(tally.sent > 1_000 && tally.received > 1_000, "{tally:?}");
}

fn secret(lab: &Lab) {
    let cell = lab.cell(READ);
    let placeholder = model::egress::placeholder("token", &SEED);
    let mut curl = cell.command("curl");
    curl.args(["-sS", "--cacert", &lab.path("authority"), "https://api.test/ok/a"]);
    let output =
        curl.args(["-H", &format!("Authorization: Bearer {placeholder}")]).output().expect("curl");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("welcome") && said.contains("Bearer *****") && !said.contains(SECRET),
        "{said}"
    );
    let mut curl = cell.command("curl");
    curl.args(["-sSi", "--cacert", &lab.path("authority")]);
    let output =
        curl.arg(format!("https://api.test/ok/a?token={placeholder}")).output().expect("curl");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(" 403 ") && said.contains("placeholder"), "{said}");
    let tally = cell.tally(1);
    assert_eq!(tally.denied.len(), 1, "{tally:?}");
    assert!(!format!("{tally:?}").contains(SECRET), "{tally:?}");
}
