"""Records of answers that a hostile member tells as the head, or brings as a door."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing
from sealring.http import records as answer_records
from sealring.http import succession
from sealring.http.gate import ANSWER
from sealring.http.head import ApiHead
from sealring.http.records import (
    AnswerRecords,
    Kind,
    Record,
    RecordedRequest,
    new_id,
    pieces,
)
from sealring.http.relay import RelayStream
from sealring.http.resume import MAX_COUNT
from sealring.http.succession import Ring
from sealring_trio.node.runtime import AT_ONCE
from starlette.types import Message

from tests.api import test_succession
from tests.api.test_records import asked, piece
from tests.api.test_succession import CHAT, ID, NAMED, TALK, Asked, behind_gate, heads, in_ring
from tests.attacks.test_foreign_json import at_most, many
from tests.serving import PATIENCE

shared_ring = test_succession.shared_ring

FIELDS: list[dict[str, Any]] = [
    {"path": 5},
    {"began": 1e400},
    {"began": -1},
    {"seed": "5"},
    {"seed": 1 << 64},
    {"caller": {}},
    {"caller": {"account": "a"}},
    {"caller": [1]},
]
CALLERS: list[dict[str, Any]] = [
    {"id": "chatcmpl-1\n\ndata: x"},
    {"account": 5},
    {"far": "no"},
    {"more": "x"},
]


@pytest.mark.parametrize("more", [*FIELDS, *({"caller": each} for each in CALLERS)])
def test_a_request_whose_fields_are_of_other_kinds_is_no_request(more: dict[str, Any]) -> None:
    data = asked().encode()
    end = 4 + struct.unpack_from(">I", data)[0]
    fields = json.loads(data[4:end])
    if more in FIELDS:
        fields |= more
    else:
        fields["caller"] |= more["caller"]
    head = json.dumps(fields).encode()
    forged = with_head(head)
    with pytest.raises(ValueError, match="no request of an answer"):
        RecordedRequest.decode(forged)
    with pytest.raises(ValueError, match="no request of an answer"):
        AnswerRecords().hear(Kind.BEGUN, ID, forged)


def with_head(head: bytes) -> bytes:
    """A request whose fields are *head*."""
    return struct.pack(">I", len(head)) + head


LISTS = many(1_000_000)
NAMES = b"[" + b'["a","b"],' * 1_000_000 + b"[]]"
FRAMES = {
    "request": (Kind.BEGUN, with_head(LISTS)),
    "long request": (Kind.BEGUN, with_head(b'["' + b"x" * 4_000_000 + b'"]')),
    "lists for responses": (Kind.RESPONSES, LISTS),
    "names of responses": (Kind.RESPONSES, NAMES),
    "response": (Kind.RESPONSE, b'["o","n","{}",' + NAMES + b',[],[],"a"]'),
    "name of a response": (Kind.DROPPED, LISTS),
}


@pytest.mark.parametrize("name", FRAMES)
def test_json_that_a_head_tells_is_counted_before_it_is_parsed(name: str) -> None:
    kind, data = FRAMES[name]
    refused = pytest.raises(ValueError, match="JSON of more than")
    with at_most(5 * len(data)), refused:
        AnswerRecords().hear(kind, ID, data)


def test_a_piece_has_no_more_than_an_answer_is_given_at_once() -> None:
    refused = pytest.raises(ValueError, match="JSON of more than")
    with at_most(5 * len(LISTS)), refused:
        [*pieces(struct.pack(">HBHI", 0, 0, 0, len(LISTS)) + LISTS)]
    assert len([*pieces(piece(*range(AT_ONCE)).encode())]) == 1
    with pytest.raises(ValueError, match="too large"):
        [*pieces(piece(*range(AT_ONCE + 1)).encode())]


def test_a_head_that_tells_of_many_complete_answers_takes_no_time_from_others() -> None:
    """Room for another one is looked for among as many as a head keeps."""
    records, told = AnswerRecords(), asked().encode()
    for at in range(MAX_COUNT + 10):
        records.hear(Kind.BEGUN, f"{at:024}", told)
        records.hear(Kind.KEPT, f"{at:024}", b"\1")
    assert [record.id for record in records] == [f"{at + 10:024}" for at in range(MAX_COUNT)]


def test_a_complete_answer_that_grows_beyond_its_room_leaves_none_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_records, "MAX_RECORDS", 100_000)
    records = AnswerRecords()
    for _ in range(10):
        records.hear(Kind.BEGUN, ID, asked().encode())
        records.hear(Kind.KEPT, ID, b"\1")
        records.hear(Kind.MORE, ID, bytes(40_000))
        assert records.find(ID) is not None
        records.hear(Kind.MORE, ID, bytes(20_000))
        assert records.find(ID) is None


def body_of(**more: Any) -> bytes:
    return json.dumps({"model": "tiny", "messages": TALK, "max_tokens": 4, **more}).encode()


def forged(path: str = CHAT, **more: Any) -> bytes:
    return attrs.evolve(asked(body=body_of(**more)), path=path, key=b"").encode()


FORGED = {
    "no path": (forged("/v1/x"), b""),
    "no body": (attrs.evolve(asked(), body=b"{", key=b"").encode(), b""),
    "no pieces": (forged(), b"\x00"),
    "no such token": (forged(), piece((1 << 32) - 1).encode()),
    "no such choice": (forged(), piece(5, index=9).encode()),
    "for nobody": (forged(stream=True), b""),
}


@in_ring
@pytest.mark.parametrize("hurried", [False, True])
async def test_what_a_head_has_told_ends_no_head_after_it(
    monkeypatch: pytest.MonkeyPatch, *, hurried: bool
) -> None:
    """Neither as that goes on with it, nor as a client may come back to it."""
    monkeypatch.setattr(succession, "DOOR_SECONDS", 0.0)
    async with heads() as made:
        records = made.records[1]
        for name, (request, drawn) in FORGED.items():
            records.hear(Kind.BEGUN, ID, request)
            records.hear(Kind.MORE, ID, drawn)
            records.hear(Kind.KEPT, ID, b"")
            records.leave_all()
            if hurried:
                app = behind_gate(made)
                header = {"last-event-id": f"chatcmpl-{ID}:1"}
                got = await Asked("/v1/models", b"", header, method="GET").of(app)
                assert got.status == 200, name
            else:
                await made.ring.take_up()
            assert records.find(ID) is None, name


@in_ring
async def test_a_head_goes_on_with_no_answer_because_another_client_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever sends the headers of one that comes back: with another key, or with none."""
    async with heads() as made:
        record = Record(ID, forged(), kept=True, left=0.0)
        assert made.records[1].put(record)
        header = {"last-event-id": f"chatcmpl-{ID}:1"}
        app, key = behind_gate(made), {"authorization": "Bearer another"}
        assert (await Asked("/v1/models", b"", header | key, method="GET").of(app)).status == 200
        monkeypatch.setattr(ApiHead, "keys_needed", True)
        for path, status in (("/livez", 200), ("/v1/models", 401)):
            got = await Asked(path, b"", header | key, method="GET").of(app)
            assert got.status == status
        assert made.records[1].find(ID) is record


@in_ring
@pytest.mark.parametrize("name", ["no path", "no pieces", "no such token", "no such choice"])
async def test_what_a_door_brings_is_refused(name: str) -> None:
    async with heads() as made:
        request, drawn = FORGED[name]
        record = Record(ID, request, bytearray(drawn))
        got = await Asked(f"/_ring/answers/{ID}?after=0", record.encoded()).of(made.ring)
        assert got.status == 400, got.whole
        assert made.records[1].find(ID) is None


@in_ring
async def test_nobody_has_another_answer_in_place_of_one_that_is_made() -> None:
    """Neither by a request that takes its id, nor by a record of it; nor does it end by that."""
    async with heads() as made:
        ring = Ring(made.records[0], lambda: made.head)
        other = Record(ID, forged(), bytearray(piece(*range(50)).encode()))
        status: list[int] = []

        async def attack() -> None:
            mine = made.records[0].find(ID)
            assert mine is not None
            longer = mine.encoded() + piece(*range(50)).encode()
            await Asked(CHAT, body_of(), NAMED).of(made.first)
            for brought in (b"", other.encoded(), longer):
                got = await Asked(f"/_ring/answers/{ID}?after=0", brought).of(ring)
                status.append(got.status)
            assert made.records[0].find(ID) is mine

        def seen(message: Message) -> None:
            if len(asked_for.got) == 3:
                attacking.set()

        attacking = trio.Event()
        asked_for = Asked(
            CHAT, body_of(stream=True, max_tokens=900, temperature=0.9, seed=2), NAMED, seen
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked_for.of, made.first)
            with trio.fail_after(PATIENCE):
                await attacking.wait()
            await attack()
            asked_for.left.set()
        assert status == [503, 404, 503]


@in_ring
async def test_no_member_goes_on_with_the_answer_of_another_members_client() -> None:
    """Neither by a false, longer record that it brings first, nor by none, nor by a request that
    takes the answer's id. The door that has the client still can."""
    async with heads() as made:
        id, ring, records = new_id("den"), Ring(made.records[0], lambda: made.head), made.records[0]
        true = Record(id, asked(body=body_of(seed=3)).encode(), bytearray(piece(5).encode()))
        assert records.put(true)
        records.leave_all()
        other, path = {"relayed": "shelf"}, f"/_ring/answers/{id}?after=0"
        for brought in (true.encoded() + piece(6).encode(), b""):
            got = await Asked(path, brought, state=dict(other)).of(ring)
            assert got.status == 404
            assert records.find(id) is true
        named = {ANSWER.decode(): id}
        got = await Asked(CHAT, body_of(), named, state=dict(other)).of(made.first)
        assert got.status == 200
        assert records.find(id) is true
        got = await Asked(path, b"", state={"relayed": "den"}).of(ring)
        assert got.status == 200


class _Wire:
    """What a member asks the head by, to be told of answers."""

    def __init__(self) -> None:
        self.endless = False
        self.why = ""
        self._gone = trio.Event()

    def reply(self, status: int, headers: object) -> None:
        assert status == 200

    def offer(self, data: bytes) -> int:
        return 0  # it takes nothing

    def drop(self, reason: str = "") -> None:
        self.why = reason
        self._gone.set()

    async def changed(self) -> bool:
        await self._gone.wait()
        return False


async def test_a_member_that_asks_again_and_again_is_told_once() -> None:
    """What it does not take waits at the head."""
    records = AnswerRecords()
    ring = Ring(records, lambda: cast(ApiHead, object()))
    assert records.put(Record(ID, asked().encode()))
    wires = [_Wire() for _ in range(256)]
    async with trio.open_nursery() as nursery:
        for wire in wires:
            nursery.start_soon(ring.tell, "den", cast(RelayStream, wire))
            await trio.testing.wait_all_tasks_blocked()
        other = _Wire()
        nursery.start_soon(ring.tell, "shelf", cast(RelayStream, other))
        await trio.testing.wait_all_tasks_blocked()
        assert [wire.why for wire in wires] == [*255 * ["the member asks anew"], ""]
        assert other.why == ""
        assert records.told
        wires[-1].drop()
        other.drop()
    assert not records.told


async def test_a_member_brings_one_record_at_a_time_and_within_its_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    head = SimpleNamespace(check_serving=lambda: None)
    ring = Ring(AnswerRecords(), lambda: cast(ApiHead, head))
    read: list[str] = []
    got: list[int] = []

    async def bring(member: str) -> None:
        async def receive() -> Message:
            read.append(member)
            await trio.sleep_forever()
            raise AssertionError

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                got.append(message["status"])

        path = f"/_ring/answers/{new_id(member)}"
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
        await ring({**scope, "state": {"relayed": member}}, receive, send)

    async with trio.open_nursery() as nursery:
        for member in ("den", "den", "den", "shelf"):
            nursery.start_soon(bring, member)
        await trio.sleep(1)
        assert sorted(read) == ["den", "shelf"]
    assert got == [408] * 4
    assert trio.current_time() - 3 * succession.BRING_SECONDS < 1
