"""Scores of prompts: those of mlx-lm's own forward over all of the prompt at once, however it is
read, and wherever its layers are."""

import itertools

import mlx.core as mx
import pytest
from model_collectives import Members
from model_families import EVERY_FAMILY, FAMILIES, reference_model
from model_rings import Ring, StepFailed
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.sampling import scores
from sealring_protocol.codec.messages import Prefill
from sealring_protocol.limits import MAX_SCORES

PROMPT = [(7 * i * i + 3 * i) % 251 for i in range(60)]
CHUNKS = ([59], [20, 20, 19], [1] * 5 + [54])
K = 3


def exact(model, prompt: list[int]) -> mx.array:
    """mlx-lm's own log probabilities ``(tokens, vocabulary)`` in each place of *prompt*, given all
    tokens before it."""
    cache = mlx_lm("models.cache").make_prompt_cache(model)
    logits = model(mx.array([prompt[:-1]]), cache=cache)[0].astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def check(told: list, prompt: list[int], lines: mx.array, tolerance: float = 1e-3) -> None:
    """*told* are the scores of *prompt*, in order, as *lines* have them."""
    places = list(itertools.chain(*(range(some.position, some.end) for some in told)))
    assert places == list(range(1, len(prompt)))
    chosen, ranks, ids, values = (
        list(itertools.chain(*(getattr(some, name) for some in told)))
        for name in ("chosen", "ranks", "ids", "values")
    )
    assert all(some.alternatives == K for some in told)
    for at, line in enumerate(lines.tolist()):
        token, others = prompt[at + 1], slice(K * at, K * at + K)
        assert chosen[at] == pytest.approx(line[token], abs=tolerance)
        assert values[others] == pytest.approx(sorted(line, reverse=True)[:K], abs=tolerance)
        assert [line[other] for other in ids[others]] == pytest.approx(
            values[others], abs=tolerance
        )
        likelier = sum(value > line[token] + tolerance for value in line)
        likely = sum(value > line[token] - tolerance for value in line)
        assert likelier < ranks[at] <= likely


def figures(told: list) -> list:
    return [
        [value for some in told for value in getattr(some, name)]
        for name in ("chosen", "ranks", "ids", "values")
    ]


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_they_are_those_of_one_forward_however_the_prompt_is_read(models, references, family):
    lines = exact(references[family], PROMPT)
    layers = FAMILIES[family]["num_hidden_layers"]
    cuts = [(0, layers), (0, 2, layers), (0, 2, layers - 1, layers)]
    for bounds in cuts:
        ring = Ring(models[family], bounds, seal=len(bounds) == 4)
        for chunks in CHUNKS:
            check(ring.score(PROMPT, chunks, logprobs=K), PROMPT, lines)
        assert not ring.told


@pytest.mark.parametrize("bounds", [(0, 5), (0, 2, 5)])
def test_logits_are_made_in_slices_and_messages_are_bounded(
    models, references, bounds, monkeypatch
):
    prompt = [*PROMPT * 5, 1]
    lines = exact(references["llama"], prompt)
    monkeypatch.setattr(scores, "SLICE", 4 * 256 * 7)
    widths = []
    whole = mx.logsumexp
    monkeypatch.setattr(mx, "logsumexp", lambda x, **how: widths.append(len(x)) or whole(x, **how))
    told = Ring(models["llama"], bounds).score(prompt, [300], logprobs=K)
    assert widths == [7] * 42 + [6]
    assert [len(some.chosen) for some in told] == [MAX_SCORES, 300 - MAX_SCORES]
    check(told, prompt, lines)


@pytest.mark.parametrize("bounds", [(0, 5), (0, 2, 5)])
def test_rows_that_want_no_log_probabilities_are_told_none(models, bounds):
    assert Ring(models["llama"], bounds).score(PROMPT, [59]) == []


@pytest.mark.parametrize("bounds", [(0, 5), (0, 2, 5)])
def test_reading_goes_on_as_after_any_prompt(models, bounds, alone):
    """A row is scored, another reads the same; both draw the same text."""
    ring = Ring(models["llama"], bounds)
    uid = ring.admit(PROMPT[:1])
    ring.announce(uid, PROMPT, logprobs=K)
    ring.step(work=Prefill(uid, 0, 59, scored=True), ids=tuple(PROMPT))
    ring.last[uid] = PROMPT[-1]
    ring.decode(join=[uid])
    for _ in range(7):
        ring.decode()
    assert ring.text[uid] == alone("llama", tuple(PROMPT), 0)[:8]


@pytest.mark.parametrize("short", [-1, 1])
def test_a_step_with_other_ids_than_it_reads_and_scores_fails(models, short):
    ring = Ring(models["llama"])
    uid = ring.admit(PROMPT[:1], logprobs=K)
    with pytest.raises(StepFailed, match="token ids"):
        ring.step(work=Prefill(uid, 0, 20, scored=True), ids=tuple(PROMPT[: 21 + short]))


@pytest.mark.slow
def test_members_of_a_collective_gather_a_divided_head(sharded):
    """The first member alone tells."""
    lines = exact(reference_model(sharded["llama"]), PROMPT)
    with Members(sharded["llama"]) as members:
        for chunks in CHUNKS[:2]:
            check(members.score(PROMPT, chunks, logprobs=K), PROMPT, lines)


@pytest.mark.parametrize("family", ["llama", "gpt-oss"])
def test_in_f32_on_a_cpu_their_bits_are_the_same_whatever_the_chunks_and_the_ranks(models, family):
    if mx.default_device().type != mx.DeviceType.cpu:
        pytest.skip("a GPU sums in an order that depends on the shape")
    layers = FAMILIES[family]["num_hidden_layers"]
    seen = [
        figures(Ring(models[family], bounds).score(PROMPT, chunks, logprobs=K))
        for bounds in ((0, layers), (0, 2, layers))
        for chunks in (*CHUNKS, [32, 27], [2, 57])
    ]
    assert all(one == seen[0] for one in seen)
