"""Sections of ``api.md``: endpoints, fields, errors, limits and metrics of the HTTP API.

What the code has in tables is taken from there; what it says in calls (the codes of errors, the
names of metrics) is read from its source. Meanings are in `words`, which must have one for each.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, cast

import attrs
import pydantic
import sealring
from sealring.dashboard import pages
from sealring.dialects import anthropic, fields, messages, replies, responses, schema
from sealring.files import config
from sealring.http import app as served
from sealring.http import bodies, connections, gate, head, http1, kept, resume, state, tls
from sealring.http.app import build_app
from sealring.http.head import ApiHead
from sealring.http.openapi import OPERATIONS
from sealring.joining.door import Door
from sealring.service.newcomers import NewcomersApi
from sealring.text import workers
from starlette.routing import Route

from docs import words, words_shapes
from docs.schemas import table, told_type

_SOURCE: Final = Path(sealring.__file__).parent
_ROOMS: Final = (
    *("dashboard", "dialects", "http", "service", "structured", "text", "text_worker.py"),
)
"""The parts of the daemon that make errors of the API."""


def _same(found: set[str], told: set[str], what: str) -> None:
    """Raise `ValueError` unless exactly the *found* are *told*."""
    if found != told:
        raise ValueError(f"{what}: {sorted(found ^ told)}")


def _endpoints() -> str:
    # The app asks its head for nothing before a request comes.
    newcomers = NewcomersApi(cast(Door, None), cast(config.Config, None))
    app = build_app(cast(ApiHead, None), [*newcomers.routes(), *pages.routes()])
    rows, found = [], set()
    for route in app.routes:
        if isinstance(route, Route) and route.path not in served.UNSERVED:
            (method,) = (route.methods or {"GET"}) - {"HEAD"}
            place = f"{method} {route.path.replace(':path', '')}"
            found.add(place)
            key = "no" if gate.is_public(route.path) else "yes"
            rows.append((key, place))
    _same(found, set(OPERATIONS), "http/openapi.py: endpoints")
    rows = [(f"`{place}`", key, OPERATIONS[place].says) for key, place in rows]
    return table(("endpoint", "needs a key, once there are any", "what it gives"), *rows)


@attrs.frozen
class _Words:
    """The *meanings* of fields, what is said of those that are *refused*, and the schemas of the
    *kinds* of objects that they hold."""

    meanings: Mapping[str, str]
    refused: Mapping[str, str]
    kinds: Mapping[str, Any]

    def rows(
        self, told: Mapping[str, Any], prefix: str = "", within: tuple[str, ...] = ()
    ) -> Iterator[tuple[str, str, str]]:
        """Name, type and meaning of each field of the schema *told*, and of what is in it; not
        again of kinds that it is *within*."""
        for name, field in told["properties"].items():
            needed = " (needed)" if name in told.get("required", []) else ""
            refused = self.refused.get(name) if not prefix else None
            kind = "refused" if refused else told_type(field) + needed
            meaning = refused or self.meanings.get(f"{prefix}{name}")
            if meaning is None:
                raise SystemExit(f"the field {prefix}{name} has no meaning in docs/words.py")
            yield f"`{prefix}{name}`", kind, meaning
            for below, marks in _refs(field, ""):
                if below not in within:
                    place = f"{prefix}{name}{marks}."
                    yield from self.rows(self.kinds[below], place, (*within, below))


def _refs(field: Mapping[str, Any], marks: str) -> Iterator[tuple[str, str]]:
    """The objects that *field* holds, and the marks of the lists that they are in."""
    if "$ref" in field:
        yield field["$ref"].rpartition("/")[2], marks
    for each in field.get("anyOf", ()):
        yield from _refs(each, marks)
    if "items" in field:
        yield from _refs(field["items"], f"{marks}[]")


def _body(
    model: type[pydantic.BaseModel],
    meanings: Mapping[str, str],
    refused: Mapping[str, str] = MappingProxyType({}),
) -> str:
    told = model.model_json_schema()
    rows = _Words(meanings, refused, told.get("$defs", {})).rows(told)
    return table(("field", "type", "meaning"), *dict.fromkeys(rows))


def _refused() -> str:
    rows = []
    for name, refusal in fields.REFUSED.items():
        passes = ", ".join(f"`{json.dumps(value)}`" for value in refusal.unless)
        rows.append((f"`{name}`", refusal.only or "both", passes, refusal.says))
    return table(("field", "where", "passes with", "what is said"), *sorted(rows))


def _ignored() -> str:
    rows = [(f"`{name}`", why) for name, why in fields.IGNORED.items()]
    return table(("field", "why it has no effect"), *sorted(rows))


def _adapted() -> str:
    rows = [(f"`{name}`", words.ADAPTED[name]) for name in messages.CHANGES]
    return table(("name", "change"), *rows)


def _unserved() -> str:
    of: dict[str, list[str]] = {}
    for path, says in served.UNSERVED.items():
        of.setdefault(says, []).append(f"`{path.replace('{rest:path}', '...')}`")
    return table(
        ("paths", "what is said"), *((", ".join(paths), says) for says, paths in of.items())
    )


def _errors() -> str:
    found: dict[str, set[int]] = {}
    for path in sorted(path for room in _ROOMS for path in _modules(_SOURCE / room)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                _note(node, node.func.id, found)
            elif isinstance(node, ast.Assign):
                for code in _assigned(node.targets[0], node.value):
                    found.setdefault(code, set())
    _same(set(found), set(words.ERRORS), "docs/words.py: errors")
    rows = []
    for code, (status, meaning) in words.ERRORS.items():
        for number in found[code]:
            if str(number) not in status:
                raise ValueError(f"docs/words.py: {code} is {number}, not {status}")
        rows.append((status, f"`{code}`", meaning))
    return table(("status", "code", "when"), *sorted(rows))


def _modules(room: Path) -> list[Path]:
    return [*room.rglob("*.py")] if room.is_dir() else [room]


def _note(call: ast.Call, name: str, found: dict[str, set[int]]) -> None:
    """Add the code that *call* of *name* gives, if it makes an error."""
    at = {"ApiError": 2, "invalid": 2, "unavailable": 1}.get(name)
    if at is None:
        return
    keywords = [each.value for each in call.keywords if each.arg == "code"]
    (code,) = keywords or call.args[at : at + 1] or [ast.Constant("invalid_value")]
    if not isinstance(code, ast.Constant):
        return  # passed on by a function whose callers name it
    status: int | None = {"invalid": 400, "unavailable": 503}.get(name)
    if name == "ApiError" and call.args and isinstance(call.args[0], ast.Constant):
        status = cast(int, call.args[0].value)
    found.setdefault(str(code.value), set()).update([] if status is None else [status])


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[str]:
    """The texts that become a variable called ``code``."""
    match target, value:
        case ast.Tuple(targets), ast.Tuple(given):
            for each, its in zip(targets, given, strict=True):
                yield from _assigned(each, its)
        case ast.Name("code"), ast.IfExp(_, first, second):
            yield from _assigned(target, first)
            yield from _assigned(target, second)
        case ast.Name("code"), ast.Constant(str(text)):
            yield text


def _limits() -> str:
    rows = []
    for place, meaning in words.LIMITS.items():
        module, _, name = place.partition(".")
        value = getattr(_LIMITED[module], name)
        rows.append((f"`{name}`", f"{value:,}", meaning))
    return table(("limit", "value", "of what"), *rows)


_LIMITED: Final[Mapping[str, ModuleType]] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        *(bodies, config, connections, gate, head, http1, kept, pages, replies, responses),
        *(resume, schema, state, tls, workers),
    )
}


_FAMILIES: Final = {
    "Counter": ("counter", "_total"),
    "_counter": ("counter", "_total"),
    "_gauge": ("gauge", ""),
    "InfoMetricFamily": ("info", "_info"),
    "_histogram": ("histogram", ""),
    "_gen_ai": ("histogram", ""),
}


def _metrics() -> str:
    source = (_SOURCE / "http/metrics.py").read_text("utf-8")
    rows = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=kind)) if kind in _FAMILIES:
                texts = [
                    arg.value
                    for arg in node.args
                    if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                ]
                lists = [*node.args, *(each.value for each in node.keywords)]
                labels = [
                    str(cast(ast.Constant, item).value)
                    for each in lists
                    if isinstance(each, ast.List)
                    for item in each.elts
                ]
                name = texts[0]
                if not name.startswith(("sealring_", "gen_ai_")):
                    name = f"sealring_{name}"
                told, ending = _FAMILIES[kind]
                rows.append((f"`{name}{ending}`", told, ", ".join(labels), texts[1]))
    return table(("metric", "kind", "labels", "what it tells"), *sorted(rows))


SECTIONS: Final[Mapping[str, Callable[[], str]]] = {
    "endpoints": _endpoints,
    "chat": lambda: _body(schema.ChatRequest, words.FIELDS),
    "completion": lambda: _body(
        schema.CompletionRequest, {**words.FIELDS, **words.COMPLETION_FIELDS}
    ),
    "responses": lambda: _body(
        responses.ResponsesRequest, words_shapes.RESPONSES, responses.REFUSED
    ),
    "messages": lambda: _body(anthropic.MessagesRequest, words_shapes.MESSAGES, anthropic.REFUSED),
    "tokenize": lambda: _body(schema.TokenizeText, {**words.FIELDS, "prompt": "The text."}),
    "refused": _refused,
    "ignored": _ignored,
    "adapted": _adapted,
    "unserved": _unserved,
    "errors": _errors,
    "limits": _limits,
    "metrics": _metrics,
}
