"""The results of the vectors, by family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from sealring_protocol.conformance.files import Json
from sealring_protocol.conformance.kinds import ENGINE_KINDS, KINDS
from sealring_protocol.conformance.result import VALID, Kinds, Mismatch, VectorAnswer, compare
from sealring_protocol.conformance.streams import WAYS, ways


@attrs.define
class Family:
    """The results of one family: runs by way, failures, and vectors that were not run."""

    vectors: int = 0
    negative: int = 0
    runs: Counter[str] = attrs.Factory(Counter)
    failed: list[dict[str, str]] = attrs.Factory(list)
    skipped: Counter[str] = attrs.Factory(Counter)
    """The number of vectors that were not run, by reason."""

    def run(self, vector: Json, kinds: Kinds) -> None:
        """Run *vector* in every way."""
        self._count(vector)
        if vector["kind"] in ENGINE_KINDS and vector["kind"] not in kinds:
            self.skipped["it takes an engine that draws tokens"] += 1
            return
        for way, run in ways(vector, kinds):
            try:
                self.runs[way] += run(vector)
            except Mismatch as error:
                self._fail(vector, way, str(error))
            except Exception as error:  # noqa: BLE001 - an error that nothing documents is a failure
                self._fail(vector, way, f"{type(error).__name__}: {error}")

    def compare(self, vector: Json, answer: VectorAnswer | None) -> None:
        """Compare *answer* with *vector*."""
        self._count(vector)
        if answer is None:
            self._fail(vector, "whole", "it was not answered")
        elif answer.skip:
            self.skipped[answer.skip] += 1
        else:
            try:
                compare(answer, vector)
                self.runs["whole"] += 1
            except Mismatch as error:
                self._fail(vector, "whole", str(error))

    def add(self, other: Family) -> None:
        """Add *other*'s results."""
        self.vectors += other.vectors
        self.negative += other.negative
        self.runs += other.runs
        self.failed += other.failed
        self.skipped += other.skipped

    def facts(self) -> dict[str, Any]:
        """The results as a JSON object."""
        return {
            "vectors": self.vectors,
            "negative": self.negative,
            "runs": {way: self.runs[way] for way in WAYS if self.runs[way]},
            "failed": self.failed,
            "skipped": dict(self.skipped),
        }

    def _count(self, vector: Json) -> None:
        self.vectors += 1
        self.negative += vector["result"] != VALID

    def _fail(self, vector: Json, way: str, why: str) -> None:
        self.runs[way] += 1
        self.failed.append({"id": str(vector["id"]), "way": way, "why": why})


def check(families: Mapping[str, Iterable[Json]], kinds: Kinds = KINDS) -> dict[str, Family]:
    """Run the vectors of *families*, each in every way, by their kind in *kinds*."""
    done = {name: Family() for name in families}
    for name, vectors in families.items():
        for vector in vectors:
            done[name].run(vector, kinds)
    return done


def check_answers(
    families: Mapping[str, Iterable[Json]], answers: Mapping[str, VectorAnswer]
) -> dict[str, Family]:
    """Compare *answers*, by the vector's id, with the vectors of *families*."""
    done = {name: Family() for name in families}
    for name, vectors in families.items():
        for vector in vectors:
            done[name].compare(vector, answers.get(vector["id"]))
    return done


def total(families: Iterable[Family]) -> Family:
    """The results of all *families* together."""
    everything = Family()
    for one in families:
        everything.add(one)
    return everything


def verdict(everything: Family) -> list[str]:
    """Lines that say what failed and what was not run, and a last line with the totals."""
    lines = [f"{each['id']} ({each['way']}): {each['why']}" for each in everything.failed]
    lines += [f"{count} not run: {why}" for why, count in everything.skipped.items()]
    if not everything.runs:
        return [*lines, "none of these vectors could be run"]
    end = f"{len(everything.failed)} failed" if everything.failed else "all did as they say"
    ran = everything.vectors - everything.skipped.total()
    return [*lines, f"{everything.runs.total():,} runs of {ran:,} vectors: {end}"]
