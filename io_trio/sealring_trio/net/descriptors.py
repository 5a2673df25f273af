"""Open files and sockets: how many this process may have, and how many API clients may use.

Systems allow a process 256 to 1,024 descriptors. It may raise that up to a hard limit, and a node
does so when it starts. Some descriptors are reserved for the ring and the node's own work: a node
that cannot open one more socket can neither accept a member nor start an engine. API clients share
the rest.

Importing mlx-lm lowers both limits. Only engine processes import it, and they do so through
`sealring_model.mlx_lm_import`, which prevents that.
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

_OF_CLIENT: Final = 2  # a connection, and a file of the page that it asks for


def raise_limit() -> int:
    """Raise the soft limit as far as the hard one allows, up to `WANTED`. Returns the new limit."""
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
    """How many connections API clients may have if the process may have *limit* descriptors."""
    return max(1, (limit - RESERVED) // _OF_CLIENT)
