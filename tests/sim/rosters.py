"""The members of simulated clusters: their keys, and the rosters that their coordinator signs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import attrs
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roster import (
    SERIALS,
    Appointment,
    Member,
    Rights,
    Roster,
    SignedRoster,
    name_spare,
    sign_roster,
)

WALL = 1_700_000_000_000
COORDINATOR = SoftwareSigner.from_scalar(99991)
SPARE, NEXT, THIEF = (SoftwareSigner.from_scalar(99992 + n) for n in range(3))


@cache
def signer(index: int) -> SoftwareSigner:
    return SoftwareSigner.from_scalar(1000 + index)


def make_roster(
    world: int,
    serial: int = 1,
    inner_seal: bool = True,
    order: tuple[int, ...] = (),
    lifetime_ms: int = 10**9,
    *,
    tensor: bool = True,
    rights: Mapping[int, Rights] | None = None,
    fixed_head: bool = False,
) -> SignedRoster:
    """*rights* are those of members that have unusual ones, by index."""
    having = rights or {}
    members = tuple(
        Member(
            signer(index).public_key,
            f"node{index}",
            (f"host{index}:1",),
            rights=having.get(index, Rights.TEXT),
        )
        for index in order or range(world)
    )
    until = WALL + lifetime_ms
    roster = Roster(
        *(b"c" * 32, "test", serial, WALL - 1000, until, inner_seal, members, tensor),
        fixed_head=fixed_head,
    )
    return sign_roster(roster, COORDINATOR)


def appoint(number: int = 0, by: SoftwareSigner = COORDINATOR) -> Appointment:
    """The appointment of *by* as coordinator *number*, by the spare that the cluster has."""
    made = name_spare(b"c" * 32, 1, COORDINATOR, SPARE)
    if number:
        before = attrs.evolve(made, number=number - 1)
        made = before.followed_by(b"c" * 32, by.public_key, SPARE)
    return made


def appointed(
    roster: SignedRoster, number: int = 0, at: int = 1, by: SoftwareSigner = COORDINATOR
) -> SignedRoster:
    """*roster* as the one *at* of those that *by* signs as coordinator *number*."""
    serial = number * SERIALS + at
    changed = attrs.evolve(roster.roster, serial=serial, appointment=appoint(number, by))
    return sign_roster(changed, by)
