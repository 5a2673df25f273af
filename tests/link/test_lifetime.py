"""How long a link lives: by its roster, and by signs of life."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol import limits
from sealring_protocol.codec.messages import Ping, Pong, Progress
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.errors import (
    CloseCode,
    LimitExceeded,
    PeerTimeout,
    RemoteProtocolError,
    RosterConflict,
    RosterExpired,
)
from sealring_protocol.security.roles import Purpose

from tests.link.pair import STEP, Pair, config, established, messages
from tests.sim.rosters import make_roster

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


# ---------------------------------------------------------------------- timers


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


def test_the_bytes_of_a_long_frame_are_signs_of_life_but_not_for_ever():
    pair = established(purpose=Purpose.STEP, indexes=(0, 1))
    pair.a.link.send(attrs.evolve(STEP, tensors=(Tensor(DType.F32, (1 << 20,), bytes(4 << 20)),)))
    frame, link, up = bytes(pair.a.link.data_to_send()), pair.b.link, pair.now
    rest = iter(frame[100:])

    def moves(now):
        """Whether one byte at *now* gives the peer more time."""
        before = link.next_timeout()
        link.receive_data(bytes([next(rest)]), now)
        assert link.next_event() is None
        return link.next_timeout() > before

    link.receive_data(frame[:100], up)
    assert link.next_event() is None
    end = up + limits.PING_TIMEOUT + (len(frame) - limits.FRAME_HEADER) / limits.MIN_FRAME_RATE
    assert moves(up + limits.PING_TIMEOUT)
    assert moves(end - 0.01)
    assert not moves(end + 0.01)


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
    with pytest.raises(PeerTimeout, match=f"took more than {expected:.1f} s"):
        pair.b.link.handle_timeout(pair.now + expected)
    assert not pair.b.link.data_to_send()
    assert pair.b.link.next_timeout() is None
