"""Log probabilities of sampled tokens, for the rows that ask for them.

They are computed in f32 from the logits as the model gave them, before bias, penalties, temperature
and cuts. A row that wants alternatives gets the likeliest tokens, in falling order. The device
computes all of them together with the token. It computes equally many for each row, so that a row's
figures do not depend on the rows beside it. A decode whose rows want none computes nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import mlx.core as mx
from sealring_protocol.codec.local_messages import Logprobs
from sealring_protocol.codec.messages import NO_LOGPROBS, Row
from sealring_protocol.limits import MAX_LOGPROBS


@attrs.frozen(eq=False)
class LogprobArrays:
    """Log probabilities of one sampling of *rows*, on the device: of the *chosen* tokens,
    ``(rows,)``, and the likeliest *ids* with their *values*, ``(rows, alternatives)``."""

    rows: tuple[Row, ...]
    chosen: mx.array
    ids: mx.array
    values: mx.array

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """All arrays, to be evaluated."""
        return (self.chosen, self.ids, self.values)

    def messages(self, n: int) -> tuple[Logprobs, ...]:
        """The LOGPROBS messages of step *n*. Waits for the device."""
        chosen: Any = self.chosen.tolist()
        ids: Any = self.ids.tolist()
        values: Any = self.values.tolist()
        return tuple(
            Logprobs(n, row.uid, chosen[i], *(tuple(a[i][: row.logprobs]) for a in (ids, values)))
            for i, row in enumerate(self.rows)
        )


def logprobs_of(logits: mx.array, rows: Sequence[Row], tokens: mx.array) -> LogprobArrays | None:
    """Log probabilities of *tokens*, sampled from *logits* ``(rows, vocabulary)``; None if none of
    *rows* asks for them."""
    places = [at for at, row in enumerate(rows) if row.logprobs != NO_LOGPROBS]
    if not places:
        return None
    chosen = tuple(rows[at] for at in places)
    where = mx.array(places)
    exact = logits[where].astype(mx.float32)
    exact = exact - mx.logsumexp(exact, axis=-1, keepdims=True)
    own = mx.take_along_axis(exact, tokens[where][:, None], axis=-1)[:, 0]
    return LogprobArrays(chosen, own, *likeliest(exact, any(row.logprobs for row in chosen)))


def likeliest(exact: mx.array, wanted: bool) -> tuple[mx.array, mx.array]:
    """The likeliest tokens by *exact* ``(rows, vocabulary)``, in falling order, with their values:
    `MAX_LOGPROBS` of each row if they are *wanted*, else none."""
    count = min(MAX_LOGPROBS, exact.shape[-1]) if wanted else 0
    if not count:
        return mx.zeros((len(exact), 0), mx.uint32), exact[:, :0]
    ids = mx.argpartition(-exact, count - 1, axis=-1)[:, :count]
    values = mx.take_along_axis(exact, ids, axis=-1)
    falling = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(ids, falling, axis=-1), mx.take_along_axis(values, falling, axis=-1)
