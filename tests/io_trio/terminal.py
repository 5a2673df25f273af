"""A command in a terminal of its own."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from typing import Self

from tests.serving import PATIENCE

_CONTROLLED = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that makes its terminal the one that Ctrl-C comes from, and becomes another."""

PROMPT = "<prompt>"
"""What stands in `Terminal.seen` where a chat begins to wait for a person. What is typed before may
be taken otherwise: Ctrl-D is the end of a line to the kernel then."""

_ASKS = "\x1b[?2004h"
_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

AGAIN = 5.0
"""Seconds after which a person presses Ctrl-C again: it may have come between an answer and the
prompt."""


class Terminal:
    """`sealring` with *arguments*. *raw* is all that it has sent; *seen* has no styles, and is what
    no `until` has taken yet."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "sealring", *arguments]
        place = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CONTROLLED, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, **place},
        )
        os.close(theirs)
        self.raw = self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def until(self, pattern: str) -> str:
        """Read until *pattern*; what came up to its end."""
        while not (match := re.search(pattern, self.seen, re.DOTALL)):
            assert self._read(PATIENCE), self.seen
        before, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return before

    def interrupt(self, pattern: str) -> None:
        """Press Ctrl-C, and read until *pattern*."""
        self.type("\x03")
        while not self._read(AGAIN):
            self.type("\x03")
        self.until(pattern)

    def hang_up(self) -> None:
        """Close the terminal, and leave what runs in it."""
        os.close(self.ours)
        self.ours = os.open(os.devnull, os.O_RDWR)

    def ended(self) -> int:
        """Its exit code, when it has ended by itself."""
        while self._read(PATIENCE):
            pass
        return self.process.wait(PATIENCE)

    def _read(self, patience: float) -> bool:
        ready, _, _ = select.select([self.ours], [], [], patience)
        try:
            data = os.read(self.ours, 4096).decode(errors="replace") if ready else ""
        except OSError:  # it has ended
            return False
        self.raw += data
        self.seen = _STYLES.sub("", (self.seen + data).replace(_ASKS, PROMPT))
        return bool(ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.ours)
