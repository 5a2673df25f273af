"""How the vectors of section 11.4 are run: a row's key, and the token that it is given."""

from __future__ import annotations

from typing import Any, Final

from sealring_protocol.codec.messages import NO_LOGPROBS
from sealring_protocol.conformance.files import Json
from sealring_protocol.conformance.local_fields import read_row
from sealring_protocol.conformance.result import Kinds, Result


def _sampling_key(given: Json, result: Result) -> None:
    from sealring_model.sampling.sampler import row_key  # noqa: PLC0415 - MLX, which nothing else needs

    fields = {"uid": "1", "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    row = read_row({**fields, "seed": given["seed"], "choice": given["choice"]})
    result.output = {"key": list(row_key(row, int(given["position"])))}


def _draw(given: Json, result: Result) -> None:
    import mlx.core as mx  # noqa: PLC0415 - as above

    from sealring_model.sampling.logit_processors import LogitProcessors  # noqa: PLC0415
    from sealring_model.sampling.sampler import sample  # noqa: PLC0415

    row = read_row({"uid": "1", "logprobs": NO_LOGPROBS, **given["row"]})
    logits = mx.array([given["logits"]], mx.float32)
    processor = LogitProcessors(logits.shape[1]).take(0, (row,))
    adjusted = logits if processor is None else processor.apply(logits)
    token: Any = sample(adjusted, [row], [int(given["position"])]).item()
    result.output = {"token": token}


KINDS: Final[Kinds] = {"sampling-key": _sampling_key, "draw": _draw}
