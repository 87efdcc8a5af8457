"""The servers of the lab: DNS, HTTP, TLS, echo, one that speaks first, a source and a sink."""
import socket, ssl, struct, sys, threading, time

V4, V6 = ["203.0.113.10", "203.0.113.20"], ["2001:db8::10", "2001:db8::20"]
ZONE = {
    "web.test": ["203.0.113.10", "2001:db8::10"],
    "other.test": ["203.0.113.10"],
    "api.test": ["203.0.113.10"],
    "lab.test": ["203.0.113.20", "2001:db8::20"],
    "a.wild.test": ["203.0.113.10"],
    "tenant.wild.test": ["10.77.0.10"],
    "lab.wild.test": ["10.77.0.20"],
    "inside.test": ["10.77.0.10"],
    "loop.test": ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "64:ff9b::7f00:1"],
    "host.test": ["203.0.113.1"],
    "mixed.test": ["127.0.0.1", "203.0.113.10"],
}
asked = open(sys.argv[1], "a", buffering=1)


def name_of(query, at):
    labels = []
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode())
        at += 1 + query[at]
    return ".".join(labels), at + 5


def answer(query):
    name, end = name_of(query, 12)
    kind = struct.unpack(">H", query[end - 4:end - 2])[0]
    asked.write(f"{name} {kind}\n")
    name = name.lower()
    # All of it but its number.
    asked.write(f"raw {name} {query[2:].hex()}\n")
    records, code = [], 0 if name in ZONE or name == "big.test" else 3
    for address in ZONE.get(name, []):
        family, number = (socket.AF_INET6, 28) if ":" in address else (socket.AF_INET, 1)
        if number == kind:
            records.append((kind, socket.inet_pton(family, address)))
    if name == "big.test" and kind == 16:
        records = [(16, b"\xc8" + bytes([65 + i]) * 200) for i in range(20)]
    body = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", k, 1, 60, len(d)) + d for k, d in records)
    return query[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, len(records), 0, 0) + query[12:end] + body


def dns_udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("203.0.113.53", 53))
    while True:
        query, peer = s.recvfrom(4096)
        reply = answer(query)
        if len(reply) > 1232:
            reply = reply[:2] + struct.pack(">HHHHH", 0x8380, 1, 0, 0, 0) + query[12:name_of(query, 12)[1]]
        s.sendto(reply, peer)


def dns_tcp(c):
    while len(head := c.recv(2)) == 2:
        reply = answer(c.recv(struct.unpack(">H", head)[0]))
        c.sendall(struct.pack(">H", len(reply)) + reply)


def http(c):
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            more = c.recv(65536)
            if not more:
                return
            data += more
        head, rest = data.split(b"\r\n\r\n", 1)
        host = [l.split(b":", 1)[1].strip() for l in head.split(b"\r\n") if l.lower().startswith(b"host:")]
        length = [int(l.split(b":")[1]) for l in head.split(b"\r\n") if l.lower().startswith(b"content-length:")]
        size = length[0] if length else 0
        left = size - len(rest)
        while left > 0:
            left -= len(c.recv(min(left, 65536)))
        said = [l.split(b":", 1)[1].strip() for l in head.split(b"\r\n") if l.lower().startswith(b"authorization:")]
        body = b"hello " + b",".join(host) + b" " + str(size).encode() + b"".join(b" " + s for s in said) + b"\n"
        if said and said[0] == b"Bearer ghp_Real/Value+42":
            body += b"welcome\n"
        # A connection for more than one request, where the path asks for it.
        keep = head.split(b" ")[1] == b"/keep"
        close = b"" if keep else b"Connection: close\r\n"
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n" % (len(body), close) + body)
        if not keep:
            return
        data = rest[size:]


def echo(c):
    while data := c.recv(65536):
        c.sendall(data)


def banner(c):
    c.sendall(b"SSH-2.0-lab\r\n")
    c.recv(100)


def source(c):
    size = int(c.recv(20))
    block = bytes(1 << 20)
    while size > 0:
        c.sendall(block[:min(size, len(block))])
        size -= len(block)


def sink(c):
    total = 0
    while data := c.recv(1 << 20):
        total += len(data)
    c.sendall(b"%d\n" % total)


def keep(c):
    total = 0
    while data := c.recv(4096):
        total += len(data)
    asked.write(f"kept {total}\n")


def mute(c):
    c.recv(1)


def deaf(c):
    time.sleep(60)


def either(c):
    if c.recv(5) == b"stuck":
        time.sleep(2)
    else:
        echo(c)


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[3])


def tls(c):
    http(context.wrap_socket(c, server_side=True))


def guarded(serve, c):
    try:
        serve(c)
    except OSError:
        pass
    finally:
        c.close()


def listen(address, port, serve):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, port))
    s.listen(512)
    while True:
        c, _ = s.accept()
        threading.Thread(target=guarded, args=(serve, c), daemon=True).start()


def udp_echo(address):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((address, 7))
    while True:
        data, peer = s.recvfrom(65536)
        s.sendto(data, peer)


def udp_keep(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((address, 9006))
    while True:
        asked.write(f"datagram {len(s.recv(65536))}\n")


def udp_flood(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((address, 12))
    s.setblocking(True)
    while True:
        peer = s.recvfrom(65536)[1]
        end = time.time() + 2
        while time.time() < end:
            for _ in range(1000):
                s.sendto(bytes(10), peer)


work = [(dns_udp, ()), (listen, ("203.0.113.53", 53, dns_tcp)), (listen, ("10.77.0.10", 80, http)),
        (listen, ("10.77.0.20", 80, http)), (listen, ("10.77.0.20", 22, banner)), (udp_flood, ("203.0.113.20",)), (udp_keep, ("203.0.113.20",))]
for address in V4 + V6:
    work.append((udp_echo, (address,)))
    for port, serve in [(80, http), (443, tls), (7, echo), (22, banner), (9000, source), (9001, sink), (9002, mute), (9003, keep), (9004, either), (9005, deaf)]:
        work.append((listen, (address, port, serve)))
threads = [threading.Thread(target=f, args=a, daemon=True) for f, a in work]
for thread in threads:
    thread.start()
time.sleep(0.3)
dead = [w for w, t in zip(work, threads) if not t.is_alive()]
sys.stdout.write("up\n" if not dead else f"dead {dead}\n")
sys.stdout.flush()
sys.stdin.read()
