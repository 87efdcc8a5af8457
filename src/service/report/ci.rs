//! Files by which a host of repositories runs programs for a project: daily work, and not run by the operator's machine.

/// Directories whose files a CI service runs, by their last names.
const DIRECTORIES: [&[u8]; 14] = [
    b".github/workflows",
    b".github/actions",
    b".gitea/workflows",
    b".forgejo/workflows",
    b".gitlab/ci",
    b".circleci",
    b".buildkite",
    b".woodpecker",
    b".azure-pipelines",
    b".teamcity",
    b".semaphore",
    b".harness",
    b".tekton",
    b".builds",
];
const FILES: [&[u8]; 22] = [
    b".gitlab-ci.yml",
    b".gitlab-ci.yaml",
    b".travis.yml",
    b".drone.yml",
    b".cirrus.yml",
    b".cirrus.star",
    b".woodpecker.yml",
    b".woodpecker.yaml",
    b".build.yml",
    b".appveyor.yml",
    b"appveyor.yml",
    b"azure-pipelines.yml",
    b"azure-pipelines.yaml",
    b"bitbucket-pipelines.yml",
    b"buildspec.yml",
    b"cloudbuild.yaml",
    b"cloudbuild.yml",
    b"codemagic.yaml",
    b"wercker.yml",
    b"bitrise.yml",
    b"netlify.toml",
    b"Jenkinsfile",
];

/// Returns whether a file of a workspace is one of these, in whatever directory the project lies.
pub fn runs(path: &[u8]) -> bool {
    let mut parts = path.rsplit(|byte| *byte == b'/');
    if parts.next().is_some_and(|name| FILES.contains(&name)) {
        return true;
    }
    DIRECTORIES.iter().any(|directory| {
        let starts = path.strip_prefix(*directory).is_some_and(|rest| rest.starts_with(b"/"));
        let inside = || {
            let place = [b"/", *directory, b"/"].concat();
            path.windows(place.len()).any(|part| part == place)
        };
        starts || inside()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workflow_is_known_in_any_directory_and_by_its_whole_names() {
        for path in [
            ".github/workflows/ci.yml",
            "vendor/p/.github/workflows/deep/ci.yml",
            ".gitlab-ci.yml",
            "p/Jenkinsfile",
            ".circleci/config.yml",
        ] {
            assert!(runs(path.as_bytes()), "{path}");
        }
        for path in [
            ".github/CODEOWNERS",
            "x.github/workflows/ci.yml",
            "workflows/ci.yml",
            "Jenkinsfile.md",
        ] {
            assert!(!runs(path.as_bytes()), "{path}");
        }
    }
}
