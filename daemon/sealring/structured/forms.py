"""The form that a request wants its answer to have, as a grammar that engines hold it to.

A grammar is llguidance's JSON: a list of grammars, of which the first is the answer, and names the
others. What a model writes before its answer (its reasoning) is free, up to the mark that closes
it; marks that are tokens of their own are written as such. A text worker makes the grammar, and
tries whether it can be held: `sealring_model.text.grammars.fault`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
from llguidance import gbnf_to_lark, regex_to_lark
from sealring_model.text.tokens import Tokenizer

from sealring.dialects.errors import ApiError, cannot_be_held, invalid, unsupported
from sealring.dialects.schema import Held, ResponseFormat

Grammar = dict[str, Any]
"""One grammar of the list, without its name."""

BLANK: Final = r"[\x20\x0A\x0D\x09]{1,64}"
"""Blank space between the parts of a JSON text. Without a bound, an answer may be nothing else."""

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]*")
_DIALECT: Final = re.compile(
    r"http://json-schema\.org/draft-0[467]/schema#?"
    r"|https://json-schema\.org/draft/20(19-09|20-12)/schema#?"
)
_SCHEMA_PARAM: Final = "response_format.json_schema.schema"
HARMONY: Final = "harmony"
"""The name of gpt-oss's format."""

TEXT: Final = r"/(.|\n)*/"
"""Any text, in Lark. Special tokens are none."""

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


@attrs.frozen
class Form:
    """What the field *param* asks for."""

    param: str
    grammar: Grammar


def json_grammar(schema: Any, *, blank: str | None = BLANK) -> Grammar:
    """What a JSON text of *schema* is, whose plain objects are `closed`. *blank* is a regular
    expression for the blank space in it, None for no such space."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        return {"json_schema": schema}
    options = {"whitespace_flexible": False} if blank is None else {"whitespace_pattern": blank}
    return {"json_schema": {**closed(_known(schema)), "x-guidance": options}}


def _known(schema: dict[str, Any]) -> dict[str, Any]:
    """*schema* without a name that is no address (``"$id": "Output Format"``), to which nothing can
    refer, and without a dialect that is none of JSON Schema's."""
    left_out = {
        name
        for name, wanted in (("$id", _URI), ("$schema", _DIALECT))
        if name in schema and not wanted.fullmatch(str(schema[name]))
    }
    return {name: part for name, part in schema.items() if name not in left_out}


def leniently(grammar: Grammar) -> Grammar | None:
    """*grammar*, of whose schema only that is held which can be; None if it is of no schema."""
    schema = grammar.get("json_schema")
    if not isinstance(schema, dict):
        return None
    options = {**schema.get("x-guidance", {}), "lenient": True, "coerce_one_of": True}
    return {"json_schema": {**schema, "x-guidance": options}}


def form_of(asked: Held, response_format: ResponseFormat | None) -> Form | None:
    """The form that *asked* and its *response_format* want; None for free text. Raises `ApiError`
    for two forms that differ, and for what cannot be held. Clients say one form in the words of an
    older and of a newer vLLM."""
    forms = [*_response(response_format), *_structured(asked), *_guided(asked)]
    others = [form for form in forms[1:] if form.grammar != forms[0].grammar]
    if others:
        one, other = forms[0].param, others[0].param
        raise invalid(f"'{one}' and '{other}' both give the answer a form; use one.", other)
    return forms[0] if forms else None


def _response(asked: ResponseFormat | None) -> list[Form]:
    if asked is None or asked.type == "text":
        return []
    if asked.type == "json_object":
        return [Form("response_format", json_grammar({"type": "object"}))]
    if asked.json_schema is None or asked.json_schema.form is None:
        raise invalid(
            f"'{_SCHEMA_PARAM}' is missing: the type 'json_schema' needs it.",
            _SCHEMA_PARAM,
            "missing_required_parameter",
        )
    return [Form(_SCHEMA_PARAM, json_grammar(asked.json_schema.form))]


def _structured(asked: Held) -> list[Form]:
    given = asked.structured_outputs
    if given is None:
        return []
    for name in ("structural_tag", "disable_additional_properties"):
        if getattr(given, name):
            param = f"structured_outputs.{name}"
            raise unsupported(param, f"'{param}' is not supported; say it in a schema or grammar.")
    blank = None if given.disable_any_whitespace else given.whitespace_pattern or BLANK
    values = {
        "json": given.form,
        "regex": given.regex,
        "choice": given.choice,
        "grammar": given.grammar,
        "json_object": given.json_object or None,
    }
    found = _forms("structured_outputs.", values, blank)
    if len(found) != 1:
        raise invalid(
            "structured_outputs has one of 'json', 'regex', 'choice', 'grammar' and 'json_object'.",
            "structured_outputs",
        )
    return found


def _guided(asked: Held) -> list[Form]:
    values = {
        "json": asked.guided_json,
        "regex": asked.guided_regex,
        "choice": asked.guided_choice,
        "grammar": asked.guided_grammar,
    }
    return _forms("guided_", values, asked.guided_whitespace_pattern or BLANK)


def _forms(prefix: str, values: Mapping[str, Any], blank: str | None) -> list[Form]:
    forms = []
    for name, value in values.items():
        if value is None:
            continue
        param = prefix + name
        match name:
            case "json":
                grammar = json_grammar(_schema(value, param), blank=blank)
            case "json_object":
                grammar = json_grammar({"type": "object"}, blank=blank)
            case "regex":
                grammar = {"lark_grammar": f"start: /{regex_to_lark(value)}/"}
            case "choice":
                grammar = {"lark_grammar": "start: " + " | ".join(map(quoted, value))}
            case _:
                grammar = {"lark_grammar": _lark(value, param)}
        forms.append(Form(param, grammar))
    return forms


def _schema(given: Any, param: str) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        raise invalid(f"'{param}' is no JSON.", param) from None


def _lark(given: str, param: str) -> str:
    try:
        return str(gbnf_to_lark.any_to_lark(given))
    except Exception as error:  # noqa: BLE001  it raises `Exception` itself for what it cannot read
        raise invalid(f"'{param}' is no grammar: {error}", param) from None


def quoted(text: str) -> str:
    """*text* as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


@attrs.frozen
class MarkTerminals:
    """How a grammar names marks of *tokenizer*'s model."""

    tokenizer: Tokenizer

    def token(self, mark: str) -> str:
        """The token that *mark* is, in Lark; empty if it is several, or none."""
        ids = self.tokenizer.encode_part(mark) if mark else []
        return f"<[{ids[0]}]>" if len(ids) == 1 else ""

    def name(self, mark: str) -> str:
        """*mark* in Lark, tokens that are no text as such."""
        return " ".join(self._part(part) for part in self._split(mark) if part)

    def _part(self, text: str) -> str:
        ids = self.tokenizer.encode_part(text)
        return self.token(text) if {*ids} <= self.tokenizer.special else quoted(text)

    def literal(self, form: str, name: str = "") -> str:
        """*form* in Lark, as `name`. In it ``{}`` is *name*, ``\n?`` a line break or none, ``#`` a
        number."""
        found = []
        for part in re.split(r"(\n\?|#|\{\})", form):
            match part:
                case "\n?":
                    found.append(r'"\n"?')
                case "#":
                    found.append("/[0-9]{1,4}/")
                case "{}":
                    found.append(quoted(name))
                case _:
                    found.append(self.name(part))
        return " ".join(filter(None, found))

    def _split(self, text: str) -> list[str]:
        """*text*, with each special token in it by itself."""
        ids = self.tokenizer.encode_part(text)
        special = [self.tokenizer.decode([each]) for each in ids if each in self.tokenizer.special]
        if not special:
            return [text]
        return re.split("(" + "|".join(map(re.escape, special)) + ")", text)

    def up_to(self, rule: str, mark: str, *others: str) -> str:
        """The Lark rule *rule*: any text without *others*, and the first *mark* after it."""
        text = f"{rule.upper()}_TEXT"
        before, token, after = self.name(mark).partition("<[")
        if token:
            free = self.free(mark, *others)
            return f"{rule}: {text} {token}{after}\n{text}: ({free}) {before}"
        return f"{rule}[suffix={quoted(mark)}]: {text}\n{text}: {self.free(*others)}"

    def free(self, *marks: str) -> str:
        """Any text without *marks*, as a regular expression of Lark."""
        without = (rf" & ~/(.|\n)*({regex_to_lark(_escaped(mark))})(.|\n)*/" for mark in marks)
        return TEXT + "".join(without)


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def answer(
    tokenizer: Tokenizer,
    main: str,
    parts: Mapping[str, Grammar],
    *,
    reasoning: bool,
    calling: bool = False,
    most: int | None = None,
    call: str = "",
) -> str:
    """The grammar of an answer that *main* is the Lark rule ``answer`` of, which names *parts* as
    ``@name``. The answer begins within the model's *reasoning*, or may have some, unless it begins
    within a call (*calling*).

    Where the mark that closes the reasoning is one token, it comes after *most* tokens of thoughts.
    Where the mark *call* is one, too, it may come within them, with what ``called`` is in *main*;
    after it they go on.
    """
    lines = [main]
    if tokenizer.calls.name == HARMONY and not calling:
        lines += _channels(MarkTerminals(tokenizer), reasoning=reasoning, most=most, call=call)
    elif tokenizer.think[1] and not calling:
        lines += _thoughts(MarkTerminals(tokenizer), reasoning=reasoning, most=most, call=call)
    else:
        lines.append("start: answer")
    grammars = [{"name": "main", "lark_grammar": "\n".join(lines)}]
    grammars += [{"name": name, **part} for name, part in parts.items()]
    return json.dumps({"grammars": grammars})


def _thoughts(marks: MarkTerminals, *, reasoning: bool, most: int | None, call: str) -> list[str]:
    first, last = marks.tokenizer.think
    end, begun = marks.token(last), marks.token(call)
    before = "" if reasoning else f"{marks.name(first)} "
    answers = f"{before}thought BLANK? answer"
    if end and begun:
        calls = f"(musing {begun} called)"
        answers = f"{before}{calls}* thought BLANK? answer | {before}{calls}+"
    if end:
        bound = "" if most is None else f"[max_tokens={most}]"
        lines = [
            f"thought: musing {end}",
            f"musing{bound}: MUSING",
            f"MUSING: {marks.free(*filter(None, (last, call)))}",
        ]
    else:
        lines = [marks.up_to("thought", last)]
    start = f"start: {answers}" if reasoning else f"start: {answers} | answer"
    return [start, *lines, r"BLANK: /[ \t\r\n]{1,8}/"]


def _channels(marks: MarkTerminals, *, reasoning: bool, most: int | None, call: str) -> list[str]:
    """An answer in harmony, where each message names its channel: what `answer` is comes in the
    last."""
    more = marks.literal("<|end|><|start|>assistant")
    last = f"{marks.literal('<|channel|>final<|message|>')} answer"
    if call:
        last += f" | {marks.literal(call)} called"
    thought = f"musing {more}"
    begun = f"{marks.literal('<|channel|>analysis<|message|>')} {thought}"
    if most is None:
        begun = f"({begun} | {marks.literal('<|channel|>commentary<|message|>')} {thought})*"
    else:
        begun = f"({begun})?"
    if reasoning:
        begun = f"{thought} {begun}" if most is None else thought
    bound = "" if most is None else f"[max_tokens={most}]"
    return [f"start: {begun} ({last})", f"musing{bound}: {TEXT}"]


def refusal(param: str, why: str, what: str = "") -> ApiError:
    """The error for a form that cannot be held: that of the field *param*, or *what* it is."""
    message = cannot_be_held(what or f"'{param}'", why)
    return ApiError(400, message, "unsupported_form", param=param)


def closed(schema: Any) -> Any:
    """*schema*, in which plain objects have no further names. One too deep to be walked is left.

    JSON Schema lets an object that names its properties have any others, unless it says no. People
    who write such schemas do not mean that, and a model that may go on with names of its own often
    does. So such an object has its `properties` alone, as XGrammar and llama.cpp take it: every
    answer is still valid by the schema as it was sent. ``additionalProperties: true`` asks for
    more. This is done only in a schema that is plain: where schemas are combined, a name may be
    allowed by one and be a further name of another."""
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
