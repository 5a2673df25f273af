"""Finds marks in text that comes in pieces: stop strings, and the marks around tool calls.

A mark may be split over pieces. So text that may be the beginning of a mark is held back until the
next piece decides: no part of a mark is ever given out, and no other text waits.
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


def find(text: str, marks: Sequence[str]) -> Found | None:
    """The first of *marks* to be complete in *text*; of two with one end, the longer one.

    So it does not matter in which pieces the text came.
    """
    ends = [(at + len(mark), at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    if not ends:
        return None
    end, at, mark = min(ends)
    return Found(text[:at], mark, text[end:])


def unsure(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of *text* may be the beginning of one of *marks*."""
    return max((_begun(text, mark) for mark in marks), default=0)


def _begun(text: str, mark: str) -> int:
    """How many characters of *mark* are at the end of *text*, of which some are missing."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)


class StopText:
    """The text of one answer up to the first of its stop strings, which is part of it if
    *shown*."""

    def __init__(self, stops: Sequence[str], *, shown: bool = False) -> None:
        self._stops = tuple(stops)
        self._shown = shown
        self._held = ""
        self.reached = False
        self.found = ""  # the stop string that was reached

    def add(self, text: str) -> str:
        """What may be given out after *text*; nothing more once `reached`."""
        if not self._stops or self.reached:
            return "" if self.reached else text
        text = self._held + text
        if found := find(text, self._stops):
            self.reached, self._held, self.found = True, "", found.mark
            return found.before + found.mark if self._shown else found.before
        keep = unsure(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """What was held back, when no text follows."""
        held, self._held = self._held, ""
        return held
