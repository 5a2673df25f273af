"""The spare coordinator: its sealed key, and the rosters that name it and that it makes possible.

Its private key is in one file, which its owner keeps off the machines. The file is text, so it can
be printed: lines of comment, and the key as `backups` seals one, in base64.
"""

from __future__ import annotations

import base64
import binascii
import textwrap
from pathlib import Path
from typing import Final

import attrs
from sealring_protocol.errors import SealringError
from sealring_protocol.security.appointment import SERIALS, name_spare
from sealring_protocol.security.identity import Signer, SoftwareSigner
from sealring_protocol.security.roster import Roster, SignedRoster, sign_roster
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import decoded, read_file

from sealring.files.backups import seal_bytes, unseal_bytes
from sealring.files.cluster import changed_roster, check_signed_by

TITLE: Final = b"sealring spare\r\n\x00"

_COMMENT: Final = "#"
_WHAT: Final = "spare coordinator's key"


def spare_text(spare: SoftwareSigner, roster: Roster, passphrase: bytes) -> str:
    """The file with the key of *spare*, for the cluster of *roster*, sealed with *passphrase*."""
    sealed = base64.b64encode(seal_bytes(spare.to_pem(), passphrase, TITLE)).decode()
    return "\n".join(
        [
            f"# The spare coordinator of the sealring cluster {roster.name},",
            f"# whose id is {roster.cluster.hex()}.",
            "# Keep it off every machine of the cluster. It may be printed, and copied.",
            "# If the coordinator's key is lost or stolen, on any machine of the cluster:",
            "#     sealring coordinator change --key FILE",
            *textwrap.wrap(sealed, 64),
            "",
        ]
    )


def read_spare(path: Path, passphrase: bytes) -> SoftwareSigner:
    """The spare coordinator's key that is sealed in the file at *path*. Raises `UserError`."""
    no_spare = UserError(
        f"{path} has no spare coordinator's key",
        "Give the file that 'sealring coordinator spare' wrote.",
    )
    try:
        lines = decoded(read_file(path)[0]).splitlines()
        text = "".join(line.strip() for line in lines if not line.startswith(_COMMENT))
        data = base64.b64decode(text, validate=True)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "Check the path.") from None
    except (UnicodeDecodeError, binascii.Error):
        raise no_spare from None
    if not data.startswith(TITLE):
        raise no_spare
    try:
        return SoftwareSigner.from_pem(unseal_bytes(data, passphrase, TITLE, _WHAT))
    except SealringError:
        raise no_spare from None


def naming_roster(
    before: SignedRoster, coordinator: Signer, spare: Signer, wall_ms: int, spent: int
) -> SignedRoster:
    """The roster that follows *before* and names *spare*, signed by *coordinator*, whose key is the
    pinned one. For *wall_ms* and *spent* see `changed_roster`. Raises `UserError`."""
    check_signed_by(before, coordinator)
    after = changed_roster(before.roster, before.roster.members, wall_ms, spent)
    made = name_spare(after.cluster, after.serial, coordinator, spare)
    return sign_roster(attrs.evolve(after, appointment=made), coordinator)


def changing_roster(
    before: SignedRoster, coordinator: Signer, spare: Signer, wall_ms: int
) -> SignedRoster:
    """The roster that follows *before*, in which *spare* appoints *coordinator*, who signs it: the
    same members, and the first of the serials of that coordinator.

    Raises `UserError` if *before* does not name that spare.
    """
    former = before.roster.appointment
    if former is None:
        raise UserError(
            f"roster {before.roster.serial} of {before.roster.name} names no spare coordinator",
            "Only a key that was named before can take the place of the coordinator's. Without "
            "one, a lost key means a new cluster: sealring start FOLDER",
        )
    if former.spare != spare.public_key:
        raise UserError(
            f"this is not the spare coordinator of {before.roster.name}",
            "Give the file that 'sealring coordinator spare' wrote for this cluster.",
        )
    made = former.followed_by(before.roster.cluster, coordinator.public_key, spare)
    beyond, members = made.number * SERIALS, before.roster.members
    return sign_roster(changed_roster(before.roster, members, wall_ms, beyond, made), coordinator)
