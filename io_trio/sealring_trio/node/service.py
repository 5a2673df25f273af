"""What `sealring up` runs: one node with its engine, its control socket, its API and its stop.

A node has one life for each model that it is given (`model_switch`). The control socket, the
signals and the lifeline are there for all of them.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

import trio
from sealring_protocol.codec.messages import Backend
from sealring_protocol.control.head.plan import Collectives, Strategy
from sealring_protocol.control.scheduler.requests import SchedulerConfig
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.node import Node, NodeConfig

from sealring_trio.clock import wall_ms
from sealring_trio.engine.group import EngineGroup, GroupSettings
from sealring_trio.engine.process import EngineCommand
from sealring_trio.engine.supervisor import Engine, EngineOwner, Supervisor
from sealring_trio.errors import UserError
from sealring_trio.fetching.rank_fetch import RankFetch
from sealring_trio.files.config import Config
from sealring_trio.files.key_log import KeyLog
from sealring_trio.files.units import format_address
from sealring_trio.net.descriptors import raise_limit
from sealring.daemon.control import serve_control
from sealring_trio.node.drafts import Drafts
from sealring_trio.node.expiry import watch_expiry
from sealring.daemon.generation import Generator
from sealring.daemon.head_api import HeadApi
from sealring_trio.node.model_source import source_for
from sealring.daemon.model_switch import ModelSwitch
from sealring_trio.node.runtime import Runtime
from sealring_trio.node.setup import NodeSetup, prepare, renewed, why_not_head
from sealring_trio.node.versions import build_number
from sealring_trio.processes.priority import ask_short_slice
from sealring_trio.processes.secrecy import hide_memory

log = logging.getLogger("sealring")

ENGINE_MODULE: Final = "sealring_model.engine.main"


def build_runtime(
    setup: NodeSetup, module: str = ENGINE_MODULE, arguments: tuple[str, ...] = ()
) -> Runtime:
    """Make the node of *setup*, not yet running. Its engine runs *module* with *arguments*, or with
    the usual ones if there are none."""
    config = setup.config
    node = Node(
        NodeConfig(
            public_key=setup.identity.signer.public_key,
            roster=setup.roster,
            coordinator=setup.identity.coordinator,
            instance=setup.identity.instance,
            build=build_number(),
            unpinned=setup.unpinned,
            trust_weights=config.trust_weights,
            suites=setup.identity.suites,
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
                ahead=config.ahead,
            ),
        ),
        trio.current_time(),
    )
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
    ask_short_slice()
    hide_memory()  # it holds the node's key, and those of its links
    raise_limit()
    setup.store.begin(setup.roster)
    switch = ModelSwitch(partial(prepare, pause=None))
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, setup.config.control_socket, switch.answer)
        # Before the node says that it is up: whoever hears that may end it at once.
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            held = _Lifeline(lifeline)
            nursery.start_soon(held.hold)
            await _live(setup, switch, signals, held)
            while (following := switch.next) is not None:
                began = switch.lives
                try:
                    await _live(renewed(following), switch, signals, held)
                except* UserError as errors:
                    if switch.lives > began:
                        raise
                    switch.failed(errors)
                if switch.lives == began:
                    await _live(renewed(setup), switch, signals, held)
                else:
                    setup = following
        nursery.cancel_scope.cancel()


async def _live(
    setup: NodeSetup, switch: ModelSwitch, signals: AsyncIterator[int], lifeline: _Lifeline
) -> None:
    """Run the node with one model, until it stops or `ModelSwitch.leave` is set."""
    config = setup.config
    try:
        runtime = build_runtime(setup)
    except LocalProtocolError as error:
        raise UserError(f"cannot run this node: {error}", "Check the config.") from None
    source = source_for(config, setup.identity, lambda: runtime.node.roster)
    fetching = RankFetch(setup.model, setup.layers, source, runtime.node.fetched)
    runtime.placed = fetching.placed
    generator = Generator(
        runtime,
        setup.model,
        guesses=config.guesses,
        own_sampling=config.sampling == "model",
    )
    runtime.head_fault = partial(why_not_head, config, setup.model)
    runtime.giving_way = partial(generator.giving_way, config.drain)
    async with trio.open_nursery() as nursery:
        api = HeadApi(generator, config)
        await nursery.start(api.run)
        await nursery.start(runtime.run)
        nursery.start_soon(fetching.run)
        nursery.start_soon(_serve_texts, generator)
        if setup.draft is not None:
            nursery.start_soon(Drafts(runtime, setup.draft).run)
        _tell_where(runtime, config)
        nursery.start_soon(
            watch_expiry,
            lambda: runtime.node.roster.roster,
            wall_ms,
            lambda: runtime.roster_changed,
        )
        switch.begin(setup, generator)
        await _until_over(signals, lifeline, switch, generator, api, config.drain)
        log.info("stopping: closing the links")
        runtime.stop()
        await runtime.links_closed()
        switch.over()
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
        if fault := runtime.head_fault():
            log.warning("if a roster made this rank the head, it could not serve: %s", fault)


async def _until_over(
    signals: AsyncIterator[int],
    lifeline: _Lifeline,
    switch: ModelSwitch,
    generator: Generator,
    api: HeadApi,
    drain: float,
) -> None:
    """Wait for a signal, or until *switch* has another model; then let requests finish for *drain*
    seconds. A signal meanwhile ends that at once; the end of *lifeline* ends either wait."""
    lifeline.up.set()
    leave = switch.leave
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_with, lifeline, switch, nursery.cancel_scope)
        async with trio.open_nursery() as first:
            first.start_soon(_stop_at_signal, signals, switch, first.cancel_scope)
            await leave.wait()
            first.cancel_scope.cancel()
        nursery.start_soon(_stop_at_signal, signals, switch, nursery.cancel_scope)
        if switch.next is not None:
            own = "this node loads another model"
            await generator.drain(drain, "the head loads another model", own)
        else:
            await generator.drain(drain, "the head is shutting down")
        await api.close()
        nursery.cancel_scope.cancel()


async def _stop_at_signal(
    signals: AsyncIterator[int], switch: ModelSwitch, scope: trio.CancelScope
) -> None:
    """Cancel *scope* at a signal: the node stops."""
    await anext(signals)
    switch.stop()
    scope.cancel()


async def _stop_with(lifeline: _Lifeline, switch: ModelSwitch, scope: trio.CancelScope) -> None:
    """Cancel *scope* when *lifeline* has gone dead: the node stops."""
    await lifeline.dead.wait()
    switch.stop()
    scope.cancel()


class _Lifeline:
    """The socket at *descriptor*, which tells a supervisor that the node is *up*, and the node that
    its supervisor is *dead*. None is one that never dies."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self.up = trio.Event()
        self.dead = trio.Event()

    async def hold(self) -> None:
        """Say that the node is up once it is, then wait for the end of the socket."""
        if self._descriptor is None:
            return
        sock = socket.socket(fileno=self._descriptor)
        async with trio.SocketStream(trio.socket.from_stdlib_socket(sock)) as stream:
            await self.up.wait()
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(b"up\n")
                while await stream.receive_some():
                    pass
        self.dead.set()
