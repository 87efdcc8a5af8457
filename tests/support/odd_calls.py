# Odd calls that make names, each with what it met and what is there afterwards. It runs in a cell
# after CALLS and `BASE = <directory>`; two cells that print the same treat these calls the same.
import fcntl, resource, stat, threading, time

O = os
C, X, W, R, RW, T, A = O.O_CREAT, O.O_EXCL, O.O_WRONLY, O.O_RDONLY, O.O_RDWR, O.O_TRUNC, O.O_APPEND
HERE, FOLLOW, EMPTY = -100, 0x400, 0x1000
NUMBERS = dict(open=2, rename=82, mkdir=83, creat=85, link=86, symlink=88, mknod=133, openat=257, mkdirat=258,
               mknodat=259, renameat=264, linkat=265, symlinkat=266, renameat2=316, truncate=76)

def found(path):
    try:
        entry = O.lstat(path)
        return f"{oct(entry.st_mode)} {entry.st_size if stat.S_ISREG(entry.st_mode) else ''}"
    except OSError as error:
        return errno.errorcode[error.errno]

def show(label, name, *arguments, at=None):
    met = call(NUMBERS[name], *arguments)
    if isinstance(met, int) and met > 2:
        status, closes = fcntl.fcntl(met, fcntl.F_GETFL), fcntl.fcntl(met, fcntl.F_GETFD)
        mode = O.fstat(met).st_mode
        O.close(met)
        met = f"descriptor {oct(status)} {closes} {oct(mode)}"
    print(label, met, found(at) if at else "")

O.mkdir(BASE)
O.chdir(BASE)
O.umask(0o027)

# Modes, flags, umask.
show("new", "open", b"n1", C | W, 0o666, at="n1")
show("exclusive on one that is there", "open", b"n1", C | W | X, 0o666)
show("append", "open", b"n1", C | RW | T | A | O.O_CLOEXEC, 0o666)
show("status flags", "open", b"n1", C | RW | O.O_SYNC | O.O_NOATIME | O.O_NONBLOCK, 0o666)
show("sticky", "open", b"n2", C | W, 0o1777, at="n2")
show("set-id", "open", b"n3", C | W, 0o4777, at="n3")
show("no rights", "open", b"n4", C | R, 0o000, at="n4")
show("no rights, again", "open", b"n4", C | W, 0o000)
show("creat", "creat", b"c1", 0o606, at="c1")
show("access mode 3", "open", b"c1", C | 3, 0o666)
show("a flag that is none", "open", b"c1", C | W | 1 << 30, 0o666)
show("unnamed and to be made", "open", b".", C | O.O_TMPFILE | RW, 0o600)
show("directory", "mkdir", b"d1", 0o7777, at="d1")

# Ends of paths.
for path in [b"", b"/", b".", b"..", b"./", b"d1", b"d1/", b"d1/.", b"d1/..", b"n1/", b"n1/.", b"none/", b"none/.", b"none/x", b"n1/x", b"//", b"d1//x1", b"./d1/../x2"]:
    for flags in [R, W, R | X, W | X, R | O.O_DIRECTORY, W | O.O_NOFOLLOW]:
        show(f"open {path} {flags}", "open", path, C | flags, 0o666)
    show(f"mkdir {path}", "mkdir", path, 0o777)
    show(f"symlink {path}", "symlink", b"x", path)
    show(f"mknod {path}", "mknod", path, 0o644, 0)
    show(f"link {path}", "link", b"n1", path)
    show(f"link from {path}", "link", path, b"l0")
    show(f"rename {path}", "rename", b"none2", path)
    show(f"rename from {path}", "rename", path, b"none/y")
for length in [255, 256, 4095, 4096]:
    path = b"y" * length if length < 300 else b"./" * (length // 2 - 2) + b"a" * (4 - length % 2)
    show(f"{length} bytes", "open", path, C | W, 0o666)
    show(f"{length} bytes for a directory", "mkdir", path, 0o777)

# Pointers and descriptors.
show("no pointer", "open", 8, C | W, 0o666)
show("the kernel's pointer", "mkdir", -1, 0o777)
show("null", "mkdir", None, 0o777)
show("second pointer", "rename", b"n1", 8)
show("a link to no pointer", "symlink", 8, b"s0")
file, directory, held = O.open("n1", R), O.open("d1", R), O.open("d1", O.O_PATH)
show("a descriptor that is none", "openat", 99, b"x", C | W, 0o666)
show("a negative one", "mkdirat", -5, b"x", 0o777)
show("none needed", "mkdirat", 99, BASE.encode() + b"/absolute", 0o777, at="absolute")
show("of a file", "openat", file, b"x", C | W, 0o666)
show("of a directory", "openat", directory, b"v", C | W, 0o666, at="d1/v")
show("of one that is only held", "openat", held, b"w", C | W, 0o666, at="d1/w")
show("with an upper half", "openat", directory | 7 << 32, b"u", C | W, 0o666, at="d1/u")

# Symbolic links.
for name, content in [(b"dangling", b"target"), (b"loop1", b"loop2"), (b"loop2", b"loop1"), (b"todir", b"d1"), (b"tonone", b"nowhere"), (b"absolute2", BASE.encode() + b"/d1/t"), (b"d1/up", b"../up")]:
    show(f"link {name}", "symlink", content, name, at=name)
show("an empty one", "symlink", b"", b"s2")
for name in [b"dangling", b"loop1", b"loop1/x", b"todir", b"todir/", b"todir/s", b"tonone/", b"absolute2", b"d1/up"]:
    show(f"exclusive {name}", "open", name, C | W | X, 0o666)
    show(f"not followed {name}", "open", name, C | W | O.O_NOFOLLOW, 0o666)
    show(f"followed {name}", "open", name, C | W, 0o666)
    show(f"directory at {name}", "mkdir", name, 0o777)
print(sorted(O.listdir(".")), sorted(O.listdir("d1")))

# Hard links.
show("link", "link", b"n1", b"h1", at="h1")
show("link over", "link", b"n1", b"h1")
show("link of a directory", "link", b"d1", b"h2")
show("link of a link", "link", b"todir", b"h3", at="h3")
show("link of what it names", "linkat", HERE, b"dangling", HERE, b"h4", FOLLOW, at="h4")
show("link with flags that are none", "linkat", HERE, b"n1", HERE, b"h5", 1)
show("link across filesystems", "link", b"/etc/passwd", b"h6")
unnamed = O.open(".", O.O_TMPFILE | RW, 0o640)
show("a first name", "linkat", HERE, b"/proc/self/fd/%d" % unnamed, HERE, b"h7", FOLLOW, at="h7")

# Renames.
show("rename", "rename", b"h1", b"r1", at="r1")
show("of a directory", "rename", b"d1", b"d2", at="d2")
show("file over directory", "rename", b"r1", b"d2")
show("directory over file", "rename", b"d2", b"r1")
show("into itself", "rename", b"d2", b"d2/x")
show("directory with a slash", "rename", b"d2/", b"d3/", at="d3")
show("file with a slash", "rename", b"r1/", b"r2")
show("across filesystems", "rename", b"r1", b"/dev/shm/r1")
show("not over another", "renameat2", HERE, b"r1", HERE, b"n2", 1)
show("exchange", "renameat2", HERE, b"r1", HERE, b"d3", 2, at="r1")
show("exchange with nothing", "renameat2", HERE, b"r1", HERE, b"none", 2)
show("whiteout", "renameat2", HERE, b"n2", HERE, b"n9", 4, at="n2")
show("flags that are none", "renameat2", HERE, b"n2", HERE, b"n9", 64)
show("flags that exclude each other", "renameat2", HERE, b"n2", HERE, b"n9", 3)

# Nodes.
for name, mode in [(b"fifo", stat.S_IFIFO), (b"plain", stat.S_IFREG), (b"socket", stat.S_IFSOCK), (b"none3", 0)]:
    show(f"node {name}", "mknod", name, mode | 0o666, 0, at=name)
show("device", "mknod", b"device", stat.S_IFCHR | 0o666, 0x103)
show("directory as a node", "mknod", b"dn", stat.S_IFDIR | 0o666, 0)
show("fifo without a reader", "open", b"fifo", C | W | O.O_NONBLOCK, 0o666)
show("fifo for both", "open", b"fifo", C | RW, 0o666)
show("fifo, exclusive", "open", b"fifo", C | W | X, 0o666)
show("socket", "open", b"socket", C | W, 0o666)
def reader():
    time.sleep(0.2)
    O.read(O.open("fifo", R), 1)
thread = threading.Thread(target=reader)
thread.start()
started = time.monotonic()
show("fifo with a reader to come", "open", b"fifo", C | W, 0o666)
print("waited", time.monotonic() - started > 0.15)
thread.join()

# Cut and grown by name.
for path in [b"", b"/", b".", b"d3", b"c1/", b"c1/x", b"none", b"c1", b"fifo", b"socket", b"loop1", b"tonone", b"absolute2"]:
    for length in [7, 0, -1]:
        show(f"truncate {path} {length}", "truncate", path, length, at=path or b".")
show("truncate no pointer", "truncate", 8, 0)

# What is not the cell's to write, and descriptors by name.
for path in [b"/usr/x", b"/etc/passwd", b"/etc/x", b"/dev/null", b"/dev/x", b"/proc/self/comm", b"/x"]:
    show(f"open {path}", "open", path, C | W | T, 0o666)
    show(f"mkdir {path}", "mkdir", path, 0o777)
number = O.open("c1", RW)
for path in [b"/proc/self/fd/%d", b"/proc/thread-self/fd/%d", b"/dev/fd/%d", b"/proc/%d/fd/%%d" % O.getpid()]:
    for flags in [W, W | T, R, W | X, W | O.O_NOFOLLOW]:
        show(f"{path.split(b'/')[-2]} {flags}", "open", path % number, C | flags, 0o666)
O.symlink("/dev/fd/%d" % number, "named")
show("by a link", "open", b"named", C | W, 0o666)
show("none of that number", "open", b"/dev/fd/77", C | W, 0o666)
show("directory by number", "open", b"/dev/fd/%d" % directory, C | R, 0o666)
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
try:
    while True:
        O.open("c1", R)
except OSError:
    show("no descriptor left", "open", b"c1", C | W, 0o666)
