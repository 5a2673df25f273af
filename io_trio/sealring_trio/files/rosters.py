"""Rosters on disk: drafts and signed files, and which roster a node begins with."""

from __future__ import annotations

import datetime
import itertools
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Self

import attrs
import pydantic
from sealring_protocol.errors import SealringError
from sealring_protocol.limits import MAX_ADDRESS, MAX_ADDRESSES, MAX_MEMBERS, MAX_NAME, MAX_ROSTER
from sealring_protocol.security.identity import node_id
from sealring_protocol.security.keys import sha256
from sealring_protocol.security.roster import Member, Roster, SignedRoster, TrustLevel

from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import make_private_folder, read_file, replace_file, reserve
from sealring_trio.files.toml_file import read_toml
from sealring_trio.units import is_unspecified, parse_address

# ---------------------------------------------------------------------- roster files
# Rosters as files: a draft that people read and edit, and the signed roster that nodes take.
#
# The draft is TOML: the cluster's name and random id, its policy, and one ``[[member]]`` for each
# node, in rank order. Signing adds the serial and the validity and makes the binary form, whose
# bytes are exactly what travels between nodes.


TRUST_NAMES: Final = {level.name.lower().replace("_", "-"): level for level in TrustLevel}
NO_ATTESTATION: Final = "00" * 32

_LAST_SECOND: Final = 253_402_300_799
"""The last of the year 9999, with which Python's calendar ends."""


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
    addresses: list[Address] = pydantic.Field(
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
    member: list[DraftMember] = pydantic.Field(
        default=[], max_length=MAX_MEMBERS, description="the nodes, in rank order"
    )

    @pydantic.model_validator(mode="after")
    def _check_twins(self) -> Self:
        if twins := find_twins(self.member):
            raise ValueError(twins)
        return self


def find_twins(members: Sequence[DraftMember]) -> str:
    """What two of *members* share that each has to have alone; empty if there are no such two."""
    for first, second in itertools.combinations(members, 2):
        if first.public_key == second.public_key:
            return f"'{second.name}' has the key of '{first.name}'"
        if first.name == second.name:
            return f"there are two called '{first.name}'"
        if shared := set(first.addresses) & set(second.addresses):
            return f"'{second.name}' has an address of '{first.name}', {min(shared)}"
    return ""


def make_draft(
    name: str, cluster: bytes, inner_seal: bool, *, tensor_parallelism: bool = True
) -> Draft:
    """A draft without members. Raises `UserError` for a name that is none."""
    try:
        return Draft(
            name=name,
            cluster=cluster.hex(),
            inner_seal=inner_seal,
            tensor_parallelism=tensor_parallelism,
        )
    except pydantic.ValidationError as error:
        raise _refused(error) from None


def make_member(
    name: str,
    public_key: bytes,
    addresses: list[str],
    trust: str | None,
    attestation: str | None,
) -> DraftMember:
    """A member of a draft. Raises `UserError` for a field that does not hold."""
    chosen = {"trust": trust, "attestation": attestation}
    try:
        return DraftMember(
            name=name,
            public_key=public_key.hex(),
            addresses=addresses,
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


def build_roster(draft: Draft, serial: int, issued_ms: int, expires_ms: int) -> Roster:
    """The roster that *draft* describes. Raises `UserError` when it cannot be one."""
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
    )


def read_roster(path: Path) -> SignedRoster:
    """The signed roster at *path*; its signature is not checked yet. Raises `UserError`."""
    try:
        data, _ = read_file(path)
    except OSError as error:
        raise UserError(
            f"cannot read the roster {path}: {error.strerror}",
            "Copy it from where it was signed, or from a node: its state folder has it as "
            "adopted.roster. Only a new cluster begins with sealring roster new, add, sign.",
        ) from None
    try:
        return SignedRoster.decode(data)
    except SealringError as error:
        if data[:1].isascii() and b"[[member]]" in data:
            advice = "This is a draft. Sign it: sealring roster sign."
        else:
            advice = "Sign it again, or copy it again from where it was signed."
        raise UserError(f"{path} is not a signed roster ({error})", advice) from None


def verify_roster(path: Path, coordinator: bytes, wall_ms: int) -> SignedRoster:
    """The signed roster at *path*, signed by *coordinator* and valid now. Raises `UserError`."""
    signed = read_roster(path)
    try:
        signed.verify(coordinator)
    except SealringError:
        raise UserError(
            f"the roster {path} is not signed by this coordinator key, or it was changed",
            "Check which coordinator public key you were given, and copy the roster again.",
        ) from None
    if wall_ms >= signed.roster.expires_ms:
        raise UserError(
            f"the roster {path} expired on {format_time(signed.roster.expires_ms)}",
            "Sign a new one: sealring roster sign. Also check this machine's clock.",
        )
    return signed


def format_time(wall_ms: int) -> str:
    """A wall clock time for people. Rosters may name times that are beyond the calendar."""
    if wall_ms // 1000 > _LAST_SECOND:
        return "after the year 9999"
    return f"{datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M} UTC"


# ---------------------------------------------------------------------- roster store
# Which roster a node begins with: the newest that it has ever used, or none.
#
# Two files in the state folder hold what a restart must not lose. ``adopted.roster`` is the
# newest roster that the node has used, whether a peer brought it or the config named it.
# ``roster.mark`` holds the serial and digest of that roster, for each cluster and coordinator.
# Both are on disk before a roster is used. So a node that finds only older rosters knows it, and
# refuses to start: an older roster may name members that have been put out since.
#
# The mark comes second. A crash between the two leaves a roster that is above the mark, which is
# right; the other way round it would leave a mark that no file can meet.


log = logging.getLogger("sealring")

KEPT: Final = "adopted.roster"
MARK: Final = "roster.mark"

_TITLE: Final = "sealring roster mark 1\n"
_MARK_ROOM: Final = 4096
"""Bytes of disk that are reserved for the marks: enough for some twenty clusters."""


@attrs.frozen
class Mark:
    """The newest roster that was used: its *serial* and *digest*."""

    serial: int
    digest: bytes


Marks = dict[tuple[bytes, bytes], Mark]
"""By the cluster's id, and the id of the coordinator's key."""


class RosterStore:
    """The roster files in the folder *state* of a node whose owner pinned *coordinator*."""

    def __init__(self, state: Path, coordinator: bytes) -> None:
        self._state = state
        self._coordinator = coordinator
        self._kept = state / KEPT
        self._mark = state / MARK

    # ------------------------------------------------------------ at the start

    def newest(self, path: Path, wall_ms: int) -> SignedRoster:
        """The roster to begin with: the one at *path*, which the config names, or a newer one that
        was adopted from a peer. One that has expired is given only if it was in use before: the
        node then waits for a newer one.

        Raises `UserError` rather than give an older roster than one that was used before.
        """
        given = self._verified(path)
        marks = self._marks()
        mark = marks.get(self._key(given.roster))
        kept, fault = self._read_kept(given.roster, marks)
        if mark is None and fault:
            raise UserError(
                f"cannot tell whether roster {given.roster.serial} of {path} is the newest that "
                f"this node has used: {fault}, and there is no {self._mark}",
                f"If you know that no newer roster was signed: rm {self._kept}",
            )
        best = given
        if kept is not None:
            _check_twins(path, given.roster, self._kept, kept.roster)
            best = max(given, kept, key=lambda signed: signed.roster.serial)
        where = path if best is given else self._kept
        if mark is not None:
            self._check_mark(mark, path, given.roster, kept, fault)
        if best.roster.expired(wall_ms):
            known = mark is not None and mark.serial == best.roster.serial
            _tell_expired(where, best.roster, wall_ms, known=known)
        elif wall_ms < best.roster.issued_ms:
            log.warning(
                "this machine's clock says %s, and roster %d was signed at %s: one of the two "
                "clocks is wrong, and peers refuse a node whose clock is",
                format_time(wall_ms),
                best.roster.serial,
                format_time(best.roster.issued_ms),
            )
        if fault:
            log.warning("%s; roster %d of the config is used", fault, best.roster.serial)
        if best is not given:
            log.info(
                "using roster %d, which this node has used before; the config's (%s) is older: %d",
                best.roster.serial,
                path,
                given.roster.serial,
            )
        return best

    def _verified(self, path: Path) -> SignedRoster:
        signed = read_roster(path)
        try:
            signed.verify(self._coordinator)
        except SealringError:
            raise UserError(
                f"the roster {path} is not signed by this coordinator key, or it was changed",
                "Check which coordinator public key you were given, and copy the roster again.",
            ) from None
        return signed

    def _read_kept(self, given: Roster, marks: Marks) -> tuple[SignedRoster | None, str]:
        """The adopted roster, if it is of *given*'s cluster; or what is wrong with it."""
        try:
            kept = read_roster(self._kept)
        except UserError as error:
            return None, error.what if _is_there(self._kept) else ""
        mark = Mark(kept.roster.serial, kept.roster.digest)
        if kept.roster.cluster != given.cluster:
            return None, ""
        try:
            kept.verify(self._coordinator)
        except SealringError:
            others = {key for key, value in marks.items() if value == mark}
            if others - {self._key(given)}:
                return None, ""  # what another coordinator signed, which the config named once
            return None, f"the roster {self._kept} does not verify"
        return kept, ""

    def _check_mark(
        self, mark: Mark, path: Path, given: Roster, kept: SignedRoster | None, fault: str
    ) -> None:
        """Raise `UserError` if the rosters there are do not come up to *mark*."""
        found = [(path, given)] + ([(self._kept, kept.roster)] if kept is not None else [])
        for where, roster in found:
            if roster.serial == mark.serial and roster.digest != mark.digest:
                raise UserError(
                    f"{where} holds another roster {mark.serial} than the one that this node has "
                    "used: the coordinator's key has signed two with one serial",
                    "Find out who signed it. Then sign one with a greater serial (sealring roster "
                    "sign), and give it to every node.",
                )
        if max(roster.serial for _, roster in found) >= mark.serial:
            return
        there = "; ".join(f"{where} holds roster {roster.serial}" for where, roster in found)
        if kept is None:
            there += f"; {fault or f'{self._kept} is not there'}"
        raise UserError(
            f"this node has used roster {mark.serial}, and only older ones are here: {there}. An "
            "older roster may name members that have been put out, so it is not used",
            f"Copy roster {mark.serial} or a newer one to {path}. Another node has it as {KEPT} in "
            "its state folder; or sign a newer one: sealring roster renew.",
        )

    # ----------------------------------------------------------------- keeping

    def keep(self, signed: SignedRoster) -> None:
        """Write *signed*, a roster that is about to be used, to disk, and then its mark. Raises
        `OSError`, or `UserError` when the mark there cannot be read."""
        marks = self._marks()
        roster = signed.roster
        known = marks.get(self._key(roster))
        if known is not None and known.serial > roster.serial:
            return  # what is on disk is newer than what this process has heard of
        if not _holds(self._kept, signed.encode()):
            replace_file(self._kept, signed.encode(), 0o600)
        mark = Mark(roster.serial, roster.digest)
        if known != mark:
            marks[self._key(roster)] = mark
            replace_file(self._mark, _encode(marks), 0o600)
        reserve(self._kept, MAX_ROSTER)
        reserve(self._mark, _MARK_ROOM)

    def begin(self, signed: SignedRoster) -> None:
        """Make the state folder, and `keep` *signed*. Raises `UserError` or `OperationError`."""
        make_private_folder(self._state)
        try:
            self.keep(signed)
        except OSError as error:
            raise OperationError(
                f"cannot keep roster {signed.roster.serial} in {self._state}: {error.strerror}",
                "A node begins only with a roster that it can remember. Put that right first.",
            ) from None

    def _key(self, roster: Roster) -> tuple[bytes, bytes]:
        return roster.cluster, node_id(self._coordinator)

    def _marks(self) -> Marks:
        """The marks in the file. Raises `UserError` when it cannot be read."""
        try:
            return _decode(self._mark.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            fault = error.strerror or str(error)
        except ValueError as error:
            fault = str(error)
        raise UserError(
            f"cannot tell which roster this node has used last: {self._mark}: {fault}",
            "Find the greatest serial among the other nodes (sealring status), and copy that "
            f"roster to the file that the config names. Then: rm {self._mark}",
        )


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _check_twins(one: Path, first: Roster, two: Path, second: Roster) -> None:
    """Raise `UserError` for two rosters with one serial."""
    if first.serial == second.serial and first.digest != second.digest:
        raise UserError(
            f"{one} and {two} are two rosters with the serial {first.serial}",
            "Find out who signed them. Then sign one with a greater serial (sealring roster sign), "
            "and give it to every node.",
        )


def _tell_expired(path: Path, roster: Roster, wall_ms: int, *, known: bool) -> None:
    """Raise `UserError` for an expired roster, or log it for one that was in use before."""
    when = format_time(roster.expires_ms)
    if not known:
        raise UserError(
            f"the roster {path} (serial {roster.serial}) expired on {when}",
            "Sign a new one: sealring roster renew. Also check this machine's clock: it says "
            f"{format_time(wall_ms)}.",
        )
    log.error(
        "roster %d expired on %s (this machine's clock says %s): no peer links with this node, nor "
        "it with them, until one brings a newer roster. Sign one (sealring roster renew), and "
        "give it to any one node",
        roster.serial,
        when,
        format_time(wall_ms),
    )


def _encode(marks: Marks) -> bytes:
    lines = [
        f"{cluster.hex()} {coordinator.hex()} {mark.serial} {mark.digest.hex()}\n"
        for (cluster, coordinator), mark in sorted(marks.items())
    ]
    body = "".join([_TITLE, *lines]).encode()
    return body + sha256(body).hex().encode() + b"\n"


def _decode(data: bytes) -> Marks:
    """Raises `ValueError` for anything that `_encode` does not give."""
    *lines, total = data.splitlines(keepends=True) or [b""]
    body = b"".join(lines)
    if not body.startswith(_TITLE.encode()) or total != sha256(body).hex().encode() + b"\n":
        raise ValueError("it is not as it was written")
    marks: Marks = {}
    for line in lines[1:]:
        cluster, coordinator, serial, digest = line.decode().split()
        key = bytes.fromhex(cluster), bytes.fromhex(coordinator)
        marks[key] = Mark(int(serial), bytes.fromhex(digest))
    return marks
