"""Compares what a ring did with what it should have done, and names where it first went wrong.

The ring runs the rows twice: once as it serves, where only its tokens and their log probabilities
are known, and once in a checked epoch, where every rank sends fingerprints. A checked epoch builds
no graphs ahead and guesses no tokens, so the first run is needed for those.

In a pipeline everything flows one way: what a rank gives depends on the ranks before it, and not on
those after it, for the rows are compared teacher-forced. So of all places where numbers deviate the
first on that way is at fault, and whatever deviates after it may be a consequence. The places are,
in order: the hop into a rank, its layers, and so on; the hop back; the output head; the draw; the
log probabilities.

The draw is held to what the ring itself says of it: the token that it drew is the likeliest by its
own log probabilities. No rounding excuses another, for both are made of the same logits. The log
probabilities are held to those here, within rounding.

In tensor parallelism the ranks compute one sum. If all of them deviate, none stands out among
them; if some do, those are named.
"""

from __future__ import annotations

import json
import math
import secrets
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from sealring_model.errors import LoadError
from sealring_model.loading.weights import check_manifest
from sealring_protocol.codec.tensor import DType
from sealring_trio.errors import OperationError
from sealring_trio.files.models import describe_model
from sealring_trio.processes.interpreter import child_environment, run_module

from sealring.verify.answers import (
    Ask,
    Claim,
    Drawn,
    Fingerprint,
    RingAnswers,
    RingRow,
    plan_rows,
    run_rows,
    unpacked,
)


@attrs.frozen
class Options:
    """How a verification is done: *thorough*, with four times as much of everything; *by_stage*,
    with one part of the model in memory at a time; with rows drawn from *seed*, if there is one; of
    a model with an *adapter*."""

    thorough: bool = False
    by_stage: bool = False
    seed: int | None = None
    adapter: Path | None = None


@attrs.frozen
class Tried:
    """What a verification has tried: a *longest* row of so many tokens; rows that began with so
    many tokens of a snapshot (*continued*), or of one that they left midway (*cut*); and so many
    guesses that were wrong and *taken_back*."""

    longest: int
    continued: int
    cut: int
    taken_back: int

    @property
    def text(self) -> str:
        """For people, with what was not tried."""
        parts = [
            f"rows of up to {self.longest} tokens",
            f"{self.continued} tokens of caches that rows left"
            if self.continued
            else "no cache that a row left",
            f"{self.cut} tokens of caches that were left midway"
            if self.cut
            else "no cache that was left midway",
            f"{self.taken_back} wrong guesses that were taken back"
            if self.taken_back
            else "no wrong guess (the ring guesses nothing here)",
        ]
        return "; ".join(parts)


@attrs.frozen
class Verified:
    """The outcome: the *verdict* of the checked run, what first went wrong as it serves (*served*),
    and the *answers* of the checked run."""

    verdict: RowVerdict
    served: Difference | None
    answers: RingAnswers
    seed: int
    by_stage: bool
    tried: Tried

    @property
    def passed(self) -> bool:
        """Nothing is wrong."""
        return self.verdict.passed and self.served is None


def verify(ask: Ask, model: Path, options: Options, report: Callable[[str], None]) -> Verified:
    """Verify the ring that *ask* asks, against *model* on this machine. *report* is given each
    line of progress. Raises `OperationError`."""
    info = describe_model(model, options.adapter)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    ring = run_rows(ask, [], checked=False, waiting=report)
    if ring.model != info.digest.hex():
        raise OperationError(
            f"the ring runs another model than is in {model} now",
            "If 'sealring model use' gave it that one, name it as the config's model. If the "
            "folder has changed, start its nodes again.",
        )
    if info.manifest is not None:
        report("this machine compares its weights with their manifest")
        try:
            check_manifest(info.entries, info.manifest)
        except LoadError as error:
            raise OperationError(
                f"nothing can be verified with the model in {model}: {error}",
                "Fetch it again, or copy it from the machine that has it right.",
            ) from None
    rows = plan_rows(
        info.vocabulary,
        info.context,
        ring.windows,
        len(ring.names),
        seed=seed,
        thorough=options.thorough,
    )
    report(f"the ring runs {len(rows)} rows as it serves")
    served = run_rows(ask, rows, checked=False, waiting=report)
    report("the ring runs them again, and every rank sends fingerprints")
    checked = run_rows(ask, rows, checked=True, waiting=report)
    others = [
        number for number, row in enumerate(served.rows) if row.drawn != checked.rows[number].drawn
    ]
    report("this machine computes the same without a ring")
    computed, by_stage = compute(
        model,
        options.adapter,
        checked.bounds,
        [*checked.rows, *(served.rows[number] for number in others)],
        by_stage=options.by_stage,
        progress=lambda done, of: report(
            f"this machine has computed {25 * (4 * done // of)} % of it"
        ),
    )
    expected = computed[: len(rows)]
    tolerance = tolerance_of(info.dtype, tensor=checked.strategy == "tp")
    verdict = judge(checked, expected, tolerance)
    for number, again in zip(others, computed[len(rows) :], strict=True):
        expected[number] = again
    place = RowPlace(0, 0, "served")
    wrong = draws_of(place, served.rows).wrong()
    wrong += scores_of(place, served.rows, expected, tolerance).wrong()
    cut = [row.cut is not None for row in rows]
    tried = Tried(
        max(len(row.tokens) for row in checked.rows),
        sum(row.cached for row, is_cut in zip(checked.rows, cut, strict=True) if not is_cut),
        sum(row.cached for row, is_cut in zip(checked.rows, cut, strict=True) if is_cut),
        sum(row.wrong for row in served.rows),
    )
    return Verified(verdict, wrong[0] if wrong else None, checked, seed, by_stage, tried)


def place_text(place: RowPlace, answers: RingAnswers) -> str:
    """*place* for people."""
    bounds, rank = answers.bounds, answers.called(place.rank)
    if place.what == "layers" and len(bounds) > 2:
        first, last = bounds[place.rank], bounds[place.rank + 1] - 1
        return f"{rank}, layers {first} to {last}" if first < last else f"{rank}, layer {first}"
    after = answers.called((place.rank + 1) % len(answers.names))
    return {
        "layers": f"{rank}, all layers and the output head",
        "share": f"{rank}, its share of every layer",
        "hop": f"the hop from {rank} to {after}",
        "head": f"{rank}, the output head",
        "draw": f"{rank}, the draw of tokens",
        "scores": f"{rank}, the log probabilities",
        "served": f"{rank}, the tokens as it serves",
    }[place.what]


def difference_text(found: Difference, answers: RingAnswers) -> str:
    """Where *found* is, and how large."""
    row = answers.rows[found.row]
    where = f"row {found.row}, position {found.position} of {len(row.tokens)}"
    step = f"step {found.n}, " if found.n else ""
    if found.place.what in ("draw", "scores", "served"):
        return f"{place_text(found.place, answers)}: {where}: {found.words}"
    size = f"off by {found.size:.2g} of the root mean square, where {found.allowed:.1g} may be"
    words = f" ({found.words})" if found.words else ""
    return f"{place_text(found.place, answers)}: {step}{where}: {size}{words}"


def as_json(verified: Verified) -> dict[str, Any]:
    """Everything that is known, for programs."""
    verdict, answers = verified.verdict, verified.answers
    return {
        "passed": verified.passed,
        "strategy": answers.strategy,
        "bounds": list(answers.bounds),
        "names": list(answers.names),
        "ranks": [answers.rank(place) for place in range(len(answers.names))],
        "rows": len(answers.rows),
        "largest_batch": answers.batches,
        "cached_tokens": sum(row.cached for row in answers.rows),
        "tried": attrs.asdict(verified.tried),
        "tokens": verdict.tokens,
        "ties": verdict.ties,
        "seed": verified.seed,
        "by_stage": verified.by_stage,
        "silent": {str(answers.rank(place)): steps for place, steps in verdict.silent.items()},
        "first": _difference_json(verdict.first, answers),
        "served": _difference_json(verified.served, answers),
        "places": [_station_json(station, answers) for station in verdict.stations],
    }


def _difference_json(found: Difference | None, answers: RingAnswers) -> dict[str, Any] | None:
    if found is None:
        return None
    about = attrs.asdict(found, filter=lambda field, _: field.name != "place")
    about["size"] = _finite(found.size)
    named = {"what": found.place.what, "rank": answers.rank(found.place.rank)}
    return {**named, **about, "text": difference_text(found, answers)}


def _finite(size: float) -> float | None:
    """*size* for JSON, which has no word for what is no number."""
    return size if math.isfinite(size) else None


def _station_json(station: Station, answers: RingAnswers) -> dict[str, Any]:
    return {
        "place": place_text(station.place, answers),
        "what": station.place.what,
        "rank": answers.rank(station.place.rank),
        "drawn": station.drawn,
        "numbers": len(station.found),
        "largest": _finite(station.largest),
        "allowed": station.limit,
        "beyond": len(station.wrong()),
    }


_FACTOR: Final = 16.0
"""How many times as far as by reading in other pieces the ring may deviate."""

_GREATEST: Final = 0.3
"""No tolerance is greater: a deviation of that size is wrong in any dtype."""

_STRAYS: Final = 4
"""How many times as many positions as by reading in other pieces may be beyond the tolerance."""


@attrs.frozen
class Tolerance:
    """How far the numbers of a ring may be from those of one process.

    A deviation is relative to the root mean square of the vector. Rounding makes some: a ring
    decodes in batches and in other chunks, and another device adds in another order. How much that
    is depends on the model. So each row is computed twice without a ring, in different pieces. The
    ring may deviate by a multiple of what those two do, or by *numbers* if that is more. A share of
    positions (*stray*) may deviate by more: rounding may send a token to another expert.
    `docs/models.md` has what was measured. A fault is larger by orders of magnitude.
    """

    numbers: float
    stray: float

    def limit(self, noise: Sequence[float]) -> float:
        """The tolerance where reading in other pieces makes deviations of *noise*. What is no
        number does not count."""
        sizes = sorted(filter(math.isfinite, noise))
        if not sizes:
            return self.numbers
        usual = sizes[int(0.99 * (len(sizes) - 1))]
        return max(self.numbers, min(_GREATEST, _FACTOR * usual))

    def strays(self, noise: Sequence[float], limit: float) -> float:
        """How many positions may be beyond *limit*, of as many as there are in *noise*."""
        further = sum(size > limit for size in noise if math.isfinite(size))
        return self.stray * len(noise) + _STRAYS * further


HOP: Final = Tolerance(1e-5, 0.0)
"""What a rank received is what the one before gave, bit by bit. Only the sum of the fingerprint
itself may be rounded in another order."""

_PIPELINE: Final = {
    DType.F32: Tolerance(1e-3, 0.002),
    DType.F16: Tolerance(2e-2, 0.01),
    DType.BF16: Tolerance(5e-2, 0.01),
}

_TENSOR: Final = {
    DType.F32: Tolerance(4e-3, 0.002),
    DType.F16: Tolerance(4e-2, 0.01),
    DType.BF16: Tolerance(1e-1, 0.01),
}


def tolerance_of(dtype: DType, *, tensor: bool) -> Tolerance:
    """The tolerance for hidden states of *dtype*; looser in *tensor* parallelism, which sums in
    another order. A quantized model has the dtype of its hidden states."""
    return (_TENSOR if tensor else _PIPELINE)[dtype]


_MODULE: Final = "sealring_model.verify"


@attrs.frozen
class Score:
    """Log probabilities here: of the ring's token (*chosen*), of the *best* token (*best_value*),
    and of the ring's alternatives (*values*). *unit* is the unit in their last place, in the
    logits' dtype."""

    best: int
    best_value: float
    chosen: float
    values: tuple[float, ...] = attrs.field(converter=tuple)
    unit: float


@attrs.frozen
class Expected:
    """What one row gives: at each cut (after each part of the model) by tensor and position, None
    where nothing is known; the logits of each token drawn; and its scores.

    The *noise* of each is how far it is from itself if the row is read in other pieces: relative
    deviations, and nats of scores.
    """

    cuts: tuple[tuple[tuple[Fingerprint, ...], ...] | None, ...]
    logits: tuple[Fingerprint, ...]
    scores: tuple[Score, ...]
    cuts_noise: tuple[tuple[float, ...] | None, ...]
    logits_noise: tuple[float, ...]
    scores_noise: tuple[float, ...]


def compute(
    model: Path,
    adapter: Path | None,
    bounds: Sequence[int],
    rows: Sequence[RingRow],
    *,
    by_stage: bool,
    progress: Callable[[int, int], None],
) -> tuple[list[Expected], bool]:
    """What the *rows* give in *model* with its *adapter*, cut at *bounds*; and whether it was done
    *by_stage*. A child process computes it (`sealring_model.verify`), teacher-forced: it
    reads the tokens that the ring drew, so that one wrong token does not make all after it differ.
    Raises `OperationError`."""
    asked = [
        {
            "tokens": row.tokens,
            "prompt": len(row.prompt),
            "alternatives": [drawn.ids for drawn in row.drawn],
        }
        for row in rows
    ]
    options = ["--model", str(model), "--bounds", ",".join(map(str, bounds))]
    options += ["--by-stage"] if by_stage else []
    options += ["--adapter", str(adapter)] if adapter is not None else []
    command = run_module("sealring_trio.processes.launcher", _MODULE, *options)
    found: dict[int, Expected] = {}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment()
    ) as child:
        try:
            _write(child, asked)
            for line in child.stdout or ():
                event = json.loads(line)
                match event["event"]:
                    case "by_stage":
                        by_stage = True
                    case "progress":
                        progress(event["done"], event["of"])
                    case "row":
                        found[event["row"]] = _expected(event)
                    case "error":
                        raise OperationError(
                            f"this machine cannot compute the model itself: {event['what']}",
                            "With --by-stage it needs the memory of one rank's layers alone.",
                        )
        finally:
            child.kill()
    if len(found) != len(rows):
        raise OperationError(
            "the process that computes the model for comparison ended early",
            "Its messages are above. With --by-stage it needs less memory.",
        )
    return [found[number] for number in range(len(rows))], by_stage


def _write(child: subprocess.Popen[bytes], asked: Any) -> None:
    if child.stdin is None:
        raise ValueError("the child was started without pipes")
    try:
        child.stdin.write(json.dumps(asked).encode() + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        pass  # its answer will be missing


def _expected(event: dict[str, Any]) -> Expected:
    return Expected(
        tuple(None if cut is None else _parts(cut) for cut in event["cuts"]),
        tuple(unpacked(event["logits"]["data"])),
        tuple(Score(**score) for score in event["scores"]),
        tuple(None if cut is None else tuple(cut) for cut in event["cuts_noise"]),
        tuple(event["logits_noise"]),
        tuple(event["scores_noise"]),
    )


def _parts(cut: dict[str, Any]) -> tuple[tuple[Fingerprint, ...], ...]:
    numbers = list(unpacked(cut["data"]))
    tokens = cut["shape"][1]
    return tuple(tuple(numbers[at : at + tokens]) for at in range(0, len(numbers), tokens))


_ROUNDING: Final = 4.0
"""Units in the last place by which two ways to compute a log probability may differ."""


@attrs.frozen(order=True)
class RowPlace:
    """A part of the ring, in the order in which a step passes them: *what* rank *rank* does."""

    at: int
    rank: int
    what: str


@attrs.frozen
class Difference:
    """The numbers at *place* differ by *size* at one *position* of *row*, in step *n* (0 for a
    draw); by *allowed* they may. Sizes are relative to the root mean square, and nats for a
    draw."""

    place: RowPlace
    n: int
    row: int
    position: int
    part: int
    size: float
    allowed: float
    words: str = ""


@attrs.define
class Station:
    """What was compared at one *place*, while prompts were read or tokens were *drawn*. Each
    deviation has its *noise*: by how much the same number deviates without a ring. How much a model
    amplifies rounding also shows *elsewhere*, in the noise of the place's other half: a row whose
    keys are off by some goes on with them."""

    place: RowPlace
    drawn: bool
    tolerance: Tolerance
    found: list[Difference] = attrs.field(factory=list)
    noise: list[float] = attrs.field(factory=list)
    elsewhere: list[float] = attrs.field(factory=list)

    def add(self, found: Difference, noise: float) -> None:
        """Add one number."""
        self.found.append(found)
        self.noise.append(noise)

    @property
    def limit(self) -> float:
        """The greatest deviation that passes."""
        return self.tolerance.limit([*self.noise, *self.elsewhere])

    @property
    def largest(self) -> float:
        """The greatest deviation found."""
        return max(each.size for each in self.found)

    def wrong(self) -> list[Difference]:
        """The deviations beyond the limit, in order; empty if so few may be beyond it."""
        limit = self.limit
        beyond = [
            attrs.evolve(each, allowed=limit)
            for each in self.found
            if not each.size <= max(limit, each.allowed)  # a NaN is beyond any limit
        ]
        few = len(beyond) <= self.tolerance.strays(self.noise, limit)
        if few and all(math.isfinite(each.size) for each in beyond):
            return []
        return beyond


@attrs.frozen
class RowVerdict:
    """Whether the ring is right. *first* is where it first goes wrong, *stations* are all places in
    order. *silent* says, by rank, of how many steps it sent no numbers. Of the *tokens*, *ties*
    differ from those here by rounding alone."""

    stations: tuple[Station, ...]
    first: Difference | None
    silent: dict[int, int]
    tokens: int
    ties: int

    @property
    def passed(self) -> bool:
        """Nothing is wrong, and every rank sent its numbers."""
        return self.first is None and not self.silent


def judge(answers: RingAnswers, expected: Sequence[Expected], tolerance: Tolerance) -> RowVerdict:
    """Judge a checked run."""
    places = _Places(answers)
    stations: dict[tuple[RowPlace, bool], Station] = {}
    given = {
        (claim.epoch, claim.n, claim.rank, claim.row, claim.position, claim.part): claim.numbers
        for claim in answers.claims
        if claim.given and not claim.closing
    }
    for claim in answers.claims:
        row = answers.rows[claim.row]
        if claim.position + 1 >= len(row.tokens):
            continue  # drawn for a row that had ended
        if claim.given:
            reference, noise = _reference(claim, answers, expected)
        else:
            before = places.before(claim)
            key = claim.epoch, claim.n, before, claim.row, claim.position, claim.part
            reference, noise = given.get(key), 0.0
        if reference is None:
            continue
        key_of = places.of(claim), claim.position + 1 >= len(row.prompt)
        station = stations.get(key_of)
        if station is None:
            station = stations[key_of] = Station(*key_of, tolerance if claim.given else HOP)
        size = deviation(claim.numbers, reference)
        where = claim.n, claim.row, claim.position, claim.part
        station.add(Difference(key_of[0], *where, size, 0.0), noise)
    for (place, drawn), station in stations.items():
        if (half := stations.get((place, not drawn))) is not None:
            station.elsewhere = half.noise
    draws = draws_of(places.draw, answers.rows)
    scores = scores_of(places.scores, answers.rows, expected, tolerance)
    stations[places.draw, True], stations[places.scores, True] = draws, scores
    found = tuple(stations[key] for key in sorted(stations))
    first = _first(found, tensor=answers.strategy == "tp")
    silent = dict(answers.silent)
    for rank in _in_part(given, expected):
        silent[rank] = silent.get(rank, 0) + 1
    return RowVerdict(found, first, silent, len(draws.found), ties(answers.rows, expected))


def deviation(numbers: Fingerprint, reference: Fingerprint) -> float:
    """By how much two fingerprints differ, relative to the root mean square of the *reference*."""
    if not all(map(math.isfinite, (*numbers, *reference))):
        return 0.0 if all(map(_alike, numbers, reference)) else math.inf
    size = max(abs(one - other) for one, other in zip(numbers, reference, strict=True))
    return size / max(abs(reference[2]), 1e-30)


def _alike(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _apart(one: float, other: float) -> float:
    if _alike(one, other):
        return 0.0
    return math.inf if math.isnan(one - other) else abs(one - other)


class _Places:
    """The places of one ring."""

    def __init__(self, answers: RingAnswers) -> None:
        self._tensor = answers.strategy == "tp"
        self._world = len(answers.names)
        self.draw = RowPlace(2 * self._world + 2, 0, "draw")
        self.scores = RowPlace(2 * self._world + 3, 0, "scores")

    def of(self, claim: Claim) -> RowPlace:
        """The place that *claim* belongs to."""
        if self._tensor:
            return RowPlace(0, claim.rank, "share")
        if claim.closing:
            at = 2 * self._world
            return (
                RowPlace(at + 1, 0, "head") if claim.given else RowPlace(at, self._world - 1, "hop")
            )
        if claim.given:
            return RowPlace(2 * claim.rank + 1, claim.rank, "layers")
        return RowPlace(2 * claim.rank, claim.rank - 1, "hop")

    def before(self, claim: Claim) -> int:
        """The rank that gave what the sender of *claim* received."""
        return self._world - 1 if claim.closing else claim.rank - 1


def _reference(
    claim: Claim, answers: RingAnswers, expected: Sequence[Expected]
) -> tuple[Fingerprint | None, float]:
    """The numbers that *claim* should have, and their noise; None if there are none here."""
    here, row = expected[claim.row], answers.rows[claim.row]
    if claim.closing or len(answers.bounds) == 2:
        number = claim.position + 1 - len(row.prompt)
        if not 0 <= number < len(here.logits):
            return None, 0.0
        return here.logits[number], here.logits_noise[number]
    cut, noise = here.cuts[claim.rank], here.cuts_noise[claim.rank]
    if cut is None or noise is None or claim.part >= len(cut):
        return None, 0.0
    return cut[claim.part][claim.position], noise[claim.position]


def _in_part(
    given: Iterable[tuple[int, int, int, int, int, int]], expected: Sequence[Expected]
) -> list[int]:
    """The rank of each step in which it sent numbers of some of the tensors that it *gave*, and not
    of all."""
    parts: dict[tuple[int, int, int], int] = {}
    due: dict[tuple[int, int, int], int] = {}
    for epoch, n, rank, row, _, part in given:
        cuts = expected[row].cuts
        cut = cuts[rank] if rank < len(cuts) else None
        key = epoch, n, rank
        parts[key] = max(parts.get(key, 0), part + 1)
        due[key] = max(due.get(key, 0), len(cut or ()))
    return [key[2] for key, count in parts.items() if count < due[key]]


def _first(stations: Sequence[Station], *, tensor: bool) -> Difference | None:
    """The first place that is wrong, and there the first step."""
    wrong = {station.place: station.wrong() for station in stations if station.wrong()}
    if not wrong:
        return None
    place = min(wrong)
    found = [each for s in stations if s.place == place for each in s.wrong()]
    first = min(found, key=lambda each: each.n)
    shares = {station.place for station in stations if station.place.what == "share"}
    if tensor and first.place in shares and shares <= wrong.keys():
        return attrs.evolve(first, words="the numbers of every rank are off, so the sums are")
    return first


def draws_of(place: RowPlace, rows: Sequence[RingRow]) -> Station:
    """For each token by how many nats another is likelier, by what the ring itself says."""
    station = Station(place, True, Tolerance(0.0, 0.0))
    for number, row in enumerate(rows):
        for at, drawn in enumerate(row.drawn):
            size, words = 0.0, ""
            chosen = math.inf if drawn.chosen is None else drawn.chosen
            for value, token in zip(drawn.values, drawn.ids, strict=True):
                if value - chosen > size:  # what is no number is seen in the scores
                    size = value - chosen
                    words = _likelier(drawn.token, token, size)
            position = len(row.prompt) + at
            station.add(Difference(place, 0, number, position, 0, size, 0.0, words), 0.0)
    return station


def scores_of(
    place: RowPlace, rows: Sequence[RingRow], expected: Sequence[Expected], tolerance: Tolerance
) -> Station:
    """How far the log probabilities of each token are from those here, in nats."""
    station = Station(place, True, attrs.evolve(tolerance, numbers=0.0))
    for number, (row, here) in enumerate(zip(rows, expected, strict=True)):
        for at, drawn in enumerate(row.drawn):
            score, rms = here.scores[at], here.logits[at][2]
            rounding = max(_ROUNDING * score.unit, 4 * tolerance.numbers * abs(rms))
            size, words = _score(drawn, score)
            position = len(row.prompt) + at
            found = Difference(place, 0, number, position, 0, size, rounding, words)
            station.add(found, here.scores_noise[at])
    return station


def _score(drawn: Drawn, score: Score) -> tuple[float, str]:
    """By how many nats the token is less likely here than another, or its log probabilities are
    off; and that in words."""
    gap = score.best_value - score.chosen
    if drawn.chosen is None:
        return gap, _likelier(drawn.token, score.best, gap)
    pairs = zip((drawn.chosen, *drawn.values), (score.chosen, *score.values), strict=True)
    size = max(_apart(one, other) for one, other in pairs)
    if drawn.token != score.best and not gap < size:
        return gap, _likelier(drawn.token, score.best, gap)
    return size, f"log probabilities are off by {size:.2g} nats"


def _likelier(token: int, best: int, gap: float) -> str:
    return f"token {token} was drawn, and {best} is likelier by {gap:.2g} nats"


def ties(rows: Sequence[RingRow], expected: Sequence[Expected]) -> int:
    """How many tokens differ from those here."""
    return sum(
        drawn.token != score.best
        for row, here in zip(rows, expected, strict=True)
        for drawn, score in zip(row.drawn, here.scores, strict=True)
    )
