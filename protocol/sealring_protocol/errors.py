"""Errors by blame, and the one table from error classes to wire codes.

Every exception that leaves this package is one of these. `LocalProtocolError` blames the caller;
`RemoteProtocolError` and its subclasses blame the peer. `WIRE_CODES` has the code that CLOSE
carries for each. It covers every remote error: a test, not a default, finds a class that is
missing.
"""

from __future__ import annotations

import enum
from typing import Final


class CloseCode(enum.IntEnum):
    """Why a link ends, as CLOSE carries it (u16)."""

    SHUTDOWN = 0
    PROTOCOL_ERROR = 1
    LIMIT_EXCEEDED = 2
    AUTHENTICATION_FAILED = 3
    DUPLICATE_LINK = 4
    ROSTER_CONFLICT = 5
    MODEL_MISMATCH = 6
    ROLE_VIOLATION = 7
    ROSTER_EXPIRED = 8
    TIMEOUT = 9
    POLICY_MISMATCH = 10
    REPLACED = 11
    INTERNAL_ERROR = 12
    NOT_READY = 13
    REFUSED = 14
    VERSION_MISMATCH = 15


class SealringError(Exception):
    """Base of every error that this package raises."""


class LocalProtocolError(SealringError):
    """The caller asked for something that the protocol does not allow here."""


class RemoteProtocolError(SealringError):
    """The peer sent something that the protocol does not allow."""


class LimitExceeded(RemoteProtocolError):
    """The peer went beyond a limit named in `sealring_protocol.limits`."""


class AuthenticationFailed(RemoteProtocolError):
    """A tag, signature or identity did not verify. All have one code, so that it is no oracle."""


class RoleViolation(RemoteProtocolError):
    """A valid member sent a message that its role may not send."""


class RosterConflict(RemoteProtocolError):
    """Two different rosters carry the same serial."""


class RosterExpired(RemoteProtocolError):
    """The roster that admitted the peer is past its expiry."""


class ModelMismatch(RemoteProtocolError):
    """The peer holds another model, or another version of it."""


class PolicyMismatch(RemoteProtocolError):
    """Both sides must agree on a policy (such as the inner seal) and do not."""


class VersionMismatch(RemoteProtocolError):
    """The peer's program has no step version in common with this one."""


class PeerTimeout(RemoteProtocolError):
    """The peer did not answer within its deadline."""


class Declined(RemoteProtocolError):
    """The peer asked for what it may not have, though nothing that it sent is wrong."""


class ConnectionLost(RemoteProtocolError):
    """The stream ended without CLOSE."""


WIRE_CODES: Final[dict[type[SealringError], CloseCode]] = {
    RemoteProtocolError: CloseCode.PROTOCOL_ERROR,
    LimitExceeded: CloseCode.LIMIT_EXCEEDED,
    AuthenticationFailed: CloseCode.AUTHENTICATION_FAILED,
    RoleViolation: CloseCode.ROLE_VIOLATION,
    RosterConflict: CloseCode.ROSTER_CONFLICT,
    RosterExpired: CloseCode.ROSTER_EXPIRED,
    ModelMismatch: CloseCode.MODEL_MISMATCH,
    PolicyMismatch: CloseCode.POLICY_MISMATCH,
    VersionMismatch: CloseCode.VERSION_MISMATCH,
    PeerTimeout: CloseCode.TIMEOUT,
    Declined: CloseCode.REFUSED,
    ConnectionLost: CloseCode.PROTOCOL_ERROR,
    LocalProtocolError: CloseCode.INTERNAL_ERROR,
}


def wire_code(error: SealringError) -> CloseCode:
    """The code that CLOSE carries for *error*: that of its class, or of the nearest base class."""
    return next(WIRE_CODES[kind] for kind in type(error).__mro__ if kind in WIRE_CODES)
