"""Open files and sockets: how many this process may have, and what is kept for what.

Systems give a process 256 to 1,024 unless it asks for more, which it may do up to a hard limit. A
node asks when it starts. What it needs for its ring and its own work is kept from the API's
clients, of whom there may be any number: a node that cannot open one more socket can neither take
a member's connection nor start an engine.

mlx-lm lowers both limits where it is imported as it stands. In a node that is the engine's process
at most, and `sealring_model.loading.mlx_lm_import` keeps it from doing so there.
"""

from __future__ import annotations

import resource
from typing import Final

from sealring_protocol.limits import MAX_HANDSHAKES, MAX_WORLD

WANTED: Final = 16_384
"""Descriptors that a node asks for, where the hard limit is no lower."""

_LINKS: Final = MAX_HANDSHAKES + 2 * 3 * MAX_WORLD
"""Connections of strangers and members that prove themselves; then for each member control, step
and tunnel, each of which may be replaced while it is up."""

_ENGINES: Final = 8 * MAX_WORLD
"""A socket pair, pipes and the relay's sockets of each engine process, twice at a new start."""

_FILES: Final = 128
"""Logs, stores, the control socket's clients, and what Python's libraries keep open."""

RESERVED: Final = _LINKS + _ENGINES + _FILES
"""Descriptors that the API's clients cannot have."""

_OF_CLIENT: Final = 2  # a connection, and a file of the dashboard that it asks for


def raise_limit() -> int:
    """Raise the soft limit as far as this process may, up to `WANTED`; the limit as it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):  # macOS has a lower bound of its own, and does not tell it
            return soft
        return wanted
    return WANTED if soft == resource.RLIM_INFINITY else soft


def for_clients(limit: int) -> int:
    """Connections that clients may have, where the process may have *limit* descriptors."""
    return max(1, (limit - RESERVED) // _OF_CLIENT)
