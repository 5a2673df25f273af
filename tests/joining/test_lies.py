"""Ends of a join that are proven and then say what they may not, and owners that err."""

from __future__ import annotations

import gc
from typing import Any

import attrs
import pytest
from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import FrameDecoder, FrameKind
from sealring_protocol.codec.messages import (
    Accept,
    Admit,
    Close,
    Joined,
    Message,
    Ping,
    Pong,
    Progress,
)
from sealring_protocol.errors import (
    AuthenticationFailed,
    CloseCode,
    ConnectionLost,
    LimitExceeded,
    LocalProtocolError,
    PeerTimeout,
    RemoteProtocolError,
    RoleViolation,
    RosterExpired,
    SealringError,
    wire_code,
)
from sealring_protocol.joining.exchange import Admitted, Asking, Introduced
from sealring_protocol.joining.session import JoinRefused
from sealring_protocol.limits import (
    JOIN_PATIENCE,
    MAX_ADDRESS,
    MAX_CLOCK_SKEW_MS,
    MAX_NAME,
    MAX_SETTINGS,
    MAX_SYSTEM,
    MAX_TRIES,
    PINGS_PER_SECOND,
)
from sealring_protocol.security.handshake import Exchange
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roster import Member, Roster, sign_roster
from sealring_protocol.security.seal import OpeningChannel

from tests.security.pairs import BEN, COORDINATOR, roster, signer

from .pairs import (
    ADA,
    DAN,
    HOME,
    INVITATION,
    NEWCOMER,
    NOW,
    Pair,
    answering,
    asking,
    drain,
    host,
    invitations,
    last,
    with_dan,
)

PROGRESS = Progress()
ADMIT = Admit(with_dan(), "{}")


def died(pair: Pair, name: str, kind: type[SealringError]) -> None:
    """The end *name* has died of an error of *kind*, which every call raises again, and it has said
    so."""
    error, end = last(pair, name), pair.joiner if name == "joiner" else pair.inviter
    assert type(error) is kind, pair.heard[name]
    for call in (
        end.next_event,
        end.receive_eof,
        lambda: end.receive_data(b"", 1.0),
        lambda: end.close(CloseCode.SHUTDOWN, ""),
        lambda: end.handle_timeout(1e6),
        lambda: end.provide_signature(bytes(64), 1.0),
    ):
        with pytest.raises(SealringError) as again:
            call()
        assert again.value is error
    assert end.next_timeout() is None
    code = CloseCode.REFUSED if kind is JoinRefused else wire_code(error)
    channel = OpeningChannel(Suite.AES256GCM, pair.secrets(name).send)
    decoder = FrameDecoder({FrameKind.SEALED: 4096})
    decoder.receive_data(end.data_to_send())
    while (frame := decoder.next_frame()) is not None:
        message = decode(channel.open(frame))
    assert message == Close(code, str(error))


def admitted(pair: Pair) -> Pair:
    pair.inviter.admit(ADMIT, 0.0)
    pair.run()
    return pair


# --------------------------------------------------------------- what may not come


@pytest.mark.parametrize(
    "message", [Joined(), Accept(bytes(32), 5, b""), Pong(1, PROGRESS)], ids=lambda m: m.CODE.name
)
def test_what_has_no_place_ends_a_joiner(message: Message) -> None:
    pair = Pair()
    pair.lie("inviter", message)
    died(pair, "joiner", RemoteProtocolError if isinstance(message, Pong) else RoleViolation)


@pytest.mark.parametrize(
    "message",
    [Joined(), Admit(b"", ""), Accept(bytes(32), 5, b""), Pong(1, PROGRESS)],
    ids=lambda m: m.CODE.name,
)
def test_what_has_no_place_ends_an_inviter_and_gives_the_invitation_back(message: Message) -> None:
    pair = Pair()
    assert "another machine" in pair.invitations.fault(INVITATION, NOW)
    pair.lie("joiner", message)
    expected = RemoteProtocolError if isinstance(message, Joined | Pong) else RoleViolation
    died(pair, "inviter", expected)
    assert pair.invitations.fault(INVITATION, NOW) == ""


def test_a_second_admit_ends_a_joiner_and_is_the_inviters_fault() -> None:
    pair = Pair()
    pair.lie("inviter", ADMIT, Admit(b"", ""))
    died(pair, "joiner", RemoteProtocolError)


def test_an_admit_after_joined_ends_a_joiner() -> None:
    pair = Pair()
    liar = pair.liar("inviter")
    pair.deliver("joiner", bytes(liar.seal(encode(ADMIT))))
    pair.joiner.stored(0.0)
    pair.deliver("joiner", bytes(liar.seal(encode(Admit(b"", "")))))
    assert type(last(pair, "joiner")) is RemoteProtocolError


def test_joined_twice_ends_an_inviter_and_the_invitation_stays_used() -> None:
    pair = admitted(Pair())
    pair.lie("joiner", Joined(), Joined())
    assert type(last(pair, "inviter")) is RemoteProtocolError
    assert pair.invitations.fault(INVITATION, NOW) == "this invitation was used"


@pytest.mark.parametrize("name", ["joiner", "inviter"])
def test_a_flood_of_pings_has_a_budget(name: str) -> None:
    pair = Pair()
    other = "inviter" if name == "joiner" else "joiner"
    pair.lie(other, *(Ping(n, PROGRESS) for n in range(PINGS_PER_SECOND + 1)))
    died(pair, name, LimitExceeded)


def test_a_frame_that_does_not_open_ends_either_end() -> None:
    for name in ("joiner", "inviter"):
        pair = Pair()
        other = "inviter" if name == "joiner" else "joiner"
        frame = pair.liar(other).seal(encode(Ping(1, PROGRESS)))
        frame[-1] ^= 1
        pair.deliver(name, bytes(frame))
        died(pair, name, AuthenticationFailed)


def test_a_frame_of_one_direction_does_not_open_in_the_other() -> None:
    pair = Pair()
    pair.deliver("joiner", bytes(pair.liar("joiner").seal(encode(ADMIT))))
    died(pair, "joiner", AuthenticationFailed)


# --------------------------------------------------------------- what ADMIT brings


def admit_of(*names: str, serial: int = 6, by: Any = COORDINATOR, **terms: Any) -> Admit:
    return Admit(sign_roster(roster(names, serial=serial, **terms), by).encode(), "{}")


@pytest.mark.parametrize(
    ("admit", "kind"),
    [
        (admit_of("ada", "eve", serial=5), RemoteProtocolError),
        (admit_of("ada", "eve", serial=4), RemoteProtocolError),
        (admit_of("ada", "ben"), AuthenticationFailed),
        (admit_of("ben", "eve"), AuthenticationFailed),
        (admit_of("ada", "eve", by=signer("another")), AuthenticationFailed),
        (admit_of("ada", "eve", cluster=bytes(32)), AuthenticationFailed),
        (admit_of("ada", "eve", expires_ms=NOW), RosterExpired),
        (Admit(b"", "{}"), AuthenticationFailed),
        (Admit(bytes(48 * 1024), "x" * MAX_SETTINGS), AuthenticationFailed),
    ],
    ids=["conflict", "older", "without-me", "without-you", "forged", "other", "expired", "", "big"],
)
def test_a_hostile_inviter_hands_out_no_other_roster(
    admit: Admit, kind: type[SealringError]
) -> None:
    pair = Pair()
    pair.lie("inviter", admit)
    assert not any(isinstance(event, Admitted) for event in pair.heard["joiner"])
    assert isinstance(last(pair, "joiner"), kind)


def test_the_largest_roster_and_settings_pass_both_ways() -> None:
    def largest(*newcomers: Member) -> Roster:
        members = [Member(ADA.public_key, "ada"), *newcomers]
        for number in range(64 - len(members)):
            key = signer(f"member {number}").public_key
            members.append(Member(key, f"{number:x>64}", ("a" * MAX_ADDRESS, "b" * MAX_ADDRESS)))
        return attrs.evolve(HOME, members=tuple(members), serial=5 + len(newcomers))

    pair = Pair(at=host(largest()), piece=1000)
    settings = "\n" * MAX_SETTINGS
    after = largest(Member(DAN.public_key, "den"))
    pair.inviter.admit(Admit(sign_roster(after, COORDINATOR).encode(), settings), 0.0)
    pair.run()
    assert last(pair, "joiner").settings == settings
    assert len(last(pair, "joiner").roster.roster.members) == 64


def test_the_largest_newcomer_is_introduced_and_one_byte_more_is_refused_at_once() -> None:
    largest = attrs.evolve(
        NEWCOMER,
        name="n" * MAX_NAME,
        system="s" * MAX_SYSTEM,
        addresses=tuple(c * MAX_ADDRESS for c in "abcd"),
        memory=2**64 - 1,
        build=2**64 - 1,
    )
    assert last(Pair(newcomer=largest, piece=1), "inviter").newcomer == largest
    for field, value in (
        ("name", "n" * (MAX_NAME + 1)),
        ("name", "\udcff"),
        ("system", "s" * (MAX_SYSTEM + 1)),
        ("addresses", ("a" * (MAX_ADDRESS + 1),)),
        ("addresses", ("a", "a")),
        ("memory", 2**64),
        ("build", -1),
    ):
        with pytest.raises(LocalProtocolError):
            attrs.evolve(NEWCOMER, **{field: value})


# ----------------------------------------------------------------- who may join


def test_of_two_joiners_with_one_invitation_the_second_is_told() -> None:
    kept = invitations()
    first = Pair(kept)
    ben = attrs.evolve(NEWCOMER, public_key=BEN.public_key, name="ben")
    second = Pair(kept, newcomer=ben, joins=BEN, seed="second")
    refused = last(second, "inviter")
    assert isinstance(refused, JoinRefused)
    assert refused.newcomer == ben
    closed = last(second, "joiner")
    assert closed.code == CloseCode.REFUSED
    assert "another machine is joining" in closed.reason
    first.joiner.close(CloseCode.SHUTDOWN, "not now")
    first.run()
    assert last(Pair(kept, newcomer=ben, joins=BEN, seed="third"), "inviter").newcomer == ben


def test_an_admitted_machine_that_never_says_joined_keeps_the_invitation_to_itself() -> None:
    """One invitation lets one machine in, even where whoever decides says yes to all."""
    kept = invitations()
    first = admitted(Pair(kept))
    assert isinstance(last(first, "joiner"), Admitted)
    first.joiner.receive_data(b"", 0.0)
    first.joiner.close(CloseCode.SHUTDOWN, "I have what I came for")
    first.run()
    ben = attrs.evolve(NEWCOMER, public_key=BEN.public_key, name="ben")
    second = Pair(kept, newcomer=ben, joins=BEN, seed="second")
    assert isinstance(last(second, "inviter"), JoinRefused)
    assert last(second, "joiner").reason == "this invitation was used"
    again = Pair(kept, seed="again")  # the connection may have broken: the same machine may
    assert isinstance(last(again, "inviter"), Introduced)


def test_three_machines_may_try() -> None:
    kept = invitations()
    for number in range(MAX_TRIES):
        pair = Pair(kept, seed=str(number))
        assert isinstance(last(pair, "inviter"), Introduced)
        pair.inviter.close(CloseCode.SHUTDOWN, "")
    pair = Pair(kept, seed="one more")
    assert "have tried" in last(pair, "joiner").reason


@pytest.mark.parametrize("ahead", [-1, 1])
def test_clocks_that_are_apart_are_told_on_both_sides(ahead: int) -> None:
    skew = ahead * (MAX_CLOCK_SKEW_MS + 20_000)
    pair = Pair(wall_ms=(NOW + skew, NOW))
    words = str(last(pair, "inviter"))
    assert ("ahead of" if ahead > 0 else "behind") in words
    assert last(pair, "joiner").reason == words
    assert pair.invitations.fault(INVITATION, NOW) == ""


def test_any_time_of_day_is_told() -> None:
    far = Pair(wall_ms=(2**64 - 1, NOW))
    assert isinstance(last(far, "joiner"), RosterExpired)


def test_an_expired_invitation_is_told_on_both_sides() -> None:
    late = 1000 * INVITATION.expires_s
    pair = Pair(wall_ms=(late, late))
    assert last(pair, "joiner").reason == str(last(pair, "inviter"))
    assert "has expired" in last(pair, "joiner").reason


def test_a_machine_with_the_inviters_own_key_is_refused() -> None:
    """Its folder was copied, or it was given its own invitation."""
    own = attrs.evolve(NEWCOMER, public_key=ADA.public_key)
    pair = Pair(newcomer=own, joins=ADA)
    assert isinstance(last(pair, "inviter"), JoinRefused)
    assert "key" in last(pair, "joiner").reason
    assert pair.invitations.fault(INVITATION, NOW) == ""


def test_a_node_that_is_joined_to_itself_by_reflection_learns_nothing() -> None:
    """Its own frames come back to it."""
    end = asking()
    end.receive_data(end.data_to_send(), 0.0)
    with pytest.raises(RemoteProtocolError):
        end.next_event()
    pair = Pair()
    for name, own in (("joiner", pair.said["joiner"]), ("inviter", pair.said["inviter"])):
        reflected = asking() if name == "joiner" else answering(invitations())
        reflected.receive_data(own[-500:], 0.0)
        with pytest.raises(RemoteProtocolError):
            list(drain(reflected, ADA))


# --------------------------------------------------------- owners that err, and time


def test_a_decision_that_comes_too_early_or_twice_ends_the_session_and_gives_back() -> None:
    early = answering(invitations())
    with pytest.raises(LocalProtocolError) as caught:
        early.admit(ADMIT, 0.0)
    with pytest.raises(LocalProtocolError) as again:
        early.next_event()
    assert again.value is caught.value
    pair = Pair()
    pair.inviter.admit(ADMIT, 0.0)
    with pytest.raises(LocalProtocolError):
        pair.inviter.admit(ADMIT, 0.0)
    assert pair.inviter.next_timeout() is None
    assert "another machine" not in pair.invitations.fault(INVITATION, NOW, NEWCOMER.id)
    pair.run()
    assert last(pair, "joiner").code == CloseCode.INTERNAL_ERROR


@pytest.mark.parametrize("admit", [Admit(b"", "x" * (MAX_SETTINGS + 1)), Admit(b"", "\udcff")])
def test_an_admit_that_cannot_be_sent_changes_nothing(admit: Admit) -> None:
    pair = Pair()
    with pytest.raises(LocalProtocolError):
        pair.inviter.admit(admit, 0.0)
    assert isinstance(last(admitted(pair), "joiner"), Admitted)


def test_a_reason_of_any_length_is_sent() -> None:
    pair = Pair()
    pair.inviter.close(CloseCode.REFUSED, "no \x1b[2J" * 1000)
    pair.run()
    assert last(pair, "joiner").reason.startswith("no \\u001b[2J")


def test_a_joiner_that_never_finishes_is_given_up() -> None:
    end = answering(invitations())
    for second, byte in enumerate(asking().data_to_send()[:5]):
        end.receive_data(bytes([byte]), float(second))
        assert end.next_event() is None
    with pytest.raises(PeerTimeout):
        end.handle_timeout(5.0)
    assert end.data_to_send() == b""


def test_a_silent_newcomer_loses_its_place() -> None:
    pair = Pair()
    due = pair.inviter.next_timeout()
    assert due is not None
    pair.inviter.handle_timeout(due)
    lost = pair.inviter.next_timeout()
    assert lost is not None
    assert JOIN_PATIENCE - 1 <= lost <= JOIN_PATIENCE + 1
    with pytest.raises(PeerTimeout):
        pair.inviter.handle_timeout(lost)
    assert pair.invitations.fault(INVITATION, NOW) == ""


def test_a_decision_may_take_a_day_of_pings() -> None:
    pair = Pair()
    for minute in range(2000):
        now = float(minute)
        pair.inviter.handle_timeout(now)
        pair.joiner.handle_timeout(now)
        pair.run(now)
    assert isinstance(last(admitted(pair), "joiner"), Admitted)


@pytest.mark.parametrize("name", ["joiner", "inviter"])
def test_data_while_an_end_has_to_answer_ends_it(name: str) -> None:
    pair = Pair()
    end = asking() if name == "joiner" else answering(invitations())
    end.data_to_send()
    end.receive_data(pair.said["inviter" if name == "joiner" else "joiner"][:1269], 0.0)
    if name == "joiner":
        end.receive_data(pair.said["inviter"][1269:], 0.0)
    assert end.next_event() is not None
    with pytest.raises(RemoteProtocolError, match="has to answer"):
        end.receive_data(b"\0", 0.0)
    assert end.data_to_send() == b""


def test_the_end_of_a_connection_before_an_answer_says_what_it_may_mean() -> None:
    end = asking()
    with pytest.raises(ConnectionLost, match="no such invitation"):
        end.receive_eof()


def living(kind: type) -> int:
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_no_key_of_the_exchange_lives_while_somebody_decides() -> None:
    """Whoever reads the memory later, or the invitation, does not open what was recorded."""
    before = living(Exchange), living(Asking)
    pair = Pair()
    assert (living(Exchange), living(Asking)) == before
    assert isinstance(last(pair, "inviter"), Introduced)


def test_a_dead_session_keeps_no_frame_of_the_stack() -> None:
    pair = Pair()
    pair.lie("inviter", Joined())
    error = last(pair, "joiner")
    depths = []
    for _ in range(3):
        with pytest.raises(SealringError):
            pair.joiner.next_event()
        at, depth = error.__traceback__, 0
        while at is not None:
            at, depth = at.tb_next, depth + 1
        depths.append(depth)
    assert depths[0] == depths[2]


def test_a_decision_after_the_end_changes_nothing() -> None:
    """The newcomer left, or was refused, while somebody said yes."""
    left, refused = Pair(), Pair()
    left.joiner.close(CloseCode.SHUTDOWN, "not now")
    left.run()
    refused.inviter.close(CloseCode.REFUSED, "not you")
    for pair in (left, refused):
        with pytest.raises(LocalProtocolError, match="over"):
            pair.inviter.admit(ADMIT, 0.0)
        pair.inviter.receive_eof()
        assert pair.inviter.next_event() is None
    refused.run()
    assert last(refused, "joiner").reason == "not you"
