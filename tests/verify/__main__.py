"""How far rings are from one process, family by family: ``python -m tests.verify FAMILY:DTYPE ...``

DTYPE is f32, f16, bf16 or q4. Prints for each the largest deviation of layers and logits, what
is allowed there, and how far mlx-lm itself is off when it reads the same in other pieces.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Final

import mlx.core as mx
from sealring_trio.errors import UserError

from tests.verify.rings import family, verified

_DTYPES: Final = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16, "q4": mx.float32}


def measure(name: str, kind: str, folder: Path) -> str:
    """A line of the table."""
    model = family(folder, name, dtype=_DTYPES[kind], bits=4 if kind == "q4" else 0)
    try:
        found = verified(model)
    except UserError as error:
        return f"| {name} | {kind} | {error.what} | | | |"
    stations = [s for s in found.verdict.stations if s.place.what in ("layers", "head")]
    largest = max(station.largest for station in stations)
    noise = max(max(station.noise) for station in stations)
    allowed = [station.limit for station in stations]
    verdict = "right" if found.passed else "WRONG"
    ties = found.verdict.ties
    return (
        f"| {name} | {kind} | {largest:.1e} | {noise:.1e} | {min(allowed):.0e} to "
        f"{max(allowed):.0e} | {verdict}, {ties} ties |"
    )


def main(asked: list[str]) -> None:
    """Measure what is *asked* for."""
    warnings.simplefilter("ignore")
    for each in asked:
        name, _, kind = each.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            print(measure(name, kind or "f32", Path(folder)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
