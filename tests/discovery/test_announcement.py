"""What is announced by multicast DNS: only whoever knows the cluster reads who it is."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring.joining.fingerprint import fingerprint
from sealring_protocol.joining.announcement import (
    DOOR,
    NONCE,
    TAG,
    Sealed,
    WaitingMachine,
    door_text,
    node_text,
    read_text,
    recognise,
    waiting_text,
)
from sealring_protocol.limits import MAX_ANNOUNCEMENT

HASH = st.binary(min_size=32, max_size=32)
NONCES = st.binary(min_size=NONCE, max_size=NONCE)
IDS = st.lists(HASH, min_size=1, max_size=8, unique=True)


def sealed(text: bytes) -> Sealed:
    found = read_text(text)
    assert isinstance(found, Sealed)
    return found


@given(HASH, IDS, NONCES, st.data())
def test_a_member_is_recognised_by_who_knows_the_cluster(
    coordinator: bytes, members: list[bytes], nonce: bytes, data: st.DataObject
) -> None:
    member = data.draw(st.sampled_from(members))
    found = sealed(node_text(coordinator, member, nonce))
    assert recognise(found, coordinator, members) == member
    assert recognise(found, coordinator, [each for each in members if each != member]) is None
    assert recognise(found, hashlib.sha256(coordinator).digest(), members) is None
    again = sealed(node_text(coordinator, member, hashlib.sha256(nonce).digest()[:NONCE]))
    assert again.tag != found.tag  # nobody else sees that it is the same machine


@given(HASH, IDS, NONCES)
def test_a_door_is_recognised_by_who_has_the_invitation(
    coordinator: bytes, members: list[bytes], nonce: bytes
) -> None:
    found = sealed(door_text(coordinator, nonce))
    assert recognise(found, coordinator, ()) == DOOR
    assert recognise(found, coordinator, members) == DOOR
    assert recognise(found, hashlib.sha256(coordinator).digest(), members) is None


def test_the_tag_is_what_the_module_says() -> None:
    coordinator, member, nonce = bytes(range(32)), bytes(32), b"n" * 16

    def tag(said: bytes) -> bytes:
        return hmac.new(coordinator, said, "sha256").digest()[:16]

    before = b"\x03v=1\x12n=" + nonce + b"\x12t="
    assert node_text(coordinator, member, nonce) == before + tag(
        b"sealring/1 mdns node" + nonce + member
    )
    assert door_text(coordinator, nonce) == before + tag(b"sealring/1 mdns door" + nonce)


@given(st.binary(min_size=65, max_size=65))
def test_a_machine_that_waits_says_its_words_and_nothing_else(key: bytes) -> None:
    words = fingerprint(key)
    assert waiting_text(words) == b"\x03v=1" + bytes([len(words) + 2]) + b"w=" + words.encode()
    assert read_text(waiting_text(words)) == WaitingMachine(words)


@given(HASH, HASH, NONCES)
def test_the_text_has_no_id_and_is_as_long_for_all(
    coordinator: bytes, member: bytes, nonce: bytes
) -> None:
    text = node_text(coordinator, member, nonce)
    assert len(text) == len(door_text(coordinator, nonce)) == 42
    said = text.replace(nonce, b"", 1)
    assert member[:TAG] not in said
    assert coordinator[:TAG] not in said


NODE = node_text(bytes(32), bytes(32), bytes(16))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x03v=2" + NODE[4:],
        NODE[4:],
        NODE[:-1],
        NODE[:4],
        b"\x03v=1\x11n=" + bytes(15) + b"\x12t=" + bytes(16),
        b"\x03v=1\x02n=\x02t=",
        b"\x03v=1\x01n\x01t",
        b"\x03v=1\x1ew=abandon-abandon-abandon-ab",
        b"\x03v=1\x1ew=Abandon-abandon-abandon-zoo",
        b"\x03v=1\x19w=abandon-abandon-abandon",
        b"\x03v=1\x07w=\x1b[31m",
        b"\x03v=1\x04w=\xff\xff",
        NODE + b"\xff" * (MAX_ANNOUNCEMENT - len(NODE) + 1),
    ],
)
def test_what_is_no_announcement(text: bytes) -> None:
    assert read_text(text) is None


def test_what_others_may_add_is_left_out() -> None:
    more = b"\x00\x05other\x03x=y\x00"
    found = read_text(NODE)
    assert found == read_text(more + NODE) == read_text(NODE + more)
    assert found == read_text(NODE + b"\x03v=2\x04n=no")  # what comes a second time
    assert found == read_text(NODE.replace(b"v=", b"V="))
    assert found == read_text(NODE + b"\xff" * (MAX_ANNOUNCEMENT - len(NODE)))


@given(st.binary(max_size=MAX_ANNOUNCEMENT + 8))
def test_a_stranger_may_say_anything(text: bytes) -> None:
    match read_text(text):
        case Sealed(nonce, tag):
            assert (len(nonce), len(tag)) == (NONCE, TAG)
        case WaitingMachine(words):
            assert words.replace("-", "").isalpha()
            assert words.isascii()
