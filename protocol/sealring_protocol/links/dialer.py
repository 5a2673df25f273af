"""Which links a node keeps up, which it has, and which of two wins.

Wanted links are dialed with a pause that doubles up to a bound, over a member's addresses in
turn; only a link that has lived for a while makes the pause short again. One that is wanted once
more is dialed at once: an epoch begins when its ranks are there, and they may have been away for
long. A greeting, which only carries a roster, is dialed until the peer has heard it, also beside a
link that is up.

Of the two ends of a link one may wait, which spares the other a dial that would cross its own: it
dials only what the other has not brought up within a moment, because something keeps connections
from being opened in that direction.

Between two nodes there is one link of each purpose. The first that is established stays; a second
one from the same life of the peer is refused as a duplicate, and one from a new life replaces it.
A life whose link was replaced is over. One that comes again nevertheless shows that two nodes run
with one key, which would replace each other for ever: it is refused while the newer one has a link.
When both ends dial at once, the end with the lower id holds its answer to the other's FIN while
its own dial is past RESP, and a dial that is not past RESP is given up once the other link is up;
so exactly one of the two is accepted.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final

import attrs

from sealring_protocol.backoff import Backoff
from sealring_protocol.security.roles import Purpose

LONGEST_PAUSE: Final = 5.0
"""Seconds between two dials of a link, at most. A link that lives as long makes the pause short."""

REST_SECONDS: Final = 600.0
"""How long a peer that has put this node out is left alone."""

YIELD_SECONDS: Final = 1.0
"""How much longer the end waits that leaves it to the other to dial first."""

Key = tuple[bytes, Purpose]
"""A peer's node id, and the purpose of the link with it."""


class Verdict(enum.Enum):
    """What becomes of a peer that has proved who it is."""

    ADMIT = "admit"
    REPLACE = "replace"
    DUPLICATE = "duplicate"
    HOLD = "hold"
    TWIN = "twin"


LIVES: Final = 8
"""Replaced lives of a peer that are remembered for a link."""


@attrs.define
class _Wanted:
    once: bool
    next_try: float
    backoff: Backoff = attrs.field(factory=partial(Backoff, LONGEST_PAUSE))
    turn: int = 0
    yields: float = 0.0
    dialing: bool = False
    greeting: bool = False  # the peer is to hear of a roster, though a link may be up


@attrs.frozen
class LiveLink:
    """An established link: its number, and the life of the peer that it is with."""

    link: int
    instance: int
    since: float


class Dialer:
    """The wishes and links of the node with id *own*. Times are monotonic seconds."""

    def __init__(self, own: bytes) -> None:
        self._own = own
        self._wishes: dict[Key, _Wanted] = {}
        self._up: dict[Key, LiveLink] = {}
        self._answered: set[Key] = set()  # own dials past RESP
        self._replaced: dict[Key, deque[int]] = {}  # the lives before that of the link
        self._doubtful: set[bytes] = set()  # peers that seemed to have put this node out, once
        self._resting: dict[bytes, float] = {}  # peers that are left alone, and until when

    # ---------------------------------------------------------------- wishes

    def want(self, key: Key, now: float, *, yields: bool = False) -> None:
        """Keep a link *key* up from now on, and dial it now if it is not; a moment later if it
        *yields* to the other end."""
        after = YIELD_SECONDS if yields else 0.0
        wish = self._wishes.setdefault(key, _Wanted(False, now + after))
        wish.once = False
        wish.yields = after
        wish.next_try = min(wish.next_try, now + after)

    def greet(self, key: Key, now: float) -> None:
        """Dial *key* until the peer has heard once what this node has to say: also beside a link
        that is up, which the peer refuses, but only after it has taken the roster."""
        wish = self._wishes.setdefault(key, _Wanted(True, now))
        if key in self._up:
            wish.greeting = True
            wish.next_try = min(wish.next_try, now)

    def forget(self, peer: bytes) -> None:
        """Stop dialing *peer*."""
        for key in [key for key in self._wishes if key[0] == peer]:
            del self._wishes[key]

    def forget_all(self, purposes: set[Purpose]) -> None:
        """Stop dialing links of *purposes*."""
        for key in [key for key in self._wishes if key[1] in purposes]:
            del self._wishes[key]

    def due(self, now: float) -> list[tuple[Key, int]]:
        """The links to dial now, each with the number of its try."""
        found = []
        for key, wish in self._wishes.items():
            if self._is_wanting(key, wish) and now >= self._next_try(key, wish):
                wish.dialing = True
                found.append((key, wish.turn))
                wish.turn += 1
        return found

    def next_timeout(self) -> float | None:
        """When the next dial is due."""
        times = [
            self._next_try(key, wish)
            for key, wish in self._wishes.items()
            if self._is_wanting(key, wish)
        ]
        return min(times, default=None)

    def _is_wanting(self, key: Key, wish: _Wanted) -> bool:
        return not wish.dialing and (wish.greeting or key not in self._up)

    def _next_try(self, key: Key, wish: _Wanted) -> float:
        return max(wish.next_try, self._resting.get(key[0], wish.next_try))

    def rest(self, peer: bytes, now: float) -> bool:
        """*peer* seems to have put this node out: leave it alone for a while if it seemed so the
        last time, too, for once a handshake may just have broken. True if that is news."""
        if peer not in self._doubtful:
            self._doubtful.add(peer)
            return False
        news = peer not in self._resting
        self._resting[peer] = now + REST_SECONDS
        return news

    def wake(self) -> None:
        """Dial everybody again: this node has another roster."""
        self._doubtful.clear()
        self._resting.clear()

    def is_resting(self, peer: bytes) -> bool:
        """*peer* has put this node out, as far as is known."""
        return peer in self._resting

    def dial_ended(self, key: Key, now: float) -> None:
        """An own dial came to nothing, or its link is gone: try again after a pause."""
        self._answered.discard(key)
        wish = self._wishes.get(key)
        if wish is not None:
            wish.dialing = False
            wish.next_try = now + wish.backoff.next() + wish.yields

    def satisfied(self, key: Key) -> None:
        """The peer has heard what a greeting had to say."""
        wish = self._wishes.get(key)
        if wish is not None:
            wish.greeting = False
            if wish.once:
                del self._wishes[key]

    def dial_answered(self, key: Key) -> None:
        """An own dial is past RESP."""
        self._answered.add(key)

    def is_answered(self, key: Key) -> bool:
        """An own dial is past RESP: its FIN is on the way, and the peer decides."""
        return key in self._answered

    # ----------------------------------------------------------------- links

    def get(self, key: Key) -> LiveLink | None:
        """The established link of *key*."""
        return self._up.get(key)

    def standing(self, peer: bytes) -> dict[Purpose, float]:
        """The established links with *peer*, with the time since when each is."""
        return {key[1]: contact.since for key, contact in self._up.items() if key[0] == peer}

    def wanted_or_up(self, key: Key) -> bool:
        """The link *key* is wanted, or up."""
        return key in self._wishes or key in self._up

    def judge(self, key: Key, instance: int) -> Verdict:
        """What to do with an incoming link *key* from the life *instance* of its peer."""
        contact = self._up.get(key)
        if contact is not None:
            if contact.instance == instance:
                return Verdict.DUPLICATE
            twin = instance in self._replaced.get(key, ())
            return Verdict.TWIN if twin else Verdict.REPLACE
        if key in self._answered and self._own < key[0]:
            return Verdict.HOLD
        return Verdict.ADMIT

    def replaced(self, key: Key, lives: Iterable[int]) -> None:
        """The link of *key* that comes up now takes the place of one with the last of *lives*."""
        self._replaced[key] = deque(lives, LIVES)

    def lives(self, key: Key) -> list[int]:
        """The lives of the peer that have had the link *key*, up to the one that has it, as long
        as each has taken the place of the one before."""
        contact = self._up.get(key)
        return [*self._replaced.get(key, ()), *([] if contact is None else [contact.instance])]

    def established(self, key: Key, contact: LiveLink) -> None:
        """The link *contact* of *key* is up."""
        self._answered.discard(key)
        self._doubtful.discard(key[0])
        self._resting.pop(key[0], None)
        self._up[key] = contact
        wish = self._wishes.get(key)
        if wish is not None:
            wish.dialing = False

    def lost(self, key: Key, link: int, now: float) -> bool:
        """Link number *link* of *key* is gone. False if another has taken its place."""
        contact = self._up.get(key)
        if contact is None or contact.link != link:
            return False
        del self._up[key]
        self._replaced.pop(key, None)
        wish = self._wishes.get(key)
        if wish is not None:
            if now - contact.since >= LONGEST_PAUSE:
                wish.backoff.reset()
            self.dial_ended(key, now)
        return True
