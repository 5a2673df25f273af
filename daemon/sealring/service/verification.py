"""The request `verify`: has the ring run given rows, and reports what it computed.

A row is a prompt of token ids that the ring continues greedily, past any end mark. Rows begin when
another row has come so far, and may be withdrawn, so that they join and leave a batch at different
steps. If the request asks for a *checked* epoch, the ring begins one, and the fingerprints of every
rank are sent as they come, each as the claim of that rank. The epoch ends when the last row is over
and its numbers have come, or the request has ended in any other way: it does not wait for a client
to read. One verification runs at a time.

Events, each a line: ``waiting`` with the reason whenever the ring does not serve; ``ring`` once;
``row`` with a row's number and uid; ``cached`` with the tokens that came from a snapshot;
``token``; ``left`` when a row is over, with how many of its guesses were wrong; ``step`` and
``numbers`` of a checked epoch. Rows of others are null in a ``step``.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import attrs
import pydantic
import trio
from sealring_protocol.codec.messages import NO_LOGPROBS, Checked, Row
from sealring_protocol.codec.tensor import Tensor
from sealring_protocol.control.effects import StepChecked, StepTiming, StepToCheck
from sealring_protocol.control.requests import (
    FinishReason,
    Request,
    RequestDone,
    RowOpened,
    TokenOut,
)
from sealring_protocol.diagnosis import Cause
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_LOGPROBS
from sealring_trio.errors import OperationError, UserError

from sealring.generation.generation import Generator
from sealring.generation.trace import Trace

Reply = Callable[[dict[str, Any]], Awaitable[None]]
"""Sends the client one line of its answer."""

FETCHING_SECONDS: Final = 10.0
"""Seconds between two reports of how far the ranks are that fetch."""

DOING_SECONDS: Final = 10.0
"""Seconds without a token between two reports of what is done."""


class WaitNotes:
    """Reports by *reply* why a client waits, each time that the reasons change, and now and then
    while ranks fetch, or while the ring has not begun to answer *trace*."""

    def __init__(self, generator: Generator, reply: Reply, trace: Trace | None = None) -> None:
        self._generator = generator
        self._reply = reply
        self._trace = trace
        self._reported: list[str] = []
        self._reported_at = trio.current_time()

    async def report(self) -> None:
        """Report the reasons, if that is due. Raises as `check`."""
        self.check()
        found = [] if self._generator.serving else self._generator.obstacles()
        reasons = [obstacle.constant for obstacle in found]
        now = trio.current_time()
        fetching = any(obstacle.cause is Cause.FETCHING for obstacle in found)
        again = fetching and now >= self._reported_at + FETCHING_SECONDS
        if reasons and (again or reasons != self._reported):
            self._reported_at = now
            text = f"not serving yet: {self._generator.missing()}"
            await self._reply({"event": "waiting", "text": text})
        elif not reasons and now >= self._reported_at + DOING_SECONDS and self._trace is not None:
            self._reported_at = now
            if text := self._generator.tracer.doing(self._trace):
                await self._reply({"event": "waiting", "text": text})
        self._reported = reasons

    def check(self) -> None:
        """Raise `OperationError` if something is in the way that no request should wait for."""
        if (found := self._generator.permanent_obstacle()) is not None:
            raise OperationError(f"the ring cannot serve: {found.what}", found.advice)


MAX_ROWS: Final = 64
"""Rows of one verification."""

_UNREAD: Final = 1024
"""Events that may wait for a client which reads too slowly; at more, its verification ends. Memory:
fingerprints of a chunk take some 50 KiB."""

_LATE: Final = 5.0
"""Seconds that fingerprints may come after the last token."""

_LOOK_SECONDS: Final = 0.02
"""Seconds between two looks at whether the ring serves."""

_WHY_SECONDS: Final = 0.5
"""Seconds between two looks at why rows wait."""

Number = Annotated[int, pydantic.Field(ge=0, lt=1 << 32)]


class AskedRow(pydantic.BaseModel, extra="forbid", frozen=True):
    """Continue *prompt* by *tokens*. With *continues* it follows what that earlier row read and
    gave, of which with *cut* only so many tokens. It begins once row ``after[0]`` has given
    ``after[1]`` tokens, *alone* once all rows before it are over, and is withdrawn after *leaves*
    of its own. What row *guesses* gave are guesses of its tokens, of which each third is wrong.
    Without *logprobs* its tokens alone are sent: such a row may read guesses ahead."""

    prompt: Annotated[list[Number], pydantic.Field(min_length=1, fail_fast=True)]
    tokens: Annotated[int, pydantic.Field(ge=1, le=4096)]
    continues: Number | None = None
    cut: Number | None = None
    after: tuple[Number, Number] | None = None
    alone: bool = False
    leaves: Number | None = None
    guesses: Number | None = None
    logprobs: bool = True


class VerifyFields(pydantic.BaseModel, extra="forbid", frozen=True):
    """What `sealring verify` asks of a head. Without *rows* it hears of the ring alone."""

    rows: Annotated[list[AskedRow], pydantic.Field(max_length=MAX_ROWS, fail_fast=True)]
    checked: bool = False

    @pydantic.field_validator("rows")
    @classmethod
    def _in_order(cls, rows: list[AskedRow]) -> list[AskedRow]:
        for at, row in enumerate(rows):
            named = [row.continues, row.after[0] if row.after else None, row.guesses]
            if any(number is not None and number >= at for number in named):
                raise ValueError(f"row {at} waits for one that is not before it")
        return rows


@attrs.define(eq=False)
class _Running:
    """A row at work: what it was asked, and its tokens so far."""

    asked: AskedRow
    prompt: tuple[int, ...] = ()
    tokens: list[int] = attrs.field(factory=list)
    over: bool = False
    moved: trio.Event = attrs.field(factory=trio.Event)

    def move(self) -> None:
        """Wake who waits for this row."""
        self.moved.set()
        self.moved = trio.Event()

    async def reached(self, tokens: int) -> None:
        """Wait until it has given so many *tokens*, or is over."""
        while len(self.tokens) < tokens and not self.over:
            await self.moved.wait()

    async def ended(self) -> None:
        """Wait until it is over."""
        while not self.over:
            await self.moved.wait()


class Verification:
    """One verification on the head of *generator*, which reports by *reply*."""

    def __init__(self, generator: Generator, asked: VerifyFields, reply: Reply) -> None:
        self._generator = generator
        self._runtime = generator.runtime
        self._asked = asked
        self._reply = reply
        self._rows = [_Running(row) for row in asked.rows]
        self._numbers: dict[int, int] = {}  # of rows, by uid
        self._due: dict[int, int] = {}  # CHECKEDs still to come, by step
        self._epoch = 0  # whose steps those are
        self._ranks: tuple[int, ...] = ()  # of the ring that is verified
        self._scope = f"verification {secrets.token_hex(8)}"  # shares no prefix with others
        self._send, self._receive = trio.open_memory_channel[dict[str, Any]](_UNREAD)
        self._rows_scope = trio.CancelScope()
        self._came = trio.Event()  # set, and another made, as fingerprints come
        self._fault: UserError | None = None

    async def run(self) -> None:
        """Run all rows. Raises `OperationError` and `UserError`."""
        runtime = self._runtime
        if runtime.checker is not None:
            raise OperationError("a verification runs already", "Wait until it is over.")
        runtime.checker = self._checked
        runtime.watchers.append(self._watch)
        try:
            if self._asked.checked:
                runtime.enter(runtime.node.check, True)
            await self._until_serving()
            await self._reply(self._ring())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on)
                await self._run_rows()
                if self._fault is not None:
                    nursery.cancel_scope.cancel()
                with trio.move_on_after(_LATE):
                    while self._due:
                        await self._came.wait()
                self._release()  # before the client, which may be stopped, has read all
                self._send.close()
            if self._fault is not None:
                raise self._fault
        finally:
            self._release()

    def _release(self) -> None:
        """Have the ring serve as it did before. Called again, it does nothing."""
        runtime = self._runtime
        if runtime.checker != self._checked:
            return
        runtime.watchers.remove(self._watch)
        runtime.checker = None
        with contextlib.suppress(LocalProtocolError):  # no longer the head
            runtime.enter(runtime.node.check, False)

    async def _until_serving(self) -> None:
        waiting = WaitNotes(self._generator, self._reply)
        node, checked = self._runtime.node, self._asked.checked
        while not node.serving or node.standing().checked != checked:
            await waiting.report()
            await trio.sleep(_LOOK_SECONDS)

    def _ring(self) -> dict[str, Any]:
        node = self._runtime.node
        standing, members = node.standing(), node.roster.roster.members
        plan = standing.plan
        if plan is None or node.engine_info is None:
            raise OperationError("the ring stopped serving", "Try again.")
        self._ranks = node.ring
        costs = [ready.cost for ready in standing.ready.values()]
        return {
            "event": "ring",
            "ranks": list(node.ring),
            "names": [members[rank].name for rank in node.ring],
            "strategy": plan.strategy.value,
            "bounds": list(plan.split.bounds),
            "windows": sorted({tokens for cost in costs for tokens, _ in cost.windows}),
            "model": node.engine_info.model.hex(),
            "checked": self._asked.checked,
        }

    # ------------------------------------------------------------------ rows

    async def _run_rows(self) -> None:
        async with trio.open_nursery() as nursery:
            self._rows_scope = nursery.cancel_scope
            nursery.start_soon(self._report_why)
            async with trio.open_nursery() as rows:
                for number in range(len(self._rows)):
                    rows.start_soon(self._run_row, number)
            nursery.cancel_scope.cancel()

    async def _report_why(self) -> None:
        """Report why the rows wait, while they do."""

        async def reply(event: dict[str, Any]) -> None:
            self._event(event)

        waiting = WaitNotes(self._generator, reply)
        while True:
            await trio.sleep(_WHY_SECONDS)
            try:
                await waiting.report()
            except OperationError as error:
                self._end(error)

    async def _run_row(self, number: int) -> None:
        row = self._rows[number]
        asked = row.asked
        try:
            if asked.continues is not None:
                before = self._rows[asked.continues]
                await before.reached(before.asked.tokens)
                row.prompt = (*[*before.prompt, *before.tokens][: asked.cut], *asked.prompt)
            else:
                row.prompt = tuple(asked.prompt)
            if asked.after is not None:
                await self._rows[asked.after[0]].reached(asked.after[1])
            for before in self._rows[:number] if asked.alone else ():
                await before.ended()
            await self._answered(number, row)
        except UserError as error:
            self._end(error)
        finally:
            row.over = True
            row.move()

    async def _answered(self, number: int, row: _Running) -> None:
        runtime, asked = self._runtime, row.asked
        sampling = Row(uid=0, logprobs=MAX_LOGPROBS if asked.logprobs else NO_LOGPROBS)
        request = Request(
            row.prompt,
            asked.tokens,
            frozenset(),
            sampling,
            scope=self._scope,
            guesses=self._guesses(asked),
        )

        def known(uid: int) -> None:
            self._numbers[uid] = number
            prompt = list(row.prompt)
            self._event({"event": "row", "row": number, "uid": uid, "prompt": prompt})

        try:
            uid, stream = runtime.submit(request, known)
        except LocalProtocolError as error:
            raise UserError(f"row {number} cannot be run: {error}", "Ask for less.") from None
        try:
            while True:
                for event in await stream.take():
                    if isinstance(event, RequestDone):
                        self._left(number, event)
                        return
                    if not isinstance(event, TokenOut):
                        continue  # its rows ask for no scores
                    self._token(number, row, event.token, event.position, event.logprobs)
                    if len(row.tokens) == asked.leaves:
                        self._event({"event": "left", "row": number, "reason": "withdrawn"})
                        return
        finally:
            runtime.forget(uid)

    def _guesses(self, asked: AskedRow) -> tuple[int, ...] | None:
        """The guesses of a row; None if it looks some up itself."""
        if not self._generator.guesses:
            return ()
        if asked.guesses is None:
            return None
        info = self._runtime.node.engine_info
        most = info.vocabulary if info is not None else 1
        tokens = enumerate(self._rows[asked.guesses].tokens)
        return tuple((token + 1) % most if at % 3 == 1 else token for at, token in tokens)

    def _token(self, number: int, row: _Running, token: int, position: int, scores: Any) -> None:
        row.tokens.append(token)
        event = {"event": "token", "row": number, "token": token, "position": position}
        if scores is not None:
            event |= {"chosen": scores.chosen, "ids": scores.ids, "values": scores.values}
        self._event(event)
        row.move()

    def _left(self, number: int, done: RequestDone) -> None:
        if done.reason is not FinishReason.LENGTH:
            raise OperationError(
                f"the ring gave up on row {number}: {done.message or done.reason.value}",
                "The head's log says more.",
            )
        self._event({"event": "left", "row": number, "reason": "length", "wrong": done.rejected})

    # ---------------------------------------------------------- fingerprints

    def _watch(self, event: StepTiming | RowOpened) -> None:
        if isinstance(event, RowOpened) and event.uid in self._numbers:
            row = self._numbers[event.uid]
            self._event({"event": "cached", "row": row, "tokens": event.cached})

    def _checked(self, event: StepToCheck | StepChecked) -> None:
        if isinstance(event, StepToCheck):
            numbers = [self._numbers.get(uid) for uid, _ in event.rows]
            if all(number is None for number in numbers):
                return
            world = len(self._ranks)
            if self._runtime.node.ring != self._ranks:
                what = "the ring took a member in, or left one out, while it was verified"
                self._end(OperationError(what, "Try again."))
                return
            plan = self._runtime.node.standing().plan
            drawn = plan is not None and len(plan.split.bounds) > 2 and event.is_decode
            epoch = self._runtime.node.standing().epoch.counter
            if epoch != self._epoch:  # an epoch that broke sends no more
                self._epoch = epoch
                self._due.clear()
            self._due[event.n] = world + drawn
            rows = [[number, at] for number, (_, at) in zip(numbers, event.rows, strict=True)]
            about = {"epoch": epoch, "n": event.n, "rows": rows, "tokens": event.tokens}
            self._event({"event": "step", **about, "decode": event.is_decode})
        elif event.message.n in self._due:
            self._due[event.message.n] -= 1
            if not self._due[event.message.n]:
                del self._due[event.message.n]
                self._came.set()
                self._came = trio.Event()
            self._event(_numbers(event.rank, event.message))

    def _event(self, event: dict[str, Any]) -> None:
        try:
            self._send.send_nowait(event)
        except trio.WouldBlock:
            what = "the verification reported more than its client read"
            self._end(OperationError(what, "Ask for fewer rows."))

    def _end(self, fault: UserError) -> None:
        """End all rows because of *fault*."""
        self._fault = self._fault or fault
        self._rows_scope.cancel()

    async def _pass_on(self) -> None:
        async for event in self._receive:
            await self._reply(event)


def _numbers(rank: int, message: Checked) -> dict[str, Any]:
    return {
        "event": "numbers",
        "rank": rank,
        "epoch": message.epoch.counter,
        "n": message.n,
        "closing": message.closing,
        "received": _packed(message.received),
        "given": _packed(message.given),
    }


def _packed(tensor: Tensor) -> dict[str, Any]:
    return {"shape": tensor.shape, "data": base64.b64encode(tensor.data).decode()}
