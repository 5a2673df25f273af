"""W3C Trace Context (https://www.w3.org/TR/trace-context/): to which trace a request belongs.

A client's ``traceparent`` is taken up if it is exactly what the recommendation says, and otherwise
ignored: the request then begins a trace of its own. ``tracestate`` goes with a ``traceparent`` that
was taken up; one that breaks the grammar is dropped by itself. The answer has both, with this
server's own span as the parent.

A client may also name its request, with ``x-request-id``. What it says is taken up if it is short
and plain, and is never the id by which the server tells requests apart.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

import attrs
from starlette.datastructures import Headers

MAX_STATE: Final = 512
"""Characters of a ``tracestate`` that is taken up."""

MAX_MEMBERS: Final = 32
"""Members of a ``tracestate``, as the recommendation has it."""

MAX_REQUEST_ID: Final = 128
"""Characters of a client's ``x-request-id`` that is taken up."""

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEY: Final = r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_VALUE: Final = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER: Final = re.compile(rf"({_KEY})={_VALUE}")
_REQUEST_ID: Final = re.compile(rf"[A-Za-z0-9._~:+=@-]{{1,{MAX_REQUEST_ID}}}")

_KNOWN_FLAGS: Final = 0x03  # sampled, and random
_RANDOM: Final = 0x02


@attrs.frozen
class TraceContext:
    """The trace of a request, this server's span in it, the flags, and the *state* that came with
    it; ids are in hex."""

    trace_id: str
    span_id: str
    flags: int
    state: str = ""

    @classmethod
    def of(cls, headers: Headers) -> TraceContext:
        """The context that *headers* name, or a new one."""
        span = secrets.token_hex(8)
        given = headers.getlist("traceparent")
        if len(given) == 1 and (found := _PARENT.fullmatch(given[0])) is not None:
            version, trace, parent, flags, more = found.groups()
            sound = version != "ff" and not (version == "00" and more is not None)
            if sound and trace.strip("0") and parent.strip("0"):
                state = _state(headers.getlist("tracestate"))
                return cls(trace, span, int(flags, 16) & _KNOWN_FLAGS, state)
        return cls(secrets.token_hex(16), span, _RANDOM)

    @property
    def parent(self) -> str:
        """The ``traceparent`` of what this request has done here."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def _state(given: list[str]) -> str:
    """The members of all ``tracestate`` headers; empty if any breaks the grammar."""
    members = [part.strip(" \t") for line in given for part in line.split(",")]
    members = [member for member in members if member]
    state = ",".join(members)
    if len(state) > MAX_STATE or len(members) > MAX_MEMBERS:
        return ""
    keys = [found[1] for member in members if (found := _MEMBER.fullmatch(member))]
    return state if len(keys) == len(members) == len(set(keys)) else ""


def request_id(headers: Headers) -> str:
    """What the client calls its request; empty if it says nothing that can be taken up."""
    given = headers.getlist("x-request-id")
    return given[0] if len(given) == 1 and _REQUEST_ID.fullmatch(given[0]) else ""
