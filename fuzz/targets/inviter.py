"""The inviter's end of a join against a machine that lies, with or without the invitation.

Input: lies for JOIN_INIT, then for JOIN_FIN, bites out of their bytes, then what the newcomer seals
and what a person decides. Without any, the newcomer is introduced as it said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
from sealring_protocol.codec.encoding import encode
from sealring_protocol.codec.messages import Admit, Close, Joined, Message, Ping, Pong, Progress
from sealring_protocol.errors import CloseCode, RemoteProtocolError
from sealring_protocol.joining.exchange import Host, Introduced
from sealring_protocol.joining.invitation import Invitations
from sealring_protocol.joining.session import JoinRefused, JoinSession
from sealring_protocol.limits import INVITATION_SECONDS, MAX_INVITATIONS
from sealring_protocol.link import LinkClosed
from sealring_protocol.security.handshake import EncapsulationRequested, SignatureRequested
from sealring_protocol.security.roster import SignedRoster

from fuzz.expect import raised
from fuzz.joins import ASKS, INVITATION, INVITER, JOINER
from fuzz.people import CLAIMS, Field, Say, bitten, lies, number, of_size, one_of
from fuzz.source import Source
from spec.vectors.join_talk import AFTER, JoinTalk
from spec.vectors.talk import ANSWERING, CT, SS
from spec.vectors.world import ADA, BEN, COORDINATOR, HOME, NOW

OTHERS: Final = MAX_INVITATIONS - 1
"""Invitations that expired long ago, two of which give way to those that are looked at."""

EXPIRED: Final = attrs.evolve(INVITATION, secret=bytes([1]) * 16, expires_s=NOW // 1000)
FORGOTTEN: Final = attrs.evolve(EXPIRED, expires_s=NOW // 1000 - INVITATION_SECONDS)
WITHDRAWN: Final = attrs.evolve(INVITATION, secret=bytes([2]) * 16)
INIT: Final[dict[str, Field]] = {
    "wall_ms": lambda source: NOW - 130_000 + source.number(3) % 260_000,
    "suites": number(4),
    "x": of_size(32),
    "code": CLAIMS["code"],
    "tag": of_size(32),
    "secret": one_of(bytes(16), EXPIRED.secret, WITHDRAWN.secret),
    "trailing": CLAIMS["trailing"],
}
FIN: Final[dict[str, Field]] = {
    **{name: CLAIMS[name] for name in ("signer", "transcript", "signature", "mac", "trailing")},
    "code": CLAIMS["code"],
    "context": one_of(b"JOIN-FIN", b"JOIN-RESP", b"FIN", b""),
    "who": one_of(JOINER, BEN, ADA),
    "inviter": one_of(INVITER.id, BEN.id, bytes(32)),
    "name": lambda source: source.take(source.below(80)),
    "system": lambda source: source.take(source.below(160)),
    "addresses": lambda source: tuple(
        source.take(source.below(12)) for _ in range(source.below(7))
    ),
    "count": number(2),
    "build": number(8),
    "short": lambda source: source.below(250),
    "public": of_size(65),
}
HOST: Final = Host(INVITER.public, SignedRoster.decode(HOME), COORDINATOR.public)


def seeds() -> Iterator[bytes]:
    """No lies; each lie by itself; what may be sealed; and raw bytes."""
    for message in range(5):
        said = bytes([0, 3, message, 0, 0])
        for action in range(3, 8):
            yield bytes([0, 0, 0, 0, 0, 0, 0, 5]) + said + bytes([action, *said])
            yield bytes([0, 0, 0, 0, 0, 0, 0, 5, 7, *said, 3, 255, action, 255, *said])
    for at in range(len(INIT)):
        yield bytes([0, 1, at]) + bytes(range(1, 40))
    for secret in range(3):
        yield bytes([0, 1, tuple(INIT).index("secret"), secret, 0, 0])
    for at in range(len(FIN)):
        yield bytes([0, 0, 0, 0, 1, at]) + bytes(range(1, 90))
        yield bytes([0, 0, 0, 0, 1, at, 1])
        yield bytes([0, 0, 0, 0, 1, at, 1, 2, 3, 4, 5])
    talk = JoinTalk()
    yield b"\1\0" + talk.init()
    talk.resp()
    yield b"\1\1" + talk.fin()


class Answering:
    """An inviter that is driven, and what came of it."""

    def __init__(self) -> None:
        self.invitations = Invitations(0.0)
        for other in range(OTHERS):
            self.invitations.add(attrs.evolve(FORGOTTEN, secret=other.to_bytes(16, "big")))
        self.invitations.add(INVITATION)
        self.invitations.add(EXPIRED)
        self.invitations.add(WITHDRAWN)
        self.invitations.end(WITHDRAWN, "this invitation was withdrawn")
        self.end = JoinSession.answer(HOST, self.invitations, 0.0, NOW, ANSWERING)
        self.introduced: Introduced | None = None
        self.refused = False
        self.joined = self.closed = False

    def receive(self, data: bytes) -> bool:
        """Deliver bytes; whether it still lives."""
        error = raised(lambda: self._follow(data))
        if error is None:
            return True
        assert isinstance(error, RemoteProtocolError)
        self.refused = isinstance(error, JoinRefused)
        assert raised(self.end.next_event) is error
        assert self.end.next_timeout() is None
        assert "another machine" not in self.invitations.fault(INVITATION, NOW)
        return False

    def _follow(self, data: bytes) -> None:
        self.end.receive_data(data, 0.0)
        while (event := self.end.next_event()) is not None:
            match event:
                case EncapsulationRequested():
                    self.end.provide_encapsulation(CT, SS, 0.0)
                case SignatureRequested(payload):
                    self.end.provide_signature(INVITER.signer.sign(payload), 0.0)
                case Introduced():
                    assert self.introduced is None
                    self.introduced = event
                case Joined():
                    assert not self.joined
                    self.joined = True
                case LinkClosed():
                    self.closed = True
                case _:
                    raise AssertionError(f"an inviter was given {event}")


def check(data: bytes) -> None:
    """Lies, or raw bytes."""
    source = Source(data)
    inviter, talk = Answering(), JoinTalk()
    if source.flag():
        if source.flag():
            assert inviter.receive(talk.init())
        inviter.receive(source.rest())
        assert inviter.introduced is None or inviter.introduced.newcomer.id == JOINER.id
        return
    about = lies(source, INIT)
    init = bitten(source, talk.init(**about))
    if not inviter.receive(init) or not (resp := inviter.end.data_to_send()):
        assert inviter.end.data_to_send() == b""
        return
    talk = JoinTalk(resp[9])
    talk.init_frame = init[:1269]
    secret = about.get("secret", INVITATION.secret)
    assert resp == talk.resp(secret=secret) or "x" in about
    about_fin = lies(source, FIN)
    fin = talk.fin(**{"public": about_fin.get("who", JOINER).public, **about_fin})
    sent = bitten(source, fin)
    lives = inviter.receive(sent)
    if inviter.introduced is None:
        honest = not (about or about_fin) and (init, sent) == (talk.init_frame, fin)
        assert inviter.refused or not honest
        return
    assert sent[: len(fin)] == fin
    _proves(inviter, talk, about_fin)
    if lives:
        assert "another machine" in inviter.invitations.fault(INVITATION, NOW)
    if lives and sent == fin:
        _sealing(source, inviter, talk)


def _proves(inviter: Answering, talk: JoinTalk, say: Say) -> None:
    """JOIN_FIN verified: who is introduced signed it, for this inviter."""
    assert inviter.introduced is not None
    newcomer, secrets = inviter.introduced.newcomer, inviter.introduced.secrets
    who = say.get("who", JOINER)
    assert who is not INVITER
    assert "public" not in say
    assert newcomer.public_key == who.public == say.get("signer", JOINER).public
    assert say.get("inviter", INVITER.id) == INVITER.id
    assert inviter.introduced.invitation is INVITATION
    assert say.get("context", b"JOIN-FIN") == b"JOIN-FIN"
    assert newcomer.build == say.get("build", ASKS.build)
    talk.dialer = who
    assert secrets.send == talk.secret(b"traffic", 1)
    assert secrets.receive == talk.secret(b"traffic", 0)


def _sealing(source: Source, inviter: Answering, talk: JoinTalk) -> None:
    """What the newcomer seals, in any order, decisions, and time: it has joined only after ADMIT,
    and whatever happens its invitation is used, or given back."""
    end, admitted = inviter.end, False
    assert inviter.introduced is not None
    count, now = 0, 0.0
    for _ in range(source.below(40)):
        match source.below(8):
            case 3:
                now += source.below(256) / 16
                error = raised(lambda at=now: end.handle_timeout(at))
            case 4:
                error = raised(end.receive_eof)
            case 5:
                error = raised(lambda: end.close(CloseCode.REFUSED, "not you"))
            case 6:
                error = raised(lambda: end.admit(Admit(b"", "x" * 5000), 0.0))
                assert error is not None
                error = raised(end.next_event)
            case 7:
                over = end.next_timeout() is None
                error = raised(lambda: end.admit(Admit(AFTER, "{}"), 0.0))
                admitted = admitted or error is None
                if over:
                    assert error is not None
                    error = raised(end.next_event)
            case _:
                plaintext = b"".join(encode(_message(source, count)))
                frame = bitten(source, talk.to_answerer(count, plaintext))
                count += 1
                error = None if inviter.receive(frame) else raised(end.next_event)
        if inviter.closed:
            break
        if error is not None:
            assert raised(end.next_event) is error
            break
    assert admitted or not inviter.joined
    if inviter.closed:
        assert inviter.receive(b"more")
        assert raised(end.receive_eof) is None
    if inviter.joined:
        assert inviter.invitations.fault(INVITATION, NOW) == "this invitation was used"
    elif end.next_timeout() is None:
        assert "another machine" not in inviter.invitations.fault(INVITATION, NOW)


def _message(source: Source, count: int) -> Message:
    """What a newcomer may say, and what it may not."""
    messages: tuple[Message, ...] = (
        Joined(),
        Ping(count, Progress()),
        Close(source.below(16), "no"),
        Admit(b"", ""),
        Pong(1, Progress()),
    )
    return source.pick(messages)
