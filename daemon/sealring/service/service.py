"""What `sealring up` runs: one node with its control socket, its API and its stop.

A node has one life for each model that it is given (`model_switch`). The control socket, the
signals and the lifeline are there for all of them.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import trio
from sealring_trio.errors import UserError
from sealring_trio.node.service import build_runtime, running
from sealring_trio.node.setup import NodeSetup, renewed
from sealring_trio.processes.launcher import ask_short_slice, hide_memory

from sealring.files.config import Config
from sealring.generation.generation import Generator
from sealring.http.connections import raise_limit
from sealring.service.control import serve_control
from sealring.service.head_api import HeadApi
from sealring.service.model_switch import ModelSwitch
from sealring.service.setup import prepare, why_not_head

_LOOK: Final = 0.5  # seconds between two looks at whether the ring serves


async def serve(setup: NodeSetup[Config], lifeline: int | None) -> None:
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
    setup: NodeSetup[Config], switch: ModelSwitch, signals: AsyncIterator[int], lifeline: _Lifeline
) -> None:
    """Run the node with one model, until it stops or `ModelSwitch.leave` is set."""
    config = setup.config
    runtime = build_runtime(setup)
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
        async with running(setup, runtime):
            nursery.start_soon(_serve_texts, generator)
            nursery.start_soon(_keep, generator)
            switch.begin(setup, generator)
            await _until_over(signals, lifeline, switch, generator, api, config.drain)
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


async def _keep(generator: Generator) -> None:
    """Once the ring serves, keep what has been made until then out of garbage collections. A full
    one would hold up the links for 0.1 s."""
    while not generator.serving or generator.obstacles():  # noqa: ASYNC110  nothing tells of all
        await trio.sleep(_LOOK)
    gc.unfreeze()  # what the life before this one has left
    gc.collect()
    gc.freeze()


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
