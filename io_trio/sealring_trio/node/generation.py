"""One path from the ids of a prompt to the text of its answer, for everybody who asks the head.

The node knows token ids alone. A `Job` says what to continue and how; `Generator.answering` gives
it to the ring and `Answer.next` the text as it comes: whole characters, no part of a stop string,
and with each piece the tokens that it came from. However the block is left, by its end, an error or
because the client went away, the row ends with it on every rank.

Making ids of a text is for the text workers (`text.workers`); text is made of tokens here, in time
linear in the tokens.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio
from sealring_model.errors import LoadError, TextError
from sealring_model.text.tokens import Detokenizer, Tokenizer
from sealring_protocol.codec.messages import Row
from sealring_protocol.control.scheduler.requests import (
    FinishReason,
    Request,
    RequestDone,
    TokenOut,
)
from sealring_protocol.diagnosis.why import Obstacle, obstacles
from sealring_protocol.diagnosis.words import lasting

from sealring_trio.errors import OperationError, Withdrawn
from sealring_trio.node.request_stream import Stream
from sealring_trio.node.runtime import Runtime
from sealring_trio.node.trace import Trace, Tracer
from sealring_trio.text.stop_strings import StopText
from sealring_trio.text.workers import TextWorkers

log = logging.getLogger("sealring")


@attrs.frozen
class Job:
    """Continue *prompt* by at most *max_tokens* (0: as the context allows), drawn as *sampling*
    says, up to the first of the *stop* strings. Whoever asks is the *owner*; *scope* tells apart
    those who share no prefixes (`Request`)."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Row
    stop: tuple[str, ...] = ()
    owner: str = ""
    scope: str = ""


@attrs.frozen
class Piece:
    """*text* that comes next, and the *tokens* since the last piece. Either may be empty."""

    text: str
    tokens: tuple[TokenOut, ...]


_DRAIN_LOOK: Final = 0.05  # seconds between looks at what is still under way

_DRAIN_DOWN: Final = 10.0
"""Seconds that the ring may be down while requests finish. A fault is over by then, as a rule; a
ring whose ranks have been stopped as well stays down."""


def _requests(number: int) -> str:
    return f"{number} request{'' if number == 1 else 's'}"


class Answer:
    """What comes of one job; made by `Generator.answering`."""

    def __init__(
        self,
        uid: int,
        stream: Stream,
        finish: Callable[[], None],
        words: Detokenizer,
        stop: StopText,
        notes: tuple[Tracer, Trace],
    ) -> None:
        self.uid = uid
        self._stream = stream
        self._finish = finish
        self._words = words
        self._stop = stop
        self._tracer, self._trace = notes
        self._last: float | None = None
        self._done: RequestDone | None = None

    async def next(self) -> Piece | RequestDone:
        """The next piece, or how the answer ended; waits until there is one."""
        if self._done is not None:
            return self._done
        events = await self._stream.take()
        text, tokens = "", []
        try:
            for event in events:
                if isinstance(event, RequestDone):
                    self._done = event
                    text += self._stop.add(self._detokenise(None)) + self._stop.rest()
                    if self._stop.reached and event.reason is FinishReason.LENGTH:
                        self._done = RequestDone(self.uid, FinishReason.STOP)
                    break
                tokens.append(event)
                text += self._stop.add(self._detokenise(event.token))
                if self._stop.reached:
                    self.finish()
                    break
        except TextError as error:
            self.finish()
            self._done = RequestDone(self.uid, FinishReason.FAILED, str(error))
        return Piece(text, tuple(tokens))

    def finish(self) -> None:
        """The answer is complete as it is, whatever the model would have added."""
        self._done = RequestDone(self.uid, FinishReason.STOP)
        self._finish()

    def _detokenise(self, token: int | None) -> str:
        """The text that *token* completes, or what is left at the end."""
        if token is not None:
            now = trio.current_time()
            self._tracer.token(self._trace, self._last, now)
            self._last = now
        began = time.perf_counter()
        text = self._words.finish() if token is None else self._words.add(token)
        self._trace.detokenise += time.perf_counter() - began
        return text


class Generator:
    """Has the ring continue prompts: the node, the model's tokenizer, and the requests' traces."""

    def __init__(self, runtime: Runtime, model: Path) -> None:
        self.runtime = runtime
        self.model = model
        self.tracer = Tracer()
        self.draining = False  # what is new is refused
        self._drain_ends = 0.0  # when what is under way is ended; monotonic seconds
        self._loading = trio.Lock()
        self.texts = TextWorkers(model)
        self._tokenizer: Tokenizer | None = None
        runtime.watchers.append(self.tracer.watch)

    async def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, loaded once, in a thread. Raises `OperationError`."""
        async with self._loading:
            if self._tokenizer is None:
                try:
                    # It may take long (a slow disk, a busy machine), and no stop waits for it.
                    self._tokenizer = await trio.to_thread.run_sync(
                        partial(Tokenizer, self.model), abandon_on_cancel=True
                    )
                except LoadError as error:
                    raise OperationError(str(error), "Fetch the model again.") from None
            return self._tokenizer

    async def warm_up(self) -> None:
        """Have the tokenizer ready before the first request; a fault is told to who asks."""
        with contextlib.suppress(OperationError):
            await self.tokenizer()

    @contextlib.contextmanager
    def answering(self, tokenizer: Tokenizer, job: Job, trace: Trace) -> Iterator[Answer]:
        """The answer to *job*, whose row ends with the block at the latest.

        Raises `LocalProtocolError` when it can never be done, or not now.
        """
        if trace.withdrawn:
            raise Withdrawn("the request was cancelled")
        if trace.submitted is None:
            trace.submitted = trio.current_time()
        trace.choices += 1
        request = Request(
            job.prompt, job.max_tokens, tokenizer.eos, job.sampling, job.owner, job.scope
        )
        runtime, tracer = self.runtime, self.tracer
        uid, stream = runtime.submit(request, lambda uid: tracer.follow(uid, trace))
        try:
            yield Answer(
                uid,
                stream,
                lambda: runtime.finish(uid),
                tokenizer.stream(),
                StopText(job.stop),
                (tracer, trace),
            )
        finally:
            tracer.leave(uid)
            runtime.forget(uid)

    def withdraw(self, trace: Trace) -> None:
        """End the request of *trace*, wherever it is; whoever waits for it is told."""
        trace.withdrawn = True
        for uid in self.tracer.rows(trace):
            self.runtime.cancel(uid)

    async def drain(self, seconds: float) -> None:
        """Let what runs finish, if the ring can, for *seconds*; the rest is withdrawn."""
        self.draining = True
        live = self.tracer.live
        if live:
            self._drain_ends = trio.current_time() + seconds
            text = "finishing %s, for %g s at most; new ones are refused, and a second signal ends "
            log.info(text + "what is under way", _requests(len(live)), seconds)
        served = trio.current_time()
        with trio.move_on_after(seconds):
            while live and trio.current_time() < served + _DRAIN_DOWN:
                if self.serving:
                    served = trio.current_time()
                await trio.sleep(_DRAIN_LOOK)
        if live:
            log.warning("what has not finished is ended: %s", _requests(len(live)))
        for trace in list(live):
            self.withdraw(trace)

    @property
    def serving(self) -> bool:
        """The ring takes steps; a rank that is not the head does its part."""
        return self.runtime.node.serving

    @property
    def leaving(self) -> str:
        """That this node ends, and what it waits for, in words; empty while it does not."""
        if not self.draining:
            return ""
        text, live = "this node is shutting down", len(self.tracer.live)
        if live:
            left = max(0.0, self._drain_ends - trio.current_time())
            text += f": it finishes {_requests(live)}, for {lasting(left + 1)} more at most"
        return text

    def obstacles(self) -> list[Obstacle]:
        """What keeps the ring from serving; nothing if it serves."""
        return obstacles(self.runtime.facts(self.leaving), trio.current_time())

    def missing(self) -> str:
        """It in words; empty when the ring serves."""
        if self.serving:
            return ""
        now = trio.current_time()
        return "; ".join(obstacle.text(now) for obstacle in self.obstacles())
