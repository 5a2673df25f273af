"""The command of `tests.families`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs

import tests.families
from tests.families.check import FAMILIES, NONE, Outcome, check, reference
from tests.families.checkpoints import write
from tests.families.table import write_table

LIMIT = 300  # seconds for one family


def main() -> int:
    """Try what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.families",
        description=tests.families.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("families", nargs="*", metavar="NAME", default=FAMILIES)
    parser.add_argument("--json", action="store_true", help="the results as JSON")
    parser.add_argument("--write", action="store_true", help="write the table of docs/models.md")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--reference", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := [name for name in asked.families if name not in FAMILIES]:
        parser.error(f"there is no family {unknown[0]}; there are {', '.join(FAMILIES)}")
    if asked.reference:
        with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
            reference(write(Path(folder), asked.families[0]))
        return 0
    if asked.child:
        with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
            outcome = check(asked.families[0], Path(folder))
        print(json.dumps(attrs.asdict(outcome)))
        return 0
    outcomes = []
    for family in asked.families:
        begin = time.perf_counter()
        outcomes.append(outcome := _in_a_child(family))
        seconds = time.perf_counter() - begin
        if not asked.json:
            print(
                f"{'ok   ' if outcome.is_right else 'WRONG'} {family} ({seconds:.0f} s)", flush=True
            )
            if not outcome.is_right:
                print(f"      {outcome}")
    if asked.json:
        print(json.dumps([attrs.asdict(outcome) for outcome in outcomes], indent=1))
    if asked.write:
        write_table(outcomes)
    return int(not all(outcome.is_right for outcome in outcomes))


def _in_a_child(family: str) -> Outcome:
    """*family* in a process of its own: a class may crash it, or never end."""
    command = [sys.executable, "-m", "tests.families", "--child", family]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return _failed(family, f"failed: not done after {LIMIT} s")
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        why = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        if _reference_fails(family):
            return Outcome(family, *(f"(mlx-lm itself: {why[0]})",) * 6)
        return _failed(family, f"failed: {why[0]}")
    return Outcome(**json.loads(lines[-1]))


def _reference_fails(family: str) -> bool:
    """Whether mlx-lm's own model of *family* ends its process, too."""
    command = [sys.executable, "-m", "tests.families", "--reference", family]
    done = subprocess.run(command, capture_output=True, timeout=LIMIT, check=False)
    return done.returncode != 0


def _failed(family: str, why: str) -> Outcome:
    return Outcome(family, why, NONE, NONE, NONE, NONE, NONE)


if __name__ == "__main__":
    sys.exit(main())
