"""A question to the person at the terminal, which another person may answer elsewhere meanwhile.

Whoever sits there may be typing when the question appears. An answer is therefore what was typed
after it: what the terminal holds from before is thrown away. A node logs to the same terminal: the
question is shown again below each line, or it would scroll away.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import termios
from collections.abc import Iterator
from typing import Final, Literal

import trio

from sealring.output import visible

Answer = Literal["yes", "no", "settled", "absent"]
"""What came of a question: it was *settled* elsewhere, or the person is *absent*."""

LATE_SECONDS: Final = 1.0
"""Seconds before the next question: an answer about a machine that has just left may still be
typed, and would be taken for one about the next machine."""

_CHOICE: Final = " [y/n] "
_MEANINGS: Final[dict[bytes, Answer]] = {b"y": "yes", b"yes": "yes", b"n": "no", b"no": "no"}
_LONGEST: Final = 4096  # bytes of a line of a terminal


async def ask_person(question: str, settled: trio.Event) -> Answer:
    """What the person at the terminal says to *question*, unless it is *settled* before.

    What is neither yes nor no is asked again. The person is absent if this process is in the
    background, or its terminal was closed.
    """
    answers: list[Answer] = []

    async def read() -> None:
        answers.append(await _read_answer(visible(question)))
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await settled.wait()
        nursery.cancel_scope.cancel()
    if settled.is_set() or not answers:
        with contextlib.suppress(OSError):
            print(flush=True)
        return "settled"
    return answers[0]


async def late_answer() -> None:
    """Let an answer to a question that was settled elsewhere come, before the next is asked."""
    await trio.sleep(LATE_SECONDS)


async def _read_answer(question: str) -> Answer:
    terminal, hint = sys.stdin.fileno(), ""
    while _in_foreground(terminal):
        try:
            termios.tcflush(terminal, termios.TCIFLUSH)
            print(f"{hint}{question}{_CHOICE}", end="", flush=True)
            with _below_the_log(f"{question}{_CHOICE}"):
                await trio.lowlevel.wait_readable(terminal)
            if not _in_foreground(terminal):
                break
            line = os.read(terminal, _LONGEST)
        except (OSError, termios.error):  # the terminal is gone
            break
        if not line:
            break
        if (answer := _MEANINGS.get(line.strip().lower())) is not None:
            return answer
        hint = "Type yes or no.\n"
    with contextlib.suppress(OSError):
        print(flush=True)
    return "absent"


class _Around(logging.Handler):
    """Prints *text* before a line of the log, or after it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def emit(self, record: logging.LogRecord) -> None:
        """A line is logged."""
        del record
        with contextlib.suppress(OSError):
            print(self._text, end="", flush=True)


@contextlib.contextmanager
def _below_the_log(prompt: str) -> Iterator[None]:
    """Meanwhile *prompt* stands below what is logged at the terminal."""
    root = logging.getLogger()
    handlers = root.handlers
    shown = (isinstance(h, logging.StreamHandler) and h.stream is sys.stderr for h in handlers)
    if not any(shown) or not sys.stderr.isatty():
        yield
        return
    root.handlers = [_Around("\n"), *handlers, _Around(prompt)]
    try:
        yield
    finally:
        root.handlers = handlers


def _in_foreground(terminal: int) -> bool:
    """Whether this process may use the *terminal*. One in the background would be stopped, and a
    node with it."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # it is not the terminal that controls this process
        return True
