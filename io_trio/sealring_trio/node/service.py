"""A node at work: its runtime, the files of its model, its draft model, and its end.

An application reads a config with `setup.prepare`, and has a node while a block lasts::

    setup = prepare(load_file(path, NodeFile))
    async with running(setup, build_runtime(setup)) as runtime:
        stream = runtime.submit(request)

`sealring.service.service` is one: it adds the API, the control socket and signals.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import sealring_model
import sealring_protocol
import trio
from sealring_protocol.codec.messages import Backend, Build
from sealring_protocol.control.plan import Collectives, Strategy
from sealring_protocol.control.requests import SchedulerConfig
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.roster import Member, SignedRoster

from sealring_trio.engine.group import EngineGroup, GroupSettings
from sealring_trio.engine.supervisor import Engine, EngineCommand, EngineOwner, Supervisor
from sealring_trio.errors import UserError
from sealring_trio.fetching.fetcher import RankFetch
from sealring_trio.fetching.members import hand_over
from sealring_trio.fetching.source import FetchFault
from sealring_trio.files.config import AnyFile, NodeFile
from sealring_trio.files.key_files import KeyLog
from sealring_trio.files.rosters import watch_expiry
from sealring_trio.node.drafts import Drafts
from sealring_trio.node.runtime import Runtime
from sealring_trio.node.setup import NodeSetup, source_for
from sealring_trio.units import format_address, wall_ms

log = logging.getLogger("sealring")

ENGINE_MODULE: Final = "sealring_model.engine.main"


def build_runtime(
    setup: NodeSetup[AnyFile], module: str = ENGINE_MODULE, arguments: tuple[str, ...] = ()
) -> Runtime:
    """Make the node of *setup*, not yet running. Its engine runs *module* with *arguments*, or with
    the usual ones if there are none. Raises `UserError` where the parts do not fit."""
    config = setup.config
    try:
        node = _build_node(setup)
    except LocalProtocolError as error:
        raise UserError(f"cannot run this node: {error}", "Check the config.") from None
    if not arguments:
        limit = ("--memory-limit", str(config.memory)) if config.memory else ()
        used = ("--adapter", str(config.adapter)) if config.adapter is not None else ()
        beside = ("--beside", str(setup.draft.memory)) if setup.draft is not None else ()
        trust = ("--trust-weights",) if config.trust_weights else ()
        narrow = ("--narrow-hops",) if config.hop_dtype == "bf16" else ()
        arguments = ("--model", str(setup.model), *used, *limit, *beside, *trust, *narrow)
    return Runtime(
        node,
        signer=setup.identity.signer,
        engine=_engine(
            config, EngineCommand(module, arguments, private=config.collectives == "sealed")
        ),
        listen=config.listen,
        keep=setup.store.keep,
        model=setup.model,
    )


def _build_node(setup: NodeSetup[AnyFile]) -> Node:
    config = setup.config
    return Node(
        NodeConfig(
            public_key=setup.identity.signer.public_key,
            roster=setup.roster,
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
        if fault := runtime.head_fault():
            log.warning("if a roster made this rank the head, it could not serve: %s", fault)


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
