"""How long a node that stops waits, and for what."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import trio
import trio.testing
from sealring_model import tiny
from sealring_trio.node.generation import Generator
from sealring_trio.node.trace import Trace


class Ring:
    """A runtime whose ring is down from 0 s until *back*, and serves again from then on."""

    def __init__(self, back: float) -> None:
        self.watchers: list[Any] = []
        self.guard = MagicMock()
        self.node = MagicMock()
        brain = type(self.node.brain)
        brain.serving = property(lambda _: trio.current_time() >= began + back)
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
    assert trace.withdrawn != finishes
    assert took == pytest.approx(20 if finishes else 10, abs=0.1)


async def test_a_stop_does_not_wait_for_a_tokenizer_that_is_still_read(tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny.path(), tmp_path / "model"))
    rules = model / "tokenizer.json"
    rules.unlink()
    os.mkfifo(rules)  # a disk that does not answer

    def answer() -> None:
        with rules.open("r+b", buffering=0):
            pass

    later = threading.Timer(5, answer)
    later.start()
    with trio.move_on_after(0.5) as stopped:
        await Generator(Ring(0), model).tokenizer()  # type: ignore[arg-type]
    assert stopped.cancelled_caught
    later.cancel()
    answer()
