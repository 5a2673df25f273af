"""What is recorded of answers, what successors are told of it, and the bounds of both."""

from __future__ import annotations

import contextlib

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from sealring.dialects.replies import json_bytes
from sealring.http import kept, records
from sealring.http.kept import Kept, ResponseStore
from sealring.http.records import (
    KEEP_SECONDS,
    RECORD_SIZE,
    AnswerRecords,
    DrawnPiece,
    Frames,
    Kind,
    Record,
    RecordedRequest,
    Successor,
    pieces,
)
from sealring_protocol.codec.local_messages import Logprobs, Scores
from sealring_protocol.control.requests import FinishReason, RequestDone, ScoresOut, TokenOut
from sealring_protocol.limits import MAX_LOGPROBS, MAX_SCORES
from sealring_trio.node.runtime import AT_ONCE
from trio.testing import MockClock

from tests.api.test_succession import ID, Link

OTHER = "f" * 24


def asked(account: str = "a", body: bytes = b"{}") -> RecordedRequest:
    names = ("name", "scope", "asked", "trace_id")
    caller = dict.fromkeys(names, "") | {"account": account, "far": False}
    caller |= {"id": f"chatcmpl-{ID}", "owner": "unknown rank0 "}  # as without a key
    return RecordedRequest("/v1/chat/completions", body, caller, 5, 1 << 63, b"n" * 16, b"k")


def piece(*tokens: int, index: int = 0) -> DrawnPiece:
    return DrawnPiece(index, tuple(TokenOut(0, token, 0) for token in tokens))


def pair() -> tuple[AnswerRecords, AnswerRecords, Link]:
    """The records of a head and of its successor, and the link between them."""
    head, next_head = AnswerRecords(), AnswerRecords()
    link = Link(next_head)
    head.join(Successor(link, head))
    return head, next_head, link


def known(of: AnswerRecords) -> dict[str, bytes]:
    return {record.id: record.encoded() for record in of}


VALUES = st.floats(-1e30, 0) | st.sampled_from([float("-inf"), -0.1])
LIKELY = st.none() | st.builds(
    lambda chosen, pairs: Logprobs(
        0, 0, chosen, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    ),
    VALUES,
    st.lists(st.tuples(st.integers(0, 1 << 31), VALUES), max_size=3),
)
SCORES = st.builds(
    lambda position, chosen: ScoresOut(
        0, Scores(0, 0, position, tuple(chosen), (1,) * len(chosen))
    ),
    st.integers(1, 1 << 20),
    st.lists(VALUES, min_size=1, max_size=3),
)
TOKENS = st.builds(
    lambda token, likely: TokenOut(0, token, 0, likely), st.integers(0, 1 << 31), LIKELY
)
ENDS = st.sampled_from([(), (FinishReason.STOP,), (FinishReason.LENGTH,)])
PIECES = st.builds(
    lambda index, scores, tokens, ends, last: DrawnPiece(
        index, (*scores, *tokens, *(RequestDone(0, reason) for reason in ends)), last
    ),
    st.integers(0, 127),
    st.lists(SCORES, max_size=2),
    st.lists(TOKENS, max_size=4),
    ENDS,
    st.booleans(),
)


@given(st.lists(PIECES, max_size=4), st.binary(max_size=40))
def test_pieces_and_requests_are_what_they_were(made: list[DrawnPiece], body: bytes) -> None:
    data = b"".join(each.encode() for each in made)
    assert [*pieces(data)] == made
    request = asked(body=body)
    record = Record.decode(ID, Record(ID, request.encode(), bytearray(data)).encoded())
    assert RecordedRequest.decode(record.asked) == request
    assert (record.drawn, record.account) == (data, "a")


@given(st.binary(max_size=60))
def test_what_is_no_record_is_refused(data: bytes) -> None:
    for read in (lambda: [*pieces(data)], lambda: Record.decode(ID, data)):
        with contextlib.suppress(ValueError):
            read()


def test_an_end_that_is_an_error_is_not_recorded() -> None:
    failed = DrawnPiece(0, (TokenOut(0, 5, 0), RequestDone(0, FinishReason.FAILED, "why")))
    assert [*pieces(failed.encode())] == [piece(5)]


def test_a_successor_knows_what_the_head_knows_however_little_it_takes_at_once() -> None:
    head, next_head, link = pair()
    first = head.begin(ID, asked())
    assert first is not None
    head.add(first, piece(1, 2))
    link.room = 0
    second = head.begin(OTHER, asked(body=b"x" * 1000))
    assert second is not None
    head.add(first, piece(3))
    head.add(second, piece(4))
    head.keep(second)
    head.flush()
    assert known(next_head) != known(head)
    for _ in range(300):
        link.room = 7
        head.flush()
    assert known(next_head) == known(head)
    assert [record.kept for record in next_head] == [False, True]
    link.room = 1 << 30
    head.over(first)
    assert known(next_head).keys() == {OTHER}
    late = Link(AnswerRecords())
    head.join(Successor(late, head))
    assert known(late.hears) == known(head)


def test_a_successor_that_takes_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_BEHIND", 2000)
    head, _, link = pair()
    record = head.begin(ID, asked())
    assert record is not None
    link.room = 0
    while not link.dropped:
        head.add(record, piece(*range(10)))
        assert len(record.drawn) < 5000


def test_one_account_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORDS", 4000 + 4 * RECORD_SIZE)
    head = AnswerRecords()
    assert head.begin(ID, asked("a", b"x" * 1000 + bytes(RECORD_SIZE))) is not None
    assert head.begin(OTHER, asked("a", b"x" * 1000)) is None
    own = head.begin(OTHER, asked("b"))
    assert own is not None
    while head.find(OTHER) is own:  # it grows, and then is kept no longer
        head.add(own, piece(*range(50)))
        assert own.size < 3000 + 2 * RECORD_SIZE
    assert head.begin("0" * 24, asked("b", b"x" * 1000)) is not None
    assert head.begin("no id", asked("c")) is None


def complete(head: AnswerRecords, id: str, account: str, size: int = 0) -> Record:
    """An answer that is kept, all of which is drawn."""
    record = head.begin(id, asked(account, b"x" * size))
    assert record is not None
    head.keep(record)
    head.add(record, DrawnPiece(0, (RequestDone(0, FinishReason.STOP),), last=True))
    head.complete(record)
    return record


def test_a_successor_knows_a_complete_answer_for_as_long_as_the_head_keeps_it() -> None:
    head, next_head, _ = pair()
    record = complete(head, ID, "a")
    late = AnswerRecords()
    head.join(Successor(Link(late), head))
    for successor in (next_head, late):
        assert known(successor) == known(head) != {}
        assert [(each.kept, each.complete) for each in successor] == [(True, True)]
    head.over(record)
    assert not [*head, *next_head, *late]
    head.complete(record)
    assert not [*head, *next_head, *late]


def test_complete_answers_make_room_for_those_that_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest of an account's own, or else of whoever has most."""
    size = 10 * RECORD_SIZE
    monkeypatch.setattr(records, "MAX_RECORDS", 4 * size)
    head, next_head, _ = pair()
    text = size // 3  # of which as much again is taken at once
    for at in range(4):
        complete(head, f"{at:024}", "a", text)
    assert known(head).keys() == {f"{2:024}", f"{3:024}"}  # half is its part
    complete(head, f"{4:024}", "b", text)
    made = [head.begin(f"{at:024}", asked("c", b"x" * text)) for at in (5, 6)]
    assert known(head).keys() == {f"{at:024}" for at in (2, 3, 4, 5, 6)}
    made += [head.begin(f"{7:024}", asked("d", b"x" * text))]
    assert known(head).keys() == {f"{at:024}" for at in (3, 4, 5, 6, 7)}
    made += [head.begin(f"{at:024}", asked("c", b"x" * text)) for at in (8, 9)]
    assert None not in made
    assert head.begin(f"{10:024}", asked("c", b"x" * text)) is None  # others' do not help
    assert known(head).keys() == {f"{at:024}" for at in (4, 5, 6, 7, 8, 9)}
    assert known(head) == known(next_head)


def test_the_smallest_records_of_one_account_are_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at a successor whose head says anything."""
    monkeypatch.setattr(records, "MAX_RECORDS", 100 * RECORD_SIZE)
    next_head = AnswerRecords()
    for at in range(100):
        next_head.hear(Kind.BEGUN, f"{at:024}", asked("a").encode())
    assert 25 < len([*next_head]) < 50


def test_responses_are_told_with_their_names() -> None:
    head, next_head, _ = pair()
    item = b'{"id":"msg_1"}'
    head.responses.keep("o", "resp_1", Kept(b"{}", (), (item,), (item,), "a"))
    next_head.responses.keep("o", "resp_0", Kept(b"{}", (), (), (), "a"))
    head.flush()
    assert next_head.responses.find("o", "resp_1") == head.responses.find("o", "resp_1")
    head.join(Successor(Link(next_head), head))  # it has come back
    assert next_head.responses.names == [("o", "resp_1")]
    for wrong in (b"[1", b"{}", b'["o"]', b'[["o"]]', b'["o","n","{}",[1],[],[],"a"]'):
        for kind in (Kind.RESPONSE, Kind.DROPPED):
            with pytest.raises(ValueError, match=r"."):
                next_head.hear(kind, "0" * 24, wrong)


def test_the_largest_responses_are_told() -> None:
    """One of as many items as there may be, and of as many bytes, each of which JSON has twice."""
    head, next_head, _ = pair()
    item = b'"' * (kept.MAX_KEPT_EACH // kept.MAX_KEPT_ITEMS - 1)
    head.responses.keep("o", "resp_1", Kept(b"", (), (item,) * kept.MAX_KEPT_ITEMS, (), "a"))
    head.responses.keep("o", "resp_2", Kept(b'"' * kept.MAX_KEPT_EACH, (), (), (), "b"))
    head.flush()
    assert len(head.responses.names) == 2
    for owner, name in head.responses.names:
        assert next_head.responses.find(owner, name) == head.responses.find(owner, name)


def test_the_names_of_as_many_responses_as_there_may_be_are_heard() -> None:
    """Each has 512 bytes at least."""
    next_head = AnswerRecords()
    next_head.responses.keep("o", "resp_0", Kept(b"{}", (), (), (), "a"))
    names = [("known " + "0" * 64, f"resp_{at:024}") for at in range(kept.MAX_KEPT // 512)]
    next_head.hear(Kind.RESPONSES, "", json_bytes(names))
    assert next_head.responses.names == []


def test_the_largest_piece_is_what_it_was() -> None:
    alternatives = MAX_SCORES * MAX_LOGPROBS
    chosen, ranks, ids = (-1e-30,) * MAX_SCORES, (1,) * MAX_SCORES, (1 << 31,) * alternatives
    scores = Scores(0, 0, 1, chosen, ranks, ids, (-1e-30,) * alternatives)
    made = DrawnPiece(0, (ScoresOut(0, scores),) * AT_ONCE)
    assert [*pieces(made.encode())] == [made]


def test_what_grows_is_read_as_far_as_it_was() -> None:
    data = bytearray(piece(1).encode() + piece(2).encode())
    read = pieces(data, len(data))
    assert next(read) == piece(1)
    data += b"x"
    assert [*read] == [piece(2)]


def test_a_response_that_is_kept_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head before told it just before it was lost, and the next one makes it again."""
    monkeypatch.setattr(kept, "MAX_KEPT", 100)
    store = ResponseStore()
    for _ in range(5):
        store.keep("o", "resp_1", Kept(b"x" * 60, (), (), (), "a"))
        store.drop("o", "resp_1")
        store.keep("o", "resp_2", Kept(b"x" * 30, (), (), (), "a"))
        store.keep("o", "resp_2", Kept(b"x" * 30, (), (), (), "a"))
    store.keep("p", "resp_3", Kept(b"x" * 60, (), (), (), "b"))
    assert store.names == [("o", "resp_2"), ("p", "resp_3")]


def test_frames_of_no_size_or_kind_are_refused() -> None:
    for data in (b"\x09" + bytes(16), b"\x01\xff\xff\xff\xff" + bytes(12)):
        with pytest.raises(ValueError, match=r"."):
            [*Frames().add(data)]


async def test_what_nobody_makes_is_forgotten(autojump_clock: MockClock) -> None:
    head, next_head, _ = pair()
    record = head.begin(ID, asked())
    assert record is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(head.run)
        await trio.sleep(2 * KEEP_SECONDS)
        assert head.find(ID) is record
        head.leave_all()
        await trio.sleep(KEEP_SECONDS - 10)
        assert head.find(ID) is record
        await trio.sleep(20)
        assert not [*head, *next_head]
        nursery.cancel_scope.cancel()


def test_another_head_begins_another_record() -> None:
    """Who has the record of the head before keeps it as it was."""
    head, next_head, _ = pair()
    record = head.begin(ID, asked())
    assert record is not None
    head.add(record, piece(1))
    head.flush()
    before = next_head.find(ID)
    again = Record.decode(ID, record.encoded())
    assert head.put(again)
    head.add(record, piece(2))  # by who made the other
    head.add(again, piece(3))
    head.flush()
    assert before is not None
    assert [each.events[0].token for each in pieces(before.drawn)] == [1]  # type: ignore[union-attr]
    found = next_head.find(ID)
    assert found is not None
    assert [*pieces(found.drawn)] == [piece(1), piece(3)]


@pytest.mark.parametrize("told", [b"[{}]", b'[["a"]]', b"[[]]", b"[null]", b'["a",{},1]'])
def test_responses_of_other_kinds_are_no_fault_of_the_successor(told: bytes) -> None:
    """Whoever hears a head ends with any other exception."""
    for kind in (Kind.RESPONSES, Kind.RESPONSE, Kind.DROPPED):
        with pytest.raises(ValueError, match="responses"):
            AnswerRecords().hear(kind, "", told)


def test_pieces_of_no_use_are_no_other_fault() -> None:
    for more in (b"[[[0,[1],[]]],[]]", b"[[null],[[0,[],[],[],[]]]]"):
        with pytest.raises(ValueError, match="no pieces"):
            list(pieces(b"\0\0\0\0\1" + len(more).to_bytes(4, "big") + bytes(4) + more))


def test_a_successor_that_comes_to_a_large_answer_is_told_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes what it is told as fast as it can, and is behind by what was drawn before."""
    monkeypatch.setattr(records, "MAX_BEHIND", 2000)
    head = AnswerRecords()
    record = head.begin(ID, asked())
    assert record is not None
    while len(record.drawn) < 5000:
        head.add(record, piece(*range(10)))
    link = Link(AnswerRecords())
    link.room = 100
    successor = Successor(link, head)
    head.join(successor)
    head.add(record, piece(1))
    assert not link.dropped
    link.room = 1 << 30
    head.flush()
    assert known(link.hears) == known(head)
    link.room = 0
    while not link.dropped:
        head.add(record, piece(*range(10)))
        assert len(record.drawn) < 10000


def test_a_successor_that_takes_nothing_is_let_go_for_what_has_only_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests that are over before it takes anything leave nothing behind."""
    head, _, link = pair()
    first = head.begin(ID, asked())
    assert first is not None
    link.room = 0
    head.add(first, piece(1))
    head.flush()
    successor = head._successors[0]
    for at in range(1000):
        record = head.begin(f"{at:024x}", asked())
        assert record is not None
        head.over(record)
    assert len(successor._untold) < 100 or link.dropped


@pytest.mark.parametrize("name", ["a\nWARNING sealring: forged", "\x1b[31m", "a" * 10_000])
def test_what_a_caller_is_called_is_one_line_of_the_log(name: str) -> None:
    made = asked()
    with pytest.raises(ValueError, match="by no words"):
        RecordedRequest.decode(attrs.evolve(made, caller={**made.caller, "name": name}).encode())


async def test_who_is_to_have_a_record_waits_for_one_successor(autojump_clock: MockClock) -> None:
    head = AnswerRecords()
    record = head.begin(ID, asked())
    assert record is not None
    waited: list[float] = []

    async def wait(record: Record) -> None:
        await head.until_known(record)
        waited.append(trio.current_time())

    await wait(record)  # for nobody
    both = [Successor(Link(AnswerRecords()), head) for _ in range(2)]
    for each in both:
        head.join(each)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, record)
        await trio.sleep(4)
        assert len(waited) == 1
        head.knows(both[1], b"\1")
    await wait(record)
    assert waited[1:] == [waited[0] + 4] * 2


async def test_a_successor_that_says_nothing_keeps_no_client_waiting_for_long(
    autojump_clock: MockClock,
) -> None:
    head = AnswerRecords()
    head.join(Successor(Link(AnswerRecords()), head))
    record = head.begin(ID, asked())
    assert record is not None
    began = trio.current_time()
    await head.until_known(record)
    assert trio.current_time() == began + records.KNOWN_SECONDS


async def test_who_is_to_have_a_record_waits_a_little_after_the_last_successor(
    autojump_clock: MockClock,
) -> None:
    """The head may be cut off. Who said of other records that it knows them has not of this one."""
    head = AnswerRecords()
    successor = Successor(Link(AnswerRecords()), head)
    head.join(successor)
    began = trio.current_time()
    first, second = head.begin(OTHER, asked()), head.begin(ID, asked())
    assert first is not None
    assert second is not None
    head.knows(successor, b"\1")
    await head.until_known(first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(head.until_known, second)
        await trio.sleep(1.5)
        head.part(successor)
    assert trio.current_time() == began + 1.5 + records.PARTED_SECONDS
    head.knows(successor, b"\0")  # it has no room
    assert not second.known
    head.knows(successor, bytes(1000))  # of no more than there are


async def test_nobody_waits_for_a_record_that_is_over(autojump_clock: MockClock) -> None:
    head = AnswerRecords()
    head.join(Successor(Link(AnswerRecords()), head))
    record = head.begin(ID, asked())
    assert record is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(head.until_known, record)
        await trio.testing.wait_all_tasks_blocked()
        head.over(record)
