//! The files of packaging/kubernetes: their flags, keys, ports, files and sizes agree with each other and with the
//! program. `tests/scale/manifests` parses them and validates them against the schemas of Kubernetes.

use std::path::Path;
use std::time::Duration;

use clap::Parser;
use cofferdam::commands::{Cli, Command};
use config::Config;
use config::document::Document;
use model::defaults::GIB;

const DIRECTORY: &str = "packaging/kubernetes";
const WORKLOADS: [&str; 2] = ["requests", "sessions"];

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DIRECTORY).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn configuration(workload: &str) -> Config {
    let name = format!("{workload}.toml");
    Config::parse(Some(&Document::new(&name, &read(&name))), 2).expect("a right configuration")
}

/// Returns the text after each `key`, up to a comma, a brace or the end of the line, without quotes.
fn values<'t>(text: &'t str, key: &str) -> Vec<&'t str> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let after = lines.filter_map(|line| {
        let (before, rest) = line.split_once(key)?;
        let is_whole = before.is_empty() || before.ends_with([' ', '{', '-']);
        is_whole.then(|| rest.split([',', '}']).next().unwrap_or_default().trim().trim_matches('"'))
    });
    after.filter(|value| !value.is_empty()).collect()
}

/// Returns the only value of a key.
fn value<'t>(text: &'t str, key: &str) -> &'t str {
    match values(text, key)[..] {
        [value] => value,
        ref other => panic!("{key} has one value: {other:?}"),
    }
}

/// Returns the part of a manifest with the container that serves.
fn container(manifest: &str) -> &str {
    let (_, rest) = manifest.split_once("- name: cofferdam\n").expect("the container");
    rest.split("\n      volumes:\n").next().unwrap_or_default()
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is a number"))
}

#[test]
fn the_command_line_and_the_ports_of_the_manifests_are_real() {
    for workload in WORKLOADS {
        let manifest = read(&format!("{workload}.yaml"));
        let command = manifest.lines().find_map(|line| line.trim().strip_prefix("command: ["));
        let words: Vec<String> =
            serde_json::from_str(&format!("[{}", command.expect("a command"))).expect("a list");
        let cli = Cli::try_parse_from(&words).expect("flags that there are");
        assert_eq!(cli.config.as_deref(), Some(Path::new("/etc/cofferdam")));
        let Command::Serve(arguments) = cli.command else { panic!("{words:?}") };
        let address = arguments.0.listener.http.expect("an address");
        let port = value(&manifest, "containerPort:");
        assert_eq!(address, format!("0.0.0.0:{port}"));
        let ports = values(&manifest, "port:");
        assert_eq!(
            ports.iter().filter(|port| **port == "https").count(),
            3,
            "three probes: {ports:?}"
        );
        assert!(values(&manifest, "targetPort:").iter().all(|port| *port == "https"));
        assert_eq!(value(&read("network-policy.yaml"), "port:"), "https");
        assert!(!manifest.contains('\t') && !manifest.contains(" \n"), "{workload}");
    }
}

#[test]
fn the_configurations_of_the_manifests_name_files_that_the_pods_have() {
    let readme = read("README.md");
    let kustomization = read("kustomization.yaml");
    for workload in WORKLOADS {
        let http = configuration(workload).http;
        let manifest = read(&format!("{workload}.yaml"));
        let mounted = "mountPath: /etc/cofferdam, subPath: configuration";
        assert!(manifest.contains(mounted), "{workload}");
        let tokens = http.tokens.value.iter().map(|token| token.file.clone());
        let tls = [http.certificate.value, http.key.value].into_iter().flatten();
        let files: Vec<_> = tokens.chain(tls).collect();
        assert_eq!(files.len(), 3);
        for file in files {
            assert_eq!(file.parent(), Some(Path::new("/etc/cofferdam")));
            let name = file.file_name().expect("a name").to_string_lossy().into_owned();
            assert!(readme.contains(&name), "README.md makes {name}");
        }
        assert!(kustomization.contains(&format!("cofferdam.toml={workload}.toml")));
        assert!(kustomization.contains(&format!("  - {workload}.yaml")));
        let name = format!("cofferdam-{workload}");
        assert!(kustomization.contains(&format!("  - name: {name}\n")));
        assert_eq!(value(&manifest, "configMap: { name:"), name);
        let profile = value(&manifest, "localhostProfile:");
        let there =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/containers").join(profile);
        assert!(there.exists(), "{profile}");
        let service = format!("{name}.cofferdam.svc");
        assert!(http.hosts.value.contains(&service), "{service}");
    }
}

#[test]
fn pods_have_the_memory_and_the_times_that_their_configuration_needs() {
    for workload in WORKLOADS {
        let config = configuration(workload);
        let manifest = read(&format!("{workload}.yaml"));
        let limits = container(&manifest).lines().find(|line| line.contains("limits: {"));
        let memory = value(limits.expect("limits"), "memory:");
        let memory = number(memory.strip_suffix("Gi").expect("GiB")) * GIB;
        assert_eq!(memory, config.memory.value + config.tmpfs.value + GIB, "{workload}");
        let readiness = manifest.split("readinessProbe:").nth(1).expect("a probe");
        let (readiness, _) = readiness.split_once("livenessProbe:").expect("another one");
        let notice = number(value(readiness, "periodSeconds:"))
            * number(value(readiness, "failureThreshold:"));
        let pre_stop = config.http.pre_stop.value.expect("a time");
        assert!(pre_stop > Duration::from_secs(notice), "{workload}: {pre_stop:?}, {notice} s");
        let grace = number(value(&manifest, "terminationGracePeriodSeconds:"));
        assert!(Duration::from_secs(grace) > pre_stop + config.http.drain.value, "{workload}");
    }
    let pending = value(&read("requests.yaml"), "averageValue:").to_owned();
    let concurrency = u64::from(configuration("requests").concurrency.value);
    assert_eq!(number(&pending), 2 * concurrency, "two calls for each that may run at once");
}

#[test]
fn values_are_those_of_whole_keys_outside_of_comments() {
    let text = "a: 1\n# a: 2\nba: 3\n  - { a: \"4\", b: 5 }\na:\n";
    assert_eq!(values(text, "a:"), ["1", "4"]);
}
