"""Links that are up: who may say what, keepalive, and how they end (sections 7, 10 and 11.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
from sealring_protocol.codec.messages import (
    Close,
    Message,
    Ping,
    Pong,
    Progress,
    StepDone,
    Tunnel,
    TunnelEvent,
)
from sealring_protocol.errors import CloseCode

from spec.vectors.ends import Delivery, answerer, dialer, link_of, said
from spec.vectors.initiators import GIVEN as _GIVEN
from spec.vectors.initiators import met
from spec.vectors.model import FORGED, LIMIT, MALFORMED, Vector, refused, valid
from spec.vectors.plain import header
from spec.vectors.plaintexts import flat
from spec.vectors.talk import Talk, flipped
from spec.vectors.whole_messages import (
    BOOTSTRAP,
    CANNOT,
    CHECKED,
    DATA,
    EPOCH,
    HELLO,
    JOIN,
    PENALISED,
    PREPARE,
    PREPARED,
    READY,
    STEP,
    WAITING,
)
from spec.vectors.world import ADA, BEN, CAT, NOW, TERMS, signed

GIVEN: Final = _GIVEN
ROLE: Final = CloseCode.ROLE_VIOLATION
TIMEOUT: Final = CloseCode.TIMEOUT
DONE: Final = StepDone(STEP.epoch, 1)
AT_ONCE: Final = 0.05
SIX: Final = attrs.evolve(TERMS, serial=6)
CLOSED: Final = flat(Close(0, "done"))


def vectors() -> Iterator[Vector]:
    """Links of ada (rank 0) or cat (rank 2) with ben (rank 1)."""
    yield from _good()
    yield from _roles()
    yield from _ends()
    yield from _newer_rosters()
    yield from _keepalive()
    yield from _slow()
    yield from _broken()


def _up(talk: Talk) -> tuple[Delivery, ...]:
    return (0.01, talk.init_frame), (0.02, talk.fin_frame)


def _sealed(talk: Talk, plaintexts: Sequence[bytes], first: int = 0) -> list[Delivery]:
    frames = [talk.to_answerer(first + i, plain) for i, plain in enumerate(plaintexts)]
    return [(AT_ONCE, frame) for frame in frames]


def _session(
    name: str,
    ids: str,
    about: str,
    talk: Talk,
    messages: Sequence[Message],
    answers: Sequence[Message] = (),
    given_out: Sequence[Message] | None = None,
) -> Vector:
    """Messages to the end that was dialed, which gives them out, or answers."""
    plain = [flat(message) for message in messages]
    suites = [talk.suite, 3 - talk.suite]
    given = answerer(talk, *_up(talk), *_sealed(talk, plain), suites=suites)
    sent = [talk.resp_frame, talk.accept()]
    sent += [talk.to_dialer(1 + i, flat(answer)) for i, answer in enumerate(answers)]
    out = plain if given_out is None else [flat(message) for message in given_out]
    output = said(sent, messages=out, link=link_of(talk, dialing=False))
    return valid(f"session/{name}", "responder", ids, about, given, output)


def _good() -> Iterator[Vector]:
    talk = met()
    about = "BOOTSTRAP from the head"
    yield _session("bootstrap", "RL-01", about, talk, [BOOTSTRAP])
    steps = [attrs.evolve(STEP, n=n) for n in range(1, 71)]
    for suite in (1, 2):
        talk = met(purpose=2, suite=suite)
        about = "70 steps: the key is updated after the 64th"
        yield _session(f"steps-{suite}", "RL-01 SE-04", about, talk, steps)
    stream = [Tunnel(EPOCH, 0, TunnelEvent.OPEN), attrs.evolve(DATA, stream=0), DATA]
    stream += [Tunnel(EPOCH, 0, TunnelEvent.CLOSE)]
    talk = met(purpose=3)
    about = "a stream of each of two neighbours"
    yield _session("tunnel-streams", "RL-01 MS-09", about, talk, stream)
    ids = [attrs.evolve(STEP, n=n, ids=(4, 5)) for n in (1, 2)]
    about = "orders to prepare and to join, a row, and steps with ids, from the head"
    yield _session("collective", "RL-01", about, met(), [PREPARE, JOIN, PENALISED, *ids])
    pings = [Ping(echo, Progress(rows=echo)) for echo in range(20)]
    pongs = [Pong(ping.echo, Progress()) for ping in pings]
    about = "20 PINGs at once are answered"
    yield _session("pings", "LK-04", about, met(), pings, pongs, [])
    about = "READY from a rank to the head that dialed it"
    yield _answered("ready", about, met(), [HELLO])
    about = "an answer to a step, from a rank to the head that dialed it"
    yield _answered("ready-done", about, met(), [HELLO, attrs.evolve(DONE, ids=(4, 5))])
    about = "a stream's other way: from the rank that was dialed"
    yield _answered("tunnel-back", about, met(purpose=3), [attrs.evolve(DATA, stream=0)])


def _answered(name: str, about: str, talk: Talk, messages: Sequence[Message]) -> Vector:
    """Messages to the end that dialed, which gives them out."""
    plain = [flat(message) for message in messages]
    frames = [(AT_ONCE, talk.to_dialer(1 + i, each)) for i, each in enumerate(plain)]
    given = dialer(talk, talk.resp_frame, talk.accept(), *frames, suites=[1, 2])
    sent = (talk.init_frame, talk.fin_frame)
    output = said(sent, messages=plain, link=link_of(talk, dialing=True))
    return valid(f"session/{name}", "initiator", "RL-01", about, given, output)


def _refused(
    name: str,
    ids: str,
    about: str,
    talk: Talk,
    deliveries: Sequence[Delivery],
    why: CloseCode,
    *,
    messages: Sequence[bytes] = (),
    answers: Sequence[bytes] = (),
    silent: bool = False,
    end: bool = False,
) -> Vector:
    """A link that ends while *messages* have been given out and *answers* sent."""
    given = answerer(talk, *_up(talk), *deliveries, end=end)
    sent = [talk.resp_frame, talk.accept()]
    sent += [talk.to_dialer(1 + i, answer) for i, answer in enumerate(answers)]
    told = None if silent else int(why)
    output = said(sent, told, messages, link_of(talk, dialing=False))
    released = b"".join(messages)
    name = f"session/{name}"
    return refused(name, "responder", ids, about, given, why, released=released, output=output)


def _roles() -> Iterator[Vector]:
    head, rank, step = met(), met(dialer=CAT), met(purpose=2)
    accept = b"\x04" + head.t4 + bytes(12)
    for name, about, talk, message in [
        ("hello-from-head", "HELLO from the head", head, flat(HELLO)),
        ("prepared-from-head", "PREPARED from the head", head, flat(PREPARED)),
        ("ready-from-head", "READY from the head", head, flat(READY)),
        ("done-from-head", "STEP_DONE from the head", head, flat(DONE)),
        ("cannot-from-head", "CANNOT_SERVE from the head", head, flat(CANNOT)),
        ("cannot-to-rank", "CANNOT_SERVE from a rank to a rank", rank, flat(CANNOT)),
        ("cannot-on-step", "CANNOT_SERVE on a step link", step, flat(CANNOT)),
        ("checked-from-head", "CHECKED from the head", head, flat(CHECKED)),
        ("checked-to-rank", "CHECKED from a rank to a rank", rank, flat(CHECKED)),
        ("checked-on-step", "CHECKED on a step link", step, flat(CHECKED)),
        ("accept-again", "ACCEPT from an initiator", head, accept),
        ("bootstrap-from-rank", "BOOTSTRAP from a rank to a rank", rank, flat(BOOTSTRAP)),
        ("step-from-rank", "STEP from a rank on a control link", rank, flat(STEP)),
        ("hello-to-rank", "HELLO from a rank to a rank", rank, flat(HELLO)),
        ("ready-to-rank", "READY from a rank to a rank", rank, flat(READY)),
        ("bootstrap-on-step", "BOOTSTRAP on a step link", step, flat(BOOTSTRAP)),
        ("done-to-next", "STEP_DONE down the chain", step, flat(DONE)),
        ("step-back", "STEP up the chain", met(dialer=CAT, purpose=2), flat(STEP)),
        ("tunnel", "STEP on a tunnel", met(purpose=3), flat(STEP)),
        ("tunnel-ready", "READY on a tunnel", met(purpose=3), flat(READY)),
        ("tunnel-on-control", "TUNNEL on a control link", head, flat(DATA)),
        ("tunnel-on-step", "TUNNEL on a step link", step, flat(DATA)),
        ("row-from-rank", "ROW from a rank", rank, flat(PENALISED)),
        ("row-on-step", "ROW on a step link", step, flat(PENALISED)),
        ("waiting-from-rank", "WAITING from a rank to a rank", rank, flat(WAITING)),
        ("waiting-on-step", "WAITING on a step link", step, flat(WAITING)),
        ("weights", "STEP on a link for weights", met(purpose=4), flat(STEP)),
    ]:
        deliveries = _sealed(talk, [message])
        yield _refused(name, "RL-01", about, talk, deliveries, ROLE)
    talk = met()
    good = flat(BOOTSTRAP)
    about = "a good message, then one out of role, then a good one"
    deliveries = _sealed(talk, [good, flat(DONE), good])
    yield _refused("after-good", "RL-01 CV-04", about, talk, deliveries, ROLE, messages=[good])


def _ends() -> Iterator[Vector]:
    talk = met()
    good = flat(BOOTSTRAP)
    given = answerer(talk, *_up(talk), *_sealed(talk, [good, CLOSED]), end=True)
    sent = (talk.resp_frame, talk.accept())
    output = said(sent, None, [good], link_of(talk, dialing=False), closed=0)
    about = "CLOSE, then the end of the stream"
    yield valid("session/close", "responder", "LK-02", about, given, output)
    given = answerer(talk, *_up(talk), *_sealed(talk, [good, CLOSED, good]))
    about = "what comes after CLOSE is not acted on"
    yield valid("session/after-close", "responder", "LK-02", about, given, output)
    whole = _sealed(talk, [good])
    cut = [(AT_ONCE, talk.to_answerer(1, good)[:-1])]
    for name, about, deliveries, messages in [
        ("end", "the stream ends without CLOSE", whole, [good]),
        ("end-at-once", "the stream ends right after ACCEPT", [], []),
        ("end-in-frame", "the stream ends within a frame", [*whole, *cut], [good]),
    ]:
        yield _refused(
            name,
            "LK-01",
            about,
            talk,
            deliveries,
            MALFORMED,
            messages=messages,
            silent=True,
            end=True,
        )
    given = answerer(talk, talk.init_frame, end=True)
    output = said((talk.resp_frame,))
    about = "the stream ends where FIN is due"
    yield refused(
        "session/end-before-fin", "responder", "LK-01", about, given, MALFORMED, output=output
    )
    soon = signed(attrs.evolve(TERMS, expires_ms=NOW + 100))
    talk = met(ours=soon, theirs=soon)
    yield _refused(
        "expired", "RO-15", "the roster expires", talk, [(0.2, b"")], CloseCode.ROSTER_EXPIRED
    )


def _newer_rosters() -> Iterator[Vector]:
    """What counts is the roster that both ends hold once the link is up."""
    soon, later = (attrs.evolve(TERMS, serial=5, expires_ms=NOW + 100), SIX)
    swapped = signed(attrs.evolve(SIX, members=(BEN.member, ADA.member, CAT.member)))
    brief = signed(attrs.evolve(SIX, expires_ms=NOW + 100))
    wait: Delivery = (0.2, b"")
    talk = met(ours=signed(later), theirs=signed(soon))
    given = answerer(talk, *_up(talk), wait)
    output = said((talk.resp_frame, talk.accept()), link=link_of(talk, dialing=False))
    about = "the roster that was brought lasts longer than the own"
    yield valid("session/lasts", "responder", "RO-15 HS-18", about, given, output)
    about = "the roster that was brought expires, and the own would not have"
    talk = met(ours=brief)
    yield _refused("brought-expires", "RO-15", about, talk, [wait], CloseCode.ROSTER_EXPIRED)
    talk = met(ours=signed(soon), theirs=signed(later))
    given = dialer(talk, talk.resp_frame, talk.accept(), wait, suites=[1, 2])
    output = said((talk.init_frame, talk.fin_frame), link=link_of(talk, dialing=True))
    about = "the roster that came with ACCEPT lasts longer than the own"
    yield valid("session/lasts-dialed", "initiator", "RO-15 HS-25", about, given, output)
    talk = met(ours=swapped)
    about = "HELLO from who is no head any more, by the roster that it brought"
    yield _session("swapped", "RL-01 HS-18", about, talk, [HELLO])
    about = "BOOTSTRAP from who was the head, by the roster that the other end held"
    sealed = _sealed(met(ours=swapped), [flat(BOOTSTRAP)])
    yield _refused("swapped-head", "RL-01 HS-18", about, met(ours=swapped), sealed, ROLE)
    talk = met(theirs=signed(SIX))
    data = talk.to_dialer(1, flat(HELLO))
    given = dialer(talk, talk.resp_frame, talk.accept() + data, suites=[1, 2])
    sent = (talk.init_frame, talk.fin_frame)
    output = said(sent, messages=[flat(HELLO)], link=link_of(talk, dialing=True))
    about = "data right behind ACCEPT waits until the roster is stored"
    yield valid("session/waits", "initiator", "HS-29 HS-25", about, given, output)


def _slow() -> Iterator[Vector]:
    """Frames whose bytes come one by one."""
    talk, good = met(), flat(BOOTSTRAP)
    frame = talk.to_answerer(0, good)
    asked = flat(Ping(1, Progress()))
    for name, about, first in (
        ("slow-frame", "a frame that comes too slowly", frame[:8]),
        ("slow-header", "a header that comes too slowly", frame[:1]),
    ):
        rest = frame[len(first) :]
        # A frame is whole at 0.02 s: bytes count until about 1.52 s. PING is due at 2.0 s.
        at = (0.8, 1.2, 1.5, 1.9, 2.1, 2.4, 2.8, 3.2)
        pieces = [(now, rest[i : i + 1]) for i, now in enumerate(at)]
        drip = [(0.4, first), *pieces]
        if name == "slow-header":  # seven bytes, and then time alone: no body is begun
            drip = [(now, data if i < 7 else b"") for i, (now, data) in enumerate(drip)]
        yield _refused(name, "LK-05", about, talk, drip, TIMEOUT, answers=[asked])
    about = "a long frame that comes at its least rate asks for no PING"
    long = header(2, 2_000_000)
    drip = [(0.4, long), *((round(0.8 + 0.4 * i, 1), b"\0") for i in range(7))]
    given = answerer(talk, *_up(talk), *drip)
    output = said((talk.resp_frame, talk.accept()), link=link_of(talk, dialing=False))
    yield valid("session/long-frame", "responder", "LK-05", about, given, output)


def _keepalive() -> Iterator[Vector]:
    talk = met()
    pings = [flat(Ping(echo, Progress())) for echo in range(21)]
    pongs = [flat(Pong(echo, Progress())) for echo in range(20)]
    about = "21 PINGs at once"
    deliveries = _sealed(talk, pings)
    yield _refused("pings-21", "LK-04", about, talk, deliveries, LIMIT, answers=pongs)
    yield from _refilled(talk)
    yield from _answered_late(talk)
    about = "PONG to no PING"
    deliveries = _sealed(talk, [flat(Pong(1, Progress()))])
    yield _refused("pong", "LK-03", about, talk, deliveries, MALFORMED)
    asked = flat(Ping(1, Progress()))
    yield _never_answered()
    about = "PONG with another echo"
    wrong = [(0.6, b""), (0.7, talk.to_answerer(0, flat(Pong(2, Progress()))))]
    yield _refused("pong-echo", "LK-03", about, talk, wrong, MALFORMED, answers=[asked])
    about = "not a byte for 0.5 s, nor for 1 s after PING"
    silence: list[Delivery] = [(0.6, b""), (1.7, b"")]
    yield _refused("silence", "LK-05", about, talk, silence, TIMEOUT, answers=[asked])
    about = "a PING that is sent late has its second"
    given = answerer(talk, *_up(talk), (1.0, b""), (1.9, b""))
    answers = (talk.resp_frame, talk.accept(), talk.to_dialer(1, asked))
    output = said(answers, link=link_of(talk, dialing=False))
    yield valid("session/late-ping", "responder", "LK-05", about, given, output)
    for name, kind, about, given, sent in [
        (
            "no-init",
            "responder",
            "no whole INIT within 2 s",
            answerer(talk, (1.9, talk.init_frame[:-1]), (2.0, b"")),
            (),
        ),
        (
            "no-fin",
            "responder",
            "no FIN within 5 s",
            answerer(talk, talk.init_frame, (5.0, b"")),
            (talk.resp_frame,),
        ),
        (
            "no-resp",
            "initiator",
            "no RESP within 5 s",
            dialer(talk, (5.0, b"")),
            (talk.init_frame,),
        ),
    ]:
        ids = "HS-30 HS-28"
        yield refused(f"session/{name}", kind, ids, about, given, TIMEOUT, output=said(sent))


def _refilled(talk: Talk) -> Iterator[Vector]:
    """The bucket of PINGs fills at its rate, and not beyond 20."""
    pings = [flat(Ping(echo, Progress())) for echo in range(31)]
    pongs = [flat(Pong(echo, Progress())) for echo in range(31)]
    first = _sealed(talk, pings[:20])
    more = [(0.42, talk.to_answerer(20 + i, ping)) for i, ping in enumerate(pings[20:])]
    sent = [talk.resp_frame, talk.accept()]
    sent += [talk.to_dialer(1 + i, pong) for i, pong in enumerate(pongs[:27])]
    given = answerer(talk, *_up(talk), *first, *more[:7])
    output = said(sent, link=link_of(talk, dialing=False))
    about = "20 PINGs, and 7 more 0.37 s later"
    yield valid("session/pings-again", "responder", "LK-04", about, given, output)
    about = "20 PINGs, and 8 more 0.37 s later"
    late = [*first, *more[:8]]
    yield _refused("pings-28", "LK-04", about, talk, late, LIMIT, answers=pongs[:27])


def _answered_late(talk: Talk) -> Iterator[Vector]:
    """Two PINGs are unanswered, for something else came between them."""
    good = flat(BOOTSTRAP)
    first, second = (flat(Ping(echo, Progress())) for echo in (1, 2))
    pongs = [flat(Pong(echo, Progress())) for echo in (1, 2)]
    before: list[Delivery] = [(0.6, b""), (0.7, talk.to_answerer(0, good)), (1.3, b"")]
    both = [(1.4, talk.to_answerer(1 + i, pong)) for i, pong in enumerate(pongs)]
    given = answerer(talk, *_up(talk), *before, *both)
    sent = [talk.resp_frame, talk.accept(), talk.to_dialer(1, first), talk.to_dialer(2, second)]
    output = said(sent, None, [good], link_of(talk, dialing=False))
    about = "both PINGs are answered, the older first"
    yield valid("session/pongs", "responder", "LK-03", about, given, output)
    about = "the later of two PINGs is answered first"
    wrong = [*before, (1.4, talk.to_answerer(1, pongs[1]))]
    answers = [first, second]
    name = "pong-later"
    yield _refused(name, "LK-03", about, talk, wrong, MALFORMED, messages=[good], answers=answers)
    about = "a PING is answered twice"
    again = [*before[:2], *((0.8, talk.to_answerer(1 + i, pongs[0])) for i in range(2))]
    yield _refused(
        "pong-twice", "LK-03", about, talk, again, MALFORMED, messages=[good], answers=[first]
    )


def _never_answered() -> Vector:
    """Eight times a PING is due and sent, and something else comes; the ninth is too much."""
    talk, good = met(), flat(BOOTSTRAP)
    deliveries: list[Delivery] = []
    for number in range(8):
        now = 0.6 + 0.7 * number
        deliveries += [(now, b""), (now + 0.1, talk.to_answerer(number, good))]
    asked = [flat(Ping(echo, Progress())) for echo in range(1, 9)]
    return _refused(
        "unanswered",
        "LK-05",
        "8 PINGs without a PONG, while other things come",
        talk,
        [*deliveries, (6.3, b"")],
        TIMEOUT,
        messages=[good] * 8,
        answers=asked,
    )


def _broken() -> Iterator[Vector]:
    talk = met()
    good = flat(BOOTSTRAP)
    first, second, third = (talk.to_answerer(number, good) for number in range(3))
    other_way = talk.to_dialer(1, good)
    for name, ids, about, frame, why in [
        ("flipped", "SE-02", "a bit of the second frame flipped", flipped(second, -20), FORGED),
        ("replayed", "SE-01 SE-02", "the first frame again", first, FORGED),
        ("skipped", "SE-01 SE-02", "the third frame second", third, FORGED),
        ("reflected", "SE-01 SE-02", "sealed for the other direction", other_way, FORGED),
        ("no-tag", "SE-02", "a body of no bytes", header(2, 0), FORGED),
        ("long", "SE-03 FR-03", "a body of 16 MiB and a byte", header(2, (1 << 24) + 1), LIMIT),
        ("handshake", "HS-29 FR-02", "a handshake frame", header(1, 1), MALFORMED),
        ("local", "FR-02", "a local frame", header(3, 1), MALFORMED),
    ]:
        deliveries = [(AT_ONCE, first), (AT_ONCE, frame)]
        yield _refused(name, ids, about, talk, deliveries, why, messages=[good])
    for name, ids, about, plaintext in [
        ("malformed", "CV-01", "a byte left over under the seal", good + b"\0"),
        ("unknown", "MS-01", "an unknown code under the seal", b"\x7f"),
        ("empty", "MS-01", "nothing under the seal", b""),
    ]:
        sealed = _sealed(talk, [good, plaintext])
        yield _refused(name, ids, about, talk, sealed, MALFORMED, messages=[good])
    about = "the second frame first"
    deliveries = [(AT_ONCE, second), (AT_ONCE, first)]
    yield _refused("reordered", "SE-01 SE-02", about, talk, deliveries, FORGED)
