"""What makes a cluster: keys, the draft of a roster, which people read and edit, and the roster
that follows one which is signed.

The draft is TOML: the cluster's name and random id, its policy, and one ``[[member]]`` for each
node, in rank order. Signing adds the serial and the validity and makes the binary form, whose bytes
are exactly what travels between nodes.

A roster that is signed is changed without a draft: `changed_roster` has other members, the next
serial and the same lifetime, which begins anew, and `sign_next` signs it.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeVar

import attrs
import pydantic
from cryptography.hazmat.primitives.asymmetric import ec
from sealring_protocol.errors import SealringError
from sealring_protocol.limits import MAX_ADDRESS, MAX_ADDRESSES, MAX_MEMBERS, MAX_NAME
from sealring_protocol.security.identity import Signer, SoftwareSigner
from sealring_protocol.security.mandate import UNELECTED
from sealring_protocol.security.roster import (
    Appointment,
    Member,
    Rights,
    Roster,
    SignedRoster,
    TrustLevel,
    sign_roster,
)
from sealring_trio.errors import UserError
from sealring_trio.files.config import read_toml
from sealring_trio.files.key_files import is_there, public_path, read_key, replace_file
from sealring_trio.files.rosters import read_verified
from sealring_trio.units import format_time, is_unspecified, parse_address

TRUST_NAMES: Final = {level.name.lower().replace("_", "-"): level for level in TrustLevel}
NO_ATTESTATION: Final = "00" * 32
MAX_SERIAL: Final = (1 << 64) - 1

CLOCK_SLACK_MS: Final = 120_000
"""Milliseconds by which clocks of members may differ: an INIT that is further off is refused."""


def _check_name(value: str) -> str:
    if not value.strip() or not value.isprintable() or len(value.encode()) > MAX_NAME:
        raise ValueError(f"a name is printable text of 1 to {MAX_NAME} bytes")
    return value


def _check_address(value: str) -> str:
    host, _ = parse_address(value)
    if is_unspecified(host):
        raise ValueError(
            f"'{value}' is every address of whoever reads it: a node may listen there, and no "
            "other node reaches it so"
        )
    if len(value.encode()) > MAX_ADDRESS:
        raise ValueError(f"an address has at most {MAX_ADDRESS} bytes")
    return value


def _check_addresses(value: list[str]) -> list[str]:
    known: set[str] = set()
    for address in value:
        if address.lower() in known:
            raise ValueError(f"'{address}' is there twice")
        known.add(address.lower())
    return value


def _check_trust(value: str) -> str:
    if value not in TRUST_NAMES:
        raise ValueError(f"'{value}' is no trust level; they are: {', '.join(TRUST_NAMES)}")
    return value


Name = Annotated[str, pydantic.AfterValidator(_check_name)]
Address = Annotated[str, pydantic.AfterValidator(_check_address)]
Trust = Annotated[str, pydantic.AfterValidator(_check_trust)]
KeyHex = Annotated[str, pydantic.Field(pattern=r"^04[0-9a-f]{128}$")]
HashHex = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]


class DraftMember(pydantic.BaseModel, extra="forbid", frozen=True, strict=True):
    """One ``[[member]]`` of a draft."""

    name: Name = pydantic.Field(description="what people call it", examples=['"desk"'])
    public_key: KeyHex = pydantic.Field(description="its .pub file's line", examples=['"04..."'])
    addresses: Annotated[list[Address], pydantic.AfterValidator(_check_addresses)] = pydantic.Field(
        min_length=1,
        max_length=MAX_ADDRESSES,
        description="where the others reach it",
        examples=['["192.168.1.10:7470"]'],
    )
    trust: Trust = pydantic.Field(
        default="software",
        description=f"what the coordinator asserts of its key: {', '.join(TRUST_NAMES)}",
        examples=['"hardware"'],
    )
    attestation: HashHex = pydantic.Field(
        default=NO_ATTESTATION,
        description="SHA-256 of the evidence behind that, in hex; zeros for none",
        examples=['"5c0e..."'],
    )
    text: bool = pydantic.Field(
        default=True,
        description="it may see what is asked and answered; without it, it is never the head, "
        "and no rank of tensor parallelism",
        examples=["false"],
    )
    witness: bool = pydantic.Field(
        default=False,
        description="it is a member and in no ring: it needs no layers, and nobody waits for it",
        examples=["true"],
    )


class Draft(pydantic.BaseModel, extra="forbid", frozen=True, strict=True):
    """A roster before it is signed."""

    name: Name = pydantic.Field(description="what people call the cluster", examples=['"home"'])
    cluster: HashHex = pydantic.Field(
        description="random id, 64 hex digits", examples=['"3fa1..."']
    )
    inner_seal: bool = pydantic.Field(
        default=True,
        description="seal activations again between the engines",
        examples=["true"],
    )
    tensor_parallelism: bool = pydantic.Field(
        default=True,
        description="allow it; its sums are in the clear in the nodes of either end",
        examples=["false"],
    )
    fixed_head: bool = pydantic.Field(
        default=False,
        description="nobody but the first member is ever the head: the others elect none when it "
        "is away",
        examples=["true"],
    )
    member: list[DraftMember] = pydantic.Field(
        default=[], max_length=MAX_MEMBERS, description="the nodes, in rank order"
    )

    @pydantic.model_validator(mode="after")
    def _check_twins(self) -> Self:
        if twins := find_twins(self.member):
            raise ValueError(twins)
        return self


AnyMember = TypeVar("AnyMember", DraftMember, Member)


def find_twins(members: Sequence[AnyMember]) -> str:
    """What two of *members* share that each has to have alone; empty if there are no such two."""
    for first, second in itertools.combinations(members, 2):
        if first.public_key == second.public_key:
            return f"'{second.name}' has the key of '{first.name}'"
        if first.name == second.name:
            return f"there are two called '{first.name}'"
        known = {address.lower() for address in first.addresses}
        if shared := [address for address in second.addresses if address.lower() in known]:
            return f"'{second.name}' has an address of '{first.name}', {shared[0]}"
    return ""


def make_draft(
    name: str,
    cluster: bytes,
    inner_seal: bool,
    *,
    tensor_parallelism: bool = True,
    fixed_head: bool = False,
) -> Draft:
    """A draft without members. Raises `UserError` for a name that is none."""
    try:
        return Draft(
            name=name,
            cluster=cluster.hex(),
            inner_seal=inner_seal,
            tensor_parallelism=tensor_parallelism,
            fixed_head=fixed_head,
        )
    except pydantic.ValidationError as error:
        raise _refused(error) from None


def make_member(
    name: str,
    public_key: bytes,
    addresses: list[str],
    trust: str | None = None,
    attestation: str | None = None,
    *,
    text: bool = True,
    witness: bool = False,
) -> DraftMember:
    """A member of a draft. Raises `UserError` for a field that does not hold."""
    chosen = {"trust": trust, "attestation": attestation}
    try:
        return DraftMember(
            name=name,
            public_key=public_key.hex(),
            addresses=addresses,
            text=text,
            witness=witness,
            **{key: value for key, value in chosen.items() if value is not None},
        )
    except pydantic.ValidationError as error:
        raise _refused(error) from None


def _refused(error: pydantic.ValidationError) -> UserError:
    fault = error.errors()[0]
    reason = fault["msg"].removeprefix("Value error, ")
    return UserError(f"{fault['loc'][0]}: {reason}", "Correct that and run the command again.")


def read_draft(path: Path) -> Draft:
    """The draft at *path*. Raises `UserError`."""
    return read_toml(path, Draft, "roster draft")


def write_draft(path: Path, draft: Draft) -> None:
    """Write *draft* to *path* as TOML. Raises `UserError`."""
    lines = [
        "# A sealring roster before it is signed. Rank 0 is the first member, and so on.",
        f"name = {_quoted(draft.name)}",
        f"cluster = {_quoted(draft.cluster)}",
        f"inner_seal = {_quoted(draft.inner_seal)}",
        f"tensor_parallelism = {_quoted(draft.tensor_parallelism)}",
        f"fixed_head = {_quoted(draft.fixed_head)}",
    ]
    for member in draft.member:
        lines += ["", "[[member]]"]
        lines += [f"{key} = {_quoted(value)}" for key, value in member.model_dump().items()]
    try:
        replace_file(path, ("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}", "Choose a folder that exists and is yours."
        ) from None


def _quoted(value: str | bool | list[str]) -> str:
    # JSON's strings, lists and booleans are TOML's too; names are checked to be printable.
    return json.dumps(value, ensure_ascii=False)


def build_roster(
    draft: Draft,
    serial: int,
    issued_ms: int,
    expires_ms: int,
    appointment: Appointment | None = None,
) -> Roster:
    """The roster that *draft* describes, with the *appointment* of the one before it. Raises
    `UserError` when it cannot be one."""
    try:
        return Roster(
            cluster=bytes.fromhex(draft.cluster),
            name=draft.name,
            serial=serial,
            issued_ms=issued_ms,
            expires_ms=expires_ms,
            inner_seal=draft.inner_seal,
            members=tuple(_member(member) for member in draft.member),
            tensor_parallelism=draft.tensor_parallelism,
            appointment=appointment,
            fixed_head=draft.fixed_head,
        )
    except SealringError as error:
        raise UserError(
            f"this draft makes no roster: {error}", "Correct the draft and sign again."
        ) from None


def _member(member: DraftMember) -> Member:
    return Member(
        public_key=bytes.fromhex(member.public_key),
        name=member.name,
        addresses=tuple(member.addresses),
        trust=TRUST_NAMES[member.trust],
        attestation=bytes.fromhex(member.attestation),
        rights=rights_of(text=member.text, witness=member.witness),
    )


# ---------------------------------------------------------------------- rights


def rights_of(*, text: bool, witness: bool) -> Rights:
    """The rights of a member that may see *text*, and is a *witness*."""
    return Rights(text * Rights.TEXT | witness * Rights.WITNESS)


def describe_rights(member: Member) -> dict[str, bool]:
    """What *member* may do, as the commands print it for programs."""
    return {"sees_texts": member.sees_texts, "witness": member.is_witness}


def unusual_rights(facts: Mapping[str, Any]) -> str:
    """What a machine with the `describe_rights` in *facts* does not do that most do, in words;
    empty if there is nothing, or *facts* are those of an older release."""
    sees_texts = facts.get("sees_texts", True)
    if facts.get("witness", False):
        return "a witness, in no ring" + ("" if sees_texts else ", and sees no texts")
    return "" if sees_texts else "sees no texts, and is never the head"


# ---------------------------------------------------------------------- the head


def describe_head(roster: Roster) -> dict[str, Any]:
    """Since which *term* the head of *roster* is head, whether it was *taken* by its owner, and
    whether the first member alone may be it, as the commands print it for programs."""
    mandate = roster.mandate
    return {"term": mandate.term, "taken": mandate.taken, "fixed_head": roster.fixed_head}


def head_text(name: str, facts: Mapping[str, Any]) -> str:
    """Why the member *name* is head, by the `describe_head` in *facts*, in words."""
    if facts["fixed_head"]:
        return f"{name}, and never another (fixed)"
    if not facts["term"]:
        return f"{name}, by the roster"
    how = "made head by its owner" if facts["taken"] else "elected"
    return f"{name}, {how} in term {facts['term']}"


# ---------------------------------------------------------------------- the next roster


def changed_roster(
    before: Roster,
    members: Sequence[Member],
    wall_ms: int,
    spent: int = 0,
    appointment: Appointment | None = None,
    *,
    fixed_head: bool | None = None,
) -> Roster:
    """The roster that follows *before*, with these *members* in rank order: whoever is head there,
    elected or not, is the first member here. It has the next serial, which is beyond *spent* too,
    that of a roster that was sent and never in force. It is valid from *wall_ms* on (milliseconds
    since 1970) for as long as *before* was in all. It has the *appointment* and the policy
    *fixed_head* of *before*, if it is given no other.

    Raises `UserError` for members that no roster can have, and for a clock that is behind that of
    whoever signed *before*.
    """
    if twins := find_twins(members):
        raise UserError(
            f"roster {before.serial} cannot be changed so: {twins}",
            "Every machine has a name, a key and addresses of its own.",
        )
    serial = max(before.serial, spent) + 1
    if serial > MAX_SERIAL:
        raise UserError(
            f"roster {before.serial} has the greatest serial there is", "Begin a new cluster."
        )
    if wall_ms < before.issued_ms - CLOCK_SLACK_MS:
        raise UserError(
            f"this machine's clock says {format_time(wall_ms)}, and roster {before.serial} was "
            f"signed at {format_time(before.issued_ms)}",
            "One of the two clocks is wrong. Set this machine's, and try again.",
        )
    issued_ms = max(wall_ms, before.issued_ms)
    try:
        return attrs.evolve(
            before,
            serial=serial,
            issued_ms=issued_ms,
            expires_ms=issued_ms + before.expires_ms - before.issued_ms,
            members=tuple(members),
            appointment=before.appointment if appointment is None else appointment,
            fixed_head=before.fixed_head if fixed_head is None else fixed_head,
            mandate=UNELECTED,  # whom its members have elected, it has as its first member
        )
    except SealringError as error:
        raise UserError(
            f"roster {before.serial} cannot be changed so: {error}", "Change it in another way."
        ) from None


def sign_next(
    before: SignedRoster,
    members: Sequence[Member],
    signer: Signer,
    wall_ms: int,
    spent: int = 0,
    *,
    fixed_head: bool | None = None,
) -> SignedRoster:
    """`changed_roster`, signed by *signer*, which must have signed *before*. Raises `UserError`."""
    check_signed_by(before, signer)
    for member in members:
        if member.public_key == signer.public_key:
            raise UserError(
                f"the key of '{member.name}' is the coordinator's, which belongs to no machine",
                f"Make one for '{member.name}', on that machine: sealring keygen node.key",
            )
    after = changed_roster(before.roster, members, wall_ms, spent, fixed_head=fixed_head)
    return sign_roster(after, signer)


def check_signed_by(before: SignedRoster, signer: Signer) -> None:
    """Raise `UserError` unless *signer* has signed *before*: whoever else could write a roster
    would choose what is signed next."""
    try:
        before.verify_signer(signer.public_key)
    except SealringError:
        raise UserError(
            f"roster {before.roster.serial} of {before.roster.name} is not signed by this key, or "
            "it was changed",
            "Give the coordinator's private key, which signed it.",
        ) from None


def read_coordinator_key(path: Path, coordinator: bytes) -> SoftwareSigner:
    """The private key at *path*, which must be the half of the public key *coordinator* that signs
    rosters now. Raises `UserError`."""
    if not is_there(path):
        raise UserError(
            f"there is no coordinator's key at {path}",
            "Check the path. If it was taken off this machine, bring it back (sealring coordinator "
            "import FILE), or take 'coordinator_key' out of the config and give it to the commands "
            "that sign. If it is lost: sealring coordinator change, with the cluster's spare.",
        )
    signer = read_key(path)
    if signer.public_key != coordinator:
        raise UserError(
            f"{path} is not the key that signs this cluster's rosters",
            "Give the coordinator's private key; one from before a change of the coordinator signs "
            "nothing. If there is none on this machine, take 'coordinator_key' out of the config.",
        )
    return signer


def verify_roster(path: Path, coordinator: bytes, wall_ms: int) -> SignedRoster:
    """The signed roster at *path*, signed by *coordinator* and valid now. Raises `UserError`."""
    signed = read_verified(path, coordinator)
    if wall_ms >= signed.roster.expires_ms:
        raise UserError(
            f"the roster {path} expired on {format_time(signed.roster.expires_ms)}",
            "Sign a new one: sealring roster sign. Also check this machine's clock.",
        )
    return signed


def create_key(path: Path) -> SoftwareSigner:
    """Make a key pair: the private half at *path*, the public half beside it as ``.pub``.

    Raises `UserError` when either file exists or cannot be made.
    """
    signer = new_key()
    keep_key(path, signer)
    return signer


def new_key() -> SoftwareSigner:
    """A new private key, in memory alone."""
    return SoftwareSigner(ec.generate_private_key(ec.SECP256R1()))


def keep_key(path: Path, signer: SoftwareSigner) -> None:
    """Write the key of *signer*, as `create_key` does. Raises `UserError`."""
    public = public_path(path)
    if is_there(public):
        raise UserError(
            f"{public} already exists, and is left as it is",
            "Choose another name, or move it away.",
        )
    write_new(path, signer.to_pem(), 0o600)
    try:
        write_new(public, f"{signer.public_key.hex()}\n".encode(), 0o644)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Create *path* with *data* and *mode*, never replacing anything. Raises `UserError`."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise UserError(
            f"{path} already exists, and is left as it is", "Choose another name, or move it away."
        ) from None
    except OSError as error:
        raise UserError(
            f"cannot create {path}: {error.strerror}", "Choose a folder that exists and is yours."
        ) from None
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(data)
            file.flush()
            os.fsync(fd)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UserError(
            f"cannot write {path} for you alone (mode {mode:04o}): {error.strerror}",
            "Choose a folder on a file system that has room and keeps modes.",
        ) from None


def write_roster(path: Path, roster: SignedRoster) -> None:
    """Have the node whose config names *path* begin with *roster*. Raises `UserError`."""
    try:
        replace_file(path, roster.encode())
    except OSError as error:
        raise UserError(
            f"cannot write the roster {path}: {error.strerror}",
            "Nothing has changed. Make that file yours, or free space, and try again.",
        ) from None
