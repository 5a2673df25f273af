"""`sealring coordinator export | import | spare | change`: takes the key that signs rosters off a
machine, brings it back, and has another take its place when it is lost or stolen."""

from __future__ import annotations

from pathlib import Path

import cyclopts
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import is_there, read_key, replace_file, sync_folder
from sealring_trio.units import format_time, wall_ms

from sealring.cli.backup import read_passphrase
from sealring.cli.members import (
    IN_FORCE,
    put_in_force,
    read_cluster,
    read_signer,
    roster_installed,
)
from sealring.cli.options import AsJson, OwnConfig
from sealring.files.backups import (
    changing_roster,
    check_passphrase,
    naming_roster,
    passphrase_bytes,
    read_spare,
    spare_text,
)
from sealring.files.cluster import new_key, read_coordinator_key, write_new
from sealring.files.config import Config, own_config, with_keys
from sealring.joining.fingerprint import fingerprint
from sealring.output import print_json

KEY_NAME = "coordinator.key"

app = cyclopts.App(
    name="coordinator",
    help="""Keep the key that signs rosters, and what to do when it is lost or stolen.

    Whoever has the coordinator's key decides who belongs to the cluster. Where
    it lies on a machine, that machine signs for you, and renews the roster by
    itself. Off every machine, nobody who breaks into one can add another.

        sealring coordinator export /media/stick/coordinator.key

    A spare, made once and kept off every machine, says which key takes its
    place when it is lost or stolen:

        sealring coordinator spare /media/stick/home.spare
        sealring coordinator change --key /media/stick/home.spare

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
    cluster = read_cluster(settings.path)
    coordinator, expires_ms = cluster.coordinator, cluster.roster.roster.expires_ms
    signer = read_coordinator_key(path, coordinator)
    text = with_keys(settings.path, {"coordinator_key": None})
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
    if settings.coordinator_key is not None and is_there(settings.coordinator_key):
        raise UserError(
            f"{settings.path} names a coordinator's key already, {settings.coordinator_key}",
            "If it signs rosters, there is nothing to bring. If it is from before a change of the "
            "coordinator, take it out of the config, and the file away.",
        )
    signer = read_coordinator_key(file, read_cluster(settings.path).coordinator)
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


@app.command
def spare(
    file: Path,
    *,
    config: OwnConfig = None,
    key: Path | None = None,
    passphrase_file: Path | None = None,
    json: AsJson = False,
) -> None:
    """Make a spare coordinator, whose key goes to FILE, sealed with a passphrase.

    Do it before anything happens to the coordinator's key: only a spare that
    was named before can take its place. It signs nothing else. It is named
    once and stays: a thief of the coordinator's key could name his own
    otherwise. FILE is text, and can be printed. All machines of the cluster
    run this release or a newer one before: older ones do not take the roster.

        sealring coordinator spare /media/stick/home.spare

    Next: take FILE off this machine, and make a copy. Whoever has it and the
    passphrase can take the cluster over.

    Parameters
    ----------
    file
        The new file.
    key
        The coordinator's private key; the config's 'coordinator_key' if left
        out.
    passphrase_file
        File whose first line is the passphrase, which nobody else may read.
    """
    cluster = read_cluster(config)
    name, before = cluster.roster.roster.name, cluster.roster.roster.appointment
    if before is not None:
        raise UserError(
            f"{name} has a spare coordinator already, {fingerprint(before.spare)}, and it stays",
            "Copy its file. If that or its passphrase is lost, keep the coordinator's key the more "
            "safely; a cluster with another spare is a new one: sealring start FOLDER",
        )
    signer = read_signer(cluster, key)
    if is_there(file):
        raise UserError(f"{file} already exists, and is left as it is", "Choose another name.")
    passphrase = check_passphrase(read_passphrase(passphrase_file, again=True))
    made = new_key()
    signed = naming_roster(cluster.roster, signer, made, wall_ms(), cluster.spent)
    write_new(file, spare_text(made, signed.roster, passphrase).encode(), 0o600)
    if read_spare(file, passphrase).public_key != made.public_key:
        raise OperationError(f"{file} does not hold what was written", "Choose another place.")
    try:
        put_in_force(cluster, signed)
    except UserError as error:  # a spare that was named is never without its file
        raise type(error)(
            error.what,
            f"{error.advice} {file} is kept, since the roster that names it may be in force. Run "
            "this again, with another file: if it says that there is a spare, this is its file.",
        ) from None
    if json:
        facts = {"file": str(file), "fingerprint": fingerprint(made.public_key)}
        print_json({**facts, "serial": signed.roster.serial, "installed": cluster.running})
        return
    print(
        f"{file} has the spare coordinator's key of {name}, {fingerprint(made.public_key)}, and "
        f"roster {signed.roster.serial} names it.\n"
    )
    print(_where(cluster.running))
    print(
        "\nNext: take the file off this machine, copy it, and keep the passphrase elsewhere: "
        "whoever has both can take the cluster over. When the coordinator's key is lost or stolen: "
        "sealring coordinator change --key FILE"
    )


@app.command
def change(
    *,
    key: Path,
    config: OwnConfig = None,
    passphrase_file: Path | None = None,
    json: AsJson = False,
) -> None:
    """Have a new key take the place of the coordinator's, which was lost or stolen.

    The spare in the file that --key names appoints it. The new key lies on
    this machine, beside the config, which names it. The machines of the
    cluster stay; requests go on. The others learn it from this node, those
    that are away from any other, and none needs a new file. The former key
    signs nothing from then on.

        sealring coordinator change --key /media/stick/home.spare

    Next: see that you know every machine (sealring machines list): a thief of
    the former key may have added one. Take the spare's file away again.

    Parameters
    ----------
    key
        The spare coordinator's file.
    passphrase_file
        File whose first line is the passphrase, which nobody else may read.
    """
    cluster = read_cluster(config)
    settings = cluster.config
    passphrase = passphrase_bytes(read_passphrase(passphrase_file, again=False))
    by = read_spare(key, passphrase)
    former = cluster.roster.roster.appointment
    path = settings.path.resolve().parent / (
        f"coordinator-{0 if former is None else former.number + 1}.key"
    )
    signer = read_key(path) if is_there(path) else new_key()  # of a change that did not end
    signed = changing_roster(cluster.roster, signer, by, wall_ms())
    text = with_keys(settings.path, {"coordinator_key": path.name})
    if not is_there(path):
        write_new(path, signer.to_pem(), 0o600)
    roster = put_in_force(cluster, signed)
    _write_config(settings, text)
    if json:
        print_json({"file": str(path), **roster_installed(cluster, roster)})
        return
    print(
        f"{path} has the coordinator's new key, {fingerprint(signer.public_key)}; the former one "
        f"signs nothing more. Roster {roster.serial} says so, valid until "
        f"{format_time(roster.expires_ms)}.\n"
    )
    print(_where(cluster.running))
    names = [member.name for member in roster.members]
    print(
        f"\nThe machines of {roster.name} are as before: {', '.join(names)}. If you do not know "
        "one, or its fingerprint (sealring machines list): sealring machines remove NAME\n\nNext: "
        "start the node here again, when it suits: it renews the roster from then on. Take the "
        "spare's file off this machine again: it is good for the next change, too."
    )


def _where(running: bool) -> str:
    """Where a roster went that was put in force by a node that is *running*, or not."""
    if running:
        return IN_FORCE
    return "No node runs here: it goes to the other machines when one does (sealring up)."


def _write_config(settings: Config, text: str) -> None:
    """Put *text* into the config's file. Raises `OperationError`."""
    try:
        mode = settings.path.stat().st_mode & 0o777
        replace_file(settings.path.resolve(), text.encode(), mode)
    except OSError as error:
        raise OperationError(
            f"cannot write {settings.path}: {error.strerror}",
            "Make that file yours, see where 'coordinator_key' in it leads, and try again.",
        ) from None
