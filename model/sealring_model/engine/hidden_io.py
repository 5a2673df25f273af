"""The hidden states of one rank: checked and opened as they come in, sealed as they go out."""

from __future__ import annotations

from typing import Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.messages import Bootstrap, Failure, Step, StepDone
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.limits import MAX_SEALED_BODY
from sealring_protocol.security.seal import InnerContext

from sealring_model.engine.activation_seal import ActivationSeal
from sealring_model.engine.inflight import Clock, PendingAnswer
from sealring_model.errors import IntegrityError, ModelError
from sealring_model.lookahead.device_io import DeviceIO, Inlet, Outlet
from sealring_model.stage.tensors import from_data

_FRAME_SLACK: Final = 256 * 1024
"""Bytes of a frame kept for everything but the hidden states."""


class HiddenIO:
    """Hidden states of *dtype*, *hidden* elements wide, in and out of the rank that has *place*."""

    def __init__(
        self,
        place: Bootstrap,
        dtype: DType,
        hidden: int,
        activation_seal: ActivationSeal,
        device_io: DeviceIO,
    ) -> None:
        self._place: Final = place
        self._dtype: Final = dtype
        self._hidden: Final = hidden
        self._activation_seal: Final = activation_seal
        self._device_io: Final = device_io
        self._last: Final = place.rank == place.world - 1

    def shape(self, rows: int, tokens: int = 1) -> tuple[int, ...]:
        """The shape of the hidden states of *tokens* tokens of each of *rows* rows."""
        return rows, tokens, self._hidden

    def outgoing_context(self, n: int, batch: int, uids: tuple[int, ...]) -> InnerContext:
        """What the seal binds the hidden states of step *n* to that leave this rank."""
        return self._context(n, batch, self._place.rank + 1, uids)

    def _context(self, n: int, batch: int, hop: int, uids: tuple[int, ...]) -> InnerContext:
        return InnerContext(self._place.epoch, n, batch, self._place.bounds[hop], uids)

    # ---------------------------------------------------------------------- in

    def open(
        self, message: Step | StepDone, batch: int, uids: tuple[int, ...], tokens: int = 1
    ) -> Buffer:
        """The hidden states in *message*, of *tokens* tokens of each of rows *uids* of *batch*.

        A STEP has them from the rank before, a STEP_DONE from the last rank. Opens each message
        once. Raises `IntegrityError` for other hidden states than these.
        """
        if len(message.tensors) != 1:
            raise IntegrityError(f"{len(message.tensors)} tensors came where one belongs")
        tensor = message.tensors[0]
        shape = self.shape(len(uids), tokens)
        if tensor.dtype != self._dtype or tensor.shape != shape:
            raise IntegrityError(
                f"hidden states came as {tensor.dtype.name} {tensor.shape}, "
                f"not {self._dtype.name} {shape}"
            )
        hop = self._place.rank if isinstance(message, Step) else self._place.world
        return self._activation_seal.open(self._context(message.n, batch, hop, uids), tensor)

    def to_array(self, shape: tuple[int, ...], data: Buffer) -> mx.array:
        """Opened hidden states as an array."""
        return from_data(self._dtype, shape, data)

    def inlet(self, rows: int) -> Inlet:
        """An inlet for the hidden states of the next decode, of *rows* rows."""
        return self._device_io.inlet(self._dtype, self.shape(rows))

    # --------------------------------------------------------------------- out

    def start_and_send(
        self,
        step: Step,
        context: InnerContext,
        hidden: mx.array,
        others: tuple[mx.array, ...] = (),
    ) -> PendingAnswer:
        """Launch *hidden* and *others*, and send *hidden* on once it is computed.

        Raises `ModelError` if it is too large for a frame.
        """
        if hidden.nbytes > MAX_SEALED_BODY - _FRAME_SLACK:
            raise ModelError(
                f"{hidden.shape[1]} tokens make {hidden.nbytes} bytes of hidden state, more than "
                "a frame takes; read the prompt in smaller chunks"
            )
        outlet = self._device_io.outlet(hidden)
        self._device_io.start(outlet.ready, *others)
        return self.send_when_done(step, context, hidden.shape, outlet, None, others)

    def send_when_done(
        self,
        step: Step,
        context: InnerContext,
        shape: tuple[int, ...],
        outlet: Outlet,
        inlet: Inlet | None,
        others: tuple[mx.array, ...] = (),
    ) -> PendingAnswer:
        """Send on what comes out of *outlet*, of a graph that was launched before, on *inlet* if it
        was launched ahead."""

        def answer(clock: Clock) -> Step | StepDone:
            check_filled(inlet)
            tensor = self._activation_seal.seal(context, self._dtype, shape, outlet.data())
            return self.forward(step, clock, (tensor,))

        return PendingAnswer((outlet.ready, *others), answer)

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
