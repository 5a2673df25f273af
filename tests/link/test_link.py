"""One link: what it carries, what it refuses, and what it says to whom."""

from __future__ import annotations

import pytest
from sealring_protocol import limits
from sealring_protocol import link as link_module
from sealring_protocol.codec.frame import FrameKind, frame_header
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Accept,
    Backend,
    Bootstrap,
    CacheCost,
    Close,
    Epoch,
    Ping,
    Pong,
    Progress,
    Ready,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.errors import (
    AuthenticationFailed,
    CloseCode,
    ConnectionLost,
    LimitExceeded,
    LocalProtocolError,
    PeerTimeout,
    RemoteProtocolError,
    RoleViolation,
    RosterConflict,
    RosterExpired,
)
from sealring_protocol.link import LinkClosed, PeerProved
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import Purpose

from tests.link.pair import Pair, config
from tests.sim.cluster import make_roster, signer

EPOCH = Epoch(5, 1)
READY = Ready(NO_EPOCH, b"m" * 32, 0, 0, 6, DType.F32, 8, True, 1, CacheCost(0, 0))
ORDER = Bootstrap(EPOCH, Backend.PIPELINE, 1, True, 1000, b"m" * 32, (0, 2, 4, 6))
STEP = Step(EPOCH, 1, bytes(16))
DONE = StepDone(EPOCH, 1)


def established(**arguments) -> Pair:
    pair = Pair(**arguments).run()
    assert pair.a.error is None
    assert pair.b.error is None
    assert pair.a.link.established
    assert pair.b.link.established
    return pair


def messages(end):
    return [e for e in end.events if isinstance(e, (Ready, Bootstrap, Step, StepDone, LinkClosed))]


# -------------------------------------------------------------------- it works


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("split", [0, 1, 7, 1000])
def test_both_ends_come_up_and_carry_messages(suite, split):
    pair = Pair(config(1, suites=(suite,)), config(0)).run(split)
    assert pair.a.up is not None
    assert pair.b.up is not None
    assert pair.a.link.suite is pair.b.link.suite is suite
    assert pair.a.up.hop.send == pair.b.up.hop.receive != pair.a.up.hop.receive
    assert pair.a.up.instance == 100
    assert pair.b.up.instance == 101
    pair.a.link.send(READY)
    pair.b.link.send(ORDER)
    pair.run(split)
    assert messages(pair.b) == [READY]
    assert messages(pair.a) == [ORDER]


def test_keys_are_updated_on_the_way():
    pair = established(indexes=(0, 1), purpose=Purpose.STEP)
    for n in range(1, 200):
        pair.a.link.send(Step(EPOCH, n, bytes(16)))
        pair.run()
    assert [step.n for step in messages(pair.b)] == list(range(1, 200))


def test_close_ends_both_directions_and_is_told():
    pair = established()
    pair.a.link.close(CloseCode.SHUTDOWN, "done for today")
    with pytest.raises(LocalProtocolError):
        pair.a.link.send(READY)
    pair.run()
    assert messages(pair.b) == [LinkClosed(CloseCode.SHUTDOWN, "done for today")]
    with pytest.raises(LocalProtocolError):
        pair.b.link.send(ORDER)
    for end in (pair.a, pair.b):
        pair.ended(end)
        assert end.error is None
        assert end.link.next_timeout() is None
        end.link.close(CloseCode.SHUTDOWN, "again")
        assert not end.link.data_to_send()


def test_an_end_without_close_is_a_loss():
    pair = established()
    pair.ended(pair.a)
    assert isinstance(pair.a.error, ConnectionLost)
    assert not pair.a.link.data_to_send()
    for call in (pair.a.link.next_event, pair.a.link.receive_eof):
        with pytest.raises(ConnectionLost):
            call()
    with pytest.raises(ConnectionLost):
        pair.a.link.send(READY)


# --------------------------------------------------------------- who may say what


WRONG = [
    (Purpose.CONTROL, (1, 0), ORDER),
    (Purpose.CONTROL, (1, 0), STEP),
    (Purpose.CONTROL, (0, 1), READY),
    (Purpose.CONTROL, (0, 1), DONE),
    (Purpose.CONTROL, (1, 2), READY),
    (Purpose.STEP, (0, 1), DONE),
    (Purpose.STEP, (0, 1), ORDER),
    (Purpose.STEP, (1, 2), DONE),
    (Purpose.STEP, (2, 0), STEP),
    (Purpose.STEP, (2, 1), STEP),
    (Purpose.TUNNEL, (0, 1), STEP),
]


@pytest.mark.parametrize(("purpose", "indexes", "message"), WRONG)
def test_a_valid_key_is_no_licence(purpose, indexes, message):
    pair = established(purpose=purpose, indexes=indexes)
    with pytest.raises(LocalProtocolError, match="cannot be sent"):
        pair.a.link.send(message)
    pair.a.link._may_send = frozenset({type(message)})  # a member that does not keep to it
    pair.a.link.send(message)
    pair.run()
    assert isinstance(pair.b.error, RoleViolation)
    assert not messages(pair.b)
    (closed,) = messages(pair.a)
    assert closed.code == CloseCode.ROLE_VIOLATION


# ------------------------------------------------------------ strangers, not a byte


def first_flight():
    pair = Pair()
    return bytes(pair.a.link.data_to_send())


GREETINGS = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("1603010200010001fc0303") + bytes(200),
    "zeros": bytes(64),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "long": frame_header(FrameKind.HANDSHAKE, 1 << 20),
    "sealed": frame_header(FrameKind.SEALED, 40) + bytes(40),
    "local": frame_header(FrameKind.LOCAL, 40) + bytes(40),
    "empty": frame_header(FrameKind.HANDSHAKE, 0),
}


@pytest.mark.parametrize("name", GREETINGS)
def test_a_port_scanner_gets_not_a_byte(name):
    pair = Pair()
    pair._feed(pair.b, GREETINGS[name])
    pair.ended(pair.b)
    assert isinstance(pair.b.error, RemoteProtocolError)
    assert not pair.b.link.data_to_send()


def test_every_flipped_byte_of_the_handshake_is_refused_and_strangers_get_nothing():
    clean = Pair().run()
    flights = {"ab": clean.a.sent, "ba": clean.b.sent}
    for way, number in (("ab", 0), ("ba", 0), ("ab", 1)):
        size = len(flights[way][number])
        for at in range(0, size, 1 if size < 400 else 13):
            pair = Pair()
            count = 0

            def flip(data, at=at, number=number):
                nonlocal count
                count += 1
                if count - 1 != number:
                    return data
                return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

            pair.mangle[way] = flip
            pair.run()
            victim = pair.b if way == "ab" else pair.a
            assert victim.up is None, (way, number, at)
            if victim.error is None:  # a longer length: it waits, until its deadline
                with pytest.raises((PeerTimeout, ConnectionLost)):
                    victim.link.handle_timeout(pair.now + 10)
            if victim is pair.b:
                assert len(pair.b.sent) == number
                assert not pair.b.link.data_to_send()


def test_a_replayed_init_is_refused():
    admission = Admission(0.0)
    first = Pair(admission=admission).run()
    assert first.b.up is not None
    again = Pair(admission=admission)
    again.run()
    assert isinstance(again.b.error, AuthenticationFailed)
    assert "been here before" in str(again.b.error)
    assert not again.b.sent


@pytest.mark.parametrize("skew", [-121_000, 121_000])
def test_a_clock_that_is_off_is_reported_with_its_size(skew):
    pair = Pair(skew_ms=skew).run()
    assert isinstance(pair.b.error, AuthenticationFailed)
    assert "121" in str(pair.b.error)
    assert not pair.b.sent


def test_a_reflected_message_is_refused():
    pair = Pair()
    init = bytes(pair.a.link.data_to_send())
    pair._feed(pair.a, init)
    assert isinstance(pair.a.error, RemoteProtocolError)
    assert not pair.a.link.data_to_send()
    pair = established()
    pair.a.link.send(READY)
    frame = bytes(pair.a.link.data_to_send())
    pair._feed(pair.a, frame)
    assert isinstance(pair.a.error, AuthenticationFailed)


def test_one_who_is_not_on_the_roster_is_refused_without_a_byte_after_resp():
    before = make_roster(4, serial=1)  # node 3 was a member then
    now = make_roster(3, serial=2)
    pair = Pair(config(3, before), config(0, now), indexes=(3, 0)).run()
    assert isinstance(pair.b.error, AuthenticationFailed)
    assert pair.b.up is None
    assert len(pair.b.sent) == 1  # RESP: its id is known only from FIN
    assert not pair.b.link.data_to_send()


def test_the_wrong_node_at_the_address_is_noticed():
    pair = Pair(config(1), config(2), indexes=(1, 0))
    pair.b.index = 2
    pair.run()
    assert isinstance(pair.b.error, AuthenticationFailed)
    assert not pair.b.sent


def test_data_after_init_before_resp_is_too_much():
    pair = Pair()
    init = bytes(pair.a.link.data_to_send())
    pair.b.link.receive_data(init, 1.0)
    assert pair.b.link.next_event() is not None
    with pytest.raises(LimitExceeded):
        pair.b.link.receive_data(b"x", 1.0)
    assert not pair.b.link.data_to_send()


def test_too_many_signatures_are_refused():
    admission = Admission(1.0)
    for _ in range(limits.SIGNATURES_PER_SOURCE):
        admission.take_signature("a host", 1.0)
    pair = Pair(admission=admission).run()
    assert isinstance(pair.b.error, LimitExceeded)
    assert not pair.b.sent


# ----------------------------------------------------------------------- frames


def test_every_flipped_byte_of_a_frame_is_refused_and_said():
    for at in range(0, 111, 5):
        pair = established()
        pair.a.link.send(READY)
        pair.mangle["ab"] = lambda data, at=at: (
            data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        )
        pair.run()
        assert not messages(pair.b)
        if pair.b.error is None:  # a longer length: it waits for the rest
            assert 4 <= at < 8
            continue
        (closed,) = messages(pair.a)
        assert closed.code in (
            CloseCode.AUTHENTICATION_FAILED,
            CloseCode.PROTOCOL_ERROR,
            CloseCode.LIMIT_EXCEEDED,
        )


def test_replayed_and_reordered_frames_are_refused():
    for order in ((0, 0), (1, 0), (1,)):
        pair = established()
        frames = []
        for _ in range(2):
            pair.a.link.send(READY)
            frames.append(bytes(pair.a.link.data_to_send()))
        for index in order:
            pair._feed(pair.b, frames[index])
        assert isinstance(pair.b.error, AuthenticationFailed)


def test_a_frame_beyond_its_limit_is_refused_at_its_header():
    pair = established()
    pair._feed(pair.b, frame_header(FrameKind.SEALED, limits.MAX_SEALED_BODY + 1))
    assert isinstance(pair.b.error, LimitExceeded)
    pair.run()
    (closed,) = messages(pair.a)
    assert closed.code == CloseCode.LIMIT_EXCEEDED


def test_a_handshake_frame_after_the_handshake_is_fatal():
    pair = established()
    pair._feed(pair.b, first_flight())
    assert isinstance(pair.b.error, RemoteProtocolError)
    assert "kind 1" in str(pair.b.error)


def test_accept_comes_once():
    pair = established(indexes=(0, 1))
    pair.b.link._may_send = frozenset({Accept})
    pair.b.link.send(Accept(bytes(32), 1, b""))
    pair.run()
    assert isinstance(pair.a.error, RoleViolation)


# --------------------------------------------------------------------- rosters


def test_a_newer_roster_is_carried_either_way_and_stored_first():
    old, new = make_roster(3, serial=1), make_roster(3, serial=2)
    for mine, theirs in ((old, new), (new, old)):
        pair = established(a=config(1, mine), b=config(0, theirs))
        behind = pair.a if mine is old else pair.b
        ahead = pair.b if mine is old else pair.a
        assert [roster.roster.serial for roster in behind.stored] == [2]
        assert not ahead.stored


def test_two_rosters_with_one_serial_are_a_conflict_that_is_told():
    pair = Pair(config(1, make_roster(3)), config(0, make_roster(3, inner_seal=False))).run()
    errors = [end.error for end in (pair.a, pair.b) if end.error]
    assert any(isinstance(error, RosterConflict) for error in errors)
    assert pair.a.up is None
    assert pair.b.up is None


def test_links_end_when_the_roster_does():
    roster = make_roster(3, lifetime_ms=3000)
    pair = established(a=config(1, roster), b=config(0, roster))
    for _ in range(20):
        pair.now += 0.4
        for end in (pair.a, pair.b):
            try:
                end.link.handle_timeout(pair.now)
            except RosterExpired as error:
                end.error = error
        if pair.a.error:
            break
        pair.run()
    assert isinstance(pair.a.error, RosterExpired)
    assert 3.9 < pair.now < 4.5


def test_a_link_ends_the_moment_its_roster_does():
    roster = make_roster(3, lifetime_ms=3000)
    link = established(a=config(1, roster), b=config(0, roster)).a.link
    while (deadline := link.next_timeout()) != link._expires:
        link.keepalive.heard(deadline)  # the peer is there all the while
    with pytest.raises(RosterExpired):
        link.handle_timeout(link._expires)


def test_an_expired_roster_opens_no_link():
    roster = make_roster(3, lifetime_ms=1)
    pair = Pair(config(1, roster), config(0, roster), skew_ms=100)
    pair.run()
    assert pair.a.up is None
    assert pair.b.up is None


# --------------------------------------------------------------------- timers


def test_silence_is_asked_about_and_then_the_end():
    pair = established()
    start = pair.now
    assert pair.a.link.next_timeout() == start + limits.PING_INTERVAL
    pair.now += limits.PING_INTERVAL
    pair.a.link.handle_timeout(pair.now)
    pair.run()
    assert pair.a.link.keepalive.rtt == 0.0
    pair.now = pair.a.link.next_timeout()
    pair.a.link.handle_timeout(pair.now)
    pair.now = pair.a.link.next_timeout()
    assert pair.now - start < 2.6
    with pytest.raises(PeerTimeout, match="not a byte"):
        pair.a.link.handle_timeout(pair.now)
    pair.a.sent.clear()
    pair.move(pair.a, pair.b, "ab")
    assert messages(pair.b)[-1].code == CloseCode.TIMEOUT


def test_a_node_that_slept_asks_before_it_blames():
    pair = established()
    pair.now += 3600
    pair.a.link.handle_timeout(pair.now)
    pair.run()
    assert pair.a.error is None
    assert pair.a.link.established


def test_pings_are_answered_with_progress_and_have_a_budget():
    pair = established()
    pair.b.link.keepalive.progress = Progress(memory=77)
    for echo in range(limits.PINGS_PER_SECOND):
        pair.a.link.send(Ping(echo, Progress(rows=3)))
    pair.a.link.keepalive._asked.extend((echo, 0.0) for echo in range(100))
    pair.run()
    assert pair.b.link.keepalive.peer_progress.rows == 3
    assert pair.a.link.keepalive.peer_progress.memory == 77
    pair.a.link.send(Ping(9, Progress()))
    pair.run()
    assert isinstance(pair.b.error, LimitExceeded)


def test_a_pong_to_no_ping_is_an_error():
    pair = established()
    pair.a.link.send(Pong(1, Progress()))
    pair.run()
    assert isinstance(pair.b.error, RemoteProtocolError)


@pytest.mark.parametrize("stage", ["init", "all"])
def test_the_handshake_has_deadlines(stage):
    pair = Pair()
    if stage == "all":
        pair.move(pair.a, pair.b, "ab")
        expected = limits.HANDSHAKE_TIMEOUT
    else:
        expected = limits.INIT_TIMEOUT
    assert pair.b.link.next_timeout() == pair.now + expected
    pair.b.link.handle_timeout(pair.now + expected - 0.01)
    with pytest.raises(PeerTimeout):
        pair.b.link.handle_timeout(pair.now + expected)
    assert not pair.b.link.data_to_send()
    assert pair.b.link.next_timeout() is None


# -------------------------------------------------------------------- decisions


def test_a_peer_that_is_refused_is_told_why():
    pair = Pair()
    pair.b.admits = False
    pair.run()
    (proved,) = pair.b.events
    assert isinstance(proved, PeerProved)
    assert (proved.peer, proved.instance) == (config(1).node_id, 101)
    assert (proved.purpose, proved.roster.roster.serial) == (Purpose.CONTROL, 1)
    pair.b.link.refuse(CloseCode.DUPLICATE_LINK, "there is one already")
    pair.run()
    assert messages(pair.a) == [LinkClosed(CloseCode.DUPLICATE_LINK, "there is one already")]
    assert pair.a.up is None


def test_while_a_decision_is_pending_the_peer_may_only_close():
    pair = Pair()
    pair.b.admits = False
    pair.run()
    pair.a.link.close(CloseCode.SHUTDOWN, "changed my mind")
    pair.run()
    assert messages(pair.b) == [LinkClosed(CloseCode.SHUTDOWN, "changed my mind")]


def test_only_the_end_that_was_dialed_decides():
    pair = established()
    with pytest.raises(LocalProtocolError):
        pair.a.link.admit(pair.now)


def test_a_message_that_does_not_fit_is_the_callers_fault_and_sends_nothing():
    pair = established(indexes=(0, 1), purpose=Purpose.STEP)
    with pytest.raises(LocalProtocolError):
        pair.a.link.send(Step(EPOCH, -1, bytes(16)))
    assert not pair.a.link.has_data_to_send
    pair.a.link.send(STEP)
    pair.run()
    assert messages(pair.b) == [STEP]


def test_as_much_as_the_limit_may_wait_to_be_sent(monkeypatch):
    pair = established()
    pair.a.link.send(READY)
    frame = len(pair.a.link.data_to_send())
    monkeypatch.setattr(link_module, "MAX_UNSENT", 2 * frame)
    pair.a.link.send(READY)
    pair.a.link.send(READY)
    with pytest.raises(LimitExceeded):
        pair.a.link.send(READY)


@pytest.mark.parametrize(
    "call",
    [
        lambda link: link.receive_data(b"", 0.0),
        lambda link: link.receive_eof(),
        lambda link: link.next_event(),
        lambda link: link.send(READY),
        lambda link: link.close(CloseCode.SHUTDOWN, "over"),
        lambda link: link.handle_timeout(0.0),
    ],
)
def test_whatever_is_asked_of_a_dead_link_its_error_is_the_answer(call):
    link = established().a.link
    link.receive_data(b"no frame", 0.0)
    with pytest.raises(RemoteProtocolError) as first:
        link.next_event()
    with pytest.raises(RemoteProtocolError) as again:
        call(link)
    assert again.value is first.value


def test_the_owner_may_find_a_peer_at_fault():
    pair = established()
    pair.b.link.fail(RemoteProtocolError("that makes no sense"))
    pair.run()
    assert messages(pair.a) == [LinkClosed(CloseCode.PROTOCOL_ERROR, "that makes no sense")]
    with pytest.raises(RemoteProtocolError, match="no sense"):
        pair.b.link.next_event()


def test_the_same_entropy_and_answers_give_the_same_bytes():
    one, two = Pair(), Pair()
    assert bytes(one.a.link.data_to_send()) == bytes(two.a.link.data_to_send())


def test_a_close_of_a_later_version_is_taken():
    pair = established()
    pair.a.link.send(Close(999, "from the future"))
    pair.run()
    assert messages(pair.b) == [LinkClosed(999, "from the future")]


def test_keys_do_not_show_in_logs():
    pair = established(indexes=(0, 1), purpose=Purpose.STEP)
    assert pair.a.up is not None
    assert repr(pair.a.up.hop.send) not in repr(pair.a.up)
    assert signer(0).public_key
