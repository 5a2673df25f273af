"""Answers as OpenAI's chat completions (``POST /v1/chat/completions``) and text completions
(``POST /v1/completions``): choices, whole and in chunks.

Text completions have log probabilities in columns. With ``echo`` those of the prompt come first, in
the same columns. ``prompt_logprobs`` has them as vLLM does: a list with an object for each token,
which has the token itself and the likeliest ones in its place. The first token follows nothing: its
entry is null in both.
"""

from __future__ import annotations

import codecs
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs
from sealring_model.text.readers import CallEnd, CallPart, CallStart, Content, Reasoning
from sealring_protocol.codec.local_messages import Scores

from sealring.dialects.errors import ApiError
from sealring.dialects.replies import (
    About,
    Delta,
    Json,
    Likeliest,
    Shape,
    TokenBytes,
    add_json,
    broken_off,
    chat_logprobs,
    cut,
    event,
    finite,
    json_bytes,
    scored,
)
from sealring.dialects.schema import ChatOptions, CompletionOptions, Sampled

if TYPE_CHECKING:
    from sealring.generation.trace import Trace

_DONE: Final = b"data: [DONE]\n\n"


@attrs.define(eq=False)
class ChunkShape(Shape):
    """The answer to *asked*, of choices in chunks. One that is streamed *keeps* nothing of what it
    has sent. The fields around the choices are the same in every chunk, but for the counts."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    _about: About
    _asked: Sampled
    _counts: bool = attrs.field(init=False)
    _counts_in_chunks: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._counts = self._asked.wants_usage
        self._counts_in_chunks = self._asked.counts_in_chunks

    @property
    def keeps(self) -> bool:
        """Whether what it gives out is kept, too."""
        return not self._asked.stream

    @abstractmethod
    def _opening_choices(self) -> list[dict[str, Any]]:
        """The choices of the chunks that come first, one each."""

    @abstractmethod
    def _choice(self, delta: Delta) -> dict[str, Any]:
        """Keep *delta*; the choice of its chunk."""

    @abstractmethod
    def _whole_choices(self) -> Iterator[Iterator[Json]]:
        """The choices in one piece: parts of the JSON of each."""

    def _beside(self) -> Iterable[Json]:
        """Fields of an answer in one piece beside its choices, each after a comma."""
        return ()

    def opening(self) -> bytes:
        """A chunk for each choice that has something to open with."""
        return b"".join(event(self._chunk([choice])) for choice in self._opening_choices())

    def add(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """A chunk, and more where its tokens are `cut`: what was said is in the first, and how the
        choice ends in the last."""
        parts, said = list(zip_longest(cut(delta.tokens), delta.scores)), delta.said
        for left, (tokens, scores) in zip(reversed(range(len(parts))), parts, strict=True):
            finish = None if left else delta.finish
            more = () if scores is None else (scores,)
            counts = usage(self._about.trace) if self._counts_in_chunks else None
            part = Delta(delta.index, said, tokens or (), finish=finish, scores=more)
            yield self._chunk([self._choice(part)], counts)
            said = ()

    def event(self, body: dict[str, Any]) -> bytes:
        """A chunk as an event."""
        return event(body)

    def closing(self, trace: Trace) -> bytes:
        """The counts if they were asked for, and the end."""
        last = event(self._chunk([], usage(trace))) if self._counts else b""
        return last + _DONE

    def failure(self, error: ApiError) -> bytes:
        """*error* as an event."""
        return broken_off("/v1/chat/completions", error, self._about.id, 0)

    def whole(self, trace: Trace) -> Iterator[Json]:
        """The body of the answer. With log probabilities the choices are large, so all comes in
        parts of JSON."""
        yield json_bytes(self._around(self.kind))[:-1] + b',"choices":['
        for at, choice in enumerate(self._whole_choices()):
            yield b"," if at else b""
            yield from choice
        yield b'],"usage":' + json_bytes(usage(trace))
        yield from self._beside()
        yield b"}"

    def _chunk(self, choices: list[dict[str, Any]], counts: Any = None) -> dict[str, Any]:
        """The body of an event, with the token *counts* if usage is asked for."""
        body = {**self._around(self.chunk_kind), "choices": choices}
        return {**body, "usage": counts} if self._counts else body

    def _around(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._about.id,
            "object": kind,
            "created": self._about.created,
            "model": self._about.model,
            "system_fingerprint": self._about.fingerprint,
        }


def usage(trace: Trace) -> dict[str, Any]:
    """The counts of a request that has been answered."""
    return {
        "prompt_tokens": trace.prompt_tokens,
        "completion_tokens": trace.tokens,
        "total_tokens": trace.prompt_tokens + trace.tokens,
        "prompt_tokens_details": {"cached_tokens": trace.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": trace.accepted,
            "rejected_prediction_tokens": trace.rejected,
        },
    }


@attrs.define
class _Message:
    """One choice's message so far: texts as UTF-8, lists as JSON without its brackets. Of a stream
    nothing is kept but the number of *calls*."""

    content: bytearray = attrs.field(factory=bytearray)
    reasoning: bytearray = attrs.field(factory=bytearray)
    called: bytearray = attrs.field(factory=bytearray)
    logprobs: bytearray = attrs.field(factory=bytearray)
    calls: int = 0
    call: CallStart | None = None  # that is being written
    arguments: bytearray = attrs.field(factory=bytearray)  # of it
    finish: str = ""

    @property
    def size(self) -> int:
        """Bytes that it has."""
        made = (self.content, self.reasoning, self.called, self.arguments, self.logprobs)
        return sum(map(len, made))


class ChatShape(ChunkShape):
    """The answer to *asked*: messages. Their log probabilities are of *bytes_of* each token, and
    *scores* those of the prompt, if they are asked for. A call is one of a function if the client
    is *old*."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(
        self,
        about: About,
        asked: ChatOptions,
        bytes_of: TokenBytes,
        scores: PromptScores | None,
        *,
        old: bool = False,
    ) -> None:
        super().__init__(about, asked)
        self._bytes_of = bytes_of
        self._most = asked.alternatives
        self._scores = scores
        self._old = old
        self._messages = [_Message() for _ in range(asked.n or 1)]

    def _opening_choices(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [_chat_choice(index, delta, None, None) for index in range(len(self._messages))]

    def _choice(self, delta: Delta) -> dict[str, Any]:
        message = self._messages[delta.index]
        if self._scores is not None:
            self.kept += sum(map(self._scores.add, delta.scores))
        new: dict[str, Any] = {}
        calls: list[dict[str, Any]] = []
        before = message.size
        for part in delta.said:
            match part:
                case Content(text):
                    new["content"] = new.get("content", "") + text
                case Reasoning(text):
                    thought = new.get("reasoning_content", "") + text
                    new["reasoning_content"] = new["reasoning"] = thought
                case CallStart():
                    message.call = part
                    calls.append({"index": message.calls, **_call(part, "")})
                    message.calls += 1
                case CallPart(text):
                    message.arguments += text.encode() if self.keeps else b""
                    if not calls:
                        calls.append({"index": message.calls - 1, "function": {"arguments": ""}})
                    calls[-1]["function"]["arguments"] += text
                case CallEnd():
                    self._end_call(message)
        if calls:  # an old client has one at most
            new |= {"function_call": calls[0]["function"]} if self._old else {"tool_calls": calls}
        logprobs = (
            [] if self._most is None else chat_logprobs(delta.tokens, self._bytes_of, self._most)
        )
        if delta.finish is not None:
            message.finish = delta.finish.reason
            if self._old and message.finish == "tool_calls":
                message.finish = "function_call"
        if self.keeps:
            message.content += new.get("content", "").encode()
            message.reasoning += new.get("reasoning_content", "").encode()
            add_json(message.logprobs, logprobs)
            self.kept += message.size - before
        scores = {"content": logprobs, "refusal": None} if logprobs else None
        return _chat_choice(delta.index, new, scores, message.finish or None)

    def _whole_choices(self) -> Iterator[Iterator[Json]]:
        return (self._whole(index, made) for index, made in enumerate(self._messages))

    def _beside(self) -> Iterable[Json]:
        return () if self._scores is None else self._scores.in_list()

    def _whole(self, index: int, made: _Message) -> Iterator[Json]:
        content = made.content.decode()
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not made.calls else None,
            "refusal": None,
        }
        if made.reasoning:
            message["reasoning_content"] = message["reasoning"] = made.reasoning.decode()
        yield b'{"index":%d,"message":' % index + json_bytes(message)[:-1]
        if made.calls and self._old:
            yield from (b',"function_call":', made.called)
        elif made.calls:
            yield from (b',"tool_calls":[', made.called, b"]")
        yield b'},"logprobs":'
        if self._most is None:
            yield b"null"
        else:
            yield from (b'{"content":[', made.logprobs, b'],"refusal":null}')
        yield b',"finish_reason":%b}' % json_bytes(made.finish)

    def _end_call(self, message: _Message) -> None:
        """Keep the call that *message* ends with, unless it was streamed."""
        if self.keeps and message.call is not None:
            call = _call(message.call, message.arguments.decode())
            add_json(message.called, [call["function"] if self._old else call])
        message.call, message.arguments = None, bytearray()


def _chat_choice(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _call(call: CallStart, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


COLUMNS: Final = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@attrs.define
class TextScores:
    """Makes the columns in which text completions have log probabilities: each token's text, its
    log probability, those of the likeliest ones in its place, at *most* so many, by their text, and
    where its text begins, in characters. A token within a character begins where that does."""

    bytes_of: TokenBytes
    most: int
    end: int = 0
    _decoder: codecs.IncrementalDecoder = attrs.field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def columns(
        self, tokens: Iterable[tuple[int, float | None, Likeliest]]
    ) -> dict[str, list[Any]]:
        """The columns of *tokens*, each with its log probability, if it has one, and the likeliest
        ones."""
        columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for token, chosen, likeliest in tokens:
            data = self.bytes_of(token)
            name, value, best = data.decode(errors="replace"), None, None
            if chosen is not None:
                value = finite(chosen)
                tops = {self.name(other): finite(each) for other, each in likeliest[: self.most]}
                best = {**tops, name: value} if tops else {}
            for column, entry in zip(columns.values(), (name, value, best, self.end), strict=True):
                column.append(entry)
            self.end += len(self._decoder.decode(data))
        return columns

    def name(self, token: int) -> str:
        """The text of *token* by itself."""
        return self.bytes_of(token).decode(errors="replace")


class ScoreColumns:
    """Such columns, kept as JSON until they are whole. *size* is how many bytes they have."""

    def __init__(self) -> None:
        self._lists = {name: bytearray() for name in COLUMNS[:-1]}
        self._offsets = array("Q")

    @property
    def size(self) -> int:
        """Bytes that it has."""
        return sum(map(len, self._lists.values())) + len(self._offsets) * self._offsets.itemsize

    def add(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Add *columns* at the end."""
        for name, texts in self._lists.items():
            add_json(texts, columns[name])
        self._offsets.extend(columns[COLUMNS[-1]])

    def whole(self, before: ScoreColumns | None = None, begin: int = 0) -> Iterator[Json]:
        """The JSON of all, after the columns *before*, which end at character *begin*."""
        for name, texts in self._lists.items():
            yield b'%b"%b":[' % (b"{" if name == COLUMNS[0] else b"],", name.encode())
            if before is not None:
                first = before._lists[name]
                yield from (first, b"," if first and texts else b"")
            yield texts
        offsets = [] if before is None else before._offsets.tolist()
        offsets += [begin + offset for offset in self._offsets]
        yield b'],"%b":' % COLUMNS[-1].encode() + json_bytes(offsets) + b"}"


@attrs.define
class _Text:
    """One choice's text so far, as UTF-8, and its columns. Of a stream nothing is kept."""

    text: bytearray
    logprobs: TextScores | None
    columns: ScoreColumns = attrs.field(factory=ScoreColumns)
    finish: str = ""


class TextShape(ChunkShape):
    """The answer to *asked*: a continuation for each of *echoes*, which are the prompts where those
    come first. Their log probabilities are of *bytes_of* each token, if they are asked for.
    *scores* are those of the prompts; each serves equally many continuations, one after the
    other."""

    kind = chunk_kind = "text_completion"

    def __init__(
        self,
        about: About,
        asked: CompletionOptions,
        echoes: Sequence[str],
        bytes_of: TokenBytes,
        scores: Sequence[PromptScores],
    ) -> None:
        super().__init__(about, asked)
        self._echoes = echoes
        most = asked.alternatives
        self._texts = [
            _Text(
                bytearray(echo.encode(errors="replace") if self.keeps else b""),
                None if most is None else TextScores(bytes_of, most),
            )
            for echo in echoes
        ]
        self._scores = scores

    def _opening_choices(self) -> list[dict[str, Any]]:
        return [
            _text_choice(index, echo, None, None) for index, echo in enumerate(self._echoes) if echo
        ]

    def _choice(self, delta: Delta) -> dict[str, Any]:
        made = self._texts[delta.index]
        if delta.scores:
            self.kept += sum(map(self._scores_of(delta.index).add, delta.scores))
        text = "".join(part.text for part in delta.said if isinstance(part, Content))
        if delta.finish is not None:
            made.finish = delta.finish.reason
        columns = None if made.logprobs is None else made.logprobs.columns(scored(delta.tokens))
        if self.keeps:
            said = text.encode()
            made.text += said
            before = made.columns.size
            if columns is not None:
                made.columns.add(columns)
            self.kept += len(said) + made.columns.size - before
        shown = columns if delta.tokens else None
        return _text_choice(delta.index, text, shown, made.finish or None)

    def _whole_choices(self) -> Iterator[Iterator[Json]]:
        return (self._whole(index, made) for index, made in enumerate(self._texts))

    def _scores_of(self, index: int) -> PromptScores:
        return self._scores[index * len(self._scores) // len(self._texts)]

    def _whole(self, index: int, made: _Text) -> Iterator[Json]:
        scores = self._scores_of(index) if self._scores else None
        yield b'{"index":%d,"text":%b,"logprobs":' % (index, json_bytes(made.text.decode()))
        if made.logprobs is None:
            yield b"null"
        elif scores is None:
            yield from made.columns.whole()
        else:
            yield from scores.before(made.columns)
        yield b',"finish_reason":%b' % json_bytes(made.finish)
        if scores is not None:
            yield from scores.in_list()
        yield b"}"


def _text_choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


class PromptScores:
    """Scores of *prompt*, made for the client as they come. *echoed* and *listed* are how many
    likeliest tokens the columns and the list have for each; None: there are no columns, or no
    list."""

    def __init__(
        self,
        prompt: Sequence[int],
        bytes_of: TokenBytes,
        echoed: int | None,
        listed: int | None,
    ) -> None:
        self._prompt = prompt
        self._echoed = echoed
        self._listed = listed
        self._texts = TextScores(bytes_of, echoed or 0)
        self._columns = ScoreColumns()
        # An empty prompt is refused later.
        self._columns.add(self._texts.columns((token, None, []) for token in prompt[:1]))
        self._entries = bytearray(b"null")

    def add(self, scores: Scores) -> int:
        """The next *scores*. Returns how many bytes more are kept because of them."""
        before = self._columns.size + len(self._entries)
        tokens = list(self._tokens(scores))
        if self._echoed is not None:
            self._columns.add(
                self._texts.columns((token, chosen, tops) for token, chosen, _, tops in tokens)
            )
        if self._listed is not None:
            add_json(self._entries, [self._entry(*each) for each in tokens])
        return self._columns.size + len(self._entries) - before

    def before(self, columns: ScoreColumns) -> Iterator[Json]:
        """The JSON of *columns*, which are an answer's, after those of the prompt, if that is
        echoed."""
        if self._echoed is None:
            return columns.whole()
        return columns.whole(self._columns, self._texts.end)

    def in_list(self) -> Iterator[Json]:
        """The field with the list, after a comma; nothing if there is none."""
        if self._listed is not None:
            yield from (b',"prompt_logprobs":[', self._entries, b"]")

    def _tokens(self, scores: Scores) -> Iterator[tuple[int, float, int, Likeliest]]:
        count = scores.alternatives
        for at, token in enumerate(self._prompt[scores.position : scores.end]):
            part = slice(at * count, at * count + count)
            likeliest = list(zip(scores.ids[part], map(finite, scores.values[part]), strict=True))
            yield token, finite(scores.chosen[at]), scores.ranks[at], likeliest

    def _entry(self, token: int, chosen: float, rank: int, likeliest: Likeliest) -> dict[str, Any]:
        found = {token: (chosen, rank)}
        for place, (other, value) in enumerate(likeliest[: self._listed], 1):
            found.setdefault(other, (value, place))
        return {
            str(each): {"logprob": value, "rank": place, "decoded_token": self._texts.name(each)}
            for each, (value, place) in found.items()
        }
