"""Faults that are planted: what breaks a rule of elections or of answers, each to be found by some
seed. A search that finds nothing in the rest says something only if it finds these."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, Final
from unittest import mock

import attrs
from sealring.http import resume
from sealring.http.bodies import PassedOn
from sealring_protocol.control.election import Election

from spec.formal.weak_elections import ELECTION_WEAK

Patch = Callable[[], contextlib.AbstractContextManager[Any]]


class GoesOn(Election):
    """A head goes on though nobody has renewed its lease."""

    @property
    def leads_until(self) -> float:
        until = super().leads_until
        return math.inf if self.mandate.head == self._own and not self._lease.given_up else until


def _place(more: int) -> Patch:
    """The front asks for what follows another event than the last that its client has."""
    right = PassedOn.place.fget  # type: ignore[attr-defined]
    wrong = property(lambda self: max(0, right(self) + more))
    return lambda: mock.patch.object(PassedOn, "place", wrong)


def _last_event(headers: Any) -> tuple[str, int]:
    name, number = _right_last_event(headers)
    return name, max(-1, number - 1)


_right_last_event = resume._last_event


@attrs.frozen
class Planted:
    """A fault, in words, and how it shows: *owed* is in what a course says is broken. Members are
    of another *kind*, or their disks keep no vote (*forgets*), or something is *patched*."""

    about: str
    owed: str
    kind: type[Election] = Election
    forgets: bool = False
    patched: Patch = contextlib.nullcontext


LEASE, VOTE = "two heads", "two votes"
ANSWER = "gap or double"

PLANTED: Final = {
    "vote-twice": Planted(
        "a member votes twice in a term", VOTE, ELECTION_WEAK["votes-twice"].kind
    ),
    "vote-not-on-disk": Planted("a vote leaves that is not on disk", VOTE, forgets=True),
    "old-head-goes-on": Planted("a head goes on without a lease", LEASE, GoesOn),
    "event-twice": Planted("the next head gives an event again", ANSWER, patched=_place(-1)),
    "event-missing": Planted("the next head leaves an event out", ANSWER, patched=_place(1)),
    "event-twice-to-who-comes-back": Planted(
        "who comes back is given an event again",
        ANSWER,
        patched=lambda: mock.patch.object(resume, "_last_event", _last_event),
    ),
    **{
        name: Planted(variant.about, "a coup" if name == "obeys-takers" else LEASE, variant.kind)
        for name, variant in ELECTION_WEAK.items()
        if name not in ("votes-twice", "half-is-enough")
    },
    "half-is-enough": Planted(
        "half of the votes make a head", "make no head", ELECTION_WEAK["half-is-enough"].kind
    ),
}
