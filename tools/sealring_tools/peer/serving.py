"""Where a peer meets others: it listens or dials, and plays its part on each link."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio
from sealring.files.cluster import verify_roster
from sealring_model.loading.model_folder import pins_of
from sealring_protocol.link import Link
from sealring_protocol.security.admission import Admission
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.identity import Signer, node_id
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member, Roster
from sealring_tools.peer.line import Line, Tell
from sealring_tools.peer.playing import Model, Rank, lead
from sealring_tools.peer.script import Script
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import read_key, read_public_key
from sealring_trio.files.models import describe_model, find_model
from sealring_trio.units import format_address, parse_address, wall_ms

ACCEPT_ENTROPY: Final = 32
DIAL_ENTROPY: Final = 96
DIAL_SECONDS: Final = 5.0

Play = Callable[[Line], Awaitable[None]]


@attrs.frozen
class Peer:
    """A member of a roster that speaks for itself."""

    config: HandshakeConfig
    signer: Signer
    tell: Tell
    _numbers: Iterator[int] = attrs.field(factory=partial(itertools.count, 1))

    @classmethod
    def of(cls, key: Path, roster: Path, coordinator: str, instance: int, tell: Tell) -> Peer:
        """The owner of *key* in *roster*. Raises `UserError`."""
        signer, pinned = read_key(key), read_public_key(coordinator)
        signed = verify_roster(roster, pinned, wall_ms())
        if node_id(signer.public_key) not in signed.roster:
            raise UserError(
                f"the key {key} is not in the roster {roster}",
                "Add its .pub file with 'sealring roster add', and sign again.",
            )
        return cls(HandshakeConfig(signer.public_key, signed, pinned, instance), signer, tell)

    @property
    def roster(self) -> Roster:
        """The roster."""
        return self.config.roster.roster

    @property
    def rank(self) -> int:
        """This peer's rank."""
        return self.roster.rank(self.config.node_id)

    def member(self, name: str) -> Member:
        """The member called *name*. Raises `UserError`."""
        for member in self.roster.members:
            if member.name == name:
                return member
        names = ", ".join(member.name for member in self.roster.members)
        raise UserError(f"the roster has no member {name}", f"It has: {names}.")

    async def dial(self, name: str, at: str | None, purpose: Purpose) -> Line:
        """A link to the member *name*, at *at* or where the roster says; `Line.run` it.

        Raises `UserError`, or `OperationError` when it cannot be reached.
        """
        member = self.member(name)
        address = at or next(iter(member.addresses), "")
        if not address:
            raise UserError(f"the roster has no address of {name}", "Give one with --at.")
        try:
            with trio.fail_after(DIAL_SECONDS):
                stream = await trio.open_tcp_stream(*parse_address(address))
        except (OSError, ValueError, trio.TooSlowError) as error:
            why = str(error) or f"no answer within {DIAL_SECONDS:.0f} s"
            raise OperationError(f"cannot reach {name} at {address}: {why}", "Is it up?") from None
        entropy = secrets.token_bytes(DIAL_ENTROPY)
        now = trio.current_time()
        link = Link.dial(self.config, member.id, purpose, now, wall_ms(), entropy)
        return self._line(link, stream)

    def accept(self, stream: trio.SocketStream, admission: Admission) -> Line:
        """The link of a connection that came in; `Line.run` it."""
        source = stream.socket.getpeername()[0]
        clocks = (trio.current_time(), wall_ms())
        entropy = secrets.token_bytes(ACCEPT_ENTROPY)
        link = Link.accept(self.config, admission, source, *clocks, entropy)
        return self._line(link, stream)

    def _line(self, link: Link, stream: trio.SocketStream) -> Line:
        number = next(self._numbers)
        return Line(link, stream, self.signer, lambda told: self.tell({"link": number, **told}))


async def _listen(me: Peer, address: str) -> list[trio.SocketListener]:
    try:
        host, port = parse_address(address)
        listeners = list(await trio.open_tcp_listeners(port, host=host))
    except (OSError, ValueError) as error:
        raise OperationError(
            f"cannot listen at {address}: {error}", "Give --listen HOST:PORT with a free port."
        ) from None
    me.tell({"listening": format_address(*listeners[0].socket.getsockname()[:2])})
    return listeners


async def _play(line: Line, play: Play) -> None:
    """Run *line*, and *play* on it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.run)
        await play(line)


async def serve(me: Peer, address: str, model: str) -> None:
    """Be rank 1 at *address*, until cancelled. Raises `UserError`."""
    if len(me.roster.members) != 2 or me.rank != 1:
        raise UserError(
            f"this peer is rank {me.rank} of {len(me.roster.members)}, and plays rank 1 of 2",
            "Use a roster of two whose second member it is, or --script.",
        )
    info = describe_model(find_model(model))
    pins = pins_of(info)
    rank = Rank(Model(info.digest, len(info.layers), info.hidden, info.dtype, pins))
    admission = Admission(trio.current_time())

    async def met(stream: trio.SocketStream) -> None:
        with contextlib.suppress(OSError):  # it has gone before it was looked at
            await _play(me.accept(stream, admission), rank.play)

    await trio.serve_listeners(met, await _listen(me, address))


async def drive(me: Peer, name: str, at: str | None, steps: int) -> None:
    """Be the head, and have *name* do *steps* steps. Raises `UserError` or `OperationError`."""
    if len(me.roster.members) != 2 or me.rank:
        raise UserError(
            f"this peer is rank {me.rank} of {len(me.roster.members)}, and plays the head of 2",
            "Use a roster of two whose first member it is, or --script.",
        )
    async with trio.open_nursery() as nursery:

        async def dial(purpose: Purpose) -> Line:
            line = await me.dial(name, at, purpose)
            nursery.start_soon(line.run)
            return line

        await lead(dial, me.config.instance, steps)


async def play_script(
    me: Peer, script: Script, listen: str | None, name: str | None, at: str | None, purpose: str
) -> None:
    """Do what *script* says on one link: the first that comes in, or one that is dialed."""
    if name is not None:
        await _play(await me.dial(name, at, Purpose[purpose.upper()]), script.play)
        return
    admission = Admission(trio.current_time())
    async with trio.open_nursery() as nursery:

        async def met(stream: trio.SocketStream) -> None:
            await _play(me.accept(stream, admission), script.play)
            nursery.cancel_scope.cancel()

        nursery.start_soon(partial(trio.serve_listeners, met, await _listen(me, listen or "")))
