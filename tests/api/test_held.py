"""What an answer holds of the head's memory while it is made."""

from __future__ import annotations

import gc
import json
import tracemalloc
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import trio
from sealring_model import tiny
from sealring_protocol.codec.local_messages import Logprobs
from sealring_protocol.control.scheduler.requests import TokenOut
from sealring_trio.api import head
from sealring_trio.api.anthropic_shape import MessageShape
from sealring_trio.api.chat import ChatShape
from sealring_trio.api.choices import Delta, Finish
from sealring_trio.api.completions import TextShape
from sealring_trio.api.errors import ApiError
from sealring_trio.api.gate import Caller
from sealring_trio.api.generate import Generate
from sealring_trio.api.head import LARGE, ApiHead, Holding
from sealring_trio.api.kinds import CompletionKind
from sealring_trio.api.parsing import Content
from sealring_trio.api.replies import About, Envelope, Shape
from sealring_trio.api.responses_shape import ResponseShape, Wanted
from sealring_trio.api.schema import ChatOptions, CompletionOptions
from sealring_trio.node.generation import Generator
from sealring_trio.node.request_stream import Stream, size_of
from sealring_trio.node.trace import Trace
from sealring_trio.text.parsed import ID, ParsedRequest
from sealring_trio.text.shared_budget import SharedBudget

from tests.api.conftest import Served
from tests.attacks.test_floods import at_work

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MOST = 20
TOKENS = 2000
ABOUT = About("a", 0, "m", "f", Trace("a", "chat", "", began=0.0))


def bytes_of(token: int) -> bytes:
    return b" word%d" % (token % 1000)


def chat(*, stream: bool) -> Shape:
    envelope = Envelope(ABOUT, "c", "c", ChatOptions(model="m", stream=stream))
    return ChatShape(envelope, 1, bytes_of, MOST, None)


def text(*, stream: bool) -> Shape:
    envelope = Envelope(ABOUT, "c", "c", CompletionOptions(model="m", stream=stream))
    return TextShape(envelope, [""], bytes_of, MOST, [])


def messages(*, stream: bool) -> Shape:
    return MessageShape(ABOUT, 1, None, streamed=stream)


def responses(*, stream: bool) -> Shape:
    return ResponseShape(ABOUT, Wanted(b'{"x":1}', {}, False), bytes_of, None, MOST)


def filled(shape: Shape) -> int:
    """Bytes by which the process grows when *shape* has `TOKENS` tokens."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for at in range(TOKENS):
            values = tuple(-0.123456789 * (each + 1 + at) for each in range(MOST))
            likely = Logprobs(1, 1, values[0], tuple(range(at, at + MOST)), values)
            token = TokenOut(1, at, at, likely)
            for event in shape.add(Delta(0, (Content(" word"),), (token,))):
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
    shape.add(Delta(0, (), (), finish=Finish("length")))
    json.loads(b"".join(shape.whole(ABOUT.trace)))


def test_what_is_held_grows_within_the_caller_s_half() -> None:
    budget = SharedBudget(20 * LARGE)
    one, other = Holding(budget, "a"), Holding(budget, "a")
    for _ in range(10):
        one.grow(LARGE)
    one.grow(-LARGE)
    one.grow(LARGE)
    other.grow(LARGE - 1)  # small ones never count
    with pytest.raises(ApiError) as caught:
        other.grow(1)
    assert (caught.value.status, caught.value.code) == (503, "overloaded")
    Holding(budget, "b").grow(10 * LARGE)
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
        scope = {"type": "http", "method": "POST", "headers": headers, "state": state}

        def submitted(*asked: Any) -> Any:
            seen.append(turns)
            return submit(*asked)

        async def receive() -> Any:
            return next(bodies, None) or await trio.sleep_forever()

        async def ask() -> None:
            await Generate(api, CompletionKind())(scope, receive, AsyncMock())

        monkeypatch.setattr(node.runtime, "submit", submitted)
        monkeypatch.setattr(generator, "parse", AsyncMock(return_value=parsed))
        monkeypatch.setattr(ApiHead, "check_serving", lambda _: None)
        await generator.tokenizer()
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
