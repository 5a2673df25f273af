"""Takes single checks out of the code and sees whether a vector, or else a test, notices.

``python -m spec.mutate``            every check
``python -m spec.mutate PATTERN``    those of modules whose name holds PATTERN
``python -m spec.mutate --list``     what would be tried

A check is an ``if`` whose body raises or kills, a part of its condition that stands beside others,
the edge of a comparison in it, or a call that is made for what it raises (`_CHECKS`). A mutant is
the code with one of them gone: the ``if`` never taken, the part left out, ``<`` for ``<=``, the
call not made. It is killed when a vector does not come out as it should (those that are likely to
be about the module run in every way that `sealring vectors check` knows), or else a test of the
rooms concerned. What survives is compared with `spec/survivors.txt`, where each one stands with the
reason why nothing can notice it; the exit code is 1 when there is one without a reason.

Each mutant has a process of its own, in which it takes the place of its module before anything
imports that.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import cryptography.hazmat.primitives.asymmetric.mlkem
import cryptography.hazmat.primitives.serialization  # noqa: F401 - once, for all children
from sealring_trio.conformance.files import find_folder, load

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "protocol" / "sealring_protocol"
SURVIVORS: Final = ROOT / "spec" / "survivors.txt"
MODULES: Final = (
    *(f"codec.{name}" for name in ("encoding", "frame", "local_messages", "messages", "readers")),
    *(f"codec.{name}" for name in ("tensor", "wire")),
    *(f"security.{name}" for name in ("admission", "attestation", "handshake_base")),
    *(f"security.{name}" for name in ("handshake_messages", "handshake_values", "identity")),
    *(f"security.{name}" for name in ("initiator", "initiator_stages", "keys", "responder")),
    *(f"security.{name}" for name in ("responder_stages", "roles", "roster", "schedule", "seal")),
    "keepalive",
    "link",
)
TESTS: Final = {
    "codec": ("tests/codec", "tests/security", "tests/link"),
    "security": ("tests/security", "tests/link", "tests/node/test_meeting.py"),
    "keepalive": ("tests/link", "tests/node/test_hostile.py"),
    "link": ("tests/link", "tests/node/test_hostile.py", "tests/node/test_meeting.py"),
}
_LIKELY: Final = {
    "codec.frame": ("frames",),
    "codec": ("messages", "local_messages"),
    "security.ro": ("rosters", "permissions"),
    "security.att": ("evidence",),
    "security.id": ("signatures",),
    "security.seal": ("seals", "inner_seals"),
    "security": ("initiators", "responders"),
    "": ("sessions",),
}
"""The families to begin with, by the beginning of a module's name."""
TIME_LIMIT: Final = 300  # seconds for one mutant
VARIABLE: Final = "SEALRING_MUTANT"

_KILLS: Final = {"_die", "_bury", "fail"}
_CHECKS: Final = ("check", "_check", "verify", "_verify", "_admit", "add", "_spend", "end", "rule")
_EDGES: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


@attrs.frozen
class Mutant:
    """The *index*-th change of *module*; *place* is where, by function, and *change* is what."""

    module: str
    index: int
    line: int
    place: str
    change: str

    @property
    def name(self) -> str:
        """It as `survivors.txt` has it: without line numbers, which move."""
        return f"{self.module} {self.place}: {self.change}"


# ---------------------------------------------------------------------- changes


def _raises(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.Raise):
        return True
    return isinstance(last, ast.Expr) and _called(last.value) in _KILLS


def _called(value: ast.expr) -> str:
    """The function or method that *value* calls."""
    match value:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def _changes(tree: ast.Module) -> Iterator[tuple[ast.AST, str, str, Any]]:
    """Every change: the node that it is in, the function, what it is, and how it is done."""
    for place, node in _walk(tree, ""):
        if isinstance(node, ast.If) and _raises(node.body):
            yield (
                node,
                place,
                f"never {ast.unparse(node.test)}",
                _set_test(ast.Constant(value=False)),
            )
            yield from _parts(node, place)
        elif isinstance(node, ast.Expr) and _called(node.value).startswith(_CHECKS):
            told = f"without {ast.unparse(node.value)}"
            yield node, place, told, _set_value(ast.Constant(value=None))


def _parts(node: ast.If, place: str) -> Iterator[tuple[ast.AST, str, str, Any]]:
    for test in ast.walk(node.test):
        if isinstance(test, ast.BoolOp):
            for at, operand in enumerate(test.values):
                told = f"{ast.unparse(test)} without {ast.unparse(operand)}"
                yield test, place, told, _drop_operand(at)
        elif isinstance(test, ast.Compare):
            for at, operator in enumerate(test.ops):
                edge = _EDGES.get(type(operator))
                if edge is not None:
                    changed = copy.deepcopy(test)
                    changed.ops[at] = edge()
                    told = f"{ast.unparse(changed)} for {ast.unparse(test)}"
                    yield test, place, told, _set_operator(at, edge)


def _walk(node: ast.AST, place: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        inside = place
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inside = f"{place}.{child.name}".lstrip(".")
        yield inside, child
        yield from _walk(child, inside)


def _set_test(value: ast.expr) -> Any:
    return lambda node: setattr(node, "test", ast.copy_location(value, node.test))


def _set_value(value: ast.expr) -> Any:
    return lambda node: setattr(node, "value", ast.copy_location(value, node.value))


def _drop_operand(at: int) -> Any:
    def drop(node: ast.BoolOp) -> None:
        neutral = ast.Constant(value=isinstance(node.op, ast.And))
        node.values[at] = ast.copy_location(neutral, node.values[at])

    return drop


def _set_operator(at: int, operator: type[ast.cmpop]) -> Any:
    def change(node: ast.Compare) -> None:
        node.ops[at] = operator()

    return change


def _tree(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))


def mutants(module: str) -> list[Mutant]:
    """All of *module*."""
    return [
        Mutant(module, index, getattr(node, "lineno", 0), place, told)
        for index, (node, place, told, _) in enumerate(_changes(_tree(module)))
    ]


@functools.cache
def _families() -> dict[str, list[Any]]:
    return load(find_folder())


# ---------------------------------------------------------------- in the child


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module of the package with one change made."""

    def __init__(self, module: str, index: int) -> None:
        self._name = f"sealring_protocol.{module}"
        self._module, self._index = module, index

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        tree = _tree(self._module)
        node, _, _, change = list(_changes(tree))[self._index]
        change(node)
        module.__file__ = str(PACKAGE / f"{self._module.replace('.', '/')}.py")
        exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), module.__dict__)


def install() -> None:
    """Put the mutant that the environment names in its place, if any (a plugin of pytest's)."""
    told = os.environ.get(VARIABLE)
    if told:
        module, _, index = told.partition("#")
        sys.meta_path.insert(0, _Finder(module, int(index)))


def _first_to_notice(module: str) -> str:
    """The first vector that does not come out as it should, or nothing: all of them whole, and
    those that are likely to be about *module* in every way, too."""
    from sealring_trio.conformance.streams import ways  # noqa: PLC0415

    likely = next(names for part, names in _LIKELY.items() if module.startswith(part))
    first = [vector for name in likely for vector in _families()[name]]
    rest = [v for name, vectors in _families().items() if name not in likely for v in vectors]
    rest = [vector for vector in rest if vector["kind"] != "sealed-many"]  # a second each
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
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(TIME_LIMIT)
        try:
            for name in [name for name in sys.modules if name.startswith("sealring_")]:
                del sys.modules[name]
            sys.meta_path.insert(0, _Finder(mutant.module, mutant.index))
            os.write(tell, _first_to_notice(mutant.module).encode())
        except BaseException as error:  # noqa: BLE001 - the child ends here, whatever it is
            os.write(tell, f"any vector: {error!r}".encode())
        finally:
            os._exit(0)
    os.close(tell)
    with open(told) as pipe:
        noticed = pipe.read()
    _, status = os.waitpid(child, 0)
    return "any vector: it did not end" if os.WIFSIGNALED(status) else noticed


def by_test(mutant: Mutant) -> str:
    """The test that notices *mutant*, or nothing."""
    folders = TESTS[mutant.module.partition(".")[0]]
    options = ["-x", "-q", "-n0", "-p", "spec.mutate_plugin", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *folders],
            cwd=ROOT,
            env={**os.environ, VARIABLE: f"{mutant.module}#{mutant.index}"},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "any test: it did not end"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    told = failed[0].partition(" - ")[0].partition(" ")[2] if failed else "all: it does not import"
    return f"test {told}" if done.returncode else ""


def survivors() -> dict[str, str]:
    """The survivors that are known, and why."""
    if not SURVIVORS.exists():
        return {}
    pairs = (line.partition("  # ") for line in SURVIVORS.read_text().splitlines() if line)
    return {name: why for name, _, why in pairs}


def main() -> int:
    """Try what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m spec.mutate", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--list", action="store_true", help="try nothing")
    asked = parser.parse_args()
    found = [m for module in MODULES if asked.pattern in module for m in mutants(module)]
    if asked.list:
        print("\n".join(f"{m.module}:{m.line} {m.place}: {m.change}" for m in found))
        return 0
    return _try(found)


def _try(found: list[Mutant]) -> int:
    os.nice(19)
    begin, left = time.perf_counter(), found
    for notices in (by_vector, by_test):
        left = [mutant for mutant in left if not _told(mutant, notices(mutant))]
        print(f"{len(left)} of {len(found)} are left after {time.perf_counter() - begin:.0f} s")
    known = survivors()
    for mutant in left:
        print(f"SURVIVES {mutant.name}  # {known.get(mutant.name, 'nobody knows why')}")
    return int(any(mutant.name not in known for mutant in left))


def _told(mutant: Mutant, by: str) -> bool:
    if by:
        print(
            f"{mutant.module}:{mutant.line} {mutant.place}: {mutant.change}\n    {by}", flush=True
        )
    return bool(by)


if __name__ == "__main__":
    sys.exit(main())
