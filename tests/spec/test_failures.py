"""What spec/failures.md names is there, and it treats every attack that it must."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from spec.formal.cases import WEAK
from tests.spec.files import SPEC, every

ROOT = SPEC.parent.parent
TEXT = (SPEC.parent / "failures.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (.+)\n((?:(?!^##).*\n)*)", TEXT, re.MULTILINE))
NAMED = set(re.findall(r"`([^`\s]+/[^`\s]+)`", TEXT)) - {"family/name", "formal/NAME"}

ATTACKS = [
    "misbinding",
    "reflection",
    "replay",
    "key compromise impersonation",
    "unknown key share",
    "downgrade",
    "truncation",
    "reordering",
    "nonce reuse",
    "rollback of the roster",
    "stolen coordinator's key",
    "small-order points",
    "signature malleability",
    "cross-protocol use of a node key",
    "lie about an address",
    "stale epoch",
    "key-update desync",
    "resource exhaustion",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_attack_is_treated(attack: str) -> None:
    assert any(attack in heading.lower() for heading in SECTIONS)


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_section_says_what_stops_it_and_what_shows_that(heading: str) -> None:
    section = SECTIONS[heading]
    shown = section.partition("- **Shown by**: ")[2]
    assert "- **Stopped by**: " in section
    assert "`" in shown
    assert re.search(r"\[[A-Z]{2}-\d\d\]", section) or "section 6" in section


def test_requirements_are_those_of_the_specification() -> None:
    defined = set(re.findall(r"\*\*\[([A-Z]{2}-\d\d)\]\*\*", SPEC.read_text(encoding="utf-8")))
    assert set(re.findall(r"\[([A-Z]{2}-\d\d)\]", TEXT)) <= defined


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


@pytest.mark.parametrize("name", sorted(NAMED - {"tests/FILE::NAME"}))
def test_what_is_named_exists(name: str) -> None:
    if name.startswith("formal/"):
        assert name.removeprefix("formal/") in WEAK
    elif name.startswith("tests/"):
        path, _, function = name.partition("::")
        if function:
            assert function in functions(ROOT / path)
        else:
            assert (ROOT / path).exists()
    elif name.startswith("fuzz/"):
        assert (ROOT / name).exists()
    else:
        assert name in every()
