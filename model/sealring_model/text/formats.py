"""How models write their thoughts and their tool calls: one row for each format.

A format is recognised by what the chat template has in it, or by tokens of the vocabulary; the
first row that fits is taken. A folder may also name its format, as mlx-lm has it
(``tool_parser_type``). Rows with a *reader* are read as they come (`readers`). The others are read
by mlx-lm's parsers, each call when it is whole, in a text worker.

A row also says what a template of the format takes of earlier turns, where that is not what most
take: arguments as objects, any number of calls in a message, and thoughts as ``reasoning_content``.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import attrs

from sealring_model.text.readers import (
    Elements,
    Reader,
    Sections,
    harmony,
    json_calls,
    minimax_m3,
    mistral,
)


@attrs.frozen
class CallFormat:
    """One format of tool calls: *start* opens a call or several, as does any of *starts*, and *end*
    closes them (empty: a call ends the answer).

    A template has it that has all of one of *signs* (by default *start*), or a vocabulary with all
    *tokens*. *inner* are marks within calls that may be tokens of their own. With *bare* an answer
    that begins with an object may be a call. With *whole* the *reader* reads whole answers.
    *nested* calls have elements within elements.

    Of earlier turns the template takes *one* call in a message, with words of its message *apart*
    before it, arguments *as_text*, and thoughts as the field *thoughts*. It takes tools as a field
    of the *system* message; *written* is how a call is written, for a model whose template says
    nothing of tools.
    """

    name: str
    start: str
    end: str
    reader: Reader | None
    signs: tuple[tuple[str, ...], ...] = ()
    tokens: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    bare: bool = False
    whole: bool = False
    nested: bool = False
    one: bool = False
    apart: bool = False
    as_text: bool = False
    thoughts: str = "reasoning_content"
    system: bool = False
    written: str = ""

    @property
    def opening(self) -> tuple[str, ...]:
        """All marks that open a call."""
        return tuple(filter(None, (self.start, *self.starts)))

    def fits(self, template: str, vocabulary: Container[str]) -> bool:
        """Whether a model with *template* and *vocabulary* writes calls so."""
        signs = self.signs or ((self.start,),)
        if any(all(sign in template for sign in each) for each in signs):
            return True
        return bool(self.tokens) and all(token in vocabulary for token in self.tokens)


def _elements(prefix: str, last: str, space: str = "") -> Elements:
    """``<invoke name="...">`` and ``<parameter name="...">``, with *prefix* before each name."""
    return Elements(
        f'<{prefix}{space}invoke name="',
        '">',
        f'<{prefix}{space}parameter name="',
        ">",
        f"</{prefix}{space}parameter>",
        f"</{prefix}{space}invoke>",
        last,
    )


def _keyed(prefix: str, last: str) -> Elements:
    """A name, then ``<arg_key>`` and ``<arg_value>`` for each argument."""
    return Elements(
        "",
        "",
        f"<{prefix}arg_key>",
        f"</{prefix}arg_key>",
        f"</{prefix}arg_value>",
        "",
        last,
        valued=f"<{prefix}arg_value>",
    )


def _tagged(last: str) -> Elements:
    """``<function=...>`` and ``<parameter=...>``."""
    return Elements(
        "<function=", ">", "<parameter=", ">", "</parameter>", "</function>", last, lined=True
    )


def _dsml(name: str, last: str, space: str = "") -> CallFormat:
    """DeepSeek's markup, which says for each argument whether it is a text."""
    start = f"<｜DSML｜{space}{last}>"
    end = f"</｜DSML｜{space}{last}>"
    return CallFormat(
        name,
        start,
        end,
        _elements("｜DSML｜", end, space),
        signs=((start,), ("DSML｜", f"{space}{last}>")),
        inner=("｜DSML｜",),
        as_text=True,
    )


_DEEPSEEK: Final = Sections(
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
)
_KIMI: Final = Sections(
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)

FORMATS: Final = (
    CallFormat(
        "harmony",
        "<|channel|>commentary to=functions.",
        "",
        harmony,
        signs=(("<|channel|>analysis<|message|>",),),
        tokens=("<|start|>", "<|channel|>", "<|message|>", "<|call|>"),
        inner=(
            "<|start|>",
            "<|channel|>",
            "<|message|>",
            "<|constrain|>",
            "<|end|>",
            "<|return|>",
            "<|call|>",
        ),
        whole=True,
        one=True,
        thoughts="thinking",
    ),
    CallFormat(
        "minimax_m3",
        "]<]minimax[>[<tool_call>",
        "]<]minimax[>[</tool_call>",
        minimax_m3,
        signs=(("]<]minimax[>[",),),
        tokens=("]<]minimax[>[",),
        nested=True,
    ),
    CallFormat(
        "minimax_m2",
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        _elements("", "</minimax:tool_call>"),
    ),
    CallFormat("seed_oss", "<seed:tool_call>", "</seed:tool_call>", _tagged("</seed:tool_call>")),
    _dsml("deepseek_v4", "tool_calls"),
    _dsml("deepseek_v4_1", "calls", " "),
    _dsml("deepseek_v32", "function_calls"),
    CallFormat(
        "longcat",
        "<longcat_tool_call>",
        "</longcat_tool_call>",
        _keyed("longcat_", "</longcat_tool_call>"),
    ),
    CallFormat(
        "glm47",
        "<tool_call>",
        "</tool_call>",
        _keyed("", "</tool_call>"),
        signs=(("<arg_key>",),),
    ),
    CallFormat(
        "qwen3_coder",
        "<tool_call>",
        "</tool_call>",
        _tagged("</tool_call>"),
        signs=(("<tool_call>\\n<function=",), ("<tool_call>\n<function=",)),
    ),
    CallFormat(
        "kimi_k2",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        _KIMI,
        starts=("<|tool_call_begin|>",),
        inner=("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    CallFormat(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        _DEEPSEEK,
        tokens=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
        starts=("<｜tool▁call▁begin｜>",),
        inner=("<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        as_text=True,
        written="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>"
        '{"ARGUMENT": "VALUE"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    CallFormat(
        "muse_spark",
        "<atem:function_calls>",
        "</atem:function_calls>",
        _elements("atem:", "</atem:function_calls>"),
    ),
    CallFormat("mistral", "[TOOL_CALLS]", "", mistral, inner=("[ARGS]", "[CALL_ID]")),
    CallFormat(
        "phi4_mini",
        "<|tool_call|>",
        "<|/tool_call|>",
        json_calls,
        signs=(("<|tool|>", "<|/tool|>"),),
        starts=("functools",),
        system=True,
    ),
    CallFormat(
        "llama3",
        "<|python_tag|>",
        "",
        json_calls,
        signs=(("<|python_tag|>",), ("ipython", '"parameters": ')),
        bare=True,
        one=True,
        apart=True,
    ),
    CallFormat(
        "json_tools",
        "<tool_call>",
        "</tool_call>",
        json_calls,
        signs=(("<tool_call>", "tool_call.name"), ("<tool_call>", "</tool_call>", "tool_calls")),
    ),
)
"""The formats that are read here; mlx-lm knows others."""

PLAIN: Final = CallFormat("plain", "", "", json_calls)
"""An answer that is nothing but the JSON of a call."""

USUAL: Final = FORMATS[-1]
"""The format that a model is asked to use whose template has none: many models have seen it."""

_SAME: Final = {"laguna": "glm47"}

THOUGHTS: Final = (
    ("<mm:think>", "</mm:think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<think>", "</think>"),
)
"""The marks around thoughts, which a template has, or a vocabulary."""

CHANNEL: Final = ("<|channel|>analysis<|message|>", "<|end|>")
"""The marks around thoughts in harmony."""


def call_format(template: str, vocabulary: Container[str]) -> CallFormat | None:
    """How a model with *template* and *vocabulary* writes calls; None if no row fits."""
    return next((each for each in FORMATS if each.fits(template, vocabulary)), None)


def format_named(name: str) -> CallFormat | None:
    """The format *name*; None if it is not read here."""
    name = _SAME.get(name, name)
    return next((each for each in FORMATS if each.name == name), None)


def thought_marks(template: str, vocabulary: Container[str]) -> tuple[str, str] | None:
    """The marks around a model's thoughts; None if no row fits."""
    for first, last in THOUGHTS:
        if last in template:
            return first, last
    for first, last in THOUGHTS:
        if first in vocabulary and last in vocabulary:
            return first, last
    return None
