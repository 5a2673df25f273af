"""The exchange by which a newcomer joins: two roles, their tables, and what they prove.

It is the handshake of `security.handshake` with three differences. The newcomer (the joiner) knows
no roster, only an `Invitation`. The secret of that goes into the key exchange, as a pre-shared key:
without it neither end can make or open what follows. And the joiner's key is in no roster yet: it
shows its public key, and a person decides.

===== ==========================================================================================
INIT  ``hdr · wall_ms u64 · suites u32 · x_J 32 · ek_J 1184 · tag 32``, as a link's, with
      another code; the tag is under ``Extract("sealring/1" || "join", coordinator || secret)``
RESP  ``hdr · suite u8 · x_H 32 · ct 1088 · AEAD(coordinator's key 65 · id_H 32 · roster u32 + bytes
      · signature 64 · mac 32)``
FIN   ``hdr · AEAD(key 65 · id_H 32 · build u64 · memory u64 · name · system · count u16 · addresses
      · signature 64 · mac 32)``
===== ==========================================================================================

The transcripts are chained as a link's, from another beginning, and PRK has one secret more::

    t1  = H(P || "join" || coordinator || INIT)
    PRK = Extract(H(P), ss_kem || ss_x || secret)

What it proves. The joiner accepts RESP only if the coordinator's key in it has the hash in the
invitation, that key has signed the roster, a member of that roster has signed the transcript, and
its MAC is made with PRK. So whoever has read the invitation but is no member of the cluster cannot
be the inviter, and whoever has not read it cannot either. Only then does the joiner say who it is.
The inviter knows that the joiner holds the secret and the key that it shows, and no more: a person
compares the key's fingerprint where it matters who has read the invitation.

After FIN both ends have sealed channels. The inviter answers with ADMIT, which brings the roster
that holds the joiner, or with CLOSE. The joiner stores the roster, and says JOINED.

Both roles are driven as those of a link (`security.handshake`); the calls are in the table.

========================== ========== ==============================================================
call                       role       then
========================== ========== ==============================================================
``dial()``                 joiner     JOIN_INIT is among the bytes
``receive(frame)``         both       `EncapsulationRequested`, `SignatureRequested`, `Introduced`
``provide_encapsulation``  inviter    `SignatureRequested`
``provide_signature``      both       JOIN_RESP or JOIN_FIN is among the bytes; the joiner also
                                      gives `InviterProved`
``admit(message)``         inviter    seal that message
``receive_admit(Admit)``   joiner     `Admitted`: store it
``stored()``               joiner     JOINED: seal that
``receive_joined()``       inviter    the newcomer has joined
``close()``                both       CLOSE was sent or has come
========================== ========== ==============================================================
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final

import attrs
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sealring_protocol.codec.codes import MessageCode
from sealring_protocol.codec.frame import Frame, FrameKind, frame_header
from sealring_protocol.codec.messages import Admit, Build
from sealring_protocol.codec.wire import U16, Reader, is_plain, layout, pack, text, vector
from sealring_protocol.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    RemoteProtocolError,
    RosterExpired,
)
from sealring_protocol.joining.invitation import Invitation, Invitations
from sealring_protocol.limits import (
    AEAD_TAG,
    FRAME_HEADER,
    MAX_ADDRESS,
    MAX_ELECTED,
    MAX_INVITATION_ADDRESSES,
    MAX_NAME,
    MAX_SETTINGS,
    MAX_SYSTEM,
)
from sealring_protocol.security.handshake import (
    CIPHERTEXT,
    HDR,
    INIT_BODY,
    Direction,
    EncapsulationRequested,
    Exchange,
    Handshake,
    SignatureRequested,
    begin,
    both_ways,
    chain,
    check_proof,
    exchange,
    fatal,
    key_exchange,
    open_once,
    parse_init,
    read_proven,
    signed_payload,
    take_init,
    whole_frame,
)
from sealring_protocol.security.identity import (
    SIGNATURE,
    node_id,
    parse_key,
)
from sealring_protocol.security.initiator import ENTROPY as JOINER_ENTROPY
from sealring_protocol.security.keys import SECRET, Label, SignContext, Suite, sha256
from sealring_protocol.security.responder import CLOSE_BODY
from sealring_protocol.security.responder import ENTROPY as INVITER_ENTROPY
from sealring_protocol.security.roster import SignedRoster, newer, open_roster
from sealring_protocol.table import Table

__all__ = [
    "INVITER_ENTROPY",
    "JOINER_ENTROPY",
    "Admitted",
    "Introduced",
    "Inviter",
    "InviterMove",
    "InviterProved",
    "InviterState",
    "JoinSecrets",
    "Joiner",
    "JoinerMove",
    "JoinerState",
    "Newcomer",
]

_RESP: Final = layout("JOIN_RESP")
_RESP_CLAIMS: Final = layout("JOIN_RESP.claims", but=1)
_FIN_CLAIMS: Final = layout("JOIN_FIN.claims")
_PROOF: Final = SIGNATURE + SECRET + AEAD_TAG

MAX_JOIN_RESP: Final = _RESP.size + _RESP_CLAIMS.size + 4 + MAX_ELECTED + _PROOF
"""Bytes of the longest JOIN_RESP body."""

MAX_JOIN_FIN: Final = (
    1
    + _FIN_CLAIMS.size
    + (2 + MAX_NAME)
    + (2 + MAX_SYSTEM)
    + 2
    + MAX_INVITATION_ADDRESSES * (2 + MAX_ADDRESS)
    + _PROOF
)
"""Bytes of the longest JOIN_FIN body."""

ADMIT_BODY: Final = 1 + 4 + MAX_ELECTED + 2 + MAX_SETTINGS + AEAD_TAG
"""Bytes of the longest sealed body that the joiner takes."""


# ---------------------------------------------------------------------- values


@attrs.frozen
class Newcomer:
    """Who asks to join, as it says: its 65-byte *public_key*, which alone is proven; its *name*;
    its *system* in words; its *memory* in bytes; its *build*, as `build_of` makes
    it, 0 if it says none; and the *addresses* at which it will listen.

    Raises `LocalProtocolError` if a field is invalid.
    """

    public_key: bytes
    name: str
    system: str
    memory: int
    build: int
    addresses: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        try:
            parse_key(self.public_key)
        except AuthenticationFailed as error:
            raise LocalProtocolError(f"of a newcomer: {error}") from None
        if not self.name.strip(" ") or not is_plain(self.name) or not is_plain(self.system):
            raise LocalProtocolError(
                "a newcomer's name and system are printable, the name not blank"
            )
        if not 1 <= len(self.addresses) <= MAX_INVITATION_ADDRESSES:
            raise LocalProtocolError(f"a newcomer has 1 to {MAX_INVITATION_ADDRESSES} addresses")
        if not all(address and is_plain(address) for address in self.addresses):
            raise LocalProtocolError("an address is printable and not empty")
        if len(set(self.addresses)) < len(self.addresses):
            raise LocalProtocolError("a newcomer has each of its addresses once")
        encode_newcomer(self, bytes(32))  # or what is too long is noticed when JOIN_FIN is due

    @property
    def id(self) -> bytes:
        """The node id, 32 bytes."""
        return node_id(self.public_key)

    @property
    def steps(self) -> range:
        """The step versions that its program knows; none if it does not say."""
        oldest, newest = self.build >> 16 & 0xFFFF, self.build & 0xFFFF
        return range(oldest, newest + 1) if self.build else range(0)


def build_of(build: Build) -> int:
    """The step versions of *build* as the number that JOIN_FIN has: the oldest in 16 bits, then the
    newest in 16."""
    return build.oldest << 16 | build.newest


@attrs.frozen(eq=False)
class JoinSecrets:
    """The traffic secrets of a join, 32 bytes each, as this end sees them. Take them, then drop
    this."""

    suite: Suite
    send: bytes = attrs.field(repr=False)
    receive: bytes = attrs.field(repr=False)


@attrs.frozen(eq=False)
class InviterProved:
    """To the joiner: the inviter is a member of the cluster of the invitation. *roster* is that
    cluster's, signed by *coordinator* (65 bytes)."""

    roster: SignedRoster
    coordinator: bytes
    inviter: bytes  # node id
    secrets: JoinSecrets


@attrs.frozen(eq=False)
class Introduced:
    """To the inviter: *newcomer* holds the secret of *invitation* and its own key. Somebody has to
    decide. *skew_ms* is by how much its clock is ahead of this one."""

    newcomer: Newcomer
    invitation: Invitation
    skew_ms: int
    secrets: JoinSecrets


@attrs.frozen(eq=False)
class Admitted:
    """To the joiner: *roster* holds it. Store it with *settings*, then call `stored`."""

    roster: SignedRoster
    settings: str


JoinerEvent = SignatureRequested | InviterProved | Admitted
InviterEvent = EncapsulationRequested | SignatureRequested | Introduced


# ------------------------------------------------------------------- key schedule


def join_transcript(suite: Suite, coordinator: bytes, init: bytes) -> bytes:
    """t1, from the *coordinator*'s hash and the whole frame of JOIN_INIT."""
    return sha256(suite.protocol, Label.JOIN, coordinator, init)


def join_exchange(
    suite: Suite, kem_secret: bytes, x_secret: bytes, secret: bytes, transcript: bytes
) -> Exchange:
    """PRK and the exchange's keys at *transcript* t2; *secret* is the invitation's."""
    return key_exchange(suite, kem_secret, x_secret + secret, transcript)


def _secrets(
    keys: Exchange, sends: Direction, own: bytes, peer: bytes, transcript: bytes
) -> JoinSecrets:
    send, _, receive, _ = both_ways(keys, sends, own, peer, transcript)
    return JoinSecrets(keys.suite, send, receive)


# -------------------------------------------------------------------------- codec


def encode_join_shares(suite: Suite, x_public: bytes, ciphertext: bytes, claims: bytes) -> bytes:
    """R: JOIN_RESP up to its sealed part, which holds *claims*, with the header of the whole."""
    header = frame_header(FrameKind.HANDSHAKE, _RESP.size + len(claims) + _PROOF)
    return header + pack(_RESP, MessageCode.JOIN_RESP, suite, x_public, ciphertext)


def encode_join_claims(coordinator: bytes, inviter: bytes, roster: bytes) -> bytes:
    """The claims of JOIN_RESP: the *coordinator*'s public key, the *inviter*'s node id, and the
    signed *roster*."""
    return pack(_RESP_CLAIMS, coordinator, inviter) + vector(roster, MAX_ELECTED)


def encode_newcomer(newcomer: Newcomer, inviter: bytes) -> bytes:
    """The claims of JOIN_FIN, to the *inviter* (node id). Raises `LocalProtocolError` beyond a
    limit."""
    return (
        pack(_FIN_CLAIMS, newcomer.public_key, inviter, newcomer.build, newcomer.memory)
        + text(newcomer.name, MAX_NAME)
        + text(newcomer.system, MAX_SYSTEM)
        + pack(U16, len(newcomer.addresses))
        + b"".join(text(address, MAX_ADDRESS) for address in newcomer.addresses)
    )


def _read_newcomer(reader: Reader) -> tuple[Newcomer, bytes]:
    """A newcomer, and the inviter that it means. Raises `RemoteProtocolError`."""
    public_key, inviter, build, memory = reader.unpack(_FIN_CLAIMS)
    name, system = reader.text(MAX_NAME), reader.text(MAX_SYSTEM)
    addresses = tuple(
        reader.text(MAX_ADDRESS) for _ in range(reader.count(MAX_INVITATION_ADDRESSES))
    )
    try:
        return Newcomer(public_key, name, system, memory, build, addresses), inviter
    except LocalProtocolError as error:
        raise RemoteProtocolError(str(error)) from None


# -------------------------------------------------------------------- the joiner's stages


@attrs.frozen(eq=False)
class Asking:
    """Nothing has been sent."""

    invitation: Invitation
    newcomer: Newcomer
    wall_ms: int
    suites: tuple[Suite, ...]
    entropy: bytes = attrs.field(repr=False)

    def init(self) -> tuple[bytes, Asked]:
        """JOIN_INIT, and the stage that waits for its answer."""
        admission, code = self.invitation.admission, MessageCode.JOIN_INIT
        x, kem, init = begin(admission, self.wall_ms, self.suites, self.entropy, code)
        return init, Asked(self, x, kem, init)


@attrs.frozen(eq=False)
class Asked:
    """JOIN_INIT was sent."""

    asking: Asking
    x_private: X25519PrivateKey = attrs.field(repr=False)
    kem_private: MLKEM768PrivateKey = attrs.field(repr=False)
    init: bytes = attrs.field(repr=False)

    def receive(self, frame: Frame) -> Introducing:
        """The next stage, if *frame* is a valid JOIN_RESP. Raises `RemoteProtocolError` or a
        subclass."""
        asking, invitation = self.asking, self.asking.invitation
        if len(frame.body) < _RESP.size + _PROOF:
            raise RemoteProtocolError("JOIN_RESP is due, and something shorter came")
        whole = whole_frame(frame, MessageCode.JOIN_RESP, len(frame.body))
        _, code, x_public, ciphertext = _RESP.unpack_from(whole, FRAME_HEADER)
        suite = next((suite for suite in asking.suites if suite == code), None)
        if suite is None:
            raise RemoteProtocolError(f"JOIN_RESP chooses suite {code}, which was not offered")
        shares = whole[: FRAME_HEADER + _RESP.size]
        t1 = join_transcript(suite, invitation.coordinator, self.init)
        t2 = chain(t1, shares)
        keys = join_exchange(
            suite,
            self.kem_private.decapsulate(ciphertext),
            exchange(self.x_private, x_public),
            invitation.secret,
            t2,
        )
        reader = Reader(open_once(suite, keys.responder_key, whole[len(shares) :], t2))
        coordinator, inviter = reader.unpack(_RESP_CLAIMS)
        roster = reader.vector(MAX_ELECTED)
        proven = read_proven(reader)
        if sha256(coordinator) != invitation.coordinator:
            raise AuthenticationFailed("another coordinator answers than the invitation names")
        signed = open_roster(coordinator, roster)
        member = signed.roster.member(inviter)
        if member is None:
            raise AuthenticationFailed("it is no member of the cluster that invites")
        encoded = encode_join_claims(coordinator, inviter, roster)
        check_proof(keys, SignContext.JOIN_RESP, member.public_key, encoded, proven, t2)
        if signed.roster.expired(asking.wall_ms):
            raise RosterExpired(
                f"the cluster's roster {signed.roster.serial} has expired by this machine's clock"
            )
        claims = encode_newcomer(asking.newcomer, inviter)
        return Introducing(asking, signed, coordinator, inviter, keys, chain(t1, whole), claims)


@attrs.frozen(eq=False)
class Introducing:
    """JOIN_RESP is verified; JOIN_FIN waits for its signature."""

    asking: Asking
    roster: SignedRoster
    coordinator: bytes
    inviter: bytes
    keys: Exchange
    transcript: bytes
    claims: bytes

    @property
    def payload(self) -> bytes:
        """The bytes to sign."""
        return signed_payload(self.keys.suite, SignContext.JOIN_FIN, self.transcript, self.claims)

    def fin(self, signature: bytes) -> tuple[bytes, InviterProved, Waited]:
        """JOIN_FIN, what is known of the inviter, and the stage that waits for its word."""
        keys, t3 = self.keys, self.transcript
        fin = keys.fin(MessageCode.JOIN_FIN, self.claims, signature, t3)
        t4, own = chain(t3, fin), self.asking.newcomer.id
        secrets = _secrets(keys, Direction.TO_RESPONDER, own, self.inviter, t4)
        proved = InviterProved(self.roster, self.coordinator, self.inviter, secrets)
        return fin, proved, Waited(self.roster, self.coordinator, own, self.inviter)


@attrs.frozen(eq=False)
class Waited:
    """JOIN_FIN was sent; only ADMIT or CLOSE may come, whenever somebody decides."""

    roster: SignedRoster
    coordinator: bytes
    own: bytes
    inviter: bytes

    def receive(self, admit: Admit, wall_ms: int) -> Admitted:
        """What ADMIT brings: a newer roster than JOIN_RESP did, or the same one, if that holds the
        newcomer already. Raises `RemoteProtocolError` or a subclass."""
        current, ends = self.roster.roster, (self.own, self.inviter)
        if self.own in current and admit.roster == self.roster.encoded:
            if current.expired(wall_ms):
                raise RosterExpired(f"the cluster's roster {current.serial} has expired meanwhile")
            return Admitted(self.roster, admit.settings)
        signed = newer(self.coordinator, current, admit.roster, wall_ms, *ends)
        return Admitted(signed, admit.settings)


@attrs.frozen(eq=False)
class Storing:
    """ADMIT came; the newcomer has joined once it is stored."""


# ------------------------------------------------------------------- the inviter's stages


@attrs.frozen(eq=False)
class Host:
    """What an inviter is: its node's public key, its cluster's roster and its coordinator's public
    key."""

    signer_public_key: bytes
    roster: SignedRoster
    coordinator: bytes
    suites: tuple[Suite, ...] = tuple(Suite)


@attrs.frozen(eq=False)
class Expecting:
    """A connection came in."""

    host: Host
    invitations: Invitations
    wall_ms: int
    entropy: bytes = attrs.field(repr=False)

    def receive(self, frame: Frame) -> tuple[EncapsulationRequested, Encapsulating]:
        """What to ask for, and the next stage, if *frame* is a JOIN_INIT by one of the invitations.
        Raises `RemoteProtocolError` or a subclass."""
        init = parse_init(frame, MessageCode.JOIN_INIT)
        invitation = self.invitations.find(init, self.wall_ms)
        if invitation is None:
            raise AuthenticationFailed("this machine has given no such invitation")
        request, suite, x_public, x_secret = take_init(init, self.host.suites, self.entropy)
        following = Encapsulating(
            self.host,
            invitation,
            init.wall_ms - self.wall_ms,
            suite,
            x_public,
            x_secret,
            join_transcript(suite, invitation.coordinator, init.whole),
        )
        return request, following


@attrs.frozen(eq=False)
class Encapsulating:
    """JOIN_INIT is good; the ML-KEM secret is missing."""

    host: Host
    invitation: Invitation
    skew_ms: int
    suite: Suite
    x_public: bytes
    x_secret: bytes = attrs.field(repr=False)
    transcript: bytes

    def encapsulated(self, ciphertext: bytes, kem_secret: bytes) -> Answering:
        """The stage that waits for a signature."""
        if len(ciphertext) != CIPHERTEXT or len(kem_secret) != SECRET:
            raise LocalProtocolError("an encapsulation has 1,088 and 32 bytes")
        host = self.host
        claims = encode_join_claims(
            host.coordinator, node_id(host.signer_public_key), host.roster.encoded
        )
        shares = encode_join_shares(self.suite, self.x_public, ciphertext, claims)
        t2 = chain(self.transcript, shares)
        keys = join_exchange(self.suite, kem_secret, self.x_secret, self.invitation.secret, t2)
        return Answering(self, keys, t2, shares, claims)


@attrs.frozen(eq=False)
class Answering:
    """JOIN_RESP waits for its signature."""

    before: Encapsulating
    keys: Exchange
    transcript: bytes
    shares: bytes
    claims: bytes

    @property
    def payload(self) -> bytes:
        """The bytes to sign."""
        return signed_payload(self.keys.suite, SignContext.JOIN_RESP, self.transcript, self.claims)

    def resp(self, signature: bytes) -> tuple[bytes, Replied]:
        """JOIN_RESP, and the stage that waits for JOIN_FIN."""
        before = self.before
        resp = self.keys.resp(self.shares, self.claims, signature, self.transcript)
        t3 = chain(before.transcript, resp)
        return resp, Replied(before.host, before.invitation, before.skew_ms, self.keys, t3)


@attrs.frozen(eq=False)
class Replied:
    """JOIN_RESP was sent."""

    host: Host
    invitation: Invitation
    skew_ms: int
    keys: Exchange
    transcript: bytes

    def receive(self, frame: Frame) -> Introduced:
        """Who the newcomer is, if *frame* is a valid JOIN_FIN. Raises `RemoteProtocolError` or a
        subclass."""
        keys, t3 = self.keys, self.transcript
        if len(frame.body) < 1 + _PROOF:
            raise RemoteProtocolError("JOIN_FIN is due, and something shorter came")
        whole = whole_frame(frame, MessageCode.JOIN_FIN, len(frame.body))
        plaintext = open_once(keys.suite, keys.initiator_key, whole[HDR:], t3 + whole[:HDR])
        reader = Reader(plaintext)
        newcomer, inviter = _read_newcomer(reader)
        encoded = plaintext[: reader.position]
        own = node_id(self.host.signer_public_key)
        if inviter != own:
            raise AuthenticationFailed("JOIN_FIN is for another node")
        proven = read_proven(reader)
        check_proof(keys, SignContext.JOIN_FIN, newcomer.public_key, encoded, proven, t3)
        secrets = _secrets(keys, Direction.TO_INITIATOR, own, newcomer.id, chain(t3, whole))
        return Introduced(newcomer, self.invitation, self.skew_ms, secrets)


@attrs.frozen(eq=False)
class Deciding:
    """JOIN_FIN is verified; somebody decides."""


@attrs.frozen(eq=False)
class Handing:
    """ADMIT was sent; the newcomer stores it."""


@attrs.frozen(eq=False)
class Over:
    """The newcomer has joined."""


# -------------------------------------------------------------------------- tables


class JoinerState(enum.Enum):
    """The state of a joiner, named for what it waits for."""

    START = enum.auto()
    WAIT_RESP = enum.auto()
    WAIT_SIGNATURE = enum.auto()
    WAIT_ADMIT = enum.auto()
    WAIT_STORE = enum.auto()
    JOINED = enum.auto()
    CLOSED = enum.auto()
    DEAD = enum.auto()


class JoinerMove(enum.Enum):
    """What changes a joiner's state."""

    DIAL = enum.auto()
    RESP_VERIFIED = enum.auto()
    SIGNED = enum.auto()
    ADMITTED = enum.auto()
    STORED = enum.auto()
    CLOSE = enum.auto()
    FAIL = enum.auto()


JOINER_TABLE: Final[Table[JoinerState, JoinerMove]] = {
    (JoinerState.START, JoinerMove.DIAL): JoinerState.WAIT_RESP,
    (JoinerState.START, JoinerMove.FAIL): JoinerState.DEAD,
    (JoinerState.WAIT_RESP, JoinerMove.RESP_VERIFIED): JoinerState.WAIT_SIGNATURE,
    (JoinerState.WAIT_RESP, JoinerMove.FAIL): JoinerState.DEAD,
    (JoinerState.WAIT_SIGNATURE, JoinerMove.SIGNED): JoinerState.WAIT_ADMIT,
    (JoinerState.WAIT_SIGNATURE, JoinerMove.FAIL): JoinerState.DEAD,
    (JoinerState.WAIT_ADMIT, JoinerMove.ADMITTED): JoinerState.WAIT_STORE,
    (JoinerState.WAIT_ADMIT, JoinerMove.CLOSE): JoinerState.CLOSED,
    (JoinerState.WAIT_ADMIT, JoinerMove.FAIL): JoinerState.DEAD,
    (JoinerState.WAIT_STORE, JoinerMove.STORED): JoinerState.JOINED,
    (JoinerState.WAIT_STORE, JoinerMove.CLOSE): JoinerState.CLOSED,
    (JoinerState.WAIT_STORE, JoinerMove.FAIL): JoinerState.DEAD,
    (JoinerState.JOINED, JoinerMove.CLOSE): JoinerState.CLOSED,
    (JoinerState.JOINED, JoinerMove.FAIL): JoinerState.DEAD,
}
"""The legal moves of a joiner."""


class InviterState(enum.Enum):
    """The state of an inviter, named for what it waits for."""

    WAIT_INIT = enum.auto()
    WAIT_ENCAPSULATION = enum.auto()
    WAIT_SIGNATURE = enum.auto()
    WAIT_FIN = enum.auto()
    WAIT_DECISION = enum.auto()
    WAIT_JOINED = enum.auto()
    JOINED = enum.auto()
    CLOSED = enum.auto()
    DEAD = enum.auto()


class InviterMove(enum.Enum):
    """What changes an inviter's state."""

    INIT_KNOWN = enum.auto()
    ENCAPSULATED = enum.auto()
    SIGNED = enum.auto()
    FIN_VERIFIED = enum.auto()
    ADMIT = enum.auto()
    JOINED = enum.auto()
    CLOSE = enum.auto()
    FAIL = enum.auto()


INVITER_TABLE: Final[Table[InviterState, InviterMove]] = {
    (InviterState.WAIT_INIT, InviterMove.INIT_KNOWN): InviterState.WAIT_ENCAPSULATION,
    (InviterState.WAIT_INIT, InviterMove.FAIL): InviterState.DEAD,
    (InviterState.WAIT_ENCAPSULATION, InviterMove.ENCAPSULATED): InviterState.WAIT_SIGNATURE,
    (InviterState.WAIT_ENCAPSULATION, InviterMove.FAIL): InviterState.DEAD,
    (InviterState.WAIT_SIGNATURE, InviterMove.SIGNED): InviterState.WAIT_FIN,
    (InviterState.WAIT_SIGNATURE, InviterMove.FAIL): InviterState.DEAD,
    (InviterState.WAIT_FIN, InviterMove.FIN_VERIFIED): InviterState.WAIT_DECISION,
    (InviterState.WAIT_FIN, InviterMove.FAIL): InviterState.DEAD,
    (InviterState.WAIT_DECISION, InviterMove.ADMIT): InviterState.WAIT_JOINED,
    (InviterState.WAIT_DECISION, InviterMove.CLOSE): InviterState.CLOSED,
    (InviterState.WAIT_DECISION, InviterMove.FAIL): InviterState.DEAD,
    (InviterState.WAIT_JOINED, InviterMove.JOINED): InviterState.JOINED,
    (InviterState.WAIT_JOINED, InviterMove.CLOSE): InviterState.CLOSED,
    (InviterState.WAIT_JOINED, InviterMove.FAIL): InviterState.DEAD,
    (InviterState.JOINED, InviterMove.CLOSE): InviterState.CLOSED,
    (InviterState.JOINED, InviterMove.FAIL): InviterState.DEAD,
}
"""The legal moves of an inviter."""


# --------------------------------------------------------------------------- roles


class Joiner(Handshake[JoinerState, JoinerMove, JoinerEvent]):
    """The end that joins with *invitation*, as *newcomer*.

    *wall_ms* is the time of day in milliseconds since 1970; *entropy* has `JOINER_ENTROPY` random
    bytes. Raises `LocalProtocolError` if it has another length.
    """

    FAIL = JoinerMove.FAIL
    CLOSE = JoinerMove.CLOSE
    LIMITS: ClassVar = {
        JoinerState.START: {},
        JoinerState.WAIT_RESP: {FrameKind.HANDSHAKE: MAX_JOIN_RESP},
        JoinerState.WAIT_SIGNATURE: {},
        JoinerState.WAIT_ADMIT: {FrameKind.SEALED: ADMIT_BODY},
        JoinerState.WAIT_STORE: {FrameKind.SEALED: CLOSE_BODY},
        JoinerState.JOINED: {FrameKind.SEALED: CLOSE_BODY},
        JoinerState.CLOSED: {},
        JoinerState.DEAD: {},
    }

    __slots__ = ()

    def __init__(
        self,
        invitation: Invitation,
        newcomer: Newcomer,
        wall_ms: int,
        entropy: bytes,
        suites: tuple[Suite, ...] = tuple(Suite),
    ) -> None:
        if len(entropy) != JOINER_ENTROPY:
            raise LocalProtocolError(f"joining takes {JOINER_ENTROPY} bytes of entropy")
        asking = Asking(invitation, newcomer, wall_ms, suites, entropy)
        super().__init__(JOINER_TABLE, JoinerState.START, asking)

    @fatal
    def dial(self) -> None:
        """Begin with JOIN_INIT."""
        init, stage = self._current(Asking, JoinerMove.DIAL).init()
        self._advance(JoinerMove.DIAL, stage)
        self._out.append(init)

    @fatal
    def receive(self, frame: Frame) -> None:
        """A handshake frame came. Raises `RemoteProtocolError` or a subclass."""
        stage = self._stage
        if not isinstance(stage, Asked):
            raise RemoteProtocolError(f"a handshake frame came in {self.state.name}")
        following = stage.receive(frame)
        self._advance(JoinerMove.RESP_VERIFIED, following)
        self._events.append(SignatureRequested(following.payload))

    @fatal
    def provide_signature(self, signature: bytes) -> None:
        """The answer to `SignatureRequested`: send JOIN_FIN."""
        fin, proved, stage = self._current(Introducing, JoinerMove.SIGNED).fin(signature)
        self._advance(JoinerMove.SIGNED, stage)
        self._out.append(fin)
        self._events.append(proved)

    @fatal
    def receive_admit(self, admit: Admit, wall_ms: int) -> None:
        """ADMIT came at *wall_ms*. Raises `RemoteProtocolError` or a subclass."""
        stage = self._stage
        if not isinstance(stage, Waited):
            raise RemoteProtocolError(f"ADMIT came in {self.state.name}")
        admitted = stage.receive(admit, wall_ms)
        self._advance(JoinerMove.ADMITTED, Storing())
        self._events.append(admitted)

    @fatal
    def stored(self) -> None:
        """The answer to `Admitted`: it is stored. The caller seals JOINED."""
        self._current(Storing, JoinerMove.STORED)
        self._advance(JoinerMove.STORED, Over())


class Inviter(Handshake[InviterState, InviterMove, InviterEvent]):
    """The end that *host* is, to one newcomer. All of a node share *invitations*.

    *wall_ms* is the time of day in milliseconds since 1970; *entropy* has `INVITER_ENTROPY` random
    bytes. Raises `LocalProtocolError` if it has another length.
    """

    FAIL = InviterMove.FAIL
    CLOSE = InviterMove.CLOSE
    LIMITS: ClassVar = {
        InviterState.WAIT_INIT: {FrameKind.HANDSHAKE: INIT_BODY},
        InviterState.WAIT_ENCAPSULATION: {},
        InviterState.WAIT_SIGNATURE: {},
        InviterState.WAIT_FIN: {FrameKind.HANDSHAKE: MAX_JOIN_FIN},
        InviterState.WAIT_DECISION: {FrameKind.SEALED: CLOSE_BODY},
        InviterState.WAIT_JOINED: {FrameKind.SEALED: CLOSE_BODY},
        InviterState.JOINED: {FrameKind.SEALED: CLOSE_BODY},
        InviterState.CLOSED: {},
        InviterState.DEAD: {},
    }

    __slots__ = ()

    def __init__(self, host: Host, invitations: Invitations, wall_ms: int, entropy: bytes) -> None:
        if len(entropy) != INVITER_ENTROPY:
            raise LocalProtocolError(f"answering takes {INVITER_ENTROPY} bytes of entropy")
        expecting = Expecting(host, invitations, wall_ms, entropy)
        super().__init__(INVITER_TABLE, InviterState.WAIT_INIT, expecting)

    @fatal
    def receive(self, frame: Frame) -> None:
        """A handshake frame came. Raises `RemoteProtocolError` or a subclass."""
        stage = self._stage
        if isinstance(stage, Expecting):
            request, following = stage.receive(frame)
            self._advance(InviterMove.INIT_KNOWN, following)
            self._events.append(request)
        elif isinstance(stage, Replied):
            introduced = stage.receive(frame)
            self._advance(InviterMove.FIN_VERIFIED, Deciding())
            self._events.append(introduced)
        else:
            raise RemoteProtocolError(f"a handshake frame came in {self.state.name}")

    @fatal
    def provide_encapsulation(self, ciphertext: bytes, shared_secret: bytes) -> None:
        """The answer to `EncapsulationRequested`."""
        stage = self._current(Encapsulating, InviterMove.ENCAPSULATED)
        following = stage.encapsulated(ciphertext, shared_secret)
        self._advance(InviterMove.ENCAPSULATED, following)
        self._events.append(SignatureRequested(following.payload))

    @fatal
    def provide_signature(self, signature: bytes) -> None:
        """The answer to `SignatureRequested`: send JOIN_RESP."""
        resp, following = self._current(Answering, InviterMove.SIGNED).resp(signature)
        self._advance(InviterMove.SIGNED, following)
        self._out.append(resp)

    @fatal
    def admit(self) -> None:
        """The newcomer may join. The caller seals ADMIT."""
        self._current(Deciding, InviterMove.ADMIT)
        self._advance(InviterMove.ADMIT, Handing())

    @fatal
    def receive_joined(self) -> None:
        """JOINED came. Raises `RemoteProtocolError` if it may not come now."""
        if not isinstance(self._stage, Handing):
            raise RemoteProtocolError(f"JOINED came in {self.state.name}")
        self._advance(InviterMove.JOINED, Over())
