//! The calls by which a name can come to be or a file be written to, and what they ask.
//!
//! Not among them: bind(2), whose sockets nobody reads a setting from; openat2, which is answered
//! as by a kernel without it; O_TMPFILE, whose file has no name until it is linked.

use std::collections::BTreeMap;

use nix::errno::Errno;

use super::sockets::Wanted;
use crate::profile::condition::{Op, Test, Verdict};
use crate::profile::floor::number;
use crate::sys::Result;

/// A call of the guard: its number, how its arguments are read, what the floor asks of them.
#[derive(Debug, Clone)]
pub struct Watched {
    pub number: u32,
    pub form: Form,
    pub verdict: Verdict,
}

/// How a call's arguments are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Open,
    Openat,
    Creat,
    Mkdir,
    Mkdirat,
    Mknod,
    Mknodat,
    Symlink,
    Symlinkat,
    Link,
    Linkat,
    Rename,
    Renameat,
    Renameat2,
    Truncate,
    Umask,
    /// Of `sockets`.
    Connect,
}

const FORMS: [(&str, Form); 16] = [
    ("open", Form::Open),
    ("openat", Form::Openat),
    ("creat", Form::Creat),
    ("mkdir", Form::Mkdir),
    ("mkdirat", Form::Mkdirat),
    ("mknod", Form::Mknod),
    ("mknodat", Form::Mknodat),
    ("symlink", Form::Symlink),
    ("symlinkat", Form::Symlinkat),
    ("link", Form::Link),
    ("linkat", Form::Linkat),
    ("rename", Form::Rename),
    ("renameat", Form::Renameat),
    ("renameat2", Form::Renameat2),
    ("truncate", Form::Truncate),
    ("umask", Form::Umask),
];

const O_CREAT: u32 = libc::O_CREAT.cast_unsigned();
/// With O_TRUNC, a file that is opened to read is emptied all the same.
const O_WRITE: u32 = (libc::O_WRONLY | libc::O_RDWR | libc::O_TRUNC).cast_unsigned();
const O_TMPFILE: u32 = libc::O_TMPFILE.cast_unsigned();
const O_PATH: u32 = libc::O_PATH.cast_unsigned();

/// Takes the calls that make names out of `verdicts`, so that the filter asks the listener about
/// each; what opens a file without making one stays.
///
/// # Errors
/// ENOTSUP: a verdict on one of them that the guard does not know.
pub fn take(verdicts: &mut BTreeMap<u32, Verdict>) -> Result<Vec<Watched>> {
    let mut taken = Vec::new();
    for (name, form) in FORMS {
        let Some(number) = number(name) else { continue };
        let verdict = match verdicts.get(&number) {
            Some(verdict @ (Verdict::Allow | Verdict::AllowIf(_))) => verdict.clone(),
            // Refused anyway.
            Some(Verdict::Errno(_)) | None => continue,
            // The floor has none of these here; one that came must not pass unseen.
            Some(Verdict::AllowOrProbe(..) | Verdict::Answered) => return Err(Errno::ENOTSUP),
        };
        verdicts.remove(&number);
        let flags = match form {
            Form::Open => Some(1),
            Form::Openat => Some(2),
            Form::Creat
            | Form::Mkdir
            | Form::Mkdirat
            | Form::Mknod
            | Form::Mknodat
            | Form::Symlink
            | Form::Symlinkat
            | Form::Link
            | Form::Linkat
            | Form::Rename
            | Form::Renameat
            | Form::Renameat2
            | Form::Truncate
            | Form::Umask
            | Form::Connect => None,
        };
        if let Some(flags) = flags {
            verdicts.insert(number, unless_it_writes(&verdict, flags));
        }
        taken.push(Watched { number, form, verdict });
    }
    Ok(taken)
}

/// The verdict with one more condition: the flags ask neither for a file to be made nor for one
/// to be written to. A file without a name is no matter of names, nor is one that is only held.
fn unless_it_writes(verdict: &Verdict, flags: u8) -> Verdict {
    let with = |bits: u32| Test::low(flags, Op::MaskedEq(u64::from(bits)), bits);
    let harmless = [
        vec![Test::none_of(flags, O_CREAT | O_WRITE)],
        vec![Test::none_of(flags, O_CREAT), with(O_TMPFILE)],
        vec![with(O_PATH)],
    ];
    let alternatives = match verdict {
        Verdict::AllowIf(alternatives) => alternatives.clone(),
        Verdict::Allow => vec![Vec::new()],
        // `take` has refused these.
        Verdict::Errno(_) | Verdict::AllowOrProbe(..) | Verdict::Answered => Vec::new(),
    };
    let all = alternatives.iter().flat_map(|tests| {
        harmless.iter().map(move |more| more.iter().chain(tests).copied().collect())
    });
    Verdict::AllowIf(all.collect())
}

/// A path as a call names it: a descriptor to start from, and where the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    pub from: i32,
    pub text: u64,
}

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Open {
        path: Named,
        flags: i32,
        mode: u32,
    },
    Directory {
        path: Named,
        mode: u32,
    },
    Node {
        path: Named,
        mode: u32,
        device: u64,
    },
    Symlink {
        content: u64,
        path: Named,
    },
    Link {
        old: Named,
        new: Named,
        flags: i32,
    },
    Rename {
        old: Named,
        new: Named,
        flags: u32,
    },
    Truncate {
        path: Named,
        length: i64,
    },
    /// Changes no file: the guard only has to know that umasks differ from now on.
    Umask,
    Connect(Wanted),
}

impl Form {
    /// Reads the arguments as the kernel does: an `int` is the low half of its register.
    #[must_use]
    pub fn ask(self, arguments: &[u64; 6]) -> Ask {
        let [a, b, c, d, e, _] = *arguments;
        let here = |text| Named { from: libc::AT_FDCWD, text };
        let at = |from, text| Named { from: low(from).cast_signed(), text };
        let open = |path, flags, mode| Ask::Open { path, flags, mode };
        match self {
            Self::Open => open(here(a), low(b).cast_signed(), low(c)),
            Self::Openat => open(at(a, b), low(c).cast_signed(), low(d)),
            Self::Creat => open(here(a), libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, low(b)),
            Self::Mkdir => Ask::Directory { path: here(a), mode: low(b) },
            Self::Mkdirat => Ask::Directory { path: at(a, b), mode: low(c) },
            Self::Mknod => Ask::Node { path: here(a), mode: low(b), device: c },
            Self::Mknodat => Ask::Node { path: at(a, b), mode: low(c), device: d },
            Self::Symlink => Ask::Symlink { content: a, path: here(b) },
            Self::Symlinkat => Ask::Symlink { content: a, path: at(b, c) },
            Self::Link => Ask::Link { old: here(a), new: here(b), flags: 0 },
            Self::Linkat => Ask::Link { old: at(a, b), new: at(c, d), flags: low(e).cast_signed() },
            Self::Rename => Ask::Rename { old: here(a), new: here(b), flags: 0 },
            Self::Renameat => Ask::Rename { old: at(a, b), new: at(c, d), flags: 0 },
            Self::Renameat2 => Ask::Rename { old: at(a, b), new: at(c, d), flags: low(e) },
            Self::Truncate => Ask::Truncate { path: here(a), length: b.cast_signed() },
            Self::Umask => Ask::Umask,
            Self::Connect => Ask::Connect(Wanted {
                socket: low(a).cast_signed(),
                address: b,
                length: low(c).cast_signed(),
            }),
        }
    }
}

fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_reads_goes_through_and_what_makes_or_writes_is_asked_about() {
        let numbers = FORMS.iter().filter_map(|(name, _)| number(name));
        let mut verdicts: BTreeMap<u32, Verdict> =
            numbers.map(|number| (number, Verdict::Allow)).collect();
        let taken = take(&mut verdicts).unwrap_or_default();
        let openat = number("openat").unwrap_or_default();
        let allows = |flags: i32| {
            let flags = u64::from(flags.cast_unsigned());
            verdicts.get(&openat).is_some_and(|verdict| verdict.allows(&[0, 0, flags, 0, 0, 0]))
        };
        assert!(allows(libc::O_RDONLY | libc::O_DIRECTORY) && allows(libc::O_PATH | libc::O_RDWR));
        assert!(allows(libc::O_TMPFILE | libc::O_RDWR) && !allows(libc::O_TMPFILE | libc::O_CREAT));
        assert!(!allows(libc::O_CREAT) && !allows(libc::O_RDWR) && !allows(libc::O_WRONLY));
        assert!(!allows(libc::O_DIRECTORY | libc::O_WRONLY) && !allows(libc::O_ACCMODE));
        assert!(!allows(libc::O_RDONLY | libc::O_TRUNC));
        let asked: Vec<u32> = taken.iter().map(|watched| watched.number).collect();
        let only_opens = |number: &u32| !verdicts.contains_key(number);
        assert_eq!(asked.iter().filter(|number| only_opens(number)).count(), asked.len() - 2);
    }

    #[test]
    fn a_call_that_the_profile_refuses_stays_refused() {
        let mkdirat = number("mkdirat").unwrap_or_default();
        let mut verdicts = BTreeMap::from([(mkdirat, Verdict::Errno(1))]);
        assert!(take(&mut verdicts).is_ok_and(|taken| taken.is_empty()));
        assert_eq!(verdicts.get(&mkdirat), Some(&Verdict::Errno(1)));
    }

    #[test]
    fn an_int_is_the_low_half_of_its_register() {
        let arguments = [0xffff_ffff_ffff_ff9c, 7, 0xdead_beef_0000_0041, 0o644, 0, 0];
        assert_eq!(
            Form::Openat.ask(&arguments),
            Ask::Open { path: Named { from: -100, text: 7 }, flags: 0o101, mode: 0o644 }
        );
    }
}
