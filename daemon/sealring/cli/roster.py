"""`sealring roster new | add | sign | renew | install | show | verify`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import attrs
import cyclopts
from sealring_protocol.errors import SealringError
from sealring_protocol.security.identity import Signer, node_id
from sealring_protocol.security.mandate import UNELECTED
from sealring_protocol.security.roster import Appointment, Roster, SignedRoster, sign_roster
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import is_there, read_key, read_public_key, replace_file
from sealring_trio.files.rosters import read_roster
from sealring_trio.units import format_time, wall_ms

from sealring.cli.members import install_roster, print_rights
from sealring.cli.options import AsJson, OwnConfig
from sealring.files.cluster import (
    MAX_SERIAL,
    Draft,
    build_roster,
    describe_head,
    describe_rights,
    find_twins,
    head_text,
    make_draft,
    make_member,
    read_draft,
    verify_roster,
    write_draft,
)
from sealring.files.config import own_config
from sealring.joining.fingerprint import fingerprint
from sealring.output import print_facts, print_json, print_note, print_table

# ---------------------------------------------------------------------- roster output
# A roster as the commands show it: tables for people, one object for programs.


def print_roster(path: Path, signed: SignedRoster, *, json: bool, signature: str) -> None:
    """Show the roster in *path*, and what is known of its *signature*."""
    roster = signed.roster
    if json:
        print_json({"file": str(path), "signature": signature, **roster_facts(roster)})
        return
    print_facts(
        [
            ("cluster", f"{roster.name} ({roster.cluster.hex()})"),
            ("serial", str(roster.serial)),
            ("issued", format_time(roster.issued_ms)),
            ("expires", format_time(roster.expires_ms)),
            ("inner seal", "yes" if roster.inner_seal else "no"),
            ("tensor parallelism", "allowed" if roster.tensor_parallelism else "forbidden"),
            ("head", head_text(roster.members[0].name, describe_head(roster))),
            ("trust", roster.trust.name.lower()),
            ("coordinator", _coordinator(roster)),
            ("signature", signature),
        ]
    )
    print_table(
        "members",
        ["rank", "name", "trust", "addresses", "node id"],
        [
            (str(rank), m.name, m.trust.name.lower(), " ".join(m.addresses), m.id.hex())
            for rank, m in enumerate(roster.members)
        ],
        numbers_from=9,
    )
    print_rights({"name": member.name, **describe_rights(member)} for member in roster.members)


def _coordinator(roster: Roster) -> str:
    """Who signs it, for people."""
    made = roster.appointment
    if made is None:
        return "the key that nodes have pinned; there is no spare"
    return f"{fingerprint(made.coordinator)}, number {made.number}; spare {fingerprint(made.spare)}"


def roster_facts(roster: Roster) -> dict[str, Any]:
    """The roster as `--json` prints it. Times are milliseconds since 1970."""
    made = roster.appointment
    return {
        "cluster": roster.cluster.hex(),
        "name": roster.name,
        "serial": roster.serial,
        "issued_ms": roster.issued_ms,
        "expires_ms": roster.expires_ms,
        "inner_seal": roster.inner_seal,
        "tensor_parallelism": roster.tensor_parallelism,
        **describe_head(roster),
        "digest": roster.digest.hex(),
        "coordinator": None if made is None else made.coordinator.hex(),
        "coordinator_number": None if made is None else made.number,
        "spare": None if made is None else made.spare.hex(),
        "members": [
            {
                "rank": rank,
                "name": m.name,
                "node_id": m.id.hex(),
                "public_key": m.public_key.hex(),
                "addresses": list(m.addresses),
                "trust": m.trust.name.lower(),
                **describe_rights(m),
            }
            for rank, m in enumerate(roster.members)
        ],
    }


HELP = """\
Say who belongs to the cluster, and sign it.

A roster lists the nodes, in rank order, with their keys and addresses.
Nodes take it only with the coordinator's signature, and every pair of
nodes checks it on every connection.

    sealring roster new home
    sealring roster add home.toml desk --key desk.pub --address desk:7470
    sealring roster add home.toml den --key den.pub --address den:7470
    sealring roster sign home.toml --key coordinator.key

Next: copy the signed roster and the coordinator's .pub file to every node,
and write a config for each: sealring up --help
"""

app = cyclopts.App(name="roster", help=HELP)

DAY_MS = 24 * 3600 * 1000
MAX_DAYS = 36_500

Days = Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=1, lte=MAX_DAYS))]


@app.command
def new(
    name: str,
    *,
    out: Path | None = None,
    inner_seal: Annotated[bool, cyclopts.Parameter(negative="--no-inner-seal")] = True,
    tensor_parallelism: Annotated[
        bool, cyclopts.Parameter(negative="--no-tensor-parallelism")
    ] = True,
    fixed_head: bool = False,
    json: AsJson = False,
) -> None:
    """Begin a draft for a cluster called NAME, with no members yet.

    The draft is a TOML file that you may edit:

        sealring roster new home

    Next: sealring roster add for each node, rank 0 (the head) first.

    Parameters
    ----------
    name
        What people call the cluster.
    out
        The draft's file; NAME.toml if left out.
    inner_seal
        Seal activations a second time, between the processes that compute. A policy of the
        whole cluster, on unless you say no.
    tensor_parallelism
        Allow tensor parallelism, in which the inner seal covers nothing: the ranks' sums are
        sealed between nodes, and in the clear inside each node's process. A policy of the whole
        cluster too.
    fixed_head
        Nobody but the first member is ever the head: when it is away, the others elect none, and
        the ring waits for it. For who switches most machines off at night.
    """
    path = out if out is not None else Path(f"{name}.toml")
    if is_there(path):
        raise UserError(
            f"{path} already exists, and is left as it is", "Choose another file with --out."
        )
    draft = make_draft(
        name,
        secrets.token_bytes(32),
        inner_seal,
        tensor_parallelism=tensor_parallelism,
        fixed_head=fixed_head,
    )
    write_draft(path, draft)
    if json:
        print_json({"file": str(path), "cluster": draft.cluster})
        return
    print(
        f"wrote {path}\n\nNext: sealring roster add {path} NAME --key FILE.pub --address HOST:PORT"
    )


@app.command
def add(
    draft: Path,
    name: str,
    *,
    key: str,
    address: list[str],
    trust: str | None = None,
    attestation: str | None = None,
    text: Annotated[bool, cyclopts.Parameter(negative="--no-text")] = True,
    witness: bool = False,
    json: AsJson = False,
) -> None:
    """Add the node NAME at the end of DRAFT; the order is that of the ranks.

    The first member is rank 0, the head:

        sealring roster add home.toml desk --key desk.pub --address desk:7470

    Next: add the others, then: sealring roster sign

    Parameters
    ----------
    draft
        The draft's file.
    name
        What people call the node.
    key
        The node's public key: its .pub file, or the hex in it.
    address
        Where the other nodes reach it, host:port. May be given several times.
    trust
        What you assert of its key: none, software, hardware or attested.
    attestation
        SHA-256 of the evidence behind that, in hex.
    text
        It may see what is asked and answered. Without that it is never the head, and no rank of
        tensor parallelism; in a pipeline it is given hidden states alone, from which texts can
        be guessed.
    witness
        It is a member and in no ring.
    """
    before = read_draft(draft)
    public_key = read_public_key(key)
    member = make_member(name, public_key, address, trust, attestation, text=text, witness=witness)
    if twins := find_twins([*before.member, member]):
        raise UserError(
            f"{draft} cannot hold this node: {twins}",
            "Every node has a name, a key and addresses of its own.",
        )
    after = before.model_copy(update={"member": [*before.member, member]})
    write_draft(draft, after)
    rank = len(before.member)
    if json:
        print_json({"name": name, "rank": rank, "node_id": node_id(public_key).hex()})
        return
    print(f"{name} is rank {rank} of {draft} (node id {node_id(public_key).hex()})")
    print(f"\nNext: add the other nodes, then: sealring roster sign {draft} --key COORDINATOR.key")


@app.command
def sign(
    draft: Path,
    *,
    key: Path,
    out: Path | None = None,
    days: Days = 90,
    serial: int | None = None,
    json: AsJson = False,
) -> None:
    """Make the signed roster that nodes take, out of DRAFT.

    Needs the coordinator's private key, and no node's:

        sealring roster sign home.toml --key coordinator.key --days 90

    Nodes keep the roster with the greatest serial, so a new one always gets
    a greater serial than the one that it replaces. Links close when their
    roster expires: sign again before.

    Next: copy it to every node. In a running ring one node is enough:

        sealring roster install home.roster --config desk.toml

    Parameters
    ----------
    draft
        The draft's file.
    key
        The coordinator's private key.
    out
        The signed roster's file; DRAFT's name with .roster if left out.
        Replaced if it exists.
    days
        How long it is valid.
    serial
        Its serial; if left out, one more than that of the file it replaces,
        or 1.
    """
    path = out if out is not None else draft.with_suffix(".roster")
    source = read_draft(draft)
    signer = read_key(key)
    for member in source.member:
        if member.public_key == signer.public_key.hex():
            raise UserError(
                f"{key} cannot sign this roster: {key} is the key of its member '{member.name}'",
                "The coordinator's belongs to no node: sign with it. If that is the "
                f"coordinator's, '{member.name}' needs one of its own: make it there (sealring "
                f"keygen), put the line of its .pub file at 'public_key' of '{member.name}' in "
                f"{draft}, and sign again.",
            )
    appointment = None
    if serial is None and not is_there(path):
        serial = 1
    elif serial is None:
        before = read_roster(path)
        serial = _serial_after(path, before, signer)
        if before.roster.cluster.hex() == source.cluster:
            appointment = before.roster.appointment
    else:
        appointment = _appointment_beside({path, draft.with_suffix(".roster")}, source, signer)
    roster = build_roster(source, serial, *_validity(days), appointment)
    _write(path, roster, signer, json=json)
    if serial > 1 and appointment is None:
        print_note(
            f"roster {serial} of {source.name} names no spare coordinator. If the cluster has one, "
            "its machines refuse this roster: copy the newest one from a node to "
            f"{draft.with_suffix('.roster')}, and sign again"
        )
    if not json:
        print(f"\nNext: sealring roster verify {path} --coordinator {key.with_suffix('.pub')}")


def _appointment_beside(paths: Iterable[Path], source: Draft, signer: Signer) -> Appointment | None:
    """Whom the newest roster of the cluster of *source* that is in one of *paths* and signed by
    *signer* names as spare coordinator. Raises `UserError` for one of another's signature that
    names somebody: to leave him out would take the spare away."""
    newest: Roster | None = None
    for path in paths:
        try:
            signed = read_roster(path)
        except UserError:  # absent, or no roster
            continue
        found = signed.roster
        if found.cluster.hex() != source.cluster:
            continue
        try:
            signed.verify_signer(signer.public_key)
        except SealringError:
            if found.appointment is None:
                continue
            raise UserError(
                f"{path} names a spare coordinator, and is not signed by this key: a roster that "
                "is signed now would name none",
                "Copy the newest roster from a node over it, and sign again. If that is signed "
                "with another key, sign with that one (--key).",
            ) from None
        if newest is None or found.serial > newest.serial:
            newest = found
    return None if newest is None else newest.appointment


def _serial_after(path: Path, before: SignedRoster, signer: Signer) -> int:
    """The serial that follows *before*, the roster in *path*, which *signer* must have signed:
    whoever else can write the file would choose what is signed next. Raises `UserError`."""
    try:
        before.verify_signer(signer.public_key)
    except SealringError:
        raise UserError(
            f"{path} is not signed by this key, or it was changed: nothing in it counts, and it is "
            "left as it is",
            "Sign with the key that signed it, the coordinator's: --key. If this is that key, copy "
            "the newest roster from a node again; or sign the draft into another file (--out) with "
            "--serial, one more than the greatest in use (sealring status on any node).",
        ) from None
    serial = before.roster.serial
    if serial >= MAX_SERIAL:
        raise UserError(
            f"{path} has the serial {serial}, the greatest there is",
            "Begin a new cluster: sealring roster new.",
        )
    return serial + 1


def _validity(days: int) -> tuple[int, int]:
    """When a roster that is signed now begins, and ends; milliseconds since 1970."""
    now = wall_ms()
    return now, now + days * DAY_MS


@app.command
def renew(
    roster: Path,
    *,
    key: Path,
    out: Path | None = None,
    days: Days = 90,
    json: AsJson = False,
) -> None:
    """Sign the same members again, for another time, with the next serial.

    Do it before the roster expires, for then all links end:

        sealring roster renew home.roster --key coordinator.key --days 90

    Next, on any one node of the ring, which hands it on to the others:

        sealring roster install home.roster --config desk.toml

    Parameters
    ----------
    roster
        The signed roster's file, the newest there is. It may have expired.
    key
        The coordinator's private key.
    out
        The new roster's file; if left out, it replaces ROSTER.
    days
        How long it is valid, from now on.
    """
    signer = read_key(key)
    before = read_roster(roster)
    serial = _serial_after(roster, before, signer)
    issued, expires = _validity(days)
    fresh = attrs.evolve(
        before.roster, serial=serial, issued_ms=issued, expires_ms=expires, mandate=UNELECTED
    )
    path = out if out is not None else roster
    _write(path, fresh, signer, json=json)
    if not json:
        print(f"\nNext, on any one node: sealring roster install {path} --config CONFIG")


@app.command
def install(roster: Path, *, config: OwnConfig = None, json: AsJson = False) -> None:
    """Give a newer signed roster to the node that runs here.

    It is in force at once, and the node hands it on to all members: one node
    of the ring is enough. Requests that run go on. If it makes another
    member the head, the present head has it first: that lets its requests
    finish ('drain' in its config), and takes no new ones. For example:

        sealring roster install home.roster --config desk.toml

    Every node keeps it, and begins with it when it is started again, whatever
    its config still names.

    Parameters
    ----------
    roster
        The signed roster's file.
    """
    signed = read_roster(roster)
    serial = install_roster(own_config(config), signed)["serial"]
    if json:
        print_json({"serial": serial})
        return
    print(f"roster {serial} is in force here, and the other members take it from this node")


def _write(path: Path, roster: Roster, signer: Signer, *, json: bool) -> None:
    """Sign *roster*, write it to *path*, and print what it is. Raises `UserError`."""
    try:
        replace_file(path, sign_roster(roster, signer).encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "Choose another --out.") from None
    if json:
        print_json({"file": str(path), **roster_facts(roster)})
        return
    print(
        f"wrote {path}: serial {roster.serial}, {len(roster.members)} members, "
        f"valid until {format_time(roster.expires_ms)}"
    )


@app.command
def show(roster: Path, *, json: AsJson = False) -> None:
    """Show a signed roster, without checking its signature.

    For example:

        sealring roster show home.roster

    Parameters
    ----------
    roster
        The signed roster's file.
    """
    unchecked = "not checked; see sealring roster verify"
    print_roster(roster, read_roster(roster), json=json, signature=unchecked)


@app.command
def verify(roster: Path, *, coordinator: str, json: AsJson = False) -> None:
    """Check that a roster is the coordinator's and valid now.

    Exit code 2 if not. For example:

        sealring roster verify home.roster --coordinator coordinator.pub

    Parameters
    ----------
    roster
        The signed roster's file.
    coordinator
        The coordinator's public key: its .pub file, or the hex in it.
    """
    key = read_public_key(coordinator)
    signed = verify_roster(roster, key, wall_ms())
    print_roster(roster, signed, json=json, signature="good")
