"""The endpoints that generate: from the body of a request to its answers, whole or streamed.

What differs between kinds of request is in an `ApiKind`. The rest is one for all: read and check
the body, make token ids, open a row for each choice, and send the tokens until the answer ends, the
client leaves or its time is up. An error before the first byte of the answer has a status of its
own; a later one is the last event of the stream.

`Tokens` answers what needs no ring: how many tokens a text has, and which.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import sys
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import trio
from sealring_model.text.detokenizer import Vocabulary
from sealring_model.text.tokens import ParsedCall, ToolFormat
from sealring_protocol.codec.messages import NO_LOGPROBS, Row
from sealring_protocol.control.requests import Request, TokenIds
from sealring_protocol.errors import LocalProtocolError
from sealring_trio.errors import OperationError
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sealring.dialects.anthropic import MessageShape
from sealring.dialects.chat import ChatShape, PromptScores, TextShape
from sealring.dialects.errors import (
    ApiError,
    from_refusal,
    invalid,
    text_errors,
    timed_out,
    unavailable,
    unsupported,
)
from sealring.dialects.fields import adapt, headers_of
from sealring.dialects.messages import PLAIN
from sealring.dialects.replies import About, AnswerText, Choice, Json, Names, Shape
from sealring.dialects.responses import ResponseShape, Wanted
from sealring.dialects.schema import ChatOptions, CompletionOptions
from sealring.generation.generation import Answer, Generator, Job
from sealring.generation.trace import Trace
from sealring.http.bodies import ClientGone, EventStream, RestOfStream, attended, beside
from sealring.http.filling import Call, Choices, stream
from sealring.http.gate import ANSWER, Caller, member_of
from sealring.http.head import ApiHead
from sealring.http.kept import Kept, ResponseStore, earlier
from sealring.http.records import Moved, Record, RecordedRequest, cuts, may_ask, no_record
from sealring.http.resume import KeptAnswer, Resumed, ResumeFields, left
from sealring.text.frames import (
    ID,
    ID_SIZE,
    Exceeded,
    Lost,
    ParsedRequest,
    Refused,
    TextQueueFull,
)

log = logging.getLogger("sealring.api")

T = TypeVar("T")
Options = ChatOptions | CompletionOptions


@attrs.frozen
class ChoiceContext:
    """What the choices of a request of *owner* share: the model's *words*, and the text workers of
    *generator*, whose work counts to *account*. The items *before* its own are of earlier
    *responses* that are kept. What they call their parts are *names*."""

    generator: Generator
    words: Vocabulary
    owner: str
    account: str = ""
    responses: ResponseStore = attrs.field(factory=ResponseStore)
    before: tuple[bytes, ...] = ()
    names: Names = attrs.field(factory=Names)


_REPEATED: Final = 5
"""How often a response stands in its stream and beside it: as it begins (twice), as it ends, as it
is kept, and what was read of it."""


@attrs.frozen
class ApiKind:
    """One kind of request. *name* is also that of its job in `text_worker.JOBS`, *prompt* the field
    of its prompt, and *limits* are those that may say how long the answer may be, the newest first.
    *options* is the class of its fields that the node needs.

    Of a request that was parsed, *choices* makes the choices that are to be filled, *shape* the
    shape of the answer, and *held* says how many bytes of texts stay until that is over."""

    name: str
    prompt: str
    limits: tuple[str, ...]
    options: type[ChatOptions] | type[CompletionOptions]
    choices: Callable[..., list[Choice]]
    held: Callable[[ParsedRequest], int]
    shape: Callable[..., Shape]

    def limited_by(self, asked: Options) -> str:
        """The field of *asked* that says how long the answer may be."""
        return next((each for each in self.limits if getattr(asked, each, None)), self.limits[-1])


def _messages(asked: ChatOptions, parsed: ParsedRequest, context: ChoiceContext) -> list[Choice]:
    """Messages, which may think and call tools."""
    words, fields = context.words, parsed.fields
    form = ToolFormat.known(*words.calls)
    plain = bool(fields["plain"])
    tools = parsed.rest[: fields["tools"]]
    calls = CallReader(context, tools, plain=plain)
    return [
        Choice(
            index,
            AnswerText(
                words.think,
                (PLAIN if plain else form) if tools else None,
                fields["callable"],
                reasoning=fields["reasoning"],
                calling=fields["calling"],
                whole=form.whole,
            ),
            calls.read,
            single_call=asked.parallel_tool_calls is False,
            names=context.names.of(index),
        )
        for index in range(asked.n or 1)
    ]


def _chat_shape(
    asked: ChatOptions, parsed: ParsedRequest, context: ChoiceContext, about: About
) -> Shape:
    bytes_of = context.words.token_bytes
    scores = None
    if asked.prompt_logprobs is not None:
        (prompt,) = parsed.prompts
        scores = PromptScores(prompt, bytes_of, None, asked.prompt_logprobs)
    old = bool(parsed.fields["functions"])
    return ChatShape(about, asked, bytes_of, scores, old=old)


def _response_held(parsed: ParsedRequest) -> int:
    """The tools, the items, also one by one, and the fields that are repeated, in all `_REPEATED`
    responses too."""
    echo = int(parsed.fields["echo"])
    items = len(parsed.rest) - int(parsed.fields["tools"]) - echo
    return len(parsed.rest) + items + _REPEATED * echo


def _response_shape(
    asked: ChatOptions, parsed: ParsedRequest, context: ChoiceContext, about: About
) -> Shape:
    """Items, kept when they are complete unless the client said no."""
    fields = parsed.fields
    begin, end = fields["tools"], fields["tools"] + fields["echo"]
    inputs = tuple(parsed.rest[end:].splitlines())

    def keep(response: bytes, outputs: tuple[bytes, ...]) -> None:
        kept = Kept(response, context.before, inputs, outputs, context.account)
        context.responses.keep(context.owner, about.id, kept)

    wanted = Wanted(parsed.rest[begin:end], fields["names"], fields["summary"])
    bytes_of = None if asked.alternatives is None else context.words.token_bytes
    most = asked.alternatives or 0
    return ResponseShape(about, wanted, bytes_of, keep if fields["store"] else None, most)


def _message_shape(
    asked: ChatOptions, parsed: ParsedRequest, context: ChoiceContext, about: About
) -> Shape:
    streamed = bool(asked.stream)
    return MessageShape(about, len(parsed.prompts[0]), asked.limit, streamed=streamed)


def _continuations(
    asked: CompletionOptions, parsed: ParsedRequest, context: ChoiceContext
) -> list[Choice]:
    """Plain text after each prompt, in which nothing is looked for."""
    calls = CallReader(context, b"", plain=False)
    count = (asked.n or 1) * len(parsed.prompts)
    return [Choice(index, AnswerText(), calls.read) for index in range(count)]


def _text_held(parsed: ParsedRequest) -> int:
    """The texts that are echoed, once for each choice too."""
    choices = int(parsed.fields["options"].get("n", 1))
    return sum(map(len, parsed.fields["texts"])) * (1 + choices)


def _text_shape(
    asked: CompletionOptions, parsed: ParsedRequest, context: ChoiceContext, about: About
) -> Shape:
    bytes_of = context.words.token_bytes
    texts = parsed.fields["texts"] or [""] * len(parsed.prompts)
    echoes = [text for text in texts for _ in range(asked.n or 1)]
    scores = [
        PromptScores(prompt, bytes_of, asked.echoed, asked.prompt_logprobs)
        for prompt in (() if asked.scores is None else parsed.prompts)
    ]
    return TextShape(about, asked, echoes, bytes_of, scores)


def _rest_held(parsed: ParsedRequest) -> int:
    """The tools."""
    return len(parsed.rest)


CHAT: Final = ApiKind(
    "chat",
    "messages",
    ("max_completion_tokens", "max_tokens"),
    ChatOptions,
    _messages,
    _rest_held,
    _chat_shape,
)
MESSAGES: Final = attrs.evolve(CHAT, name="messages", limits=("max_tokens",), shape=_message_shape)
RESPONSES: Final = attrs.evolve(
    CHAT,
    name="responses",
    prompt="input",
    limits=("max_output_tokens",),
    held=_response_held,
    shape=_response_shape,
)
COMPLETION: Final = ApiKind(
    "completion",
    "prompt",
    ("max_tokens",),
    CompletionOptions,
    _continuations,
    _text_held,
    _text_shape,
)


KINDS: Final = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
"""What is asked for at which path."""


@attrs.frozen
class CallReader:
    """Has a text worker read tool calls; *tools* is the JSON of the tools that may be called. They
    are *plain* JSON, or in the model's format."""

    context: ChoiceContext
    tools: bytes
    plain: bool

    async def read(self, text: str) -> list[ParsedCall]:
        """The calls in *text*; none if it is no call, or cannot be read within its limits."""
        about = {"tools": len(self.tools), "plain": self.plain}
        data = self.tools + text.encode("utf-8", "replace")
        try:
            fields, _ = await self.context.generator.texts.run(
                "call", about, data, self.context.account
            )
        except (Exceeded, Lost, TextQueueFull, Refused, OperationError) as error:
            log.warning("a tool call of %d characters is given out as text: %s", len(text), error)
            return []
        return [ParsedCall(name, arguments, id) for name, arguments, id in fields["calls"]]


_U64: Final = (1 << 64) - 1
_OWNERS: Final = secrets.token_bytes(32)  # so that no rank knows who an owner is


def jobs(
    asked: Options, parsed: ParsedRequest, vocabulary: int, caller: Caller, seed: int
) -> Iterator[Job]:
    """A job for each choice of each prompt, in the order of their indices, with *seed* if none was
    *asked* for. Raises `ApiError`."""
    scope = f"{caller.scope} salt {asked.cache_salt}" if asked.cache_salt else caller.scope
    grammar = _owned(parsed.grammar, f"{caller.owner}\n{scope}")
    row = attrs.evolve(_row(asked, vocabulary, seed), grammar=grammar, bad=parsed.bad)
    ends = frozenset(asked.stop_token_ids or ()) | parsed.ends
    if beyond := [token for token in asked.stop_token_ids or () if token >= vocabulary]:
        raise invalid(
            f"stop_token_ids names token {beyond[0]}; the vocabulary has {vocabulary}.",
            "stop_token_ids",
        )
    for prompt in parsed.prompts:
        for choice in range(asked.n or 1):
            request = Request(
                prompt,
                asked.limit,
                ends,
                attrs.evolve(row, choice=choice),
                caller.owner,
                scope,
                parsed.prediction,
                scores=asked.scores is not None and choice == 0,  # the prompt is the same for all
                min_tokens=asked.min_tokens or 0,
                branches=parsed.branches,
            )
            yield Job(
                request,
                asked.stops,
                stop_shown=bool(asked.include_stop_str_in_output),
                endless=bool(asked.ignore_eos),
                special=asked.skip_special_tokens is not True,
                opens=parsed.opens,
            )


def _owned(grammar: bytes, owner: str) -> bytes:
    """*grammar* as a text that no other *owner* has: engines keep what they have compiled, and how
    long one takes would else say what another asked for. llguidance passes over the member."""
    if not grammar:
        return b""
    mark = hashlib.blake2b(owner.encode(), key=_OWNERS, digest_size=16).hexdigest()
    return b'{"owner":"%s",' % mark.encode() + grammar.removeprefix(b"{")


def _row(asked: Options, vocabulary: int, seed: int) -> Row:
    """How the tokens of *asked* are drawn, by *seed* if it has none."""

    def value(name: str, default: float) -> float:
        return default if (given := getattr(asked, name)) is None else given

    return Row(
        uid=0,
        seed=seed if asked.seed is None else asked.seed & _U64,
        temperature=value("temperature", 1.0),
        top_p=asked.top_p or 1.0,
        # The likeliest tokens that make up no share at all are the likeliest one.
        top_k=1 if asked.top_p == 0 else max(0, asked.top_k or 0),
        min_p=value("min_p", 0.0),
        repetition=value("repetition_penalty", 1.0),
        presence=value("presence_penalty", 0.0),
        frequency=value("frequency_penalty", 0.0),
        # as many as either the answer or the prompt is given with
        logprobs=max(
            (each for each in (asked.alternatives, asked.scores) if each is not None),
            default=NO_LOGPROBS,
        ),
        bias=_bias(asked, vocabulary),
    )


def _bias(asked: Options, vocabulary: int) -> tuple[tuple[int, float], ...]:
    pairs = sorted((int(token), value) for token, value in (asked.logit_bias or {}).items())
    for token, _ in pairs:
        if token >= vocabulary:
            raise invalid(
                f"logit_bias names token {token}; the vocabulary has {vocabulary}.", "logit_bias"
            )
    if len({token for token, _ in pairs}) < len(pairs):
        raise invalid("logit_bias names a token twice.", "logit_bias")
    return tuple(pairs)


_MOVE_SECONDS: Final = 10.0
"""Seconds that a head which ends may still take."""

Make = Callable[[], Awaitable[Response]]
"""Makes an answer: a stream, or in one piece. Raises `ApiError`."""


@attrs.frozen(eq=False)
class Generate:
    """The ASGI endpoint of one *kind* of request."""

    _head: ApiHead
    _kind: ApiKind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        caller: Caller = scope["state"]["visitor"]
        resumed = None
        with contextlib.ExitStack() as over:
            trace = over.enter_context(self._traced(self._trace(caller)))
            holding = over.enter_context(self._head.holding(caller.account, 0))
            stream = EventStream(send, self._head.records.flush)
            call = Call(caller, trace, holding, stream, over, records=self._head.records)
            call.relayed = bool(member_of(scope))
            resumed = await self._answer(scope, receive, send, call)
        await self._until_moved(scope)
        del call  # the answer counts what it keeps itself, and its reader may take long
        if resumed is not None:
            await resumed(scope, receive, send)

    def _trace(self, caller: Caller) -> Trace:
        """A trace of *caller*'s request, of which nobody is told yet."""
        return Trace(
            caller.id,
            self._kind.name,
            caller.name,
            began=caller.arrived,
            asked=caller.asked,
            trace_id=caller.trace_id,
        )

    @contextlib.contextmanager
    def _traced(self, trace: Trace) -> Iterator[Trace]:
        """The request of *trace* is under way until the block ends, or its client leaves it."""
        tracer = self._head.generator.tracer
        tracer.begin(trace)
        outcome = "cancelled"
        try:
            yield trace
            outcome = trace.outcome
        except ApiError as error:
            outcome, trace.fault = error.code, error.in_log()
            raise
        except (ClientDisconnect, ClientGone):
            # Many clients leave at `[DONE]` or at the last chunk: they have had their answer.
            outcome = trace.outcome or "client_gone"
        finally:
            tracer.end(trace, outcome)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, call: Call
    ) -> Resumed | None:
        """Send the answer; or return that of one which is kept, for this client to read it."""
        head, request, trace = self._head, HttpRequest(scope, receive), call.trace
        body = await head.bodies.read(request, call.caller.account)
        trace.body = trio.current_time() - trace.began
        if head.config.resume_seconds:
            call.asked = ResumeFields.of(request.headers, scope["path"], body)
        if (resumed := self._resumed(call)) is not None:
            return resumed
        head.check_serving()
        id = request.headers.get(ANSWER.decode(), "")
        if id and may_ask(member_of(scope), id):
            call.record = head.records.begin(id, _asked(scope["path"], body, call))
        texts = [body]
        del body  # which would stay for as long as the answer takes
        with self._recorded(scope, call):
            return await self._made(scope, receive, send, call, texts)
        return None

    async def go_on(
        self, record: Record, after: int, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a door by what follows the first *after* events of *record*'s answer, which
        another head began, or this one before it lost the door. Raises `ApiError`."""
        stream, resumed = RestOfStream(send, self._head.records.flush, after=after), None
        with self._known(record, stream) as call:
            scope["state"]["visitor"] = call.caller
            with self._recorded(scope, call):
                body = RecordedRequest.decode(record.asked).body
                resumed = await self._made(scope, receive, send, call, [body])
        await self._until_moved(scope)
        del call  # as below
        if resumed is not None:
            await self._follow(resumed.answer, after, scope, receive, send)

    async def rejoin(
        self, record: Record, after: int, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Answer a door by what follows the first *after* events of *record*'s answer, if that is
        kept here; whether it is. Raises `ApiError`."""
        caller = RecordedRequest.decode(record.asked).caller
        answer = self._head.answers.find(caller["owner"], caller["id"])
        if answer is None:
            return False
        await self._follow(answer, after, scope, receive, send)
        return True

    async def _follow(
        self, answer: KeptAnswer, after: int, scope: Scope, receive: Receive, send: Send
    ) -> None:
        with self._head.holding(answer.account, 0) as holding:
            await answer.reach(after - 1)
            await answer.give(scope, receive, send, holding, after - 1)

    async def _until_moved(self, scope: Scope) -> None:
        """The answer is another head's, if it moved: its connection ends when that is there."""
        with trio.move_on_after(_MOVE_SECONDS if scope["state"].get("moved") else 0):
            while not self._head.moved:
                await self._head.generator.runtime.roster_changed.wait()

    async def take_up(self, record: Record) -> None:
        """Go on with the kept answer of *record*, which another head began, for nobody. Waits until
        one that is complete is made."""

        async def send(message: Message) -> None:
            raise RuntimeError("an answer that is not kept, for nobody")

        try:
            with (
                self._known(record, EventStream(send)) as call,
                self._recorded({"state": {}}, call),
            ):
                made = await self._generate([RecordedRequest.decode(record.asked).body], call)
            if record.complete and isinstance(made, Resumed):
                await made.answer.reach(sys.maxsize)
        except ApiError as error:
            log.warning("%s: the answer ended with its head: %s", record.id, error.in_log())

    @contextlib.contextmanager
    def _known(self, record: Record, stream: EventStream) -> Iterator[Call]:
        """The request of *record* as if it were asked again, until the block ends, for an answer
        into *stream*."""
        asked = RecordedRequest.decode(record.asked)
        caller = Caller(**{**asked.caller, "arrived": trio.current_time()})
        digest = hashlib.blake2b(asked.body, digest_size=32).digest() if asked.key else b""
        with contextlib.ExitStack() as over:
            trace = self._trace(caller)
            trace.began_ms = asked.began
            if not record.complete:  # else the head before has logged and counted it
                over.enter_context(self._traced(trace))
            yield Call(
                caller,
                trace,
                over.enter_context(self._head.holding(caller.account, 0)),
                stream,
                over,
                ResumeFields(asked.path, asked.key, digest),
                records=self._head.records,
                record=record,
                known=len(record.drawn),
                seed=asked.seed,
                names=Names(asked.names),
                relayed=True,
                again=True,
            )

    async def _made(
        self, scope: Scope, receive: Receive, send: Send, call: Call, texts: list[bytes]
    ) -> Resumed | None:
        """Make the answer to the body that *texts* has, and send it; or return that of one which is
        kept, for this client to read it."""
        stream = call.stream
        try:
            work = partial(self._within_time, partial(self._generate, texts, call), call)
            response = await attended(receive, work)
        except ApiError as error:
            if not stream.opened and error.code == "no_majority":
                raise  # before it was begun
            self._check_moved(call)
            if not stream.opened:
                raise
            await self._fail(call, error)
        else:
            if isinstance(response, Resumed):
                return response
            if not stream.opened:
                await response(scope, receive, send)
                return None
        await stream.close()
        return None

    @contextlib.contextmanager
    def _recorded(self, scope: Scope, call: Call) -> Iterator[None]:
        """Until the block ends, the answer of *call* is made, and then its record is over, unless
        that goes on beside; or unless the door is lost, or this node is head no more, or its client
        leaves what another head has kept for it: then somebody may go on with it."""
        records, record = call.records, call.record
        if record is None:
            yield
            return
        heads = self._head.generator.runtime.node.roster.roster.heads
        record.left, call.trace.survives = None, records.told and len(heads) > 1
        try:
            yield
        except Moved:
            scope["state"]["moved"] = True
            call.trace.outcome = "moved"
            records.leave(record)
            return
        except Exception as error:
            # It may come back to what another head has kept for it.
            comes_back = call.again and record.kept and isinstance(error, ClientGone)
            if scope["state"].get("lost") or comes_back:
                records.leave(record)
            elif not call.beside:
                records.over(record)
            raise
        except BaseException:  # this node stops
            records.leave(record)
            raise
        if not call.beside:
            records.over(record)

    async def _fail(self, call: Call, error: ApiError) -> None:
        """End the answer of *call* by *error*. Raises `Moved` if another node is to go on."""
        self._check_moved(call)
        call.trace.outcome, call.trace.fault = error.code, error.in_log()
        if call.shape is not None and call.stream.opened:
            await call.stream.write(call.shape.failure(error))

    def _check_moved(self, call: Call) -> None:
        """Raise `Moved` if the node is head no more, and the next one can go on with *call*."""
        if call.record is not None and self._moved(call):
            raise Moved

    def _moved(self, call: Call) -> bool:
        stops = call.relayed and self._head.generator.stopping
        return self._head.moved or stops

    def _resumed(self, call: Call) -> Resumed | None:
        """The answer to the request of *call*, if it was sent before and its answer is kept. Raises
        `ApiError`."""
        answer = self._head.answers.again(call.caller.owner, call.asked)
        if answer is None:
            return None
        call.trace.outcome = "resumed"
        return Resumed(answer, call.asked.after)

    async def _within_time(
        self,
        work: Callable[[], Awaitable[T]],
        call: Call,
        *others: Callable[[trio.CancelScope], Awaitable[None]],
    ) -> T:
        """The result of *work*, beside *others*, within the time that a request may take. Raises
        `ApiError`."""
        head, given, expired = self._head, [], False

        async def expire(scope: trio.CancelScope) -> None:
            nonlocal expired
            await trio.sleep(head.config.timeout)
            expired = True
            # Also where the work cannot be cancelled yet: its client may be taking nothing.
            head.generator.withdraw(call.trace)
            scope.cancel()

        try:
            given = await beside(work, expire, *others)
        except ApiError as error:
            call.refused = call.refused or error
        if expired:
            raise timed_out(head.config.timeout)
        if call.refused is not None:
            raise call.refused
        return given[0]

    async def _generate(self, texts: list[bytes], call: Call) -> Response | Resumed:
        """Have the ring answer the body that *texts* reads: into the stream if one is asked for, or
        else in one piece; or have it answered beside the connection. Raises `ApiError`."""
        head, trace = self._head, call.trace
        words = await self._vocabulary()
        owned = ChoiceContext(
            head.generator,
            words,
            call.caller.owner,
            call.caller.account,
            head.responses,
            names=call.names,
        )
        parsed, context = await self._parse(texts.pop(), call, owned)
        asked = self._kind.options.model_validate(parsed.fields["options"])
        call.caller.headers.update(headers_of(parsed.fields))
        choices = self._kind.choices(asked, parsed, context)
        began = trace.began_ms // 1000
        about = About(trace.id, began, asked.model, head.fingerprint, trace, call.names)
        shape = self._kind.shape(asked, parsed, context, about)
        make = partial(self._make, asked, words, parsed, choices, shape, call)
        background = parsed.fields.get("background", False)
        if background and not head.config.resume_seconds:
            raise unsupported("background", "The head keeps no answers: resume_seconds is 0.")
        if not (call.asked.key or background):
            return await make()
        # The same request may have come again while this one was read.
        return self._resumed(call) or self._beside(make, shape, call)

    async def _make(
        self,
        asked: Options,
        words: Vocabulary,
        parsed: ParsedRequest,
        choices: list[Choice],
        shape: Shape,
        call: Call,
    ) -> Response:
        """Have the ring fill *choices*, as was *asked*, into *shape*. Raises `ApiError`."""
        call.shape = shape
        call.holding.grow(self._kind.held(parsed) + parsed.size)
        with contextlib.ExitStack() as stack:
            answers = await self._open(asked, words, parsed, call, stack)
            pairs = list(zip(answers, choices, strict=True))
            filled = Choices(pairs, shape, call, partial(self._moved, call))
            if asked.stream:
                await stream(filled, shape, call)
            else:
                await filled.follow()
        if asked.stream:  # now that the rows are over, their counts are known
            await call.write(shape.closing(call.trace))
            return Response()
        body = await _joined(shape.whole(call.trace))
        call.shape = None
        call.holding.grow(-shape.kept)
        return Response(body, headers=_timing(call.trace), media_type="application/json")

    def _beside(self, make: Make, shape: Shape, call: Call) -> Resumed:
        """Have the answer of *call* made by *make*, whether or not its client stays, and kept.
        Raises `ApiError` if this process ends."""
        head, caller = self._head, call.caller
        head.answers.making()  # before anything is taken for it
        answer = KeptAnswer(
            call.trace.id,
            caller.owner,
            caller.account,
            call.asked,
            head.answers,
            partial(head.generator.withdraw, call.trace),
            shape.silence,
            shape.so_far if isinstance(shape, ResponseShape) else None,
            again=call.again,
        )
        call.stream, call.beside = answer, True
        if call.record is not None:
            call.records.keep(call.record)
            answer.gone = partial(call.records.over, call.record)
        head.answers.start(answer, partial(self._go_on, make, call, answer, call.over.pop_all()))
        return Resumed(answer, -1)

    async def _go_on(
        self, make: Make, call: Call, answer: KeptAnswer, over: contextlib.ExitStack
    ) -> None:
        """Make *answer* by *make*, until nobody has read it for too long. *over* ends *call*."""
        seconds, ends = self._head.config.resume_seconds, call.records.over

        async def leave(scope: trio.CancelScope) -> None:
            await answer.unattended(seconds)
            if call.trace.withdrawn:
                await trio.sleep_forever()  # it ends by that
            call.refused = call.refused or left(seconds)
            self._head.generator.withdraw(call.trace)
            scope.cancel()

        with over:
            try:
                response = await self._within_time(make, call, leave)
                answer.finish(None if answer.opened else response)
                if answer.kept:
                    ends = call.records.complete
            except ApiError as error:
                try:
                    await self._fail(call, error)
                except Moved:
                    call.trace.outcome = "moved"
                    answer.move()
                    ends = call.records.leave
                    return
                answer.finish(error=None if answer.opened else error)
            finally:
                if call.record is not None:
                    ends(call.record)

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
        if "references" not in parsed.fields:
            return parsed, context
        before, items, sizes = earlier(context.responses, context.owner, parsed.fields)
        call.holding.grow(sum(map(sys.getsizeof, before)))  # they may be kept no more
        parsed = await self._read(items + body, sizes, call)
        return parsed, attrs.evolve(context, before=before)

    async def _read(self, body: bytes, about: Mapping[str, Any], call: Call) -> ParsedRequest:
        """What a text worker reads in *body* with *about*. Raises `ApiError`."""
        about = {"models": self._head.models, **about}

        def check(fields: Mapping[str, Any]) -> None:
            if "options" in fields:
                self._kind.options.model_validate(fields["options"])

        with text_errors(call.trace.id):
            return await self._head.generator.parse(
                self._kind.name, about, body, call.caller.account, call.trace, check
            )

    async def _open(
        self,
        asked: Options,
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

        drawn, over = await _drawn(call, len(parsed.prompts) * (asked.n or 1), vocabulary)
        try:
            answers = []
            made = jobs(asked, parsed, vocabulary, call.caller, call.seed)
            for index, job in enumerate(made):
                past = None if index in over else drawn[index]
                answering = head.generator.answering(words, job, call.trace, counted, past)
                answers.append(stack.enter_context(answering))
                await trio.lowlevel.checkpoint()
        except LocalProtocolError as error:
            raise from_refusal(error, self._kind.prompt, head.retry_after()) from None
        if any(answer.fitted for answer in answers):
            adapt(call.caller.headers, self._kind.limited_by(asked))
        return answers


async def _drawn(call: Call, count: int, vocabulary: int) -> tuple[list[array[int]], set[int]]:
    """The tokens that another head's ring has drawn for each of the *count* choices of *call*, and
    the indices of those that are over. Others have their turn meanwhile. Raises `ApiError`."""
    drawn, over = [array(ID) for _ in range(count)], set()
    for number, (index, ends, tokens, _) in enumerate(call.past(cuts)):
        if number % _CUTS == 0:
            await trio.lowlevel.checkpoint()
        if index >= count:
            raise no_record(f"the answer has {count} choices")
        if max(tokens, default=0) >= vocabulary:
            raise no_record(f"the vocabulary has {vocabulary} tokens")
        call.holding.grow(ID_SIZE * len(tokens))
        drawn[index].extend(tokens)
        if ends:  # maybe by a stop string, which no ring knows
            over.add(index)
    return drawn, over


_CUTS: Final = 256  # pieces that are looked at at once, in a millisecond


def _check_prompt(prompt: TokenIds, vocabulary: int) -> None:
    if not prompt:
        raise invalid("The prompt has no tokens; give at least one.", "prompt", "empty_prompt")
    if (most := prompt.bounds[1]) >= vocabulary:
        raise invalid(f"The prompt has token {most}; the vocabulary has {vocabulary}.", "prompt")


async def _joined(parts: Iterable[Json]) -> bytes:
    """*parts* in one piece; others have their turn between any two."""
    made = []
    for part in parts:
        made.append(part)
        await trio.lowlevel.checkpoint()
    return b"".join(made)


def _asked(path: str, body: bytes, call: Call) -> RecordedRequest:
    """The request of *call* for *path*, as the next head needs it."""
    caller = attrs.asdict(call.caller, filter=lambda field, _: field.name not in _OF_HERE)
    names, began = call.names.secret, call.trace.began_ms
    return RecordedRequest(path, body, caller, began, call.seed, names, call.asked.key)


_OF_HERE: Final = ("arrived", "headers")
"""What is of this node of a caller."""


def _timing(trace: Trace) -> dict[str, str]:
    """The trace so far as a ``Server-Timing`` header: milliseconds by phase."""
    phases = trace.phases()
    ranks = {f"rank{rank}": spent for rank, spent in enumerate(phases.pop("compute"))}
    parts = [f"{name};dur={spent}" for name, spent in (phases | ranks).items() if spent is not None]
    return {"Server-Timing": ", ".join(parts)}


@attrs.frozen(eq=False)
class Tokens:
    """The ASGI endpoint of one *job* of `text_worker.JOBS`, which writes the answer: to make tokens
    or text, or to count the tokens of a prompt."""

    _head: ApiHead
    _job: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        caller: Caller = scope["state"]["visitor"]
        try:
            body = await self._head.bodies.read(HttpRequest(scope, receive), caller.account)
            data = await attended(receive, partial(self._ask, body, caller))
        except (ClientDisconnect, ClientGone):
            return
        await Response(data, media_type="application/json")(scope, receive, send)

    async def _ask(self, body: bytes, caller: Caller) -> bytes:
        head, run = self._head, self._head.generator.texts.run
        info = head.generator.runtime.node.engine_info
        about = {"models": head.models, "context": info.context if info else 0}
        with text_errors(caller.id):
            fields, data = await run(self._job, about, body, caller.account)
            if "references" in fields:
                _, items, sizes = earlier(head.responses, caller.owner, fields)
                fields, data = await run(self._job, about | sizes, items + body, caller.account)
        caller.headers.update(headers_of(fields))
        return data
