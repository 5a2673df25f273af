"""One link: what it carries, what it refuses, and what it answers."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol import limits
from sealring_protocol import link as link_module
from sealring_protocol.codec.frame import FrameKind, frame_header
from sealring_protocol.codec.messages import Accept, Close, Step
from sealring_protocol.errors import (
    AuthenticationFailed,
    CloseCode,
    ConnectionLost,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    RoleViolation,
)
from sealring_protocol.link import LinkClosed, PeerProved
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roles import Purpose

from tests.link.pair import (
    DONE,
    EPOCH,
    HELLO,
    ORDER,
    STEP,
    Pair,
    config,
    established,
    first_flight,
    messages,
)
from tests.sim.rosters import signer

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
    pair.a.link.send(HELLO)
    pair.b.link.send(ORDER)
    pair.run(split)
    assert messages(pair.b) == [HELLO]
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
        pair.a.link.send(HELLO)
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
        pair.a.link.send(HELLO)


# ------------------------------------------------------------ who may say what


WRONG = [
    (Purpose.CONTROL, (1, 0), ORDER),
    (Purpose.CONTROL, (1, 0), STEP),
    (Purpose.CONTROL, (0, 1), HELLO),
    (Purpose.CONTROL, (0, 1), DONE),
    (Purpose.CONTROL, (1, 2), HELLO),
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


# ---------------------------------------------------------------------- frames


def test_every_flipped_byte_of_a_frame_is_refused_and_said():
    for at in range(0, 72, 5):
        pair = established()
        pair.a.link.send(HELLO)
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
            pair.a.link.send(HELLO)
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


# ------------------------------------------------------------------- decisions


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
    pair.a.link.send(HELLO)
    frame = len(pair.a.link.data_to_send())
    monkeypatch.setattr(link_module, "MAX_UNSENT", 2 * frame)
    pair.a.link.send(HELLO)
    pair.a.link.send(HELLO)
    with pytest.raises(LimitExceeded):
        pair.a.link.send(HELLO)


@pytest.mark.parametrize(
    "call",
    [
        lambda link: link.receive_data(b"", 0.0),
        lambda link: link.receive_eof(),
        lambda link: link.next_event(),
        lambda link: link.send(HELLO),
        lambda link: link.close(CloseCode.SHUTDOWN, "over"),
        lambda link: link.handle_timeout(0.0),
        lambda link: link.admit(0.0),
        lambda link: link.refuse(CloseCode.SHUTDOWN, "over"),
        lambda link: link.roster_stored(0.0),
        lambda link: link.provide_signature(bytes(64), 0.0),
        lambda link: link.provide_encapsulation(bytes(1088), bytes(32), 0.0),
    ],
)
def test_whatever_is_asked_of_a_dead_link_its_error_is_the_answer(call):
    link = established().b.link
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


def test_both_ends_give_a_log_the_same_keys():
    told = []
    ends = [attrs.evolve(config(index), key_log=told.append) for index in (1, 0)]
    established(a=ends[0], b=ends[1])
    dialed, accepted = told
    assert dialed == accepted
    assert len({dialed.to_responder, dialed.to_initiator, dialed.transcript}) == 3
    assert repr(dialed.to_responder) not in repr(dialed)
