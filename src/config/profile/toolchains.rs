//! Tool chains outside of `/usr`: the parts of a home directory that each of them needs, read-only.
//!
//! *Invariant:* a row only names parts with programs and downloaded packages, never a directory in
//! which the tool keeps a credential: `~/.cargo` has `credentials.toml`, `~/.m2` has
//! `settings.xml`, `~/.gradle` has `gradle.properties`.

use std::fmt;
use std::str::FromStr;

use model::nearest::nearest;

/// A tool chain, as installed by its manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Toolchain {
    /// Name in `--toolchains`.
    pub name: &'static str,
    /// Files and directories that a cell gets at the same path; `~/` is the operator's home. In a
    /// name `*` matches any text, `[0-9]` a digit, and `{one,other}` one of the alternatives.
    pub paths: &'static [&'static str],
    /// Files below those paths in which users may keep credentials, in the same notation. A path
    /// with such a file is not granted.
    pub credentials: &'static [&'static str],
    /// Variables that cells get, with a path in the same notation or another word.
    pub variables: &'static [(&'static str, &'static str)],
}

/// All tool chains that are looked for.
pub const TOOLCHAINS: &[Toolchain] = &[
    Toolchain {
        name: "rust",
        paths: &[
            "~/.cargo/bin",
            // Dependencies from git. Without FETCH_HEAD of the clones, which contains the fetched
            // URL.
            "~/.cargo/git/checkouts/*/*",
            "~/.cargo/git/db/*/HEAD",
            "~/.cargo/git/db/*/config",
            "~/.cargo/git/db/*/objects",
            "~/.cargo/git/db/*/packed-refs",
            "~/.cargo/git/db/*/refs",
            "~/.cargo/registry/cache",
            // Not the whole index: a clone of one contains its URL, which may include a password.
            "~/.cargo/registry/index/*/.cache",
            "~/.cargo/registry/index/*/config.json",
            "~/.cargo/registry/src",
            "~/.rustup/settings.toml",
            "~/.rustup/toolchains",
            // The proxies of rustup create it if it is missing.
            "~/.rustup/update-hashes",
        ],
        // A submodule contains its URL.
        credentials: &["~/.cargo/git/checkouts/*/*/.git/modules/*"],
        variables: &[
            ("CARGO_HOME", "~/.cargo"),
            ("CARGO_NET_OFFLINE", "true"),
            ("RUSTUP_HOME", "~/.rustup"),
        ],
    },
    Toolchain {
        name: "nvm",
        paths: &["~/.nvm/alias", "~/.nvm/nvm.sh", "~/.nvm/versions"],
        credentials: &[
            "~/.nvm/versions/*/*/etc/npmrc",
            "~/.nvm/versions/*/*/lib/node_modules/npm/npmrc",
        ],
        variables: &[("NVM_DIR", "~/.nvm")],
    },
    Toolchain {
        name: "fnm",
        paths: &["~/.local/share/fnm/aliases", "~/.local/share/fnm/node-versions"],
        credentials: &[
            "~/.local/share/fnm/node-versions/*/installation/etc/npmrc",
            "~/.local/share/fnm/node-versions/*/installation/lib/node_modules/npm/npmrc",
        ],
        variables: &[],
    },
    Toolchain {
        name: "volta",
        paths: &["~/.volta/bin", "~/.volta/tools"],
        credentials: &[
            "~/.volta/tools/image/node/*/etc/npmrc",
            "~/.volta/tools/image/node/*/lib/node_modules/npm/npmrc",
            "~/.volta/tools/image/npm/*/npmrc",
            "~/.volta/tools/image/packages/*/etc/npmrc",
            "~/.volta/tools/image/packages/*/*/etc/npmrc",
        ],
        variables: &[("VOLTA_HOME", "~/.volta")],
    },
    Toolchain {
        name: "pyenv",
        paths: &[
            "~/.pyenv/bin",
            "~/.pyenv/libexec",
            // Not a whole plugin: its clone contains its URL, which may include a password.
            "~/.pyenv/plugins/*/bin",
            "~/.pyenv/plugins/*/etc",
            "~/.pyenv/plugins/*/libexec",
            "~/.pyenv/plugins/*/shims",
            "~/.pyenv/pyenv.d",
            "~/.pyenv/shims",
            "~/.pyenv/version",
            // Separate entries, so that one with a credential is withheld by itself.
            "~/.pyenv/versions/*",
        ],
        credentials: &[
            "~/.pyenv/versions/*/pip.conf",
            "~/.pyenv/versions/*/etc/pip.conf",
            "~/.pyenv/versions/*/envs/*/pip.conf",
            // A version may be conda's, whose channel URLs may include tokens.
            "~/.pyenv/versions/*/.condarc",
            "~/.pyenv/versions/*/condarc",
            "~/.pyenv/versions/*/condarc.d/*",
            "~/.pyenv/versions/*/conda-meta/history",
            // Variables of an environment, and those set by its activation: conda's manual keeps
            // keys there.
            "~/.pyenv/versions/*/conda-meta/state",
            "~/.pyenv/versions/*/etc/conda/activate.d/*",
            "~/.pyenv/versions/*/.mambarc",
            "~/.pyenv/versions/*/mambarc",
            "~/.pyenv/versions/*/pkgs/cache/*.json",
            "~/.pyenv/versions/*/pkgs/urls*",
            "~/.pyenv/versions/*/envs/*/.condarc",
            "~/.pyenv/versions/*/envs/*/condarc",
            "~/.pyenv/versions/*/envs/*/condarc.d/*",
            "~/.pyenv/versions/*/envs/*/conda-meta/history",
            "~/.pyenv/versions/*/envs/*/conda-meta/state",
            "~/.pyenv/versions/*/envs/*/etc/conda/activate.d/*",
            "~/.pyenv/versions/*/envs/*/.mambarc",
            "~/.pyenv/versions/*/envs/*/mambarc",
            // The password or token of the notebook server.
            "~/.pyenv/versions/*/etc/jupyter/*.json",
            "~/.pyenv/versions/*/etc/jupyter/*.py",
            "~/.pyenv/versions/*/envs/*/etc/jupyter/*.json",
            "~/.pyenv/versions/*/envs/*/etc/jupyter/*.py",
            // An editable clone made by pip contains its URL.
            "~/.pyenv/versions/*/src/*/.git/config",
            "~/.pyenv/versions/*/envs/*/src/*/.git/config",
            "~/.pyenv/versions/*/lib/python*/distutils/distutils.cfg",
            "~/.pyenv/versions/*/envs/*/lib/python*/distutils/distutils.cfg",
        ],
        variables: &[("PYENV_ROOT", "~/.pyenv")],
    },
    Toolchain {
        name: "uv",
        paths: &["~/.local/bin/uv", "~/.local/bin/uvx", "~/.local/share/uv/python"],
        credentials: &[
            "~/.local/share/uv/python/*/pip.conf",
            "~/.local/share/uv/python/*/etc/pip.conf",
            "~/.local/share/uv/python/*/etc/jupyter/*.json",
            "~/.local/share/uv/python/*/etc/jupyter/*.py",
            "~/.local/share/uv/python/*/lib/python*/distutils/distutils.cfg",
        ],
        variables: &[],
    },
    Toolchain {
        name: "go",
        // Not the whole ~/sdk, where other tools keep their kits and keys. Of the modules, each
        // host's directory and the downloads; not cache/vcs, whose clones contain URLs that may
        // include passwords.
        paths: &["~/go/bin", "~/go/pkg/mod/*.*", "~/go/pkg/mod/cache/download", "~/sdk/go1*"],
        credentials: &[],
        variables: &[("GOMODCACHE", "~/go/pkg/mod")],
    },
    Toolchain {
        name: "sdkman",
        // Not Maven: its settings are in the same directory as its programs.
        paths: &[
            "~/.sdkman/candidates/gradle",
            "~/.sdkman/candidates/groovy",
            "~/.sdkman/candidates/java",
            "~/.sdkman/candidates/kotlin",
            // Not its conf, whose options may contain passwords.
            "~/.sdkman/candidates/sbt/*/bin",
            "~/.sdkman/candidates/scala",
        ],
        credentials: &[
            "~/.sdkman/candidates/gradle/*/gradle.properties",
            "~/.sdkman/candidates/gradle/*/init.d/*.gradle",
            "~/.sdkman/candidates/gradle/*/init.d/*.gradle.kts",
            "~/.sdkman/candidates/java/*/conf/management/jmxremote.password",
            "~/.sdkman/candidates/java/*/conf/management/snmp.acl",
            "~/.sdkman/candidates/java/*/jre/lib/management/jmxremote.password",
            "~/.sdkman/candidates/java/*/jre/lib/management/snmp.acl",
            "~/.sdkman/candidates/java/*/lib/management/jmxremote.password",
            "~/.sdkman/candidates/java/*/lib/management/snmp.acl",
        ],
        variables: &[("SDKMAN_DIR", "~/.sdkman")],
    },
    Toolchain {
        name: "maven",
        // Not a whole distribution: each has a conf/settings.xml, which may contain passwords of
        // servers.
        paths: &[
            "~/.m2/repository",
            "~/.m2/wrapper/dists/*/*/bin",
            "~/.m2/wrapper/dists/*/*/boot",
            "~/.m2/wrapper/dists/*/*/conf/logging",
            "~/.m2/wrapper/dists/*/*/lib",
            "~/.m2/wrapper/dists/*/*/*/bin",
            "~/.m2/wrapper/dists/*/*/*/boot",
            "~/.m2/wrapper/dists/*/*/*/conf/logging",
            "~/.m2/wrapper/dists/*/*/*/lib",
        ],
        credentials: &[],
        variables: &[],
    },
    Toolchain {
        name: "gradle",
        paths: &["~/.gradle/wrapper"],
        credentials: &[
            "~/.gradle/wrapper/dists/*/*/*/gradle.properties",
            "~/.gradle/wrapper/dists/*/*/*/init.d/*.gradle",
            "~/.gradle/wrapper/dists/*/*/*/init.d/*.gradle.kts",
        ],
        variables: &[],
    },
    Toolchain {
        name: "bun",
        paths: &["~/.bun/bin"],
        credentials: &[],
        variables: &[("BUN_INSTALL", "~/.bun")],
    },
    Toolchain { name: "deno", paths: &["~/.deno/bin"], credentials: &[], variables: &[] },
    Toolchain {
        name: "homebrew",
        paths: &[
            // Separate entries, so that one with a credential is withheld by itself.
            "/home/linuxbrew/.linuxbrew/Cellar/*",
            "/home/linuxbrew/.linuxbrew/bin",
            "/home/linuxbrew/.linuxbrew/include",
            "/home/linuxbrew/.linuxbrew/lib",
            "/home/linuxbrew/.linuxbrew/opt",
            "/home/linuxbrew/.linuxbrew/share",
        ],
        credentials: &[
            "/home/linuxbrew/.linuxbrew/Cellar/*/*/pip.conf",
            "/home/linuxbrew/.linuxbrew/Cellar/*/*/lib/python*/distutils/distutils.cfg",
            "/home/linuxbrew/.linuxbrew/Cellar/*/*/libexec/conf/settings.xml",
            "/home/linuxbrew/.linuxbrew/Cellar/*/*/libexec/conf/sbtopts",
            "/home/linuxbrew/.linuxbrew/Cellar/*/*/libexec/conf/tomcat-users.xml",
            "/home/linuxbrew/.linuxbrew/Cellar/*/*/libexec/gradle.properties",
            "/home/linuxbrew/.linuxbrew/Cellar/*/*/libexec/init.d/*.gradle",
            "/home/linuxbrew/.linuxbrew/Cellar/*/*/libexec/init.d/*.gradle.kts",
            "/home/linuxbrew/.linuxbrew/Cellar/*/*/libexec/conf/management/jmxremote.password",
            "/home/linuxbrew/.linuxbrew/Cellar/*/*/libexec/conf/management/snmp.acl",
            "/home/linuxbrew/.linuxbrew/Cellar/*/*/etc/npmrc",
        ],
        variables: &[],
    },
    Toolchain {
        name: "opt",
        // By name and version, and only the parts that the installer makes: other software keeps
        // data and keys in /opt too, and tools have settings next to these parts. Not Maven.
        paths: &[
            "/opt/{cmake,cmake-[0-9]*}/{bin,share}",
            "/opt/{go,go[0-9]*,go-[0-9]*}/{VERSION,bin,lib,pkg,src}",
            "/opt/{gradle,gradle-[0-9]*,gradle/gradle-[0-9]*}/{bin,lib}",
            "/opt/{java,java-[0-9]*,java/openjdk,java/[0-9]*,java/jdk-[0-9]*}/{bin,jmods,lib,release}",
            "/opt/{java,java-[0-9]*,java/openjdk,java/[0-9]*,java/jdk-[0-9]*}/jre/{bin,lib}",
            "/opt/{java,java-[0-9]*,java/openjdk,java/[0-9]*,java/jdk-[0-9]*}/conf/{net.properties,security}",
            "/opt/{jdk,jdk[0-9]*,jdk-[0-9]*,openjdk,openjdk-[0-9]*}/{bin,jmods,lib,release}",
            "/opt/{jdk,jdk[0-9]*,jdk-[0-9]*,openjdk,openjdk-[0-9]*}/jre/{bin,lib}",
            "/opt/{jdk,jdk[0-9]*,jdk-[0-9]*,openjdk,openjdk-[0-9]*}/conf/{net.properties,security}",
            "/opt/{graalvm,graalvm-*[0-9]*}/{bin,jmods,languages,lib,release}",
            "/opt/{graalvm,graalvm-*[0-9]*}/conf/{net.properties,security}",
            "/opt/{node,node-v[0-9]*,node/[0-9]*,node/v[0-9]*,nodejs}/{bin,include,lib,share}",
            "/opt/{python,python[0-9]*,python-[0-9]*,python/[0-9]*}/{bin,include,lib,share}",
            "/opt/{zig,zig-*[0-9]*}/{lib,zig}",
        ],
        credentials: &[
            // A directory of the user's modules, not of Go itself.
            "/opt/*/pkg/mod/cache/vcs/*/config",
            "/opt/*/src/*/*/*/.git/config",
            "/opt/{*,*/*}/{lib,jre/lib}/management/{jmxremote.password,snmp.acl}",
            "/opt/{*,*/*}/lib/node_modules/npm/npmrc",
            "/opt/{*,*/*}/lib/python*/distutils/distutils.cfg",
        ],
        variables: &[],
    },
    Toolchain { name: "nix", paths: &["/nix/store"], credentials: &[], variables: &[] },
];

/// Program directories of these tool chains, in the notation of [`Toolchain::paths`], for cells of
/// an operator whose PATH contains none of them, as with a server that was not started from a
/// shell. The latest version is used.
pub const PROGRAMS: &[&str] = &[
    "~/.cargo/bin",
    "~/.nvm/versions/node/*/bin",
    "~/.local/share/fnm/node-versions/*/installation/bin",
    "~/.volta/bin",
    "~/.pyenv/shims",
    "~/.pyenv/bin",
    "~/.local/bin",
    "~/go/bin",
    "~/sdk/go1*/bin",
    "~/.sdkman/candidates/{gradle,groovy,java,kotlin,sbt,scala}/current/bin",
    "~/.bun/bin",
    "~/.deno/bin",
    "/home/linuxbrew/.linuxbrew/bin",
    "/opt/{cmake,cmake-[0-9]*}/bin",
    "/opt/{go,go[0-9]*,go-[0-9]*}/bin",
    "/opt/{gradle,gradle-[0-9]*,gradle/gradle-[0-9]*}/bin",
    "/opt/{java,java-[0-9]*,java/openjdk,java/[0-9]*,java/jdk-[0-9]*}/bin",
    "/opt/{jdk,jdk[0-9]*,jdk-[0-9]*,openjdk,openjdk-[0-9]*}/bin",
    "/opt/{graalvm,graalvm-*[0-9]*}/bin",
    "/opt/{node,node-v[0-9]*,node/[0-9]*,node/v[0-9]*,nodejs}/bin",
    "/opt/{python,python[0-9]*,python-[0-9]*,python/[0-9]*}/bin",
    "/opt/{zig,zig-*[0-9]*}",
];

/// Variables that point to downloads of the operator, to which cells cannot add, with the host of
/// the registry. Cells that can reach the registry do not get the variable, and download by
/// themselves.
pub const DOWNLOADED: [(&str, &str); 3] = [
    ("CARGO_HOME", "index.crates.io"),
    ("CARGO_NET_OFFLINE", "index.crates.io"),
    ("GOMODCACHE", "proxy.golang.org"),
];

/// Tool chains that cells get: the value of `--toolchains` and of `[toolchains] grant`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolchainChoice {
    /// All installed ones.
    Auto,
    None,
    Only(Vec<Toolchain>),
}

impl FromStr for ToolchainChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            names => {
                names.split(',').map(Toolchain::named).collect::<Result<_, _>>().map(Self::Only)
            }
        }
    }
}

impl fmt::Display for ToolchainChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            Self::Only(all) => {
                f.write_str(&all.iter().map(|one| one.name).collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// Expands the alternatives in a row into one path each.
#[must_use]
pub fn alternatives(row: &str) -> Vec<String> {
    let parts = row.split_once('{').and_then(|(before, rest)| {
        let (choices, after) = rest.split_once('}')?;
        Some((before, choices, after))
    });
    let Some((before, choices, after)) = parts else { return vec![row.to_owned()] };
    let each = |choice: &str| alternatives(&format!("{before}{choice}{after}"));
    choices.split(',').flat_map(each).collect()
}

impl Toolchain {
    /// Finds a tool chain by its name.
    ///
    /// # Errors
    /// The available names, or the nearest one.
    pub fn named(name: &str) -> Result<Self, String> {
        let toolchain = TOOLCHAINS.iter().find(|one| one.name == name).copied();
        let names = TOOLCHAINS.iter().map(|one| one.name);
        toolchain.ok_or_else(|| match nearest(name, names.clone()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the tool chains are {}", names.collect::<Vec<_>>().join(", ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files in which tools keep credentials.
    const CREDENTIALS: &[&str] = &[
        "~/.cargo/credentials",
        "~/.cargo/credentials.toml",
        "~/.cargo/config.toml",
        "~/.npmrc",
        "~/.config/pip/pip.conf",
        "~/.pip/pip.conf",
        "~/.pypirc",
        "~/.netrc",
        "~/.cargo/registry/index/*/.git/config",
        "~/.cargo/git/db/*/FETCH_HEAD",
        "~/go/pkg/mod/cache/vcs/*/config",
        "~/.m2/settings.xml",
        "~/.m2/settings-security.xml",
        "~/.m2/wrapper/dists/*/*/conf/settings.xml",
        "~/.m2/wrapper/dists/*/*/*/conf/settings.xml",
        "~/sdk/android/release.keystore",
        "~/.gradle/gradle.properties",
        "~/.docker/config.json",
        "~/.config/gh/hosts.yml",
        "~/.aws/credentials",
        "~/.config/gcloud/credentials.db",
        "~/.local/share/uv/credentials/credentials.toml",
        "~/.bunfig.toml",
        "~/.config/go/env",
        "~/.git-credentials",
        "~/.ssh/id_ed25519",
    ];

    #[test]
    fn no_row_reaches_a_file_with_a_credential() {
        for path in TOOLCHAINS.iter().flat_map(|one| one.paths).flat_map(|row| alternatives(row)) {
            assert!(path.starts_with("~/") || path.starts_with('/'), "{path}");
            for secret in CREDENTIALS {
                let below = secret.strip_prefix(&path).is_some_and(|rest| rest.starts_with('/'));
                assert!(!below && *secret != path, "{path} has {secret}");
            }
        }
    }

    #[test]
    fn every_credential_file_is_below_a_path_of_its_row() {
        for Toolchain { paths, credentials, .. } in TOOLCHAINS {
            let paths: Vec<String> = paths.iter().flat_map(|row| alternatives(row)).collect();
            for secret in credentials.iter().flat_map(|row| alternatives(row)) {
                let below = |path: &String| {
                    let fits = |pair: (&str, &str)| pair.0 == pair.1 || pair.1.contains('*');
                    let longer = secret.split('/').count() > path.split('/').count();
                    longer && path.split('/').zip(secret.split('/')).all(fits)
                };
                assert!(paths.iter().any(below), "{secret}");
            }
        }
    }

    #[test]
    fn a_choice_is_formatted_as_it_is_parsed() {
        for text in ["auto", "none", "rust", "rust,nvm"] {
            let choice: Result<ToolchainChoice, String> = text.parse();
            assert_eq!(choice.map(|choice| choice.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn an_unknown_name_is_reported_with_the_nearest() {
        assert_eq!(Toolchain::named("rust").map(|one| one.name), Ok("rust"));
        assert_eq!(Toolchain::named("rustt"), Err("did you mean `rust`?".to_owned()));
        assert!(Toolchain::named("quux").is_err_and(|names| names.contains("rust, nvm")));
    }
}
