"""Which links a node wants, which are up, and which of two crossing links wins.

A wanted link is dialed with a pause that doubles up to a bound. Only a link that has stood for a
while resets the pause. A link that is wanted again is dialed at once: an epoch begins when its
ranks are present, and they may have been away for long. A greeting only exchanges rosters. It is
dialed until the peer has received it, even beside a link that is up.

One end of a link may yield, so that two dials do not cross. It dials only if the other has not
brought the link up within a moment, because something blocks connections in that direction.

Two nodes have one link of each purpose. The first established link stays. A second one from the
same process of the peer is refused as a duplicate; one from a new process replaces it. An old
process that connects again after it was replaced shows that two nodes use the same key, and would
replace each other for ever. It is refused while the newer one has a link.

When both ends dial at once, the end with the lower id holds its answer to the other's FIN while its
own dial is past RESP. A dial that is not past RESP is dropped once the other link is up. So exactly
one of the two is accepted.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final

import attrs

from sealring_protocol.control.deadlines import Backoff
from sealring_protocol.security.roles import Purpose

LONGEST_PAUSE: Final = 5.0
"""The longest pause between two dials of a link, in seconds. A link that stands this long resets
it."""

FIRST_REFUSED_PAUSE: Final = 5.0
"""The pause before a link is dialed again that one end refused for the other's version, in seconds.
It doubles up to `LONGEST_REFUSED_PAUSE`: only another program makes a difference, and its process
dials by itself."""

LONGEST_REFUSED_PAUSE: Final = 60.0

REST_SECONDS: Final = 600.0
"""Seconds between dials of a peer that has removed this node from the roster."""

YIELD_SECONDS: Final = 1.0
"""Seconds by which the yielding end dials later."""

Key = tuple[bytes, Purpose]
"""A peer's node id, and the purpose of the link with it."""


class Verdict(enum.Enum):
    """What to do with an authenticated peer. TWIN is a replaced process that came back."""

    ADMIT = "admit"
    REPLACE = "replace"
    DUPLICATE = "duplicate"
    HOLD = "hold"
    TWIN = "twin"


LIVES: Final = 8
"""Replaced processes of a peer that are remembered for each link."""


@attrs.define
class _Wanted:
    once: bool
    next_try: float
    backoff: Backoff = attrs.field(factory=partial(Backoff, LONGEST_PAUSE))
    refusals: Backoff = attrs.field(
        factory=partial(Backoff, LONGEST_REFUSED_PAUSE, FIRST_REFUSED_PAUSE)
    )
    yields: float = 0.0
    dialing: bool = False
    greeting: bool = False  # exchange rosters even if a link is up
    probing: bool = False  # dial once, even if a link is up
    probe_only: bool = False  # neither wanted nor greeted: gone once it was dialed


@attrs.frozen
class LiveLink:
    """An established link: its number, the peer's *instance* (random per process), and its
    start."""

    link: int
    instance: int
    since: float


class Dialer:
    """The wanted and established links of the node with id *own*. Times are monotonic seconds."""

    def __init__(self, own: bytes) -> None:
        self._own = own
        self._wishes: dict[Key, _Wanted] = {}
        self.up: dict[Key, LiveLink] = {}
        """The established links. To be read only."""
        self._answered: set[Key] = set()  # this node's dials that are past RESP
        self._replaced: dict[Key, deque[int]] = {}  # the replaced instances, oldest first
        self._doubtful: set[bytes] = set()  # peers that once seemed to have removed this node
        self._resting: dict[bytes, float] = {}  # peers not to dial, and until when

    # ---------------------------------------------------------------- wishes

    def want(self, key: Key, now: float, *, yields: bool = False) -> None:
        """Keep the link *key* up from now on: dial it now, or a moment later if this end
        *yields*."""
        after = YIELD_SECONDS if yields else 0.0
        wish = self._wishes.setdefault(key, _Wanted(False, now + after))
        wish.once = wish.probe_only = False
        wish.yields = after
        wish.next_try = min(wish.next_try, now + after)

    def greet(self, key: Key, now: float) -> None:
        """Dial *key* until the peer has exchanged rosters once. If a link is up, the peer refuses
        the dial as a duplicate, but only after it has taken the roster."""
        wish = self._wishes.setdefault(key, _Wanted(True, now))
        wish.probe_only = False
        if key in self.up:
            wish.greeting = True
            wish.next_try = min(wish.next_try, now)

    def probe(self, key: Key, now: float) -> None:
        """Dial *key* once, even if a link is up. If it fails, nothing follows."""
        wish = self._wishes.setdefault(key, _Wanted(True, now, probe_only=True))
        wish.probing = True
        wish.next_try = min(wish.next_try, now)

    def let_go(self, key: Key) -> None:
        """Do not keep *key* up any more. If no link is up, one greeting is still due."""
        wish = self._wishes.get(key)
        if wish is None or wish.probe_only:
            return
        wish.once = True
        if key in self.up and not wish.greeting:
            del self._wishes[key]

    def forget(self, peer: bytes) -> None:
        """Stop dialing *peer*."""
        for key in [key for key in self._wishes if key[0] == peer]:
            del self._wishes[key]

    def forget_all(self, purposes: set[Purpose], peer: bytes | None = None) -> None:
        """Stop dialing links of *purposes*: with *peer* alone, if it is given."""
        for key in [key for key in self._wishes if key[1] in purposes and peer in (None, key[0])]:
            del self._wishes[key]

    def due(self, now: float) -> list[tuple[Key, bool]]:
        """The links to dial now, and whether each dial is a probe."""
        found = []
        for key, wish in self._wanted():
            if now >= self._next_try(key, wish):
                found.append((key, wish.probing))
                wish.dialing, wish.probing = True, False
        return found

    def next_timeout(self) -> float | None:
        """When the next dial is due."""
        return min([self._next_try(*each) for each in self._wanted()], default=None)

    def _wanted(self) -> list[tuple[Key, _Wanted]]:
        """What is wanted, and not there or on its way."""
        return [
            (key, wish)
            for key, wish in self._wishes.items()
            if not wish.dialing and (wish.greeting or wish.probing or key not in self.up)
        ]

    def _next_try(self, key: Key, wish: _Wanted) -> float:
        return max(wish.next_try, self._resting.get(key[0], wish.next_try))

    def rest(self, peer: bytes, now: float) -> bool:
        """*peer* seems to have removed this node from the roster. If it seemed so last time, too,
        dial it only every `REST_SECONDS`; a single time may be a broken handshake. True if that
        begins now."""
        if peer not in self._doubtful:
            self._doubtful.add(peer)
            return False
        news = peer not in self._resting
        self._resting[peer] = now + REST_SECONDS
        return news

    def wake(self) -> None:
        """Dial every peer again, because this node has a new roster."""
        self._doubtful.clear()
        self._resting.clear()

    def is_resting(self, peer: bytes) -> bool:
        """True if *peer* seems to have removed this node from the roster."""
        return peer in self._resting

    def dial_ended(self, key: Key, now: float) -> None:
        """A dial of this node failed, or its link is gone: dial again after a pause."""
        self._answered.discard(key)
        wish = self._wishes.get(key)
        if wish is not None and wish.probe_only:
            del self._wishes[key]
        elif wish is not None:
            wish.dialing = False
            wish.next_try = now + wish.backoff.next() + wish.yields

    def satisfied(self, key: Key) -> None:
        """The greeting has reached the peer."""
        wish = self._wishes.get(key)
        if wish is not None:
            wish.greeting = False
            if wish.once:
                del self._wishes[key]

    def dial_answered(self, key: Key) -> None:
        """This node's dial of *key* is past RESP."""
        self._answered.add(key)

    def is_answered(self, key: Key) -> bool:
        """True if this node's dial is past RESP: its FIN is on the way, and the peer decides."""
        return key in self._answered

    # ----------------------------------------------------------------- links

    def standing(self, peer: bytes) -> dict[Purpose, float]:
        """The established links with *peer*: the start of each, by purpose."""
        return {key[1]: contact.since for key, contact in self.up.items() if key[0] == peer}

    def wanted_or_up(self, key: Key) -> bool:
        """True if the link *key* is wanted, or up."""
        return key in self._wishes or key in self.up

    def judge(self, key: Key, instance: int) -> Verdict:
        """What to do with an incoming link *key* from the peer's process *instance*."""
        contact = self.up.get(key)
        if contact is not None:
            if contact.instance == instance:
                return Verdict.DUPLICATE
            twin = instance in self._replaced.get(key, ())
            return Verdict.TWIN if twin else Verdict.REPLACE
        if key in self._answered and self._own < key[0]:
            return Verdict.HOLD
        return Verdict.ADMIT

    def replaced(self, key: Key, lives: Iterable[int]) -> None:
        """Remember *lives*, whose last process is replaced by the link of *key* that comes up
        now."""
        self._replaced[key] = deque(lives, LIVES)

    def lives(self, key: Key) -> list[int]:
        """The instances of the peer that have had the link *key*, each replaced by the next; the
        last is the present one."""
        contact = self.up.get(key)
        return [*self._replaced.get(key, ()), *([] if contact is None else [contact.instance])]

    def established(self, key: Key, contact: LiveLink) -> None:
        """The link *contact* of *key* is up."""
        self._answered.discard(key)
        self._doubtful.discard(key[0])
        self._resting.pop(key[0], None)
        self.up[key] = contact
        wish = self._wishes.get(key)
        if wish is not None:
            wish.dialing = False

    def lost(self, key: Key, link: int, now: float) -> bool:
        """Link number *link* of *key* is gone. False if another has taken its place."""
        contact = self.up.get(key)
        if contact is None or contact.link != link:
            return False
        del self.up[key]
        self._replaced.pop(key, None)
        wish = self._wishes.get(key)
        if wish is not None:
            wish.probing = False
            if now - contact.since >= LONGEST_PAUSE:
                wish.backoff.reset()
                wish.refusals.reset()
            self.dial_ended(key, now)
        return True

    def refused(self, key: Key, now: float) -> None:
        """One end refused the other's version on the link of *key*, which is gone: dial it again
        after a longer pause."""
        wish = self._wishes.get(key)
        if wish is not None:
            wish.next_try = now + wish.refusals.next()
