"""What a person sees of an invitation and of a newcomer, whichever command shows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.joining.invitation import Invitation
from sealring_protocol.words import lasting
from sealring_trio.errors import UserError
from sealring_trio.units import wall_ms

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


def print_invitation(invitation: str, expires_s: int) -> None:
    """Print how another machine joins: one line, and on a terminal a QR code of the invitation."""
    left = lasting(expires_s - wall_ms() / 1000 + 30)
    command = f"{_runner()}{join_command(invitation)}"
    print(f"\nOn another machine, within {left}:\n\n    {command}\n", flush=True)
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


QUESTION = ". Let it in?"
"""What follows the words of `describe_newcomer`."""
