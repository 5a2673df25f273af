"""Tool calls as a grammar: the marks and the names of a model's format, and each function's
arguments by its schema.

`_FORMATS` has how each format writes a call. Some write the arguments as one JSON value
(`_AsJson`), others an element for each (`_ByArgument`), with texts as they are: there a text is
free up to the mark that closes it, and other values are JSON by their part of the schema. Arguments
come in the order of the schema; those that are not required may be left out.

What cannot be held of a strict function's schema is left free, and named in `ToolGrammar.unheld`.
In a format that is not in the table nothing is held but the marks.

A model whose template has no tools can be made to answer with a call all the same: the answer is
then JSON that names a function and its arguments (`dialects.messages.PLAIN`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from sealring_model.text.tokens import Tokenizer, ToolFormat

from sealring.dialects.errors import is_wrong, left_out
from sealring.structured.forms import (
    HARMONY,
    NOTES,
    TEXT,
    Grammar,
    MarkTerminals,
    json_grammar,
    leniently,
    quoted,
)

Fault = Callable[[Sequence[Grammar]], tuple[str, list[str]]]
"""What is wrong with grammars that name each other, the first of which is the answer, empty if
nothing is; and what llguidance leaves out of schemas that it is lenient with."""

Schema = Any

_OBJECT: Final = {"type": "object"}
_BREAK: Final = "\n?"
_NAME: Final = r"/[^\s<>\"{}\[\]:=,]{1,64}/"
_INTEGER: Final = "/-?(0|[1-9][0-9]{0,30})/"
_NUMBER: Final = r"/-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?/"
_BETWEEN: Final = r"BLANK_BETWEEN: /[ \t\r\n]{1,8}/"


@attrs.frozen
class ToolGrammar:
    """The Lark rules ``answer``, and ``called``, which is what follows the mark of a call that the
    model writes within its thoughts, and what they need (*main*); the grammars that they name
    (*parts*); and what is *unheld* of strict functions: the function's place, and a keyword of its
    schema, or nothing if that is all of it."""

    main: str
    parts: dict[str, Grammar]
    unheld: tuple[tuple[int, str], ...] = ()


class WrongSchema(Exception):
    """The schema of the strict function in place *at* is none, because of *why*."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(at, why)
        self.at = at
        self.why = why


def forced_call(
    form: ToolFormat,
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]],
    fault: Fault,
    *,
    several: bool,
) -> ToolGrammar | None:
    """An answer that begins within a call in *form* and ends with it, or with further ones if it
    may have *several*. None if calls in *form* cannot be held. Raises `WrongSchema`."""
    made = _calls(form, tokenizer, tools, fault, several=several)
    if made is None:
        return None
    marks = MarkTerminals(tokenizer)
    end = f" {marks.name(form.end)}" if form.end else ""
    again = f" (BLANK_BETWEEN? {marks.name(form.start)} call{end})*" if form.end and several else ""
    return made.under(f"answer: call{end}{again}", _BETWEEN)


def free_calls(
    form: ToolFormat, tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]], fault: Fault
) -> ToolGrammar | None:
    """Any text with any number of calls in it. None if calls in *form* cannot be held. Raises
    `WrongSchema`."""
    made = _calls(form, tokenizer, tools, fault)
    if made is None:
        return None
    marks = MarkTerminals(tokenizer)
    if form.end:
        end = marks.name(form.end)
        head = f"answer: (begun call {end})* LAST\ncalled: call {end}"
    else:
        head = "answer: begun call | LAST\ncalled: call"
    last = f"LAST: {marks.free(form.start, *made.starts)}"
    if made.bare:
        head = f"bare: call | {head.removeprefix('answer: ')}\nanswer: bare"
        last += r" & ~/[ \t\r\n]*\{(.|\n)*/"
    return made.under(head, marks.up_to("begun", form.start, *made.starts), last)


def calls_or(
    form: ToolFormat,
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]],
    fault: Fault,
    other: Grammar,
    *,
    loosely: bool = False,
) -> ToolGrammar:
    """Calls, or else *other*. Calls are any text between their marks if they cannot be held in
    *form*, and where they are held *loosely*. Raises `WrongSchema`."""
    marks = MarkTerminals(tokenizer)
    made = None if loosely else _calls(form, tokenizer, tools, fault)
    if made is None:
        made = _Made([], {}, [*strict_places(tools)])
        one = marks.up_to("call", form.end) if form.end else f"call: {TEXT}"
        lines, end = [one], ""
    else:
        lines, end = [], f" {marks.name(form.end)}" if form.end else ""
    begun = f"{marks.name(form.start)} "
    called = f"call{end} (BLANK_BETWEEN? {begun}call{end})*" if form.end else "call"
    head = f"answer: {begun}called | @other\ncalled: {called}"
    made.parts["other"] = other
    return made.under(head, *lines, _BETWEEN)


def strict_places(tools: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, str], ...]:
    """`ToolGrammar.unheld` where nothing of *tools* is held."""
    return tuple((at, "") for at, tool in enumerate(tools) if is_strict(tool))


def is_strict(tool: Mapping[str, Any]) -> bool:
    """Whether a call of *tool* is to be held to its schema."""
    return bool(tool["function"].get("strict"))


@attrs.frozen
class _Made:
    """The Lark rule ``call``, and what it needs."""

    lines: list[str]
    parts: dict[str, Grammar]
    unheld: list[tuple[int, str]]
    bare: bool = False
    starts: tuple[str, ...] = ()

    def under(self, *more: str) -> ToolGrammar:
        """It, beside *more* rules."""
        return ToolGrammar("\n".join([*more, *self.lines]), self.parts, tuple(self.unheld))


def _calls(
    form: ToolFormat,
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]],
    fault: Fault,
    *,
    several: bool = True,
) -> _Made | None:
    """The calls between one pair of marks. None if *form* is not in the table."""
    marks = MarkTerminals(tokenizer)
    if (about := _about(form, marks)) is None:
        return None
    lines: list[str] = []
    parts: dict[str, Grammar] = {}
    unheld: list[tuple[int, str]] = []
    for at, tool in enumerate(tools):
        rules, words = _held(marks, about, at, tool, fault)
        lines += rules.lines
        parts |= rules.parts
        unheld += [(at, word) for word in words]
    each = " | ".join(f"f{at}" for at in range(len(tools)))
    within = "(one)+" if about.many and several else "one"
    if about.listed:
        within = '"[" one (", " one)* "]"' if several else '"[" one "]"'
    return _Made(
        [f"call: {within}", f"one: {each}", *lines], parts, unheld, about.bare, about.starts
    )


def _about(form: ToolFormat, marks: MarkTerminals) -> _Format | None:
    """How *form* writes calls; None if that is not known."""
    if form.name == "mistral" and "[ARGS]" in marks.tokenizer.ids():
        return _AsJson("{}[ARGS]")
    return _FORMATS.get(form.name)


def _held(
    marks: MarkTerminals, about: _Format, at: int, tool: Mapping[str, Any], fault: Fault
) -> tuple[_Rules, list[str]]:
    """The rules of a call of *tool*, the one in place *at*, as exact as they can be; and what they
    do not hold of it, if it is strict: keywords of its schema, empty for all of it."""
    function = tool["function"]
    schema, strict = function.get("parameters") or _OBJECT, is_strict(tool)
    first = ""
    for wanted, lenient in ((schema, False), (schema, True), (_OBJECT, True)):
        if wanted is schema and lenient and not left_out([first]):
            continue  # what is wrong would be so again
        rules = _Rules(marks, f"f{at}", lenient=lenient)
        rules.lines.append(f"f{at}: {about.write(rules, str(function['name']), wanted)}")
        main = "\n".join([f"start: f{at}", *rules.lines])
        why, warnings = fault(
            [{"lark_grammar": main}, *({"name": n, **part} for n, part in rules.parts.items())]
        )
        first = first or why
        if strict and is_wrong(first):
            raise WrongSchema(at, first)
        if not why:
            words = sorted({*rules.unheld, *left_out(warnings)})
            return rules, (words if wanted is schema else [""]) if strict else []
    raise RuntimeError(f"the rules of a call cannot be held: {why}")


@attrs.define
class _Rules:
    """Lark rules whose names begin with *prefix*, and the grammars that they name. *unheld* are
    keywords of schemas that they do not hold."""

    marks: MarkTerminals
    prefix: str
    lenient: bool
    lines: list[str] = attrs.field(factory=list)
    parts: dict[str, Grammar] = attrs.field(factory=dict)
    unheld: set[str] = attrs.field(factory=set)

    def json(self, schema: Schema) -> str:
        """JSON of *schema*, in Lark."""
        grammar = json_grammar(schema)
        name = f"{self.prefix}_{len(self.parts)}"
        self.parts[name] = (self.lenient and leniently(grammar)) or grammar
        return f"@{name}"

    def rule(self, body: str) -> str:
        """A rule that stands for *body*."""
        name = f"{self.prefix}_r{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def text(self, form: str, close: str) -> str:
        """Text of the Lark terminal *form*, up to the first *close*."""
        mark = close.removesuffix(_BREAK)
        end, rest = self.marks.literal(mark), self.marks.literal(close[len(mark) :])
        name = f"{self.prefix}_t{len(self.lines)}"
        before, token, after = end.partition("<[")
        if token:  # which no text has in it
            self.lines.append(f"{name.upper()}: {form} {before}")
            return f"{name.upper()} {token}{after} {rest}"
        self.lines += [f"{name}[lazy]: {name.upper()}", f"{name.upper()}: {form} {end}"]
        return f"{name} {rest}"

    def nested(self, quote: str) -> str:
        """Any value, written with *quote* around its texts and without any around its names."""
        value, pair = f"{self.prefix}_value", f"{self.prefix}_pair"
        text = f"{self.marks.literal(quote)} {self.text(TEXT, quote)}"
        if not any(line.startswith(f"{value}:") for line in self.lines):
            self.lines += [
                f'{value}: {text} | {_NUMBER} | "true" | "false" | "null" '
                f'| "[" ({value} ("," {value})*)? "]" | "{{" ({pair} ("," {pair})*)? "}}"',
                f'{pair}: {_NAME} ":" {value}',
            ]
        return value


@attrs.frozen
class _AsJson:
    """A call between *before* and *after*, which `MarkTerminals.literal` reads, with JSON
    arguments; or as *also* has it. A section may have *many*, in a list if they are *listed*. An
    answer that begins as a *bare* one is one; further marks that open a call are *starts*."""

    before: str
    after: str = ""
    many: bool = False
    listed: bool = False
    bare: bool = False
    starts: tuple[str, ...] = ()
    also: _AsJson | None = None

    def write(self, rules: _Rules, name: str, schema: Schema) -> str:
        """The call of function *name*, whose parameters are of *schema*."""
        literal = rules.marks.literal
        before = literal(self.before, json.dumps(name, ensure_ascii=False)[1:-1])
        call = f"{before} {rules.json(schema)} {literal(self.after)}"
        return f"{call} | {self.also.write(rules, name, schema)}" if self.also else call


@attrs.frozen
class _ByArgument:
    """A call from *begin* to *end*, with each argument from *argument* to *close*: a text as it is,
    or JSON. With *between* that stands between them, and texts are quoted by *quote*. *key* gives
    their order; without it they come as in the schema. With *strings* texts are JSON, too. In place
    of ``%`` in *argument* is the first of *types* for a text, one of the others for JSON."""

    begin: str
    argument: str
    close: str
    end: str
    many: bool = False
    listed: bool = attrs.field(default=False, init=False)
    bare: bool = attrs.field(default=False, init=False)
    starts: tuple[str, ...] = attrs.field(default=(), init=False)
    between: str = ""
    quote: str = ""
    key: Callable[[str], str] | None = None
    strings: bool = False
    types: tuple[str, ...] = ()

    def write(self, rules: _Rules, name: str, schema: Schema) -> str:
        """The call of function *name*, whose parameters are of *schema*."""
        literal = rules.marks.literal
        parts = literal(self.begin, name), self._arguments(rules, schema), literal(self.end)
        return " ".join(filter(None, parts))

    def _arguments(self, rules: _Rules, schema: Schema) -> str:
        if not _lists_arguments(schema):
            if schema not in ({}, _OBJECT):
                rules.unheld.add("")
            return self._any(rules)
        properties, required = schema.get("properties") or {}, schema.get("required") or []
        whole = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        arguments = [
            (rules.rule(self._argument(rules, name, properties[name], whole)), name in required)
            for name in (sorted(properties, key=self.key) if self.key else properties)
        ]
        if self.between:
            return self._joined(rules, arguments)
        each = [rule if needed else f"{rule}?" for rule, needed in arguments]
        more = schema.get("additionalProperties", not properties)
        if more not in (True, False, {}):
            rules.unheld.add("additionalProperties")
        return " ".join(each if more is False else [*each, self._any(rules)])

    def _argument(self, rules: _Rules, name: str, schema: Schema, whole: Schema) -> str:
        values = _Values(whole, rules.lenient)
        if self.strings:
            values.schemas.append(schema)
        else:
            values.add(schema)
            values.settle()
        texts = list(self._texts(rules, values))
        if values.text is None or self.quote or self.types:
            end = rules.marks.literal(self.close)
            others = [f"{each} {end}" for each in self._others(rules, values)]
        else:
            others = []  # such a value is a text, too
        rules.unheld |= values.unheld
        if not self.types:
            return f"{self._opening(rules, name)} ({' | '.join([*texts, *others])})"
        kinds = (texts, self.types[:1]), (others, self.types[1:])
        each = (
            f"{self._opening(rules, name, types)} ({' | '.join(ways)})"
            for ways, types in kinds
            if ways
        )
        return " | ".join(each)

    def _opening(self, rules: _Rules, name: str, types: Sequence[str] = ()) -> str:
        before, _, after = self.argument.partition("%")
        kind = f"({' | '.join(map(quoted, types))})" if types else ""
        literal = rules.marks.literal
        return f"{literal(before, name)} {kind} {literal(after, name)}"

    def _texts(self, rules: _Rules, values: _Values) -> Iterator[str]:
        before, close = rules.marks.literal(self.quote), self.quote + self.close
        if values.text is not None:
            yield f"{before} {rules.text(values.text, close)}"
        elif values.texts:
            texts = " | ".join(map(quoted, values.texts))
            yield f"{before} ({texts}) {rules.marks.literal(close)}"

    def _others(self, rules: _Rules, values: _Values) -> Iterator[str]:
        if values.literals:
            yield f"({' | '.join(map(quoted, values.literals))})"
        yield from values.numbers
        for schema in values.schemas:
            if self.quote:  # what is in it is written otherwise, too
                rules.unheld.add("")
                yield rules.nested(self.quote)
            else:
                yield rules.json({**values.whole, **schema} if isinstance(schema, dict) else schema)

    def _any(self, rules: _Rules) -> str:
        """Any arguments."""
        argument = self.argument.replace("%", self.types[0] if self.types else "")
        before, _, after = argument.partition("{}")
        literal = rules.marks.literal
        name = f"{literal(before)} {_NAME} {literal(after)}"
        if not self.between:
            return rules.rule(f"{name} {rules.text(TEXT, self.close)}") + "*"
        value = rules.json(True) if self.strings else rules.nested(self.quote)
        one = rules.rule(f"{name} {value}")
        return f"({one} ({literal(self.between)} {one})*)?"

    def _joined(self, rules: _Rules, arguments: Sequence[tuple[str, bool]]) -> str:
        """*arguments* with what is `between` them; those may be missing that are not needed."""
        between = rules.marks.literal(self.between)
        first = later = '""'  # what may come if none has been written, and if some have
        for rule, needed in reversed(arguments):
            others = ("", "") if needed else (f" | {first}", f" | {later}")
            first = rules.rule(f"{rule} {later}{others[0]}")
            later = rules.rule(f"{between} {rule} {later}{others[1]}")
        return first


@attrs.define
class _Values:
    """What an argument may be, by the schemas that are added: a *text* that is of this Lark
    terminal, one of *texts*; in JSON one of *literals*, *numbers* of these terminals, or a value of
    one of *schemas*. *unheld* are keywords that say more of texts. References are to *whole*. Texts
    have any length if that is *lenient*."""

    whole: dict[str, Any]
    lenient: bool
    text: str | None = None
    texts: list[str] = attrs.field(factory=list)
    literals: list[str] = attrs.field(factory=list)
    numbers: list[str] = attrs.field(factory=list)
    schemas: list[Schema] = attrs.field(factory=list)
    unheld: set[str] = attrs.field(factory=set)
    _followed: set[str] = attrs.field(factory=set)

    def add(self, schema: Schema) -> None:
        """Values of *schema*, too. One too deep to be walked is any."""
        try:
            self._add(schema)
        except RecursionError:
            self.text = TEXT
            self.unheld.add("")

    def settle(self) -> None:
        """Let a text be any where there is something beside it that it could not be known from, or
        nothing at all."""
        others = (*self.texts, *self.literals, *self.numbers, *self.schemas)
        if self.text not in (None, TEXT) and others:
            self.text = TEXT
            self.unheld |= _LENGTHS
        elif self.text is None and not others:
            self.text = TEXT
            self.unheld.add("")

    def _add(self, schema: Schema) -> None:
        if not isinstance(schema, dict):
            self.text = TEXT
            return
        for several in ("anyOf", "oneOf", "allOf"):
            parts = schema.get(several)
            if isinstance(parts, list) and parts and (several != "allOf" or len(parts) == 1):
                for part in parts:
                    self._add(part)
                return
        if isinstance(ref := schema.get("$ref"), str):
            self._follow(ref)
        elif isinstance(options := schema.get("enum"), list) or "const" in schema:
            for value in options if isinstance(options, list) else [schema["const"]]:
                self._add_value(value)
        else:
            kinds = schema.get("type")
            for kind in kinds if isinstance(kinds, list) else [kinds]:
                self._add_kind(kind, schema)

    def _follow(self, ref: str) -> None:
        """Values of what *ref* names."""
        if ref in self._followed:
            return
        self._followed.add(ref)
        found: Any = self.whole
        for part in ref.removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        if found is None:
            self.text = TEXT
            self.unheld.add("$ref")
        else:
            self._add(found)

    def _add_value(self, value: Any) -> None:
        if isinstance(value, str):
            self.texts.append(value)
        elif isinstance(value, dict | list):
            self.schemas.append({"const": value})
        else:
            self.literals.append(json.dumps(value))

    def _add_kind(self, kind: Any, schema: Schema) -> None:
        bounds = schema.keys() & _BOUNDS
        match kind:
            case "string":
                self._add_text(schema)
            case "null":
                self.literals += ["null", "None"]  # as templates write Python's values
            case "boolean":
                self.literals += ["true", "false", "True", "False"]
            case "integer" if not bounds:
                self.numbers.append(_INTEGER)
            case "number" if not bounds:
                self.numbers.append(_NUMBER)
            case None:
                self.text = TEXT
            case _:
                self.schemas.append({**schema, "type": kind})

    def _add_text(self, schema: Schema) -> None:
        least, most = schema.get("minLength") or 0, schema.get("maxLength", "")
        self.unheld |= schema.keys() & {"pattern", "format"}
        text = TEXT
        if least or most != "":
            if self.lenient or not (isinstance(least, int) and isinstance(most or 0, int)):
                self.unheld |= _LENGTHS
            else:
                text = rf"/(.|\n){{{least},{most}}}/"
        self.text = text if self.text in (None, text) else TEXT


def _lists_arguments(schema: Schema) -> bool:
    """Whether *schema* names each argument, and says nothing of several together."""
    return (
        isinstance(schema, dict)
        and schema.keys() <= _PLAIN
        and isinstance(schema.get("properties", {}), dict)
        and isinstance(schema.get("required", []), list)
    )


_LENGTHS: Final = frozenset(("maxLength", "minLength"))
_BOUNDS: Final = frozenset(
    ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
)
_PLAIN: Final = NOTES | {"additionalProperties", "properties", "required", "strict", "type"}


_Format = _AsJson | _ByArgument


def _keyed(prefix: str = "") -> _ByArgument:
    key = f"<{prefix}arg_key>{{}}</{prefix}arg_key>\n?<{prefix}arg_value>"
    return _ByArgument("\n?{}\n?", key, f"</{prefix}arg_value>\n?", "")


def _elements(prefix: str = "", more: str = "", types: tuple[str, ...] = ()) -> _ByArgument:
    return _ByArgument(
        f'\n?<{prefix}invoke name="{{}}">\n?',
        f'<{prefix}parameter name="{{}}"{more}>',
        f"</{prefix}parameter>\n?",
        f"</{prefix}invoke>\n?",
        many=True,
        types=types,
    )


_DSML: Final = ' string="%"', ("true", "false")
_FORMATS: Final[Mapping[str, _Format]] = {
    "json_tools": _AsJson('\n?{"name": "{}", "arguments": ', "}\n?"),
    "plain": _AsJson('{"name": "{}", "arguments": ', "}"),
    "mistral": _AsJson('{"name": "{}", "arguments": ', "}", listed=True),
    "phi4_mini": _AsJson('{"name": "{}", "arguments": ', "}", listed=True, starts=("functools",)),
    "llama3": _AsJson('{"name": "{}", "parameters": ', "}", bare=True),
    "kimi_k2": _AsJson(
        "<|tool_call_begin|>functions.{}:#<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        many=True,
        starts=("<|tool_call_begin|>",),
    ),
    "deepseek_v3": _AsJson(
        "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>\n?",
        many=True,
        starts=("<｜tool▁call▁begin｜>",),
        also=_AsJson(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n",
            "\n```<｜tool▁call▁end｜>\n?",
        ),
    ),
    HARMONY: _AsJson("{} <|constrain|>json<|message|>"),
    "qwen3_coder": _ByArgument(
        "\n?<function={}>\n", "<parameter={}>\n", "\n</parameter>\n", "</function>\n?"
    ),
    "seed_oss": _ByArgument(
        "\n?<function={}>\n?", "<parameter={}>", "</parameter>\n?", "</function>\n?"
    ),
    "glm47": _keyed(),
    "laguna": _keyed(),
    "longcat": _keyed("longcat_"),
    "minimax_m2": _elements(),
    "muse_spark": _elements("atem:"),
    "deepseek_v32": _elements("｜DSML｜", *_DSML),
    "deepseek_v4": _elements("｜DSML｜", *_DSML),
    "deepseek_v4_1": _elements("｜DSML｜ ", *_DSML),
    "minicpm5": _ByArgument('"{}">\n?', '<param name="{}">', "</param>\n?", ""),
    "kimi_k3": _ByArgument(
        '<|open|>call tool="{}" index="#"<|sep|>\n?',
        '<|open|>argument key="{}" type="%"<|sep|>',
        "<|close|>argument<|sep|>\n?",
        "<|close|>call<|sep|>\n?",
        many=True,
        types=("string", "integer", "number", "boolean", "object", "array", "null"),
    ),
    "pythonic": _ByArgument("[{}(", "{}=", "", ")]", between=", ", strings=True),
    "gemma4": _ByArgument("call:{}{", "{}:", "", "}", between=",", quote='<|"|>', key=str.lower),
}
"""By the format's name. `MarkTerminals.literal` reads the texts."""
