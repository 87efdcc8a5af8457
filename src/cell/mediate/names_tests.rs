//! Tests of which names are guarded, and in which directories.

use super::*;

#[test]
fn a_guarded_name_is_recognised_in_every_spelling_of_a_filesystem() {
    let spellings =
        [".git", ".GIT", ".Git", ".git.", ".git. .", ".git::$INDEX_ALLOCATION", ".g\u{200c}it"];
    for name in spellings {
        assert_eq!(NameClass::classify(name.as_bytes()), NameClass::Obeyed, "{name}");
    }
    assert_eq!(NameClass::classify(".v\u{17f}code".as_bytes()), NameClass::Obeyed);
    for name in ["hoo\u{212a}s", "con\u{fb01}g", "config.lock", "CONFIG~1.WOR"] {
        assert_eq!(NameClass::classify(name.as_bytes()), NameClass::Part, "{name}");
    }
    for name in ["git~1", "GIT~2", "GI3F2A~1", "VSCODE~1", "mcp~1.jso"] {
        assert_eq!(NameClass::classify(name.as_bytes()), NameClass::Obeyed, "{name}");
    }
    for name in ["git~", "git~x", "g~1", "digit~1", ".envrc.~1~", "gist~1"] {
        assert_eq!(NameClass::classify(name.as_bytes()), NameClass::Plain, "{name}");
    }
    let named = "\u{e4}.h\u{fc}sky".as_bytes();
    assert!(may_be_same(named, named) && !may_be_same(b".husk", named));
    for name in ["git", ".gitignore", ".envrc.example", "envrc", "..git", ""] {
        assert_eq!(NameClass::classify(name.as_bytes()), NameClass::Plain, "{name}");
    }
}

#[test]
fn hooks_of_agents_are_guarded_in_their_directories_and_nowhere_else() {
    for name in [".github", ".GitHub", ".clinerules", "GITHUB~1"] {
        assert_eq!(NameClass::classify(name.as_bytes()), NameClass::Holder, "{name}");
    }
    for (path, is_guarded) in [
        ("/workspace/.github/hooks", true),
        ("/workspace/a/.Clinerules/Hooks/deep/one", true),
        ("/workspace/.github/workflows/hooks", false),
        ("/workspace/src/hooks", false),
        ("/workspace/.github", false),
        ("/workspace/.kilocode/mcp.json", true),
        ("/workspace/a/.cofferdam-apply-0/1", true),
        ("/workspace/a/.cofferdam-0/1", false),
    ] {
        assert_eq!(has_obeyed(path.as_bytes()), is_guarded, "{path}");
    }
}

#[test]
fn a_name_of_any_length_is_folded_completely() {
    let nothing = "\u{200c}".repeat(60);
    for (name, kind) in [
        (format!(".g{nothing}it"), NameClass::Obeyed),
        (format!("{nothing}.sl"), NameClass::Obeyed),
        (format!("config.worktree.lock{nothing}"), NameClass::Part),
        (format!("config.worktree.lock{nothing}more"), NameClass::Plain),
        (format!(".git{}", "t".repeat(200)), NameClass::Plain),
    ] {
        assert_eq!(NameClass::classify(name.as_bytes()), kind, "{name}");
    }
    for name in
        [".cofferdam.1-2", ".CofferDam.x", ".cofferdam-apply-0", ".Cofferdam-Apply-", "COFFER~1"]
    {
        assert_eq!(NameClass::classify(name.as_bytes()), NameClass::Obeyed, "{name}");
    }
    assert_eq!(NameClass::classify(b".cofferdam"), NameClass::Plain);
    assert_eq!(
        NameClass::classify(b".cofferdam-0123456789abcdef"),
        NameClass::Plain,
        "used by the clerk"
    );
    let words = OBEYED.iter().map(|(word, _)| *word).chain(GIT_PARTS).chain(OLD_REMOTES);
    let words = words.chain([OBJECTS, ATTRIBUTES, ALTERNATES, INFO]).chain(HOLDERS);
    assert!(words.map(str::len).all(|length| length < MAX_LETTERS));
}

#[test]
fn files_that_make_a_repository_are_distinguished_from_its_other_parts() {
    assert_eq!(NameClass::classify(b"HEAD"), NameClass::Head { exact: true });
    assert_eq!(NameClass::classify(b"head"), NameClass::Head { exact: false });
    for name in [
        "multi-pack-index",
        "Multi-Pack-Index.d",
        "multi-pack-index-1.bitmap",
        "sharedindex.0123",
        "SHAREDINDEX.x",
        "MERGE_AUTOSTASH",
        "MERGE_RR.lock",
        "rr-cache",
        "Rr-Cache",
    ] {
        assert_eq!(NameClass::classify(name.as_bytes()), NameClass::Attributes, "{name}");
    }
    assert_eq!(NameClass::classify(b"multi-pack"), NameClass::Plain);
    assert_eq!(NameClass::classify(b"tables.list"), NameClass::Tables);
    assert_eq!(NameClass::classify(b"TABLES.LIST.lock"), NameClass::Lock);
    assert_eq!(NameClass::classify(b"index.lock"), NameClass::Lock);
    assert_eq!(NameClass::classify(b"index.lock.lock"), NameClass::Plain);
    assert_eq!(NameClass::classify(b"HEAD.lock"), NameClass::Plain);
    assert_eq!(NameClass::classify(b"FETCH_HEAD"), NameClass::Plain);
    assert_eq!(NameClass::classify(b"config"), NameClass::Part);
    assert_eq!(NameClass::classify(b"config.worktree"), NameClass::Part);
    assert_eq!(NameClass::classify(b"gitdir"), NameClass::Part);
    assert_eq!(NameClass::classify(b"commondir"), NameClass::Commondir);
    assert_eq!(NameClass::classify(b"objects"), NameClass::Objects);
}

#[test]
fn the_check_of_the_first_letter_misses_no_guarded_word() {
    let words = OBEYED
        .iter()
        .map(|(word, _)| *word)
        .chain(GIT_PARTS)
        .chain(OLD_REMOTES)
        .chain(HOLDERS)
        .chain(LOCKS)
        .chain(UNCHECKED)
        .chain([
            GIT,
            HEAD,
            OBJECTS,
            ATTRIBUTES,
            ALTERNATES,
            INFO,
            INDEX,
            MERGE_RR,
            TABLES,
            RESOLUTIONS,
        ]);
    for word in words {
        assert!(!is_plain(word.as_bytes()), "{word}");
        assert_ne!(NameClass::classify(word.to_uppercase().as_bytes()), NameClass::Plain, "{word}");
    }
    assert!(
        is_plain(b"src")
            && is_plain(b"tests")
            && !is_plain(b"git~1")
            && !is_plain("\u{212a}".as_bytes())
    );
}

#[test]
fn the_path_of_a_directory_gives_its_depth_in_a_repository() {
    let depths = [
        ("/workspace", Depth::Without),
        ("/workspace/git/refs", Depth::Without),
        ("/workspace/.git", Depth::Top),
        ("/workspace/sub/.git/refs", Depth::Refs),
        ("/workspace/.git/REFS/x", Depth::References),
        ("/workspace/.git/refs/Remotes/origin", Depth::References),
        ("/workspace/.git/refs/heads/topic", Depth::Branches),
        ("/workspace/.git/refs/heads/remotes/x", Depth::Branches),
        ("/workspace/.git/logs", Depth::Logs),
        ("/workspace/.git/logs/refs/tags", Depth::Branches),
        ("/workspace/.git/logs/remotes", Depth::References),
        ("/workspace/.git/modules/lib/refs/remotes/origin", Depth::Inside),
        ("/workspace/.git/modules/refs/heads/lib", Depth::Inside),
        ("/workspace/.git/worktrees/logs", Depth::Inside),
        ("/workspace/.git/modules/lib", Depth::Inside),
        ("/workspace/.git/objects/pack", Depth::Inside),
    ];
    for (path, depth) in depths {
        assert_eq!(Depth::of_path(path.as_bytes()), depth, "{path}");
    }
}

#[test]
fn no_directory_can_become_a_repository_with_settings() {
    // A repository with settings needs a HEAD, settings and objects: each directory refuses one of
    // the three, except for the top of an existing repository, which has settings already.
    let references =
        [DirectoryClass::Branches, DirectoryClass::Remotes, DirectoryClass::References];
    for directory in [DirectoryClass::WorkTree, DirectoryClass::Headed, DirectoryClass::Inside]
        .into_iter()
        .chain(references)
    {
        let refuses = |kind| directory.refuses(kind);
        let whole = [NameClass::Head { exact: true }, NameClass::Part, NameClass::Objects];
        assert!(whole.into_iter().any(refuses), "{directory:?}");
        let linked = [NameClass::Head { exact: true }, NameClass::Commondir];
        assert!(linked.into_iter().any(refuses), "{directory:?}");
        assert!(refuses(NameClass::Obeyed), "{directory:?}");
    }
    // Among references two of the three are refused, so that a HEAD and settings never meet.
    for directory in references {
        assert!(
            directory.refuses(NameClass::Objects) && directory.refuses(NameClass::Commondir),
            "{directory:?}"
        );
        assert!(
            directory.refuses(NameClass::Part)
                || directory.refuses(NameClass::Head { exact: true }),
            "{directory:?}"
        );
    }
    assert!(DirectoryClass::Repository.refuses(NameClass::Part));
    assert!(DirectoryClass::Repository.refuses(NameClass::Commondir));
    assert!(!DirectoryClass::Repository.refuses(NameClass::Head { exact: true }));
}

#[test]
fn remotes_in_older_formats_are_refused_in_a_repository_except_among_references() {
    for name in ["remotes", "Branches", "info", "INFO"] {
        let kind = NameClass::classify(name.as_bytes());
        for directory in
            [DirectoryClass::Headed, DirectoryClass::Repository, DirectoryClass::Inside]
        {
            assert!(directory.refuses(kind), "{name} {directory:?}");
        }
        for directory in [
            DirectoryClass::WorkTree,
            DirectoryClass::Branches,
            DirectoryClass::Remotes,
            DirectoryClass::References,
        ] {
            assert!(!directory.refuses(kind), "{name} {directory:?}");
        }
    }
}

#[test]
fn no_rename_turns_a_directory_of_references_into_another_kind() {
    use Depth::{Branches, Inside, Logs, Refs, Remotes, Top, Without};
    let moved = |from: (Depth, &str), to: (Depth, &str)| {
        renames((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()))
    };
    let anything = [
        ((Without, "refs"), (Without, "logs")),
        ((Remotes, "origin"), (Remotes, "up")),
        ((Branches, "a"), (Branches, "refs")),
        ((Top, "HEAD.lock"), (Top, "HEAD")),
        ((Inside, "a"), (Top, "b")),
        ((Inside, "x"), (Inside, "Logs")),
    ];
    for (from, to) in anything {
        assert_eq!(moved(from, to), Renames::Anything, "{from:?} to {to:?}");
    }
    // `git branch -m` and `git remote rename` move a log this way.
    let files = [
        ((Branches, "topic"), (Refs, ".tmp-renamed-log")),
        ((Refs, ".tmp-renamed-log"), (Remotes, "main")),
        ((Refs, "remotes"), (Refs, "heads")),
        ((Logs, "x"), (Logs, "refs")),
        ((Remotes, "origin"), (Branches, "lib")),
    ];
    for (from, to) in files {
        assert_eq!(moved(from, to), Renames::Files, "{from:?} to {to:?}");
    }
    let nothing = [
        ((Remotes, "origin"), (Inside, "lib")),
        ((Remotes, "origin"), (Without, "lib")),
        ((Without, "x"), (Branches, "x")),
        ((Top, "refs"), (Top, "x")),
        ((Top, "refs"), (Inside, "Refs")),
        ((Inside, "x"), (Top, "Logs")),
        ((Top, "logs"), (Top, "refs")),
    ];
    for (from, to) in nothing {
        assert_eq!(moved(from, to), Renames::Nothing, "{from:?} to {to:?}");
    }
}

#[test]
fn paths_with_the_same_letters_may_be_the_same() {
    for (path, expected) in [
        ("Src/Main.rs", "src/main.rs"),
        ("a//.GIT\u{200c}/x. ", "a/.git/x"),
        ("\u{212a}ey:stream", "key"),
        ("", ""),
    ] {
        assert_eq!(letters(path.as_bytes()), expected.as_bytes(), "{path:?}");
    }
}
