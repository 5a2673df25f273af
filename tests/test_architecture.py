"""ARCHITECTURE.md and CONTRIBUTING.md are true to the code: their paths, the names in them, the
rooms in their order, the state machines and their diagrams."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_floors import ROOMS

ROOT = Path(__file__).parent.parent
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
SPECIFICATION = ROOT / "spec/sealring-1.md"
MOST_WORDS = 2500
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


def prose(document: Path = ARCHITECTURE) -> str:
    return re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)


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


def paths_and_names(document: Path) -> Iterator[tuple[str, list[Path], list[str]]]:
    """Every path of *document*, where it is, and the names that follow it."""
    for section in re.split(r"^(?=#)", prose(document), flags=re.MULTILINE):
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


def test_the_map_can_be_read_at_once():
    assert len(ARCHITECTURE.read_text(encoding="utf-8").split()) <= MOST_WORDS


@pytest.mark.parametrize(("document", "least"), [(ARCHITECTURE, 140), (CONTRIBUTING, 90)])
def test_every_path_is_there_and_is_one(document, least):
    every = list(paths_and_names(document))
    assert len(every) > least
    for path, places, _ in every:
        assert places, f"there is no {path}"
        assert len(places) == 1, f"{path} may be any of {', '.join(map(str, places))}"


@pytest.mark.parametrize(("document", "least"), [(ARCHITECTURE, 50), (CONTRIBUTING, 40)])
def test_every_name_is_defined_in_its_file(document, least):
    pairs = 0
    for path, places, names in paths_and_names(document):
        if path.endswith(".py") and places:
            missing = set(names) - defined(places[0])
            assert not missing, f"{path} does not define {', '.join(sorted(missing))}"
            pairs += len(names)
    assert pairs > least


def mapped(package: str) -> list[str]:
    """The rooms of *package* in the order of the map: folders end with a slash."""
    section = prose().split(f"### `{package}`\n")[1].split("\n###")[0]
    rows = re.findall(r"^- ((?:`[^`]+`(?:, )?)+): ", section, re.MULTILINE)
    return [token for row in rows for token in TOKEN.findall(row)]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_on_the_map(package):
    told = {room.rstrip("/") for room in mapped(package) if room.endswith("/")}
    folders = (path.parent for path in (ROOT / package).rglob("__init__.py"))
    assert told == {str(folder.relative_to(ROOT / package)) for folder in folders} - {"."}


@pytest.mark.parametrize("package", ROOMS)
def test_the_map_has_the_rooms_in_the_order_of_their_imports(package):
    told = [room.removesuffix("/").removesuffix(".py") for room in mapped(package)]
    assert told == [room for room in ROOMS[package] if room != "__main__"]


def listed_tables() -> set[tuple[str, str]]:
    """Every table of a state machine that the map lists: its file and its name."""
    section = prose().split("### The state machines\n")[1].split("\n## ")[0]
    rows = re.findall(r"^- `([^`]+)` `([^`]+)`: ", section, re.MULTILINE)
    return {(str(found(path, ".")[0].relative_to(ROOT)), name) for path, name in rows}


def test_every_table_is_listed():
    tables = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for name in re.findall(r"^(\w+): Final\[Table\[", path.read_text(), re.MULTILINE):
                tables.add((str(path.relative_to(ROOT)), name))
    assert listed_tables() == tables


def test_the_state_diagrams_are_the_tables():
    diagrams = DIAGRAM.findall(SPECIFICATION.read_text(encoding="utf-8"))
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
