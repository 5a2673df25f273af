"""``fuzz/run TARGET --seconds N`` or ``fuzz/run all --seconds N``: fuzz, and say what came of it.

Each target runs in a process of its own, as many at once as there are cores. What it finds worth
keeping stays in ``build/fuzz``, and so does the input of a crash, whose traceback is shown.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parent.parent
KEPT: Final = ROOT / "build" / "fuzz"
TARGETS: Final = tuple(sorted(path.stem for path in (ROOT / "fuzz" / "targets").glob("[a-z]*.py")))
LONGEST: Final = {
    "addresses": 700,
    "answers": 200,
    "responder": 2000,
    "initiator": 2000,
    "inviter": 2000,
    "joiner": 2000,
    "link": 600,
    "middle": 400,
    "lockstep": 400,
    "relay": 1400,
    "tensor": 400,
}
"""Bytes of the longest input, where libFuzzer's own choice would make runs slow."""

_EXECUTED: Final = re.compile(rb"stat::number_of_executed_units:\s+(\d+)")
_RATE: Final = re.compile(rb"stat::average_exec_per_sec:\s+(\d+)")
_COVERED: Final = re.compile(rb"cov: (\d+)")


@attrs.frozen
class Outcome:
    """What came of one target: *covered* counts edges; *crash* is the end of its output."""

    target: str
    executed: int
    rate: int
    covered: int
    crash: str


def fuzz(target: str, seconds: int) -> Outcome:
    """Run *target* for about *seconds*."""
    corpus, crashes = KEPT / target / "corpus", KEPT / target / "crashes"
    crashes.mkdir(parents=True, exist_ok=True)
    command: Sequence[str] = (
        sys.executable,
        "-m",
        "fuzz.engine",
        target,
        str(corpus),
        f"-max_total_time={seconds - 1}",  # libFuzzer ends once more whole seconds have passed
        f"-dict={ROOT / 'fuzz' / 'sealring.dict'}",
        f"-artifact_prefix={crashes}/",
        f"-max_len={LONGEST.get(target, 4096)}",
        "-rss_limit_mb=2048",
        "-timeout=20",
        "-print_final_stats=1",
    )
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    output = done.stdout + done.stderr
    crash = ""
    if done.returncode:
        told = (done.stdout[-3000:] + done.stderr[-1000:]).decode("utf-8", "replace")
        crash = f"{told}\nexit code {done.returncode}"
    return Outcome(
        target, _last(_EXECUTED, output), _last(_RATE, output), _last(_COVERED, output), crash
    )


def _last(pattern: re.Pattern[bytes], output: bytes) -> int:
    found = pattern.findall(output)
    return int(found[-1]) if found else 0


def main() -> int:
    """Fuzz one target or all; 1 if any has crashed."""
    parser = argparse.ArgumentParser(prog="fuzz/run", description="coverage-guided fuzzing")
    parser.add_argument("target", choices=(*TARGETS, "all"), help="what to fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60; 2 or more)")
    asked = parser.parse_args()
    if asked.seconds < 2:  # libFuzzer would be given 0, which is no limit to it
        parser.error("--seconds is 2 or more")
    targets = TARGETS if asked.target == "all" else (asked.target,)
    sys.stdout.write(f"{'target':<16}{'executions':>12}{'per second':>12}{'edges':>8}\n")
    crashed = False
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        for outcome in cores.map(partial(fuzz, seconds=asked.seconds), targets):
            told = f"{outcome.target:<16}{outcome.executed:>12,}"
            told += f"{outcome.rate:>12,}{outcome.covered:>8,}"
            told += "  CRASHED\n" + outcome.crash if outcome.crash else ""
            sys.stdout.write(told + "\n")
            sys.stdout.flush()
            crashed = crashed or bool(outcome.crash)
    return int(crashed)


if __name__ == "__main__":
    sys.exit(main())
