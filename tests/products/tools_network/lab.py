"""Servers of the laboratory: web servers that redirect, and a name server for lab.internal."""
import ctypes, http.server, socket, struct, threading

# Names and their addresses; the public one is not in a private network.
NAMES = {
    b"web.lab.internal": ["10.9.0.2"],
    b"two.lab.internal": ["10.9.0.2", "10.9.0.3"],
    b"six.lab.internal": ["fd12::2"],
    b"public.lab.internal": ["203.0.113.10"],
}
PLACES = {"/away": "http://10.9.0.3/", "/port": "http://10.9.0.2:8081/", "/here": "/", "/name": "http://web.lab.internal/"}


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        to = PLACES.get(self.path)
        body = f"hello from {self.server.place}".encode()
        self.send_response(302 if to else 200)
        if to:
            self.send_header("Location", to)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.do_GET()

    def log_message(self, *words):
        pass


class Six(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6


def serve(kind, address, port):
    server = kind((address, port), Page)
    server.place = f"{address} {port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()


for address in ("10.9.0.2", "10.9.0.3", "203.0.113.10"):
    serve(http.server.ThreadingHTTPServer, address, 80)
serve(http.server.ThreadingHTTPServer, "10.9.0.2", 8081)
serve(Six, "fd12::2", 80)
listener = socket.create_server(("10.9.0.2", 25))
# A port whose packets a filter takes (socket(7), SO_ATTACH_FILTER): neither open nor closed to those who ask.
silent = socket.create_server(("10.9.0.2", 81))
drop = struct.pack("HBBI", 6, 0, 0, 0)
held = ctypes.create_string_buffer(drop)
silent.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 1, ctypes.addressof(held)))
# A port that loses a quarter of what is sent to it (SKF_AD_RANDOM): TCP sends it again.
lossy = http.server.ThreadingHTTPServer(("10.9.0.2", 83), Page)
lossy.place = "10.9.0.2 83"
lose = struct.pack("HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0xFFFFF038, 0x35, 1, 0, 0x40000000, 6, 0, 0, 0, 6, 0, 0, 0xFFFF)
losing = ctypes.create_string_buffer(lose)
lossy.socket.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 4, ctypes.addressof(losing)))
threading.Thread(target=lossy.serve_forever, daemon=True).start()
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("10.9.0.53", 53))
while True:
    question, sender = names.recvfrom(2000)
    end, labels = 12, []
    while question[end]:
        labels.append(question[end + 1:end + 1 + question[end]].lower())
        end += question[end] + 1
    name, kind = b".".join(labels), question[end + 1:end + 3]
    found = NAMES.get(name)
    records = []
    for text in found or []:
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        if kind == (b"\0\x1c" if ":" in text else b"\0\1"):
            packed = socket.inet_pton(family, text)
            records.append(b"\xc0\x0c" + kind + b"\0\1\0\0\0\x3c\0" + bytes([len(packed)]) + packed)
    code = b"\x81\x80" if found else b"\x81\x83"
    head = question[:2] + code + b"\0\1\0" + bytes([len(records)]) + b"\0\0\0\0"
    names.sendto(head + question[12:end + 5] + b"".join(records), sender)
