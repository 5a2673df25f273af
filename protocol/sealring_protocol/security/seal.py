"""The sealed channels, which turn plaintext into frames and frames into plaintext, in order.

Each direction of a link has its own traffic secret. A frame is its eight header bytes, which are
the associated data, and then ciphertext and tag. The sequence number is not sent: the stream is
ordered, so both ends count. The nonce is ``iv xor seq``, 12 bytes, with seq from 0 under each key.

**Key update** depends on the count alone. The first key seals 64 frames (seq 0 to 63), every later
one 65,536. Right after the last frame under a key, both ends take key, iv and next secret from the
``next`` secret, forget the old ones, and restart seq at 0.

**The inner seal** protects tensors between the engine processes. It has its own secrets. Since
steps may be abandoned, each tensor carries its counter, which strictly rises and never restarts
while the link lives; the whole nonce is ``iv xor counter``. The counter also selects the key, by
the same counts. The associated data say what the tensor is, and which step of which epoch it
belongs to, so a tensor opens only in its own place.

Nothing is returned, or written to shared memory, before a tag has verified. A channel that failed
is dead and raises the same error on every call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import attrs
from cryptography.exceptions import InvalidTag

from sealring_protocol.codec.frame import HEADER, VERSION, Frame, FrameKind
from sealring_protocol.codec.messages import Epoch
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.codec.wire import Buffer, layout, pack
from sealring_protocol.errors import (
    AuthenticationFailed,
    LimitExceeded,
    LocalProtocolError,
    PolicyMismatch,
    RemoteProtocolError,
)
from sealring_protocol.limits import (
    AEAD_TAG,
    FIRST_KEY_UPDATE,
    FRAME_HEADER,
    KEY_UPDATE_INTERVAL,
    MAX_INNER_SKIP,
    MAX_SEALED_BODY,
    NO_GROUP,
)
from sealring_protocol.security.keys import NONCE, Suite, traffic_keys

# The C library may return a freed block to the system. The next frame of that size then takes a
# page fault for each 4 KiB, which costs eight times its encryption. The usual allocator stops
# doing so for blocks no larger than one that it has seen freed. So free one here, of the largest
# size that it considers. No page of it is touched.
bytes(2 * MAX_SEALED_BODY - (1 << 16))


_SEALED: Final = int(FrameKind.SEALED)


class _Keys:
    """The present key, and the secret of the next one."""

    __slots__ = ("_aead", "_iv", "_next", "_suite", "updates")

    def __init__(self, suite: Suite, secret: bytes) -> None:
        self._suite = suite
        self.updates = -1  # keys since the first
        self._take(secret)

    def _take(self, secret: bytes) -> None:
        self.updates += 1
        key, self._iv, self._next = traffic_keys(secret)
        self._aead = self._suite.aead(key)

    def _forget(self) -> None:
        del self._aead, self._iv, self._next


class SealingChannel(_Keys):
    """Seals one direction's frames, in order."""

    __slots__ = ("_limit", "_seq")

    def __init__(self, suite: Suite, secret: bytes) -> None:
        """Seal with *suite*, starting from the traffic *secret* (32 bytes)."""
        super().__init__(suite, secret)
        self._seq = 0
        self._limit = FIRST_KEY_UPDATE

    def seal(self, parts: Sequence[Buffer]) -> bytearray:
        """The whole frame whose plaintext is the concatenation of *parts* (of bytes).

        Raises `LocalProtocolError` if they do not fit one frame; no nonce is used then.
        """
        plaintext = parts[0] if len(parts) == 1 else b"".join(parts)
        length = len(plaintext) + AEAD_TAG
        if length > MAX_SEALED_BODY:
            raise LocalProtocolError(f"{length} bytes do not fit a body of {MAX_SEALED_BODY}")
        header = HEADER.pack(VERSION, _SEALED, 0, length)
        frame = bytearray(FRAME_HEADER + length)
        frame[:FRAME_HEADER] = header
        seq = self._seq
        self._seq = seq + 1  # first, so that no failure below can spend a nonce twice
        nonce = (self._iv ^ seq).to_bytes(NONCE, "big")
        self._aead.encrypt_into(nonce, plaintext, header, memoryview(frame)[FRAME_HEADER:])
        if seq + 1 == self._limit:
            self._take(self._next)
            self._seq = 0
            self._limit = KEY_UPDATE_INTERVAL
        return frame


class OpeningChannel(_Keys):
    """Opens one direction's frames, in order."""

    __slots__ = ("_error", "_limit", "_seq")

    def __init__(self, suite: Suite, secret: bytes) -> None:
        """Open with *suite*, starting from the traffic *secret* (32 bytes)."""
        super().__init__(suite, secret)
        self._seq = 0
        self._limit = FIRST_KEY_UPDATE
        self._error: AuthenticationFailed | None = None

    def open(self, frame: Frame) -> bytes:
        """The plaintext of the next frame.

        Raises `AuthenticationFailed` if it is not the next frame that the peer sealed, and on every
        call after that.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        seq = self._seq
        nonce = (self._iv ^ seq).to_bytes(NONCE, "big")
        try:
            plaintext = self._aead.decrypt(nonce, frame.body, frame.header)
        except InvalidTag:
            self._forget()
            self._error = AuthenticationFailed("a frame does not open")
            raise self._error from None
        self._seq = seq + 1
        if seq + 1 == self._limit:
            self._take(self._next)
            self._seq = 0
            self._limit = KEY_UPDATE_INTERVAL
        return plaintext


# ------------------------------------------------------------- the inner seal

PREFILL_GROUP: Final = NO_GROUP
"""The group in the context of a prefill, which has no group."""

_CONTEXT: Final = layout("INNER")


@attrs.frozen
class InnerContext:
    """Where a tensor belongs: step *n* of *epoch*, the *group* that decodes (or `PREFILL_GROUP`),
    the layer *boundary* that it crosses (the first layer after it), and the rows (*uids*), in
    order."""

    epoch: Epoch
    n: int
    group: int
    boundary: int
    uids: tuple[int, ...]


def _associated(
    cluster: bytes, context: InnerContext, dtype: DType, shape: tuple[int, ...]
) -> bytes:
    # The counts come first, so that no two contexts have the same bytes.
    uids = context.uids
    return pack(
        struct.Struct(f"{_CONTEXT.format}{len(shape)}I{len(uids)}Q"),
        cluster,
        context.epoch.instance,
        context.epoch.counter,
        context.n,
        context.group,
        context.boundary,
        dtype,
        len(shape),
        len(uids),
        *shape,
        *uids,
    )


class _InnerKeys(_Keys):
    """The inner seal's keys. The counter selects the key."""

    __slots__ = ("_cluster", "_end")

    def __init__(self, suite: Suite, secret: bytes, cluster: bytes) -> None:
        if len(cluster) != 32:
            raise LocalProtocolError("a cluster id has 32 bytes")
        super().__init__(suite, secret)
        self._cluster = cluster
        self._end = FIRST_KEY_UPDATE

    def _nonce(self, counter: int) -> bytes:
        while counter >= self._end:
            self._take(self._next)
            self._end += KEY_UPDATE_INTERVAL
        return (self._iv ^ counter).to_bytes(NONCE, "big")


class InnerSealer(_InnerKeys):
    """Seals the tensors of one direction of a step link, in the engine process."""

    __slots__ = ("_counter",)

    def __init__(self, suite: Suite, secret: bytes, cluster: bytes) -> None:
        """Seal with *suite* in *cluster*, starting from the activation *secret* (both 32 bytes)."""
        super().__init__(suite, secret, cluster)
        self._counter = 0

    def seal(
        self, context: InnerContext, dtype: DType, shape: tuple[int, ...], data: Buffer
    ) -> Tensor:
        """Seal *data*, row-major elements of *dtype* in *shape*, for *context* alone.

        Raises `LocalProtocolError` if a field exceeds its width; no counter is used then.
        """
        associated = _associated(self._cluster, context, dtype, shape)
        counter = self._counter
        self._counter = counter + 1
        nonce = self._nonce(counter)
        sealed = self._aead.encrypt(nonce, data, associated)
        return Tensor(dtype, shape, sealed, True, counter)


class InnerOpener(_InnerKeys):
    """Opens the tensors of one direction of a step link, in the engine process."""

    __slots__ = ("_error", "_last")

    def __init__(self, suite: Suite, secret: bytes, cluster: bytes) -> None:
        """Open with *suite* in *cluster*, starting from the activation *secret* (both 32 bytes)."""
        super().__init__(suite, secret, cluster)
        self._last = -1
        self._error: RemoteProtocolError | None = None

    def open(self, context: InnerContext, tensor: Tensor) -> bytes:
        """The elements of *tensor*, which was sealed for *context*.

        Raises `PolicyMismatch` if it is not sealed, `AuthenticationFailed` if its counter does not
        rise or its tag does not verify, and `LimitExceeded` if more than `MAX_INNER_SKIP` counters
        are missing before it. Every later call raises the same error.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            return self._open(context, tensor)
        except RemoteProtocolError as error:
            self._forget()
            self._error = error
            raise

    def _open(self, context: InnerContext, tensor: Tensor) -> bytes:
        counter = tensor.counter
        if not tensor.sealed:
            raise PolicyMismatch("a tensor came without the inner seal")
        if counter <= self._last:
            raise AuthenticationFailed("a tensor's counter does not rise")
        if counter - self._last - 1 > MAX_INNER_SKIP:
            raise LimitExceeded(f"{counter - self._last - 1} inner-seal counters are missing")
        associated = _associated(self._cluster, context, tensor.dtype, tensor.shape)
        nonce = self._nonce(counter)
        try:
            data = self._aead.decrypt(nonce, tensor.data, associated)
        except InvalidTag:
            raise AuthenticationFailed("a tensor does not open") from None
        self._last = counter
        return data
