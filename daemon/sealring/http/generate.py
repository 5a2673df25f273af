"""The endpoints that generate: from the body of a request to its answers, whole or streamed.

What differs between kinds of request is in `kinds`. The rest is here: read and check the
body, make token ids, open a row for each choice, and send the tokens until the answer ends, the
client leaves or its time is up. An error before the first byte of the answer has a status of its
own; a later one is the last event of the stream.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import attrs
import trio
from sealring_model.text.detokenizer import Vocabulary
from sealring_protocol.codec.messages import NO_LOGPROBS, Row
from sealring_protocol.control.requests import RequestDone, ScoresOut, TokenIds
from sealring_protocol.errors import LocalProtocolError
from sealring_trio.errors import OperationError
from sealring_trio.node.runtime import size_of
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sealring.dialects.errors import (
    ApiError,
    from_end,
    from_refusal,
    invalid,
    text_errors,
    timed_out,
    unavailable,
)
from sealring.dialects.fields import adapt, headers_of
from sealring.dialects.replies import About, Choice, Delta, Json, Shape
from sealring.dialects.schema import ChatOptions, CompletionOptions, Sampled
from sealring.generation.generation import Answer, Job
from sealring.generation.trace import Trace
from sealring.http.gate import Caller
from sealring.http.head import ApiHead, HeldBytes
from sealring.http.kinds import A, ApiKind, ChoiceContext
from sealring.http.responses import earlier, with_items
from sealring.http.streaming import ClientGone, EventStream, attended
from sealring.text.frames import ParsedRequest

# ---------------------------------------------------------------------- sampling
# How the rows of a request are drawn: from OpenAI's fields to the ring's `Row`.


_U64 = (1 << 64) - 1
_OWNERS = secrets.token_bytes(32)  # so that no rank can tell who an owner is
N = TypeVar("N", int, float)


def jobs(
    asked: ChatOptions | CompletionOptions,
    parsed: ParsedRequest,
    vocabulary: int,
    caller: Caller,
) -> Iterator[Job]:
    """A job for each choice of each prompt, in the order of their indices. Raises `ApiError`."""
    scope = f"{caller.scope} salt {asked.cache_salt}" if asked.cache_salt else caller.scope
    grammar = _owned(parsed.grammar, f"{caller.owner}\n{scope}")
    row = attrs.evolve(_row(asked, vocabulary), grammar=grammar, bad=parsed.bad)
    ends = frozenset(asked.stop_token_ids or ()) | parsed.ends
    if beyond := [token for token in asked.stop_token_ids or () if token >= vocabulary]:
        raise invalid(
            f"stop_token_ids names token {beyond[0]}; the vocabulary has {vocabulary}.",
            "stop_token_ids",
        )
    for prompt in parsed.prompts:
        for choice in range(asked.n or 1):
            sampling = attrs.evolve(row, choice=choice)
            scores = asked.scores is not None and choice == 0  # the prompt is the same for all
            yield Job(
                prompt,
                asked.limit,
                sampling,
                asked.stops,
                caller.owner,
                scope,
                parsed.prediction,
                scores=scores,
                stop_tokens=ends,
                stop_shown=bool(asked.include_stop_str_in_output),
                endless=bool(asked.ignore_eos),
                special=asked.skip_special_tokens is not True,
                opens=parsed.opens,
                min_tokens=asked.min_tokens or 0,
                branches=parsed.branches,
            )


def _owned(grammar: bytes, owner: str) -> bytes:
    """*grammar* as a text that no other *owner* has: engines keep what they have compiled, and how
    long one takes would else say what another asked for. llguidance passes over the member."""
    if not grammar:
        return b""
    mark = hashlib.blake2b(owner.encode(), key=_OWNERS, digest_size=16).hexdigest()
    return b'{"owner":"%s",' % mark.encode() + grammar.removeprefix(b"{")


def _row(asked: ChatOptions | CompletionOptions, vocabulary: int) -> Row:
    return Row(
        uid=0,
        seed=secrets.randbits(64) if asked.seed is None else asked.seed & _U64,
        temperature=_or(asked.temperature, 1.0),
        top_p=asked.top_p or 1.0,
        # The likeliest tokens that make up no share at all are the likeliest one.
        top_k=1 if asked.top_p == 0 else max(0, asked.top_k or 0),
        min_p=_or(asked.min_p, 0.0),
        repetition=_or(asked.repetition_penalty, 1.0),
        presence=_or(asked.presence_penalty, 0.0),
        frequency=_or(asked.frequency_penalty, 0.0),
        logprobs=_logprobs(asked),
        bias=_bias(asked, vocabulary),
    )


def _or(value: N | None, default: N) -> N:
    return default if value is None else value


def _logprobs(asked: ChatOptions | CompletionOptions) -> int:
    """As many as either the answer or the prompt is to be told with."""
    told = [each for each in (asked.alternatives, asked.scores) if each is not None]
    return max(told, default=NO_LOGPROBS)


def _bias(asked: Sampled, vocabulary: int) -> tuple[tuple[int, float], ...]:
    pairs = sorted((int(token), value) for token, value in (asked.logit_bias or {}).items())
    for token, _ in pairs:
        if token >= vocabulary:
            raise invalid(
                f"logit_bias names token {token}; the vocabulary has {vocabulary}.", "logit_bias"
            )
    if len({token for token, _ in pairs}) < len(pairs):
        raise invalid("logit_bias names a token twice.", "logit_bias")
    return tuple(pairs)


# ---------------------------------------------------------------------- generate


Pair = tuple[Answer, Choice]
Emit = Callable[[Delta], Awaitable[None]]


@attrs.define
class Call:
    """One request on its way: who asks, its times, what it is *holding*, of which the answer's
    shape has *kept* some, the *stream* for its answer, and that shape. *refused* is why it may hold
    no more."""

    caller: Caller
    trace: Trace
    holding: HeldBytes
    stream: EventStream
    shape: Shape | None = None
    refused: ApiError | None = None
    kept: int = 0

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
        grown = shape.kept - self.kept
        self.kept += grown
        self.holding.grow(grown)


class Generate(Generic[A]):
    """The ASGI endpoint of one kind of request."""

    def __init__(self, head: ApiHead, kind: ApiKind[A]) -> None:
        self._head = head
        self._kind: ApiKind[A] = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        caller: Caller = scope["state"]["visitor"]
        trace = Trace(
            caller.id,
            self._kind.name,
            caller.name,
            began=caller.arrived,
            asked=caller.asked,
            trace_id=caller.trace_id,
        )
        tracer = self._head.generator.tracer
        tracer.begin(trace)
        outcome = "cancelled"
        try:
            with self._head.holding(caller.account, 0) as holding:
                call = Call(caller, trace, holding, EventStream(send))
                outcome = await self._answer(scope, receive, send, call)
        except ApiError as error:
            outcome, trace.fault = error.code, error.in_log()
            raise
        except (ClientDisconnect, ClientGone):
            # Many clients leave at `[DONE]` or at the last chunk: they have had their answer.
            outcome = trace.outcome or "client_gone"
        finally:
            tracer.end(trace, outcome)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, call: Call) -> str:
        """Send the answer; returns how it ended, in a word."""
        head, trace = self._head, call.trace
        body = await head.bodies.read(Request(scope, receive), call.caller.account)
        trace.body = trio.current_time() - trace.began
        head.check_serving()
        texts = [body]
        del body  # which would stay for as long as the answer takes
        stream = call.stream
        try:
            response = await attended(receive, partial(self._within_time, texts, call))
        except ApiError as error:
            if not stream.opened:
                raise
            if call.shape is not None:
                await stream.write(call.shape.failure(error))
            trace.outcome, trace.fault = error.code, error.in_log()
        else:
            if not stream.opened:
                await response(scope, receive, send)
                return trace.outcome
        await stream.close()
        return trace.outcome

    async def _within_time(self, texts: list[bytes], call: Call) -> Response:
        """`_generate`, within the time that a request may take. Raises `ApiError`."""
        head = self._head
        given: list[Response | ApiError] = []
        expired = False

        async def expire(scope: trio.CancelScope) -> None:
            nonlocal expired
            await trio.sleep(head.config.timeout)
            expired = True
            # Also where the work cannot be cancelled yet: its client may be taking nothing.
            head.generator.withdraw(call.trace)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expire, nursery.cancel_scope)
            try:
                given.append(await self._generate(texts, call))
            except ApiError as error:
                given.append(error)
            nursery.cancel_scope.cancel()
        if expired:
            raise timed_out(head.config.timeout)
        if call.refused is not None:
            raise call.refused
        (result,) = given
        if isinstance(result, ApiError):
            raise result
        return result

    async def _generate(self, texts: list[bytes], call: Call) -> Response:
        """Have the ring answer the body that *texts* reads: into the stream if one is asked for, or
        else in one piece."""
        head, trace = self._head, call.trace
        words = await self._vocabulary()
        owned = ChoiceContext(
            head.generator, words, call.caller.owner, call.caller.account, head.responses
        )
        parsed, context = await self._parse(texts.pop(), call, owned)
        asked = self._kind.options(parsed.told["options"])
        call.caller.told.update(headers_of(parsed.told))
        choices = self._kind.choices(asked, parsed, context)
        about = About(trace.id, trace.began_ms // 1000, asked.model, head.fingerprint, trace)
        call.shape = shape = self._kind.shape(asked, parsed, context, about)
        call.holding.grow(self._kind.held(parsed) + parsed.size)
        with contextlib.ExitStack() as stack:
            answers = await self._open(asked, words, parsed, call, stack)
            pairs = list(zip(answers, choices, strict=True))
            if asked.stream:
                await _stream(pairs, shape, call)
            else:
                await _follow_all(pairs, shape, call)
        if asked.stream:  # now that the rows are over, their counts are known
            await call.write(shape.closing(trace))
            return Response()
        body = await _joined(shape.whole(trace))
        call.shape = None
        call.holding.grow(-shape.kept)
        return Response(body, headers=_timing(trace), media_type="application/json")

    async def _vocabulary(self) -> Vocabulary:
        """What is known of the model's tokens. Raises `ApiError`."""
        try:
            return await self._head.generator.vocabulary()
        except OperationError as error:
            raise unavailable(
                f"The model's tokenizer is missing: {error.what}.", "no_tokenizer"
            ) from None

    async def _parse(
        self, body: bytes, call: Call, context: ChoiceContext
    ) -> tuple[ParsedRequest, ChoiceContext]:
        """What a text worker reads in *body*, and *context* with the items that come before it.
        Raises `ApiError`."""
        parsed = await self._read(body, {}, call)
        if "references" not in parsed.told:
            return parsed, context
        before, referred = earlier(context.responses, context.owner, parsed.told)
        call.holding.grow(sum(map(sys.getsizeof, before)))  # they may be kept no more
        data, sizes = with_items(body, before, referred)
        parsed = await self._read(data, sizes, call)
        return parsed, attrs.evolve(context, before=before)

    async def _read(self, body: bytes, about: Mapping[str, Any], call: Call) -> ParsedRequest:
        """What a text worker reads in *body* with *about*. Raises `ApiError`."""
        about = {"models": self._head.models, **about}

        def check(told: Mapping[str, Any]) -> None:
            if "options" in told:
                self._kind.options(told["options"])

        with text_errors(call.trace.id):
            return await self._head.generator.parse(
                self._kind.name, about, body, call.caller.account, call.trace, check
            )

    async def _open(
        self,
        asked: A,
        words: Vocabulary,
        parsed: ParsedRequest,
        call: Call,
        stack: contextlib.ExitStack,
    ) -> list[Answer]:
        """Open a row for each choice; others have their turn after each. All end with *stack*.
        Raises `ApiError`."""
        head = self._head
        info = head.generator.runtime.node.engine_info
        vocabulary = info.vocabulary if info is not None else words.size
        for prompt in parsed.prompts:
            _check_prompt(prompt, vocabulary)

        def counted(size: int) -> None:
            try:
                call.holding.grow(size)
            except ApiError as error:
                if call.refused is None:
                    call.refused = error
                    withdraw = head.generator.withdraw
                    trio.lowlevel.current_trio_token().run_sync_soon(withdraw, call.trace)

        try:
            answers = []
            for job in jobs(asked, parsed, vocabulary, call.caller):
                answering = head.generator.answering(words, job, call.trace, counted)
                answers.append(stack.enter_context(answering))
                await trio.lowlevel.checkpoint()
        except LocalProtocolError as error:
            raise from_refusal(error, self._kind.prompt, head.retry_after()) from None
        if any(answer.fitted for answer in answers):
            adapt(call.caller.told, self._kind.limited_by(asked))
        return answers


def _check_prompt(prompt: TokenIds, vocabulary: int) -> None:
    if not prompt:
        raise invalid("The prompt has no tokens; give at least one.", "prompt", "empty_prompt")
    if (most := prompt.bounds[1]) >= vocabulary:
        raise invalid(f"The prompt has token {most}; the vocabulary has {vocabulary}.", "prompt")


async def _follow(answer: Answer, choice: Choice, emit: Emit) -> None:
    """Fill *choice* with *answer*, and *emit* each delta of it. Raises `ApiError`."""
    while not isinstance(piece := await answer.next(), RequestDone):
        if (delta := await choice.take(piece)) is not None:
            await emit(delta)
        if choice.complete:
            answer.finish()
    if (error := from_end(piece)) is not None:
        raise error
    await emit(await choice.finish(piece, answer.stopped_by))


def _note(delta: Delta, reasons: list[str], choices: int, trace: Trace) -> None:
    """Add to *reasons* why *delta* ends its choice, if it does; the last of so many *choices* gives
    *trace* its outcome."""
    if delta.finish is not None:
        reasons.append(delta.finish.reason)
        if len(reasons) == choices:
            trace.outcome = ",".join(sorted(set(reasons)))


async def _joined(parts: Iterable[Json]) -> bytes:
    """*parts* in one piece; others have their turn between any two."""
    made = []
    for part in parts:
        made.append(part)
        await trio.lowlevel.checkpoint()
    return b"".join(made)


async def _stream(pairs: Sequence[Pair], shape: Shape, call: Call) -> None:
    """All choices into *shape*, whose events are written as they come. Raises `ApiError`."""
    await call.stream.open()
    if opening := shape.opening():
        await call.write(opening)
    errors: list[ApiError] = []
    async with trio.open_nursery() as beside:
        beside.start_soon(call.stream.keep_alive, shape.silence)
        try:
            await _follow_all(pairs, shape, call)
        except ApiError as error:
            errors.append(error)  # out of here by itself, not in a group
        beside.cancel_scope.cancel()
    if errors:
        raise errors[0]


async def _follow_all(pairs: Sequence[Pair], shape: Shape, call: Call) -> None:
    """All *pairs* into *shape* at once, so that none has tokens that wait for another's end. Raises
    `ApiError`."""
    reasons: list[str] = []
    errors: list[ApiError] = []

    async def emit(delta: Delta) -> None:
        _note(delta, reasons, len(pairs), call.trace)  # a client may go when it has this
        await call.add(delta, shape)

    async def run(answer: Answer, choice: Choice, scope: trio.CancelScope) -> None:
        try:
            await _follow(answer, choice, emit)
        except ApiError as error:
            errors.append(error)
            scope.cancel()

    async with trio.open_nursery() as choices:
        for answer, choice in pairs:
            choices.start_soon(run, answer, choice, choices.cancel_scope)
    if errors:
        raise errors[0]


def _timing(trace: Trace) -> dict[str, str]:
    """The trace so far as a ``Server-Timing`` header: milliseconds by phase."""
    phases = trace.phases()
    ranks = {f"rank{rank}": spent for rank, spent in enumerate(phases.pop("compute"))}
    parts = [f"{name};dur={spent}" for name, spent in (phases | ranks).items() if spent is not None]
    return {"Server-Timing": ", ".join(parts)}
