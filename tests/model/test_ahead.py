"""What a rank builds ahead is what it would have built, and holds nothing."""

import mlx.core as mx
import pytest
from model_families import reference_tokens
from model_rings import Ring
from sealring_protocol.codec.messages import NO_WORK, Decode, Join

PROMPT = [(5 * i * i + 11 * i) % 251 for i in range(400)]
ALL = 9
"""More than there ever is to build."""


def idle_ring(models, family="llama", bounds=(0, 2, 5)) -> Ring:
    return Ring(models[family], bounds, idle=lambda: ALL)


def test_there_is_an_end_to_what_can_be_built(models):
    ring = Ring(models["llama"], (0, 2, 5))
    head, last = ring.executors
    assert not head.prepare()
    ring.decode(join=[ring.admit(PROMPT[:9])])
    for executor in (head, last):  # the next decode, and that is all
        assert executor.prepare()
        assert not executor.prepare()
    step = ring.author.write(work=Decode(0))
    away = head.finish(head.launch(step))
    assert head.prepare()  # the end of this one
    assert head.prepare()  # and the next
    assert not head.prepare()
    done = last.finish(last.launch(away))
    assert last.prepare()
    assert not head.finish(head.close(done)).failed
    assert not head.prepare()


def test_a_rank_alone_builds_nothing_ahead(models):
    ring = idle_ring(models, bounds=(0, 5))
    ring.decode(join=[ring.admit(PROMPT[:9])])
    assert not ring.executors[0].prepare()


@pytest.mark.parametrize("rows", [1, 3])
def test_caches_are_written_in_place_all_the_same(models, rows):
    """A graph that was built on a fork does not keep what the fork was made of."""
    peaks = []
    for idle in (0, ALL):
        ring = Ring(models["llama"], (0, 2, 5), idle=lambda idle=idle: idle)
        ring.decode(join=[ring.admit(PROMPT) for _ in range(rows)])
        for _ in range(3):
            ring.decode()
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        ring.decode()
        peaks.append(mx.get_peak_memory() - before)
        held = sum(executor.cache_bytes for executor in ring.executors)
    assert peaks[1] - peaks[0] < held / 10


def test_a_guess_that_fails_leaves_no_trace(models, references):
    """Rows that join, leave or are saved between two decodes, each where all was built ahead."""
    ring = idle_ring(models)
    first, other = ring.admit(PROMPT[:20]), ring.admit(PROMPT[3:30])
    ring.decode(join=[first])
    ring.decode()
    ring.decode(join=[other])
    ring.decode()
    handle = ring.save(other)
    ring.decode()
    ring.decode(evict=[other])
    ring.decode()
    again = ring.open_from(handle, 26 + 2, [*PROMPT[3:30], *ring.text[other][:2]], 2)
    ring.decode(join=[again])
    ring.decode()
    expected = [reference_tokens(references["llama"], p, 9) for p in (PROMPT[:20], PROMPT[3:30])]
    assert ring.text[first] == expected[0]
    assert ring.text[other] == expected[1][:3]
    assert ring.text[again] == expected[1][2:4]


def test_a_row_that_leaves_while_its_token_is_away(models, references):
    """The end of its last decode had been built ahead, and so had the one after."""
    ring = idle_ring(models)
    stays, goes = ring.admit(PROMPT[:20]), ring.admit(PROMPT[3:30])
    ring.decode(join=[stays, goes])
    head, last = ring.executors
    away = head.finish(head.launch(ring.author.write(work=Decode(0))))
    while head.prepare():
        pass
    leave = ring.author.write(evict=(goes,), work=NO_WORK)
    left = head.finish(head.launch(leave))
    done = last.finish(last.launch(away))
    assert not last.finish(last.launch(left)).failed
    ids = head.finish(head.close(done)).ids
    ring.text[stays].append(ids[0])
    ring.decode()
    assert ring.text[stays] == reference_tokens(references["llama"], PROMPT[:20], 3)


def test_what_cannot_be_built_fails_in_its_step(models, monkeypatch):
    ring = Ring(models["llama"], (0, 2, 5))
    ring.decode(join=[ring.admit(PROMPT[:9])])
    head = ring.executors[0]

    def refuse(*_):
        raise ValueError("no")

    with monkeypatch.context() as broken:
        broken.setattr(head._stage, "run", refuse)
        assert head.prepare()
        assert not head.prepare()
    assert not head.finish(head.launch(ring.author.write(work=Decode(0)))).failed


def test_a_group_that_empties_and_fills_again(models, references):
    ring = idle_ring(models)
    for prompt in (PROMPT[:20], PROMPT[3:30]):
        uid = ring.admit(prompt)
        ring.step(join=(Join(uid, 0),), ids=(prompt[-1],))
        ring.decode()
        ring.decode()
        ring.evict(uid)
        assert ring.text[uid] == reference_tokens(references["llama"], prompt, 2)
