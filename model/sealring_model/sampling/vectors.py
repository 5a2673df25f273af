"""How the vectors of section 11.4 are run: a row's key, and the token that it is given."""

from __future__ import annotations

from typing import Any, Final

from sealring_protocol.codec.encoding import from_fields, to_fields
from sealring_protocol.codec.messages import Row
from sealring_protocol.conformance.files import Json
from sealring_protocol.conformance.result import Kinds, Result


def _row(fields: Json) -> Any:
    """A ROW with these fields, and the defaults of all others."""
    return from_fields({**to_fields(Row(1)), **fields})


def _sampling_key(given: Json, result: Result) -> None:
    from sealring_model.sampling.sampler import row_key  # noqa: PLC0415 - MLX, which nothing else needs

    row = _row({"temperature": 1.0, "seed": given["seed"], "choice": given["choice"]})
    result.output = {"key": list(row_key(row, int(given["position"])))}


def _draw(given: Json, result: Result) -> None:
    import mlx.core as mx  # noqa: PLC0415 - as above

    from sealring_model.sampling.logit_processors import LogitProcessors  # noqa: PLC0415
    from sealring_model.sampling.sampler import sample  # noqa: PLC0415

    row = _row(given["row"])
    logits = mx.array([given["logits"]], mx.float32)
    processor = LogitProcessors(logits.shape[1]).take(0, (row,))
    adjusted = logits if processor is None else processor.apply(logits)
    token: Any = sample(adjusted, [row], [int(given["position"])]).item()
    result.output = {"token": token}


KINDS: Final[Kinds] = {"sampling-key": _sampling_key, "draw": _draw}
