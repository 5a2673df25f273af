"""Log probabilities: from the raw logits, the likeliest first, whatever the company."""

import math

import mlx.core as mx
import pytest
from model_families import reference_tokens
from model_rings import Ring
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.sampling import rows
from sealring_model.sampling.scores import logprobs_of
from sealring_protocol.codec.messages import Row
from test_batches import PROMPTS


def logits_of(rows: int, size: int = 50) -> mx.array:
    return mx.random.normal((rows, size), key=mx.random.key(5)) * 3


def by_hand(logits: list[float]) -> list[float]:
    top = max(logits)
    norm = top + math.log(sum(math.exp(x - top) for x in logits))
    return [x - norm for x in logits]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_chosen_and_the_likeliest(dtype):
    logits = logits_of(4).astype(dtype)
    asked = [Row(1, logprobs=20), Row(2), Row(3, logprobs=0), Row(4, logprobs=2)]
    tokens = mx.array([7, 8, 9, 10], mx.uint32)
    told = logprobs_of(logits, asked, tokens)
    messages = told.messages(6)
    assert [(m.n, m.uid, len(m.ids)) for m in messages] == [(6, 1, 20), (6, 3, 0), (6, 4, 2)]
    for message, at in zip(messages, (0, 2, 3), strict=True):
        exact = by_hand(logits[at].tolist())
        assert message.chosen == pytest.approx(exact[7 + at], abs=1e-5)
        likeliest = sorted(range(50), key=lambda i: -exact[i])[: len(message.ids)]
        assert message.values == pytest.approx([exact[i] for i in likeliest], abs=1e-5)
        if dtype is mx.float32:
            assert list(message.ids) == likeliest


def test_a_vocabulary_smaller_than_what_is_asked_for():
    told = logprobs_of(logits_of(1, 6), [Row(1, logprobs=20)], mx.array([0], mx.uint32))
    assert sorted(told.messages(1)[0].ids) == list(range(6))


def test_rows_that_want_none_cost_nothing(models, monkeypatch):
    monkeypatch.setattr(rows, "logprobs_of", None)
    ring = Ring(models["llama"], (0, 5))
    uid = ring.admit(PROMPTS[0])
    ring.decode(join=[uid])
    assert len(ring.text[uid]) == 1


@pytest.mark.parametrize("bounds", [(0, 5), (0, 2, 5)])
def test_those_of_a_text_in_a_batch_are_the_models_own(models, references, bounds):
    """They are of the logits before anything is done to them: another row's, a bias, a cut."""
    ring = Ring(models["llama"], bounds)
    plain = ring.admit(PROMPTS[0], logprobs=4)
    others = [
        ring.admit(PROMPTS[2], temperature=0.7, seed=1, top_k=5, repetition=1.5, logprobs=0),
        ring.admit(PROMPTS[4]),
    ]
    ring.decode(join=[plain, *others])
    for _ in range(7):
        ring.decode()
    assert ring.text[plain] == reference_tokens(references["llama"], PROMPTS[0], 8)
    assert set(ring.told) == {plain, others[0]}
    for uid, prompt in ((plain, PROMPTS[0]), (others[0], PROMPTS[2])):
        text = ring.text[uid]
        cache = mlx_lm("models.cache").make_prompt_cache(references["llama"])
        logits = references["llama"](mx.array([[*prompt, *text[:-1]]]), cache=cache)[0]
        exact = [by_hand(line) for line in logits[len(prompt) - 1 :].tolist()]
        assert len(ring.told[uid]) == len(text)
        for message, token, line in zip(ring.told[uid], text, exact, strict=True):
            assert message.chosen == pytest.approx(line[token], abs=1e-3)
            assert message.values == pytest.approx(
                sorted(line, reverse=True)[: len(message.values)], abs=1e-3
            )
