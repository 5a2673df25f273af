"""The hidden states of one rank: checked and opened as they come in, sealed as they go out.

Most families have one array of hidden states. A hop carries as many tensors as the stage says, in
the order of `Stage.hop_in`, `Stage.hop_out` and `Stage.hop_back`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

import attrs
import mlx.core as mx
from sealring_protocol.codec.local_messages import HopKey, Logprobs, RowOver, Scores
from sealring_protocol.codec.messages import Bootstrap, Checked, Failure, Spent, Step, StepDone
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import MAX_SEALED_BODY, STEP_ROOM
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.seal import InnerContext, InnerOpener, InnerSealer

from sealring_model.errors import IntegrityError, ModelError
from sealring_model.stage.device import DTYPES, DeviceIO, Inlet, Outlet, from_data
from sealring_model.stage.outline import HopTensor
from sealring_model.stage.stage import Stage

Clock = Callable[[], Spent]
"""Where this rank's time with a message went. Call it last, once the answer is sealed."""


@attrs.frozen
class PendingAnswer:
    """An answer that the device still works on: wait for *arrays*, send what *preface* gives, then
    what *answer* gives."""

    arrays: tuple[mx.array, ...]
    answer: Callable[[Clock], Step | StepDone]
    preface: Callable[[], tuple[Logprobs | Scores | RowOver | Checked, ...]] = tuple


@attrs.frozen
class InFlight:
    """*message* on the device.

    It came at *arrived*; the work on it began at *begun*, both in nanoseconds of
    `time.perf_counter_ns`. Before that, *opening* nanoseconds went into opening hidden states.
    """

    message: Step | StepDone
    pending_answer: PendingAnswer
    arrived: int
    begun: int
    opening: int


class PlainActivations:
    """Tensors are not sealed: the policy is off. A sealed one is refused.

    One thread may seal while another opens. *sealing_ns* and *opening_ns* are the nanoseconds spent
    so far.
    """

    sealing_ns = opening_ns = 0

    def seal(
        self, context: InnerContext, dtype: DType, shape: tuple[int, ...], data: Buffer
    ) -> Tensor:
        """*data* as a plain tensor."""
        return Tensor(dtype, shape, data)

    def open(self, context: InnerContext, tensor: Tensor) -> Buffer:
        """*tensor*'s data. Raises `IntegrityError` when it is sealed."""
        if tensor.sealed:
            raise IntegrityError("a tensor came sealed, and this ring has no inner seal")
        return tensor.data


class SealedActivations(PlainActivations):
    """Tensors are sealed for the next rank under the key of the outgoing hop, and opened under that
    of the incoming one; a plain one is refused. The node between hands the keys down and sees
    ciphertext. A new key for a hop replaces the old one with its counters."""

    def __init__(self) -> None:
        self._sealer: InnerSealer | None = None
        self._opener: InnerOpener | None = None
        self.sealing_ns = 0
        self.opening_ns = 0

    def set_key(self, key: HopKey) -> None:
        """Use *key* for its direction from now on."""
        suite = Suite(key.suite)
        if key.outgoing:
            self._sealer = InnerSealer(suite, key.secret, key.cluster)
        else:
            self._opener = InnerOpener(suite, key.secret, key.cluster)

    def seal(
        self, context: InnerContext, dtype: DType, shape: tuple[int, ...], data: Buffer
    ) -> Tensor:
        """*data* sealed. Raises `IntegrityError` when there is no key for it."""
        if self._sealer is None:
            raise IntegrityError("there is no key to seal hidden states with")
        start = time.perf_counter_ns()
        tensor = self._sealer.seal(context, dtype, shape, data)
        self.sealing_ns += time.perf_counter_ns() - start
        return tensor

    def open(self, context: InnerContext, tensor: Tensor) -> Buffer:
        """*tensor*'s elements. Raises `IntegrityError` when it is not what was sent here."""
        if self._opener is None:
            raise IntegrityError("there is no key to open hidden states with")
        start = time.perf_counter_ns()
        try:
            data = self._opener.open(context, tensor)
        except RemoteProtocolError as error:
            raise IntegrityError(f"hidden states did not open: {error}") from None
        self.opening_ns += time.perf_counter_ns() - start
        return data


Received: TypeAlias = tuple[Buffer, ...]
"""The contents of the tensors of one message, opened."""


@attrs.frozen(eq=False)
class HiddenIO:
    """Hidden states in and out of *stage*, on the rank that has *place*."""

    _place: Bootstrap
    _stage: Stage
    _activation_seal: PlainActivations
    _device_io: DeviceIO

    @property
    def _last(self) -> bool:
        return self._place.rank == self._place.world - 1

    def outgoing_context(self, n: int, batch: int, uids: tuple[int, ...]) -> InnerContext:
        """What the seal binds the hidden states of step *n* to that leave this rank."""
        return self._context(n, batch, self._place.rank + 1, uids)

    def _context(self, n: int, batch: int, hop: int, uids: tuple[int, ...]) -> InnerContext:
        return InnerContext(self._place.epoch, n, batch, self._place.bounds[hop], uids)

    # ---------------------------------------------------------------------- in

    def open(
        self, message: Step | StepDone, batch: int, uids: tuple[int, ...], tokens: int = 1
    ) -> Received:
        """The hidden states in *message*, of *tokens* tokens of each of rows *uids* of *batch*.

        A STEP has them from the rank before, a STEP_DONE from the last rank. Opens each message
        once. Raises `IntegrityError` for other hidden states than these.
        """
        expected, tensors = self._expected(message), message.tensors
        if len(tensors) != len(expected):
            raise IntegrityError(f"{len(tensors)} tensors came where {len(expected)} belong")
        for tensor, wanted in zip(tensors, expected, strict=True):
            dtype, shape = DTYPES[wanted.spec.dtype], wanted.spec.shape(len(uids), tokens)
            if tensor.dtype != dtype or tensor.shape != shape:
                raise IntegrityError(
                    f"hidden states came as {tensor.dtype.name} {tensor.shape}, "
                    f"not {dtype.name} {shape}"
                )
        hop = self._place.rank if isinstance(message, Step) else self._place.world
        context = self._context(message.n, batch, hop, uids)
        return tuple([self._activation_seal.open(context, tensor) for tensor in tensors])

    def _expected(self, message: Step | StepDone) -> tuple[HopTensor, ...]:
        return self._stage.hop_in if isinstance(message, Step) else self._stage.hop_back

    def to_arrays(
        self, message: Step | StepDone, received: Received, rows: int, tokens: int = 1
    ) -> list[mx.array]:
        """What was *received* in *message*, opened, as arrays."""
        return [
            from_data(DTYPES[tensor.spec.dtype], tensor.spec.shape(rows, tokens), data)
            for tensor, data in zip(self._expected(message), received, strict=True)
        ]

    def inlet(self, tensors: Sequence[HopTensor], rows: int, tokens: int = 1) -> Inlet:
        """An inlet for what the next message brings of *tokens* tokens of each of *rows* rows,
        which must be one tensor."""
        (tensor,) = tensors
        return self._device_io.inlet(DTYPES[tensor.spec.dtype], tensor.spec.shape(rows, tokens))

    # --------------------------------------------------------------------- out

    def start_and_send(
        self,
        step: Step,
        context: InnerContext,
        hidden: Sequence[mx.array],
        others: tuple[mx.array, ...] = (),
    ) -> PendingAnswer:
        """Launch *hidden* and *others*, and send *hidden* on once it is computed.

        Raises `ModelError` if it is too large for a frame.
        """
        size = sum([array.nbytes for array in hidden])
        if size > MAX_SEALED_BODY - STEP_ROOM:
            raise ModelError(
                f"the hidden states of this step are {size} bytes, more than a frame takes; read "
                "the prompt in smaller chunks"
            )
        outlets = tuple(map(self._device_io.outlet, hidden))
        ready = [outlet.ready for outlet in outlets]
        self._device_io.start(*ready, *others)
        shapes = [array.shape for array in hidden]
        return self.send_when_done(step, context, shapes, outlets, None, others)

    def send_when_done(
        self,
        step: Step,
        context: InnerContext,
        shapes: Sequence[tuple[int, ...]],
        outlets: Sequence[Outlet],
        inlet: Inlet | None,
        others: tuple[mx.array, ...] = (),
    ) -> PendingAnswer:
        """Send on what comes out of *outlets* of a graph that was launched before, on *inlet* if it
        was launched ahead. Each outlet begins with what is sent, which has one of *shapes*."""

        def answer(clock: Clock) -> Step | StepDone:
            check_filled(inlet)
            tensors = []
            for tensor, shape, outlet in zip(self._stage.hop_out, shapes, outlets, strict=True):
                dtype = DTYPES[tensor.spec.dtype]
                data = outlet.data()[: prod(shape) * dtype.width]
                tensors.append(self._activation_seal.seal(context, dtype, shape, data))
            return self.forward(step, clock, tuple(tensors))

        return PendingAnswer((*[outlet.ready for outlet in outlets], *others), answer)

    def forward(
        self, step: Step, clock: Clock, tensors: tuple[Tensor, ...] = ()
    ) -> Step | StepDone:
        """*step* for the next rank; on the last rank, its answer."""
        spent = (*step.spent, clock())
        if self._last:
            return StepDone(step.epoch, step.n, tensors=tensors, spent=spent)
        return attrs.evolve(step, ids=(), tensors=tensors, spent=spent)

    def forward_failure(self, message: Step | StepDone, failure: Failure) -> Step | StepDone:
        """*message* for the next rank, or its answer, with *failure* and no tensors."""
        if isinstance(message, StepDone) or self._last:
            return StepDone(message.epoch, message.n, spent=message.spent, failed=failure)
        return attrs.evolve(message, ids=(), tensors=(), failed=failure)


def check_filled(inlet: Inlet | None) -> None:
    """Raise `ModelError` if the device went on before *inlet* was filled."""
    if inlet is not None and not inlet.was_filled:
        raise ModelError("the device did not wait for the hidden states that came")
