"""One verification, from the rows to the report.

The ring runs the rows twice: once as it serves, where only its tokens and their log probabilities
are known, and once in a checked epoch, where every rank tells fingerprints. A checked epoch
builds no graphs ahead and guesses no tokens, so the first run is needed for those.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from sealring_model.errors import LoadError
from sealring_model.loading.weights import check_manifest
from sealring_trio.errors import OperationError
from sealring_trio.files.models import describe_model

from sealring.verify.answers import Ask, RingAnswers, plan_rows, run_rows
from sealring.verify.judge import (
    Difference,
    RowPlace,
    RowVerdict,
    Station,
    compute,
    draws_of,
    judge,
    scores_of,
    tolerance_of,
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


def verify(ask: Ask, model: Path, options: Options, tell: Callable[[str], None]) -> Verified:
    """Verify the ring that *ask* asks, against *model* on this machine. *tell* is given each line
    of progress. Raises `OperationError`."""
    info = describe_model(model, options.adapter)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    ring = run_rows(ask, [], checked=False, waiting=tell)
    if ring.model != info.digest.hex():
        raise OperationError(
            f"the ring runs another model than is in {model} now",
            "If 'sealring model use' gave it that one, name it as the config's model. If the "
            "folder has changed, start its nodes again.",
        )
    if info.manifest is not None:
        tell("this machine compares its weights with their manifest")
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
    tell(f"the ring runs {len(rows)} rows as it serves")
    served = run_rows(ask, rows, checked=False, waiting=tell)
    tell("the ring runs them again, and every rank tells fingerprints")
    checked = run_rows(ask, rows, checked=True, waiting=tell)
    others = [
        number for number, row in enumerate(served.rows) if row.drawn != checked.rows[number].drawn
    ]
    tell("this machine computes the same without a ring")
    computed, by_stage = compute(
        model,
        options.adapter,
        checked.bounds,
        [*checked.rows, *(served.rows[number] for number in others)],
        by_stage=options.by_stage,
        progress=lambda done, of: tell(
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


# -------------------------------------------------------------------------- in words


def place_text(place: RowPlace, answers: RingAnswers) -> str:
    """*place* for people."""
    names, bounds = answers.names, answers.bounds
    rank = f"rank {place.rank} ({names[place.rank]})"
    if place.what == "layers" and len(bounds) > 2:
        first, last = bounds[place.rank], bounds[place.rank + 1] - 1
        return f"{rank}, layers {first} to {last}" if first < last else f"{rank}, layer {first}"
    after = (place.rank + 1) % len(names)
    return {
        "layers": f"{rank}, all layers and the output head",
        "share": f"{rank}, its share of every layer",
        "hop": f"the hop from {rank} to rank {after} ({names[after]})",
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
        "rows": len(answers.rows),
        "largest_batch": answers.batches,
        "cached_tokens": sum(row.cached for row in answers.rows),
        "tried": attrs.asdict(verified.tried),
        "tokens": verdict.tokens,
        "ties": verdict.ties,
        "seed": verified.seed,
        "by_stage": verified.by_stage,
        "silent": {str(rank): steps for rank, steps in verdict.silent.items()},
        "first": _difference_json(verdict.first, answers),
        "served": _difference_json(verified.served, answers),
        "places": [_station_json(station, answers) for station in verdict.stations],
    }


def _difference_json(found: Difference | None, answers: RingAnswers) -> dict[str, Any] | None:
    if found is None:
        return None
    about = attrs.asdict(found, filter=lambda field, _: field.name != "place")
    about["size"] = _finite(found.size)
    named = {"what": found.place.what, "rank": found.place.rank}
    return {**named, **about, "text": difference_text(found, answers)}


def _finite(size: float) -> float | None:
    """*size* for JSON, which has no word for what is no number."""
    return size if math.isfinite(size) else None


def _station_json(station: Station, answers: RingAnswers) -> dict[str, Any]:
    return {
        "place": place_text(station.place, answers),
        "what": station.place.what,
        "rank": station.place.rank,
        "drawn": station.drawn,
        "numbers": len(station.found),
        "largest": _finite(station.largest),
        "allowed": station.limit,
        "beyond": len(station.wrong()),
    }
