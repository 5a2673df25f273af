"""What the next head needs to serve the API as this one does: the API keys' hashes, and those keys
of the config that are the head's.

The head tells each successor, a member that passes requests on and so may see texts. A successor
keeps what it was told in its state folder, for its owner alone, and uses it once it is the head.
So a key that was made or revoked at one head counts at the next. A head that has no keys takes none
away from others: else a lost file would open their APIs. The right to admit machines does not
travel: a key has it where it was made with it, so that no head can give itself members.

The config of the roster's first member counts for all. Whoever is head after another goes on with
the settings of that one, whatever its own config says, and passes them on in turn. What belongs to
one machine stays there: addresses, names and origins that are let in, certificates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import pydantic
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import make_private_folder, read_file, replace_file

from sealring.files.config import Config, KeysName, SamplingName, SharingName
from sealring.http.keys import KEY_FILE, ApiKeys, KeyRecord, read_keys, write_keys

SETTINGS_FILE: Final = "head_settings.json"

MAX_SETTINGS: Final = 256 << 10
"""Bytes of the settings as they travel: some 1,000 keys, and the longest aliases."""


class ApiSettings(pydantic.BaseModel, extra="forbid", frozen=True):
    """Those keys of a config that count at the head."""

    aliases: tuple[str, ...]
    api_keys: KeysName
    prefix_sharing: SharingName
    resume_seconds: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
    sampling: SamplingName
    timeout: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]

    def into(self, config: Config) -> Config:
        """*config* with these in place of its own."""
        return config.model_copy(update=dict(self))


class HeadSettings(pydantic.BaseModel, extra="forbid", frozen=True):
    """What a head tells its successors: *api*, and its *keys*, None if none were ever made."""

    api: ApiSettings
    keys: tuple[KeyRecord, ...] | None


def told(config: Config, keys: ApiKeys) -> bytes:
    """What the head of *config*, which is as it uses it, and with these *keys* tells its
    successors. Raises `UserError` if the keys cannot be read, or are too many."""
    names = ApiSettings.model_fields
    api = ApiSettings.model_validate({name: getattr(config, name) for name in names})
    records = keys.records if keys.made else None
    data = HeadSettings(api=api, keys=records).model_dump_json().encode()
    if len(data) > MAX_SETTINGS:
        raise UserError(
            f"there are too many API keys for the next head: {len(records or ())}",
            "Revoke those that nobody uses: sealring apikey revoke",
        )
    return data


def keep(state: Path, data: bytes) -> None:
    """Keep *data*, which the head told, in the folder *state*. Raises `UserError` if it cannot be
    written, and `ValueError` if it is no such thing. Does nothing if it is kept already."""
    if len(data) > MAX_SETTINGS:
        raise ValueError(f"{len(data)} bytes of settings")
    settings = HeadSettings.model_validate_json(data)
    if settings.keys is not None:
        own = read_keys(state / KEY_FILE).keys
        admits = {each.sha256 for each in own if each.admit}
        keys = [
            each.model_copy(update={"admit": each.admit and each.sha256 in admits})
            for each in settings.keys
        ]
        if keys != own:
            write_keys(state / KEY_FILE, keys)
    text = settings.api.model_dump_json(indent=2)
    try:
        if settings.api == kept(state):
            return
    except UserError:
        pass  # it is damaged, and written again
    try:
        make_private_folder(state)
        replace_file(state / SETTINGS_FILE, text.encode() + b"\n", 0o600)
    except OSError as error:
        raise UserError(
            f"cannot write the head's settings to {state / SETTINGS_FILE}: {error.strerror}",
            "Make room there, or choose another folder with the key 'state' of the config.",
        ) from None


def kept(state: Path) -> ApiSettings | None:
    """What a head told last of its config, if the folder *state* has it. Raises `UserError` if that
    cannot be read."""
    path = state / SETTINGS_FILE
    try:
        return ApiSettings.model_validate_json(read_file(path)[0])
    except FileNotFoundError:
        return None
    except (OSError, pydantic.ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(
            f"cannot read the settings of the head in {path}: {reason or 'they are damaged'}",
            "Remove the file: this machine gets it again from the head.",
        ) from None


def used(config: Config, *, first: bool) -> Config:
    """*config* as its node uses it as the head: its own if the node is the *first* of the roster,
    else with what the head before it told, if one did. Raises `UserError`."""
    settings = None if first else kept(config.state)
    return config if settings is None else settings.into(config)
