"""The search over symbols finds nothing in the handshake, and something in each variant.

All scenarios together take `python -m spec.formal`, which CI runs too; here are the quick ones.
"""

from __future__ import annotations

import pytest

from spec.formal.cases import REDUNDANT, SCENARIOS, WEAK, broken, search
from spec.formal.join_search import (
    JOIN_PROPERTIES,
    JOIN_REDUNDANT,
    JOIN_SCENARIOS,
    JOIN_WEAK,
    JoinScenario,
    JoinSearch,
    join_broken,
    join_search,
)
from spec.formal.search import PROPERTIES, Scenario, Search
from spec.formal.terms import Knowledge, agreed, encapsulated, kem_key, secret, share, term

SCENARIO = {scenario.name: scenario for scenario in SCENARIOS}
QUICK = [scenario for scenario in SCENARIOS if len(scenario.runs) == 2]


@pytest.mark.parametrize("scenario", QUICK, ids=[scenario.name for scenario in QUICK])
def test_no_attack_is_found(scenario: Scenario) -> None:
    found = Search(scenario).run()
    assert found.attacks == {}
    assert found.completed > 0


@pytest.mark.parametrize("weak", WEAK)
def test_a_weakened_handshake_is_found_out(weak: str) -> None:
    assert broken(weak).attacks.keys() >= WEAK[weak][1]


def test_every_property_can_fail() -> None:
    assert set().union(*(owed for _, owed in WEAK.values())) == set(PROPERTIES)


def test_a_stolen_key_lets_nobody_pose_to_its_owner_unless_that_is_what_is_weak() -> None:
    stolen = SCENARIO["A dials B, A's key is stolen"]
    until = frozenset({"agreement"})
    assert Search(stolen, "any-members-signature", until).run().attacks.keys() >= until


@pytest.mark.parametrize("weak", REDUNDANT)
def test_what_another_part_does_too(weak: str) -> None:
    assert search(weak, tuple(QUICK)).attacks == {}


@pytest.mark.parametrize("scenario", JOIN_SCENARIOS, ids=[each.name for each in JOIN_SCENARIOS])
def test_no_attack_on_a_join_is_found(scenario: JoinScenario) -> None:
    found = JoinSearch(scenario).run()
    assert found.attacks == {}
    assert found.completed > 0


@pytest.mark.parametrize("weak", JOIN_WEAK)
def test_a_weakened_join_is_found_out(weak: str) -> None:
    assert join_broken(weak).attacks.keys() >= JOIN_WEAK[weak][1]


def test_every_property_of_a_join_can_fail() -> None:
    assert set().union(*(owed for _, owed in JOIN_WEAK.values())) == set(JOIN_PROPERTIES)


@pytest.mark.parametrize("weak", JOIN_REDUNDANT)
def test_what_another_part_of_a_join_does_too(weak: str) -> None:
    assert join_search(weak).attacks == {}


def test_what_an_intruder_can_make() -> None:
    a, b, key = secret("a"), secret("b"), secret("key")
    sealed = term("aead", agreed(a, share(b)), a, term("tuple", key))
    thief = Knowledge([sealed, share(a)])
    assert not thief.can(key)
    assert thief.with_([b]).can(key)  # b and the share of a give the secret that seals it
    assert not thief.can(key)
    ct, ss = encapsulated(kem_key(a), b)
    assert not Knowledge([ct, kem_key(a)]).can(ss)
    assert Knowledge([ct, a]).can(ss)
    signed = term("sign", key, a)
    assert Knowledge([signed]).can(a)
    assert not Knowledge([signed]).can(key)
