"""The servers of the far namespace: a name server that has every name at one address, and one web server for all of
the hosts that the shipped presets name. Files are read from the directory that is given; the registry of npm stands
behind it, on the loopback."""
import base64
import hashlib
import http.client
import http.server
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(sys.argv[1])
ADDRESS, RESOLVER = "203.0.113.10", "203.0.113.53"
SECRET = (ROOT / "secret").read_text()


def file(name):
    return (ROOT / "files" / name).read_bytes()


def package_index(path):
    wheel = f"{path.split('/')[2].replace('-', '_')}-1.0-py3-none-any.whl"
    return f'<a href="https://files.pythonhosted.org/packages/{wheel}">{wheel}</a>'.encode()


def crates(path):
    if path == "/config.json":
        return json.dumps({"dl": "https://static.crates.io/crates", "api": "https://crates.io"}).encode()
    name = path.rpartition("/")[2]
    if not (ROOT / "files" / f"{name}.crate").exists():
        return None
    entry = {"name": name, "vers": "1.0.0", "deps": [], "cksum": hashlib.sha256(file(f"{name}.crate")).hexdigest(),
             "features": {}, "yanked": False}
    return json.dumps(entry).encode() + b"\n"


def modules(path):
    before, _, name = path.rpartition("/")
    module = before.removesuffix("/@v").lstrip("/")
    archive = ROOT / "files" / f"{module.replace('/', '-')}.zip"
    if not archive.exists():
        return None
    known = {"list": b"v1.0.0\n", "v1.0.0.info": b'{"Version":"v1.0.0","Time":"2026-01-01T00:00:00Z"}',
             "v1.0.0.mod": f"module {module}\n\ngo 1.19\n".encode(), "v1.0.0.zip": archive.read_bytes()}
    return known.get(name)


def archive(path):
    place = (ROOT / "files").joinpath(path.lstrip("/")).resolve()
    return place.read_bytes() if place.is_file() and place.is_relative_to(ROOT / "files/debian") else None


PAGE = b"""<!doctype html><title>lab</title><p id=out>before</p><script>
Promise.all([1, 2, 3, 4, 5, 6, 7, 8].map(n => fetch('/part' + n).then(r => r.text())))
  .then(parts => { document.getElementById('out').textContent = parts.join(' ') })
</script>"""


def pages(path):
    return PAGE if path == "/" else f"got {path}".encode()


FILES = {
    "pypi.org": package_index,
    "files.pythonhosted.org": lambda path: file(path.rpartition("/")[2]),
    "index.crates.io": crates,
    "static.crates.io": lambda path: file(f"{path.split('/')[2]}.crate"),
    "proxy.golang.org": modules,
    "deb.debian.org": archive,
    "web.example.org": pages,
}


class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def host(self):
        return (self.headers.get("Host") or "").partition(":")[0]

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return parts
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status, body, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def registry(self, body):
        """Hands the request to the real registry, as a front with TLS does."""
        with_body = {"Host": self.headers["Host"], "X-Forwarded-Proto": "https"}
        keep = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "transfer-encoding", "connection", "content-length")}
        behind = http.client.HTTPConnection("127.0.0.1", 4873, timeout=30)
        behind.request(self.command, self.path, body or None, keep | with_body)
        answer = behind.getresponse()
        headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in ("transfer-encoding", "connection", "content-length", "keep-alive")]
        self.answer(answer.status, answer.read(), headers)

    def repository(self, body):
        """Answers as git's own CGI program does, for those who may."""
        if self.path.startswith("/o/private") and self.authorized("Basic") is None:
            return self.answer(401, b"", [("WWW-Authenticate", 'Basic realm="lab"')])
        path, _, query = self.path.partition("?")
        if self.path == "/o/private.git/git-upload-pack":
            self.pause()
        environment = {"PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(ROOT / "git"), "GIT_HTTP_EXPORT_ALL": "1", "HOME": str(ROOT),
                       "REQUEST_METHOD": self.command, "PATH_INFO": path, "QUERY_STRING": query, "REMOTE_USER": "lab",
                       "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body)),
                       "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                       "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""), "GIT_CONFIG_COUNT": "1",
                       "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        output = subprocess.run(["git", "http-backend"], input=body, stdout=subprocess.PIPE, env=environment).stdout
        head, _, rest = output.partition(b"\r\n\r\n")
        headers = [tuple(line.split(": ", 1)) for line in head.decode().split("\r\n")]
        status = next((int(value[:3]) for name, value in headers if name == "Status"), 200)
        self.answer(status, rest, [(name, value) for name, value in headers if name != "Status"])

    def pause(self):
        """Lets the test look at the client while that waits for its answer, as long as the test says so."""
        end = time.monotonic() + 20
        while (ROOT / "hold").exists() and time.monotonic() < end:
            (ROOT / "asked").touch()
            time.sleep(0.02)

    def authorized(self, kind):
        """Returns what the client said, if it is the secret."""
        said = self.headers.get("Authorization") or ""
        scheme, _, value = said.partition(" ")
        if scheme == "Basic":
            try:
                value = base64.b64decode(value).decode().partition(":")[2]
            except ValueError:
                return None
        return said if scheme == kind and value == SECRET else None

    def private(self, body):
        """An API, and an index of packages, for those who have the secret. It echoes what it was sent."""
        kind = "Basic" if self.path.startswith("/simple/") else "Bearer"
        said = self.authorized(kind)
        if said is None:
            return self.answer(401, b"who are you?\n", [("WWW-Authenticate", f'{kind} realm="lab"')])
        if self.path.startswith("/simple/") and self.path.endswith(".whl"):
            return self.answer(200, file("tiny_lab-1.0-py3-none-any.whl"), [("Content-Type", "application/octet-stream")])
        if self.path.startswith("/simple/"):
            page = b'<a href="/simple/tiny-lab/tiny_lab-1.0-py3-none-any.whl">tiny_lab-1.0-py3-none-any.whl</a>'
            return self.answer(200, page, [("Content-Type", "text/html")])
        self.answer(200, f"welcome, {self.command} of {len(body)} bytes with {said}\n".encode())

    def handle_any(self):
        body = self.body()
        host = self.host()
        if host == "registry.npmjs.org":
            return self.registry(body)
        if host == "github.com":
            return self.repository(body)
        if host in ("api.example.org", "pkg.example.org"):
            return self.private(body)
        content = FILES.get(host, lambda path: None)(self.path.partition("?")[0])
        kind = "text/html" if host in ("pypi.org", "web.example.org") else "application/octet-stream"
        self.answer(200 if content is not None else 404, content or b"", [("Content-Type", kind)])

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

    def log_message(self, *words):
        print(self.host(), words[0] % words[1:], file=sys.stderr)


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def __init__(self, port, context=None):
        super().__init__((ADDRESS, port), Front)
        self.context = context

    def finish_request(self, request, address):
        # In the connection's own thread: a client that says nothing must not hold up others.
        if self.context:
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, address)

    def handle_error(self, request, address):
        print("connection ended:", sys.exc_info()[1], file=sys.stderr)


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(ROOT / "server.pem", ROOT / "server.key")
for server in (Server(80), Server(443, context)):
    threading.Thread(target=server.serve_forever, daemon=True).start()

names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind((RESOLVER, 53))
print("up", flush=True)
while True:
    question, sender = names.recvfrom(2000)
    end = 12
    while question[end]:
        end += question[end] + 1
    is_a = question[end + 1:end + 3] == b"\0\1"
    record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(ADDRESS) if is_a else b""
    head = question[:2] + b"\x81\x80" + question[4:6] + (b"\0\1" if is_a else b"\0\0") + b"\0\0\0\0"
    names.sendto(head + question[12:end + 5] + record, sender)
