"""The API of simulated hosts, in virtual time: what the daemon has between clients and its node.

Each host has the real front, relay, records and head's app (`NodeApi`), on a `Runtime` whose node
is the simulated one. Left out are sockets, HTTP's bytes and text workers: `Words` reads prompts
that are token ids, and a token's text is its number. So a client can tell each token of its answer.

All of it runs in one `trio.run` by a `VirtualClock`, which `Doors.turn` sets: something happens in
the cluster, and then each task goes as far as it can.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import attrs
import trio
from sealring.files.config import Config
from sealring.generation.generation import Generator
from sealring.service.head_api import NodeApi
from sealring_model import tiny
from sealring_model.text.detokenizer import Vocabulary
from sealring_protocol.control.requests import RequestDone, ScoresOut, TokenOut
from sealring_protocol.diagnosis import Facts
from sealring_protocol.events import RelayDown, RelayEventCame, RelayUp, RosterInForce
from sealring_trio.node.runtime import Runtime
from starlette.types import Message
from trio.testing import wait_all_tasks_blocked

from tests.sim.fake_engine import VOCABULARY, reference
from tests.sim.hosts import Host
from tests.sim.ring import LAYERS, Ring

KEY = "sk-of-the-simulated-clients"
PATH = "/v1/completions"
SILENCE = 12.0
"""Seconds of silence after which a client that may come back goes elsewhere."""


class VirtualClock(trio.abc.Clock):
    """Says the time that it was set to."""

    now = 0.0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.now


@cache
def vocabulary() -> Vocabulary:
    """Each token is its number, and a space."""
    nothing = frozenset[int]()
    tokens = (b"%d " % token for token in range(VOCABULARY))
    return Vocabulary.of(tokens, size=VOCABULARY, special=nothing, silent=nothing, eos=nothing)


class Words:
    """In place of text workers: prompts are token ids."""

    loading = False
    unloadable = ""

    async def vocabulary(self) -> Vocabulary:
        return vocabulary()

    async def run(
        self,
        job: str,
        about: Mapping[str, Any],
        body: bytes,
        owner: str,
        check: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> tuple[Mapping[str, Any], bytes]:
        assert job == "completion"
        await trio.lowlevel.checkpoint()
        options = json.loads(body)
        prompt = options.pop("prompt")
        return {"options": options, "read": 0.0, "lengths": [len(prompt)], "texts": []}, array(
            "I", prompt
        ).tobytes()


class ClockedNode:
    """The node of *host*, which goes by its own clock, whatever trio's says."""

    def __init__(self, host: Host, doors: Doors) -> None:
        self._host, self._doors = host, doors

    def __getattr__(self, name: str) -> Any:
        given = getattr(self._host.node, name)
        if name not in ("leads", "goes_on", "submit", "election", "facts", "obstacles"):
            return given
        return lambda *rest: given(*rest[:-1], self._host.clock(self._doors.now))


class SimulatedRuntime(Runtime):
    """The runtime of *host*: what the daemon asks of the node goes there."""

    def __init__(self, host: Host, doors: Doors) -> None:
        self.node = ClockedNode(host, doors)  # type: ignore[assignment]
        self.relayed = lambda news: None
        self.roster_changed = trio.Event()
        self.watchers = []
        self.drafts = None
        self.accepted = self.rejected = 0
        self.text_loading, self.textless, self.not_answering = bool, str, str
        self._streams = {}
        self._host, self._doors = host, doors

    def enter(self, call: Callable[..., None], *arguments: Any) -> None:
        call(*arguments, self._host.clock(self._doors.now))
        self.carry_out_and_flush()

    def carry_out_and_flush(self) -> None:
        self._doors.settle(self._host)

    def facts(self, draining: str = "") -> Facts:
        return self.node.facts(0.0)

    def hear(self, event: Any) -> None:
        """The node has *event* for the daemon."""
        match event:
            case TokenOut() | ScoresOut() | RequestDone():
                self._pass_on(event)
            case RosterInForce():
                self.roster_changed.set()
                self.roster_changed = trio.Event()
            case _:
                self.relayed(event)


class SimulatedApi(NodeApi):
    """The API without its samples of every second, and settings that go to files."""

    async def _sample(self) -> None:
        await trio.sleep_forever()


class Door:
    """The daemon in one process of *host*."""

    def __init__(self, host: Host, doors: Doors) -> None:
        self.host = host
        self.runtime = SimulatedRuntime(host, doors)
        generator = Generator(self.runtime, tiny.path(), own_sampling=False)
        generator.texts = Words()  # type: ignore[assignment]
        self.api = SimulatedApi(generator, doors.config, MagicMock())
        self._life = trio.CancelScope()
        self._connections: set[trio.CancelScope] = set()

    @property
    def sees_texts(self) -> bool:
        """Whether the roster lets it."""
        node = self.host.node
        return node.roster.roster.members[node.rank].sees_texts

    @property
    def takes(self) -> bool:
        """Whether a client can be answered here."""
        return self.sees_texts and self.host.alive and not self.host.frozen

    @property
    def open(self) -> bool:
        """Whether it is the head's, or has a way to it."""
        return self.api._is_head() or self.api._why_not() is None

    async def run(self) -> None:
        """Until it ends."""
        with self._life:
            await self.api.run()

    def end(self) -> None:
        """The process is gone, and with it all that it did."""
        for scope in (self._life, *self._connections):
            scope.cancel()

    async def ask(self, client: Client) -> None:
        """Have *client* ask here, as long as this process lives."""
        with trio.CancelScope() as connection:
            self._connections.add(connection)
            await self.api._front(client.scope(), client.receive, client.send)
        self._connections.discard(connection)


@attrs.define(eq=False)
class Client:
    """A client that wants *count* tokens after *prompt*. With a *name* for its request it comes
    back, to any machine. Nothing that it has may be wrong, missing or there twice."""

    prompt: tuple[int, ...]
    count: int
    name: str = ""
    tokens: list[int] = attrs.field(factory=list)
    whole: bool = False
    why: str = ""
    """How it ended if not whole."""

    hosts: list[str] = attrs.field(factory=list)
    _expected: list[int] = attrs.field(factory=list)
    _last: bytes = b""
    _status: int = 0
    _error: bytes = b""
    _part: bytes = b""
    _sent: bool = False
    _connection: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _doors: Doors | None = None

    def __attrs_post_init__(self) -> None:
        self._expected = reference(self.prompt, self.count, LAYERS)

    def scope(self) -> dict[str, Any]:
        """A new connection's."""
        self._status, self._error, self._part, self._sent = 0, b"", b"", False
        headers = [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"authorization", b"Bearer " + KEY.encode()),
        ]
        if self.name:
            headers.append((b"idempotency-key", self.name.encode()))
        if self._last:
            headers.append((b"last-event-id", self._last))
        return {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": {"connection": 1, "owner": False},
        }

    async def receive(self) -> Message:
        if self._sent:
            await trio.sleep_forever()
        self._sent = True
        asked = {"model": "tiny", "prompt": self.prompt, "max_tokens": self.count, "stream": True}
        return {"type": "http.request", "body": json.dumps(asked).encode(), "more_body": False}

    async def send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        if self.name:
            self._connection.deadline = trio.current_time() + SILENCE
        if self._status != 200:
            self._error += message.get("body", b"")
            return
        *events, self._part = (self._part + message.get("body", b"")).split(b"\n\n")
        for event in events:
            self._take(event)

    def _take(self, event: bytes) -> None:
        fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if line[:1] != b":")
        data = fields.get(b"data", b"")
        if not data or self.why:
            return
        if data == b"[DONE]":
            if self.tokens != self._expected:
                self._breaks()
            self.whole = True
            return
        made = json.loads(data)
        if "error" in made:
            self._error = data
            return
        text = "".join(choice["text"] for choice in made["choices"])
        self.tokens += map(int, text.split())
        if self.tokens != self._expected[: len(self.tokens)]:
            self._breaks()
        self._last = fields.get(b"id", b"")

    def _breaks(self) -> None:
        assert self._doors is not None
        text = f"gap or double: {self.tokens}, not {self._expected}, at {self.hosts}"
        self._doors.breaks(text)

    async def run(self, doors: Doors) -> None:
        """Ask until the answer is whole, or nobody can go on with it."""
        self._doors = doors
        while not (self.whole or self.why):
            if (door := doors.some_door()) is None:
                await trio.sleep(0.5)
                continue
            self.hosts.append(door.host.name)
            with trio.CancelScope() as self._connection:
                if self.name:
                    self._connection.deadline = trio.current_time() + SILENCE
                await door.ask(self)
            if self.whole:
                return
            code = self._code()
            if not self.name or code in ("stream_not_found", "client_gone"):
                self.why = code or "the connection ended"
            else:
                await trio.sleep(0.1 + 2 * doors.random.random())

    def _code(self) -> str:
        return str(json.loads(self._error)["error"]["code"]) if self._error else ""


class Doors(Ring):
    """A ring whose hosts all have the API. *nursery* runs it."""

    def __init__(
        self, nursery: trio.Nursery, clock: VirtualClock, state: Path, *given: Any, **more: Any
    ) -> None:
        self.nursery, self.clock = nursery, clock
        self.config = Config.model_construct(api=None, api_keys="everywhere", state=state)
        self.doors: dict[str, Door] = {}
        self._broken = ""
        self._stirred = True  # some task may go on
        self._due = 0.0  # when one is to
        super().__init__(*given, **more)

    def some_door(self) -> Door | None:
        """Where a client asks."""
        up = [door for door in self.doors.values() if door.takes]
        return self.random.choice(up) if up else None

    def breaks(self, what: str) -> None:
        """Something does not hold that must. It is raised where no daemon handles it."""
        self._broken = self._broken or what

    def serve(self, client: Client) -> None:
        """*client* asks from now on."""
        self.nursery.start_soon(client.run, self)
        self._stirred = True

    def boot(self, *given: Any, **more: Any) -> Host:
        host = super().boot(*given, **more)
        self.doors[host.name] = door = Door(host, self)
        self.nursery.start_soon(door.run)
        self._stirred = True
        return host

    def crash(self, host: Host) -> None:
        super().crash(host)
        self.doors[host.name].end()
        self._stirred = True

    def _on(self, host: Host, event: Any) -> None:
        match event:
            case (
                TokenOut()
                | ScoresOut()
                | RequestDone()
                | RelayUp()
                | RelayEventCame()
                | RelayDown()
            ):
                self.doors[host.name].runtime.hear(event)
                self._stirred = True
                return
            case RosterInForce():
                self.doors[host.name].runtime.hear(event)
                self._stirred = True
        super()._on(host, event)

    async def turn(self, until: float) -> bool:
        """Let the next thing happen, if it happens before *until*; then let every task go on."""
        due = min(until, self._due)
        if not self.step(due):
            self.now = max(self.now, due)
            self._stirred = self._stirred or self.now >= self._due
        self.clock.now = self.now
        if self._stirred:
            self._stirred = False
            await wait_all_tasks_blocked()
            waits = trio.lowlevel.current_statistics().seconds_to_next_deadline
            self._due = self.now + max(0.0, waits)
        assert not self._broken, self._broken
        return self.now < until

    async def passes(self, seconds: float) -> None:
        """*seconds* pass."""
        until = self.now + seconds
        while await self.turn(until):
            pass

    async def comes(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until *condition* holds, for so many *seconds*."""
        until = self.now + seconds
        while not condition():
            assert await self.turn(until), f"{what}: not within {seconds:g} s"
