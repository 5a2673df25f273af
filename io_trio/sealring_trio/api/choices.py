"""One choice of an answer: from pieces of text to what they add to it, for every kind of API.

A choice knows no API. It gives `Delta`s, from which a `replies.Shape` makes what clients see.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from itertools import zip_longest

import attrs
from sealring_model.text.readers import CallEnd, CallPart, CallStart, Content, Reasoning
from sealring_model.text.tokens import ToolCall
from sealring_protocol.codec.local_messages import Scores
from sealring_protocol.control.scheduler.requests import FinishReason, RequestDone, TokenOut

from sealring_trio.api.parsing import AnswerText, CallText, Part
from sealring_trio.node.generation import Piece

ReadCall = Callable[[str], Awaitable[list[ToolCall]]]
"""The tool calls in what a model wrote between the marks of one; none if it is no call."""

Said = Reasoning | Content | CallStart | CallPart | CallEnd
"""What a model says: it thinks, it writes, or it calls a tool, always with an id. Of a call its
arguments follow, part by part, and its end."""


@attrs.frozen
class Finish:
    """Why a choice ends: ``stop``, ``length`` or ``tool_calls``. *stop* is the stop string that it
    ended before, if it did."""

    reason: str
    stop: str = ""


@attrs.frozen
class Delta:
    """What is new in choice *index*: *scores* of its prompt; what was *said*, in order; the
    *tokens* since the last delta, of which the first *thought* are reasoning; in the last delta,
    how the choice ends."""

    index: int
    said: tuple[Said, ...]
    tokens: tuple[TokenOut, ...]
    thought: int = 0
    finish: Finish | None = None
    scores: tuple[Scores, ...] = ()


_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Choice:
    """Choice *index* on its way, whose *text* has tool calls that *read_call* reads. With
    *single_call* it ends after its first tool call."""

    def __init__(
        self, index: int, text: AnswerText, read_call: ReadCall, *, single_call: bool = False
    ) -> None:
        self._index = index
        self._text = text
        self._read_call = read_call
        self._single_call = single_call
        self._untold: list[TokenOut] = []  # tokens of text that is still held back
        self._thought = 0  # of them
        self._calls = 0
        self._more = False  # has come after the one call that there may be

    @property
    def complete(self) -> bool:
        """Whether nothing more may come, whatever the model would add: it may have one tool call
        only, and has it up to the mark that closes it."""
        return self._single_call and self._calls > 0 and (self._more or not self._text.calls)

    async def take(self, piece: Piece) -> Delta | None:
        """What *piece* adds; None if nothing of it can be told yet."""
        parts: list[Part] = []
        for text, token in zip_longest(piece.texts, piece.tokens):
            thinks = self._text.thinks
            parts += self._text.add(text or "")
            if token is not None:
                self._untold.append(token)
                self._thought += thinks or self._text.thinks  # so its marks count, too
        said = await self._said(parts)
        return self._delta(said, None, piece.scores) if said or piece.scores else None

    async def finish(self, done: RequestDone, stop: str = "") -> Delta:
        """What was held back, and why the choice ends; *stop* is the stop string that ended it."""
        said = await self._said(self._text.end())
        reason = _REASONS[done.reason]
        if self._calls and done.reason is FinishReason.STOP:
            reason = "tool_calls"
        return self._delta(said, Finish(reason, stop))

    def _delta(
        self, said: list[Said], finish: Finish | None, scores: tuple[Scores, ...] = ()
    ) -> Delta:
        tokens, self._untold = tuple(self._untold), []
        thought, self._thought = self._thought, 0
        return Delta(self._index, tuple(said), tokens, thought, finish, scores)

    async def _said(self, parts: list[Part]) -> list[Said]:
        said: list[Said] = []
        for part in parts:
            if self._single_call and self._calls:
                self._more = True
                break
            match part:
                case CallText(text, otherwise):
                    calls = await self._read_call(text)
                    said += self._calls_of(calls, type(otherwise)) if calls else [otherwise]
                case CallStart():
                    said.append(_named(part))
                case CallEnd():
                    self._calls += 1
                    said.append(part)
                case _:
                    said.append(part)
        return said

    def _calls_of(self, calls: list[ToolCall], text: type[Content | Reasoning]) -> list[Said]:
        """*calls* that were read whole. One without a name is *text*."""
        said: list[Said] = []
        for call in calls:
            if not call.name:
                said.append(text(call.arguments))
                continue
            said += [_named(CallStart(call.name, call.id)), CallPart(call.arguments), CallEnd()]
            self._calls += 1
            if self._single_call:
                break
        return said


def _named(call: CallStart) -> CallStart:
    return call if call.id else attrs.evolve(call, id=f"call_{secrets.token_hex(12)}")
