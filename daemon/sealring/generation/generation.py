"""From the token ids of a prompt to the text of its answer, for the API and the control socket.

The node knows token ids alone. A `Job` says what to continue and how. `Generator.answering` submits
it to the ring, and `Answer.next` returns the text as it comes: whole characters, no part of a stop
string, and the tokens that each piece came from. When the block of `answering` is left, by its end,
an error or cancellation, the row ends on every rank.

Text workers tokenise prompts (`text.workers`). Answers are detokenised here, in linear time, with
what a text worker has sent of the model's tokens: the node loads no tokenizer.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from sealring_model.errors import TextError
from sealring_model.text.detokenizer import Detokenizer, StopText, Vocabulary
from sealring_model.text.tokens import own_sampling as sampling_of
from sealring_protocol.codec.local_messages import Scores
from sealring_protocol.control.head.epochs import RING_READY
from sealring_protocol.control.requests import (
    ContextOverflow,
    FinishReason,
    NotServed,
    Request,
    RequestDone,
    RoomOverflow,
    ScoresOut,
    TokenOut,
)
from sealring_protocol.diagnosis import Obstacle, first_permanent, obstacles
from sealring_protocol.words import lasting
from sealring_trio.errors import OperationError, Withdrawn
from sealring_trio.node.runtime import Counted, Event, Runtime, Stream

from sealring.generation.status import TakenRing
from sealring.generation.trace import Trace, Tracer
from sealring.text.frames import ParsedRequest
from sealring.text.workers import Check, TextWorkers

log = logging.getLogger("sealring")


@attrs.frozen
class Job:
    """A *request* of the ring, and what of its answer is text: that ends before the first of the
    *stop* strings, which is given out if *stop_shown*. The request's ``eos`` has the tokens that
    end it beside the model's own, which end it unless it is *endless*. Special tokens are given out
    if *special* (those that end it never are). The text goes on with the prompt's, unless it
    *opens* a text of its own."""

    request: Request
    stop: tuple[str, ...] = ()
    stop_shown: bool = False
    endless: bool = False
    special: bool = True
    opens: bool = False


@attrs.frozen
class TextPiece:
    """The *tokens* since the last piece, and the *texts* that each of them completed, maybe empty;
    at the end there is one more text, of what was held back. *scores* are of the prompt."""

    texts: tuple[str, ...]
    tokens: tuple[TokenOut, ...]
    scores: tuple[Scores, ...] = ()

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.texts)


_SHUTS_DOWN: Final = "this node is shutting down"

_DRAIN_LOOK: Final = 0.05  # seconds between looks at what is still under way

_AGAIN: Final = 1.0
"""Seconds between two tries to load the tokenizer."""

_LAST_SECONDS: Final = 2.0
"""Seconds that clients have to take the error with which their requests are ended."""

_DRAIN_DOWN: Final = 10.0
"""Seconds that a stopping node waits for a ring that is down. Most faults are over by then; if the
other ranks are stopped too, the ring stays down."""


def _requests(number: int) -> str:
    return f"{number} request{'' if number == 1 else 's'}"


@attrs.define(eq=False)
class Answer:
    """The answer to one job, made by `Generator.answering`."""

    uid: int
    _stream: Stream
    _finish: Callable[[], None]
    _words: Detokenizer
    _stop: StopText
    _tracer: Tracer
    _trace: Trace
    fitted: bool
    """Whether it has less room than was asked for."""

    done: RequestDone | None = None
    """How it ended; None while it goes on."""

    came: Sequence[Event] = ()
    """What the last piece was made of."""

    one_by_one: bool = False
    """Whether each token has a piece of its own, whenever it comes: the same tokens then make the
    same pieces."""

    _last: float | None = None
    _scored: int = 0  # tokens of the prompt whose scores have come
    _waiting: Sequence[Event] = ()  # what came, for the next pieces

    @property
    def stopped_by(self) -> str:
        """The stop string that the answer ended before; empty if it did not."""
        return self._stop.found

    async def next(self) -> TextPiece | RequestDone:
        """Wait for the next piece, or for how the answer ended."""
        if self.done is not None:
            self.came = ()
            return self.done
        if self._waiting:
            await trio.lowlevel.checkpoint()
        self.came = self._waiting or await self._stream.take()
        if self.one_by_one:
            self.came, self._waiting = self.came[:1], self.came[1:]
        return self._piece(self.came)

    def again(self, came: Sequence[Event]) -> TextPiece:
        """The piece that was made once of what *came* then, before this node had the request."""
        self._trace.tokens += sum(isinstance(event, TokenOut) for event in came)
        return self._piece(came, counts=False)

    def _piece(self, events: Sequence[Event], *, counts: bool = True) -> TextPiece:
        texts, tokens, scores = [], [], list[Scores]()
        try:
            for event in events:
                if isinstance(event, ScoresOut):
                    if event.scores.end > self._scored:  # each head's ring gives them all
                        scores.append(event.scores.since(self._scored))
                        self._scored = event.scores.end
                    continue
                if isinstance(event, RequestDone):
                    self.done = event
                    texts.append(self._stop.add(self._detokenise(None)) + self._stop.rest())
                    if self._stop.found and event.reason is FinishReason.LENGTH:
                        self.done = RequestDone(self.uid, FinishReason.STOP)
                    break
                tokens.append(event)
                if counts:
                    self._count()
                texts.append(self._stop.add(self._detokenise(event.token)))
                if self._stop.found:
                    self.finish()
                    break
        except TextError as error:
            self.finish()
            self.done = RequestDone(self.uid, FinishReason.FAILED, str(error))
        return TextPiece(tuple(texts), tuple(tokens), tuple(scores))

    def finish(self) -> None:
        """End the answer here, whatever the model would have added."""
        self.done = RequestDone(self.uid, FinishReason.STOP)
        self._finish()

    def _count(self) -> None:
        """One more token is drawn."""
        now = trio.current_time()
        self._tracer.token(self._trace, self._last, now)
        self._last = now

    def _detokenise(self, token: int | None) -> str:
        """The text that *token* completes, or what is left at the end."""
        began = time.perf_counter()
        text = self._words.finish() if token is None else self._words.add(token)
        self._trace.detokenise += time.perf_counter() - began
        return text


class Generator:
    """Has the ring continue prompts. Keeps the text workers and the traces. Without
    *guesses* no token is guessed, whatever a request says. Unless *own_sampling*, what the model's
    makers say of drawing is left aside."""

    def __init__(
        self, runtime: Runtime, model: Path, *, guesses: bool = True, own_sampling: bool = True
    ) -> None:
        self.runtime = runtime
        self.model = model
        self._own_sampling: Final = sampling_of(model)
        self.sampling = self._own_sampling if own_sampling else {}
        """How tokens are drawn where a request does not say, by the API's names."""
        self.guesses: Final = guesses
        self.tracer = Tracer()
        self._stopping = self._giving_way = ""  # why what is new is refused
        self._drain_ends = 0.0  # when what is under way is ended; monotonic seconds
        self.texts = TextWorkers(model)
        self.choice: TakenRing | None = None
        """Which ring the head chose, once it has compared some."""
        runtime.watchers.append(self.tracer.watch)
        runtime.text_loading = lambda: self.loading
        runtime.textless = lambda: self.texts.unloadable
        runtime.not_answering = self._not_answering

    async def vocabulary(self) -> Vocabulary:
        """What is known of the model's tokens, once a text worker has loaded them. Raises
        `OperationError`."""
        return await self.texts.vocabulary()

    async def warm_up(self) -> None:
        """Wait until a text worker has loaded the tokenizer. If none ever can, it is an obstacle.
        A start that failed for another reason is tried again."""
        while self.loading:
            with contextlib.suppress(OperationError):
                await self.vocabulary()
                node = self.runtime.node
                if node.rank == 0 and self.serving and not self._not_answering():
                    epoch = node.standing().epoch.counter
                    log.info("%s: epoch %d; the tokenizer is loaded", RING_READY, epoch)
                return
            await trio.sleep(_AGAIN)

    def _not_answering(self) -> str:
        """Why no request is answered even if the ring serves, as a clause; empty if it is."""
        if self.refusal or self.texts.unloadable:
            return self.refusal or self.texts.unloadable
        return "the tokenizer is still being loaded" if self.loading else ""

    async def parse(
        self,
        job: str,
        about: Mapping[str, Any],
        body: bytes,
        owner: str,
        trace: Trace,
        check: Check = lambda _: None,
    ) -> ParsedRequest:
        """Have a text worker read *body* by *job* (`text_worker.JOBS`) with *about*, for *owner*.
        What it says has to pass *check*. *trace* gets the times and the number of tokens.

        Raises `Refused`, `Exceeded`, `TextQueueFull`, `Lost`, or `OperationError` if no worker
        starts.
        """
        info = self.runtime.node.engine_info
        model = {
            "context": info.context if info is not None else 0,
            "vocabulary": info.vocabulary if info is not None else 0,
            "sampling": self.sampling,
            # Other caches are cut where a later prompt leaves them, wherever that is.
            "branches": info is not None and not info.trimmable,
        }
        began = trio.current_time()
        fields, data = await self.texts.run(job, {**model, **about}, body, owner, check)
        parsed = ParsedRequest.of(fields, data)
        trace.parse = float(fields["read"])
        trace.tokenise = trio.current_time() - began - trace.parse
        trace.prompt_tokens = sum(map(len, parsed.prompts))
        return parsed

    @contextlib.contextmanager
    def answering(
        self,
        words: Vocabulary,
        job: Job,
        trace: Trace,
        counted: Counted | None = None,
        past: Sequence[int] | None = (),
    ) -> Iterator[Answer]:
        """Submit *job*, and give its answer, the bytes of whose tokens are *counted* as the ring
        gives them. The row ends with the block at the latest. A job that may become longer than
        the context, or the ranks' memory, may become as long as they allow; its answer is
        `Answer.fitted`. The tokens *past* were drawn for another head: the ring draws what follows.
        If *past* is None, nothing does.

        Raises `LocalProtocolError` if the job can never be done, or not now.
        """
        if trace.withdrawn:
            raise Withdrawn("the request was cancelled")
        if trace.given_up:
            raise NotServed(trace.given_up)
        if trace.submitted is None:
            trace.submitted = trio.current_time()
        request = job.request
        if not job.endless:
            request = attrs.evolve(request, eos=request.eos | words.eos)
        if not self.guesses:
            request = attrs.evolve(request, guesses=())
        request = attrs.evolve(request, drawn=past or ())
        runtime, tracer = self.runtime, self.tracer
        with contextlib.ExitStack() as over:

            def known(uid: int) -> None:
                trace.choices += 1
                tracer.follow(uid, trace)
                over.callback(tracer.leave, uid)

            uid, stream, fitted = 0, Stream(counted), False
            if past is None:
                trace.choices += 1
            else:
                try:
                    uid, stream = runtime.submit(request, known, counted)
                except (ContextOverflow, RoomOverflow):
                    if not request.max_tokens:
                        raise
                    fitted = True
                    request = attrs.evolve(request, max_tokens=None)
                    uid, stream = runtime.submit(request, known, counted)
            try:
                yield Answer(
                    uid,
                    stream,
                    lambda: runtime.finish(uid),
                    words.stream(None if job.opens else request.prompt, special=job.special),
                    StopText(job.stop, shown=job.stop_shown),
                    tracer,
                    trace,
                    fitted,
                )
            finally:
                runtime.forget(uid)
                if (done := stream.done) is not None:
                    trace.guessed(done.accepted, done.rejected)

    def withdraw(self, trace: Trace) -> None:
        """Cancel the request of *trace*, whatever it waits for. Its answers end with an error."""
        trace.withdrawn = True
        for uid in reversed(self.tracer.rows(trace)):  # so that none takes another's place
            self.runtime.cancel(uid)

    async def end(self, why: str) -> None:
        """Refuse new requests from now on, and end those under way: they failed because of *why*.
        Waits until their clients have the error, for a moment at most."""
        self._stopping = _SHUTS_DOWN
        if live := self._unended():
            log.warning("ended: %s, because %s", _requests(len(live)), why)
        self._give_up(why)
        with trio.move_on_after(_LAST_SECONDS):
            while any(trace in self.tracer.live for trace in live):  # noqa: ASYNC110 - as in `drain`
                await trio.sleep(_DRAIN_LOOK)

    def _unended(self) -> list[Trace]:
        """The requests that are to end here, and were not given up."""
        stays = bool(self._stopping)
        live = [trace for trace in self.tracer.live if not trace.given_up]
        return [trace for trace in live if stays or not trace.survives]

    def _give_up(self, why: str) -> None:
        """End what is under way, whatever it waits for, because of *why*."""
        for trace in self._unended():
            trace.given_up = why
            for uid in reversed(self.tracer.rows(trace)):  # as in `withdraw`
                self.runtime.give_up(uid, why)

    async def drain(self, seconds: float, why: str, own: str = _SHUTS_DOWN) -> None:
        """Refuse new requests, for *own* (a clause about this node), let those that run finish for
        *seconds*, and give up the rest, because of *why*."""
        self._stopping = own
        await self._finish(seconds, why)

    @contextlib.asynccontextmanager
    async def giving_way(self, seconds: float, why: str) -> AsyncIterator[None]:
        """As `drain`, and take requests again after the block, in which a roster comes into force
        that makes another member the head, as *why* says. What the next head goes on with need not
        finish here."""
        self._giving_way = why
        try:
            await self._finish(seconds, why)
            yield
        finally:
            self._giving_way = ""

    async def _finish(self, seconds: float, why: str) -> None:
        """Let the requests that run finish for *seconds*, and give up the rest, because of
        *why*."""
        live = self._unended()
        if live:
            self._drain_ends = trio.current_time() + seconds
            text = "%s: finishing %s, for %g s at most; new ones are refused"
            second = ", and a second signal ends what is under way" if self._stopping else ""
            log.info(text + second, self.refusal, _requests(len(live)), seconds)
        served = trio.current_time()
        with trio.move_on_after(seconds):
            while self._unended() and trio.current_time() < served + _DRAIN_DOWN:
                if self.serving:
                    served = trio.current_time()
                await trio.sleep(_DRAIN_LOOK)
        if live := self._unended():
            log.warning("what has not finished is ended: %s", _requests(len(live)))
        self._give_up(why)

    @property
    def serving(self) -> bool:
        """Whether the ring serves; on a follower, whether this rank does its part."""
        node = self.runtime.node
        return node.serving and not (self.texts.unloadable and node.rank == 0)

    @property
    def loading(self) -> bool:
        """Whether the head's first text worker is still loading the tokenizer."""
        return self.texts.loading

    def sample_as(self, *, own: bool) -> None:
        """Draw from now on as the model has it if *own*, else as the API has it."""
        self.sampling = self._own_sampling if own else {}

    @property
    def draining(self) -> bool:
        """Whether new requests are refused."""
        return bool(self.refusal)

    @property
    def refusal(self) -> str:
        """Why new requests are refused; empty if they are not."""
        return self._stopping or self._giving_way

    @property
    def stopping(self) -> bool:
        """Whether this node shuts down, or begins another life."""
        return bool(self._stopping)

    @property
    def gives_way(self) -> bool:
        """Whether requests are refused because another member becomes the head."""
        return bool(self._giving_way) and not self._stopping

    @property
    def leaving(self) -> str:
        """Why the node stops taking requests and what it waits for, in words; empty if it does
        take them."""
        text, live = self.refusal, len(self._unended())
        if text and live:
            left = max(0.0, self._drain_ends - trio.current_time())
            text += f": it finishes {_requests(live)}, for {lasting(left + 1)} more at most"
        return text

    def obstacles(self) -> list[Obstacle]:
        """What keeps the ring from serving; empty if it serves."""
        return obstacles(self.runtime.facts(self.leaving), trio.current_time())

    def permanent_obstacle(self) -> Obstacle | None:
        """The first obstacle that no request should wait for; None if there is none."""
        return first_permanent(self.obstacles())

    @property
    def goes_on(self) -> bool:
        """Whether a request may come now: the ring serves, or changes and is about to again."""
        if self.serving or self.texts.unloadable:
            return self.serving
        changes = self.runtime.node.goes_on(trio.current_time())
        return changes and self.permanent_obstacle() is None

    def missing(self) -> str:
        """The obstacles in words; empty if the ring serves."""
        if self.serving:
            return ""
        now = trio.current_time()
        return "; ".join(obstacle.text(now) for obstacle in self.obstacles())
