"""The two parts that a peer plays by itself, in a ring of two.

The rank after the head computes nothing: what its layers give is what they get. That is enough to
see every message of a pipeline, with the ledger and both inner seals at work. The head brings the
rank up, has it read a prompt and decode some tokens, and looks whether each answer belongs to its
step.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Get,
    Hello,
    Join,
    Message,
    NoWork,
    Open,
    Piece,
    Prefill,
    Ready,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError
from sealring_protocol.link import LinkOpened
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.seal import PREFILL_GROUP, InnerContext, InnerOpener, InnerSealer
from sealring_tools.peer.line import Line
from sealring_trio.errors import OperationError

PROMPT: Final = 5
"""Tokens that the head has read before it decodes."""

UID: Final = 1
GROUP: Final = 0
ROOM: Final = 1 << 30
DEADLINE_MS: Final = 60_000
_NO_DIGEST: Final = bytes(16)
_RANK: Final = 1

M = TypeVar("M", Hello, Ready, StepDone)


@attrs.frozen
class Model:
    """What a rank says of the model that it would have."""

    digest: bytes
    layers: int
    hidden: int
    dtype: DType
    pins: tuple[int, ...] = ()

    def hello(self) -> Hello:
        """How the rank presents itself."""
        return Hello(self.digest, self.layers, self.dtype, self.hidden, ROOM, self.pins)

    def ready(self, epoch: Epoch, first: int, last: int) -> Ready:
        """READY of *epoch* with layers *first* to *last*, excluded."""
        return Ready(epoch, first, last, True, ROOM, CacheCost(0, 1))


class Seals:
    """Seals the tensors of one link and opens them, or leaves them as they are where the roster
    asks for no inner seal."""

    def __init__(self, up: LinkOpened) -> None:
        roster, hop = up.roster.roster, up.hop
        self._wanted = roster.inner_seal
        self._sealer = InnerSealer(hop.suite, hop.send, roster.cluster)
        self._opener = InnerOpener(hop.suite, hop.receive, roster.cluster)

    def seal(self, at: InnerContext, dtype: DType, shape: tuple[int, ...], data: bytes) -> Tensor:
        """*data* as the tensor that belongs at *at*."""
        return (
            self._sealer.seal(at, dtype, shape, data)
            if self._wanted
            else Tensor(dtype, shape, data)
        )

    def open(self, at: InnerContext, tensor: Tensor) -> bytes:
        """What *tensor* holds. Raises `RemoteProtocolError` where it does not belong at *at*."""
        return self._opener.open(at, tensor) if self._wanted else bytes(tensor.data)


def place(step: Step, ledger: Ledger, boundary: int) -> InnerContext:
    """Where the tensor of *step* belongs that crosses *boundary*."""
    match step.work:
        case Decode(group):
            return InnerContext(step.epoch, step.n, group, boundary, ledger.groups.get(group, ()))
        case Prefill(uid):
            return InnerContext(step.epoch, step.n, PREFILL_GROUP, boundary, (uid,))
        case NoWork():
            raise LocalProtocolError("a step without work has no tensor")


def _say(line: Line, message: Message) -> None:
    """Send *message* on *line*, unless that has ended: what came before is read after its end."""
    if not line.ended:
        line.send(message)


class Rank:
    """The rank after the head. It answers on any number of links, of any number of epochs, and
    says READY of an epoch once its STEP link with the head is up."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._epochs: dict[Epoch, tuple[tuple[int, ...], Ledger]] = {}
        self._chains: set[Line] = set()
        self._owed: tuple[Line, Ready] | None = None  # until there is a STEP link

    async def play(self, line: Line) -> None:
        """Answer what comes on *line* until it ends."""
        up = await line.up()
        if up is None:
            return
        seals = Seals(up)
        try:
            if up.purpose is Purpose.CONTROL:
                _say(line, self._model.hello())
            elif up.purpose is Purpose.STEP:
                self._chains.add(line)
                self._answer()
            while (message := await line.receive()) is not None:
                match message:
                    case Bootstrap():
                        self._begin(message, line)
                    case Step() if message.failed is None:
                        _say(line, self._step(message, seals))
                    case Get():
                        _say(line, Piece(0, b"", "this peer has no model"))
                    case _:
                        pass  # it has been told; there is nothing to answer
        finally:
            self._chains.discard(line)
            if self._owed is not None and self._owed[0] is line:
                self._owed = None

    def _begin(self, order: Bootstrap, control: Line) -> None:
        epoch = order.epoch
        if order.backend is not Backend.PIPELINE:
            text = "this peer has no engine that could join a collective"
            _say(control, CannotServe(epoch, FailureKind.GROUP, text))
            return
        self._epochs = {epoch: (order.bounds, Ledger(order.kept))}
        self._owed = control, self._model.ready(epoch, *order.bounds[1:])
        self._answer()

    def _answer(self) -> None:
        """Say READY of the epoch if it is owed and there is a STEP link."""
        if self._owed is not None and self._chains:
            control, ready = self._owed
            self._owed = None
            _say(control, ready)

    def _step(self, step: Step, seals: Seals) -> StepDone:
        """The answer to *step*: a decode gives back what it brought."""
        bounds, ledger = self._epochs.get(step.epoch, ((0, 0, 0), Ledger()))
        try:
            ledger.apply(step)
            if ledger.digest(step.n) != step.digest:
                text = "the ledger's digest is another"
                failed = Failure(_RANK, FailureKind.LEDGER, text)
                return StepDone(step.epoch, step.n, failed=failed)
            if not step.tensors:
                return StepDone(step.epoch, step.n)
            (tensor,) = step.tensors
            data = seals.open(place(step, ledger, bounds[1]), tensor)
        except (RemoteProtocolError, ValueError) as error:
            failed = Failure(_RANK, FailureKind.INTEGRITY, str(error))
            return StepDone(step.epoch, step.n, failed=failed)
        if not isinstance(step.work, Decode):
            return StepDone(step.epoch, step.n)
        back = seals.seal(place(step, ledger, bounds[2]), tensor.dtype, tensor.shape, data)
        return StepDone(step.epoch, step.n, tensors=(back,))


async def lead(dial: Callable[[Purpose], Awaitable[Line]], instance: int, steps: int) -> None:
    """The head: bring the other rank up, have it do *steps* steps, and end both links.

    Raises `OperationError` when the rank answers otherwise than it should.
    """
    control = await dial(Purpose.CONTROL)
    policy = (await _up(control)).roster.roster.inner_seal
    rank = await _next(control, Hello)
    epoch, bounds = Epoch(instance, 1), (0, max(1, rank.layers // 2), rank.layers)
    order = (Backend.PIPELINE, _RANK, policy, DEADLINE_MS, rank.model, bounds)
    control.send(Bootstrap(epoch, *order))
    chain = await dial(Purpose.STEP)
    seals = Seals(await _up(chain))
    _check_ready(await _next(control, Ready), epoch, bounds)
    ledger = Ledger()
    for n in range(1, steps + 1):
        await _ask(chain, _written(epoch, n), ledger, seals, rank, bounds)
    chain.close()
    control.close()


def _written(epoch: Epoch, n: int) -> Step:
    """Step *n*: one row is read in, joins a group, and the group decodes."""
    if n == 1:
        return Step(epoch, n, _NO_DIGEST, open=(Open(UID),), work=Prefill(UID, 0, PROMPT))
    join = (Join(UID, GROUP),) if n == 2 else ()
    return Step(epoch, n, _NO_DIGEST, join=join, work=Decode(GROUP))


async def _ask(
    chain: Line, step: Step, ledger: Ledger, seals: Seals, rank: Hello, bounds: tuple[int, ...]
) -> None:
    """Send *step* with random hidden states, and look at its answer."""
    ledger.apply(step)
    tokens = PROMPT if isinstance(step.work, Prefill) else 1
    shape = (1, tokens, rank.hidden)
    data = secrets.token_bytes(tokens * rank.hidden * rank.dtype.width)
    tensor = seals.seal(place(step, ledger, bounds[1]), rank.dtype, shape, data)
    chain.send(attrs.evolve(step, digest=ledger.digest(step.n), tensors=(tensor,)))
    done = await _next(chain, StepDone)
    if (done.epoch, done.n) != (step.epoch, step.n):
        raise _wrong(f"step {step.n} was answered by step {done.n}, or of another epoch")
    if done.ids:
        raise _wrong("a rank of a pipeline knows no tokens, so its answer has no ids [ST-03]")
    if not isinstance(step.work, Decode) and done.tensors:
        raise _wrong("a prefill gives back no tensor [ST-03]")
    if isinstance(step.work, Decode):
        if [(t.dtype, t.shape) for t in done.tensors] != [(rank.dtype, shape)]:
            raise _wrong(
                f"a decode of one row gives back one tensor of the shape {list(shape)}, in "
                f"{rank.dtype.name}, which HELLO named [ST-03]"
            )
        try:
            seals.open(place(step, ledger, bounds[2]), done.tensors[0])
        except RemoteProtocolError as error:
            raise _wrong(f"the tensor of step {step.n}: {error}") from None


def _check_ready(ready: Ready, epoch: Epoch, bounds: tuple[int, ...]) -> None:
    """Look whether *ready* answers the order [EP-01]."""
    if ready.epoch != epoch:
        raise _wrong("READY answers BOOTSTRAP with the epoch that BOOTSTRAP named")
    if (ready.first, ready.last) != bounds[1:]:
        told = f"{ready.first} to {ready.last}"
        raise _wrong(
            f"READY names the layers {told}, and BOOTSTRAP gave {bounds[1]} to {bounds[2]}"
        )


async def _up(line: Line) -> LinkOpened:
    up = await line.up()
    if up is None:
        raise _wrong("the link did not come up")
    return up


async def _next(line: Line, kind: type[M]) -> M:
    message = await line.receive()
    if message is None:
        raise _wrong(f"the link ended where {kind.CODE.name} was due")
    if not isinstance(message, kind):
        raise _wrong(f"{message.CODE.name} came where {kind.CODE.name} was due")
    if isinstance(message, StepDone) and message.failed is not None:
        raise _wrong(f"step {message.n} failed: {message.failed.message}")
    return message


def _wrong(text: str) -> OperationError:
    return OperationError(text, "The lines above are all that was said, in order.")
