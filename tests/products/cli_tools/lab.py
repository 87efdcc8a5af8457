"""A web server of a laboratory: pages, one of them with a password, one that takes SQL; and a name server."""
import base64, http.server, os, socket, sqlite3, threading, time, urllib.parse


def end_with(server):
    """Ends the laboratory with the server that stands in front of it."""
    while os.getppid() == server:
        time.sleep(0.2)
    os._exit(0)


threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()

database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("create table item (id integer, name text)")
database.executemany("insert into item values (?, ?)", [(1, "one"), (2, "two")])
lock = threading.Lock()


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        status, body = 404, b"no such page"
        if url.path in ("/", "/hidden", "/admin.php"):
            status, body = 200, b"a page"
        elif url.path == "/private":
            known = "Basic " + base64.b64encode(b"admin:sesame").decode()
            status, body = (200, b"in") if self.headers.get("Authorization") == known else (401, b"who?")
        elif url.path == "/item":
            key = urllib.parse.parse_qs(url.query).get("id", ["1"])[0]
            try:
                with lock:
                    rows = database.execute("select name from item where id = " + key).fetchall()
                status, body = 200, b"<p>item: " + str(rows).encode() + b"</p>"
            except sqlite3.Error:
                status, body = 200, b"<p>nothing</p>"
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="lab"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


server = http.server.ThreadingHTTPServer(("10.77.0.10", 80), Page)
threading.Thread(target=server.serve_forever, daemon=True).start()
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("10.77.0.10", 53))
while True:
    question, sender = names.recvfrom(2000)
    end = 12
    while question[end]:
        end += question[end] + 1
    head = question[:2] + b"\x81\x80" + question[4:6] + b"\0\1\0\0\0\0"
    answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + bytes([10, 77, 0, 99])
    names.sendto(head + question[12:end + 5] + answer, sender)
