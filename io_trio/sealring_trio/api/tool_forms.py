"""Tool calls as a grammar: the marks and the names of a model's format, and each function's
arguments by its schema.

Formats whose calls are JSON can be held: `_BODIES` has what stands between their marks. Others
(calls in XML and the like) cannot: how they write a value is not known exactly. There a call is
begun by its mark as ever, and a function that is ``strict`` is refused.

A model whose template has no tools can be made to answer with a call all the same: the answer is
then JSON that names a function and its arguments (`told_tools.PLAIN`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
from sealring_model.text.tokens import Tokenizer, ToolFormat

from sealring_trio.api.forms import Grammar, Marks, json_grammar, quoted

Fault = Callable[[Grammar], str]
"""What is wrong with a grammar; empty if nothing is."""


_OBJECT: Final = {"type": "object"}


@attrs.frozen
class ToolGrammar:
    """The Lark rule ``answer`` and what it needs (*main*), and the grammars of arguments
    (*parts*)."""

    main: str
    parts: list[Grammar]


class Unheld(Exception):
    """The schema of a strict *function* cannot be held, because of *why*."""

    def __init__(self, function: str, why: str) -> None:
        super().__init__(function, why)
        self.function = function
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
    may have *several*. None if calls in *form* cannot be held. Raises `Unheld`."""
    made = _call(form, tokenizer, tools, fault)
    if made is None:
        return None
    rules, parts = made
    marks = Marks(tokenizer)
    end = f" {marks.name(form.end)}" if form.end else ""
    again = f" (BLANK_BETWEEN? {marks.name(form.start)} call{end})*" if form.end and several else ""
    return ToolGrammar("\n".join([f"answer: call{end}{again}", *rules, _BETWEEN]), parts)


def free_calls(
    form: ToolFormat, tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]], fault: Fault
) -> ToolGrammar | None:
    """Any text with any number of calls in it. None if calls in *form* cannot be held. Raises
    `Unheld`."""
    made = _call(form, tokenizer, tools, fault)
    if made is None:
        return None
    rules, parts = made
    marks = Marks(tokenizer)
    if form.end:
        head = f"answer: (begun call {marks.name(form.end)})* LAST"
    else:
        head = "answer: begun call | LAST"
    last = f"LAST: {marks.free(form.start)}"
    return ToolGrammar("\n".join([head, marks.up_to("begun", form.start), last, *rules]), parts)


def calls_or(
    form: ToolFormat,
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]],
    fault: Fault,
    other: Grammar,
) -> ToolGrammar | None:
    """Calls, or else *other*. None if calls in *form* cannot be held. Raises `Unheld`."""
    made = _call(form, tokenizer, tools, fault)
    if made is None:
        return None
    rules, parts = made
    marks = Marks(tokenizer)
    begun = f"{marks.name(form.start)} call"
    calls = begun
    if form.end:
        one = f"{begun} {marks.name(form.end)}"
        calls = f"{one} (BLANK_BETWEEN? {one})*"
    head = f"answer: {calls} | @part_{len(parts)}"
    return ToolGrammar("\n".join([head, *rules, _BETWEEN]), [*parts, other])


_BETWEEN: Final = r"BLANK_BETWEEN: /[ \t\r\n]{1,8}/"


def _call(
    form: ToolFormat,
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]],
    fault: Fault,
) -> tuple[list[str], list[Grammar]] | None:
    body = _BODIES.get(form.name)
    if body is None:
        return None
    parts = [_arguments(tool["function"], fault) for tool in tools]
    names = [str(tool["function"]["name"]) for tool in tools]
    each = body(Marks(tokenizer), names)
    rules = [f"call: {' | '.join(f'call_{at}' for at in range(len(names)))}"]
    return rules + [f"call_{at}: {rule}" for at, rule in enumerate(each)], parts


def _arguments(function: Mapping[str, Any], fault: Fault) -> Grammar:
    """The arguments of *function*. Those of one that is not strict, whose schema cannot be held,
    are held to be an object."""
    schema = function.get("parameters") or _OBJECT
    grammar = json_grammar(schema)
    if not (why := fault(grammar)):
        return grammar
    if function.get("strict"):
        raise Unheld(str(function["name"]), why)
    return json_grammar(_OBJECT)


def _json_tools(marks: Marks, names: Sequence[str]) -> list[str]:
    """``{"name": …, "arguments": …}``, on a line of its own or not."""
    return [rf"/\n?/ {_object(name, at)} /\n?/" for at, name in enumerate(names)]


def _plain(marks: Marks, names: Sequence[str]) -> list[str]:
    return [_object(name, at) for at, name in enumerate(names)]


def _mistral(marks: Marks, names: Sequence[str]) -> list[str]:
    """``name[ARGS]{…}``, or a list of objects, as the template has it."""
    if "[ARGS]" in marks.tokenizer.ids():
        args = marks.name("[ARGS]")
        return [f"{quoted(name)} {args} @part_{at}" for at, name in enumerate(names)]
    return [f'"[" {_object(name, at)} "]"' for at, name in enumerate(names)]


def _object(name: str, at: int) -> str:
    opening = '{"name": ' + json.dumps(name, ensure_ascii=False) + ', "arguments": '
    return f'{quoted(opening)} @part_{at} "}}"'


_BODIES: Final[Mapping[str, Callable[[Marks, Sequence[str]], list[str]]]] = {
    "json_tools": _json_tools,
    "mistral": _mistral,
    "plain": _plain,
}
