"""What the two ends of a link say about the link itself: it is open, alive, and over."""

from __future__ import annotations

from typing import ClassVar

import attrs

from sealring_protocol.codec.codes import MessageCode


@attrs.frozen
class Progress:
    """The counters in PING and PONG, all since the process began.

    Times are in microseconds, sizes in bytes. *starved_us* is how long the engine was ready to run
    and had no processor, or waited for memory to be read back from disk. While the node fetches
    tensors of its model, *fetch_bytes* is the size of all that its rank owns, and *fetched_bytes*
    what is here of them; else both are 0. A peer may tell any number.
    """

    steps_received: int = 0
    steps_answered: int = 0
    compute_us: int = 0
    seal_us: int = 0
    rows: int = 0
    memory: int = 0
    cache: int = 0
    starved_us: int = 0
    fetched_bytes: int = 0
    fetch_bytes: int = 0

    @property
    def here(self) -> int:
        """*fetched_bytes*, and no more than *fetch_bytes*."""
        return min(self.fetched_bytes, self.fetch_bytes)


@attrs.frozen
class Ping:
    """A keepalive request, answered by a `Pong` with the same *echo*."""

    CODE: ClassVar = MessageCode.PING
    echo: int
    progress: Progress


@attrs.frozen
class Pong:
    """The answer to a `Ping`."""

    CODE: ClassVar = MessageCode.PONG
    echo: int
    progress: Progress


@attrs.frozen
class Accept:
    """The responder's first sealed frame: the transcript hash (32 bytes), the newer serial of both,
    and the responder's roster if that is newer (else empty)."""

    CODE: ClassVar = MessageCode.ACCEPT
    transcript: bytes
    serial: int
    roster: bytes


@attrs.frozen
class Close:
    """Ends both directions of a link. *code* is a `CloseCode`, or one of a later version."""

    CODE: ClassVar = MessageCode.CLOSE
    code: int
    reason: str
