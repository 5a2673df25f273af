"""Splits the text of an answer into reasoning, content and tool calls, as it comes.

A model puts its reasoning between two marks, and each tool call between two others. Marks are found
wherever the pieces cut them (`stop_strings`), in time linear in the text. Reasoning and content are
passed on at once. A tool call is passed on whole, when its closing mark is there, since only then
can it be parsed. The caller has it parsed by mlx-lm's code, in a text worker.

Blank space after a mark belongs to the format, not to the content, and is left out.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs
from sealring_model.text.tokens import ToolFormat

from sealring_trio.text.stop_strings import Finder


@attrs.frozen
class Reasoning:
    """Text that the model thinks with."""

    text: str


@attrs.frozen
class Content:
    """Text for the reader."""

    text: str


@attrs.frozen
class CallText:
    """*text* between the marks of a tool call. If it is no call, it is the content *otherwise*."""

    text: str
    otherwise: str


Part = Reasoning | Content | CallText

MAX_CALL: Final = 256 << 10
"""Most characters of a tool call; a longer one is content. Memory: four bytes for each."""


class _Place(enum.Enum):
    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"


class AnswerText:
    """The parts of one answer's text.

    *think* are the marks of the reasoning, empty for none. *tools* is how calls are written, for a
    request that may make some. The answer begins within the *reasoning*, or within a call
    (*calling*), if the prompt ended there.
    """

    def __init__(
        self,
        think: tuple[str, str] = ("", ""),
        tools: ToolFormat | None = None,
        *,
        reasoning: bool = False,
        calling: bool = False,
    ) -> None:
        self._think = think
        self._tools = tools
        self._place = _Place.CONTENT
        if reasoning or calling:
            self._place = _Place.REASONING if reasoning else _Place.CALL
        self._finder = Finder(self._marks())
        self._call: list[str] = []  # what a call has so far, but for what is held
        self._called = 0  # characters of it
        self._trim = reasoning

    @property
    def thinks(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._place is _Place.REASONING

    def add(self, text: str) -> list[Part]:
        """The parts that *text* completes."""
        parts: list[Part] = []
        while not isinstance(found := self._finder.add(text), str):
            text = found.after
            parts += self._close(found.before, found.mark)
            self._finder = Finder(self._marks())
        return parts + (self._within(found) if self._place is _Place.CALL else self._plain(found))

    def end(self) -> list[Part]:
        """What was held back, when no text follows."""
        held = self._finder.rest()
        if self._place is _Place.CALL:
            return [self._whole(held, closed=False)]
        return self._plain(held)

    def _marks(self) -> tuple[str, ...]:
        """The marks that end the present part, or begin another within it."""
        match self._place:
            case _Place.REASONING:
                return (self._think[1],)
            case _Place.CALL:
                return (self._tools.end,) if self._tools is not None and self._tools.end else ()
            case _:
                call = self._tools.start if self._tools is not None else ""
                return tuple(mark for mark in (self._think[0], call) if mark)

    def _close(self, before: str, mark: str) -> list[Part]:
        """The part that ends at *mark*."""
        if self._place is _Place.CALL:
            parts: list[Part] = [self._whole(before, closed=True)]
            self._place = _Place.CONTENT
        else:
            parts = self._plain(before)
            opens_call = self._tools is not None and mark == self._tools.start
            if self._place is _Place.REASONING:
                self._place = _Place.CONTENT
            else:
                self._place = _Place.CALL if opens_call else _Place.REASONING
        self._trim = True
        return parts

    def _plain(self, text: str) -> list[Part]:
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        if not text:
            return []
        return [Reasoning(text) if self._place is _Place.REASONING else Content(text)]

    def _within(self, text: str) -> list[Part]:
        """Add *text* to a call. A call that becomes too long is content, as is what follows."""
        self._call.append(text)
        self._called += len(text)
        if self._called <= MAX_CALL:
            return []
        self._place = _Place.CONTENT
        held, self._finder = self._finder.rest(), Finder(self._marks())
        return [self._whole("", closed=False), *self.add(held)]

    def _whole(self, last: str, *, closed: bool) -> CallText | Content:
        """The call that ends with *last*."""
        if self._tools is None:
            raise RuntimeError("a call without a format")
        text = "".join((*self._call, last))
        self._call, self._called = [], 0
        otherwise = self._tools.start + text + (self._tools.end if closed else "")
        return CallText(text, otherwise) if len(text) <= MAX_CALL else Content(otherwise)
