"""Finds marks in text that comes in pieces: stop strings, and the marks around tool calls.

A mark may be split over pieces. So text that may be the beginning of a mark is held back until the
next piece decides: no part of a mark is ever given out, and no other text waits.

The time is linear in the text for each mark, however long the mark is and whatever it repeats
(Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977): the event loop looks for what
clients ask for.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class Found:
    """*mark* was found; *before* comes before it, and *after* has not been looked at."""

    before: str
    mark: str
    after: str


class _Begun:
    """How much of *mark* the text so far ends with. *mark* is not empty."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.size = 0  # characters; less than all of them
        # By the size of a beginning of the mark: that of the longest shorter beginning which it
        # ends with. It is known for those that the text has had, so a long mark costs nothing.
        self._shorter = [0, 0]

    def add(self, char: str) -> bool:
        """Go on with *char*; whether the mark is complete."""
        mark, size = self.mark, self._longest(self.size, char)
        self.size = size
        if size == len(mark):
            return True
        if size == len(self._shorter):
            self._shorter.append(self._longest(self._shorter[-1], mark[size - 1]))
        return False

    def _longest(self, size: int, char: str) -> int:
        """The size of the longest beginning that the beginning of *size* and *char* end with."""
        mark, shorter = self.mark, self._shorter
        while size and mark[size] != char:
            size = shorter[size]
        return size + (mark[size] == char)


class Finder:
    """Finds the first of *marks* to be complete in a text; of two with one end, the longer one. So
    it does not matter in which pieces the text comes."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = [_Begun(mark) for mark in marks]
        self._held = ""

    def add(self, text: str) -> Found | str:
        """What is found as *text* follows, once; or what is in no mark, whatever follows."""
        begun = self._marks
        if not begun:
            return text
        for at, char in enumerate(text):
            if ended := [each.mark for each in begun if each.add(char)]:
                mark = max(ended, key=len)
                whole = self._held + text[: at + 1]
                return Found(whole[: len(whole) - len(mark)], mark, text[at + 1 :])
        whole = self._held + text
        sure = len(whole) - max([each.size for each in begun])
        self._held = whole[sure:]
        return whole[:sure]

    def rest(self) -> str:
        """What was held back, when no text follows."""
        held, self._held = self._held, ""
        return held


class StopText:
    """The text of one answer up to the first of its stop strings, which is part of it if
    *shown*."""

    def __init__(self, stops: Sequence[str], *, shown: bool = False) -> None:
        self._finder = Finder(stops)
        self._shown = shown
        self.found = ""  # the stop string that was reached

    @property
    def reached(self) -> bool:
        """Whether a stop string was reached."""
        return bool(self.found)

    def add(self, text: str) -> str:
        """What may be given out after *text*; nothing more once `reached`."""
        if self.found:
            return ""
        found = self._finder.add(text)
        if isinstance(found, str):
            return found
        self.found = found.mark
        return found.before + found.mark if self._shown else found.before

    def rest(self) -> str:
        """What was held back, when no text follows."""
        return "" if self.reached else self._finder.rest()
