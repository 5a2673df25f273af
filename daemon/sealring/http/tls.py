"""TLS of the API's server: the handshake of each connection, and certificates that are renewed.

A `TlsSocket` has what `Http1` needs of a socket, and keeps half-sent records itself: whoever is
cancelled while it waits has lost nothing. (`trio.SSLStream` cannot go on after a send was
cancelled.)

A handshake costs a signature, which takes milliseconds with a long RSA key; so its steps are done
in threads, few at once and one of each source, and the event loop goes on. Of one source, a
handshake that has begun ends before others begin, and the newest begins next: a client does not
wait for all that came before it. Until it is over the connection is idle in the book of
`connections`, like one that has sent no request: the oldest is the first to be closed for another.
After `HANDSHAKE_SECONDS` it is closed anyway.

The two files are looked at every few seconds. When they have changed, connections that come from
then on get the new pair. A pair that is wrong changes nothing, and is logged once: a program that
renews a certificate may replace one file after the other.

They are PEM files, as every issuer gives them. OpenSSL's own errors for a wrong pair, an encrypted
key or an expired certificate are a code, a prompt for a password, and nothing at all. So both files
are read and compared here first. The key's file must be its owner's alone, as all private keys.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import attrs
import trio
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import check_secret, read_file
from sealring_trio.units import wall_ms

from sealring.http.connections import Place

log = logging.getLogger("sealring.api")

HANDSHAKE_SECONDS: Final = 10.0
"""Seconds for a TLS handshake, from the connection's start on."""

MAX_STEPS: Final = 2
"""Steps of handshakes that are computed at once, each for another source; others wait."""

LOOK_SECONDS: Final = 5.0
"""Time between two looks at the files of the certificate and its key."""

WARN_DAYS: Final = 14
"""From so many days before the certificate expires, the log says so each day."""

_HANDSHAKE: Final = 22  # the type of the first record of TLS, which no request of HTTP begins with
_RECORD_HEADER: Final = 5  # bytes: type, version, and the length of what follows
_MAX_RECORD: Final = 1 << 14
_DAY_MS: Final = 24 * 3600 * 1000

MAX_EMPTY: Final = 128 << 10
"""Bytes that may come without any content: two of the largest records, and a handshake's own."""

MAX_OVERHEAD: Final = 64
"""Bytes beyond those that may come for each byte of content: one in a record of its own takes some
25, and padding more."""

_RECORD: Final = 16 << 10


# ---------------------------------------------------------------------- the files


_SPKI: Final = (
    serialization.Encoding.DER,
    serialization.PublicFormat.SubjectPublicKeyInfo,
)
_TIME: Final = "%Y-%m-%d %H:%M UTC"

Stamp = tuple[tuple[int, int, int], ...]
"""By what files are seen to have changed: time, inode and size of each."""


@attrs.frozen
class TlsPair:
    """A pair as it was read: OpenSSL's *context* with it, when the certificate *expires_ms* (Unix
    time), and the *stamp* of the files."""

    context: ssl.SSLContext
    expires_ms: int
    stamp: Stamp


def stamp_of(*paths: Path) -> Stamp:
    """The stamp of *paths* now; zeros for what cannot be looked at."""
    found: list[tuple[int, int, int]] = []
    for path in paths:
        try:
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)


def read_pair(certificate: Path, key: Path) -> TlsPair:
    """The pair in the files *certificate* and *key*. Takes up to a tenth of a second for a long RSA
    key. Raises `UserError`."""
    stamp = stamp_of(certificate, key)
    chain = _read_chain(certificate)
    public = _public_half(key)
    keys = [each.public_key().public_bytes(*_SPKI) for each in chain]
    if keys[0] != public:
        if public in keys:
            raise UserError(
                f"{certificate} does not begin with the server's own certificate",
                "Put that first, and the certificates of its issuers after it.",
            )
        raise UserError(
            f"the key {key} does not belong to the certificate {certificate}",
            "Give the key with which that certificate was asked for.",
        )
    begins, expires = chain[0].not_valid_before_utc, chain[0].not_valid_after_utc
    now = wall_ms() / 1000
    if expires.timestamp() <= now:
        raise UserError(
            f"the certificate {certificate} expired on {expires:{_TIME}}",
            "Renew it; or set this machine's clock, if that is wrong.",
        )
    if begins.timestamp() > now:
        raise UserError(
            f"the certificate {certificate} is not valid before {begins:{_TIME}}",
            "Wait until then; or set this machine's clock, if that is wrong.",
        )
    return TlsPair(_context(certificate, key), int(expires.timestamp() * 1000), stamp)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # which would have reading wait for writing
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")  # so that nobody is asked for one
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"OpenSSL does not take the certificate {certificate} with the key {key}: {reason}",
            "Use an ECDSA key on P-256, or an RSA key of 2,048 bits or more.",
        ) from None
    return context


def _read(path: Path, kind: str) -> tuple[bytes, os.stat_result]:
    try:
        return read_file(path)
    except OSError as error:
        raise UserError(
            f"cannot read the TLS {kind} {path}: {error.strerror}",
            f"Name a PEM file: 'tls_{kind}' in the config, --tls-{kind} of sealring serve.",
        ) from None


def _read_chain(path: Path) -> list[x509.Certificate]:
    """The certificates in *path*, at least one."""
    data, _ = _read(path, "certificate")
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise UserError(
            f"{path} holds no certificate in PEM",
            "It should begin with -----BEGIN CERTIFICATE-----, and have the server's own first.",
        ) from None


def _public_half(path: Path) -> bytes:
    """The public half of the private key in *path*, as a SubjectPublicKeyInfo."""
    data, status = _read(path, "key")
    try:
        key = serialization.load_pem_private_key(data, None)
    except TypeError:
        raise UserError(
            f"the TLS key {path} is encrypted, and a server has nobody to ask for the password",
            f"Decrypt it into a file of your own: openssl pkey -in {path} -out plain.key",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(
            f"{path} holds no private key in PEM",
            "It should begin with -----BEGIN PRIVATE KEY-----, or EC or RSA PRIVATE KEY.",
        ) from None
    check_secret(path, status, "TLS key")
    return key.public_key().public_bytes(*_SPKI)


# ---------------------------------------------------------------------- handshakes


class _Line:
    """The steps of one source's handshakes, one at a time. Second steps go first, for they end
    their handshakes; of the others, the one that was asked for last."""

    def __init__(self) -> None:
        self._held = False
        self._second: dict[trio.lowlevel.Task, None] = {}
        self._others: dict[trio.lowlevel.Task, None] = {}

    @asynccontextmanager
    async def step(self, *, second: bool) -> AsyncIterator[None]:
        """Wait for one's turn, which lasts as long as the block."""
        if self._held:
            task, waiting = trio.lowlevel.current_task(), self._second if second else self._others
            waiting[task] = None

            # One that is closed has to leave at once: else it might be called all the same.
            def abort(_: object) -> trio.lowlevel.Abort:
                del waiting[task]
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        self._held = True
        try:
            yield
        finally:
            if waiting := self._second or self._others:
                trio.lowlevel.reschedule(waiting.popitem()[0])
            else:
                self._held = False


@attrs.define
class Tls:
    """What the API's TLS is done with: the files, and the *pair* that they held."""

    certificate: Path
    key: Path
    pair: TlsPair
    _steps: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(MAX_STEPS))
    _lines: WeakValueDictionary[str, _Line] = attrs.field(factory=WeakValueDictionary)
    _wrong: Stamp | None = None  # of files that were no pair when they were looked at last
    _logged_wrong: bool = False
    _logged_days: int = WARN_DAYS

    @classmethod
    def read(cls, certificate: Path, key: Path) -> Tls:
        """The TLS of the pair in these files. Raises `UserError`."""
        return cls(certificate, key, read_pair(certificate, key))

    @property
    def seconds_left(self) -> float:
        """Seconds until the certificate expires; negative once it has."""
        return (self.pair.expires_ms - wall_ms()) / 1000

    async def greet(self, sock: socket.socket, place: Place) -> socket.socket | TlsSocket | None:
        """The client at *sock*, which has *place*, after the handshake: a `TlsSocket`; *sock*
        itself if the client does not speak TLS; None if it has left, or took too long. Closes
        *sock* if it returns neither."""
        sock.setblocking(False)
        done = False
        try:
            with trio.move_on_after(HANDSHAKE_SECONDS):
                first = await _first_record(sock)
                if first and first[0] != _HANDSHAKE:
                    done = True
                    return sock
                if first:
                    secure = TlsSocket(sock, self.pair.context)
                    done = await self._shake(secure, place)
                    return secure if done else None
        except OSError as error:  # as all of OpenSSL's are
            log.debug("a TLS handshake failed: %s", error)
        finally:
            if not done:
                trio.lowlevel.notify_closing(sock)
                sock.close()
        return None

    async def _shake(self, secure: TlsSocket, place: Place) -> bool:
        """Whether the handshake came to its end, and the client did not leave. Raises `OSError`."""
        line = self._lines.setdefault(place.source, _Line())
        number = 0
        while True:
            number += 1
            try:
                async with line.step(second=number == 2):
                    here = await trio.to_thread.run_sync(secure.do_handshake, limiter=self._steps)
            except (BlockingIOError, ssl.SSLWantReadError):
                await _push(secure)
                await trio.lowlevel.wait_readable(secure)
            except OSError:
                with contextlib.suppress(BlockingIOError):
                    secure.push()  # the alert that says what is wrong
                raise
            else:
                await _push(secure)
                return here

    async def watch(self) -> None:
        """Look after the files until cancelled."""
        while True:
            self._warn()
            await trio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Take a renewed pair up, if there is one."""
        stamp = await trio.to_thread.run_sync(stamp_of, self.certificate, self.key)
        if stamp == self.pair.stamp or (stamp == self._wrong and self._logged_wrong):
            return
        try:
            self.pair = await trio.to_thread.run_sync(read_pair, self.certificate, self.key)
        except UserError as error:
            if stamp == self._wrong:  # for a whole look: nobody is in the middle of replacing it
                self._logged_wrong = True
                log.warning(
                    "the API goes on with the certificate that it has: %s. %s",
                    error.what,
                    error.advice,
                )
            else:
                self._wrong, self._logged_wrong = stamp, False
        else:
            self._wrong, self._logged_days = None, WARN_DAYS
            log.info("the API has a renewed certificate, for %d days", self.seconds_left // 86_400)

    def _warn(self) -> None:
        days = (self.pair.expires_ms - wall_ms()) // _DAY_MS
        if days < self._logged_days:
            self._logged_days = days
            log.warning(
                "the API's certificate %s %s: renew it, and it is taken up at once",
                self.certificate,
                f"expires in {days + 1} days" if days >= 0 else "has expired",
            )


async def _push(secure: TlsSocket) -> None:
    while True:
        try:
            return secure.push()
        except BlockingIOError:
            await trio.lowlevel.wait_writable(secure)


async def _first_record(sock: socket.socket) -> bytes:
    """What comes first at *sock*, which is left there: a whole record of TLS, or a byte of what is
    none; nothing if the client leaves. It is less than a record if the client sends no more.

    Whoever sends a record byte by byte is not looked at before it is whole, and costs no step.
    """
    need = 1
    try:
        while True:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, need)
            await trio.lowlevel.wait_readable(sock)
            try:
                seen = sock.recv(need, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            if len(seen) < need or need > _RECORD_HEADER or seen[0] != _HANDSHAKE:
                return seen
            size = int.from_bytes(seen[-2:], "big") if need == _RECORD_HEADER else 0
            need = _RECORD_HEADER + min(size, _MAX_RECORD)
            if need == len(seen):  # an empty record
                return seen
    finally:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


class TlsSocket:
    """TLS on *sock*, as a server with *context*, with those methods of a non-blocking socket that
    `Http1` uses. Errors are OpenSSL's, all of which are `OSError`.

    OpenSSL on a socket of its own reads on for as long as records come that carry nothing: a client
    that sends `KeyUpdate` after `KeyUpdate` (TLS 1.3, and no request or key is needed for it) would
    hold the event loop in one call. So the bytes go through memory: OpenSSL sees as many as one
    read took from the kernel, and others have their turn. A client whose bytes carry far less than
    they are is given up."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = sock
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._unsent = bytearray()  # records that the kernel has not taken yet
        self._sealed = 0  # bytes of content in them that `send` has not counted as sent yet
        self._came = 0
        self._content = 0

    @property
    def pending(self) -> bool:
        """Whether there may be content that the kernel has given already."""
        return bool(self._in.pending or self._tls.pending())

    def fileno(self) -> int:
        """The socket's descriptor, to wait for it."""
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        """As a socket's."""
        self._socket.setblocking(flag)

    def do_handshake(self) -> bool:
        """Take a step of the handshake; `push` what it says. False if the client has left. Raises
        `BlockingIOError` or `ssl.SSLWantReadError` when it needs more from the client."""
        if not self.pull():
            return False
        self._tls.do_handshake()
        return True

    def pull(self) -> bool:
        """Take what the kernel has, at most one record's size. False if nothing more will come.
        Raises `BlockingIOError`."""
        data = self._socket.recv(_RECORD)
        self._came += len(data)
        self._in.write(data)
        return bool(data)

    def push(self) -> None:
        """Send the records that there are. Raises `BlockingIOError`; the rest waits for the next
        call."""
        self._unsent += self._out.read()
        while self._unsent:
            del self._unsent[: self._socket.send(self._unsent)]

    def recv(self, size: int) -> bytes:
        """Content, at most *size* bytes; none when no more will come. Raises `BlockingIOError` or
        `ssl.SSLWantReadError` when there is none yet, as also after what carried none."""
        try:
            content = self._tls.read(size)
        except ssl.SSLWantReadError:
            if not self.pull():
                return b""
            content = self._read_pulled(size)
        self._content += len(content)
        return content

    def _read_pulled(self, size: int) -> bytes:
        try:
            return self._tls.read(size)
        except ssl.SSLWantReadError:
            if self._came > MAX_EMPTY + MAX_OVERHEAD * self._content:
                raise ConnectionAbortedError("its TLS carries next to nothing") from None
            raise
        finally:
            with contextlib.suppress(BlockingIOError):
                self.push()  # an alert, or the answer to an update of keys

    def send(self, data: bytes | bytearray) -> int:
        """How many bytes of *data* have been sent whole. Raises `BlockingIOError` until they are;
        the next call has to begin with the same bytes."""
        if not self._sealed:
            with memoryview(data) as view:
                self._sealed = self._tls.write(view[:_RECORD])
        self.push()
        sent, self._sealed = self._sealed, 0
        return sent

    def unwrap(self) -> None:
        """Say to the client that nothing more comes; its own end is not waited for."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self.push()

    def shutdown(self, how: int) -> None:
        """As a socket's."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """As a socket's."""
        self._socket.close()
