"""Snapshots, costs, and caches that go when their rows do."""

import gc

import mlx.core as mx
import pytest
from model_families import FAMILIES, reference_tokens
from model_rings import Ring, StepFailed, stage_of
from sealring_model.caches import cost_of, is_trimmable
from sealring_model.upstream import mlx_lm
from sealring_protocol.codec.messages import CacheCost, FailureKind, Open, Prefill, Row

PROMPT = [(5 * i * i + 11 * i) % 251 for i in range(50)]
OTHER = [*PROMPT[:30], *[(13 * i) % 251 for i in range(17)]]


def count(family: str) -> int:
    return FAMILIES[family]["num_hidden_layers"]


def open_from(ring: Ring, handle: int, keep: int, rest: list[int]) -> int:
    """A row that begins with *keep* tokens of a snapshot and reads *rest*; ready to join."""
    uid = next(ring.uids)
    ring.book.add(Row(uid))
    ring.step(open=(Open(uid, handle, keep),))
    ring.read(uid, rest[:-1], keep)
    ring.last[uid], ring.text[uid] = rest[-1], []
    return uid


def text_of(ring: Ring, uid: int, length: int) -> list[int]:
    ring.decode(join=[uid])
    for _ in range(length - 1):
        ring.decode()
    ring.evict(uid)
    return ring.text[uid]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exact_snapshot_continues_where_it_was_taken(models, references, family):
    ring = Ring(models[family], (0, 2, count(family)))
    uid = ring.admit([*PROMPT[:31]])
    handle = ring.save(uid)
    # The row goes on and must not disturb what was saved, nor be disturbed by who opens it.
    ring.read(uid, PROMPT[30:-1], 30)
    ring.last[uid] = PROMPT[-1]
    for _ in range(2):
        again = open_from(ring, handle, 30, OTHER[30:])
        assert text_of(ring, again, 12) == reference_tokens(references[family], OTHER, 12)
    assert text_of(ring, uid, 12) == reference_tokens(references[family], PROMPT, 12)
    ring.step(drop=(handle,))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("keep", [1, 17, 29])
def test_a_snapshot_of_plain_caches_can_be_cut(models, references, family, keep):
    ring = Ring(models[family], (0, 2, count(family)))
    handle = ring.save(ring.admit(PROMPT[:31]))
    prompt = [*PROMPT[:keep], *OTHER[30:]]
    row = open_from(ring, handle, keep, OTHER[30:])
    assert text_of(ring, row, 12) == reference_tokens(references[family], prompt, 12)


@pytest.mark.parametrize("family", ["llama-sliding", "gpt-oss", "gemma3"])
def test_a_snapshot_whose_windows_have_turned_cannot(models, family):
    ring = Ring(models[family], (0, 2, count(family)))
    handle = ring.save(ring.admit(PROMPT[:31]))
    with pytest.raises(StepFailed, match="cannot be cut to 29") as caught:
        open_from(ring, handle, 29, OTHER[30:])
    assert caught.value.args[0].kind is FailureKind.LEDGER


@pytest.mark.parametrize(
    ("family", "trimmable"),
    [("llama", True), ("qwen3", True), ("gpt-oss", False), ("gemma3", False)],
)
def test_whether_a_stage_can_cut_is_told_by_its_caches(models, family, trimmable):
    assert stage_of(models[family], 0, count(family)).trimmable is trimmable


# ---------------------------------------------------------------------- memory


def held() -> int:
    gc.collect()
    mx.clear_cache()
    return mx.get_active_memory()


@pytest.mark.parametrize("family", ["llama", "gpt-oss"])
def test_cancelling_in_the_middle_of_a_prefill_frees_all(models, family):
    ring = Ring(models[family], (0, 2, count(family)))
    ring.generate(PROMPT, 3)
    before = held()
    ring.step(open=(Open(1000),))
    ring.step(work=Prefill(1000, 0, 40), ids=tuple(PROMPT[:40]))
    assert held() > before
    assert ring.executors[0].live_rows == 1
    ring.step(drop=(1000,))
    assert held() == before
    assert [executor.cache_bytes for executor in ring.executors] == [0, 0]
    assert [executor.live_rows for executor in ring.executors] == [0, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_evicting_the_last_row_frees_all_and_the_group_can_begin_again(models, references, family):
    ring = Ring(models[family], (0, 2, count(family)))
    ring.generate(PROMPT, 3)
    before = held()
    first, second = ring.admit(PROMPT), ring.admit(OTHER)
    ring.decode(join=[first, second])
    assert held() > before
    ring.evict(first, second)
    assert held() == before
    assert ring.generate(OTHER, 8) == reference_tokens(references[family], OTHER, 8)


def test_a_group_that_empties_and_fills_in_one_step(models, references):
    ring = Ring(models["llama"], (0, 2, 5))
    first, second = ring.admit(PROMPT), ring.admit(OTHER)
    ring.decode(join=[first])
    ring.decode(join=[second], evict=[first])
    for _ in range(6):
        ring.decode()
    assert ring.text[second] == reference_tokens(references["llama"], OTHER, 7)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tokens", [1, 16, 300, 600])
def test_what_a_row_costs_is_what_it_is_charged(models, family, tokens):
    """The charge covers the real caches, and exceeds them by one step of growth at most."""
    ring = Ring(models[family], (0, 2, count(family)))
    prompt = [i % 251 for i in range(tokens + 1)]
    uid = ring.admit(prompt, chunk=16)
    ring.decode(join=[uid])
    for rank, executor in enumerate(ring.executors):
        bounds = ring.bounds[rank : rank + 2]
        cost = stage_of(models[family], *bounds).cost
        real = executor.cache_bytes
        assert real <= cost.of(tokens + 1)
        assert cost.of(tokens + 1) <= real + cost.fixed


def test_costs_come_from_the_shapes(models):
    """Keys and values of 2 heads of 16 in f32: 256 bytes per token and layer."""
    plain = stage_of(models["llama"], 0, 2).cost
    assert (plain.per_token, plain.windows) == (512, ())
    mixed = stage_of(models["llama-sliding"], 2, 5).cost
    assert (mixed.fixed, mixed.per_token, mixed.windows) == (256 * 256 + 2 * 256 * 16, 256, ())
    kinds = mlx_lm("models.cache")
    full = kinds.KVCache()
    windows = [kinds.RotatingKVCache(16), kinds.RotatingKVCache(1000)]
    for cache in (full, *windows):
        cache.update_and_fetch(mx.zeros((1, 2, 3, 8)), mx.zeros((1, 2, 3, 8)))
    assert cost_of([full, *windows]) == CacheCost(128 * (256 + 16 + 256), 128, ((744, 128),))
    assert not is_trimmable(windows)
    assert is_trimmable([full])
