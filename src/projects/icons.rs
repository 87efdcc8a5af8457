//! Icons that are files of the project: a client has no such file, so each becomes a `data:` address.

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::Value;

use crate::ProjectMistake;
use crate::tree::Tree;

/// Kinds of images by the endings of their names.
const KINDS: [(&str, &str); 7] = [
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("webp", "image/webp"),
    ("gif", "image/gif"),
    ("ico", "image/x-icon"),
];
/// Bytes of the longest icon: it is in each list.
const ICON_BYTES: usize = 64 << 10;

/// Puts the files of icons into their addresses; `file` is the entry that has the icons. One that cannot be is a
/// mistake, and left out.
pub(crate) fn embed(
    tree: &Tree,
    file: &str,
    icons: &mut Option<Vec<Value>>,
    mistakes: &mut Vec<ProjectMistake>,
) {
    let Some(list) = icons else { return };
    let folder = file.rsplit_once('/').map_or(".", |(folder, _)| folder);
    list.retain_mut(|icon| {
        let Some(source) = icon.get("src").and_then(Value::as_str) else { return false };
        // An address has a scheme.
        if source.contains(':') {
            return true;
        }
        match read(tree, &format!("{folder}/{source}")) {
            Ok((kind, address)) => {
                if let Some(fields) = icon.as_object_mut() {
                    fields.insert("src".to_owned(), Value::String(address));
                    fields.entry("mimeType").or_insert_with(|| Value::from(kind));
                }
                true
            }
            Err(mistake) => {
                mistakes.push(mistake);
                false
            }
        }
    });
    if list.is_empty() {
        *icons = None;
    }
}

/// Reads an icon: its kind, and its address.
fn read(tree: &Tree, path: &str) -> Result<(&'static str, String), ProjectMistake> {
    let bad = |why: &str| ProjectMistake::new(path, why);
    let ending = path.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let kind = KINDS.iter().find(|(known, _)| *known == ending);
    let (_, kind) =
        kind.ok_or_else(|| bad("is no icon: expected png, svg, jpg, webp, gif or ico"))?;
    if path.contains(['\n', '\0']) {
        return Err(bad("is no path"));
    }
    let bytes = tree.bytes(path, ICON_BYTES)?.ok_or_else(|| bad("is no file"))?;
    Ok((kind, format!("data:{kind};base64,{}", BASE64_STANDARD.encode(bytes))))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use serde_json::json;

    use super::*;

    #[test]
    fn an_icon_next_to_an_entry_is_in_its_address_and_no_other_file_is() {
        let held = tempfile::tempdir().expect("a directory");
        let root = held.path();
        fs::create_dir_all(root.join("tools/t")).expect("folders");
        for folder in ["tools", "tools/t"] {
            fs::set_permissions(root.join(folder), fs::Permissions::from_mode(0o755))
                .expect("a mode");
        }
        for (name, text) in [
            ("i.png", "abc".to_owned()),
            ("key.pem", "k".to_owned()),
            ("l.png", "x".repeat(ICON_BYTES + 1)),
        ] {
            fs::write(root.join("tools/t").join(name), text).expect("written");
            fs::set_permissions(root.join("tools/t").join(name), fs::Permissions::from_mode(0o644))
                .expect("a mode");
        }
        symlink("/etc/hostname", root.join("tools/t/link.png")).expect("a link");
        let directory = crate::ProjectDirectory::open(root).expect("a directory");
        let tree = directory.tree().expect("a project");
        let sources = [
            "i.png",
            "https://a/b.png",
            "key.pem",
            "l.png",
            "link.png",
            "../../../etc/x.png",
            "none.png",
        ];
        let mut icons = Some(sources.iter().map(|source| json!({"src": source})).collect());
        let mut mistakes = Vec::new();
        embed(&tree, "tools/t/tool.sh", &mut icons, &mut mistakes);
        let kept = json!({"src": "data:image/png;base64,YWJj", "mimeType": "image/png"});
        assert_eq!(icons, Some(vec![kept, json!({"src": "https://a/b.png"})]));
        assert_eq!(mistakes.len(), 5, "{mistakes:?}");
    }
}
