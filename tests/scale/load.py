"""Calls by 64 clients through haproxy, while one server is killed and another one ends: load.py SCRATCH PROGRAM CALLS

Two of three clients open sessions by the official client, and count in a shell, so that a call that is lost, made twice
or answered by another session shows. The others send requests that stand alone: `calculate` and `POST /run`. Every call
must be answered. Calls that were running on the killed server may fail, and a session may be lost with its server, which
the client sees before its next call is made; any other failure fails the test.
"""

import asyncio
import logging
import os
import secrets
import signal
import ssl
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

# Leaves nothing in the directory of the sources.
sys.dont_write_bytecode = True

from served import configuration  # noqa: E402

CLIENTS = 64
SERVERS = {"a": "10.0.0.11:8080", "b": "10.0.0.12:8080", "c": "10.0.0.13:8080"}
KILLED, ENDED = "a", "b"
URL = "https://shell.example"
# Longer than the retries of the official client, which tries to resume a broken stream.
PATIENCE = 120
# Two checks of haproxy, a second apart, on a busy machine.
DETECTION = 10
# Until haproxy, on a busy machine, has seen that connections of the killed server are closed.
CLOSING = 1
# Further lines of `[http]`.
HTTP = """hosts = ["shell.example"]
pre_stop = "4s"
drain = "30s"
[[http.tokens]]
client = "load"
file = "{token}"
"""


class Run:
    def __init__(self, scratch: Path, program: str, calls: int) -> None:
        self.calls = calls
        self.token = secrets.token_hex(32)
        self.kill_time: float | None = None
        self.death_time: float | None = None
        self.end_time: float | None = None
        self.started = 0
        self.answers: Counter[str] = Counter()
        self.by_server: Counter[str] = Counter()
        self.faults: list[str] = []
        self.tls = ssl.create_default_context(cafile=str(scratch / "certificate"))
        self.processes = self.start(scratch, program)

    def start(self, scratch: Path, program: str) -> dict[str, subprocess.Popen[bytes]]:
        token = scratch / "token"
        token.write_text(self.token)
        token.chmod(0o600)
        config = scratch / "config"
        config.mkdir()
        (config / "cofferdam.toml").write_text(configuration(HTTP.format(token=token)))
        processes = {}
        for name, at in SERVERS.items():
            command = [program, "--config", str(config), "serve", "--http", at, "--behind-proxy", "10.0.0.0/24"]
            command += ["--env", f"WHICH={name}"]
            log = (scratch / f"server-{name}").open("wb")
            processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        log = (scratch / "haproxy").open("wb")
        proxy = ["haproxy", "-db", "-f", str(scratch / "haproxy.cfg")]
        processes["haproxy"] = subprocess.Popen(proxy, stdout=log, stderr=log)
        return processes

    def http(self) -> httpx2.AsyncClient:
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx2.AsyncClient(headers=headers, timeout=PATIENCE, verify=self.tls)

    def next(self) -> bool:
        """Counts one more call. Kills a server after a third of the calls, and ends one after two thirds."""
        if self.started >= self.calls:
            return False
        self.started += 1
        if self.kill_time is None and self.started >= self.calls // 3:
            self.kill_time = time.monotonic()
            self.processes[KILLED].kill()
            self.dying = asyncio.create_task(self.death())
        if self.end_time is None and self.started >= self.calls * 2 // 3:
            self.end_time = time.monotonic()
            self.processes[ENDED].send_signal(signal.SIGTERM)
        return True

    async def death(self) -> None:
        await asyncio.to_thread(self.processes[KILLED].wait)
        self.death_time = time.monotonic()

    def may_fail(self, begun: float) -> bool:
        """Returns true for a call that may have been running when the server was killed."""
        if self.kill_time is None:
            return False
        return self.death_time is None or begun <= self.death_time + CLOSING

    def may_have_ended(self, opened: float, server: str | None) -> bool:
        """Returns true for a session without a call yet that was opened until haproxy saw a server's end."""
        ends = [end for end in (self.kill_time, self.end_time) if end is not None]
        return server is None and any(opened <= end + DETECTION for end in ends)

    def fault(self, text: str) -> None:
        now = time.monotonic()
        since = [f"{now - at:.2f} s" if at else "not yet" for at in (self.kill_time, self.death_time, self.end_time)]
        self.faults.append(f"since kill {since[0]}, death {since[1]}, end {since[2]}: {text}")


async def session(run: Run, number: int) -> None:
    """Calls `bash` in sessions: when one is lost with its server, the call is made in a new one."""
    while run.started < run.calls:
        begun = time.monotonic()
        is_open = False
        try:
            async with run.http() as http:
                transport = streamable_http_client(f"{URL}/mcp", http_client=http, terminate_on_close=False)
                async with Client(transport, mode="legacy") as client:
                    is_open = True
                    await counting(run, number, client)
        except Exception:  # noqa: BLE001 (the client raises groups of errors)
            # A session that the killed server was opening has had no call: the client opens another one.
            if is_open or not run.may_fail(begun):
                raise
            run.answers["session failed, being opened at the killed server"] += 1


async def counting(run: Run, number: int, client: Client) -> None:
    count = 0
    server = None
    opened = time.monotonic()
    while run.next():
        begun = time.monotonic()
        try:
            command = "n=$((n+1)); echo $n $WHICH; sleep 0.0$((RANDOM % 5))"
            done = await client.call_tool("bash", {"command": command}, read_timeout_seconds=PATIENCE)
        except MCPError as error:
            if "Session terminated" in str(error) and (server in (KILLED, ENDED) or run.may_have_ended(opened, server)):
                # Answered 404 by another server: the call was not made, and counts as one that is still to be made.
                run.answers["session lost with its server"] += 1
                run.started -= 1
            elif server in (KILLED, None) and run.may_fail(begun):
                # The first call of a session does not know its server before the answer.
                run.answers["failed, running on the killed server"] += 1
            else:
                run.fault(f"client {number} on {server}, call {count + 1}: {error}")
            return
        count += 1
        stdout = (done.structured_content or {}).get("stdout", "")
        words = stdout.split()
        if done.is_error or len(words) != 2 or words[0] != str(count) or server not in (None, words[1]):
            run.fault(f"client {number} on {server}, call {count}: {done}")
            return
        server = words[1]
        run.answers["ok"] += 1
        run.by_server[server] += 1


async def standing_alone(run: Run, number: int) -> None:
    """Makes calls that any server answers."""
    modern = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "calculate",
    }
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "load", "version": "1"},
    }
    async with run.http() as http:
        call = 0
        while run.next():
            call += 1
            begun = time.monotonic()
            is_sum = call % 2 == 1
            if is_sum:
                path, headers = "/mcp", modern
                params = {"name": "calculate", "arguments": {"expression": f"{call}*7"}, "_meta": meta}
                body = {"jsonrpc": "2.0", "id": call, "method": "tools/call", "params": params}
                expected = f'"{call * 7}"'
            else:
                path, headers = "/run", {}
                body = {"command": f"echo {call}"}
                expected = f'"stdout":"{call}\\n"'
            try:
                answer = await http.post(f"{URL}{path}", json=body, headers=headers)
            except (httpx2.RemoteProtocolError, httpx2.ReadError) as error:
                # haproxy answers the first request of a connection with 502, and closes the connection of a later one:
                # the client decides whether its request may be sent again.
                if not run.may_fail(begun):
                    run.fault(f"client {number}, call {call}: {error!r}")
                run.answers["failed, running on the killed server"] += 1
                continue
            good = expected in answer.text
            if answer.status_code == 200 and good:
                run.answers["ok"] += 1
            elif answer.status_code == 502 and run.may_fail(begun):
                run.answers["failed, running on the killed server"] += 1
            else:
                run.fault(f"client {number}, call {call}: {answer.status_code} {answer.text[:300]}")


async def guarded(run: Run, number: int) -> None:
    work = standing_alone if number % 3 == 0 else session
    try:
        await work(run, number)
    except Exception as error:  # noqa: BLE001 (each is reported)
        run.fault(f"client {number}: {error!r} {getattr(error, 'exceptions', '')}")


async def ready(run: Run) -> None:
    end = time.monotonic() + PATIENCE
    async with run.http() as http:
        for at in [f"http://{at}" for at in SERVERS.values()] + [URL]:
            while True:
                try:
                    if (await http.get(f"{at}/health", headers={"host": "shell.example"})).status_code == 200:
                        break
                except httpx2.HTTPError:
                    pass
                if time.monotonic() > end:
                    raise SystemExit(f"{at} is not healthy in time")
                await asyncio.sleep(0.1)
    # Until each server has passed two of haproxy's checks.
    await asyncio.sleep(3)


async def main(scratch: str, program: str, calls: str) -> int:
    logging.disable(logging.CRITICAL)
    run = Run(Path(scratch), program, int(calls))
    try:
        await ready(run)
        begun = time.monotonic()
        await asyncio.gather(*(guarded(run, number) for number in range(CLIENTS)))
        took = time.monotonic() - begun
        ended = await asyncio.to_thread(run.processes[ENDED].wait, PATIENCE)
        status = run.processes["c"].poll()
    finally:
        for process in run.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in run.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
    answered = run.answers["ok"] + run.answers["failed, running on the killed server"]
    print(f"{run.started} calls of {CLIENTS} clients in {took:.0f} s, {run.started / took:.0f} a second")
    print(f"answers: {dict(run.answers)}; calls in sessions by server: {dict(run.by_server)}")
    if ended != 0 or status is not None:
        run.fault(f"the ended server's exit code is {ended}, and that of the last one {status}")
    if answered < run.calls:
        run.fault(f"{answered} calls were answered, not {run.calls}")
    if not all(run.by_server[name] for name in SERVERS):
        run.fault("a server was not used")
    for text in run.faults[:20]:
        print(f"FAULT {text}", file=sys.stderr)
    if run.faults:
        for name in [*(f"server-{name}" for name in SERVERS), "haproxy"]:
            lines = (Path(scratch) / name).read_text(errors="replace").splitlines()[-5:]
            print(f"{name}:", *lines, sep="\n  ", file=sys.stderr)
    return 1 if run.faults else 0


os.environ.pop("SSL_CERT_FILE", None)
sys.exit(asyncio.run(main(*sys.argv[1:])))
