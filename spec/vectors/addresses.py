"""Where a member says that it is, and the head that others are (section 11.13).

An output has what is left to dial of each rank, in ascending order of its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sealring_protocol.codec.messages import Addresses

from spec.vectors.model import LIMIT, Json, Vector, refused, valid
from spec.vectors.plaintexts import flat

GIVEN: Final[Mapping[str, bytes]] = {}
AS_SEEN: Final = bytes(16)
IPV4: Final = bytes(10) + b"\xff\xff"
SEEN: Final = IPV4 + bytes([10, 0, 0, 9])
BUDGET: Final = 128


def _v4(*octets: int) -> bytes:
    return IPV4 + bytes(octets)


def _v6(first: int, last: int) -> bytes:
    return bytes([first, *bytes(14), last])


def _one(last: int) -> tuple[tuple[bytes, int]]:
    return ((_v4(10, 0, 0, last), 1),)


def _input(
    sender: int, receiver: int, messages: Sequence[Addresses], world: int = 4, seen: bytes = SEEN
) -> Json:
    return {
        "sender": sender,
        "receiver": receiver,
        "world": world,
        "seen": seen.hex(),
        "plaintexts": [flat(message).hex() for message in messages],
    }


def _told(found: Mapping[int, Sequence[tuple[bytes, int]]]) -> Json:
    return {
        "told": {
            str(rank): [{"ip": ip.hex(), "port": port} for ip, port in sorted(pairs)]
            for rank, pairs in found.items()
        }
    }


def vectors() -> Iterator[Vector]:
    """What may be said and what is left of it to dial, and what may not be said."""
    yield from _said()
    yield from _unusable()
    yield from _refused()


def _said() -> Iterator[Vector]:
    own, seen = ((AS_SEEN, 7470),), ((SEEN, 7470),)
    both = ((_v4(10, 0, 0, 3), 7470), (_v6(0x20, 5), 1))
    for name, about, sender, receiver, messages, told in [
        ("own", "a rank is where its connection comes from", 2, 0, [(2, own)], {2: seen}),
        ("head", "so is the head", 0, 2, [(0, own)], {0: seen}),
        ("other", "the head says where another is", 0, 1, [(3, both)], {3: both}),
        ("same", "an address that comes twice", 1, 0, [(1, both[:1] * 2)], {1: both[:1]}),
    ]:
        given = _input(sender, receiver, [Addresses(*each) for each in messages])
        yield valid(f"addresses/{name}", "addresses", "AD-01", about, given, _told(told))
    for name, about, messages, told in [
        (
            "again",
            "the later takes the place of the earlier",
            [(3, both), (3, _one(3))],
            {3: _one(3)},
        ),
        ("gone", "a member is nowhere any more", [(3, both), (2, both), (3, ())], {2: both}),
    ]:
        given = _input(0, 1, [Addresses(*each) for each in messages])
        yield valid(f"addresses/{name}", "addresses", "AD-04", about, given, _told(told))
    six = _v6(0x20, 9)
    given = _input(2, 0, [Addresses(2, own)], seen=six)
    told = {2: ((six, 7470),)}
    yield valid("addresses/own-6", "addresses", "AD-01", "the same by IPv6", given, _told(told))
    most = [Addresses(1, _one(n)) for n in range(1, BUDGET + 1)]
    about = "as many at once as there may be"
    given = _input(1, 0, most)
    yield valid("addresses/most", "addresses", "AD-02", about, given, _told({1: _one(BUDGET)}))
    more = _input(1, 0, [*most, most[0]])
    yield refused("addresses/more", "addresses", "AD-02", "129 at once", more, LIMIT)


def _unusable() -> Iterator[Vector]:
    for name, ip in {
        "this": _v4(0, 1, 2, 3),
        "unspecified": _v4(0, 0, 0, 0),
        "loopback": _v4(127, 0, 0, 1),
        "multicast": _v4(224, 0, 0, 251),
        "broadcast": _v4(255, 255, 255, 255),
        "loopback-6": _v6(0, 1),
        "multicast-6": _v6(0xFF, 1),
        "link-local-6": bytes([0xFE, 0x80, *bytes(13), 1]),
        "link-local-last-6": bytes([0xFE, 0xBF, *bytes(13), 1]),
        "embedded-6": bytes(12) + bytes([10, 0, 0, 1]),
    }.items():
        given = _input(1, 0, [Addresses(1, ((ip, 1), *_one(1)))])
        about = f"an address that is not dialed ({name}), beside one that is"
        yield valid(f"addresses/{name}", "addresses", "AD-03", about, given, _told({1: _one(1)}))
    for name, ip in {
        "first": _v4(1, 0, 0, 0),
        "before": _v4(126, 255, 255, 255),
        "after": _v4(128, 0, 0, 0),
        "last": _v4(223, 255, 255, 255),
        "first-6": _v6(1, 0),
        "last-6": _v6(0xFD, 1),
        "before-link-local-6": bytes([0xFE, 0x7F, *bytes(13), 1]),
        "after-link-local-6": bytes([0xFE, 0xC0, *bytes(13), 1]),
    }.items():
        given = _input(1, 0, [Addresses(1, ((ip, 1),))])
        about = f"an address at the edge of those that are dialed ({name})"
        output = _told({1: ((ip, 1),)})
        yield valid(f"addresses/may-{name}", "addresses", "AD-03", about, given, output)
    here = _v4(127, 0, 0, 1)
    given = _input(1, 0, [Addresses(1, ((AS_SEEN, 1), *_one(1)))], seen=here)
    about = "a connection from the receiver's own machine"
    output = _told({1: _one(1)})
    yield valid("addresses/seen-here", "addresses", "AD-03", about, given, output)


def _refused() -> Iterator[Vector]:
    good = _one(1)
    for name, about, sender, receiver, message in [
        ("rank-of-rank", "a rank speaks for another", 1, 0, Addresses(2, good)),
        ("rank-of-head", "a rank speaks for the head", 1, 0, Addresses(0, good)),
        ("head-of-receiver", "the head speaks for the receiver", 0, 1, Addresses(1, good)),
        ("nobody", "a rank that is not there", 0, 1, Addresses(4, good)),
        ("nobody-empty", "the same, nowhere", 0, 1, Addresses(4)),
        ("seen", "another as the receiver sees it", 0, 1, Addresses(2, ((AS_SEEN, 1),))),
    ]:
        given = _input(sender, receiver, [message])
        yield refused(f"addresses/{name}", "addresses", "AD-01", about, given)
