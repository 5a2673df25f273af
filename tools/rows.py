"""Takes each row out of each state table, one at a time, and sees whether a test notices.

``python -m tools.rows``           every row of every table
``python -m tools.rows PATTERN``   those whose name holds PATTERN: a table, a state or an event
``python -m tools.rows --list``    what would be tried

First all conformance vectors, and all tests of the tables' rooms, run once as the code is, to see
which rows each of them looks up. Then each row is taken out, in a process of its own, and what
looks it up runs again: vectors first, then the fastest tests, until one fails. Tests that compare
a table with itself, or with a copy of it, are left out.

A row that nobody notices stands in `tools/rows_kept.txt` with the reason why no test can notice it.
The exit code is 1 if one does not stand there, or if one that does is noticed or is gone.

153 rows took 192 seconds on two cores with nothing else to do. `--jobs` says how many rows are
tried at a time.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
from sealring_protocol.conformance.files import find_folder, load
from sealring_protocol.conformance.kinds import KINDS, run

from tools.arguments import command
from tools.forked import LEFT_OUT, in_forks, tests_of
from tools.reach import ROOT, Key, Reached, Recorder, files_of, run_tests

PACKAGES: Final = (
    "protocol/sealring_protocol",
    "model/sealring_model",
    "io_trio/sealring_trio",
    "daemon/sealring",
)
KEPT: Final = Path(__file__).parent / "rows_kept.txt"
TABLE: Final = re.compile(r"^(\w+): Final\[Table\[", re.MULTILINE)
CPU_LIMIT: Final = 300  # seconds of the processor for one row, which may go round for ever
TIME_LIMIT: Final = 300  # seconds for one row, which may wait for ever
BATCHES: Final = (5, 50, 10_000)  # tests to collect at once: to collect all takes longer than few


@attrs.frozen
class Row:
    """The move of a *table* from *state* on *event*."""

    module: str
    table: str
    state: Any
    event: Any

    @property
    def name(self) -> str:
        """It for people."""
        return f"{self.module}.{self.table} ({self.state.name}, {self.event.name})"

    @property
    def key(self) -> Key:
        """It for a recorder."""
        return id(self._table), self.state, self.event

    def take_out(self) -> None:
        """Remove it from the table, in this process."""
        del self._table[self.state, self.event]

    @property
    def _table(self) -> Any:
        return getattr(importlib.import_module(self.module), self.table)


def rows() -> Iterator[Row]:
    """Every row of every table of the packages."""
    for package in PACKAGES:
        folder = ROOT / package
        for path in sorted(folder.rglob("*.py")):
            for table in TABLE.findall(path.read_text(encoding="utf-8")):
                module = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
                for state, event in getattr(importlib.import_module(module), table):
                    yield Row(module, table, state, event)


def kept() -> dict[str, str]:
    """The rows that stay though nobody notices them, and why."""
    pairs = (line.partition("  # ") for line in KEPT.read_text().splitlines() if line)
    return {name: why for name, _, why in pairs}


# ------------------------------------------------------------------- in a fork

VECTORS: Final = {
    f"vector {vector['id']}": vector
    for vectors in load(find_folder()).values()
    for vector in vectors
    if vector["kind"] not in LEFT_OUT
}


def run_vector(recorder: Recorder, name: str) -> Reached:
    """Run the vector with *name*, and see what it reaches."""
    recorder.take()
    begin, vector, failed = time.perf_counter(), VECTORS[name], False
    try:
        run(vector, KINDS).compare(vector)
    except Exception:  # noqa: BLE001 - whatever it is, it has noticed
        failed = True
    return Reached(time.perf_counter() - begin, frozenset(recorder.take()), failed)


def _measured(recorder: Recorder, path: str) -> str:
    """What each test of *path*, or where that is empty each vector, does, as JSON."""
    if path:
        done = run_tests(recorder, [path])
    else:
        done = {name: run_vector(recorder, name) for name in VECTORS}
    return json.dumps({name: (r.seconds, list(r.rows), r.failed) for name, r in done.items()})


def who_notices(recorder: Recorder, row: Row, reaching: Sequence[str]) -> str:
    """Take *row* out, and run *reaching* in order. The first that fails, or nothing."""
    row.take_out()
    for name in (each for each in reaching if each in VECTORS):
        if run_vector(recorder, name).failed:
            return name
    tests = [each for each in reaching if each not in VECTORS]
    for size in BATCHES:
        batch, tests = tests[:size], tests[size:]
        paths = dict.fromkeys(test.partition("::")[0] for test in batch)
        if batch:
            for name, reached in run_tests(recorder, paths, batch, row.name).items():
                if reached.failed and row.name in reached.rows:
                    return f"test {name}"
    return ""


# --------------------------------------------------------------- in the parent


def measure(recorder: Recorder, found: Sequence[Row], at_once: int) -> dict[str, Reached]:
    """What all vectors, and all tests of the rooms of *found*, do as the code is. Those that
    compute least come first, vectors before tests."""
    places = [place for module in {row.module: 0 for row in found} for place in tests_of(module)]
    works = [partial(_measured, recorder, path) for path in ("", *dict.fromkeys(files_of(places)))]
    done: dict[str, Reached] = {}
    for _, said in in_forks(works, at_once, CPU_LIMIT, TIME_LIMIT):
        if not said.startswith("{"):
            raise SystemExit(f"the code as it is does not pass: {said}")
        for name, (seconds, reached, failed) in json.loads(said).items():
            done[name] = Reached(seconds, frozenset(reached), failed)
    if failed := [name for name, reached in done.items() if reached.failed]:
        raise SystemExit(f"the code as it is does not pass: {', '.join(failed)}")
    return dict(sorted(done.items(), key=lambda each: (each[0] not in VECTORS, each[1].seconds)))


def try_rows(
    recorder: Recorder, found: Sequence[Row], done: dict[str, Reached], at_once: int
) -> dict[str, str]:
    """Who notices each row of *found*, or nothing."""
    works: list[Callable[[], str]] = []
    for row in found:
        reaching = [name for name, reached in done.items() if row.name in reached.rows]
        works.append(partial(who_notices, recorder, row, reaching))
    noticed = {}
    for index, by in in_forks(works, at_once, CPU_LIMIT, TIME_LIMIT):
        noticed[found[index].name] = by
        print(f"{found[index].name}\n    {by or 'NOBODY NOTICES'}", flush=True)
    return noticed


def main() -> int:
    """Try what was asked for."""
    parser = command("tools.rows", __doc__)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--list", action="store_true", help="try nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="rows at a time")
    asked = parser.parse_args()
    every = list(rows())
    found = [row for row in every if asked.pattern.lower() in row.name.lower()]
    if asked.list:
        print(*(row.name for row in found), sep="\n")
        return 0
    os.chdir(ROOT)
    begin, recorder = time.perf_counter(), Recorder({row.key: row.name for row in every})
    done = measure(recorder, found, asked.jobs)
    seconds = time.perf_counter() - begin
    print(f"{len(done)} vectors and tests pass with every row, in {seconds:.0f} s", flush=True)
    noticed = try_rows(recorder, found, done, asked.jobs)
    count, seconds = sum(map(bool, noticed.values())), time.perf_counter() - begin
    print(f"{count} of {len(found)} rows are noticed, in {seconds:.0f} s")
    return judge(noticed, {row.name for row in every})


def judge(noticed: dict[str, str], every: set[str]) -> int:
    """Print what is to be done, and return the exit code."""
    reasons, wrong = kept(), []
    for name, by in noticed.items():
        if not by and name in reasons:
            print(f"nobody notices {name}, for: {reasons[name]}")
        elif not by:
            wrong.append(f"nobody notices {name}")
        elif name in reasons:
            wrong.append(f"{KEPT.name} says that nobody notices {name}")
    wrong += [f"{KEPT.name} names {name}, which there is not" for name in reasons.keys() - every]
    print(*wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
