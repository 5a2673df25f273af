"""Several engine processes that are one: what the node sees of them, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import attrs
import psutil
import pytest
import trio
from sealring.local.ring import local_ring
from sealring_model import tiny
from sealring_protocol.codec.local_messages import EngineInfo, Grouped, Loaded, LocalMessage
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Join,
    Open,
    Ping,
    Pong,
    Prefill,
    Progress,
    Ready,
    Spent,
    Step,
    StepDone,
)
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.table import IllegalEvent, Machine, cross_product
from sealring_trio.engine import group as engine_groups
from sealring_trio.engine.group import (
    EngineGroup,
    GroupBroken,
    GroupSettings,
    choose_backend,
    member_command,
)
from sealring_trio.engine.supervisor import (
    ENGINE_TABLE,
    GROUP_TABLE,
    EngineCommand,
    EngineEvent,
    EngineState,
    GroupEvent,
    GroupState,
)

from tests.io_trio.conftest import Ring
from tests.io_trio.engine_child import INFO, PROMPT
from tests.io_trio.test_engine_supervisor import FAKE, Owner
from tests.serving import PATIENCE
from tests.sim.fake_engine import reference

EPOCH = Epoch(1, 1)
ORDER = Bootstrap(EPOCH, Backend.PIPELINE, 0, True, 1000, bytes(32), (0, 2))
LAYERS = len(INFO.layers)
UID, GROUP = 3, 1
NO_DIGEST = bytes(16)
RING = 1 << Backend.RING
BOTH = CacheCost(2, 4, ((16, 6),))


@asynccontextmanager
async def running(mode: str = "good", size: int = 2) -> AsyncIterator[tuple[EngineGroup, Owner]]:
    owner = Owner()
    settings = GroupSettings(size, seconds=0.2)
    group = EngineGroup(EngineCommand(FAKE, (mode,)), owner, settings)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.run)
            yield group, owner
            nursery.cancel_scope.cancel()


def steps(tokens: int) -> Iterator[Step]:
    """The steps that read one row's prompt in and draw *tokens*, as a head writes them."""
    ledger, (*prompt, last) = Ledger(), PROMPT
    read = Prefill(UID, 0, len(prompt))
    yield written(ledger, Step(EPOCH, 1, NO_DIGEST, open=(Open(UID),), work=read, ids=(*prompt,)))
    decode = Step(EPOCH, 2, NO_DIGEST, work=Decode(GROUP))
    yield written(ledger, attrs.evolve(decode, join=(Join(UID, GROUP),), ids=(last,)))
    for n in range(3, 2 + tokens):
        yield written(ledger, attrs.evolve(decode, n=n))


def written(ledger: Ledger, step: Step) -> Step:
    """*step* with the digest that *ledger* has after it."""
    ledger.apply(step)
    return attrs.evolve(step, digest=ledger.digest(step.n))


async def joined(group: EngineGroup, owner: Owner) -> None:
    """Have the members of *group* become one."""
    assert isinstance(await owner.told.receive(), EngineInfo)
    group.send(ORDER)
    assert isinstance(await owner.told.receive(), Loaded)
    assert isinstance(await owner.told.receive(), Ready)


@pytest.mark.parametrize(
    ("table", "states", "events"),
    [(ENGINE_TABLE, EngineState, EngineEvent), (GROUP_TABLE, GroupState, GroupEvent)],
    ids=["engine", "group"],
)
def test_what_is_not_in_the_table_is_illegal(table: dict, states: type, events: type) -> None:  # type: ignore[type-arg]
    for state, event, after in cross_product(table, states, events):
        machine = Machine(table, state)
        if after is None:
            with pytest.raises(IllegalEvent):
                machine.fire(event)
        else:
            assert machine.fire(event) is after


async def test_the_node_sees_one_engine() -> None:
    async with running() as (group, owner):
        # It is a collective: no other can have it. It has room for twice what one has.
        twice = attrs.evolve(INFO, room=2 * INFO.room, splits=0, backends=0)
        assert await owner.told.receive() == twice
        assert group.state == "ready"
        group.send(ORDER)
        assert group.state == "busy"
        assert await owner.told.receive() == Loaded(200, 100, 5)
        ready = await owner.told.receive()
        assert isinstance(ready, Ready)
        assert (ready.epoch, ready.room, ready.cost) == (EPOCH, 2 * 999, BOTH)
        assert group.grouped == (Backend.RING, Grouped(2, 20, 20))
        assert group.state == "ready"
        tokens = reference(PROMPT, 30, LAYERS)
        for step in steps(len(tokens)):
            group.send(step)
        assert await owner.told.receive() == StepDone(EPOCH, 1, spent=(Spent(3),))  # read in
        for n, token in enumerate(tokens, 2):
            assert await owner.told.receive() == StepDone(EPOCH, n, ids=(token,), spent=(Spent(3),))
        pids = group.pids
        group.send(Ping(3, Progress()))
        assert await owner.told.receive() == Pong(3, Progress(memory=sum(pids)))
        assert (len(set(pids)), group.pid, group.restarts) == (2, pids[0], 0)
    assert not any(map(psutil.pid_exists, pids))


async def test_a_new_epoch_keeps_the_group_and_other_layers_take_another() -> None:
    async with running() as (group, owner):
        await joined(group, owner)
        pids = group.pids
        again = attrs.evolve(ORDER, epoch=Epoch(1, 2))
        group.send(again)
        assert isinstance(await owner.told.receive(), Loaded)
        ready = await owner.told.receive()
        assert isinstance(ready, Ready)
        assert (ready.epoch, group.pids) == (again.epoch, pids)
        group.send(attrs.evolve(ORDER, bounds=(0, 1, 2)))
        assert "are to hold other layers" in str(await owner.told.receive())
        await joined(group, owner)
        assert not set(pids) & set(group.pids)


BREAKS: dict[str, tuple[str, list[LocalMessage | str]]] = {
    "one fails": (
        "fails-1",
        [
            StepDone(
                EPOCH,
                1,
                failed=Failure(0, FailureKind.ENGINE_ERROR, "member 1 of 2: token 5 is poison"),
            ),
            "member 1 of 2: token 5 is poison",
        ],
    ),
    "one dies": ("dies-1", ["of member 1 of 2: it exited with code 3"]),
    "one differs": (
        "differs-1",
        [StepDone(EPOCH, 1, spent=(Spent(3),)), "members 0 and 1 did not answer step 2 alike"],
    ),
}


@pytest.mark.parametrize(("mode", "told"), BREAKS.values(), ids=BREAKS)
async def test_what_befalls_one_ends_all(mode: str, told: list[LocalMessage | str]) -> None:
    async with running(mode) as (group, owner):
        await joined(group, owner)
        pids = group.pids
        for step in steps(1):
            group.send(step)
        for message in told:
            assert await owner.told.receive() == message
        assert not any(map(psutil.pid_exists, pids))
        assert isinstance(await owner.told.receive(), EngineInfo)
        assert group.restarts == 1


async def test_a_killed_member_ends_the_others() -> None:
    async with running() as (group, owner):
        await joined(group, owner)
        first, second = map(psutil.Process, group.pids)
        second.kill()
        assert await owner.told.receive() == "of member 1 of 2: it was ended by SIGKILL"
        assert not first.is_running()


async def test_members_that_do_not_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_groups, "GRACE", 0.0)
    async with running("late-1") as (group, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        group.send(ORDER)
        assert isinstance(await owner.told.receive(), Loaded)
        assert await owner.told.receive() == "its members did not form a group within 0.2 s"


async def test_a_model_that_does_not_split() -> None:
    async with running("odd") as (_, owner):
        assert "shared out evenly among 2 members; give 'tp' a divisor of 3" in str(
            await owner.told.receive()
        )


async def test_a_group_is_in_no_other_collective() -> None:
    async with running() as (group, owner):
        assert isinstance(await owner.told.receive(), EngineInfo)
        group.send(engine_groups.Group(Backend.RING, 1, 3, 1000))
        group.send(attrs.evolve(ORDER, rank=0))
        told = await owner.told.receive()
        assert isinstance(told, CannotServe)
        assert (told.epoch, told.kind) == (EPOCH, FailureKind.GROUP)
        assert "it is a group of 2 processes itself" in told.reason


BACKENDS = [
    (None, RING, Backend.RING),
    (None, RING | 1 << Backend.NCCL, Backend.NCCL),
    (Backend.RING, RING | 1 << Backend.NCCL, Backend.RING),
    (Backend.NCCL, RING, "this machine's MLX has no nccl back end"),
    (None, 1 << Backend.JACCL, "this machine's MLX has no collective back end"),
]


@pytest.mark.parametrize(("wanted", "have", "chosen"), BACKENDS)
def test_what_members_sum_over(wanted: Backend | None, have: int, chosen: Backend | str) -> None:
    if isinstance(chosen, Backend):
        assert choose_backend(wanted, have) is chosen
    else:
        with pytest.raises(GroupBroken, match=chosen):
            choose_backend(wanted, have)


@pytest.mark.parametrize(
    ("devices", "own"),
    [(None, ["0", "1"]), ("", ["0", "1"]), ("4, 6", ["4", "6"]), ("3", ["3", None])],
)
def test_each_member_has_a_gpu_of_its_own(devices: str | None, own: list[str | None]) -> None:
    command = EngineCommand(FAKE, (), {"A": "1"})
    made = [member_command(command, member, devices=devices) for member in range(2)]
    assert [each.environment.get("CUDA_VISIBLE_DEVICES") for each in made] == own
    assert {each.environment["A"] for each in made} == {"1"}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does this on Linux alone")
def test_members_that_ignore_their_stream_die_with_their_daemon() -> None:
    program = (
        "import trio\n"
        "from sealring_trio.engine.group import EngineGroup, GroupSettings\n"
        "from sealring_trio.engine.supervisor import EngineCommand\n"
        "class Owner:\n"
        "    def engine_message(self, message): print(*group.pids, flush=True)\n"
        "    def engine_lost(self, reason): pass\n"
        "    def engine_starved(self, seconds): pass\n"
        f"command = EngineCommand({FAKE!r}, ('orphan',))\n"
        "async def run():\n"
        "    global group\n"
        "    group = EngineGroup(command, Owner(), GroupSettings(2))\n"
        "    await group.run()\n"
        "trio.run(run)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    ) as daemon:
        assert daemon.stdout is not None
        children = [psutil.Process(int(pid)) for pid in daemon.stdout.readline().split()]
        daemon.kill()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert len(children) == 2
    assert not alive


@pytest.mark.long
def test_two_stages_of_two_say_what_two_ranks_say(ring: Ring) -> None:
    request = {"prompt": "Tell me a story about a fox.", "max_tokens": 12}
    *_, expected = ring.nodes[0].ask("generate", request)
    with local_ring(2, tiny.path(), options={"tp": 2}) as nodes:
        *_, done = nodes[0].ask("generate", request)
        states = [node.status() for node in nodes]
    assert done["token_ids"] == expected["token_ids"]
    for state in states:
        assert (state["strategy"], state["engine_restarts"]) == ("pp", 0)
        assert (state["members"]["size"], state["members"]["backend"]) == (2, "ring")
        assert len(state["engine_pids"]) == 2
