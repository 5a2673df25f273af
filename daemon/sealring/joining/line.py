"""One end of one join on one connected socket, whichever end it is.

A line moves the bytes of a `JoinSession`, signs for it in a thread, keeps its time, and passes on
what it reports. All but signing happens in the event loop, without an `await` between what comes in
and what goes out.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

import trio
from sealring_protocol.codec.messages import Admit
from sealring_protocol.errors import CloseCode, SealringError
from sealring_protocol.joining.session import JoinEvent, JoinSession
from sealring_protocol.link import LinkClosed
from sealring_protocol.security.handshake import EncapsulationRequested, SignatureRequested
from sealring_protocol.security.identity import Signer
from sealring_trio.net.pump import Wire


class JoinLine:
    """*session* on *sock*. Its node signs with *signer*; *heard* is called with what the session
    reports, and may call the methods of this."""

    def __init__(
        self,
        sock: socket.socket,
        session: JoinSession,
        signer: Signer,
        heard: Callable[[JoinEvent], None],
    ) -> None:
        self._wire = Wire(sock, lambda: None)
        self._session = session
        self._signer = signer
        self._heard = heard
        self._error: SealringError | None = None
        self._spoke = False  # something was sent
        self._alarm = trio.CancelScope()
        self._running = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Run until either end closes the session; then send what waits. Raises the error with
        which the session failed."""
        try:
            with self._running:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._read)
                    nursery.start_soon(self._keep_time)
                    self._enter(lambda: None)
            if self._spoke:  # or there is nothing that could be lost on its way
                await self._wire.hang_up()
        finally:
            self._wire.close()
        if self._error is not None:
            raise self._error

    @property
    def introduced(self) -> bool:
        """Whether both ends have proved what they have to."""
        return self._session.introduced

    @property
    def known(self) -> bool:
        """Whether the newcomer has shown an invitation."""
        return self._session.known

    def admit(self, admit: Admit) -> None:
        """Tell the newcomer that it may join."""
        self._enter(lambda: self._session.admit(admit, trio.current_time()))

    def stored(self) -> None:
        """Tell the inviter that what it sent is stored."""
        self._enter(lambda: self._session.stored(trio.current_time()))

    def close(self, code: CloseCode, reason: str) -> None:
        """End the session. The other end hears the reason, if it has proved who it is."""
        if not self._running.cancel_called:
            self._enter(lambda: self._session.close(code, reason))
            self._running.cancel()

    # ----------------------------------------------------------------- inside

    def _enter(self, call: Callable[[], None]) -> None:
        """Enter the session by *call*, pass on what it reports, and send what it has to say."""
        try:
            call()
            while (event := self._session.next_event()) is not None:
                self._act(event)
        except SealringError as error:
            self._error = self._error or error
            self._running.cancel()
        try:
            if data := self._session.data_to_send():
                self._spoke = True
                self._wire.send(data)
        except OSError:
            self._running.cancel()
        if (deadline := self._session.next_timeout()) is not None:
            self._alarm.deadline = deadline

    def _act(self, event: JoinEvent) -> None:
        match event:
            case EncapsulationRequested(key=key):
                secret, ciphertext = key.encapsulate()
                self._session.provide_encapsulation(ciphertext, secret, trio.current_time())
            case SignatureRequested(payload):
                if self._nursery is not None:
                    self._nursery.start_soon(self._sign, payload)
            case _:
                self._heard(event)
                if isinstance(event, LinkClosed):
                    self._running.cancel()

    async def _sign(self, payload: bytes) -> None:
        # In a thread, for a signer may be a slow chip.
        signature = await trio.to_thread.run_sync(self._signer.sign, payload)
        self._enter(lambda: self._session.provide_signature(signature, trio.current_time()))

    async def _read(self) -> None:
        try:
            while data := await self._wire.receive():
                self._enter(partial(self._received, data))
        except OSError:
            pass
        self._enter(self._session.receive_eof)
        self._running.cancel()

    def _received(self, data: bytes) -> None:
        self._session.receive_data(data, trio.current_time())

    async def _write(self) -> None:
        try:
            await self._wire.write()
        except OSError:
            self._running.cancel()

    async def _keep_time(self) -> None:
        while self._session.next_timeout() is not None:
            with self._alarm:
                await trio.sleep_forever()
            self._alarm = trio.CancelScope()
            self._enter(lambda: self._session.handle_timeout(trio.current_time()))
