"""A terminal within the test's own process: standard input and output of what is tested."""

from __future__ import annotations

import os
import pty
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pytest
import trio

PATIENCE = 10.0


@attrs.define(eq=False)
class OwnTerminal:
    """The person's end is *ours*; *theirs* is standard input."""

    ours: int
    theirs: int
    seen: str = ""

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    async def until(self, pattern: str) -> str:
        """Read until *pattern*; what came up to its end."""
        with trio.fail_after(PATIENCE):
            while not (match := re.search(pattern, self.seen, re.DOTALL)):
                await trio.lowlevel.wait_readable(self.ours)
                self.seen += os.read(self.ours, 4096).decode()
        before, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return before

    async def typed(self, text: str) -> None:
        """Type *text*, which the terminal has when its echo is there."""
        self.type(text)
        await self.until(re.escape(text.strip()) + r"\s")


@contextmanager
def own_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnTerminal]:
    """Such a terminal, within a test's body: what pytest captures is set before each."""
    ours, theirs = pty.openpty()
    with (
        open(theirs, closefd=False) as standard_input,
        open(theirs, "w", closefd=False) as standard_output,
        monkeypatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", standard_input)
        patch.setattr(sys, "stdout", standard_output)
        terminal = OwnTerminal(ours, theirs)
        yield terminal
    os.close(ours)
    os.close(theirs)
