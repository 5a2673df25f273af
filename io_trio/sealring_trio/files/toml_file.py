"""Reading a TOML file into a validated model, with errors that name the key and its line.

`tomllib` keeps no line numbers, so `_lines` finds them in the text: it follows table headers and
``key =`` at the start of lines, which is how people write these files. It serves messages only.
"""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import pydantic

from sealring_trio.errors import UserError
from sealring_trio.files.key_files import decoded, read_file

M = TypeVar("M", bound=pydantic.BaseModel)
Key = tuple[str | int, ...]

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]\]?\s*(?:#.*)?")
_ASSIGNMENT: Final = re.compile(r"\s*([\w-]+)\s*=")

_WINDOWS_PATH: Final = re.compile(r'^[ \t]*[\w-]+[ \t]*=[ \t]*("[A-Za-z]:\\(?!\\))', re.MULTILINE)
_CURLY: Final = re.compile("[\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb]")

MAX_PARTS: Final = 64
"""Most parts of a dotted key. The time that `tomllib` takes for a key grows with the square of its
parts."""

_PART: Final = r"(?:(?<![\w-])[\w-]+|\"[^\"\n]*\"|'[^'\n]*')"
_LONG_KEY: Final = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MAX_PARTS}}}")


def read_toml(path: Path, model: type[M], kind: str) -> M:
    """The file at *path* as a *model*, whose validators have the path as their context. *kind*
    names the kind of file in messages.

    Raises `UserError` for a file that is missing, unreadable, not TOML, or not a *model*.
    """
    text = read_text(path, kind)
    if long := _LONG_KEY.search(text):
        raise UserError(
            f"{path}, line {_line(text, long)}: a key of more than {MAX_PARTS} parts",
            "Leave out what is not a setting of this file.",
        )
    if found := _WINDOWS_PATH.search(text):
        raise UserError(
            f"{path}, line {_line(text, found)}: a path of Windows, whose backslashes mean other "
            "characters in double quotes",
            "Write it with /, as this system knows it (in WSL, C:\\models is /mnt/c/models).",
        )
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the latter where it is nested too deep
        advice = 'Texts need quotes (name = "desk"), numbers and true/false none.'
        if found := _CURLY.search(text):
            advice = (
                f"Line {_line(text, found)} has typographic quotes ({found[0]}), as editors "
                "write them: use straight ones."
            )
        raise UserError(f"{path} is not valid TOML: {error}", advice) from None
    needed = [name for name, field in model.model_fields.items() if field.is_required()]
    if values and not values.keys() & set(needed):
        raise UserError(
            f"{path} is no {kind}: it has none of the keys {', '.join(needed)}",
            "'sealring up --help' shows the config of a node, and 'sealring roster new' makes the "
            "draft of a roster.",
        )
    try:
        return model.model_validate(values, context=path)
    except pydantic.ValidationError as error:
        raise _explain(path, text, model, error) from None


def _line(text: str, found: re.Match[str]) -> int:
    return text.count("\n", 0, found.start(found.lastindex or 0)) + 1


def read_text(path: Path, kind: str) -> str:
    """The text of *path*. Raises `UserError` when there is none to read."""
    try:
        return decoded(read_file(path)[0])
    except FileNotFoundError:
        raise UserError(f"there is no {kind} at {path}", "Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"cannot read {path}: {reason}", f"It should be a {kind}.") from None


def _explain(
    path: Path, text: str, model: type[pydantic.BaseModel], error: pydantic.ValidationError
) -> UserError:
    lines = _lines(text)
    told = []
    advice = "Put that right and try again."
    for fault in error.errors():
        key: Key = fault["loc"]
        place = _place(path, lines, key)
        name = ".".join(f"{part + 1}" if isinstance(part, int) else part for part in key)
        match fault["type"]:
            case "extra_forbidden":
                keys = _keys(model, key)
                near = get_close_matches(str(key[-1]), keys, n=1)
                meant = f"; did you mean '{near[0]}'?" if near else ""
                told.append(f"{place}: unknown key '{name}'{meant}")
                advice = f"The keys are: {', '.join(keys)}."
            case "missing":
                told.append(f"{path}: the key '{name}' is missing")
                advice = f"Add it: {_example(model, key)}"
            case _:
                where = f"{place}: '{name}'" if key else place
                told.append(f"{where}: {fault['msg'].removeprefix('Value error, ')}")
    return UserError("\n".join(told), advice)


def _place(path: Path, lines: dict[Key, int], key: Key) -> str:
    while key and key not in lines:
        key = key[:-1]
    return f"{path}, line {lines[key]}" if key else str(path)


def _keys(model: type[pydantic.BaseModel], key: Key) -> list[str]:
    return [field.alias or name for name, field in _model_at(model, key[:-1]).model_fields.items()]


def _example(model: type[pydantic.BaseModel], key: Key) -> str:
    field = _model_at(model, key[:-1]).model_fields[str(key[-1])]
    examples = field.examples or ["..."]
    return f"{key[-1]} = {examples[0]}   # {field.description}"


def _model_at(model: type[pydantic.BaseModel], key: Key) -> type[pydantic.BaseModel]:
    for part in key:
        if isinstance(part, str):
            annotation: Any = model.model_fields[part].annotation
            model = next(iter(get_args(annotation)), annotation)
    return model


def _lines(text: str) -> dict[Key, int]:
    found: dict[Key, int] = {}
    table: Key = ()
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            table = tuple(header[2].split("."))
            if header[1] == "[[":
                counts[header[2]] = counts.get(header[2], -1) + 1
                table = (*table, counts[header[2]])
            found.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            found.setdefault((*table, assignment[1]), number)
    return found
