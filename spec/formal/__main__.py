"""``python -m spec.formal``: search every scenario, then every weakened variant.

The exit code is 1 if the handshake has an attack, or if a variant has none of those that it must
have: a check that cannot fail shows nothing.
"""

from __future__ import annotations

import argparse
import sys
import time

from spec.formal.cases import REDUNDANT, SCENARIOS, WEAK, broken, search
from spec.formal.search import PROPERTIES, Attack


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m spec.formal", description=__doc__)
    parser.add_argument("--trace", metavar="VARIANT", help="how a variant is broken")
    trace = parser.parse_args().trace
    if trace is not None:
        return _show(trace)
    failed = _sound()
    for weak, (about, owed) in WEAK.items():
        missed = owed - broken(weak).attacks.keys()
        failed |= bool(missed)
        told = f"NOT CAUGHT: {', '.join(sorted(missed))}" if missed else "caught"
        names = ", ".join(name for name in PROPERTIES if name in owed)
        print(f"{weak:<26} {about:<56} {told}: {names}")
    for weak, about in REDUNDANT.items():
        attacks = sorted(search(weak).attacks)
        failed |= bool(attacks)
        print(f"{weak:<26} {about:<56} {', '.join(attacks) or 'nothing breaks'}")
    return int(failed)


def _sound() -> bool:
    failed = False
    for scenario in SCENARIOS:
        begin = time.perf_counter()
        found = search("", (scenario,))
        failed |= bool(found.attacks) or not found.completed
        print(
            f"{scenario.name:<40} {found.states:>7,} states, {found.completed:>6,} completions, "
            f"{time.perf_counter() - begin:5.1f} s, "
            f"{', '.join(found.attacks) or 'no attack'}"
        )
        for attack in found.attacks.values():
            _tell(attack)
    return failed


def _show(weak: str) -> int:
    if weak not in {*WEAK, *REDUNDANT}:
        sys.stderr.write(f"no such variant; there are {', '.join([*WEAK, *REDUNDANT])}\n")
        return 2
    for attack in (search if weak in REDUNDANT else broken)(weak).attacks.values():
        _tell(attack)
    return 0


def _tell(attack: Attack) -> None:
    print(f"\n{attack.property}: {attack.detail} (in: {attack.scenario})")
    for step in attack.trace:
        print(f"  {step}")


if __name__ == "__main__":
    sys.exit(main())
