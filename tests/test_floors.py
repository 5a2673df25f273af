"""The floors of the house: what may import what, read from the source of every module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PURE = {
    # The standard library's parts that touch nothing outside the process.
    "__future__",
    "abc",
    "collections",
    "contextlib",
    "enum",
    "functools",
    "hmac",
    "ipaddress",
    "itertools",
    "math",
    "struct",
    "typing",
    # The two dependencies.
    "attrs",
    "cryptography",
    "sealring_protocol",
}


def imports(folder: str) -> list[tuple[str, str]]:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found += [(str(path.relative_to(ROOT)), alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are absolute"
                found.append((str(path.relative_to(ROOT)), node.module or ""))
    return found


def test_the_protocol_is_pure():
    modules = imports("protocol")
    assert len(modules) > 100
    for path, module in modules:
        assert module.partition(".")[0] in PURE, f"{path} imports {module}"


def test_the_protocol_draws_no_entropy_but_signing_and_keys_from_seeds():
    banned = {"generate", "urandom", "token_bytes", "generate_private_key", "encapsulate"}
    for path in sorted((ROOT / "protocol").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in banned, f"{path.name}:{node.lineno} calls {node.attr}"


def test_the_protocol_opens_nothing_and_prints_nothing():
    banned = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}
    for path in sorted((ROOT / "protocol").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in banned, f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("name", ["sealring_trio", "trio"])
def test_the_model_does_not_know_the_adapter(name):
    modules = imports("model")
    assert len(modules) > 50
    for path, module in modules:
        assert module.partition(".")[0] != name, f"{path} imports {module}"


def test_only_the_bench_knows_the_bench():
    for path, module in imports("io_trio"):
        if module.startswith("sealring_trio.bench"):
            assert "/bench" in path, f"{path} imports {module}"


def test_modules_open_with_their_theory_and_stay_short():
    for folder in ("protocol", "io_trio", "model"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            assert ast.get_docstring(ast.parse(text)), f"{path} says nothing of itself"
            assert len(text.splitlines()) <= 500, f"{path} is too long to hold one thing"
