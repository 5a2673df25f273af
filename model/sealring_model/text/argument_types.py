"""What the arguments of a call may be, and their texts as JSON.

A model that writes an element for each argument says nothing of its type. The schema of the
function does (`value_kinds`): a `Value` is the first of the types that it may be of which it is
one, in the order of `TYPES`. So a text stays a text where the schema wants one, whatever it looks
like. What fits no type is a text as well. Numbers stay as they are written, however large.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

Kind = Mapping[str, Any]
"""What an argument may be: its ``types``; ``texts`` that it may be, where other values are listed,
too; for an object its ``fields``, for a list its ``items``. Empty if it may be anything."""

TYPES: Final = ("null", "boolean", "integer", "number", "object", "array", "string")

_BARE: Final = TYPES[:4]
"""Types whose values have no marks in them."""

MAX_VALUE: Final = 256 << 10
"""Most characters of an argument that is kept until its type is known; a longer one is a text."""

MAX_KINDS: Final = 10_000
"""Most schemas that are looked at for one request; beyond, an argument may be anything."""

_DEEPEST: Final = 32
"""Most schemas within each other that are followed."""

TEXT: Final[Kind] = {"types": ["string"]}
_NUMERAL: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_WHOLE: Final = re.compile(r"-?(0|[1-9]\d*)(\.0+)?")
_UNDECIDED: Final = 16
"""Characters from which a value can be neither null nor true nor false."""


class Value:
    """A value that comes in pieces, and is passed on as JSON: at once where it can only be a text,
    else when it is whole."""

    def __init__(self, emit: Callable[[str], None], kind: Kind, *, lined: bool = False) -> None:
        self._emit = emit
        self._kind = kind
        self._first = lined
        self._lined = lined
        self._break = ""  # a line break that may be the last
        self._size = 0
        self._optional = set(kind.get("types", ())) == {"string", "null"} and "texts" not in kind
        self.text_only = list(kind.get("types", ())) == ["string"]
        self.bare = set(kind.get("types", TYPES)) <= {*_BARE}
        self.kept: list[str] = []
        if self.text_only:
            emit('"')

    @property
    def on_new_line(self) -> bool:
        """Whether one that has lines of its own ends with a line break so far."""
        return bool(self._break)

    def add(self, text: str) -> None:
        """Add *text* to it."""
        if self._first and text:
            self._first = False
            text = text.removeprefix("\n")
        if self._lined and text:
            text = self._break + text
            self._break = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        if not text:
            return
        if self.text_only:
            self._emit(quoted(text)[1:-1])
            return
        self.kept.append(text)
        self._size += len(text)
        if self._size > MAX_VALUE or (self._optional and self._size > _UNDECIDED):
            self.be_text()

    def be_text(self) -> None:
        """Pass on all of it as a text."""
        if not self.text_only:
            self.text_only = True
            self._emit(quoted("".join(self.kept))[:-1])
            self.kept = []

    def end(self) -> None:
        """It is whole."""
        self._emit('"' if self.text_only else as_json("".join(self.kept), self._kind))

    def replace(self, value: str) -> None:
        """It is *value*, a JSON text."""
        self._emit(value)

    def cut(self) -> None:
        """The answer ended within it: pass on what there is."""
        if not self.text_only:
            self._emit("".join(self.kept))


@attrs.define
class Element:
    """An element that is open: what it may be, its *text*, and the values within it by tag."""

    tag: str
    kind: Kind
    text: list[str] = attrs.field(factory=list)
    within: list[tuple[str, str]] = attrs.field(factory=list)

    def inner(self, tag: str) -> Kind:
        """What the element *tag* within it may be."""
        fields: Mapping[str, Kind] = self.kind.get("fields", {})
        return fields.get(tag, {} if fields else self.kind.get("items", {}))

    def json(self) -> str:
        """Its value."""
        types = self.kind.get("types", TYPES)
        if not self.within:
            text = "".join(self.text)
            if not text.strip() and "string" not in types:
                return "[]" if "array" in types else "{}" if "object" in types else '""'
            return as_json(text, self.kind)
        if "array" in types and all(tag == "item" for tag, _ in self.within):
            return f"[{', '.join(value for _, value in self.within)}]"
        return f"{{{', '.join(f'{quoted(tag)}: {value}' for tag, value in self.within)}}}"


def as_json(text: str, kind: Kind) -> str:
    """*text* as JSON: the first of the types that it may be, of which it is one; else a text."""
    types = kind.get("types", TYPES)
    texts = kind.get("texts")
    if texts is not None and text in texts:
        return quoted(text)
    bare = text.strip()
    for name in TYPES:
        if name in types and (value := _as(name, bare)):
            return value
    return quoted(text)


def _as(name: str, bare: str) -> str:
    """*bare* as a JSON text of the type *name*; empty if it is none."""
    match name:
        case "null":
            return "null" if bare in ("null", "None") else ""
        case "boolean":
            return bare.lower() if bare in ("true", "false", "True", "False") else ""
        case "integer":
            return bare.partition(".")[0] if _WHOLE.fullmatch(bare) else ""
        case "number":
            return bare if _NUMERAL.fullmatch(bare) else ""
        case "object" | "array":
            return _container(bare) if bare[:1] == ("{" if name == "object" else "[") else ""
    return ""


def _container(bare: str) -> str:
    """The object or list *bare* in JSON, as it is written, or as Python writes one; empty if it is
    neither."""
    for text in (bare, _from_python(bare)):
        try:
            json.loads(text, parse_int=len, parse_float=len, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            continue
        return text
    return ""


def _no_constant(name: str) -> None:
    raise ValueError(name)


_PYTHON: Final = re.compile(
    r"""'((?:[^'\\]|\\.)*)(?:'|\\?\Z)|"((?:[^"\\]|\\.)*)(?:"|\\?\Z)|"""
    r"""\b(True|False|None)\b|([^'"TFN]+|.)""",
    re.DOTALL,
)
_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null"}
_QUOTES: Final = re.compile(r"""\\(.)|(["\x00-\x1f])""", re.DOTALL)


def _from_python(text: str) -> str:
    parts = []
    for found in _PYTHON.finditer(text):
        single, double, constant, other = found.groups()
        if constant is not None:
            parts.append(_CONSTANTS[constant])
        elif other is not None:
            parts.append(other)
        else:
            parts.append(f'"{_QUOTES.sub(_requoted, single if double is None else double)}"')
    return "".join(parts)


def _requoted(found: re.Match[str]) -> str:
    escaped, plain = found.groups()
    if plain is not None:
        return quoted(plain)[1:-1]
    return escaped if escaped == "'" else f"\\{escaped}"


def quoted(text: str) -> str:
    """*text* as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


_ALIASES: Final = {
    **{"int": "integer", "float": "number", "str": "string", "bool": "boolean"},
    **{"list": "array", "dict": "object"},
}


def value_kinds(
    tools: Sequence[Mapping[str, Any]], *, nested: bool = False
) -> dict[str, dict[str, Any]]:
    """The arguments of each function among *tools*, and what each may be, as its schema says; with
    *nested* also what is in them. Takes any schema, and follows a bounded part of it."""
    looked = _Schemas()
    found = {}
    for tool in tools:
        fields = looked.fields(tool["function"].get("parameters"))
        if not nested:
            fields = {
                key: {name: kind[name] for name in ("types", "texts") if name in kind}
                for key, kind in fields.items()
            }
        found[str(tool["function"]["name"])] = fields
    return found


class _Schemas:
    """Looks at schemas, up to `MAX_KINDS` of them in all."""

    def __init__(self) -> None:
        self._left = MAX_KINDS

    def fields(self, schema: Any) -> dict[str, Any]:
        self._root = schema
        found: dict[str, Any] = self._of(schema, 0).get("fields", {})
        return found

    def _of(self, schema: Any, depth: int) -> dict[str, Any]:
        self._left -= 1
        if not isinstance(schema, dict) or self._left < 0 or depth > _DEEPEST:
            return {}
        kind: dict[str, Any] = {}
        if (types := _types(schema)) is not None:
            kind["types"] = types
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list) and values:
            kind = _both(kind, _listed(values))
        if isinstance(named := schema.get("properties"), dict):
            kind["fields"] = {str(key): self._of(each, depth + 1) for key, each in named.items()}
        if isinstance(items := schema.get("items"), dict):
            kind["items"] = self._of(items, depth + 1)
        if isinstance(ref := schema.get("$ref"), str):
            kind = _both(kind, self._of(self._found(ref), depth + 1))
        for each in _list(schema.get("allOf")):
            kind = _both(kind, self._of(each, depth + 1))
        for name in ("anyOf", "oneOf"):
            if several := [self._of(each, depth + 1) for each in _list(schema.get(name))]:
                kind = _both(kind, _either(several))
        if schema.get("nullable") is True and "types" in kind:
            kind["types"] = [name for name in TYPES if name in {*kind["types"], "null"}]
        return kind

    def _found(self, ref: str) -> Any:
        place = self._root
        for step in ref.removeprefix("#").split("/")[1:_DEEPEST]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, list) and key.isdecimal() and int(key[:6]) < len(place):
                place = place[int(key[:6])]
            elif isinstance(place, dict):
                place = place.get(key)
            else:
                return None
        return place


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _types(schema: Mapping[str, Any]) -> list[str] | None:
    """The types that *schema* names; None if it names none that are known."""
    named = schema.get("type")
    listed = named if isinstance(named, list) else [named]
    names = {_ALIASES.get(str(name), name) for name in listed}
    if not names or not names.issubset(TYPES):
        return None
    return [name for name in TYPES if name in names]


def _listed(values: Sequence[Any]) -> dict[str, Any]:
    names = {_TYPE_OF.get(type(value), "string") for value in values}
    kind: dict[str, Any] = {"types": [name for name in TYPES if name in names]}
    if "string" in names and len(names) > 1:
        kind["texts"] = [value for value in values if isinstance(value, str)]
    return kind


_TYPE_OF: Final = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}
"""The type of a value of parsed JSON; any other is a text."""


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    kind = {**one, **other}
    if "types" in one and "types" in other:
        allowed = [_wider(one["types"]), _wider(other["types"])]
        shared = [name for name in TYPES if all(name in each for each in allowed)]
        if "integer" in shared and not {"number"} <= {*one["types"]} & {*other["types"]}:
            shared = [name for name in shared if name != "number"]
        kind["types"] = shared or list(one["types"])
    if "fields" in one and "fields" in other:
        kind["fields"] = {**one["fields"], **other["fields"]}
    return kind


def _wider(types: Sequence[str]) -> set[str]:
    return {*types, "integer"} if "number" in types else {*types}


def _either(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kind: dict[str, Any] = {}
    if all("types" in each for each in several):
        names = {name for each in several for name in each["types"]}
        kind["types"] = [name for name in TYPES if name in names]
    texts = [text for each in several for text in each.get("texts", ())]
    if texts:
        kind["texts"] = texts
    fields: dict[str, Any] = {}
    for each in several:
        for key, inner in each.get("fields", {}).items():
            fields[key] = _either([fields[key], inner]) if key in fields else inner
    if fields:
        kind["fields"] = fields
    if items := [each["items"] for each in several if "items" in each]:
        kind["items"] = _either(items)
    return kind
