"""The fields of pydantic models as rows of Markdown tables, by their JSON schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_NAMES: Final = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
}
_LARGE: Final = 1 << 32  # numbers from here on are told as powers of two


def table(*rows: Iterable[object]) -> str:
    """A Markdown table whose first row is its head."""
    head, *body = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def told_type(schema: Mapping[str, Any]) -> str:
    """What values *schema* allows, in words."""
    if "$ref" in schema:
        return "object"
    if "anyOf" in schema:
        kinds = [told_type(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return ", or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f'`"{value}"`' for value in schema["enum"])
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    match schema.get("type"):
        case None:
            return "anything"
        case "array":
            return f"list of {_plural(told_type(schema['items']))}{_counts(schema)}"
        case "object" if entries := schema.get("patternProperties"):
            return f"object of {_plural(told_type(next(iter(entries.values()))))}"
        case kind:
            but = schema.get("not", {}).get("const")
            told = _NAMES[kind] + _bounds(schema) + _lengths(schema)
            return told if but is None else f"{told}, but not {but}"


def _plural(kind: str) -> str:
    return re.sub(r"^(text|whole number|number|object|list)\b", r"\1s", kind)


def _bounds(schema: Mapping[str, Any]) -> str:
    told = ""
    if (least := schema.get("minimum")) is not None:
        told = f" from {_number(least)}"
    if (above := schema.get("exclusiveMinimum")) is not None:
        told = f" above {_number(above)}"
    if (most := schema.get("maximum")) is not None:
        told += f" to {_number(most)}" if " from" in told else f", at most {_number(most)}"
    if (below := schema.get("exclusiveMaximum")) is not None:
        told += f", below {_number(below)}"
    return told


def _lengths(schema: Mapping[str, Any]) -> str:
    if "maxLength" not in schema:
        return ""
    return f" of {schema.get('minLength', 0)} to {schema['maxLength']:,} characters"


def _counts(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minItems"), schema.get("maxItems")
    told = [f"at least {least}"] if least else []
    told += [f"at most {most:,}"] if most else []
    return f" ({', '.join(told)})" if told else ""


def _number(value: float) -> str:
    if abs(value) < _LARGE - 1:
        return f"{value:,g}" if isinstance(value, float) else f"{value:,}"
    size = abs(int(value))
    power = (size + 1).bit_length() - 1
    sign = "-" if value < 0 else ""
    if size == 1 << power:
        return f"{sign}2^{power}"
    if size == (1 << power) - 1:
        return f"{sign}2^{power} - 1"
    return f"{value:,}"
