"""What a rank builds ahead is what it would have built, and holds nothing."""

import gc
import threading
import weakref

import mlx.core as mx
import pytest
from model_child import InThread
from model_families import FAMILIES, make_model, reference_model, reference_tokens
from model_rings import Author, Ring, place_of, stage_of
from sealring_model.loading.assemble import load_stage
from sealring_model.loading.model_folder import describe
from sealring_model.lookahead import Lookahead
from sealring_model.sampling import rows as sampling
from sealring_model.stage.device import DeviceIO
from sealring_protocol.codec.messages import NO_WORK, Decode, Join, Open, Prefill, Row
from waiting_device import WaitingDeviceIO

PROMPT = [(5 * i * i + 11 * i) % 251 for i in range(400)]
ALL = 9
"""More than there ever is to build."""


def idle_ring(models, family="llama", bounds=(0, 2, 5)) -> Ring:
    return Ring(models[family], bounds, idle=lambda: ALL)


def test_there_is_an_end_to_what_can_be_built(models):
    ring = Ring(models["llama"], (0, 2, 5))
    head, last = ring.executors
    assert not head.work_ahead()
    ring.decode(join=[ring.admit(PROMPT[:9])])
    for executor in (head, last):  # the next decode, and that is all
        assert executor.work_ahead()
        assert not executor.work_ahead()
    step = ring.author.write(work=Decode(0))
    away = head.finish(head.launch(step))
    assert head.work_ahead()  # the end of this one
    assert head.work_ahead()  # and the next
    assert not head.work_ahead()
    done = last.finish(last.launch(away))
    assert last.work_ahead()
    assert not head.finish(head.close(done)).failed
    assert not head.work_ahead()


def test_a_rank_alone_builds_nothing_ahead(models):
    ring = idle_ring(models, bounds=(0, 5))
    ring.decode(join=[ring.admit(PROMPT[:9])])
    assert not ring.executors[0].work_ahead()


@pytest.mark.parametrize("rows", [1, 3])
def test_caches_are_written_in_place_all_the_same(models, rows):
    """A graph that was built on a fork does not keep what the fork was made of."""
    peaks = []
    for idle in (0, ALL):
        for span in ((0, 2), (2, 5)):
            stage_of(models["llama"], *span)  # is kept, and so not counted
        mx.clear_cache()
        before = mx.get_active_memory()
        ring = Ring(models["llama"], (0, 2, 5), idle=lambda idle=idle: idle)
        ring.decode(join=[ring.admit(PROMPT) for _ in range(rows)])
        for _ in range(3):
            ring.decode()
        mx.reset_peak_memory()
        ring.decode()
        peaks.append(mx.get_peak_memory() - before)
        held = sum(executor.cache_bytes for executor in ring.executors)
        del ring
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
    while head.work_ahead():
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
        broken.setattr(head._forward._stage, "run", refuse)
        assert not head.work_ahead()
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


def test_an_executor_that_is_not_held_any_more_is_gone_at_once(models):
    """And with it all caches: the next epoch's room depends on it."""
    ring = idle_ring(models)
    ring.decode(join=[ring.admit(PROMPT)])
    ring.decode()
    references = list(map(weakref.ref, ring.executors))
    gc.disable()
    try:
        ring.executors.clear()
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


DBRX = {
    "model_type": "dbrx",
    "d_model": 64,
    "n_layers": 4,
    "num_hidden_layers": 4,
    "n_heads": 4,
    "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
}
"""Its router reads, with `tolist`, which experts it has chosen."""


def test_nothing_is_built_ahead_for_a_model_that_looks_at_values(tmp_path, monkeypatch):
    """It would see what is not there yet."""
    monkeypatch.setitem(FAMILIES, "dbrx", DBRX)
    folder = make_model(tmp_path / "dbrx", "dbrx")
    info = describe(folder)
    assert not any(load_stage(info, *span).blind for span in ((0, 2), (2, 4)))
    prompt = PROMPT[:20]
    expected = reference_tokens(reference_model(folder), prompt, 12)
    assert Ring(folder, (0, 2, 4), idle=lambda: ALL).generate(prompt, 12) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stages_of_all_other_families_are_blind(models, family):
    layers = FAMILIES[family]["num_hidden_layers"]
    assert all(stage_of(models[family], *span).blind for span in ((0, 2), (2, layers)))


def test_without_tracing_nobody_knows_who_is_blind(models):
    mx.disable_compile()
    try:
        assert not load_stage(describe(models["llama"]), 0, 2).blind
    finally:
        mx.enable_compile()


@pytest.mark.parametrize("where", ["logprobs_of", "sample"])
def test_what_failed_ahead_is_done_when_it_is_due(models, references, monkeypatch, where):
    """The end of a step, and the decode after it, which must not follow the draw before."""
    ring = idle_ring(models)
    uid = ring.admit(PROMPT[:20], logprobs=0)
    ring.decode(join=[uid])
    head, last = ring.executors
    away = head.finish(head.launch(ring.author.write(work=Decode(0))))
    with monkeypatch.context() as broken:
        broken.setattr(sampling, where, lambda *_: [].pop())
        while head.work_ahead():
            pass
    while head.work_ahead():
        pass
    done = head.finish(head.close(last.finish(last.launch(away))))
    ring.text[uid] += done.ids
    ring.decode()
    assert ring.text[uid] == reference_tokens(references["llama"], PROMPT[:20], 3)


def test_an_engine_with_nothing_to_do_builds_what_comes_next(models, monkeypatch):
    """As soon as its answer is out, though nobody says anything to it."""
    built = threading.Event()
    build = Lookahead.build

    def noticed(self, *how):
        done = build(self, *how)
        if done:
            built.set()
        return done

    monkeypatch.setattr(Lookahead, "build", noticed)
    info = describe(models["llama"])
    author = Author()
    with InThread(models["llama"]) as head:
        head.info()
        head.start(place_of(info, (0, 2, 5), 0))
        head.send(Row(1))
        for fields in (
            {"open": (Open(1),)},
            {"work": Prefill(1, 0, 8), "ids": tuple(PROMPT[:8])},
            {"join": (Join(1, 0),), "work": Decode(0), "ids": (PROMPT[8],)},
        ):
            assert not built.is_set()
            head.send(author.write(**fields))
            assert not head.receive().failed
        assert built.wait(20)


@pytest.mark.parametrize("device_io", [DeviceIO, WaitingDeviceIO])
def test_a_decode_is_not_built_on_a_token_that_is_still_to_be_drawn(models, device_io):
    """That of one group waits for its mask, which nobody makes while the device waits for what the
    other group's decode gave."""
    held = {"least": 100, "ends": (255,)}
    expected = Ring(models["llama"]).generate(PROMPT[:20], 16, **held)
    ring = Ring(models["llama"], (0, 2, 5), idle=lambda: ALL, device_io=device_io)
    head, last = ring.executors
    first, second = ring.admit(PROMPT[:20], **held), ring.admit(PROMPT[3:30])
    ring.decode(0, join=[first])
    ring.decode(1, join=[second])
    for _ in range(8):
        ring.decode(0)
        ring.decode(1)

    def begun(batch):
        there = ring._done(head, head.launch, ring.author.write(work=Decode(batch)))
        return ring._done(last, last.launch, there)

    away = {first: begun(0)}
    for turn in range(12):
        uid, other = (first, second) if turn % 2 == 0 else (second, first)
        away[other] = begun(1 - turn % 2)
        ring.text[uid] += ring._done(head, head.close, away[uid]).ids
    assert ring.text[first] == expected[:15]
