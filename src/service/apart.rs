//! Runs one command in a new directory, with files in and out, all of it in one cell.
//!
//! Files go in ahead of the standard input and are put in their places by the cell's own shell, before the command.
//! Files come out behind the output, after a line that the command cannot foresee. What comes out is what a program of
//! the cell wrote, so it is read within bounds and nothing in it is trusted.

use base64::prelude::{BASE64_STANDARD, Engine};

use crate::capture::{Captured, KEPT_BYTES};
use crate::shell::ScriptArgs;
use model::call::STDIN_BYTES;

/// Files that a request may give, and name.
pub const FILES: usize = 64;
/// Bytes of a path.
const PATH_BYTES: usize = 1024;
/// Bytes of all returned files together.
const OUT_BYTES: usize = 4 << 20;
/// Where the directory is made if a workspace is granted, as in the older design.
const ROOT: &str = "/tmp/mcp/bash";

/// A file for the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileIn {
    pub path: String,
    pub bytes: Vec<u8>,
}

/// A file that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOut {
    pub path: String,
    pub content: Result<Vec<u8>, Unreturned>,
}

/// Reason why a file is not returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreturned {
    #[error("it is no regular file that can be read")]
    Absent,
    #[error("all files together have more than {OUT_BYTES} bytes")]
    Large,
    #[error("the command did not end by itself, or something else wrote behind its output")]
    Lost,
    #[error("there is no memory for it: answers that this client leaves unread have it")]
    Unread,
}

impl FileOut {
    /// Returns the same file without its content.
    #[must_use]
    pub fn left_out(&self) -> Self {
        let content = match self.content {
            Ok(_) => Err(Unreturned::Unread),
            Err(why) => Err(why),
        };
        Self { path: self.path.clone(), content }
    }
}

/// Fault in what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRun {
    #[error("at most {FILES} files can be given, and {FILES} be named in `outputs`")]
    Many,
    #[error(
        "a path is relative to the command's directory, without `..`, and has {PATH_BYTES} bytes at most: `{0}`"
    )]
    Path(String),
    #[error("files and standard input have {STDIN_BYTES} bytes together at most")]
    Large,
}

/// A command with its directory and its files.
#[derive(Debug, Clone, PartialEq)]
pub struct ApartRun {
    args: ScriptArgs,
    files: Vec<FileIn>,
    outputs: Vec<String>,
    /// Directory in which the command's own is made, if the operator named one.
    root: Option<String>,
}

/// A command as it is run, and the line behind its output.
#[derive(Debug)]
pub(crate) struct Wrapped {
    pub(crate) args: ScriptArgs,
    outputs: Vec<String>,
    line: String,
}

impl ApartRun {
    /// Checks what was asked.
    ///
    /// # Errors
    /// Too many files, too many bytes, or a path that leads elsewhere.
    pub fn new(
        args: ScriptArgs,
        files: Vec<FileIn>,
        outputs: Vec<String>,
        root: Option<&str>,
    ) -> Result<Self, BadRun> {
        if files.len() > FILES || outputs.len() > FILES {
            return Err(BadRun::Many);
        }
        let paths = files.iter().map(|file| &file.path).chain(&outputs);
        if let Some(path) = paths.into_iter().find(|path| !is_inside(path)) {
            return Err(BadRun::Path(
                path.chars().take(80).flat_map(char::escape_default).collect(),
            ));
        }
        let bytes = files.iter().map(|file| file.bytes.len()).sum::<usize>();
        if bytes.saturating_add(args.stdin.len()) > STDIN_BYTES {
            return Err(BadRun::Large);
        }
        Ok(Self { args, files, outputs, root: root.map(str::to_owned) })
    }

    /// Returns the paths of the files that the command is given.
    pub fn given(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.path.as_str())
    }

    /// Returns the paths of the files that are to come out.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().map(String::as_str)
    }

    /// Makes the script of the whole. `id` is fresh, and no other has it; a fresh workspace is a directory of the
    /// command's own already.
    pub(crate) fn wrapped(self, id: &str, is_fresh: bool) -> Wrapped {
        let Self { mut args, files, outputs, root } = self;
        let line = format!("--cofferdam-{id}--");
        let root = root.or_else(|| (!is_fresh).then(|| ROOT.to_owned()));
        if root.is_none() && files.is_empty() && outputs.is_empty() {
            return Wrapped { args, outputs, line };
        }
        // One line, so that the lines of the command keep their numbers.
        let mut script = String::new();
        if let Some(root) = root {
            let own = quoted(&format!("{root}/bash-{id}"));
            script.push_str(&format!("mkdir -p -- {own} && cd -- {own} || exit 125; "));
        }
        let mut stdin = Vec::new();
        for FileIn { path, bytes } in files {
            if let Some((parent, _)) = path.rsplit_once('/') {
                script.push_str(&format!("mkdir -p -- {} || exit 125; ", quoted(parent)));
            }
            let length = bytes.len();
            script.push_str(&format!("head -c {length} >{} || exit 125; ", quoted(&path)));
            stdin.extend(bytes);
        }
        stdin.append(&mut args.stdin);
        let command = quoted(&args.command);
        match outputs.is_empty() {
            true => script.push_str(&format!("eval {command}")),
            false => {
                script.push_str(&format!("(eval {command}); set -- $?; "));
                script.push_str(&returning(&line, &outputs));
            }
        }
        args = ScriptArgs { command: script, stdin, ..args };
        Wrapped { args, outputs, line }
    }
}

impl Wrapped {
    /// Returns the bytes of each stream that are to be kept: files stand in the second half.
    pub(crate) fn kept(&self) -> usize {
        match self.outputs.is_empty() {
            true => KEPT_BYTES,
            false => KEPT_BYTES + 2 * (OUT_BYTES.div_ceil(3) * 4 + FILES * PATH_BYTES),
        }
    }

    /// Takes the files from behind the output.
    pub(crate) fn parted(&self, stdout: &Captured) -> (Captured, Vec<FileOut>) {
        let lost = || {
            self.outputs
                .iter()
                .map(|path| FileOut { path: path.clone(), content: Err(Unreturned::Lost) })
        };
        match stdout.parted(format!("\n{}\n", self.line).as_bytes()) {
            None => (stdout.clone(), lost().collect()),
            Some((before, after)) => {
                let mut lines = after.split(|byte| *byte == b'\n');
                let file =
                    |path: &String| FileOut { path: path.clone(), content: content(lines.next()) };
                (before, self.outputs.iter().map(file).collect())
            }
        }
    }
}

/// Reads a line behind the output.
fn content(line: Option<&[u8]>) -> Result<Vec<u8>, Unreturned> {
    match line {
        Some(b"-") => Err(Unreturned::Absent),
        Some(b"+") => Err(Unreturned::Large),
        Some(coded) => match coded.split_first() {
            Some((b'=', coded)) => BASE64_STANDARD.decode(coded).map_err(|_| Unreturned::Lost),
            Some(_) | None => Err(Unreturned::Lost),
        },
        None => Err(Unreturned::Lost),
    }
}

/// Returns what prints the files behind `line`, a line each, within their bounds.
fn returning(line: &str, outputs: &[String]) -> String {
    let mut script = format!("printf '\\n{line}\\n'; left={OUT_BYTES}; for f in");
    for path in outputs {
        script.push(' ');
        script.push_str(&quoted(&format!("./{path}")));
    }
    script.push_str(
        "; do if [ -f \"$f\" ] && [ -r \"$f\" ] && n=$(stat -Lc %s -- \"$f\"); then \
         if [ \"$n\" -le \"$left\" ]; then left=$((left-n)); \
         printf '='; head -c \"$n\" -- \"$f\" | base64 -w0; echo; else echo +; fi; else echo -; fi; done; exit \"$1\"",
    );
    script
}

/// Returns true for a relative path without `.` and `..`.
fn is_inside(path: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && name != "." && name != "..";
    path.len() <= PATH_BYTES && !path.contains(['\0', '\n']) && path.split('/').all(is_name)
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, usize)], outputs: &[&str]) -> Result<ApartRun, BadRun> {
        let file = |(path, length): &(&str, usize)| FileIn {
            path: (*path).to_owned(),
            bytes: vec![b'x'; *length],
        };
        let files = files.iter().map(file).collect();
        let outputs = outputs.iter().map(|path| (*path).to_owned()).collect();
        ApartRun::new(ScriptArgs::default(), files, outputs, None)
    }

    #[test]
    fn a_path_leads_nowhere_but_into_the_directory() {
        assert!(of(&[("a", 1), ("b/c", 1)], &["d/e"]).is_ok());
        let long = "x".repeat(PATH_BYTES + 1);
        for bad in ["", "/a", "../a", "a/../b", "a//b", "./a", "a/", "a\nb", "a\0b", &long] {
            assert!(matches!(of(&[(bad, 1)], &[]), Err(BadRun::Path(_))), "{bad:?}");
            assert!(matches!(of(&[], &[bad]), Err(BadRun::Path(_))), "{bad:?}");
        }
        assert_eq!(of(&[("a", STDIN_BYTES + 1)], &[]), Err(BadRun::Large));
        assert_eq!(of(&[("a", 1); FILES + 1], &[]), Err(BadRun::Many));
    }

    #[test]
    fn what_stands_behind_the_output_is_read_within_bounds() {
        let run = of(&[], &["a", "b", "c", "d"]).expect("it is right").wrapped("1", true);
        let (before, files) = run.parted(&Captured::of(b"out\n--cofferdam-1--\n=aGk=\n-\n=@@@\n"));
        assert_eq!(before, Captured::of(b"out"));
        let contents: Vec<_> = files.into_iter().map(|file| file.content).collect();
        let absent = Err(Unreturned::Absent);
        let lost = Err(Unreturned::Lost);
        assert_eq!(contents, vec![Ok(b"hi".to_vec()), absent, lost.clone(), lost]);
        let (whole, files) = run.parted(&Captured::of(b"killed"));
        assert_eq!(whole, Captured::of(b"killed"));
        assert!(files.iter().all(|file| file.content == Err(Unreturned::Lost)));
    }

    #[test]
    fn a_command_alone_is_run_as_it_is() {
        let args = ScriptArgs { command: "it's".to_owned(), ..ScriptArgs::default() };
        let run = |root| ApartRun::new(args.clone(), Vec::new(), Vec::new(), root).expect("right");
        assert_eq!(run(None).wrapped("1", true).args, args);
        let granted = run(None).wrapped("1", false).args.command;
        let expected = "mkdir -p -- '/tmp/mcp/bash/bash-1' && cd -- '/tmp/mcp/bash/bash-1' || exit 125; \
                        eval 'it'\\''s'";
        assert_eq!(granted, expected);
        assert!(run(Some("/tmp/r")).wrapped("1", true).args.command.contains("'/tmp/r/bash-1'"));
    }
}
