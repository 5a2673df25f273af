"""What a person sees of an invitation and of a newcomer, whichever command shows it."""

from __future__ import annotations

import contextlib
import sys
import termios
from collections.abc import Mapping
from typing import Any

from sealring_protocol.words import lasting
from sealring_trio.units import wall_ms

from sealring.output import visible


def join_command(invitation: str) -> str:
    """What to type on the machine that joins."""
    return f"sealring join {invitation}"


def print_invitation(invitation: str, expires_s: int) -> None:
    """Print how another machine joins: one line, and on a terminal a QR code of the invitation."""
    left = lasting(expires_s - wall_ms() / 1000 + 30)
    print(f"\nOn another machine, within {left}:\n\n    {join_command(invitation)}\n", flush=True)
    if sys.stdout.isatty():
        import segno  # noqa: PLC0415 - only where it is shown

        # In capital letters, which take fewer squares: an invitation is read in either case.
        segno.make(invitation.upper(), error="l", micro=False).terminal(compact=True)
        sys.stdout.flush()


def describe_newcomer(facts: Mapping[str, Any]) -> str:
    """A newcomer that waits, in words: *facts* is what `Knock.facts` gives. What it says of itself
    comes after the fingerprint, which it could imitate else."""
    memory = f"{facts['memory'] / (1 << 30):.0f} GB"
    name, itself = facts["name"], facts["calls_itself"]
    also = "" if name == itself else f" (it calls itself {itself})"
    return visible(
        f"fingerprint {facts['fingerprint']} wants to join: {name}{also}, {facts['system']}, "
        f"{memory}, from {facts['source']}"
    )


def say(text: str, *, json: bool) -> None:
    """Say *text* to a person: where it is not in the way of what is printed as *json*."""
    print(f"sealring: {visible(text)}", file=sys.stderr if json else sys.stdout, flush=True)


def forget_typed() -> None:
    """Forget what was typed before a question was shown: it was no answer to that."""
    with contextlib.suppress(OSError, ValueError, termios.error):  # it is no terminal
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def is_yes(answer: str) -> bool:
    """Whether *answer* is yes."""
    return answer.strip().lower() in ("y", "yes")


QUESTION = ". Let it in? [y/N] "
"""What follows the words of `describe_newcomer`."""
