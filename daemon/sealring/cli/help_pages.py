"""How ``--help`` looks: paragraphs fill the width, whatever it is, and examples stay as they are.

Help is written in docstrings: paragraphs with line ends for the editor, and indented examples. The
line ends of a paragraph mean nothing. An example that is too long for the terminal goes on in the
next line as a shell takes it, so that it can be copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve
from cyclopts.help import HelpPanel
from cyclopts.help.formatters import DefaultFormatter

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

MOST_COLUMNS: Final = 100
"""Columns of a page in a wider terminal. Longer lines are hard to read."""

_UNSAID: Final = ("False", "()", '""')
"""Defaults that say no more than that an option is left out."""

_COMMAND: Final = "    sealring "
_WORDS: Final = re.compile(r'(?:"[^"]*"|\S)+')


def _is_example(line: str) -> bool:
    return line.startswith(" ")


def _filled(text: str, width: int) -> Iterator[str]:
    """The lines of *text* for *width* columns. An example that cannot be folded keeps its own."""
    for block in text.strip("\n").split("\n\n"):
        for example, lines in groupby(block.splitlines(), _is_example):
            if example:
                yield from (_folded(line, width) for line in lines)
            else:
                yield fill(" ".join(lines), width, break_long_words=False, break_on_hyphens=False)
        yield ""


def _folded(line: str, width: int) -> str:
    """The example *line*, which goes on after a backslash if it is a command and too long."""
    if len(line) <= width or not line.startswith(_COMMAND):
        return line
    folded = [" " * 3]
    for word in _WORDS.findall(line):
        if len(f"{folded[-1]} {word} \\") > width:
            folded.append(" " * 7)
        folded[-1] += f" {word}"
    return " \\\n".join(folded)


class HelpPages(DefaultFormatter):
    """Prints a page of help. It is given plain text."""

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """How the command is called, which comes first."""
        console.width = min(console.width, MOST_COLUMNS)
        super().render_usage(console, options, usage)

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        """What it does, and examples."""
        from rich.text import Text  # noqa: PLC0415 - a tenth of a second, for pages of help alone

        text = "\n".join(_filled(description.primary_renderable.plain, console.width))
        console.print(Text(text), no_wrap=True, overflow="ignore", crop=False)

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Its options, or the commands below it."""
        for entry in panel.entries:
            text = entry.description.primary_renderable
            text.plain = " ".join(text.plain.split())
        panel.entries = [
            evolve(entry, default=None) if entry.default in _UNSAID else entry
            for entry in panel.entries
        ]
        super().__call__(console, options, panel)
