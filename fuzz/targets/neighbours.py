"""Announcements of strangers by multicast DNS: their texts, their places, and their ends."""

from __future__ import annotations

import hmac
from collections.abc import Iterator

from sealring.discovery.neighbours import (
    MAX_ADDRESSES,
    MAX_DOORS,
    MAX_OTHERS,
    MAX_TWINS,
    MAX_WAITING,
    Circle,
    Neighbours,
    is_private,
)
from sealring_protocol.joining.announcement import (
    Sealed,
    WaitingMachine,
    door_text,
    node_text,
    read_text,
    waiting_text,
)
from sealring_protocol.limits import MAX_ANNOUNCEMENT

from fuzz.source import Source

_CLUSTER = b"c" * 32
_IDS = tuple(bytes([number]) * 32 for number in range(3))
_HOSTS = ("10.0.0.1", "10.0.0.2", "fe80::1%2", "169.254.0.1", "fd00::7", "8.8.8.8", "::1", "desk")
_WORDS = "abandon-ability-able-zoo"


def seeds() -> Iterator[bytes]:
    """Each kind of text, at some addresses; one that leaves; and texts alone."""
    texts = (
        node_text(_CLUSTER, _IDS[0], bytes(16)),
        door_text(_CLUSTER, bytes(16)),
        waiting_text(_WORDS),
    )
    for cluster in (b"\0", b"\1"):
        for text in texts:
            size = len(text).to_bytes(2, "big")
            first, second = b"\1\0\2\0\2\1\x1d\x2e\3", b"\1\1\1\1\0\3"
            yield cluster + first + size + text + second + size + text + b"\0\0"
        for kind in range(3):
            made = b"\1%c\1\1\0" + bytes([kind, 0, 0])
            yield cluster + b"".join(made % number for number in range(18))


def check(data: bytes) -> None:
    """Nothing raises; few entries are kept, all private; and who is recognised has said so."""
    source = Source(data)
    circle = Circle(_CLUSTER, frozenset(_IDS[:2])) if source.flag() else None
    here = Neighbours(circle)
    while not source.empty:
        heard, instance = source.flag(), str(source.below(40))
        if not heard:
            here.gone(instance)
            continue
        hosts = [source.pick(_HOSTS) for _ in range(source.below(7))]
        port = source.number(2) if source.flag() else 7470
        text = _text(source)
        before = here.found
        if not here.heard(instance, text, hosts, port):
            assert here.found == before
        _check_text(text)
    found = here.found
    assert found.members.keys() <= (set() if circle is None else circle.members)
    assert circle is not None or not found.doors
    assert circle is None or not found.others
    for places, most in (
        *((each, MAX_TWINS * MAX_ADDRESSES) for each in found.members.values()),
        *((each, MAX_WAITING * MAX_ADDRESSES) for each in found.waiting.values()),
        (found.doors, MAX_DOORS * MAX_ADDRESSES),
        (found.others, MAX_OTHERS * MAX_ADDRESSES),
    ):
        assert len(places) <= most
        assert all(is_private(host) and 0 < port < 1 << 16 for host, port in places)
    assert len(found.waiting) <= MAX_WAITING


def _text(source: Source) -> bytes:
    """One that a member, a door, a stranger or a liar would send."""
    kind, nonce = source.below(5), bytes([source.below(4)]) * 16
    if kind == 0:
        return node_text(_CLUSTER, source.pick(_IDS), nonce)
    if kind == 1:
        return door_text(source.pick((_CLUSTER, b"d" * 32)), nonce)
    if kind == 2:
        return waiting_text(source.pick((_WORDS, _WORDS[4:], _WORDS.upper(), "")))
    return source.take(source.number(2) % (MAX_ANNOUNCEMENT + 3))


def _check_text(text: bytes) -> None:
    found = read_text(text)
    assert found is None or len(text) <= MAX_ANNOUNCEMENT
    match found:
        case Sealed(nonce, tag):
            said = b"sealring/1 mdns node" + nonce + _IDS[0]
            right = hmac.new(_CLUSTER, said, "sha256").digest()[:16]
            assert found.is_node(_CLUSTER, _IDS[0]) == (tag == right)
        case WaitingMachine(words):
            assert read_text(waiting_text(words)) == found
            assert words.replace("-", "").isalpha()
            assert words.isascii()
