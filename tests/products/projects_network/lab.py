"""Servers of the laboratory: web servers that redirect, flood and hang, repositories of git, and a name server."""
import http.server, os, socket, ssl, subprocess, sys, threading, time

SCRATCH = sys.argv[1]
NAMES = {
    b"api.example.org": ["203.0.113.10"],
    b"other.example.org": ["203.0.113.10"],
    b"private.example.org": ["10.9.0.2"],
    b"mapped.example.org": ["::ffff:10.9.0.2"],
}
PLACES = {"/to-private": "https://private.example.org/ok", "/to-other": "https://other.example.org/ok"}


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open(f"{SCRATCH}/requests", "a") as log:
            log.write(f"{self.server.place} {self.command} {self.path} {self.headers['User-Agent']}\n")
        path = self.path.split("?")[0]
        if path.startswith("/to-private/"):
            return self.answer(302, b"", "https://private.example.org" + self.path[len("/to-private"):])
        if path in PLACES:
            return self.answer(302, b"", PLACES[path])
        if ".git/" in path:
            return self.git(path)
        if path in ("/endless", "/long"):
            self.send_response(200)
            if path == "/long":
                self.send_header("Content-Length", str(30 << 20))
            self.end_headers()
            try:
                for _ in range(30 if path == "/long" else 1 << 30):
                    self.wfile.write(b"x" * (1 << 20))
            except OSError:
                pass
            return
        if path == "/slow":
            self.send_response(200)
            self.send_header("Content-Length", "9")
            self.end_headers()
            return time.sleep(30)
        bodies = {"/ok": b"hello from " + self.server.place.encode(), "/raw": b"a\0b\xff\n"}
        return self.answer(200, bodies[path]) if path in bodies else self.answer(404, b"none")

    do_POST = do_GET

    def answer(self, code, body, location=None):
        self.send_response(code)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def git(self, path):
        given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        env = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": SCRATCH, "GIT_HTTP_EXPORT_ALL": "1", "HOME": SCRATCH,
            "PATH_INFO": path, "REQUEST_METHOD": self.command, "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "QUERY_STRING": self.path.partition("?")[2], "CONTENT_LENGTH": str(len(given)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=given, stdout=subprocess.PIPE, env=env).stdout
        head, _, body = done.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200 OK").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{SCRATCH}/server.pem", f"{SCRATCH}/server.key")
for address, port in (("203.0.113.10", 443), ("203.0.113.10", 8443), ("10.9.0.2", 443)):
    server = http.server.ThreadingHTTPServer((address, port), Page)
    server.place = f"{address}:{port}"
    # The handshake is made in the thread of the connection.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("203.0.113.53", 53))
while True:
    question, sender = names.recvfrom(2000)
    end, labels = 12, []
    while question[end]:
        labels.append(question[end + 1:end + 1 + question[end]].lower())
        end += question[end] + 1
    kind = question[end + 1:end + 3]
    found = NAMES.get(b".".join(labels))
    records = []
    for text in found or []:
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        if kind == (b"\0\x1c" if ":" in text else b"\0\1"):
            packed = socket.inet_pton(family, text)
            records.append(b"\xc0\x0c" + kind + b"\0\1\0\0\0\x3c\0" + bytes([len(packed)]) + packed)
    head = question[:2] + (b"\x81\x80" if found else b"\x81\x83") + b"\0\1\0" + bytes([len(records)]) + b"\0\0\0\0"
    names.sendto(head + question[12:end + 5] + b"".join(records), sender)
