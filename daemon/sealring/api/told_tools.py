"""Tools for a model whose chat template has none: they are told in words.

The model is told of its tools, and of how to call one, in the system message. Earlier calls and
their results become text in the same form. The form is that of Hermes and Qwen, which many models
have seen: JSON between `<tool_call>` and `</tool_call>`. A model that never learned to call
functions may not keep to it; then its answer is text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sealring_model.text import formats
from sealring_model.text.tokens import ToolFormat

Plain = dict[str, Any]


PLAIN: Final = ToolFormat.of(formats.PLAIN)
"""How a model that is told of tools writes a call where it must: the answer, which is held to that
form (`tool_forms`), is nothing else."""


def instructions(tools: Sequence[Mapping[str, Any]], calls: ToolFormat) -> str:
    """What a model is told of *tools*, to be called as *calls* has it."""
    lines = "\n".join(_json(tool["function"]) for tool in tools)
    example = calls.start + _json({"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}) + calls.end
    if calls.format is not None and calls.format.written:
        example = calls.format.written
    return (
        f"You may call these functions, each described by a line of JSON:\n{lines}\n"
        f"To call one, answer with a line like this and nothing after it:\n"
        f"{example}"
    )


def in_words(messages: Sequence[Plain], calls: ToolFormat) -> list[Plain]:
    """*messages* with their tool calls and results as text."""
    return [_in_words(message, calls) for message in messages]


def _in_words(message: Plain, calls: ToolFormat) -> Plain:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>{message['content']}</tool_response>"}
    if not (made := message.get("tool_calls")):
        return message
    lines = [f"{calls.start}{_json(call['function'])}{calls.end}" for call in made]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return rest | {"content": "\n".join(filter(None, [message["content"], *lines]))}


def with_system(messages: Sequence[Plain], text: str) -> list[Plain]:
    """*messages* with *text* at the end of the system message, which is made if there is none."""
    if messages and messages[0]["role"] == "system":
        return _with(messages, 0, "{content}\n\n{text}", text)
    return [{"role": "system", "content": text}, *messages]


def with_user(messages: Sequence[Plain], text: str) -> list[Plain]:
    """*messages* with *text* before the first thing that the user says, for a template that takes
    no system message."""
    at = next((n for n, message in enumerate(messages) if message["role"] == "user"), None)
    if at is None:
        return [{"role": "user", "content": text}, *messages]
    return _with(messages, at, "{text}\n\n{content}", text)


def _with(messages: Sequence[Plain], at: int, form: str, text: str) -> list[Plain]:
    changed = messages[at] | {"content": form.format(text=text, content=messages[at]["content"])}
    return [*messages[:at], changed, *messages[at + 1 :]]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
