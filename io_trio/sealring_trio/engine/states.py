"""Two tables: the life of an engine process, and how several become a group.

A process is SPAWNED until it has sent its first message, READY while it owes no answer, BUSY while
it owes one, and DEAD once it has ended. The members of a group are APART until they are told to
load, LOADING until all have loaded, JOINING until all have joined, and JOINED for the rest of their
lives. A further order for the layers that they hold leaves the state as it is.

`GROUP_TABLE` is the side that orders a collective and waits for all, as the head does for ranks.
The side that obeys is `control/epoch/engine.py` `JOINING_TABLE`: one rank, its ports and its
tunnel. A group has neither, and its members are ended instead of leaving.
"""

from __future__ import annotations

import enum
from typing import Final

from sealring_protocol.table import Table


class EngineState(enum.Enum):
    """What a process is doing."""

    SPAWNED = "spawned"
    READY = "ready"
    BUSY = "busy"
    DEAD = "dead"


class EngineEvent(enum.Enum):
    """What moves it: its first word, a question, the answer to the last one, its end."""

    SPOKE = "spoke"
    ASKED = "asked"
    ANSWERED = "answered"
    ENDED = "ended"


ENGINE_TABLE: Final[Table[EngineState, EngineEvent]] = {
    (EngineState.SPAWNED, EngineEvent.SPOKE): EngineState.READY,
    (EngineState.READY, EngineEvent.ASKED): EngineState.BUSY,
    (EngineState.BUSY, EngineEvent.ASKED): EngineState.BUSY,
    (EngineState.BUSY, EngineEvent.ANSWERED): EngineState.READY,
    (EngineState.SPAWNED, EngineEvent.ENDED): EngineState.DEAD,
    (EngineState.READY, EngineEvent.ENDED): EngineState.DEAD,
    (EngineState.BUSY, EngineEvent.ENDED): EngineState.DEAD,
}


class GroupState(enum.Enum):
    """How far the members are in becoming a group."""

    APART = "apart"
    LOADING = "loading"
    JOINING = "joining"
    JOINED = "joined"


class GroupEvent(enum.Enum):
    """What moves them: an order to load, all having loaded, all having joined."""

    ORDERED = "ordered"
    LOADED = "loaded"
    GROUPED = "grouped"


GROUP_TABLE: Final[Table[GroupState, GroupEvent]] = {
    (GroupState.APART, GroupEvent.ORDERED): GroupState.LOADING,
    (GroupState.LOADING, GroupEvent.ORDERED): GroupState.LOADING,
    (GroupState.LOADING, GroupEvent.LOADED): GroupState.JOINING,
    (GroupState.JOINING, GroupEvent.ORDERED): GroupState.JOINING,
    (GroupState.JOINING, GroupEvent.LOADED): GroupState.JOINING,
    (GroupState.JOINING, GroupEvent.GROUPED): GroupState.JOINED,
    (GroupState.JOINED, GroupEvent.ORDERED): GroupState.JOINED,
    (GroupState.JOINED, GroupEvent.LOADED): GroupState.JOINED,
}
