"""Answers that the next head goes on with: from any moment on, and as if nothing had happened.

One ring serves two heads in these tests: the second one has heard of the first one's answers, as a
successor has, and the first is taken for lost.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from sealring.dialects.errors import unavailable
from sealring.files.config import Config, load_config
from sealring.generation.generation import Generator
from sealring.http import succession
from sealring.http.app import build_app
from sealring.http.bodies import count_events
from sealring.http.front import NEXT_HEAD_SECONDS
from sealring.http.gate import ANSWER
from sealring.http.generate import Generate
from sealring.http.head import ApiHead
from sealring.http.keys import KEY_FILE, ApiKeys
from sealring.http.records import (
    AnswerRecords,
    DrawnPiece,
    Frames,
    Kind,
    Record,
    RecordedRequest,
    Successor,
    new_id,
    pieces,
)
from sealring.http.relay import RelayStream, StreamGone
from sealring.http.succession import DOOR_SECONDS, Ring
from sealring.local.ring import write_cluster
from sealring.service.head_api import prepare
from sealring_model import tiny
from sealring_protocol.control.requests import NoMajority, TokenOut
from sealring_trio.node.runtime import Runtime
from sealring_trio.node.service import build_runtime, running
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.api.test_relay import Joined
from tests.serving import PATIENCE

ID = "0123456789abcdef01234567"
NAMED = {ANSWER.decode(): ID}


class Link:
    """Tells *hears* what a head tells, as far as there is *room*. Whoever `knows` hears which
    further records are known there."""

    def __init__(self, hears: AnswerRecords) -> None:
        self.hears = hears
        self.room = 1 << 40
        self.dropped = ""
        self.heard: Callable[[], None] = lambda: None
        self.knows: Callable[[bytes], None] = lambda said: None
        self._frames = Frames()

    def offer(self, data: bytes) -> int:
        taken = data[: self.room]
        self.room -= len(taken)
        frames = [*self._frames.add(taken)]
        for frame in frames:
            self.hears.hear(*frame)
        self.heard()
        begun = (id for kind, id, _ in frames if kind is Kind.BEGUN)
        self.knows(bytes(self.hears.find(id) is not None for id in begun))
        return len(taken)

    def drop(self, reason: str = "") -> None:
        self.dropped = reason


@attrs.define
class Asked:
    """One request of a door: its *body*, and what it gets; *seen* is called with each message
    before."""

    path: str
    body: bytes
    headers: dict[str, str] = attrs.field(factory=dict)
    seen: Any = None
    got: list[Message] = attrs.field(factory=list)
    state: dict[str, Any] = attrs.field(factory=dict)
    left: trio.Event = attrs.field(factory=trio.Event)
    method: str = attrs.field(default="POST", kw_only=True)
    _sent: bool = False

    async def of(self, app: ASGIApp) -> Asked:
        path, _, query = self.path.partition("?")
        given = {"content-type": "application/json", "host": "localhost", **self.headers}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": self.state,
        }
        with trio.fail_after(PATIENCE):
            await app(scope, self._receive, self._send)
        return self

    async def _receive(self) -> Message:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.seen is not None:
            self.seen(message)
        self.got.append(message)
        await trio.lowlevel.checkpoint()

    @property
    def status(self) -> int:
        return int(self.got[0]["status"])

    @property
    def whole(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.got)

    @property
    def events(self) -> list[bytes]:
        """The events that count."""
        blocks = [block + b"\n\n" for block in self.whole.split(b"\n\n")[:-1]]
        return [block for block in blocks if count_events(block)]


@attrs.define
class Heads:
    """Two heads of one ring; the second hears what the first one tells by *link*."""

    first: ASGIApp
    ring: Ring
    records: tuple[AnswerRecords, AnswerRecords]
    link: Link
    head: ApiHead
    next: ApiHead


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - there is no event for each
        await trio.sleep(0.01)


class SharedRing:
    """A ring of one machine and its text worker, which serve all tests of a module.

    They run in a thread of their own, and so do the tests that are `in_ring`: what serves several
    tests outlives the loop that each of them would have.
    """

    def __init__(self) -> None:
        self.generator: Generator
        self.config: Config
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._over: trio.Event

    @contextmanager
    def serving(self) -> Iterator[None]:
        """The ring serves while the block lasts."""
        self._ready.clear()
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(trio.run, self._serve)
            ended.add_done_callback(lambda _: self._ready.set())
            self._ready.wait()
            try:
                if self._token is not None:
                    yield
                    trio.from_thread.run_sync(self._over.set, trio_token=self._token)
            finally:
                self._token = None
                ended.result(PATIENCE)

    async def _serve(self) -> None:
        with tempfile.TemporaryDirectory(prefix="sealring-") as name:
            (path,) = write_cluster(Path(name), 1, tiny.path(), api="127.0.0.1:1")
            setup = prepare(load_config(path))
            runtime = build_runtime(setup)
            self.config, self.generator = setup.config, Generator(runtime, setup.model)
            self._over = trio.Event()
            async with running(setup, runtime), trio.open_nursery() as nursery:
                nursery.start_soon(self.generator.texts.serve)
                with trio.fail_after(PATIENCE):
                    await self.generator.warm_up()
                    await until(lambda: self.generator.serving)
                self._token = trio.lowlevel.current_trio_token()
                self._ready.set()
                await self._over.wait()
                nursery.cancel_scope.cancel()

    def run(self, test: Callable[[], Awaitable[None]], **_: object) -> None:
        """Run *test* where the ring runs."""
        assert self._token is not None, "the module has no `shared_ring`"
        trio.from_thread.run(test, trio_token=self._token)


RING = SharedRing()
in_ring = pytest.mark.trio(run=RING.run)
"""Has a test run beside the ring that `heads` share."""


@pytest.fixture(scope="module", autouse=True)
def shared_ring() -> Iterator[None]:
    """The ring of the tests of a module that are `in_ring`."""
    with RING.serving():
        yield


@asynccontextmanager
async def heads() -> AsyncIterator[Heads]:
    """Two heads of the ring that the module's tests share."""
    keys = ApiKeys(RING.config.state / KEY_FILE)
    first, second = (ApiHead(RING.generator, RING.config, "tiny", keys) for _ in range(2))
    link = Link(second.records)
    successor = Successor(link, first.records)
    link.knows = partial(first.records.knows, successor)
    first.records.join(successor)
    async with trio.open_nursery() as nursery:
        for head in (first, second):
            nursery.start_soon(head.answers.run)
        with trio.fail_after(PATIENCE):  # what the test before has left is let go
            await until(lambda: not RING.generator.tracer.live)
        app = build_app(first)
        ring = Ring(second.records, lambda: second)
        yield Heads(app, ring, (first.records, second.records), link, first, second)
        nursery.cancel_scope.cancel()


def behind_gate(made: Heads) -> ASGIApp:
    """The app of the second head, which goes on with an answer as its client comes back."""
    return build_app(made.next, admitted=made.ring.hurry)


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TALK = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}}
COMMON = {"model": "tiny", "stream": True, "temperature": 0.9}

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": TALK, "max_tokens": 24, "seed": 5}),
    "no seed": (CHAT, {"messages": TALK, "max_tokens": 16, "frequency_penalty": 1.0}),
    "choices": (CHAT, {"messages": TALK, "max_tokens": 12, "n": 3, "logprobs": True}),
    "usage": (
        CHAT,
        {
            "messages": TALK,
            "max_tokens": 12,
            "logprobs": True,
            "top_logprobs": 2,
            "stream_options": {"include_usage": True},
        },
    ),
    "stop": (CHAT, {"messages": TALK, "max_tokens": 40, "seed": 5, "stop": [" a", "e "]}),
    "form": (
        CHAT,
        {
            "messages": TALK,
            "max_tokens": 30,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "w", "schema": WEATHER, "strict": True},
            },
        },
    ),
    "text": (TEXT, {"prompt": ["Once", "The fox"], "max_tokens": 10, "logprobs": 1}),
    "echo": (TEXT, {"prompt": "Once", "max_tokens": 6, "echo": True}),
    "least": (TEXT, {"prompt": "Once", "max_tokens": 16, "min_tokens": 9, "seed": 3}),
    "response": (RESPONSES, {"input": "Tell me a story.", "max_output_tokens": 16}),
    "message": (MESSAGES, {"messages": TALK, "max_tokens": 16}),
}


def without_times(event: bytes) -> bytes:
    """*event* without what depends on the moment at which it is made."""
    for name in (b"completed_at", b"cached_tokens", b"cache_read_input_tokens", b"input_tokens"):
        event = re.sub(rb'"%b":(?:\d+|null)' % name, b'"%b":0' % name, event)
    return re.sub(rb'"(accepted|rejected)_prediction_tokens":\d+', rb'"\1":0', event)


def told(event: bytes) -> Any:
    """What *event* has."""
    data = without_times(event).split(b"data: ", 1)[1]
    return data if data.startswith(b"[DONE]") else json.loads(data)


def said(events: list[bytes]) -> dict[str, Any]:
    """What *events* say, in whatever pieces."""
    all_of: dict[str, Any] = {}

    def add(key: str, value: Any) -> None:
        if value:
            all_of[key] = all_of[key] + value if key in all_of else value

    for each in map(told, events):
        if not isinstance(each, dict):
            add("done", each)
        elif "choices" in each:
            add("names", {each["id"], str(each["created"])} - all_of.get("names", set()) and "")
            for choice in each["choices"]:
                at = str(choice["index"])
                add(f"text {at}", choice.get("text") or choice.get("delta", {}).get("content"))
                add(f"finish {at}", choice["finish_reason"])
                likely = choice["logprobs"] or {}
                add(f"likely {at}", likely.get("content") or likely.get("tokens"))
                add(f"values {at}", likely.get("token_logprobs"))
            if not each["choices"]:
                all_of["usage"] = each["usage"]
        elif "delta" in each:
            delta = each["delta"]
            text = delta if isinstance(delta, str) else delta.get("text", json.dumps(delta))
            add(f"delta {each['type']}", text)
        else:
            each.pop("sequence_number", None)
            add(each["type"], [each])
    return all_of


WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "scores": (TEXT, {"prompt": "Once upon a time", "max_tokens": 9, "echo": True, "logprobs": 2}),
    "chat": (CHAT, {"messages": TALK, "max_tokens": 12, "n": 2, "seed": 8}),
    "response": (RESPONSES, {"input": "Tell me a story.", "max_output_tokens": 12}),
}


@in_ring
async def test_answers_in_one_piece_are_made_again() -> None:
    async with heads() as made:
        for name, (path, more) in WHOLE.items():
            moments: list[bytes] = []

            def heard(moments: list[bytes] = moments) -> None:
                if known := made.records[1].encoded(ID):
                    moments.append(known)

            made.link.heard = heard
            body = json.dumps({**COMMON, **more, "stream": False}).encode()
            asked = await Asked(path, body, NAMED).of(made.first)
            made.link.heard = lambda: None
            assert asked.status == 200, (name, asked.whole)
            assert len(moments) > 4
            for known in (moments[0], moments[len(moments) // 2], moments[-1]):
                again = await Asked(f"/_ring/answers/{ID}?after=0", known).of(made.ring)
                assert without_times(again.whole) == without_times(asked.whole), name


@in_ring
async def test_scores_that_several_rings_gave_are_told_once() -> None:
    """Each head whose ring was still at the prompt has recorded them from the first one on."""
    async with heads() as made:
        path, more = WHOLE["scores"]
        known: list[Record] = []

        def heard() -> None:
            found = made.records[1].find(ID)
            if found is not None and found.drawn and not known:
                known.append(Record.decode(ID, found.encoded()))

        made.link.heard = heard
        body = json.dumps({**COMMON, **more, "stream": False}).encode()
        asked = await Asked(path, body, NAMED).of(made.first)
        known[0].drawn *= 2
        again = await Asked(f"/_ring/answers/{ID}?after=0", known[0].encoded()).of(made.ring)
        assert without_times(again.whole) == without_times(asked.whole)


@in_ring
async def test_the_next_head_keeps_what_is_kept() -> None:
    """An answer with a key goes on without a door, its client finds it by the key, and its events
    have the numbers that they had. So do responses, and who has none of that finds nothing."""
    async with heads() as made:
        known: list[bytes] = []

        def heard() -> None:
            found = made.records[1].find(ID)
            if found is not None and len(found.drawn) > 100 and not known:
                assert found.kept
                known.append(found.encoded())

        made.link.heard = heard
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 16, "seed": 2}).encode()
        key = {"idempotency-key": "a-key"}
        asked = Asked(CHAT, body, NAMED | key)
        await asked.of(made.first)
        assert len(known) == 1
        record = Record.decode(ID, known[0])
        record.kept, record.left = True, trio.current_time() - DOOR_SECONDS
        assert made.records[1].put(record)
        gone = Asked(f"/_ring/answers/{ID}?after=4", known[0])
        gone.left.set()  # before anything of it is made: it is its client's still
        await gone.of(made.ring)
        left = made.records[1].find(ID)
        assert left is not None
        assert left.waits
        await made.ring.take_up()
        again = await Asked(CHAT, body, key).of(build_app(made.next))
        assert said(again.events) == said(asked.events)
        assert [each.split(b"\n")[0] for each in again.events[:5]] == [
            each.split(b"\n")[0] for each in asked.events[:5]
        ]
        door = await Asked(f"/_ring/answers/{ID}?after=4", known[0]).of(made.ring)
        assert door.events == again.events[4:]

        response = json.dumps({**COMMON, "input": "Hello.", "max_output_tokens": 4, "store": True})
        await Asked(RESPONSES, response.encode(), NAMED).of(made.first)
        made.records[0].flush()
        assert made.next.responses.names == made.head.responses.names != []
        for owner, name in made.head.responses.names:
            assert made.next.responses.find(owner, name) == made.head.responses.find(owner, name)
            made.head.responses.drop(owner, name)
        made.records[0].flush()
        assert made.next.responses.names == []
        nobody = await Asked(f"/_ring/answers/{'0' * 24}?after=0", b"").of(made.ring)
        assert (nobody.status, json.loads(nobody.whole)["error"]["code"]) == (
            404,
            "stream_not_found",
        )
        wrong = await Asked(f"/_ring/answers/{ID}?after=0", b"no record").of(made.ring)
        assert wrong.status == 400


@in_ring
@pytest.mark.parametrize(
    ("size", "last", "count"), [(100, 1, 1), (0, 9, 1), (0, 1000, 1), (0, 9, 2)]
)
async def test_a_client_comes_back_before_the_next_head_has_made_what_it_has(
    size: int, last: int, count: int
) -> None:
    """It waits for that, also where the record is behind it: a head that is cut off gives events
    that no other hears of. Each token has events of its own, which are the same again. Those of
    several choices may have another order, so that no number stands for what it stood for: nobody
    is given the rest of that."""
    there = last < 100 and count == 1
    async with heads() as made:
        known: list[bytes] = []

        def heard() -> None:
            found = made.records[1].find(ID)
            if found is not None and found.kept and len(found.drawn) >= size and not known:
                known.append(found.encoded())

        made.link.heard = heard
        fields = {"messages": TALK, "max_tokens": 16, "seed": 2, "n": count}
        body = json.dumps({**COMMON, **fields}).encode()
        asked = Asked(CHAT, body, NAMED | {"idempotency-key": "a-key"})
        await asked.of(made.first)
        lost(made, known[0])
        name = asked.events[0].split(b"\n")[0].removeprefix(b"id: ").rpartition(b":")[0].decode()
        app = behind_gate(made)
        header = {"last-event-id": f"{name}:{last}"}
        rest = await Asked(f"/v1/streams/{name}", b"", header, method="GET").of(app)
        if not there:
            assert rest.status == 404
            assert json.loads(rest.whole)["error"]["code"] == "stream_not_found"
            return
        assert said(rest.events) == said(asked.events[last + 1 :])
        assert rest.events[0].split(b"\n")[0] == f"id: {name}:{last + 1}".encode()


@in_ring
async def test_an_answer_is_over_with_its_client_and_stays_without_its_door() -> None:
    async with heads() as made:
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 900, "seed": 2}).encode()

        def leave(message: Message) -> None:
            if len(asked.got) > 5:
                asked.left.set()

        for lost in (False, True):
            asked = Asked(CHAT, body, NAMED, leave, state={"lost": lost})
            await asked.of(made.first)
            known = made.records[0].find(ID)
            assert (known is not None) is lost
            assert (made.records[1].find(ID) is not None) is lost
        assert known is not None
        assert known.left is not None
        count = len(asked.events)
        rest = Asked(f"/_ring/answers/{ID}?after={count}", b"")

        def enough(message: Message) -> None:
            if len(rest.got) > 5:
                rest.left.set()

        rest.seen = enough
        await rest.of(Ring(made.records[0], lambda: made.head))
        assert len(rest.events) > 3
        assert made.records[0].find(ID) is None


@in_ring
async def test_a_head_that_is_none_any_more_leaves_its_answers_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with heads() as made:
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 60, "seed": 2}).encode()
        whole = await Asked(CHAT, body).of(made.first)

        def move(message: Message) -> None:
            if len(asked.got) == 8:
                monkeypatch.setattr(ApiHead, "moved", property(lambda head: head is made.head))
                for trace in made.head.generator.tracer.live:
                    for uid in made.head.generator.tracer.rows(trace):
                        made.head.generator.runtime.give_up(uid, "another is the head")

        asked = Asked(CHAT, body, NAMED, move)
        await asked.of(made.first)
        assert asked.state["moved"]
        assert asked.got[-1].get("more_body")  # it has no end
        count = len(asked.events)
        early = await Asked(f"/_ring/answers/{ID}?after={count}", b"").of(made.ring)
        assert early.status == 503  # as far as this one knows, the other head makes it
        made.records[1].leave_all()  # as when its node becomes the head
        rest = await Asked(f"/_ring/answers/{ID}?after={count}", b"").of(made.ring)
        told = said(asked.events + rest.events)
        assert told["text 0"] == said(whole.events)["text 0"]
        assert told["done"] == b"[DONE]\n\n"


@in_ring
async def test_the_rest_is_the_same_from_any_event_on() -> None:
    """Of each answer the successor's record is taken at every event. The next head makes the same
    events up to there, and then draws the same tokens, whose events may come in other pieces."""
    async with heads() as made:
        for name, (path, more) in BODIES.items():
            moments: list[tuple[int, bytes]] = []
            passed = 0

            def seen(message: Message, moments: Any = moments) -> None:
                nonlocal passed
                if message["type"] == "http.response.body" and message["body"]:
                    passed += count_events(message["body"])
                    if (known := made.records[1].find(ID)) is not None:
                        moments.append((passed, known.encoded()))

            body = json.dumps({**COMMON, **more}).encode()
            asked = await Asked(path, body, NAMED, seen).of(made.first)
            assert asked.status == 200, (name, asked.whole)
            assert made.records[1].find(ID) is None  # it is over, and given
            whole = asked.events
            assert len(whole) == passed > 3, name
            assert moments[-1][0] == passed, name
            for at, (count, known) in enumerate(moments[:: max(1, len(moments) // 3)]):
                after = max(0, count - at % 3)
                rest = await Asked(f"/_ring/answers/{ID}?after={after}", known).of(made.ring)
                assert rest.status == 200, (name, rest.whole)
                got = rest.events
                again = [*map(without_times, got[: count - after])]
                assert again == [*map(without_times, whole[after:count])], (name, count)
                assert said(whole[:after] + got) == said(whole), (name, count)
                assert made.records[1].find(ID) is None


@in_ring
@pytest.mark.parametrize("how", ["key", "background"])
async def test_a_door_that_comes_back_to_a_kept_answer_leaves_it_its_record(how: str) -> None:
    """It is made once, whoever reads it, and yet another head can go on with it."""
    async with heads() as made:
        ring, records = Ring(made.records[0], lambda: made.head), made.records[0]
        key = {"idempotency-key": "a-key"} if how == "key" else {}
        more = {"store": True, "background": how == "background"}
        body = json.dumps({**COMMON, **more, "input": "A story.", "max_output_tokens": 60})

        def lost(message: Message) -> None:
            if len(asked.got) == 4:
                asked.left.set()

        asked = Asked(RESPONSES, body.encode(), NAMED | key, seen=lost, state={"lost": True})
        await asked.of(made.first)
        record = records.find(ID)
        assert record is not None

        def seen(message: Message) -> None:
            if len(door.got) == 3:
                assert records.find(ID) is record
                assert len(made.head.generator.tracer.live) == 1

        door = Asked(f"/_ring/answers/{ID}?after=2", record.encoded(), seen=seen)
        await door.of(ring)
        assert records.find(ID) is record  # for as long as the answer is kept
        assert record.complete
        assert len({event.split(b"\n")[0] for event in door.events}) == len(door.events)
        over = Asked(f"/_ring/answers/{ID}?after=2", record.encoded())
        await over.of(ring)
        assert over.events == door.events
        assert len(made.head.responses.names) == 1
        name = made.head.responses.names[0][1]
        await Asked(f"{RESPONSES}/{name}", b"", method="DELETE").of(made.first)
        assert records.find(ID) is None


@in_ring
@pytest.mark.parametrize("how", ["streams", "stop string", "key", "whole", "door", "nobody"])
async def test_the_next_head_gives_a_complete_answer_without_a_ring(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client had not read all of it when the head was lost. It is logged and counted once."""
    caplog.set_level(logging.INFO, "sealring.requests")

    def refuse(head: ApiHead) -> None:
        raise unavailable("The ring is not up.", "ring_not_ready")

    async with heads() as made:
        stop = [" a", "e "] if how == "stop string" else None
        more = {"messages": TALK, "max_tokens": 16, "seed": 5, "stop": stop, "n": 2}
        body = json.dumps({**COMMON, **more, "stream": how != "whole"}).encode()
        key = {"idempotency-key": "a-key"}
        asked = await Asked(CHAT, body, NAMED | key).of(made.first)
        made.records[1].leave_all()
        monkeypatch.setattr(Runtime, "submit", None)
        monkeypatch.setattr(Generator, "serving", property(lambda _: False))
        monkeypatch.setattr(ApiHead, "check_serving", refuse)
        name = re.findall(rb'"id":"(chatcmpl-\w+)"', asked.whole)[0].decode()
        app = behind_gate(made)
        if how == "door":
            known = made.records[1].encoded(ID)
            rest = await Asked(f"/_ring/answers/{ID}?after=3", known).of(made.ring)
        elif how in ("key", "whole"):
            last = {"last-event-id": f"{name}:2"} if how == "key" else {}
            rest = await Asked(CHAT, body, key | last).of(app)
        else:
            if how == "nobody":
                monkeypatch.setattr(succession, "DOOR_SECONDS", 0)
                await made.ring.take_up()
                app = build_app(made.next)
            path = f"/v1/streams/{name}?starting_after=2"
            rest = await Asked(path, b"", method="GET").of(app)
        assert rest.status == 200, rest.whole
        if how == "whole":
            assert without_times(rest.whole) == without_times(asked.whole)
        assert [*map(without_times, rest.events)] == [*map(without_times, asked.events[3:])]
        (record,) = made.records[1]
        assert (record.complete, record.left) == (True, None)  # and for yet another head
        told = [line for line in caplog.messages if line.startswith(f"{name},")]
        assert len(told) == (2 if how == "door" else 1)  # to a door it is given as any other
        wrong = await Asked(CHAT, body, {"idempotency-key": "b"}).of(app)
        assert wrong.status == 503


@in_ring
async def test_who_comes_back_waits_for_no_other_answer_of_its_own() -> None:
    async with heads() as made:
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 4}).encode()
        for at in range(3):
            named = {ANSWER.decode(): f"{at:024}", "idempotency-key": f"key-{at}"}
            await Asked(CHAT, body, named).of(made.first)
        made.records[1].leave_all()
        app = behind_gate(made)
        for key, waiting in (("new", 3), ("key-1", 2)):
            again = await Asked(CHAT, body, {"idempotency-key": key}).of(app)
            assert again.status == 200
            assert sum(record.waits for record in made.records[1]) == waiting


@in_ring
async def test_who_comes_back_twice_waits_for_what_the_first_time_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer is none that is known while another head begins it again."""
    begun, parse, told = trio.Event(), trio.Event(), []
    take_up = Generate.take_up

    async def slow(self: Generate, record: Record) -> None:
        begun.set()
        await parse.wait()
        await take_up(self, record)

    monkeypatch.setattr(Generate, "take_up", slow)
    async with heads() as made:
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 8}).encode()
        named = {ANSWER.decode(): f"{0:024}", "idempotency-key": "a-key"}
        await Asked(CHAT, body, named).of(made.first)
        made.records[1].leave_all()
        (record,) = made.records[1]
        name = RecordedRequest.decode(record.asked).name
        app, path = behind_gate(made), f"/v1/streams/{name}?starting_after=0"

        async def again() -> None:
            told.append((await Asked(path, b"", method="GET").of(app)).status)

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(again)
                await begun.wait()
                nursery.start_soon(again)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert told == []
                parse.set()
        assert 404 not in told


@in_ring
async def test_a_client_without_a_key_stays_who_it_is_when_its_machine_becomes_the_head() -> None:
    async with heads() as made:
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 8, "seed": 5}).encode()
        key = {"idempotency-key": "a-key"}
        named = {ANSWER.decode(): new_id("rank0")} | key
        asked = await Asked(CHAT, body, named, state={"relayed": "rank0"}).of(made.first)
        made.records[1].leave_all()
        again = await Asked(CHAT, body, key).of(behind_gate(made))
        assert [*map(without_times, again.events)] == [*map(without_times, asked.events)]


class Door(Joined):
    """A machine whose head, the first of *made*, is lost. The second one goes on, for which this
    machine is the door, or which it is itself if it is to be the *heir*. That one does not lead yet
    when it is asked the first two times."""

    def __init__(self, made: Heads, *, heir: bool) -> None:
        self.made, self.heir = made, heir
        self.asked: list[str] = []  # of the second head
        self.lost = False
        self.next = made.ring.beside(behind_gate(made))
        super().__init__(self.app)
        self.patience = NEXT_HEAD_SECONDS
        self.door.is_head = lambda: self.lost and self.heir
        self.door.record, self.door.here = made.records[1].encoded, lambda: "shelf"

    @property
    def leads(self) -> bool:
        return not self.lost or len(self.asked) > 2

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.lost:
            self.asked.append(scope["path"])
        await (self.next if self.lost else self.made.first)(scope, receive, send)

    def lose(self) -> None:
        """The head is killed."""
        self.made.link.room, self.lost = 0, True
        self.cut()
        self.made.records[1].leave_all()
        if self.heir:
            self.door.turned()
        else:
            self.connect()


@in_ring
@pytest.mark.parametrize("heir", [True, False])
@pytest.mark.parametrize("how", ["no key", "key", "background", "whole"])
async def test_a_door_asks_a_head_that_does_not_lead_yet_again(
    how: str, heir: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can come back to an answer fares no worse than who cannot."""
    submit = Runtime.submit

    def submitted(runtime: Runtime, *row: Any) -> Any:
        if not door.leads:
            raise NoMajority("one machine of three is here")
        return submit(runtime, *row)

    def lose(message: Message | None = None) -> None:
        known = [*made.records[1]]
        there = len(known[0].drawn) > 100 if how == "whole" and known else len(asked.events) > 7
        if there and not door.lost:
            door.lose()

    async with heads() as made, trio.open_nursery() as nursery:
        door = Door(made, heir=heir)
        nursery.start_soon(door.requests.serve)
        path, fields = CHAT, {"messages": TALK, "max_tokens": 24}
        if how == "background":
            path, fields = RESPONSES, {"input": "A story.", "max_output_tokens": 24}
            fields["background"] = True
        body = json.dumps({**COMMON, **fields, "seed": 5, "stream": how != "whole"}).encode()
        expected = await Asked(path, body).of(made.first)
        monkeypatch.setattr(Runtime, "submit", submitted)
        moved = property(lambda head: head is made.next and not door.leads)
        monkeypatch.setattr(ApiHead, "moved", moved)
        key = {"idempotency-key": "a-key"} if how in ("key", "whole") else {}
        asked = Asked(path, body, key, lose, state={"connection": 7, "owner": False})
        made.link.heard = lose
        await asked.of(door.door)
        assert len(door.asked) == 3
        if how == "whole":
            answers = [json.loads(each.whole) for each in (asked, expected)]
            assert answers[0]["choices"] == answers[1]["choices"]
        else:
            told = [said(each.events) for each in (asked, expected)]
            keys = [
                each for each in told[1] if each.startswith(("text", "delta", "finish", "done"))
            ]
            assert len(keys) in (1, 3)
            assert [told[0][each] for each in keys] == [told[1][each] for each in keys]
        if how in ("key", "background"):
            numbers = [int(each.split(b"\n")[0].rpartition(b":")[2]) for each in asked.events]
            assert numbers == [*range(len(numbers))]
        nursery.cancel_scope.cancel()


def false(record: Record, door: str, **caller: str) -> Asked:
    """What the member *door* asks with a record that it has made up from that of another's answer,
    with other tokens."""
    asked = RecordedRequest.decode(record.asked)
    made = attrs.evolve(asked, caller={**asked.caller, **caller})
    tokens = [event for piece in pieces(record.drawn) for event in piece.events]
    drawn = DrawnPiece(0, tuple(tokens[::-1])).encode() + DrawnPiece(0, (), last=True).encode()
    brought = Record(id := new_id(door), made.encode(), bytearray(drawn)).encoded()
    return Asked(f"/_ring/answers/{id}?after=0", brought, state={"relayed": door})


@in_ring
@pytest.mark.parametrize("how", ["same answer", "same name", "same key"])
async def test_a_false_record_changes_no_answer_of_another_machines_client(how: str) -> None:
    """A member that may see texts hears of all records, and so knows what to put into its own."""
    async with heads() as made:
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 16, "seed": 2}).encode()
        key = {"idempotency-key": "a-key"}
        named = {ANSWER.decode(): new_id("honest")} | key
        asked = await Asked(CHAT, body, named).of(made.first)
        made.records[1].leave_all()
        (known,) = made.records[1]
        name = RecordedRequest.decode(known.asked).name
        other = {"owner": "unknown liar ", "account": "member liar"}
        caller = {"same key": {"id": "chatcmpl-" + "0" * 24}, "same name": other}.get(how, {})
        app = behind_gate(made)
        if how == "same name":
            await Asked(CHAT, body, key).of(app)
        lie = await false(known, "liar", **caller).of(made.ring)
        if how == "same key":
            back = await Asked(CHAT, body, key).of(app)
        else:
            back = await Asked(f"/v1/streams/{name}", b"", method="GET").of(app)
        assert back.status == 200, back.whole
        assert said(back.events) == said(asked.events)
        assert lie.status == 404


@in_ring
async def test_a_false_record_takes_no_stream_over() -> None:
    """Also of an answer that is under way at its first head, and whoever is its client."""
    async with heads() as made:
        ring = Ring(made.records[0], lambda: made.head)
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 200, "seed": 2}).encode()
        named = {ANSWER.decode(): new_id("honest"), "idempotency-key": "a-key"}
        enough, lies = trio.Event(), []

        def seen(message: Message) -> None:
            if len(asked.got) == 8:
                enough.set()

        asked = Asked(CHAT, body, named, seen)

        async def lie() -> None:
            await enough.wait()
            (known,) = made.records[0]
            lies.append(await false(known, "liar").of(ring))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lie)
            await asked.of(made.first)
        assert b"taken_over" not in asked.whole
        assert lies[0].status == 404


@in_ring
async def test_who_has_events_of_several_choices_gets_no_others_for_them_later_either() -> None:
    """The next head has made as many by then, in an order of its own."""
    async with heads() as made:
        known: list[bytes] = []

        def heard() -> None:
            found = made.records[1].find(ID)
            there = found is not None and found.kept and len(found.drawn) > 60
            # Choice 0 is ahead, and at the next head choice 1 will be.
            if found is not None and there and not known and len([*pieces(found.drawn)]) % 2:
                known.append(found.encoded())

        made.link.heard = heard
        fields = {"messages": TALK, "max_tokens": 16, "seed": 2, "n": 2}
        body = json.dumps({**COMMON, **fields}).encode()
        asked = Asked(CHAT, body, NAMED | {"idempotency-key": "a-key"})
        await asked.of(made.first)
        record = lost(made, known[0])
        name = RecordedRequest.decode(record.asked).name
        await made.ring.take_up()  # its client is away for so long
        (answer,) = made.next.answers._kept.values()
        await answer.reach(10_000)
        last = len(asked.events) // 2 + 1
        header = {"last-event-id": f"{name}:{last}"}
        app = behind_gate(made)
        rest = await Asked(f"/v1/streams/{name}", b"", header, method="GET").of(app)
        assert rest.status == 404


async def test_a_head_that_tells_what_nobody_understands_ends_no_follower() -> None:
    """It is asked again, a second later."""

    async def tell(member: str, stream: RelayStream) -> None:
        stream.reply(200, ())
        told.append(member)
        with suppress(StreamGone):
            await stream.send(b"\x06" + (4).to_bytes(4, "big") + bytes(12) + b"[{}]", last=False)
            await stream.changed()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    told: list[str] = []
    made = Joined(app)
    made.requests.tell = tell
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.requests.serve)
        nursery.start_soon(succession.hear_of_answers, made.asks, AnswerRecords())
        with trio.fail_after(PATIENCE):
            await until(lambda: len(told) > 1)
        nursery.cancel_scope.cancel()


def known_in_part(made: Heads) -> list[bytes]:
    """What the second head has of the answer `ID`, which is kept, once that is some of it: it hears
    no more from then on."""
    known: list[bytes] = []

    def heard() -> None:
        found = made.records[1].find(ID)
        if found is not None and found.kept and len(found.drawn) > 60 and not known:
            known.append(found.encoded())
            made.link.room = 0

    made.link.heard = heard
    return known


def lost(made: Heads, known: bytes) -> Record:
    """The record of the answer `ID` at the second head, which *known* is all of: its head is
    lost."""
    record = Record.decode(ID, known)
    record.kept, record.left = True, trio.current_time()
    assert made.records[1].put(record)
    return record


@in_ring
async def test_a_client_ends_a_response_that_the_next_head_has_not_gone_on_with() -> None:
    async with heads() as made:
        known = known_in_part(made)
        body = json.dumps(
            {**COMMON, "background": True, "input": "A story.", "max_output_tokens": 60}
        )
        await Asked(RESPONSES, body.encode(), NAMED).of(made.first)
        record = lost(made, known[0])
        name = RecordedRequest.decode(record.asked).name
        ended = await Asked(f"{RESPONSES}/{name}/cancel", b"").of(behind_gate(made))
        assert ended.status == 200
        assert json.loads(ended.whole)["status"] == "cancelled"


@in_ring
async def test_complete_answers_wait_for_none_that_needs_a_ring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are forgotten after `KEEP_SECONDS`, and the ring may be down for longer."""
    async with heads() as made:
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 4}).encode()
        for at in range(2):
            named = {ANSWER.decode(): f"{at:024}", "idempotency-key": f"key-{at}"}
            await Asked(CHAT, body, named).of(made.first)
        made.records[1].leave_all()
        first, second = made.records[1]
        first.complete = False
        monkeypatch.setattr(Generator, "serving", property(lambda _: False))
        monkeypatch.setattr(succession, "DOOR_SECONDS", 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.ring.take_up)
            with trio.move_on_after(4):
                await until(
                    lambda: not second.waits or made.records[1].find(second.id) is not second
                )
            nursery.cancel_scope.cancel()
        assert first.waits
        assert made.records[1].find(second.id) is not second


@in_ring
async def test_a_client_has_nothing_of_an_answer_that_no_other_machine_knows_of() -> None:
    """Or it could come back to that nowhere else: the head may be cut off already."""
    async with heads() as made:
        knows, made.link.knows = made.link.knows, lambda said: None
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 4}).encode()
        asked = Asked(CHAT, body, {**NAMED, "idempotency-key": "a-key"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked.of, made.first)
            with trio.fail_after(PATIENCE):
                await until(lambda: made.records[1].find(ID) is not None)
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert asked.got == []
            knows(b"\1")
        assert asked.status == 200
        assert len(asked.events) > 4


@in_ring
async def test_a_large_record_holds_up_nobody_else() -> None:
    """A head that stops for so long loses its lease, and its links."""
    async with heads() as made:
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 4}).encode()
        named = {ANSWER.decode(): new_id("honest"), "idempotency-key": "a-key"}
        await Asked(CHAT, body, named).of(made.first)
        (known,) = made.records[0]
        asked = RecordedRequest.decode(known.asked)
        asked = attrs.evolve(asked, caller={**asked.caller, "id": "chatcmpl-" + "0" * 24}, key=b"")
        piece = DrawnPiece(0, (TokenOut(0, 5, 0),)).encode()
        brought = Record("0" * 24, asked.encode(), bytearray(piece * ((4 << 20) // len(piece))))
        longest = 0.0

        async def look() -> None:
            nonlocal longest
            while True:
                before = time.process_time()
                await trio.lowlevel.checkpoint()
                longest = max(longest, time.process_time() - before)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await trio.sleep(0.1)
            id = new_id("liar")
            lie = Asked(f"/_ring/answers/{id}", brought.encoded(), state={"relayed": "liar"})
            await lie.of(made.ring)
            nursery.cancel_scope.cancel()
        assert lie.status == 400  # more tokens than were asked for
        assert longest < 0.5


@in_ring
async def test_a_client_that_leaves_as_its_answer_is_taken_up_finds_it_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with heads() as made:
        known = known_in_part(made)
        body = json.dumps({**COMMON, "messages": TALK, "max_tokens": 12, "seed": 5}).encode()
        asked = await Asked(CHAT, body, NAMED | {"idempotency-key": "a-key"}).of(made.first)
        record = lost(made, known[0])
        name = RecordedRequest.decode(record.asked).name
        back = Asked(f"/v1/streams/{name}", b"", {"last-event-id": f"{name}:3"}, method="GET")
        parse = Generator.parse

        async def leave(*_: object) -> None:
            scope.cancel()
            await trio.sleep_forever()

        monkeypatch.setattr(Generator, "parse", leave)
        with trio.CancelScope() as scope:
            await back.of(behind_gate(made))
        assert scope.cancelled_caught
        monkeypatch.setattr(Generator, "parse", parse)
        rest = await attrs.evolve(back, got=[], sent=False).of(behind_gate(made))
        assert rest.status == 200
        assert rest.events == asked.events[4:]
