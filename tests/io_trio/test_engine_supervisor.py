"""The engine's supervisor: what dies is replaced, what hangs is killed, nothing is left behind."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio
from sealring_protocol.codec.local_messages import EngineInfo, LocalMessage
from sealring_protocol.codec.messages import Epoch, Ping, Pong, Progress, StepDone
from sealring_protocol.control.deadlines import FIRST_PAUSE, ThreadUse
from sealring_trio.engine import supervisor
from sealring_trio.engine.supervisor import Engine, EngineCommand, read_usage
from sealring_trio.processes.launcher import NICE, SHORT_NS, slice_ns

from tests.serving import PATIENCE

FAKE = "tests.io_trio.engine_child"

ON_LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not tell how long threads wait"
)


class Owner:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.send, self.told = trio.open_memory_channel[LocalMessage | str](10_000)
        self.see, self.seen = trio.open_memory_channel[tuple[float, float]](10_000)

    def engine_message(self, message: LocalMessage) -> None:
        self.send.send_nowait(message)

    def engine_starved(self, seconds: float) -> None:
        self.see.send_nowait((trio.current_time(), seconds))

    def engine_lost(self, reason: str) -> None:
        self.send.send_nowait(reason)


@asynccontextmanager
async def running(mode: str) -> AsyncIterator[tuple[Engine, Owner]]:
    owner = Owner()
    engine = Engine(EngineCommand(FAKE, (mode,)), owner)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            yield engine, owner
            nursery.cancel_scope.cancel()


async def test_messages_go_both_ways_and_large_ones_too() -> None:
    async with running("good") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        pid = engine.pid or 0
        for echo in range(3000):  # more than a socket's buffer holds
            engine.send(Ping(echo, Progress()))
        for echo in range(3000):
            assert await owner.told.receive() == Pong(echo, Progress(memory=pid))
    assert not psutil.pid_exists(pid)


async def test_an_engine_gives_way_to_its_node() -> None:
    async with running("good") as (engine, owner):
        await owner.told.receive()
        process = psutil.Process(engine.pid)
        if slice_ns() == SHORT_NS:  # a node that another test ran in this process has asked for it
            assert slice_ns(engine.pid) > SHORT_NS
            return
        assert process.nice() == min(19, psutil.Process().nice() + NICE)
        group = trio.Path(f"/proc/{engine.pid}/autogroup")
        if await group.exists():
            assert (await group.read_text()).endswith(f"nice {NICE}\n")


LOSSES = {
    "crash": "it exited with code 3",
    "noise": "it broke the local protocol (frame version 255; this is version 1)",
    "network": "it broke the local protocol (a frame of kind 2 is not taken here)",
}


@pytest.mark.parametrize(("mode", "reason"), LOSSES.items(), ids=LOSSES)
async def test_a_lost_engine_is_told_of_and_replaced(mode: str, reason: str) -> None:
    async with running(mode) as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        first = engine.pid
        engine.send(Ping(0, Progress()))
        assert await owner.told.receive() == reason
        assert isinstance(await owner.told.receive(), EngineInfo)
        assert engine.pid != first
        assert engine.restarts == 1


@pytest.mark.parametrize(("mode", "kept"), [("crash", True), ("faults", False)])
async def test_kernels_that_an_engine_may_have_died_of_are_compiled_again(
    mode: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose middle is lost looks whole, and would have each engine die."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel = tmp_path / "sealring" / "kernels" / "mlx" / "0" / "cpu" / "kernel.so"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"\x7fELF")
    async with running(mode) as (engine, owner):
        await owner.told.receive()
        engine.send(Ping(0, Progress()))
        assert isinstance(await owner.told.receive(), str)
        assert kernel.exists() == kept


async def test_an_engine_that_is_replaced_on_purpose_is_no_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running("hang") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        first = engine.pid
        with caplog.at_level(logging.INFO, "sealring.engine"):
            engine.restart("its collective is over", planned=True)
            assert await owner.told.receive() == "its collective is over"
            assert isinstance(await owner.told.receive(), EngineInfo)
        assert engine.pid != first
        assert engine.restarts == 0
    (told,) = caplog.records
    assert told.levelno == logging.INFO
    assert "ended" not in told.getMessage()


async def test_a_hung_engine_is_killed_when_the_node_says_so() -> None:
    async with running("hang") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        first = engine.pid or 0
        engine.send(Ping(0, Progress()))
        engine.restart("it has not answered its step")
        assert await owner.told.receive() == "it has not answered its step"
        assert not psutil.pid_exists(first)
        assert isinstance(await owner.told.receive(), EngineInfo)


async def test_a_stopped_engine_is_killed_whatever_it_owes() -> None:
    async with running("good") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        first = engine.pid or 0
        psutil.Process(first).suspend()
        assert "it was stopped" in str(await owner.told.receive())
        assert not psutil.pid_exists(first)
        assert isinstance(await owner.told.receive(), EngineInfo)


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), psutil.AccessDenied()])
async def test_who_cannot_look_at_an_engine_looks_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = trio.Event()
    status = psutil.Process.status

    def cannot(process: psutil.Process) -> str:
        if looked.is_set():
            return status(process)
        looked.set()
        raise error

    monkeypatch.setattr(psutil.Process, "status", cannot)
    async with running("good") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        await looked.wait()
        engine.send(Ping(7, Progress()))
        assert isinstance(await owner.told.receive(), Pong)
        psutil.Process(engine.pid).suspend()
        assert "it was stopped" in str(await owner.told.receive())


async def test_a_mute_engine_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "START_TIMEOUT", 0.5)
    async with running("mute") as (_, owner):
        assert str(await owner.told.receive()).startswith("it said nothing for 0 s")


async def test_pauses_grow_while_engines_die_young(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep_until(deadline: float) -> None:
        pauses.append(round(deadline - trio.current_time(), 3))

    monkeypatch.setattr(supervisor.trio, "sleep_until", sleep_until)
    monkeypatch.setattr(Engine, "_one_life", _short_life)
    engine = Engine(EngineCommand(FAKE, ("good",)), Owner())
    with trio.move_on_after(60):
        await engine.run()
    assert pauses[:5] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert max(pauses) == supervisor.LONGEST_PAUSE


async def test_an_engine_that_has_worked_is_replaced_at_once(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever kills it is no fault of its start, and earlier deaths are no matter."""
    lives: list[float] = []

    async def working_life(self: Engine) -> str:
        lives.append(trio.current_time())
        if len(lives) > 4:
            for n in range(supervisor.PROVEN):
                self._hear(StepDone(Epoch(1, 1), n + 1))
        return await _short_life(self)

    monkeypatch.setattr(Engine, "_one_life", working_life)
    with trio.move_on_after(600):
        await Engine(EngineCommand(FAKE, ("good",)), Owner()).run()
    pauses = [after - before for before, after in itertools.pairwise(lives)]
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert pauses[4:] == pytest.approx([FIRST_PAUSE] * len(pauses[4:]))
    assert len(pauses) > 8


async def _short_life(self: Engine) -> str:
    await trio.lowlevel.checkpoint()
    if self.restarts > 12:
        await trio.sleep_forever()
    return "it was born to die"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does this on Linux alone")
def test_a_child_that_ignores_its_stream_dies_with_its_daemon() -> None:
    program = (
        "import trio\n"
        "from sealring_trio.engine.supervisor import Engine\n"
        "from sealring_trio.engine.supervisor import EngineCommand\n"
        "class Owner:\n"
        "    def engine_message(self, message): print(engine.pid, flush=True)\n"
        "    def engine_lost(self, reason): pass\n"
        "    def engine_starved(self, seconds): pass\n"
        "async def run():\n"
        "    global engine\n"
        f"    engine = Engine(EngineCommand({FAKE!r}, ('orphan',)), Owner())\n"
        "    await engine.run()\n"
        "trio.run(run)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    ) as daemon:
        assert daemon.stdout is not None
        child = psutil.Process(int(daemon.stdout.readline()))
        daemon.kill()
    _, alive = psutil.wait_procs([child], timeout=PATIENCE)
    assert not alive


# -------------------------------------------------------------- a processor that others take

HOG = "while True: pass"


HOGS = 4


@pytest.fixture
def hogs() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that keep one processor busy. Each has a session of its own: where Linux shares
    processors among sessions, one of them would leave an engine half of its processor."""
    processor = max(psutil.Process().cpu_affinity())
    command = [sys.executable, "-c", HOG]
    processes = [subprocess.Popen(command, start_new_session=True) for _ in range(HOGS)]
    for process in processes:
        os.sched_setaffinity(process.pid, {processor})
    yield processes
    end(processes)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def starve(engine: Engine, hogs: list[subprocess.Popen[bytes]]) -> None:
    """Have *engine* run only when *hogs* do not, on the same processor."""
    assert engine.pid is not None
    for thread in psutil.Process(engine.pid).threads():
        os.sched_setaffinity(thread.id, os.sched_getaffinity(hogs[0].pid))
        os.sched_setscheduler(thread.id, os.SCHED_IDLE, os.sched_param(0))


def release(engine: Engine, hogs: list[subprocess.Popen[bytes]]) -> None:
    """End *hogs*, and let *engine* run as it did, or what else runs here would starve it on."""
    end(hogs)
    assert engine.pid is not None
    for thread in psutil.Process(engine.pid).threads():
        os.sched_setaffinity(thread.id, os.sched_getaffinity(0))
        with contextlib.suppress(PermissionError):  # a user may have no way back
            os.sched_setscheduler(thread.id, os.SCHED_OTHER, os.sched_param(0))


async def starved(owner: Owner, *, much: bool) -> None:
    """Wait until five looks in a row say that the engine starved for more than half of the time,
    or, if not *much*, for less than a tenth."""
    looks = [await owner.seen.receive()]
    while True:
        looks.append(await owner.seen.receive())
        (began, before), (ended, after) = looks[-6:][0], looks[-1]
        part = (after - before) / (ended - began)
        if len(looks) > 5 and (part > 0.5 if much else part < 0.1):
            return


@pytest.mark.slow
@ON_LINUX
async def test_a_starved_engine_is_seen_to_starve(hogs: list[subprocess.Popen[bytes]]) -> None:
    async with running("computes") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        starve(engine, hogs)
        engine.send(Ping(1, Progress()))
        await starved(owner, much=True)
        release(engine, hogs)
        assert isinstance(await owner.told.receive(), Pong)
        assert engine.restarts == 0


@pytest.mark.slow
@ON_LINUX
async def test_an_engine_that_hangs_on_a_busy_machine_is_not(
    hogs: list[subprocess.Popen[bytes]],
) -> None:
    async with running("hang") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        engine.send(Ping(1, Progress()))
        starve(engine, hogs)
        await starved(owner, much=False)
        assert engine.restarts == 0


@pytest.mark.slow
@ON_LINUX
async def test_an_engine_that_starves_may_take_longer_to_begin(
    hogs: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "START_TIMEOUT", 3.0)
    async with running("begins") as (engine, owner):
        await owner.seen.receive()
        starve(engine, hogs)
        began = trio.current_time()
        while trio.current_time() < began + 5:
            await owner.seen.receive()
        assert engine.restarts == 0
        release(engine, hogs)
        assert isinstance(await owner.told.receive(), EngineInfo)


def test_a_process_that_is_gone_tells_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert read_usage(process.pid) is None


def test_a_system_that_does_not_count_tells_nothing(tmp_path: Path) -> None:
    """Linux without CONFIG_SCHEDSTATS says 0 of all, and whoever ran seemed to starve."""
    stat = "7 (a (b) c) R " + " ".join(["0"] * 20)
    for folder in (tmp_path / "7", tmp_path / "7" / "task" / "7"):
        folder.mkdir(parents=True)
        (folder / "stat").write_text(stat)
    (folder / "schedstat").write_text("0 0 0\n")
    assert read_usage(7, tmp_path) is None
    (folder / "schedstat").write_text("1000000000 2000000000 5\n")
    usage = read_usage(7, tmp_path)
    assert usage is not None
    assert usage.threads == {7: ThreadUse(1.0, 2.0, ready=True)}
