"""A web server, one that wants a secret, and a name server that knows names below example.org by one address."""
import http.server, socket, ssl, sys, threading, time

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/mute":
            time.sleep(60)
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *words):
        pass

for port in (80, 81):
    server = http.server.ThreadingHTTPServer(("203.0.113.10", port), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()


class Guarded(Page):
    def do_GET(self):
        known = self.headers.get("Authorization") == "Bearer the-secret-of-this-test"
        body = b"welcome" if known else b"who?"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET


server = http.server.ThreadingHTTPServer(("203.0.113.10", 443), Guarded)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{sys.argv[1]}/server.pem", f"{sys.argv[1]}/server.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("203.0.113.53", 53))
while True:
    question, sender = names.recvfrom(2000)
    end = 12
    while question[end]:
        end += question[end] + 1
    is_a = question[end + 1:end + 3] == b"\0\1"
    answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + bytes([203, 0, 113, 10]) if is_a else b""
    count = b"\0\1" if is_a else b"\0\0"
    head = question[:2] + b"\x81\x80" + question[4:6] + count + b"\0\0\0\0"
    names.sendto(head + question[12:end + 5] + answer, sender)
