"""``python -m fuzz.reach``: branch coverage of the rooms that the corpora reach, by module.

Runs every target over its seeds and its committed inputs, and with ``--kept`` over what `fuzz/run`
has kept here too, without the fuzzer. The exit code is 1 below `LEAST`.
"""

from __future__ import annotations

import importlib
import io
import sys
from typing import Final

import coverage

from fuzz.corpora import inputs
from fuzz.main import KEPT, TARGETS

LEAST: Final = 95
"""Per cent."""

KEY_FILE: Final = r"def (from|to)_pem\b"
"""What reads and writes a node's own key file does not count: no stranger's bytes come there."""

ROOMS: Final = tuple(f"*/sealring_protocol/{room}/*" for room in ("codec", "security", "joining"))


def main() -> int:
    """Measure and report."""
    measured = coverage.Coverage(branch=True, include=ROOMS, data_file=None)
    measured.set_option("report:precision", 1)
    measured.exclude(KEY_FILE)
    measured.start()
    for name in TARGETS:
        check = importlib.import_module(f"fuzz.targets.{name}").check
        for data in inputs(name):
            check(data)
        for path in sorted((KEPT / name / "corpus").glob("*")) if "--kept" in sys.argv else ():
            check(path.read_bytes())
    measured.stop()
    report = io.StringIO()
    reached = measured.report(file=report, show_missing=True, skip_covered=True)
    sys.stdout.write(report.getvalue())
    sys.stdout.write(f"\n{reached:.1f} % is reached; {LEAST} % is the least\n")
    return int(reached < LEAST)


if __name__ == "__main__":
    sys.exit(main())
