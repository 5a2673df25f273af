"""Answers in a terminal: laid out while they come, each line once, and nothing a command."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from sealring.cli import markdown
from sealring.cli.markdown import ShownMarkdown
from sealring.output import visible

WIDTH, HEIGHT = 40, 8

KNOWN = re.compile(
    r"\x1b\[(?:(\d*)(A)|(2)(K)|([\d;]*)(m)|(\?25)([lh]))|(\r)|(\n)|([^\x00-\x1f\x7f-\x9f])"
)
"""All that may be sent: up, erase the line, styles, the cursor's visibility, and text."""


class Screen:
    """A terminal of `HEIGHT` lines, which keeps what scrolls out of it above. Fails at any sequence
    that `ShownMarkdown` has no use for."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = self.column = 0

    def feed(self, data: str) -> None:
        at = 0
        while at < len(data):
            match = KNOWN.match(data, at)
            assert match, f"a terminal would obey {data[at : at + 20]!r}"
            self._do(match)
            at = match.end()

    def _do(self, match: re.Match[str]) -> None:
        if match[2]:
            top = max(0, len(self.lines) - HEIGHT)
            self.row -= int(match[1] or 1)
            assert self.row >= top, "what has scrolled out of the screen is out of reach"
        elif match[4]:
            self.lines[self.row] = ""
        elif match[9]:
            self.column = 0
        elif match[10]:
            self.row, self.column = self.row + 1, 0
            if self.row == len(self.lines):
                self.lines.append("")
        elif text := match[11]:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + text + line[self.column + 1 :]
            self.column += 1

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip()


def shown(pieces: list[str], monkeypatch: pytest.MonkeyPatch | None = None) -> str:
    """What a terminal shows, and has above its screen, after *pieces*."""
    file, screen = io.StringIO(), Screen()
    console = Console(file=file, width=WIDTH, height=HEIGHT, force_terminal=True)
    answer = ShownMarkdown(console)
    for piece in pieces:
        answer.add(piece)
        answer._next_draw = 0.0  # draws each piece, as if they came slowly
    answer.end()
    screen.feed(file.getvalue())
    return screen.text


CODE = "\n".join(f"x{number} = {number}" for number in range(3 * HEIGHT))
ITEMS = "\n".join(f"{number}. item {number}" for number in range(1, 3 * HEIGHT))
ANSWER = f"""\
# Title

Some *text*, and a [link](http://a/b).
second line

{ITEMS}

```python
{CODE}

```
- one
  - nested
- two

| a | b |
|---|---|
| 1 | 2 |

<div>html</div> ![image](http://a/i.png)

[name]: http://a/ 'a reference'

end"""


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
@settings(deadline=None, max_examples=10)
def test_however_it_comes_it_looks_the_same(sizes: list[int]) -> None:
    pieces, at = [], 0
    while at < len(ANSWER):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(ANSWER[at : at + size])
        at += size
    told = shown(pieces)
    assert told == shown([ANSWER])
    for number in range(3 * HEIGHT):  # each once, also above the screen
        assert told.count(f"x{number} = {number}\n") == 1
        assert len(re.findall(rf"item {number}\n", told)) == (number > 0)
    for text in (
        "Some text, and a link (http://a/b).\nsecond line\n",
        "```python\nx0 = 0\n",
        " • one\n    • nested\n • two\n",
        "<div>html</div> !image (http://a/i.png)",
        "[name]: http://a/ 'a reference'",
    ):
        assert text in told
    assert told.endswith("\n\nend")


HOSTILE = st.sampled_from(
    [
        *(
            "\x1b]52;c;aGk=\x07",
            "\x1b]0;title\x07",
            "\x1b[2J",
            "\x9b31m",
            "\x9d0;x\x9c",
            "\x1bP",
            "\r",
        ),
        *("\x1b[?2004l", "\u202e", "\u2066", "&#27;", "&#x9b;", "&#x202e;", "%1b]0;x%07", "%C2%9B"),
        *(
            "<http://a/",
            ">",
            "[a](http://b/",
            ")",
            "![",
            "](",
            "`",
            "```",
            "~~~",
            "\n",
            "\n\n",
            "    ",
        ),
        *(
            "- ",
            "1. ",
            "9999999999. ",
            "> ",
            "# ",
            "|",
            "|-|",
            "---",
            "***",
            "_",
            "~~",
            "<b>",
            "\\",
            "&",
        ),
        *("word", " ", "\t", "漢字", "👩‍👩‍👧", "\u0301", "=", "x" * 50, "python", "\u2028", "\x85"),
    ]
)


@given(st.lists(HOSTILE | st.characters(codec="utf-8"), max_size=25))
@example(["<http://a/", "%1b]52;c;aGk=%07%C2%9B%E2%80%AE", ">"])  # the layout decodes it
@example(["> " * 40, "- " * 40])
@settings(deadline=None, max_examples=150)
def test_nothing_that_a_model_writes_is_a_command(pieces: list[str]) -> None:
    told = shown(pieces)
    assert told == visible(told)


def test_code_that_is_costly_to_colour_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    lexed = []
    monkeypatch.setattr(markdown, "Syntax", lambda *args, **_: lexed.append(args))
    line = "(" * (markdown.MAX_LINE + 1)
    assert shown(["```python\n", line, "\n```\n"]).count("(") == len(line)
    assert not lexed
