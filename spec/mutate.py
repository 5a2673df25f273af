"""Changes one thing in the code at a time and sees whether a vector, or else a test, notices.

``python -m spec.mutate``                 every check gone, one after the other
``python -m spec.mutate PATTERN``         those of modules whose name holds PATTERN
``python -m spec.mutate --operators 500`` so many of cosmic-ray's mutants, drawn at random
``python -m spec.mutate --list``          what would be tried

What the mutants are is in `spec.mutants`; the operators need the dependency group ``mutation``. A
mutant is killed when a vector does not come out as it should (those that are likely to be about
the module run in every way that `conformance.report` knows), or else a test of the rooms
concerned. What survives is compared with `spec/survivors.txt`, where each stands with the reason
why nothing can notice it; the exit code is 1 when there is one without a reason.

Each mutant has a process of its own, in which it takes the place of its module before anything
imports that.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import subprocess
import sys
import time
from typing import Any, Final

from sealring_protocol.conformance.files import find_folder, load

from spec.mutants import (
    MODULES,
    ROOT,
    UNCHANGED,
    Mutant,
    checks,
    described,
    mutated,
    operators,
    path_of,
)
from tools.arguments import command
from tools.forked import in_a_fork, limit, tests_of, vectors_of

SURVIVORS: Final = ROOT / "spec" / "survivors.txt"
TIME_LIMIT: Final = 300  # seconds for one mutant
VECTORS_LIMIT, TESTS_LIMIT = 60, 200  # seconds of the processor, for one that goes round for ever
VARIABLE: Final = "SEALRING_MUTANT"


@functools.cache
def _families() -> dict[str, list[Any]]:
    return load(find_folder())


# ---------------------------------------------------------------- in the child


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the module that the mutant with *key* is of, with its change."""

    def __init__(self, key: str) -> None:
        self._module, self._tree = mutated(key)
        self._name = f"sealring_protocol.{self._module}"

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(path_of(self._module))
        exec(compile(self._tree, module.__file__, "exec"), module.__dict__)


def install() -> None:
    """Put the mutant that the environment names in its place, if any (a plugin of pytest's)."""
    if key := os.environ.get(VARIABLE):
        limit(TESTS_LIMIT)
        _begin_anew(_Finder(key))


def _begin_anew(finder: _Finder) -> None:
    """Forget our modules, which this one has imported as they are: *finder* gives the next."""
    for name in [name for name in sys.modules if name.startswith("sealring_")]:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)


def _first_to_notice(module: str) -> str:
    """The first vector that does not come out as it should, or nothing: all of them whole, and
    those that are likely to be about *module* in every way, too."""
    from sealring_protocol.conformance.report import ways  # noqa: PLC0415

    every = list(vectors_of(f"sealring_protocol.{module}", _families()))
    first = [vector for vector, likely in every if likely]
    rest = [vector for vector, likely in every if not likely]
    for vectors, whole in ((first, True), (rest, True), (first, False)):
        for vector in vectors:
            for way, run in ways(vector):
                if (way == "whole") is whole:
                    try:
                        run(vector)
                    except Exception:  # noqa: BLE001 - whatever it is, it has noticed
                        return f"vector {vector['id']} ({way})"
    return ""


# --------------------------------------------------------------- in the parent


def by_vector(mutant: Mutant) -> str:
    """The vector that notices *mutant*, or nothing.

    In a fork of this process, which has read the vectors and the libraries already.
    """
    _families()
    finder = _Finder(mutant.key)

    def work() -> str:
        _begin_anew(finder)
        return _first_to_notice(mutant.module)

    return in_a_fork(work, VECTORS_LIMIT, TIME_LIMIT)


def by_test(mutant: Mutant) -> str:
    """The test that notices *mutant*, or nothing."""
    folders = tests_of(f"sealring_protocol.{mutant.module}")
    options = ["-x", "-q", "-n0", "-p", "spec.mutate_plugin", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *folders],
            cwd=ROOT,
            env={**os.environ, VARIABLE: mutant.key},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "any test: it did not end"
    if done.returncode == 0:
        return ""
    if done.returncode < 0:  # by `_limit`
        return "any test: it did not end"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not failed:  # pytest itself could not
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return f"test {failed[0].partition(' - ')[0].partition(' ')[2]}"


def survivors() -> dict[str, str]:
    """The survivors that are known, and why."""
    if not SURVIVORS.exists():
        return {}
    pairs = (line.partition("  # ") for line in SURVIVORS.read_text().splitlines() if line)
    return {name: why for name, _, why in pairs}


def _drawn(found: list[Mutant], count: int) -> list[Mutant]:
    """*count* of *found* without those that change nothing; the same as long as the code is."""
    random.Random(0).shuffle(found)
    drawn: list[Mutant] = []
    for mutant in found:
        if len(drawn) == count:
            break
        if changed := described(mutant):
            drawn.append(changed)
    return sorted(drawn, key=lambda mutant: (mutant.module, mutant.line))


def main() -> int:
    """Try what was asked for."""
    parser = command("spec.mutate", __doc__)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--operators", type=int, metavar="COUNT", help="cosmic-ray's, so many")
    parser.add_argument("--list", action="store_true", help="try nothing")
    asked = parser.parse_args()
    modules = [module for module in MODULES if asked.pattern in module]
    if asked.operators is not None:
        every = [mutant for module in modules for mutant in operators(module)]
        found = _drawn(every, asked.operators)
        print(f"{len(found)} drawn from {len(every)}")
    else:
        found = [mutant for module in modules for mutant in checks(module)]
    if asked.list:
        print("\n".join(f"{m.module}:{m.line} {m.place}: {m.change}" for m in found))
        return 0
    return _try(found)


def _try(found: list[Mutant]) -> int:
    os.nice(19)
    _control()
    begin, left = time.perf_counter(), found
    for notices in (by_vector, by_test):
        left = [mutant for mutant in left if not _noticed(mutant, notices(mutant))]
        print(f"{len(left)} of {len(found)} are left after {time.perf_counter() - begin:.0f} s")
    known = survivors()
    for mutant in left:
        print(f"SURVIVES {mutant.name}  # {known.get(mutant.name, 'nobody knows why')}")
    if found:
        print(f"{1 - len(left) / len(found):.1%} of {len(found)} mutants are killed")
    return int(any(mutant.name not in known for mutant in left))


def _control() -> None:
    """Nothing may be noticed where nothing is changed, or the count would mean nothing."""
    same = Mutant("codec.frame", UNCHANGED, 0, "", "nothing")
    if by := by_vector(same) or by_test(same):
        raise SystemExit(f"the code as it is does not pass: {by}")


def _noticed(mutant: Mutant, by: str) -> bool:
    if by:
        print(
            f"{mutant.module}:{mutant.line} {mutant.place}: {mutant.change}\n    {by}", flush=True
        )
    return bool(by)


if __name__ == "__main__":
    sys.exit(main())
