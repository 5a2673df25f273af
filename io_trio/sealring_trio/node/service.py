"""A node from its config: what it needs is read and checked, it works, and it ends.

`prepare` reads every file that the config names, and finds everything that is wrong with them
before the first socket is opened. `files.rosters` decides which roster the node begins with: never
an older one than it has used. An application has a node while a block lasts::

    setup = prepare(load_file(path, NodeFile))
    async with running(setup, build_runtime(setup)) as runtime:
        stream = runtime.submit(request)

`sealring.service.service` is one: it adds the API, the control socket and signals.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, Generic

import attrs
import psutil  # type: ignore[import-untyped]
import sealring_model
import sealring_protocol
import trio
from sealring_model.errors import LoadError
from sealring_model.loading.model_folder import ModelInfo
from sealring_protocol.codec.messages import Backend, Build
from sealring_protocol.control.plan import Collectives, Strategy
from sealring_protocol.control.requests import SchedulerConfig
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_WORLD
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.role import tensor_forbidden
from sealring_protocol.security.identity import Signer, node_id
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roster import Member, Roster, SignedRoster

from sealring_trio.engine.group import EngineGroup, GroupSettings
from sealring_trio.engine.supervisor import (
    Engine,
    EngineCommand,
    EngineOwner,
    NoEngine,
    Supervisor,
)
from sealring_trio.errors import OperationError, UserError
from sealring_trio.fetching.fetcher import RankFetch
from sealring_trio.fetching.hub import Hub
from sealring_trio.fetching.members import Members, Pause, find_with_members, hand_over
from sealring_trio.fetching.source import FetchFault, Source
from sealring_trio.files.config import SUITES, AnyFile, NodeFile
from sealring_trio.files.key_files import KeyLog, read_key, read_public_key
from sealring_trio.files.models import describe_model, find_model, is_hub_id, refuse_absent_folder
from sealring_trio.files.rosters import RosterStore, watch_expiry
from sealring_trio.node.drafts import DraftModel, Drafts, find_draft
from sealring_trio.node.runtime import Runtime
from sealring_trio.processes.namespace import ALLOW, why_not
from sealring_trio.units import format_address, is_unspecified, parse_address, wall_ms

log = logging.getLogger("sealring")


@attrs.frozen
class OwnIdentity:
    """Who a node is to other members: it signs with *signer*, trusts rosters that *coordinator*
    signed, and offers *suites*. Its process is *instance*."""

    signer: Signer
    coordinator: bytes
    instance: int
    suites: tuple[Suite, ...]

    @property
    def id(self) -> bytes:
        """The id of its node."""
        return node_id(self.signer.public_key)

    def members(
        self, roster: Callable[[], SignedRoster], keep: Callable[[SignedRoster], None]
    ) -> Members:
        """The members of the *roster* in force. *keep* is that of `Members`."""
        return Members(roster, self.coordinator, self.signer, self.instance, keep, self.suites)


def find_for(
    config: NodeFile,
    identity: OwnIdentity,
    store: RosterStore,
    roster: SignedRoster,
    pause: Pause | None,
) -> tuple[Path, SignedRoster]:
    """The folder of the model of *config*, which can be described; and the roster to begin with,
    since a member that is asked for the model may bring a newer one than *roster*.

    Waits for a member that gives it, by *pause*, or not at all without one. Raises `UserError` if
    there can be no such model, or nobody gives it.
    """
    model = config.needed_model
    if config.fetch == "hub" or not is_hub_id(model):
        return find_model(model, Hub(offline=config.offline)), roster
    rosters = [roster]

    def keep(newer: SignedRoster) -> None:
        try:
            store.begin(newer)
        except (UserError, OperationError) as error:
            raise FetchFault(f"a newer roster cannot be kept: {error.what}") from None
        rosters.append(newer)

    try:
        refuse_absent_folder(model)
        members = identity.members(lambda: rosters[-1], keep)
        return find_with_members(model, members, pause), rosters[-1]
    except LoadError as error:
        advice = "With fetch = 'members' a model is named as on the hub: owner/name."
        raise UserError(f"cannot find the model: {error}", advice) from None


def source_for(
    config: NodeFile, identity: OwnIdentity, roster: Callable[[], SignedRoster]
) -> Source:
    """Where tensors come from that are still missing, while the node runs with *roster*."""
    if config.fetch == "hub":
        return Hub(offline=config.offline)

    def keep(_: SignedRoster) -> None:
        raise FetchFault("a member has a newer roster, which comes over a control link first")

    return identity.members(roster, keep)


NO_MODEL: Final = "no-model"
"""In a node's state folder, the name of no folder: that of the model where there is none."""


@attrs.frozen
class NodeSetup(Generic[AnyFile]):
    """Everything that a node needs, read and checked.

    A node without an engine has neither a *model*, whose folder is not there then, nor *layers*.
    It is a witness; or a roster has made it a rank while it ran, and *lacking* says what is missing
    for an engine.
    """

    config: AnyFile
    identity: OwnIdentity
    roster: SignedRoster
    store: RosterStore
    model: Path = attrs.field()
    layers: int = 0  # of the model
    unpinned: bytes = b""  # as `NodeConfig` has it
    draft: DraftModel | None = None  # on a head that has one
    lacking: str = ""

    @model.default
    def _no_model(self) -> Path:
        return self.config.state / NO_MODEL

    @property
    def has_engine(self) -> bool:
        """Whether the node has an engine."""
        return self.layers > 0

    @property
    def is_witness(self) -> bool:
        """Whether it is the setup of a witness, which needs no engine."""
        return not self.has_engine and not self.lacking

    def without_engine(self, lacking: str = "") -> NodeSetup[AnyFile]:
        """The same node as a witness, or as a rank with nothing but what is *lacking*."""
        return NodeSetup(self.config, self.identity, self.roster, self.store, lacking=lacking)


def prepare(config: AnyFile, pause: Pause | None = time.sleep) -> NodeSetup[AnyFile]:
    """Read and check every file that *config* names; of a model nothing, if this node is a witness.
    Where other members are to give the model, wait by *pause* until one does; without a pause they
    are asked once. Raises `UserError`."""
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
    store.ballot(roster.roster)  # it can be read
    own = node_id(signer.public_key)
    check_member(config, roster.roster, own)
    suites = tuple(SUITES[name] for name in config.suites)
    identity = OwnIdentity(signer, coordinator, secrets.randbits(63) | 1, suites)
    if needs_no_engine(roster.roster, own):
        return NodeSetup(config, identity, roster, store)
    model, roster = find_for(config, identity, store, roster, pause)
    info = describe_model(model, config.adapter)
    check_model(config, roster.roster, info)
    draft = None
    if config.draft is not None and roster.roster.rank(own) == 0:
        named = f"'draft' in {config.path}"
        draft = find_draft(config.draft, model, named, Hub(offline=config.offline))
    for note in info.notes:
        log.info("%s", note)
    return NodeSetup(config, identity, roster, store, model, len(info.layers), info.unpinned, draft)


def needs_no_engine(roster: Roster, own: bytes) -> bool:
    """Whether *roster* makes the node *own* a witness."""
    member = roster.member(own)
    return member is not None and member.is_witness


def check_member(config: NodeFile, roster: Roster, own: bytes) -> None:
    """Raise `UserError` unless the node *own* of *config* is a member of *roster*, listens at no
    other member's address, and the members are no more than a ring may have."""
    if own not in roster:
        raise UserError(
            f"the key {config.key} (node id {own.hex()[:16]}...) is not in the roster "
            f"{config.roster}",
            "Add its .pub file with 'sealring roster add', sign again, and copy the roster here.",
        )
    _check_place(config, roster, own)
    if len(roster.workers) > MAX_WORLD:
        raise UserError(
            f"the roster has {len(roster.workers)} members that are no witnesses",
            f"A ring has at most {MAX_WORLD} ranks.",
        )


def _check_place(config: NodeFile, roster: Roster, own: bytes) -> None:
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
        "config). If it is not, correct 'listen'; or, if the roster has the keys or the addresses "
        "of the two swapped, correct the draft and sign it again.",
    )


def renewed(setup: NodeSetup[AnyFile]) -> NodeSetup[AnyFile]:
    """*setup* for another life in the same process: peers must see that it is another, and a
    newer roster may be in force. Raises `UserError`."""
    identity = attrs.evolve(setup.identity, instance=secrets.randbits(63) | 1)
    roster = setup.store.newest(setup.config.roster, wall_ms())
    return attrs.evolve(setup, identity=identity, roster=roster)


def check_model(config: NodeFile, roster: Roster, info: ModelInfo) -> None:
    """Raise `UserError` for layers or a strategy that this *roster* and model rule out. Only the
    engine can find whether mlx-lm can shard a model of this class."""
    world = len(roster.workers)
    if config.layers and (len(config.layers), sum(config.layers)) != (world, len(info.layers)):
        raise UserError(
            f"{config.path}: layers = {list(config.layers)} does not fit {world} ranks and a "
            f"model of {len(info.layers)} layers",
            "Give one number for each rank; they add up to the model's. See: sealring plan --help",
        )
    forbidden = tensor_forbidden(roster, roster.workers)
    if config.strategy == "tp" and world > 1 and forbidden:
        raise UserError(
            f"{config.path}: strategy = 'tp', which is tensor parallelism: {forbidden}",
            "Use strategy = 'pp', or have the coordinator sign a roster that allows it.",
        )
    shared = config.strategy == "tp" or (
        config.strategy == "auto" and not forbidden and not info.even % world
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


def _check_namespace(config: NodeFile) -> None:
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


ENGINE_MODULE: Final = "sealring_model.engine.main"


def build_runtime(
    setup: NodeSetup[AnyFile],
    module: str = ENGINE_MODULE,
    arguments: tuple[str, ...] = (),
    *,
    relays: bool = False,
    stands: bool = True,
) -> Runtime:
    """Make the node of *setup*, not yet running. Its engine runs *module* with *arguments*, or with
    the usual ones if there are none; *relays* and *stands* as `NodeConfig` has them. Raises
    `UserError` where the parts do not fit."""
    config = setup.config
    engine: Callable[[EngineOwner], Supervisor] = partial(NoEngine, setup.lacking)
    try:
        node = _build_node(setup, relays=relays, stands=stands)
    except LocalProtocolError as error:
        raise UserError(f"cannot run this node: {error}", "Check the config.") from None
    if not arguments:
        limit = ("--memory-limit", str(config.memory)) if config.memory else ()
        used = ("--adapter", str(config.adapter)) if config.adapter is not None else ()
        beside = ("--beside", str(setup.draft.memory)) if setup.draft is not None else ()
        trust = ("--trust-weights",) if config.trust_weights else ()
        narrow = ("--narrow-hops",) if config.hop_dtype == "bf16" else ()
        arguments = ("--model", str(setup.model), *used, *limit, *beside, *trust, *narrow)
    if setup.has_engine:
        private = config.collectives == "sealed"
        engine = _engine(config, EngineCommand(module, arguments, private=private))
    return Runtime(
        node,
        signer=setup.identity.signer,
        engine=engine,
        listen=config.listen,
        keep=setup.store.keep,
        keep_vote=setup.store.keep_ballot,
        model=setup.model,
    )


def _build_node(setup: NodeSetup[AnyFile], *, relays: bool, stands: bool) -> Node:
    config = setup.config
    return Node(
        NodeConfig(
            public_key=setup.identity.signer.public_key,
            roster=setup.roster,
            ballot=setup.store.ballot(setup.roster.roster),
            coordinator=setup.identity.coordinator,
            instance=setup.identity.instance,
            build=this_build(),
            unpinned=setup.unpinned,
            trust_weights=config.trust_weights,
            suites=setup.identity.suites,
            strategy=Strategy(config.strategy),
            layers=config.layers,
            collectives=Collectives(config.collectives == "trusted-link", _backend(config)),
            group_seconds=config.group_timeout,
            least=config.min_ranks,
            patience=config.patience,
            listens=config.listen,
            relays=relays,
            stands=stands,
            key_log=None if config.keylog is None else KeyLog(config.keylog).write,
            scheduler=SchedulerConfig(
                groups=config.groups,
                rows=config.rows,
                queue=config.queue,
                prefixes=config.prefixes,
                ahead=config.ahead,
            ),
        ),
        trio.current_time(),
    )


def _backend(config: NodeFile) -> Backend | None:
    return None if config.backend == "auto" else Backend[config.backend.upper()]


def _engine(config: NodeFile, command: EngineCommand) -> Callable[[EngineOwner], Supervisor]:
    """How to make the supervisor of the engine, which is one process or a group."""
    if config.tp == 1:
        return partial(Engine, command)
    settings = GroupSettings(config.tp, _backend(config), config.group_timeout)
    return partial(EngineGroup, command, settings=settings)


@contextlib.asynccontextmanager
async def running(setup: NodeSetup[AnyFile], runtime: Runtime) -> AsyncIterator[Runtime]:
    """Run the node of *setup* while the block lasts. At its end the links are closed in good order;
    a block that is left by an exception ends them at once.

    Raises `UserError` or `OperationError` when the node cannot begin.
    """
    source = source_for(setup.config, setup.identity, lambda: runtime.node.roster)
    fetching = RankFetch(setup.model, setup.layers, source, runtime.fetched)
    runtime.placed = fetching.placed

    def hand(roster: SignedRoster, head: Member) -> str:
        members = setup.identity.members(lambda: roster, _keep_none)
        return hand_over(members, head, trio.from_thread.check_cancelled)

    runtime.hand_over = hand
    async with trio.open_nursery() as nursery:
        await nursery.start(runtime.run)
        nursery.start_soon(fetching.run)
        if setup.draft is not None:
            nursery.start_soon(Drafts(runtime, setup.draft).run)
        _log_place(runtime, setup.config)
        nursery.start_soon(
            watch_expiry,
            lambda: runtime.node.roster.roster,
            wall_ms,
            lambda: runtime.roster_changed,
        )
        yield runtime
        log.info("stopping: closing the links")
        runtime.stop()
        await runtime.links_closed()
        nursery.cancel_scope.cancel()


def _keep_none(roster: SignedRoster) -> None:
    raise FetchFault(f"it has roster {roster.roster.serial}, which is newer")


def _log_place(runtime: Runtime, config: NodeFile) -> None:
    roster = runtime.node.roster.roster
    rank = runtime.node.rank
    log.info(
        "%s is rank %d of %d in %s, listening at %s",
        roster.members[rank].name,
        rank,
        runtime.node.world,
        roster.name,
        format_address(*config.listen),
    )
    if rank:
        head = roster.members[0]
        log.info("waiting for the head, %s, at %s", head.name, " or ".join(head.addresses))
        if rank in roster.heads and (fault := runtime.head_fault()):
            log.info("if a roster made this rank the head, it could not serve: %s", fault)


DISTRIBUTION: Final = "sealring-trio"


@functools.cache
def this_build() -> Build:
    """What this program can do, and its version; of a checkout with the first digits of
    `build_number`, which tell people two checkouts apart and decide nothing."""
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return Build()
    origin = json.loads(installed.read_text("direct_url.json") or "{}")  # of PEP 610
    if not origin.get("dir_info", {}).get("editable"):
        return Build(installed.version)
    return Build(f"{installed.version}+{build_number() >> 32:08x}")


@functools.cache
def build_number() -> int:
    """What no other build has: a digest of the source files of what does the steps of a
    ring, the packages of the protocol and of the model. 0 where they cannot be read."""
    digest = hashlib.sha256()
    for package in (sealring_protocol, sealring_model):
        root = Path(next(iter(package.__path__)))
        for path in sorted(root.rglob("*.py")):
            try:
                source = path.read_bytes()
            except OSError:
                return 0
            digest.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode() + source)
    return int.from_bytes(digest.digest()[:8])
