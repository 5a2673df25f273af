"""Decodes the frames of the links in a capture, as far as the keys allow.

Handshake frames show what they have in the clear. Sealed frames open once a link's secrets are
found: each entry of the key log is tried on its first sealed frame, which is ACCEPT and repeats t4.
A frame that no keys open is shown by its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from sealring_protocol.codec.codes import MessageCode
from sealring_protocol.codec.encoding import decode, to_fields
from sealring_protocol.codec.frame import Frame, FrameDecoder, FrameKind
from sealring_protocol.codec.messages import Accept
from sealring_protocol.codec.wire import FIELDS, fields, layout
from sealring_protocol.errors import SealringError
from sealring_protocol.limits import MAX_SEALED_BODY
from sealring_protocol.security.handshake import TrafficSecrets
from sealring_protocol.security.keys import SECRET, Suite
from sealring_protocol.security.seal import OpeningChannel
from sealring_tools.capture.streams import Piece
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import LABEL

_LIMITS: Final = {int(FrameKind.HANDSHAKE): 1 << 16, int(FrameKind.SEALED): MAX_SEALED_BODY}
_HANDSHAKE: Final = {int(code): code.name for code in MessageCode if code.name in FIELDS}
_SHOWN: Final = 32
"""Bytes of the longest field of a handshake that is shown whole."""


@attrs.frozen
class Event:
    """Something that one end said: *what* is a message's name, ``sealed`` or ``unreadable``."""

    time: float
    connection: int
    source: str
    destination: str
    what: str
    size: int
    """Bytes of the frame."""
    fields: dict[str, Any]


@attrs.define
class _Side:
    decoder: FrameDecoder = attrs.Factory(lambda: FrameDecoder(_LIMITS))
    opener: OpeningChannel | None = None
    before: int = 0  # sealed frames seen
    dead: bool = False


@attrs.define
class _Connection:
    initiator: str = ""
    sides: dict[str, _Side] = attrs.Factory(dict)

    def side(self, source: str) -> _Side:
        return self.sides.setdefault(source, _Side())


class Decoder:
    """Turns the bytes of connections into events, with the secrets in *keys*."""

    def __init__(self, keys: Sequence[TrafficSecrets] = ()) -> None:
        self._keys = keys
        self._connections: dict[int, _Connection] = {}

    def events(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        """Every event of the capture, in order. Connections that are not sealring/1 are skipped."""
        for piece in pieces:
            connection = self._connections.setdefault(piece.number, _Connection())
            side = connection.side(piece.source)
            if side.dead:
                continue
            try:
                side.decoder.receive_data(piece.data)
                while (frame := side.decoder.next_frame()) is not None:
                    yield self._event(piece, connection, side, frame)
            except SealringError as error:
                side.dead = True
                if connection.initiator:
                    yield _told(piece, "unreadable", 0, {"why": str(error)})

    def _event(self, piece: Piece, connection: _Connection, side: _Side, frame: Frame) -> Event:
        size, body = len(frame.header) + len(frame.body), bytes(frame.body)
        if frame.kind == FrameKind.HANDSHAKE:
            name, fields = _handshake(body)
            if name in {MessageCode.INIT.name, MessageCode.JOIN_INIT.name}:
                connection.initiator = piece.source
            return _told(piece, name, size, fields)
        if side.opener is None and side.before == 0:
            self._find_keys(piece, connection, frame)
        side.before += 1
        if side.opener is None:
            return _told(piece, "sealed", size, {})
        message = decode(side.opener.open(frame))
        fields = to_fields(message)
        return _told(piece, fields.pop("message"), size, _brief(fields))

    def _find_keys(self, piece: Piece, connection: _Connection, frame: Frame) -> None:
        """Try each entry of the key log on the responder's first sealed frame; ACCEPT comes before
        all others."""
        if piece.source == connection.initiator:
            return
        for keys in self._keys:
            try:
                accept = decode(OpeningChannel(keys.suite, keys.to_initiator).open(frame))
            except SealringError:
                continue
            if isinstance(accept, Accept) and accept.transcript == keys.transcript:
                ways = (piece.source, keys.to_initiator), (piece.destination, keys.to_responder)
                for source, secret in ways:
                    connection.side(source).opener = OpeningChannel(keys.suite, secret)
                return


def _told(piece: Piece, what: str, size: int, fields: dict[str, Any]) -> Event:
    return Event(piece.time, piece.number, piece.source, piece.destination, what, size, fields)


def _handshake(body: bytes) -> tuple[str, dict[str, Any]]:
    """The message of a handshake frame, and the fields that it has in the clear."""
    name = _HANDSHAKE.get(body[0], "") if body else ""
    if not name or len(body) < layout(name).size:
        return "unreadable", {}
    (_, *kinds), (_, *values) = fields(FIELDS[name]), layout(name).unpack_from(body)
    return name, {
        field: _in_clear(field, value) for (field, _), value in zip(kinds, values, strict=True)
    }


def _in_clear(field: str, value: Any) -> Any:
    if field == "suites":
        return [bit for bit in range(32) if value >> bit & 1]
    if isinstance(value, bytes):
        return value.hex() if len(value) <= _SHOWN else f"{len(value)} bytes"
    return str(value) if value >> 32 else value


def _brief(fields: dict[str, Any]) -> dict[str, Any]:
    """*fields*, with tensors, a roster and a tunnel's data replaced by their sizes."""
    told = dict(fields)
    if "tensors" in told:
        told["tensors"] = [
            {**tensor, "data": f"{len(tensor['data']) // 2} bytes"} for tensor in told["tensors"]
        ]
    for name in ("roster", "data"):
        if told.get(name):
            told[name] = f"{len(told[name]) // 2} bytes"
    return told


def read_key_log(path: Path) -> list[TrafficSecrets]:
    """The links in the file at *path*. Raises `UserError`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read keys from {path}: {error}",
            "Name the file that 'keylog' in a config names.",
        ) from None
    return [
        _secrets_of(path, at, line) for at, line in enumerate(lines, 1) if line.startswith(LABEL)
    ]


def _secrets_of(path: Path, at: int, line: str) -> TrafficSecrets:
    try:
        _, suite, *rest = line.split()
        transcript, to_responder, to_initiator = (bytes.fromhex(each) for each in rest)
        if {len(transcript), len(to_responder), len(to_initiator)} != {SECRET}:
            raise ValueError(f"a secret has {SECRET} bytes")  # noqa: TRY301
        return TrafficSecrets(Suite(int(suite)), transcript, to_responder, to_initiator)
    except ValueError as error:
        raise UserError(
            f"{path}, line {at}, is no line of keys: {error}", "Take it out, or record anew."
        ) from None
