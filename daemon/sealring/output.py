"""What commands print: a table for people, or one JSON value for programs.

A terminal obeys some characters: it moves its cursor, gets another title, fills the clipboard, or
shows text in another order than it has. What a model, a peer or a server wrote is therefore printed
by `visible`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from sealring_trio.errors import UserError

_OBEYED: Final = (
    *(code for code in range(32) if code not in (9, 10)),
    *range(127, 160),  # DEL, and C1: U+009B alone begins a sequence as ESC [ does
    *range(0x202A, 0x202F),  # embeddings and overrides of direction
    *range(0x2066, 0x206A),  # isolates
)
_UNSEEN: Final = dict.fromkeys(_OBEYED)
_ESCAPED: Final = {code: f"\\u{code:04x}" for code in _OBEYED if code >= 127}


_NARROW: Final = 30
"""Columns of a terminal below which values are not wrapped."""


def visible(text: str) -> str:
    """*text* without the characters that a terminal may obey, but for tabs and ends of lines.

    What else of an escape sequence there is stays, and is no more than text. Marks that a script
    needs (U+200E, U+200F, joiners) stay too: they move no other text.
    """
    return text.translate(_UNSEEN)


def print_error(error: UserError) -> None:
    """Say on standard error what was wrong and what to do."""
    print(f"sealring: {visible(error.what)}\n{visible(error.advice)}", file=sys.stderr)


def print_note(text: str) -> None:
    """Say on standard error what a person may want to know."""
    print(f"sealring: {visible(text)}", file=sys.stderr, flush=True)


def note_cut_off(most: int) -> None:
    """Say on standard error that an answer ended at its limit of *most* tokens."""
    print_note(f"the answer is cut off at max_tokens ({most})")


def reporter(
    say: Callable[[str], None] = lambda text: print_note(f"{text} ..."),
) -> Callable[[str], None]:
    """A function that says what is being waited for, each thing once: for how long, and how often,
    is no other thing."""
    seen: set[str] = set()

    def report(text: str) -> None:
        lasting = re.sub(r" \((?:for|\d+ times in) [^()]*\)", "", text)
        if lasting not in seen:
            seen.add(lasting)
            say(text)

    return report


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that says what is waited for: in one moving line to a person, each thing once to
    a file."""
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 - as below
        from rich.text import Text  # noqa: PLC0415

        with Console(stderr=True).status("") as status:
            yield lambda text: status.update(
                Text(f"{visible(text[:1].upper() + text[1:])} ...", style="dim")
            )
        return
    yield reporter()


class JsonOutput:
    """What the present command has printed as JSON: one value at most, its result or its error."""

    done: ClassVar[bool] = False


def print_json(value: Any) -> None:
    """*value* as indented JSON on standard output, with what a terminal may obey escaped."""
    JsonOutput.done = True
    text = json.dumps(value, indent=2, ensure_ascii=False)
    print(text.translate(_ESCAPED))


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 1
) -> None:
    """A table on standard output; columns from *numbers_from* on are aligned to the right."""
    # Rich takes a tenth of a second to import, which only commands that print a table pay.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(
            column, justify="right" if index >= numbers_from else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    Console(soft_wrap=not sys.stdout.isatty()).print(table)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Names and values, one pair to a line, aligned. On a terminal a value that is too long for a
    line goes on below itself."""
    pairs = list(facts)
    width = max(len(name) for name, _ in pairs) + 2
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for name, value in pairs:
        text = visible(value)
        lines = [text]
        if columns > width + _NARROW:
            lines = textwrap.wrap(text, columns - width, break_on_hyphens=False) or [text]
        for number, line in enumerate(lines):
            print(f"{'' if number else name:<{width}}{line}")


def guesses_text(guesses: Mapping[str, int]) -> str:
    """What came of the tokens that the head guessed; empty if there were none."""
    right, made = guesses["accepted"], sum(guesses.values())
    return f"{right} of {made} tokens right ({right / made:.0%})" if made else ""
