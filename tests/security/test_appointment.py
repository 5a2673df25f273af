"""A spare coordinator: who signs rosters after a change, and that every node comes to the same end.

The people are the owner, with the coordinator's key and the spare, and a thief, who has the
coordinator's key, too, and keys of his own.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from sealring_protocol.errors import (
    AuthenticationFailed,
    LocalProtocolError,
    RemoteProtocolError,
    RosterConflict,
)
from sealring_protocol.security.identity import SoftwareSigner, node_id
from sealring_protocol.security.roster import (
    SERIALS,
    Appointment,
    Roster,
    SignedRoster,
    name_spare,
    newer,
    open_roster,
    sign_roster,
)

from .pairs import ADA, BEN, CLUSTER, COORDINATOR, EVE, NOW, flip, roster, signed, signer
from .reference import H

KEY = COORDINATOR.public_key
SPARE, NEXT, LATER = signer("the spare"), signer("the next"), signer("the one after")
THIEF = signer("another key of eve")
ENDS = (node_id(ADA.public_key), node_id(BEN.public_key))
FIRST = name_spare(CLUSTER, 5, COORDINATOR, SPARE)
SECOND = FIRST.followed_by(CLUSTER, NEXT.public_key, SPARE)
THIRD = SECOND.followed_by(CLUSTER, LATER.public_key, SPARE)


def appointed(
    appointment: Appointment, at: int, by: SoftwareSigner, **changes: Any
) -> SignedRoster:
    """The roster *at* of those of the coordinator whom *appointment* names."""
    one = roster(serial=appointment.number * SERIALS + at)
    return sign_roster(attrs.evolve(one, appointment=appointment, **changes), by)


def takes(held: SignedRoster, candidate: SignedRoster) -> bool:
    try:
        newer(KEY, held.roster, candidate.encode(), NOW, *ENDS)
    except RemoteProtocolError:
        return False
    return True


NAMED = appointed(FIRST, 5, COORDINATOR)
CHANGED = appointed(SECOND, 1, NEXT)


def test_the_encoding_byte_by_byte():
    naming = COORDINATOR.sign(b"sealring/1SPARE" + H(CLUSTER + SPARE.public_key))
    payload = H(CLUSTER + bytes(7) + b"\x01" + NEXT.public_key)
    signature = SPARE.sign(b"sealring/1COORDINATOR" + payload)
    made = SPARE.public_key + naming + bytes(7) + b"\x01" + NEXT.public_key + signature
    assert SECOND.encode() == made
    plain = attrs.evolve(CHANGED.roster, appointment=None).encode()
    body = b"\x02" + plain[1:33] + made + plain[33:]
    assert CHANGED.encode() == body + NEXT.sign(b"sealring/1ROSTER" + H(body))
    assert Roster.decode(body) == CHANGED.roster


def test_a_roster_without_a_spare_is_what_it_was():
    assert signed().encode()[0] == 1
    assert signed().roster.coordinator(KEY) == KEY


def test_the_pinned_key_leads_to_whoever_signs():
    for whole, by in ((NAMED, COORDINATOR), (CHANGED, NEXT), (appointed(THIRD, 9, LATER), LATER)):
        assert open_roster(KEY, whole.encode()) == whole
        whole.verify(KEY)
        whole.verify_signer(by.public_key)
        assert whole.roster.coordinator(KEY) == by.public_key
        with pytest.raises(AuthenticationFailed):
            open_roster(EVE.public_key, whole.encode())
        with pytest.raises(AuthenticationFailed):
            whole.verify_signer(EVE.public_key)


def test_every_bit_before_the_name_counts():
    data = CHANGED.encode()
    for at in range(1, 33 + 266):
        with pytest.raises(AuthenticationFailed):
            open_roster(KEY, flip(data, at))
    for size in range(1 + 32 + 266 + 64):
        with pytest.raises(AuthenticationFailed):
            open_roster(KEY, data[:size])


def test_what_no_owner_signs_by_mistake():
    with pytest.raises(LocalProtocolError, match="does not appoint itself"):
        name_spare(CLUSTER, 5, COORDINATOR, COORDINATOR)
    with pytest.raises(LocalProtocolError, match="does not appoint itself"):
        FIRST.followed_by(CLUSTER, SPARE.public_key, SPARE)
    with pytest.raises(LocalProtocolError, match="not the spare coordinator's key"):
        FIRST.followed_by(CLUSTER, NEXT.public_key, COORDINATOR)
    with pytest.raises(LocalProtocolError, match="another key signs it"):
        sign_roster(CHANGED.roster, COORDINATOR)
    with pytest.raises(LocalProtocolError, match="not one of its coordinator's"):
        attrs.evolve(CHANGED.roster, serial=SERIALS - 1)
    with pytest.raises(LocalProtocolError, match="65 bytes"):
        attrs.evolve(FIRST, spare=b"\x04")
    with pytest.raises(LocalProtocolError, match="64 bytes"):
        attrs.evolve(FIRST, naming=b"")


class Broken:
    """A signer that makes no signature: of a security chip, say."""

    def __init__(self, public_key: bytes) -> None:
        self.public_key = public_key

    def sign(self, message: bytes) -> bytes:
        return bytes(64)


def test_a_signer_that_signs_wrongly_makes_no_appointment():
    for coordinator, spare in ((Broken(KEY), SPARE), (COORDINATOR, Broken(SPARE.public_key))):
        with pytest.raises(LocalProtocolError, match="own signer"):
            name_spare(CLUSTER, 5, coordinator, spare)


def test_a_node_that_was_away_takes_the_newest():
    """It has a roster without a spare, with one, or of an earlier change."""
    newest = appointed(THIRD, 3, LATER)
    for held in (signed(serial=4), NAMED, CHANGED):
        assert takes(held, newest)
        assert not takes(newest, held)


def test_a_change_is_newer_than_all_that_the_former_key_can_sign():
    last = appointed(FIRST, SERIALS - 1, COORDINATOR)
    assert takes(NAMED, last)
    assert takes(last, CHANGED)
    assert not takes(CHANGED, last)
    assert not takes(CHANGED, signed(serial=2**64 - 1))


def test_a_named_spare_stays():
    by_thief = name_spare(CLUSTER, 7 * SERIALS, COORDINATOR, EVE)
    for held in (NAMED, CHANGED):
        with pytest.raises(AuthenticationFailed, match="another spare"):
            newer(KEY, held.roster, appointed(by_thief, 1, COORDINATOR).encode(), NOW, *ENDS)
        with pytest.raises(AuthenticationFailed, match="does not name the spare"):
            newer(KEY, held.roster, signed(serial=2 * SERIALS).encode(), NOW, *ENDS)


def test_two_changes_with_one_number_are_a_conflict_that_the_next_change_ends():
    twin = FIRST.followed_by(CLUSTER, LATER.public_key, SPARE)
    for at in (1, 2):
        with pytest.raises(RosterConflict):
            newer(KEY, CHANGED.roster, appointed(twin, at, LATER).encode(), NOW, *ENDS)
    after = twin.followed_by(CLUSTER, KEY, SPARE)
    assert takes(CHANGED, appointed(after, 1, COORDINATOR))
    assert takes(appointed(twin, 9, LATER), appointed(after, 1, COORDINATOR))


def test_whatever_order_rosters_come_in_the_spare_decides():
    """Everything that the owner and the thief can make, small: each node that has heard of the
    spare ends, in whichever order it hears of the rest, with the newest of the last change."""
    thiefs = name_spare(CLUSTER, 5, COORDINATOR, EVE)
    thiefs_next = thiefs.followed_by(CLUSTER, THIEF.public_key, EVE)
    last = appointed(THIRD, 2, LATER)
    heard = [
        signed(serial=4),
        signed(serial=2**64 - 1),
        NAMED,
        appointed(FIRST, 6, COORDINATOR),
        appointed(FIRST, SERIALS - 1, COORDINATOR, name="the thief's"),
        appointed(thiefs, 7, COORDINATOR),
        appointed(thiefs_next, 8, THIEF),
        CHANGED,
        appointed(SECOND, 2, NEXT),
        appointed(THIRD, 1, LATER),
        last,
    ]
    spared = [
        each
        for each in heard
        if each.roster.appointment is not None and each.roster.appointment.spare == SPARE.public_key
    ]
    for held in spared:
        after = [each for each in heard if takes(held, each)]
        assert (last in after) == (held is not last)  # nothing keeps a node from the end,
        assert all(each in spared for each in after)  # leads it elsewhere,
        assert all(each.roster.serial > held.roster.serial for each in after)  # or in a circle.
