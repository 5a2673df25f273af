"""The codes of messages, and what holds their fields to rules."""

from __future__ import annotations

import enum

from sealring_protocol.errors import LocalProtocolError


def rule(holds: bool, text: str) -> None:
    """Raise `LocalProtocolError` with *text* unless a field's rule *holds*. A decoder turns it into
    an error of the peer."""
    if not holds:
        raise LocalProtocolError(text)


class MessageCode(enum.IntEnum):
    """The first byte of every message. Gaps leave room for later ones."""

    INIT = 0x01
    RESP = 0x02
    FIN = 0x03
    ACCEPT = 0x04
    PING = 0x05
    PONG = 0x06
    CLOSE = 0x07
    HELLO = 0x08
    BOOTSTRAP = 0x09
    STEP = 0x0A
    STEP_DONE = 0x0B
    TUNNEL = 0x0C
    ROW = 0x0D
    WAITING = 0x0E
    PREPARED = 0x0F
    READY = 0x10
    CANNOT_SERVE = 0x11
    GET = 0x12
    PIECE = 0x13
    CHECKED = 0x14
    JOIN_INIT = 0x15
    JOIN_RESP = 0x16
    JOIN_FIN = 0x17
    ADMIT = 0x18
    JOINED = 0x19
    ADDRESSES = 0x1A
    ASK = 0x1B
    REPLY = 0x1C
    BODY = 0x1D
    CREDIT = 0x1E
    DROP = 0x1F
    CANDIDACY = 0x20
    VOTE = 0x21
    NO_VOTE = 0x22
    RENEW = 0x23
    RENEWED = 0x24
    ENGINE_INFO = 0x81
    HOP_KEY = 0x82
    LOADED = 0x84
    LOGPROBS = 0x85
    GROUP = 0x86
    GROUPED = 0x87
    SCORES = 0x88
    ROW_OVER = 0x89
    ROW_READY = 0x8A
