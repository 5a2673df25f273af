"""Puts a ring under load for a long time, and finds what grows and should not.

Clients ask, and many of them misbehave: they leave at a random moment, have their request
cancelled, or ask what cannot be. Whoever stays must get the same answer as before the load. While
it lasts, the memory of every process is read again and again; when it is over and the ring is
quiet, no row, no request, no open file and no task may be left that was not there at the start.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import httpx2
import psutil  # type: ignore[import-untyped]
import trio
from sealring.local import client
from sealring.local.ring import LocalApi, local_api
from sealring.text.workers import WORKERS
from sealring_client import event_of
from sealring_tools.bench import load
from sealring_tools.bench.load import Ask, Load, Outcome, Target
from sealring_trio.errors import OperationError

CLIENTS: Final = 6
WARM_UPS: Final = 5
ASKS: Final = 24
"""Different requests; so few that all their answers are known beforehand."""

LOAD: Final = Load("soak", ASKS, 1, users=3, chars=120, max_tokens=24)

SAMPLES: Final = 60
"""Readings over the whole time."""

GROWTH: Final = 0.05
SLACK: Final = 8 << 20
"""How much more memory a process may have in the last quarter than in the second: a share of it,
or so many bytes."""

SPARE_THREADS: Final = 2
"""Threads that an idle process may keep for a while."""

QUIET_SECONDS: Final = 45.0
"""Time for a ring to become quiet. A connection that its client has closed is kept open until no
request can come on it any more, which takes the server 20 s."""


@attrs.frozen
class Process:
    """What one process has: bytes of memory, open files, threads."""

    memory: int
    files: int
    threads: int


@attrs.frozen
class Reading:
    """The ring after *seconds*: each process by its name; *tasks* are those of the nodes."""

    seconds: float
    processes: dict[str, Process]
    tasks: dict[str, int]
    rows: int
    requests: int
    done: int


@attrs.frozen
class Soak:
    """How it went: the readings, the last one of a quiet ring; what the clients did; and faults."""

    readings: list[Reading]
    idle: Reading
    deeds: dict[str, int]
    faults: list[str]

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.faults


def measure(
    minutes: float,
    ranks: int,
    model: Path,
    tell: Callable[[str], None],
    show: Callable[[Reading], None],
) -> Soak:
    """Keep a ring of *ranks* with *model* busy for so many *minutes*; *show* sees each reading.

    Raises `OperationError` when it does not come up, or a node ends.
    """
    with local_api(ranks, model, report=tell) as api:
        return trio.run(_soak, api, 60 * minutes, show)


async def _soak(api: LocalApi, seconds: float, show: Callable[[Reading], None]) -> Soak:
    todo = load.asks(LOAD, [Target(api.url, api.model, ())])
    known = await load.run(todo, 1)
    if failed := [outcome.error for outcome in known if outcome.error]:
        raise OperationError(f"the ring fails before any load: {failed[0]}", "See its log.")
    await _warm_up(api, todo)
    before = await _read(api, 0.0, 0)
    show(before)
    readings = [before]
    began = trio.current_time()
    async with load.opened(todo) as open_clients, trio.open_nursery() as nursery:
        clients = Clients(todo, known, nursery)
        for number in range(CLIENTS):
            nursery.start_soon(clients.run, open_clients, random.Random(number))
        while (now := trio.current_time() - began) < seconds:
            await trio.sleep(min(seconds / SAMPLES, seconds - now))
            api.check()
            readings.append(await _read(api, trio.current_time() - began, clients.done))
            show(readings[-1])
        nursery.cancel_scope.cancel()
    idle = await _quiet(api, before, clients.done, began)
    show(idle)
    faults = [*clients.wrong, *left(before, idle), *growth(readings)]
    return Soak(readings, idle, dict(clients.deeds), faults)


async def _warm_up(api: LocalApi, todo: Sequence[Ask]) -> None:
    """Ask as many at once as later, until the head has all the text workers that it ever has."""
    head = psutil.Process(api.nodes[0].process.pid)
    status = await trio.to_thread.run_sync(api.nodes[0].status)
    for _ in range(WARM_UPS):
        if len(head.children()) >= len(status["engine_pids"]) + WORKERS:
            return
        await load.run(todo, CLIENTS)


class Clients:
    """Clients that ask and misbehave; work beside a stream runs in *nursery*."""

    def __init__(
        self, todo: Sequence[Ask], known: Sequence[Outcome], nursery: trio.Nursery
    ) -> None:
        self.deeds: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._nursery = nursery
        self._todo = todo
        self._known = known
        self._deeds = {self._stay: 70, self._leave: 15, self._cancel: 10, self._err: 5}

    @property
    def done(self) -> int:
        """Requests that have been made."""
        return self.deeds.total()

    async def run(self, clients: load.Clients, chance: random.Random) -> None:
        """Ask, until cancelled."""
        deeds, weights = list(self._deeds), list(self._deeds.values())
        while True:
            ask = chance.choice(self._todo)
            (deed,) = chance.choices(deeds, weights)
            try:
                await deed(clients[ask.target.url, ask.key], ask, chance)
            except httpx2.HTTPError as error:
                self._failed(ask, error)

    async def _stay(self, http: httpx2.AsyncClient, ask: Ask, chance: random.Random) -> None:
        """Take the whole answer, which must be the known one."""
        stream = chance.random() < 0.5
        ask = attrs.evolve(ask, body={**ask.body, "stream": stream})
        outcome = await load.send(http, ask)
        self.deeds["answered"] += 1
        if outcome.error:
            self.wrong.append(f"request {ask.number}: {outcome.error}")
        elif outcome.answer != self._known[ask.number].answer:
            self.wrong.append(f"request {ask.number}: another answer than before the load")

    async def _leave(self, http: httpx2.AsyncClient, ask: Ask, chance: random.Random) -> None:
        """Go away at any moment, from the connection to the last token."""
        usual = self._known[ask.number].total_s * CLIENTS
        with trio.move_on_after(chance.uniform(0, usual)):
            await load.send(http, ask)
        self.deeds["left"] += 1

    async def _cancel(self, http: httpx2.AsyncClient, ask: Ask, chance: random.Random) -> None:
        """Cancel by name, after some tokens."""
        count = chance.randrange(1, LOAD.max_tokens // 2)
        async with http.stream("POST", "/v1/chat/completions", json=ask.body) as response:
            # Nothing is awaited in here: the library's iterators are closed properly only when
            # what ends them comes from below.
            async for line in response.aiter_lines():
                event = event_of(line)
                if event is None or "error" in event:
                    continue
                count -= 1
                if not count:
                    self._nursery.start_soon(self._delete, http, ask, event["id"])
        self.deeds["cancelled"] += 1

    async def _delete(self, http: httpx2.AsyncClient, ask: Ask, name: str) -> None:
        try:
            await http.delete(f"/v1/requests/{name}")
        except httpx2.HTTPError as error:
            self._failed(ask, error)

    def _failed(self, ask: Ask, error: httpx2.HTTPError) -> None:
        self.wrong.append(f"request {ask.number}: {type(error).__name__} {error}")

    async def _err(self, http: httpx2.AsyncClient, ask: Ask, chance: random.Random) -> None:
        """Send a request that must be refused."""
        body = {**ask.body, **chance.choice([{"temperature": -1}, {"model": "none"}, {"n": 0}])}
        response = await http.post("/v1/chat/completions", json=body)
        self.deeds["refused"] += 1
        if response.status_code not in (400, 404):
            self.wrong.append(f"a mistake was answered with {response.status_code}")


async def _quiet(api: LocalApi, before: Reading, done: int, began: float) -> Reading:
    """A reading once nothing more is left than *before*, or when `QUIET_SECONDS` are over."""
    end = trio.current_time() + QUIET_SECONDS
    while True:
        now = trio.current_time()
        reading = await _read(api, now - began, done)
        if now > end or not left(before, reading):
            return reading
        await trio.sleep(0.5)


async def _read(api: LocalApi, seconds: float, done: int) -> Reading:
    # A connection for each reading must not add to what is read.
    alone = {"connection": "close"}
    async with httpx2.AsyncClient(**client.settings(api.url, "")) as http:
        cluster = (await http.get("/v1/cluster", headers=alone)).json()
    processes, tasks = {}, {}
    for node in api.nodes:
        status = await trio.to_thread.run_sync(node.status)
        processes[node.name] = _process(node.process.pid)
        for member, pid in enumerate(status["engine_pids"]):
            processes[f"{node.name} engine{f' {member}' if member else ''}"] = _process(pid)
        tasks[node.name] = status["tasks"]
    rows = sum(rank["rows"] for rank in cluster["ranks"])
    return Reading(seconds, processes, tasks, rows, len(cluster["requests"]), done)


def _process(pid: int) -> Process:
    process = psutil.Process(pid)
    return Process(process.memory_info().rss, process.num_fds(), process.num_threads())


def left(before: Reading, after: Reading) -> list[str]:
    """What an idle ring has *after* a load that it did not have *before*."""
    faults = []
    if after.rows or after.requests:
        faults.append(f"{after.rows} rows and {after.requests} requests are left")
    for name, count in after.tasks.items():
        if count > before.tasks[name]:
            faults.append(f"{name}: {count - before.tasks[name]} tasks more than at the start")
    for name, process in after.processes.items():
        if (more := process.files - before.processes[name].files) > 0:
            faults.append(f"{name}: {more} open files more than at the start")
        if (more := process.threads - before.processes[name].threads) > SPARE_THREADS:
            faults.append(f"{name}: {more} threads more than at the start")
    return faults


def growth(readings: Sequence[Reading]) -> list[str]:
    """Whose memory is larger late than early."""
    quarter = len(readings) // 4
    early, late = readings[quarter : 2 * quarter], readings[-quarter:]
    faults = []
    for name in readings[0].processes if quarter else ():
        first, last = (
            statistics.median(reading.processes[name].memory for reading in part)
            for part in (early, late)
        )
        if last - first > max(SLACK, GROWTH * first):
            faults.append(f"{name}: its memory grew by {(last - first) / (1 << 20):.1f} MiB")
    return faults


def describe(soak: Soak) -> dict[str, Any]:
    """*soak* as JSON. Sizes are bytes."""
    return {**attrs.asdict(soak), "passed": soak.passed}
