"""Shows a text in Markdown in a terminal while it comes.

A block (a paragraph, an item of a list, a line of code, a table) is printed once, when the next one
has begun: from then on nothing changes it. Only the block that is still coming is drawn again and
again, below what is printed, and of it no more lines than the screen has. So the terminal's
scrollback gets each line once, whatever the length of the answer.

What a model writes must not reach the terminal as a command, and must not be hidden from a person.
Every segment therefore goes through `visible` after the layout, as the layout itself decodes
entities and percent signs. No hyperlink is made, and a link's address stands behind its text. HTML,
images and definitions of references, which a layout leaves out, are shown as they were written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import ClassVar, Final

import attrs
from markdown_it import MarkdownIt
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markdown import Markdown, MarkdownElement
from rich.segment import Segment, Segments
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from sealring.output import visible

DRAW_SECONDS: Final = 0.05
"""Least time between two drawings of the block that is coming."""

MAX_COLOURED: Final = 32 << 10
"""Characters of one piece of code that are coloured, and `MAX_LINE` of one of its lines: with each
line all of it is read again, and what a lexer takes for a hostile one is not bounded."""

MAX_LINE: Final = 1000

_SHARE: Final = 5  # after a drawing that took long, so many times that without one
_THEME: Final = "ansi_dark"
_DIM: Final = Style(dim=True)

Line = list[Segment]


def _parser() -> MarkdownIt:
    hidden = ["html_block", "html_inline", "reference", "image"]
    return MarkdownIt().enable(["strikethrough", "table"]).disable(hidden)


class _Laid(Markdown):
    """Markdown as an answer has it: what the model wrote on a line of its own stays on one."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = Markdown.elements

    def __init__(self, markup: str) -> None:
        super().__init__("", code_theme=_THEME, hyperlinks=False)
        self.parsed = _parser().parse(markup)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"


def lines_of(console: Console, shown: RenderableType) -> list[Line]:
    """*shown* as lines of *console*, in which nothing is a command to a terminal."""
    return [
        [Segment(visible(each.text).replace("\n", " "), each.style) for each in line]
        for line in console.render_lines(shown, pad=False)
    ]


@attrs.frozen
class MarkdownBlock:
    """A block of a text: the line at which it begins, whether it is an item of a list, and for code
    between fences the line that ends it, as a pattern, and the language."""

    begin: int
    item: bool = False
    ends: re.Pattern[str] | None = None
    language: str = ""


def blocks(text: str) -> list[MarkdownBlock]:
    """The blocks at the top of *text*, and the items of lists there."""
    found: dict[int, MarkdownBlock] = {}
    depth = 0
    for token in _parser().parse(text):
        if token.map and token.nesting >= 0:
            begin = token.map[0]
            if depth == 1 and token.type == "list_item_open":
                found[begin] = MarkdownBlock(begin, item=True)
            elif depth == 0 and token.type == "fence":
                mark = re.escape(token.markup[0])
                ends = re.compile(rf" {{0,3}}{mark}{{{len(token.markup)},}}[ \t]*$")
                language = token.info.partition(" ")[0]
                found[begin] = MarkdownBlock(begin, ends=ends, language=language)
            elif depth == 0:
                found[begin] = MarkdownBlock(begin)
        depth += token.nesting
    return sorted(found.values(), key=lambda block: block.begin)


@attrs.define
class _Code:
    """Code between fences that is coming: the pattern of the line that ends it, its language, and
    its lines so far."""

    ends: re.Pattern[str]
    language: str
    lines: list[str] = attrs.field(factory=list)


class ShownMarkdown:
    """Shows one text as it grows, from `add` to `end`."""

    def __init__(self, console: Console) -> None:
        self._console: Final = console
        self._coming = ""  # what is not printed yet
        self._code: _Code | None = None
        self._last: MarkdownBlock | None = None  # what was printed last
        self._next_draw = 0.0
        self._live: Final = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def add(self, piece: str) -> None:
        """More of the text."""
        self._coming += visible(piece)
        now = time.monotonic()
        if now < self._next_draw:
            return
        self._print_complete()
        self._draw(self._unprinted())
        spent = time.monotonic() - now
        self._next_draw = time.monotonic() + max(DRAW_SECONDS, _SHARE * spent)

    def status(self, text: str) -> None:
        """Show *text* below what is printed, until more comes."""
        status = lines_of(self._console, Text(text, style=_DIM))
        self._draw([*(self._unprinted() if self._coming else []), *status])

    def _unprinted(self) -> list[Line]:
        """What is not printed yet, laid out."""
        rest = Text(self._coming) if self._code else _Laid(self._coming)
        gap: list[Line] = [[]] if self._spaced(_first(self._coming)) else []
        return [*gap, *_trimmed(lines_of(self._console, rest))]

    def end(self) -> None:
        """No more of the text will come."""
        try:
            self._coming += "\n"
            self._print_complete()
            if self._coming.strip():
                self._print(_first(self._coming) or MarkdownBlock(0), _Laid(self._coming))
            self._coming = ""
        finally:
            self._live.update(Text(""))
            self._live.stop()

    def _print_complete(self) -> None:
        """Print the blocks that are complete, and the lines of code that are."""
        while self._print_code(self._code) if self._code else self._print_blocks():
            pass

    def _print_blocks(self) -> bool:
        """Print all blocks but the last one, or begin code. True to go on."""
        # A line that is still coming may yet turn out to go on with the block before it.
        whole, newline, rest = self._coming.rpartition("\n")
        found = blocks(whole + newline)
        lines = whole.split("\n")
        if not found:
            return False
        for block, after in pairwise(found):
            if block.ends is not None:
                break
            self._print(block, _Laid("\n".join(lines[block.begin : after.begin])))
        else:
            block = found[-1]
        if block.ends is not None:
            self._print(block, Text(lines[block.begin], style=_DIM))
            self._code = _Code(block.ends, block.language)
            lines = lines[block.begin + 1 :]
        else:
            lines = lines[block.begin :]
        self._coming = "\n".join([*lines, rest]) if newline else rest
        return self._code is not None

    def _print_code(self, code: _Code) -> bool:
        """Print the lines of *code* that are complete. True to go on, after its end."""
        *lines, self._coming = self._coming.split("\n")
        for number, line in enumerate(lines):
            if code.ends.match(line):
                self._print_lines(self._coloured(code, lines[:number]))
                self._print_lines(lines_of(self._console, Text(line, style=_DIM)))
                self._coming = "\n".join([*lines[number + 1 :], self._coming])
                self._code = None
                return True
        self._print_lines(self._coloured(code, lines))
        return False

    def _coloured(self, code: _Code, lines: list[str]) -> list[Line]:
        """More *lines* of *code*, on the console."""
        if not lines:
            return []
        before = len(code.lines)
        code.lines += lines
        shown = Text("\n".join(lines))
        text = "\n".join(code.lines)
        if len(text) <= MAX_COLOURED and max(map(len, code.lines)) <= MAX_LINE:
            syntax = Syntax(text, code.language or "text", theme=_THEME)
            coloured = syntax.highlight(text).split("\n", allow_blank=True)
            shown = Text("\n").join(coloured[before : before + len(lines)])
        return lines_of(self._console, shown)

    def _spaced(self, block: MarkdownBlock | None) -> bool:
        """Whether *block* has an empty line before it."""
        if self._last is None or self._code is not None:
            return False
        return not (self._last.item and block is not None and block.item)

    def _print(self, block: MarkdownBlock, shown: RenderableType) -> None:
        gap: list[Line] = [[]] if self._spaced(block) else []
        self._print_lines([*gap, *_trimmed(lines_of(self._console, shown))])
        self._last = block

    def _print_lines(self, lines: Iterable[Line]) -> None:
        segments = [each for line in lines for each in (*line, Segment.line())]
        if segments:
            self._console.print(Segments(segments), end="", crop=False)

    def _draw(self, lines: list[Line]) -> None:
        shown = lines[-max(1, self._console.height - 2) :]
        self._live.update(Segments(list(_joined(shown))), refresh=True)


def _trimmed(lines: list[Line]) -> list[Line]:
    """*lines* without the empty ones that a layout puts around a block."""
    full = [number for number, line in enumerate(lines) if any(each.text.strip() for each in line)]
    return lines[full[0] : full[-1] + 1] if full else []


def _first(text: str) -> MarkdownBlock | None:
    return next(iter(blocks(text)), None)


def _joined(lines: list[Line]) -> Iterator[Segment]:
    for number, line in enumerate(lines):
        if number:
            yield Segment.line()
        yield from line
