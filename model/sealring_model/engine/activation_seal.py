"""The inner seal as an engine applies it: hidden states are opened as they come in and sealed as
they go out.

With the policy on, hidden states leave sealed under the key of the outgoing hop, and are opened
under the key of the incoming hop. The node between hands the keys down and sees ciphertext. A new
key for a hop replaces the old one with its counters. With the policy off tensors are plain. A
sealed tensor with the policy off is refused, and so is a plain one with it on.
"""

from __future__ import annotations

import time
from typing import Protocol

from sealring_protocol.codec.local_messages import HopKey
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.seal import InnerContext, InnerOpener, InnerSealer

from sealring_model.errors import IntegrityError


class ActivationSeal(Protocol):
    """Seals tensors for the next rank, and opens those from the rank before.

    One thread may seal while another opens. *sealing_ns* and *opening_ns* are the nanoseconds spent
    so far.
    """

    sealing_ns: int
    opening_ns: int

    def seal(
        self, context: InnerContext, dtype: DType, shape: tuple[int, ...], data: Buffer
    ) -> Tensor:
        """The tensor to send."""

    def open(self, context: InnerContext, tensor: Tensor) -> Buffer:
        """The elements of *tensor*. Raises `IntegrityError` if it is not what was sent here."""


class PlainActivations:
    """Tensors are not sealed."""

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


class SealedActivations:
    """Tensors are sealed under the keys of the two hops."""

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
