//! Tool chains outside of `/usr`: which parts of a home directory each needs, read-only.
//!
//! *Invariant:* a row names parts that hold programs and downloaded packages, and never a directory in which the
//! tool keeps a credential: `~/.cargo` has `credentials.toml`, `~/.m2` has `settings.xml`, `~/.gradle` has
//! `gradle.properties`.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use model::nearest::nearest;

/// A tool chain, as its manager installs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Toolchain {
    /// Name in `--toolchains`.
    pub name: &'static str,
    /// Files and directories that a cell gets at the same path; `~/` is the operator's home. A `*` in a name is any
    /// text, `[0-9]` a digit, and `{one,other}` either.
    pub paths: &'static [&'static str],
    /// Files below those paths in which a user can have put a credential, written in the same way. A path with such a
    /// file is not granted.
    pub credentials: &'static [&'static str],
    /// Variables that cells get, with a path of the same form or another word.
    pub variables: &'static [(&'static str, &'static str)],
}

/// Every tool chain that is looked for.
pub const TOOLCHAINS: &[Toolchain] = &[
    Toolchain {
        name: "rust",
        paths: &[
            "~/.cargo/bin",
            // Dependencies from git. Of the clones not FETCH_HEAD, which has the address that was fetched from.
            "~/.cargo/git/checkouts/*/*",
            "~/.cargo/git/db/*/HEAD",
            "~/.cargo/git/db/*/config",
            "~/.cargo/git/db/*/objects",
            "~/.cargo/git/db/*/packed-refs",
            "~/.cargo/git/db/*/refs",
            "~/.cargo/registry/cache",
            // Not the index whole: a clone of one keeps the address that it came from, which may have a password.
            "~/.cargo/registry/index/*/.cache",
            "~/.cargo/registry/index/*/config.json",
            "~/.cargo/registry/src",
            "~/.rustup/settings.toml",
            "~/.rustup/toolchains",
            // The proxies of rustup make it where it is missing.
            "~/.rustup/update-hashes",
        ],
        // A submodule keeps the address that it came from.
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
            // Not a plugin whole: its clone keeps the address that it came from, which may have a password.
            "~/.pyenv/plugins/*/bin",
            "~/.pyenv/plugins/*/etc",
            "~/.pyenv/plugins/*/libexec",
            "~/.pyenv/plugins/*/shims",
            "~/.pyenv/pyenv.d",
            "~/.pyenv/shims",
            "~/.pyenv/version",
            // One by one, so that one with a credential is withheld alone.
            "~/.pyenv/versions/*",
        ],
        credentials: &[
            "~/.pyenv/versions/*/pip.conf",
            "~/.pyenv/versions/*/etc/pip.conf",
            "~/.pyenv/versions/*/envs/*/pip.conf",
            // A version may be conda's: its channels may have tokens in their addresses.
            "~/.pyenv/versions/*/.condarc",
            "~/.pyenv/versions/*/condarc",
            "~/.pyenv/versions/*/condarc.d/*",
            "~/.pyenv/versions/*/conda-meta/history",
            // Variables of an environment, and what its activation sets: conda's manual keeps keys there.
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
            // The server of notebooks: its password or token.
            "~/.pyenv/versions/*/etc/jupyter/*.json",
            "~/.pyenv/versions/*/etc/jupyter/*.py",
            "~/.pyenv/versions/*/envs/*/etc/jupyter/*.json",
            "~/.pyenv/versions/*/envs/*/etc/jupyter/*.py",
            // A clone that pip made to work on keeps the address that it came from.
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
        // Not ~/sdk whole: others keep their kits and keys there too. Of the modules each host's directory and what was
        // downloaded; not cache/vcs, whose clones keep addresses that may have a password.
        paths: &["~/go/bin", "~/go/pkg/mod/*.*", "~/go/pkg/mod/cache/download", "~/sdk/go1*"],
        credentials: &[],
        variables: &[("GOMODCACHE", "~/go/pkg/mod")],
    },
    Toolchain {
        name: "sdkman",
        // Not Maven: its own settings stand beside its programs.
        paths: &[
            "~/.sdkman/candidates/gradle",
            "~/.sdkman/candidates/groovy",
            "~/.sdkman/candidates/java",
            "~/.sdkman/candidates/kotlin",
            // Not its conf, whose options may have passwords.
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
        // Not a distribution whole: each has a conf/settings.xml, which may hold the passwords of servers.
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
            // One by one, so that one with a credential is withheld alone.
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
        // By name and version, and of each the parts that its installer makes: others keep their data and keys in
        // /opt too, and a tool has its settings beside these parts. Not Maven.
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
            // A directory of the user's own modules, and not of Go itself.
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

/// Directories of programs of these tool chains, in the form of [`Toolchain::paths`], for cells of an operator whose PATH
/// has none of them: that of a server that was started by a program without a shell. Of versions the latest counts.
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

/// Variables that lead to what the operator has downloaded, which cells cannot add to, each with the host of the
/// registry. Cells that reach the registry download for themselves and do without.
pub const DOWNLOADED: [(&str, &str); 3] = [
    ("CARGO_HOME", "index.crates.io"),
    ("CARGO_NET_OFFLINE", "index.crates.io"),
    ("GOMODCACHE", "proxy.golang.org"),
];

/// Choice of the tool chains that cells have: the value of `--toolchains`, and of `[toolchains] grant`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ToolchainChoice {
    /// Every one that is there.
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

impl TryFrom<String> for ToolchainChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
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

/// Returns the paths that a row stands for: one for each choice of its alternatives.
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
    /// The names there are, the nearest first where one is near.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = TOOLCHAINS.iter().find(|one| one.name == name).copied();
        let names = TOOLCHAINS.iter().map(|one| one.name);
        found.ok_or_else(|| match nearest(name, names.clone()) {
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
    fn a_file_that_would_hold_a_credential_is_below_a_path_of_its_row() {
        for Toolchain { paths, credentials, .. } in TOOLCHAINS {
            let paths: Vec<String> = paths.iter().flat_map(|row| alternatives(row)).collect();
            for secret in credentials.iter().flat_map(|row| alternatives(row)) {
                let below = |path: &String| {
                    let fits = |(own, other): (&str, &str)| own == other || other.contains('*');
                    let longer = secret.split('/').count() > path.split('/').count();
                    longer && path.split('/').zip(secret.split('/')).all(fits)
                };
                assert!(paths.iter().any(below), "{secret}");
            }
        }
    }

    #[test]
    fn a_choice_is_written_as_it_is_read() {
        for text in ["auto", "none", "rust", "rust,nvm"] {
            let choice: Result<ToolchainChoice, String> = text.parse();
            assert_eq!(choice.map(|choice| choice.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn a_name_that_is_unknown_is_told_with_the_nearest() {
        assert_eq!(Toolchain::named("rust").map(|one| one.name), Ok("rust"));
        assert_eq!(Toolchain::named("rustt"), Err("did you mean `rust`?".to_owned()));
        assert!(Toolchain::named("quux").is_err_and(|names| names.contains("rust, nvm")));
    }
}
