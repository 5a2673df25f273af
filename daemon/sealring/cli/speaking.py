"""Prints an answer while it comes: laid out in a terminal, plain elsewhere.

Only the answer goes to standard output, unless that is a terminal: then the model's reasoning goes
there too, dimmed. What is waited for is reported on standard error.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from sealring.output import reporter, visible

if TYPE_CHECKING:
    from sealring.cli.markdown import ShownMarkdown


class Speaker:
    """Prints one answer. This one prints nothing of it, for JSON that has it in one piece."""

    def __init__(self) -> None:
        self._report = reporter()

    def say(self, kind: str, piece: str) -> None:
        """A piece of it; see `client.Pieces`."""

    def wait(self, text: str) -> None:
        """*text* says what is waited for."""
        self._report(text)

    def end(self, note: str = "") -> None:
        """It is over. *note* is said after it, in a terminal."""


def is_rich(plain: bool) -> bool:
    """Whether answers are laid out and coloured: in a terminal that can, unless a person wants
    them *plain*."""
    wanted = not plain and not os.environ.get("NO_COLOR")
    return wanted and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def speaker(plain: bool = False) -> Speaker:
    """What prints one answer on standard output."""
    return RichSpeaker() if is_rich(plain) else PlainSpeaker()


@contextlib.contextmanager
def unechoed() -> Iterator[None]:
    """Meanwhile the terminal of standard output does not show what a person types, who types ahead:
    it would stand in the answer, and what is drawn again would be drawn beside it. The next prompt
    shows it. A command in the background leaves the terminal alone, as it would be stopped else."""
    output: Final = sys.stdout.fileno()
    before = _echo(output, on=False)
    try:
        yield
    finally:
        if before:
            _echo(output, on=True)


def _echo(output: int, *, on: bool) -> bool:
    """Turn echoing of the terminal *output* *on* or off. True if that changed it."""
    try:
        if os.tcgetpgrp(output) != os.getpgrp():
            return False
        mode = termios.tcgetattr(output)
        if bool(mode[3] & termios.ECHO) == on:
            return False
        mode[3] ^= termios.ECHO
        termios.tcsetattr(output, termios.TCSANOW, mode)
    except (OSError, termios.error):  # it is gone, or no terminal of this session
        return False
    return True


class PlainSpeaker(Speaker):
    """Prints the text as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._terminal = sys.stdout.isatty()
        self._said = ""

    def say(self, kind: str, piece: str) -> None:
        """See `Speaker`."""
        if kind == "reasoning" and not self._terminal:
            return
        if kind != self._said:
            if self._said:
                print("\n")
            if kind == "reasoning":
                print("(reasoning)")
            self._said = kind
        print(visible(piece), end="", flush=True)

    def wait(self, text: str) -> None:
        """See `Speaker`."""
        if self._said and self._terminal:
            print(flush=True)  # what is reported gets a line of its own
            self._said = ""
        super().wait(text)

    def end(self, note: str = "") -> None:
        """See `Speaker`."""
        if self._said or note:
            print(f" [{note}]" if note and self._terminal else "", flush=True)


class RichSpeaker(Speaker):
    """Lays Markdown out, and dims what is not the answer."""

    def __init__(self) -> None:
        # These take a tenth of a second to import, which only a terminal has a use for.
        from rich.console import Console  # noqa: PLC0415

        from sealring.cli.markdown import ShownMarkdown  # noqa: PLC0415

        super().__init__()
        self._console = Console(highlight=False)
        self._make = ShownMarkdown
        self._shown: ShownMarkdown | None = None
        self._reasons = False
        self._quiet = ExitStack()
        self._quiet.enter_context(unechoed())

    def say(self, kind: str, piece: str) -> None:
        """See `Speaker`."""
        if kind == "reasoning":
            self._close()
            self._reasons = True
            self._dim(piece, end="")
            return
        self._open().add(piece)

    def wait(self, text: str) -> None:
        """See `Speaker`."""
        self._open().status(f"{text} ...")

    def end(self, note: str = "") -> None:
        """See `Speaker`."""
        with self._quiet:
            self._close()
            if self._reasons:
                print()
            if note:
                self._dim(f"[{note}]")

    def _open(self) -> ShownMarkdown:
        if self._reasons:
            print("\n")
            self._reasons = False
        self._shown = self._shown or self._make(self._console)
        return self._shown

    def _close(self) -> None:
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.end()

    def _dim(self, text: str, end: str = "\n") -> None:
        from rich.text import Text  # noqa: PLC0415 - as above

        self._console.print(Text(visible(text), style="dim"), end=end, soft_wrap=True)
