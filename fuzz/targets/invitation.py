"""The text of an invitation, as a person pastes it or as bytes with a check that is right."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import attrs
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.joining.invitation import PREFIX, Invitation
from sealring_protocol.limits import MAX_INVITATION

from fuzz.expect import raised
from fuzz.joins import INVITATION
from fuzz.source import Source
from spec.vectors.plain import sha256


def seeds() -> Iterator[bytes]:
    """Texts, whole and cut; and the bytes below them."""
    most = attrs.evolve(INVITATION, addresses=("[2001:db8::1]:7471", "é:1", "a" * 200, "b:2"))
    for invitation in (INVITATION, most):
        text = invitation.encode()
        yield b"\0" + text.encode()
        yield b"\0 " + text.upper().encode() + b"\n"
        yield b"\0" + text[:-2].encode()
        body = text.removeprefix(PREFIX).upper()
        yield b"\1" + base64.b32decode(body + "=" * (-len(body) % 8))[:-4]
    yield b"\0" + PREFIX.encode() + b"a" * MAX_INVITATION
    yield b"\0" + PREFIX.encode() + b"a1"
    yield b"\0" + INVITATION.encode().replace("a", "é").encode()
    yield b"\0" + INVITATION.encode().encode() + b"="
    yield b"\1" + bytes(52) + b"\2" + 2 * b"\0\1a"
    for addresses in (b"\0", b"\5" + 5 * b"\0\1a", b"\1\0\0", b"\1\0\1\x1b", b"\1\0\1a "):
        yield b"\1" + bytes(52) + addresses


def check(data: bytes) -> None:
    """It is refused with words, or it is written in one way, and blanks and case do not matter."""
    source = Source(data)
    if source.flag():
        body = source.rest()
        whole = body + sha256(body)[:4]
        text = PREFIX + base64.b32encode(whole).decode().rstrip("=").lower()
    else:
        text = source.rest().decode("utf-8", "replace")
    read: list[Invitation] = []
    error = raised(lambda: read.append(Invitation.decode(text)))
    if error is not None:
        assert isinstance(error, RemoteProtocolError)
        assert str(error)
        return
    (invitation,) = read
    again = invitation.encode()
    assert again == text.strip().lower()
    assert Invitation.decode(f"\t{again.upper()} ") == invitation
    assert repr(invitation.secret) not in repr(invitation)
