//! System calls made raw, in Python: named by their number on x86_64, and on aarch64 translated by name.

use std::fmt::{Display, Formatter, Result};

use syscalls::{aarch64, x86_64};

/// Python that defines `call(number, *arguments)`: 0 or more as the kernel returns it, or the name of the errno. The number is
/// the call's on x86_64; on aarch64 the same call is made by its own number, or the newer one that does the same.
/// `native(number)` is the number here.
#[derive(Debug, Clone, Copy)]
pub struct RawCalls;

pub const CALLS: RawCalls = RawCalls;

const BASE: &str = r#"
import ctypes, errno, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    ctypes.set_errno(0)
    number, arguments = translated(number, arguments)
    plain = [a if isinstance(a, bytes) or a is None else ctypes.c_long(a) for a in arguments]
    got = libc.syscall(ctypes.c_long(number), *plain)
    return got if got != -1 else errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno())
def tried(action):
    try:
        action()
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]
def native(number): return translated(number, (0,) * 6)[0]
"#;

const HERE: &str = "def translated(number, arguments): return number, arguments\n";

/// Calls of x86_64 that aarch64 has under another name, with other arguments (syscalls(2)). `A` are those given.
const OLDER: &str = r#"
def translated(number, A):
    older = OLDER.get(number)
    if older is None: return NUMBERS.get(number, number), A
    name, arguments = older(*A) if len(A) >= older.__code__.co_argcount else older(*A, *(0,) * (older.__code__.co_argcount - len(A)))
    return NAMES[name], arguments
OLDER = {
    2: lambda path, flags, mode, *_: ("openat", (-100, path, flags, mode)),
    85: lambda path, mode, *_: ("openat", (-100, path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode)),
    4: lambda path, into, *_: ("fstatat", (-100, path, into, 0)),
    6: lambda path, into, *_: ("fstatat", (-100, path, into, 0x100)),
    7: lambda fds, count, *_: ("ppoll", (fds, count, None, None, 0)),
    21: lambda path, mode, *_: ("faccessat", (-100, path, mode)),
    22: lambda ends, *_: ("pipe2", (ends, 0)),
    33: lambda old, new, *_: ("dup3", (old, new, 0)),
    57: lambda *_: ("clone", (17, 0, 0, 0, 0)),
    82: lambda old, new, *_: ("renameat", (-100, old, -100, new)),
    83: lambda path, mode, *_: ("mkdirat", (-100, path, mode)),
    84: lambda path, *_: ("unlinkat", (-100, path, 0x200)),
    86: lambda old, new, *_: ("linkat", (-100, old, -100, new, 0)),
    87: lambda path, *_: ("unlinkat", (-100, path, 0)),
    88: lambda target, path, *_: ("symlinkat", (target, -100, path)),
    89: lambda path, into, size, *_: ("readlinkat", (-100, path, into, size)),
    90: lambda path, mode, *_: ("fchmodat", (-100, path, mode)),
    92: lambda path, user, group, *_: ("fchownat", (-100, path, user, group, 0)),
    94: lambda path, user, group, *_: ("fchownat", (-100, path, user, group, 0x100)),
    133: lambda path, mode, device, *_: ("mknodat", (-100, path, mode, device)),
    213: lambda size, *_: ("epoll_create1", (0,)),
    253: lambda *_: ("inotify_init1", (0,)),
    284: lambda value, *_: ("eventfd2", (value, 0)),
}
"#;

impl Display for RawCalls {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        formatter.write_str(BASE)?;
        if cfg!(target_arch = "x86_64") {
            return formatter.write_str(HERE);
        }
        let own = |name: &str| {
            let name = if name == "newfstatat" { "fstatat" } else { name };
            name.parse::<aarch64::Sysno>().ok().map(|call| call.id())
        };
        formatter.write_str("NAMES = {")?;
        for call in aarch64::Sysno::iter() {
            write!(formatter, "'{}':{},", call.name(), call.id())?;
        }
        formatter.write_str("}\nNUMBERS = {")?;
        for call in x86_64::Sysno::iter() {
            // One that does not exist here has a number that no call has.
            let number = own(call.name()).map_or(call.id() + 2000, |id| id);
            write!(formatter, "{}:{number},", call.id())?;
        }
        formatter.write_str("}\n")?;
        formatter.write_str(OLDER)
    }
}
