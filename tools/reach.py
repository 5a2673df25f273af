"""Which rows of the state tables a vector or a test looks up, and which of them fail.

Every machine looks its rows up in `Machine.fire` and `Machine.after`. `Recorder` notes there which
rows were asked for since the last `take`. What never asks for a row cannot notice that it is gone.

Tests run in this process, so call `run_tests` in a fork.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from sealring_protocol.table import Machine

ROOT: Final = Path(__file__).resolve().parent.parent
COPIES: Final = (
    "tests/control/test_tables.py",
    "tests/io_trio/test_carrier.py::test_what_is_over_stays_over",
    "tests/io_trio/test_engine_group.py::test_what_is_not_in_the_table_is_illegal",
    "tests/security/test_handshake_machines.py::test_every_row_is_walked",
    "tests/security/test_handshake_machines.py::test_the_cross_product",
    "tests/security/test_handshake_machines.py::test_the_ends_are_final_and_everything_else_can_die",
)
"""Tests that compare a table with itself or with a copy of it: they would notice everything and
show nothing."""

_RUN: Final = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)

Key = tuple[int, Any, Any]
"""A row: the identity of its table, its state and its event."""


class Recorder:
    """Notes which of the rows in *names* machines look up, by name. It stays for good."""

    def __init__(self, names: Mapping[Key, str]) -> None:
        asked: set[Key] = set()
        self._names, self._asked = names, asked
        for method in (Machine.fire, Machine.after):
            setattr(Machine, method.__name__, _recording(method, asked))

    def take(self) -> set[str]:
        """The rows that were looked up since the last call."""
        taken = self._asked.copy()  # a thread of a test may add some
        self._asked.clear()
        return {self._names[key] for key in taken if key in self._names}


def _recording(method: Callable[..., Any], asked: set[Key]) -> Callable[..., Any]:
    def recording(machine: Machine[Any, Any], event: Any) -> Any:
        asked.add((id(machine._table), machine.state, event))
        return method(machine, event)

    return recording


@attrs.frozen
class Reached:
    """What a vector or a test did: how many *seconds* it took, the *rows* that it looked up, and
    whether it *failed*."""

    seconds: float
    rows: frozenset[str]
    failed: bool


class _Plugin:
    """Has pytest run *chosen* alone, in their order (None: all), and notes what each reaches. It
    stops at the first that fails having looked up *row*."""

    def __init__(self, recorder: Recorder, chosen: Sequence[str] | None, row: str) -> None:
        self.done: dict[str, Reached] = {}
        self._recorder, self._row = recorder, row
        self._order = None if chosen is None else {name: at for at, name in enumerate(chosen)}
        self._seconds, self._failed = 0.0, False
        self._session: pytest.Session | None = None

    def pytest_configure(self) -> None:
        """Hypothesis draws the same examples each time, and does not look for simpler ones."""
        import hypothesis  # noqa: PLC0415 - pytest is the first to import its plugins

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "reach", derandomize=True, database=None, phases=phases, deadline=None
        )
        hypothesis.settings.load_profile("reach")

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if (order := self._order) is not None:
            items[:] = sorted(
                (item for item in items if item.nodeid in order),
                key=lambda item: order[item.nodeid],
            )

    def pytest_runtest_logstart(self) -> None:
        self._recorder.take()
        self._seconds, self._failed = 0.0, False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        self._failed |= report.failed

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._add(nodeid, self._seconds, failed=self._failed)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # as where a module makes what it tests as it is imported
            self._add(report.nodeid, 0.0, failed=True)

    def _add(self, name: str, seconds: float, *, failed: bool) -> None:
        rows = frozenset(self._recorder.take())
        self.done[name] = Reached(seconds, rows, failed)
        if failed and self._row in rows and self._session is not None:
            self._session.shouldstop = "it is noticed"


def run_tests(
    recorder: Recorder, paths: Collection[str], chosen: Sequence[str] | None = None, row: str = ""
) -> dict[str, Reached]:
    """Run the tests of *paths*, of them only *chosen* (None: all) and in that order, until one
    fails that looked up *row*. Returns what each of them did, by its id."""
    plugin = _Plugin(recorder, chosen, row)
    options = ["-q", "-n0", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    options += [f"--deselect={test}" for test in COPIES]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        code = pytest.main([*options, *(str(ROOT / path) for path in paths)], [plugin])
    if code not in (*_RUN, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"pytest ended with {code!r}")
    return plugin.done


def files_of(places: Collection[str]) -> Iterator[str]:
    """The test files of *places*, each a file or a folder, from the root of the repository."""
    for place in places:
        path = ROOT / place
        for file in sorted(path.glob("test_*.py")) if path.is_dir() else [path]:
            yield str(file.relative_to(ROOT))
