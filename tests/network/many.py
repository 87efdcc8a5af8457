"""Connects to an address that never answers, from many threads at once, each for as long as SO_SNDTIMEO says; then to
one that answers, and to one that refuses. Prints how each ended."""
import collections, errno, socket, struct, threading, time

ends = collections.Counter()


def connect(address, port, seconds):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, 0))
    try:
        s.connect((address, port))
        return "connected"
    except OSError as error:
        return errno.errorcode[error.errno]


def count():
    ends[connect("203.0.113.99", 80, 2)] += 1


threads = [threading.Thread(target=count) for _ in range(200)]
[thread.start() for thread in threads]
time.sleep(0.5)
# While all of them wait.
during = connect("203.0.113.10", 80, 5), connect("203.0.113.10", 81, 5), connect("203.0.113.10", 82, 5)
[thread.join() for thread in threads]
print(dict(ends), *during)
