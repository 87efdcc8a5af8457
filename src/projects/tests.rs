//! Projects as they are read: what is found, what is left out, and what is refused.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::json;

use super::*;

type Tested = Result<(), Box<dyn std::error::Error>>;

/// Writes a file of a project with its folders.
fn write(root: &Path, path: &str, text: &str, mode: u32) -> std::io::Result<()> {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap_or(root))?;
    fs::write(&file, text)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(mode))
}

fn names(project: &Project) -> Vec<&str> {
    project.tools.iter().map(|tool| tool.name.as_str()).collect()
}

fn mistakes(project: &Project) -> Vec<String> {
    project.mistakes.iter().map(ToString::to_string).collect()
}

#[test]
fn tools_are_the_programs_in_folders_below_tools() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "tools/hello/tool.sh", "echo", 0o644)?;
    write(
        root,
        "tools/hello/tool.meta.json",
        r#"{"name":"hello","description":"Says so"}"#,
        0o644,
    )?;
    write(root, "tools/deep/er/run", "x", 0o755)?;
    write(root, "tools/py/script", "#!/usr/bin/python3\n", 0o644)?;
    write(root, "tools/py/notes.txt", "no tool", 0o644)?;
    write(root, "tools/py/smoke.sh", "no tool", 0o755)?;
    write(root, "tools/py/.hidden.sh", "no tool", 0o755)?;
    write(root, "tools/root.sh", "no tool", 0o755)?;
    let project = Project::read(root)?;
    assert_eq!(names(&project), ["hello", "run", "script"]);
    assert_eq!(mistakes(&project), Vec::<String>::new());
    let hello = project.tools.first().ok_or("a tool")?;
    assert_eq!((hello.path.as_str(), hello.is_executable), ("hello/tool.sh", false));
    assert_eq!(hello.description, "Says so");
    assert_eq!(json!(hello.input_schema), json!({"type": "object", "properties": {}}));
    Ok(())
}

#[test]
fn inline_metadata_counts_where_the_file_next_to_it_has_no_name() -> Tested {
    let held = tempfile::tempdir()?;
    let inline = "#!/bin/bash\n# mcp: {\"name\":\"inline\",\"timeoutSecs\":7}\n";
    write(held.path(), "tools/one/tool.sh", inline, 0o755)?;
    write(held.path(), "tools/two/tool.sh", inline, 0o755)?;
    write(held.path(), "tools/two/tool.meta.json", r#"{"name":"two"}"#, 0o644)?;
    let project = Project::read(held.path())?;
    let found = project.tools.iter().map(|tool| (tool.name.as_str(), tool.timeout));
    assert_eq!(found.collect::<Vec<_>>(), [("inline", Some(7)), ("two", None)]);
    Ok(())
}

#[test]
fn links_and_files_of_others_are_left_out_and_reported() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "tools/well/tool.sh", "", 0o755)?;
    write(root, "tools/open/open.sh", "", 0o775)?;
    symlink("/bin/sh", root.join("tools/well/linked.sh"))?;
    symlink("/usr", root.join("tools/usr"))?;
    let project = Project::read(root)?;
    assert_eq!(names(&project), ["tool"]);
    let link = "is a symbolic link, and none is followed";
    let mut reported = mistakes(&project);
    reported.sort();
    let expected = [
        "tools/open/open.sh: may be written by its group or by others (chmod go-w)".to_owned(),
        format!("tools/usr: {link}"),
        format!("tools/well/linked.sh: {link}"),
    ];
    assert_eq!(reported, expected);
    Ok(())
}

#[test]
fn a_folder_that_is_a_link_is_not_entered() -> Tested {
    let held = tempfile::tempdir()?;
    let other = tempfile::tempdir()?;
    write(other.path(), "one/tool.sh", "", 0o755)?;
    symlink(other.path(), held.path().join("tools"))?;
    let project = Project::read(held.path())?;
    assert_eq!((names(&project).len(), project.mistakes.len()), (0, 1));
    fs::remove_file(held.path().join("tools"))?;
    fs::rename(other.path().join("one"), other.path().join("tools"))?;
    write(other.path(), "tools/one/tool.sh", "", 0o755)?;
    assert_eq!(names(&Project::read(other.path())?), ["tool"]);
    Ok(())
}

#[test]
fn a_mistake_names_its_file_line_and_column() -> Tested {
    let held = tempfile::tempdir()?;
    write(held.path(), "tools/a/tool.sh", "", 0o755)?;
    write(held.path(), "tools/a/tool.meta.json", "{\n  \"name\": nope\n}", 0o644)?;
    write(held.path(), "tools/b/b.sh", "", 0o755)?;
    write(held.path(), "tools/b/b.meta.json", r#"{"name":"b","timeoutSecs":"5"}"#, 0o644)?;
    let project = Project::read(held.path())?;
    assert_eq!(names(&project), ["b"]);
    let expected = [
        "tools/a/tool.meta.json:2:12: not valid JSON: expected ident",
        "tools/b/b.meta.json: `timeoutSecs`: expected a whole number of seconds above 0",
    ];
    assert_eq!(mistakes(&project), expected);
    Ok(())
}

#[test]
fn a_register_takes_the_place_of_discovery_for_its_kinds() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "tools/found/tool.sh", "", 0o755)?;
    write(root, "tools/manual.sh", "", 0o755)?;
    write(root, "prompts/greet.txt", "Hello, {{name}}!", 0o644)?;
    let register = r#"{"version":1,"tools":[{"name":"manual.progress","path":"manual.sh"}]}"#;
    write(root, "server.d/register.json", register, 0o644)?;
    write(root, "server.d/register.sh", "", 0o755)?;
    write(root, "server.d/policy.sh", "", 0o755)?;
    let project = Project::read(root)?;
    assert_eq!(names(&project), ["manual.progress"]);
    assert_eq!(project.prompts.len(), 1);
    assert_eq!(project.hooks, ["server.d/policy.sh"]);
    write(root, "server.d/register.json", r#"{"version":1,"tools":[]}"#, 0o644)?;
    assert_eq!(names(&Project::read(root)?).len(), 0);
    Ok(())
}

#[test]
fn a_register_with_a_mistake_refuses_the_project() -> Tested {
    let held = tempfile::tempdir()?;
    write(held.path(), "tools/found/tool.sh", "", 0o755)?;
    for (text, reported) in [
        (r#"{"version":1,"tool":[]}"#, "server.d/register.json: `tool` is no key"),
        (r#"{"version":2}"#, "server.d/register.json: `version` is not 1"),
        (r#"{"version":1,"tools":{}}"#, "server.d/register.json: `tools` is no list"),
        (
            r#"{"version":1,"tools":[{"name":"x","path":"../../../bin/sh"}]}"#,
            "server.d/register.json: tools[0]: `path` leads out of tools",
        ),
        (
            r#"{"version":1,"tools":[{"name":"x"}]}"#,
            "server.d/register.json: tools[0]: `path` is missing",
        ),
    ] {
        write(held.path(), "server.d/register.json", text, 0o644)?;
        let refused = Project::read(held.path()).map_err(|error| error.to_string());
        assert_eq!(refused.map(|_| ()), Err(reported.to_owned()));
    }
    Ok(())
}

#[test]
fn resources_and_templates_are_distinguished_by_their_metadata() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "resources/a.txt", "", 0o644)?;
    write(root, "resources/b.txt", "", 0o644)?;
    write(root, "resources/b.meta.json", r#"{"uri":"git+https://host/x"}"#, 0o644)?;
    write(root, "resources/logs.meta.json", r#"{"uriTemplate":"file:///l/{date}"}"#, 0o644)?;
    write(root, "resources/none.meta.json", r#"{"uriTemplate":"file:///l"}"#, 0o644)?;
    let project = Project::read(root)?;
    let found = project.resources.iter().map(|it| (it.uri.as_str(), it.provider.as_str()));
    let expected = [("file://./resources/a.txt", "file"), ("git+https://host/x", "git")];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let templates = project.templates.iter().map(|template| template.name.as_str());
    assert_eq!(templates.collect::<Vec<_>>(), ["logs"]);
    assert_eq!(mistakes(&project), ["resources/none.meta.json: `uriTemplate` has no {variable}"]);
    write(root, "resources/c.txt", "", 0o644)?;
    write(root, "resources/c.meta.json", r#"{"name":"a"}"#, 0o644)?;
    assert!(matches!(Project::read(root), Err(ProjectError::Mistake(_))));
    Ok(())
}

#[test]
fn a_prompt_has_no_metadata_that_only_the_server_sets() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "prompts/p.txt", "", 0o644)?;
    let registered = json!({ "version": 1, "prompts": [{
        "name": "p",
        "path": "p.txt",
        "metadata": {"cofferdam/receipt": {"walls": "all"}, "io.modelcontextprotocol/x": 1, "mine": 2},
    }] });
    write(root, "server.d/register.json", &registered.to_string(), 0o644)?;
    let project = Project::read(root)?;
    assert_eq!(mistakes(&project), Vec::<String>::new());
    let prompt = project.prompts.first().ok_or("a prompt")?;
    assert_eq!(json!(prompt.metadata), json!({"mine": 2}));
    Ok(())
}

#[test]
fn a_prompt_takes_arguments_in_both_spellings_and_in_one_pass() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "prompts/greet.txt", "${who}, {{ n }} {{who}} {{none}} $ {x}\n", 0o644)?;
    let meta = r#"{"name":"greet","arguments":{"properties":{"who":{}},"required":["who"]}}"#;
    write(root, "prompts/greet.meta.json", meta, 0o644)?;
    let project = Project::read(root)?;
    let greet = project.prompts.first().ok_or("a prompt")?;
    assert_eq!(greet.parameters(), [("who", None, true)]);
    let given = json!({"who": "{{n}}", "n": 2});
    let text = greet.rendered(&given.as_object().cloned().unwrap_or_default());
    assert_eq!(text, "{{n}}, 2 {{n}} {{none}} $ {x}\n");
    Ok(())
}

#[test]
fn a_server_without_a_name_has_that_of_its_directory() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path().join("my-tools");
    fs::create_dir(&root)?;
    let server = Project::read(&root)?.server;
    assert_eq!((server.name.as_str(), server.title.as_str()), ("my-tools", "My Tools"));
    assert_eq!(server.version, "0.0.0");
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777))?;
    assert!(matches!(Project::read(&root), Err(ProjectError::WritableByOthers)));
    Ok(())
}

/// Links are left out one by one, so a flood of them must end the reading; and each file of metadata is small.
#[test]
fn a_project_with_more_entries_or_metadata_than_any_has_is_not_read_on() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    let links = held.path().join("tools/links");
    fs::create_dir_all(&links)?;
    for number in 0..20_000 {
        symlink("nowhere", links.join(number.to_string()))?;
    }
    let error = Project::read(root).err().ok_or("20,000 and the folder are too many")?;
    assert_eq!(error.to_string(), "tools/links: has more than 20,000 entries");
    fs::remove_dir_all(&links)?;

    let long = format!("{{\"description\":\"{}\"}}", "x".repeat(1_000_000));
    for number in 0..70 {
        write(root, &format!("tools/t{number}/t{number}.sh"), "echo", 0o644)?;
        write(root, &format!("tools/t{number}/t{number}.meta.json"), &long, 0o644)?;
    }
    let project = Project::read(root)?;
    let left_out = mistakes(&project);
    assert!(!project.tools.is_empty() && left_out.len() >= 3, "{left_out:?}");
    let why = "is left out: the project has more than 64M of metadata";
    assert!(left_out.iter().all(|one| one.ends_with(why)), "{left_out:?}");
    Ok(())
}

#[test]
fn a_folder_that_others_may_write_to_is_left_out_with_what_is_in_it() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "tools/well/tool.sh", "", 0o755)?;
    write(root, "tools/open/other.sh", "", 0o755)?;
    write(root, "prompts/open/p.txt", "", 0o644)?;
    write(root, "tools/a/deep/deep.sh", "", 0o755)?;
    write(
        root,
        "server.d/register.json",
        r#"{"version": 1, "completions": [{"name": "c", "path": "lib/c.sh"}]}"#,
        0o644,
    )?;
    write(root, "lib/c.sh", "", 0o755)?;
    for folder in ["tools/open", "prompts/open", "tools/a"] {
        fs::set_permissions(root.join(folder), fs::Permissions::from_mode(0o777))?;
    }
    let project = Project::read(root)?;
    assert_eq!((names(&project), project.prompts.len()), (vec!["tool"], 0));
    let why = "may be written by its group or by others (chmod go-w)";
    let mut reported = mistakes(&project);
    reported.sort();
    let folders = ["prompts/open", "tools/a", "tools/open"];
    assert_eq!(reported, folders.map(|folder| format!("{folder}: {why}")));
    // Paths of a list are in such a folder too.
    fs::set_permissions(root.join("lib"), fs::Permissions::from_mode(0o775))?;
    assert_eq!(
        Project::read(root).map_err(|error| error.to_string()),
        Err(format!("server.d/register.json: completions[0]: ./lib: {why}"))
    );
    Ok(())
}

#[test]
fn metadata_of_any_size_depth_or_kind_costs_an_entry_and_not_the_server() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "tools/well/well.sh", "", 0o755)?;
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    write(root, "tools/deep/deep.sh", "", 0o755)?;
    write(root, "tools/deep/deep.meta.json", &deep, 0o644)?;
    write(root, "tools/huge/huge.sh", "", 0o755)?;
    write(root, "tools/huge/huge.meta.json", "{}", 0o644)?;
    fs::OpenOptions::new()
        .write(true)
        .open(root.join("tools/huge/huge.meta.json"))?
        .set_len(100 << 20)?;
    let many = format!("{{\"inputSchema\":{{\"enum\":[{}0]}}}}", "0,".repeat(450_000));
    for tool in ["many1", "many2", "many3"] {
        write(root, &format!("tools/{tool}/{tool}.sh"), "", 0o755)?;
        write(root, &format!("tools/{tool}/{tool}.meta.json"), &many, 0o644)?;
    }
    for tool in ["fifo", "folder"] {
        write(root, &format!("tools/{tool}/{tool}.sh"), "", 0o755)?;
    }
    let made = std::process::Command::new("mkfifo")
        .arg(root.join("tools/fifo/fifo.meta.json"))
        .status()?;
    assert!(made.success());
    fs::create_dir(root.join("tools/folder/folder.meta.json"))?;
    let project = Project::read(root)?;
    assert_eq!(names(&project), ["many1", "many2", "well"]);
    let mut reported = mistakes(&project);
    reported.sort();
    assert_eq!(
        reported,
        [
            "tools/deep/deep.meta.json:1:132: not valid JSON: recursion limit exceeded",
            "tools/fifo/fifo.meta.json: is not a regular file",
            "tools/fifo/fifo.meta.json: is not a regular file",
            "tools/folder/folder.meta.json: is not a regular file",
            "tools/huge/huge.meta.json: is longer than 1M",
            "tools/many3/many3.meta.json: is left out: the project's metadata has more than 1,000,000 values",
        ]
    );
    Ok(())
}

#[test]
fn a_report_of_the_watcher_is_read_into_no_more_values_than_are_of_use() {
    let updated = |count: usize| {
        let report = crate::WatchReport::Updated(vec!["f".to_owned(); count]);
        crate::WatchReport::read(&serde_json::to_vec(&report).unwrap_or_default())
    };
    assert!(updated(crate::WATCHED_FILES).is_ok());
    updated(crate::WATCHED_FILES + 1).expect_err("more files than are watched");
    for text in [format!("[{}0]", "0,".repeat(2_000_000)), "[".repeat(200), "\u{ff}".to_owned()] {
        crate::WatchReport::read(text.as_bytes()).expect_err("no report");
    }
    crate::WatchReport::read(b"\xff").expect_err("no text");
}

#[test]
fn what_a_script_leaves_in_resources_costs_no_other_list_and_no_start() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "tools/a/tool.sh", "", 0o755)?;
    write(root, "prompts/p.txt", "", 0o644)?;
    write(root, "resources/r.txt", "", 0o644)?;
    let written = || ProjectDirectory::open(root)?.written_by_scripts().read(None);
    let lists =
        |project: &Project| (project.tools.len(), project.prompts.len(), project.resources.len());
    assert_eq!(lists(&written()?), (1, 1, 1));
    // A name with a line break, and one name twice: a project of an author's alone is not read with them.
    for (path, why) in [("a\nb", "a name with a line break"), ("x/r.txt", "is named `r`")] {
        let place = format!("resources/{path}");
        write(root, &place, "", 0o644)?;
        assert!(matches!(Project::read(root), Err(ProjectError::Mistake(_))), "{path}");
        let project = written()?;
        assert_eq!(lists(&project), (1, 1, 0), "{path}");
        assert!(mistakes(&project).iter().any(|reported| reported.contains(why)), "{path}");
        std::fs::remove_file(root.join(place))?;
    }
    // A file that the register lists was taken away.
    let entries = r#"[{"name":"r","path":"r.txt"},{"name":"gone","path":"gone.txt"}]"#;
    let register = format!(
        r#"{{"version":1,"resources":{entries},"completions":[{{"name":"c","path":"gone.sh"}}]}}"#
    );
    write(root, "server.d/register.json", &register, 0o644)?;
    assert!(matches!(Project::read(root), Err(ProjectError::Mistake(_))));
    let project = written()?;
    assert_eq!((lists(&project), mistakes(&project).len()), ((1, 1, 1), 2));
    // After a mistake in a file that scripts cannot write, no list can be trusted.
    write(root, "server.d/register.json", "{", 0o644)?;
    assert!(matches!(written(), Err(ProjectError::Mistake(_))));
    Ok(())
}

#[test]
fn no_resource_takes_the_place_of_a_tools_page() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "server.d/server.meta.json", r#"{"name":"s"}"#, 0o644)?;
    write(root, "tools/a/tool.sh", "", 0o755)?;
    write(root, "tools/a/ui/index.html", "<p>own</p>", 0o644)?;
    let page = |project: &Project| project.resource("ui://s/a").map(|it| (it.provider, it.file));
    let own = Some(("ui".to_owned(), "tools/a/ui/index.html".to_owned()));
    assert_eq!(page(&Project::read(root)?), own);
    // By its address, and by a name that is the address.
    for meta in
        [r#"{"uri":"ui://s/a","provider":"file"}"#, r#"{"uri":"echo://x","name":"ui://s/a"}"#]
    {
        write(root, "resources/a.txt", "", 0o644)?;
        write(root, "resources/a.txt.meta.json", meta, 0o644)?;
        assert_eq!(page(&Project::read(root)?), own, "{meta}");
    }
    // The author's register means it.
    let entry = r#"{"name":"a","path":"a.txt","uri":"ui://s/a","provider":"file"}"#;
    let register = format!(r#"{{"version":1,"resources":[{entry}]}}"#);
    write(root, "server.d/register.json", &register, 0o644)?;
    assert_eq!(page(&Project::read(root)?), Some(("file".to_owned(), String::new())));
    Ok(())
}

#[test]
fn a_register_has_no_script_from_where_others_may_be_written() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "tools/a/tool.sh", "", 0o755)?;
    write(root, "resources/x.sh", "", 0o755)?;
    write(root, "prompts/p.txt", "", 0o644)?;
    let written = || ProjectDirectory::open(root)?.written_by_scripts().read(None);
    let of = |kind: &str, path: &str| {
        let entry = format!(r#"{{"version":1,"{kind}":[{{"name":"n","path":"{path}"}}]}}"#);
        write(root, "server.d/register.json", &entry, 0o644)
    };
    let refused = |read: Result<Project, ProjectError>, kind: &str| {
        let reported = read.map(|_| ()).map_err(|error| error.to_string());
        let why = format!("server.d/register.json: {kind}[0]: `path` leads out of {kind}");
        assert_eq!(reported, Err(why));
    };
    for inside in ["a/tool.sh", "./a//tool.sh", "a/../a/tool.sh"] {
        of("tools", inside)?;
        assert_eq!((names(&Project::read(root)?), names(&written()?)), (vec!["n"], vec!["n"]));
    }
    for outside in ["../resources/x.sh", "a/../../resources/x.sh", "../tools/a/tool.sh"] {
        of("tools", outside)?;
        refused(Project::read(root), "tools");
        refused(written(), "tools");
    }
    // A prompt is no script: it may stand elsewhere, unless scripts can write there.
    of("prompts", "../resources/x.sh")?;
    assert_eq!(Project::read(root)?.prompts.len(), 1);
    refused(written(), "prompts");
    of("prompts", "p.txt")?;
    assert_eq!(written()?.prompts.len(), 1);
    Ok(())
}

#[test]
fn a_page_is_of_no_file_that_scripts_may_write_to() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "tools/a/tool.sh", "", 0o755)?;
    write(root, "resources/x.html", "", 0o644)?;
    let meta = r#"{"entrypoint":"../../../resources/x.html"}"#;
    write(root, "tools/a/ui/ui.meta.json", meta, 0o644)?;
    let page = |project: Project| project.resources.iter().any(|one| one.name == "a");
    assert!(page(Project::read(root)?));
    assert!(!page(ProjectDirectory::open(root)?.written_by_scripts().read(None)?));
    Ok(())
}

#[test]
fn a_directory_that_was_removed_is_reported() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path().join("p");
    write(&root, "tools/a/tool.sh", "", 0o755)?;
    let directory = ProjectDirectory::open(&root)?;
    assert_eq!(directory.read(None)?.mistakes, []);
    fs::remove_dir_all(&root)?;
    write(&root, "tools/b/tool.sh", "", 0o755)?;
    let project = directory.read(None)?;
    assert_eq!(names(&project), Vec::<&str>::new());
    let reported =
        ".: the directory was removed; what is at its place is served after another start";
    assert_eq!(mistakes(&project), [reported]);
    Ok(())
}

#[test]
fn what_a_script_leaves_in_resources_widens_no_roots() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "config/roots.json", r#"{"roots":[{"path":"./data"}]}"#, 0o644)?;
    write(root, "data/x", "", 0o644)?;
    let read = || ProjectDirectory::open(root)?.written_by_scripts().read(None);
    let roots = read()?.roots;
    assert_eq!(roots.len(), 1);
    // The maximum number of values in all metadata.
    let many = format!("{{\"annotations\":{{\"a\":[{}0]}}}}", "0,".repeat(500_000));
    for number in 0..3 {
        write(root, &format!("resources/r{number}.txt"), "", 0o644)?;
        write(root, &format!("resources/r{number}.txt.meta.json"), &many, 0o644)?;
    }
    let project = read()?;
    let has_no_room = |reported: &String| reported.contains("more than 1,000,000 values");
    assert!(mistakes(&project).iter().any(has_no_room), "{:?}", mistakes(&project));
    assert_eq!(project.roots, roots);
    Ok(())
}

#[test]
fn a_report_names_no_other_folders_than_the_operator() -> Tested {
    let held = tempfile::tempdir()?;
    let root = held.path();
    write(root, "prompts/p.txt", "", 0o644)?;
    write(root, "resources/r.txt", "", 0o644)?;
    write(root, "resources/r.completion.sh", "", 0o755)?;
    let known = ProjectDirectory::open(root)?.written_by_scripts().read(None)?.written_by_scripts();
    assert_eq!(known.completions, []);
    // A completion of a folder that scripts write to is not run, whatever a report says of that folder.
    let mut report = Project::read(root)?;
    assert_eq!(report.completions.len(), 1);
    report.layout.prompts = "resources".to_owned();
    let project = report.following(&known);
    assert_eq!((project.layout, project.completions), (crate::ProjectLayout::default(), vec![]));
    Ok(())
}
