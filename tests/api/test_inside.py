"""What cannot be waited for on a real ring: silences, slow bodies, and how time is shared out."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from sealring.dialects.chat import TextScores
from sealring.dialects.errors import ApiError
from sealring.dialects.replies import KEEPALIVE, scored
from sealring.dialects.schema import ChatRequest, CompletionRequest, read
from sealring.generation.trace import StepParts, Trace, Tracer
from sealring.http import bodies, gate
from sealring.http.bodies import (
    BODY_SECONDS,
    KEEPALIVE_SECONDS,
    Bodies,
    ClientGone,
    EventStream,
    attended,
)
from sealring.http.keys import KEY_FILE, ApiKeys, new_key
from sealring.http.metrics import History, Metrics
from sealring_protocol.codec.local_messages import Logprobs
from sealring_protocol.codec.messages import Decode, Prefill, Spent
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.requests import TokenOut
from sealring_protocol.limits import PING_TIMEOUT
from sealring_trio.node.runtime import AT_ONCE, Stream
from starlette.requests import ClientDisconnect, Request
from trio.testing import MockClock

Receive = Callable[[], Awaitable[dict[str, Any]]]


def request(receive: Receive) -> Request:
    headers = [(b"content-type", b"application/json")]
    return Request({"type": "http", "headers": headers, "method": "POST"}, receive)


async def never() -> dict[str, Any]:
    await trio.sleep_forever()
    raise AssertionError


async def test_a_silent_stream_is_kept_alive(autojump_clock: MockClock) -> None:
    sent: list[tuple[float, bytes]] = []
    began = trio.current_time()

    async def send(message: Any) -> None:
        sent.append((trio.current_time() - began, message.get("body", b"")))

    stream = EventStream(send)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.keep_alive, KEEPALIVE)
        await trio.sleep(0.7 * KEEPALIVE_SECONDS)
        await stream.write(b"data: 1\n\n")
        await trio.sleep(2.5 * KEEPALIVE_SECONDS)
        nursery.cancel_scope.cancel()
    assert [(round(at / KEEPALIVE_SECONDS, 3), body) for at, body in sent] == [
        (0.7, b"data: 1\n\n"),
        (1.7, b": keepalive\n\n"),
        (2.7, b": keepalive\n\n"),
    ]


async def test_work_ends_with_its_client() -> None:
    ended = trio.Event()

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await attended(gone, work)
    assert ended.is_set()


async def test_a_body_that_does_not_arrive(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    with pytest.raises(ApiError) as caught:
        await Bodies().read(request(never), "a")
    assert caught.value.status == 408
    assert trio.current_time() - began == pytest.approx(BODY_SECONDS)


async def test_a_client_that_leaves_while_it_sends() -> None:
    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnect):
        await Bodies().read(request(gone), "a")


async def test_all_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_BODIES", 100)
    shared = Bodies()

    def sends(size: int) -> Request:
        """A request whose body begins with *size* bytes, and has no end."""
        first = iter([{"type": "http.request", "body": b" " * size, "more_body": True}])

        async def receive() -> dict[str, Any]:
            return next(first, None) or await never()

        return request(receive)

    async def is_refused(size: int, owner: str) -> None:
        with pytest.raises(ApiError) as caught:
            await shared.read(sends(size), owner)
        assert (caught.value.status, caught.value.code) == (503, "overloaded")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shared.read, sends(40), "a")
        await trio.testing.wait_all_tasks_blocked()
        await is_refused(11, "a")  # half of it is for others
        nursery.start_soon(shared.read, sends(50), "b")
        await trio.testing.wait_all_tasks_blocked()
        await is_refused(11, "c")
        nursery.start_soon(shared.read, sends(10), "c")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_one_key_leaves_room_for_others(tmp_path: Path) -> None:
    """However few connections the system allows."""
    keys = {name: new_key(tmp_path / KEY_FILE, name) for name in ("alice", "bob")}
    head = MagicMock(keys_needed=True, keys=ApiKeys(tmp_path / KEY_FILE))
    head.generator.draining = False
    held = trio.Event()
    statuses: list[tuple[str, int]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await held.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    passed = gate.Gate(app, head, connections=4)

    async def ask(name: str) -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append((name, message["status"]))

        headers = [(b"authorization", f"Bearer {keys[name]}".encode())]
        about = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/v1/models"}
        await passed({**about, "headers": headers}, never, send)

    async with trio.open_nursery() as nursery:
        for name in ("alice", "alice", "alice", "bob"):
            nursery.start_soon(ask, name)
        await trio.testing.wait_all_tasks_blocked()
        assert statuses == [("alice", 503)]
        held.set()
    assert sorted(statuses[1:]) == [("alice", 200), ("alice", 200), ("bob", 200)]
    await ask("alice")  # has room again
    assert statuses[4:] == [("alice", 200)]


async def test_who_changes_an_unknown_key_keeps_his_account(tmp_path: Path) -> None:
    """One caller's part of a budget binds him, whatever he presents where no key is needed."""
    head = Mock(keys_needed=False, keys=ApiKeys(tmp_path / KEY_FILE))
    head.generator.draining = False
    callers: list[gate.Caller] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        callers.append(scope["state"]["visitor"])

    async def nowhere(message: Any) -> None:
        pass

    known = new_key(tmp_path / KEY_FILE, "alice")
    for host, key in (("127.0.0.1", "a"), ("127.9.9.9", "b"), ("::1", ""), ("10.0.0.1", "a")):
        about = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/v1/models"}
        given = [(b"authorization", f"Bearer {key}".encode())]
        for each in (given, [(b"x-api-key", known.encode())]):
            headers = [(b"host", b"localhost"), *each]
            scope = {**about, "headers": headers, "client": (host, 1)}
            await gate.Gate(app, head)(scope, never, nowhere)
    unknown, keyed = callers[::2], callers[1::2]
    assert len({caller.owner for caller in unknown}) == 3
    assert [caller.account for caller in unknown] == [*["address loopback"] * 3, "address 10.0.0.1"]
    assert {caller.account for caller in keyed} == {keyed[0].owner}


WORDS = st.sampled_from(["", "x", "é", "user", "text", "function", "required", "12"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 65) | st.floats(-3, 3) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "name"]), inner)
    ),
    max_leaves=6,
)
MESSAGES = [{"role": "user", "content": "x"}]


@given(
    st.dictionaries(st.sampled_from(sorted(ChatRequest.model_fields)), VALUES, max_size=4),
    st.dictionaries(st.sampled_from(sorted(CompletionRequest.model_fields)), VALUES, max_size=4),
    st.binary(max_size=20),
)
def test_a_body_is_read_or_refused(chat: dict[str, Any], text: dict[str, Any], junk: bytes) -> None:
    bodies = (
        (ChatRequest, json.dumps({"model": "m", "messages": MESSAGES} | chat).encode()),
        (CompletionRequest, json.dumps({"model": "m", "prompt": "x"} | text).encode()),
        (ChatRequest, junk),
    )
    for kind, body in bodies:
        given = read_or_refusal(kind, body)
        if isinstance(given, ApiError):
            assert given.status == 400
            assert len(gate.error_response(given).body) < 1000
        else:
            assert isinstance(given, kind)


def read_or_refusal(kind: Any, body: bytes) -> Any:
    try:
        return read(kind, body)
    except ApiError as error:
        return error


def parts(total: int, *spent: Spent, closing: Spent | None = None) -> StepParts:
    return StepParts(StepTiming(1, Decode(0), (7,), total, spent, closing or Spent()))


def test_a_sample_has_what_came_since_the_one_before() -> None:
    metrics = Metrics()
    history = History(metrics)
    for n, (work, spent) in enumerate([(Prefill(1, 0, 5), 9), (Decode(0), 20), (Decode(0), 30)]):
        metrics.step(StepTiming(n, work, (1,), 100, (Spent(spent), Spent(spent))))
    metrics.token(0.1, first=True)
    history.sample(Tracer(), 1)
    metrics.step(StepTiming(3, Decode(0), (1,), 100, (Spent(20),)))  # one rank, and no hop
    history.sample(Tracer(), 2)
    told = [(sample.tokens, sample.prompt_tokens, sample.hop_us) for sample in history.samples]
    assert told == [(1, 5, 25.0), (0, 0, None)]


HEAVY = {
    "prompts": b'{"model": "m", "prompt": [' + b"[1]," * 1_000_000 + b"[1]]}",
    "biases": b'{"model": "m", "prompt": "x", "logit_bias": {'
    + b",".join(b'"%dx": "y"' % number for number in range(300_000))
    + b"}}",
}


@pytest.mark.parametrize("body", HEAVY.values(), ids=HEAVY)
def test_a_heavy_body_is_refused_soon(body: bytes) -> None:
    began = time.thread_time()  # whatever else runs on this machine
    with pytest.raises(ApiError) as caught:
        read(CompletionRequest, body)
    assert caught.value.status == 400
    assert time.thread_time() - began < PING_TIMEOUT


def test_log_probabilities_are_numbers() -> None:
    values = (float("nan"), float("-inf"), -1.5)
    told = [TokenOut(1, 7, 0, Logprobs(1, 1, value, (), ())) for value in values]
    columns = TextScores(lambda token: b"x", 20).columns(scored(told))
    assert columns["token_logprobs"] == [-9999.0, -9999.0, -1.5]


async def test_steps_one_after_the_other_are_counted_whole() -> None:
    trace = Trace("x", "chat", "")
    now = trio.current_time()
    ranks = (Spent(3000, 100, 10), Spent(4000, 200, 20))
    for end in (0.02, 0.04):
        trace.step(parts(10_000, *ranks, closing=Spent(500, 0, 5)), now + end)
    phases = trace.phases()
    assert phases["compute"] == [6.0, 8.0]
    assert (phases["sample"], phases["wait"], phases["seal"]) == (1.0, 0.6, 0.07)
    assert phases["hop"] == pytest.approx(2 * (10 - 7.5 - 0.3 - 0.035))


async def test_time_in_which_steps_overlap_counts_once() -> None:
    trace = Trace("x", "chat", "")
    now = trio.current_time()
    trace.step(parts(10_000, Spent(10_000)), now + 0.010)
    # Half of it lay behind the first: 4 ms of that waiting for the device.
    trace.step(parts(10_000, Spent(5_000, 4_000)), now + 0.015)
    phases = trace.phases()
    assert phases["wait"] == pytest.approx(0)
    assert phases["compute"][0] + phases["hop"] == pytest.approx(15)


async def test_tokens_that_have_waited_leave_others_their_turns() -> None:
    """The answers of a request that is told in one piece are taken one after the other: all tokens
    of one were, which held the loop for seconds with log probabilities or many stop strings."""
    stream, turns, taken = Stream(), 0, []
    events = [TokenOut(1, at, at) for at in range(10 * AT_ONCE + 1)]
    for event in events:
        stream.put(event)

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        while len(taken) < len(events):
            some = await stream.take()
            assert len(some) <= AT_ONCE
            taken += some
        nursery.cancel_scope.cancel()
    assert taken == events
    assert turns >= len(events) // AT_ONCE - 1
