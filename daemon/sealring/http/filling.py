"""An answer on its way: its choices are filled as their tokens come, and its events are written.

What a choice is given is recorded first, so that another head can go on (`records`). An answer that
another head began is first filled again by what that had recorded, in the same order.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import attrs
import trio
from sealring_protocol.control.requests import FinishReason, RequestDone, ScoresOut
from sealring_trio.node.runtime import size_of

from sealring.dialects.errors import ApiError, from_end
from sealring.dialects.replies import Choice, Delta, Names, Shape
from sealring.generation.generation import Answer, TextPiece
from sealring.generation.trace import Trace
from sealring.http.bodies import EventStream, HeldBytes, beside
from sealring.http.gate import Caller
from sealring.http.records import AnswerRecords, DrawnPiece, Moved, Record, no_record, pieces
from sealring.http.resume import KeptAnswer, ResumeFields

T = TypeVar("T")
Pair = tuple[Answer, Choice]


@attrs.define
class Call:
    """One request on its way: who asks, its times, what it is *holding*, of which the answer's
    shape has *kept* some, the *stream* for its answer, and that shape. *refused* is why it may hold
    no more. It *asked* to come back or did not, and is *over* when that is closed.

    The next head can go on with it by its *record*, which *records* have, if it has one. It is made
    *again* if another head has begun it: *known* bytes of the record's pieces are what that one's
    ring has drawn. Rows without a seed have *seed*, and parts *names*. A door may have *relayed*
    the request, and the answer may be made *beside* the connection."""

    caller: Caller
    trace: Trace
    holding: HeldBytes
    stream: EventStream | KeptAnswer
    over: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack)
    asked: ResumeFields = attrs.field(factory=lambda: ResumeFields(""))
    shape: Shape | None = None
    refused: ApiError | None = None
    kept: int = 0
    records: AnswerRecords = attrs.field(factory=AnswerRecords)
    record: Record | None = None
    known: int = 0
    seed: int = attrs.field(factory=lambda: secrets.randbits(64))
    names: Names = attrs.field(factory=Names)
    relayed: bool = False
    again: bool = False
    beside: bool = False

    def past(self, read: Callable[[bytearray, int], Iterator[T]]) -> Iterator[T]:
        """What another head's ring has drawn, as *read* (`cuts`, `pieces`), one by one. Raises
        `ApiError`."""
        try:
            if self.record is not None:
                yield from read(self.record.drawn, self.known)
        except ValueError as error:
            raise no_record(error) from None

    def note(self, piece: DrawnPiece) -> None:
        """A choice is about to be given *piece*."""
        if self.record is not None:
            self.records.add(self.record, piece)

    async def add(self, delta: Delta, shape: Shape) -> None:
        """Add *delta* to *shape*, and write its events if the stream is open. Others have their
        turn after each event. What *delta* is made of is held until the last. Raises `ApiError`
        if that is too much to be held."""
        if self.stream.opened:
            for event in map(shape.event, shape.add(delta)):
                self._keep(shape)
                await self.write(event)
        else:
            for _ in shape.add(delta):
                self._keep(shape)
                await trio.lowlevel.checkpoint()
            self.records.flush()
        self._keep(shape)
        scores = (ScoresOut(delta.index, each) for each in delta.scores)
        self.holding.grow(-size_of((*delta.tokens, *scores)))

    async def write(self, events: bytes) -> None:
        """Send *events*, which are held until the connection has taken them. Raises `ApiError` if
        they are too much."""
        self.holding.grow(len(events))
        await self.stream.write(events)
        self.holding.grow(-len(events))

    def _keep(self, shape: Shape) -> None:
        """Hold what *shape* has kept since the last time."""
        if grown := shape.kept - self.kept:
            self.kept += grown
            self.holding.grow(grown)


class Choices:
    """The choices of the answer to *call* on their way into *shape*: *pairs*, by their indices."""

    def __init__(
        self, pairs: Sequence[Pair], shape: Shape, call: Call, moved: Callable[[], bool]
    ) -> None:
        self._pairs = pairs
        self._shape = shape
        self._call = call
        self._moved = moved
        self._reasons: dict[int, str] = {}  # why those ended that did
        if isinstance(call.stream, KeptAnswer) and len(pairs) == 1:
            pairs[0][0].one_by_one = True
        # What several are given makes events in the order in which the record has it.
        self._turn: contextlib.AbstractAsyncContextManager[None, bool | None] = (
            trio.Lock() if len(pairs) > 1 else contextlib.nullcontext()
        )

    async def follow(self) -> None:
        """All at once, so that none has tokens that wait for another's end; first what they were
        given before. Raises `ApiError`, or `Moved`."""
        for piece in self._call.past(pieces):
            await trio.lowlevel.checkpoint()
            answer, _ = self._pairs[piece.index]
            if not piece.last:
                self._call.holding.grow(size_of(piece.events))
                await self._take(piece.index, answer.again(piece.events))
            else:
                done = answer.done or RequestDone(0, FinishReason.STOP)
                await self._end(piece.index, done)
        # Tokens of several choices that nobody here knows may have come in another order.
        left = len(self._pairs) - len(self._reasons)
        if isinstance(self._call.stream, KeptAnswer) and len(self._pairs) > 1 and left:
            self._call.stream.made_again()
        errors: list[ApiError] = []

        async def follow(index: int, scope: trio.CancelScope) -> None:
            try:
                await self._follow(index)
            except ApiError as error:
                errors.append(error)
                scope.cancel()

        async with trio.open_nursery() as choices:
            for index in range(len(self._pairs)):
                if index not in self._reasons:
                    choices.start_soon(follow, index, choices.cancel_scope)
        if errors:
            raise errors[0]

    async def _follow(self, index: int) -> None:
        answer, _ = self._pairs[index]
        while index not in self._reasons:
            came = await answer.next()
            async with self._turn:
                if isinstance(came, RequestDone):
                    self._check_end(came)
                    self._call.note(DrawnPiece(index, last=True))
                    await self._end(index, came)
                    continue
                if answer.done is not None:
                    self._check_end(answer.done, errors=False)
                self._call.note(DrawnPiece(index, tuple(answer.came)))
                await self._take(index, came)

    async def _take(self, index: int, piece: TextPiece) -> None:
        """The choice *index* is given *piece*."""
        answer, choice = self._pairs[index]
        if (delta := await choice.take(piece)) is not None:
            await self._call.add(delta, self._shape)
        if choice.complete:
            answer.finish()

    async def _end(self, index: int, done: RequestDone) -> None:
        """The choice *index* is *done*."""
        answer, choice = self._pairs[index]
        last = await choice.finish(done, answer.stopped_by)
        self._reasons[index] = last.finish.reason if last.finish is not None else ""
        if len(self._reasons) == len(self._pairs):  # a client may go when it has this
            self._call.trace.outcome = ",".join(sorted(set(self._reasons.values())))
        await self._call.add(last, self._shape)

    def _check_end(self, done: RequestDone, *, errors: bool = True) -> None:
        """Raise the `ApiError` that a choice ends by, if *errors*; or `Moved`, if that is only the
        end of this head."""
        if (ended := from_end(done)) is not None:
            if self._call.record is not None and self._moved():
                raise Moved
            if errors:
                raise ended


async def stream(filled: Choices, shape: Shape, call: Call) -> None:
    """All choices into *shape*, whose events are written as they come: the first one once another
    machine knows of the answer, as the door that has relayed it does. Raises `ApiError`."""
    if call.record is not None and not (call.again or call.relayed):
        await call.records.until_known(call.record)
    await call.stream.open()
    if opening := shape.opening():
        await call.write(opening)

    async def keep_alive(_: trio.CancelScope) -> None:
        await call.stream.keep_alive(shape.silence)

    await beside(filled.follow, keep_alive)
