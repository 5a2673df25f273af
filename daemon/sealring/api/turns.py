"""Earlier turns as the template of a format takes them (`sealring_model.text.formats`).

Most templates take any number of calls in a message, their arguments as objects, and thoughts as
``reasoning_content``. Where one does not, its row of the table says so, and the turns are fitted:
nothing that was said is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sealring_model.text.formats import CallFormat

Plain = dict[str, Any]


def fit_turns(
    messages: Sequence[Plain], format: CallFormat, tools: Sequence[Mapping[str, Any]]
) -> list[Plain]:
    """*messages* as a template of *format* takes them, which is given *tools* with them."""
    apart = _words_apart(messages) if format.apart else messages
    made = list(_one_call_each(apart) if format.one else apart)
    made = [_message(message, format) for message in made]
    return _with_tools(made, tools) if format.system else made


def _message(message: Plain, format: CallFormat) -> Plain:
    made = dict(message)
    calls = made.get("tool_calls")
    if calls and format.system:  # its template knows no calls
        del made["tool_calls"]
        written = json.dumps([call["function"] for call in calls], ensure_ascii=False)
        made["content"] += f"{format.start}{written}{format.end}"
    elif calls and format.as_text:
        made["tool_calls"] = [_with_text(call) for call in calls]
    if format.system and made["role"] == "tool":
        made["role"] = "tool_response"
    if format.thoughts != "reasoning_content" and "reasoning_content" in made:
        made[format.thoughts] = made.pop("reasoning_content")
        if calls and made["content"]:  # of a call it takes one or the other
            made[format.thoughts] += f"\n\n{made['content']}"
            made["content"] = ""
    return made


def _with_text(call: Plain) -> Plain:
    function = call["function"]
    given = function["arguments"]
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _with_tools(messages: Sequence[Plain], tools: Sequence[Mapping[str, Any]]) -> list[Plain]:
    """*messages* with *tools* as a field of the system message, which is made if there is none."""
    if not tools:
        return list(messages)
    listed = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if messages and messages[0]["role"] == "system":
        return [messages[0] | {"tools": listed}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": listed}, *messages]


def _words_apart(messages: Sequence[Plain]) -> list[Plain]:
    """*messages* with what one says beside its calls in a message before it: the template would
    leave it out."""
    made: list[Plain] = []
    for message in messages:
        if message.get("tool_calls") and message["content"]:
            made.append({"role": message["role"], "content": message["content"]})
            message = message | {"content": ""}  # noqa: PLW2901
        made.append(message)
    return made


def _one_call_each(messages: Sequence[Plain]) -> Iterator[Plain]:
    """*messages* with one call in each, followed by its result. What else a message says is in the
    first."""
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            yield message
            continue
        results = []
        while at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at])
            at += 1
        for number, call in enumerate(calls):
            said = message if number == 0 else {"role": message["role"], "content": ""}
            yield {**said, "tool_calls": [call]}
            own = [result for result in results if result.get("tool_call_id") == call["id"]]
            last = number == len(calls) - 1
            yield from results if last else own[:1] or results[:1]
            results = [] if last else _without(results, (own or results)[:1])


def _without(results: Sequence[Plain], given: Sequence[Plain]) -> list[Plain]:
    return [result for result in results if all(result is not each for each in given)]
