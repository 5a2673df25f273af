"""CHECKED: what a rank's engine made of a step, in three numbers a row and position.

They are there for whoever verifies a ring: he computes the same numbers from the weights, and finds
the first rank whose numbers are others. They say too little to rebuild a hidden state from them.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from sealring_protocol.codec.codes import MessageCode, rule
from sealring_protocol.codec.messages.epochs import Epoch
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.limits import MAX_TENSORS

FINGERPRINT: Final = 3
"""Numbers of a fingerprint: two projections, and the root mean square."""


@attrs.frozen
class Checked:
    """The fingerprints of step *n*: of what the sender's layers *received*, and of what they have
    *given*. Each is f32 ``(tensors, rows, tokens, 3)``.

    With *closing* it is of the head's second pass: it received what came back, and gave logits.
    """

    CODE: ClassVar = MessageCode.CHECKED
    epoch: Epoch
    n: int
    closing: bool
    received: Tensor
    given: Tensor

    def __attrs_post_init__(self) -> None:
        for tensor in (self.received, self.given):
            rule(tensor.dtype is DType.F32 and not tensor.sealed, "fingerprints are plain f32")
            rule(len(tensor.shape) == 4, "fingerprints have four dimensions")
            rule(tensor.shape[0] <= MAX_TENSORS, f"fingerprints of at most {MAX_TENSORS} tensors")
            rule(tensor.shape[3] == FINGERPRINT, f"a fingerprint has {FINGERPRINT} numbers")
        rule(self.received.shape[1:] == self.given.shape[1:], "fingerprints of other rows")

    @property
    def rows(self) -> int:
        """The rows of the step."""
        return self.given.shape[1]

    @property
    def tokens(self) -> int:
        """The positions of each row."""
        return self.given.shape[2]
