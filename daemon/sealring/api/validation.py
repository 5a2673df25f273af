"""What validation finds wrong in a body, in words for who sent it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import pydantic

from sealring.api.errors import ApiError, invalid
from sealring.api.values import MAX_STOP, MAX_STOP_TEXT, MAX_STOPS

Place = tuple[int | str, ...]

_LONGEST_PART: Final = 64  # of a place in a body: a client may have put anything there
_MOST_NAMES: Final = 256  # of an object, among which a near one is looked for

_FORMS: Final[Mapping[str, str]] = {
    "content": "a text or a list of text parts",
    "arguments": "a JSON text, or an object",
    "logprobs": "true or false, or of how many of the likeliest tokens, at most 20",
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
    "stop": f"a text or a list of texts: at most {MAX_STOPS} texts of {MAX_STOP:,} characters "
    f"each, and {MAX_STOP_TEXT:,} characters in all",
    "output": "a text or a list of text parts",
    "system": "a text or a list of text blocks",
    "tool_choice": "'none', 'auto', 'required' or "
    '{"type": "function", "function": {"name": ...}} of the tools',
}
"""What fields look like that have several forms, of which validation blames the wrong one."""

_RESPONSES_CHOICE: Final = (
    "'none', 'auto', 'required' or {\"type\": \"function\", \"name\": ...} of the tools"
)
_MESSAGES_CHOICE: Final = "an object whose type is 'auto', 'any', 'tool' (with a name) or 'none'"
_OWN_FORMS: Final[Mapping[str, Mapping[str, str]]] = {
    "ResponsesRequest": {"tool_choice": _RESPONSES_CHOICE},
    "MessagesRequest": {"tool_choice": _MESSAGES_CHOICE},
    "CountRequest": {"tool_choice": _MESSAGES_CHOICE},
}
"""The same, by the class of the body, where it has other forms than chat completions."""

_ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    "messages": ("input", "prompt"),
    "input": ("messages", "prompt"),
    "prompt": ("messages", "input"),
}
"""What a field is called in other APIs."""

_BEYOND: Final = ("greater_than_equal", "less_than_equal")
_BEYOND_TEXT: Final = (
    "a token id is out of range; ids are 0 or more, and below the size of the vocabulary"
)
"""What is said of a prompt of ids, one of which is none."""

_FIELDS: Final = (("type",), ("name",))
"""Places within a field of one form: where there are several, the form comes first."""

_REASONS: Final[Mapping[str, str]] = {
    "model_type": "Input should be an object",
    "too_long": "it has too many entries; it takes {max_length} at most",
    "too_short": "it has too few entries; it needs {min_length} or more",
    "value_error": "{error}",
}
"""What is said of faults by their kind, where pydantic speaks to who programs with it."""


def from_validation(error: pydantic.ValidationError, body: Any) -> ApiError:
    """The error for the first fault that validation found in *body*."""
    faults = error.errors(include_url=False, include_input=False)
    fault = faults[0]
    place = fault["loc"]
    if fault["type"] == "missing":
        return missing(place, body)
    for depth, part in enumerate(place):
        if part == "prompt" and any(each["type"] in _BEYOND for each in faults):
            return invalid(f"{part}: {_BEYOND_TEXT}.", part)
        if part in _FORMS and place[depth + 1 :] not in _FIELDS:
            param = _name(place[: depth + 1])
            forms = {**_FORMS, **_OWN_FORMS.get(error.title, {})}
            return invalid(f"{param}: it is {forms[str(part)]}.", param)
    said = _REASONS.get(fault["type"])
    reason = fault["msg"] if said is None else said.format(**fault.get("ctx", {}))
    param = _name(place)
    return invalid(f"{param}: {reason}" if param else reason, param or None)


def missing(place: Place, body: Any) -> ApiError:
    """The error for a field that *body* lacks at *place*. It names the one that may be meant."""
    reason = "Field required"
    param = _name(place)
    other = next((name for name in _ELSEWHERE.get(param, ()) if name in body), "")
    if other:
        reason += f"; it is '{param}' here, and not '{other}'"
    elif near := _near(place, body):
        reason += f"; the body has '{near}'"
    return invalid(f"{param}: {reason}", param, "missing_required_parameter")


def _near(place: Place, body: Any) -> str:
    """The name nearest to the last of *place* in the object that should have it; empty for none."""
    *before, wanted = place
    for part in before:
        try:
            body = body[part]
        except (LookupError, TypeError):  # the place also names the form that was expected there
            return ""
    names = islice(body, _MOST_NAMES) if isinstance(body, dict) else ()
    short = [name for name in names if len(name) <= _LONGEST_PART]
    return next(iter(difflib.get_close_matches(str(wanted), short, 1)), "")


def _name(place: Place) -> str:
    return ".".join(str(part)[:_LONGEST_PART] for part in place if part != "[key]")
