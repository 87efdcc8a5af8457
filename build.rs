//! Makes `cofferdam-probe`, the helper of the self-test, and `cofferdam-clerk`, which reads and writes
//! files in cells, for the library to embed: static programs without a C library, so that neither
//! needs a compiler or a second file. And has the program itself linked without shared libraries, and the
//! configuration that is compiled in parsed.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=probe");
    println!("cargo::rerun-if-changed=clerk");
    // Set for these alone, here; as examples of the package they are ordinary programs.
    println!("cargo::rustc-check-cfg=cfg(freestanding)");
    freestanding("probe")?;
    freestanding("clerk")?;
    shipped()?;
    without_shared_libraries()
}

/// Has `cofferdam` linked as a static-pie, where the C library's archives are: a process that loads no
/// libraries starts in two thirds of the time, and its clones, of which each call is made, have a
/// third of the mappings. Its addresses are random all the same.
///
/// `-C target-feature=+crt-static` is the usual way, and takes `--target` beside it, which puts the
/// program in another place. Here the linker finds archives where it looks for libraries first.
fn without_shared_libraries() -> Result<(), Box<dyn Error>> {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    let native = std::env::var_os("TARGET") == std::env::var_os("HOST");
    if !native || !is("CARGO_CFG_TARGET_OS", "linux") || !is("CARGO_CFG_TARGET_ENV", "gnu") {
        return Ok(());
    }
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| OsString::from("cc"));
    // Where one of them is not installed, the program has its shared libraries.
    let Some([c, m, eh, gcc, _start]) =
        found(&linker, ["libc.a", "libm.a", "libgcc_eh.a", "libgcc.a", "rcrt1.o"])
    else {
        return Ok(());
    };
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo has set no OUT_DIR")?)
        .join("archives");
    fs::create_dir_all(&directory)?;
    // Scripts of the linker. The first two name each other's functions.
    let unwinding = format!("{} {}", eh.display(), gcc.display());
    let both = format!("GROUP ( {} {unwinding} )\n", c.display());
    let maths = fs::read(&m)?;
    // On x86_64 it is a script itself.
    let maths = match maths.starts_with(b"!<arch>") {
        true => format!("GROUP ( {} )\n", m.display()).into_bytes(),
        false => maths,
    };
    fs::write(directory.join("libm.a"), maths)?;
    for name in ["libc.a", "libgcc_s.a"] {
        fs::write(directory.join(name), &both)?;
    }
    // Parts of the C library by now.
    for name in ["libpthread.a", "libdl.a", "librt.a", "libutil.a"] {
        fs::write(directory.join(name), "!<arch>\n")?;
    }
    let mut arguments = vec!["-static-pie".to_owned(), format!("-L{}", directory.display())];
    if packs_relocations(&c)? && takes_packed(&linker, &directory) {
        // 400 KB fewer to read and to go through at each start.
        arguments.push(PACKED.to_owned());
    }
    // The benchmark starts a supervisor in itself: what it measures is linked as what is shipped.
    for argument in arguments {
        println!("cargo::rustc-link-arg-bin=cofferdam={argument}");
        println!("cargo::rustc-link-arg-benches={argument}");
    }
    Ok(())
}

/// Has the linker pack relocations.
const PACKED: &str = "-Wl,-z,pack-relative-relocs";

/// Whether the linker links with [`PACKED`], which gold refuses.
fn takes_packed(linker: &OsStr, directory: &Path) -> bool {
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let chosen = flags.split('\x1f').filter_map(|flag| flag.split_once("link-arg=")).map(|of| of.1);
    let tried = Command::new(linker)
        .args(chosen.filter(|argument| argument.starts_with("-fuse-ld=")))
        .args(["-shared", "-nostdlib", "-x", "c", "/dev/null", PACKED, "-o"])
        .arg(directory.join("tried.so"))
        .output();
    tried.is_ok_and(|tried| tried.status.success())
}

/// Whether a program that this C library starts relocates itself by DT_RELR: from 2.36 on. An older one
/// would leave those relocations out. Its archive has the version in the words that it tells of itself.
fn packs_relocations(archive: &Path) -> Result<bool, Box<dyn Error>> {
    const BEFORE: &[u8] = b"release version 2.";
    let bytes = fs::read(archive)?;
    let after = bytes.windows(BEFORE.len()).position(|here| here == BEFORE);
    let minor = after.and_then(|at| {
        let digits =
            bytes.get(at + BEFORE.len()..)?.iter().take_while(|byte| byte.is_ascii_digit());
        String::from_utf8(digits.copied().collect()).ok()?.parse::<u32>().ok()
    });
    Ok(minor.is_some_and(|minor| minor >= 36))
}

/// Where the linker has these files; none where it lacks one.
fn found<const N: usize>(linker: &OsStr, names: [&str; N]) -> Option<[PathBuf; N]> {
    let place = |name: &str| {
        let said = Command::new(linker).arg(format!("-print-file-name={name}")).output().ok()?;
        // A file that it does not know is told by its name alone.
        let path = PathBuf::from(String::from_utf8(said.stdout).ok()?.trim());
        path.is_absolute().then_some(path).filter(|path| path.is_file())
    };
    let places: Vec<PathBuf> = names.into_iter().filter_map(place).collect();
    places.try_into().ok()
}

/// Compiles the program in this directory.
fn freestanding(name: &str) -> Result<(), Box<dyn Error>> {
    let variable = |name: &str| std::env::var_os(name).ok_or(format!("cargo has set no {name}"));
    let program = PathBuf::from(variable("OUT_DIR")?).join(format!("cofferdam-{name}"));
    let mut command = Command::new(variable("RUSTC")?);
    command.arg(format!("--crate-name=cofferdam_{name}"));
    command.args(["--crate-type=bin", "--edition=2024"]);
    command.args([
        "--cfg=freestanding",
        "-Copt-level=s",
        "-Clto",
        "-Cpanic=abort",
        "-Cstrip=symbols",
    ]);
    command.args(["-Crelocation-model=static", "-Ctarget-feature=+crt-static"]);
    command.args(["-Clink-arg=-nostdlib", "-Clink-arg=-nostartfiles", "-Clink-arg=-static"]);
    // Page after page of padding is left out: it is embedded.
    command.args(["-Clink-arg=-Wl,-z,noseparate-code,--build-id=none"]);
    command.arg("--target").arg(variable("TARGET")?);
    if let Some(linker) = std::env::var_os("RUSTC_LINKER") {
        let mut flag = OsString::from("-Clinker=");
        flag.push(linker);
        command.arg(flag);
    }
    command.arg("-o").arg(&program).arg(format!("{name}/main.rs"));
    let status = command.status()?;
    if !status.success() {
        return Err(format!("cofferdam-{name} cannot be made: {status}").into());
    }
    Ok(())
}

/// Parses the files that are compiled in, and writes what is in them as a value of Rust.
fn shipped() -> Result<(), Box<dyn Error>> {
    let mut paths = Vec::new();
    for directory in ["policies", "sandbox-profiles"] {
        println!("cargo::rerun-if-changed={directory}");
        for entry in fs::read_dir(directory)? {
            paths.push(entry?.path());
        }
    }
    paths.sort();
    let (mut parsed, mut files) = (Parsed::default(), Vec::new());
    for path in paths {
        let text = fs::read_to_string(&path)?;
        let table =
            DeTable::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let value = parsed.table(table.get_ref())?;
        let name = parsed.text(&path.to_string_lossy());
        files.push(format!("({name}, {})", node(&table.span(), &value)));
    }
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo has set no OUT_DIR")?);
    let Parsed { text, nodes, entries } = parsed;
    let (nodes, entries, files) = (nodes.join(",\n"), entries.join(",\n"), files.join(",\n"));
    let all = format!(
        "Shipped {{ text: {text:?}, nodes: &[{nodes}], entries: &[{entries}], files: &[{files}] }}"
    );
    Ok(fs::write(directory.join("shipped.rs"), all)?)
}

/// What `document::parsed` has of all files: by numbers and not by pointers, each of which would be
/// relocated at each start.
#[derive(Default)]
struct Parsed {
    /// Every text and key, some within others.
    text: String,
    /// The values of each list, behind each other.
    nodes: Vec<String>,
    /// The entries of each table, behind each other.
    entries: Vec<String>,
}

impl Parsed {
    fn text(&mut self, text: &str) -> String {
        let at = self.text.find(text).unwrap_or_else(|| {
            self.text.push_str(text);
            self.text.len() - text.len()
        });
        format!("Text {{ at: {at}, long: {} }}", text.len())
    }

    fn table(&mut self, table: &DeTable<'_>) -> Result<String, Box<dyn Error>> {
        let mut entries = Vec::new();
        for (key, value) in table {
            let (key, value) = (self.text(key.get_ref()), self.value(value)?);
            entries.push(format!("({key}, {value})"));
        }
        Ok(format!("Value::Table({})", behind(&mut self.entries, entries)))
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>) -> Result<String, Box<dyn Error>> {
        let written = match value.get_ref() {
            DeValue::String(text) => format!("Value::Text({})", self.text(text)),
            DeValue::Integer(number) => {
                format!("Value::Whole({})", i64::from_str_radix(number.as_str(), number.radix())?)
            }
            DeValue::Boolean(flag) => format!("Value::Flag({flag})"),
            DeValue::Array(values) => {
                let nodes =
                    values.iter().map(|value| self.value(value)).collect::<Result<Vec<_>, _>>()?;
                format!("Value::List({})", behind(&mut self.nodes, nodes))
            }
            DeValue::Table(table) => self.table(table)?,
            other @ (DeValue::Float(_) | DeValue::Datetime(_)) => {
                return Err(format!("{other:?} is in none of our schemas").into());
            }
        };
        Ok(node(&value.span(), &written))
    }
}

/// Puts these behind those that are there: where they are.
fn behind(all: &mut Vec<String>, these: Vec<String>) -> String {
    let (first, count) = (all.len(), these.len());
    all.extend(these);
    format!("Part {{ first: {first}, count: {count} }}")
}

fn node(span: &std::ops::Range<usize>, value: &str) -> String {
    format!("Node {{ from: {}, to: {}, value: {value} }}", span.start, span.end)
}
