"""A node's place in its network, by multicast DNS: it announces itself, and its door while somebody
is invited; and it hears where members are, and which machines wait to be invited.

Where a member was seen is one more address to dial, and no more than that.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import trio
from sealring_protocol.security.keys import sha256
from sealring_trio.node.runtime import Runtime
from sealring_trio.node.setup import OwnIdentity

from sealring.discovery.announcement import door_text, node_text
from sealring.discovery.discovery import Discovery, may_discover
from sealring.discovery.neighbours import MAX_ADDRESSES, Circle, Nearby
from sealring.discovery.orders import Announced
from sealring.files.config import Config
from sealring.joining.door import Door

_LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the roster and the door, of which announcements follow, and at what
was heard: whoever announces much is not to enter the node as often."""


class Presence:
    """Of the node of *config*, which is *identity* to others and has this *door*."""

    def __init__(self, config: Config, identity: OwnIdentity, door: Door) -> None:
        self._host, port = config.listen
        self._on = config.discover and may_discover(self._host)
        self._coordinator = sha256(identity.coordinator)
        self._own = identity.id
        self._door = door
        self._runtime: Runtime | None = None
        self._discovery = Discovery(self._host)
        self._told = Nearby()  # what the runtime was told
        self._as_node = Announced(partial(node_text, self._coordinator, self._own), port)
        self._as_door = Announced(partial(door_text, self._coordinator), door.address[1])

    async def run(self, up: trio.Event) -> None:
        """Be present from when the node is *up*, until cancelled."""
        await up.wait()
        if not self._on:
            return
        async with trio.open_nursery() as nursery:
            self._renew()
            nursery.start_soon(self._discovery.run)
            while True:
                await trio.sleep(_LOOK_SECONDS)
                self._renew()

    def begin(self, runtime: Runtime) -> None:
        """*runtime* runs the node from now on."""
        self._runtime, self._told = runtime, Nearby()

    def pause(self) -> None:
        """The node does not run."""
        self._runtime = None

    def waiting(self) -> list[dict[str, Any]]:
        """The machines here that wait to be invited, as JSON for commands."""
        return [
            {"fingerprint": words, "hosts": [host for host, _ in places[:MAX_ADDRESSES]]}
            for words, places in self._discovery.found.waiting.items()
        ]

    # ----------------------------------------------------------------- inside

    def _renew(self) -> None:
        if self._runtime is None:
            return
        members = {member.id for member in self._runtime.node.roster.roster.members}
        self._discovery.look_for(Circle(self._coordinator, frozenset(members - {self._own})))
        announced = [self._as_node] if self._own in members else []
        if self._door.invites:
            announced.append(self._as_door)
        self._discovery.announce(*announced)
        self._tell(self._runtime, self._discovery.found)

    def _tell(self, runtime: Runtime, found: Nearby) -> None:
        """Tell *runtime* what is new in *found*."""
        for member, places in found.members.items():
            for place in places:
                if place not in self._told.members.get(member, ()):
                    runtime.enter(runtime.node.address_heard, member, *place)
        self._told = found
