"""Which members are asked for files of a model, and what each says that it has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import attrs
from sealring_model.loading.foreign_json import MEMBER_LISTING, parse_foreign
from sealring_model.loading.partial_model import MAX_SIZE
from sealring_protocol.codec.messages import LISTING
from sealring_protocol.limits import MAX_LAYERS
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.identity import Signer, node_id
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roster import Member, SignedRoster

from sealring_trio.weights.asking import Asker, AskFault, AskingLink
from sealring_trio.weights.shared_files import MAX_LISTING, is_shared

MAX_FILES: Final = 4096
"""Files of a listing."""

MAX_TOLD: Final = 2000
"""Bytes of a text for people that has members' words in it."""

_HASH: Final = re.compile("[0-9a-f]{64}|")
_PIN: Final = re.compile("[0-9]{1,20}")


@attrs.frozen
class Listing:
    """What a member says that it has: *files* by size, and *tensors* by SHA-256 (empty where it
    does not know it). *pins* are those of the whole model. All of it may be a lie."""

    files: dict[str, int]
    tensors: dict[str, str]
    pins: tuple[int, ...]

    @property
    def weights(self) -> dict[str, int]:
        """The files of weights."""
        return {name: size for name, size in self.files.items() if is_weights(name)}

    @property
    def small(self) -> dict[str, int]:
        """The other files: configuration, tokenizer, manifest."""
        return {name: size for name, size in self.files.items() if not is_weights(name)}


def is_weights(name: str) -> bool:
    """Whether *name* is that of a file of weights."""
    return name.endswith(".safetensors")


@attrs.frozen
class Members:
    """The other members of the *roster* in force. This one signs with *signer*, pinned
    *coordinator* and offers *suites*. *keep* is `Asker.keep`."""

    roster: Callable[[], SignedRoster]
    coordinator: bytes
    signer: Signer
    instance: int
    keep: Callable[[SignedRoster], None]
    suites: tuple[Suite, ...] = tuple(Suite)

    def others(self) -> Iterator[Member]:
        """All other members, the head first."""
        own = node_id(self.signer.public_key)
        return (member for member in self.roster().roster.members if member.id != own)

    def head(self) -> Member | None:
        """The head; None if this node is it."""
        first = self.roster().roster.members[0]
        return None if first.id == node_id(self.signer.public_key) else first

    def link(self, member: Member, check: Callable[[], None]) -> AskingLink:
        """A link to ask *member* on. *check* is `Asker.check`. The link ends when another roster is
        in force, which may have put *member* out."""
        roster = self.roster()

        def look() -> None:
            check()
            if self.roster().roster.serial != roster.roster.serial:
                raise AskFault("another roster has come into force meanwhile")

        config = HandshakeConfig(
            self.signer.public_key, roster, self.coordinator, self.instance, self.suites
        )
        return AskingLink(Asker(config, self.signer, self.keep, look), member)


def listing_of(link: AskingLink) -> Listing:
    """What the member at the other end of *link* has. Raises `AskFault`."""
    try:
        return read_listing(link.content(LISTING, MAX_LISTING))
    except ValueError:
        raise AskFault(f"the listing of {link.name} makes no sense") from None


def read_listing(text: bytes) -> Listing:
    """The listing in *text*, without the files that may not be asked for. Raises `ValueError`."""
    try:
        value = parse_foreign(MEMBER_LISTING, text)
        files, tensors, pins = value["files"], value["tensors"], value["pins"]
        found = Listing(
            {name: size for name, size in files.items() if _is_file(name, size)},
            {name: told for name, told in tensors.items() if _HASH.fullmatch(told)},
            tuple(int(pin) for pin in pins if _PIN.fullmatch(pin)),
        )
    except (LookupError, TypeError, AttributeError):
        raise ValueError("a listing of another form") from None
    if len(found.files) > MAX_FILES or len(found.pins) > MAX_LAYERS + 2:
        raise ValueError("a listing of too many files or pins")
    if any(pin >= 1 << 64 for pin in found.pins):
        raise ValueError("a pin beyond its width")
    return found


def _is_file(name: str, size: object) -> bool:
    """Whether a file *name* of *size* may be asked for, and written beside others here."""
    return is_shared(name) and type(size) is int and 0 <= size <= MAX_SIZE
