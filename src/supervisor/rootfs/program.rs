//! Determines the files that a program needs to start, by parsing ELF: its interpreter and shared
//! libraries.
//!
//! A cell with a single program contains exactly that program's files. Unlike ldd(1), this executes
//! nothing.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use elf::ElfStream;
use elf::abi::{DT_NEEDED, DT_STRTAB, PT_INTERP};
use elf::endian::AnyEndian;

/// Directories that ld.so(8) searches without a cache, on Debian, Fedora, Arch and Alpine.
const DIRECTORIES: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];
/// More than any program confined this way needs; a file that lists more is refused.
const MAX_LIBRARIES: usize = 64;

/// Returns the paths of the interpreter and of all libraries that `program` loads at its start,
/// sorted.
///
/// # Errors
/// A file cannot be read, is not an ELF file, or a library is not found.
pub(crate) fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = BTreeSet::new();
    let mut waiting = vec![program.to_owned()];
    while let Some(path) = waiting.pop() {
        let needs = Needs::read(&path)?;
        for name in needs.libraries {
            let library = locate(&name)?;
            if files.insert(library.clone()) {
                waiting.push(library);
            }
        }
        if let Some(interpreter) = needs.interpreter {
            files.insert(interpreter);
        }
        if files.len() > MAX_LIBRARIES {
            return Err(io::Error::other("more shared libraries than a small program has"));
        }
    }
    Ok(files.into_iter().collect())
}

fn locate(name: &str) -> io::Result<PathBuf> {
    DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.exists())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("library {name}")))
}

/// Files that one ELF file requests.
struct Needs {
    interpreter: Option<PathBuf>,
    libraries: Vec<String>,
}

impl Needs {
    fn read(path: &Path) -> io::Result<Self> {
        let wrong = |error: elf::ParseError| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut file = ElfStream::<AnyEndian, _>::open_stream(File::open(path)?).map_err(wrong)?;
        let segments = file.segments().clone();
        let mut interpreter = None;
        if let Some(segment) = segments.iter().find(|segment| segment.p_type == PT_INTERP) {
            let bytes = file.segment_data(segment).map_err(wrong)?;
            let text = String::from_utf8_lossy(bytes);
            interpreter = Some(PathBuf::from(text.trim_end_matches('\0')));
        }
        let mut offsets = Vec::new();
        let mut table = None;
        if let Some(dynamic) = file.dynamic().map_err(wrong)? {
            for entry in dynamic.iter() {
                match entry.d_tag {
                    DT_NEEDED => offsets.push(entry.d_val()),
                    DT_STRTAB => table = Some(entry.d_ptr()),
                    _ => {}
                }
            }
        }
        let libraries = match table {
            None => Vec::new(),
            Some(address) => names(&mut file, &segments, address, &offsets)?,
        };
        Ok(Self { interpreter, libraries })
    }
}

/// Reads names from the dynamic string table, which is given by its address in memory.
fn names(
    file: &mut ElfStream<AnyEndian, File>,
    segments: &[elf::segment::ProgramHeader],
    address: u64,
    offsets: &[u64],
) -> io::Result<Vec<String>> {
    let wrong = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    let holds = |segment: &&elf::segment::ProgramHeader| {
        segment.p_type == elf::abi::PT_LOAD
            && (segment.p_vaddr..segment.p_vaddr.saturating_add(segment.p_filesz))
                .contains(&address)
    };
    let segment = segments.iter().find(holds).ok_or_else(|| wrong("no string table"))?;
    let bytes = file.segment_data(segment).map_err(|_| wrong("unreadable segment"))?;
    offsets
        .iter()
        .map(|offset| {
            let start = usize::try_from(address - segment.p_vaddr + offset)
                .map_err(|_| wrong("a string out of bounds"))?;
            let rest = bytes.get(start..).ok_or_else(|| wrong("a string out of bounds"))?;
            let name = std::ffi::CStr::from_bytes_until_nul(rest)
                .map_err(|_| wrong("an unended string"))?;
            name.to_str().map(str::to_owned).map_err(|_| wrong("a name that is not text"))
        })
        .collect()
}
