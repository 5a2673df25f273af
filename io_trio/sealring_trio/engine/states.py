"""The life of an engine process, and the coming together of several, as tables.

A process is SPAWNED until it says what its model is, READY while nothing waits for its answer,
BUSY while something does, and DEAD once it has ended, whatever it was before. The members of a
group are APART until they are told to load, LOADING, JOINING from when all have loaded until the
group stands, and then JOINED for the rest of their lives: another group takes other processes.
A new order to load what they hold already changes nothing of that.
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
    """How far the members of a group are."""

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
