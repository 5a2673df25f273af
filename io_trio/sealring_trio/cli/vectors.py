"""`sealring vectors`: the conformance vectors against this installation."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import attrs
import cyclopts
from sealring_protocol.conformance.ends import Mismatch
from sealring_protocol.conformance.files import find_folder, load
from sealring_protocol.conformance.streams import WAYS, ways

from sealring_trio.cli.output import print_json, print_table
from sealring_trio.errors import UserError

app = cyclopts.App(
    name="vectors",
    help="""\
Hold this implementation to the conformance vectors of sealring/1.

The vectors say for bytes that come in what must come of them. They are in
the repository, in spec/vectors; its README says how to read them, for an
implementation of your own.

    sealring vectors check
""",
)


_COLUMNS: Final = {
    "whole": ("whole",),
    "cut": ("bytewise", "pieces"),
    "cut off": ("truncated",),
    "grown": ("trailing",),
}
"""What the table tells together."""


@attrs.define
class _Family:
    """How the vectors of one family did: runs by their way, and what failed."""

    vectors: int = 0
    faulty: int = 0
    runs: Counter[str] = attrs.Factory(Counter)
    failed: list[dict[str, str]] = attrs.Factory(list)

    def take(self, vector: dict[str, Any]) -> None:
        """Run *vector* in every way."""
        self.vectors += 1
        self.faulty += vector["result"] != "valid"
        for way, run in ways(vector):
            try:
                self.runs[way] += run(vector)
            except Mismatch as error:
                self._fail(vector, way, str(error))
            except Exception as error:  # noqa: BLE001 - an error that nothing documents is a failure
                self._fail(vector, way, f"{type(error).__name__}: {error}")

    def of(self, ways: Iterable[str]) -> int:
        """Runs in these ways."""
        return sum(self.runs[way] for way in ways)

    def _fail(self, vector: dict[str, Any], way: str, why: str) -> None:
        self.runs[way] += 1
        self.failed.append({"id": str(vector["id"]), "way": way, "why": why})

    def facts(self) -> dict[str, Any]:
        """It as JSON has it."""
        return {
            "vectors": self.vectors,
            "negative": self.faulty,
            "runs": {way: self.runs[way] for way in WAYS if self.runs[way]},
            "failed": self.failed,
        }


@app.command
def check(
    folder: Path | None = None,
    *,
    family: Annotated[list[str] | None, cyclopts.Parameter(negative=())] = None,
    json: bool = False,
) -> int:
    """Run the vectors, and count what does as they say.

    Each goes in whole; streams also byte by byte, at random cuts, and cut off
    at every length; messages, rosters and sealed frames cut off at every
    length, and with a byte more. The exit code is 1 if anything differs.

        sealring vectors check
        sealring vectors check path/to/spec/vectors --family frames --json

    Parameters
    ----------
    folder
        The folder of the vectors; the repository's around here if left out.
    family
        Run this family alone: the name of a file without .json. May be repeated.
    json
        Print one JSON object.
    """
    begin = time.perf_counter()
    place = find_folder(folder)
    found = load(place)
    unknown = sorted(set(family or ()) - found.keys())
    if unknown:
        raise UserError(
            f"{place} has no family {', '.join(unknown)}", f"It has: {', '.join(found)}."
        )
    done = {name: _Family() for name in found if not family or name in family}
    for name, one in done.items():
        for vector in found[name]:
            one.take(vector)
    seconds = time.perf_counter() - begin
    failed = sum(len(one.failed) for one in done.values())
    if json:
        print_json(
            {
                "folder": str(place),
                "families": {name: one.facts() for name, one in done.items()},
                **_total(done.values()).facts(),
                "seconds": round(seconds, 2),
            }
        )
    else:
        _show(place, done, seconds)
    return int(failed > 0)


def _total(families: Iterable[_Family]) -> _Family:
    total = _Family()
    for one in families:
        total.vectors += one.vectors
        total.faulty += one.faulty
        total.runs += one.runs
        total.failed += one.failed
    return total


def _show(folder: Path, done: dict[str, _Family], seconds: float) -> None:
    total = _total(done.values())
    print_table(
        f"vectors of {folder}",
        ("family", "vectors", "negative", *_COLUMNS, "failed"),
        [
            (
                name,
                *(f"{count:,}" for count in (one.vectors, one.faulty)),
                *(f"{runs:,}" if runs else "" for runs in map(one.of, _COLUMNS.values())),
                f"{len(one.failed):,}",
            )
            for name, one in [*done.items(), ("in all", total)]
        ],
    )
    for failure in total.failed:
        print(f"{failure['id']} ({failure['way']}): {failure['why']}")
    verdict = f"{len(total.failed)} failed" if total.failed else "all did as they say"
    print(f"{total.runs.total():,} runs of {total.vectors} vectors in {seconds:.1f} s: {verdict}")
