"""The pages of help: they fill the width there is, and no more; and where none can be printed."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, pairwise

import pytest
from rich.console import Console
from sealring.cli import COMMANDS, GROUPS, MOST_COLUMNS, build_app

from tests.rows import rows

STYLES = re.compile(r"\x1b\[[0-9;]*m")
ENTRY = re.compile(r"│ (?:\*| )? *(?:\S.*?) {2,}(?=\S)")
"""A line of a box that has the name of an option or command, as far as what is said of it."""


def every_page() -> Iterator[list[str]]:
    """The words of each page, with what a group of commands has below it."""
    yield []
    for name in COMMANDS:
        yield [name]
        below = build_app(name)[name]
        yield from ([name, each] for each in below if not each.startswith("-"))


def page(words: list[str], width: int, *, colours: bool) -> list[str]:
    """The lines of a page of help, without their colours."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colours, no_color=not colours)
    build_app(next(iter(words), "")).help_print(words, console=console)
    assert ("\x1b[" in out.getvalue()) == colours
    return STYLES.sub("", out.getvalue()).splitlines()


def paragraphs(lines: list[str]) -> Iterator[tuple[list[str], int]]:
    """The paragraphs of a page as lines, and the width that each may fill: those of the text, and
    those of each box's right column."""
    text = "\n".join(line for line in lines if line[:1] not in "╭│╰")
    for block in text.split("\n\n"):
        if not block.startswith((" ", "Usage")):
            yield block.strip("\n").splitlines(), len(lines[-1])
    for box in boxes(lines):
        yield from entries(box)


def boxes(lines: list[str]) -> Iterator[list[str]]:
    """The rows of each box of a page."""
    for drawn, together in groupby(lines, lambda line: line.startswith("│")):
        if drawn:
            yield list(together)


def entries(rows: list[str]) -> Iterator[tuple[list[str], int]]:
    """What is said in the right column of a box, as `paragraphs`."""
    starts = [match.end() for line in rows if (match := ENTRY.match(line))]
    (begin, _), *_ = Counter(starts).most_common()
    told: list[str] = []
    for row in rows:
        said = row[begin:-2].rstrip()
        named = re.match(r"│ \*? {0,3}[^ ]", row[:begin])
        if named and told:
            yield told, len(row) - 2 - begin
            told = []
        told.append(said)
    yield told, len(rows[-1]) - 2 - begin


def test_commands_are_listed_in_groups() -> None:
    """In the order of the table, not of the alphabet."""
    lines = page([], 100, colours=False)
    told = [line.split()[1] for line in lines if re.match(r"│ \w", line)]
    titles = [line.strip("╭╮─ ") for line in lines if line.startswith("╭")]
    assert told == list(COMMANDS)
    assert titles == [*GROUPS, "Options"]


@pytest.mark.parametrize(
    ("width", "colours"),
    rows(
        [(width, colours) for width in (60, 80, 100, 140) for colours in (False, True)],
        (60, True),
        (140, False),
    ),
)
def test_paragraphs_fill_the_width(width: int, colours: bool) -> None:
    for words in every_page():
        lines = page(words, width, colours=colours)
        assert max(map(len, lines)) <= min(width, MOST_COLUMNS)
        for paragraph, columns in paragraphs(lines):
            for line, following in pairwise(paragraph):
                if following:
                    first = following.split()[0]
                    assert len(f"{line} {first}") > columns, (words, line, following)


@pytest.mark.parametrize(
    ("where", "code", "told"),
    [
        (
            ">/dev/full",
            1,
            "sealring: cannot write the output: No space left on device\nMake room.\n",
        ),
        (">&-", 0, ""),
        ("<&-", 0, ""),
        ("2>&-", 0, ""),
    ],
)
def test_streams_that_take_nothing(where: str, code: int, told: str) -> None:
    command = f"{sys.executable} -m sealring keygen --help {where}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, told)


def test_environment_variables_are_one_sentence() -> None:
    """Not half of the line of each option; and what the sentence says is so."""
    for words in every_page():
        text = "\n".join(page(words, 80, colours=False))
        assert "env var" not in text, words
        assert text.count("Options may be environment variables: SEALRING_SERVE_PORT") == 1, words
    answer = subprocess.run(
        [sys.executable, "-m", "sealring", "serve"],
        env={**os.environ, "SEALRING_SERVE_PORT": "no number"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert "SERVE_PORT" in answer.stderr or "--port" in answer.stderr


def test_commands_of_a_checkout_are_named_where_there_is_none() -> None:
    """An installation has no bench, and says where there is one; its help does not list it."""
    alone = "import sys; sys.modules['sealring_tools'] = None; from sealring.cli import main; "
    for arguments, code, part in (
        (["bench", "hop"], 2, "In a checkout of sealring: uv run sealring bench"),
        (["--help"], 0, "Hold this implementation to the conformance vectors."),
    ):
        answer = subprocess.run(
            [sys.executable, "-c", f"{alone} main()", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == code, answer.stderr
        assert part in answer.stdout + answer.stderr
        assert "yardsticks" not in answer.stdout
