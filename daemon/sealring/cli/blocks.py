"""Texts of several lines between triple quotes, as a chat takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

QUOTES: Final = '"""'


def is_open(text: str) -> bool:
    """Whether *text* begins a block that has not ended."""
    begun = text.lstrip()
    return begun.startswith(QUOTES) and not begun[len(QUOTES) :].rstrip().endswith(QUOTES)


def unquoted(text: str) -> tuple[str, bool]:
    """*text* without space around it, or what is in it if it is a block, and whether it is one."""
    text = text.strip()
    if text.startswith(QUOTES) and not is_open(text):
        return text.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n"), True
    return text, False


def joined(lines: Iterable[str]) -> Iterator[str]:
    """*lines*, of which those of a block are one. A block that never ends is what came of it."""
    begun = ""
    for line in lines:
        begun += line
        if not is_open(begun):
            yield begun
            begun = ""
    if begun:
        yield f"{begun.rstrip()}\n{QUOTES}"
