"""Engines: what they are sent has a bound, what cannot start is tried again, none can be read."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import psutil
import pytest
import trio
from sealring_protocol.codec.encoding import encode
from sealring_protocol.codec.local_messages import (
    EngineInfo,
    HopKey,
    Loaded,
    Logprobs,
    RowReady,
)
from sealring_protocol.codec.messages import (
    CacheCost,
    Epoch,
    Ping,
    Pong,
    Progress,
    Ready,
    Row,
    StepDone,
)
from sealring_protocol.control import deadlines
from sealring_protocol.control.head.head import Head
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import Request
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import MAX_ROWS
from sealring_trio.collective.loopback import ConnectionOwner, made
from sealring_trio.engine.group import MAX_AHEAD, EngineGroup, GroupBroken, GroupSettings, Merger
from sealring_trio.engine.supervisor import MAX_UNTAKEN, Engine, EngineCommand
from sealring_trio.processes.launcher import KILLED_BEFORE

from tests.io_trio.engine_child import INFO
from tests.io_trio.test_engine_supervisor import FAKE, Owner, running
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import info

EPOCH: Final = Epoch(7, 1)
U64: Final = (1 << 64) - 1

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="it looks with Linux's means")


async def test_an_engine_that_takes_nothing_is_ended_before_it_fills_its_node() -> None:
    async with running("hang") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        first = engine.pid
        engine.send(Ping(0, Progress()))
        large = Row(1, history=(7,) * (1 << 20))  # 4 MiB
        before = psutil.Process().memory_info().rss
        for _ in range(3 * (MAX_UNTAKEN >> 22)):
            engine.send(large)
            await trio.lowlevel.checkpoint()
        grown = psutil.Process().memory_info().rss - before
        assert grown < 2 * MAX_UNTAKEN
        assert "of what it was sent untaken" in str(await owner.told.receive())
        assert isinstance(await owner.told.receive(), EngineInfo)
        assert engine.pid != first


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="no real-time signals here")
async def test_an_engine_that_a_signal_without_a_name_ends_is_replaced() -> None:
    async with running("good") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        number = signal.SIGRTMIN + 3
        os.kill(engine.pid or 0, number)
        assert await owner.told.receive() == f"it was ended by signal {number}"
        assert isinstance(await owner.told.receive(), EngineInfo)


# ------------------------------------------------------- an engine that says anything


@pytest.mark.parametrize("size", ["hidden", "vocabulary", "context", "layers"])
def test_an_engine_of_a_model_without_a_size_breaks_its_protocol(size: str) -> None:
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.ready)
    cluster.head.node.engine_lost("it was taken over", cluster.now)
    nothing: Any = () if size == "layers" else 0
    with pytest.raises(RemoteProtocolError):  # which ends that engine
        cluster.head.node.engine_message(attrs.evolve(info(), **{size: nothing}), cluster.now)
    cluster.kill_engine(cluster.head)
    cluster.submit(Request((4, 5, 6), 5))
    cluster.run_until(lambda: cluster.all_done)


@pytest.mark.parametrize("strategy", [Strategy.PIPELINE, Strategy.TENSOR])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_engine_says_once_what_its_model_is(strategy: Strategy, rank: int) -> None:
    cluster = Cluster(2, 1, strategy=strategy, splits=12)
    cluster.run_until(lambda: cluster.ready)
    host = cluster.hosts[f"host{rank}"]
    for again in (info(splits=12), info(splits=12, context=5)):
        with pytest.raises(RemoteProtocolError, match="a second time"):
            host.node.engine_message(again, cluster.now)
    cluster.kill_engine(host)
    cluster.submit(Request((4, 5, 6), 5))
    cluster.run_until(lambda: cluster.all_done)


def test_log_probabilities_that_nobody_asked_for_are_not_kept() -> None:
    cluster = Cluster(1, 1)
    cluster.run_until(lambda: cluster.ready)
    brain = cluster.head.node._brain
    assert isinstance(brain, Head)
    for n in range(10_000):
        cluster.head.node.engine_message(Logprobs(n, n % 7, -1.0), cluster.now)
    assert not brain._steps._logprobs


def test_members_of_a_group_are_not_kept_waiting_without_end() -> None:
    progress = Progress(memory=U64)
    for message, most in [
        (StepDone(EPOCH, 5, ids=(7,)), MAX_AHEAD),
        (Loaded(1, 1, 1), MAX_AHEAD),
        (RowReady(EPOCH, 7), MAX_ROWS),
    ]:
        merger = Merger(2)
        for _ in range(most):
            assert merger.add(1, message) is None
        with pytest.raises(GroupBroken, match="says more than it was asked"):
            merger.add(1, message)
    merger = Merger(2)
    for echo in range(3 * MAX_AHEAD):  # while the other one loads
        assert merger.add(1, Pong(echo, progress)) is None
    assert sum(map(len, (said for lane in merger._lanes for said in lane))) == 1


@pytest.mark.parametrize(
    "message",
    [Ping(0, Progress()), Row(1), HopKey(True, 1, bytes(32), bytes(32))],
    ids=lambda message: type(message).__name__,
)
def test_a_member_that_says_what_an_engine_does_not_breaks_its_group(message: Any) -> None:
    with pytest.raises(GroupBroken, match="an engine does not say"):
        Merger(2).add(0, message)


def test_a_row_is_ready_once_it_is_with_every_member() -> None:
    merger = Merger(2)
    for uid, first, second in [(7, "", ""), (8, "", "slow"), (7, "slow", "")]:
        assert merger.add(0, RowReady(EPOCH, uid, first)) is None
        assert merger.add(1, RowReady(EPOCH, uid, second)) == RowReady(EPOCH, uid, first or second)
    merger.add(0, RowReady(EPOCH, 7))
    with pytest.raises(GroupBroken, match="did not prepare the same row"):
        merger.add(1, RowReady(EPOCH, 8))


def test_what_members_say_adds_up_to_what_can_be_told() -> None:
    cost = CacheCost(U64, U64, ((16, U64),))
    ready = Ready(EPOCH, 0, 2, True, U64, cost)
    for message in (Pong(0, Progress(memory=U64, cache=U64)), ready, attrs.evolve(INFO, room=U64)):
        merger = Merger(2)
        assert merger.add(0, message) is None
        merged = merger.add(1, message)
        assert merged is not None
        assert encode(merged)


# ------------------------------------------------------------------- a start that fails


@pytest.fixture
def no_descriptor() -> Iterator[list[int]]:
    """Every file descriptor that this process may have is taken, until what is given is closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 64, hard))
    taken: list[int] = []
    try:
        yield taken
    finally:
        _free(taken)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _take_all(taken: list[int]) -> None:
    while True:
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            return


def _free(taken: list[int]) -> None:
    while taken:
        os.close(taken.pop())


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("left", [0, 1, 3])
async def test_an_engine_that_finds_no_descriptor_is_started_once_there_is_one(
    members: int, left: int, no_descriptor: list[int]
) -> None:
    owner = Owner()
    command = EngineCommand(FAKE, ("good",))
    engine = (
        Engine(command, owner)
        if members == 1
        else EngineGroup(command, owner, GroupSettings(members))
    )
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await trio.lowlevel.checkpoint()
            _take_all(no_descriptor)
            for _ in range(left):
                os.close(no_descriptor.pop())
            nursery.start_soon(engine.run)
            reason = str(await owner.told.receive())
            assert "could not be started (Too many open files" in reason
            assert engine.lost == reason
            assert engine.processes == []
            _free(no_descriptor)
            heard = await owner.told.receive()
            while isinstance(heard, str):
                heard = await owner.told.receive()
            assert isinstance(heard, EngineInfo)
            assert engine.lost == ""
            assert len(engine.pids) == members
            nursery.cancel_scope.cancel()


STARTS = {
    "no process": BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    "no memory": OSError(errno.ENOMEM, "Cannot allocate memory"),
    "no more memory": MemoryError(),
    "no interpreter": FileNotFoundError(errno.ENOENT, "No such file or directory", "/gone/python"),
}


@pytest.mark.parametrize("name", STARTS)
async def test_an_engine_that_the_system_does_not_start_is_tried_again_after_a_pause(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, tries = subprocess.Popen, []

    def start(*arguments: object, **more: object) -> object:
        tries.append(trio.current_time())
        if len(tries) < 4:
            raise STARTS[name]
        return popen(*arguments, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(deadlines, "FIRST_PAUSE", 0.02)
    before = psutil.Process().num_fds()
    async with running("good") as (engine, owner):
        for _ in range(3):
            assert "could not be started" in str(await owner.told.receive())
        assert isinstance(await owner.told.receive(), EngineInfo)
        assert engine.restarts == 3
        assert all(b - a > 0.01 for a, b in itertools.pairwise(tries))
    await trio.lowlevel.checkpoint()
    assert psutil.Process().num_fds() <= before + 1


# ----------------------------------------------------------------- who may look into it

LOOKER = """
import ctypes, json, os, platform, resource, runpy, socket, struct, sys
import sealring_trio.processes.namespace
import tests.io_trio.engine_child
libc = ctypes.CDLL(None, use_errno=True)
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
libc.prctl(4, 1, 0, 0, 0)  # what every ordinary process is

def start(arguments):
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        sys.argv = [part.format(fd=theirs.fileno()) for part in arguments]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        os._exit(0)
    theirs.close()
    assert ours.recv(1 << 16)
    return pid, ours

class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]

def reads(pid):
    secret = ctypes.create_string_buffer(b"secret", 8)  # at the same place in the child
    place, found = ctypes.addressof(secret), {}
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(place)
            found["mem"] = len(memory.read(8)) == 8
    except OSError:
        found["mem"] = False
    into = ctypes.create_string_buffer(8)
    near, far = Vector(ctypes.addressof(into), 8), Vector(place, 8)
    call = libc.process_vm_readv
    got = call(pid, ctypes.byref(near), 1, ctypes.byref(far), 1, 0)
    found["vm"] = got == 8
    found["ptrace"] = libc.ptrace(16, pid, None, None) == 0
    if found["ptrace"]:
        os.waitpid(pid, 0)
        libc.ptrace(17, pid, None, None)
    try:
        os.listdir(f"/proc/{pid}/fd")
        found["fd"] = True
    except OSError:
        found["fd"] = False
    return found

fake = ["tests.io_trio.engine_child", "--fd", "{fd}", "good"]
ordinary, one = start(fake)
hidden, two = start([*2 * ["sealring_trio.processes.launcher"], "--give-way", *fake])
score = lambda pid: int(open(f"/proc/{pid}/oom_score_adj").read())
limits = open(f"/proc/{hidden}/limits").read()
core = [line.split() for line in limits.splitlines() if "core" in line][0][4]
print(json.dumps({
    "ordinary": reads(ordinary), "hidden": reads(hidden), "core": core,
    "score": score(hidden), "parent": score(os.getpid()),
}))
for pid in (ordinary, hidden):
    os.kill(pid, 9)
"""


@ON_LINUX
def test_no_other_process_of_its_user_reads_an_engine() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKER], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert not any(found["hidden"].values()), found
    assert found["core"] == "0"
    assert found["score"] == min(1000, found["parent"] + KILLED_BEFORE)
    if not all(found["ordinary"].values()):
        pytest.skip(f"the kernel forbids looking into any process here: {found['ordinary']}")


@ON_LINUX
async def test_an_engine_can_still_be_watched_by_its_node() -> None:
    async with running("good") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        process = psutil.Process(engine.pid)
        assert process.memory_info().rss > 0
        assert process.status()


@ON_LINUX
def test_whose_a_connection_is_is_known_though_its_process_hides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hides(process: psutil.Process, kind: str) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "net_connections", hides)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
    ):
        taken, _ = server.accept()
        with taken:
            assert made(taken, [os.getpid()]) is ConnectionOwner.OURS
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            assert made(taken, [os.getpid()]) is ConnectionOwner.ANOTHERS


# ------------------------------------------------------------------- memory runs out

GROUPS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group whose processes may use 96 MiB."""
    folder = _small_group()
    if folder is None:
        pytest.skip("no control group can be made here: it takes root, and a file system for them")
    yield folder
    folder.rmdir()


def _small_group() -> Path | None:
    for top, limit in zip(GROUPS, ("memory.limit_in_bytes", "memory.max"), strict=True):
        folder = top / f"sealring_test_{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            try:
                (folder / limit).write_text(str(96 << 20))
            except OSError:
                folder.rmdir()
            else:
                return folder
    return None


@ON_LINUX
async def test_an_engine_that_the_system_kills_for_memory_is_told_as_that(
    small_group: Path,
) -> None:
    async with running("eats") as (engine, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        procs = trio.Path(small_group / "cgroup.procs")
        await procs.write_text(str(engine.pid))
        engine.send(Ping(0, Progress()))
        assert await owner.told.receive() == "the system killed it, for memory ran out"
        assert engine.out_of_memory
        assert isinstance(await owner.told.receive(), EngineInfo)
        engine.restart("it was killed by hand")
        assert await owner.told.receive() == "it was killed by hand"
        assert not engine.out_of_memory
