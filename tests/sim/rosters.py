"""The members of simulated clusters: their keys, and the rosters that their coordinator signs."""

from __future__ import annotations

from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roster import Member, Roster, SignedRoster, sign_roster

WALL = 1_700_000_000_000
COORDINATOR = SoftwareSigner.from_scalar(99991)


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
) -> SignedRoster:
    members = tuple(
        Member(signer(index).public_key, f"node{index}", (f"host{index}:1",))
        for index in order or range(world)
    )
    until = WALL + lifetime_ms
    roster = Roster(b"c" * 32, "test", serial, WALL - 1000, until, inner_seal, members, tensor)
    return sign_roster(roster, COORDINATOR)
