"""API keys: made here, shown once, and kept as hashes in the head's state folder.

A key that is made here is 256 random bits, so to invert a plain SHA-256 of it is as hard as to
guess the key; slow hashes are for passwords that people choose. (`add_key` takes one that somebody
else made, for `sealring serve`, whose folder goes with it.) A key that is presented is hashed and
compared with every stored hash, each in constant time. The file is read again when it has changed:
a revoked key is refused from the next request on.

Once a key has been made, keys are asked for until the file is removed. That the last one is revoked
does not open the API: it is closed to all.

A key lets its holder ask. Who belongs to the cluster is another matter: only a key with the right
to admit may let a machine in, or refuse it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path
from typing import Annotated, Final

import attrs
import pydantic
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import (
    WRITABLE,
    make_private_folder,
    others_may,
    read_file,
    replace_file,
)
from sealring_trio.units import wall_ms

KEY_PREFIX: Final = "sk-sealring-"
KEY_BYTES: Final = 32
KEY_FILE: Final = "api_keys.json"

SHORTEST_KEY: Final = 16
"""Characters of a key that a person has chosen."""

_KEY: Final = re.compile(rf"[\x21-\x7e]{{{SHORTEST_KEY},256}}")
_NO_FILE: Final = (0, 0, 0)

Name = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]


class KeyRecord(pydantic.BaseModel, extra="forbid", frozen=True):
    """One key: whose it is, when it was made, the hash (hex) of it, and whether its holder may
    *admit* machines that wait to join."""

    name: Name
    created_ms: int
    sha256: Annotated[str, pydantic.StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    admit: bool = False


class KeyFile(pydantic.BaseModel, extra="forbid", frozen=True):
    """The file."""

    keys: list[KeyRecord] = []


def read_keys(path: Path) -> KeyFile:
    """The keys in *path*; none if there is no such file. Raises `UserError`."""
    try:
        data, status = read_file(path)
        if fault := others_may(status, WRITABLE):
            raise UserError(
                f"the API keys in {path} are not yours alone: {fault}",
                "Move the file away, and make new keys with 'sealring apikey new'.",
            )
        return KeyFile.model_validate_json(data)
    except FileNotFoundError:
        return KeyFile()
    except (OSError, pydantic.ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise _unreadable(path, reason or "it is not as it was written") from None


def _unreadable(path: Path, reason: str) -> UserError:
    return UserError(
        f"cannot read the API keys in {path}: {reason}",
        "Move the file away, and make new keys with 'sealring apikey new'.",
    )


def new_key(path: Path, name: str, *, admit: bool = False) -> str:
    """Make a key called *name*, whose holder may *admit* machines or not, and add its hash to
    *path*; the key. Raises `UserError`."""
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    add_key(path, name, key, admit=admit)
    return key


def add_key(path: Path, name: str, key: str, *, admit: bool = False) -> None:
    """Add the hash of *key*, called *name*, to *path*, as `new_key`. Raises `UserError`."""
    if not _KEY.fullmatch(key):
        raise UserError(
            f"an API key has {SHORTEST_KEY} to 256 characters, of ASCII and without spaces, and "
            "this one has not",
            "Make one that nobody guesses: openssl rand -hex 32",
        )
    file = read_keys(path)
    if any(record.name == name for record in file.keys):
        raise UserError(
            f"there is a key called '{name}' already",
            "Choose another name, or revoke that one first: sealring apikey revoke",
        )
    try:
        record = KeyRecord(name=name, created_ms=wall_ms(), sha256=digest(key), admit=admit)
    except pydantic.ValidationError:
        raise UserError(
            f"'{name}' cannot be a key's name",
            "Use up to 64 letters, digits, dots, hyphens, underscores and @, with no space.",
        ) from None
    write_keys(path, [*file.keys, record])


def revoke_key(path: Path, name: str) -> None:
    """Remove the key called *name* from *path*. Raises `UserError`."""
    records = read_keys(path).keys
    left = [record for record in records if record.name != name]
    if len(left) == len(records):
        known = ", ".join(record.name for record in records) or "none"
        raise UserError(f"there is no key called '{name}'", f"The keys are: {known}.")
    write_keys(path, left)


def write_keys(path: Path, records: list[KeyRecord]) -> None:
    """Give *path* these *records* in place of what it has. Raises `UserError`."""
    # Without the rights that a key lacks: an earlier release refuses a field that it does not know.
    text = KeyFile(keys=records).model_dump_json(indent=2, exclude_defaults=True)
    try:
        make_private_folder(path.parent)
        replace_file(path, text.encode() + b"\n", 0o600)
    except OSError as error:
        raise UserError(
            f"cannot write the API keys to {path}: {error.strerror}",
            "Choose another folder with the key 'state' of the config.",
        ) from None


def digest(key: str) -> str:
    """The whole SHA-256 of *key* in hex. A part of it could collide with another key's."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


@attrs.define
class ApiKeys:
    """The keys in *path*, as they are now."""

    path: Path
    _records: list[KeyRecord] = attrs.field(factory=list)
    _seen: tuple[int, int, int] | None = None

    @property
    def made(self) -> bool:
        """Whether there is a key file, even one without keys. Raises `UserError`."""
        self._refresh()
        return self._seen != _NO_FILE

    @property
    def records(self) -> tuple[KeyRecord, ...]:
        """All of them. Raises `UserError`."""
        self._refresh()
        return tuple(self._records)

    def owner(self, presented: str) -> str | None:
        """The name of the key that was *presented*, or None if it is none. Raises `UserError`."""
        self._refresh()
        hashed = digest(presented)
        found: str | None = None
        for record in self._records:
            if hmac.compare_digest(record.sha256, hashed):
                found = record.name
        return found

    def has(self, hashed: str) -> bool:
        """Whether there is a key with this `digest`. Raises `UserError`."""
        self._refresh()
        return any(record.sha256 == hashed for record in self._records)

    def may_admit(self, hashed: str) -> bool:
        """Whether there is a key with this `digest` whose holder may admit machines. Raises
        `UserError`."""
        self._refresh()
        return any(record.sha256 == hashed and record.admit for record in self._records)

    def _refresh(self) -> None:
        try:
            status = os.stat(self.path)
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        except FileNotFoundError:
            seen = _NO_FILE
        except OSError as error:
            raise _unreadable(self.path, error.strerror or "it cannot be looked at") from None
        if seen != self._seen:
            self._records = read_keys(self.path).keys
            self._seen = seen
