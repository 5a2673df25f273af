"""Rosters whose members have elected a head: ranks and indices, and what is newer."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring_protocol.errors import (
    AuthenticationFailed,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.limits import MAX_ELECTED, MAX_ROSTER
from sealring_protocol.security.identity import SIGNATURE
from sealring_protocol.security.mandate import UNELECTED, Certificate, Mandate, vote_payload
from sealring_protocol.security.roster import (
    Member,
    Rights,
    Roster,
    SignedRoster,
    is_newer,
    newer,
    open_roster,
    sign_roster,
)

from .pairs import COORDINATOR, signer

SIGNERS = [signer(name) for name in "abcde"]
RIGHTS = (Rights.TEXT, Rights.TEXT, Rights(0), Rights.TEXT, Rights.TEXT | Rights.WITNESS)
MEMBERS = tuple(
    Member(key.public_key, name, rights=rights)
    for key, name, rights in zip(SIGNERS, "abcde", RIGHTS, strict=True)
)
PLAIN = Roster(bytes(32), "home", 1, 0, 10, True, MEMBERS)
SIGNED = sign_roster(PLAIN, COORDINATOR)
KEY = COORDINATOR.public_key


def certificate(term: int, head: int, *voters: int) -> Certificate:
    payload = vote_payload(PLAIN.digest, term, head)
    return Certificate(term, head, tuple((each, SIGNERS[each].sign(payload)) for each in voters))


def names(roster: Roster) -> str:
    return "".join(member.name for member in roster.members)


@given(st.sampled_from((0, 1, 3)), st.sampled_from((0, 1, 3)))
def test_who_is_elected_comes_first_and_the_others_keep_their_order(before, head):
    roster = PLAIN.elected(Mandate(1, before)).elected(Mandate(2, head))
    assert names(roster) == {0: "abcde", 1: "bacde", 3: "dabce"}[head]
    assert roster.mandate == Mandate(2, head)
    assert roster.in_own_order == MEMBERS
    assert (roster.encoded, roster.digest) == (PLAIN.encoded, PLAIN.digest)
    for rank, member in enumerate(roster.members):
        assert MEMBERS[roster.index(rank)] is member
        assert roster.rank_at(roster.index(rank)) == rank
        assert roster.rank(member.id) == rank
    assert roster.head_indices == (0, 1, 3)
    assert [roster.members[rank].name for rank in roster.heads] == sorted(
        "abd", key=names(roster).index
    )


@pytest.mark.parametrize("head", [2, 4, 5, 64])
def test_who_may_not_be_head_is_not_elected(head):
    with pytest.raises(LocalProtocolError):
        PLAIN.elected(Mandate(1, head))
    with pytest.raises(LocalProtocolError):
        attrs.evolve(PLAIN, mandate=Mandate(1, head), members=MEMBERS[::-1])


def test_nobody_is_elected_in_term_0():
    with pytest.raises(LocalProtocolError):
        PLAIN.elected(Mandate(0, 1))


def test_a_fixed_head_is_the_first_member():
    fixed = attrs.evolve(PLAIN, fixed_head=True)
    assert fixed.encoded[39 + 24] == PLAIN.encoded[39 + 24] | 8
    assert Roster.decode(fixed.encoded) == fixed
    assert (fixed.heads, fixed.head_indices) == ((0,), (0,))
    assert fixed.elected(Mandate(1, 0)).heads == (0,)
    for elect in (
        lambda: fixed.elected(Mandate(1, 1)),
        lambda: attrs.evolve(PLAIN.elected(Mandate(1, 1)), fixed_head=True),
        lambda: attrs.evolve(fixed, members=MEMBERS[2:]),
    ):
        with pytest.raises(LocalProtocolError):
            elect()


def test_an_elected_roster_has_the_certificate_before_it():
    made = certificate(3, 1, 0, 2, 4)
    signed = SIGNED.elected(made)
    assert signed.roster == PLAIN.elected(Mandate(3, 1))
    assert signed.encode() == b"\x03" + made.encode() + SIGNED.encode()
    assert SignedRoster.decode(signed.encode()) == open_roster(KEY, signed.encode()) == signed
    signed.verify(KEY)
    signed.verify_signer(KEY)
    assert signed.elected(None) == SIGNED
    assert signed.elected(certificate(4, 0, 0, 1, 2)).roster.members == MEMBERS
    taken = SIGNED.elected(certificate(3, 3, 3))
    assert open_roster(KEY, taken.encode()).roster.mandate == Mandate(3, 3, taken=True)


def test_a_certificate_that_does_not_verify_makes_no_roster():
    made = certificate(3, 1, 0, 2, 4)
    forged = attrs.evolve(made, votes=(*made.votes[:2], (4, made.votes[0][1])))
    signed = SIGNED.elected(forged)
    assert SignedRoster.decode(signed.encode()) == signed
    for check in (lambda: signed.verify(KEY), lambda: open_roster(KEY, signed.encode())):
        with pytest.raises(AuthenticationFailed):
            check()
    for wrong in (certificate(0, 1, 0, 1, 2), certificate(1, 1, 0, 1), certificate(1, 2, 0, 1, 2)):
        data = b"\x03" + wrong.encode() + SIGNED.encode()
        for read in (SIGNED.elected, lambda _, data=data: open_roster(KEY, data)):
            with pytest.raises(RemoteProtocolError):
                read(wrong)
    with pytest.raises(LocalProtocolError):
        SignedRoster(PLAIN.elected(Mandate(4, 1)), SIGNED.signature, made)
    with pytest.raises(LocalProtocolError):
        SignedRoster(PLAIN.elected(Mandate(3, 1)), SIGNED.signature)


def test_the_coordinator_is_checked_before_the_votes():
    made = certificate(3, 1, 0, 2, 4)
    forged = b"\x03" + made.encode() + PLAIN.encoded + bytes(SIGNATURE)
    for data in (forged, b"\x03" + made.encode(), forged[: 1 + 12 + 66 * 3 + 50]):
        with pytest.raises(AuthenticationFailed):
            open_roster(KEY, data)
    with pytest.raises(RemoteProtocolError):
        open_roster(KEY, b"\x03" + made.encode()[:-1])
    twice = b"\x03" + made.encode() + SIGNED.elected(made).encode()
    with pytest.raises(AuthenticationFailed):
        open_roster(KEY, twice)


def test_the_limits_are_those_of_the_longest():
    crowd = Certificate(1, 0, tuple((each, bytes(SIGNATURE)) for each in range(64)))
    begin = b"\x03" + crowd.encode()
    assert len(begin) + MAX_ROSTER == MAX_ELECTED
    longest = begin + bytes([1]) * MAX_ROSTER
    with pytest.raises(AuthenticationFailed):
        open_roster(KEY, longest)
    for longer in (
        longest + b"\0",
        b"\x03" + Certificate(1, 0, ()).encode() + bytes(MAX_ROSTER + 1),
    ):
        with pytest.raises(LimitExceeded):
            open_roster(KEY, longer)


def test_a_mandate_that_beats_the_other_is_newer():
    held = PLAIN.elected(Mandate(3, 1))
    assert is_newer(PLAIN, 1, PLAIN.digest, Mandate(1, 0))
    assert is_newer(held, 1, PLAIN.digest, Mandate(4, 0, taken=True))
    assert is_newer(held, 1, PLAIN.digest, Mandate(3, 0))
    assert is_newer(held, 2, bytes(32), UNELECTED)
    for mandate in (UNELECTED, Mandate(3, 1), Mandate(3, 3), Mandate(3, 0, taken=True)):
        assert not is_newer(held, 1, PLAIN.digest, mandate)


def test_a_later_election_replaces_the_roster():
    first, later = (SIGNED.elected(certificate(term, 1, 0, 1, 2)) for term in (1, 2))
    assert newer(KEY, SIGNED.roster, first.encode(), 5) == first
    assert newer(KEY, first.roster, later.encode(), 5) == later
    for old in (SIGNED, first, later):
        with pytest.raises(RemoteProtocolError, match=r"is not newer than .* of term 2"):
            newer(KEY, later.roster, old.encode(), 5)
    following = sign_roster(attrs.evolve(PLAIN, serial=2), COORDINATOR)
    assert newer(KEY, later.roster, following.encode(), 5) == following


def test_a_coordinator_signs_no_mandate():
    elected = attrs.evolve(PLAIN.elected(Mandate(1, 1)), serial=2)
    with pytest.raises(LocalProtocolError, match="mandate"):
        sign_roster(elected, COORDINATOR)
    following = sign_roster(attrs.evolve(elected, mandate=UNELECTED), COORDINATOR)
    assert names(following.roster) == names(Roster.decode(following.roster.encoded)) == "bacde"
