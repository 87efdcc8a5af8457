"""A simulation of servers and their clients by discrete events.

A machine shares its processors evenly among what runs on it. A call passes the front end and the supervisor of its
server, which have one thread each, holds one of the server's turns while its cell works, and leaves work to the kernel
that no call waits for. Costs are seconds of a processor, as `measure.py` measures them.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# Time after its last request for which a session without an end is kept.
SESSION_LINGER = 300
# Length of the bins in which the use of processors is added up.
BIN = 600
Action = Callable[[], None]
# Bytes that a server uses with a number of shells and a number of running calls.
Memory = Callable[[int, int], float]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, Action]] = []
        self.count = 0

    def after(self, delay: float, action: Action) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, action))

    def run(self, end: float = math.inf) -> None:
        while self.events and self.events[0][0] <= end:
            self.now, _, action = heapq.heappop(self.events)
            action()


class Processors:
    """Processors that all running work shares evenly; a piece of work uses one of them at most."""

    def __init__(self, clock: Clock, number: float) -> None:
        self.clock = clock
        self.number = number
        self.jobs: list[tuple[float, int, Action]] = []
        self.progress = 0.0
        self.updated = 0.0
        self.planned = 0
        self.count = 0
        self.used: dict[int, float] = {}

    def rate(self) -> float:
        return min(1.0, self.number / len(self.jobs)) if self.jobs else 0.0

    def update(self) -> None:
        elapsed = self.clock.now - self.updated
        if self.jobs and elapsed > 0:
            self.progress += elapsed * self.rate()
            position = int(self.updated // BIN)
            self.used[position] = self.used.get(position, 0.0) + elapsed * min(len(self.jobs), self.number)
        self.updated = self.clock.now

    def work(self, seconds: float, done: Action) -> None:
        self.update()
        self.count += 1
        heapq.heappush(self.jobs, (self.progress + seconds, self.count, done))
        self.plan()

    def plan(self) -> None:
        self.planned += 1
        if not self.jobs:
            return
        plan = self.planned
        delay = max(0.0, (self.jobs[0][0] - self.progress) / self.rate())
        self.clock.after(delay, lambda: self.finish(plan))

    def finish(self, plan: int) -> None:
        if plan != self.planned:
            return
        self.update()
        _, _, done = heapq.heappop(self.jobs)
        self.plan()
        done()


class Thread:
    """A process with one thread, which does one piece of work after another."""

    def __init__(self, processors: Processors) -> None:
        self.processors = processors
        self.waiting: deque[tuple[float, Action]] = deque()
        self.busy = False

    def work(self, seconds: float, done: Action) -> None:
        if self.busy:
            self.waiting.append((seconds, done))
            return
        self.busy = True
        self.processors.work(seconds, lambda: self.finish(done))

    def finish(self, done: Action) -> None:
        self.busy = False
        if self.waiting:
            self.work(*self.waiting.popleft())
        done()


@dataclass
class Cost:
    """Seconds of a processor that one call takes, by the process that spends them."""

    front: float
    supervisor: float
    cell: float
    kernel: float
    client: float = 0.0
    pause: float = 0.0

    def alone(self) -> float:
        """Returns the time that the server takes for the call if nothing else runs."""
        return self.front + self.supervisor + self.cell + self.pause

    def processor(self) -> float:
        return self.front + self.supervisor + self.cell + self.kernel


@dataclass
class Limits:
    turns: float = math.inf
    queue: float = math.inf
    shells: float = math.inf


@dataclass
class Peak:
    running: int = 0
    shells: int = 0
    memory: float = 0.0
    cells: int = 0


class Server:
    def __init__(self, clock: Clock, processors: Processors, limits: Limits, memory: Memory) -> None:
        self.clock = clock
        self.processors = processors
        self.limits = limits
        self.memory = memory
        self.front = Thread(processors)
        self.supervisor = Thread(processors)
        self.running = 0
        self.waiting: deque[Action] = deque()
        self.in_flight = 0
        # The shells by their sessions, the longest idle one first; true while a call runs in it.
        self.shells: OrderedDict[int, bool] = OrderedDict()
        self.peak = Peak()
        self.refused = 0
        self.ended_early = 0

    def call(self, cost: Cost, done: Callable[[bool], None]) -> None:
        """Makes a call, and passes on whether it ran."""
        self.in_flight += 1

        def answered(has_run: bool) -> None:
            self.in_flight -= 1
            done(has_run)

        def queued() -> None:
            if self.running < self.limits.turns:
                self.running += 1
                started()
            elif len(self.waiting) < self.limits.queue:
                self.waiting.append(started)
            else:
                self.refused += 1
                answered(False)

        def started() -> None:
            self.note()
            self.supervisor.work(cost.supervisor, in_cell)

        def in_cell() -> None:
            self.processors.work(cost.cell, lambda: self.clock.after(cost.pause, ended) if cost.pause else ended())

        def ended() -> None:
            self.running -= 1
            self.processors.work(cost.kernel, lambda: None)
            if self.waiting:
                self.running += 1
                self.waiting.popleft()()
            answered(True)

        self.front.work(cost.front, queued)

    def open_shell(self, session: int) -> bool:
        """Makes room for a shell of a session; returns false if each shell is in use."""
        if len(self.shells) >= self.limits.shells:
            idle = next((name for name, in_use in self.shells.items() if not in_use), None)
            if idle is None:
                self.refused += 1
                return False
            del self.shells[idle]
            self.ended_early += 1
        self.shells[session] = False
        self.note()
        return True

    def use_shell(self, session: int, in_use: bool) -> None:
        if session in self.shells:
            self.shells[session] = in_use
            self.shells.move_to_end(session)

    def note(self) -> None:
        peak = self.peak
        peak.running = max(peak.running, self.running)
        peak.shells = max(peak.shells, len(self.shells))
        peak.cells = max(peak.cells, self.running + len(self.shells))
        peak.memory = max(peak.memory, self.memory(len(self.shells), self.running))


@dataclass
class Waits:
    """For each kind of call, by how much each answer came later than on a machine with nothing else to do."""

    by_kind: dict[str, list[float]] = field(default_factory=dict)
    answers: dict[str, list[float]] = field(default_factory=dict)

    def add(self, kind: str, took: float, alone: float) -> None:
        self.by_kind.setdefault(kind, []).append(max(0.0, took - alone))
        self.answers.setdefault(kind, []).append(took)

    def all(self) -> list[float]:
        return [wait for waits in self.by_kind.values() for wait in waits]


def quantile(values: list[float], share: float) -> float:
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@dataclass
class Closed:
    calls: dict[str, int]
    waits: Waits


def closed_loop(
    costs: dict[str, Cost], servers: int, turns: int, clients: list[list[str]], processors: float, seconds: float
) -> Closed:
    """Plays clients on one machine that make a call as soon as the one before is answered, each its kinds in turns."""
    clock = Clock()
    machine = Processors(clock, processors)
    every = [Server(clock, machine, Limits(turns=turns), lambda shells, running: 0.0) for _ in range(servers)]
    # All clients are one process with one thread.
    client_thread = Thread(machine)
    result = Closed({}, Waits())
    # The first part has no steady state yet.
    begin = seconds / 10

    def client(number: int, kinds: list[str]) -> None:
        server = every[number % servers]
        made = 0

        def next_call() -> None:
            nonlocal made
            kind = kinds[made % len(kinds)]
            made += 1
            begun = clock.now
            cost = costs[kind]

            def answered(_: bool) -> None:
                if clock.now > begin:
                    result.calls[kind] = result.calls.get(kind, 0) + 1
                    result.waits.add(kind, clock.now - begun, cost.alone() + cost.client)
                next_call()

            client_thread.work(cost.client, lambda: server.call(cost, answered))

        next_call()

    for number, kinds in enumerate(clients):
        client(number, kinds)
    clock.run(begin + seconds)
    return result


@dataclass
class Day:
    """A day of agents, and the machines that serve it."""

    agents: int = 1000
    sessions: float = 6.0
    peak: float = 2.5
    length: float = 1800.0
    think: float = 15.0
    mix: tuple[float, float, float] = (0.75, 0.15, 0.10)
    work: float = 0.2
    pause: float = 0.5
    command_memory: float = 64e6
    shell_files: float = 8e6
    linger: float = SESSION_LINGER
    seed: int = 1


def lognormal(chance: random.Random, mean: float, sigma: float = 1.0) -> float:
    """Returns a time with this mean, of which a few are much longer than the others."""
    return chance.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma) if mean > 0 else 0.0


def arrivals(day: Day, chance: random.Random) -> list[float]:
    """Returns when sessions begin: most in the afternoon, where they come `peak` times as often as on average."""
    sharpness = math.log(day.peak) * 2
    weights = [math.exp(sharpness * (math.cos(2 * math.pi * (hour - 14) / 24) - 1)) for hour in range(24)]
    # The curve is made steeper until its top is `peak` times its mean.
    for _ in range(60):
        ratio = max(weights) * 24 / sum(weights)
        sharpness *= 1 + 0.2 * (day.peak / ratio - 1)
        weights = [math.exp(sharpness * (math.cos(2 * math.pi * (hour - 14) / 24) - 1)) for hour in range(24)]
    count = round(day.agents * day.sessions)
    hours = chance.choices(range(24), weights=weights, k=count)
    return sorted((hour + chance.random()) * 3600 for hour in hours)


@dataclass
class Played:
    servers: list[Server]
    waits: Waits
    calls: int
    busiest: float
    calls_at_peak: float
    sessions_at_peak: int


def play(
    day: Day, costs: dict[str, Cost], machines: int, processors: float, limits: Limits, memory: Memory
) -> Played:
    """Plays one day, with one server on each machine."""
    chance = random.Random(day.seed)
    clock = Clock()
    servers = [Server(clock, Processors(clock, processors), limits, memory) for _ in range(machines)]
    waits = Waits()
    calls_in: dict[int, int] = {}
    turn = 0
    open_sessions = 0
    sessions_at_peak = 0

    def least_busy() -> Server:
        """Returns the server with the fewest running calls; those with the same number take turns."""
        nonlocal turn
        turn += 1
        return min((servers[(turn + step) % machines] for step in range(machines)), key=lambda one: one.in_flight)

    def cost_of(kind: str, draw: random.Random) -> Cost:
        base = costs[kind]
        if kind == "calculate":
            return base
        work = lognormal(draw, day.work)
        return Cost(base.front, base.supervisor, base.cell + work, base.kernel, 0.0, lognormal(draw, day.pause))

    def session(number: int) -> None:
        nonlocal open_sessions, sessions_at_peak
        # Each session has its own chances, so that they do not depend on the number of machines.
        draw = random.Random((day.seed << 32) + number)
        end = clock.now + lognormal(draw, day.length)
        home = least_busy()
        open_sessions += 1
        sessions_at_peak = max(sessions_at_peak, open_sessions)

        def think() -> None:
            clock.after(lognormal(draw, day.think), make_call)

        def make_call() -> None:
            nonlocal open_sessions
            if clock.now >= end:
                clock.after(day.linger, close)
                return
            kind = draw.choices(("program", "run", "calculate"), weights=day.mix)[0]
            cost = cost_of(kind, draw)
            needs_shell = kind == "program"
            server = home if needs_shell else least_busy()
            if needs_shell:
                if number not in server.shells:
                    if not server.open_shell(number):
                        think()
                        return
                    opening = costs["open"]
                    cost = Cost(*(getattr(cost, part) + getattr(opening, part) for part in PARTS), 0.0, cost.pause)
                server.use_shell(number, True)
            begun = clock.now
            calls_in[int(begun // BIN)] = calls_in.get(int(begun // BIN), 0) + 1

            def answered(has_run: bool) -> None:
                if needs_shell:
                    server.use_shell(number, False)
                if has_run:
                    waits.add(kind, clock.now - begun, cost.alone())
                think()

            server.call(cost, answered)

        def close() -> None:
            nonlocal open_sessions
            open_sessions -= 1
            home.shells.pop(number, None)

        make_call()

    for number, at in enumerate(arrivals(day, chance)):
        clock.after(at, lambda number=number: session(number))
    clock.run()
    busiest = 0.0
    for server in servers:
        server.processors.update()
        busiest = max(busiest, max(server.processors.used.values(), default=0.0) / BIN)
    total = sum(len(found) for found in waits.by_kind.values())
    return Played(servers, waits, total, busiest, max(calls_in.values(), default=0) / BIN, sessions_at_peak)


PARTS = ("front", "supervisor", "cell", "kernel")


def costs_of(figures: dict[str, Any]) -> dict[str, Cost]:
    """Returns the costs of each kind of call in a file of figures."""
    names = (*PARTS, "client", "pause")
    return {kind: Cost(*(float(found[name]) for name in names)) for kind, found in figures["calls"].items()}
