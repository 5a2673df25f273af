"""Answers as OpenAI's chat and text completions, and the scores of their prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from sealring_model.text.readers import CallEnd, CallPart, CallStart, Content, Reasoning
from sealring_protocol.codec.local_messages import Scores
from sealring_protocol.control.requests import TokenOut

from sealring.dialects.replies import (
    Delta,
    Envelope,
    Json,
    Offsets,
    ReplyChunks,
    ScoreColumns,
    TextScores,
    TokenBytes,
    add_json,
    chat_logprobs,
    finite,
    json_bytes,
    logprob_columns,
)

# ---------------------------------------------------------------------- scores
# Scores of a prompt as clients see them: how likely each of its tokens was.
#
# Text completions with ``echo`` and ``logprobs`` tell them in the columns that go on with the
# tokens of the answer. ``prompt_logprobs`` tells them as vLLM does: a list with an object for
# each token, which has the token itself and the likeliest ones in its place. The first token
# follows nothing: its entry is null in both.


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
        self._bytes_of = bytes_of
        self._echoed = echoed
        self._listed = listed
        self._offsets = Offsets()
        # An empty prompt is refused later.
        rows = [(self._name(token), None, None, self._begin(token)) for token in prompt[:1]]
        self._columns = ScoreColumns()
        self._columns.add(logprob_columns(rows))
        self._entries = bytearray(b"null")

    def add(self, scores: Scores) -> int:
        """The next *scores*. Returns how many bytes more are kept because of them."""
        rows = []
        entries = []
        before = self._columns.size + len(self._entries)
        for token, chosen, rank, likeliest in self._tokens(scores):
            if self._echoed is not None:
                name = self._name(token)
                tops = {self._name(other): value for other, value in likeliest[: self._echoed]}
                best = {**tops, name: chosen} if tops else {}
                rows.append((name, chosen, best, self._begin(token)))
            if self._listed is not None:
                entries.append(self._entry(token, chosen, rank, likeliest[: self._listed]))
        self._columns.add(logprob_columns(rows))
        add_json(self._entries, entries)
        return self._columns.size + len(self._entries) - before

    def before(self, columns: ScoreColumns) -> Iterator[Json]:
        """The JSON of *columns*, which are an answer's, after those of the prompt, if that is
        echoed."""
        if self._echoed is None:
            return columns.whole()
        return columns.whole(self._columns, self._offsets.end)

    def listed(self) -> Iterator[Json]:
        """The field with the list, after a comma; nothing if there is none."""
        if self._listed is not None:
            yield from (b',"prompt_logprobs":[', self._entries, b"]")

    def _tokens(self, scores: Scores) -> Iterator[tuple[int, float, int, list[tuple[int, float]]]]:
        count = scores.alternatives
        tokens = self._prompt[scores.position : scores.end]
        for at, token in enumerate(tokens):
            part = slice(at * count, at * count + count)
            values = map(finite, scores.values[part])
            likeliest = list(zip(scores.ids[part], values, strict=True))
            yield token, finite(scores.chosen[at]), scores.ranks[at], likeliest

    def _entry(
        self, token: int, chosen: float, rank: int, likeliest: Sequence[tuple[int, float]]
    ) -> dict[str, Any]:
        told = {token: (chosen, rank)}
        for place, (other, value) in enumerate(likeliest, 1):
            told.setdefault(other, (value, place))
        return {
            str(each): {"logprob": value, "rank": place, "decoded_token": self._name(each)}
            for each, (value, place) in told.items()
        }

    def _begin(self, token: int) -> int:
        return self._offsets.next(self._bytes_of(token))

    def _name(self, token: int) -> str:
        return self._bytes_of(token).decode(errors="replace")


# ---------------------------------------------------------------------- chat
# ``POST /v1/chat/completions``: answers as OpenAI's chat completions, whole and in chunks.


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


class ChatShape(ReplyChunks):
    """The answer of *choices* messages. Log probabilities are told, of *bytes_of* each token, with
    at *most* so many likeliest ones; None: they are not. *scores* are those of the prompt, if they
    are told. A call is told as that of a function if the client is *old*."""

    def __init__(
        self,
        envelope: Envelope,
        choices: int,
        bytes_of: TokenBytes,
        most: int | None,
        scores: PromptScores | None,
        *,
        old: bool = False,
    ) -> None:
        super().__init__(envelope)
        self._bytes_of = bytes_of
        self._most = most
        self._scores = scores
        self._old = old
        self._messages = [_Message() for _ in range(choices)]

    def opening_choices(self) -> list[dict[str, Any]]:
        """The deltas that say whose messages these are."""
        delta = {"role": "assistant", "content": ""}
        return [_choice(index, delta, None, None) for index in range(len(self._messages))]

    def choice(self, delta: Delta) -> dict[str, Any]:
        """*delta* as a chunk has it."""
        message = self._messages[delta.index]
        if self._scores is not None:
            self.kept += sum(map(self._scores.add, delta.scores))
        told: dict[str, Any] = {}
        before = message.size
        for part in delta.said:
            match part:
                case Content(text):
                    told["content"] = told.get("content", "") + text
                case Reasoning(text):
                    thought = told.get("reasoning_content", "") + text
                    told["reasoning_content"] = told["reasoning"] = thought
                case CallStart():
                    message.call = part
                    self._add_call(told, {"index": message.calls, **_call(part, "")})
                    message.calls += 1
                case CallPart(text):
                    message.arguments += text.encode() if self.keeps else b""
                    more = {"index": message.calls - 1, "function": {"arguments": text}}
                    self._add_call(told, more)
                case CallEnd():
                    self._end_call(message)
        logprobs = self._logprobs(delta.tokens)
        if delta.finish is not None:
            message.finish = delta.finish.reason
            if self._old and message.finish == "tool_calls":
                message.finish = "function_call"
        if self.keeps:
            message.content += told.get("content", "").encode()
            message.reasoning += told.get("reasoning_content", "").encode()
            add_json(message.logprobs, logprobs)
            self.kept += message.size - before
        return _choice(
            delta.index, told, self._with(logprobs) if logprobs else None, message.finish or None
        )

    def whole_choices(self) -> Iterator[Iterator[Json]]:
        """The messages in one piece each."""
        return (self._whole(index, made) for index, made in enumerate(self._messages))

    def beside(self) -> Iterator[Json]:
        """The scores of the prompt, if they are told."""
        return iter(()) if self._scores is None else self._scores.listed()

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

    def _add_call(self, told: dict[str, Any], more: dict[str, Any]) -> None:
        """Add *more* of a call to the delta *told*."""
        if self._old:
            calls = (
                [{"index": 0, "function": told["function_call"]}] if "function_call" in told else []
            )
            more = {**more, "index": 0}
        else:
            calls = told.setdefault("tool_calls", [])
        if calls and calls[-1]["index"] == more["index"]:
            calls[-1]["function"]["arguments"] += more["function"]["arguments"]
        elif self._old:
            told["function_call"] = more["function"]
        else:
            calls.append(more)

    def _end_call(self, message: _Message) -> None:
        """Keep the call that *message* ends with, unless it was streamed."""
        if self.keeps and message.call is not None:
            call = _call(message.call, message.arguments.decode())
            add_json(message.called, [call["function"] if self._old else call])
        message.call, message.arguments = None, bytearray()

    def _logprobs(self, tokens: Sequence[TokenOut]) -> list[dict[str, Any]]:
        return [] if self._most is None else chat_logprobs(tokens, self._bytes_of, self._most)

    def _with(self, told: list[dict[str, Any]]) -> dict[str, Any] | None:
        return None if self._most is None else {"content": told, "refusal": None}


def _choice(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _call(call: CallStart, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


# ---------------------------------------------------------------------- completions
# ``POST /v1/completions``: answers as OpenAI's text completions, which are text and nothing
# else.


@attrs.define
class _Text:
    """One choice's text so far, as UTF-8, and its columns. Of a stream nothing is kept."""

    text: bytearray
    logprobs: TextScores | None
    columns: ScoreColumns = attrs.field(factory=ScoreColumns)
    finish: str = ""


class TextShape(ReplyChunks):
    """Continuations on their way to the client: one for each of *echoes*, which are the prompts
    where those come first. Log probabilities are told, of *bytes_of* each token, with at *most* so
    many likeliest ones; None: they are not. *scores* are those of the prompts, if they are told;
    each serves equally many continuations, one after the other."""

    def __init__(
        self,
        envelope: Envelope,
        echoes: Sequence[str],
        bytes_of: TokenBytes,
        most: int | None,
        scores: Sequence[PromptScores],
    ) -> None:
        super().__init__(envelope)
        self._echoes = echoes
        self._texts = [
            _Text(
                bytearray(echo.encode(errors="replace") if self.keeps else b""),
                None if most is None else TextScores(bytes_of, most),
            )
            for echo in echoes
        ]
        self._scores = scores

    def opening_choices(self) -> list[dict[str, Any]]:
        """The prompts, if they are to be echoed."""
        return [
            _text_choice(index, echo, None, None) for index, echo in enumerate(self._echoes) if echo
        ]

    def choice(self, delta: Delta) -> dict[str, Any]:
        """*delta* as a chunk has it."""
        made = self._texts[delta.index]
        if delta.scores:
            self.kept += sum(map(self._scores_of(delta.index).add, delta.scores))
        text = "".join(part.text for part in delta.said if isinstance(part, Content))
        if delta.finish is not None:
            made.finish = delta.finish.reason
        columns = None if made.logprobs is None else made.logprobs.columns(delta.tokens)
        if self.keeps:
            said = text.encode()
            made.text += said
            before = made.columns.size
            if columns is not None:
                made.columns.add(columns)
            self.kept += len(said) + made.columns.size - before
        told = columns if delta.tokens else None
        return _text_choice(delta.index, text, told, made.finish or None)

    def whole_choices(self) -> Iterator[Iterator[Json]]:
        """The continuations in one piece each."""
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
            yield from scores.listed()
        yield b"}"


def _text_choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
