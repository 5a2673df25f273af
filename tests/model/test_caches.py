"""Snapshots, costs, and caches that go when their rows do."""

import gc
import io

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_families import (
    EVERY_KIND,
    FAMILIES,
    config_of,
    make_model,
    random_weights,
    reference_tokens,
    write_model,
)
from model_rings import Ring, StepFailed, stage_of
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.stage.caches import Undo, cost_of, extended, is_trimmable
from sealring_protocol.codec.messages import CacheCost, Decode, FailureKind, Join, Open, Prefill

from tests.rows import rows

PROMPT = [(5 * i * i + 11 * i) % 251 for i in range(50)]
OTHER = [*PROMPT[:30], *[(13 * i) % 251 for i in range(17)]]


def count(family: str) -> int:
    return FAMILIES[family]["num_hidden_layers"]


def text_of(ring: Ring, uid: int, length: int) -> list[int]:
    ring.decode(join=[uid])
    for _ in range(length - 1):
        ring.decode()
    ring.evict(uid)
    return ring.text[uid]


@pytest.mark.parametrize("family", rows([*FAMILIES], "gpt-oss", "qwen3-next"))
def test_an_exact_snapshot_continues_where_it_was_taken(models, references, family):
    ring = Ring(models[family], (0, 2, count(family)))
    uid = ring.admit([*PROMPT[:31]])
    handle = ring.save(uid)
    # The row goes on and must not disturb what was saved, nor be disturbed by who opens it.
    ring.read(uid, PROMPT[30:-1], 30)
    ring.last[uid] = PROMPT[-1]
    for _ in range(2):
        again = ring.open_from(handle, 30, OTHER)
        assert text_of(ring, again, 12) == reference_tokens(references[family], OTHER, 12)
    assert text_of(ring, uid, 12) == reference_tokens(references[family], PROMPT, 12)
    ring.step(drop=(handle,))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("keep", [1, 17, 29])
def test_a_snapshot_of_plain_caches_can_be_cut(models, references, family, keep):
    ring = Ring(models[family], (0, 2, count(family)))
    handle = ring.save(ring.admit(PROMPT[:31]))
    prompt = [*PROMPT[:keep], *OTHER[30:]]
    row = ring.open_from(handle, keep, prompt)
    assert text_of(ring, row, 12) == reference_tokens(references[family], prompt, 12)


@pytest.mark.parametrize("family", ["llama-sliding", "gpt-oss", "gemma3"])
def test_a_snapshot_whose_windows_have_turned_cannot(models, family):
    ring = Ring(models[family], (0, 2, count(family)))
    handle = ring.save(ring.admit(PROMPT[:31]))
    with pytest.raises(StepFailed, match="cannot be cut to 29") as caught:
        ring.open_from(handle, 29, OTHER[:29] + OTHER[30:])
    assert caught.value.args[0].kind is FailureKind.LEDGER


@pytest.mark.parametrize(
    ("family", "trimmable"),
    [("llama", True), ("qwen3", True), ("gpt-oss", False), ("gemma3", False)],
)
def test_whether_a_stage_can_cut_is_told_by_its_caches(models, family, trimmable):
    assert stage_of(models[family], 0, count(family)).trimmable is trimmable


@pytest.mark.parametrize("family", EVERY_KIND)
def test_a_row_saved_out_of_its_group_continues_where_it_was(models, references, family):
    """The longest, the shortest and one between, before and after windows have turned; the others
    go on, and so does the row that opens the snapshot, twice."""
    ring = Ring(models[family], (0, 2, count(family)))
    prompts = [PROMPT[:12], PROMPT[3:6], OTHER[:9]]
    uids = [ring.admit(prompt) for prompt in prompts]
    ring.decode(join=uids)
    handles: list[tuple[int, list[int]]] = []
    for at, decodes in ((1, 3), (2, 9), (0, 12)):
        for _ in range(decodes):
            ring.decode()
        said = ring.text[uids[at]]
        handles.append((ring.save(uids[at], evict=[uids[at]]), [*prompts[at], *said]))
    for handle, tokens in handles:
        assert ring.author.ledger.snaps[handle] == len(tokens) - 1
        expected = reference_tokens(references[family], [*tokens, *OTHER[20:26]], 6)
        for _ in range(2):
            again = ring.open_from(handle, len(tokens) - 1, [*tokens, *OTHER[20:26]])
            assert text_of(ring, again, 6) == expected
    for at, prompt in enumerate(prompts):
        text = ring.text[uids[at]]
        assert text == reference_tokens(references[family], prompt, len(text))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_row_saved_out_of_its_group_can_be_cut(models, references, family):
    ring = Ring(models[family], (0, 2, count(family)))
    uids = [ring.admit(PROMPT[:12]), ring.admit(OTHER)]
    ring.decode(join=uids)
    for _ in range(8):
        ring.decode()
    handle = ring.save(uids[0])
    prompt = [*PROMPT[:12], *ring.text[uids[0]][:3], *OTHER[30:]]
    expected = reference_tokens(references[family], prompt, 8)
    assert text_of(ring, ring.open_from(handle, 15, prompt), 8) == expected


def write(cache, tokens: int, value: int) -> None:
    """Write so many *tokens* of one layer, the first as *value*."""
    one = mx.arange(value, value + tokens, dtype=mx.float32).reshape(1, 1, tokens, 1)
    cache.update_and_fetch(one, one)


def in_order(cache) -> list[float]:
    """The keys that a rotating *cache* has, the oldest first."""
    return cache._temporal_order(cache.keys_and_values()[0]).flatten().tolist()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("written", range(1, 12))
def test_guesses_are_taken_back_on_either_side_of_a_windows_edge(written, count):
    window = 8
    kind = mlx_lm("models.cache").RotatingKVCache
    cache, same, undo = kind(window), kind(window), Undo()
    for token in range(written):
        write(cache, 1, token)
        write(same, 1, token)
    for guess in range(count):
        undo.keep([cache], Decode(0, guess + 1))
        write(cache, 1, 100 + guess)
    undo.take_back(0, [cache], count)
    for token in range(written, written + window):
        assert in_order(cache) == in_order(same)
        write(cache, 1, token)
        write(same, 1, token)


@pytest.mark.parametrize("family", ["llama-sliding", "gpt-oss"])
def test_a_prompt_that_is_read_one_by_one_past_its_windows(models, references, family):
    """A window that is just full and has turned stays as it is after a chunk."""
    ring = Ring(models[family], (0, 2, count(family)))
    uid = ring.admit(PROMPT, chunk=1)
    assert text_of(ring, uid, 12) == reference_tokens(references[family], PROMPT, 12)


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


@pytest.mark.parametrize("family", EVERY_KIND)
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


@pytest.mark.parametrize(
    "family",
    rows(["llama", "llama-sliding", "gpt-oss", "qwen3-next"], "llama", "gpt-oss"),
)
@pytest.mark.parametrize("decoded", rows([False, True], True))
def test_a_snapshot_holds_its_own_memory_and_no_more(models, family, decoded):
    """Not the rectangle that it was cut from, even where the row lies there in one piece, nor a
    row that was opened from a part of a snapshot the whole."""
    ring = Ring(models[family], (0, count(family)))
    ring.generate(PROMPT, 3)
    before = held()
    tokens = [i % 251 for i in range(301)]
    uids = [ring.admit(tokens[: 1 if i else 301], chunk=256) for i in range(24)]
    ring.step(join=tuple(Join(uid, 0) for uid in uids), ids=(7,) * 24)
    if decoded:
        ring.decode()
    handle = ring.save(uids[0], evict=uids)
    cost = stage_of(models[family], 0, count(family)).cost
    exact = cost.of(300) - 256 * cost.per_token
    # MLX copies a view into memory of its own when it would hold 16 KiB beside it.
    assert exact <= held() - before <= exact + 2 * count(family) * SLACK
    if family == "llama":
        uid = ring.open_from(handle, 10, tokens[:12])
        ring.step(drop=(handle,))
        assert held() - before <= cost.of(11) + SLACK
        ring.step(drop=(uid,))
    else:
        ring.step(drop=(handle,))
    assert held() - before <= SLACK


SLACK = 16 * 1024
"""Bytes of small arrays that a test's own steps leave: tokens, offsets."""


# ----------------------------------------------------------------------- costs


@pytest.mark.parametrize("family", EVERY_KIND)
def test_what_rows_cost_is_what_they_are_charged(models, family):
    """Alone, a row is charged what its caches take and a step of growth at most; rows of a group,
    as many times the longest, within 3 percent when the rectangle has just grown."""
    ring = Ring(models[family], (0, 2, count(family)))
    for tokens in (15, 300, 700):
        prompt = [i % 251 for i in range(tokens + 1)]
        uids = [ring.admit(prompt, chunk=256)]
        for cost, taken in charged(ring, models[family]):
            assert taken <= cost.of(tokens) <= taken + cost.fixed
        uids += [ring.admit(prompt[:length]) for length in (tokens // 2, 5)]
        ring.decode(join=uids)
        for cost, taken in charged(ring, models[family]):
            assert taken <= 3 * cost.of(tokens + 1) <= 1.03 * taken
        ring.evict(*uids)


def charged(ring: Ring, folder):
    """Each rank's cost of a row, and the bytes of all its caches."""
    for rank, executor in enumerate(ring.executors):
        yield stage_of(folder, *ring.bounds[rank : rank + 2]).cost, executor.cache_bytes


@pytest.mark.parametrize("family", ["llama-sliding", "gpt-oss"])
def test_a_window_wider_than_a_step_is_charged_as_it_fills(tmp_path, family):
    folder = make_model(tmp_path / family, family, sliding_window=400)
    ring = Ring(folder, (0, count(family)))
    for tokens in (100, 200, 380, 700):
        prompt = [i % 251 for i in range(tokens + 1)]
        uids = [ring.admit(prompt, chunk=256), ring.admit(prompt[:9])]
        for cost, taken in charged(ring, folder):
            assert taken <= cost.of(tokens) + cost.of(8)
        ring.decode(join=uids)
        for cost, taken in charged(ring, folder):
            assert taken <= 2 * cost.of(tokens + 1) <= 1.03 * taken
        ring.evict(*uids)


def test_a_group_grows_by_steps_within_what_it_is_charged(models):
    ring = Ring(models["llama"], (0, 1, 5))
    ring.decode(join=[ring.admit([1] * 5), ring.admit([1] * 9)])
    sizes = set()
    for length in range(10, 270):
        ring.decode()
        for cost, taken in charged(ring, models["llama"]):
            assert taken <= 2 * cost.of(length) <= taken + 2 * cost.fixed
        sizes.add(ring.executors[0].cache_bytes)
    assert len(sizes) == 2


def test_costs_come_from_the_shapes(models):
    """Keys and values of 2 heads of 16 in f32: 256 bytes per token and layer."""
    plain = stage_of(models["llama"], 0, 2).cost
    assert (plain.per_token, plain.windows) == (512, ())
    mixed = stage_of(models["llama-sliding"], 2, 5).cost
    assert (mixed.fixed, mixed.per_token, mixed.windows) == (256 * 256 + 2 * 256 * 16, 256, ())
    kinds = mlx_lm("models.cache")
    full = kinds.KVCache()
    windows = [kinds.RotatingKVCache(size) for size in (16, 256, 1000)]
    for cache in (full, *windows):
        cache.update_and_fetch(mx.zeros((1, 2, 3, 8)), mx.zeros((1, 2, 3, 8)))
    assert cost_of([full, *windows]) == CacheCost(128 * (256 + 16 + 256 + 256), 128, ((744, 128),))
    assert not is_trimmable(windows)
    assert is_trimmable([full])


def test_offsets_that_nobody_reads_do_not_pile_up(tmp_path):
    """A layer without rotary positions has its cache count tokens and never asks."""
    config = {**config_of("llama", num_hidden_layers=2), "model_type": "smollm3"}
    config["no_rope_layers"] = [1, 0]
    ring = Ring(write_model(tmp_path / "smollm3", config, random_weights(config)))
    ring.decode(join=[ring.admit(PROMPT[:5]), ring.admit(PROMPT[:5])])
    for _ in range(200):
        ring.decode()
    graph = io.StringIO()
    mx.export_to_dot(graph, *(cache.offset for cache in ring.executors[0]._caches.batch(0)))
    assert 0 < graph.getvalue().count("Add") <= 64 + 2


def kinds_of(ring: Ring) -> set[str]:
    return {type(cache).__name__ for cache in ring.executors[0]._caches.batch(0)}


def test_a_row_alone_in_its_group_has_no_batch(models, references):
    """It keeps its private caches; others make a batch of it, and it gets them back after."""
    model, reference = models["llama"], references["llama"]
    ring = Ring(model)
    first = ring.admit(PROMPT)
    ring.decode(join=[first])
    ring.decode()
    assert kinds_of(ring) == {"KVCache"}
    second = ring.admit(OTHER)
    ring.decode(join=[second])
    assert kinds_of(ring) == {"BatchKVCache"}
    ring.decode()
    ring.decode(evict=[first])
    assert kinds_of(ring) == {"KVCache"}
    handle = ring.save(second)
    third = ring.admit(PROMPT)
    ring.decode(join=[third], evict=[second])
    assert kinds_of(ring) == {"KVCache"}
    again = ring.open_from(handle, len(OTHER) + 2, [*OTHER, *ring.text[second]])
    ring.decode(join=[again])
    texts = ring.text[first], [*ring.text[second], *ring.text[again]], ring.text[third]
    for text, prompt in zip(texts, (PROMPT, OTHER, PROMPT), strict=True):
        assert text == reference_tokens(reference, prompt, len(text))


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.integers(0, 600),
    st.lists(st.integers(1, 300), min_size=1, max_size=2),
)
@settings(max_examples=30, deadline=None)
def test_rows_that_join_a_batch_stand_where_mlx_lm_puts_them(lengths, decoded, joining):
    cache = mlx_lm("models.cache")

    def rows(lengths):
        found = []
        for length in lengths:
            found.append(cache.KVCache())
            keys = mx.random.normal((1, 2, length, 4))
            found[-1].update_and_fetch(keys, keys + 1)
        return found

    def batch(rows):
        found = cache.KVCache.merge(rows)
        if decoded:
            keys = mx.arange(len(rows) * 2 * decoded * 4, dtype=mx.float32)
            keys = keys.reshape(len(rows), 2, decoded, 4)
            found.update_and_fetch(keys, keys + 1)
        return found

    live, new = rows(lengths), rows(joining)
    ours, theirs = batch(live), batch(live)
    (found,) = extended([ours], [cache.KVCache.merge(new)])
    theirs.extend(cache.KVCache.merge(new))
    assert found is ours
    for token in range(3):
        assert ours._idx == theirs._idx
        for one, other in zip(ours.keys_and_values(), theirs.keys_and_values(), strict=True):
            assert mx.array_equal(one, other)
        assert mx.array_equal(ours.offset, theirs.offset)
        assert mx.array_equal(ours.left_padding, theirs.left_padding)
        assert mx.array_equal(ours.make_mask(1), theirs.make_mask(1))
        size = ours.keys.shape[2]
        keys = mx.full((len(live) + len(new), 2, 1, 4), float(token))
        for each in (ours, theirs):
            each.update_and_fetch(keys, keys)
        assert token or ours.keys.shape[2] == size  # it has room for it
