"""The fields of a body that hold the answer to a form, beside those of `schema`.

``response_format`` is OpenAI's, ``structured_outputs`` vLLM's, and ``guided_…`` its older names.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal

import pydantic
from sealring_protocol.limits import MAX_BAD, MAX_GRAMMAR

MAX_OPTIONS: Final = 4096
"""Texts that a choice may be of."""

Text = Annotated[str, pydantic.StringConstraints(min_length=1, max_length=MAX_GRAMMAR)]
Several = partial(pydantic.Field, fail_fast=True)
Options = Annotated[list[Text], Several(min_length=1, max_length=MAX_OPTIONS)]
Schema = dict[str, Any] | bool | Text
"""A JSON schema, or its text."""


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        strict=True, extra="ignore", allow_inf_nan=False, serialize_by_alias=True
    )


class JsonSchema(_Model):
    """A schema, and what it is called."""

    name: Annotated[str, pydantic.StringConstraints(max_length=256)] | None = None
    description: str | None = None
    form: Annotated[dict[str, Any] | bool | None, pydantic.Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(_Model):
    """The form that the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(_Model):
    """The form that the answer must have, in vLLM's words: one of *json*, *regex*, *choice*,
    *grammar* and *json_object*."""

    form: Annotated[Schema | None, pydantic.Field(alias="json")] = None
    regex: Text | None = None
    choice: Options | None = None
    grammar: Text | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: Text | None = None
    disable_additional_properties: bool | None = None
    structural_tag: Any = None


class Held(_Model):
    """What constrains an answer's tokens."""

    min_tokens: Annotated[int, pydantic.Field(ge=0, lt=1 << 31)] | None = None
    bad_words: Annotated[list[Text], Several(max_length=MAX_BAD)] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Options | None = None
    guided_grammar: Text | None = None
    guided_whitespace_pattern: Text | None = None


FORMS: Final = frozenset(Held.model_fields) - {"min_tokens"}
"""Those of the fields that the node has no need of."""
