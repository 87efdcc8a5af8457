"""Makes the calls of a file of one server, and runs the programs that they are compared with; prints all results.

Each entry is [name, tool, arguments], or [name, null, words] for a program that runs bare, as nobody.
"""
import json, subprocess, sys

calls, server = json.load(open(sys.argv[1])), sys.argv[2:]
serve = subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
last = 0


def ask(method, params):
    global last
    last += 1
    message = {"jsonrpc": "2.0", "id": last, "method": method, "params": params}
    print(json.dumps(message), file=serve.stdin, flush=True)
    for line in serve.stdout:
        answer = json.loads(line)
        if answer.get("id") == last:
            return answer.get("result") or answer
    return {}


client = {"name": "test", "version": "1"}
ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
print(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}), file=serve.stdin, flush=True)
results = {}
for name, tool, given in calls:
    if tool:
        results[name] = ask("tools/call", {"name": tool, "arguments": given})
    else:
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *given]
        done = subprocess.run(nobody, capture_output=True, text=True, timeout=120)
        results[name] = {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
serve.stdin.close()
serve.wait()
print(json.dumps(results))
