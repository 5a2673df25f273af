"""What a machine says of itself by multicast DNS, so that only its own cluster can tell who it is:
section 16 of the specification.

Every machine of a network hears an announcement (RFC 6762, RFC 6763), so it has no name and no id.
Its instance and host names are random, and new each time a program starts or its machine's
addresses change; so is *n*. Its TXT record has one of two forms:

========================= ==========================================================================
``v=1`` ``n=`` ``t=``     a node, or the door of one: *n* is 16 random bytes, and *t* the first 16
                          of HMAC-SHA-256 of ``label · n · node id`` under SHA-256 of the
                          coordinator's public key. A door has a label of its own, and no id
``v=1`` ``w=``            a machine that waits to be invited: the four words of its key
========================= ==========================================================================

Whoever knows the coordinator's public key, or has an invitation, which has its hash, can try the
ids that it knows. Nobody else learns which cluster it is, nor that two announcements are of one.

An announcement proves nothing. Anybody can repeat one at another address, or send one for hours
after a machine went down. It says where to knock, and the handshake says who answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hmac import compare_digest
from typing import Final

import attrs

from sealring_protocol.limits import MAX_ANNOUNCEMENT
from sealring_protocol.security.keys import mac

SERVICE: Final = "_sealring._tcp.local."
"""The type of all announcements."""

NONCE: Final = 16
TAG: Final = 16
"""Bytes of *n* and *t*."""

DOOR: Final = b"door"
"""What `recognise` gives for a door. No node id is as short."""

_NODE: Final = b"sealring/1 mdns node"
_DOOR: Final = b"sealring/1 mdns door"


@attrs.frozen
class Sealed:
    """A node or a door, of whatever cluster."""

    nonce: bytes
    tag: bytes

    def is_node(self, coordinator: bytes, node_id: bytes) -> bool:
        """Whether it is the node with *node_id*, of the cluster whose *coordinator* has this
        SHA-256."""
        return compare_digest(self.tag, _tag(coordinator, _NODE + self.nonce + node_id))

    def is_door(self, coordinator: bytes) -> bool:
        """Whether it is a door of that cluster."""
        return compare_digest(self.tag, _tag(coordinator, _DOOR + self.nonce))


@attrs.frozen
class WaitingMachine:
    """A machine that waits to be invited, whose key has these four *words*, as it says."""

    words: str


def _tag(coordinator: bytes, said: bytes) -> bytes:
    return mac(coordinator, said)[:TAG]


def node_text(coordinator: bytes, node_id: bytes, nonce: bytes) -> bytes:
    """The TXT record of a node; *nonce* is `NONCE` random bytes."""
    return _text(v=b"1", n=nonce, t=_tag(coordinator, _NODE + nonce + node_id))


def door_text(coordinator: bytes, nonce: bytes) -> bytes:
    """The TXT record of a door, likewise."""
    return _text(v=b"1", n=nonce, t=_tag(coordinator, _DOOR + nonce))


def waiting_text(words: str) -> bytes:
    """The TXT record of a machine that waits to be invited."""
    return _text(v=b"1", w=words.encode())


def read_text(text: bytes) -> Sealed | WaitingMachine | None:
    """What a TXT record of a stranger says; None if that is none of the above. Strings with other
    keys are left out, and so is what comes a second time (RFC 6763 section 6.4)."""
    if len(text) > MAX_ANNOUNCEMENT:
        return None
    said: dict[bytes, bytes] = {}
    for key, value in _strings(text):
        said.setdefault(key.lower(), value)
    if said.get(b"v") != b"1":
        return None
    nonce, tag, words = said.get(b"n"), said.get(b"t"), said.get(b"w")
    if nonce is not None and tag is not None and (len(nonce), len(tag)) == (NONCE, TAG):
        return Sealed(nonce, tag)
    if words is not None and _are_words(words):
        return WaitingMachine(words.decode())
    return None


def _are_words(said: bytes) -> bool:
    """Whether *said* has the form of a key's four words. Whoever shows them holds them to the
    list."""
    words = said.split(b"-")
    return len(words) == 4 and all(
        3 <= len(word) <= 8 and word.isalpha() and word.islower() for word in words
    )


def recognise(sealed: Sealed, coordinator: bytes, members: Iterable[bytes]) -> bytes | None:
    """The id of which of *members* it is, `DOOR` if it is a door of their cluster, or None."""
    if sealed.is_door(coordinator):
        return DOOR
    return next((each for each in members if sealed.is_node(coordinator, each)), None)


def _text(**said: bytes) -> bytes:
    strings = (key.encode() + b"=" + value for key, value in said.items())
    return b"".join(bytes([len(each)]) + each for each in strings)


def _strings(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a TXT record, up to where it is cut off."""
    at = 0
    while at < len(text):
        end = at + 1 + text[at]
        if end > len(text):
            return
        key, equals, value = text[at + 1 : end].partition(b"=")
        if equals:
            yield key, value
        at = end
