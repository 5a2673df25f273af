"""The engine's end of its channel, busy_polls or not."""

import select
import socket
import threading
import time

import pytest
from model_child import until
from sealring_model import channel as channel_module
from sealring_model.channel import Channel, ChannelBroken, ChannelClosed
from sealring_protocol.codec.encoding import encode
from sealring_protocol.codec.frame import FrameKind, frame_header
from sealring_protocol.codec.messages import Ping, Progress, Row

LONG = 10.0


def frame(message):
    body = b"".join(encode(message))
    return frame_header(FrameKind.LOCAL, len(body)) + body


def ping(number):
    return Ping(number, Progress())


@pytest.fixture(params=[False, True], ids=["calm", "busy_polls"])
def ends(request, monkeypatch):
    """The node's end, and an open channel at the other."""
    monkeypatch.setattr(channel_module, "_POLL_FOR_NS", 3_000_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made = Channel(theirs)
        made.exit_grace = LONG
        made.busy_polls = request.param
        made.open()
        try:
            yield ours, made
        finally:
            made.finish()
            ours.close()
            made._reader.join()


@pytest.mark.parametrize("soon", [False, True])
def test_messages_come_in_order_however_they_are_cut(ends, soon):
    node, channel = ends
    stream = b"".join(frame(ping(number)) for number in range(200))
    cuts = [stream[at : at + 37] for at in range(0, len(stream), 37)]
    sender = threading.Thread(target=lambda: [node.sendall(cut) for cut in cuts])
    sender.start()
    came = [channel.receive(busy_poll=soon).echo for _ in range(200)]
    sender.join()
    assert came == list(range(200))
    assert channel.is_empty()


def test_who_waits_is_woken_by_another_thread(ends):
    _, channel = ends
    waker = threading.Thread(target=channel.wake)
    waker.start()
    assert channel.receive() is None
    waker.join()
    for _ in range(100_000):  # more than any pipe holds
        channel.wake()
    assert all(channel.receive() is None for _ in range(100_000))
    assert channel.is_empty()


def test_what_came_is_not_quiet(ends):
    node, channel = ends
    node.sendall(frame(ping(7)))
    until(lambda: not channel.is_empty())
    assert channel.receive().echo == 7
    assert channel.arrived <= time.perf_counter_ns()


def test_the_end_comes_behind_what_was_sent(ends):
    node, channel = ends
    node.sendall(frame(ping(1)) + frame(ping(2)))
    node.shutdown(socket.SHUT_WR)
    assert [channel.receive().echo, channel.receive().echo] == [1, 2]
    with pytest.raises(ChannelClosed):
        channel.receive()
    with pytest.raises(ChannelClosed):
        channel.raise_if_ended()


def test_a_stream_that_is_none_of_ours_is_told_of(ends):
    node, channel = ends
    node.sendall(b"G" * 64)
    with pytest.raises(ChannelBroken, match="frame version 71"):
        channel.receive()


def test_what_comes_while_nobody_receives_is_there_afterwards(ends):
    """And so is the end."""
    node, channel = ends
    node.sendall(frame(ping(1)))
    assert channel.receive().echo == 1
    node.sendall(frame(ping(2)))
    node.shutdown(socket.SHUT_WR)
    until(lambda: channel._end is not None)
    with pytest.raises(ChannelClosed):
        channel.raise_if_ended()
    assert channel.receive().echo == 2
    with pytest.raises(ChannelClosed):
        channel.receive()


def test_who_expects_a_message_gets_it_before_it_can_be_received(ends):
    node, channel = ends
    first = []
    channel.intercept_next(lambda message: first.append((message.echo, channel.is_empty())))
    node.sendall(frame(ping(1)) + frame(ping(2)))
    assert [channel.receive().echo, channel.receive().echo] == [1, 2]
    assert first == [(1, True)]


@pytest.mark.parametrize("there", ["a message", "a call"])
def test_nobody_gets_ahead_of_what_is_there(ends, there):
    node, channel = ends
    first = []
    if there == "a message":
        node.sendall(frame(ping(1)))
        until(lambda: not channel.is_empty())
    else:
        channel.wake()
    channel.intercept_next(first.append)
    channel.receive()
    node.sendall(frame(ping(2)))
    assert channel.receive().echo == 2
    assert first == []


def test_what_is_to_come_soon_is_looked_for_for_a_while_and_then_waited_for(ends, monkeypatch):
    """Nobody burns a processor for what does not come."""
    monkeypatch.setattr(channel_module, "_POLL_FOR_NS", 300_000_000)
    node, channel = ends
    looks, poll = [], select.poll()
    poll.register(channel._sock, select.POLLIN)

    class Looks:
        def poll(self, timeout=None):
            looks.append(timeout)
            return poll.poll(timeout)

    monkeypatch.setattr(channel, "_readable", Looks())
    node.sendall(frame(ping(1)))
    channel.receive()
    receiver = threading.Thread(target=channel.receive, kwargs={"busy_poll": True})
    receiver.start()
    if channel.busy_polls:
        until(lambda: looks and looks[-1] is None)
        assert 0 in looks
    else:
        assert not looks
    node.sendall(frame(ping(2)))
    receiver.join()


def test_who_expects_anew_takes_the_place_of_who_did(ends):
    node, channel = ends
    first, second = [], []
    channel.intercept_next(first.append)
    channel.wake()  # which takes nobody's place
    assert channel.receive() is None
    channel.intercept_next(second.append)
    node.sendall(frame(ping(1)))
    assert channel.receive().echo == 1
    assert (len(first), len(second)) == (0, 1)


def test_no_more_is_read_than_may_be_held(ends, monkeypatch):
    node, channel = ends
    monkeypatch.setattr(channel_module, "MAX_HELD", 1 << 20)
    row = frame(Row(1, history=(7,) * (1 << 16)))  # 256 KiB
    node.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    sender = threading.Thread(target=lambda: [node.sendall(row) for _ in range(100)])
    sender.start()
    try:
        # Nothing more is taken for 0.1 s: all buffers on the way are full.
        until(lambda: channel._put_bytes > 1 << 20 and not select.select([], [node], [], 0.1)[1])
        assert channel._put_bytes <= 3 << 20  # what may be held, and what one read brings
        for _ in range(100):
            assert channel.receive().uid == 1
        assert channel._put_bytes == channel._got_bytes
    finally:
        node.shutdown(socket.SHUT_RDWR)
        sender.join()


def test_the_end_is_seen_though_much_is_unread(ends, monkeypatch):
    node, channel = ends
    monkeypatch.setattr(channel_module, "MAX_HELD", 100)
    for number in range(200):
        node.sendall(frame(ping(number)))
    until(lambda: channel._put_bytes > 100)
    node.close()
    until(lambda: channel._end is not None)
    with pytest.raises(ChannelClosed):
        channel.raise_if_ended()
