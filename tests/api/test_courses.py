"""Whole rings with clients, in virtual time, to which anything happens; and that faults show there.

``python -m tests.sim`` runs as many seeds as there is time for.
"""

from __future__ import annotations

import pytest

from tests.sim.__main__ import look
from tests.sim.planted import PLANTED


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_no_two_lead_answers_are_right_and_there_is_a_head_again(seed):
    seen = look("", seed)
    assert not seen.broken, seen
    assert seen.whole >= 2


@pytest.mark.parametrize(("planted", "first"), [("event-twice", 2), ("old-head-goes-on", 0)])
def test_a_planted_fault_is_found_in_a_few_seeds(planted, first):
    owed = PLANTED[planted].owed
    assert any(owed in look(planted, seed).broken for seed in range(first, first + 20))
