"""Prompts from the command line and from standard input."""

from __future__ import annotations

import sys
from typing import Annotated, Final

from cyclopts import Parameter
from sealring_trio.errors import UserError

STDIN: Final = "-"
"""The prompt that stands for standard input."""


def _no_option(_: object, value: str | None) -> None:
    if value is not None and value.startswith("--"):
        raise ValueError("there is no such option. A prompt that begins so can come from a pipe")


Prompt = Annotated[str, Parameter(allow_leading_hyphen=True, validator=_no_option)]
"""A prompt as an argument: `STDIN` is one, and what is meant as an option is none."""

MAX_PROMPT: Final = 8 << 20
"""Characters of standard input; a request has no more bytes."""


def is_piped() -> bool:
    """Whether standard input is there, and is no terminal."""
    return sys.stdin is not None and not sys.stdin.isatty()


def read_prompt(given: str | None) -> str:
    """The prompt: what is *given*, with what standard input has before it unless that is a
    terminal; for `STDIN` and None, standard input alone. Raises `UserError` if there is none."""
    alone = given in (None, STDIN)
    text = _input() if is_piped() or (given == STDIN and sys.stdin is not None) else ""
    parts = [text.strip("\n"), "" if alone else given or ""]
    prompt = "\n\n".join(part for part in parts if part.strip())
    if not prompt:
        raise UserError("there is no prompt", "Give one as an argument, or on standard input.")
    return prompt


def _input() -> str:
    text = sys.stdin.read(MAX_PROMPT + 1)
    if len(text) > MAX_PROMPT:
        raise UserError(
            f"standard input has more than {MAX_PROMPT >> 20} MiB", "No model reads so much."
        )
    return text
