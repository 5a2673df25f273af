"""Takes each row out of each state table, one at a time, and sees whether a test notices.

``python -m tools.rows``           every row of every table
``python -m tools.rows PATTERN``   those whose name holds PATTERN: a table, a state or an event
``python -m tools.rows --list``    what would be tried

A row is noticed when a conformance vector does not come out as it should, or else when a test of
the table's rooms fails. Tests that compare a table with itself, or with a copy of it, are left out:
they would notice everything and show nothing. The exit code is 1 if the loss of a row is noticed
by nobody.

Each row is tried in a process of its own, forked from this one.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from sealring_protocol.conformance.files import find_folder, load
from sealring_protocol.conformance.kinds import KINDS, run

from tools.forked import in_a_fork, rooms_of, tests_of, vectors_of

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = (
    "protocol/sealring_protocol",
    "model/sealring_model",
    "io_trio/sealring_trio",
)
TABLE: Final = re.compile(r"^(\w+): Final\[Table\[", re.MULTILINE)
COPIES: Final = (
    "tests/control/test_tables.py",
    "tests/io_trio/test_engine_group.py::test_what_is_not_in_the_table_is_illegal",
    "tests/security/test_handshake_machines.py::test_the_cross_product",
    "tests/security/test_handshake_machines.py::test_the_ends_are_final_and_everything_else_can_die",
)
"""Tests that compare a table with itself or with a copy of it."""
CPU_LIMIT: Final = 300  # seconds of the processor for one row, which may go round for ever


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

    def take_out(self) -> None:
        """Remove it from the table, in this process."""
        del getattr(importlib.import_module(self.module), self.table)[self.state, self.event]


def rows() -> Iterator[Row]:
    """Every row of every table of the packages."""
    for package in PACKAGES:
        folder = ROOT / package
        for path in sorted(folder.rglob("*.py")):
            for table in TABLE.findall(path.read_text(encoding="utf-8")):
                module = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
                for state, event in getattr(importlib.import_module(module), table):
                    yield Row(module, table, state, event)


def by_vector(module: str) -> str:
    """The first vector that does not come out as it should, those of *module* first; or nothing."""
    for vector, _ in vectors_of(module, VECTORS):
        try:
            run(vector, KINDS).compare(vector)
        except Exception:  # noqa: BLE001 - whatever it is, it has noticed
            return f"vector {vector['id']}"
    return ""


_ENDS: Final = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.INTERRUPTED,
)


class _First:
    """A plugin of pytest's that remembers the first failure."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def by_test(module: str) -> str:
    """The first test of *module*'s rooms that fails, or nothing."""
    first = _First()
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    options += [f"--deselect={test}" for test in COPIES]
    for place in tests_of(module):  # one by one: pytest would not keep to the order
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            code = pytest.main([*options, str(ROOT / place)], [first])
        if code not in _ENDS:
            raise RuntimeError(f"pytest ended with {code!r}")
        if first.name:
            return f"test {first.name}"
    return ""


def _notices(module: str) -> str:
    return by_vector(module) or by_test(module)


def without(row: Row) -> str:
    """Who notices that *row* is gone."""
    row.take_out()
    return _notices(row.module)


VECTORS: Final = load(find_folder())


def main() -> int:
    """Try what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.rows",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--list", action="store_true", help="try nothing")
    asked = parser.parse_args()
    found = [row for row in rows() if asked.pattern.lower() in row.name.lower()]
    if asked.list:
        print(*(row.name for row in found), sep="\n")
        return 0
    os.chdir(ROOT)
    begin, survivors = time.perf_counter(), []
    by_rooms = {rooms_of(row.module): row.module for row in found}
    for module in by_rooms.values():
        if by := in_a_fork(partial(_notices, module), CPU_LIMIT):
            raise SystemExit(f"the code as it is does not pass: {by}")
    for row in found:
        by = in_a_fork(partial(without, row), CPU_LIMIT)
        print(f"{row.name}\n    {by or 'NOBODY NOTICES'}", flush=True)
        if not by:
            survivors.append(row)
    seconds = time.perf_counter() - begin
    print(f"{len(found) - len(survivors)} of {len(found)} rows are noticed, in {seconds:.0f} s")
    print(*(f"nobody notices {row.name}" for row in survivors), sep="\n")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
