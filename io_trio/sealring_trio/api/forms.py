"""The form that a request wants its answer to have, as a grammar that engines hold it to.

A grammar is llguidance's JSON: a list of grammars, of which the first is the answer, and names the
others. What a model writes before its answer (its reasoning) is free, up to the mark that closes
it; marks that are tokens of their own are written as such. A text worker makes the grammar, and
tries whether it can be held: `sealring_model.text.grammars.fault`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from llguidance import gbnf_to_lark, regex_to_lark
from sealring_model.text.tokens import Tokenizer

from sealring_trio.api.closed_schema import closed
from sealring_trio.api.errors import ApiError, invalid, unsupported
from sealring_trio.api.held_schema import Held, ResponseFormat
from sealring_trio.api.unheld import cannot_be_held

Grammar = dict[str, Any]
"""One grammar of the list, without its name."""

BLANK: Final = r"[\x20\x0A\x0D\x09]{1,64}"
"""Blank space between the parts of a JSON text. Without a bound, an answer may be nothing else."""

_SCHEMA_PARAM: Final = "response_format.json_schema.schema"
_TEXT: Final = r"/(.|\n)*/"


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
    return {"json_schema": {**closed(schema), "x-guidance": options}}


def form_of(asked: Held, response_format: ResponseFormat | None) -> Form | None:
    """The form that *asked* and its *response_format* want; None for free text. Raises `ApiError`
    for two forms, and for what cannot be held."""
    forms = [*_response(response_format), *_structured(asked), *_guided(asked)]
    if len(forms) > 1:
        one, other = forms[0].param, forms[1].param
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
class Marks:
    """How a grammar names marks of *tokenizer*'s model."""

    tokenizer: Tokenizer

    def is_token(self, mark: str) -> bool:
        """Whether *mark* is a token that stands for itself, and no text."""
        ids = self.tokenizer.encode_part(mark)
        return len(ids) == 1 and ids[0] in self.tokenizer.special

    def name(self, mark: str) -> str:
        """*mark*, in Lark."""
        if self.is_token(mark):
            return f"<[{self.tokenizer.encode_part(mark)[0]}]>"
        return quoted(mark)

    def up_to(self, rule: str, mark: str) -> str:
        """The Lark rule *rule*: any text, and the first *mark* after it."""
        if not self.is_token(mark):
            return f"{rule}[suffix={quoted(mark)}]: {_TEXT}"
        free = self.free(mark)
        return f"{rule}: {rule.upper()}_TEXT {self.name(mark)}\n{rule.upper()}_TEXT: {free}"

    def free(self, mark: str) -> str:
        """Any text without *mark*, as a regular expression of Lark."""
        inner = regex_to_lark(_escaped(mark))
        return rf"{_TEXT} & ~/(.|\n)*({inner})(.|\n)*/"


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def answer(
    tokenizer: Tokenizer,
    parts: Sequence[Grammar],
    main: str,
    *,
    reasoning: bool,
    calling: bool = False,
) -> str:
    """The grammar of an answer that *main* is the Lark rule ``answer`` of, which names *parts* as
    ``@part_0`` and so on. The answer begins within the model's *reasoning*, or may have some,
    unless it begins within a call (*calling*)."""
    first, last = tokenizer.think
    lines = [main]
    marks = Marks(tokenizer)
    if last and not calling:
        lines += [marks.up_to("thought", last), r"BLANK: /[ \t\r\n]{1,8}/"]
        before = "thought" if reasoning else f"({marks.name(first)} thought BLANK?)?"
        lines.insert(0, f"start: {before} {'BLANK? ' if reasoning else ''}answer")
    else:
        lines.insert(0, "start: answer")
    grammars = [{"name": "main", "lark_grammar": "\n".join(lines)}]
    grammars += [{"name": f"part_{at}", **part} for at, part in enumerate(parts)]
    return json.dumps({"grammars": grammars})


def refusal(param: str, why: str, what: str = "") -> ApiError:
    """The error for a form that cannot be held: that of the field *param*, or *what* it is."""
    message = cannot_be_held(what or f"'{param}'", why)
    return ApiError(400, message, "unsupported_form", param=param)
