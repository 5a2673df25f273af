"""``python -m spec.formal``: search every scenario, then every weakened variant.

The exit code is 1 if the handshake, a join or an election has an attack, or if a variant has none
of those that it must have: a check that cannot fail shows nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from spec.formal import elections
from spec.formal.cases import REDUNDANT, SCENARIOS, WEAK, broken, search
from spec.formal.join_search import (
    JOIN_PROPERTIES,
    JOIN_REDUNDANT,
    JOIN_SCENARIOS,
    JOIN_WEAK,
    join_broken,
    join_search,
)
from spec.formal.search import PROPERTIES, Attack, Found
from spec.formal.weak_elections import ELECTION_CASES, ELECTION_WEAK, election_broken


@attrs.frozen
class Subject:
    """One exchange: its scenarios, its variants, and how they are searched. A variant's name begins
    with *prefix*."""

    prefix: str
    scenarios: Sequence[Any]
    weak: Mapping[str, tuple[str, set[str]]]
    redundant: Mapping[str, str]
    properties: Mapping[str, str]
    search: Callable[..., Found]
    broken: Callable[[str], Found]


SUBJECTS: Final = (
    Subject("", SCENARIOS, WEAK, REDUNDANT, PROPERTIES, search, broken),
    Subject(
        "join:",
        JOIN_SCENARIOS,
        JOIN_WEAK,
        JOIN_REDUNDANT,
        JOIN_PROPERTIES,
        join_search,
        join_broken,
    ),
)


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m spec.formal", description=__doc__)
    parser.add_argument("--trace", metavar="VARIANT", help="how a variant is broken")
    trace = parser.parse_args().trace
    if trace is not None:
        return _show(trace)
    failed = [*(_holds(subject) for subject in SUBJECTS), _elections_hold()]
    return int(any(failed))


def _holds(subject: Subject) -> bool:
    """Search all of *subject*; true if anything is not as it should be."""
    failed = _sound(subject)
    for weak, (about, owed) in subject.weak.items():
        missed = owed - subject.broken(weak).attacks.keys()
        failed |= bool(missed)
        told = f"NOT CAUGHT: {', '.join(sorted(missed))}" if missed else "caught"
        names = ", ".join(name for name in subject.properties if name in owed)
        print(f"{subject.prefix + weak:<26} {about:<56} {told}: {names}")
    for weak, about in subject.redundant.items():
        attacks = sorted(subject.search(weak).attacks)
        failed |= bool(attacks)
        told = ", ".join(attacks) or "nothing breaks"
        print(f"{subject.prefix + weak:<26} {about:<56} {told}")
    return failed


def _elections_hold() -> bool:
    """Search all cases of elections, and all variants; true if anything is not as it should be."""
    failed = False
    for case in ELECTION_CASES:
        begin = time.perf_counter()
        seen = elections.search(case)
        failed |= seen.broken is not None
        spent = time.perf_counter() - begin
        told = "no two heads" if seen.broken is None else f"{seen.broken}, by {seen.trace}"
        print(f"elections: {case.told:<42} {seen.states:>7,} states, {spent:5.1f} s, {told}")
    for name, variant in ELECTION_WEAK.items():
        broken = election_broken(name).broken
        failed |= broken is None
        caught = "NOT CAUGHT" if broken is None else "caught"
        print(f"{'election:' + name:<26} {variant.about:<56} {caught}: {variant.owed}")
    return failed


def _sound(subject: Subject) -> bool:
    failed = False
    for scenario in subject.scenarios:
        begin = time.perf_counter()
        found = subject.search("", (scenario,))
        failed |= bool(found.attacks) or not found.completed
        print(
            f"{scenario.name:<42} {found.states:>7,} states, {found.completed:>6,} completions, "
            f"{time.perf_counter() - begin:5.1f} s, "
            f"{', '.join(found.attacks) or 'no attack'}"
        )
        for attack in found.attacks.values():
            _tell(attack)
    return failed


def _show(name: str) -> int:
    variants = {s.prefix + weak: (s, weak) for s in SUBJECTS for weak in (*s.weak, *s.redundant)}
    if name not in variants:
        sys.stderr.write(f"no such variant; there are {', '.join(variants)}\n")
        return 2
    subject, weak = variants[name]
    found = subject.search(weak) if weak in subject.redundant else subject.broken(weak)
    for attack in found.attacks.values():
        _tell(attack)
    return 0


def _tell(attack: Attack) -> None:
    print(f"\n{attack.property}: {attack.detail} (in: {attack.scenario})")
    for step in attack.trace:
        print(f"  {step}")


if __name__ == "__main__":
    sys.exit(main())
