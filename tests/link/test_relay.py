"""Streams of an API link: two ends that keep the rules, in any order, and one that does not."""

from __future__ import annotations

from collections import deque

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.messages import Close, Message
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Credit, Drop, Question, Reply
from sealring_protocol.errors import (
    CloseCode,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.limits import (
    MAX_BODY,
    MAX_HEADERS,
    MAX_STREAMS,
    MAX_TARGET,
    MAX_UNSENT,
    STREAM_WINDOW,
)
from sealring_protocol.relay import AskCame, BodyCame, DropCame, Relay, ReplyCame, RoomCame

QUESTION = Question("POST", b"/v1/completions?stream=1", True, "10.0.0.9")


def ends() -> tuple[Relay, Relay]:
    return Relay(asks=True), Relay(asks=False)


def carry(sender: Relay, receiver: Relay) -> list[object]:
    """What *receiver* makes of all that *sender* has to send."""
    return [event for message in sender.messages() for event in receiver.receive(message)]


def asked(body: bytes | None = b"") -> tuple[Relay, Relay]:
    """Two ends with stream 1, whose request has this *body*, or is still open."""
    member, head = ends()
    member.ask(QUESTION)
    if body is not None:
        member.send(1, body, last=True)
    carry(member, head)
    return member, head


def test_a_request_and_its_answer():
    member, head = ends()
    assert member.ask(QUESTION) == 1
    member.send(1, b"abc", last=True)
    assert carry(member, head) == [AskCame(1, QUESTION), BodyCame(1, b"abc", True)]
    head.reply(1, 404, ((b"content-type", b"text/plain"),))
    head.send(1, b"no", last=False)
    head.send(1, b"", last=True)
    assert carry(head, member) == [
        ReplyCame(1, 404, ((b"content-type", b"text/plain"),)),
        BodyCame(1, b"no", False),
        BodyCame(1, b"", True),
    ]
    assert member.streams == head.streams == 0
    assert member.ask(QUESTION) == 2


def test_a_body_is_cut_and_only_its_end_is_the_last():
    member, head = ends()
    member.ask(QUESTION)
    member.send(1, bytes(MAX_BODY + 1), last=True)
    _, *parts = carry(member, head)
    assert [(len(part.data), part.last) for part in parts] == [(MAX_BODY, False), (1, True)]


def test_nothing_is_sent_beyond_the_window_and_credit_comes_by_halves():
    member, head = asked(None)
    assert member.room(1) == STREAM_WINDOW
    with pytest.raises(LocalProtocolError, match="room"):
        member.send(1, bytes(STREAM_WINDOW + 1), last=False)
    assert not member.messages()
    member.send(1, bytes(STREAM_WINDOW), last=False)
    assert member.room(1) == 0
    member.send(1, b"", last=False)
    carry(member, head)
    with pytest.raises(LocalProtocolError, match="consumed"):
        head.took(1, STREAM_WINDOW + 1)
    head.took(1, 0)
    head.took(1, STREAM_WINDOW // 2 - 1)
    assert not head.messages()
    head.took(1, 2)
    assert carry(head, member) == [RoomCame(1)]
    assert member.room(1) == STREAM_WINDOW // 2 + 1
    member.send(1, bytes(member.room(1)), last=True)
    carry(member, head)
    head.took(1, STREAM_WINDOW)
    assert not head.messages(), "a body that is whole needs no credit"


def test_credit_is_given_once_for_each_byte():
    member, head = asked(None)
    for _ in range(3):
        member.send(1, bytes(member.room(1)), last=False)
        carry(member, head)
        head.took(1, STREAM_WINDOW)
        carry(head, member)
        assert member.room(1) == STREAM_WINDOW


def test_an_early_answer_stands_and_the_rest_of_the_request_is_given_up():
    member, head = asked(None)
    member.send(1, b"part", last=False)
    carry(member, head)
    head.reply(1, 413, ())
    head.send(1, b"too much", last=True)
    head.drop(1, "the request was answered")
    assert not head.is_live(1)
    assert carry(head, member)[1:] == [
        BodyCame(1, b"too much", True),
        DropCame(1, "the request was answered"),
    ]
    assert not member.is_live(1)
    assert member.room(1) == 0
    with pytest.raises(LocalProtocolError):
        member.send(1, b"more", last=True)
    assert member.streams == head.streams == 1, "the member has not let go"
    member.drop(1)
    assert carry(member, head) == []
    assert member.streams == head.streams == 0


def test_what_was_under_way_when_a_stream_was_given_up_is_ignored():
    member, head = asked()
    head.reply(1, 200, ())
    head.send(1, b"text", last=True)
    late = head.messages()
    member.drop(1, "gone")
    (dropped,) = member.messages()
    assert [member.receive(message) for message in late] == [[], []]
    assert member.streams == 0, "both bodies are whole"
    assert head.receive(dropped) == []
    assert not head.messages(), "it has sent its last"


def test_a_stream_that_is_over_is_over_at_the_head_before_another_takes_its_place():
    """Or the member, which has room for one more, would be cut off with all of its streams."""
    member, head = ends()
    for _ in range(MAX_STREAMS):
        member.ask(QUESTION)
    carry(member, head)
    head.reply(1, 413, ())
    head.send(1, b"too much", last=True)
    carry(head, member)
    head.drop(1, "the request was answered")
    member.send(1, b"the rest", last=True)
    member.ask(QUESTION)
    assert carry(member, head) == [AskCame(MAX_STREAMS + 1, QUESTION)]
    assert carry(head, member) == []
    assert member.streams == head.streams == MAX_STREAMS


def test_both_may_let_go_at_once():
    member, head = asked(None)
    member.drop(1, "mine")
    head.drop(1, "yours")
    for end in (member, head):
        with pytest.raises(LocalProtocolError, match="is over"):
            end.send(1, b"more", last=True)
    to_head, to_member = member.messages(), head.messages()
    assert [head.receive(m) for m in to_head] == [[]]
    assert [member.receive(m) for m in to_member] == [[]]
    assert member.streams == head.streams == 0
    assert not member.messages()
    assert not head.messages()


def test_credit_that_crosses_the_end_is_ignored():
    member, head = asked()
    head.reply(1, 200, ())
    head.send(1, bytes(STREAM_WINDOW), last=False)
    carry(head, member)
    member.took(1, STREAM_WINDOW)
    head.send(1, b"", last=True)
    assert carry(member, head) == []
    carry(head, member)
    assert member.streams == 0


def test_a_stream_counts_until_both_have_let_go():
    """Or a client that asks and leaves, over and over, would make the head begin without end."""
    member, head = ends()
    for _ in range(MAX_STREAMS):
        member.drop(member.ask(QUESTION))
    assert member.streams == MAX_STREAMS
    with pytest.raises(LocalProtocolError, match="256 requests are under way"):
        member.ask(QUESTION)
    carry(member, head)
    assert head.streams == MAX_STREAMS
    assert not head.messages(), "its owner has not let go"
    head.drop(5)
    carry(head, member)
    assert member.ask(QUESTION) == MAX_STREAMS + 1
    member.drop(MAX_STREAMS + 1)
    carry(member, head)
    assert head.streams == MAX_STREAMS
    with pytest.raises(LimitExceeded):
        head.receive(Ask(MAX_STREAMS + 2, QUESTION))


def test_all_that_may_be_unread_is_below_what_ends_a_link():
    member, _ = ends()
    headers = ((b"h", b"x" * (MAX_HEADERS - 5)),)
    for _ in range(MAX_STREAMS):
        question = attrs.evolve(QUESTION, target=b"/" * MAX_TARGET, headers=headers)
        member.send(member.ask(question), bytes(STREAM_WINDOW), last=False)
    size = sum(sum(map(len, encode(message))) + 64 for message in member.messages())
    assert MAX_STREAMS * (MAX_HEADERS + STREAM_WINDOW) < size < MAX_UNSENT


def test_a_link_that_is_gone_ends_every_stream_once():
    member, head = asked(None)
    member.ask(QUESTION)
    member.ask(QUESTION)
    member.drop(2)
    carry(member, head)
    assert member.end("the link broke") == [DropCame(stream, "the link broke") for stream in (1, 3)]
    assert head.end("it broke") == [DropCame(1, "it broke"), DropCame(3, "it broke")]
    assert member.streams == 0
    assert not member.messages()
    member.drop(1)
    member.took(1, 0)
    with pytest.raises(LocalProtocolError, match="the link broke"):
        member.ask(QUESTION)


def test_each_end_does_what_is_its_own():
    member, head = asked()
    with pytest.raises(LocalProtocolError, match="only the head replies"):
        member.reply(1, 200, ())
    with pytest.raises(LocalProtocolError, match="asks nothing"):
        head.ask(QUESTION)
    with pytest.raises(LocalProtocolError):
        head.send(1, b"before the reply", last=True)
    with pytest.raises(LocalProtocolError):
        member.send(1, b"after the last", last=True)
    head.reply(1, 200, ())
    with pytest.raises(LocalProtocolError):
        head.reply(1, 200, ())
    with pytest.raises(LocalProtocolError):
        head.reply(2, 200, ())
    assert carry(head, member) == [ReplyCame(1, 200, ())]


FAULTS: dict[str, tuple[bool, list[Message], CloseCode]] = {
    "reply to nothing": (True, [Reply(2, 200)], CloseCode.PROTOCOL_ERROR),
    "two replies": (True, [Reply(1, 200)] * 2, CloseCode.PROTOCOL_ERROR),
    "a body before its reply": (True, [BodyPart(1, b"x")], CloseCode.PROTOCOL_ERROR),
    "an ask to the member": (True, [Ask(1, QUESTION)], CloseCode.PROTOCOL_ERROR),
    "a reply to the head": (False, [Reply(1, 200)], CloseCode.PROTOCOL_ERROR),
    "stream 0": (False, [Drop(0)], CloseCode.PROTOCOL_ERROR),
    "an answer after the last": (
        True,
        [Reply(1, 200), BodyPart(1, b"", last=True), BodyPart(1, b"x")],
        CloseCode.PROTOCOL_ERROR,
    ),
    "beyond the window": (
        True,
        [Reply(1, 200), *[BodyPart(1, bytes(MAX_BODY))] * 2, BodyPart(1, b"x")],
        CloseCode.LIMIT_EXCEEDED,
    ),
    "credit of nothing": (True, [Credit(1, 1)], CloseCode.LIMIT_EXCEEDED),
    "a reply after its drop": (True, [Drop(1), Reply(1, 200)], CloseCode.PROTOCOL_ERROR),
    "another message": (True, [Close(0, "")], CloseCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("asks", "messages", "code"), FAULTS.values(), ids=[*FAULTS])
def test_what_may_not_come_is_the_peers_fault(asks, messages, code):
    member, head = asked(None)
    relay = member if asks else head
    *before, last = messages
    for message in before:
        relay.receive(message)
    kind = LimitExceeded if code is CloseCode.LIMIT_EXCEEDED else RemoteProtocolError
    with pytest.raises(RemoteProtocolError) as raised:
        relay.receive(last)
    assert type(raised.value) is kind


@attrs.define
class Side:
    """One end with its owner: what he has sent, and what has come, by stream."""

    relay: Relay
    sent: dict[int, bytes] = attrs.field(factory=dict)
    came: dict[int, bytes] = attrs.field(factory=dict)
    whole: set[int] = attrs.field(factory=set)  # the peer's bodies
    ended: set[int] = attrs.field(factory=set)  # this owner's
    replied: set[int] = attrs.field(factory=set)
    left: set[int] = attrs.field(factory=set)
    held: dict[int, int] = attrs.field(factory=dict)
    wire: deque[Message] = attrs.field(factory=deque)  # from this end

    def live(self) -> list[int]:
        return sorted(stream for stream in self.came if self.relay.is_live(stream))


SIZES = st.sampled_from([STREAM_WINDOW, STREAM_WINDOW, MAX_BODY + 1, 5, 0])


class TwoEnds(RuleBasedStateMachine):
    """Two ends that keep the rules, and a wire that keeps the order: no end ever refuses the other,
    what comes is what was sent, and in the end nothing is left."""

    most = 2  # streams at a time, so that each gets far

    def __init__(self) -> None:
        super().__init__()
        self.member, self.head = (Side(relay) for relay in ends())

    @rule()
    def ask(self) -> None:
        if self.member.relay.streams < self.most:
            self.member.came[self.member.relay.ask(QUESTION)] = b""

    @rule(
        data=st.data(),
        at_head=st.booleans(),
        size=SIZES,
        last=st.sampled_from([False, False, True]),
    )
    def send(self, data: st.DataObject, at_head: bool, size: int, last: bool) -> None:
        side = self.head if at_head else self.member
        can = [each for each in side.live() if each not in side.ended]
        can = [each for each in can if not at_head or each in side.replied]
        if not can:
            return
        stream = data.draw(st.sampled_from(can))
        piece = bytes([stream % 251]) * min(size, side.relay.room(stream))
        side.relay.send(stream, piece, last=last)
        side.sent[stream] = side.sent.get(stream, b"") + piece
        if last:
            side.ended.add(stream)

    @precondition(lambda self: set(self.head.live()) - self.head.replied)
    @rule(data=st.data())
    def reply(self, data: st.DataObject) -> None:
        waiting = sorted(set(self.head.live()) - self.head.replied)
        stream = data.draw(st.sampled_from(waiting))
        self.head.relay.reply(stream, 200, ())
        self.head.replied.add(stream)

    @rule(data=st.data(), at_head=st.booleans(), part=st.sampled_from([1.0, 1.0, 0.5, 0.1]))
    def take(self, data: st.DataObject, at_head: bool, part: float) -> None:
        side = self.head if at_head else self.member
        if held := sorted(stream for stream, size in side.held.items() if size):
            stream = data.draw(st.sampled_from(held))
            size = round(side.held[stream] * part)
            side.relay.took(stream, size)
            side.held[stream] -= size

    @rule(data=st.data(), at_head=st.booleans(), wants=st.sampled_from([False] * 3 + [True]))
    def drop(self, data: st.DataObject, at_head: bool, wants: bool) -> None:
        side = self.head if at_head else self.member
        if side.came and wants:
            stream = data.draw(st.sampled_from(sorted(side.came)))
            side.relay.drop(stream, "enough")
            side.left.add(stream)

    @rule(at_head=st.booleans(), count=st.integers(1, 9))
    def deliver(self, at_head: bool, count: int) -> None:
        sender, receiver = (self.member, self.head)[:: 1 if at_head else -1]
        sender.wire.extend(sender.relay.messages())
        for _ in range(min(count, len(sender.wire))):
            message = decode(b"".join(encode(sender.wire.popleft())))
            for event in receiver.relay.receive(message):
                self.hear(receiver, event)

    def hear(self, side: Side, event: object) -> None:
        match event:
            case AskCame(stream):
                side.came[stream] = b""
            case BodyCame(stream, data, last):
                assert stream not in side.left
                assert stream not in side.whole
                side.came[stream] += data
                side.held[stream] = side.held.get(stream, 0) + len(data)
                if last:
                    side.whole.add(stream)
            case DropCame(stream):
                assert stream not in side.left
                assert side.relay.room(stream) == 0

    @invariant()
    def what_came_was_sent(self) -> None:
        for side in (self.member, self.head):
            side.wire.extend(side.relay.messages())
        for one, other in ((self.member, self.head), (self.head, self.member)):
            assert one.relay.streams <= self.most
            for stream, came in one.came.items():
                sent = other.sent.get(stream, b"")
                assert sent[: len(came)] == came
                if stream in one.whole:
                    assert came == sent
                if other.relay.is_live(stream) and one.relay.is_live(stream):
                    credit = sum(
                        message.size
                        for message in one.wire
                        if isinstance(message, Credit) and message.stream == stream
                    )
                    flying = len(sent) - len(came)
                    known = one.held.get(stream, 0) + flying + other.relay.room(stream) + credit
                    assert known <= STREAM_WINDOW
                    if stream not in one.whole:
                        assert known > STREAM_WINDOW // 2, "the rest would never come"

    def teardown(self) -> None:
        for side in (self.member, self.head):
            for stream in side.came:
                side.relay.drop(stream)
                side.left.add(stream)
        for _ in range(3):
            for at_head in (True, False):
                self.deliver(at_head, 100_000)
            for stream in self.head.came:
                self.head.relay.drop(stream)
                self.head.left.add(stream)
        assert self.member.relay.streams == self.head.relay.streams == 0


TestTwoEnds = TwoEnds.TestCase
TestTwoEnds.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
