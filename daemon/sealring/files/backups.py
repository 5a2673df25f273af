"""What is sealed with a passphrase: the backup of a machine, which is some small files, and the
spare coordinator's key.

A backup: ``title 18 · version u8 · salt 16 · check 32 · sealed``. scrypt makes 64 bytes of the
passphrase and the salt: a key, and the check, by which a wrong passphrase is known as that. The key
is used once, so the nonce of ChaCha20-Poly1305 is zero; all before it is authenticated with it. The
version fixes what scrypt costs, so a file of somebody else cannot choose it. What is sealed is
JSON: each file's name (a path below the folder), mode and content.

A backup may come from anywhere. Its size is limited before it is read, its names before a file is
made; and `unpack` makes new files only, in folders that it made itself but for the top one.

The spare's private key is in one file, which its owner keeps off the machines. The file is text, so
it can be printed: lines of comment, and the sealed key in base64.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import secrets
import textwrap
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Self

import attrs
import pydantic
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from sealring_protocol.errors import SealringError
from sealring_protocol.security.identity import Signer, SoftwareSigner
from sealring_protocol.security.roster import SERIALS, Roster, SignedRoster, name_spare, sign_roster
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import WRITABLE, decoded, is_there, others_may, read_file

from sealring.files.cluster import changed_roster, check_signed_by, write_new

TITLE: Final = b"sealring backup\r\n\x00"
VERSION: Final = 1
MAX_BACKUP: Final = 8 << 20
"""Bytes of a backup. Memory: about three times as much, and the 128 MiB of scrypt."""
MAX_FILES: Final = 64
MAX_PARTS: Final = 4
"""Parts of a name: folders and the file."""
MAX_NAME: Final = 200
"""Bytes of a part."""
SHORTEST: Final = 12
"""Characters of a passphrase. It is guessed without limit by whoever has the file."""
LONGEST: Final = 1024

_SALT: Final = 16
_KEY: Final = 32
_HEAD: Final = 1 + _SALT + _KEY  # after the title
_TAG: Final = 16
_NONCE: Final = bytes(12)
_COST: Final = 1 << 17
"""scrypt's N, with r = 8 and p = 1: 128 MiB and half a second for each guess."""
_MODES: Final = 0o644
"""Bits that a file's mode may have."""

_DAMAGED: Final = "Copy it again from where it was made, or take another."


def _check_name(value: str) -> str:
    parts = value.split("/")
    if len(parts) > MAX_PARTS:
        raise ValueError("its name has too many parts")
    for part in parts:
        if part in ("", ".", "..") or "\\" in part or not part.isprintable():
            raise ValueError("its name is no path below a folder")
        if len(part.encode()) > MAX_NAME:
            raise ValueError("its name is too long")
    return value


class SavedFile(pydantic.BaseModel, extra="forbid", frozen=True):
    """One file of a backup: its *name*, a path below the folder, its *mode*, and its content."""

    name: Annotated[str, pydantic.AfterValidator(_check_name)]
    mode: Annotated[int, pydantic.Field(ge=0, le=_MODES)]
    data: Annotated[str, pydantic.Field(max_length=MAX_BACKUP)]

    @classmethod
    def of(cls, name: str, mode: int, content: bytes) -> Self:
        """The file *name* with *content*; of its *mode*, the bits that it may have. Raises
        `pydantic.ValidationError`."""
        return cls(name=name, mode=mode & _MODES, data=base64.b64encode(content).decode())

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode & ~_MODES:
            raise ValueError("others could write it, or run it")
        base64.b64decode(self.data, validate=True)
        return self

    @property
    def content(self) -> bytes:
        """The bytes of the file."""
        return base64.b64decode(self.data)


class SavedFiles(pydantic.BaseModel, extra="forbid", frozen=True):
    """What a backup holds: its files, and the name of the one that is the *config*."""

    config: str
    files: Annotated[
        tuple[SavedFile, ...], pydantic.Field(max_length=MAX_FILES), pydantic.FailFast()
    ]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        names = [file.name.casefold() for file in self.files]
        folders = {
            "/".join(parts[:end])
            for parts in (name.split("/") for name in names)
            for end in range(1, len(parts))
        }
        if len(set(names)) < len(names) or folders & set(names):
            raise ValueError("two files have one name")
        if self.config not in [file.name for file in self.files]:
            raise ValueError("it has no config")
        return self


def check_passphrase(text: str) -> bytes:
    """The bytes of a new passphrase. Raises `UserError` for one that is soon guessed."""
    if len(text) < SHORTEST:
        raise UserError(
            f"a passphrase of {len(text)} characters is soon guessed, by whoever has the file",
            f"Take {SHORTEST} characters or more: five words that chance has chosen are good.",
        )
    return passphrase_bytes(text)


def passphrase_bytes(text: str) -> bytes:
    """The bytes of a passphrase, however its letters with accents were typed. Raises
    `UserError`."""
    if len(text) > LONGEST:
        raise UserError(f"the passphrase has more than {LONGEST} characters", "Give a shorter one.")
    try:
        return unicodedata.normalize("NFC", text).encode()
    except UnicodeEncodeError:
        raise UserError("the passphrase is no text", "Give it in UTF-8.") from None


def _derive(passphrase: bytes, salt: bytes) -> tuple[bytes, bytes]:
    """The key and the check."""
    made = Scrypt(salt=salt, length=2 * _KEY, n=_COST, r=8, p=1).derive(passphrase)
    return made[:_KEY], made[_KEY:]


def seal_bytes(text: bytes, passphrase: bytes, title: bytes) -> bytes:
    """*text* under *passphrase*, in a file that begins with *title*."""
    salt = secrets.token_bytes(_SALT)
    key, check = _derive(passphrase, salt)
    head = title + bytes([VERSION]) + salt + check
    return head + ChaCha20Poly1305(key).encrypt(_NONCE, text, head)


def seal(saved: SavedFiles, passphrase: bytes) -> bytes:
    """The backup that holds *saved*. Raises `UserError` if that is too much."""
    data = seal_bytes(saved.model_dump_json().encode(), passphrase, TITLE)
    if len(data) > MAX_BACKUP:
        raise UserError(
            f"the files of this machine have more than a backup holds, {MAX_BACKUP >> 20} MiB",
            "It keeps keys, a roster and a config. Look for one that is far too large.",
        )
    return data


def read_backup(path: Path) -> bytes:
    """The file at *path*, if it begins as a backup of this version does. Raises `UserError`."""
    try:
        data, _ = read_file(path, MAX_BACKUP)
    except OSError as error:
        raise UserError(
            f"cannot read the backup {path}: {error.strerror}", "Check the path."
        ) from None
    check_head(data)
    return data


def check_head(data: bytes) -> None:
    """Raise `UserError` unless *data* may be a backup of this version."""
    if not data.startswith(TITLE):
        raise UserError(
            "this is no backup of sealring", "Give the file that 'sealring backup' wrote."
        )
    _check_whole(data, TITLE, "backup")


def _check_whole(data: bytes, title: bytes, what: str) -> None:
    version = data[len(title) : len(title) + 1]
    if version and version != bytes([VERSION]):
        raise UserError(
            f"the {what} has version {version[0]}, and this sealring reads {VERSION}",
            "Use a newer sealring.",
        )
    if len(data) < len(title) + _HEAD + _TAG:
        raise UserError(f"the {what} is cut off", _DAMAGED)


def unseal(data: bytes, passphrase: bytes) -> SavedFiles:
    """What the backup *data* holds. Raises `UserError`."""
    check_head(data)
    return read_saved(unseal_bytes(data, passphrase, TITLE, "backup"))


def unseal_bytes(data: bytes, passphrase: bytes, title: bytes, what: str) -> bytes:
    """What `seal_bytes` sealed in *data*, the *what*, which begins with *title*. Raises
    `UserError`."""
    _check_whole(data, title, what)
    size = len(title) + _HEAD
    head = data[:size]
    key, check = _derive(passphrase, head[len(title) + 1 : -_KEY])
    if not hmac.compare_digest(check, head[-_KEY:]):
        raise UserError(
            "the passphrase is wrong",
            "Try again. Capitals, and the layout of the keyboard, make another passphrase.",
        )
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, data[size:], head)
    except InvalidTag:
        raise UserError(
            f"the passphrase is right, and the {what} is damaged: it was changed, or cut off",
            _DAMAGED,
        ) from None


def read_saved(text: bytes) -> SavedFiles:
    """The files in *text*, which was sealed. Raises `UserError` for what no backup has."""
    try:
        return SavedFiles.model_validate_json(text)
    except pydantic.ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"])) or "its content"
        raise UserError(
            f"the backup is none that sealring makes: {where}: {fault['msg']}",
            "Whoever made it had the passphrase. Do not use it, nor any other of theirs.",
        ) from None


@attrs.define
class _Made:
    """What was made so far, to be taken away again."""

    files: list[Path] = attrs.field(factory=list)
    folders: list[Path] = attrs.field(factory=list)

    def undo(self) -> None:
        for file in self.files:
            file.unlink(missing_ok=True)
        for folder in reversed(self.folders):
            with contextlib.suppress(OSError):
                folder.rmdir()


def unpack(saved: SavedFiles, folder: Path) -> list[Path]:
    """Make the files of *saved* in *folder*, which is made if need be; their paths. All of them, or
    none. Raises `UserError`, also if anything is there already."""
    _check_folder(folder)
    # Beside a person's other files a name alone may do something: .bash_profile, sitecustomize.py.
    if is_there(folder) and (there := next(folder.iterdir(), None)) is not None:
        raise UserError(
            f"{there} already exists, and everything is left as it is",
            "Restore into a folder that is new or empty: sealring restore FILE FOLDER",
        )
    made = _Made()
    try:
        _make_folder(folder, made, parents=True)
        for file in saved.files:
            path = folder / file.name
            below = [each for each in path.parents if folder in each.parents]
            for each in reversed(below):
                _make_folder(each, made)
            write_new(path, file.content, file.mode | 0o600)
            made.files.append(path)
    except OSError as error:
        made.undo()
        raise UserError(
            f"cannot restore into {folder}: {error.strerror}; nothing is left of it there",
            "Choose a folder that is yours, and has room.",
        ) from None
    except UserError:
        made.undo()
        raise
    return made.files


def _make_folder(path: Path, made: _Made, *, parents: bool = False) -> None:
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=parents)
        made.folders.append(path)


def _check_folder(folder: Path) -> None:
    """Raise `UserError` if others could put their own files into *folder*."""
    if not is_there(folder):
        return
    try:
        fault = "it is no folder" if not folder.is_dir() else others_may(folder.stat(), WRITABLE)
    except OSError as error:
        fault = error.strerror or "it cannot be looked at"
    if fault:
        raise UserError(
            f"cannot restore into {folder}: {fault}", f"chmod 700 {folder}; or choose another."
        )


def save(files: Sequence[tuple[str, Path]], config: tuple[str, str, int]) -> SavedFiles:
    """The *files*, each under its name, and the *config*: its name, text and mode. Raises
    `UserError`."""
    name, text, mode = config
    contents = [(name, mode, text.encode())]
    for each, path in files:
        try:
            data, status = read_file(path)
            contents.append((each, status.st_mode, data))
        except OSError as error:
            raise UserError(
                f"cannot read {path}, which belongs to the backup: {error.strerror}",
                "Put that right first: a backup without it would be none.",
            ) from None
    try:
        saved = tuple(SavedFile.of(*each) for each in contents)
        return SavedFiles(config=name, files=saved)
    except pydantic.ValidationError as error:
        fault = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise UserError(
            f"a file of this machine cannot be in a backup: {fault}",
            f"Its files are: {', '.join(each for each, *_ in contents)}. Give it a plain name.",
        ) from None


# ---------------------------------------------------------------------- the spare coordinator
# Its sealed key, and the rosters that name it and that it makes possible.


SPARE_TITLE: Final = b"sealring spare\r\n\x00"

_COMMENT: Final = "#"
_SPARE: Final = "spare coordinator's key"


def spare_text(spare: SoftwareSigner, roster: Roster, passphrase: bytes) -> str:
    """The file with the key of *spare*, for the cluster of *roster*, sealed with *passphrase*."""
    sealed = base64.b64encode(seal_bytes(spare.to_pem(), passphrase, SPARE_TITLE)).decode()
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
    if not data.startswith(SPARE_TITLE):
        raise no_spare
    try:
        return SoftwareSigner.from_pem(unseal_bytes(data, passphrase, SPARE_TITLE, _SPARE))
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
