"""What a node needs before it runs: every file that its config names, read and checked.

`prepare` finds everything that is wrong with them before the first socket is opened.
`roster_store` decides which roster the node begins with: never an older one than it has used.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import socket
import time
from pathlib import Path

import attrs
import psutil  # type: ignore[import-untyped]
from sealring_model.loading.model_folder import ModelInfo
from sealring_model.text.tokens import has_chat_template
from sealring_protocol.limits import MAX_WORLD
from sealring_protocol.security.identity import node_id
from sealring_protocol.security.roster import Roster, SignedRoster

from sealring_trio.api.keys import KEY_FILE, read_keys
from sealring_trio.clock import wall_ms
from sealring_trio.errors import UserError
from sealring_trio.fetching.hub import Hub
from sealring_trio.files.config import Config
from sealring_trio.files.drafts import DraftModel, find_draft
from sealring_trio.files.key_files import read_key, read_public_key
from sealring_trio.files.models import NO_TEMPLATE, check_text, describe_model
from sealring_trio.files.roster_store import RosterStore
from sealring_trio.files.suites import SUITES
from sealring_trio.files.tls_files import read_pair
from sealring_trio.files.units import format_address, is_loopback, is_unspecified, parse_address
from sealring_trio.node.model_source import OwnIdentity, find_for
from sealring_trio.processes.namespace import ALLOW, why_not
from sealring_trio.weights.finding import Pause

log = logging.getLogger("sealring")


@attrs.frozen
class NodeSetup:
    """Everything that a node needs, read and checked."""

    config: Config
    identity: OwnIdentity
    roster: SignedRoster
    store: RosterStore
    model: Path
    layers: int  # of the model
    unpinned: bytes  # as `NodeConfig` has it
    draft: DraftModel | None = None  # on a head that has one


def prepare(config: Config, pause: Pause | None = time.sleep) -> NodeSetup:
    """Read and check every file that *config* names. Where other members are to give the model,
    wait by *pause* until one does; without a pause they are asked once. Raises `UserError`."""
    signer = read_key(config.key)
    coordinator = read_public_key(config.coordinator)
    if coordinator == signer.public_key:
        raise UserError(
            f"{config.path}: 'key' and 'coordinator' name one key",
            "The coordinator's belongs to no node: 'coordinator' is the .pub file of the key that "
            "signs rosters, and 'key' one of this node's own: sealring keygen node.key",
        )
    store = RosterStore(config.state, coordinator)
    roster = store.newest(config.roster, wall_ms())
    own = node_id(signer.public_key)
    if own not in roster.roster:
        raise UserError(
            f"the key {config.key} (node id {own.hex()[:16]}...) is not in the roster "
            f"{config.roster}",
            "Add its .pub file with 'sealring roster add', sign again, and copy the roster here.",
        )
    _check_place(config, roster.roster, own)
    if len(roster.roster.members) > MAX_WORLD:
        raise UserError(
            f"the roster has {len(roster.roster.members)} members",
            f"A ring has at most {MAX_WORLD} ranks.",
        )
    suites = tuple(SUITES[name] for name in config.suites)
    identity = OwnIdentity(signer, coordinator, secrets.randbits(63) | 1, suites)
    model, roster = find_for(config, identity, store, roster, pause)
    info = describe_model(model, config.adapter)
    world = len(roster.roster.members)
    if config.layers and (len(config.layers), sum(config.layers)) != (world, len(info.layers)):
        raise UserError(
            f"{config.path}: layers = {list(config.layers)} does not fit {world} ranks and a "
            f"model of {len(info.layers)} layers",
            "Give one number for each rank; they add up to the model's. See: sealring plan --help",
        )
    _check_strategy(config, roster.roster, info)
    draft = _prepare_head(config, model) if roster.roster.rank(own) == 0 else None
    for note in info.notes:
        log.info("%s", note)
    return NodeSetup(config, identity, roster, store, model, len(info.layers), info.unpinned, draft)


def _check_place(config: Config, roster: Roster, own: bytes) -> None:
    """Raise `UserError` where the roster has another member than *own* at the address at which this
    node listens: the keys of two machines are swapped, or a key was copied."""
    host, port = config.listen
    hosts = {host.lower()}
    if is_unspecified(host):
        found = itertools.chain.from_iterable(psutil.net_if_addrs().values())
        hosts = {socket.gethostname().lower(), *(each.address.partition("%")[0] for each in found)}
    here = {
        member.id: address
        for member in roster.members
        for address in member.addresses
        if (parsed := parse_address(address))[0].lower() in hosts and parsed[1] == port
    }
    mine, other = roster.member(own), roster.member(next(iter(here), own))
    if mine is None or other is None or own in here or not here:
        return
    raise UserError(
        f"{config.path} has the key of '{mine.name}', and the roster has '{other.name}' at "
        f"{here[other.id]}, where this node listens",
        f"If this machine is '{other.name}', give it the key of '{other.name}' ('key' in the "
        "config). If it is not, correct 'listen'; or, if the roster has the .pub files swapped, "
        "correct the draft and sign it again.",
    )


def _prepare_head(config: Config, model: Path) -> DraftModel | None:
    """Check what a head alone needs. Its draft model; None if *config* names none.
    Raises `UserError`."""
    check_text(model)
    check_api(config)
    if not has_chat_template(model):
        log.warning(NO_TEMPLATE)
    if config.draft is None:
        return None
    named = f"'draft' in {config.path}"
    return find_draft(config.draft, model, named, Hub(offline=config.offline))


def check_api(config: Config) -> None:
    """Raise `UserError` when the API would listen beyond loopback without a key, at the address
    that is for other nodes, or cannot speak the TLS that *config* asks for."""
    if config.api is None:
        return
    if config.listen[1] == config.api[1] and (
        config.listen[0] == config.api[0] or is_unspecified(config.listen[0])
    ):
        raise UserError(
            f"{config.path}: 'listen' and 'api' are one address, {format_address(*config.api)}",
            "Other nodes dial 'listen', and clients 'api': give each a port of its own, as 7470 "
            "and 7480.",
        )
    if config.tls is not None:
        read_pair(*config.tls)
    if is_loopback(config.api[0]):
        return
    if not read_keys(config.state / KEY_FILE).keys:
        raise UserError(
            f"{config.path}: the API listens beyond loopback, at "
            f"{format_address(*config.api)}, and there are no API keys",
            f"Make one first: sealring apikey new NAME --config {config.path}",
        )


def why_not_head(config: Config, model: Path) -> str:
    """What would keep the node of *config* from serving, if a roster made it the head, and what to
    do; empty if nothing would."""
    try:
        check_text(model)
        check_api(config)
    except UserError as error:
        return f"{error.what}. {error.advice}"
    return ""


def renewed(setup: NodeSetup) -> NodeSetup:
    """*setup* for another life in the same process: peers must tell the two apart, and a newer
    roster may be in force. Raises `UserError`."""
    identity = attrs.evolve(setup.identity, instance=secrets.randbits(63) | 1)
    roster = setup.store.newest(setup.config.roster, wall_ms())
    return attrs.evolve(setup, identity=identity, roster=roster)


def _check_strategy(config: Config, roster: Roster, info: ModelInfo) -> None:
    """Raise `UserError` for a strategy that this *roster* and model rule out. Only the engine can
    find whether mlx-lm can shard a model of this class."""
    world = len(roster.members)
    if config.strategy == "tp" and world > 1 and not roster.tensor_parallelism:
        raise UserError(
            f"{config.path}: strategy = 'tp', and the roster forbids tensor parallelism",
            "Use strategy = 'pp', or have the coordinator sign a roster that allows it.",
        )
    shared = config.strategy == "tp" or (
        config.strategy == "auto" and roster.tensor_parallelism and not info.even % world
    )
    if world > len(info.layers) and not shared:
        raise UserError(
            f"{config.path}: the roster has {world} ranks, too many for a model of "
            f"{len(info.layers)} layers",
            "Each rank has at least one layer: take a roster with fewer members.",
        )
    if config.strategy == "single" and world > 1:
        raise UserError(
            f"{config.path}: strategy = 'single' runs on one rank, and the roster has {world}",
            "Use 'auto', 'tp' or 'pp', or a roster with one member.",
        )
    if config.strategy == "tp" and world > 1 and config.tp > 1:
        raise UserError(
            f"{config.path}: strategy = 'tp' makes one collective of all {world} ranks, and "
            f"tp = {config.tp} one of this node alone",
            "Use strategy = 'pp': the ranks are its stages, and each may have a 'tp' of its own.",
        )
    if config.adapter is not None and (config.tp > 1 or (config.strategy == "tp" and world > 1)):
        raise UserError(
            f"{config.path}: mlx-lm cannot share out a model with an adapter",
            "Fuse the two with mlx_lm.fuse, or use strategy = 'pp' without 'tp'.",
        )
    if config.collectives == "sealed" and (
        config.tp > 1 or (config.strategy == "tp" and world > 1)
    ):
        _check_namespace(config)
    parts = config.tp if config.tp > 1 else world if config.strategy == "tp" else 1
    if info.even % parts:
        heads = " and ".join(map(str, info.heads))
        key = f"tp = {config.tp}" if config.tp > 1 else f"strategy = 'tp' with {world} ranks"
        raise UserError(
            f"{config.path}: {key} does not fit a model with {heads} heads: they cannot be "
            "shared out evenly",
            f"Take a divisor of {info.even}, or use strategy = 'pp'.",
        )


def _check_namespace(config: Config) -> None:
    """Raise `UserError` where the collective that *config* asks for would be within reach of other
    users of this machine."""
    if reason := why_not():
        what = f"tp = {config.tp}" if config.tp > 1 else "strategy = 'tp'"
        instead = "leave 'tp' out" if config.tp > 1 else "use strategy = 'pp'"
        raise UserError(
            f"{config.path}: {what} would have its sums within reach of every user of this "
            f"machine: {reason}",
            f"{ALLOW}, or {instead}.".capitalize(),
        )
