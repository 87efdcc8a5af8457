"""Makes requests of one server, one after the other, and prints the answers: client.py REQUESTS PROGRAM WORDS…"""
import json, subprocess, sys

server = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
number = 0


def ask(method, params):
    global number
    number += 1
    send({"id": number, "method": method, "params": params})
    for line in server.stdout:
        answer = json.loads(line)
        if answer.get("id") == number:
            return answer
    sys.exit("the server has ended")


def send(message):
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    server.stdin.flush()


ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}})
send({"method": "notifications/initialized"})
with open(sys.argv[1]) as requests:
    answers = {name: ask(method, params) for name, method, params in json.load(requests)}
server.stdin.close()
print(json.dumps(answers))
sys.exit(server.wait())
