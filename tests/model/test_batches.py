"""Rows that share a batch keep the text that each has alone."""

import pytest
from model_families import EVERY_KIND, FAMILIES, reference_tokens
from model_rings import Ring, bounds_for
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.stage.caches import CacheStore
from sealring_protocol.codec.messages import Decode, Join, Open, Prefill, Row

from tests.rows import rows

LENGTHS = (40, 3, 17, 1, 29, 60, 2, 11)


def prompt_of(seed: int, length: int) -> list[int]:
    return [(seed * 97 + 7 * i * i + 3 * i) % 251 for i in range(length)]


PROMPTS = [prompt_of(seed, length) for seed, length in enumerate(LENGTHS)]


def mingled(ring: Ring, count: int, sampling: dict | None = None) -> list[list[int]]:
    """Texts of eight rows that join and leave at different steps, *count* tokens each."""
    waiting = list(range(len(PROMPTS)))
    uids: dict[int, int] = {}
    joins = {0: 3, 2: 1, 5: 2, 9: 2}
    live: list[int] = []
    tick = 0
    while waiting or live:
        fresh = [waiting.pop(0) for _ in range(min(joins.get(tick, 0), len(waiting)))]
        for i in fresh:
            uids[i] = ring.admit(PROMPTS[i], chunk=7, **(sampling or {}).get(i, {}))
        done = [uid for uid in live if len(ring.text[uid]) >= count + uid % 3]
        live = [uid for uid in live if uid not in done] + [uids[i] for i in fresh]
        if live:
            ring.decode(join=[uids[i] for i in fresh], evict=done)
        elif done:
            ring.evict(*done)
        tick += 1
    return [ring.text[uids[i]][:count] for i in range(len(PROMPTS))]


@pytest.mark.parametrize("family", EVERY_KIND)
@pytest.mark.parametrize(("world", "idle"), rows([(1, 0), (2, 0), (2, 9)], (2, 9)))
def test_eight_rows_that_come_and_go(models, references, family, world, idle):
    layers = FAMILIES[family]["num_hidden_layers"]
    ring = Ring(models[family], bounds_for(layers, world), idle=lambda: idle)
    expected = [reference_tokens(references[family], prompt, 20) for prompt in PROMPTS]
    assert mingled(ring, 20) == expected


def test_rows_that_fill_and_pass_their_windows_together(models, references):
    """Long enough that windows of 16 turn round more than once in a batch."""
    ring = Ring(models["llama-sliding"], (0, 2, 5))
    expected = [reference_tokens(references["llama-sliding"], p, 50) for p in PROMPTS]
    assert mingled(ring, 50) == expected


@pytest.mark.parametrize("family", ["llama", "gpt-oss"])
def test_a_prompt_of_one_token_alone_and_in_company(models, references, family):
    ring = Ring(models[family], (0, 2, FAMILIES[family]["num_hidden_layers"]))
    one, long = [5], prompt_of(3, 30)
    expected = reference_tokens(references[family], one, 12)
    assert ring.generate(one, 12) == expected
    first = ring.admit(one)
    second = ring.admit(long)
    ring.decode(join=[first, second])
    third = ring.admit(one)
    ring.decode(join=[third])
    for _ in range(12):
        ring.decode()
    assert ring.text[first][:12] == ring.text[third][:12] == expected
    assert ring.text[second][:12] == reference_tokens(references[family], long, 12)


def test_two_groups_do_not_touch_each_other(models, references):
    ring = Ring(models["qwen3"], (0, 2, 4))
    rows = [ring.admit(prompt) for prompt in PROMPTS[:4]]
    ring.decode(0, join=rows[:2])
    ring.decode(1, join=rows[2:])
    for _ in range(10):
        ring.decode(0)
        ring.decode(1)
    ring.evict(rows[0], rows[3])
    ring.decode(1)
    ring.decode(0)
    for uid, prompt in zip(rows, PROMPTS, strict=False):
        text = ring.text[uid]
        assert text == reference_tokens(references["qwen3"], prompt, len(text))


SAMPLING = {
    i: {"seed": 40 + i, "temperature": 0.9, **extra}
    for i, extra in enumerate(
        ({}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}, {}, {"top_k": 5, "top_p": 0.9})
    )
}


def test_sampled_text_is_the_same_alone_and_in_a_batch(models):
    """Six rows sample, each in its own way, and two are greedy."""
    alone = Ring(models["llama"], (0, 5))
    expected = [
        alone.generate(prompt, 20, **SAMPLING.get(i, {})) for i, prompt in enumerate(PROMPTS)
    ]
    assert mingled(Ring(models["llama"], (0, 2, 5)), 20, SAMPLING) == expected
    assert mingled(Ring(models["llama"], (0, 5)), 20, SAMPLING) == expected


def test_another_seed_or_choice_gives_another_text(models):
    ring = Ring(models["llama"])
    texts = {
        tuple(ring.generate(PROMPTS[0], 16, temperature=1.0, seed=seed, choice=choice))
        for seed in (1, 2)
        for choice in (0, 1)
    }
    assert len(texts) == 4


# --------------------------------------------------------- what is in flight


def test_launching_ahead_of_reading_gives_the_same_text(models, references):
    """One rank: each step is launched before the token of the one before has been read."""
    ring = Ring(models["llama"])
    executor, write = ring.executors[0], ring.author.write
    ring.params.add(Row(1))
    ring.params.add(Row(2))
    steps = [
        write(open=(Open(1), Open(2))),
        write(work=Prefill(1, 0, 39), ids=tuple(PROMPTS[0][:-1])),
        write(join=(Join(1, 0),), ids=(PROMPTS[0][-1],), work=Decode(0)),
        *(write(work=Decode(0)) for _ in range(4)),
        write(work=Prefill(2, 0, 16), ids=tuple(PROMPTS[2][:-1])),
        write(join=(Join(2, 0),), ids=(PROMPTS[2][-1],), work=Decode(0)),
        *(write(work=Decode(0)) for _ in range(4)),
        write(evict=(1,), work=Decode(0)),
        *(write(work=Decode(0)) for _ in range(4)),
    ]
    rows = [(), (), (1,), *[(1,)] * 4, (), *[(1, 2)] * 5, *[(2,)] * 5]
    in_flight, texts = [], {1: [], 2: []}
    for step in steps:
        in_flight.append(executor.launch(step))
    for item, uids in zip(in_flight, rows, strict=True):
        done = executor.finish(item)
        assert not done.failed
        for uid, token in zip(uids, done.ids, strict=True):
            texts[uid].append(token)
    assert texts[1] == reference_tokens(references["llama"], PROMPTS[0], 10)
    assert texts[2] == reference_tokens(references["llama"], PROMPTS[2], 10)


def test_a_row_may_leave_while_its_hidden_state_is_on_its_way(models, references):
    ring = Ring(models["llama"], (0, 2, 5))
    head, tail = ring.executors
    first, second = ring.admit(PROMPTS[0]), ring.admit(PROMPTS[2])
    ring.decode(join=[first, second])
    away = tail.finish(tail.launch(head.finish(head.launch(ring.author.write(work=Decode(0))))))
    ring.evict(first)
    done = head.finish(head.close(away))
    assert len(done.ids) == 2
    ring.text[second].append(done.ids[1])
    for _ in range(5):
        ring.decode()
    text = ring.text[second]
    assert text == reference_tokens(references["llama"], PROMPTS[2], len(text))


# --------------------------------------- the tests above have teeth: mutations


def differs(models, references) -> bool:
    ring = Ring(models["llama-sliding"], (0, 2, 5))
    expected = [reference_tokens(references["llama-sliding"], p, 20) for p in PROMPTS]
    return mingled(ring, 20) != expected


def test_reversing_the_joiners_is_seen(models, references, monkeypatch):
    import attrs

    real = CacheStore._regroup

    def reversed_joiners(self, group, regroup):
        real(self, group, attrs.evolve(regroup, joined=regroup.joined[::-1]))

    assert not differs(models, references)
    monkeypatch.setattr(CacheStore, "_regroup", reversed_joiners)
    assert differs(models, references)


@pytest.mark.parametrize("kind", ["BatchKVCache", "BatchRotatingKVCache"])
def test_forgetting_the_left_padding_is_seen(models, references, monkeypatch, kind):
    batched = getattr(mlx_lm("models.cache"), kind)
    real = batched.merge.__func__

    def unpadded(cls, caches):
        merged = real(cls, caches)
        merged.left_padding = merged.left_padding * 0
        return merged

    monkeypatch.setattr(batched, "merge", classmethod(unpadded))
    assert differs(models, references)


def test_keeping_the_wrong_rows_is_seen(models, references, monkeypatch):
    import attrs

    real = CacheStore._regroup

    def wrong(self, group, regroup):
        kept = tuple(sorted({(i + 1) % regroup.before for i in regroup.kept}))
        real(self, group, attrs.evolve(regroup, kept=kept))

    monkeypatch.setattr(CacheStore, "_regroup", wrong)
    assert differs(models, references)
