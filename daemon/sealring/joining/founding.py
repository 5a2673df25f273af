"""The files of a machine that begins a cluster or joins one: keys, roster and config, and where
they lie."""

from __future__ import annotations

import contextlib
import json
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
from sealring_protocol.security.identity import SoftwareSigner, node_id
from sealring_protocol.security.keys import sha256
from sealring_protocol.security.roster import (
    Member,
    Roster,
    SignedRoster,
    TrustLevel,
    sign_roster,
)
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import is_there, read_key, read_public_key
from sealring_trio.files.rosters import RosterStore
from sealring_trio.net.connecting import check_port
from sealring_trio.units import format_address, parse_address, wall_ms

from sealring.files.cluster import keep_key, new_key, write_new, write_roster
from sealring.files.config import (
    CONFIG_NAME,
    NO_API,
    Config,
    default_folder,
    default_state,
    load_config,
)
from sealring.joining.machine import addresses_of
from sealring.local.node_socket import NobodyThere, answer_of

DEFAULT_PORT: Final = 7470
DEFAULT_API_PORT: Final = 7480
DAYS: Final = 90
"""Days for which the roster of a new cluster is valid."""

CLUSTER_NAME: Final = "home"

_DAY_MS: Final = 24 * 3600 * 1000

_ROOM: Final = 1 << 16
"""Bytes for which a machine needs room: those of its files, and some of its node's."""


@attrs.frozen
class MemberFiles:
    """The folder of a machine's files, and that of what its node keeps; None if that is where the
    config has it by itself."""

    folder: Path
    state: Path | None = None

    @classmethod
    def at(cls, folder: Path | None) -> MemberFiles:
        """In *folder*, or where the platform has such files of this user."""
        if folder is not None:
            return cls(folder.absolute())
        return cls(default_folder(), default_state() / "node.state")

    @property
    def is_default(self) -> bool:
        """Whether commands find the files here by themselves."""
        return self.state is not None

    @property
    def kept(self) -> Path:
        """The folder of what the node keeps."""
        return self.state or self.folder / f"{self.config.stem}.state"

    @property
    def config(self) -> Path:
        """The node's config."""
        return self.folder / CONFIG_NAME

    @property
    def key(self) -> Path:
        """The node's private key."""
        return self.folder / "node.key"

    @property
    def coordinator_key(self) -> Path:
        """The private key that signs rosters, on the machine that began the cluster."""
        return self.folder / "coordinator.key"

    @property
    def coordinator(self) -> Path:
        """The public key that signs rosters."""
        return self.folder / "coordinator.pub"

    @property
    def roster(self) -> Path:
        """The roster with which the node begins."""
        return self.folder / "cluster.roster"

    @property
    def is_free(self) -> bool:
        """Whether no machine has its files here."""
        files = (self.config, self.key, self.roster, self.coordinator, self.coordinator_key)
        return not any(is_there(each) for each in files)

    def check_free(self) -> None:
        """Raise `UserError` if a machine has its files here already."""
        if self.is_free:
            return
        own = "" if self.is_default else f" {self.folder}"
        raise UserError(
            f"this machine is in a cluster already: its files are in {self.folder}",
            f"Run its node: sealring up{own}. To invite another machine: sealring machines invite. "
            "For a second cluster give another folder; to leave this one, stop the node, and: "
            f"mv {self.folder} {self.folder}.before",
        )

    def check_room(self) -> None:
        """Raise `OperationError` if no files can be kept here now, or where these folders would be
        made: a machine is told so before a person elsewhere is asked to let it in."""
        for folder in (self.folder, self.kept):
            try:
                there = next(each for each in (folder, *folder.parents) if each.exists())
                with tempfile.TemporaryFile(dir=there) as file:
                    file.write(bytes(_ROOM))
                    file.flush()
            except OSError as error:
                raise OperationError(
                    f"cannot keep this machine's files in {folder}: {error.strerror}",
                    "Give another folder, which is yours: sealring join INVITATION FOLDER",
                ) from None


@attrs.frozen
class Settings:
    """What a machine is to be called, *listen*, *api* and *discover* as its config has them, and
    the *model*: a folder, a hub id or the name of one that ships with sealring; empty for none."""

    name: str
    listen: tuple[str, int]
    api: str
    model: str
    discover: bool = attrs.field(default=True, kw_only=True)


def read_listen(text: str, port: int) -> tuple[str, int]:
    """The host and port of *text*, in which *port* may be left out. Raises `UserError`."""
    whole = f"[{text}]:{port}" if text.count(":") > 1 else f"{text}:{port}"
    for each in (text, whole):
        with contextlib.suppress(ValueError):
            return parse_address(each)
    raise UserError(f"'{text}' is no address", "Give HOST or HOST:PORT, as 192.168.1.10:7470.")


def read_api(text: str) -> str:
    """The address of *text* as the config has it, or 'off'. Raises `UserError`."""
    if text == NO_API:
        return text
    return format_address(*read_listen(text, DEFAULT_API_PORT))


def check_listen(listen: tuple[str, int]) -> None:
    """Raise `OperationError` if a node cannot listen at *listen* now."""
    check_port(*listen, "Give another address: --listen HOST:PORT.", "for other machines")


def check_start(listen: tuple[str, int], api: str) -> None:
    """Raise `OperationError` if a node that invites cannot listen at *listen*, at the port after
    it, or at *api*, as the config has that."""
    check_listen(listen)
    host, port = listen
    check_port(
        host,
        port + 1,
        "It is the port after that of --listen. Give another address: --listen HOST:PORT, of "
        "which the next port is free too.",
        "for newcomers",
    )
    if api != NO_API:
        change = "Give another address: --api HOST:PORT, or --api off."
        check_port(*parse_address(api), change, "for the API")


def found(place: MemberFiles, settings: Settings) -> SignedRoster:
    """Begin a cluster of this machine alone, with its files at *place*. Its roster; raises
    `UserError`."""
    node, coordinator, now = new_key(), new_key(), wall_ms()
    addresses = addresses_of(settings.listen)
    member = Member(node.public_key, settings.name, addresses, TrustLevel.SOFTWARE)
    roster = Roster(
        cluster=secrets.token_bytes(32),
        name=CLUSTER_NAME,
        serial=1,
        issued_ms=now,
        expires_ms=now + DAYS * _DAY_MS,
        inner_seal=True,
        members=(member,),
    )
    signed = sign_roster(roster, coordinator)
    with _made(place, node):
        keep_key(place.coordinator_key, coordinator)
        write_new(place.roster, signed.encode(), 0o644)
        write_new(place.config, _config(place, settings, signs=True), 0o644)
    return signed


def settle(
    place: MemberFiles,
    settings: Settings,
    signer: SoftwareSigner,
    coordinator: bytes,
    roster: SignedRoster,
) -> None:
    """Make this machine the member of *roster* that has the key of *signer*, with its files at
    *place*; *coordinator* (65 bytes) has signed the roster. Raises `UserError`."""
    with _made(place, signer):
        write_new(place.coordinator, f"{coordinator.hex()}\n".encode(), 0o644)
        write_new(place.roster, roster.encode(), 0o644)
        write_new(place.config, _config(place, settings, signs=False), 0o644)


@attrs.frozen
class FormerMember:
    """A machine that comes back to its cluster: its *config*, its key and its *name* there."""

    config: Config
    signer: SoftwareSigner
    name: str

    def settle(self, roster: SignedRoster) -> None:
        """Have the node begin with *roster*, in which this machine is a member again. Raises
        `UserError`."""
        write_roster(self.config.roster, roster)


def former_member(place: MemberFiles, coordinator: bytes) -> FormerMember | None:
    """The machine with its files at *place*, if those are of the cluster whose coordinator's key
    has the SHA-256 *coordinator*; None if *place* is free. Raises `UserError` for the files of
    another cluster, and if their node runs."""
    if place.is_free:
        return None
    try:
        config = load_config(place.config)
        public_key = read_public_key(config.coordinator)
        signer = read_key(config.key)
    except UserError:
        place.check_free()
        raise
    if sha256(public_key) != coordinator:
        place.check_free()
    try:
        answer_of(config.control_socket, "status")
    except NobodyThere:
        pass
    else:
        raise OperationError(
            f"the node with the files in {place.folder} runs on this machine",
            "If it was put out of the cluster, stop it (Ctrl-C, or its service), and join again.",
        )
    try:
        roster = RosterStore(config.state, public_key).newest(config.roster, wall_ms()).roster
        member = roster.member(node_id(signer.public_key))
    except UserError:
        member = None
    return FormerMember(config, signer, "" if member is None else member.name)


def undo(place: MemberFiles) -> None:
    """Remove the files at *place*, of a cluster that has not begun."""
    for path in (
        place.config,
        place.roster,
        place.key,
        place.key.with_suffix(".pub"),
        place.coordinator_key,
        place.coordinator,
    ):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        place.folder.rmdir()  # if it is empty


@contextlib.contextmanager
def _made(place: MemberFiles, node: SoftwareSigner) -> Iterator[None]:
    """Make the folder of *place*, which is free, with the key of *node*, and leave nothing there if
    the block fails."""
    place.check_free()
    try:
        place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the folder {place.folder}: {error.strerror}", "Give another folder."
        ) from None
    keep_key(place.key, node)  # of two that begin here at once, one goes on: all is its own
    try:
        yield
    except BaseException:
        undo(place)
        raise


def _config(place: MemberFiles, settings: Settings, *, signs: bool) -> bytes:
    """The text of the config."""
    values = {
        "key": place.key.name,
        "roster": place.roster.name,
        "coordinator": place.coordinator.name,
        **({"coordinator_key": place.coordinator_key.name} if signs else {}),
        "listen": format_address(*settings.listen),
        **({"model": settings.model} if settings.model else {}),
        "api": settings.api,
        **({} if settings.discover else {"discover": False}),
        **({"state": str(place.state)} if place.state is not None else {}),
    }
    lines = ["# The node of this machine: sealring up. docs/config.md has all keys."]
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return ("\n".join(lines) + "\n").encode()
