"""The inputs and outputs of a handshake, as values. See `security.handshake`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from hmac import compare_digest

import attrs
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey

from sealring_protocol.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.security.handshake_messages import Claims, Proven
from sealring_protocol.security.identity import node_id, verify
from sealring_protocol.security.keys import SignContext, Suite, mac
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.security.schedule import (
    admission_key,
    maced_payload,
    signed_payload,
)

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
