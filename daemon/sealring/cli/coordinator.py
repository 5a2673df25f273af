"""`sealring coordinator export | import`: takes the key that signs rosters off a machine, and
brings it back."""

from __future__ import annotations

from pathlib import Path

import cyclopts
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import is_there, read_public_key, replace_file, sync_folder
from sealring_trio.files.rosters import RosterStore
from sealring_trio.units import format_time, wall_ms

from sealring.cli.options import AsJson, OwnConfig
from sealring.files.cluster import read_coordinator_key, write_new
from sealring.files.config import Config, own_config, with_keys
from sealring.output import print_json

KEY_NAME = "coordinator.key"

app = cyclopts.App(
    name="coordinator",
    help="""Take the key that signs rosters off this machine, or bring it back.

    Whoever has the coordinator's key decides who belongs to the cluster. Where
    it lies on a machine, that machine signs for you, and renews the roster by
    itself. Off every machine, nobody who breaks into one can add another.

        sealring coordinator export /media/stick/coordinator.key

    Next: sealring machines, with --key where the key does not lie.
    """,
)


@app.command(name="export")
def export(file: Path, *, config: OwnConfig = None, json: AsJson = False) -> None:
    """Move the coordinator's private key from this machine to FILE.

    FILE is written for you alone, read back and compared; then the key is
    removed here, and 'coordinator_key' is taken out of the config. The node
    may run meanwhile.

        sealring coordinator export /media/stick/coordinator.key

    Next: take FILE off this machine, and keep a copy: without the key nobody
    can be added to the cluster, and the roster cannot be renewed.

    Parameters
    ----------
    file
        Where the key goes: a new file, or a folder. The file system has to
        keep modes (0600), which FAT does not; sealring backup is sealed, and
        may lie anywhere.
    """
    settings = own_config(config)
    path = settings.coordinator_key
    if path is None:
        raise UserError(
            f"{settings.path} names no coordinator's key: there is none to take off this machine",
            "Run this where the key lies: where 'sealring start' made the cluster.",
        )
    coordinator = read_public_key(settings.coordinator)
    signer = read_coordinator_key(path, coordinator)
    text = with_keys(settings.path, {"coordinator_key": None})
    store = RosterStore(settings.state, coordinator)
    expires_ms = store.newest(settings.roster, wall_ms()).roster.expires_ms
    if file.is_dir():
        file = file / KEY_NAME
    write_new(file, signer.to_pem(), 0o600)
    try:
        read_coordinator_key(file, coordinator)
    except UserError as error:
        file.unlink(missing_ok=True)
        raise OperationError(
            f"{file} does not hold the key as it should, and is removed again; the key is where it "
            f"was: {error.what}",
            "Choose a file system that keeps modes. Or, for one that does not: sealring backup.",
        ) from None
    _write_config(settings, text)
    try:
        path.resolve().unlink()
        path.unlink(missing_ok=True)  # a link to it
        sync_folder(path.parent)
    except OSError as error:
        raise OperationError(
            f"{file} has the key, and it is still in {path}: {error.strerror}", f"rm {path}"
        ) from None
    if json:
        print_json({"file": str(file), "removed": str(path), "expires_ms": expires_ms})
        return
    print(
        f"{file} has the coordinator's key, and this machine has it no more.\n"
        "Take the file off this machine, and keep a copy.\n\n"
        "From now on these need it, with --key FILE: sealring machines accept, remove, replace, "
        "move, rename and address, and sealring roster renew.\n"
        f"The roster is renewed by nobody: all links end on {format_time(expires_ms)}, if "
        "you do not renew it before."
    )


@app.command(name="import")
def import_(file: Path, *, config: OwnConfig = None, json: AsJson = False) -> None:
    """Bring the coordinator's private key in FILE to this machine.

    It goes beside the config, for you alone, and the config names it. FILE
    stays as it is.

        sealring coordinator import /media/stick/coordinator.key

    Next: start the node again. It renews the roster from then on.

    Parameters
    ----------
    file
        The coordinator's private key.
    """
    settings = own_config(config)
    coordinator = read_public_key(settings.coordinator)
    if settings.coordinator_key is not None and is_there(settings.coordinator_key):
        raise UserError(
            f"{settings.path} names a coordinator's key already, {settings.coordinator_key}",
            "There is nothing to bring.",
        )
    signer = read_coordinator_key(file, coordinator)
    path = settings.path.resolve().parent / KEY_NAME
    text = with_keys(settings.path, {"coordinator_key": KEY_NAME})
    if path.resolve() != file.resolve():
        write_new(path, signer.to_pem(), 0o600)
    _write_config(settings, text)
    if json:
        print_json({"file": str(path)})
        return
    print(
        f"{path} has the coordinator's key, and {settings.path} names it.\n"
        f"{file} still has it too: keep it safe, or remove it.\n\n"
        "Next: start the node again, if it runs. It renews the roster from then on."
    )


def _write_config(settings: Config, text: str) -> None:
    """Put *text* into the config's file. Raises `OperationError`."""
    try:
        mode = settings.path.stat().st_mode & 0o777
        replace_file(settings.path.resolve(), text.encode(), mode)
    except OSError as error:
        raise OperationError(
            f"cannot write {settings.path}: {error.strerror}",
            "The key is in both places now. Make that file yours, remove the copy, and try again.",
        ) from None
