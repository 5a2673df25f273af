"""How long a node that stops waits, and for what."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import trio
import trio.testing
from sealring_model import tiny
from sealring_trio.node import generation
from sealring_trio.node.generation import Generator
from sealring_trio.node.trace import Trace


class Ring:
    """A runtime whose ring is down from 0 s until *back*, and serves again from then on."""

    def __init__(self, back: float) -> None:
        self.watchers: list[Any] = []
        self.textless = ""
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
        await generator.drain(30.0)
        took = trio.current_time() - began
    assert bool(trace.given_up) != finishes
    assert took == pytest.approx(20 if finishes else 10, abs=0.1)


async def test_a_stop_does_not_wait_for_a_tokenizer_that_is_still_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk may not answer: nothing can end the thread that reads."""
    reading, answers = trio.Event(), threading.Event()

    def read(model: Path) -> None:
        trio.from_thread.run_sync(reading.set)
        answers.wait(30)

    monkeypatch.setattr(generation, "Tokenizer", read)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Generator(Ring(0), tiny.path()).tokenizer)  # type: ignore[arg-type]
            await reading.wait()
            nursery.cancel_scope.cancel()
    answers.set()
