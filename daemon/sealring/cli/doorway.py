"""What a person at a terminal sees of an invitation and of a newcomer, whichever command shows it,
and what he is asked about one.

Another person may answer elsewhere meanwhile. Whoever sits here may be typing when the question
appears. An answer is therefore what was typed after it: what the terminal holds from before is
thrown away. A node logs to the same terminal: the question is shown again below each line, or it
would scroll away.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import termios
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import trio
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.joining.invitation import Invitation
from sealring_protocol.words import lasting
from sealring_trio.errors import UserError
from sealring_trio.units import wall_ms

from sealring.joining.asking import has_loopback_alone
from sealring.output import visible


def join_command(invitation: str) -> str:
    """What to type on the machine that joins."""
    return f"sealring join {invitation}"


def read_invitation(text: str) -> Invitation:
    """The invitation in *text*, which may have the command before it. Raises `UserError`."""
    try:
        return Invitation.decode(text.rpartition(" ")[2])
    except RemoteProtocolError as error:
        raise UserError(
            f"this is no invitation: {error}",
            "Copy the whole line that 'sealring start' or 'sealring machines invite' printed; it "
            "begins with sr1-.",
        ) from None


def print_invitation(invitation: str, expires_s: int, model: str) -> None:
    """Print how another machine joins: one line, and on a terminal a QR code of the invitation. A
    *model* that is a folder is not sent: that has to be told before."""
    left = lasting(expires_s - wall_ms() / 1000 + 30)
    command = f"{_runner()}{join_command(invitation)}"
    where = "On another machine"
    if has_loopback_alone(read_invitation(invitation)):
        where = "This node listens at loopback. In another terminal of this machine"
    print(f"\n{where}, within {left}:\n\n    {command}\n", flush=True)
    if Path(model).is_dir():
        print(f"Copy the model there before, and add --model FOLDER: {model}\n", flush=True)
    if sys.stdout.isatty():
        import segno  # noqa: PLC0415 - only where it is shown

        # In capital letters, which take fewer squares: an invitation is read in either case.
        segno.make(invitation.upper(), error="l", micro=False).terminal(compact=True)
        sys.stdout.flush()


def _runner() -> str:
    """What is typed before `sealring` where it runs from a checkout, as README has it."""
    own = Path(sys.prefix)
    by_uv = "UV" in os.environ and os.environ.get("VIRTUAL_ENV") == str(own)
    return "uv run " if by_uv and (own.parent / "pyproject.toml").is_file() else ""


def describe_newcomer(facts: Mapping[str, Any]) -> str:
    """A newcomer that waits, in words: *facts* is what `Knock.facts` gives. What it says of itself
    comes after its fingerprint and whence it came, which it could imitate else."""
    memory = f"{facts['memory'] / (1 << 30):.0f} GB"
    name, itself, like = facts["name"], facts["calls_itself"], facts["looks_like"]
    also = "" if name == itself else f" (it calls itself {itself})"
    if like not in ("", itself):
        also = f" (it calls itself {itself}, which looks like {like})"
    return visible(
        f"fingerprint {facts['fingerprint']} from {facts['source']} wants to join: {name}{also}, "
        f"{facts['system']}, {memory}"
    )


def decided_where(by: str) -> str:
    """Where somebody else has decided about a newcomer: *by* is what `Knock.by` has."""
    return f"by {by}" if by else "at another terminal"


def say(text: str, *, json: bool) -> None:
    """Say *text* to a person: where it is not in the way of what is printed as *json*."""
    print(f"sealring: {visible(text)}", file=sys.stderr if json else sys.stdout, flush=True)


QUESTION: Final = ". Let it in?"
"""What follows the words of `describe_newcomer`."""

Answer = Literal["yes", "no", "settled", "absent"]
"""What came of a question: it was *settled* elsewhere, or the person is *absent*."""

LATE_SECONDS: Final = 1.0
"""Seconds before the next question: an answer about a machine that has just left may still be
typed, and would be taken for one about the next machine."""

_CHOICE: Final = " [y/n] "
_MEANINGS: Final[dict[bytes, Answer]] = {b"y": "yes", b"yes": "yes", b"n": "no", b"no": "no"}
LONGEST_LINE: Final = 4096
"""Bytes of a line of a terminal."""


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
            line = os.read(terminal, LONGEST_LINE)
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
