"""Every format of thoughts and calls, as models write them: read whole and in any pieces."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring_model.text.argument_types import value_kinds
from sealring_model.text.formats import FORMATS, PLAIN, CallFormat, call_format
from sealring_model.text.readers import (
    CallEnd,
    CallPart,
    CallStart,
    Content,
    Part,
    Reading,
    Reasoning,
    Text,
    joined,
)

from tests.rows import rows

SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "count": {"type": "integer"},
        "deep": {"allOf": [{"$ref": "#/$defs/count"}]},
        "self": {"anyOf": [{"$ref": "#/$defs/self"}, {"type": "null"}]},
    },
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "size": {"type": "number"},
        "flag": {"type": "boolean"},
        "maybe": {"type": ["string", "null"]},
        "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        "ref": {"$ref": "#/$defs/deep"},
        "self": {"$ref": "#/$defs/self"},
        "unit": {"enum": ["1", "c", 2, None]},
        "fixed": {"const": 5},
        "list": {"type": "array", "items": {"type": "string"}},
        "object": {
            "type": "object",
            "properties": {"unit": {"type": "string"}, "n": {"type": "integer"}},
        },
        "date": {"type": "string", "format": "date"},
        "any": {},
        "python": {"type": "float"},
    },
}
TOOLS = [
    {"function": {"name": "f", "parameters": SCHEMA}},
    {"function": {"name": "g"}},
]
BY_NAME = {format.name: format for format in (*FORMATS, PLAIN)}
DSML = "｜DSML｜"
NS = "]<]minimax[>["


def parts_of(format: CallFormat, text: str, size: int = 0, mark: str | None = None) -> list[Part]:
    """What *text*, read in pieces of *size*, is after the mark that opens a call."""
    kinds = value_kinds(TOOLS, nested=format.nested)
    assert format.reader is not None
    reading = Reading(format.reader, kinds, format.start if mark is None else mark, format.end)
    size = size or max(1, len(text))
    parts = [p for at in range(0, len(text), size) for p in reading.add(text[at : at + size])]
    return [*joined(parts + reading.end()), *([Text(reading.after)] if reading.after else [])]


def told(parts: list[Part]) -> list[Any]:
    """*parts* as plain values: a call as its name and arguments."""
    made: list[Any] = []
    for part in parts:
        match part:
            case CallStart(name):
                made.append([name, ""])
            case CallPart(text):
                made[-1][1] += text
            case CallEnd():
                made[-1] = (made[-1][0], json.loads(made[-1][1]))
            case Reasoning(text):
                made.append({"thought": text})
            case Content(text):
                made.append({"said": text})
            case Text(text):
                made.append(text)
    return made


def qwen(*arguments: tuple[str, str], name: str = "f") -> str:
    lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"\n<function={name}>\n{lines}</function>\n</tool_call>"


BOTH = [("f", {"text": "a"}), ("g", {})]
CASES: dict[str, tuple[str, str, list[Any]]] = {
    "json": ("json_tools", '\n{"name": "f", "arguments": {"text": "a"}}\n</tool_call>', BOTH[:1]),
    "json, arguments as a text": (
        "json_tools",
        '{"name": "f", "arguments": "{\\"text\\": \\"a\\"}"}</tool_call>',
        BOTH[:1],
    ),
    "json, arguments first": (
        "json_tools",
        '{"arguments": {"text": "a"}, "name": "f"}</tool_call>',
        BOTH[:1],
    ),
    "json, no arguments": ("json_tools", '{"name": "g"}</tool_call>', BOTH[1:]),
    "json, arguments that are null": (
        "json_tools",
        '{"name": "g", "arguments": null}</tool_call>',
        BOTH[1:],
    ),
    "json, further members": (
        "json_tools",
        '{"id": "7", "name": "f", "arguments": {"text": "a"}, "x": {"y": [1]}}</tool_call>',
        BOTH[:1],
    ),
    "json within function": (
        "json_tools",
        '{"type": "function", "function": {"name": "f", "arguments": {"text": "a"}}}</tool_call>',
        BOTH[:1],
    ),
    "json, too few brackets": (
        "json_tools",
        '{"name": "f", "arguments": {"text": "a"}</tool_call>',
        BOTH[:1],
    ),
    "json, too many brackets": (
        "json_tools",
        '{"name": "f", "arguments": {"text": "a"}}}</tool_call>',
        BOTH[:1],
    ),
    "json, a line break in a text": (
        "json_tools",
        '{"name": "f", "arguments": {"text": "a\n\tb</tool_call>"}}</tool_call>',
        [("f", {"text": "a\n\tb</tool_call>"})],
    ),
    "json, two in one": (
        "json_tools",
        '{"name": "f", "arguments": {"text": "a"}}\n{"name": "g", "arguments": {}}</tool_call>',
        BOTH,
    ),
    "json, another function": (
        "json_tools",
        '{"name": "h", "arguments": {}}</tool_call>',
        ['<tool_call>{"name": "h", "arguments": {}}', "</tool_call>"],
    ),
    "no json": ("json_tools", "oops</tool_call>", ["<tool_call>", "oops</tool_call>"]),
    "json, cut": ("json_tools", '{"name": "f"', ['<tool_call>{"name": "f"']),
    "mistral": ("mistral", 'f[ARGS]{"text": "a"}g[ARGS]{}', BOTH),
    "mistral with an id": ("mistral", 'f[CALL_ID]x7[ARGS]{"text": "a"}', BOTH[:1]),
    "mistral's list": (
        "mistral",
        '[{"name": "f", "arguments": {"text": "a"}}, {"name": "g", "arguments": {}}]',
        BOTH,
    ),
    "mistral, text after it": (
        "mistral",
        'f[ARGS]{"text": "a"} Done.',
        [*BOTH[:1], "Done."],
    ),
    "kimi": (
        "kimi_k2",
        '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"text": "a"}<|tool_call_end|>'
        "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        BOTH,
    ),
    "deepseek v3.1": (
        "deepseek_v3",
        '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"text": "a"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        BOTH,
    ),
    "deepseek v3": (
        "deepseek_v3",
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"text": "a"}\n```'
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        BOTH,
    ),
    "deepseek v3.2": (
        "deepseek_v32",
        f'\n<{DSML}invoke name="f">\n<{DSML}parameter name="text" string="true">a'
        f'</{DSML}parameter>\n<{DSML}parameter name="count" string="false">9007199254740993'
        f'</{DSML}parameter>\n</{DSML}invoke>\n<{DSML}invoke name="g">\n</{DSML}invoke>\n'
        f"</{DSML}function_calls>",
        [("f", {"text": "a", "count": 9007199254740993}), ("g", {})],
    ),
    "deepseek v4": (
        "deepseek_v4",
        f'\n<{DSML}invoke name="f">\n<{DSML}parameter name="text" string="true">[1]'
        f"</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}tool_calls>",
        [("f", {"text": "[1]"})],
    ),
    "deepseek v4.1": (
        "deepseek_v4_1",
        f'\n<{DSML} invoke name="f">\n<{DSML} parameter name="list" string="false">["x"]'
        f"</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>",
        [("f", {"list": ["x"]})],
    ),
    "llama 3": ("llama3", '{"name": "f", "parameters": {"text": "a"}}', BOTH[:1]),
    "llama 3, two": (
        "llama3",
        '{"name": "f", "parameters": {"text": "a"}}; {"name": "g", "parameters": {}}',
        BOTH,
    ),
    "phi 4 mini": (
        "phi4_mini",
        '[{"name": "f", "arguments": {"text": "a"}}, {"name": "g", "arguments": {}}]<|/tool_call|>',
        BOTH,
    ),
    "blank space after a call": (
        "json_tools",
        '{"name": "g", "arguments": {}}' + " " * 3000 + "Done.",
        [*BOTH[1:], "Done."],
    ),
    "plain": ("plain", '{"name": "f", "arguments": {"text": "a"}}', BOTH[:1]),
    "minimax m2": (
        "minimax_m2",
        '\n<invoke name="f">\n<parameter name="text">a</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n</minimax:tool_call>',
        BOTH,
    ),
    "muse spark": (
        "muse_spark",
        '\n<atem:invoke name="f">\n<atem:parameter name="text">a</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls>",
        BOTH[:1],
    ),
    "glm": (
        "glm47",
        "f\n<arg_key>text</arg_key>\n<arg_value>a</arg_value>\n<arg_key>count</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>",
        [("f", {"text": "a", "count": 2})],
    ),
    "glm on one line": (
        "glm47",
        "f<arg_key>text</arg_key><arg_value>a</arg_value></tool_call>",
        BOTH[:1],
    ),
    "glm without arguments": ("glm47", "g\n</tool_call>", BOTH[1:]),
    "glm without anything": ("glm47", "g", BOTH[1:]),
    "glm, a key without a value": (
        "glm47",
        "f<arg_key>count</arg_key>1<arg_key>text</arg_key><arg_value>a</arg_value></tool_call>",
        BOTH[:1],
    ),
    "glm, only a key without a value": (
        "glm47",
        "g<arg_key>text</arg_key></tool_call>I ask first. <tool_call>f<arg_key>text</arg_key>"
        "<arg_value>a</arg_value></tool_call>",
        [
            *BOTH[1:],
            "I ask first. <tool_call>f<arg_key>text</arg_key><arg_value>a</arg_value></tool_call>",
        ],
    ),
    "glm, a key without an end": (
        "glm47",
        "g<arg_key>text</tool_call>b</arg_key>",
        [*BOTH[1:], "b</arg_key>"],
    ),
    "glm, prose": ("glm47", "it is <b> so", ["<tool_call>it is <b> so"]),
    "longcat, only a key without a value": (
        "longcat",
        "g<longcat_arg_key>text</longcat_arg_key></longcat_tool_call>the rest",
        [*BOTH[1:], "the rest"],
    ),
    "longcat": (
        "longcat",
        "f\n<longcat_arg_key>text</longcat_arg_key>\n<longcat_arg_value>a</longcat_arg_value>\n"
        "</longcat_tool_call>",
        BOTH[:1],
    ),
    "seed-oss": (
        "seed_oss",
        "\n<function=f>\n<parameter=object>\n{'unit': 'it\\'s', 'n': None}\n</parameter>\n"
        "</function>\n</seed:tool_call>",
        [("f", {"object": {"unit": "it's", "n": None}})],
    ),
    "qwen": ("qwen3_coder", qwen(("text", "a")), BOTH[:1]),
    "qwen, json": (
        "qwen3_coder",
        '\n{"name": "f", "arguments": {"text": "a"}}\n</tool_call>',
        BOTH[:1],
    ),
    "qwen, indented code": (
        "qwen3_coder",
        qwen(("text", "\n    def f():\n        pass\n")),
        [("f", {"text": "\n    def f():\n        pass\n"})],
    ),
    "qwen, marks in a text": (
        "qwen3_coder",
        qwen(("text", "a</parameter>b</function></tool_call>c <parameter=x>"), ("count", "1")),
        [("f", {"text": "a</parameter>b</function></tool_call>c <parameter=x>", "count": 1})],
    ),
    "qwen, no end of the function": (
        "qwen3_coder",
        "<function=f>\n<parameter=text>\na\n</parameter>\n</tool_call>",
        BOTH[:1],
    ),
    "qwen, no end": ("qwen3_coder", "<function=f>\n<parameter=text>\na\n</parameter>", BOTH[:1]),
    "qwen, a key without an end": (
        "qwen3_coder",
        "<function=g>\n<parameter=text\na\n</parameter>\n</function>\n</tool_call>b <c>",
        [*BOTH[1:], "b <c>"],
    ),
    "qwen, another function": (
        "qwen3_coder",
        "\n<function=h>\n</function>",
        ["<tool_call>\n<function=h>\n</function>"],
    ),
    "minimax m3": (
        "minimax_m3",
        f'\n{NS}<invoke name="f">{NS}<text><b>1</b>{NS}</text>{NS}<list>{NS}<item>a{NS}</item>'
        f"{NS}<item>1{NS}</item>{NS}</list>{NS}<object>{NS}<unit>2{NS}</unit>{NS}<n>3{NS}</n>"
        f"{NS}</object>{NS}<count>4{NS}</count>{NS}</invoke>\n"
        f'{NS}<invoke name="g">{NS}</invoke>\n{NS}</tool_call>',
        [
            (
                "f",
                {
                    "text": "<b>1</b>",
                    "list": ["a", "1"],
                    "object": {"unit": "2", "n": 3},
                    "count": 4,
                },
            ),
            ("g", {}),
        ],
    ),
}


@pytest.mark.parametrize(("name", "text", "parts"), CASES.values(), ids=CASES)
def test_calls_as_models_write_them(name: str, text: str, parts: list[Any]) -> None:
    format = BY_NAME[name]
    assert told(parts_of(format, text)) == parts
    for size in (1, 2, 3, 7):
        assert parts_of(format, text, size) == parts_of(format, text)


UNKNOWN: dict[str, tuple[str, str]] = {
    # format: a call of a function that there is not, and one of f after it
    "json_tools": (
        '{"name": "h", "arguments": {"name": "f", "arguments": {}}, "x": "{"}\n',
        '{"name": "f", "arguments": {"text": "a"}}</tool_call>',
    ),
    "json_tools, long": (
        f'{{"name": "h", "id": "{"x" * 3000}", "arguments": {{"text": "{"y" * 9000}"}}}}',
        '{"name": "f", "arguments": {"text": "a"}}</tool_call>',
    ),
    "json_tools, no arguments": (
        '{"name": "h"}',
        '{"name": "f", "arguments": {"text": "a"}}</tool_call>',
    ),
    "phi4_mini": (
        '[{"name": "h", "arguments": {"text": ["]"]}}, ',
        '{"name": "f", "arguments": {"text": "a"}}]<|/tool_call|>',
    ),
    "llama3": (
        '{"name": "h", "parameters": {}}; ',
        '{"name": "f", "parameters": {"text": "a"}}',
    ),
    "mistral": ('h[CALL_ID]x7[ARGS]{"text": "f[ARGS]{}"}', 'f[ARGS]{"text": "a"}'),
    "kimi_k2": (
        '<|tool_call_begin|>functions.h:0<|tool_call_argument_begin|>{"text": "a"}'
        "<|tool_call_end|>",
        '<|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{"text": "a"}'
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "deepseek_v3": (
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>h\n```json\n{"text": "a"}\n```'
        "<｜tool▁call▁end｜>\n",
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"text": "a"}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": (
        f'<{DSML}invoke name="h">\n<{DSML}parameter name="text" string="true">a'
        f"</{DSML}parameter>\n</{DSML}invoke>\n",
        f'<{DSML}invoke name="f">\n<{DSML}parameter name="text" string="true">a'
        f"</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>",
    ),
    "minimax_m2": (
        '\n<invoke name="h">\n<parameter name="text"><invoke name="f"></parameter>\n</invoke>\n',
        '<invoke name="f">\n<parameter name="text">a</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    "minimax_m3": (
        f'{NS}<invoke name="h">{NS}<text>b{NS}</text>{NS}<list>{NS}<item>a{NS}</item>{NS}</list>'
        f"{NS}</invoke>\n",
        f'{NS}<invoke name="f">{NS}<text>a{NS}</text>{NS}</invoke>{NS}</tool_call>',
    ),
    "qwen3_coder": (
        "<function=h>\n<parameter=text>\n<function=f>\n</parameter>\n</function>\n",
        "<function=f>\n<parameter=text>\na\n</parameter>\n</function>\n</tool_call>",
    ),
}


F = ("f", {"text": "a", "count": 1})
UNCLOSED: dict[str, tuple[str, str, list[Any]]] = {
    "qwen, a text": (
        "qwen3_coder",
        "<function=f>\n<parameter=text>\na\n<parameter=count>\n1\n</parameter>\n</function>\n"
        "</tool_call>\nDone.",
        [F, "\nDone."],
    ),
    "qwen, the last, a text": (
        "qwen3_coder",
        "<function=f>\n<parameter=count>\n1\n</parameter>\n<parameter=text>\na\n</function>\n"
        "</tool_call>\nDone.",
        [F, "\nDone."],
    ),
    "qwen, the last, a number": (
        "qwen3_coder",
        "<function=f>\n<parameter=text>\na\n</parameter>\n<parameter=count>\n1\n</function>\n"
        "</tool_call>\nDone.",
        [F, "\nDone."],
    ),
    "qwen, all": (
        "qwen3_coder",
        "<function=f>\n<parameter=count>\n1\n<parameter=text>\na\n</function>\n</tool_call>",
        [F],
    ),
    "qwen, all, on one line": (
        "qwen3_coder",
        "<function=f><parameter=text>a<parameter=count>1</function></tool_call>",
        [F],
    ),
    "qwen, a text at the end of a line": (
        "qwen3_coder",
        "<function=f><parameter=count>1</parameter><parameter=text>a</function></tool_call>",
        [F],
    ),
    "qwen, no end of the calls": (
        "qwen3_coder",
        "<function=f>\n<parameter=count>\n1\n<parameter=text>\na\n</function>\n",
        [F],
    ),
    "qwen, no end of the call": (
        "qwen3_coder",
        "<function=f>\n<parameter=text>\na\n<parameter=count>\n1\n</tool_call>",
        [F],
    ),
    "qwen, a mark within an object": (
        "qwen3_coder",
        '<function=f>\n<parameter=object>\n{"unit": "</function><parameter=x>"}\n</parameter>\n'
        "</function>\n</tool_call>",
        [("f", {"object": {"unit": "</function><parameter=x>"}})],
    ),
    "qwen, no end of the call, and another": (
        "qwen3_coder",
        "<function=f>\n<parameter=text>\na\n</parameter>\n<function=g>\n</function>\n</tool_call>",
        BOTH,
    ),
    "qwen, twice": (
        "qwen3_coder",
        qwen(("text", "b"), ("count", "1"), ("text", "a")),
        [F],
    ),
    "qwen, a text that names what the call has": (
        "qwen3_coder",
        qwen(("count", "1"), ("text", "x <parameter=count> y")),
        [("f", {"count": 1, "text": "x <parameter=count> y"})],
    ),
    "minimax m2": (
        "minimax_m2",
        '<invoke name="f">\n<parameter name="text">a<parameter name="count">1</invoke>\n'
        '<invoke name="f">\n<parameter name="count">1</parameter>\n<parameter name="text">a'
        "</invoke>\n</minimax:tool_call>\nDone.",
        [F, F, "\nDone."],
    ),
    "deepseek": (
        "deepseek_v32",
        f'<{DSML}invoke name="f">\n<{DSML}parameter name="text" string="true">a<{DSML}parameter '
        f'name="count" string="false">1</{DSML}invoke>\n</{DSML}function_calls>',
        [F],
    ),
    "glm": (
        "glm47",
        "f\n<arg_key>text</arg_key>\n<arg_value>a<arg_key>count</arg_key>\n<arg_value>1"
        "</tool_call>",
        [F],
    ),
    "glm, the last, a text": (
        "glm47",
        "f\n<arg_key>count</arg_key>\n<arg_value>1</arg_value>\n<arg_key>text</arg_key>\n"
        "<arg_value>a</tool_call>",
        [F],
    ),
    "minimax m3": (
        "minimax_m3",
        f'{NS}<invoke name="f">{NS}<text>a{NS}<count>1{NS}</count>{NS}</invoke>'
        f'{NS}<invoke name="f">{NS}<count>1{NS}</count>{NS}<text>a{NS}</invoke>{NS}</tool_call>',
        [F, F],
    ),
}


@pytest.mark.parametrize(("name", "text", "parts"), UNCLOSED.values(), ids=UNCLOSED)
def test_an_argument_that_nothing_closes_ends_where_others_begin(
    name: str, text: str, parts: list[Any]
) -> None:
    """Or is given twice: the last counts."""
    format = BY_NAME[name]
    assert told(parts_of(format, text)) == parts
    for size in (1, 2, 7):
        assert parts_of(format, text, size) == parts_of(format, text)


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("between", [False, True])
def test_a_call_of_no_function_loses_none_after_it(name: str, between: bool) -> None:
    """It is text, all of it, but for what separates calls."""
    (first, call), format = UNKNOWN[name], BY_NAME[name.partition(",")[0]]
    text = first + call
    if between:
        opening = "[" if first.startswith("[") else ""
        before = call.removesuffix(format.end).rstrip("]")
        text = opening + before + "," * bool(opening) + text.removeprefix(opening)
    made = told(parts_of(format, text))
    calls = [part for part in made if isinstance(part, tuple)]
    said = "".join(part for part in made if isinstance(part, str))
    assert calls == BOTH[:1] * (1 + between)
    assert first.strip("[ \n,") in said
    assert said.startswith("" if between else format.start)
    for size in (1, 2, 7):
        assert parts_of(format, text, size) == parts_of(format, text)


LONG: dict[str, tuple[str, str]] = {
    "a key of qwen's": ("qwen3_coder", qwen(("k" * 3000, "a"))),
    "a key of glm's": (
        "glm47",
        f"f<arg_key>{'k' * 3000}</arg_key><arg_value>a</arg_value></tool_call>",
    ),
    "a tag": (
        "minimax_m3",
        f'{NS}<invoke name="f">{NS}<{"k" * 3000}>a{NS}</invoke>{NS}</tool_call>',
    ),
    "a number": ("json_tools", f'{{"name": "f", "arguments": {"7" * 3000}}}</tool_call>'),
    "a header": ("harmony", f"<|channel|>{'z' * 1500} to=functions.f<|message|>{{}}<|call|>"),
}


@pytest.mark.parametrize(("name", "text"), LONG.values(), ids=LONG)
def test_long_names_are_cut_alike_in_all_pieces(name: str, text: str) -> None:
    whole = parts_of(BY_NAME[name], text, mark="" if name == "harmony" else None)
    assert sum(len(part.text) for part in whole if isinstance(part, CallPart)) < 1100
    for size in (1, 7, 1000):
        assert parts_of(BY_NAME[name], text, size, "" if name == "harmony" else None) == whole


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"text": "a"} garbage', '{"text": "a"}'),
        ('{"text": "a"}{"text": "b"}', '{"text": "a"}'),
        ('{"text": "a\nb"}', '{"text": "a\\nb"}'),
        ('"{\\"text\\": 1}"', '{"text": 1}'),
        ("  ", "{}"),
        ('{"text": "a', '{"text": "a'),
    ],
)
def test_arguments_in_a_channel_are_one_value(given: str, arguments: str) -> None:
    call = f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{given}"
    text = f"{call}<|call|><|start|>assistant<|channel|>final<|message|>b"
    for size in (0, 1, 7):
        parts = parts_of(BY_NAME["harmony"], text, size, mark="")
        assert parts == [CallStart("f"), CallPart(arguments), CallEnd(), Content("b")]


TYPED: dict[str, tuple[str, str, Any]] = {
    "a text that is JSON": ("text", '{"a": 1}', '{"a": 1}'),
    "a text that is a number": ("text", "12", "12"),
    "a text that is null": ("text", "null", "null"),
    "an empty text": ("text", "", ""),
    "a date": ("date", "2026-01-02", "2026-01-02"),
    "a large integer": ("count", "9007199254740993", 9007199254740993),
    "an integer on a line": ("count", " 5 ", 5),
    "an integer with a point": ("count", "5.0", 5),
    "no integer": ("count", "2026-01-02", "2026-01-02"),
    "a number": ("size", "2.5e-3", 2.5e-3),
    "a whole number": ("size", "3", 3),
    "a boolean": ("flag", "true", True),
    "a boolean of Python's": ("flag", "False", False),
    "no boolean": ("flag", "1", "1"),
    "an optional text": ("maybe", "nullify", "nullify"),
    "an optional text of some length": ("maybe", "x" * 40, "x" * 40),
    "no optional text": ("maybe", "null", None),
    "an optional integer": ("days", "3", 3),
    "no optional integer": ("days", "None", None),
    "an integer or a text": ("either", "3", 3),
    "a text or an integer": ("either", "3 days", "3 days"),
    "a reference": ("ref", "7", 7),
    "a reference to itself": ("self", "x", "x"),
    "a listed text": ("unit", "1", "1"),
    "a listed number": ("unit", "2", 2),
    "a listed null": ("unit", "null", None),
    "a constant": ("fixed", "5", 5),
    "a list": ("list", '[1, {"x": "y"}]', [1, {"x": "y"}]),
    "a list of Python's": (
        "list",
        "['a', \"b\", True, 'it\\'s \"so\"']",
        ["a", "b", True, 'it\'s "so"'],
    ),
    "no list": ("list", "a, b", "a, b"),
    "a large integer in an object": ("object", '{"n": 9007199254740993}', {"n": 9007199254740993}),
    "anything, a number": ("any", "1", 1),
    "anything, a text": ("any", "one", "one"),
    "what the schema lacks": ("other", "[1]", [1]),
    "a type of Python's": ("python", "1.5", 1.5),
    "a number that is none": ("size", "NaN", "NaN"),
}


@pytest.mark.parametrize(("key", "text", "value"), TYPED.values(), ids=TYPED)
def test_an_argument_has_the_type_that_its_schema_says(key: str, text: str, value: Any) -> None:
    written = {
        "qwen3_coder": qwen((key, text)),
        "glm47": f"f\n<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
        "minimax_m2": f'<invoke name="f"><parameter name="{key}">{text}</parameter></invoke>',
        "minimax_m3": f'{NS}<invoke name="f">{NS}<{key}>{text}{NS}</{key}>{NS}</invoke>',
    }
    for name, call in written.items():
        ((_, arguments),) = told(parts_of(BY_NAME[name], call))
        assert arguments == {key: value}, name
        assert type(arguments[key]) is type(value), name


HARMONY: dict[str, tuple[str, list[Any]]] = {
    "thoughts and an answer": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        [{"thought": "Hm."}, {"said": "Yes."}],
    ),
    "a call": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.f <|constrain|>json<|message|>{"text": "a"}<|call|>',
        [{"thought": "Hm."}, ("f", {"text": "a"})],
    ),
    "a call whose recipient is first": (
        ' to=functions.f<|channel|>commentary json<|message|>{"text": "a"}<|call|>',
        [("f", {"text": "a"})],
    ),
    "a call whose recipient is after the role": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.g<|channel|>"
        "commentary <|constrain|>json<|message|><|call|>",
        [{"thought": "Hm."}, ("g", {})],
    ),
    "a call in analysis": (
        '<|channel|>analysis to=functions.f code<|message|>{"text": "a"}<|call|>',
        [("f", {"text": "a"})],
    ),
    "a preamble": (
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
        "to=functions.g<|message|>{}<|call|>",
        [{"said": "I look."}, ("g", {})],
    ),
    "a function that is not there": (
        "<|channel|>commentary to=functions.h<|message|>{}<|call|>",
        [{"said": "{}"}],
    ),
    "no channel": ("Just text.", [{"said": "Just text."}]),
    "a mark is missing": (
        "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        [{"thought": "Hm."}, {"said": "Yes."}],
    ),
    "ended within thoughts": ("<|channel|>analysis<|message|>Hm", [{"thought": "Hm"}]),
    "only a header": ("<|channel|>analysis", []),
}


@pytest.mark.parametrize(("text", "parts"), HARMONY.values(), ids=HARMONY)
def test_an_answer_in_channels(text: str, parts: list[Any]) -> None:
    format = BY_NAME["harmony"]
    assert told(parts_of(format, text, mark="")) == parts
    for size in (1, 2, 3, 7):
        assert parts_of(format, text, size, mark="") == parts_of(format, text, mark="")


def test_a_call_in_channels_that_the_prompt_began() -> None:
    format = BY_NAME["harmony"]
    parts = parts_of(format, 'f <|constrain|>json<|message|>{"text": "a"}<|call|>')
    assert told(parts) == [("f", {"text": "a"})]


MARKS = [
    *{mark for format in FORMATS for mark in (*format.opening, format.end, *format.inner) if mark},
    *(
        '{"name": "f", "arguments": {',
        '"text": "a"}}',
        "f",
        "\n",
        '"',
        "{",
        "}",
        "[",
        "]",
        "\\",
        ",",
    ),
    *("<function=f>", "<parameter=text>", "<parameter=count>", "</parameter>", "</function>"),
    *('<invoke name="f">', '<parameter name="object">', "</invoke>", "<arg_key>", "</arg_key>"),
    *("<arg_value>", "</arg_value>", f'<{DSML}invoke name="f">', f"</{DSML}invoke>", "analysis"),
    *(f'<{DSML}parameter name="text" string="true">', f"</{DSML}parameter>", " to=functions.f"),
    *(f"{NS}<text>", f"{NS}</text>", f"{NS}<object>", f"{NS}</object>", f"{NS}</invoke>", "1", "é"),
]
TEXTS = st.lists(st.sampled_from(MARKS) | st.text(max_size=3), max_size=12).map("".join)


@given(st.sampled_from(sorted(BY_NAME)), TEXTS, st.lists(st.integers(0, 80), max_size=8))
def test_it_does_not_matter_in_which_pieces_a_text_comes(
    name: str, text: str, places: list[int]
) -> None:
    format = BY_NAME[name]
    assert format.reader is not None
    kinds = value_kinds(TOOLS, nested=format.nested)
    reading = Reading(format.reader, kinds, "", format.end)
    cuts = sorted({0, len(text), *(place for place in places if place < len(text))})
    parts: list[Part] = []
    for begin, end in itertools.pairwise(cuts):
        parts += reading.add(text[begin:end])
    parts = joined(parts + reading.end())
    assert [*parts, *([Text(reading.after)] if reading.after else [])] == parts_of(
        format, text, mark=""
    )
    open_calls = 0
    for part in parts:
        open_calls += isinstance(part, CallStart) - isinstance(part, CallEnd)
        assert open_calls == isinstance(part, CallStart | CallPart)
        assert not (isinstance(part, CallStart) and part.name not in kinds)


SIGNS = {
    "]<]minimax[>[<tool_call>": "minimax_m3",
    "<seed:tool_call>\n<function=": "seed_oss",
    "<｜DSML｜function_calls>": "deepseek_v32",
    "<｜DSML｜tool_calls>": "deepseek_v4",
    "<｜tool▁calls▁begin｜>": "deepseek_v3",
    "<|start_header_id|>ipython<|end_header_id|> '\"parameters\": '": "llama3",
    "<|tool|> <|/tool|>": "phi4_mini",
    "<tool_call>\n<function=": "qwen3_coder",
    "<tool_call>{name}\n<arg_key>": "glm47",
    "[TOOL_CALLS]": "mistral",
    "<tool_call> tool_call.name": "json_tools",
    "{{ message.content }}": "",
}


@pytest.mark.parametrize(("template", "name"), SIGNS.items(), ids=SIGNS.values())
def test_a_format_is_recognised_by_its_template(template: str, name: str) -> None:
    found = call_format(template, ())
    assert (found.name if found else "") == name


HOSTILE = {
    "brackets": "[{" * 4,
    "quotes": '"',
    "escaped quotes": "\\'",
    "backslashes": "\\",
    "marks that begin": "<tool_",
    "marks": "<tool_call>",
    "arguments": "<parameter=text>\n</parameter>",
    "closing marks": "</parameter>",
    "closing marks and blanks": "</parameter>" + " " * 40,
    "blanks": " ",
    "line breaks": "\n",
    "keys": "<arg_key>x</arg_key>",
    "elements": f"{NS}<a>",
    "elements that close": f"{NS}<a>{NS}</a>",
    "headers": "<|channel|>",
    "members": '"a":1,',
    "texts of Python's": "['a', ",
}
BEGINNINGS = {
    "json_tools": '{"name": "f", "arguments": ',
    "qwen3_coder": "<function=f>\n<parameter=list>\n",
    "seed_oss": "<function=f>\n<parameter=text>\n",
    "glm47": "f\n<arg_key>list</arg_key><arg_value>",
    "minimax_m3": f'{NS}<invoke name="f">{NS}<object>',
    "kimi_k2": "<|tool_call_begin|>f<|tool_call_argument_begin|>",
    "mistral": "f[ARGS]",
    "harmony": "",
}


@pytest.mark.parametrize(
    "text", rows(HOSTILE, "brackets", "escaped quotes", "closing marks and blanks", "arguments")
)
@pytest.mark.parametrize("name", BEGINNINGS)
def test_the_work_is_linear_in_the_text(name: str, text: str) -> None:
    def seconds(size: int) -> float:
        best = []
        for begin in ("", BEGINNINGS[name]):
            whole = begin + text * (size // len(text))
            times = []
            for _ in range(2):
                began = time.process_time()
                parts_of(BY_NAME[name], whole, 64)
                times.append(time.process_time() - began)
            best.append(min(times))
        return max(best)

    assert seconds(96_000) < 20 * max(seconds(12_000), 0.01), "8 times the text"


def test_schemas_of_any_kind_are_followed_for_a_bounded_part() -> None:
    wide = {"anyOf": [{"$ref": "#"}] * 40}
    deep: Any = {"type": "string"}
    for _ in range(400):
        deep = {"allOf": [deep]}
    for schema in (wide, deep, {"properties": 5}, {"properties": {"a": wide}}, True, None, []):
        kinds = value_kinds([{"function": {"name": "f", "parameters": schema}}], nested=True)
        assert set(kinds) == {"f"}
