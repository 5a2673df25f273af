"""`sealring backup` and `sealring restore`."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import tomllib
from pathlib import Path

from sealring_trio.errors import UserError
from sealring_trio.files.key_files import is_there, public_path, read_secret
from sealring_trio.files.rosters import KEPT, MARK

from sealring.cli.options import AsJson, OwnConfig
from sealring.files.backups import (
    SavedFiles,
    check_passphrase,
    passphrase_bytes,
    read_backup,
    save,
    seal,
    unpack,
    unseal,
)
from sealring.files.cluster import write_new
from sealring.files.config import Config, default_folder, own_config, with_keys
from sealring.http.keys import KEY_FILE
from sealring.output import print_json

VARIABLE = "SEALRING_PASSPHRASE"
"""The variable that may hold the passphrase."""

_NAMED = ("key", "roster", "coordinator", "coordinator_key", "tls_certificate", "tls_key")
"""Keys of a config that name files which a backup holds."""

_PRIVATE = ("key", "coordinator_key")
"""Those of them whose public halves lie beside them."""


def backup(
    file: Path,
    *,
    config: OwnConfig = None,
    passphrase_file: Path | None = None,
    json: AsJson = False,
) -> None:
    """Keep all that makes this machine a member in FILE, sealed with a passphrase.

    That is the config and what it names: the node's key, the roster, the
    coordinator's public key and, if it lies here, its private one, the API's
    certificate; and of the state folder the roster in use and the API keys.
    Not the model. The passphrase is asked for twice, or comes from
    SEALRING_PASSPHRASE. Nobody can read the file without it, you neither.

        sealring backup desk.backup

    Next: keep FILE on another machine. sealring restore makes the folder
    again.

    Parameters
    ----------
    file
        The new file.
    passphrase_file
        File whose first line is the passphrase, which nobody else may read.
    """
    settings = own_config(config)
    saved = _collect(settings)
    if is_there(file):
        raise UserError(f"{file} already exists, and is left as it is", "Choose another name.")
    passphrase = check_passphrase(read_passphrase(passphrase_file, again=True))
    write_new(file, seal(saved, passphrase), 0o600)
    names = [each.name for each in saved.files]
    if json:
        print_json({"file": str(file), "files": names})
        return
    print(f"wrote {file}: {', '.join(names)}")
    print(
        "\nNext: keep it on another machine, and the passphrase elsewhere. The models are not in "
        "it: they are fetched again."
    )


def restore(
    file: Path,
    folder: Path | None = None,
    *,
    passphrase_file: Path | None = None,
    json: AsJson = False,
) -> None:
    """Make the folder of a machine again from FILE, which 'sealring backup' wrote.

    All lies in FOLDER afterwards, also what lay elsewhere. It is new or empty
    before. The machine that was backed up must not run any more: two
    that have one key are taken for one.

        sealring restore desk.backup

    Next: sealring up with the config that was restored.

    Parameters
    ----------
    file
        The backup.
    folder
        Where the files go; the default folder if left out.
    passphrase_file
        File whose first line is the passphrase, which nobody else may read.
    """
    data = read_backup(file)
    passphrase = passphrase_bytes(read_passphrase(passphrase_file, again=False))
    place = folder if folder is not None else default_folder()
    saved = unseal(data, passphrase)
    made = unpack(saved, place)
    config = place / saved.config
    if json:
        print_json({"config": str(config), "files": [str(each) for each in made]})
        return
    print("restored " + ", ".join(str(each) for each in made))
    print(
        "\nThe machine that was backed up must not run any more: two with one key are taken for "
        f"one.\n\nNext: see that 'listen' and 'model' in {config} fit this machine. Then: sealring "
        f"up {config}"
    )


def _collect(settings: Config) -> SavedFiles:
    """The files of the machine with *settings*. What lies outside the config's folder gets a place
    in it, which the config in the backup names. Raises `UserError`."""
    folder = settings.path.resolve().parent
    written = tomllib.loads(with_keys(settings.path, {}))
    named = {key: getattr(settings, key) for key in _NAMED}
    if not is_there(Path(settings.coordinator)):
        del named["coordinator"]  # it is the key itself
    paths = {key: Path(value) for key, value in named.items() if value is not None}
    files: dict[str, Path] = {}
    changed: dict[str, str | None] = {}
    # Those in the folder first: they keep their names.
    for key, path in sorted(paths.items(), key=lambda each: _below(folder, each[1]) == ""):
        name = _below(folder, path) or path.name
        if name == settings.path.name or files.get(name, path) != path:
            name = f"{key}-{path.name}"
        files[name] = path
        if written.get(key) != name:
            changed[key] = name
        public = public_path(path)
        if key in _PRIVATE and is_there(public):
            files.setdefault(Path(name).with_suffix(".pub").as_posix(), public)
    beside = f"{settings.path.stem}.state"
    state = _below(folder, settings.state) or beside
    if written.get("state", beside) != state:
        changed["state"] = None if state == beside else state
    for kept in (KEPT, MARK, KEY_FILE):
        if is_there(settings.state / kept):
            files[f"{state}/{kept}"] = settings.state / kept
    mode = settings.path.stat().st_mode
    text = with_keys(settings.path, changed)
    return save([*files.items()], (settings.path.name, text, mode))


def _below(folder: Path, path: Path) -> str:
    """The path below *folder* of what is there; empty for what is elsewhere."""
    try:
        return path.resolve().relative_to(folder).as_posix()
    except ValueError:
        return ""


def read_passphrase(file: Path | None, *, again: bool) -> str:
    """The passphrase: of *file*, the environment, or a terminal, there *again* if it is a new one.
    Raises `UserError`."""
    if file is not None:
        text = read_secret(file, "passphrase", "Check the path.")
        return text.partition("\n")[0].rstrip("\r")
    if (given := os.environ.get(VARIABLE)) is not None:
        return given
    if sys.stdin is None or not sys.stdin.isatty():
        raise UserError(
            "a passphrase is needed, and there is no terminal to ask for it",
            f"Set {VARIABLE}, or give --passphrase-file FILE.",
        )
    with contextlib.suppress(EOFError):
        text = getpass.getpass("Passphrase: ")
        if again and getpass.getpass("Once more: ") != text:
            raise UserError("the two are not the same", "Run the command again.")
        return text
    raise UserError("no passphrase was typed", "Run the command again.")
