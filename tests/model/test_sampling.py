import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_model.sampling.draw import row_key, sample
from sealring_model.sampling.rows import LastTokens
from sealring_protocol.codec.messages import Row

SIZE = 50
ROWS = [
    Row(1),
    Row(2, seed=5, temperature=1.0),
    Row(3, seed=6, temperature=0.7, top_k=3),
    Row(4, seed=7, temperature=1.3, top_p=0.6),
    Row(5, seed=8, temperature=1.0, min_p=0.1),
    Row(6, seed=9, temperature=2.0, top_k=20, top_p=0.9, min_p=0.02),
    Row(7),
    Row(8, seed=5, choice=1, temperature=1.0),
]


def logits_of(rows: int, seed: int = 3) -> mx.array:
    return mx.random.normal((rows, SIZE), key=mx.random.key(seed)) * 3


def test_greedy_is_the_plain_argmax_and_sorts_nothing(monkeypatch):
    monkeypatch.setattr(mx, "sort", None)
    monkeypatch.setattr(mx.random, "gumbel", None)
    logits = logits_of(3)
    tokens = sample(logits, [Row(1), Row(2), Row(3)], [4, 5, 6])
    assert tokens.tolist() == mx.argmax(logits, axis=-1).tolist()


@settings(deadline=None, max_examples=40)
@given(st.permutations(range(8)), st.integers(1, 8), st.integers(0, 1000))
def test_a_row_draws_the_same_alone_and_in_any_company(order, count, position):
    logits = logits_of(8)
    picked = order[:count]
    together = sample(
        logits[mx.array(picked)], [ROWS[i] for i in picked], [position + i for i in picked]
    ).tolist()
    alone = [sample(logits[i : i + 1], [ROWS[i]], [position + i]).item() for i in picked]
    assert together == alone


def draws(logits: mx.array, row: Row, count: int) -> list[int]:
    return [int(sample(logits, [row], [position]).item()) for position in range(count)]


def test_frequencies_follow_the_softmax():
    logits = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))
    tokens = draws(logits, Row(1, seed=1, temperature=1.0), 2000)
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert tokens.count(token) / 2000 == pytest.approx(share, abs=0.04)


def test_temperature_sharpens_and_flattens():
    logits = mx.array([[2.0, 1.0, 0.0]])
    cold, warm = (
        draws(logits, Row(1, seed=1, temperature=t), 300).count(0) / 300 for t in (0.2, 5.0)
    )
    assert cold > 0.97
    assert warm < 0.6


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 1e-9}, {0}),
        ({"top_p": 0.49}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.9}, {0, 1, 2}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"min_p": 0.2}, {0, 1, 2}),
        ({"min_p": 0.7}, {0}),
        ({"min_p": 1.0}, {0}),
        # top-p counts what top-k left: 0.5 / 0.8 of it is the first token alone.
        ({"top_k": 2, "top_p": 0.6}, {0}),
    ],
)
def test_cuts_leave_what_they_should(cut, left):
    logits = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))
    assert set(draws(logits, Row(1, seed=4, temperature=1.0, **cut), 400)) == left


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e6])
def test_no_temperature_overflows(temperature):
    logits = mx.array([[1e4, 0.0, -1e4]])
    row = Row(1, seed=2, temperature=temperature, top_k=2, top_p=0.5, min_p=0.5)
    assert 0 <= sample(logits, [row], [0]).item() < 3
    if temperature < 1:
        assert sample(logits, [row], [0]).item() == 0


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_logits_are_drawn_from_in_f32(dtype):
    logits = logits_of(1).astype(dtype)
    row = Row(1, seed=3, temperature=1.0)
    assert draws(logits, row, 20) == draws(logits.astype(mx.float32), row, 20)


def test_the_key_depends_on_seed_choice_and_position_and_nothing_else():
    base = row_key(Row(1, seed=5, choice=2), 7)
    assert row_key(Row(99, seed=5, choice=2, temperature=0.4, top_k=3), 7) == base
    others = {
        row_key(Row(1, seed=6, choice=2), 7),
        row_key(Row(1, seed=5, choice=3), 7),
        row_key(Row(1, seed=5, choice=2), 8),
    }
    assert len(others | {base}) == 4


def test_the_key_is_the_one_that_was_agreed_on():
    """Another derivation would give other texts to old seeds: this one is fixed."""
    assert row_key(Row(1), 0) == (3685856130, 2879589449)
    last = Row(1, seed=2**64 - 1, choice=65535)
    assert row_key(last, 2**32) == (3266804317, 4101212808)


def test_a_last_token_is_known_once_the_decode_that_drew_it_was_answered():
    """Not before, though the answer to the decode before it may come late."""
    last = LastTokens()
    first, second = mx.array([11], mx.uint32), mx.array([22], mx.uint32)
    assert last.known(0, (7,)) is None
    last.sampled(0, (7,), first)
    last.answered(0, first, 11)
    assert last.known(0, (7,)) == 11
    assert last.known(0, (8,)) is None
    last.sampled(0, (7,), second)
    last.answered(0, first, 11)
    assert last.known(0, (7,)) is None
    last.answered(0, second, 22)
    assert last.known(0, (7,)) == 22
    last.give(7, 5)
    assert last.known(0, (7,)) is None
