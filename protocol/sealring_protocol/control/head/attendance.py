"""Who takes part in the ring: the members that are present, where they have room for the model.

A ring serves with whoever is there. It does not wait for a member that it has never seen, and one
that goes is left out. `Attendance` decides that for the head, by who is present and since when; the
node then makes a ring of those (`node.Node`), as it does for a newer roster: requests go on.

Witnesses have no part in this: they are never in a ring, and nobody waits for them.

The ring of all others is preferred. A ring of some begins once every other has been waited for:
a member that has never come for `GATHER_SECONDS` after the head itself has come, one that was lost
for `LOSS_SECONDS`, in which a process may restart. A member that comes is taken in after
`STEADY_SECONDS`. After each stay that was shorter than `LONG_STAY` that time doubles, and nobody
waits for such a member a second time, so that a machine with a bad cable does not stop the others'
work again and again.

An engine that is lost in the midst of an epoch ends its member's stay, too, and another begins. So
a member whose engine ends again and again is left out for longer each time.

A member can be present and never get ready. One that alone has failed `FAILURES` epochs in a row is
left out, too, if the others have room, until it presents itself anew. So is, at once, one that
comes to a ring that has served, and cannot load its layers: they may have to be fetched first.
Where the member has not itself said what it cannot do, it may not be at fault: a link has two
ends. It is then tried again by itself, after 2 minutes, and each time after twice as long.

A smaller ring may be faster. The caller, who has measured that, may prefer one (`prefer`). The ring
becomes that one at a moment when it is idle, and the others are left out. It becomes that of all
again, at once, where one of these ends the preference:

- a preferred member goes away, or a new roster comes;
- a member has come to stay that was not in the ring with which the preferred one was compared;
- the preferred ring fails: a part cannot be loaded, say. That is final in this roster;
- the caller prefers it no more. It is the caller's part not to change its mind again and again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import attrs

from sealring_protocol.codec.messages import Failure, FailureKind, Hello
from sealring_protocol.control.effects import Outside, Preference
from sealring_protocol.control.head.trial import IDLE_SECONDS
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.words import STILL_FETCHED

GATHER_SECONDS: Final = 10.0
"""Seconds in which all members may come before a ring of some begins."""

LOSS_SECONDS: Final = 5.0
"""Seconds in which a member that was lost may come back before the others go on without it."""

HANDOVER_SECONDS: Final = 1.0
"""Seconds for which a head that the one before made head waits for those of that one's ring."""

STEADY_SECONDS: Final = 3.0
"""Seconds that a member has to be present before a ring that serves takes it in."""

LONG_STAY: Final = 60.0
"""Seconds from which a stay is not short, and that an unsteady member is made to wait at most."""

GRACE_SECONDS: Final = 15.0
"""Seconds for which a ring that served takes requests while it changes. They wait meanwhile."""

FAILURES: Final = 3
"""Epochs in a row that a member alone may fail before the others go on without it."""

LONGEST_ASIDE: Final = 3600.0
"""Seconds after which a member that failed is tried again, at most, if it has not said why."""

_OWN_WORD: Final = frozenset({FailureKind.LOAD, FailureKind.MEMORY, FailureKind.UNSERVABLE})
"""What a member says of itself: nothing changes that before it presents itself anew."""

Ring = tuple[int, ...]
"""Ranks, rising from 0."""


class Attendance:
    """The *ranks* that may be in the ring: all members but witnesses. At least *least* make a ring.
    Rank 0, the head, is always one of them. *patience* has the seconds for which some ranks are
    waited for at first; it is `GATHER_SECONDS` for the others. Times are monotonic seconds."""

    def __init__(
        self,
        ranks: Ring,
        least: int,
        now: float,
        patience: Mapping[int, float] | None = None,
    ) -> None:
        self._least = max(1, min(least, len(ranks)))
        self.hellos: dict[int, Hello] = {}
        """The HELLO of each rank that is present."""
        self._came: dict[int, float] = {}  # when each of them came
        self._steady_from: dict[int, float] = {}  # when each of them may be taken in
        self._patience = patience or {}
        self._awaited = self._gather(ranks, now)  # the others: until when
        self._began = now
        self._lost: dict[int, float] = {}  # when each that has ever come was last lost
        self.stuck = False
        """Nobody is waited for any more, and those that are present are too few, or have too little
        room."""
        self._unreadable: dict[int, str] = {}  # why the engines of absent ranks are
        self._short: Counter[int] = Counter()  # each rank's short stays in a row
        self._culprit, self._failed = 0, 0  # who failed the last epochs, and how many
        self._aside: dict[int, float] = {}  # present ranks that the others do without: until when
        self._restless: set[int] = set()  # present ranks whose engine starts again and again
        self._served: Ring = ()  # the last ring that served
        self._roomless: set[int] = set()  # ranks without which there is a plan, and with which not
        self.preference: Preference | None = None
        """The smaller ring that the caller prefers, or preferred until it failed."""
        self._compared: Ring = ()  # the ring that it was compared with
        self._is_taken = False  # the ring is the preferred one

    def came(self, rank: int, hello: Hello, now: float) -> None:
        """*rank* is present, and said *hello*. A second one says only that one which was left out
        is worth a try again."""
        self.hellos[rank] = hello
        self._unreadable.pop(rank, None)
        if rank in self._came and rank not in self._aside:
            return
        self._try_again(rank)
        self._awaited.pop(rank, None)
        self._came[rank] = now
        self._steady_from[rank] = now + min(LONG_STAY, STEADY_SECONDS * 2 ** self._short[rank])
        if rank == 0 and rank not in self._lost:
            self._awaited = self._gather(self._awaited, now)

    def _gather(self, ranks: Iterable[int], now: float) -> dict[int, float]:
        """Until when each of *ranks* is waited for, none of which has ever come."""
        return {rank: now + self._patience.get(rank, GATHER_SECONDS) for rank in ranks}

    def lost(self, rank: int, now: float) -> None:
        """*rank* is gone."""
        self.hellos.pop(rank, None)
        self._unreadable.pop(rank, None)
        came = self._came.pop(rank, None)
        if came is None:
            return
        del self._steady_from[rank]
        self._aside.pop(rank, None)
        self._restless.discard(rank)
        self._lost[rank] = now
        if rank and self._prefers(rank):
            self.preference = None
        short = now - came < LONG_STAY
        self._short[rank] = min(self._short[rank] + 1, 10) if short else 0
        unsteady = self._short[rank] > 1
        self._awaited[rank] = now if unsteady else now + LOSS_SECONDS

    def unreadable(self, rank: int, reason: str) -> bool:
        """The engine of *rank*, which is linked, cannot read its model, for that *reason*. Whether
        that is news."""
        if rank in self.hellos or self._unreadable.get(rank) == reason:
            return False
        self._unreadable[rank] = reason
        return True

    def epoch_over(self, failed: Failure | None, now: float) -> None:
        """An epoch is over without having worked, because a rank *failed*; None if it worked, or
        nobody failed."""
        if failed is None:
            self._failed = 0
            return
        if self._is_taken:
            self._forbid(failed)
        newcomer = bool(self._served) and failed.rank not in self._served
        if STILL_FETCHED in failed.message and not newcomer:
            return  # the others would have to fetch what it fetches
        self._failed = 1 + (self._failed if failed.rank == self._culprit else 0)
        self._culprit = failed.rank
        hopeless = failed.kind is FailureKind.UNSERVABLE  # no epoch follows it by itself
        unloaded = newcomer and failed.kind in (FailureKind.LOAD, FailureKind.MEMORY)
        enough = hopeless or unloaded or self._failed >= FAILURES
        if failed.rank and failed.rank in self._came and enough:  # no ring is without the head
            short = self._short[failed.rank] = min(self._short[failed.rank] + 1, 10)
            again = now + min(LONG_STAY * 2**short, LONGEST_ASIDE)
            self._aside[failed.rank] = math.inf if failed.kind in _OWN_WORD else again

    def broke(self, failed: Failure, now: float) -> None:
        """An epoch that had worked is over, because a rank *failed*. If that has lost its engine,
        its stay is over, and another begins. A link says nothing: it has two ends."""
        rank, engine = failed.rank, failed.kind is FailureKind.ENGINE_LOST
        if self._is_taken and (engine or failed.kind is FailureKind.MEMORY):
            self._forbid(failed)
        if not engine or not rank or rank not in self._came or rank in self._aside:
            return
        if now - self._came[rank] < STEADY_SECONDS:
            return  # one loss may be told several times
        hello = self.hellos[rank]
        self.lost(rank, now)
        if self._awaited[rank] <= now:
            self._restless.add(rank)
        self.came(rank, hello, now)

    def serves(self, ring: Ring) -> None:
        """*ring* serves: what its members failed is past."""
        self._served = ring
        for rank in ring:
            self._aside.pop(rank, None)

    # -------------------------------------------------------------- a smaller ring

    def prefer(self, preference: Preference | None, current: Ring) -> None:
        """Prefer a smaller ring, which was compared with the *current* one, or say anew why it is
        preferred; None: no more. Ignored once a preferred ring has failed. Raises
        `LocalProtocolError` unless its ranks rise from 0, are some of *current*, and are enough."""
        known = self.preference
        if known is not None and known.failed:
            return
        if preference is not None and (known is None or known.ring != preference.ring):
            ring = preference.ring
            rises = ring[:1] == (0,) and list(ring) == sorted(set(ring))
            if not rises or not set(ring) < set(current) or len(ring) < self._least:
                raise LocalProtocolError(f"the ranks {ring} are no smaller ring of {current}")
            self._compared = current
        self.preference = preference

    def _prefers(self, rank: int) -> bool:
        """Whether *rank* is in the ring that is preferred now."""
        preference = self.preference
        return preference is not None and not preference.failed and rank in preference.ring

    def _forbid(self, failed: Failure) -> None:
        """The preferred ring has *failed*."""
        if self.preference is not None:
            self.preference = attrs.evolve(self.preference, failed=failed.message)
        self._is_taken = False

    def _smaller(self, here: Collection[int], fits: Callable[[Ring], bool]) -> Ring | None:
        """The preferred ring, if it can be: of those that are *here* and may be in a ring."""
        preference = self.preference
        if preference is None or preference.failed:
            return None
        if not set(here) <= set(self._compared):
            self.preference = None
            return None
        able = set(preference.ring) <= set(here) and fits(preference.ring)
        return preference.ring if able else None

    # -------------------------------------------------------------------- the ring

    def ring(
        self, current: Ring, now: float, fits: Callable[[Ring], bool], free: float = math.inf
    ) -> Ring:
        """The ranks that the ring should have at *now*, given that it has *current*; *fits* says
        whether some ranks have room for the model. From *free* on the ring is idle, and may change
        only to be faster; infinity while it is not. *current* if nothing is to change."""
        ring = self._next_ring(current, now, fits, free)
        self._is_taken = self.preference is not None and ring == self.preference.ring
        return ring

    def _next_ring(
        self, current: Ring, now: float, fits: Callable[[Ring], bool], free: float
    ) -> Ring:
        self._end_waits(now)
        here = self._here()
        absent = [rank for rank in current if rank not in here]
        self.stuck = False
        if not absent:
            joins = [rank for rank in here if rank in current or now >= self._steady_from[rank]]
            wider = self._widest(joins, fits)
            self._roomless = set(joins) - set(wider or joins)
            smaller = self._smaller(joins, fits)
            if smaller is not None and (now >= free or current == smaller):
                return smaller
            if wider is not None and (set(wider) > set(current) or not fits(current)):
                return wider
            return current
        if 0 not in here or any(now < self._awaited.get(rank, now) for rank in absent):
            return current
        fewer = self._widest(here, fits) or self._widest(self._came, fits)
        self.stuck = fewer is None
        return fewer or current

    def _end_waits(self, now: float) -> None:
        """Those who have waited for long enough may be taken in again."""
        for rank in [rank for rank, until in self._aside.items() if now >= until]:
            self._try_again(rank)
        self._restless -= {rank for rank in self._restless if now >= self._steady_from[rank]}

    def _try_again(self, rank: int) -> None:
        """*rank* is not left out any more for what it failed."""
        self._aside.pop(rank, None)
        if rank == self._culprit:
            self._failed = 0

    def _here(self) -> set[int]:
        return self._came.keys() - self._aside.keys() - self._restless

    def _widest(self, ranks: Iterable[int], fits: Callable[[Ring], bool]) -> Ring | None:
        """The most of *ranks* that have room for the model: those with the least are left out."""
        ring = tuple(sorted(ranks))
        while len(ring) >= self._least and not fits(ring):
            poorest = min(ring[1:], key=lambda rank: self.hellos[rank].room, default=0)
            ring = tuple(rank for rank in ring if rank != poorest)
        return ring if len(ring) >= self._least else None

    def deadline(self, current: Ring, now: float, free: float = math.inf) -> float | None:
        """When, after *now*, to ask for the `ring` again, if nobody comes or goes; None: not at
        all. *free* is that of `ring`."""
        here = self._here()
        again = [*self._aside.values(), *(self._steady_from[rank] for rank in self._restless)]
        absent = [rank for rank in current if rank not in here]
        if absent:
            at = max(self._awaited.get(rank, now) for rank in absent)
            waits = [at, *again]
        else:
            waits = [*again, *(self._steady_from[rank] for rank in here if rank not in current)]
            if self._prefers(0) and not self._is_taken:
                waits.append(free if now < free < math.inf else now + IDLE_SECONDS)
        return min((at for at in waits if now < at < math.inf), default=None)

    def why_outside(self, rank: int) -> Outside:
        """Why the ring is without *rank*, and until when; for people."""
        if rank in self._unreadable:
            return Outside(f"its engine cannot read its model: {self._unreadable[rank]}")
        if rank not in self._came:
            # Another head before this one may have seen it.
            why = "it is away" if rank in self._lost else "it is not here"
            return Outside(why, since=self._lost.get(rank, self._began))
        again = self._aside.get(rank, math.inf)
        if again < math.inf:
            why = "it could not get ready; it is tried again by itself, or once it has started anew"
            return Outside(why, until=again)
        if rank in self._aside:
            return Outside(
                "it could not get ready; it is tried again once its layers have been fetched, or "
                "its engine or node has been started anew"
            )
        if rank in self._roomless:
            return Outside("it has too little room for a part of this model")
        if self._is_taken and self.preference is not None:
            return Outside(f"the ring is faster without it: {self.preference.why}", chosen=True)
        steady = self._steady_from[rank]
        came = "it has come again after a short stay" if self._short[rank] else "it has come"
        stay = f"once it has stayed for {steady - self._came[rank]:.0f} s"
        return Outside(f"{came}, and is taken in {stay}", until=steady)
