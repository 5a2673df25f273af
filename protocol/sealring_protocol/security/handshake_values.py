"""The inputs and outputs of a handshake, as values. See `security.handshake`."""

from __future__ import annotations

import enum
import functools
from collections import deque
from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast

import attrs
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey

from sealring_protocol.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    RemoteProtocolError,
    SealringError,
)
from sealring_protocol.security.handshake_messages import Claims, Proven
from sealring_protocol.security.identity import node_id, verify
from sealring_protocol.security.keys import SignContext, Suite, mac
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.security.schedule import admission_key, maced_payload, signed_payload
from sealring_protocol.table import IllegalEvent, Machine, Table

_U64: int = 1 << 64


class InitForAnother(AuthenticationFailed):
    """An INIT with *tag* came that is not for this node."""

    def __init__(self, tag: bytes) -> None:
        super().__init__("INIT is not for this node of this cluster")
        self.tag = tag


@attrs.frozen
class TrafficSecrets:
    """The first traffic secrets of a link, 32 bytes each, for a key log that makes recorded frames
    readable.

    *transcript* is t4, which the link's ACCEPT repeats. There are no activation secrets here:
    another process has them, and tensors stay sealed to the reader of such a log.
    """

    suite: Suite
    transcript: bytes
    to_responder: bytes = attrs.field(repr=False)
    to_initiator: bytes = attrs.field(repr=False)


@attrs.frozen
class HandshakeConfig:
    """A node's part in each of its handshakes. Make a new one when the roster changes.

    *signer_public_key* and *coordinator* (pinned) are 65-byte keys. *instance* is a random u64 of
    this process. *suites* are in order of preference. *key_log*, if any, is called with the traffic
    secrets of every link whose peer is verified: whoever reads them can read those links.

    Raises `AuthenticationFailed` if the roster is not signed by the coordinator, and
    `LocalProtocolError` if this node is no member or a field is out of range.
    """

    signer_public_key: bytes
    roster: SignedRoster
    coordinator: bytes
    instance: int
    suites: tuple[Suite, ...] = tuple(Suite)
    key_log: Callable[[TrafficSecrets], None] | None = attrs.field(
        default=None, eq=False, repr=False
    )

    def __attrs_post_init__(self) -> None:
        self.roster.verify(self.coordinator)
        if self.node_id not in self.roster.roster:
            raise LocalProtocolError("the roster does not hold this node")
        if not 0 <= self.instance < _U64:
            raise LocalProtocolError("an instance is a u64")
        if not self.suites or len(set(self.suites)) < len(self.suites):
            raise LocalProtocolError("suites are one or more, each once")

    @functools.cached_property
    def node_id(self) -> bytes:
        """This node's id."""
        return node_id(self.signer_public_key)

    @functools.cached_property
    def admission(self) -> bytes:
        """The key for the tags of INITs to this node."""
        return admission_key(self.roster.roster.cluster, self.signer_public_key)


@attrs.frozen(init=False)
class VerifiedPeer:
    """The proof that a peer holds its key and the keys of this exchange. It cannot be made
    otherwise: its constructor checks the signature and then the MAC.

    Raises `AuthenticationFailed`.
    """

    id: bytes
    instance: int
    serial: int
    digest: bytes

    def __init__(
        self,
        public_key: bytes,
        claims: Claims,
        proven: Proven,
        *,
        suite: Suite,
        context: SignContext,
        transcript: bytes,
        mac_key: bytes,
    ) -> None:
        verify(
            public_key,
            proven.signature,
            signed_payload(suite, context, transcript, claims.encoded),
        )
        expected = mac(mac_key, maced_payload(transcript, claims.encoded, proven.signature))
        if not compare_digest(expected, proven.mac):
            raise AuthenticationFailed(f"the MAC in {context.name} does not verify")
        if node_id(public_key) != claims.node_id:
            raise AuthenticationFailed(f"{context.name} comes from another node")
        self.__attrs_init__(claims.node_id, claims.instance, claims.serial, claims.digest)


@attrs.frozen(eq=False)
class Secrets:
    """The secrets of a link, 32 bytes each, once the peer is verified. Take them, then drop this.

    *transcript* is t4. Send and receive are as this end sees them.
    """

    suite: Suite
    peer: VerifiedPeer
    purpose: Purpose
    transcript: bytes
    send_traffic: bytes = attrs.field(repr=False)
    send_activation: bytes = attrs.field(repr=False)
    receive_traffic: bytes = attrs.field(repr=False)
    receive_activation: bytes = attrs.field(repr=False)


# ---------------------------------------------------------------------- events


@attrs.frozen(eq=False)
class EncapsulationRequested:
    """Encapsulate to *key* (``shared_secret, ciphertext = key.encapsulate()``). Answer with
    `Responder.provide_encapsulation`. *encapsulation_key* has the same key as bytes, for
    records."""

    encapsulation_key: bytes
    key: MLKEM768PublicKey = attrs.field(repr=False)


@attrs.frozen
class SignatureRequested:
    """Sign *payload* with the node's `Signer`. Answer with `provide_signature`."""

    payload: bytes


@attrs.frozen(eq=False)
class PeerVerified:
    """The peer is authenticated; the channels can be made from *secrets*."""

    secrets: Secrets


@attrs.frozen(eq=False)
class PeerRefused:
    """A verified peer is refused, for the reason in *error*: send CLOSE with its code.

    The machine is CLOSED.
    """

    error: RemoteProtocolError


@attrs.frozen
class RosterReceived:
    """The peer brought a newer, valid roster: store it, then call `stored`."""

    roster: SignedRoster


@attrs.frozen(eq=False)
class Established:
    """The link is up. Both ends now hold *roster*."""

    peer: VerifiedPeer
    purpose: Purpose
    transcript: bytes
    roster: SignedRoster


HandshakeEvent = (
    EncapsulationRequested
    | SignatureRequested
    | PeerVerified
    | PeerRefused
    | RosterReceived
    | Established
)


# ---------------------------------------------------------------------- handshake base
# What both roles of the handshake share: queued events, bytes to send, and failure.
#
# A role is a `Machine` over its table, and one stage object. The stage has the class of the
# machine's state and holds only what is valid in it. Only `_advance` changes the state: it fires
# the event and replaces the stage, after which nothing refers to the old stage's secrets.


S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
H = TypeVar("H", bound="Handshake[Any, Any]")


@attrs.frozen
class Closed:
    """The link was closed normally."""


@attrs.frozen(eq=False)
class Dead:
    """The link has failed with *error*, which every later call raises again."""

    error: SealringError


def fatal(method: Callable[Concatenate[H, P], R]) -> Callable[Concatenate[H, P], R]:
    """Make an error of *method* kill the handshake; a dead handshake raises its error again."""

    @functools.wraps(method)
    def guarded(self: H, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_alive()
        try:
            return method(self, *args, **kwargs)
        except SealringError as error:
            self._die(error)
            raise

    return guarded


_ENDS = (Closed, Dead)


class Handshake(Generic[S, E]):
    """One end of one handshake. See `security.handshake` for how to drive it."""

    LIMITS: ClassVar[Mapping[Any, Mapping[int, int]]]
    FAIL: ClassVar[Any]
    CLOSE: ClassVar[Any]

    __slots__ = ("_events", "_machine", "_out", "_stage")

    def __init__(self, table: Table[S, E], initial: S, stage: object) -> None:
        self._machine = Machine(table, initial)
        self._stage = stage
        self._events: deque[HandshakeEvent] = deque()
        self._out: list[bytes] = []

    @property
    def state(self) -> S:
        """The state of the handshake."""
        return self._machine.state

    @property
    def over(self) -> bool:
        """True if the link was closed, or has failed."""
        return isinstance(self._stage, _ENDS)

    @property
    def frame_limits(self) -> Mapping[int, int]:
        """The frames to accept in this state: the longest body in bytes for each kind."""
        return self.LIMITS[self._machine.state]

    def next_event(self) -> HandshakeEvent | None:
        """The next event; None if there is none. A dead handshake raises its error."""
        self._check_alive()
        return self._events.popleft() if self._events else None

    def data_to_send(self) -> bytes:
        """Take the bytes to send, which may be none. A dead handshake raises its error."""
        self._check_alive()
        data = b"".join(self._out)
        self._out.clear()
        return data

    @fatal
    def close(self) -> None:
        """CLOSE was sent or received, on a link whose peer is verified."""
        self._advance(self.CLOSE, Closed())

    def fail(self, error: SealringError) -> None:
        """The link has failed with *error*, for example because the stream ended or a deadline
        passed.

        Raises the earlier error of a dead handshake, and `IllegalEvent` on a closed one.
        """
        self._check_alive()
        self._machine.fire(self.FAIL)
        self._bury(error)

    def _check_alive(self) -> None:
        stage = self._stage
        if isinstance(stage, Dead):
            raise stage.error.with_traceback(None)

    def _current(self, kind: type[T], event: E) -> T:
        """The present stage, which has the class *kind* in every state where *event* is legal.
        Raises `IllegalEvent` in any other state."""
        self._machine.after(event)
        return cast(T, self._stage)

    def _advance(self, event: E, stage: object) -> None:
        self._machine.fire(event)
        self._stage = stage

    def _die(self, error: SealringError) -> None:
        try:
            self._machine.fire(self.FAIL)
        except IllegalEvent:
            return  # closed already: nothing after CLOSE changes that
        # The error is kept. Its traceback would keep stack frames alive, and the keys in them.
        error.__traceback__ = error.__context__ = None
        self._bury(error)

    def _bury(self, error: SealringError) -> None:
        # Bytes that were not drained are dropped: a stranger gets not one byte.
        self._stage = Dead(error)
        self._events.clear()
