"""Who may send what."""

import itertools

import pytest
from sealring_protocol.codec.messages import Accept, Step
from sealring_protocol.security.roles import (
    ALLOWED,
    Purpose,
    Role,
    allowed,
    role,
)

ALIVE = {"Ping", "Pong", "Close"}
ELECTS = {"Candidacy", "Vote", "NoVote"}
FROM_HEAD = {"Bootstrap", "Row", "Step", "Waiting", "Addresses", "Renew"} | ELECTS
TO_HEAD = {
    *("Hello", "Prepared", "Ready", "StepDone", "CannotServe", "Checked", "Addresses", "Renewed"),
    *ELECTS,
}

CASES = [
    (Purpose.CONTROL, 0, 1, 3, FROM_HEAD),
    (Purpose.CONTROL, 0, 2, 3, FROM_HEAD),
    (Purpose.CONTROL, 1, 0, 3, TO_HEAD),
    (Purpose.CONTROL, 2, 0, 3, TO_HEAD),
    (Purpose.CONTROL, 1, 2, 3, ELECTS),
    (Purpose.CONTROL, 2, 1, 3, ELECTS),
    (Purpose.CONTROL, 3, 0, 3, set()),
    (Purpose.CONTROL, 0, 3, 3, set()),
    (Purpose.CONTROL, 0, 0, 1, set()),
    (Purpose.STEP, 0, 1, 3, {"Step"}),
    (Purpose.STEP, 1, 2, 3, {"Step"}),
    (Purpose.STEP, 2, 0, 3, {"StepDone"}),
    (Purpose.STEP, 0, 2, 3, {"Step"}),  # a ring may leave ranks out
    (Purpose.STEP, 1, 0, 3, {"StepDone"}),
    (Purpose.STEP, 2, 1, 3, set()),
    (Purpose.STEP, 2, 3, 3, set()),
    (Purpose.STEP, -1, 0, 3, set()),
    (Purpose.STEP, 0, 1, 2, {"Step"}),
    (Purpose.STEP, 1, 0, 2, {"StepDone"}),
    (Purpose.STEP, 0, 0, 1, set()),
    (Purpose.TUNNEL, 0, 1, 2, {"Tunnel"}),
    (Purpose.TUNNEL, 1, 0, 2, {"Tunnel"}),
    (Purpose.TUNNEL, 1, 2, 4, {"Tunnel"}),
    (Purpose.TUNNEL, 2, 1, 4, {"Tunnel"}),
    (Purpose.TUNNEL, 3, 0, 4, {"Tunnel"}),
    (Purpose.TUNNEL, 0, 3, 4, {"Tunnel"}),
    (Purpose.TUNNEL, 0, 2, 4, {"Tunnel"}),
    (Purpose.TUNNEL, 3, 4, 4, set()),
    (Purpose.TUNNEL, -1, 0, 4, set()),
    (Purpose.TUNNEL, 0, 0, 1, set()),
    (Purpose.WEIGHTS, 0, 1, 2, {"Get", "Piece"}),
    (Purpose.WEIGHTS, 3, 1, 4, {"Get", "Piece"}),
    (Purpose.API, 0, 2, 3, {"Reply", "BodyPart", "Credit", "Drop"}),
    (Purpose.API, 2, 0, 3, {"Ask", "BodyPart", "Credit", "Drop"}),
    (Purpose.API, 1, 2, 3, set()),
    (Purpose.API, 3, 0, 3, set()),
    (Purpose.API, 0, 0, 1, set()),
]


@pytest.mark.parametrize(("purpose", "sender", "receiver", "world", "more"), CASES)
def test_what_each_place_in_the_ring_may_send(purpose, sender, receiver, world, more):
    taken = {kind.__name__ for kind in allowed(purpose, sender, receiver, world)}
    assert taken == ALIVE | more


def test_every_role_that_there_can_be_is_in_the_table():
    ranks = range(-1, 6)
    found = {
        (purpose, role(purpose, sender, receiver, world))
        for purpose, sender, receiver, world in itertools.product(Purpose, ranks, ranks, range(6))
    }
    assert found == set(ALLOWED)
    assert {role for _, role in ALLOWED} == set(Role)


def test_steps_come_from_lower_ranks_alone():
    for world in range(2, 9):
        for receiver in range(world):
            senders = [s for s in range(world) if Step in allowed(Purpose.STEP, s, receiver, world)]
            assert senders == list(range(receiver))


def test_nobody_sends_accept():
    assert not any(Accept in kinds for kinds in ALLOWED.values())


def test_ranks_beyond_the_ring_have_no_place_in_it():
    for purpose, world in itertools.product(Purpose, range(5)):
        for sender, receiver in ((world, world + 1), (world + 1, world), (world, 0), (0, world)):
            assert role(purpose, sender, receiver, world) is Role.PEER
