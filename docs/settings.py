"""Sections of ``config.md``: the keys of a node's config and of a roster's draft.

Their types, defaults, meanings and examples are those of the schema, which the messages about a
faulty file use too. Each example is read as the file itself would be.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final

import pydantic
from sealring.files.cluster import NO_ATTESTATION, Draft, DraftMember
from sealring.files.config import Config

from docs.schemas import table, told_type


def _keys(model: type[pydantic.BaseModel]) -> str:
    schema = model.model_json_schema()
    needed = schema.get("required", [])
    rows = [
        (
            f"`{name}`",
            told_type(field),
            "needed" if name in needed else _default(field.get("default")),
            field["description"],
            f"`{name} = {_example(model, name)}`",
        )
        for name, field in schema["properties"].items()
        if "$ref" not in field.get("items", {})  # tables of their own
    ]
    return table(("key", "type", "default", "meaning", "example"), *rows)


def _default(value: Any) -> str:
    """*value* as TOML has it."""
    if value is None:
        return "none"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "zeros" if value == NO_ATTESTATION else f"`{json.dumps(value)}`"


def _example(model: type[pydantic.BaseModel], name: str) -> str:
    """An example of the field *name*, which must be one."""
    field = model.model_fields[name]
    if not field.examples:
        raise ValueError(f"{model.__name__}.{name} has no example")
    text = str(field.examples[0])
    try:
        model.model_validate(tomllib.loads(f"{name} = {text}"))
    except pydantic.ValidationError as error:
        faults = [fault for fault in error.errors() if fault["type"] != "missing"]
        if faults and "..." not in text:  # which stands for what is too long to be shown
            raise
    return text


SECTIONS: Final[Mapping[str, Callable[[], str]]] = {
    "config": lambda: _keys(Config),
    "draft": lambda: _keys(Draft),
    "member": lambda: _keys(DraftMember),
}
