"""A runtime whose node stops being the head while requests are under way."""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import attrs
import pytest
import sealring_model
import trio
import trio.testing
from sealring.cli.up import run_node
from sealring.dialects.errors import ApiError
from sealring.files.config import load_config
from sealring.generation.generation import Generator, Job
from sealring.generation.status import ENOUGH, describe_paces, hop_quantiles
from sealring.generation.trace import Trace
from sealring.http.head import ApiHead
from sealring.local.ring import write_cluster
from sealring.service.requests import Requests
from sealring_model import tiny
from sealring_model.text.tokens import Tokenizer
from sealring_protocol.codec.messages import (
    NEWEST_STEPS,
    OLDEST_STEPS,
    Backend,
    Bootstrap,
    Decode,
    Epoch,
    Row,
    Spent,
)
from sealring_protocol.control.effects import Level, Note, StepTiming, ToEngine
from sealring_protocol.control.head.epochs import RING_READY
from sealring_protocol.control.requests import FinishReason, Request, RequestDone
from sealring_protocol.diagnosis import Cause
from sealring_protocol.limits import MAX_IDS
from sealring_protocol.node import Node
from sealring_protocol.security.roster import sign_roster
from sealring_trio.engine.supervisor import pack
from sealring_trio.errors import OperationError
from sealring_trio.node.runtime import NodeClock, Runtime
from sealring_trio.node.service import build_number, this_build

from tests.attacks.test_floods import at_work
from tests.serving import PATIENCE
from tests.sim.rosters import COORDINATOR


async def test_requests_finish_before_another_member_becomes_the_head() -> None:
    async with at_work() as head, trio.open_nursery() as nursery:
        runtime = head.runtime
        generator = Generator(runtime, tiny.path())
        runtime.giving_way = partial(generator.giving_way, 30.0)
        trace = Trace("one", "chat", "")
        generator.tracer.begin(trace)
        roster = head.roster.roster
        turned = attrs.evolve(roster, serial=2, members=roster.members[::-1])
        asked = json.dumps({"roster": sign_roster(turned, COORDINATOR).encode().hex()}).encode()
        told: list[dict[str, Any]] = []
        waits = trio.Event()

        async def reply(event: dict[str, Any]) -> None:
            told.append(event)
            waits.set()

        nursery.start_soon(Requests(generator).answer, "roster", asked, reply)
        await waits.wait()
        name = turned.members[0].name
        why = f"roster 2 makes {name} the head; ask there"
        assert told[0]["text"].startswith(f"{why}: it finishes 1 request, for ")
        assert runtime.node.rank == 0
        assert generator.draining
        assert generator.obstacles()[0].cause is Cause.DRAINING
        with pytest.raises(OperationError, match=why):
            await Requests(generator).answer("generate", b'{"prompt": "x"}', reply)
        generator.tracer.end(trace, "stop")
        while told[-1]["event"] != "done":
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert runtime.node.rank == 1
        assert not trace.given_up
        assert not generator.draining


def test_time_goes_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is woken: its timers go on where they were, and what is due is found so by
    whatever happens next."""
    slept = 0.0
    read = NodeClock.current_time
    counts = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
    assert abs(read() - time.clock_gettime(counts)) < PATIENCE
    monkeypatch.setattr(NodeClock, "current_time", lambda _: read() + slept)

    async def main() -> float:
        nonlocal slept
        began = trio.current_time()
        with trio.move_on_after(3600) as hour:
            slept = 3601.0
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        assert hour.cancelled_caught
        await trio.sleep(0.001)
        return trio.current_time() - began

    assert 3601 < trio.run(main, clock=NodeClock()) < 3601 + PATIENCE


def test_a_node_runs_by_that_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Mock()
    monkeypatch.setattr(trio, "run", run)
    for module, name in ((signal, "signal"), (faulthandler, "enable")):
        monkeypatch.setattr(module, name, Mock())  # they are this process's
    (config,) = write_cluster(tmp_path, 1, tiny.path())
    run_node(load_config(config))
    assert isinstance(run.call_args.kwargs["clock"], NodeClock)


def test_a_checkout_says_its_release_and_which_sources_it_has() -> None:
    release, _, sources = this_build().version.partition("+")
    assert release == version("sealring-trio")
    assert sources == f"{build_number():016x}"[:8]
    assert this_build().steps == range(OLDEST_STEPS, NEWEST_STEPS + 1)


def test_a_build_is_told_by_the_sources_of_what_does_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build_number() == build_number.__wrapped__() != 0
    source = tmp_path / "steps.py"
    source.write_text("before")
    monkeypatch.setattr(sealring_model, "__path__", [str(tmp_path)])
    before = build_number.__wrapped__()
    source.write_text("after!")
    assert build_number.__wrapped__() not in (before, 0)


async def test_an_answer_that_reaches_its_end_on_a_former_head_is_no_error() -> None:
    """A stop string is found in tokens that wait to be read; the roster has ended the request."""
    async with at_work() as head:
        uid, stream = head.runtime.submit(
            Request((4, 5, 6), 5, frozenset(), Row(0)), lambda _: None
        )
        roster = head.roster.roster
        turned = attrs.evolve(roster, serial=2, members=roster.members[::-1])
        await head.runtime.install(sign_roster(turned, COORDINATOR).encode())
        assert head.runtime.node.rank == 1
        with trio.fail_after(PATIENCE):
            (done,) = await stream.take()
        assert isinstance(done, RequestDone)
        assert done.reason is not FinishReason.STOP
        head.runtime.finish(uid)
        head.runtime.forget(uid)


async def test_a_request_that_fails_as_it_is_submitted_leaves_nothing_behind() -> None:
    async with at_work() as head:
        runtime = head.runtime
        generator = Generator(runtime, tiny.path())
        words, trace = Tokenizer(tiny.path()).words, Trace("one", "chat", "")
        job = Job(Request((4, 5, 6), 5))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runtime, "drafts", Mock(begin=Mock(side_effect=MemoryError)))
            with pytest.raises(MemoryError), generator.answering(words, job, trace):
                pass
        assert generator.tracer.rows(trace) == []
        assert runtime.node.standing().requests == 0
        with generator.answering(words, job, trace) as answer:
            assert generator.tracer.rows(trace) == [answer.uid]
        assert generator.tracer.rows(trace) == []


async def test_what_cannot_be_said_to_the_engine_ends_the_engine_and_not_the_node() -> None:
    async with at_work() as head:
        runtime = head.runtime
        engine = Mock(out_of_memory=False, send=lambda message: pack(message) and None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runtime, "engine", engine)
            runtime.node.next_event()
            wrong = ToEngine(Row(1, history=(7,) * (MAX_IDS + 1)))
            patch.setattr(runtime.node, "next_event", Mock(side_effect=[wrong, None]))
            runtime.carry_out_and_flush()
        why = f"it could not be sent a Row: {MAX_IDS + 1} token ids; the limit is {MAX_IDS}"
        engine.restart.assert_called_once_with(why)


async def test_the_times_of_steps_are_those_of_the_present_ranks_and_layers() -> None:
    alone = StepTiming(1, Decode(0), (1,), 900, (Spent(compute_us=800),))
    order = Bootstrap(Epoch(2, 7), Backend.PIPELINE, 0, True, 1000, bytes(32), (0, 1, 2))
    async with at_work() as head:
        runtime = head.runtime
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runtime, "engine", Mock())
            events = [*[alone] * ENOUGH, None, ToEngine(order), None]
            patch.setattr(runtime.node, "next_event", Mock(side_effect=events))
            runtime.carry_out_and_flush()
            assert describe_paces(runtime.timings)["decode_us"] == {"1": [800]}
            runtime.carry_out_and_flush()
            assert describe_paces(runtime.timings)["decode_us"] == {}
            assert hop_quantiles(runtime) is None


def say_ready(runtime: Runtime) -> None:
    """Have the core of *runtime*'s node say that every rank is ready in epoch 3."""
    note = Note(Level.INFO, f"{RING_READY}: epoch 3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.node, "next_event", Mock(side_effect=[note, None]))
        runtime.carry_out_and_flush()


async def test_a_ring_is_said_to_be_ready_once_the_tokenizer_is_loaded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "sealring")
    async with at_work() as head, trio.open_nursery() as nursery:
        runtime = head.runtime
        generator = Generator(runtime, tiny.path())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Node, "serving", True)
            say_ready(runtime)
            (line,) = (line for line in caplog.messages if "epoch 3" in line)
            assert line == "all ranks are ready: epoch 3; but the tokenizer is still being loaded"
            nursery.start_soon(generator.texts.serve)
            with trio.fail_after(PATIENCE):
                await generator.warm_up()
            assert caplog.messages[-1].startswith(f"{RING_READY}: epoch ")
            caplog.clear()
            say_ready(runtime)
            assert caplog.messages == [f"{RING_READY}: epoch 3"]
            caplog.clear()
            await generator.drain(0.0, "the head is shutting down")
            say_ready(runtime)
            assert caplog.messages == [
                "all ranks are ready: epoch 3; but this node is shutting down"
            ]
        nursery.cancel_scope.cancel()


async def test_a_tokenizer_whose_worker_could_not_be_started_is_loaded_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Otherwise the node would say for ever that it is loading, and nobody would be."""
    async with at_work() as head, trio.open_nursery() as nursery:
        generator = Generator(head.runtime, tiny.path())
        with pytest.MonkeyPatch.context() as patch:
            fails = Mock(side_effect=[OperationError("no text worker starts", "")] * 3 + [None])
            patch.setattr(generator, "vocabulary", AsyncMock(side_effect=fails))
            await generator.warm_up()
        assert fails.call_count == 4
        assert generator.obstacles()[0].cause is Cause.TOKENIZER_LOADING
        nursery.cancel_scope.cancel()


async def test_a_former_head_says_whom_to_ask_wherever_it_is_asked() -> None:
    """Its API may still have connections while its port closes."""
    async with at_work() as head:
        generator = Generator(head.runtime, tiny.path())
        api = ApiHead(generator, Mock(api=None), "tiny", Mock())
        assert [why["cause"] for why in api.why()] == ["tokenizer_loading", "no_address"]
        roster = head.roster.roster
        turned = attrs.evolve(roster, serial=2, members=roster.members[::-1])
        await head.runtime.install(sign_roster(turned, COORDINATOR).encode())
        (why,) = api.why()
        text = f"This node is rank 1; ask the head, {turned.members[0].name}."
        assert (why["cause"], why["text"]) == ("not_head", text)
        with pytest.raises(ApiError, match="ask the head"):
            api.check_serving()
