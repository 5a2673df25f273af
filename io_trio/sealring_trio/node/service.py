"""What `sealring up` runs: one node with its engine, its control socket, its API and its stop.

`prepare` finds everything that is wrong with the files before the first socket is opened.
`roster_store` decides which roster the node begins with: never an older one than it has used.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio
from sealring_model.loading.model_folder import ModelInfo
from sealring_protocol.codec.messages import Backend
from sealring_protocol.control.head.plan import Collectives, Strategy
from sealring_protocol.control.scheduler.requests import SchedulerConfig
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_WORLD
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.identity import Signer, node_id
from sealring_protocol.security.roster import Roster, SignedRoster

from sealring_trio.clock import wall_ms
from sealring_trio.engine.group import EngineGroup, GroupSettings
from sealring_trio.engine.process import EngineCommand
from sealring_trio.engine.supervisor import Engine, EngineOwner, Supervisor
from sealring_trio.errors import UserError
from sealring_trio.files.config import Config
from sealring_trio.files.key_files import read_key, read_public_key
from sealring_trio.files.key_log import KeyLog
from sealring_trio.files.models import check_text, describe_model, find_model
from sealring_trio.files.roster_store import RosterStore
from sealring_trio.files.suites import SUITES
from sealring_trio.files.units import format_address
from sealring_trio.net.descriptors import raise_limit
from sealring_trio.node.control import serve_control
from sealring_trio.node.expiry import watch_expiry
from sealring_trio.node.generation import Generator
from sealring_trio.node.head_api import HeadApi
from sealring_trio.node.requests import Requests
from sealring_trio.node.runtime import Runtime
from sealring_trio.processes.namespace import ALLOW, why_not
from sealring_trio.processes.secrecy import hide_memory

log = logging.getLogger("sealring")

ENGINE_MODULE: Final = "sealring_model.engine.main"


@attrs.frozen
class NodeSetup:
    """Everything that a node needs, read and checked."""

    config: Config
    signer: Signer
    coordinator: bytes
    roster: SignedRoster
    store: RosterStore
    model: Path
    unpinned: bytes  # as `NodeConfig` has it


def prepare(config: Config) -> NodeSetup:
    """Read and check every file that *config* names. Raises `UserError`."""
    signer = read_key(config.key)
    coordinator = read_public_key(config.coordinator)
    store = RosterStore(config.state, coordinator)
    roster = store.newest(config.roster, wall_ms())
    own = node_id(signer.public_key)
    if own not in roster.roster:
        raise UserError(
            f"the key {config.key} (node id {own.hex()[:16]}...) is not in the roster "
            f"{config.roster}",
            "Add its .pub file with 'sealring roster add', sign again, and copy the roster here.",
        )
    if len(roster.roster.members) > MAX_WORLD:
        raise UserError(
            f"the roster has {len(roster.roster.members)} members",
            f"A ring has at most {MAX_WORLD} ranks.",
        )
    model = find_model(config.model)
    info = describe_model(model)
    world = len(roster.roster.members)
    if config.layers and (len(config.layers), sum(config.layers)) != (world, len(info.layers)):
        raise UserError(
            f"{config.path}: layers = {list(config.layers)} does not fit {world} ranks and a "
            f"model of {len(info.layers)} layers",
            "Give one number for each rank; they add up to the model's. See: sealring plan --help",
        )
    _check_strategy(config, roster.roster, info)
    if roster.roster.rank(own) == 0:
        check_text(model)
    if roster.roster.rank(own) == 0 and config.api is not None:
        from sealring_trio.api.server import check_keys  # noqa: PLC0415 - see `_make_server`

        check_keys(config)
    for note in info.notes:
        log.info("%s (see: sealring digest --help)", note)
    return NodeSetup(config, signer, coordinator, roster, store, model, info.unpinned)


def _check_strategy(config: Config, roster: Roster, info: ModelInfo) -> None:
    """Raise `UserError` for a strategy that this *roster* and model rule out. Only the engine can
    find whether mlx-lm can shard a model of this class."""
    world = len(roster.members)
    if config.strategy == "tp" and world > 1 and not roster.tensor_parallelism:
        raise UserError(
            f"{config.path}: strategy = 'tp', and the roster forbids tensor parallelism",
            "Use strategy = 'pp', or have the coordinator sign a roster that allows it.",
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


def build_runtime(
    setup: NodeSetup, module: str = ENGINE_MODULE, arguments: tuple[str, ...] = ()
) -> Runtime:
    """Make the node of *setup*, not yet running. Its engine runs *module* with *arguments*, or with
    the usual ones if there are none."""
    config = setup.config
    node = Node(
        NodeConfig(
            public_key=setup.signer.public_key,
            roster=setup.roster,
            coordinator=setup.coordinator,
            instance=secrets.randbits(63) | 1,
            unpinned=setup.unpinned,
            suites=tuple(SUITES[name] for name in config.suites),
            strategy=Strategy(config.strategy),
            layers=config.layers,
            collectives=Collectives(config.collectives == "trusted-link", _backend(config)),
            group_seconds=config.group_timeout,
            patience=config.patience,
            key_log=None if config.keylog is None else KeyLog(config.keylog).write,
            scheduler=SchedulerConfig(
                groups=config.groups,
                rows=config.rows,
                queue=config.queue,
                prefixes=config.prefixes,
            ),
        ),
        trio.current_time(),
    )
    if not arguments:
        limit = ("--memory-limit", str(config.memory)) if config.memory else ()
        arguments = ("--model", str(setup.model), *limit)
    return Runtime(
        node,
        signer=setup.signer,
        engine=_engine(
            config, EngineCommand(module, arguments, private=config.collectives == "sealed")
        ),
        listen=config.listen,
        keep=setup.store.keep,
    )


def _backend(config: Config) -> Backend | None:
    return None if config.backend == "auto" else Backend[config.backend.upper()]


def _engine(config: Config, command: EngineCommand) -> Callable[[EngineOwner], Supervisor]:
    """How to make the supervisor of the engine, which is one process or a group."""
    if config.tp == 1:
        return partial(Engine, command)
    settings = GroupSettings(config.tp, _backend(config), config.group_timeout)
    return partial(EngineGroup, command, settings=settings)


async def serve(setup: NodeSetup, lifeline: int | None) -> None:
    """Run the node until a signal, or until *lifeline* (a socket's descriptor) goes dead.

    Raises `UserError` or `OperationError` when it cannot begin.
    """
    hide_memory()  # it holds the node's key, and those of its links
    config = setup.config
    raise_limit()
    setup.store.begin(setup.roster)
    try:
        runtime = build_runtime(setup)
    except LocalProtocolError as error:
        raise UserError(f"cannot run this node: {error}", "Check the config.") from None
    generator = Generator(runtime, setup.model)
    requests = Requests(generator)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, config.control_socket, requests.answer)
        api = HeadApi(generator, config)
        await nursery.start(api.run)
        await nursery.start(runtime.run)
        nursery.start_soon(_serve_texts, generator)
        _tell_where(runtime, config)
        nursery.start_soon(
            watch_expiry,
            lambda: runtime.node.roster.roster,
            wall_ms,
            lambda: runtime.roster_changed,
        )
        await _until_stopped(lifeline, generator, api, config.drain)
        log.info("stopping: closing the links")
        runtime.stop()
        await runtime.links_closed()
        nursery.cancel_scope.cancel()


async def _serve_texts(generator: Generator) -> None:
    """Run the text workers and load the tokenizer, from when this node is the head. A newer roster
    may make it the head later."""
    runtime = generator.runtime
    while runtime.node.rank:
        await runtime.roster_changed.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generator.texts.serve)
        nursery.start_soon(generator.warm_up)


def _tell_where(runtime: Runtime, config: Config) -> None:
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


async def _until_stopped(
    lifeline: int | None, generator: Generator, api: HeadApi, drain: float
) -> None:
    """Wait for a signal, then let requests finish for *drain* seconds. A second signal, or the end
    of *lifeline*, ends the wait."""
    # Before the node says that it is up: whoever hears that may end it at once.
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            if lifeline is not None:
                nursery.start_soon(_hold, lifeline, nursery.cancel_scope)
            await anext(signals)
            nursery.start_soon(_cancel_at_signal, signals, nursery.cancel_scope)
            await generator.drain(drain)
            await api.close()
            nursery.cancel_scope.cancel()


async def _cancel_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()


async def _hold(lifeline: int, scope: trio.CancelScope) -> None:
    """Send on *lifeline* that the node is up, then cancel *scope* when that socket ends."""
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=lifeline)))
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(b"up\n")
            while await stream.receive_some():
                pass
    scope.cancel()
