"""Prints the results of benches: as tables for people and as JSON for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
from sealring.output import print_facts, print_json, print_table
from sealring_trio.errors import FOUND_WRONG

if TYPE_CHECKING:
    from sealring_tools.bench.faults import Summary
    from sealring_tools.bench.measure import Result
    from sealring_tools.bench.phases import Spread
    from sealring_tools.bench.serve import Report
    from sealring_tools.bench.soak import Reading, Soak

ERRORS_SHOWN: Final = 5


def show_report(report: Report) -> None:
    """Print *report*."""
    rows = [(name, *_cells(spread)) for name, spread in report.phases.items()]
    rows += [(f"{name}, at the client", *_cells(spread)) for name, spread in report.client.items()]
    print_table(
        f"{report.load.name}: milliseconds of a request",
        ["phase", "mean", "p50", "p95", "max"],
        rows,
    )
    done = report.load.requests - _errors(report)
    print_facts(
        [
            ("answered", f"{done} of {report.load.requests}, in {report.seconds:.1f} s"),
            ("tokens", f"{report.tokens}, {report.tokens / report.seconds:.1f} a second"),
            *((v.name, _verdict(v.found, v.limit, v.holds)) for v in report.verdicts),
        ]
    )
    for error in report.errors[:ERRORS_SHOWN]:
        print(f"  {error}")
    if len(report.errors) > ERRORS_SHOWN:
        print(f"  and {len(report.errors) - ERRORS_SHOWN} more")
    print(f"{report.load.name}: {'passed' if report.passed else 'FAILED'}\n", flush=True)


def describe_report(report: Report) -> dict[str, Any]:
    """*report* as JSON. Times are milliseconds, but for the load's *seconds*."""
    return {
        "load": attrs.asdict(report.load),
        "seconds": report.seconds,
        "tokens": report.tokens,
        "errors": report.errors,
        "phases_ms": {name: attrs.asdict(spread) for name, spread in report.phases.items()},
        "client_ms": {name: attrs.asdict(spread) for name, spread in report.client.items()},
        "limits": [{**attrs.asdict(v), "holds": v.holds} for v in report.verdicts],
        "passed": report.passed,
    }


def _errors(report: Report) -> int:
    return int(next(verdict.found for verdict in report.verdicts if verdict.name == "errors"))


def _cells(spread: Spread) -> list[str]:
    return [f"{value:,.2f}" for value in (spread.mean, spread.p50, spread.p95, spread.max)]


def _verdict(found: float, limit: float, holds: bool) -> str:
    return f"{found:.4g}, of at most {limit:.4g}{'' if holds else ': BROKEN'}"


class SoakTable:
    """A line for each reading of a soak, as it comes; none if *quiet*."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._named = False

    def show(self, reading: Reading) -> None:
        """Print *reading*: megabytes of each process, and what runs."""
        if self._quiet:
            return
        if not self._named:
            self._named = True
            names = "".join(f"{name:>14}" for name in reading.processes)
            print(f"{'minutes':>8}{names}{'files':>7}{'tasks':>7}{'rows':>6}{'requests':>10}")
        sizes = "".join(f"{p.memory / (1 << 20):>10.1f} MiB" for p in reading.processes.values())
        files = sum(process.files for process in reading.processes.values())
        tasks = sum(reading.tasks.values())
        print(
            f"{reading.seconds / 60:>8.2f}{sizes}{files:>7}{tasks:>7}{reading.rows:>6}"
            f"{reading.done:>10}",
            flush=True,
        )


def show_soak(soak: Soak) -> None:
    """Print how *soak* ended."""
    deeds = ", ".join(f"{count} {deed}" for deed, count in sorted(soak.deeds.items()))
    print(f"requests: {deeds}")
    for fault in soak.faults[:ERRORS_SHOWN]:
        print(f"  {fault}")
    if len(soak.faults) > ERRORS_SHOWN:
        print(f"  and {len(soak.faults) - ERRORS_SHOWN} more")
    print(f"soak: {'passed' if soak.passed else 'FAILED'}")


def show_faults(found: list[Summary], json: bool) -> None:
    """Print *found*, as a table or, with *json*, as a list of objects. Times are seconds."""
    if json:
        print_json([{**attrs.asdict(each), "passed": each.passed} for each in found])
        return
    print_table(
        "Seconds, median and greatest",
        ["fault", "times", "noticed", "whole again", "wrong", ""],
        [
            (
                each.fault,
                str(each.times),
                " / ".join(f"{value:.2f}" for value in each.noticed),
                " / ".join(f"{value:.2f}" for value in each.whole),
                str(len(each.wrong)),
                "passed" if each.passed else "FAILED",
            )
            for each in found
        ],
    )
    for each in found:
        for wrong in each.wrong[:ERRORS_SHOWN]:
            print(f"{each.fault}, {wrong}")


def report(results: list[Result], *, json: bool, check: bool) -> int:
    """Print *results*; the exit code: 3 if one misses its limit and that is to be checked."""
    print_results(results, json)
    return FOUND_WRONG if check and not all(result.holds for result in results) else 0


def print_results(results: list[Result], json: bool) -> None:
    """Print *results*, as a table or, with *json*, as a list of objects."""
    if json:
        print_json(
            [
                {
                    "name": result.name,
                    "unit": result.unit,
                    "ours": result.ours,
                    "yardstick": result.yardstick,
                    "yardstick_name": result.yardstick_name,
                    "ratio": result.ratio,
                    **({} if result.floor is None else {"floor": result.floor}),
                    **({} if result.ceiling is None else {"ceiling": result.ceiling}),
                }
                for result in results
            ]
        )
        return
    limits = any(result.floor is not None or result.ceiling is not None for result in results)
    print_table(
        "Medians of alternating turns",
        ["what", "yardstick", "unit", "ours", "its", "ratio", *(["limit"] if limits else [])],
        [
            (
                result.name,
                result.yardstick_name,
                result.unit,
                _number(result.ours),
                _number(result.yardstick),
                f"{result.ratio:.2f}",
                *([_limit(result)] if limits else []),
            )
            for result in results
        ],
        numbers_from=3,
    )


def _limit(result: Result) -> str:
    if result.floor is None and result.ceiling is None:
        return ""
    limit = f"from {result.floor:.2f}" if result.floor is not None else f"to {result.ceiling:.2f}"
    return f"{limit}{'' if result.holds else ' MISSED'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}" if value < 100 else f"{value:.1f}"
