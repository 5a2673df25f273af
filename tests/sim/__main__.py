"""``python -m tests.sim``: whole rings with clients, in virtual time, by one seed after another.

``python -m tests.sim --seeds 0:100000 --jobs 8``   those seeds; none may show anything broken
``python -m tests.sim --seeds 17 --story``          one, with all that happened in it
``python -m tests.sim --planted``                   each planted fault, until a seed finds it
``python -m tests.sim --planted vote-twice``        that one

`tests.sim.courses` says what happens and what must hold, `tests.sim.planted` which faults are
planted. A seed does the same each time. The exit code is 1 if a seed has shown something broken, or
if a planted fault was not found.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.sim.courses import Seen, go
from tests.sim.planted import PLANTED

EVERY = 10.0
"""Seconds between two lines that say how far it is."""


def look(planted: str, seed: int) -> Seen:
    """The course of *seed*, with a *planted* fault if that names one."""
    if not planted:
        return go(seed)
    fault = PLANTED[planted]
    with fault.patched():
        return go(seed, fault.kind, forgets=fault.forgets)


@contextmanager
def looking(planted: str, seeds: range, jobs: int) -> Iterator[Iterator[Seen]]:
    """What *seeds* show, as it comes, by so many processes."""
    if jobs == 1:
        yield map(partial(look, planted), seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1000) as pool:
        yield pool.imap_unordered(partial(look, planted), seeds)


def tried(seeds: range, jobs: int, planted: str = "", owed: str = "") -> Seen | None:
    """The first of *seeds* that shows something broken, or what is *owed*, if any is."""
    began = told = time.monotonic()
    whole, why, seconds, others = 0, Counter[str](), 0.0, 0
    with looking(planted, seeds, jobs) as found:
        for count, seen in enumerate(found, 1):
            whole, seconds, why = whole + seen.whole, seconds + seen.seconds, why + seen.why
            if seen.broken and owed in seen.broken:
                return seen
            others += bool(seen.broken)
            now = time.monotonic()
            if now >= told + EVERY or count == len(seeds):
                told = now
                ends = ", ".join(f"{number} {each}" for each, number in why.most_common())
                rate = count / (now - began)
                print(
                    f"{planted} {count:,} of {len(seeds):,} seeds, {rate:.2f} a second, "
                    f"{seconds:,.0f} s of virtual time; {whole:,} answers whole, "
                    f"others: {ends or 'none'}" + f"; {others} broken otherwise" * bool(others),
                    flush=True,
                )
    return None


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", default="0:1000", metavar="FIRST:END", help="or one seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--planted", nargs="*", metavar="NAME", help=f"of {', '.join(PLANTED)}")
    parser.add_argument("--story", action="store_true", help="tell what happened")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first, _, end = asked.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    if asked.planted is None:
        seen = tried(seeds, asked.jobs)
        if seen is not None:
            _tell(seen, "")
        elif asked.story:
            _tell(go(seeds[0]), "")
        return int(seen is not None)
    missed = False
    for name in asked.planted or PLANTED:
        began = time.monotonic()
        seen = tried(seeds, asked.jobs, name, PLANTED[name].owed)
        missed |= seen is None
        at = "NOT FOUND" if seen is None else f"seed {seen.seed}: {seen.broken[:90]}"
        spent = time.monotonic() - began
        print(f"{name:<30} {PLANTED[name].about:<58} {spent:6.1f} s, {at}", flush=True)
        if seen is not None and asked.story:
            _tell(seen, name)
    return int(missed)


def _tell(seen: Seen, planted: str) -> None:
    for line in seen.happened:
        print(f"  {line}")
    more = f" --planted {planted}" if planted else ""
    print(f"seed {seen.seed}, at {seen.seconds:.3f} s: {seen.broken or 'nothing is broken'}")
    print(f"alone: python -m tests.sim --seeds {seen.seed} --story --jobs 1{more}")


if __name__ == "__main__":
    if "PYTHONHASHSEED" not in os.environ:  # the order of sets is a part of what a seed does
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    sys.exit(main())
