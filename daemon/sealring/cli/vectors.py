"""`sealring vectors`: the conformance vectors against this installation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import cyclopts
from sealring_protocol.conformance import report
from sealring_protocol.conformance.files import NoVectors, chosen, find_folder, load
from sealring_protocol.conformance.kinds import KINDS
from sealring_trio.errors import FOUND_WRONG, UserError

from sealring.cli.options import AsJson
from sealring.output import print_json, print_table

app = cyclopts.App(
    name="vectors",
    help="""\
Hold this implementation to the conformance vectors of sealring/1.

Each vector has an input and the result that it must give. The README beside
them says how to read them. For an implementation of your own, see
python -m sealring_protocol.conformance --help.

    sealring vectors check
""",
)


_COLUMNS: Final = {
    "whole": ("whole",),
    "cut": ("bytewise", "pieces"),
    "cut off": ("truncated",),
    "grown": ("trailing",),
}
"""Columns of the table, and the ways to run a vector that each counts."""


@app.command
def check(
    folder: Path | None = None,
    *,
    family: Annotated[list[str] | None, cyclopts.Parameter(negative=())] = None,
    json: AsJson = False,
) -> int:
    """Run the vectors, and count those that give their results.

    Each input goes in whole. Streams also go in byte by byte, at random cuts,
    and cut off at every length; messages, rosters and sealed frames also cut
    off at every length, and with a byte more. The exit code is 3 if any result
    differs.

        sealring vectors check
        sealring vectors check path/to/spec/vectors --family frames --json

    Parameters
    ----------
    folder
        The folder of the vectors. If left out, those of the repository that
        this folder is in, or else those that came with the package.
    family
        Run this family alone: the name of a file without .json. May be repeated.
    """
    begin = time.perf_counter()
    try:
        place = folder or find_folder()
        families = chosen(load(place), family or ())
    except NoVectors as error:
        raise UserError(str(error), error.advice) from None
    from sealring_model.sampling import draw  # noqa: PLC0415 - imports MLX

    done = report.check(families, {**KINDS, **draw.VECTORS})
    seconds = time.perf_counter() - begin
    everything = report.total(done.values())
    if json:
        print_json(
            {
                "folder": str(place),
                "families": {name: one.facts() for name, one in done.items()},
                **everything.facts(),
                "seconds": round(seconds, 2),
            }
        )
    else:
        _show(place, done, seconds)
    return FOUND_WRONG if everything.failed else 0


def _show(folder: Path, done: dict[str, report.Family], seconds: float) -> None:
    everything = report.total(done.values())
    print_table(
        f"vectors of {folder}",
        ("family", "vectors", "negative", *_COLUMNS, "failed"),
        [
            (
                name,
                f"{one.vectors:,}",
                f"{one.negative:,}",
                *(f"{runs:,}" if runs else "" for runs in _runs(one)),
                f"{len(one.failed):,}",
            )
            for name, one in [*done.items(), ("in all", everything)]
        ],
    )
    print(*report.verdict(everything), f"It took {seconds:.1f} s.", sep="\n")


def _runs(family: report.Family) -> list[int]:
    return [sum(family.runs[way] for way in ways) for ways in _COLUMNS.values()]
