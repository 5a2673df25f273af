"""One link on one trio stream: messages in, messages out, and each of them told.

The peer admits whoever proves itself, and keeps no roster that a peer brings: it takes it for the
link alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio
from sealring_protocol.codec.encoding import to_fields
from sealring_protocol.codec.messages import Message
from sealring_protocol.errors import CloseCode, SealringError, wire_code
from sealring_protocol.link import (
    EncapsulationRequested,
    Link,
    LinkClosed,
    LinkEvent,
    LinkOpened,
    PeerProved,
    RosterReceived,
    SignatureRequested,
)
from sealring_protocol.security.identity import Signer

CHUNK: Final = 1 << 16
ROOM: Final = 1 << 16
"""Messages, or frames, that may wait: beyond that the peer gives up."""

LINGER: Final = 1.0
"""Seconds that a link which is over stays open for its last bytes to be taken."""

Tell = Callable[[dict[str, Any]], None]
"""Takes each thing that happens, as JSON has it."""


class Line:
    """A link over *stream*: *signer* signs for it, and *tell* is told of each message. `run` it
    beside whoever uses `up`, `receive` and `send`."""

    def __init__(
        self, link: Link, stream: trio.abc.HalfCloseableStream, signer: Signer, tell: Tell
    ) -> None:
        self._signer = signer
        self._tell = tell
        self._link = link
        self._stream = stream
        self._up, self._ups = trio.open_memory_channel[LinkOpened](1)
        self._came, self._messages = trio.open_memory_channel[Message](ROOM)
        self._out, self._outbox = trio.open_memory_channel[bytes](ROOM)
        self._changed = trio.Event()

    async def run(self) -> None:
        """Talk until the link has ended. An error is told, and ends it."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._keep_time, nursery.cancel_scope)
                self._go(lambda: None)
                while data := await self._read():
                    self._go(partial(self._link.receive_data, data, trio.current_time()))
                self._go(self._link.receive_eof)
        finally:
            self._up.close()
            self._came.close()
            await trio.aclose_forcefully(self._stream)

    @property
    def ended(self) -> bool:
        """Whether the link has ended, so that nothing can be sent."""
        return self._link.next_timeout() is None

    async def up(self) -> LinkOpened | None:
        """Wait until both ends have proved themselves; None if they never do."""
        try:
            return await self._ups.receive()
        except trio.EndOfChannel:
            return None

    async def receive(self) -> Message | None:
        """The peer's next message, PING and PONG left out; None when the link has ended."""
        try:
            return await self._messages.receive()
        except trio.EndOfChannel:
            return None

    def send(self, message: Message) -> None:
        """Send *message*. Raises `SealringError` when it may not be sent here."""
        self._link.send(message)
        self._tell({"sent": to_fields(message)})
        self._flush()

    def close(self, code: int = CloseCode.SHUTDOWN, reason: str = "") -> None:
        """End the link in good order, if it has not ended."""
        if self.ended:
            return
        self._tell({"sent": {"message": "CLOSE", "why": int(code), "reason": reason}})
        self._link.close(CloseCode(code), reason)
        self._flush()
        self._changed.set()

    # ------------------------------------------------------------- internals

    def _go(self, action: Callable[[], None]) -> None:
        """Let *action* happen to the link, answer what it asks for, and pass on what it gives."""
        try:
            action()
            while (event := self._link.next_event()) is not None:
                self._on(event)
        except SealringError as error:
            self._tell({"failed": wire_code(error).name, "reason": str(error)})
        self._flush()
        self._changed.set()

    def _on(self, event: LinkEvent) -> None:
        now = trio.current_time()
        match event:
            case SignatureRequested(payload):
                self._link.provide_signature(self._signer.sign(payload), now)
            case EncapsulationRequested(key=key):
                secret, ciphertext = key.encapsulate()
                self._link.provide_encapsulation(ciphertext, secret, now)
            case RosterReceived(roster):
                self._tell({"roster": roster.roster.serial})
                self._link.roster_stored(now)
            case PeerProved():
                self._link.admit(now)
            case LinkOpened():
                peer = event.roster.roster.member(event.peer)
                name = peer.name if peer is not None else event.peer.hex()
                told = {"up": name, "purpose": event.purpose.name, "suite": event.suite.name}
                self._tell(told)
                self._up.send_nowait(event)
            case LinkClosed(code, reason):
                self._tell({"closed": int(code), "reason": reason})
            case _:
                self._tell({"came": to_fields(event)})
                self._came.send_nowait(event)

    def _flush(self) -> None:
        if data := self._link.data_to_send():
            try:
                self._out.send_nowait(bytes(data))
            except trio.ClosedResourceError:
                return  # nothing is said after CLOSE

    async def _read(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(CHUNK))
        except trio.BrokenResourceError:
            return b""

    async def _write(self) -> None:
        with contextlib.suppress(trio.BrokenResourceError):  # the reader sees the end
            async for data in self._outbox:
                await self._stream.send_all(data)
            await self._stream.send_eof()

    async def _keep_time(self, scope: trio.CancelScope) -> None:
        """Tell the link the time; once it is over, give the peer a moment to see why."""
        while (due := self._link.next_timeout()) is not None:
            self._changed = trio.Event()
            with trio.move_on_at(due):
                await self._changed.wait()
            if trio.current_time() >= due:
                self._go(partial(self._link.handle_timeout, trio.current_time()))
        self._out.close()
        scope.deadline = trio.current_time() + LINGER
