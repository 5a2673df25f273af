"""Renews the roster where the coordinator's key lies: the same members, the next serial, and the
same lifetime from then on, once a third of it is left.

The key may lie on several members, and two rosters with one serial are a conflict that no node can
resolve. So each member waits longer than the ones before it in the order of ranks, a node that has
just begun waits for what others may bring, and one that others have put out renews nothing. The key
is read each time: it may have been taken off this machine meanwhile, and then there is nothing to
do.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import trio
from sealring_protocol.security.roster import Roster
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import is_there
from sealring_trio.node.runtime import Runtime
from sealring_trio.units import format_time, wall_ms

from sealring.files.cluster import read_coordinator_key, sign_next
from sealring.files.config import Config
from sealring.joining.door import Door

log = logging.getLogger("sealring")

SETTLE: Final = 20.0
"""Seconds after a node of several has begun in which others may bring it a newer roster."""

TURN: Final = 3600.0
"""Seconds by which a rank waits longer than the one before it; a hundredth of the lifetime if that
is less."""

_LOOK: Final = 60.0
"""Most seconds between looks at the wall clock, which may be set at any time."""


def due_in(roster: Roster, rank: int, wall_ms: int) -> float:
    """Seconds until the member of *rank* renews *roster*; 0 or less once it should."""
    lifetime = (roster.expires_ms - roster.issued_ms) / 1000
    left = (roster.expires_ms - wall_ms) / 1000
    return left - lifetime / 3 + rank * min(TURN, lifetime / 100)


async def renew_rosters(runtime: Runtime, config: Config, coordinator: bytes, door: Door) -> None:
    """Renew the roster of *runtime*, whose *door* is this, whenever it is due, with the key that
    *config* names, until cancelled; *coordinator* is the pinned key. A failure is logged once, and
    tried again."""
    if config.coordinator_key is None:
        return
    if runtime.node.world > 1:
        await trio.sleep(SETTLE)
    said = ""
    while True:
        changed = runtime.roster_changed
        node = runtime.node
        wait = due_in(node.roster.roster, node.rank, wall_ms())
        put_out = any(peer.put_out for peer in node.peers())
        if wait <= 0 and not put_out and is_there(config.coordinator_key):
            await door.settled()
            try:
                await _renew(runtime, config.coordinator_key, coordinator, door.spent)
                said = ""
                continue
            except UserError as error:
                if error.what != said:
                    log.warning("the roster cannot be renewed: %s. %s", error.what, error.advice)
                said = error.what
        with trio.move_on_after(min(_LOOK, wait) if wait > 0 else _LOOK):
            await changed.wait()


async def _renew(runtime: Runtime, path: Path, coordinator: bytes, spent: int) -> None:
    """Sign the members again with the key at *path*, and install that; *coordinator* is the pinned
    key. Raises `UserError`."""
    before = runtime.node.roster
    signer = read_coordinator_key(path, before.roster.coordinator(coordinator))
    signed = sign_next(before, before.roster.members, signer, wall_ms(), spent)
    await runtime.install(signed.encode())
    log.info(
        "roster %d is renewed as roster %d, valid until %s; the other members take it from here",
        before.roster.serial,
        signed.roster.serial,
        format_time(signed.roster.expires_ms),
    )
