"""A NAT or a firewall lets connections be opened in one direction only."""

from __future__ import annotations

import itertools

import pytest

from tests.operation.machines import machines


@pytest.mark.long
def test_a_ring_whose_last_rank_nobody_can_dial() -> None:
    with machines(3) as (desk, shelf, den):
        for near in (desk, shelf):
            near.way_to(den).opens = False
        for machine in (desk, shelf, den):
            machine.start()
        desk.wait_for_log("the ring is ready")
        assert desk.ask("Hello.", max_tokens=4).status_code == 200


@pytest.mark.long
def test_neighbours_that_cannot_reach_each_other_are_named() -> None:
    with machines(3) as (desk, shelf, den):
        for near, far in itertools.permutations((shelf, den), 2):
            near.way_to(far).opens = False
        for machine in (desk, shelf, den):
            machine.start()
        why = f"shelf cannot reach den at {den.address}:7470 (no answer within 5 s), nor den shelf"
        desk.wait_for_log(f"rank 1 (shelf) cannot serve: {why}")
        shelf.way_to(den).opens = True
        desk.wait_for_log("the ring is ready")
