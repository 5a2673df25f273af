"""Whoever has not proved who they are gets not a byte; and what they may send is bounded."""

from __future__ import annotations

import pytest
from sealring_protocol import limits
from sealring_protocol.codec.frame import FrameKind, frame_header
from sealring_protocol.errors import (
    AuthenticationFailed,
    ConnectionLost,
    LimitExceeded,
    PeerTimeout,
    RemoteProtocolError,
)
from sealring_protocol.security.admission import Admission

from tests.link.pair import HELLO, Pair, config, established
from tests.sim.rosters import make_roster, signer

GREETINGS = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("1603010200010001fc0303") + bytes(200),
    "zeros": bytes(64),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "long": frame_header(FrameKind.HANDSHAKE, 1 << 20),
    "sealed": frame_header(FrameKind.SEALED, 40) + bytes(40),
    "local": frame_header(FrameKind.LOCAL, 40) + bytes(40),
    "empty": frame_header(FrameKind.HANDSHAKE, 0),
    "an answer": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}
NAMED = {
    "http": "this is HTTP, and only nodes speak here: the API is at the head's 'api' address",
    "tls": "this is TLS, and only nodes speak here: the API is at the head's 'api' address",
    "ssh": "frame version 83",
    "an answer": "an HTTP server answers, and no node",
}


@pytest.mark.parametrize("name", GREETINGS)
def test_a_port_scanner_gets_not_a_byte(name):
    pair = Pair()
    pair._feed(pair.b, GREETINGS[name])
    pair.ended(pair.b)
    assert isinstance(pair.b.error, RemoteProtocolError)
    assert NAMED.get(name, "") in str(pair.b.error)
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
    assert "121 s" in str(pair.b.error)
    assert not pair.b.sent


def test_a_reflected_message_is_refused():
    pair = Pair()
    init = bytes(pair.a.link.data_to_send())
    pair._feed(pair.a, init)
    assert isinstance(pair.a.error, RemoteProtocolError)
    assert not pair.a.link.data_to_send()
    pair = established()
    pair.a.link.send(HELLO)
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
    pair.b.signer = signer(2)
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


def test_a_handshake_dies_with_its_link():
    pair = Pair()
    pair.b.link.receive_data(GREETINGS["http"], pair.now)
    with pytest.raises(RemoteProtocolError):
        pair.b.link.next_event()
    assert pair.b.link._handshake.over
