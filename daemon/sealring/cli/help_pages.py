"""How ``--help`` looks: paragraphs fill the width, whatever it is, and examples stay as they are.

Help is written in docstrings: paragraphs with line ends for the editor, and indented examples. The
line ends of a paragraph mean nothing. An example that is too long for the terminal goes on in the
next line as a shell takes it, so that it can be copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import cyclopts
from attrs import evolve
from cyclopts.help import HelpPanel
from cyclopts.help.formatters import DefaultFormatter
from sealring_trio.errors import UserError

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


# ---------------------------------------------------------------------- mistakes
# What is wrong with a command line, in words for people.


_WITHOUT: Final = {"generate --config": ". Without one: sealring run tiny PROMPT"}
"""What else a person may want who has not what an option of a command needs."""

_SENTENCE: Final = re.compile(r"[.;](?:\s|$)")


def told(error: cyclopts.CycloptsError) -> UserError:
    """What *error* says, and what to do."""
    see = f"See: {' '.join(['sealring', *(error.command_chain or ()), '--help'])}"
    match error:
        case cyclopts.MissingArgumentError(argument=cyclopts.Argument() as argument) if (
            not error.tokens_so_far
        ):
            return _missing(error, argument, see)
        case cyclopts.UnusedCliTokensError():
            return _unused(error, see)
        case cyclopts.ValidationError(argument=cyclopts.Argument() as argument):
            # A prompt may begin with a hyphen, so what is meant as an option comes as one.
            meant = str(argument.value).partition("=")[0]
            if meant[:2] == "--" and (near := _nearest(meant, error)):
                return UserError(f"Unknown option: {meant}. Did you mean {near}?", see)
        case cyclopts.UnknownOptionError(token=token) if token.source == "cli":
            meant = (token.keyword or token.value).partition("=")[0]
            if near := _nearest(meant, error):
                return UserError(f"Unknown option: {meant}. Did you mean {near}?", see)
    return UserError(str(error), see)


def _nearest(meant: str, error: cyclopts.CycloptsError) -> str:
    """The option that *meant* is the beginning of, or else like; empty for none."""
    options = _options(error)
    begun = [name for name in options if meant[:2] == "--" and name.startswith(meant)]
    return next(iter(sorted(begun, key=len) or get_close_matches(meant, options, n=1)), "")


def _options(error: cyclopts.CycloptsError) -> Mapping[str, cyclopts.Argument]:
    """What the command takes that *error* is about, by name."""
    if error.app is None or error.target is None:
        return {}
    taken = error.app.assemble_argument_collection(parse_docstring=True)
    return {name: argument for argument in taken for name in argument.names}


def _missing(
    error: cyclopts.MissingArgumentError, argument: cyclopts.Argument, see: str
) -> UserError:
    """For an argument, an option or the value of an option that is not there."""
    name, unused = argument.name, error.unused_tokens or []
    shown = name if argument.index is None else name.lstrip("-").upper()
    meaning = _meaning(error, name)
    if error.keyword is not None:
        return UserError(f"{shown} is given without a value{meaning}", see)
    see += _WITHOUT.get(" ".join([*(error.command_chain or ()), name]), "")
    if wrong := get_close_matches(name, unused, n=1):
        see = f"Did you mean {name} instead of {wrong[0]}? {see}"
    elif name == "--model" and len(unused) == 1:
        see = f"Did you mean {name} {unused[0]}? {see}"
    return UserError(f"{shown} is needed{meaning}", see)


def _meaning(error: cyclopts.CycloptsError, name: str) -> str:
    """What the option *name* is, as the first sentence of its help says after a colon."""
    said = _options(error)[name].parameter.help or ""
    first = _SENTENCE.split(" ".join(said.split()))[0]
    return first and f": {first[0].lower()}{first[1:]}"


def _unused(error: cyclopts.UnusedCliTokensError, see: str) -> UserError:
    """For words that are no value of an option, and no argument."""
    options, words = _options(error), error.unused_tokens or []
    if any(argument.index is not None for argument in options.values()):
        why = "no option comes before it, and no argument is left"
    else:
        why = f"{' '.join(error.command_chain or ())} takes no argument"
    option = "--config" if words[-1].endswith(".toml") else "--model"
    meant = option in options and option not in (error.root_input_tokens or ()) and len(words) == 1
    guess = f"Did you mean {option} {words[0]}? " if meant else ""
    return UserError(f"'{' '.join(words)}' is too much: {why}", f"{guess}{see}")
