"""Sections of ``commands.md``: what every command says of itself with ``--help``."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import cyclopts
from rich.console import Console
from sealring.cli import COMMANDS, GROUPS, build_app

WIDTH: Final = 88
"""Columns of the help on the page."""


def _help(app: cyclopts.App, words: list[str]) -> str:
    """What ``sealring WORDS --help`` prints."""
    text = io.StringIO()
    console = Console(file=text, width=WIDTH, force_terminal=False, color_system=None)
    app.help_print(words, console=console)
    lines = [line.rstrip() for line in text.getvalue().strip().splitlines()]
    return "\n".join(lines)


def _all() -> Iterator[list[str]]:
    """The words of every command."""
    for name in COMMANDS:
        yield [name]
        below = build_app(name)[name]
        yield from ([name, each] for each in below if not each.startswith("-"))


def _told() -> str:
    parts = []
    for words in _all():
        told = _help(build_app(words[0]), words)
        mark = "##" if len(words) == 1 else "###"
        parts.append(f"{mark} sealring {' '.join(words)}\n\n```text\n{told}\n```\n")
    return "\n".join(["", *parts, ""])


def _list() -> str:
    parts = []
    for title, commands in GROUPS.items():
        lines = [
            f"- [`sealring {name}`](#sealring-{name}): {commands[name][1]}" for name in commands
        ]
        parts.append("\n".join([f"{title}:", "", *lines]))
    return "\n" + "\n\n".join([*parts, ""])


SECTIONS: Final[Mapping[str, Callable[[], str]]] = {"list": _list, "commands": _told}
