"""What a link does of what can happen to it, in each of its states."""

from __future__ import annotations

import pytest
from sealring_protocol.errors import CloseCode, LimitExceeded, LocalProtocolError
from sealring_protocol.link import LinkClosed
from sealring_protocol.security.roles import Purpose

from tests.link.pair import established


def test_a_link_that_was_closed_in_good_order_sends_and_takes_no_more():
    pair = established(purpose=Purpose.CONTROL, indexes=(0, 1))
    pair.a.link.close(CloseCode.SHUTDOWN, "enough")
    assert not pair.a.link.established
    assert pair.a.link.next_timeout() is None
    pair.a.link.close(CloseCode.SHUTDOWN, "again")  # nothing more to say
    pair.b.link.receive_data(bytes(pair.a.link.data_to_send()), pair.now)
    assert pair.b.link.next_event() == LinkClosed(CloseCode.SHUTDOWN, "enough")
    assert not pair.b.link.established
    for end in (pair.a, pair.b):
        end.link.receive_data(b"late", pair.now)
        end.link.receive_eof()
        assert end.link.next_event() is None
        assert not end.link.has_data_to_send


def test_a_link_that_was_closed_can_still_die():
    """Its owner finds a fault meanwhile: the error is what everybody hears from then on."""
    pair = established(purpose=Purpose.CONTROL, indexes=(0, 1))
    pair.a.link.close(CloseCode.SHUTDOWN, "enough")
    pair.a.link.fail(LocalProtocolError("the disk is full"))
    pair.a.link.fail(LimitExceeded("a second one changes nothing"))
    with pytest.raises(LocalProtocolError, match="the disk is full"):
        pair.a.link.next_event()
    with pytest.raises(LocalProtocolError, match="the disk is full"):
        pair.a.link.close(CloseCode.SHUTDOWN, "again")
