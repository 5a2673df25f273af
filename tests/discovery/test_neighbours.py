"""What is remembered of announcements: few entries, all at private addresses."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring.discovery.neighbours import (
    MAX_ADDRESSES,
    MAX_DOORS,
    MAX_OTHERS,
    MAX_TWINS,
    MAX_WAITING,
    Circle,
    Nearby,
    Neighbours,
    Place,
    is_private,
)
from sealring.joining.fingerprint import fingerprint
from sealring_protocol.joining.announcement import NONCE, door_text, node_text, waiting_text

CLUSTER = b"c" * 32
IDS = [bytes([number]) * 32 for number in range(3)]
CIRCLE = Circle(CLUSTER, frozenset(IDS[:2]))


def node(number: int, cluster: bytes = CLUSTER) -> bytes:
    return node_text(cluster, IDS[number], secrets.token_bytes(NONCE))


def door(cluster: bytes = CLUSTER) -> bytes:
    return door_text(cluster, secrets.token_bytes(NONCE))


def words(number: int = 0) -> str:
    return fingerprint(number.to_bytes(65, "big"))


def test_members_doors_and_machines_that_wait_are_found() -> None:
    here = Neighbours(CIRCLE)
    assert here.heard("a", node(0), ["10.0.0.1", "fe80::1%3"], 7470)
    assert here.heard("b", door(), ["192.168.3.4"], 7471)
    assert here.heard("c", waiting_text(words()), ["10.0.0.9"], 7470)
    assert here.found == Nearby(
        {IDS[0]: (("10.0.0.1", 7470), ("fe80::1%3", 7470))},
        (("192.168.3.4", 7471),),
        {words(): (("10.0.0.9", 7470),)},
    )
    assert here.gone("b")
    assert not here.gone("b")
    assert here.found.doors == ()


def test_words_of_no_key_are_not_shown() -> None:
    here = Neighbours(None)
    assert not here.heard("a", waiting_text("nasty-words-from-strangers"), ["10.0.0.9"], 7470)
    assert not here.heard("a", waiting_text("abandon-ability-able-zzzz"), ["10.0.0.9"], 7470)
    assert here.found == Nearby()


def test_other_clusters_concern_only_who_has_none() -> None:
    for circle, others in ((CIRCLE, 0), (None, 3)):
        here = Neighbours(circle)
        here.heard("a", node(0, b"d" * 32), ["10.0.0.1"], 7470)
        here.heard("b", door(b"d" * 32), ["10.0.0.1"], 7471)
        here.heard("c", node(2), ["10.0.0.1"], 7472)  # this cluster's, and put out of it
        assert len(here.found.others) == others
        assert (here.found.members, here.found.doors) == ({}, ())


def test_a_node_that_moves_is_found_where_it_is() -> None:
    here = Neighbours(CIRCLE)
    text = node(1)
    here.heard("a", text, ["10.0.0.1"], 7470)
    assert not here.heard("a", text, ["10.0.0.1"], 7470)
    assert here.heard("a", text, ["10.0.0.2"], 7470)
    assert here.found.members == {IDS[1]: (("10.0.0.2", 7470),)}
    here.heard("again", node(1), ["10.0.0.3"], 7470)  # started again; the one before runs out
    assert here.found.members == {IDS[1]: (("10.0.0.2", 7470), ("10.0.0.3", 7470))}
    here.gone("a")
    assert here.found.members == {IDS[1]: (("10.0.0.3", 7470),)}


def test_an_instance_that_says_nothing_of_use_any_more_is_gone() -> None:
    here = Neighbours(CIRCLE)
    here.heard("a", node(1), ["10.0.0.1"], 7470)
    assert here.heard("a", node(2), ["10.0.0.1"], 7470)
    assert here.found == Nearby()


def places(found: Nearby, name: str) -> list[Place]:
    kept = getattr(found, name)
    return list(kept) if isinstance(kept, tuple) else [p for each in kept.values() for p in each]


@pytest.mark.parametrize(
    ("name", "texts", "most"),
    [
        ("members", [node(0) for _ in range(9)], MAX_TWINS),
        ("doors", [door() for _ in range(9)], MAX_DOORS),
        ("waiting", [waiting_text(words(number)) for number in range(20)], MAX_WAITING),
        ("waiting", [waiting_text(words()) for _ in range(20)], MAX_WAITING),
    ],
)
def test_the_first_keep_their_places(name: str, texts: list[bytes], most: int) -> None:
    here = Neighbours(CIRCLE)
    for number in range(most):
        assert here.heard(str(number), texts[number], [f"10.0.0.{number + 1}"], 7470)
    full = here.found
    assert not here.heard("more", texts[most], ["10.0.0.99"], 7470)
    assert here.found == full
    here.gone("0")
    assert here.heard("more", texts[most], ["10.0.0.99"], 7470)
    assert ("10.0.0.99", 7470) in places(here.found, name)


def test_of_those_that_cannot_be_recognised_few_are_kept() -> None:
    here = Neighbours(None)
    for number in range(3 * MAX_OTHERS):
        here.heard(str(number), door(secrets.token_bytes(32)), [f"10.0.0.{number + 1}"], 7470)
    assert here.found.others == tuple((f"10.0.0.{n + 1}", 7470) for n in range(MAX_OTHERS))


def test_an_instance_that_becomes_another_needs_that_ones_room() -> None:
    here = Neighbours(CIRCLE)
    for number in range(MAX_DOORS):
        here.heard(str(number), door(), [f"10.0.0.{number + 1}"], 7471)
    here.heard("x", node(0), ["10.0.0.77"], 7470)
    assert here.heard("x", door(), ["10.0.0.77"], 7471)
    assert here.found.members == {}
    assert len(here.found.doors) == MAX_DOORS


@pytest.mark.parametrize(
    ("hosts", "port"),
    [
        (["8.8.8.8"], 7470),
        (["127.0.0.1", "::1", "0.0.0.0", "224.0.0.251", "ff02::fb", "2001:db8::1"], 7470),
        (["no address", "10.0.0.1.example", ""], 7470),
        (["10.0.0.1"], 0),
        (["10.0.0.1"], 1 << 16),
        ([], 7470),
    ],
)
def test_what_cannot_be_in_a_private_network_is_not_kept(hosts: list[str], port: int) -> None:
    here = Neighbours(CIRCLE)
    assert not here.heard("a", node(0), hosts, port)
    assert here.found == Nearby()


def test_few_addresses_are_kept_and_the_private_ones_alone() -> None:
    here = Neighbours(CIRCLE)
    here.heard("a", node(0), ["1.1.1.1", *(f"10.0.0.{n}" for n in range(1, 99))], 7470)
    (kept,) = here.found.members.values()
    assert kept == tuple((f"10.0.0.{n}", 7470) for n in range(1, MAX_ADDRESSES + 1))


def test_what_is_private() -> None:
    own = ("10.1.2.3", "172.16.0.1", "172.31.9.9", "192.168.0.1", "169.254.1.1", "fd00::1")
    assert all(map(is_private, (*own, "fe80::1", "fe80::1%eth0", "fc00::1")))
    others = ("172.32.0.1", "192.169.0.1", "100.64.0.1", "2a00::1", "127.0.0.1", "::1", "desk", "")
    assert not any(map(is_private, others))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5), st.booleans()), max_size=80))
def test_however_many_announce_few_are_kept(events: list[tuple[int, int, bool]]) -> None:
    here = Neighbours(CIRCLE)
    for number, kind, leaves in events:
        if leaves:
            here.gone(str(number))
            continue
        texts = (node(0), node(1), door(), waiting_text(words(number)), node(2), b"\x03v=1")
        before = here.found
        changed = here.heard(str(number), texts[kind], [f"10.0.0.{number}"], 7470)
        assert changed or here.found == before
    found = here.found
    assert found.members.keys() <= CIRCLE.members
    assert all(len(kept) <= MAX_TWINS for kept in found.members.values())
    assert len(found.doors) <= MAX_DOORS
    assert len(found.waiting) <= MAX_WAITING
    assert found.others == ()
