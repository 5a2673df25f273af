"""What `sealring join` shows and asks on a machine that has no invitation yet.

The machine shows its four words, announces them in its private networks, and says where sealring
runs there. The invitation is still typed by a person: nothing that was announced admits anybody.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

import trio
from sealring_protocol.joining.invitation import Invitation
from sealring_trio.errors import UserError

from sealring.cli.doorway import read_invitation, say
from sealring.discovery.announcement import waiting_text
from sealring.discovery.discovery import Announced, Discovery, may_discover
from sealring.discovery.neighbours import Nearby

_PROMPT: Final = "Paste here what that prints: "
_MOST: Final = 8
"""Places that are shown: anybody may announce more."""

_LONGEST: Final = 4096  # bytes of a line of a terminal


async def ask_invitation(
    words: str, listen: tuple[str, int], *, discover: bool
) -> Invitation | None:
    """The invitation that the person at the terminal pastes for this machine, which is to *listen*
    there and whose key has these *words*; None at Ctrl-C or the end of the input. Meanwhile, if it
    is to *discover*, it is announced."""
    waiting = _Uninvited()
    say(f"this machine waits to be invited. Its fingerprint is {words}", json=False)
    say("to invite it, on a machine of the cluster: sealring machines invite", json=False)
    found: list[Invitation | None] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:

        async def read(scope: trio.CancelScope) -> None:
            found.append(await waiting.read())
            scope.cancel()

        async with trio.open_nursery() as nursery:
            if discover and may_discover(listen[0]):
                discovery = Discovery(listen[0], waiting.heard)
                discovery.announce(Announced(lambda _: waiting_text(words), listen[1]))
                nursery.start_soon(discovery.run)
            nursery.start_soon(read, nursery.cancel_scope)
            await anext(signals)
            nursery.cancel_scope.cancel()
    return found[0] if found else None


class _Uninvited:
    """The terminal of a machine that waits."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def heard(self, found: Nearby) -> None:
        """Say where sealring runs here, each place once."""
        for host in dict.fromkeys(host for host, _ in found.others):
            if host not in self._seen and len(self._seen) < _MOST:
                self._seen.add(host)
                print()
                say(f"sealring runs at {host}: whoever runs it can invite you", json=False)
                print(_PROMPT, end="", flush=True)

    async def read(self) -> Invitation | None:
        """The invitation that is pasted; what is none is asked for again."""
        terminal = sys.stdin.fileno()
        while True:
            print(_PROMPT, end="", flush=True)
            await trio.lowlevel.wait_readable(terminal)
            line = os.read(terminal, _LONGEST)
            if not line:
                print()
                return None
            if not line.strip():
                continue
            try:
                return read_invitation(line.decode(errors="replace").strip())
            except UserError as error:
                say(f"{error.what}. {error.advice}", json=False)
