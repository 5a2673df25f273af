"""Reading the body of a request, within limits of size, time and form.

A body is bounded before a byte of it is kept, and so are all bodies together. One that is too
large is read to its end and thrown away, as far as that goes quickly, since a client that is cut
off while it writes never sees why.
"""

from __future__ import annotations

from typing import Final

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from sealring.dialects.errors import INVALID, ApiError, unavailable
from sealring.text.workers import SharedBudget

MAX_BODY: Final = 8 << 20
"""Bytes of one body: a prompt of a million tokens and more. Memory: that much, twice for a moment,
for each request that is being read."""

MAX_BODIES: Final = 128 << 20
"""Bytes of all bodies that are being read at once, of which one caller's may be half."""

BODY_SECONDS: Final = 30.0
"""Seconds that a body may take to arrive."""

DISCARD_SECONDS: Final = 5.0
MAX_DISCARD: Final = 128 << 20
"""Most bytes of a body beyond the limit that are read and thrown away."""


class Bodies:
    """Reads bodies, and keeps count of what is being read."""

    def __init__(self) -> None:
        self._reading = SharedBudget(MAX_BODIES)

    async def read(self, request: Request, owner: str) -> bytes:
        """The JSON text in *request* of *owner*. Raises `ApiError`, or `ClientDisconnect`."""
        _check_form(request)
        declared = request.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > MAX_BODY:
            await _discard(request)
            raise _too_large()
        body = bytearray()
        try:
            with trio.fail_after(BODY_SECONDS):
                while True:
                    message = await _receive(request)
                    part = message.get("body", b"")
                    if not self._reading.take(owner, len(part)):
                        raise unavailable("Too many requests are being read at once.", "overloaded")
                    body += part
                    if len(body) > MAX_BODY:
                        break
                    if not message.get("more_body", False):
                        return bytes(body)
        except trio.TooSlowError:
            late = f"The body did not arrive within {BODY_SECONDS:g} seconds."
            raise ApiError(408, late, "request_timeout") from None
        finally:
            self._reading.give_back(owner, len(body))
        if message.get("more_body", False):
            await _discard(request)
        raise _too_large()


async def _receive(request: Request) -> Message:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message


async def _discard(request: Request) -> None:
    if request.headers.get("expect", "").strip().lower() == "100-continue":
        return  # its client waits for the answer, and sends nothing yet
    size = 0
    with trio.move_on_after(DISCARD_SECONDS):
        while size < MAX_DISCARD:
            message = await _receive(request)
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                return


def _check_form(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A page of another origin can send a form or plain text without asking; JSON it cannot.
        message = f"The body must be application/json, not '{kind or 'unnamed'}'."
        raise ApiError(415, message, "unsupported_media_type", param="content-type")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        message = f"The body must not be encoded; it is '{coding}'."
        raise ApiError(415, message, "unsupported_media_type", param="content-encoding")


def _too_large() -> ApiError:
    message = f"The body is larger than {MAX_BODY >> 20} MiB."
    return ApiError(413, message, "request_too_large", kind=INVALID)
