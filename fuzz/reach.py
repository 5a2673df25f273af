"""``python -m fuzz.reach``: branch coverage of the rooms that the corpora reach, by module.

Runs every target over its seeds and over what `fuzz/run` has kept, without the fuzzer.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Final

import coverage

from fuzz.main import KEPT, TARGETS

ROOMS: Final = ("*/sealring_protocol/codec/*", "*/sealring_protocol/security/*")


def inputs(name: str, target: ModuleType) -> Iterator[bytes]:
    """The seeds of *target*, and its kept corpus."""
    yield from target.seeds()
    for path in sorted((KEPT / name / "corpus").glob("*")):
        yield path.read_bytes()


def main() -> int:
    """Measure and report."""
    measured = coverage.Coverage(branch=True, include=ROOMS, data_file=None)
    measured.start()
    for name in TARGETS:
        target = importlib.import_module(f"fuzz.targets.{name}")
        for data in inputs(name, target):
            target.check(data)
    measured.stop()
    report = io.StringIO()
    measured.report(file=report, show_missing=True, skip_covered=True)
    sys.stdout.write(report.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main())
