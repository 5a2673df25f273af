"""Answers that their clients come back to: what is kept of them, and who gets which events."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import httpx2
import openai
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring.dialects.errors import ApiError
from sealring.http import resume
from sealring.http.bodies import KEEPALIVE_SECONDS, HeldBytes
from sealring.http.resume import KeptAnswer, KeptAnswers, ResumeFields
from sealring.text.workers import SharedBudget
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.api.conftest import Served
from tests.api.test_commands import sealring

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
EVENT = re.compile(rb"id: ([\w-]+):(\d+)\n(.*?)\n\n", re.DOTALL)

# ------------------------------------------------------------------- what is kept


@attrs.define
class Reader:
    """A client of an answer: what it has *got*. It takes nothing while it is *stuck*."""

    got: bytes = b""
    status: int = 0
    over: bool = False
    stuck: trio.Event | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    budget: SharedBudget = attrs.field(factory=lambda: SharedBudget(1 << 30))

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if self.stuck is not None:
            await self.stuck.wait()
        self.got += message["body"]
        self.over = not message["more_body"] if "more_body" in message else True
        await trio.lowlevel.checkpoint()

    async def read(self, answer: KeptAnswer, after: int = -1) -> None:
        """Read what follows event *after*, until the answer is over or `leave`."""

        async def receive() -> Message:
            await trio.sleep_forever()
            raise AssertionError

        with self.scope:
            holding = HeldBytes(self.budget, "reader")
            await answer.give({"type": "http"}, receive, self.send, holding, after)
            holding.end()

    def leave(self) -> None:
        self.scope.cancel()

    @property
    def numbers(self) -> list[int]:
        """The numbers of its events."""
        return [int(number) for _, number, _ in EVENT.findall(self.got)]


@attrs.define
class Kept:
    """Answers, each of which is made as long as nobody `ends` it."""

    answers: KeptAnswers
    tasks: trio.Nursery
    made: int = 0

    def start(self, account: str = "a", key: bytes = b"") -> KeptAnswer:
        """One more answer of *account*, which is a stream. It counts as read already."""
        self.made += 1
        asked = ResumeFields(CHAT, key, b"body")
        answer = KeptAnswer(f"r-{self.made}", account, account, asked, self.answers, _nothing)
        self.answers.start(answer, trio.sleep_forever)
        answer.opened = True
        return answer

    async def whole(self, size: int, account: str = "a", key: bytes = b"") -> KeptAnswer:
        """An answer of *size* bytes that is over."""
        answer = self.start(account, key)
        answer.opened = False
        answer.finish(Response(b"x" * size))
        await trio.lowlevel.checkpoint()
        return answer

    def read(
        self, answer: KeptAnswer, after: int = -1, *, stuck: bool = False, **more: Any
    ) -> Reader:
        reader = Reader(stuck=trio.Event() if stuck else None, **more)
        self.tasks.start_soon(reader.read, answer, after)
        return reader

    def is_kept(self, *answers: KeptAnswer) -> list[bool]:
        return [self.answers.find(each.owner, each.id) is each for each in answers]


def _nothing() -> None:
    pass


@pytest.fixture
async def kept() -> Any:
    async with trio.open_nursery() as tasks:
        answers = KeptAnswers()
        tasks.start_soon(answers.run)
        await wait_all_tasks_blocked()
        yield Kept(answers, tasks)
        tasks.cancel_scope.cancel()


def events(first: int, count: int, size: int = 1) -> bytes:
    return b"".join(b"data: %d%b\n\n" % (at, b"x" * size) for at in range(first, first + count))


async def test_who_comes_back_gets_what_follows_and_then_what_comes(kept: Kept) -> None:
    answer = kept.start()
    first = kept.read(answer)
    await answer.write(events(0, 3))
    await wait_all_tasks_blocked()
    first.leave()
    await answer.write(events(3, 2))
    second = kept.read(answer, 1)
    await wait_all_tasks_blocked()
    assert (first.numbers, second.numbers) == ([0, 1, 2], [2, 3, 4])
    await answer.write(events(5, 1))
    await answer.close()
    await wait_all_tasks_blocked()
    assert second.numbers == [2, 3, 4, 5]
    assert second.over
    for after in (-1, 0, 4, 5):
        late = Reader()
        await late.read(answer, after)
        assert late.numbers == list(range(after + 1, 6))
        assert late.over
    with pytest.raises(ApiError, match="has 6 events so far, and none is numbered 6"):
        await Reader().read(answer, 6)


async def test_a_newer_reader_takes_over_and_the_older_one_hears_of_it(kept: Kept) -> None:
    answer = kept.start()
    older = kept.read(answer)
    await answer.write(events(0, 2))
    await wait_all_tasks_blocked()
    newer = kept.read(answer, 0)
    await wait_all_tasks_blocked()
    await answer.write(events(2, 1))
    await wait_all_tasks_blocked()
    assert newer.numbers == [1, 2]
    assert not newer.over
    assert older.numbers == [0, 1]
    assert older.over
    last = json.loads(older.got.split(b"data: ")[-1])
    assert (last["id"], last["resumable"], last["error"]["code"]) == (answer.id, True, "taken_over")


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["write", "leave", "back", "again"]), max_size=30), st.booleans())
def test_no_event_is_lost_or_doubled_whoever_comes_and_goes(moves: list[str], stuck: bool) -> None:
    async def one() -> None:
        async with trio.open_nursery() as tasks:
            answers = KeptAnswers()
            tasks.start_soon(answers.run)
            await wait_all_tasks_blocked()
            kept = Kept(answers, tasks)
            answer, has, written = kept.start(), list[int](), 0
            reader = kept.read(answer)
            for move in [*moves, "back"]:
                if move == "write":
                    await answer.write(events(written, 2))
                    written += 2
                elif move == "leave":
                    reader.leave()
                else:  # the one before has left, or is still there
                    has += reader.numbers
                    if move == "back":
                        reader.leave()
                    reader = kept.read(answer, len(has) - 1, stuck=stuck)
                    if reader.stuck is not None:
                        reader.stuck.set()
                await wait_all_tasks_blocked()
            await answer.close()
            await wait_all_tasks_blocked()
            has += reader.numbers
            assert has == list(range(written))
            tasks.cancel_scope.cancel()

    trio.run(one)


async def test_a_reader_that_takes_nothing_holds_up_nobody_but_a_stream_that_is_not_kept(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "MAX_ANSWER", 4 * resume.STEP)
    answer = kept.start()
    reader = kept.read(answer, stuck=True)
    size, written = 1000, 0

    async def make() -> None:
        nonlocal written
        for at in range(10 * resume.STEP // size):
            await answer.write(events(at, 1, size))
            written = at
        await answer.close()

    kept.tasks.start_soon(make)
    await wait_all_tasks_blocked()
    assert 4 * resume.STEP < written * (size + 100) < 5 * resume.STEP
    assert kept.is_kept(answer) == [False]
    assert reader.stuck is not None
    reader.stuck.set()
    await wait_all_tasks_blocked()
    assert reader.over
    data = [int(each.split(b"x")[0]) for each in reader.got.split(b"data: ")[1:]]
    assert data == list(range(10 * resume.STEP // size))
    assert reader.got.count(b"cannot be resumed from here on") == 1
    assert reader.numbers == list(range(len(reader.numbers)))
    with pytest.raises(ApiError) as caught:
        await Reader().read(answer, 0)
    assert (caught.value.status, caught.value.code) == (404, "stream_not_found")


async def test_nobody_makes_what_is_not_kept_and_not_read(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "MAX_ANSWER", resume.STEP)
    answer = kept.start()
    ended = trio.Event()

    async def unattended() -> None:
        await answer.unattended(1e9)
        ended.set()

    kept.tasks.start_soon(unattended)
    reader = kept.read(answer)
    await wait_all_tasks_blocked()
    await answer.write(events(0, 1, 2 * resume.STEP))
    await wait_all_tasks_blocked()
    assert not ended.is_set()
    reader.leave()
    await wait_all_tasks_blocked()
    assert ended.is_set()
    await answer.write(events(1, 1))  # as its error: nobody waits for a reader


async def test_an_answer_is_made_for_so_long_after_its_reader_left(
    kept: Kept, mock_clock: MockClock
) -> None:
    answer = kept.start()
    ended = trio.Event()

    async def unattended() -> None:
        await answer.unattended(60)
        ended.set()

    kept.tasks.start_soon(unattended)
    for _ in range(2):
        reader = kept.read(answer)
        await wait_all_tasks_blocked()
        mock_clock.jump(1000)
        await wait_all_tasks_blocked()
        assert not ended.is_set()
        reader.leave()
        await wait_all_tasks_blocked()
        mock_clock.jump(59)
        await wait_all_tasks_blocked()
        assert not ended.is_set()
    mock_clock.jump(2)
    await wait_all_tasks_blocked()
    assert ended.is_set()


async def test_silence_is_broken(kept: Kept, mock_clock: MockClock) -> None:
    answer = kept.start()
    reader = kept.read(answer)
    for at in range(1, 3):
        await wait_all_tasks_blocked()
        mock_clock.jump(KEEPALIVE_SECONDS + 1)
        await wait_all_tasks_blocked()
        assert reader.got == answer.silence * at


async def test_ten_thousand_keys_have_their_bound(kept: Kept) -> None:
    made = [await kept.whole(10, key=b"%d" % at) for at in range(10_000)]
    assert sum(kept.is_kept(*made)) == resume.MAX_COUNT_OF_ONE
    assert all(kept.is_kept(*made[-resume.MAX_COUNT_OF_ONE :]))
    found = [kept.answers.again("a", each.asked) for each in made]
    assert [each for each in found if each] == made[-resume.MAX_COUNT_OF_ONE :]


async def test_what_is_over_is_another_head_s_with_the_rest(kept: Kept) -> None:
    """Nobody is given it here, and nobody else hears that it is gone, as of what is deleted."""
    gone: list[str] = []
    over, deleted, made = await kept.whole(10), await kept.whole(10), kept.start()
    for each in (over, deleted, made):
        each.gone = partial(gone.append, each.id)
    deleted.keep_no_longer()
    kept.answers.move()
    assert kept.is_kept(over, deleted, made) == [False, False, True]
    assert gone == [deleted.id]


async def test_one_account_s_answers_leave_others_theirs(kept: Kept) -> None:
    other = await kept.whole(resume.MAX_ANSWER // 2, "b")
    made = [await kept.whole(resume.MAX_ANSWER // 2) for _ in range(100)]
    room = resume.MAX_ANSWERS_OF_ONE // (resume.MAX_ANSWER // 2) - 1  # with what is beside each
    assert sum(kept.is_kept(*made)) == room
    assert all(kept.is_kept(other, *made[-room:]))


async def test_whoever_has_most_makes_room_for_all(kept: Kept) -> None:
    small = await kept.whole(1000, "small")
    accounts = [str(at) for at in range(20)]
    made = [await kept.whole(resume.MAX_ANSWER // 4, each) for _ in range(4) for each in accounts]
    size = sum(each.size for each, there in zip(made, kept.is_kept(*made), strict=True) if there)
    assert resume.MAX_ANSWERS - resume.MAX_ANSWER < size <= resume.MAX_ANSWERS
    new = await kept.whole(resume.MAX_ANSWER // 4, "new")  # has nothing of its own to give up
    assert kept.is_kept(small, new) == [True, True]


async def test_what_is_under_way_or_read_is_not_taken_away(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "MAX_COUNT_OF_ONE", 3)
    over = await kept.whole(10)
    live = kept.start()
    read = kept.start()
    kept.read(read, stuck=True)
    await read.write(events(0, 1))
    await read.close()
    await wait_all_tasks_blocked()
    new = [kept.start() for _ in range(2)]
    assert kept.is_kept(over, live, read, *new) == [False, True, True, True, False]
    late = kept.read(new[1])  # which is served as ever
    await wait_all_tasks_blocked()
    await new[1].write(events(0, 2))
    await new[1].close()
    await wait_all_tasks_blocked()
    assert late.got.endswith(events(0, 2))
    assert late.over


async def test_what_a_reader_has_not_taken_counts_until_it_has(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else readers that take nothing would have ever more: of what is kept no longer, too."""
    monkeypatch.setattr(resume, "MAX_ANSWERS_OF_ONE", 8 * resume.STEP)
    readers, counts = list[Reader](), list[int]()

    async def make(answer: KeptAnswer) -> None:
        for at in range(100):
            await answer.write(events(at, 1, resume.STEP // 10))
            counts[readers_of.index(answer)] += 1
        await answer.close()

    readers_of = list[KeptAnswer]()
    for _ in range(8):
        readers_of.append(kept.start())
        counts.append(0)
        readers.append(kept.read(readers_of[-1], stuck=True))
        kept.tasks.start_soon(make, readers_of[-1])
        await wait_all_tasks_blocked()
    assert sum(counts) * (resume.STEP // 10) < 9 * resume.STEP
    for reader in readers:
        assert reader.stuck is not None
        reader.stuck.set()
    await wait_all_tasks_blocked()
    assert all(reader.over for reader in readers)
    assert all(reader.got.count(b"data: ") == 100 for reader in readers)
    new = await kept.whole(resume.STEP)  # there is room again
    assert kept.is_kept(new) == [True]


async def test_what_older_readers_have_in_hand_counts_whatever_becomes_of_the_answer(
    kept: Kept,
) -> None:
    """One that takes nothing holds a large event, though another has read on, and deleted it."""
    size = 10 * resume.STEP
    budget = SharedBudget(5 * size)  # of which one has half

    async def stuck_reader() -> tuple[KeptAnswer, Reader]:
        answer = kept.start()
        older = kept.read(answer, stuck=True, budget=budget)
        await answer.write(events(0, 2, size - 100))
        await answer.close()
        await wait_all_tasks_blocked()
        await Reader().read(answer, 0)
        answer.keep_no_longer()
        return answer, older

    readers = [await stuck_reader() for _ in range(5)]
    for _, older in readers:
        assert older.stuck is not None
        older.stuck.set()
    await wait_all_tasks_blocked()
    assert [older.numbers for _, older in readers] == [[0], [0], [], [], []]
    told = [json.loads(older.got.split(b"data: ")[-1]) for _, older in readers]
    assert [each["error"]["code"] for each in told] == ["taken_over"] * 2 + ["overloaded"] * 3
    assert all(each["resumable"] for each in told[2:])


async def test_answers_that_nobody_reads_are_few(kept: Kept) -> None:
    ended: list[str] = []

    async def unattended(answer: KeptAnswer) -> None:
        await answer.unattended(1e9)
        ended.append(answer.id)
        answer.finish()

    async def left_by(account: str) -> KeptAnswer:
        answer = kept.start(account)
        kept.tasks.start_soon(unattended, answer)
        reader = kept.read(answer)
        await wait_all_tasks_blocked()
        reader.leave()
        await wait_all_tasks_blocked()
        return answer

    made = [await left_by(account) for account in "abcdef" * 20]
    assert len(made) - len(ended) == resume.MAX_UNREAD
    assert ended == [each.id for each in made if each.id in ended]  # who was left first
    one = [await left_by("z") for _ in range(resume.MAX_UNREAD_OF_ONE + 1)]
    assert ended[-1] == one[0].id


async def test_an_error_before_the_answer_is_for_its_reader_and_is_not_kept(kept: Kept) -> None:
    answer = kept.start(key=b"k")
    answer.opened = False
    reader = Reader()
    told: list[ApiError] = []

    async def read() -> None:
        try:
            await reader.read(answer)
        except ApiError as error:
            told.append(error)

    kept.tasks.start_soon(read)
    await wait_all_tasks_blocked()
    assert kept.answers.again("a", answer.asked) is answer
    answer.finish(error=resume.left(1))
    await wait_all_tasks_blocked()
    assert [each.code for each in told] == ["client_gone"]
    assert kept.answers.again("a", answer.asked) is None


async def test_a_fault_of_who_makes_it_ends_the_answer_alone(kept: Kept) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    answer = KeptAnswer("r", "a", "a", ResumeFields(CHAT), kept.answers, _nothing)
    kept.answers.start(answer, fail)
    with pytest.raises(ApiError) as caught:
        await Reader().read(answer)
    assert caught.value.status == 500
    other = await kept.whole(10)
    assert kept.is_kept(other) == [True]


ASKED = {
    "two": [(b"idempotency-key", b"a"), (b"idempotency-key", b"b")],
    "long": [(b"idempotency-key", b"a" * (resume.MAX_KEY + 1))],
    "empty": [(b"idempotency-key", b"")],
    "no word": [(b"idempotency-key", b"a b")],
    "no event": [(b"idempotency-key", b"a"), (b"last-event-id", b"7")],
    "no event and no key": [(b"last-event-id", b"7")],
    "an endless number": [(b"idempotency-key", b"a"), (b"last-event-id", b"x:" + b"9" * 99)],
}


@pytest.mark.parametrize("headers", ASKED.values(), ids=ASKED)
def test_headers_that_are_none(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(ApiError) as caught:
        ResumeFields.of(Headers(raw=headers), CHAT, b"")
    assert caught.value.status == 400


# ------------------------------------------------------------------- through HTTP

LONG = 120
"""Tokens of an answer that is left while it is made, or soon after."""


def asking(team: Served, path: str, **more: Any) -> dict[str, Any]:
    """A body for *path* that asks for a stream."""
    body: dict[str, Any] = {"model": team.model, "temperature": 0, "stream": True}
    match path:
        case "/v1/chat/completions":
            body |= {"messages": [{"role": "user", "content": "endless"}], "max_tokens": LONG}
        case "/v1/messages":
            body |= {"messages": [{"role": "user", "content": "endless"}], "max_tokens": LONG}
        case "/v1/completions":
            body |= {"prompt": "endless", "max_tokens": LONG}
        case "/v1/responses":
            body |= {"input": "endless", "max_output_tokens": LONG}
    return body | more


@attrs.define
class Got:
    """Events of a stream: the answer's id, and by number what each says."""

    id: str
    events: dict[int, bytes]

    @property
    def last(self) -> str:
        return f"{self.id}:{max(self.events)}"


def heard(stream: bytes) -> Got:
    found = EVENT.findall(stream)
    assert len({name for name, _, _ in found}) <= 1
    numbers = [int(number) for _, number, _ in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    name = found[0][0].decode() if found else ""
    return Got(name, {int(number): text for _, number, text in found})


def begin(team: Served, path: str, body: Any, key: str, count: int = 4) -> Got:
    """Ask, take *count* events and leave."""
    got = b""
    headers = {"idempotency-key": key} if key else {}
    with team.http.stream("POST", path, json=body, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        for part in answer.iter_bytes():
            got += part
            if got.count(b"\n\n") >= count:
                break
    return heard(got)


def back(team: Served, name: str, last: str = "", **query: Any) -> httpx2.Response:
    headers = {"last-event-id": last} if last else {}
    return team.http.get(f"/v1/streams/{name}", headers=headers, params=query)


@pytest.mark.parametrize("path", [CHAT, TEXT, MESSAGES, RESPONSES])
def test_a_stream_that_was_left_is_whole(team: Served, path: str) -> None:
    key = f"left-{path}"
    body = asking(team, path)
    got = begin(team, path, body, key)
    headers = {"idempotency-key": key, "last-event-id": got.last}
    rest = heard(team.http.post(path, json=body, headers=headers).content)
    all_ = heard(back(team, got.id).content)
    assert {**got.events, **rest.events} == all_.events
    assert not got.events.keys() & rest.events.keys()
    # By GET, from either kind of place; and by the same POST from the start.
    middle = len(all_.events) // 2
    after = {at: text for at, text in all_.events.items() if at > middle}
    assert heard(back(team, got.id, f"{got.id}:{middle}").content).events == after
    assert heard(back(team, got.id, starting_after=middle).content).events == after
    again = team.http.post(path, json=body, headers={"idempotency-key": key})
    assert heard(again.content).events == all_.events
    # It says the same as a stream of its own.
    free = team.http.post(path, json=body).text
    assert said(free) == said(b"\n\n".join(all_.events.values()).decode())
    assert "\nid:" not in f"\n{free}"
    if path == RESPONSES:
        numbers = [json.loads(each.split(b"data: ")[1])["sequence_number"]
                   for each in all_.events.values()]  # fmt: skip
        assert numbers == list(all_.events)


def said(stream: str) -> str:
    """The text of a stream of any dialect."""
    text = ""
    for line in stream.splitlines():
        if line.startswith("data: {"):
            told = json.loads(line.removeprefix("data: "))
            if "choices" in told:
                for choice in told["choices"]:
                    text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            elif isinstance(told.get("delta"), str):
                text += told["delta"]
            elif "delta" in told:
                text += told["delta"].get("text", "")
    return text


def test_places_that_a_stream_has_and_has_not(team: Served) -> None:
    got = begin(team, CHAT, asking(team, CHAT), "places")
    end = heard(back(team, got.id).content)
    nothing = back(team, got.id, end.last)
    assert (nothing.status_code, nothing.content) == (200, b"")
    assert min(heard(back(team, got.id, starting_after=0).content).events) == 1
    beyond = max(end.events) + 1
    for answer in (
        back(team, got.id, starting_after=beyond),
        back(team, got.id, f"{got.id}:{beyond}"),
        back(team, got.id, "another:1"),
        back(team, got.id, "x"),
        back(team, got.id, starting_after="-1"),
    ):
        assert answer.status_code == 400, answer.text
    assert team.http.head(f"/v1/streams/{got.id}").status_code == 405
    assert back(team, "chatcmpl-none").status_code == 404
    # Who has some of an answer that is kept no longer begins no other one.
    headers = {"idempotency-key": "places-of-none", "last-event-id": got.last}
    refused = team.http.post(CHAT, json=asking(team, CHAT), headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "stream_not_found")


def test_a_post_that_names_an_event_begins_nothing_without_a_key_either(team: Served) -> None:
    """Clients that send their request again with the last id would have a second answer after the
    first part of another: one in the background has ids, and needs no key."""
    body = asking(team, RESPONSES, background=True)
    got = begin(team, RESPONSES, body, "")
    rest = team.http.post(RESPONSES, json=body, headers={"last-event-id": got.last})
    assert {**got.events, **heard(rest.content).events} == heard(back(team, got.id).content).events
    for path, last in ((CHAT, got.last), (CHAT, "chatcmpl-none:1"), (RESPONSES, "resp_none:1")):
        refused = team.http.post(path, json=asking(team, path), headers={"last-event-id": last})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "stream_not_found")


def test_the_paths_of_responses_are_of_no_other_answer(team: Served) -> None:
    got = begin(team, CHAT, asking(team, CHAT), "no-response")
    for method, more in (("GET", ""), ("GET", "?stream=true"), ("DELETE", ""), ("POST", "/cancel")):
        answer = team.http.request(method, f"{RESPONSES}/{got.id}{more}")
        told = (answer.status_code, answer.json()["error"]["code"])
        assert told == (404, "response_not_found"), method
    assert back(team, got.id).status_code == 200


def test_another_owner_has_nothing_to_come_back_to(team: Served) -> None:
    got = begin(team, CHAT, asking(team, CHAT), "owned")
    config = team.head.config
    other = sealring("apikey", "new", "dave", "--config", config, "--json").json()["key"]
    with httpx2.Client(base_url=team.url, headers={"x-api-key": other}) as http:
        for method in ("GET", "DELETE"):
            theirs, nobody = (
                http.request(method, f"/v1/streams/{name}") for name in (got.id, "chatcmpl-none")
            )
            assert theirs.status_code == nobody.status_code == 404
            assert theirs.text.replace(got.id, "chatcmpl-none") == nobody.text
        # The same key of another's is another key.
        body = asking(team, CHAT, stream=False)
        made = http.post(CHAT, json=body, headers={"idempotency-key": "owned"})
        assert made.status_code == 200
    assert back(team, got.id).status_code == 200
    assert sealring("apikey", "revoke", "dave", "--config", config).code == 0


def test_a_key_is_of_one_body_and_path(team: Served) -> None:
    body = asking(team, CHAT, stream=False)
    headers = {"idempotency-key": "of-one"}
    first = team.http.post(CHAT, json=body, headers=headers)
    again = team.http.post(CHAT, json=body, headers=headers)
    assert (again.status_code, again.json()) == (200, first.json())
    assert first.json()["id"] != team.http.post(CHAT, json=body).json()["id"]
    other = team.http.post(CHAT, json=body | {"max_tokens": 3}, headers=headers)
    elsewhere = team.http.post(MESSAGES, json=body, headers=headers)
    assert other.status_code == elsewhere.status_code == 409
    assert other.json()["error"]["code"] == "idempotency_key_reused"
    assert other.headers["x-should-retry"] == "false"
    assert team.trace(other.headers["x-request-id"])["state"] == "idempotency_key_reused"
    assert team.trace(again.headers["x-request-id"])["state"] == "resumed"
    # What failed is not kept.
    headers = {"idempotency-key": "failed"}
    wrong = {**body, "stop_token_ids": [10_000]}
    for _ in range(2):
        failed = team.http.post(CHAT, json=wrong, headers=headers)
        assert failed.status_code == 400, failed.text
    assert team.http.post(CHAT, json=body, headers=headers).status_code == 200


def test_two_requests_of_one_key_at_once_are_one(team: Served) -> None:
    body, headers = asking(team, CHAT, max_tokens=600), {"idempotency-key": "at-once"}
    with team.http.stream("POST", CHAT, json=body, headers=headers) as older:
        lines = older.iter_lines()
        assert next(lines).startswith("id: ")
        newer = heard(team.http.post(CHAT, json=body, headers=headers).content)
        last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-1]
    assert last["id"] == newer.id
    assert (last["resumable"], last["error"]["code"]) == (True, "taken_over")
    assert newer.events[max(newer.events)] == b"data: [DONE]"


@contextmanager
def resume_seconds(team: Served, seconds: float) -> Iterator[None]:
    """The team's head keeps answers for so long meanwhile."""
    config = team.head.config
    text = config.read_text()

    def become(value: str, log: int) -> None:
        config.write_text(value)
        team.head.process.send_signal(signal.SIGHUP)
        team.until("/health", lambda _: team.head.log.read_text().count("SIGHUP") > log)

    try:
        become(f"resume_seconds = {seconds}\n{text}", team.head.log.read_text().count("SIGHUP"))
        yield
    finally:
        become(text, team.head.log.read_text().count("SIGHUP"))


def test_an_answer_ends_when_nobody_comes_back(team: Served) -> None:
    body = asking(team, CHAT, max_tokens=1 << 16)
    with resume_seconds(team, 0.3):
        got = begin(team, CHAT, body, "forsaken")
        assert team.trace(got.id)["state"] == "client_gone"
    told = list(heard(back(team, got.id).content).events.values())
    last = json.loads(told[-1].removeprefix(b"data: "))
    assert (last["id"], last["resumable"]) == (got.id, False)
    assert last["error"]["code"] == "client_gone"
    # Without a key it ends with its client, and nothing is left.
    free = team.http.post(CHAT, json=asking(team, CHAT, max_tokens=1))
    assert back(team, free.headers["x-request-id"]).status_code == 404


def test_nothing_is_kept_if_the_config_says_so(team: Served) -> None:
    with resume_seconds(team, 0):
        body, headers = asking(team, CHAT, stream=False), {"idempotency-key": "off"}
        made = {team.http.post(CHAT, json=body, headers=headers).json()["id"] for _ in range(2)}
        assert len(made) == 2
        refused = team.post(asking(team, RESPONSES, background=True), RESPONSES)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")


def test_an_answer_is_cancelled_or_forgotten(team: Served) -> None:
    body = asking(team, CHAT, max_tokens=1 << 16)
    got = begin(team, CHAT, body, "cancelled")
    assert team.http.delete(f"/v1/requests/{got.id}").status_code == 200
    told = heard(back(team, got.id, got.last).content)
    last = json.loads(told.events[max(told.events)].removeprefix(b"data: "))
    assert (last["error"]["code"], last["resumable"]) == ("request_cancelled", False)
    got = begin(team, CHAT, body, "forgotten")
    gone = team.http.delete(f"/v1/streams/{got.id}")
    assert gone.json() == {"id": got.id, "object": "stream", "deleted": True}
    assert team.trace(got.id)["state"] == "request_cancelled"
    assert back(team, got.id).status_code == 404


def test_responses_in_the_background(team: Served) -> None:
    create, retrieve = team.openai.responses.create, team.openai.responses.retrieve
    with create(
        model=team.model, input="endless", max_output_tokens=400, background=True, stream=True
    ) as stream:
        some = [next(stream) for _ in range(8)]
    name = some[0].response.id  # type: ignore[union-attr]
    with retrieve(name, stream=True, starting_after=some[-1].sequence_number) as stream:
        rest = [*stream]
    numbers = [event.sequence_number for event in [*some, *rest]]
    assert numbers == list(range(len(numbers)))
    assert rest[-1].type == "response.incomplete"
    assert rest[-1].response == retrieve(name)
    assert rest[-1].response.background is True
    with retrieve(name, stream=True) as stream:
        assert len([*stream]) == len(numbers)
    team.openai.responses.delete(name)
    for again in (partial(retrieve, stream=True), retrieve):
        with pytest.raises(openai.NotFoundError):
            again(name)


def test_a_response_in_the_background_is_cancelled(team: Served) -> None:
    body = asking(team, RESPONSES, background=True, max_output_tokens=1 << 16)
    got = begin(team, RESPONSES, body, "")
    assert team.openai.responses.retrieve(got.id).status == "in_progress"
    cancelled = team.openai.responses.cancel(got.id)
    assert (cancelled.id, cancelled.status) == (got.id, "cancelled")
    told = heard(team.http.get(f"{RESPONSES}/{got.id}?stream=true").content)
    last = json.loads(told.events[max(told.events)].split(b"data: ")[1])
    assert (last["type"], last["resumable"]) == ("response.failed", False)
    with pytest.raises(openai.NotFoundError):  # nothing of it was whole
        team.openai.responses.cancel(got.id)
    for wrong in ({"stream": False}, {"store": False}):
        refused = team.post({**body, **wrong}, RESPONSES)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")
    free = team.post({"model": team.model, "input": "fruit"}, RESPONSES).json()
    streamed = team.http.get(f"{RESPONSES}/{free['id']}?stream=true")
    assert streamed.json()["error"]["code"] == "unsupported_parameter"


async def test_who_is_ahead_gets_no_event_twice_where_an_answer_outgrows_its_bounds(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comment that says so has no number, also before the events that it waits for."""
    monkeypatch.setattr(resume, "MAX_ANSWER", 1000)
    monkeypatch.setattr(resume, "STEP", 1)
    answer = kept.start()
    answer.again = True
    for at in range(2):
        await answer.write(b"data: %d\n\n" % at)
    reader = kept.read(answer, after=20)
    await wait_all_tasks_blocked()
    for at in range(2, 30):
        await answer.write(b"data: %d\n\n" % at)
    assert not answer.kept
    answer.finish()
    await wait_all_tasks_blocked()
    told = [int(each) for each in re.findall(rb"data: (\d+)", reader.got)]
    assert told == [*range(21, 30)]


async def test_who_is_far_ahead_has_nothing_held_of_an_answer_that_outgrows_its_bounds(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "MAX_ANSWER", 1000)
    monkeypatch.setattr(resume, "STEP", 1)
    answer = kept.start()
    answer.again = True
    await answer.write(b"data: 0\n\n")
    reader = kept.read(answer, after=10**12 - 1)
    await wait_all_tasks_blocked()
    for _ in range(1000):
        await answer.write(b"data: %b\n\n" % bytes(100))
    assert sum(map(len, answer._events)) < 1000
    reader.leave()
