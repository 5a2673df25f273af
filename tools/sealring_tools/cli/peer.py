"""`sealring peer`."""

from __future__ import annotations

import json as json_module
import secrets
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from sealring_trio.errors import UserError


def peer(
    key: Path,
    *,
    roster: Path,
    coordinator: str,
    listen: str | None = None,
    dial: str | None = None,
    at: str | None = None,
    purpose: Literal["control", "step", "tunnel", "weights"] = "control",
    script: Path | None = None,
    steps: Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=1))] = 4,
    model: str = "tiny",
) -> None:
    """Talk sealring/1 with another implementation, without a model.

    It does the whole handshake, and tells on standard output what is said:
    one JSON object for each message, with the specification's field names.

        sealring peer ben.key --roster home.roster \\
            --coordinator coordinator.pub \\
            --listen 127.0.0.1:7471

    plays rank 1 of a ring of two: it presents itself, answers BOOTSTRAP once
    its STEP link is up, and gives back the hidden states of every decode as
    they came. A real head works with it, with strategy = "pp". Until Ctrl-C.

        sealring peer ada.key --roster home.roster \\
            --coordinator coordinator.pub --dial ben

    plays the head: it brings the other rank up, has it read a prompt and
    decode, and looks whether READY and each answer are what they should be.
    The exit code says whether all were.

    With --script it does on one link what a file says, one JSON object to a
    line, and the exit code says whether the other end did as expected:

        {"expect": {"message": "HELLO", "layers": 12}}
        {"send": {"message": "TUNNEL", "instance": "7",
                  "counter": "1", "stream": 0, "event": 1,
                  "data": ""}}  (in one line)
        {"wait": 1.5}
        {"close": 0, "reason": "done"}

    After the last line the link is ended.

    Parameters
    ----------
    key
        The private key of this peer, a member of the roster.
    roster
        The signed roster.
    coordinator
        The coordinator's public key: its file, or hex.
    listen
        Wait for links here, HOST:PORT.
    dial
        Dial the member with this name.
    at
        Dial it here, HOST:PORT, and not where the roster says.
    purpose
        What the link that a script runs on is dialed for.
    script
        The file that says what to do.
    steps
        How many steps the head has done.
    model
        The model that rank 1 says it has: a folder, a hub id, or 'tiny'.
    """
    import trio  # noqa: PLC0415
    from sealring_tools.peer.script import read_script  # noqa: PLC0415
    from sealring_tools.peer.serving import Peer, drive, play_script, serve  # noqa: PLC0415

    if (listen is None) == (dial is None):
        raise UserError("a peer either listens or dials", "Give one of --listen and --dial.")
    told = None if script is None else read_script(script)
    me = Peer.of(key, roster, coordinator, secrets.randbits(63) | 1, _tell)
    try:
        if told is not None:
            trio.run(play_script, me, told, listen, dial, at, purpose)
        elif listen is not None:
            trio.run(serve, me, listen, model)
        elif dial is not None:
            trio.run(drive, me, dial, at, steps)
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _tell(told: dict[str, Any]) -> None:
    print(json_module.dumps(told), flush=True)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The mistake in *group* that a person is to see, or else its first error."""
    found = group.exceptions[0]
    mistakes = group.subgroup((UserError, KeyboardInterrupt))
    if mistakes is not None:
        found = mistakes.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
