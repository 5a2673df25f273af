"""Announcements by multicast DNS (section 16): what is announced, and what a reader takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from spec.vectors.model import Json, Vector, valid
from spec.vectors.plain import hmac
from spec.vectors.world import entropy

GIVEN: Final[Mapping[str, bytes]] = {"coordinator": entropy("coordinator", 32)}
_COORDINATOR: Final = GIVEN["coordinator"]
_IDS: Final = tuple(entropy(f"node {number}", 32) for number in range(2))
_NONCE: Final = entropy("nonce", 16)
_WORDS: Final = b"abandon-ability-able-zoo"
_V1: Final = b"v=1"


def _tag(said: bytes, coordinator: bytes = _COORDINATOR, nonce: bytes = _NONCE) -> bytes:
    return hmac(coordinator, b"sealring/1 mdns " + said[:4] + nonce + said[4:])[:16]


_DOOR: Final = b"door"
_NODES: Final = tuple(b"node" + each for each in _IDS)


def _txt(*strings: bytes) -> bytes:
    return b"".join(bytes([len(each)]) + each for each in strings)


def _sealed(said: bytes, coordinator: bytes = _COORDINATOR) -> bytes:
    return _txt(_V1, b"n=" + _NONCE, b"t=" + _tag(said, coordinator))


def _waiting(words: bytes) -> bytes:
    return _txt(_V1, b"w=" + words)


def vectors() -> Iterator[Vector]:
    """What each sender announces, and who a reader takes each sender for."""
    yield from _made()
    yield from _read()


def _made() -> Iterator[Vector]:
    for name, about, member in [("node", "a node", _IDS[0]), ("door", "a door", b"")]:
        given: Json = {"coordinator": _COORDINATOR.hex(), "nonce": _NONCE.hex()}
        given |= {"node_id": member.hex()} if member else {}
        output = {"text": _sealed(_NODES[0] if member else _DOOR).hex()}
        yield _valid(f"made-{name}", "announced", "MD-01", about, given, output)
    output = {"text": _waiting(_WORDS).hex()}
    about = "a machine that waits to be invited"
    yield _valid("made-waiting", "announced", "MD-01", about, {"words": _WORDS.decode()}, output)


def _read() -> Iterator[Vector]:
    node, n, t = _sealed(_NODES[1]), b"n=" + _NONCE, b"t=" + _tag(_NODES[1])
    member: Json = {"member": _IDS[1].hex()}
    door, words, other, nobody = {"door": True}, {"words": _WORDS.decode()}, {"other": True}, {}
    w = b"w=" + _WORDS
    fill = b"\xff" * (256 - len(node))
    for name, ids, about, text, who in [
        ("member", "MD-03 MD-04", "a member", node, member),
        ("first", "MD-04", "another", _sealed(_NODES[0]), {"member": _IDS[0].hex()}),
        ("door", "MD-03 MD-04", "a door", _sealed(_DOOR), door),
        ("waiting", "MD-03", "a machine that waits", _waiting(_WORDS), words),
        ("cluster", "MD-04", "a node of another cluster", _sealed(_NODES[1], bytes(32)), other),
        ("door-cluster", "MD-04", "a door of another", _sealed(_DOOR, bytes(32)), other),
        ("no-member", "MD-04", "no member", _sealed(b"node" + bytes(32)), other),
        ("nonce", "MD-04", "another nonce", _txt(_V1, b"n=" + bytes(16), t), other),
        ("order", "MD-02", "another order", _txt(t, n, _V1), member),
        ("more", "MD-02", "other keys, and none", _txt(b"", b"x=1", b"v", _V1, n, t, b"="), member),
        ("twice", "MD-02", "keys that come again", node + _txt(b"v=2", b"n=", b"t="), member),
        ("before", "MD-02", "a wrong version first", _txt(b"v=2") + node, nobody),
        ("case", "MD-02", "keys in capitals", _txt(b"V=1", b"N" + n[1:], b"T" + t[1:]), member),
        ("tail", "MD-02", "a string that is cut off, after it", node + b"\x02x", member),
        ("cut", "MD-02 MD-03", "cut off", node[:-1], nobody),
        ("longest", "MD-02", "256 bytes", node + fill, member),
        ("long", "MD-02", "257 bytes", node + fill + b"\xff", nobody),
        ("empty", "MD-03", "nothing", b"", nobody),
        ("version-2", "MD-03", "another version", _txt(b"v=2", n, t), nobody),
        ("version-none", "MD-03", "no version", _txt(n, t), nobody),
        ("version-11", "MD-03", "a longer version", _txt(b"v=11", n, t), nobody),
        ("n-short", "MD-03", "15 bytes of n", _txt(_V1, n[:-1], t), nobody),
        ("n-long", "MD-03", "17 bytes of n", _txt(_V1, n + b"\0", t), nobody),
        ("t-short", "MD-03", "15 bytes of t", _txt(_V1, n, t[:-1]), nobody),
        ("t-long", "MD-03", "17 bytes of t", _txt(_V1, n, t + b"\0"), nobody),
        ("n-alone", "MD-03", "n without t", _txt(_V1, n), nobody),
        ("t-alone", "MD-03", "t without n", _txt(_V1, t), nobody),
        ("both", "MD-03", "a node's, and words", _txt(_V1, w, n, t), member),
        ("short-and-words", "MD-03", "n too short, and words", _txt(_V1, n[:-1], t, w), words),
        *(
            (f"words-{name}", "MD-03", about, _waiting(said), nobody)
            for name, about, said in [
                ("none", "no words", b""),
                ("three", "three words", b"abandon-ability-able"),
                ("five", "five words", _WORDS + b"-zoo"),
                ("short", "a word of two letters", b"abandon-ability-able-zo"),
                ("long", "a word of nine letters", b"abandonab-ability-able-zoo"),
                ("capital", "a capital", b"Abandon-ability-able-zoo"),
                ("blank", "a blank", b"abandon ability able zoo"),
                ("line", "a line end", _WORDS + b"\n"),
                ("digit", "a digit", b"aband0n-ability-able-zoo"),
                ("utf-8", "no UTF-8", b"\xffbandon-ability-able-zoo"),
                ("escape", "an ESC", b"\x1b[31m-ability-able-zoo"),
            ]
        ),
        ("words-edge", "MD-03", "the longest", _waiting(b"-".join([b"abcdefgh"] * 4)), _EDGE),
    ]:
        given: Json = {
            "coordinator": _COORDINATOR.hex(),
            "members": [each.hex() for each in _IDS],
            "text": text.hex(),
        }
        yield _valid(name, "announcement", ids, about, given, {"who": who})


_EDGE: Final = {"words": "abcdefgh-abcdefgh-abcdefgh-abcdefgh"}


def _valid(name: str, kind: str, ids: str, about: str, given: Json, output: Json) -> Vector:
    return valid(f"announcement/{name}", kind, ids, about, given, output)
