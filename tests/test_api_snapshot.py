"""What the protocol's public modules export, with signatures, is what the snapshot says.

A change of the API is a change of ``tests/api_snapshot.txt``, made on purpose:
``python -m tests.test_api_snapshot`` writes it anew. What is not in these modules is internal.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tests.import_cost

SNAPSHOT = Path(__file__).with_name("api_snapshot.txt")
ROOT = Path(__file__).parent.parent

FOREIGN = {"MLKEM768PublicKey": object}
"""What a module imports for type checkers alone, and is no class of ours."""

PUBLIC = [
    "codec.election_messages",
    "codec.encoding",
    "codec.frame",
    "codec.local_messages",
    "codec.messages",
    "codec.relay_messages",
    "codec.tensor",
    "control.effects",
    "control.election",
    "control.epoch.ledger",
    "control.plan",
    "control.requests",
    "links.peers",
    "links.addresses",
    "links.logs",
    "diagnosis",
    "errors",
    "events",
    "limits",
    "link",
    "node",
    "relay",
    "security.admission",
    "security.handshake",
    "security.identity",
    "security.initiator",
    "security.keys",
    "security.mandate",
    "security.responder",
    "security.roles",
    "security.roster",
    "security.seal",
    "voting",
]


def public_names(module: ModuleType) -> Iterator[str]:
    """What *module* exports: `__all__`, or else what is made in it and has no underscore."""
    if hasattr(module, "__all__"):
        yield from sorted(module.__all__)
        return
    made_here = assigned(module)
    for name, value in sorted(vars(module).items()):
        defined_here = getattr(value, "__module__", None) == module.__name__
        if not name.startswith("_") and (defined_here or name in made_here):
            yield name


def assigned(module: ModuleType) -> set[str]:
    """The names that *module* assigns at its top level: constants, and unions of classes."""
    names = set(inspect.get_annotations(module))
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.Assign):
            names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return names


def lines(module: ModuleType) -> Iterator[str]:
    """*module*, one line for each thing that can be used."""
    for name in public_names(module):
        value = getattr(module, name)
        if inspect.isclass(value):
            yield from class_lines(name, value)
        elif inspect.isfunction(value):
            yield f"{name}{signature(value)}"
        elif isinstance(value, types.UnionType):
            yield f"{name} = {' | '.join(kind.__name__ for kind in typing.get_args(value))}"
        else:
            yield f"{name}: {inspect.get_annotations(module).get(name, 'alias')}"


def members(value: type[Any]) -> dict[str, Any]:
    """What *value* has of its own, and of bases of ours that are not public themselves."""
    found: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        package, _, module = base.__module__.partition(".")
        if base is value or (package == "sealring_protocol" and module not in PUBLIC):
            found |= vars(base)
    return found


def class_lines(name: str, value: type[Any]) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    if issubclass(value, enum.Enum):
        yield f"class {name}({bases}): {', '.join(member.name for member in value)}"
    else:
        yield f"class {name}({bases}){signature(value)}"
    for each, raw in sorted(members(value).items()):
        if each.startswith("_") or (issubclass(value, enum.Enum) and each in value.__members__):
            continue
        member = inspect.getattr_static(value, each)
        if isinstance(member, property):
            yield f"    {each}: property -> {member.fget.__annotations__.get('return')}"
        elif isinstance(member, classmethod | staticmethod):
            yield f"    {type(member).__name__} {each}{signature(member.__func__)}"
        elif inspect.isfunction(raw):
            yield f"    {each}{signature(raw)}"


def signature(value: Any) -> str:
    try:
        return str(inspect.signature(value))
    except ValueError:  # a built-in, as for exceptions
        return "(...)"


def snapshot() -> str:
    """All public modules."""
    sections = []
    for name in PUBLIC:
        module = importlib.import_module(f"sealring_protocol.{name}")
        sections.append("\n".join([f"# sealring_protocol.{name}", *lines(module)]) + "\n")
    return "\n".join(sections)


def test_the_api_is_as_it_was() -> None:
    assert snapshot() == SNAPSHOT.read_text(), (
        "the public API has changed; if that is meant: python -m tests.test_api_snapshot"
    )


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_exported_is_documented(name: str) -> None:
    module = importlib.import_module(f"sealring_protocol.{name}")
    for each in public_names(module):
        value = getattr(module, each)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), each


INTERNAL = {
    # A proof that only the handshake itself can make: its parts are of no use outside.
    ("security.handshake.VerifiedPeer.__init__", "Claims"),
    ("security.handshake.VerifiedPeer.__init__", "Exchange"),
    ("security.handshake.VerifiedPeer.__init__", "Proven"),
}


def hinted(value: Any) -> Iterator[type[Any]]:
    """The classes of ours that the annotations of *value* name, however deep."""
    hints = typing.get_type_hints(value, localns=FOREIGN)
    pending = [hint for name, hint in hints.items() if name[0] != "_"]
    while pending:
        hint = pending.pop()
        if isinstance(hint, list):  # the arguments of a Callable
            pending += hint
        pending += typing.get_args(hint)
        kind = typing.get_origin(hint) or hint
        if inspect.isclass(kind) and kind.__module__.startswith("sealring_protocol."):
            yield kind


def usable(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """*value* and what its callers see of it: what has annotations."""
    if inspect.isfunction(value):
        yield name, value
    elif inspect.isclass(value) and not issubclass(value, enum.Enum):
        yield name, value
        for each, raw in members(value).items():
            function = raw.fget if isinstance(raw, property) else getattr(raw, "__func__", raw)
            if inspect.isfunction(function) and (each == "__init__" or each[0] != "_"):
                yield f"{name}.{each}", function


def test_what_is_public_names_nothing_that_is_not() -> None:
    modules = {name: importlib.import_module(f"sealring_protocol.{name}") for name in PUBLIC}
    public = [getattr(module, each) for module in modules.values() for each in public_names(module)]
    named = 0
    for module_name, module in modules.items():
        for each in public_names(module):
            for name, value in usable(f"{module_name}.{each}", getattr(module, each)):
                for kind in hinted(value):
                    named += 1
                    known = kind in public or (name, kind.__name__) in INTERNAL
                    assert known, f"{name} names {kind.__module__}.{kind.__name__}"
    assert named > 300


def test_importing_it_brings_two_packages() -> None:
    brings = set(tests.import_cost.once("sealring_protocol.node")["brings"])
    of_attrs, of_cryptography = {"attr", "attrs"}, {"cryptography", "_cffi_backend", "_openssl"}
    assert brings - of_cryptography == {"sealring_protocol", *of_attrs}


def test_a_text_worker_imports_no_node() -> None:
    """Which would take it as long again, and it has no use for keys."""
    brings = set(tests.import_cost.once("sealring.text_worker")["brings"])
    assert "sealring_model" in brings
    assert not brings & {"cryptography", "starlette", "trio"}


@pytest.mark.parametrize(
    "package",
    [
        "protocol/sealring_protocol",
        "model/sealring_model",
        "io_trio/sealring_trio",
        "daemon/sealring",
    ],
)
def test_packages_say_that_they_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot())
