"""Answers that outlive their head, at the machine that has the client: heads that are lost at any
byte, and others that go on. No event comes twice or never."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring.dialects.errors import ApiError, no_majority, unavailable
from sealring.http import front
from sealring.http.bodies import KEEPALIVE_SECONDS, MAX_BODY, count_events
from sealring.http.gate import ANSWER, AWAY, error_response
from sealring.http.records import may_ask
from sealring.http.relay import INTERNAL
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.api.test_relay import Client, Joined

CHAT = "/v1/chat/completions"
NAME = "chatcmpl-" + "0" * 24
EVENTS = [b'data: {"id":"%s","n":%d}\n\n' % (NAME.encode(), at) for at in range(12)]
EVENTS.append(b"data: [DONE]\n\n")
PING = b': keepalive\nevent: ping\ndata: {"type":"ping"}\n\n'


@attrs.define
class Head:
    """A head that is lost after *dies* bytes of a stream, if that is not None. It gives *whole* in
    *step* bytes at once, and knows the answers that any head has begun, unless it is *forgetful*.
    It is *away* for so many requests first."""

    whole: bytes = b"".join(EVENTS)
    dies: int | None = None
    step: int = 7
    forgetful: bool = False
    away: int = 0
    code: str = "not_head"
    ids: bool = False
    kind: str = "text/event-stream; charset=utf-8"
    asked: list[str] = attrs.field(factory=list)
    bodies: list[bytes] = attrs.field(factory=list)
    brought: list[bytes] = attrs.field(factory=list)
    names: set[str] = attrs.field(factory=set)
    die: Callable[[], None] = lambda: None
    die_before: bool = False
    seen: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers = scope["path"], dict(scope["headers"])
        self.asked.append(f"{scope['method']} {path}?{scope['query_string'].decode()}".rstrip("?"))
        self.seen()
        if self.away:
            self.away -= 1
            error = unavailable("Another is the head.", self.code)
            await error_response(error, path)(scope, receive, send)
            return
        after = 0
        if path.startswith(INTERNAL):
            assert scope["method"] == "POST"
            assert scope["state"]["owner"]
            assert scope["client"] is None
            self.brought.append(await Request(scope, receive).body())
            after = int(scope["query_string"].removeprefix(b"after="))
            if self.forgetful or path.rpartition("/")[2] not in self.names:
                await JSONResponse({}, 404)(scope, receive, send)
                return
        elif scope["method"] == "POST":
            self.names.add(headers[ANSWER].decode())
            self.bodies.append(await Request(scope, receive).body())
        else:
            if self.forgetful:
                await JSONResponse({}, 404)(scope, receive, send)
                return
            after = int(headers[b"last-event-id"].rpartition(b":")[2]) + 1
        await self._give(after, send)

    async def _give(self, after: int, send: Send) -> None:
        if self.die_before:
            self.die()
            await trio.sleep_forever()
        streams = self.kind.startswith("text/event-stream")
        rest = b"".join(self.events[after:]) if streams else self.whole
        headers = [(b"content-type", self.kind.encode())]
        if not streams:
            headers.append((b"content-length", str(len(rest)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for at in range(0, len(rest), self.step):
            if self.dies is not None and at >= self.dies:
                self.die()
                await trio.sleep_forever()
            part = rest[at : at + self.step]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    @property
    def events(self) -> list[bytes]:
        if not self.ids:
            return EVENTS
        return [b"id: %s:%d\n%s" % (NAME.encode(), at, each) for at, each in enumerate(EVENTS)]


class Succession(Joined):
    """A follower, or the head before, whose heads come one after another, *gap* seconds apart."""

    def __init__(self, *heads: Head, gap: float = 1.0, own_first: bool = False) -> None:
        self.heads = list(heads)
        self.gap = gap
        self.own_first = own_first
        super().__init__(self._app)
        self.patience = front.NEXT_HEAD_SECONDS
        self.door.is_head = lambda: self.own
        for head in heads:
            head.names, head.die = heads[0].names, partial(self._die, head)
        self.own = own_first
        self.died = trio.Event()
        self.door.turned()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.heads[0](scope, receive, send)

    def _die(self, head: Head | None = None) -> None:
        """*head* is lost, for all its clients at once; the present one if that is None."""
        if head is None or (self.heads and self.heads[0] is head):
            self.died.set()

    async def lives(self) -> None:
        """Each head that dies is followed by the next."""
        while True:
            await self.died.wait()
            self.died = trio.Event()
            if self.own:
                self._ends.clear()
                self.own = False
                self.door.turned()
            else:
                self.cut("the machine burns")
            self.heads.pop(0)
            await trio.sleep(self.gap)
            if self.heads:
                self.connect()

    async def run(self, *clients: Client) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.requests.serve)
            nursery.start_soon(self.lives)
            async with trio.open_nursery() as asking:
                for client in clients:
                    asking.start_soon(client.ask, self.door)
            nursery.cancel_scope.cancel()


def without_comments(client: Client) -> bytes:
    """What *client* has had, without what breaks a silence."""
    return client.body.replace(b": keepalive\n\n", b"")


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 700), max_size=4),
    st.integers(1, 100),
    st.booleans(),
    st.booleans(),
)
def test_the_events_of_one_head_after_another_are_those_of_one(
    dies: list[int], step: int, ids: bool, own_first: bool
) -> None:
    heads = [Head(dies=at, step=step, ids=ids) for at in dies] + [Head(ids=ids)]

    async def run() -> None:
        succession, client = Succession(*heads, own_first=own_first), Client()
        await succession.run(client)
        assert (client.status, client.whole) == (200, True)
        assert without_comments(client) == b"".join(heads[-1].events)
        assert [each["type"] for each in client.got].count("http.response.start") == 1
        assert len(succession.asks) == len(succession.answers) == 0

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def test_what_follows_is_asked_of_the_next_head_by_the_answers_name(
    autojump_clock: MockClock,
) -> None:
    first, second = Head(dies=100), Head()
    client = Client(headers={"x-sealring-answer": "0" * 24})
    succession = Succession(first, second)
    succession.door.here = lambda: "shelf"
    await succession.run(client)
    (name,) = first.names
    assert name != "0" * 24
    assert may_ask("shelf", name)
    assert not may_ask("den", name)
    assert first.asked == [f"POST {CHAT}"]
    assert second.asked == [f"POST /_ring/answers/{name}?after={count_events(client.body[:100])}"]


async def test_what_is_known_of_an_answer_goes_to_the_next_head(autojump_clock: MockClock) -> None:
    """As it was when the head was lost: the next one may have less, and tell of that."""
    first, second = Head(dies=100), Head(away=1, code="not_head")
    succession = Succession(first, second)
    known = {"": b""}
    succession.door.record = lambda name: known.get(name, b"")

    def die() -> None:
        (name,) = first.names
        known[name] = b"some"
        died()

    def less() -> None:
        known.clear()

    died, first.die = first.die, die
    second.seen = less
    client = Client()
    await succession.run(client)
    assert client.body == b"".join(EVENTS)
    assert second.brought == [b"some"]


async def test_events_with_ids_are_asked_for_as_their_client_would(
    autojump_clock: MockClock,
) -> None:
    """Where nobody knows the answer by its name: as what was come back to, or begun by another."""
    first, second = Head(dies=200, ids=True), Head(ids=True)
    client = Client(
        path=f"/v1/streams/{NAME}", method="GET", headers={"last-event-id": f"{NAME}:1"}
    )
    await Succession(first, second).run(client)
    assert client.body == b"".join(second.events[2:])
    assert second.asked == [f"GET /v1/streams/{NAME}"]


async def test_what_nobody_knows_is_asked_again_if_the_client_has_nothing_of_it(
    autojump_clock: MockClock,
) -> None:
    first, second = Head(die_before=True), Head(forgetful=True)
    client = Client(parts=(b"{", b"}"))
    await Succession(first, second).run(client)
    assert client.body == b"".join(EVENTS)
    assert [each.split("?")[0].rpartition("/")[0] for each in second.asked] == [
        "POST /_ring/answers",
        "POST /v1/chat",
    ]
    assert first.bodies == second.bodies == [b"{}"]


async def test_what_nobody_knows_ends_if_the_client_has_some_of_it(
    autojump_clock: MockClock,
) -> None:
    first, second = Head(dies=100), Head(forgetful=True)
    client = Client()
    await Succession(first, second).run(client)
    assert client.whole
    *had, last, end = client.body.split(b"\n\n")
    assert [each + b"\n\n" for each in had] == EVENTS[: len(had)]
    assert end == b""
    said = json.loads(last.removeprefix(b"data: "))
    assert (said["id"], said["error"]["code"], said["resumable"]) == (NAME, "head_lost", False)


async def test_an_answer_in_one_piece_is_passed_on_once_it_is_whole(
    autojump_clock: MockClock,
) -> None:
    whole = json.dumps({"x": "y" * 5000}).encode()
    first = Head(whole=whole, kind="application/json", dies=2000)
    second = Head(whole=whole, kind="application/json")
    client = Client()
    await Succession(first, second).run(client)
    assert (client.status, client.body, client.whole) == (200, whole, True)
    assert client.answered["content-length"] == str(len(whole))


async def test_a_request_of_which_nothing_is_answered_waits_for_no_head_without_a_majority(
    autojump_clock: MockClock,
) -> None:
    """It came before that was sure. The next one is refused at once."""
    silent = Head(die_before=True)
    succession = Succession(silent, own_first=True)
    silent.die = lambda: None
    alone = trio.Event()
    succession.door.why_not = lambda: no_majority("1 of 3") if alone.is_set() else None
    first, second = Client(), Client()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.ask, succession.door)
        await trio.sleep(5)
        alone.set()
    assert trio.current_time() == pytest.approx(began + 5 + front.NEXT_HEAD_SECONDS, abs=1)
    await second.ask(succession.door)
    assert trio.current_time() == pytest.approx(began + 5 + front.NEXT_HEAD_SECONDS, abs=1)
    for each in (first, second):
        assert each.status == 503
        assert b'"no_majority"' in each.body


@pytest.mark.parametrize("code", ["not_head", "no_majority", "ring_not_ready"])
async def test_a_head_that_cannot_answer_yet_is_asked_again(
    autojump_clock: MockClock, code: str
) -> None:
    first, second = Head(dies=100), Head(away=3, code=code)
    client = Client()
    await Succession(first, second).run(client)
    assert without_comments(client) == b"".join(EVENTS)
    assert len(second.asked) == 4


async def test_a_request_that_comes_between_two_heads_waits(autojump_clock: MockClock) -> None:
    succession = Succession(Head(), Head(away=1, code="ring_not_ready"), gap=3.0)
    late = Client()

    async def work(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(succession.requests.serve)
            nursery.start_soon(succession.lives)
            await wait_all_tasks_blocked()
            succession._die()
            await wait_all_tasks_blocked()
            await late.ask(succession.door)
            nursery.cancel_scope.cancel()

    await work()
    assert (late.status, late.body) == (200, b"".join(EVENTS))


async def test_a_head_that_gives_way_is_asked_until_the_next_is_there(
    autojump_clock: MockClock,
) -> None:
    succession = Succession(Head(away=4))
    client = Client()
    await succession.run(client)
    assert (client.status, client.body) == (200, b"".join(EVENTS))
    assert "x-sealring-away" not in client.answered


async def test_a_ring_that_is_not_ready_says_so_at_once_where_no_head_was_lost(
    autojump_clock: MockClock,
) -> None:
    head = Head(away=100, code="ring_not_ready")
    client = Client()
    await Succession(head).run(client)
    assert (client.status, client.code, len(head.asked)) == (503, "ring_not_ready", 1)
    assert AWAY.decode() not in client.answered


@pytest.mark.parametrize("dies", [0, 100])
async def test_nobody_waits_longer_than_half_a_minute(autojump_clock: MockClock, dies: int) -> None:
    client = Client()
    began = trio.current_time()
    await Succession(Head(dies=dies), Head(), gap=1000.0).run(client)
    assert trio.current_time() - began == pytest.approx(front.NEXT_HEAD_SECONDS, abs=0.6)
    assert client.whole
    assert b'"head_lost"' in client.body or b'"no_head"' in client.body
    assert client.status == (200 if dies else 503)


async def test_the_silence_between_two_heads_is_broken(autojump_clock: MockClock) -> None:
    client = Client()
    await Succession(Head(dies=100), Head(), gap=2.5 * KEEPALIVE_SECONDS).run(client)
    assert client.body.count(b": keepalive\n\n") == 2
    assert without_comments(client) == b"".join(EVENTS)


@pytest.mark.parametrize("own_first", [True, False])
async def test_who_can_come_back_is_sent_away_by_a_machine_that_is_cut_off(
    autojump_clock: MockClock, own_first: bool
) -> None:
    """Others wait for as long as ever, and get the rest once the machine hears the next head."""
    lost = trio.Event()

    class Silent(Head):
        """A head that plans no steps any more."""

        def die_now(self) -> None:
            lost.set()

    first = Silent(dies=200)
    coming, waiting = Client(headers={"idempotency-key": "k"}), Client()
    succession = Succession(first, Head(), gap=20.0, own_first=own_first)
    if own_first:
        first.die = first.die_now
    succession.door.cut_off = lambda: lost.is_set() if own_first else not succession.heads[1:]
    began = trio.current_time()

    async def heal() -> None:
        await trio.sleep(20.0)
        if own_first:
            succession.own = False
            succession.heads.pop(0)
            succession.connect()
            succession.door.turned()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(heal)
        await succession.run(coming, waiting)
    events = coming.body.split(b"\n\n")
    assert b'"no_majority"' in events[-2]
    assert b'"resumable":true' in events[-2].replace(b" ", b"")
    assert without_comments(waiting) == b"".join(EVENTS)
    late = Client(headers={"idempotency-key": "k"})
    lost.set()
    await succession.run(late)
    assert (late.status, late.code) == (503, "no_majority")
    assert trio.current_time() - began < front.NEXT_HEAD_SECONDS


async def test_a_client_that_leaves_meanwhile_is_not_waited_for(autojump_clock: MockClock) -> None:
    succession = Succession(Head(dies=100), Head(), gap=20.0)
    client = Client()
    began = trio.current_time()

    async def leave() -> None:
        await trio.sleep(5.0)
        client.left.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        await succession.run(client)
    assert trio.current_time() - began < 6.0
    assert succession.door.under_way == 0


async def test_what_is_waited_for_ends_with_this_machine(autojump_clock: MockClock) -> None:
    succession = Succession(Head(dies=100), Head(), gap=20.0)
    client = Client()

    async def stop() -> None:
        await trio.sleep(5.0)
        assert succession.door.under_way == 1
        succession.door.end_all(unavailable("The end.", "shutting_down"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        await succession.run(client)
    assert client.body.endswith(b'"resumable":false}\n\n')
    assert b'"shutting_down"' in client.body


async def test_a_body_that_was_under_way_is_sent_to_the_next_head(
    autojump_clock: MockClock,
) -> None:
    go_on = trio.Event()
    succession = Succession(Head(), Head())

    class Slow(Client):
        async def _receive(self) -> Message:
            if self.sent == 1 and len(succession.heads) == 2:
                succession._die()
            if self.sent == 1:
                await go_on.wait()
            return await super()._receive()

    client = Slow(parts=(b"a" * 1000, b"b" * 1000))

    async def later() -> None:
        await trio.sleep(5.0)
        go_on.set()

    second = succession.heads[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        await succession.run(client)
    assert client.body == b"".join(EVENTS)
    assert second.bodies == [b"a" * 1000 + b"b" * 1000]


async def test_a_body_that_has_no_room_is_to_be_sent_again(autojump_clock: MockClock) -> None:
    first = Head(die_before=True)
    second = Head(forgetful=True)
    client = Client(parts=(b"x" * 60_000,) * (MAX_BODY // 60_000 + 2))
    await Succession(first, second).run(client)
    assert (client.status, client.code) == (503, "head_lost")
    assert client.answered["retry-after"] == "1"
    assert len(first.bodies[0]) > MAX_BODY
    assert not second.bodies


async def test_a_request_that_ends_every_head_is_not_sent_for_ever(
    autojump_clock: MockClock,
) -> None:
    heads = [Head(die_before=True, forgetful=True) for _ in range(9)]
    client = Client()
    await Succession(*heads).run(client)
    assert (client.status, client.code) == (503, "head_lost")
    assert sum(len(head.bodies) for head in heads) == 4


async def test_an_answer_that_the_head_leaves_is_asked_for_again(autojump_clock: MockClock) -> None:
    """As by a head that stops: its link is up for a while."""
    left = False

    async def leaves(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal left
        if left:
            await rest(scope, receive, send)
            return
        left = True
        rest.names.add(dict(scope["headers"])[ANSWER].decode())
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": EVENTS[0], "more_body": True})

    rest = Head()
    for own_first in (False, True):
        left = False
        succession = Succession(rest, own_first=own_first)
        succession.heads[0] = leaves  # type: ignore[call-overload]
        client = Client()
        await succession.run(client)
        assert client.body == b"".join(EVENTS)


async def test_paths_of_fronts_are_not_there_for_clients() -> None:
    for own_first in (True, False):
        head = Head()
        client = Client(path="//_ring/answers/" + "0" * 24, method="GET", parts=(b"",))
        await Succession(head, own_first=own_first).run(client)
        assert (client.status, client.code) == (404, "not_found")
        assert not head.asked


async def test_a_keepalive_counts_as_no_event_in_any_dialect() -> None:
    assert count_events(PING) == 0
    assert count_events(PING + EVENTS[0] + b": keepalive\n\n" + PING + EVENTS[1]) == 2


async def test_an_error_of_the_answer_is_passed_on(autojump_clock: MockClock) -> None:
    """The next head may find that there is none."""

    async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
        error = ApiError(400, "No.", "no")
        await error_response(error, scope["path"])(scope, receive, send)

    succession = Succession(Head(die_before=True), Head())
    succession.heads[1] = refuses  # type: ignore[call-overload]
    client = Client()
    await succession.run(client)
    assert (client.status, client.code) == (400, "no")
