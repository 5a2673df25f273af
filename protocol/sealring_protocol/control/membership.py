"""The head's view of its ranks: who is present, and in which epoch.

Only the head raises the epoch, by one each time. It sends no step until every rank is READY in the
new epoch; in tensor parallelism, no rank is READY before all are PREPARED. Any later failure (a
rank lost, a step failed, an engine replaced) ends the epoch and leads back to gathering. The next
epoch starts when every rank is present again.

A follower's part is in `follower`: it drops messages of older epochs and obeys those of its own,
and only a BOOTSTRAP can raise the epoch.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Build, Epoch, Hello, Prepared, Ready
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError
from sealring_protocol.table import Machine, Table


class MembershipState(enum.Enum):
    """What the head waits for."""

    GATHERING = "gathering"
    PREPARING = "preparing"
    STARTING = "starting"
    SERVING = "serving"


class MembershipEvent(enum.Enum):
    """What changes the state."""

    PREPARE = "prepare"
    START = "start"
    ALL_PREPARED = "all_prepared"
    ALL_READY = "all_ready"
    BREAK = "break"


MEMBERSHIP_TABLE: Final[Table[MembershipState, MembershipEvent]] = {
    (MembershipState.GATHERING, MembershipEvent.START): MembershipState.STARTING,
    (MembershipState.GATHERING, MembershipEvent.PREPARE): MembershipState.PREPARING,
    (MembershipState.GATHERING, MembershipEvent.BREAK): MembershipState.GATHERING,
    (MembershipState.PREPARING, MembershipEvent.ALL_PREPARED): MembershipState.STARTING,
    (MembershipState.PREPARING, MembershipEvent.BREAK): MembershipState.GATHERING,
    (MembershipState.STARTING, MembershipEvent.ALL_READY): MembershipState.SERVING,
    (MembershipState.STARTING, MembershipEvent.BREAK): MembershipState.GATHERING,
    (MembershipState.SERVING, MembershipEvent.BREAK): MembershipState.GATHERING,
}


class Membership:
    """Ranks 0 to *world* - 1 of the head with *instance*. Rank 0 is the head itself. Epochs count
    on from *before*, the last epoch that this head began with another roster."""

    def __init__(self, instance: int, world: int, before: int = 0) -> None:
        self._machine = Machine(MEMBERSHIP_TABLE, MembershipState.GATHERING)
        self.epoch = Epoch(instance, before)
        """The present epoch; its counter is 0 before the first. To be read only."""
        self._world = world
        self._present: dict[int, Hello] = {}
        self._ready: dict[int, Ready] = {}
        self._prepared: dict[int, Prepared] = {}

    @property
    def state(self) -> MembershipState:
        """What the head waits for."""
        return self._machine.state

    @property
    def began(self) -> bool:
        """True from the beginning of an epoch to its end."""
        return self.state is not MembershipState.GATHERING

    @property
    def missing(self) -> list[int]:
        """The ranks that the present state waits for: absent, not prepared, or not ready."""
        have: Mapping[int, Hello | Prepared | Ready] = self._ready
        if self.state is MembershipState.GATHERING:
            have = self._present
        elif self.state is MembershipState.PREPARING:
            have = self._prepared
        return [rank for rank in range(self._world) if rank not in have]

    @property
    def present(self) -> dict[int, Hello]:
        """The HELLO of each rank that is present."""
        return dict(self._present)

    @property
    def ready(self) -> dict[int, Ready]:
        """The READY of each rank that has sent it in this epoch."""
        return dict(self._ready)

    @property
    def prepared(self) -> dict[int, Prepared]:
        """The PREPARED of each rank that has sent it in this epoch."""
        return dict(self._prepared)

    def is_current(self, epoch: Epoch) -> bool:
        """True if *epoch* is the present one; False for an older one, or another head's.

        Raises `RemoteProtocolError` for an epoch of this head that it never began.
        """
        if epoch.instance == self.epoch.instance and epoch.counter > self.epoch.counter:
            raise RemoteProtocolError(f"epoch {epoch.counter} never was")
        return epoch == self.epoch

    def presented(self, rank: int, hello: Hello) -> bool:
        """*rank* is present and has nothing loaded for this epoch. True if that ends an epoch."""
        self._present[rank] = hello
        return self.interrupt()

    def lost(self, rank: int) -> bool:
        """*rank* is gone. True if that ends an epoch."""
        self._present.pop(rank, None)
        return self.interrupt()

    def interrupt(self) -> bool:
        """The present epoch cannot go on. True if there was one."""
        running = self.state is not MembershipState.GATHERING
        self._machine.fire(MembershipEvent.BREAK)
        self._prepared.clear()
        self._ready.clear()
        return running

    def start(self, *, prepare: bool = False) -> Epoch:
        """Begin and return the next epoch. With *prepare* it begins by preparing a collective.
        Raises `LocalProtocolError` while a rank is missing."""
        if self.missing:
            raise LocalProtocolError(f"ranks {self.missing} are missing")
        self._machine.fire(MembershipEvent.PREPARE if prepare else MembershipEvent.START)
        self.epoch = Epoch(self.epoch.instance, self.epoch.counter + 1)
        return self.epoch

    def answered_prepared(self, rank: int, prepared: Prepared) -> bool:
        """*rank* is prepared. True if now all are, which starts the next state.

        An answer of an older epoch is ignored. Raises `RemoteProtocolError` for an epoch that never
        began, a second answer, or one that was not asked for.
        """
        if not self.is_current(prepared.epoch) or self.state is MembershipState.GATHERING:
            return False
        if self.state is not MembershipState.PREPARING or rank in self._prepared:
            raise RemoteProtocolError("PREPARED, unasked or a second time")
        self._prepared[rank] = prepared
        if self.missing:
            return False
        self._machine.fire(MembershipEvent.ALL_PREPARED)
        return True

    def answered(self, rank: int, ready: Ready, layers: range) -> bool:
        """*rank* is ready in the epoch of *ready*. True if now all are, which starts the next
        state.

        An answer of an older epoch is ignored. Raises `RemoteProtocolError` for an epoch that never
        began, a second answer, one before all ranks are prepared, or layers that are not the
        rank's.
        """
        if not self.is_current(ready.epoch) or self.state is MembershipState.GATHERING:
            return False
        if self.state is MembershipState.PREPARING:
            raise RemoteProtocolError("READY before all are prepared")
        if rank in self._ready:
            raise RemoteProtocolError("a second READY in this epoch")
        if (ready.first, ready.last) != (layers.start, layers.stop):
            raise RemoteProtocolError(
                f"READY with layers {ready.first}:{ready.last}, not {layers.start}:{layers.stop}"
            )
        self._ready[rank] = ready
        if self.missing:
            return False
        self._machine.fire(MembershipEvent.ALL_READY)
        return True


def hello(info: EngineInfo, build: Build) -> Hello:
    """The HELLO of a rank whose program is *build*, and whose engine sent *info*."""
    about = info.dtype, info.hidden, info.room, info.pins, build
    return Hello(info.model, len(info.layers), *about)
