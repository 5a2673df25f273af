"""What `sealring up` runs: one node with its Unix socket, its API, its models and its stop.

A node has one life for each model that it is given (`model_switch`). Unix socket, signals, lifeline
and door are there for all lives. At the end stand what systemd is told, and the renewal of rosters.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio
from sealring_protocol.security.roster import Roster
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import is_there
from sealring_trio.node.runtime import Runtime
from sealring_trio.node.service import NodeSetup, build_runtime, renewed, running
from sealring_trio.processes.launcher import ask_short_slice, hide_memory
from sealring_trio.units import format_time, wall_ms

from sealring.discovery.discovery import Presence
from sealring.files.cluster import read_coordinator_key, sign_next
from sealring.files.config import Config
from sealring.generation.generation import Generator
from sealring.http.connections import raise_limit
from sealring.joining.door import Door
from sealring.local.node_socket import listening
from sealring.service.choice import RingChoice
from sealring.service.head_api import NodeApi, head_fault, prepare
from sealring.service.model_switch import ModelSwitch
from sealring.service.requests import DOOR_REQUESTS, answer_at_door
from sealring.service.verification import Reply

log = logging.getLogger("sealring")

_KEEP_SECONDS: Final = 0.5
"""Seconds between two looks at whether all is made that lasts."""

_STAND_SECONDS: Final = 2.0
"""Seconds between two looks at whether this node could serve as head."""


async def serve(
    setup: NodeSetup[Config],
    lifeline: int | None,
    beside: Callable[[Door], Awaitable[None]] | None = None,
) -> None:
    """Run the node until a signal, or until *lifeline* (a socket's descriptor) goes dead. Once it
    is up, *beside* runs with it and is given its door.

    Raises `UserError` or `OperationError` when it cannot begin.
    """
    ask_short_slice()
    hide_memory()  # it holds the node's key, and those of its links
    raise_limit()
    setup.store.begin(setup.roster)
    supervision = Supervision()
    switch = ModelSwitch(prepare)
    identity = setup.identity
    door = Door(setup.config, identity.signer, identity.coordinator)
    presence = Presence(setup.config, identity, door)
    with (
        listening(setup.config.control_socket) as listener,
        # Before the node says that it is up: whoever hears that may end it at once.
        trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
        trio.open_signal_receiver(signal.SIGHUP) as hangups,
    ):
        async with trio.open_nursery() as nursery:
            held = _Lifeline(lifeline)
            nursery.start_soon(held.hold)
            nursery.start_soon(_reread_at, hangups, switch)
            nursery.start_soon(supervision.watch, held.up)
            nursery.start_soon(_serve_owner, listener, switch, door, presence, held.up)
            await nursery.start(door.run)
            nursery.start_soon(presence.run, held.up)
            if beside is not None:
                nursery.start_soon(_begin, beside, door, held.up)
            if (address := setup.config.health) is not None:
                # An import that only a node with this address pays for.
                from sealring.http.app import serve_health  # noqa: PLC0415

                await nursery.start(serve_health, address, switch.present)
            await _live(setup, switch, door, presence, signals, held)
            while (following := switch.next) is not None:
                began = switch.lives
                try:
                    await _live(renewed(following), switch, door, presence, signals, held)
                except* UserError as errors:
                    if switch.lives > began:
                        raise
                    switch.failed(errors)
                if switch.lives == began:
                    await _live(renewed(setup), switch, door, presence, signals, held)
                else:
                    setup = following
            nursery.cancel_scope.cancel()


async def _reread_at(hangups: AsyncIterator[int], switch: ModelSwitch) -> None:
    """Have the node read its files again at each of *hangups*."""
    async for _ in hangups:
        await switch.reread()


async def _begin(beside: Callable[[Door], Awaitable[None]], door: Door, up: trio.Event) -> None:
    """Run *beside* once the node is *up*."""
    await up.wait()
    await beside(door)


async def _serve_owner(
    listener: socket.socket,
    switch: ModelSwitch,
    door: Door,
    presence: Presence,
    up: trio.Event,
) -> None:
    """Answer the owner at *listener* once the node is *up*. Until then its clients wait."""
    await up.wait()
    # A tenth of the node's start to import, and the engine starts meanwhile.
    from sealring.service.owner_api import OwnerApi, serve_owner  # noqa: PLC0415

    async def install(body: bytes, reply: Reply) -> None:
        await door.settled()
        await switch.answer("roster", body, reply)

    def answer(name: str, body: bytes, reply: Reply) -> Awaitable[None]:
        if name in DOOR_REQUESTS:
            return answer_at_door(door, name, body, reply)
        if name == "nearby":
            return reply({"waiting": presence.waiting()})
        return install(body, reply) if name == "roster" else switch.answer(name, body, reply)

    await serve_owner(listener, OwnerApi(answer, switch.api))


async def _live(
    setup: NodeSetup[Config],
    switch: ModelSwitch,
    door: Door,
    presence: Presence,
    signals: AsyncIterator[int],
    lifeline: _Lifeline,
) -> None:
    """Run the node with one model, until it stops or `ModelSwitch.leave` is set."""
    config = switch.reread_into(setup.config)
    serves = config.api is not None  # without an API nobody could ask it as the head
    may_lead = serves and setup.has_engine
    runtime = build_runtime(setup, relays=serves, stands=False)
    generator = Generator(
        runtime,
        setup.model,
        guesses=config.guesses,
        own_sampling=config.sampling == "model",
    )
    fault = head_fault(config, setup.model)
    runtime.head_fault = lambda: setup.lacking or fault()
    runtime.giving_way = partial(generator.giving_way, config.drain)
    async with trio.open_nursery() as nursery:
        api = NodeApi(generator, config, door)
        await nursery.start(api.run)
        async with running(setup, runtime):
            nursery.start_soon(_serve_texts, generator, may_lead)
            nursery.start_soon(_stand, runtime, may_lead)
            nursery.start_soon(_keep, generator)
            RingChoice(generator, config)
            nursery.start_soon(renew_rosters, runtime, config, setup.identity.coordinator, door)
            switch.begin(setup, generator, api)
            nursery.start_soon(switch.follow_rights)
            door.begin(lambda: runtime.node.roster, runtime.install, config.model)
            presence.begin(runtime)
            await _until_over(signals, lifeline, switch, generator, api, config.drain)
            door.pause()
            presence.pause()
            if switch.next is None:
                await door.close("sealring is stopped there")
        switch.over()
        nursery.cancel_scope.cancel()


async def _stand(runtime: Runtime, may_lead: bool) -> None:
    """Have the node stand for head as long as it *may lead* and nothing would keep it from serving:
    keys come from the head, or from an owner who makes one here."""
    while may_lead:
        runtime.stand(not await trio.to_thread.run_sync(runtime.head_fault))
        await trio.sleep(_STAND_SECONDS)


async def _serve_texts(generator: Generator, may_lead: bool) -> None:
    """Run the text workers and load the tokenizer, from when this node is the head; or may be
    elected, if it *may lead*: then it serves at once."""
    runtime = generator.runtime
    while (rank := runtime.node.rank) and not (
        may_lead and rank in runtime.node.roster.roster.heads
    ):
        await runtime.roster_changed.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generator.texts.serve)
        nursery.start_soon(generator.warm_up)


async def _keep(generator: Generator) -> None:
    """Once the ring serves, keep what has been made until then out of garbage collections. A full
    one would hold up the links for 0.1 s."""
    while not generator.serving or generator.obstacles():  # noqa: ASYNC110  no event is for all
        await trio.sleep(_KEEP_SECONDS)
    gc.unfreeze()  # what the life before this one has left
    gc.collect()
    gc.freeze()


async def _until_over(
    signals: AsyncIterator[int],
    lifeline: _Lifeline,
    switch: ModelSwitch,
    generator: Generator,
    api: NodeApi,
    drain: float,
) -> None:
    """Wait for a signal, or until *switch* has another model; then let requests finish for *drain*
    seconds. A signal meanwhile ends that at once; the end of *lifeline* ends either wait."""
    lifeline.up.set()
    leave, signalled = switch.leave, partial(anext, signals)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_after, lifeline.dead.wait, switch, nursery.cancel_scope)
        async with trio.open_nursery() as first:
            first.start_soon(_stop_after, signalled, switch, first.cancel_scope)
            await leave.wait()
            first.cancel_scope.cancel()
        nursery.start_soon(_stop_after, signalled, switch, nursery.cancel_scope)
        if switch.next is not None:
            anew = "loads another model" if switch.next.has_engine else "goes on without a model"
            own = f"this node {anew}"
            await generator.drain(drain, "the head loads another model", own)
        else:
            await generator.drain(drain, "the head is shutting down")
        await api.finish(drain)
        if switch.next is None:
            await _hand_over(generator.runtime)
        await api.close()
        nursery.cancel_scope.cancel()


async def _hand_over(runtime: Runtime) -> None:
    """If this node is the head, which is about to stop, have the next machine that may be elected
    in its place: else the others would first have to notice that it is gone."""
    if (rank := runtime.next_head()) is None:
        return
    name = runtime.node.roster.roster.members[rank].name
    log.info("stopping: %s is to be the head", name)
    try:
        await runtime.move(rank, stops=True)
    except UserError as error:
        log.warning("%s. %s", error.what, error.advice)


async def _stop_after(
    wait: Callable[[], Awaitable[object]], switch: ModelSwitch, scope: trio.CancelScope
) -> None:
    """Cancel *scope* once *wait* is over: the node stops."""
    await wait()
    switch.stop()
    scope.cancel()


class _Lifeline:
    """The socket at *descriptor*, which shows a supervisor that the node is *up*, and the node that
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


# ---------------------------------------------------------------------- systemd
# The node tells systemd that it is up and that it is alive (sd_notify(3)). It does so from its
# event loop, which is what ``/livez`` would show: so a unit with ``WatchdogSec`` needs neither a
# timer nor an HTTP client, and no port. Without systemd, which names its socket in
# ``NOTIFY_SOCKET``, nothing is done.


_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_TIMES: Final = 3
"""How often the node says that it is alive, within the time that the unit gives it."""


class Supervision:
    """The service manager of this process, if it has one."""

    def __init__(self) -> None:
        """Take the manager's variables out of the environment: they are for no child."""
        self._place = os.environ.pop(_SOCKET, "")
        within = os.environ.pop(_WATCHDOG, "")
        self._seconds = int(within) / 1e6 / _TIMES if within.isdecimal() else 0.0

    def say(self, state: str) -> None:
        """Send *state*, such as ``READY=1``. A manager that does not listen is no fault of ours."""
        if not self._place:
            return
        # A name that begins with @ is of Linux's abstract namespace.
        name = "\0" + self._place[1:] if self._place[0] == "@" else self._place
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
        ):
            sock.setblocking(False)
            sock.connect(name)
            sock.send(state.encode())

    async def watch(self, up: trio.Event) -> None:
        """Say that the node is up once it is *up*; then that it is alive, until cancelled."""
        await up.wait()
        self.say("READY=1")
        while self._seconds:
            self.say("WATCHDOG=1")
            await trio.sleep(self._seconds)


# ---------------------------------------------------------------------- renewal
# The roster is renewed where the coordinator's key lies: the same members, the next serial, and the
# same lifetime from then on, once a third of it is left.
#
# The key may lie on several members, and two rosters with one serial are a conflict that no node
# can resolve. So each member waits longer than the ones before it in the order of ranks, a node
# that has just begun waits for what others may bring, and one that others have put out renews
# nothing. The key is read each time: it may have been taken off this machine meanwhile, and then
# there is nothing to do.


SETTLE: Final = 20.0
"""Seconds after a node of several has begun in which others may bring it a newer roster."""

TURN: Final = 3600.0
"""Seconds by which a rank waits longer than the one before it; a hundredth of the lifetime if that
is less."""

_CLOCK_SECONDS: Final = 60.0
"""Most seconds between looks at the wall clock, which may be set at any time."""


def due_in(roster: Roster, rank: int, wall_ms: int) -> float:
    """Seconds until the member of *rank* renews *roster*; 0 or less once it should."""
    lifetime = (roster.expires_ms - roster.issued_ms) / 1000
    left = (roster.expires_ms - wall_ms) / 1000
    return left - lifetime / 3 + rank * min(TURN, lifetime / 100)


async def renew_rosters(runtime: Runtime, config: Config, coordinator: bytes, door: Door) -> None:
    """Renew the roster of *runtime*, whose *door* is this, whenever it is due, with the key that
    *config* names, until cancelled; *coordinator* is the pinned key. A failure is logged once, and
    tried again."""
    if config.coordinator_key is None:
        return
    if runtime.node.world > 1:
        await trio.sleep(SETTLE)
    said = ""
    while True:
        changed = runtime.roster_changed
        node = runtime.node
        wait = due_in(node.roster.roster, node.rank, wall_ms())
        put_out = any(peer.put_out for peer in node.peers())
        if wait <= 0 and not put_out and is_there(config.coordinator_key):
            await door.settled()
            try:
                await _renew(runtime, config.coordinator_key, coordinator, door.spent)
                said = ""
                continue
            except UserError as error:
                if error.what != said:
                    log.warning("the roster cannot be renewed: %s. %s", error.what, error.advice)
                said = error.what
        with trio.move_on_after(min(_CLOCK_SECONDS, wait) if wait > 0 else _CLOCK_SECONDS):
            await changed.wait()


async def _renew(runtime: Runtime, path: Path, coordinator: bytes, spent: int) -> None:
    """Sign the members again with the key at *path*, and install that; *coordinator* is the pinned
    key. Raises `UserError`."""
    before = runtime.node.roster
    signer = read_coordinator_key(path, before.roster.coordinator(coordinator))
    signed = sign_next(before, before.roster.members, signer, wall_ms(), spent)
    await runtime.install(signed.encode())
    log.info(
        "roster %d is renewed as roster %d, valid until %s; the other members take it from here",
        before.roster.serial,
        signed.roster.serial,
        format_time(signed.roster.expires_ms),
    )
