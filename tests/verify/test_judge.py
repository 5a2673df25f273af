"""What a verification makes of numbers: where the first difference is, and what is none."""

from __future__ import annotations

import math

import attrs
import pytest
from sealring.verify.answers import Claim, Drawn, RingAnswers, RingRow
from sealring.verify.judge import (
    Difference,
    Expected,
    RowVerdict,
    Score,
    Tolerance,
    deviation,
    difference_text,
    judge,
    tolerance_of,
)
from sealring_protocol.codec.tensor import DType

PROMPT, COUNT = tuple(range(10)), 6
READ = len(PROMPT) + COUNT - 1
F32 = tolerance_of(DType.F32, tensor=False)
BF16 = tolerance_of(DType.BF16, tensor=False)


def number(cut: int, row: int, position: int) -> tuple[float, float, float]:
    """What passes a cut, in numbers."""
    return (math.sin(cut + 7 * row + position), math.cos(3 * cut + position), 1.0)


def logits(row: int, at: int) -> tuple[float, float, float]:
    return (0.1 * row, 0.2 * at, 2.0)


def expected(row: int, noise: float = 0.0) -> Expected:
    cuts = [tuple(number(cut, row, at) for at in range(READ)) for cut in range(3)]
    return Expected(
        tuple((cut,) for cut in cuts),
        tuple(logits(row, at) for at in range(COUNT)),
        tuple(Score(5, -0.5, -0.5, (-0.5, -1.0), 1e-7) for _ in range(COUNT)),
        tuple((noise,) * READ for _ in cuts),
        (noise,) * COUNT,
        (noise,) * COUNT,
    )


def answers(rows: int = 2) -> RingAnswers:
    """A ring of three ranks that is right: a step for each position of each row."""
    ring = RingAnswers(("ann", "ben", "cat"), "pp", bounds=(0, 2, 4, 6))
    n = 0
    for row in range(rows):
        ring.rows.append(RingRow(PROMPT, [Drawn(5, -0.5, (5, 6), (-0.5, -1.0))] * COUNT))
        for position in range(READ):
            n += 1
            for rank in range(3):
                if rank:
                    received = number(rank - 1, row, position)
                    ring.claims.append(Claim(1, n, rank, False, False, row, position, 0, received))
                given = number(rank, row, position)
                ring.claims.append(Claim(1, n, rank, False, True, row, position, 0, given))
            if position + 1 >= len(PROMPT):
                back = number(2, row, position)
                ring.claims.append(Claim(1, n, 0, True, False, row, position, 0, back))
                made = logits(row, position + 1 - len(PROMPT))
                ring.claims.append(Claim(1, n, 0, True, True, row, position, 0, made))
    return ring


def judged(ring: RingAnswers, tolerance: Tolerance = F32, noise: float = 0.0) -> RowVerdict:
    return judge(ring, [expected(row, noise) for row in range(len(ring.rows))], tolerance)


def spoilt(by: float, **where: object) -> RingAnswers:
    """The claims at *where* are off by so much."""
    ring = answers()
    for at, claim in enumerate(ring.claims):
        if all(getattr(claim, name) == value for name, value in where.items()):
            a, b, rms = claim.numbers
            ring.claims[at] = attrs.evolve(claim, numbers=(a + by, b, rms))
    return ring


def first(verdict: RowVerdict) -> Difference:
    assert not verdict.passed
    assert verdict.first is not None
    return verdict.first


def test_a_ring_that_is_right_passes() -> None:
    verdict = judged(answers())
    assert verdict.passed
    assert verdict.tokens == 2 * COUNT
    assert verdict.ties == 0
    whats = [station.place.what for station in verdict.stations if station.drawn]
    before = ["layers", "hop", "layers", "hop", "layers", "hop", "head"]
    assert whats == [*before, "draw", "scores"]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_first_rank_whose_numbers_deviate_is_named(rank: int) -> None:
    """What comes after it is wrong, too."""
    ring = answers()
    for at, claim in enumerate(ring.claims):
        after = claim.rank > rank or claim.closing or (claim.rank == rank and claim.given)
        if claim.row == 1 and claim.position >= 4 and after:
            a, b, rms = claim.numbers
            ring.claims[at] = attrs.evolve(claim, numbers=(a + 0.5, b, rms))
    found = first(judged(ring))
    assert (found.place.what, found.place.rank) == ("layers", rank)
    assert (found.n, found.row, found.position) == (READ + 5, 1, 4)
    assert found.size == pytest.approx(0.5)
    names = ("ann", "ben", "cat")
    says = f"rank {rank} ({names[rank]}), layers {2 * rank} to {2 * rank + 1}: step 20, row 1"
    assert difference_text(found, ring).startswith(says)


def test_a_hop_that_changes_what_it_carries_is_named() -> None:
    found = first(judged(spoilt(1e-4, rank=2, given=False)))
    assert (found.place.what, found.place.rank) == ("hop", 1)


def test_the_hop_back_the_head_and_the_draw_are_told_apart() -> None:
    found = first(judged(spoilt(0.1, closing=True, given=False)))
    assert (found.place.what, found.place.rank) == ("hop", 2)
    found = first(judged(spoilt(0.1, closing=True, given=True)))
    assert (found.place.what, found.place.rank) == ("head", 0)
    ring = answers()
    ring.rows[1].drawn[3] = Drawn(6, -1.0, (5, 6), (-0.5, -1.0))
    expect = [expected(0), expected(1)]
    scores = list(expect[1].scores)
    scores[3] = attrs.evolve(scores[3], chosen=-1.0)
    expect[1] = attrs.evolve(expect[1], scores=tuple(scores))
    found = first(judge(ring, expect, F32))
    assert (found.place.what, found.row, found.position) == ("draw", 1, len(PROMPT) + 3)
    assert "5 is likelier by 0.5 nats" in difference_text(found, ring)


def test_a_tie_is_no_fault() -> None:
    ring = answers()
    ring.rows[0].drawn[2] = Drawn(6, -0.5, (5, 6), (-0.5, -0.5))
    expect = [expected(0), expected(1)]
    scores = list(expect[0].scores)
    scores[2] = attrs.evolve(scores[2], values=(-0.5, -0.5))
    expect[0] = attrs.evolve(expect[0], scores=tuple(scores))
    verdict = judge(ring, expect, F32)
    assert verdict.passed
    assert verdict.ties == 1


def drawn_otherwise(told: Drawn, **here: object) -> tuple[RingAnswers, list[Expected]]:
    """A ring of which one token is *told*, and what is expected, where its score is as *here*."""
    ring, expect = answers(rows=20), [expected(row) for row in range(20)]
    ring.rows[0].drawn[2] = told
    scores = list(expect[0].scores)
    scores[2] = attrs.evolve(scores[2], **here)
    expect[0] = attrs.evolve(expect[0], scores=tuple(scores))
    return ring, expect


@pytest.mark.parametrize("gap", [0.1, 3.0])
def test_no_rounding_excuses_a_token_that_the_ring_itself_finds_less_likely(gap: float) -> None:
    """One of 120 tokens. In 16 bits a log probability may be off by more than the smaller gap."""
    told = Drawn(6, -0.5 - gap, (5, 6), (-0.5, -0.5 - gap))
    for tolerance in (F32, BF16):
        ring, expect = drawn_otherwise(told, chosen=-0.5 - gap, values=(-0.5, -0.5 - gap))
        found = first(judge(ring, expect, tolerance))
        assert (found.place.what, found.row, found.position) == ("draw", 0, len(PROMPT) + 2)
        assert f"5 is likelier by {gap:.2g} nats" in difference_text(found, ring)


def test_a_token_that_is_likeliest_by_numbers_off_by_rounding_is_a_tie() -> None:
    told = Drawn(6, -0.5, (6, 5), (-0.5, -0.51))
    ring, expect = drawn_otherwise(told, chosen=-0.51, values=(-0.51, -0.5))
    verdict = judge(ring, expect, BF16)
    assert verdict.passed
    assert verdict.ties == 1


def test_log_probabilities_that_are_no_numbers_are_wrong_wherever_they_are() -> None:
    for told in (
        Drawn(5, -0.5, (5, 6), (-0.5, math.nan)),
        Drawn(5, math.nan, (5, 6), (-0.5, -1.0)),
        Drawn(5, -0.5, (5, 6), (-0.5, -math.inf)),
    ):
        found = first(judge(*drawn_otherwise(told), BF16))
        assert found.place.what == "scores"
    masked = Drawn(5, -0.5, (5, 6), (-0.5, -math.inf))
    assert judge(*drawn_otherwise(masked, values=(-0.5, -math.inf)), BF16).passed


def test_a_token_without_log_probabilities_is_compared_alone() -> None:
    """Of a row that may read guesses ahead none are known."""
    assert judge(*drawn_otherwise(Drawn(5, None, (), ()), values=()), F32).passed
    tie = drawn_otherwise(Drawn(6, None, (), ()), values=())
    assert judge(*tie, F32).ties == 1
    assert judge(*tie, F32).passed
    wrong = drawn_otherwise(Drawn(6, None, (), ()), values=(), chosen=-2.5)
    found = first(judge(*wrong, F32))
    assert "token 6 was drawn, and 5 is likelier by 2 nats" in difference_text(found, wrong[0])


@pytest.mark.parametrize(("tolerance", "off"), [(F32, 1e-3), (BF16, 5e-2)])
def test_what_is_within_the_tolerance_is_none(tolerance: Tolerance, off: float) -> None:
    assert judged(spoilt(0.9 * off, rank=1, given=True), tolerance).first.place.what == "hop"
    ring = spoilt(0.9 * off, rank=2, given=True, closing=False)
    ring.claims = [claim for claim in ring.claims if not (claim.closing and not claim.given)]
    assert judged(ring, tolerance).passed
    worse = spoilt(1.1 * off, rank=2, given=True, closing=False)
    assert first(judged(worse, tolerance)).place.rank == 2


def test_one_stray_position_is_allowed_in_16_bits_alone() -> None:
    many = answers(rows=20)
    at = next(at for at, claim in enumerate(many.claims) if claim.rank == 2 and claim.given)
    many.claims[at] = attrs.evolve(many.claims[at], numbers=(9.0, 9.0, 1.0))
    assert judged(many, BF16).passed
    assert first(judged(many, F32)).place.rank == 2


def test_what_is_no_number_is_no_stray() -> None:
    many = answers(rows=20)
    at = next(at for at, claim in enumerate(many.claims) if claim.rank == 2 and claim.given)
    many.claims[at] = attrs.evolve(many.claims[at], numbers=(math.nan, 9.0, 1.0))
    found = first(judged(many, BF16))
    assert found.place.rank == 2
    ring = RingAnswers(("ann", "ben", "cat"), "pp", bounds=(0, 2, 4, 6))
    assert "inf" in difference_text(found, attrs.evolve(ring, rows=many.rows))


def test_a_ring_that_leaves_ranks_out_is_told_by_the_ranks_of_the_roster() -> None:
    found = first(judged(spoilt(9.0, rank=2, given=True, closing=False)))
    ring = RingAnswers(("ann", "ben", "cat"), "pp", bounds=(0, 2, 4, 6), ranks=(0, 3, 7))
    ring.rows = answers().rows
    assert "rank 7 (cat), layers 4 to 5" in difference_text(found, ring)


def test_a_model_whose_numbers_are_none_has_no_wider_tolerance() -> None:
    wrong = spoilt(0.1, rank=2, given=True, closing=False)
    wrong.claims = [claim for claim in wrong.claims if not (claim.closing and not claim.given)]
    assert not judged(wrong, BF16, noise=math.nan).passed


def test_a_model_that_rounding_moves_far_has_a_wider_tolerance() -> None:
    wrong = spoilt(0.05, rank=2, given=True, closing=False)
    wrong.claims = [claim for claim in wrong.claims if not (claim.closing and not claim.given)]
    assert judged(wrong, F32, noise=0.01).passed
    assert not judged(wrong, F32, noise=0.001).passed
    assert not judged(spoilt(0.5, rank=2, given=True), F32, noise=0.2).passed


def test_a_model_that_rounding_moves_while_it_draws_may_be_moved_in_prompts() -> None:
    """A second turn begins with what drawing left in the caches."""
    wrong = spoilt(0.05, rank=2, given=True, closing=False, position=3)
    wrong.claims = [claim for claim in wrong.claims if not (claim.closing and not claim.given)]
    drawing = (0.0,) * (len(PROMPT) - 1) + (0.01,) * COUNT
    here = [attrs.evolve(expected(row), cuts_noise=(drawing,) * 3) for row in range(2)]
    assert judge(wrong, here, F32).passed
    assert not judge(wrong, [expected(row) for row in range(2)], F32).passed


def test_what_is_no_number_is_wrong_unless_it_should_be_none() -> None:
    nan = math.nan
    assert deviation((nan, 0.0, 1.0), (0.0, 0.0, 1.0)) == math.inf
    assert deviation((0.0, 0.0, 1.0), (nan, nan, nan)) == math.inf
    assert deviation((nan, math.inf, nan), (nan, math.inf, nan)) == 0.0
    assert not judged(spoilt(nan, rank=0, given=True), BF16).passed


def test_a_rank_that_was_silent_is_no_pass() -> None:
    ring = answers()
    ring.silent = {2: 3}
    verdict = judged(ring)
    assert verdict.first is None
    assert not verdict.passed


def test_a_rank_that_tells_of_some_tensors_alone_is_no_pass() -> None:
    ring, expect = answers(), [expected(0), expected(1)]
    for at, one in enumerate(expect):
        expect[at] = attrs.evolve(one, cuts=(one.cuts[0] * 2, *one.cuts[1:]))
    verdict = judge(ring, expect, F32)
    assert not verdict.passed
    assert verdict.silent == {0: 2 * READ}


def test_numbers_of_a_token_drawn_for_a_row_that_had_ended_are_left_out() -> None:
    ring = answers()
    late = Claim(1, 99, 0, False, True, 0, READ, 0, (9.0, 9.0, 9.0))
    ring.claims.append(late)
    assert judged(ring).passed


# -------------------------------------------------------------------- tensor parallelism


def shares(wrong: set[int]) -> RingAnswers:
    """Two ranks that sum; those that are *wrong* have other logits."""
    ring = RingAnswers(("ann", "ben"), "tp", bounds=(0, 6))
    ring.rows.append(RingRow(PROMPT, [Drawn(5, -0.5, (5, 6), (-0.5, -1.0))] * COUNT))
    for at in range(COUNT):
        for rank in range(2):
            a, b, rms = logits(0, at)
            numbers = (a + (rank in wrong), b, rms)
            position = len(PROMPT) - 1 + at
            ring.claims.append(Claim(1, at + 1, rank, False, True, 0, position, 0, numbers))
    return ring


@pytest.mark.slow
def test_of_ranks_that_sum_the_one_that_differs_is_named() -> None:
    assert judged(shares(set())).passed
    found = first(judged(shares({1})))
    assert (found.place.what, found.place.rank) == ("share", 1)
    assert "the sums are" in first(judged(shares({0, 1}))).words
