"""Groups of real engine processes over MLX's ring: the text of one process, and what goes wrong."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from model_child import Child
from model_collectives import Members, free_hosts, ring_of
from model_families import SHARDED
from model_rings import Author, Ring, place_of
from sealring_model.engine.collective import environment
from sealring_model.errors import CollectiveError
from sealring_model.loading.model_folder import ModelInfo, describe
from sealring_model.loading.structure import structure_of
from sealring_protocol.codec.local_messages import Group, Loaded
from sealring_protocol.codec.messages import (
    Backend,
    CannotServe,
    Decode,
    Epoch,
    FailureKind,
    Open,
    Prefill,
)

from tests.rows import rows

PROMPT = [(7 * i * i + 3 * i) % 251 for i in range(40)]

ROWS = (
    {"logprobs": 20},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.0, "top_p": 0.7, "seed": 4, "logprobs": 5},
    {"repetition": 1.3, "frequency": 0.4, "presence": 0.2, "logprobs": 20},
    {"bias": ((5, 2.0), (77, 1.5))},
    {"temperature": 0.7, "top_k": 12, "min_p": 0.05, "seed": 9, "repetition": 1.1},
    {},
    {"logprobs": 0},
)
"""How the rows of a batch are sampled: greedily and not, adjusted and not, told and not."""


LIMIT = 4 << 20
"""Bytes that the last member of a group may use, where that is the point."""


def serve(ring: Ring) -> None:
    """Eight rows join and leave, one goes on from a snapshot, and one is read in pieces."""
    uids = [ring.admit(PROMPT[i : 12 + 3 * i], **ROWS[i]) for i in range(3)]
    ring.decode(join=uids)
    ring.decode()
    uids += [ring.admit(PROMPT[i : 9 + 4 * i], **ROWS[i]) for i in range(3, 8)]
    ring.decode(join=uids[3:])
    for _ in range(4):
        ring.decode()
    handle = ring.save(uids[2], evict=uids[:2])
    kept = ring.author.ledger.snaps[handle]
    row = [*PROMPT[2:18], *ring.text[uids[2]]]
    again = ring.open_from(handle, kept, row, generated=len(ring.text[uids[2]]), **ROWS[5])
    pieces = ring.admit(PROMPT, chunk=7, **ROWS[0])
    ring.decode(join=[again, pieces], evict=uids[5:6])
    ring.decode()
    ring.evict(*ring.author.ledger.groups[0])


def told_of(ring: Ring) -> list[float]:
    return [
        value
        for uid in sorted(ring.told)
        for told in ring.told[uid]
        for value in (told.chosen, *told.values)
    ]


def check_served(members: Members, folder: Path) -> None:
    """The rows' text and log probabilities are those of one process."""
    alone = Ring(folder)
    for ring in (members, alone):
        serve(ring)
    assert members.text == alone.text
    assert len({token for text in alone.text.values() for token in text}) > 20
    expected = told_of(alone)
    assert len(expected) > 300
    assert told_of(members) == pytest.approx(expected, abs=1e-4)


def steps_ahead(members: Members, folder: Path) -> None:
    """Steps need not wait for the answers of those before."""
    rings = (members, Ring(folder))
    uids = [ring.admit(PROMPT, temperature=0.9, seed=8) for ring in rings]
    for ring, uid in zip(rings, uids, strict=True):
        ring.decode(join=[uid])
    group = members.stages[0]
    steps = [members.author.write(work=Decode(0)) for _ in range(12)]
    for step in steps:
        for child in group:
            child.send(step)
    drawn = [[members.answer(group, member).ids for _ in steps] for member in (0, 1)]
    assert drawn == [[rings[1].decode() for _ in steps]] * 2


def no_other_place(members: Members, folder: Path) -> None:
    """A process that is in a group takes no other, and no other place."""
    child = members.children[0]
    other = attrs.evolve(place_of(describe(folder), (0, 1, 3), 0), epoch=Epoch(77, 2))
    for order in (other, ring_of(0, 2, free_hosts(2))):
        child.send(order)
        done = child.receive()
        assert (done.epoch, done.kind) == (Epoch(77, 2), FailureKind.GROUP)
        assert "must be replaced" in done.reason


def the_same_place_again(members: Members, folder: Path) -> None:
    """In another epoch the group goes on with nothing, and reads nothing."""
    epoch, author = Epoch(77, 3), Author()
    work = Prefill(1, 0, len(PROMPT))
    steps = [author.write(open=(Open(1),)), author.write(work=work, ids=tuple(PROMPT))]
    for child in members.children:
        child.send(attrs.evolve(place_of(describe(folder), members.bounds, 0), epoch=epoch))
        for step in steps:
            child.send(attrs.evolve(step, epoch=epoch))
    for child in members.children:
        assert child.receive().read == 0
        assert child.receive().epoch == epoch
        for step in steps:
            done = child.receive()
            assert (done.epoch, done.n, done.failed) == (epoch, step.n, None)


def a_member_dies(members: Members, folder: Path) -> None:
    """The others tell, of every step that is out; then they end with their node at once."""
    members.decode(join=[members.admit(PROMPT)])
    left, gone = members.children
    gone.process.kill()
    gone.wait()
    steps = [members.author.write(work=Decode(0)) for _ in range(3)]
    for step in steps:
        left.send(step)
    for step in steps:
        done = left.receive()
        assert done.n == step.n
        assert done.failed.kind is FailureKind.ENGINE_ERROR
        assert "ring" in done.failed.message


def a_member_stops(members: Members, folder: Path) -> None:
    """One that waits for it is stuck, and ends all the same with its node (70: it had to)."""
    members.decode(join=[members.admit(PROMPT)])
    stuck, stopped = members.children
    os.kill(stopped.process.pid, signal.SIGSTOP)
    stuck.progress()
    stuck.send(members.author.write(work=Decode(0)))
    stuck.sock.close()
    assert stuck.wait()[0] in (0, 70)
    stopped.process.kill()


def one_has_no_room(members: Members, folder: Path) -> None:
    """It says so at once; the other one waits for it, until its node ends."""
    first, limited = members.children
    for uid in range(1000, 1200):
        members.announce(uid, PROMPT)
        work = Prefill(uid, 0, len(PROMPT))
        for step in (
            members.author.write(open=(Open(uid),)),
            members.author.write(work=work, ids=tuple(PROMPT)),
        ):
            for child in members.children:
                child.send(step)
            done = limited.receive()
            if done.failed:
                assert done.failed.kind is FailureKind.MEMORY
                return
            assert not first.receive().failed
    raise AssertionError("there was room for everything")


def reads_ahead(members: Members, folder: Path) -> None:
    """All members draw the same tokens up to the first wrong guess, those that one token at a time
    gives."""
    text = members.generate(PROMPT, 12, seed=3, temperature=0.8, repetition=1.3)
    uid = members.admit(PROMPT, seed=3, temperature=0.8, repetition=1.3)
    members.decode(join=[uid])
    back = 0
    for right in (2, 0, 1):
        at = len(members.text[uid])
        back = members.decode_ahead([*text[at : at + right], *[1] * (2 - right)], back)
        assert back == 2 - right
    members.decode_ahead([], back)  # one that reads none is a plain one
    assert members.text[uid] == text[: len(members.text[uid])]
    assert len(members.text[uid]) == 8
    members.evict(uid)


AFTER = {
    "llama": (reads_ahead, steps_ahead, no_other_place, the_same_place_again),
    "qwen3": (a_member_dies,),
    "gpt-oss": (a_member_stops,),
    "qwen3-5": (one_has_no_room,),
}


@pytest.mark.parametrize("family", rows([*SHARDED], "qwen3"))
def test_a_group_of_two_gives_what_one_process_gives(sharded, family):
    folder = sharded[family]
    info = describe(folder)
    limit = ("--memory-limit", str(LIMIT)) if one_has_no_room in AFTER[family] else ()
    with Members(folder, options=limit) as members:
        check_served(members, folder)
        told = zip(members.loaded[0], members.grouped[0], members.ready[0], strict=True)
        for loaded, grouped, ready in told:
            assert loaded.held < 0.7 * info.size
            assert grouped.size == 2
            assert grouped.sum_us > 0
            assert grouped.token_us > 0
            assert (ready.first, ready.last) == (0, len(info.layers))
            assert ready.cost.per_token == per_token(info) // 2
        for go_on in AFTER[family]:
            go_on(members, folder)


@pytest.mark.slow
def test_two_stages_of_two(sharded):
    folder = sharded["llama"]
    with Members(folder, (0, 1, 3)) as members:
        check_served(members, folder)


def per_token(info: ModelInfo) -> int:
    """What each token of a row costs in the caches of all layers."""
    return sum(cost.per_token for cost in structure_of(info).costs)


# ------------------------------------------------------------- what goes wrong


def test_a_group_that_does_not_come_about(sharded):
    """Shares that there cannot be, groups that nobody prepared; and a peer that never comes."""
    info = describe(sharded["llama"])
    place = place_of(info, (0, 3), 0)
    with Child(sharded["llama"]) as child:
        assert child.info().splits == info.even == 2
        child.send(ring_of(0, 2, free_hosts(2)))
        assert "no share" in refusal(child, FailureKind.GROUP)
        child.send(Group(Backend.JACCL, 0, 2, 1000))
        child.send(place)
        assert refusal(child, FailureKind.GROUP) == "this MLX has no jaccl back end"
        child.send(ring_of(2, 3))
        child.send(place)
        assert "heads (4, 2) do not divide among 3 ranks" in refusal(child, FailureKind.UNSERVABLE)
        # Of one alone the share is the whole.
        child.send(ring_of(0, 1))
        assert child.start(place).cost.per_token == per_token(info)
        child.send(ring_of(1, 2))
        child.send(place)
        assert isinstance(child.receive(), Loaded)
        child.send(ring_of(0, 2, free_hosts(2)))
        assert "no share" in refusal(child, FailureKind.GROUP)
        child.send(attrs.evolve(ring_of(1, 2, free_hosts(2)), deadline_ms=0))
        assert child.wait()[0] == -signal.SIGALRM


def refusal(child: Child, kind: FailureKind) -> str:
    done = child.receive()
    assert isinstance(done, CannotServe)
    assert done.kind is kind
    return done.reason


PEER = """
import threading
import mlx.core as mx

from tests.rows import rows
group = mx.distributed.init(strict=True, backend="ring")
mx.eval(mx.distributed.all_sum(mx.array(4.0), group=group))
threading.Event().wait()
"""


def test_a_sum_that_is_wrong(sharded, tmp_path):
    """The peer says 4 where every member says 1."""
    hosts = free_hosts(2)
    # The first member is the one that waits for the other to connect, as long as it takes.
    variables = environment(ring_of(0, 2, hosts), tmp_path / "hosts.json")
    peer = subprocess.Popen([sys.executable, "-c", PEER], env={**os.environ, **variables})
    try:
        with Child(sharded["llama"]) as child:
            child.info()
            child.send(ring_of(1, 2))
            child.send(place_of(describe(sharded["llama"]), (0, 3), 0))
            assert isinstance(child.receive(), Loaded)
            child.send(ring_of(1, 2, hosts))
            assert refusal(child, FailureKind.GROUP) == "a sum of ones over 2 members was 5"
    finally:
        peer.kill()
        peer.wait()


ENVIRONMENTS = {
    Backend.RING: {"MLX_RANK": "1", "MLX_HOSTFILE": "{file}"},
    Backend.JACCL: {"MLX_RANK": "1", "MLX_JACCL_COORDINATOR": "10.0.0.1:7001"},
    Backend.NCCL: {
        "MLX_RANK": "1",
        "MLX_WORLD_SIZE": "2",
        "NCCL_HOST_IP": "10.0.0.1",
        "NCCL_PORT": "7001",
    },
}


@pytest.mark.parametrize("backend", ENVIRONMENTS)
def test_what_mlx_finds_in_its_environment(tmp_path, backend):
    hosts = (("10.0.0.1", 7001), ("127.0.0.1", 7002))
    file = tmp_path / "hosts.json"
    found = environment(Group(backend, 1, 2, 1000, hosts), file)
    assert found == {k: v.format(file=file) for k, v in ENVIRONMENTS[backend].items()}
    if backend is Backend.RING:
        assert json.loads(file.read_text()) == [["10.0.0.1:7001"], ["127.0.0.1:7002"]]
    else:
        assert not file.exists()


def test_a_ring_over_ipv6(tmp_path):
    hosts = (("10.0.0.1", 7001), ("fe80::1", 7002))
    with pytest.raises(CollectiveError, match="IPv4 addresses, and fe80::1 is none"):
        environment(ring_of(0, 2, hosts), tmp_path / "hosts.json")
