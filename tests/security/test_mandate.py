"""Certificates and mandates, where the vectors do not look: what a caller may not ask for."""

from __future__ import annotations

import pytest
from sealring_protocol.errors import LocalProtocolError, wire_code
from sealring_protocol.security.mandate import Certificate, Mandate, vote_payload
from sealring_protocol.security.roster import Roster, open_roster

from spec.vectors.elections import FOUR, PEOPLE, elected, vote
from spec.vectors.world import COORDINATOR, HOME, TERMS

ROSTER = open_roster(COORDINATOR.public, HOME).roster


def judged(certificate: Certificate, roster: Roster) -> Mandate:
    keys = [member.public_key for member in roster.members]
    return certificate.verify(roster.digest, keys, roster.head_indices)


def test_a_vote_that_a_signer_makes_counts():
    votes = tuple(
        (voter, PEOPLE[voter].signer.sign(vote_payload(ROSTER.digest, 3, 2))) for voter in (0, 2)
    )
    certificate = Certificate(3, 2, votes)
    assert certificate.encode() == elected(TERMS, 3, 2, 0, 2)
    assert judged(certificate, ROSTER) == Mandate(3, 2)


def test_votes_of_a_roster_do_not_count_in_the_next():
    data = elected(FOUR, 1, 1, 0, 1, 2)
    assert judged(Certificate.decode(data), Roster.decode(FOUR.encode())) == Mandate(1, 1)
    with pytest.raises(Exception, match="signature") as caught:
        judged(Certificate.decode(data), ROSTER)
    assert wire_code(caught.value).name == "AUTHENTICATION_FAILED"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        Certificate(1 << 64, 0, ()),
        Certificate(1, 1 << 16, ()),
        Certificate(1, 1, ((1, bytes(63)),)),
        Certificate(1, 1, tuple((voter, bytes(64)) for voter in range(65))),
    ],
    ids=["term", "head", "signature", "votes"],
)
def test_what_has_no_encoding(wrong):
    with pytest.raises(LocalProtocolError):
        wrong.encode()
    with pytest.raises(LocalProtocolError):
        vote_payload(ROSTER.digest, 1 << 64, 0)


def test_the_most_votes_have_an_encoding():
    most = Certificate(1, 1, tuple((voter, bytes(64)) for voter in range(64)))
    assert Certificate.decode(most.encode()) == most


def test_mandates_have_an_order_that_all_agree_on():
    ordered = [
        Mandate(0, 0),
        Mandate(1, 2, taken=True),
        Mandate(1, 1, taken=True),
        Mandate(1, 2),
        Mandate(1, 1),
        Mandate(2, 2, taken=True),
    ]
    for place, low in enumerate(ordered):
        assert not any(low.beats(other) for other in ordered[place:])
        assert all(low.beats(other) for other in ordered[:place])


def test_the_vectors_votes_are_those_of_the_code():
    own = vote(PEOPLE[1], ROSTER.digest, 1, 1)
    assert own == PEOPLE[1].signer.sign(vote_payload(ROSTER.digest, 1, 1))
