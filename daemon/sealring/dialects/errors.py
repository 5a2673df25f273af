"""Every error of the API, in OpenAI's or Anthropic's shape and with the status that clients act on.

A client of OpenAI's retries what is 408, 409, 429 or 500 and above, and gives everything else to
its caller. So a request that can never succeed gets 400; one that may succeed later gets 429 or 503
with `Retry-After`; a cancelled one gets 499, which nobody retries. Some agents retry what is 401,
too, for minutes: what need not be sent again says so in `x-should-retry`, which they look at.

`cannot_be_held` says why a form is refused. llguidance speaks to who programs with it: of options
that no client can set, and of grammars that this server wrote. `_FAULTS` has what it says, and what
is said here in its place. What is not in the table is passed on as llguidance has it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs
from sealring_protocol.control.requests import (
    ContextOverflow,
    FinishReason,
    HistoryOverflow,
    NoMajority,
    NotServed,
    QueueFull,
    RequestDone,
    RoomOverflow,
)
from sealring_protocol.errors import LocalProtocolError
from sealring_trio.errors import OperationError, Withdrawn

from sealring.text.frames import Exceeded, Lost, Refused, TextQueueFull, Wrong

log = logging.getLogger("sealring.api")

INVALID: Final = "invalid_request_error"
RETRY_SECONDS: Final = 1
"""What `Retry-After` says where nothing better is known."""

_LOGGED: Final = 300
"""Characters of a message in the log."""

ANTHROPIC: Final = "/v1/messages"
"""The path of Anthropic's API: below it errors have Anthropic's form."""

_ANTHROPIC: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def is_anthropic(path: str) -> bool:
    """Whether *path* is of Anthropic's API."""
    return path == ANTHROPIC or path.startswith(f"{ANTHROPIC}/")


_FIELDS: Final = ("status", "message", "code", "kind", "param", "headers")


class ApiError(Exception):
    """An error answer: its *status*, and the fields of its body."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.kind = kind
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic_body(self) -> dict[str, Any]:
        """Anthropic's error object."""
        kind = _ANTHROPIC.get(self.status, INVALID if self.status < 500 else "api_error")
        # Claude Code makes a conversation shorter when it reads these words.
        long = "prompt is too long: " if self.code == "context_length_exceeded" else ""
        return {"type": "error", "error": {"type": kind, "message": long + self.message}}

    def in_log(self) -> str:
        """What is wrong, for a line of the log. What a client wrote may be in it."""
        said = self.message if len(self.message) <= _LOGGED else f"{self.message[:_LOGGED]}..."
        named = not self.param or self.param in said
        where = "" if named else f"{(self.param or '')[:_LOGGED]}: "
        return "".join(char if char.isprintable() else " " for char in where + said)

    def fields(self) -> dict[str, Any]:
        """All of the error, from which another process makes it again."""
        return {name: getattr(self, name) for name in _FIELDS}


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """The error for a request that is wrong in itself."""
    return ApiError(400, message, code, param=param)


def unsupported(param: str, message: str) -> ApiError:
    """The error for a request that another server may honour, and this one does not."""
    return ApiError(400, message, "unsupported_parameter", param=param)


def no_model(name: str, there: Sequence[str]) -> ApiError:
    """The error for a model that has none of the names that are *there*."""
    names = " or ".join(f"'{each}'" for each in there)
    message = f"The model '{name}' does not exist here; there is {names}."
    return ApiError(404, message, "model_not_found", param="model")


def unavailable(message: str, code: str, retry: int = RETRY_SECONDS) -> ApiError:
    """The error for a request that cannot be served now."""
    headers = {"Retry-After": str(retry)}
    return ApiError(503, message, code, kind="service_unavailable", headers=headers)


def no_majority(why: str) -> ApiError:
    """The error for a request to a head that does not lead, and *why*."""
    return unavailable(f"The ring cannot serve: {why}.", "no_majority")


def failed() -> ApiError:
    """The error for a fault of this server."""
    message = "The server failed; its log says how."
    return ApiError(500, message, "internal_error", kind="server_error")


def from_refusal(error: LocalProtocolError, param: str, retry: int) -> ApiError:
    """The error for a request that the scheduler refused, whose prompt came in the field *param*;
    *retry* is a guess, in seconds, at when it would be accepted."""
    match error:
        case HistoryOverflow() | RoomOverflow():
            return invalid(f"{error}.", param, "context_length_exceeded")
        case ContextOverflow():
            message = (
                f"This model's maximum context length is {error.context} tokens. However, your "
                f"prompt has {error.prompt} tokens, and the answer needs room too. Please reduce "
                "its length."
            )
            return invalid(message, param, "context_length_exceeded")
        case QueueFull():
            headers = {"Retry-After": str(retry)}
            message = f"The ring is busy: {error}."
            return ApiError(
                429, message, "rate_limit_exceeded", kind="rate_limit_error", headers=headers
            )
        case Withdrawn():
            return _cancelled()
        case NoMajority():
            return no_majority(str(error))
        case NotServed():
            return _not_served(str(error))
        case _:
            return invalid(f"The request cannot be done: {error}.")


def from_end(done: RequestDone) -> ApiError | None:
    """The error that an answer ended with; None if it is complete."""
    match done.reason:
        case FinishReason.STOP | FinishReason.LENGTH:
            return None
        case FinishReason.CANCELLED:
            return _cancelled()
        case FinishReason.REFUSED:
            return _not_served(done.message)
        case FinishReason.UNHELD:
            return _unheld(done.message)
        case _:
            message = f"The ring gave up on this request: {done.message or done.reason.value}."
            return ApiError(500, message, "generation_failed", kind="server_error")


def _not_served(why: str) -> ApiError:
    return unavailable(f"The ring cannot serve: {why}.", "ring_not_ready")


def _unheld(why: str) -> ApiError:
    return invalid(
        f"The answer could not be held to its form any further: {in_words(why)}. Make the schema "
        "or grammar simpler (fewer alternatives and optional names, lower bounds of repetitions), "
        "or ask for the form in the prompt.",
        None,
        "form_not_held",
    )


def _cancelled() -> ApiError:
    return ApiError(499, "The request was cancelled.", "request_cancelled", kind="cancelled")


def _from_text(error: TextQueueFull | Exceeded | Lost | Refused) -> ApiError:
    """The error for a text that a worker did not finish."""
    match error:
        case Refused():
            return ApiError(**error.fields)
        case Exceeded():
            # Not a 5xx, which clients send again: it would take as long the next time.
            return ApiError(422, f"This request was given up: {error}.", "text_limit_exceeded")
        case TextQueueFull():
            return unavailable("Too many long prompts wait to be read.", "overloaded")
        case Wrong():
            message = f"The text could not be read: {error}."
            return ApiError(500, message, "text_worker_wrong", kind="server_error")
        case Lost():
            return unavailable(f"The text could not be read: {error}.", "text_worker_lost")


@contextmanager
def text_errors(name: str) -> Iterator[None]:
    """Turns what a text worker raises within the block, for request *name*, into an `ApiError`."""
    try:
        yield
    except (TextQueueFull, Exceeded, Lost, Refused) as error:
        if isinstance(error, Exceeded):
            log.warning("%s: %s", name, error)
        raise _from_text(error) from None
    except OperationError as error:
        raise unavailable(f"The text cannot be read: {error.what}.", "no_worker") from None


@contextmanager
def named_as(params: Mapping[str, str]) -> Iterator[None]:
    """Errors within the block are of an inner request. Those fields that have another name in the
    body that it was made of are called by that: *params*."""
    try:
        yield
    except ApiError as error:
        if (inner := error.param) and (own := renamed(inner, params)) != inner:
            said = error.message.replace(f"'{inner}'", f"'{own}'")
            error.message = re.sub(rf"^{re.escape(inner)}(?=: )", lambda _: own, said)
            error.param = own
        raise


def renamed(name: str, params: Mapping[str, str]) -> str:
    """The field *name* of an inner request as *params* call it, or the object that it is in."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if (own := params.get(".".join(parts[:end]))) is not None:
            return ".".join([own, *parts[end:]])
    return name


def timed_out(seconds: float) -> ApiError:
    """The error for a request that exceeded its time."""
    message = f"The ring did not finish within {seconds:g} seconds."
    return ApiError(504, message, "timeout", kind="timeout_error")


_LONGEST_PART: Final = 200  # characters of what a fault quotes

_PLAIN: Final = "{what} cannot be held: {why}."
_SCHEMA: Final = "{what} cannot be held. Correct the schema: {why}."
_REGEX: Final = "{what} cannot be held. Correct the regular expression: {why}."
_SIMPLER: Final = (
    "{what} cannot be held: {why}. Make it simpler (fewer alternatives and optional names, lower "
    "bounds of repetitions), or ask for the form in the prompt."
)
_OTHER: Final = (
    "{what} cannot be held: {why}. Use what llguidance supports, or ask for the form in the prompt."
)


@attrs.frozen
class _Said:
    """What is said of a fault: *why*, with the parts that its pattern found, within *form*."""

    why: str
    form: str = _PLAIN


_IN_REGEX: Final = r"(?:at 1\(\d+\): invalid regex .* \(in regex\): )?"
_IN_START: Final = r"(?:\n +1 \| start: .*)?"  # the line that this server wrote around it

_FAULTS: Final[Mapping[str, _Said]] = {
    r"Resource '(.*)' is not present in a registry.*": _Said(
        "it names '{0}', and nothing is fetched here; put what a $ref means into the schema's $defs"
    ),
    r"Pointer '(.*)' does not exist": _Said("'#{0}', which a $ref names, is not in it", _SCHEMA),
    r"Invalid type: (.*)": _Said("there is no type '{0}'", _SCHEMA),
    r"Unsatisfiable schema: (.*)": _Said("nothing fits it ({0})", _SCHEMA),
    r"Expected .* for ('.*'), got (.*)": _Said("{0} cannot be {1}", _SCHEMA),
    r"(\w+ must be (?:a|an|a string or) .*)": _Said("{0}", _SCHEMA),
    r"invalid multiple of": _Said("multipleOf has to be above 0", _SCHEMA),
    rf"{_IN_REGEX}regex parse error:\n.*\nerror: (look-around|backreferences)\b.*": _Said(
        "a regular expression with {0} is not served; say it without"
    ),
    rf"{_IN_REGEX}lookarounds not supported yet; .*": _Said(
        r"an anchor or a word boundary (as \b) within a regular expression is not served; say it "
        "without"
    ),
    rf"{_IN_REGEX}regex parse error:\n    ([^\n]*)\n.*\nerror: ([^\n]*){_IN_START}": _Said(
        "{1} in '{0}'", _REGEX
    ),
    r".*\bToo many items \(limit (\d+)\b.*": _Said(
        "one token takes more than {0} items of the parser", _SIMPLER
    ),
    r"(?:initial lexer configuration|grammar size)\b.* too big .*": _Said(
        "it is too large", _SIMPLER
    ),
    r"(it(?:s grammar)? (?:took|takes|is) .*)": _Said("{0}", _SIMPLER),
}
"""By what llguidance, or the tests of `holding`, say."""


def cannot_be_held(what: str, why: str) -> str:
    """The message for the form *what*, of which *why* was found."""
    said, words = _said(why)
    return said.form.format(what=what, why=words)


def is_wrong(why: str) -> bool:
    """Whether *why* says that the form itself is wrong, so that nothing could hold it."""
    return _said(why)[0].form in (_SCHEMA, _REGEX)


def left_out(warnings: Iterable[str]) -> list[str]:
    """The keywords that *warnings* of llguidance's say are left out of a schema."""
    found: list[str] = []
    for warning in warnings:
        if keys := re.fullmatch(r"Unimplemented keys: \[(.*)\]", warning):
            found += re.findall(r'"([^"]*)"', keys[1])
        elif warning.startswith("Unknown format: "):
            found.append("format")
        elif warning.startswith("oneOf "):
            found.append("oneOf")
    return found


def in_words(why: str) -> str:
    """*why*, in words for who sent the form."""
    return _said(why)[1]


def _said(why: str) -> tuple[_Said, str]:
    """What is said of *why*, and its words."""
    for pattern, said in _FAULTS.items():
        if found := re.fullmatch(pattern, why, re.DOTALL):
            parts = [part[:_LONGEST_PART] for part in found.groups()]
            return said, said.why.format(*parts)
    return _Said(why, _OTHER), why
