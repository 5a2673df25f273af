"""Tells systemd that the node is up, that it is alive, and that it stops (sd_notify(3)).

The node says that it is alive from its event loop, which is what ``/livez`` would show: so a unit
with ``WatchdogSec`` needs neither a timer nor an HTTP client, and no port. Without systemd, which
names its socket in ``NOTIFY_SOCKET``, nothing is done.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

import trio

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_TIMES: Final = 3
"""How often the node says that it is alive, within the time that the unit gives it."""


class Supervision:
    """The service manager of this process, if it has one."""

    def __init__(self) -> None:
        """Take the manager's variables out of the environment: they are for no child."""
        self._place = os.environ.pop(_SOCKET, "")
        within = os.environ.pop(_WATCHDOG, "")
        self._seconds = int(within) / 1e6 / _TIMES if within.isdecimal() else 0.0

    def say(self, state: str) -> None:
        """Send *state*, such as ``READY=1``. A manager that does not listen is no fault of ours."""
        if not self._place:
            return
        # A name that begins with @ is of Linux's abstract namespace.
        name = "\0" + self._place[1:] if self._place[0] == "@" else self._place
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
        ):
            sock.setblocking(False)
            sock.connect(name)
            sock.send(state.encode())

    async def watch(self, up: trio.Event) -> None:
        """Say that the node is up once it is *up*; then that it is alive, until cancelled."""
        await up.wait()
        self.say("READY=1")
        while self._seconds:
            self.say("WATCHDOG=1")
            await trio.sleep(self._seconds)
