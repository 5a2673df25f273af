"""A peer that cannot be reached: both machines say which, where, what is wrong and for how long."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from tests.operation.machines import PORT, Machine, machines

pytestmark = pytest.mark.long

SILENCE = "no answer within 5 s"
LASTS = r"\((for \d+ s|\d+ times in \d+ s, the last time (just now|\d+ s ago))\)"


@attrs.frozen
class Cut:
    """Something between two machines, how it ends, and what the dials of each of them end with."""

    begin: Callable[[Machine, Machine], None]
    end: Callable[[Machine, Machine], None]
    head: str
    rank: str


def drop(desk: Machine, shelf: Machine) -> None:
    desk.way_to(shelf).passes = shelf.way_to(desk).passes = False


def pass_again(desk: Machine, shelf: Machine) -> None:
    desk.way_to(shelf).passes = shelf.way_to(desk).passes = True


ROWS = {
    "packets are dropped": Cut(drop, pass_again, SILENCE, SILENCE),
    "the head has no route": Cut(
        Machine.lose_route_to, Machine.find_route_to, "No route to host", SILENCE
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_peer_out_of_reach_is_told_everywhere_until_it_is_back(row: str) -> None:
    cut = ROWS[row]
    with machines(2) as (desk, shelf):
        cut.begin(desk, shelf)
        for machine in (desk, shelf):
            machine.start()
        head = rf"rank 1 \(shelf\) cannot be reached at {shelf.address}:{PORT}: {cut.head}"
        rank = rf"the head \(desk\) cannot be reached at {desk.address}:{PORT}: {cut.rank}"
        for machine, text in ((desk, head), (shelf, rank)):
            machine.wait_until_told(text)
            machine.wait_until_answered(f"{text} {LASTS}")
        cut.end(desk, shelf)
        desk.wait_for_health()
        for machine in (desk, shelf):
            machine.wait_until_nothing_is_told()
