"""ARCHITECTURE.md is true to the code: its paths, the names in them, its rooms and its diagrams."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "ARCHITECTURE.md"
PACKAGES = (
    "protocol/sealring_protocol",
    "model/sealring_model",
    "io_trio/sealring_trio",
    "daemon/sealring",
    "tools/sealring_tools",
)
ENDINGS = (".py", ".md", ".js", ".json", ".txt", ".toml", ".lua")

TOKEN = re.compile(r"`([^`]+)`")
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
BETWEEN = re.compile(r"[\s,]*(and )?")
"""What may stand between a path and a name in it, and between two such names."""

DIAGRAM = re.compile(r"```mermaid\nstateDiagram-v2\n(.*?)```", re.DOTALL)
DRAWN = re.compile(r"^ *%% tables: (.*); not drawn: ?(.*)$", re.MULTILINE)
MOVE = re.compile(r"^ *(\w)_(\w+) --> (\w)_(\w+): (\w+)$", re.MULTILINE)


def prose() -> str:
    return re.sub(r"```.*?```", "", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)


def looks_like_a_path(token: str) -> bool:
    if " " in token or token.startswith("/"):
        return False
    return "/" in token or token.endswith(ENDINGS)


def found(path: str, base: str) -> list[Path]:
    """Where *path* may be: below *base*, the package that a section is about, or at the root, or
    else in any of the packages."""
    for folder in (base, "."):
        if (ROOT / folder / path).exists():
            return [ROOT / folder / path]
    return [ROOT / folder / path for folder in PACKAGES if (ROOT / folder / path).exists()]


def paths_and_names() -> Iterator[tuple[str, list[Path], list[str]]]:
    """Every path of the document, where it is, and the names that follow it."""
    for section in re.split(r"^(?=#)", prose(), flags=re.MULTILINE):
        heading = TOKEN.search(section.partition("\n")[0])
        base = heading[1] if heading and heading[1] in PACKAGES else "."
        tokens = list(TOKEN.finditer(section))
        for at, token in enumerate(tokens):
            if not looks_like_a_path(token[1]):
                continue
            names = []
            before = token
            for after in tokens[at + 1 :]:
                between = section[before.end() : after.start()]
                if not (BETWEEN.fullmatch(between) and NAME.fullmatch(after[1])):
                    break
                if looks_like_a_path(after[1]):
                    break
                names.append(after[1])
                before = after
            yield token[1], found(token[1], base), names


def defined(path: Path) -> set[str]:
    """The functions, classes, methods and constants of the module at *path*."""
    names: set[str] = set()

    def visit(body: list[ast.stmt], outer: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef(name=name, body=inner):
                    names.add(outer + name)
                    visit(inner, f"{outer}{name}.")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(outer + name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names.add(outer + name)
                case ast.Assign(targets=targets):
                    names.update(outer + t.id for t in targets if isinstance(t, ast.Name))
                case _:
                    pass

    visit(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return names


def test_every_path_is_there_and_is_one():
    every = list(paths_and_names())
    assert len(every) > 200
    for path, places, _ in every:
        assert places, f"there is no {path}"
        assert len(places) == 1, f"{path} may be any of {', '.join(map(str, places))}"


def test_every_name_is_defined_in_its_file():
    pairs = 0
    for path, places, names in paths_and_names():
        if path.endswith(".py") and places:
            missing = set(names) - defined(places[0])
            assert not missing, f"{path} does not define {', '.join(sorted(missing))}"
            pairs += len(names)
    assert pairs > 80


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_on_the_map(package):
    text = prose()
    section = text.split(f"### `{package}`\n")[1].split("\n###")[0]
    told = {token[1].rstrip("/") for token in TOKEN.finditer(section) if token[1].endswith("/")}
    folders = (path.parent for path in (ROOT / package).rglob("__init__.py"))
    rooms = {str(folder.relative_to(ROOT / package)) for folder in folders} - {"."}
    assert rooms <= told


def test_every_table_is_listed():
    section = prose().split("## 4. The state machines")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", section, re.MULTILINE)
    listed = {(str(found(path, ".")[0].relative_to(ROOT)), name) for path, name in rows}
    tables = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for name in re.findall(r"^(\w+): Final\[Table\[", path.read_text(), re.MULTILINE):
                tables.add((str(path.relative_to(ROOT)), name))
    assert listed == tables


def test_the_state_diagrams_are_the_tables():
    diagrams = DIAGRAM.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert len(diagrams) == 2
    for diagram in diagrams:
        header = DRAWN.search(diagram)
        assert header is not None
        left_out = set(header[2].split())
        moves = MOVE.findall(diagram)
        assert len(moves) == diagram.count("-->") - diagram.count("[*] -->")
        for each in header[1].split(", "):
            letter, module, name = each.split()
            table = getattr(importlib.import_module(f"sealring_protocol.{module}"), name)
            drawn = {(a, event, b) for own, a, to, b, event in moves if own == to == letter}
            legal = {(a.name, event.name, b.name) for (a, event), b in table.items()}
            assert drawn == {move for move in legal if move[1] not in left_out}
            check_left_out(table, left_out)


def check_left_out(table, left_out: set[str]) -> None:
    """What is not drawn leads from every state that has a way out to one and the same."""
    for name in left_out:
        ends = {(a, b) for (a, event), b in table.items() if event.name == name}
        assert {a for a, _ in ends} == {a for a, _ in table}
        assert len({b for _, b in ends}) == 1
