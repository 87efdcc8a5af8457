"""Two calls of one server, each with a network: the worker of the first is killed. Prints what became of both."""
import glob, json, os, signal, subprocess, sys, threading, time

server = subprocess.Popen([sys.argv[1], "serve", "--egress", "web.example.org:80"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
replies = {}


def read():
    for line in server.stdout:
        message = json.loads(line)
        if "id" in message:
            replies[message["id"]] = message


threading.Thread(target=read, daemon=True).start()


def send(**message):
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()


def waited(found, seconds=20):
    end = time.time() + seconds
    while not (value := found()) and time.time() < end:
        time.sleep(0.05)
    return value


def workers():
    """The gateway is the process of that name; its first eight children close sockets, the others are workers."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        pid = path.split("/")[2]
        try:
            named = open(path).read().startswith("cofferdam-gateway")
            parent = open(f"/proc/{pid}/stat").read().rsplit(") ", 1)[1].split()[1]
            if named and parent == str(server.pid):
                return open(f"/proc/{pid}/task/{pid}/children").read().split()[8:]
        except OSError:
            pass
    return []


def call(number, command, session):
    arguments = {"command": command, "session": session}
    send(id=number, method="tools/call", params={"name": "bash", "arguments": arguments})


send(id=1, method="initialize", params={"protocolVersion": "2025-06-18", "capabilities": {},
                                        "clientInfo": {"name": "test", "version": "1"}})
waited(lambda: 1 in replies)
send(method="notifications/initialized")
# A server that takes the connection and never answers.
call(2, "echo before; curl -sS -m 100 http://web.example.org/mute", "first")
first = waited(workers)
call(3, "curl -sS http://web.example.org/; sleep 4; curl -sS http://web.example.org/", "second")
waited(lambda: len(workers()) == 2)
time.sleep(0.5)
began = time.time()
os.kill(int(first[0]), signal.SIGKILL)
lost = waited(lambda: replies.get(2))
text = json.dumps(lost)
print("lost-call:", "before" in text and "the worker of the cell's network has died" in text and "lost its network" in text
      and time.time() - began < 10)
other = json.dumps(waited(lambda: replies.get(3)))
print("other-call:", other.count("hellohello") > 0)
# The session continues with a new shell, which has a network again.
call(4, "curl -sS http://web.example.org/", "first")
again = json.dumps(waited(lambda: replies.get(4)))
print("call-after-it:", "hello" in again)
print(text, other, again, sep="\n", file=sys.stderr)
server.stdin.close()
server.wait(20)
