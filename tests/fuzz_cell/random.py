# Random system calls with random arguments: `random.py SEED SECONDS PID PORT NAME PATH`. It runs in a cell, and
# prints how many it has made. Workers are replaced all the time: most break themselves soon. The same
# seed makes the same workers, each with the same calls.
import ctypes, mmap, os, random, signal, socket, struct, sys, time

SEED, SECONDS, PID, PORT = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
NAME, PATH = sys.argv[5].encode(), sys.argv[6].encode()
END = time.monotonic() + SECONDS
# Calls of one worker, and the seconds it has for them.
CALLS, PATIENCE = 300, 1.5
# A third of all calls may have any number; the rest are of these ranges, which have most of what is used.
NUMBERS = [*range(0, 110), *range(155, 180), *range(186, 336), *range(424, 470)]
# rt_sigreturn, exit, exit_group: ends of the worker. Seldom made.
ENDS = {15, 60, 231}

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
shared = mmap.mmap(-1, 4096)
made = ctypes.c_uint64.from_buffer(shared)

PATHS = [b"", b".", b"/", b"/tmp/x", b"/tmp/d/y", b"/workspace/f", b"/usr/bin/true", b"/etc/passwd", b"/dev/null",
         b"/proc/self/mem", b"/proc/1/mem", b"/proc/1/root", b"/proc/self/fd/0", b"/dev/shm/s", b"../../..",
         b"a" * 255, b"/tmp/" + b"b/" * 500, PATH, PATH + b"/secret", PATH + b"/socket", b"/proc/%d/mem" % PID]


def descriptors():
    first, second = socket.socketpair()
    stream, datagram = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    local = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    files = [os.open(path, os.O_PATH) for path in ("/", "/workspace")]
    files += [os.open(path, os.O_RDONLY) for path in ("/tmp", "/usr", "/proc/self", "/dev/null")]
    files += os.pipe()
    # Refused where no control group holds the memory of cells, or to whom another worker left no right.
    for more in (lambda: os.memfd_create("m"), lambda: os.open("/tmp/own", os.O_RDWR | os.O_CREAT, 0o600)):
        try:
            files.append(more())
        except OSError:
            pass
    held = [first, second, stream, datagram, local]
    # At most 64 in a cell.
    try:
        held.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    except OSError:
        pass
    return held, [*files, *(one.fileno() for one in held), 0, 1, 2]


class Arguments:
    def __init__(self, dice):
        self.dice = dice
        self.held, self.files = descriptors()
        self.room = ctypes.create_string_buffer(dice.randbytes(65536), 1 << 20)
        self.base = ctypes.addressof(self.room)
        self.paths = [ctypes.create_string_buffer(path) for path in PATHS]

    def structure(self):
        """Something that the kernel reads, at the beginning of the room."""
        dice, base = self.dice, self.base
        made = [
            lambda: struct.pack("H", socket.AF_UNIX) + b"\0" + NAME,
            lambda: struct.pack("H", socket.AF_UNIX) + (PATH + b"/socket")[:100] + b"\0",
            lambda: struct.pack("H", socket.AF_INET) + struct.pack(">H", PORT) + b"\x7f\0\0\1" + bytes(8),
            # iovec, timespec, msghdr, clone_args, open_how, kernel_sigaction, sigset.
            lambda: struct.pack("4Q", base + 4096, dice.choice([0, 1, 4096, 1 << 40]), base, 16),
            lambda: struct.pack("4q", 0, dice.choice([0, 1000, 10**9, -1]), 0, 1000),
            lambda: struct.pack("7Q", base + 64, dice.choice([16, 110, 3]), base + 128, 1, base + 256, 64, 0),
            lambda: struct.pack("11Q", 1 << dice.randrange(40), 0, 0, 0, dice.choice([0, 17]), 0, 0, 0, 0, 0, 0),
            lambda: struct.pack("3Q", dice.randrange(1 << 22), 0o644, dice.randrange(64)),
            # Messages of route netlink, with an attribute.
            lambda: b"".join(struct.pack("IHHIIIIIIHHI", 40, dice.randrange(16, 124), dice.randrange(1 << 12), 1, 0,
                             dice.choice([0, 2, 10, 1 << 24]), dice.randrange(4), 0, 0, 8, dice.randrange(70),
                             dice.choice([0, 1, PID, 1 << 31])) for _ in range(dice.randrange(1, 6))),
            lambda: struct.pack("HHII", socket.AF_NETLINK, 0, dice.choice([0, 1, PID]), dice.choice([0, 1 << 4])),
            lambda: dice.randbytes(dice.randrange(256)),
        ]
        text = dice.choice(made)()
        ctypes.memmove(base + dice.choice([0, 0, 64, 128]), text, len(text))

    def one(self):
        dice, kind = self.dice, self.dice.randrange(12)
        if kind == 0:
            return 0
        if kind in (1, 2):
            return dice.randrange(32)
        if kind in (3, 4):
            return dice.choice(self.files)
        if kind == 5:
            return self.base
        if kind == 6:
            return self.base + dice.randrange(1 << 16)
        if kind in (7, 8):
            return ctypes.addressof(dice.choice(self.paths))
        if kind == 9:
            return dice.choice([-1, -100, 1, 2, PID, os.getpid(), os.getppid(), -PID, 4096, 1 << 30])
        if kind == 10:
            return 1 << dice.randrange(63)
        return dice.getrandbits(63)


def work(seed):
    dice = random.Random(seed)
    arguments = Arguments(dice)
    for _ in range(CALLS):
        number = dice.choice(NUMBERS) if dice.random() < 0.67 else dice.randrange(1024)
        arguments.structure()
        words = [ctypes.c_long(arguments.one()) for _ in range(6)]
        if number in ENDS and dice.random() < 0.98:
            continue
        made.value += 1
        libc.syscall(ctypes.c_long(number), *words)


def wait(pid):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.005)
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except OSError:
        pass


workers = 0
while time.monotonic() < END:
    try:
        pid = os.fork()
    except OSError:
        # What copies of workers left has the cell's processes.
        time.sleep(0.05)
        continue
    if pid == 0:
        try:
            work(f"{SEED} {workers}")
        finally:
            os._exit(0)
    wait(pid)
    workers += 1
    print("made", made.value, flush=True)
