"""Measures what calls of one server cost, and the load test that the simulation has to predict.

Costs are the processor time of the server's processes, divided by the number of calls, while clients keep it busy. The
kernel's threads are measured for the whole machine, less what they took while the server was at rest.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import platform
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from served import configuration

TICK = 1 / os.sysconf("SC_CLK_TCK")
PATIENCE = 60
# All clients of a server without tokens are one client, for which one turn is not available.
RESERVED = 1
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "capacity", "version": "1"},
}
# Commands of calls in a session: one that the shell does itself, and one that starts a program, which waits for
# 0 to 40 ms as in load.py.
COMMANDS = {
    "session": "n=$((n+1)); echo $n",
    "program": "n=$((n+1)); echo $n; sleep 0.0$((RANDOM % 5))",
}
PAUSES = {"program": 0.02}
KINDS = ("session", "program", "run", "calculate", "open")
# A third of the clients of load.py sends requests that stand alone.
ALONE = ["calculate", "run"]
SHELLS = 40

numbers = itertools.count(1)


# Status, headers and body.
Answer = tuple[int, dict[str, str], str]


class Failed(Exception):
    """An answer that is not the expected one."""


class Connection:
    """A connection for HTTP, which is opened again after the server closes it."""

    def __init__(self, address: str) -> None:
        self.host, port = address.rsplit(":", 1)
        self.port = int(port)
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, headers: dict[str, str], body: Any) -> Answer:
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        reader, writer = self.streams
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"host: {self.host}:{self.port}", f"content-length: {len(data)}"]
        lines += ["content-type: application/json", "accept: application/json, text/event-stream"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split(" ")[1])
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        if found.get("transfer-encoding") == "chunked":
            parts = []
            while size := int(await reader.readline(), 16):
                parts.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readexactly(2)
            text = b"".join(parts)
        else:
            text = await reader.readexactly(int(found.get("content-length", "0")))
        if found.get("connection") == "close":
            self.close()
        return status, found, text.decode()

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


class Caller:
    """A client, which makes calls of the kinds that it is given."""

    def __init__(self, address: str) -> None:
        self.connection = Connection(address)
        self.session: str | None = None
        self.count = 0

    async def call(self, kind: str) -> None:
        if kind == "calculate":
            await self.calculate()
        elif kind == "run":
            await self.run()
        elif kind == "open":
            await self.end()
            await self.shell("session")
        else:
            await self.shell(kind)

    async def calculate(self) -> None:
        number = next(numbers)
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "calculate"}
        params = {"name": "calculate", "arguments": {"expression": f"{number}*7"}, "_meta": META}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        expect(await self.connection.request("POST", "/mcp", headers, message), f'"{number * 7}"')

    async def run(self) -> None:
        number = next(numbers)
        answer = await self.connection.request("POST", "/run", {}, {"command": f"echo {number}"})
        expect(answer, f'"stdout":"{number}\\n"')

    async def shell(self, kind: str) -> None:
        if self.session is None:
            await self.initialize()
        self.count += 1
        params = {"name": "bash", "arguments": {"command": COMMANDS[kind]}}
        answer = await self.post({"jsonrpc": "2.0", "id": next(numbers), "method": "tools/call", "params": params})
        expect(answer, f'"stdout":"{self.count}\\n"')

    async def initialize(self) -> None:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "capacity", "version": "1"},
        }
        answer = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        expect(answer, '"serverInfo"')
        self.session = answer[1]["mcp-session-id"]
        self.count = 0
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def post(self, message: dict[str, Any]) -> Answer:
        headers = {"mcp-protocol-version": "2025-11-25"}
        if self.session is not None:
            headers["mcp-session-id"] = self.session
        return await self.connection.request("POST", "/mcp", headers, message)

    async def end(self) -> None:
        if self.session is not None:
            await self.connection.request("DELETE", "/mcp", {"mcp-session-id": self.session}, None)
            self.session = None

    async def close(self) -> None:
        await self.end()
        self.connection.close()


def expect(answer: Answer, expected: str) -> None:
    status, _, text = answer
    if status != 200 or expected not in text:
        raise Failed(f"{expected} was expected, and the answer is {status} {text[:300]}")


class Server:
    """A server on loopback, with a configuration and a home of its own."""

    def __init__(self, program: str, scratch: Path, name: str) -> None:
        config = scratch / name
        config.mkdir()
        (config / "cofferdam.toml").write_text(configuration())
        log = scratch / f"{name}.log"
        command = [program, "--config", str(config), "serve", "--http", "127.0.0.1:0"]
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(config)}
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=output, env=environment)
        end = time.monotonic() + PATIENCE
        while not (found := re.search(r"MCP at http://([^/]*)/mcp", log.read_text())):
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise SystemExit(f"{program} serves nothing: {log.read_text()[-1000:]}")
            time.sleep(0.05)
        self.address = found[1]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@dataclass
class Process:
    parent: int
    own: float
    children: float


def processes() -> dict[int, Process]:
    """Returns all processes with the processor time of each and of its children that have ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = text.rpartition(")")[2].split()
        times = [int(value) * TICK for value in fields[11:15]]
        found[int(entry.name)] = Process(int(fields[1]), times[0] + times[1], times[2] + times[3])
    return found


def descendants(every: dict[int, Process], root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, process in every.items():
        children.setdefault(process.parent, []).append(pid)
    found = []
    waiting = list(children.get(root, []))
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


@dataclass
class Times:
    """Seconds of processor time at one moment."""

    at: float
    front: float = 0.0
    supervisor: float = 0.0
    cell: float = 0.0
    client: float = 0.0
    idle: float = 0.0
    kernel: dict[int, float] = field(default_factory=dict)


def times(servers: list[Server]) -> Times:
    every = processes()
    now = Times(time.monotonic(), client=time.process_time())
    now.kernel = {pid: process.own for pid, process in every.items() if process.parent == 2}
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    now.idle = (int(fields[4]) + int(fields[5])) * TICK
    for server in servers:
        front = server.process.pid
        now.front += every[front].own
        supervisors = [pid for pid, process in every.items() if process.parent == front]
        for supervisor in supervisors:
            now.supervisor += every[supervisor].own
            now.cell += every[supervisor].children
            for pid in descendants(every, supervisor):
                now.cell += every[pid].own + every[pid].children
    return now


def kernel_between(before: Times, after: Times) -> float:
    """Returns the time of the kernel's threads; of one that has ended, the time until its end is not counted."""
    return sum(max(0.0, value - before.kernel.get(pid, 0.0)) for pid, value in after.kernel.items())


@dataclass
class Slice:
    """Calls of some seconds, and what they cost."""

    seconds: float = 0.0
    front: float = 0.0
    supervisor: float = 0.0
    cell: float = 0.0
    client: float = 0.0
    kernel: float = 0.0
    idle: float = 0.0
    calls: dict[str, int] = field(default_factory=dict)
    answers: dict[str, list[float]] = field(default_factory=dict)

    def add(self, other: Slice) -> None:
        for name in ("seconds", "front", "supervisor", "cell", "client", "kernel", "idle"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for kind, count in other.calls.items():
            self.calls[kind] = self.calls.get(kind, 0) + count
            self.answers.setdefault(kind, []).extend(other.answers[kind])

    def spent(self) -> float:
        return self.front + self.supervisor + self.cell + self.client + self.kernel

    def processors(self) -> float:
        """Returns how many processors the calls had or could have had, next to what else ran on the machine."""
        return (self.spent() + self.idle) / self.seconds


async def load(servers: list[Server], clients: list[list[str]], seconds: float) -> Slice:
    """Keeps clients busy, each with its kinds of calls in turns, and returns the costs of the calls."""
    callers = [Caller(servers[number % len(servers)].address) for number in range(len(clients))]
    # Sessions and shells are there before the time begins.
    for caller, kinds in zip(callers, clients, strict=True):
        if kinds[0] in COMMANDS:
            await caller.call(kinds[0])
    await asyncio.sleep(1)
    rest = times(servers)
    await asyncio.sleep(1)
    result = Slice()
    before = times(servers)
    end = before.at + seconds

    async def busy(caller: Caller, kinds: list[str]) -> None:
        for kind in itertools.cycle(kinds):
            begun = time.monotonic()
            if begun >= end:
                return
            await caller.call(kind)
            ended = time.monotonic()
            if ended <= end:
                result.calls[kind] = result.calls.get(kind, 0) + 1
                result.answers.setdefault(kind, []).append(ended - begun)

    work = asyncio.gather(*(busy(caller, kinds) for caller, kinds in zip(callers, clients, strict=True)))
    await asyncio.sleep(end - time.monotonic())
    after = times(servers)
    await work
    for caller in callers:
        await caller.close()
    result.seconds = after.at - before.at
    for name in ("front", "supervisor", "cell", "client", "idle"):
        setattr(result, name, getattr(after, name) - getattr(before, name))
    at_rest = kernel_between(rest, before) / (before.at - rest.at)
    result.kernel = max(0.0, kernel_between(before, after) - at_rest * result.seconds)
    return result


def memory(server: Server) -> float:
    """Returns the proportional set size of all processes of a server in bytes."""
    total = 0
    for pid in [server.process.pid, *descendants(processes(), server.process.pid)]:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:
            raise SystemExit("the memory of cells can be read only by root: run this as root") from None
        if found := re.search(r"^Pss: *(\d+) kB", text, re.MULTILINE):
            total += int(found[1]) * 1024
    return total


def ready_cells(server: Server) -> int:
    every = processes()
    supervisors = [pid for pid, process in every.items() if process.parent == server.process.pid]
    return sum(1 for process in every.values() if process.parent in supervisors)


async def memories(server: Server) -> dict[str, float]:
    """Measures the memory of a server at rest, with ready cells, and with idle shells."""
    at_rest = memory(server)
    caller = Caller(server.address)
    for _ in range(8):
        await caller.call("run")
    await caller.close()
    await asyncio.sleep(2)
    with_ready = memory(server)
    ready = ready_cells(server)
    callers = [Caller(server.address) for _ in range(SHELLS)]
    for one in callers:
        await one.call("session")
    await asyncio.sleep(2)
    with_shells = memory(server)
    shells = ready_cells(server) - ready
    before = times([server])
    await asyncio.sleep(3)
    after = times([server])
    idle = after.front + after.supervisor + after.cell - before.front - before.supervisor - before.cell
    for one in callers:
        await one.close()
    return {
        "server": at_rest,
        "ready_cells": ready,
        "ready_cell": (with_ready - at_rest) / max(1, ready),
        "shell": (with_shells - with_ready) / max(1, shells),
        "shells": shells,
        "idle_shell_processor": max(0.0, idle) / 3 / SHELLS,
    }


def machine() -> dict[str, Any]:
    total = re.search(r"^MemTotal: *(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "processors": len(os.sched_getaffinity(0)),
        "memory": int(total[1]) * 1024 if total else 0,
        "kernel": platform.release(),
        "net_namespaces": int(Path("/proc/sys/user/max_net_namespaces").read_text()),
        "processes": int(Path("/proc/sys/kernel/pid_max").read_text()),
    }


def costs_of(kind: str, found: Slice) -> dict[str, float]:
    calls = found.calls[kind]
    parts = {name: getattr(found, name) / calls for name in ("front", "supervisor", "cell", "kernel", "client")}
    return parts | {"pause": PAUSES.get(kind, 0.0), "calls": calls, "rate": calls / found.seconds}


def mixed(clients: int) -> list[list[str]]:
    """Returns the calls of each client: as in load.py, a third of them makes calls that stand alone."""
    return [ALONE if number * 3 < clients else ["program"] for number in range(clients)]


@dataclass
class Test:
    """A load test of several servers, and the same servers with one kind of call at a time.

    The latter shows how many processors so many processes get on a machine that others use too.
    """

    mixed: Slice = field(default_factory=Slice)
    single: Slice = field(default_factory=Slice)


async def measured(
    program: str, seconds: float, rounds: int, servers: int, clients: int
) -> tuple[dict[str, Any], Test]:
    """Measures the costs of each kind of call at one server, and in turns the load test if there are servers for it."""
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        scratch.chmod(0o755)
        started: list[Server] = []
        try:
            one = Server(program, scratch, "one")
            started.append(one)
            three = []
            for number in range(servers):
                three.append(Server(program, scratch, f"server-{number}"))
                started.append(three[-1])
            holds = await memories(one)
            found = {kind: Slice() for kind in KINDS}
            test = Test()
            loads = [os.getloadavg()[0]]
            for _ in range(rounds):
                for kind in KINDS:
                    found[kind].add(await load([one], [[kind]] * min(clients, 16), seconds))
                loads.append(os.getloadavg()[0])
                if three:
                    for kind in ("program", *ALONE):
                        test.single.add(await load(three, [[kind]] * clients, seconds))
                    test.mixed.add(await load(three, mixed(clients), 2 * seconds))
                    loads.append(os.getloadavg()[0])
        finally:
            for server in started:
                server.stop()
    total = Slice()
    for one_kind in found.values():
        total.add(one_kind)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    figures = {
        "program": version,
        "machine": machine() | {"available": total.processors(), "load": [min(loads), max(loads)]},
        "seconds": seconds * rounds,
        "calls": {kind: costs_of(kind, slices) for kind, slices in found.items()},
        "memory": holds,
    }
    return figures, test
