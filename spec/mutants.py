"""The mutants of `spec.mutate`: the protocol's code with one thing changed.

There are three kinds. A *check* is an ``if`` whose body raises or kills, a part of its condition
that stands beside others, the edge of a comparison in it, or a call that is made for what it raises
(`_CHECKS`); its mutant has the ``if`` never taken, the part left out, ``<`` for ``<=``, the call
not made. A *swap* is a check of another form, which `spec.swaps` has by name. An *operator* is one
of cosmic-ray's, applied anywhere: another arithmetic or comparison, ``and`` for ``or``, a number
off by one, a decorator gone, an exception that nothing catches.

Of cosmic-ray's are left out those that change nothing that runs (in an annotation), and ``is`` in
place of ``==`` or the other way round: enumerations and small integers are one object each.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from spec.swaps import SWAPS, Swap

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "protocol" / "sealring_protocol"
MODULES: Final = (
    *(f"codec.{name}" for name in ("encoding", "fields", "frame", "local_messages")),
    *(f"codec.{name}" for name in ("relay_messages", "tensor", "wire")),
    "codec.messages",
    *(f"security.{name}" for name in ("admission", "handshake", "identity")),
    "security.initiator",
    *(f"security.{name}" for name in ("keys", "mandate", "responder", "roles", "roster", "seal")),
    *(f"joining.{name}" for name in ("exchange", "invitation", "session")),
    "control.epoch.ledger",
    "control.membership",
    "link",
    "relay",
)

_KILLS: Final = {"_die", "_bury", "fail"}
_CHECKS: Final = ("check", "_check", "verify", "_verify", "_admit", "add", "_spend", "end", "rule")
_EDGES: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_IDENTITY: Final = {
    f"core/ReplaceComparisonOperator_{kind}"
    for kind in ("Eq_Is", "Is_Eq", "NotEq_IsNot", "IsNot_NotEq")
}
SWAP: Final = "swap"
"""In the place of an operator: the index is that of `SWAPS`."""
UNCHANGED: Final = -1
"""The index of a mutant that is none."""


@attrs.frozen
class Mutant:
    """The *index*-th change of *module*, by cosmic-ray's *operator* if it names one; *place* is
    where, by function, and *change* is what."""

    module: str
    index: int
    line: int
    place: str
    change: str
    operator: str = ""

    @property
    def name(self) -> str:
        """It as `survivors.txt` has it: without line numbers, which move."""
        return f"{self.module} {self.place}: {self.change}"

    @property
    def key(self) -> str:
        """What `mutated` needs of it, as a text."""
        return f"{self.module}#{self.index}#{self.operator}"


def path_of(module: str) -> Path:
    """The file of *module*."""
    return PACKAGE / f"{module.replace('.', '/')}.py"


def mutated(key: str) -> tuple[str, ast.Module]:
    """The module that the mutant with *key* is of, and its code with the change made."""
    module, index, operator = key.split("#")
    if operator == SWAP:
        swap = SWAPS[int(index)]
        return module, ast.parse(_text(module).replace(swap.old, swap.new))
    if operator:
        return module, ast.parse(_operated(_text(module), operator, int(index)))
    tree = ast.parse(_text(module))
    if int(index) != UNCHANGED:
        node, _, _, change = list(_changes(tree))[int(index)]
        change(node)
    return module, ast.fix_missing_locations(tree)


def _text(module: str) -> str:
    return path_of(module).read_text(encoding="utf-8")


# ----------------------------------------------------------------------- checks


def checks(module: str) -> list[Mutant]:
    """All of *module* in which a check is gone."""
    return [
        Mutant(module, index, getattr(node, "lineno", 0), place, told)
        for index, (node, place, told, _) in enumerate(_changes(ast.parse(_text(module))))
    ] + [
        Mutant(module, index, _line(module, swap.old), swap.rule, _swapped(swap), SWAP)
        for index, swap in enumerate(SWAPS)
        if swap.module == module
    ]


def _line(module: str, text: str) -> int:
    return _text(module).partition(text)[0].count("\n") + 1


def _swapped(swap: Swap) -> str:
    return " ".join(f"{swap.new or 'nothing'} for {swap.old}".split())


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


# -------------------------------------------------------------------- operators


def operators(module: str) -> list[Mutant]:
    """All of *module* that cosmic-ray's operators make of it. Their *change* is not told yet, for
    that takes making it: see `described`."""
    from cosmic_ray.ast import ast_nodes, get_ast  # noqa: PLC0415 - of the group "mutation"
    from cosmic_ray.plugins import get_operator, operator_names  # noqa: PLC0415

    text = _text(module)
    places = _places(ast.parse(text))
    nodes = list(ast_nodes(get_ast(text)))
    found = []
    for name in sorted(set(operator_names()) - _IDENTITY):
        operator = _made(get_operator(name))
        if operator is None:
            continue
        lines = [start[0] for node in nodes for start, _ in operator.mutation_positions(node)]
        found += [
            Mutant(module, index, line, places.get(line, ""), "", name)
            for index, line in enumerate(lines)
        ]
    return found


def described(mutant: Mutant) -> Mutant | None:
    """*mutant*, an operator's, with its change; None if it changes nothing that runs, or is no
    Python."""
    before = _text(mutant.module)
    after = _operated(before, mutant.operator, mutant.index)
    try:
        if _running(after) == _running(before):
            return None
    except SyntaxError:
        return None
    old, new = before.splitlines(), after.splitlines()
    changed = [pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]]
    gone, come = changed[0] if len(old) == len(new) else (old[mutant.line - 1], "nothing")
    gone, come = (line.partition("  #")[0].strip() for line in (gone, come))
    return attrs.evolve(mutant, change=f"{come} for {gone}")


def _made(operator: Any) -> Any:
    """*operator*, unless it wants arguments, as those that need to be told of variables do."""
    try:
        return operator()
    except TypeError:
        return None


def _operated(text: str, operator: str, index: int) -> str:
    from cosmic_ray.mutating import mutate_code  # noqa: PLC0415
    from cosmic_ray.plugins import get_operator  # noqa: PLC0415

    return str(mutate_code(text, get_operator(operator)(), index))


def _running(text: str) -> str:
    """What runs of *text*: its tree without annotations."""
    return ast.dump(_Bare().visit(ast.parse(text)))


class _Bare(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _places(tree: ast.Module) -> dict[int, str]:
    """The function of every line that is in one."""
    places = {}
    for place, node in _walk(tree, ""):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            places.update(dict.fromkeys(range(first, (node.end_lineno or first) + 1), place))
    return places
