"""Requests that a follower passes on to the head: both ends of the daemon's part, joined by the
protocol's own streams, without a network."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from sealring.dashboard.pages import files
from sealring.dialects.errors import ApiError, unavailable
from sealring.files.config import Config
from sealring.http import gate
from sealring.http.bodies import MAX_PART
from sealring.http.front import Front
from sealring.http.http1 import MAX_FIELDS, MAX_HEADER, MAX_TARGET, STUCK_SECONDS
from sealring.http.keys import KEY_FILE, ApiKeys, new_key
from sealring.http.relay import RelayedRequests, RelayStreams
from sealring_protocol.codec.relay_messages import Question
from sealring_protocol.events import RelayDown, RelayEventCame, RelayUp
from sealring_protocol.limits import MAX_BODY, MAX_STREAMS, STREAM_WINDOW
from sealring_protocol.relay import Relay
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.attacks.doorway import door, get, hello

FOLLOWER = 1


class Joined:
    """Two nodes that are linked: the follower's clients ask at `door`, and *app* answers as the
    head."""

    def __init__(self, app: ASGIApp, **config: Any) -> None:
        self.config = Config.model_construct(
            **{"api": ("127.0.0.1", 7480), "allowed_hosts": (), "allowed_origins": (), **config}
        )
        self._ends: dict[str, Relay] = {}
        self.asks = RelayStreams(lambda rank: self._ends.get("asks"), lambda rank: self._flush())
        self.answers = RelayStreams(
            lambda rank: self._ends.get("answers"), lambda rank: self._flush()
        )
        self.requests = RelayedRequests(self.answers, lambda: app, lambda rank: "shelf")
        self.refusal = ""
        self.patience = 0.0
        self.door = Front(
            self.asks,
            lambda: self.config,
            lambda: False,
            lambda: app,
            lambda: "désk",
            lambda: self.refusal,
            self.why_not,
            Starlette(routes=files()),
            lambda: self.patience,
        )
        self.connect()

    def why_not(self) -> ApiError | None:
        """Why this machine cannot answer, if it cannot."""
        there = bool(self._ends) or self.door.is_head()
        return None if there else unavailable("There is no head.", "no_head")

    def connect(self) -> None:
        self._ends = {"asks": Relay(asks=True), "answers": Relay(asks=False)}
        self.asks.hear(RelayUp(0))
        self.answers.hear(RelayUp(FOLLOWER))

    def cut(self, reason: str = "the connection ended without CLOSE") -> None:
        """The link is lost."""
        ends, self._ends = self._ends, {}
        for name, rank, streams in (("asks", 0, self.asks), ("answers", FOLLOWER, self.answers)):
            for event in ends[name].end(reason):
                streams.hear(RelayEventCame(rank, event))
            streams.hear(RelayDown(rank, reason))

    def _flush(self) -> None:
        """Carry what there is, as two nodes would."""
        if not self._ends:
            return
        asks, answers = self._ends["asks"], self._ends["answers"]
        while True:
            there, back = asks.messages(), answers.messages()
            for message in there:
                for event in answers.receive(message):
                    self.answers.hear(RelayEventCame(FOLLOWER, event))
            for message in back:
                for event in asks.receive(message):
                    self.asks.hear(RelayEventCame(0, event))
            if not there and not back:
                return

    @property
    def streams(self) -> tuple[int, int]:
        """Streams that either end still counts."""
        return self._ends["asks"].streams, self._ends["answers"].streams


@attrs.define
class Client:
    """A client of the follower. Its request's body is *parts*; it leaves when `left` is set, and
    takes the answer while it `reads`."""

    path: str = "/v1/chat/completions"
    method: str = "POST"
    headers: dict[str, str] = attrs.field(factory=dict)
    parts: tuple[bytes, ...] = (b"{}",)
    address: str = "127.0.0.1"
    owner: bool = False
    secure: bool = False
    connection: int = 7
    left: trio.Event = attrs.field(factory=trio.Event)
    reads: trio.Event = attrs.field(factory=trio.Event)
    got: list[Message] = attrs.field(factory=list)
    sent: int = 0

    def __attrs_post_init__(self) -> None:
        self.reads.set()

    async def ask(self, app: ASGIApp) -> Client:
        path, _, query = self.path.partition("?")
        given = {"host": "localhost:7480", **self.headers}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": self.method,
            "scheme": "https" if self.secure else "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": None if self.owner else (self.address, 40000),
            "server": ("127.0.0.1", 7480),
            "state": {"connection": self.connection, "owner": self.owner},
        }
        await app(scope, self._receive, self._send)
        return self

    async def _receive(self) -> Message:
        if self.sent < len(self.parts):
            self.sent += 1
            part = self.parts[self.sent - 1]
            await trio.lowlevel.checkpoint()
            return {"type": "http.request", "body": part, "more_body": self.sent < len(self.parts)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.reads.wait()
        self.got.append(message)

    @property
    def status(self) -> int:
        return [each["status"] for each in self.got if each["type"] == "http.response.start"][-1]

    @property
    def answered(self) -> dict[str, str]:
        """The answer's headers."""
        start = [each for each in self.got if each["type"] == "http.response.start"][-1]
        return {name.decode(): value.decode() for name, value in start["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.got)

    @property
    def whole(self) -> bool:
        """Whether the answer has an end."""
        last = self.got[-1]
        return last["type"] == "http.response.body" and not last.get("more_body", False)

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(json.loads(self.body)["error"]["code"])


@contextmanager
def noticing(seen: list[Scope], answer: Response) -> Iterator[ASGIApp]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await answer(scope, receive, send)

    yield app


async def serving(joined: Joined, work: Callable[[], Awaitable[object]]) -> None:
    """Do *work* while the head answers."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(joined.requests.serve)
        await work()
        nursery.cancel_scope.cancel()


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body."""
    body = await Request(scope, receive).body()
    await Response(body, headers={"x-length": str(len(body))})(scope, receive, send)


async def test_a_request_and_its_answer_pass_whole() -> None:
    seen: list[Scope] = []
    answer = JSONResponse({"a": 1}, 201, {"x-request-id": "req-1", "connection": "close"})
    with noticing(seen, answer) as app:
        joined = Joined(app)
        client = Client(
            path="/v1/models/a%2Fb?x=1&y",
            method="GET",
            headers={
                "authorization": "Bearer sk-1",
                "expect": "100-continue",
                "connection": "keep-alive",
                "transfer-encoding": "chunked",
                "x-sealring-connection": "1",
            },
            parts=(b"",),
            secure=True,
            address="10.0.0.9",
        )
        await serving(joined, lambda: client.ask(joined.door))
    (scope,) = seen
    assert (scope["method"], scope["path"], scope["scheme"]) == ("GET", "/v1/models/a/b", "https")
    assert (scope["raw_path"], scope["query_string"]) == (b"/v1/models/a%2Fb", b"x=1&y")
    assert scope["headers"] == [(b"host", b"localhost:7480"), (b"authorization", b"Bearer sk-1")]
    assert scope["client"] == ("10.0.0.9", 0)
    assert scope["state"] == {"connection": "1 1 7", "owner": False, "relayed": "shelf"}
    assert (client.status, client.body, client.whole) == (201, b'{"a":1}', True)
    assert client.answered["x-sealring-head"] == "d%C3%A9sk"
    assert client.answered["x-request-id"] == "req-1"
    assert "connection" not in client.answered
    assert joined.streams == (0, 0)
    assert len(joined.asks) == len(joined.answers) == 0


@given(st.lists(st.integers(0, 3 * STREAM_WINDOW), min_size=1, max_size=4))
async def test_bodies_of_any_size_pass_in_both_directions(sizes: list[int]) -> None:
    joined = Joined(echo)
    parts = tuple(bytes([at % 251]) * size for at, size in enumerate(sizes))
    client = Client(parts=parts)
    await serving(joined, lambda: client.ask(joined.door))
    assert (client.status, client.body == b"".join(parts), client.whole) == (200, True, True)
    assert joined.streams == (0, 0)


async def test_a_client_that_does_not_read_holds_up_the_head() -> None:
    given_out = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal given_out
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": b"x" * 16384, "more_body": True})
            given_out += 16384
        await send({"type": "http.response.body"})

    joined = Joined(app)
    client = Client()
    client.reads = trio.Event()

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ask, joined.door)
            await wait_all_tasks_blocked()
            assert given_out <= STREAM_WINDOW
            client.reads.set()

    await serving(joined, work)
    assert len(client.body) == given_out == 1 << 20


async def test_an_app_that_does_not_read_holds_up_the_client() -> None:
    go_on = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await echo(scope, receive, send)

    joined = Joined(app)
    client = Client(parts=(b"x" * MAX_BODY,) * 32)

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ask, joined.door)
            await wait_all_tasks_blocked()
            assert client.sent * MAX_BODY <= STREAM_WINDOW + MAX_BODY
            go_on.set()

    await serving(joined, work)
    assert len(client.body) == 32 * MAX_BODY


async def test_the_head_may_answer_before_the_body_is_over() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse({}, 413)(scope, receive, send)

    joined = Joined(app)
    client = Client(parts=(b"x" * STREAM_WINDOW,) * 8)
    await serving(joined, lambda: client.ask(joined.door))
    assert (client.status, client.whole) == (413, True)
    assert client.sent < 8
    assert joined.streams == (0, 0)


async def test_a_client_that_leaves_is_gone_at_the_head(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        heard.extend([(await receive())["type"] for _ in range(2)])
        await send({"type": "http.response.body"})  # to nobody

    joined = Joined(app)
    client = Client()

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ask, joined.door)
            await wait_all_tasks_blocked()
            client.left.set()
        await wait_all_tasks_blocked()

    await serving(joined, work)
    assert heard == ["http.request", "http.disconnect"]
    assert not client.whole
    assert "was lost" not in caplog.text
    assert joined.streams == (0, 0)
    assert len(joined.asks) == len(joined.answers) == 0


async def test_a_client_that_takes_nothing_is_given_up_at_the_head(
    autojump_clock: MockClock,
) -> None:
    over = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(2 * STREAM_WINDOW)})
        over.set()

    joined = Joined(app)
    client = Client()
    client.reads = trio.Event()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(joined.requests.serve)
        nursery.start_soon(client.ask, joined.door)
        await over.wait()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(STUCK_SECONDS)


EVENT = b'data: {"id":"chatcmpl-%s","choices":[]}\n\n' % (b"0" * 24)
NAMED = b'event: message_start\ndata: {"message":{"id":"msg_%s"}}\n\n' % (b"0" * 24)
NUMBERED = (
    b'event: response.created\ndata: {"sequence_number":41,"response":{"id":"resp_%s"}}\n\n'
    % (b"0" * 24)
)
LOST = "The head, désk, was lost before the answer was complete: the machine burns."

BREAKS: dict[str, tuple[str, bytes, dict[str, Any] | None]] = {
    "chat": (
        "/v1/chat/completions",
        EVENT,
        {
            "id": f"chatcmpl-{'0' * 24}",
            "error": {
                "message": LOST,
                "type": "service_unavailable",
                "param": None,
                "code": "head_lost",
            },
            "resumable": False,
        },
    ),
    "messages": (
        "/v1/messages",
        NAMED,
        {
            "type": "error",
            "error": {"type": "overloaded_error", "message": LOST},
            "request_id": f"msg_{'0' * 24}",
            "resumable": False,
        },
    ),
    "responses": (
        "/v1/responses",
        NUMBERED,
        {
            "type": "error",
            "sequence_number": 42,
            "code": "head_lost",
            "message": LOST,
            "param": None,
            "response_id": f"resp_{'0' * 24}",
            "resumable": False,
        },
    ),
    "a response in the background, which needs no key": (
        "/v1/responses",
        b": keep-alive\n\nid: resp_%s:41\n%s" % (b"0" * 24, NUMBERED),
        {
            "type": "error",
            "sequence_number": 42,
            "code": "head_lost",
            "message": LOST,
            "param": None,
            "response_id": f"resp_{'0' * 24}",
            "resumable": True,
        },
    ),
    "messages, come back to": (
        f"/v1/streams/msg_{'0' * 24}",
        b"data: {}\n\n",
        {
            "type": "error",
            "error": {"type": "overloaded_error", "message": LOST},
            "request_id": f"msg_{'0' * 24}",
            "resumable": True,
        },
    ),
    **{
        f"a response, come back to at {begin}": (
            f"/v1/{begin}/resp_{'0' * 24}",
            b'event: x\ndata: {"sequence_number":41}\n\n',
            {
                "type": "error",
                "sequence_number": 42,
                "code": "head_lost",
                "message": LOST,
                "param": None,
                "response_id": f"resp_{'0' * 24}",
                "resumable": True,
            },
        )
        for begin in ("streams", "responses")
    },
    "the page's": ("/v1/cluster/events", b"data: {}\n\n", None),
}


def begins(body: bytes, kind: str = "text/event-stream; charset=utf-8") -> ASGIApp:
    """Answers with *body*, and no end."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for at in range(len(body)):
            part = body[at : at + 1]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await trio.sleep_forever()

    return app


async def broken(joined: Joined, client: Client) -> None:
    """Have *client* ask, and cut the link when nothing moves any more."""

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ask, joined.door)
            await wait_all_tasks_blocked()
            joined.cut("the machine burns")

    await serving(joined, work)


@pytest.mark.parametrize("name", BREAKS)
async def test_a_stream_whose_head_is_lost(name: str) -> None:
    path, body, said = BREAKS[name]
    # Numbers and ids come whole in the events of a head; one byte at a time shows no more of them.
    joined = Joined(one_piece(body))
    method = "POST" if path in gate.PREFIXES else "GET"
    client = Client(path=path, method=method)
    await broken(joined, client)
    assert client.status == 200
    last = client.body.removeprefix(body)
    assert client.whole is (said is not None)
    if said is None:
        assert last == b""
    else:
        assert json.loads(last.decode().split("data: ")[1]) == said
        assert last.startswith(b"event: error\n") is ("type" in said)
        assert last.endswith(b"\n\n")


@pytest.mark.parametrize("begin", [b"", EVENT])
async def test_a_client_gets_no_part_of_an_event(begin: bytes) -> None:
    """So that whoever is head next goes on with whole events, or an error is an event."""
    joined = Joined(one_piece(begin + EVENT[:-1]))
    client = Client()
    await broken(joined, client)
    assert (client.status, client.whole) == (200 if begin else 503, True)
    assert client.body.startswith(begin + (b"data: " if begin else b""))
    said = json.loads(client.body.removeprefix(begin).removeprefix(b"data: "))
    assert said["error"]["code"] == "head_lost"


@pytest.mark.parametrize("size", [MAX_PART - 16, MAX_PART])
async def test_an_event_that_is_too_large_to_be_held_is_passed_on_as_it_comes(size: int) -> None:
    large = b'data: {"x":"%s"}\n\n' % (b"y" * size)
    joined = Joined(one_piece(EVENT + large[:-1]))
    client = Client()
    await broken(joined, client)
    assert client.whole is (size < MAX_PART)
    held = size < MAX_PART
    assert client.body.startswith(EVENT + (b'data: {"id"' if held else large[:-2]))
    again = Client()
    passes = Joined(answering(EVENT + large + EVENT))
    await serving(passes, lambda: again.ask(passes.door))
    assert (again.body, again.whole) == (EVENT + large + EVENT, True)


def answering(body: bytes, kind: str = "text/event-stream") -> ASGIApp:
    """Answers with *body*, in small parts."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for at in range(0, len(body), 1000):
            part = body[at : at + 1000]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def one_piece(body: bytes) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await trio.sleep_forever()

    return app


async def test_nobody_waits_for_a_page_that_watches() -> None:
    joined = Joined(one_piece(b"data: {}\n\n"))
    watching, asking = Client(path="/v1//cluster/events", method="GET", parts=(b"",)), Client()
    under_way: list[int] = []

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            for client in (watching, asking):
                nursery.start_soon(client.ask, joined.door)
                await wait_all_tasks_blocked()
                under_way.append(joined.asks.under_way)
            joined.asks.end_all(unavailable("The end.", "shutting_down"))

    await serving(joined, work)
    assert under_way == [0, 1]
    assert joined.asks.under_way == 0


@pytest.mark.parametrize("begun", [True, False])
async def test_a_stream_that_its_follower_ends(*, begun: bool) -> None:
    joined = Joined(one_piece(EVENT) if begun else begins(b""))
    client = Client()
    error = unavailable("The answer ends: this node is shutting down.", "shutting_down")

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ask, joined.door)
            await wait_all_tasks_blocked()
            joined.asks.end_all(error)

    await serving(joined, work)
    assert (client.status, client.whole) == (200 if begun else 503, True)
    said = json.loads(client.body.removeprefix(EVENT).removeprefix(b"data: "))
    assert said["error"] == error.body()["error"]
    assert said.get("id") == (f"chatcmpl-{'0' * 24}" if begun else None)
    assert joined.streams == (0, 0)


async def test_requests_that_a_follower_ends_together_have_ids_of_their_own() -> None:
    joined = Joined(begins(b""))
    clients = [Client(), Client()]

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.ask, joined.door)
            await wait_all_tasks_blocked()
            joined.asks.end_all(unavailable("The end.", "shutting_down"))

    await serving(joined, work)
    assert [client.code for client in clients] == ["shutting_down"] * 2
    assert len({client.answered["x-request-id"] for client in clients}) == 2


async def test_a_stream_of_small_pieces_whose_head_is_lost_still_ends_with_an_event() -> None:
    joined = Joined(begins(EVENT))
    client = Client(headers={"idempotency-key": "1"})
    await broken(joined, client)
    assert client.whole
    said = json.loads(client.body.removeprefix(EVENT)[6:])
    assert (said["error"]["code"], said["resumable"]) == ("head_lost", True)


ODD: dict[str, tuple[dict[str, str], bytes]] = {
    "a length that is no number": ({"content-length": "abc"}, b"HTTP/1.1 500 "),
    "a length of 5,000 digits": ({"content-length": "9" * 5000}, b"HTTP/1.1 500 "),
    "a length above its body's": ({"content-length": "6"}, b""),
    "a length below its body's": ({"content-length": "4"}, b""),
    "a length, and chunks": (
        {"content-length": "5", "transfer-encoding": "chunked"},
        b"HTTP/1.1 200 ",
    ),
    "a value within spaces": ({"x-a": " a "}, b"HTTP/1.1 500 "),
}


@pytest.mark.parametrize("name", ODD)
async def test_a_head_whose_answer_contradicts_itself_ends_that_request_alone(name: str) -> None:
    headers, begin = ODD[name]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/health":
            await hello(scope, receive, send)
            return
        given = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": given})
        await send({"type": "http.response.body", "body": b"hello"})

    joined = Joined(app)

    async def work() -> None:
        async with door(joined.door) as served:
            asked = get("/v1/models", "Connection: close").replace(b"Host: x", b"Host: localhost")
            got = await served.answer(asked)
            assert got.startswith(begin)
            assert bool(got) is bool(begin)
            assert got.endswith(b"\r\n\r\nhello") is begin.endswith(b"200 ")
            assert joined.streams == (0, 0)
            await served.works()

    await serving(joined, work)


async def test_an_answer_in_one_piece_whose_head_is_lost_is_cut() -> None:
    joined = Joined(begins(b'{"id":', "application/json"))
    client = Client()
    await broken(joined, client)
    assert (client.status, client.body, client.whole) == (200, b'{"id":', False)


@pytest.mark.parametrize(("path", "status"), [("/v1/chat/completions", 503), ("/v1/messages", 529)])
async def test_a_head_that_is_lost_before_it_answers(path: str, status: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep_forever()

    joined = Joined(app)
    client = Client(path=path)
    await broken(joined, client)
    assert (client.status, client.whole) == (status, True)
    assert client.answered["retry-after"] == "1"
    assert LOST in client.body.decode("unicode_escape").encode("latin-1").decode()
    again = Client(path=path)
    await again.ask(joined.door)
    assert (again.status, again.answered["retry-after"]) == (status, "1")
    assert "There is no head." in again.body.decode()
    assert again.answered["x-request-id"].startswith("req-")


async def test_the_next_link_has_the_same_numbers_and_other_streams() -> None:
    """What is left of a stream of the link before hears nothing of them."""
    begun: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(scope["path"])
        if scope["path"] == "/first":
            with trio.CancelScope(shield=True):  # is slow to end
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"first", "more_body": True})
                await later.wait()
                await send({"type": "http.response.body", "body": b"more of the first"})
        else:
            await echo(scope, receive, send)

    later = trio.Event()
    joined = Joined(app)
    first, second = Client(path="/first"), Client(path="/second", parts=(b"second",))

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.ask, joined.door)
            await wait_all_tasks_blocked()
            joined.cut()
            joined.connect()
            later.set()
        await second.ask(joined.door)

    await serving(joined, work)
    assert begun == ["/first", "/second"]
    assert (second.status, second.body) == (200, b"second")
    assert not first.whole
    assert joined.streams == (0, 0)


async def test_more_streams_than_a_link_has_are_refused() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep_forever()

    joined = Joined(app)
    late = Client()

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(MAX_STREAMS):
                nursery.start_soon(Client(address=f"10.0.0.{number % 2}").ask, joined.door)
            await wait_all_tasks_blocked()
            await late.ask(joined.door)
            nursery.cancel_scope.cancel()

    await serving(joined, work)
    assert (late.status, late.code) == (503, "overloaded")


async def test_one_address_leaves_streams_to_others() -> None:
    """A file of the page is larger than the window, and needs no key: who asks for it and reads
    nothing has a stream for a minute."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        size = 0 if scope["path"] == "/" else 4 * STREAM_WINDOW
        await Response(bytes(size))(scope, receive, send)

    joined = Joined(app, api=("0.0.0.0", 7480))
    silent = [
        Client(path="/dashboard/large", method="GET", parts=(b"",), address=f"2001:db8::{n:x}")
        for n in range(1, MAX_STREAMS + 1)
    ]
    other = Client(path="/", method="GET", parts=(b"",), address="10.0.0.9")

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            for client in silent:
                client.reads = trio.Event()
                nursery.start_soon(client.ask, joined.door)
            await wait_all_tasks_blocked()
            await other.ask(joined.door)
            for client in silent:
                client.reads.set()

    await serving(joined, work)
    assert other.status == 200
    refused = [client.code for client in silent if client.status == 503]
    assert refused == ["overloaded"] * (MAX_STREAMS // 4)
    again = Client(path="/", method="GET", parts=(b"",), address="2001:db8::1")
    await serving(joined, lambda: again.ask(joined.door))
    assert again.status == 200


async def test_a_follower_that_stops_takes_no_more() -> None:
    joined = Joined(echo)
    joined.refusal = "this node is shutting down"
    client = Client()
    await client.ask(joined.door)
    assert (client.status, client.code) == (503, "shutting_down")


async def test_a_follower_without_a_head_still_gives_the_page() -> None:
    """A browser that opens it then shows a page that says why, not JSON."""
    joined = Joined(echo)
    joined.cut()
    for path, kind in (("/", "text/html"), ("//dashboard/main.js", "text/javascript")):
        client = Client(path=path, method="GET", parts=(b"",))
        await client.ask(joined.door)
        assert (client.status, client.whole) == (200, True)
        assert client.answered["content-type"].startswith(kind)
        assert client.answered["x-content-type-options"] == "nosniff"
        assert "content-security-policy" in client.answered
    client = Client(path="/v1/cluster/events", method="GET", parts=(b"",))
    await client.ask(joined.door)
    assert (client.status, client.code) == (503, "no_head")


async def test_a_follower_says_itself_whether_it_is_alive_and_ready() -> None:
    head: list[Response] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await head.pop()(scope, receive, send)

    joined = Joined(app)
    joined.cut()
    for path, reasons in (("/livez", None), ("/readyz", ["There is no head."])):
        client = Client(path=path, method="GET", parts=(b"",))
        await client.ask(joined.door)
        assert client.status == (503 if reasons else 200)
        assert json.loads(client.body).get("reasons") == reasons
    joined.connect()
    for away, reasons in ((True, ["The tokenizer is loaded."]), (False, [])):
        head.append(JSONResponse({"reasons": reasons}, 503 if away else 200))
        client = Client(path="//readyz", method="GET", parts=(b"",))
        await serving(joined, partial(client.ask, joined.door))
        assert client.status == (503 if away else 200)
        assert json.loads(client.body)["reasons"] == reasons
        assert not head
    joined.refusal = "this node is shutting down"
    await client.ask(joined.door)
    assert json.loads(client.got[-1]["body"])["reasons"] == ["this node is shutting down"]


async def test_what_is_no_look_at_a_follower_is_for_the_head() -> None:
    """It refuses the method, as it does where it is asked itself."""
    joined = Joined(JSONResponse({}, 405))
    client = Client(path="/livez")
    await serving(joined, lambda: client.ask(joined.door))
    assert client.status == 405


@pytest.mark.parametrize(
    ("client", "config", "told"),
    [
        (Client(headers={"host": "evil.example"}), {}, False),
        (Client(headers={"host": "shelf.example"}), {"allowed_hosts": ("shelf.example",)}, True),
        (Client(headers={"host": "x"}), {"api": ("0.0.0.0", 7480)}, True),
        (Client(headers={"host": "x"}, owner=True), {}, True),
    ],
)
async def test_under_another_name_a_follower_says_only_whether_it_is_ready(
    client: Client, config: dict[str, Any], told: bool
) -> None:
    joined = Joined(echo, **config)
    joined.cut()
    asked = attrs.evolve(client, path="/readyz", method="GET", parts=(b"",))
    await asked.ask(joined.door)
    assert asked.status == 503
    assert json.loads(asked.body)["reasons"] == (["There is no head."] if told else [])
    assert ("x-sealring-head" in asked.answered) is told


async def test_under_another_name_health_does_not_say_why_there_is_no_head() -> None:
    joined = Joined(echo)
    joined.cut()
    for host, told in (("evil.example", False), ("localhost", True)):
        client = Client(path="/health", method="GET", parts=(b"",), headers={"host": host})
        await client.ask(joined.door)
        assert (client.status, client.code) == (503, "no_head")
        assert (b"There is no head." in client.body) is told


PAGE = "https://chat.example"

NAMES: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "loopback": ({}, {}, ""),
    "another name": ({}, {"host": "evil.example"}, "wrong_host"),
    "a name that is let in": ({"allowed_hosts": ("evil.example",)}, {"host": "evil.example"}, ""),
    "a key is no name": (
        {},
        {"host": "evil.example", "authorization": "Bearer x"},
        "wrong_host",
    ),
    "beyond loopback": ({"api": ("0.0.0.0", 7480)}, {"host": "evil.example"}, ""),
    "a page": ({}, {"origin": PAGE}, "wrong_origin"),
    "a page beyond loopback": ({"api": ("0.0.0.0", 7480)}, {"origin": PAGE}, "wrong_origin"),
    "a page that is let in": ({"allowed_origins": (PAGE,)}, {"origin": PAGE}, ""),
    "its own page": ({}, {"origin": "http://localhost:7480"}, ""),
    "a script of another site": ({}, {"sec-fetch-site": "cross-site"}, "wrong_site"),
}


@pytest.mark.parametrize("name", NAMES)
async def test_names_and_pages_are_the_followers_to_check(name: str) -> None:
    config, headers, code = NAMES[name]
    joined = Joined(echo, **config)
    client = Client(headers=headers)
    await serving(joined, lambda: client.ask(joined.door))
    if code:
        assert (client.status, client.code) == (403, code)
    else:
        assert (client.status, client.body) == (200, b"{}")
    assert ("x-sealring-head" in client.answered) is (code != "wrong_host")
    let_in = client.answered.get("access-control-allow-origin")
    assert let_in == (PAGE if config.get("allowed_origins") else None)
    assert client.answered["vary"] == "Origin"


async def test_a_browser_may_ask_a_follower_beforehand() -> None:
    joined = Joined(echo, allowed_origins=(PAGE,))
    headers = {"origin": PAGE, "access-control-request-method": "POST"}
    client = Client(method="OPTIONS", headers=headers, parts=(b"",))
    await client.ask(joined.door)  # there is no head that answers
    assert client.status == 204
    assert client.answered["access-control-allow-origin"] == PAGE
    assert "x-sealring-head" in client.answered["access-control-expose-headers"]


async def test_the_owner_may_ask_by_any_name() -> None:
    seen: list[Scope] = []
    with noticing(seen, JSONResponse({})) as app:
        joined = Joined(app)
        await serving(joined, lambda: Client(owner=True, headers={"host": "x"}).ask(joined.door))
    assert (seen[0]["client"], seen[0]["state"]["owner"]) == (None, True)


async def test_a_port_that_others_reach_has_no_client_on_loopback() -> None:
    seen: list[Scope] = []
    with noticing(seen, JSONResponse({})) as app:
        joined = Joined(app, api=("0.0.0.0", 7480))
        await serving(joined, lambda: Client().ask(joined.door))
    assert seen[0]["client"] == ("0.0.0.0", 0)


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        (b"/" + b"x" * (MAX_TARGET - 1), (), 414),
        (b"/x?" + b"x" * (MAX_TARGET - 4), (), 200),
        (b"/", ((b"a", b""),) * MAX_FIELDS, 200),
        (b"/", ((b"a", b""),) * (MAX_FIELDS + 1), 431),
        (b"/", ((b"a", b"x" * (MAX_HEADER - 1)),), 200),
        (b"/", ((b"a", b"x" * MAX_HEADER),), 431),
        (b"/", ((b"content-length", b"9" * 20),), 200),
        (b"/", ((b"content-length", b"9" * 5000),), 400),
        (b"/", ((b"content-length", b"0"), (b"content-length", b"x")), 400),
    ],
)
async def test_a_member_is_held_to_the_limits_of_a_client(
    target: bytes, headers: tuple[tuple[bytes, bytes], ...], status: int
) -> None:
    joined = Joined(echo)
    got: list[Any] = []

    async def work() -> None:
        with joined.asks.asking(Question("GET", target, False, "127.0.0.1", headers)) as stream:
            await stream.send(b"", last=True)
            got.append(await stream.take())

    await serving(joined, work)
    assert got[0].status == status


async def test_what_a_lost_link_had_asked_and_nobody_began_is_not_kept() -> None:
    """Or a member that links, asks and leaves, over and over, would fill the head."""
    joined = Joined(echo)
    for _ in range(3):
        for _ in range(MAX_STREAMS):
            joined._ends["asks"].ask(Question("POST", b"/", False, "127.0.0.1"))
        joined._flush()
        assert len(joined.answers) == len(joined.requests._coming) == MAX_STREAMS
        joined.cut()
        assert len(joined.answers) == len(joined.requests._coming) == 0
        joined.connect()
    client = Client()
    await serving(joined, lambda: client.ask(joined.door))
    assert client.status == 200


async def test_small_parts_of_a_body_are_kept_as_one() -> None:
    """A member could have the head keep 100 bytes for each."""
    got: list[Message] = []
    go_on = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        got.append(await receive())
        got.append(await receive())

    joined = Joined(app)

    async def work() -> None:
        with joined.asks.asking(Question("POST", b"/", False, "127.0.0.1")) as stream:
            for _ in range(100):
                await stream.send(b"x", last=False)
            await wait_all_tasks_blocked()
            go_on.set()
            await wait_all_tasks_blocked()
            await stream.send(b"y", last=True)
            await wait_all_tasks_blocked()

    await serving(joined, work)
    assert [each["body"] for each in got] == [b"x" * 100, b"y"]
    assert [each["more_body"] for each in got] == [True, False]


async def test_an_app_that_fails_ends_its_stream_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/fails":
            raise RuntimeError("a bug")
        if scope["path"] == "/refuses":
            raise ApiError(404, "Nothing.", "not_found")
        await echo(scope, receive, send)

    joined = Joined(app)
    clients = [Client(path=path) for path in ("/fails", "/refuses", "/")]

    async def work() -> None:
        for client in clients:
            await client.ask(joined.door)

    await serving(joined, work)
    assert [client.status for client in clients] == [503, 404, 200]
    assert "a bug" in caplog.text


async def test_requests_of_members_begin_one_in_each_pass() -> None:
    """So 256 at once do not hold up the links."""
    passes: list[int] = []
    now = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        passes.append(now)
        await echo(scope, receive, send)

    joined = Joined(app)

    async def count(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        nonlocal now
        task_status.started()
        while True:
            now += 1
            await trio.lowlevel.checkpoint()

    async def work() -> None:
        async with trio.open_nursery() as clients:
            for _ in range(20):
                clients.start_soon(Client().ask, joined.door)

    async with trio.open_nursery() as nursery:
        await nursery.start(count)
        nursery.start_soon(joined.requests.serve)
        await work()
        nursery.cancel_scope.cancel()
    assert max(Counter(passes).values()) <= 2  # tasks of one pass run in any order


# ------------------------------------------------------------------- the head's gate


async def caller_of(
    client: Client, keys: Path, *, needed: bool = False
) -> tuple[int, gate.Caller | None]:
    """The status that *client* of the member shelf gets, and who it is to the head."""
    head = MagicMock(keys_needed=needed, keys=ApiKeys(keys))
    head.config = Config.model_construct(allowed_hosts=(), allowed_origins=())
    head.config = head.config.model_copy(update={"prefix_sharing": "connection"})
    head.generator.draining = False
    callers: list[gate.Caller] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        callers.append(scope["state"]["visitor"])
        await echo(scope, receive, send)

    joined = Joined(gate.Gate(app, head), api=("0.0.0.0", 7480), allowed_hosts=("evil.example",))
    await serving(joined, lambda: client.ask(joined.door))
    return client.status, next(iter(callers), None)


async def test_who_a_members_client_is_to_the_head(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    key = new_key(path, "alice")
    alice = {"authorization": f"Bearer {key}"}
    owner, far = Client(owner=True), Client(address="10.0.0.9")
    status, caller = await caller_of(owner, path, needed=True)
    assert caller is not None
    assert (status, caller.owner) == (200, "owner of the node shelf")
    assert caller.account == "member shelf"  # with the clients that it may make up
    assert caller.may_stay(MagicMock(keys_needed=True))
    assert not caller.may_admit(MagicMock(**{"keys.may_admit.return_value": False}))
    assert (await caller_of(far, path)) == (401, None)  # though the head asks for no key
    status, caller = await caller_of(Client(address="10.0.0.9", headers=alice), path)
    assert caller is not None
    assert (status, caller.name, caller.keyed) == (200, "alice", True)
    assert caller.owner == caller.account  # as at the head itself
    gone = MagicMock(keys_needed=False, **{"keys.has.return_value": False})
    assert not caller.may_stay(gone)  # its key was revoked


async def test_clients_of_a_member_without_a_key_have_one_account(tmp_path: Path) -> None:
    """And are let in under the names that this member's config allows."""
    head = MagicMock(keys_needed=False, keys=ApiKeys(tmp_path / KEY_FILE))
    head.config = Config.model_construct(prefix_sharing="connection", allowed_hosts=())
    head.generator.draining = False
    callers: list[gate.Caller] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        callers.append(scope["state"]["visitor"])
        await echo(scope, receive, send)

    joined = Joined(gate.Gate(app, head), allowed_hosts=("shelf.example",))
    clients = [
        Client(
            address=address,
            connection=connection,
            headers={"x-api-key": key, "host": "shelf.example"},
        )
        for address, connection, key in (
            ("127.0.0.1", 1, ""),
            ("127.0.0.1", 1, "a"),
            ("::1", 2, "a"),
        )
    ]

    async def work() -> None:
        for client in clients:
            await client.ask(joined.door)

    await serving(joined, work)
    assert [client.status for client in clients] == [200] * 3
    assert {caller.account for caller in callers} == {"member shelf"}
    assert [caller.owner for caller in callers] == [
        "unknown shelf ",
        *["unknown shelf " + callers[1].owner.split()[-1]] * 2,
    ]
    assert [caller.scope for caller in callers] == [
        "connection 1 1 1",
        "connection 1 1 1",
        "connection 1 1 2",
    ]


async def test_connections_of_a_member_that_started_again_are_others(tmp_path: Path) -> None:
    """It numbers them anew, and what its earlier clients asked is none of its present ones'
    concern."""
    seen: list[Scope] = []
    with noticing(seen, JSONResponse({})) as app:
        joined = Joined(app)

        async def work() -> None:
            await Client().ask(joined.door)
            joined.cut()
            joined.connect()
            await Client().ask(joined.door)

        await serving(joined, work)
    first, second = (scope["state"]["connection"] for scope in seen)
    assert first != second


@pytest.mark.parametrize("path", ["/health", "/readyz"])
async def test_health_is_brief_under_another_name_at_a_follower_too(
    tmp_path: Path, path: str
) -> None:
    head = MagicMock(keys_needed=False, keys=ApiKeys(tmp_path / KEY_FILE))
    head.config = Config.model_construct(prefix_sharing="off", allowed_hosts=())
    head.generator.draining = False

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse(scope["state"]["brief"])(scope, receive, send)

    joined = Joined(gate.Gate(app, head))
    clients = [
        Client(path=path, method="GET", headers={"host": host}, parts=(b"",))
        for host in ("localhost", "evil.example")
    ]

    async def work() -> None:
        for client in clients:
            await client.ask(joined.door)

    await serving(joined, work)
    assert [client.body for client in clients] == [b"false", b"true"]
