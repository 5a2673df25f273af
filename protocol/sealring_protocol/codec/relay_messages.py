"""The messages of API links: HTTP requests that a member has from its clients, and the head's
answers (`sealring_protocol.relay`).

What travels is no HTTP: each end writes that by itself. So nothing may be in a field that would
become another one when it is written.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from sealring_protocol.codec.codes import MessageCode, rule
from sealring_protocol.codec.wire import is_plain, utf8
from sealring_protocol.limits import (
    MAX_BODY,
    MAX_CLIENT,
    MAX_FIELDS,
    MAX_HEADERS,
    MAX_METHOD,
    MAX_TARGET,
    STREAM_WINDOW,
)

Headers = tuple[tuple[bytes, bytes], ...]
"""Header fields of HTTP, each with its name in lower case and its value, in their order."""

_TOKEN: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_METHOD: Final = frozenset(bytes(_TOKEN).upper())
_VISIBLE: Final = frozenset(range(0x21, 0x7F))
_BREAKS: Final = frozenset(b"\0\r\n")


def _check_headers(headers: Headers) -> None:
    """Raise `LocalProtocolError` for what would become other header fields when it is written, and
    for more than fits a message."""
    rule(len(headers) <= MAX_FIELDS, f"at most {MAX_FIELDS} header fields")
    size = sum(4 + len(name) + len(value) for name, value in headers)
    rule(size <= MAX_HEADERS, f"header fields of at most {MAX_HEADERS} bytes")
    for name, value in headers:
        rule(bool(name) and _TOKEN.issuperset(name), "a header's name is a token in lower case")
        rule(_BREAKS.isdisjoint(value), "a header's value has no line break and no NUL")


@attrs.frozen
class Question:
    """A request of HTTP, without its body: the *method* in capitals, the *target* (path and query),
    whether the client's connection was *secure* (TLS), the *client*'s address, and *headers*.

    Raises `LocalProtocolError` if it cannot be written as HTTP, or is beyond a limit."""

    method: str
    target: bytes
    secure: bool
    client: str
    headers: Headers = attrs.field(default=(), repr=False)  # they may hold a key

    def __attrs_post_init__(self) -> None:
        method = self.method.encode(errors="replace")
        rule(bool(method) and _METHOD.issuperset(method), "a method is a token in capitals")
        rule(len(method) <= MAX_METHOD, f"a method of at most {MAX_METHOD} bytes")
        visible = _VISIBLE.issuperset(self.target)
        rule(len(self.target) <= MAX_TARGET, f"a target of at most {MAX_TARGET} bytes")
        rule(visible and self.target.startswith(b"/"), "a target is a path of visible ASCII")
        rule(is_plain(self.client), "a client's address has no hidden character")
        short = len(utf8(self.client)) <= MAX_CLIENT
        rule(short, f"a client's address has at most {MAX_CLIENT} bytes")
        _check_headers(self.headers)


@attrs.frozen
class Ask:
    """A member passes the request *question* on to the head, as *stream*. Its body follows."""

    CODE: ClassVar = MessageCode.ASK
    stream: int
    question: Question


@attrs.frozen
class Reply:
    """The head begins to answer *stream*, with *status* and *headers*. The answer's body
    follows."""

    CODE: ClassVar = MessageCode.REPLY
    stream: int
    status: int
    headers: Headers = ()

    def __attrs_post_init__(self) -> None:
        rule(200 <= self.status <= 599, "a reply's status is from 200 to 599")
        _check_headers(self.headers)


@attrs.frozen
class BodyPart:
    """The next *data* of the sender's body on *stream*; after the *last* there is none. Only the
    last may be empty."""

    CODE: ClassVar = MessageCode.BODY
    stream: int
    data: bytes = attrs.field(repr=False)
    last: bool = False

    def __attrs_post_init__(self) -> None:
        rule(self.last or bool(self.data), "only the last BODY is empty")
        rule(len(self.data) <= MAX_BODY, f"a BODY has at most {MAX_BODY} bytes")


@attrs.frozen
class Credit:
    """The receiver may send *size* more bytes of its body on *stream*."""

    CODE: ClassVar = MessageCode.CREDIT
    stream: int
    size: int

    def __attrs_post_init__(self) -> None:
        rule(0 < self.size <= STREAM_WINDOW, f"a CREDIT is of 1 to {STREAM_WINDOW} bytes")


@attrs.frozen
class Drop:
    """The sender is done with *stream*, for *reason*, and sends nothing more of it."""

    CODE: ClassVar = MessageCode.DROP
    stream: int
    reason: str = ""
