"""The joiner's end of a join against an inviter who lies, a member with every key it may have.

Input: lies for JOIN_RESP, bites out of its bytes, then what the inviter seals. Without any, the
newcomer joins, and JOIN_FIN is what an independent computation makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sealring_protocol.codec.encoding import encode
from sealring_protocol.codec.messages import Admit, Close, Joined, Message, Ping, Pong, Progress
from sealring_protocol.errors import CloseCode, RemoteProtocolError
from sealring_protocol.joining.exchange import Admitted, InviterProved
from sealring_protocol.joining.session import JoinSession
from sealring_protocol.link import LinkClosed
from sealring_protocol.security.handshake import SignatureRequested
from sealring_protocol.security.roster import SignedRoster

from fuzz.expect import raised
from fuzz.joins import ASKS, INVITATION, INVITER, JOINER, OTHERS
from fuzz.people import CLAIMS, Field, Say, bitten, lies, number, of_size, one_of
from fuzz.source import Source
from spec.vectors.join_talk import AFTER, JoinTalk
from spec.vectors.talk import CT, DIALING, flipped
from spec.vectors.world import ADA, COORDINATOR, EVE, HOME, NOW

RESP: Final[dict[str, Field]] = {
    **{name: CLAIMS[name] for name in ("id", "signer", "transcript", "signature", "mac")},
    "trailing": CLAIMS["trailing"],
    "code": CLAIMS["code"],
    "context": one_of(b"JOIN-RESP", b"JOIN-FIN", b"RESP", b""),
    "suite": lambda source: source.below(4),
    "x": of_size(32),
    "ct": lambda source: flipped(CT, source.number(2)),
    "kem_secret": of_size(32),
    "secret": of_size(16),
    "coordinator": one_of(COORDINATOR.public, EVE.public, ADA.public),
    "roster": one_of(*OTHERS),
    "roster_length": number(4),
}
HELD: Final = (HOME, OTHERS[1], OTHERS[2])
"""The rosters that a joiner takes from whoever signs as ada."""


def seeds() -> Iterator[bytes]:
    """No lies; each lie by itself; what may be sealed; and raw bytes."""
    for message in range(6):
        for roster in range(len(OTHERS)):
            said = bytes([0, roster, 3, 5, message, 0, 0])
            yield bytes([0, 0, 0, 0, 3]) + said + said
    for action in (5, 6, 7):
        yield bytes([0, 0, 0, 0, 6, 5, 20, action, 255, action, 255, 0, 0, 0, 0, 0, 0, 0])
    for at in range(len(RESP)):
        yield bytes([0, 1, at]) + bytes(range(1, 80))
        yield bytes([0, 1, at, 1, 2, 3, 4])
    talk = JoinTalk()
    talk.init()
    yield b"\1" + talk.resp()


class Asking:
    """A joiner that is driven, and what came of it."""

    def __init__(self) -> None:
        self.end = JoinSession.ask(INVITATION, ASKS, 0.0, NOW, DIALING)
        self.init = self.end.data_to_send()
        self.proved: InviterProved | None = None
        self.admitted: Admitted | None = None
        self.closed = False

    def receive(self, data: bytes) -> bool:
        """Deliver bytes; whether it still lives."""
        error = raised(lambda: self._follow(data))
        if error is None:
            return True
        assert isinstance(error, RemoteProtocolError)
        assert raised(self.end.next_event) is error
        assert self.end.next_timeout() is None
        return False

    def _follow(self, data: bytes) -> None:
        self.end.receive_data(data, 0.0)
        while (event := self.end.next_event()) is not None:
            match event:
                case SignatureRequested(payload):
                    self.end.provide_signature(JOINER.signer.sign(payload), 0.0)
                case InviterProved():
                    assert self.proved is None
                    self.proved = event
                case Admitted():
                    assert self.admitted is None
                    self.admitted = event
                    self.end.stored(0.0)
                case LinkClosed():
                    self.closed = True
                case _:
                    raise AssertionError(f"a joiner was given {event}")


def check(data: bytes) -> None:
    """Lies, or raw bytes."""
    source = Source(data)
    joiner = Asking()
    if source.flag():
        joiner.receive(source.rest())
        assert joiner.proved is None or joiner.proved.inviter == INVITER.id
        error = raised(joiner.end.receive_eof)
        assert error is not None
        assert raised(joiner.end.next_event) is error
        return
    talk = JoinTalk()
    assert joiner.init == talk.init()
    say = lies(source, RESP)
    resp = talk.resp(**say)
    sent = bitten(source, resp)
    lives = joiner.receive(sent)
    if joiner.proved is None:
        assert joiner.end.data_to_send() == b"", "something was said to nobody that is known"
        assert say or sent != resp
        return
    assert sent[: len(resp)] == resp
    _proves(joiner, talk, say)
    if lives and sent == resp:
        _sealing(source, joiner, talk)


def _proves(joiner: Asking, talk: JoinTalk, say: Say) -> None:
    """JOIN_RESP verified: the member that it names signed it, with the secret, and JOIN_FIN is
    right."""
    inviter = say.get("signer", INVITER)
    assert say.get("id", INVITER.id) == inviter.id
    assert say.get("secret", INVITATION.secret) == INVITATION.secret
    assert say.get("coordinator", COORDINATOR.public) == COORDINATOR.public
    assert say.get("context", b"JOIN-RESP") == b"JOIN-RESP"
    assert say.get("roster", HOME) in HELD
    assert joiner.proved is not None
    assert joiner.proved.inviter == inviter.id
    assert inviter.id in joiner.proved.roster.roster
    talk.answerer = inviter
    assert joiner.end.data_to_send().startswith(talk.fin())
    secrets = joiner.proved.secrets
    assert secrets.send == talk.secret(b"traffic", 0)
    assert secrets.receive == talk.secret(b"traffic", 1)


def _sealing(source: Source, joiner: Asking, talk: JoinTalk) -> None:
    """What the inviter seals, in any order, and time, and the connection's end: at most one roster
    comes out, and it is a right one."""
    assert joiner.proved is not None
    count, now = 0, 0.0
    for _ in range(source.below(40)):
        match source.below(8):
            case 5:
                now += source.below(256) / 16
                error = raised(lambda at=now: joiner.end.handle_timeout(at))
            case 6:
                error = raised(joiner.end.receive_eof)
            case 7:
                error = raised(lambda: joiner.end.close(CloseCode.SHUTDOWN, "enough"))
            case _:
                plaintext = b"".join(encode(_message(source, count)))
                frame = bitten(source, talk.to_dialer(count, plaintext))
                count += 1
                error = None if joiner.receive(frame) else raised(joiner.end.next_event)
        if error is not None:
            assert raised(joiner.end.next_event) is error
            break
    if joiner.closed:
        assert joiner.receive(bitten(source, b"more"))
        assert raised(joiner.end.receive_eof) is None
    if joiner.admitted is not None:
        signed = joiner.admitted.roster
        shown = joiner.proved.roster
        assert signed.roster.serial > shown.roster.serial or signed.encoded == shown.encoded
        assert JOINER.id in signed.roster
        assert joiner.proved.inviter in signed.roster
        assert SignedRoster.decode(signed.encoded) == signed


def _message(source: Source, count: int) -> Message:
    """What an inviter may say, and what it may not."""
    messages: tuple[Message, ...] = (
        Admit(AFTER, "{}"),
        Admit(source.pick(OTHERS), "x" * source.below(9)),
        Ping(count, Progress()),
        Close(source.below(16), "no"),
        Joined(),
        Pong(1, Progress()),
    )
    return source.pick(messages)
