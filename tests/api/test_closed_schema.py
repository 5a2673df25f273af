"""Which objects of a schema have no names but those of their properties."""

import json

import jsonschema
import pytest
from sealring.structured.forms import closed

NAMED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
SHUT = {**NAMED, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (NAMED, SHUT),
        ({"properties": {}, "title": "None"}, None),
        ({"type": "array", "items": NAMED}, {"type": "array", "items": SHUT}),
        ({"properties": {"allOf": NAMED}}, {"properties": {"allOf": SHUT}}),
        (
            {"$defs": {"A": NAMED}, "anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]},
            {"$defs": {"A": SHUT}, "anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]},
        ),
    ],
)
def test_a_plain_object_that_names_properties_has_no_others(schema, wanted):
    if wanted is None or "properties" in wanted:
        wanted = {**(wanted or schema), "additionalProperties": False}
    assert closed(schema) == wanted


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object"},
        {**NAMED, "additionalProperties": True},
        {**NAMED, "additionalProperties": {"type": "string"}},
        {**NAMED, "minProperties": 2},
        {**NAMED, "required": ["a", "b"]},
        {**NAMED, "patternProperties": {"^x": {}}},
        {**NAMED, "anyOf": [{"properties": {"b": {}}}, {"required": ["b"]}]},
        {"allOf": [NAMED, {"properties": {"b": {}}, "required": ["b"]}]},
        {"$defs": {"A": NAMED}, "$ref": "#/$defs/A", "properties": {"b": {}}},
        {"$defs": {"A": NAMED}, "items": {"allOf": [{"$ref": "#/$defs/A"}, {"required": ["b"]}]}},
        {**NAMED, "if": {"required": ["b"]}, "then": False},
        {**NAMED, "properties": {"a": 3}},
        {**NAMED, "required": "a"},
        {**NAMED, "required": [["a"]]},
        {**NAMED, "properties": [NAMED]},
        {"anyOf": NAMED},
        {"anyOf": [NAMED], "oneOf": [NAMED]},
    ],
)
def test_what_says_more_or_is_none_is_left_as_it_is(schema):
    assert closed(schema) == schema


def test_what_a_closed_schema_allows_the_schema_allows():
    schema = {"items": {**NAMED, "properties": {"a": {}, "b": NAMED}}}
    for text, both in (
        ('[{"a": 1}]', True),
        ('[{"a": 1, "b": {"a": ""}}]', True),
        ('[{"a": 1, "b": {"a": "", "c": 2}}]', False),
        ('[{"a": 1, "c": 2}]', False),
    ):
        value = json.loads(text)
        assert jsonschema.Draft202012Validator(schema).is_valid(value)
        assert jsonschema.Draft202012Validator(closed(schema)).is_valid(value) is both


def test_a_schema_too_deep_to_be_walked_is_left():
    schema = NAMED
    for _ in range(2000):
        schema = {"items": schema}
    assert closed(schema) is schema
