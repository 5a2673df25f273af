"""Splits the text of an answer into reasoning, content and tool calls, as it comes.

A model puts its reasoning between two marks, and tool calls between others. Marks are found
wherever the pieces cut them (`stop_strings`), in time linear in the text. All is passed on at once:
a call's name when the model has written it, its arguments as they are written (the readers of
`sealring_model.text.readers`). Calls in a format of mlx-lm's are passed on whole, when the closing
mark is there, to be parsed by mlx-lm's code in a text worker.

A call is one wherever it is written, within open reasoning too; what comes after it there is
reasoning, up to the mark that closes it. Blank space after a mark belongs to the format, not to the
content, and is left out.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import attrs
from sealring_model.text import readers
from sealring_model.text.formats import CallFormat
from sealring_model.text.readers import (
    CallEnd,
    CallPart,
    CallStart,
    Content,
    Functions,
    Reading,
    Reasoning,
)
from sealring_model.text.tokens import ToolFormat

from sealring.text.stop_strings import Finder


@attrs.frozen
class CallText:
    """*text* between the marks of a tool call. If it is no call, it is *otherwise*."""

    text: str
    otherwise: Content | Reasoning


Part = Reasoning | Content | CallText | CallStart | CallPart | CallEnd

MAX_CALL: Final = 256 << 10
"""Most characters of a tool call that is parsed whole; a longer one is content. Memory: four bytes
for each."""


_AT_ONCE: Final = 4096
"""Characters that are looked at at once: at each mark, what is left of them is copied."""


class _Place(enum.Enum):
    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"


class AnswerText:
    """The parts of one answer's text.

    *think* are the marks of the reasoning, empty for none. *tools* is how calls of *functions* are
    written, for a request that may make some. The answer begins within the *reasoning*, or within
    a call (*calling*), if the prompt ended there. With *whole* it is in channels, which that
    format's reader reads.
    """

    def __init__(
        self,
        think: tuple[str, str] = ("", ""),
        tools: ToolFormat | None = None,
        functions: Functions | None = None,
        *,
        reasoning: bool = False,
        calling: bool = False,
        whole: CallFormat | None = None,
    ) -> None:
        self._think = think
        self._tools = tools
        self._functions = functions or {}
        self._place = _Place.REASONING if reasoning else _Place.CONTENT
        self._around = self._place  # of a call
        self._mark = ""  # which opened the call
        self._call: list[str] = []  # what a call of mlx-lm's has so far, but for what is held
        self._called = 0  # characters of it
        self._reading: Reading | None = None  # a call that is read as it comes
        self._trim = reasoning
        self._bare = tools is not None and tools.format is not None and tools.format.bare
        # Where content begins: it may be a call that no mark announces.
        self._begins = self._bare and not (reasoning or calling)
        self._blank = ""  # what it begins with
        self._whole = whole is not None
        if whole is not None and whole.reader is not None:
            opening = whole.start if calling else ""
            self._reading = Reading(whole.reader, self._functions, opening)
        elif calling and tools is not None:
            self._open("")
        self._finder = Finder(self._marks())

    @property
    def thinks(self) -> bool:
        """Whether what comes next is reasoning."""
        if self._whole and self._reading is not None:
            return self._reading.thinks
        return self._place is _Place.REASONING

    @property
    def calls(self) -> bool:
        """Whether what comes next may be of the calls that have begun, or the mark after them."""
        return self._reading is not None

    def add(self, text: str) -> list[Part]:
        """The parts that *text* completes."""
        parts: list[Part] = []
        for at in range(0, len(text), _AT_ONCE):
            parts += self._add(text[at : at + _AT_ONCE])
        return parts

    def _add(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text or self._reading is not None:
            if self._reading is not None:
                parts += self._placed(self._reading.add(text))
                if not self._reading.done:
                    return parts
                text = self._close_reading()
            elif self._begins:
                text = self._beginning(text)
            elif isinstance(found := self._finder.add(text), str):
                return parts + self._outside(found)
            else:
                text = found.after
                parts += self._close(found.before, found.mark)
                self._finder = Finder(self._marks())
        return parts

    def end(self) -> list[Part]:
        """What was held back, when no text follows."""
        parts: list[Part] = []
        while self._reading is not None:  # another call may begin in what was held back
            parts += self._placed(self._reading.end())
            parts += self.add(self._close_reading())
        held, self._blank = self._blank + self._finder.rest(), ""
        if self._place is _Place.CALL:
            return [*parts, self._whole_call(held, closed=False)]
        return parts + self._plain(held)

    def _marks(self) -> tuple[str, ...]:
        """The marks that end the present part, or begin another within it."""
        opening: Sequence[str] = ()
        if self._tools is not None and self._tools.start:
            format = self._tools.format
            opening = (self._tools.start,) if format is None else format.opening
        match self._place:
            case _Place.REASONING:
                return tuple(filter(None, (self._think[1], *opening)))
            case _Place.CALL:
                return (self._tools.end,) if self._tools is not None and self._tools.end else ()
            case _:
                return tuple(filter(None, (self._think[0], *opening)))

    def _close(self, before: str, mark: str) -> list[Part]:
        """The part that ends at *mark*."""
        if self._place is _Place.CALL:
            parts: list[Part] = [self._whole_call(before, closed=True)]
            self._place = self._around
        else:
            parts = self._plain(before)
            if mark == self._think[self._place is _Place.REASONING]:
                thought = self._place is _Place.REASONING
                self._place = _Place.CONTENT if thought else _Place.REASONING
                self._begins = self._bare and thought
            else:
                self._open(mark)
        self._trim = True
        return parts

    def _open(self, mark: str) -> None:
        """A call begins after *mark*."""
        if self._tools is None:
            raise RuntimeError("a call without a format")
        self._around, self._mark = self._place, mark
        format = self._tools.format
        if format is None or format.reader is None:
            self._place = _Place.CALL
        else:
            self._reading = Reading(format.reader, self._functions, mark, format.end)

    def _close_reading(self) -> str:
        """End the reading of a call; what comes after it."""
        if self._reading is None:
            return ""
        text, self._reading = self._reading.after, None
        self._finder = Finder(self._marks())
        return text

    def _placed(self, parts: Sequence[readers.Part]) -> list[Part]:
        """*parts* of a reading, where text that is no call is what is around it."""
        placed: list[Part] = []
        for part in parts:
            if isinstance(part, readers.Text):
                self._trim = False
                placed += self._plain(part.text)
            else:
                self._trim = isinstance(part, CallEnd)
                placed.append(part)
        return placed

    def _beginning(self, text: str) -> str:
        """What of *text*, with which content begins, can be told apart."""
        text = self._blank + text
        begun = text.lstrip()
        if not begun:
            self._blank = text
            return ""
        self._begins, self._blank = False, ""
        if begun.startswith("{"):
            self._open("")
        return text

    def _outside(self, text: str) -> list[Part]:
        return self._within(text) if self._place is _Place.CALL else self._plain(text)

    def _plain(self, text: str) -> list[Part]:
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        if not text:
            return []
        return [self._kind(text)]

    def _kind(self, text: str) -> Reasoning | Content:
        """*text* as what is around calls."""
        place = self._around if self._place is _Place.CALL else self._place
        return Reasoning(text) if place is _Place.REASONING else Content(text)

    def _within(self, text: str) -> list[Part]:
        """Add *text* to a call of mlx-lm's. One that becomes too long is no call, nor is what
        follows."""
        self._call.append(text)
        self._called += len(text)
        if self._called <= MAX_CALL:
            return []
        call = self._whole_call("", closed=False)
        self._place = self._around
        held, self._finder = self._finder.rest(), Finder(self._marks())
        return [call, *self.add(held)]

    def _whole_call(self, last: str, *, closed: bool) -> CallText | Content | Reasoning:
        """The call of mlx-lm's that ends with *last*."""
        if self._tools is None:
            raise RuntimeError("a call without a format")
        text = "".join((*self._call, last))
        self._call, self._called = [], 0
        otherwise = self._kind(self._mark + text + (self._tools.end if closed else ""))
        return CallText(text, otherwise) if len(text) <= MAX_CALL else otherwise
