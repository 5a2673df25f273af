"""Batches in flight, in virtual time: stages overlap, rows come and go, in the room there is."""

from __future__ import annotations

from random import Random

import pytest
from sealring_protocol.codec.messages import Decode, Prefill, Step, StepDone
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig

from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference

LAYERS = 6
STAGE = 0.010


def pace(message):
    """A stage takes 10 ms for a step and a quarter of a millisecond for each token of a prefill;
    the head's closing pass is nothing beside it."""
    match message:
        case Step(work=Prefill(count=count)):
            return 0.00025 * count
        case Step(work=Decode()):
            return STAGE
        case StepDone():
            return 0.0005
        case _:
            return 0.0


def both_busy(cluster):
    """Seconds in which the engines of both ranks worked."""
    first, second = (cluster.hosts[name].busy for name in ("host0", "host1"))
    return sum(max(0.0, min(a_end, b_end) - max(a, b)) for a, a_end in first for b, b_end in second)


def decode(groups, rows=4, tokens=40):
    scheduler = SchedulerConfig(groups=groups, rows=2)
    cluster = Cluster(2, 1, scheduler=scheduler, delay=0.0002, pace=pace)
    cluster.run_until(lambda: cluster.ready)
    start = cluster.now
    for row in range(rows):
        cluster.submit(Request((row + 1,), tokens))
    cluster.run_until(lambda: cluster.all_done)
    return cluster, cluster.now - start


def test_two_groups_keep_both_stages_busy():
    alone, slow = decode(groups=1)
    assert both_busy(alone) < 0.05 * slow
    overlapping, fast = decode(groups=2)
    assert both_busy(overlapping) > 0.8 * fast
    assert fast < 0.6 * slow


def test_as_many_groups_as_there_are_stages_unless_the_way_is_long():
    cluster, _ = decode(groups=0, rows=4)
    flying = [timing.work for timing in cluster.timings if isinstance(timing.work, Decode)]
    assert {work.group for work in flying} == {0, 1}
    # Each hop takes as long as a stage, on average: two more groups travel meanwhile.
    far = Cluster(2, 1, delay=2 * STAGE, pace=pace)
    far.run_until(lambda: far.ready)
    for row in range(4):
        far.submit(Request((row + 1,), 100))
    far.run_until(lambda: far.all_done)
    for row in range(8):
        far.submit(Request((row + 1,), 40))
    first = len(far.timings)
    far.run_until(lambda: far.all_done)
    groups = {t.work.group for t in far.timings[first:] if isinstance(t.work, Decode)}
    assert groups == {0, 1, 2, 3}


def test_a_group_has_one_step_on_its_way_round():
    """And the next one behind it once its hidden states are back at the head, before its tokens are
    known: the engine draws them first."""
    cluster = Cluster(3, 5, scheduler=SchedulerConfig(groups=3, rows=2))
    cluster.run_until(lambda: cluster.ready)
    head = cluster.head.node._brain
    for row in range(6):
        cluster.submit(Request((row + 1,) * (row + 1), 30))
    followed = 0
    while not cluster.all_done:
        cluster.run_for(0.001)
        flights = list(head.scheduler._flights.by_number.values())
        flights = [f for f in flights if isinstance(f.work, Decode) and not f.work.guessed]
        away = [flight.work.group for flight in flights if not flight.returned]
        back = [flight.work.group for flight in flights if flight.returned]
        assert len(away) == len(set(away))
        assert len(back) == len(set(back))
        followed += len(set(away) & set(back))
    assert followed


@pytest.mark.parametrize(
    "world", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.slow)]
)
def test_thousands_of_clients_that_go_away_leave_nothing_and_change_nobodys_tokens(world):
    random = Random(world)
    scheduler = SchedulerConfig(
        groups=world, rows=4, chunk=16, prefixes=6, queue=10_000, prefix_share=0.5
    )
    cluster = Cluster(world, 3, scheduler=scheduler, rooms=dict.fromkeys(range(world), 20_000))
    cluster.run_until(lambda: cluster.ready)
    stems = [tuple(random.randrange(900) for _ in range(40)) for _ in range(4)]
    asked, gone, live = {}, set(), []
    for _ in range(1200):
        stem = random.choice(stems)[: random.choice([0, 5, 30, 40])]
        prompt = (*stem, *(random.randrange(900) for _ in range(random.randint(1, 12))))
        uid = cluster.submit(Request(prompt, random.randint(1, 12), owner=random.choice("abc")))
        asked[uid] = prompt
        live = [uid for uid in (*live, uid) if uid not in cluster.done]
        if live and random.random() < 0.5:
            victim = live.pop(random.randrange(len(live)))
            gone.add(victim)
            cluster.cancel(victim)
        cluster.run_for(random.choice([0.0, 0.001, 0.01, 0.03]))
    cluster.run_until(lambda: cluster.all_done, 600)
    for uid, prompt in asked.items():
        got = cluster.tokens[uid]
        assert got == reference(prompt, len(got), LAYERS)
        assert (cluster.done[uid].reason is FinishReason.CANCELLED) == (uid in gone)
    assert len(gone) > 200
    cluster.run_for(1.0)
    held = cluster.head.node._brain.scheduler.ledger.snaps
    for host in cluster.hosts.values():
        assert not host.engine.private
        assert not host.engine.groups
        assert host.engine.snaps.keys() == held.keys()
        assert host.engine.ledger.snaps == held
    assert len(held) <= 6


def test_a_chat_of_many_turns_is_read_once_on_every_rank():
    cluster = Cluster(3, 1, scheduler=SchedulerConfig(prefixes=2))
    cluster.run_until(lambda: cluster.ready)
    conversation = tuple(range(50))
    read = 0
    for turn in range(6):
        first = len(cluster.timings)
        uid = cluster.submit(Request(conversation, 10))
        cluster.run_until(lambda: cluster.all_done)
        works = [timing.work for timing in cluster.timings[first:]]
        read += sum(work.count for work in works if isinstance(work, Prefill))
        assert cluster.tokens[uid] == reference(conversation, 10, LAYERS)
        conversation = (*conversation, *cluster.tokens[uid], turn, turn, turn)
    # 49 at first; then, each turn, the last token of the answer and two of the three new ones.
    assert read == 49 + 5 * 3


@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_agents_turns_are_read_once_where_caches_cannot_be_cut_and_again_after_a_loss(world):
    """Each turn drops the answer's opening and its thoughts. An engine is lost amid the sixth turn,
    in the answer, and amid the ninth, in the prompt: what is read then is kept as it was before."""
    cluster = Cluster(world, 1, scheduler=SchedulerConfig(prefixes=5, chunk=64), trimmable=False)
    cluster.run_until(lambda: cluster.ready)
    system = talk = tuple(range(300))
    read = []
    for turn in range(12):
        talk = (*talk, *(400 + turn for _ in range(100)))
        first = len(cluster.timings)
        prompt = (*talk, 901, 902, 903)
        uid = cluster.submit(Request(prompt, 20, branches=(len(system), len(talk))))
        if turn == 5:
            cluster.run_until(lambda uid=uid: len(cluster.tokens[uid]) > 5)
            cluster.kill_engine(cluster.hosts[f"host{world - 1}"])
        if turn == 8:
            cluster.run_until(lambda first=first: len(cluster.timings) > first)
            cluster.kill_engine(cluster.hosts["host0"])
        cluster.run_until(lambda: cluster.all_done)
        assert cluster.tokens[uid] == reference(prompt, 20, LAYERS)
        works = [timing.work for timing in cluster.timings[first:]]
        read.append(sum(work.count for work in works if isinstance(work, Prefill)))
        talk = (*talk, 904, *cluster.tokens[uid][10:])
    usual = 100 + 2 + 11  # the new turn, the opening, what is kept of the answer before
    assert read[0] == len(system) + 102
    assert [count for turn, count in enumerate(read) if turn not in (0, 5, 8)] == [usual] * 9
    first = len(cluster.timings)
    cluster.submit(Request((*system, *range(500, 530)), 5))  # another task
    cluster.run_until(lambda: cluster.all_done)
    works = [timing.work for timing in cluster.timings[first:]]
    assert sum(work.count for work in works if isinstance(work, Prefill)) == 29


def test_the_tightest_rank_decides_who_comes_in():
    """A row of 24 tokens takes 16 bytes a token on a rank with two layers; a group is copied."""
    scheduler = SchedulerConfig(groups=1, rows=8)
    cluster = Cluster(3, 1, scheduler=scheduler, rooms={1: 16 * 64 * 4})
    cluster.run_until(lambda: cluster.ready)
    uids = [cluster.submit(Request((row + 1,) * 20, 4)) for row in range(6)]
    most = 0
    while not cluster.all_done:
        cluster.run_for(0.001)
        most = max(most, len(cluster.hosts["host1"].engine.ledger.groups.get(0, ())))
    assert most == 2
    for row, uid in enumerate(uids):
        assert cluster.tokens[uid] == reference((row + 1,) * 20, 4, LAYERS)


def test_a_short_prompt_waits_behind_a_long_one_for_what_is_under_way_and_no_longer():
    def ask(*, busy):
        scheduler = SchedulerConfig(chunk=200)
        cluster = Cluster(2, 1, scheduler=scheduler, delay=0.0002, pace=pace)
        cluster.run_until(lambda: cluster.ready)
        if busy:
            cluster.submit(Request((1,) * 4000, 1))
            cluster.run_for(0.33)
        start = cluster.now
        uid = cluster.submit(Request((2,) * 50, 1))
        cluster.run_until(lambda: cluster.tokens[uid])
        return cluster.now - start

    chunk = 0.00025 * 200
    # Two chunks are at stage 0, and the short prompt follows the second one through stage 1.
    assert ask(busy=True) <= ask(busy=False) + 3 * chunk


def test_tokens_wait_one_chunk_and_one_step_at_most_while_a_long_prompt_is_read():
    cluster = Cluster(2, 1, scheduler=SchedulerConfig(chunk=200), delay=0.0002, pace=pace)
    cluster.run_until(lambda: cluster.ready)
    uid = cluster.submit(Request((1, 2, 3), 200))
    cluster.run_until(lambda: len(cluster.tokens[uid]) > 5)
    cluster.submit(Request((1,) * 4000, 1))
    waits, last, count = [], cluster.now, len(cluster.tokens[uid])
    while len(cluster.tokens[uid]) < 60:
        cluster.run_for(0.0005)
        if len(cluster.tokens[uid]) > count:
            waits.append(cluster.now - last)
            last, count = cluster.now, len(cluster.tokens[uid])
    chunk, step = 0.00025 * 200, 2 * STAGE + 0.003
    assert max(waits) <= 2 * chunk + step
