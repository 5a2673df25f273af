"""A conversation that the model's template refuses, made to fit.

Many templates take less than the APIs do: one system message at the front or none, users and the
assistant in turn, ids of calls of nine characters, arguments that are objects. So a conversation
that is refused is changed, one kind of change after the other, until the template takes it. Changes
that turn out not to be needed are undone. Nothing that somebody wrote is left out. The answer's
header names the changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

Plain = dict[str, Any]
Change = Callable[[Sequence[Plain]], list[Plain]]

_BETWEEN: Final = "\n\n"
_BEGIN: Final = "Please begin."
_ID: Final = 9
"""Characters of a call's id in templates that say how many it has (Mistral's)."""


def adapted(
    messages: list[Plain], write: Callable[[list[Plain]], str]
) -> tuple[str, tuple[str, ...]]:
    """What *write* makes of *messages*, changed if it refuses them as they are, and the names of
    the changes. Raises its `ValueError` if no change helps."""
    try:
        return _whole(messages, write), ()
    except ValueError as error:
        refusal = error
    done: dict[str, Change] = {}
    for name, change in CHANGES.items():
        if _changed(messages, done | {name: change}) == _changed(messages, done):
            continue
        done[name] = change
        if _written(_changed(messages, done), write) is not None:
            break
    else:
        raise refusal
    for name in list(done):
        fewer = {other: change for other, change in done.items() if other != name}
        if _written(_changed(messages, fewer), write) is not None:
            done = fewer
    return _whole(_changed(messages, done), write), tuple(done)


def _changed(messages: Sequence[Plain], changes: Mapping[str, Change]) -> list[Plain]:
    found = list(messages)
    for change in changes.values():
        found = change(found)
    return found


def _written(messages: list[Plain], write: Callable[[list[Plain]], str]) -> str | None:
    try:
        return _whole(messages, write)
    except ValueError:
        return None


def _whole(messages: list[Plain], write: Callable[[list[Plain]], str]) -> str:
    """What *write* makes of *messages*. Raises `ValueError` if it refuses them, or leaves a system
    message out, as templates do that look for it in one place."""
    text = write(messages)
    at = 0
    for message in messages:
        if message["role"] != "system":
            continue
        said = max((line.strip() for line in message["content"].splitlines()), key=len, default="")
        found = max(text.find(said, at), text.find(_json(said), at))
        if found < 0 and said not in text and _json(said) not in text:
            raise ValueError("the chat template leaves a system message out")
        at = max(at, found)
    return text


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _leading(messages: Sequence[Plain]) -> int:
    """How many system messages are at the front."""
    return sum(1 for _ in takewhile(lambda each: each["role"] == "system", messages))


def _wrap_arguments(messages: Sequence[Plain]) -> list[Plain]:
    """Have an object of arguments that are none: those of a call that was cut off are a text."""
    return [
        message | {"tool_calls": [_with_object(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _with_object(call: Plain) -> Plain:
    function = call["function"]
    given = function["arguments"]
    if isinstance(given, dict) or _is_object(given):
        return call
    wrapped = {} if given is None else {"arguments": given}
    return call | {"function": function | {"arguments": wrapped}}


def _is_object(text: Any) -> bool:
    """Whether *text* is an object as JSON, which is how some templates take arguments."""
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _short_ids(messages: Sequence[Plain]) -> list[Plain]:
    """Give calls ids of nine letters and digits."""
    changed = [dict(message) for message in messages]
    for message in changed:
        if "tool_call_id" in message:
            message["tool_call_id"] = _short(message["tool_call_id"])
        if "tool_calls" in message:
            calls = message["tool_calls"]
            message["tool_calls"] = [call | {"id": _short(call["id"])} for call in calls]
    return changed


def _short(name: str) -> str:
    plain = len(name) == _ID and name.isascii() and name.isalnum()
    return name if plain else hashlib.sha256(name.encode(errors="replace")).hexdigest()[:_ID]


def _split_calls(messages: Sequence[Plain]) -> list[Plain]:
    """Have a message of its own for each call, before its result."""
    changed: list[Plain] = []
    waiting: list[Plain] = []
    for message in messages:
        if message["role"] != "tool":
            changed += waiting
            waiting = []
        first, *rest = message.get("tool_calls") or [None]
        if rest:
            changed.append(message | {"tool_calls": [first]})
            only = {"role": message["role"], "content": ""}
            waiting = [only | {"tool_calls": [call]} for call in rest]
            continue
        for call in waiting:
            if call["tool_calls"][0]["id"] == message.get("tool_call_id"):
                waiting.remove(call)
                changed.append(call)
                break
        changed.append(message)
    return changed + waiting


def _wrap_results(messages: Sequence[Plain]) -> list[Plain]:
    """Have the user tell of a result that no call comes before."""
    called: set[str] = set()
    changed = []
    for message in messages:
        called |= {call["id"] for call in message.get("tool_calls", ())}
        lost = message["role"] == "tool" and message.get("tool_call_id", "") not in called
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        changed.append(_user(text) if lost else message)
    return changed


def _join_systems(messages: Sequence[Plain]) -> list[Plain]:
    """Have one system message of those at the front."""
    count = _leading(messages)
    return [*_joined(messages[:count]), *messages[count:]]


def _wrap_systems(messages: Sequence[Plain]) -> list[Plain]:
    """Have the user say what a later system message says, as such."""
    count = _leading(messages)
    return [
        _user(f"<system-reminder>\n{message['content']}\n</system-reminder>")
        if message["role"] == "system" and at >= count
        else message
        for at, message in enumerate(messages)
    ]


def _join_turns(messages: Sequence[Plain]) -> list[Plain]:
    """Have one message of those that the user, or the assistant, says one after the other."""
    return _joined(messages)


def _add_user(messages: Sequence[Plain]) -> list[Plain]:
    """Have the user begin."""
    count = _leading(messages)
    rest = messages[count:]
    begun = rest and rest[0]["role"] == "user"
    return list(messages) if begun else [*messages[:count], _user(_BEGIN), *rest]


def _system_to_user(messages: Sequence[Plain]) -> list[Plain]:
    """Have the user say what the system says at the front."""
    count = _leading(messages)
    said = [_user(message["content"]) for message in messages[:count]]
    if count and len(messages) > count and messages[count]["role"] == "user":
        return [*_joined([*said, messages[count]]), *messages[count + 1 :]]
    return [*_joined(said), *messages[count:]]


CHANGES: Final[Mapping[str, Change]] = {
    "tool-arguments-wrapped": _wrap_arguments,
    "tool-call-ids-shortened": _short_ids,
    "tool-calls-split": _split_calls,
    "tool-results-wrapped": _wrap_results,
    "system-joined": _join_systems,
    "system-wrapped": _wrap_systems,
    "turns-joined": _join_turns,
    "user-added": _add_user,
    "system-to-user": _system_to_user,
}
"""By the name that the header has for it: each change of a conversation, in this order."""


def _user(text: str) -> Plain:
    return {"role": "user", "content": text}


def _joined(messages: Sequence[Plain]) -> list[Plain]:
    """*messages* with one for those of one role that follow one another. Results stay apart, and
    so does what follows a call."""
    joined: list[Plain] = []
    for message in messages:
        last = joined[-1] if joined else {"role": ""}
        if message["role"] == last["role"] != "tool" and not last.get("tool_calls"):
            joined[-1] = _both(joined[-1], message)
        else:
            joined.append(message)
    return joined


def _both(one: Plain, other: Plain) -> Plain:
    both = one | other
    for name in ("content", "reasoning_content"):
        if name in both:
            both[name] = _BETWEEN.join(filter(None, (one.get(name), other.get(name))))
    return both
