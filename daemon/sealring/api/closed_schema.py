"""Objects of a JSON schema that name their properties, and do not say whether there may be others.

JSON Schema then lets an object have any further names. People who write such schemas do not mean
that, and a model that may go on with names of its own often does. So such an object has its
`properties` alone, as XGrammar and llama.cpp take it: every answer is still valid by the schema as
it was sent. ``additionalProperties: true`` asks for more.

This is done only in a schema that is plain: where schemas are combined, a name may be allowed by
one and be a further name of another.
"""

from __future__ import annotations

from typing import Any, Final

NOTES: Final = frozenset(
    (
        "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated",
        "description", "discriminator", "example", "examples", "nullable", "readOnly", "title",
        "writeOnly",
    )
)  # fmt: skip
"""Keywords that rule nothing out."""

_OBJECT: Final = NOTES | {"type", "properties", "required"}
"""Those of an object that is closed."""

_VALUE: Final = _OBJECT | {
    "additionalProperties", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format",
    "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength",
    "minProperties", "minimum", "multipleOf", "pattern", "prefixItems", "uniqueItems",
}  # fmt: skip
"""Those of a schema that stands alone."""

_ALONE: Final = ("$ref", "anyOf", "oneOf")
"""Keywords that stand for the whole schema if only notes are beside them."""

_BY_NAME: Final = ("$defs", "definitions", "properties")
_LISTS: Final = ("anyOf", "oneOf", "prefixItems")


def closed(schema: Any) -> Any:
    """*schema*, in which plain objects have no further names. One too deep to be walked is left."""
    try:
        return _close(schema) if _is_plain(schema) else schema
    except RecursionError:
        return schema


def _is_plain(schema: Any) -> bool:
    """Whether no schema within *schema* is combined with another."""
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    alone = [name for name in _ALONE if name in schema]
    allowed = NOTES | {*alone} if len(alone) == 1 else _VALUE
    return schema.keys() <= allowed and all(map(_is_plain, _within(schema)))


def _within(schema: dict[str, Any]) -> list[Any]:
    """The schemas that *schema* is made of, and None for what cannot be some."""
    found = [schema[name] for name in ("additionalProperties", "items") if name in schema]
    for name in _BY_NAME:
        part = schema.get(name, {})
        found += part.values() if isinstance(part, dict) else [None]
    for name in _LISTS:
        part = schema.get(name, [])
        found += part if isinstance(part, list) else [None]
    return found


def _close(schema: Any) -> Any:
    if isinstance(schema, bool):
        return schema
    made = dict(schema)
    for name in ("additionalProperties", "items"):
        if name in made:
            made[name] = _close(made[name])
    for name in _BY_NAME:
        if name in made:
            made[name] = {key: _close(part) for key, part in made[name].items()}
    for name in _LISTS:
        if name in made:
            made[name] = list(map(_close, made[name]))
    if "properties" in schema and schema.keys() <= _OBJECT and _names_what_it_requires(schema):
        made["additionalProperties"] = False
    return made


def _names_what_it_requires(schema: dict[str, Any]) -> bool:
    names, required = schema["properties"], schema.get("required", [])
    return isinstance(required, list) and all(
        isinstance(name, str) and name in names for name in required
    )
