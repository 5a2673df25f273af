"""How long a node that stops waits, and for what."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import MagicMock

import pytest
import trio
import trio.testing
from sealring.generation.generation import Generator
from sealring.generation.trace import Trace
from sealring.service.requests import Requests
from sealring_model import tiny


class Ring:
    """A runtime whose ring is down from 0 s until *back*, and serves again from then on."""

    def __init__(self, back: float) -> None:
        self.watchers: list[Any] = []
        self.textless = str
        self.node = MagicMock()
        type(self.node).serving = property(lambda _: trio.current_time() >= began + back)
        began = trio.current_time()


@pytest.mark.parametrize(("back", "finishes"), [(8, True), (1000, False)])
async def test_requests_that_a_fault_holds_up_may_finish(
    autojump_clock: trio.testing.MockClock, back: float, finishes: bool
) -> None:
    """An epoch that a fault ended begins anew within seconds. A ring that was stopped as a whole
    does not, and nobody waits 30 s for it."""
    generator = Generator(Ring(back), tiny.path())  # type: ignore[arg-type]
    trace = Trace("one", "chat", "")
    generator.tracer.begin(trace)
    began = trio.current_time()

    async def answer() -> None:
        await trio.sleep(20)
        generator.tracer.end(trace, "stop")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await generator.drain(30.0, "the head is shutting down")
        took = trio.current_time() - began
    assert bool(trace.given_up) != finishes
    assert took == pytest.approx(20 if finishes else 10, abs=0.1)


async def test_what_was_given_up_is_not_waited_for_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its client may never take its answer."""
    generator = Generator(Ring(0), tiny.path())  # type: ignore[arg-type]
    trace = Trace("one", "chat", "")
    generator.tracer.begin(trace)
    began = trio.current_time()
    await generator.end("rank1 has ended")
    assert trio.current_time() - began == pytest.approx(2, abs=0.1)
    assert (trace.given_up, generator.leaving) == ("rank1 has ended", "this node is shutting down")
    await generator.end("another reason")
    await generator.drain(30.0, "the head is shutting down")
    assert trio.current_time() - began == pytest.approx(2, abs=0.1)
    assert trace.given_up == "rank1 has ended"


async def test_a_tokenizer_that_cannot_be_loaded_is_known_at_once() -> None:
    """Between the end of loading and that, the node would be taken for one that answers."""
    generator = Generator(Ring(0), tiny.path())  # type: ignore[arg-type]
    told = generator.runtime
    assert (told.text_loading(), told.textless()) == (True, "")
    generator.texts.unloadable = "the tokenizer cannot be loaded"
    assert (told.text_loading(), told.textless()) == (False, "the tokenizer cannot be loaded")


async def test_a_reason_is_one_line_and_no_longer_than_one_reads(
    autojump_clock: trio.testing.MockClock,
) -> None:
    generator = Generator(Ring(0), tiny.path())  # type: ignore[arg-type]
    generator.runtime.node.rank = 0
    trace = Trace("one", "chat", "")
    generator.tracer.begin(trace)
    replies: list[dict[str, Any]] = []

    async def reply(event: dict[str, Any]) -> None:
        replies.append(event)

    asked = json.dumps({"why": "\x1b[31mred\r\nand more" + "!" * 5000}).encode()
    await Requests(generator).answer("end", asked, reply)
    assert trace.given_up.startswith(" [31mred  and more!")
    assert len(trace.given_up) == 1000
    assert not replies
