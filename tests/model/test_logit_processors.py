"""Bias and penalties: the rule, and that a row's are its own in any company."""

import attrs
import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_families import reference_tokens
from model_rings import Ring, StepFailed
from sealring_model.sampling.draw import LogitProcessors
from sealring_protocol.codec.messages import Decode, FailureKind, Join, Open, Prefill, Row
from test_batches import PROMPTS, mingled

SIZE = 12


def by_the_rule(row: Row, output: list[int], logits: list[float]) -> list[float]:
    """vLLM's rule, token by token; *output* is what was drawn since the row's history."""
    logits = list(logits)
    for token, value in row.bias:
        logits[token] += value
    given_ = row.history[: len(row.history) - row.generated]
    said = [*row.history[len(given_) :], *output]
    for token in range(SIZE):
        if token in given_ or token in said:
            positive = logits[token] > 0
            logits[token] *= 1 / row.repetition if positive else row.repetition
        logits[token] -= row.frequency * said.count(token) + row.presence * (token in said)
    return logits


tokens = st.integers(0, SIZE - 1)
strength = st.sampled_from((0.0, 0.0, 0.5, -1.5))


@st.composite
def rows(draw) -> Row:
    row = Row(
        draw(st.integers(1, 1000)),
        repetition=draw(st.sampled_from((1.0, 1.0, 1.3, 0.8))),
        presence=draw(strength),
        frequency=draw(strength),
        bias=tuple(
            draw(st.dictionaries(tokens, st.sampled_from((-100.0, 2.5)), max_size=3)).items()
        ),
    )
    if not row.penalised:
        return row
    history = draw(st.lists(tokens, max_size=9))
    generated = draw(st.integers(0, len(history)))
    return attrs.evolve(row, history=tuple(history), generated=generated)


def logits_of(count: int, seed: int) -> mx.array:
    return 3 * mx.random.normal((count, SIZE), key=mx.random.key(seed))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_rows_that_come_and_go_are_each_adjusted_by_the_rule_and_as_if_alone(data):
    """One group of the rows, and one group for each row alone, of the same draws."""
    everyone = data.draw(st.lists(rows(), min_size=1, max_size=5))
    processors = LogitProcessors(SIZE)
    said: dict[int, list[int]] = {i: [] for i in range(len(everyone))}
    left = set(said)
    for seed in range(4):
        present = data.draw(st.lists(st.sampled_from(sorted(left)), min_size=1, unique=True))
        # Who has left comes back as another: its history goes with it.
        left -= {i for i in left if i not in present and said[i]}
        company = tuple(everyone[i] for i in present)
        logits = logits_of(len(present), seed)
        drawn = mx.array(data.draw(st.lists(tokens, min_size=len(present), max_size=len(present))))
        processor = processors.take(0, company)
        adjusted = logits if processor is None else processor.apply(logits)
        if processor is not None:
            processors.put(0, processor.after(drawn))
        for at, i in enumerate(present):
            one = logits[at : at + 1]
            alone = processors.take(100 + i, (everyone[i],))
            if alone is not None:
                one = alone.apply(one)
                processors.put(100 + i, alone.after(drawn[at : at + 1]))
            assert mx.array_equal(adjusted[at : at + 1], one)
            expected = by_the_rule(everyone[i], said[i], logits[at].tolist())
            assert one[0].tolist() == pytest.approx(expected, abs=1e-4)
            said[i].append(int(drawn[at].item()))


def test_a_group_that_asks_for_nothing_has_nothing(monkeypatch):
    processors = LogitProcessors(SIZE)
    monkeypatch.setattr(mx, "zeros", None)
    monkeypatch.setattr(mx, "concatenate", None)
    assert processors.take(0, (Row(1), Row(2, temperature=1.0, logprobs=3))) is None


def test_the_logits_stay_as_they_were():
    """Log probabilities are told of them."""
    logits = logits_of(1, 1)
    before = logits.tolist()
    row = Row(1, bias=((3, 50.0),), repetition=2.0, history=(4, 5))
    processor = LogitProcessors(SIZE).take(0, (row,))
    assert processor is not None
    assert mx.argmax(processor.apply(logits)).item() == 3
    assert logits.tolist() == before


# -------------------------------------------------------------------- in a ring

PENALTIES = {
    0: {"repetition": 1.6},
    1: {"frequency": 1.5},
    2: {"presence": 2.0, "temperature": 0.9, "seed": 3},
    3: {"repetition": 1.3, "presence": 0.5, "frequency": 0.5},
    5: {"bias": ((17, 4.0), (23, -100.0)), "temperature": 0.8, "seed": 4, "top_p": 0.9},
    6: {"repetition": 0.8, "bias": ((9, 3.0),)},
}


@pytest.fixture(scope="module")
def alone(models):
    ring = Ring(models["llama"])
    return [ring.generate(p, 20, **PENALTIES.get(i, {})) for i, p in enumerate(PROMPTS)]


def test_a_penalised_text_is_the_same_alone_and_in_a_batch(models, references, alone):
    plain = [reference_tokens(references["llama"], prompt, 20) for prompt in PROMPTS]
    changed = [i for i in range(len(PROMPTS)) if alone[i] != plain[i]]
    assert changed == sorted(PENALTIES), "penalties that change nothing test nothing"
    assert mingled(Ring(models["llama"], (0, 2, 5)), 20, PENALTIES) == alone
    assert mingled(Ring(models["llama"], (0, 5)), 20, PENALTIES) == alone


@pytest.mark.parametrize("bounds", [(0, 5), (0, 2, 5)])
def test_a_penalised_row_that_is_read_in_again_goes_on_as_before(models, alone, bounds):
    """From its history; under the same number, opened in the step that evicts it."""
    ring = Ring(models["llama"], bounds)
    uids = [ring.admit(PROMPTS[i], **PENALTIES[i]) for i in (0, 3)]
    ring.decode(join=uids)
    for _ in range(5):
        ring.decode()
    tokens = [*PROMPTS[3], *ring.text[uids[1]]]
    ring.announce(uids[1], tokens, 6, **PENALTIES[3])
    ring.step(evict=(uids[1],), open=(Open(uids[1]),))
    ring.decode()
    ring.read(uids[1], tokens[:-1], 0)
    ring.decode(join=[uids[1]])
    for _ in range(12):
        ring.decode()
    assert ring.text[uids[0]] == alone[0]
    assert ring.text[uids[1]] == alone[3][:19]


def test_a_penalised_row_is_launched_ahead_of_reading(models, alone):
    """One rank: the counts follow tokens that nobody has read."""
    ring = Ring(models["llama"])
    executor, write = ring.executors[0], ring.author.write
    ring.announce(1, PROMPTS[0], **PENALTIES[0])
    ring.announce(2, PROMPTS[3], **PENALTIES[3])
    steps = [
        write(open=(Open(1), Open(2))),
        write(work=Prefill(1, 0, 39), ids=tuple(PROMPTS[0][:-1])),
        write(join=(Join(1, 0), Join(2, 0)), ids=(PROMPTS[0][-1], PROMPTS[3][-1]), work=Decode(0)),
    ]
    steps += [write(work=Decode(0)) for _ in range(19)]
    answers = [executor.finish(item) for item in [executor.launch(step) for step in steps]]
    texts = list(zip(*(done.ids for done in answers if done.ids), strict=True))
    assert [list(text) for text in texts] == [alone[0], alone[3]]


def test_a_row_may_come_back_while_a_draw_of_its_former_life_is_away(models, alone):
    """The former draw is as it would have been; the new row begins with its own history."""
    ring = Ring(models["llama"], (0, 2, 5))
    head, tail = ring.executors
    uids = [ring.admit(PROMPTS[i], **PENALTIES[i]) for i in (0, 3)]
    ring.decode(join=uids)
    away = tail.finish(tail.launch(head.finish(head.launch(ring.author.write(work=Decode(0))))))
    ring.announce(uids[1], PROMPTS[3], **PENALTIES[3])
    ring.step(evict=(uids[1],), open=(Open(uids[1]),))
    done = head.finish(head.close(away))
    assert list(done.ids) == [alone[0][1], alone[3][1]]
    ring.text[uids[0]].append(done.ids[0])
    ring.text[uids[1]], ring.last[uids[1]] = [], PROMPTS[3][-1]
    ring.decode(join=[uids[1]])
    for _ in range(9):
        ring.decode()
    assert ring.text[uids[0]] == alone[0][:12]
    assert ring.text[uids[1]] == alone[3][:10]


@pytest.mark.parametrize(
    "row", [Row(50, bias=((256, 1.0),)), Row(50, repetition=1.1, history=(3, 256))]
)
def test_a_token_beyond_the_vocabulary_ends_the_epoch_and_no_memory_is_touched(models, row):
    ring = Ring(models["llama"])
    ring.params.add(row)
    ring.step(open=(Open(50),))
    with pytest.raises(StepFailed, match="256 is beyond the vocabulary") as caught:
        ring.step(join=(Join(50, 1),), ids=(4,), work=Decode(1))
    assert caught.value.args[0].kind is FailureKind.LEDGER
