"""What an answer holds of the head's memory while it is made."""

from __future__ import annotations

import gc
import json
import tracemalloc
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import attrs
import pytest
import trio
from sealring.dashboard import pages
from sealring.dashboard.pages import MAX_LISTENERS_OF_ONE, News, Seen
from sealring.dialects.anthropic import MessageShape
from sealring.dialects.chat import ChatShape, TextShape
from sealring.dialects.errors import ApiError
from sealring.dialects.replies import About, Content, Delta, Finish, Shape
from sealring.dialects.responses import ResponseShape, Wanted
from sealring.dialects.schema import ChatOptions, CompletionOptions
from sealring.files.origins import AllowedHosts, AllowedOrigins
from sealring.generation.generation import Generator
from sealring.generation.trace import Trace
from sealring.http import gate, head
from sealring.http.app import build_app
from sealring.http.bodies import LARGE, EventStream, HeldBytes
from sealring.http.filling import Call
from sealring.http.gate import Caller
from sealring.http.generate import COMPLETION, Generate
from sealring.http.head import MAX_HELD, ApiHead
from sealring.http.kept import Kept
from sealring.http.keys import KEY_FILE, ApiKeys, digest, new_key
from sealring.http.state import MAX_LIVE
from sealring.text.frames import ID, ParsedRequest
from sealring.text.workers import PART, SharedBudget
from sealring_model import tiny
from sealring_protocol.codec.local_messages import Logprobs
from sealring_protocol.control.requests import TokenOut
from sealring_trio.node.runtime import AT_ONCE, Stream, size_of
from starlette.types import ASGIApp, Message, Send
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.api.conftest import Served
from tests.attacks.test_floods import at_work

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MOST = 20
TOKENS = 2000
ABOUT = About("a", 0, "m", "f", Trace("a", "chat", "", began=0.0))


def bytes_of(token: int) -> bytes:
    return b" word%d" % (token % 1000)


Name = Callable[[int], bytes]


def chat(name: Name = bytes_of, *, stream: bool) -> Shape:
    asked = ChatOptions(model="m", stream=stream, logprobs=True, top_logprobs=MOST)
    return ChatShape(ABOUT, asked, name, None)


def text(name: Name = bytes_of, *, stream: bool) -> Shape:
    asked = CompletionOptions(model="m", stream=stream, logprobs=MOST)
    return TextShape(ABOUT, asked, [""], name, [])


def messages(*, stream: bool) -> Shape:
    return MessageShape(ABOUT, 1, None, streamed=stream)


def responses(name: Name = bytes_of, *, stream: bool) -> Shape:
    return ResponseShape(ABOUT, Wanted(b'{"x":1}', {}, False), name, None, MOST)


def filled(shape: Shape) -> int:
    """Bytes by which the process grows when *shape* has `TOKENS` tokens."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for at in range(TOKENS):
            values = tuple(-0.123456789 * (each + 1 + at) for each in range(MOST))
            likely = Logprobs(1, 1, values[0], tuple(range(at, at + MOST)), values)
            token = TokenOut(1, at, at, likely)
            for event in shape.add(Delta(0, (Content(" word" * 10),), (token,))):
                shape.event(event)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before


@pytest.mark.parametrize("make", [chat, text, messages])
def test_a_stream_keeps_nothing_that_it_has_sent(make: Callable[..., Shape]) -> None:
    shape = make(stream=True)
    assert filled(shape) < 50_000
    assert shape.kept == 0


@pytest.mark.parametrize("make", [chat, text, messages, responses])
def test_what_an_answer_keeps_is_counted_and_small(make: Callable[..., Shape]) -> None:
    shape = make(stream=False)
    grown = filled(shape)
    assert grown < 90 * (MOST + 1) * TOKENS
    assert shape.kept == pytest.approx(grown, rel=0.3, abs=10_000)
    assert list(shape.add(Delta(0, (), (), finish=Finish("length"))))
    json.loads(b"".join(shape.whole(ABOUT.trace)))


def held_back(text: str = "x" * 100) -> Delta:
    """The delta of *text* that was held back while `TOKENS` tokens came, and its end."""
    values = tuple(-0.5 - each for each in range(MOST))
    tokens = [
        TokenOut(1, at, at, Logprobs(1, 1, -0.5 - at, tuple(range(MOST)), values))
        for at in range(TOKENS)
    ]
    return Delta(0, (Content(text),), tuple(tokens), finish=Finish("stop"))


def told_of(made: bytes) -> tuple[str, list[float]]:
    """The text that event *made* adds, and its tokens' log probabilities."""
    told = json.loads(made.split(b"data: ")[1])
    if "choices" not in told:
        if not told["type"].endswith("text.delta"):
            return "", []
        return told["delta"], [entry["logprob"] for entry in told["logprobs"]]
    (choice,) = told["choices"]
    chat = "delta" in choice
    logprobs = choice["logprobs"] or {}
    entries = [entry["logprob"] for entry in logprobs.get("content", ())]
    text = choice["delta"].get("content", "") if chat else choice["text"]
    return text, entries if chat else logprobs.get("token_logprobs", [])


class Turns:
    """Counts the names of tokens that are *made*, and the *most* between two turns of a task."""

    def __init__(self) -> None:
        self.made = self.most = 0

    def bytes_of(self, token: int) -> bytes:
        self.made += 1
        return bytes_of(token)

    async def watch(self) -> None:
        while True:
            before = self.made
            await trio.lowlevel.checkpoint()
            self.most = max(self.most, self.made - before)


def call_of(send: Send, budget: SharedBudget) -> Call:
    caller = Caller("a", "", "o", "", "a", 0.0)
    return Call(caller, ABOUT.trace, HeldBytes(budget, "a"), EventStream(send))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("make", [chat, text, responses])
async def test_log_probabilities_of_text_that_was_held_back_come_in_turns(
    make: Callable[..., Shape], stream: bool
) -> None:
    sent: list[bytes] = []
    turns = Turns()

    async def send(message: Message) -> None:
        if body := message.get("body"):
            sent.append(body)

    call = call_of(send, SharedBudget(MAX_HELD))
    delta = held_back()
    call.holding.grow(size_of(delta.tokens))
    shape = make(turns.bytes_of, stream=stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.watch)
        if stream:
            await call.stream.open()
        await call.add(delta, shape)
        nursery.cancel_scope.cancel()
    assert 0 < turns.most <= 2 * AT_ONCE * (MOST + 1)
    if stream:
        told = [told_of(made) for made in sent]
        assert "".join(text for text, _ in told) == "x" * 100
        assert [each for _, some in told for each in some] == [-0.5 - at for at in range(TOKENS)]
        assert max(len(some) for _, some in told) == AT_ONCE
    else:
        assert not sent
        whole = b"".join(shape.whole(ABOUT.trace))
        assert [whole.count(b":-%d.5" % at) for at in (MOST, TOKENS - 1)] == [1, 1]


FEW = 16 << 10
"""Bytes to which a test knows how many there are."""


async def test_what_is_sent_is_held_until_the_client_takes_it() -> None:
    budget = SharedBudget(MAX_HELD)
    rooms: list[int] = []

    def room() -> int:
        """Bytes that the caller may have more, to the last few."""
        taken = 0
        while budget.take("a", FEW):
            taken += FEW
        budget.give_back("a", taken)
        return taken

    async def send(message: Message) -> None:
        rooms.append(room())

    call = call_of(send, budget)
    await call.stream.open()
    delta = held_back()
    held = size_of(delta.tokens)
    call.holding.grow(held)
    await call.add(delta, chat(stream=True))
    assert len(rooms) > TOKENS // AT_ONCE
    assert max(rooms[1:]) < MAX_HELD // 2 - held
    await call.write(b"x" * held)  # all that was held before is no more
    assert rooms[-1] >= rooms[-2] - FEW
    with pytest.raises(ApiError) as caught:
        await call.write(bytes(MAX_HELD // 2 + 1))
    assert caught.value.code == "overloaded"


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_text_that_a_stop_string_holds_back_is_told_in_parts(team: Served, path: str) -> None:
    prompt = {"prompt": "endless"} if path == TEXT else team.chat("endless")
    likely = {"logprobs": 3} if path == TEXT else {"logprobs": True, "top_logprobs": 3}
    asked = {**prompt, **likely, "model": team.model, "max_tokens": 3 * AT_ONCE, "stream": True}

    def told(**more: Any) -> list[tuple[str, list[float]]]:
        parts = team.post({**asked, **more}, path).text.split("\n\n")
        return [told_of(part.encode()) for part in parts if part.startswith("data: {")]

    parts, free = told(stop="la" * 2 * AT_ONCE + "lo"), told()
    assert "".join(text for text, _ in parts) == "".join(text for text, _ in free)
    assert "".join(text for text, _ in parts) == "la" * 3 * AT_ONCE
    assert [v for _, some in parts for v in some] == pytest.approx([v for _, s in free for v in s])
    assert max(len(some) for _, some in parts) == AT_ONCE


def test_what_is_held_grows_within_the_caller_s_half() -> None:
    budget = SharedBudget(20 * LARGE)
    one, other = HeldBytes(budget, "a"), HeldBytes(budget, "a")
    for _ in range(10):
        one.grow(LARGE)
    one.grow(-LARGE)
    one.grow(LARGE)
    other.grow(LARGE - 1)  # small ones never count
    with pytest.raises(ApiError) as caught:
        other.grow(1)
    assert (caught.value.status, caught.value.code) == (503, "overloaded")
    HeldBytes(budget, "b").grow(10 * LARGE)
    one.end()
    other.grow(1)


async def test_tokens_that_nobody_takes_are_counted() -> None:
    counts: list[int] = []
    stream = Stream(counts.append)
    likely = Logprobs(1, 1, -1.0, tuple(range(MOST)), (-1.0,) * MOST)
    tokens = [TokenOut(1, at, at, likely) for at in range(5)]
    for token in tokens:
        stream.put(token)
    assert sum(counts) == size_of(tokens) == 5 * size_of(tokens[:1])
    assert size_of(tokens[:1]) > 80 * MOST
    assert await stream.take() == tokens


CHOICES = 128


async def opened(tokens: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ask for many choices of a prompt of so many tokens: how often another task had had its turn
    as each row was opened. Raises `ApiError`."""
    told = {"options": {"model": "m", "n": CHOICES}, "texts": [], "lengths": [tokens]}
    parsed = ParsedRequest.of(told, array(ID, [5] * tokens).tobytes())
    turns, seen = 0, list[int]()
    bodies = iter([{"type": "http.request", "body": b"{}"}])
    headers = [(b"content-type", b"application/json")]
    async with at_work() as node, trio.open_nursery() as nursery:
        generator, submit = Generator(node.runtime, tiny.path()), node.runtime.submit
        api = ApiHead(generator, Mock(timeout=30.0, aliases=(), api=None), "m", Mock())
        caller = Caller("id", "name", "owner", "", "account", trio.current_time())
        state = {"visitor": caller}
        scope = {"type": "http", "method": "POST", "path": TEXT, "headers": headers}
        scope["state"] = state

        def submitted(*asked: Any) -> Any:
            seen.append(turns)
            return submit(*asked)

        async def receive() -> Any:
            return next(bodies, None) or await trio.sleep_forever()

        async def ask() -> None:
            await Generate(api, COMPLETION)(scope, receive, AsyncMock())

        monkeypatch.setattr(node.runtime, "submit", submitted)
        monkeypatch.setattr(generator, "parse", AsyncMock(return_value=parsed))
        monkeypatch.setattr(ApiHead, "check_serving", lambda _: None)
        nursery.start_soon(generator.texts.serve)
        await generator.vocabulary()
        nursery.start_soon(ask)
        while len(seen) < CHOICES:
            await trio.lowlevel.checkpoint()
            turns += 1
        nursery.cancel_scope.cancel()
    return seen


async def test_others_have_their_turn_while_rows_are_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = await opened(10, monkeypatch)
    assert max(Counter(seen).values()) <= 2  # of two tasks either may be the first


@pytest.mark.slow
async def test_the_ids_of_prompts_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "MAX_HELD", 4 * LARGE)
    assert len(await opened(2 * LARGE // 50, monkeypatch)) == CHOICES
    with pytest.RaisesGroup(pytest.RaisesExc(ApiError, check=_overloaded), flatten_subgroups=True):
        await opened(2 * LARGE // 40 + 1, monkeypatch)


def _overloaded(error: ApiError) -> bool:
    return (error.status, error.code) == (503, "overloaded")


TOO_MANY: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": (CHAT, {"logprobs": True, "top_logprobs": 20, "n": 128}, "top_logprobs"),
    "completions": (TEXT, {"logprobs": 20, "n": 128, "prompt": "x"}, "logprobs"),
}


@pytest.mark.parametrize(("path", "body", "param"), TOO_MANY.values(), ids=TOO_MANY)
def test_log_probabilities_that_cannot_fit_are_refused_at_once(
    ring: Served, path: str, body: dict[str, Any], param: str
) -> None:
    messages = {"messages": [{"role": "user", "content": "Hello."}]} if path == CHAT else {}
    asked = {"model": ring.model, "max_tokens": 1000, **messages, **body}
    answer = ring.post(asked, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), answer.text
    assert "log probabilities" in error["message"]
    # A stream keeps none.
    with ring.http.stream("POST", path, json={**asked, "stream": True}) as streamed:
        assert streamed.status_code == 200


# ------------------------------------------------------------------- answers that wait


@attrs.define
class Api:
    """The app of one head, whose clients take nothing more once they have a body."""

    head: ApiHead
    app: ASGIApp
    keys: dict[str, str]

    async def ask(
        self, path: str, name: str, got: list[tuple[int, bytes]], body: bytes | None = None
    ) -> None:
        """*name* asks at *path*, with *body* if it is given, and stops reading; what began to come
        is added to *got*."""
        status, parts = 0, [] if body is None else [{"type": "http.request", "body": body}]

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif body := message.get("body"):
                got.append((status, body))
                await trio.sleep_forever()

        async def receive() -> Message:
            return parts.pop() if parts else await trio.sleep_forever()

        headers = [
            (b"host", b"localhost"),
            (b"authorization", b"Bearer " + self.keys[name].encode()),
            (b"content-type", b"application/json"),
        ]
        path, _, query = path.partition("?")
        method = "GET" if body is None else "POST"
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
        more = {"headers": headers, "client": ("127.0.0.1", 1), "app": self.app, "root_path": ""}
        await self.app(scope | more, receive, send)

    def run(self, asking: trio.Nursery, path: str, name: str) -> list[tuple[int, bytes]]:
        """Have *name* ask at *path*; what comes, once it has."""
        got: list[tuple[int, bytes]] = []
        asking.start_soon(self.ask, path, name, got)
        return got


@asynccontextmanager
async def api_of(folder: Path) -> AsyncIterator[tuple[Api, trio.Nursery]]:
    """The API of a head without an engine, for alice and bob, and where clients may ask."""
    config = Mock(timeout=30.0, api=None, aliases=(), api_keys="everywhere")
    config.hosts, config.origins = AllowedHosts(["*"]), AllowedOrigins([])
    keys = {name: new_key(folder / KEY_FILE, name) for name in ("alice", "bob")}
    async with at_work() as node:
        generator = Generator(node.runtime, tiny.path())
        head = ApiHead(generator, config, "m", ApiKeys(folder / KEY_FILE))
        async with trio.open_nursery() as asking:
            yield Api(head, build_app(head, pages.routes()), keys), asking
            asking.cancel_scope.cancel()


def keep(api: Api, name: str, size: int) -> None:
    """Keep a response of *size* bytes, of an input as large, as *name*'s own."""
    (owner,) = (f"known {digest(api.keys[name])}",)
    item = b'{"id":"msg_1","x":"' + b"x" * size + b'"}'
    api.head.responses.keep(owner, "resp_1", Kept(item, (), (item,), (), owner))


UNREAD = ["/v1/responses/resp_1", "/v1/responses/resp_1/input_items", "/v1/requests"]


@pytest.mark.parametrize("path", UNREAD)
async def test_answers_that_nobody_takes_are_held(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MAX_HELD", 16 * LARGE)
    async with api_of(tmp_path) as (api, asking):
        for name in ("alice", "bob"):
            keep(api, name, 2 * LARGE)
        for at in range(300):  # what /v1/requests has is as large
            api.head.generator.tracer.begin(Trace(f"req-{at}", "chat", ""))
        got: list[tuple[int, bytes]] = []
        for _ in range(20):
            one = api.run(asking, path, "alice")
            await wait_all_tasks_blocked()
            got += one
        assert sum(len(body) for _, body in got) < 16 * LARGE * PART + 20 * 1000
        statuses = [status for status, _ in got]
        assert statuses == sorted(statuses)
        assert {*statuses} == {200, 503}
        assert json.loads(got[-1][1])["error"]["code"] == "overloaded"
        other = api.run(asking, path, "bob")
        await wait_all_tasks_blocked()
        assert other[0][0] == 200


async def test_a_probe_is_answered_though_its_key_has_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "PART_OF_ONE", 0)
    async with api_of(tmp_path) as (api, asking):
        for path, status in (("/v1/requests", 200), ("/v1/requests", 503), ("/livez", 200)):
            got = api.run(asking, path, "alice")
            await wait_all_tasks_blocked()
            assert got[0][0] == status


async def test_what_is_the_same_for_all_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MAX_HELD", LARGE)
    path = "/dashboard/vendor/highlight.js"
    async with api_of(tmp_path) as (api, asking):
        got = [api.run(asking, path, "alice") for _ in range(4)]
        await wait_all_tasks_blocked()
        assert {len(body) > LARGE for ((_, body),) in got} == {True}
        assert len({id(body) for ((_, body),) in got}) == 1


async def test_what_comes_before_a_request_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MAX_HELD", 16 * LARGE)
    monkeypatch.setattr(ApiHead, "check_serving", lambda _: None)
    asked = {"model": "m", "previous_response_id": "resp_1", "input": "Go on."}
    async with api_of(tmp_path) as (api, asking):
        asking.start_soon(api.head.generator.texts.serve)
        codes = []
        for size in (5, 9):
            got: list[tuple[int, bytes]] = []
            keep(api, "alice", size * LARGE)
            asking.start_soon(api.ask, "/v1/responses", "alice", got, json.dumps(asked).encode())
            while not got:
                await wait_all_tasks_blocked(0.05)
            codes.append(json.loads(got[0][1])["error"]["code"])
        assert codes[1] == "overloaded" != codes[0]


def test_a_grammar_is_held_with_the_ids() -> None:
    told = {"lengths": [2], "grammar": 1000}
    ids = array(ID, [5, 6]).tobytes()
    without = ParsedRequest.of({"lengths": [2]}, ids)
    assert ParsedRequest.of(told, ids + b"x" * 1000).size >= without.size + 1000


# ------------------------------------------------------------------- who watches


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a request has been described since the last time this was asked."""
    count, describe = 0, Trace.describe

    def counted(trace: Trace) -> dict[str, Any]:
        nonlocal count
        count += 1
        return describe(trace)

    def since() -> int:
        nonlocal count
        before, count = count, 0
        return before

    monkeypatch.setattr(Trace, "describe", counted)
    return since


EVENTS = "/v1/cluster/events"


async def test_all_who_listen_share_an_event_of_few_requests(
    tmp_path: Path, described: Callable[[], int]
) -> None:
    async with api_of(tmp_path) as (api, asking):
        begin = api.head.generator.tracer.begin
        for at in range(600):
            begin(Trace(f"req-{at}", "chat", ""))
        begin(Trace("served", "chat", "", submitted=0.0))
        got = [api.run(asking, EVENTS, name) for name in ("alice", "bob") for _ in range(8)]
        await wait_all_tasks_blocked()
        assert described() <= MAX_LIVE
        events = [body for ((_, body),) in got]
        assert len({id(event) for event in events}) == 1
        assert len(events[0]) < LARGE
        told = json.loads(events[0].removeprefix(b"data: "))["cluster"]["requests"]
        assert told[0]["id"] == "served"  # before those that are still being read
        assert len(told) == MAX_LIVE


async def test_one_account_s_listeners_leave_room_for_others(tmp_path: Path) -> None:
    async with api_of(tmp_path) as (api, asking):
        got = [api.run(asking, EVENTS, "alice") for _ in range(40)]
        await wait_all_tasks_blocked()
        statuses = Counter(status for ((status, _),) in got)
        assert statuses == {200: MAX_LISTENERS_OF_ONE, 503: 40 - MAX_LISTENERS_OF_ONE}
        (told,) = [api.run(asking, EVENTS, "bob")]
        await wait_all_tasks_blocked()
        assert told[0][0] == 200


async def test_who_listens_gets_each_second_once(tmp_path: Path, mock_clock: MockClock) -> None:
    head, news, seen = Mock(), News(), [Seen(), Seen()]
    got: list[list[int]] = [[], []]
    async with api_of(tmp_path) as (api, _):
        head = api.head
        for at in range(1, 20):
            head.history.sample(head.generator.tracer, at)
            for who in range(2):
                if at % (who + 2):  # neither asks each time, nor do both ask together
                    told, seen[who] = news.since(seen[who], head)
                    got[who] += json.loads(told.removeprefix(b"data: "))["samples"]["at_ms"]
            mock_clock.jump(0.4)
        mock_clock.jump(1.0)
        for who in range(2):
            told, _ = news.since(seen[who], head)
            got[who] += json.loads(told.removeprefix(b"data: "))["samples"]["at_ms"]
    assert got == [[*range(1, 20)]] * 2


async def test_all_requests_are_told_once_for_all_who_ask_together(
    tmp_path: Path, described: Callable[[], int]
) -> None:
    async with api_of(tmp_path) as (api, asking):
        begin = api.head.generator.tracer.begin
        for at in range(200):
            begin(Trace(f"req-{at}", "chat", ""))
        first = api.run(asking, "/v1/requests", "alice")
        while not described():
            await trio.lowlevel.checkpoint()
        begin(Trace("late", "chat", ""))
        got = [api.run(asking, "/v1/requests", "alice") for _ in range(50)]
        await wait_all_tasks_blocked()
        assert described() <= 2 * 201
        assert b'"late"' not in first[0][1]
        assert {b'"late"' in body for ((_, body),) in got} == {True}  # as it was when they asked
