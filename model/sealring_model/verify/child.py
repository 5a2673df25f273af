"""The yardstick's process: computes rows of a ring again, and tells numbers of every position.

    python -m sealring_model.verify.child --model FOLDER --bounds 0,4,8 [--by-stage]

It reads one JSON value, the rows, from standard input, and answers with lines: ``progress``, and
for each row ``row`` with the fingerprints at each cut, of the logits of each token drawn, and the
scores of the tokens. Each row is read twice, the second time in other pieces: how far that differs
is what rounding alone does (*noise*). By default mlx-lm runs the whole model (`watched`). With
``--by-stage``, or if memory does not hold it, only the layers between two bounds are in memory at a
time (`stages`).
"""

from __future__ import annotations

import argparse
import base64
import json
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from sealring_model.errors import FORWARD_ERRORS, error_text
from sealring_model.loading.kernel_cache import keep_kernels_private
from sealring_model.loading.model_folder import ModelInfo, describe, memory_budget
from sealring_model.verify.numbers import CheckedRow, RowNumbers, differences
from sealring_model.verify.stages import by_stage
from sealring_model.verify.watched import WatchedModel


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _say_progress(done: int, of: int) -> None:
    _say({"event": "progress", "done": done, "of": of})


def _packed(array: mx.array) -> dict[str, Any]:
    numbers: Any = array.reshape(-1).tolist()
    data = struct.pack(f"<{len(numbers)}f", *numbers)
    return {"shape": array.shape, "data": base64.b64encode(data).decode()}


def _whole(
    folder: Path, adapter: Path | None, bounds: Sequence[int], rows: Sequence[CheckedRow]
) -> None:
    model = WatchedModel(folder, adapter, bounds)
    for number, row in enumerate(rows):
        _tell_row(number, model.numbers(row), model.numbers(row, otherwise=True))
        _say_progress(number + 1, len(rows))


def _is_too_large(info: ModelInfo) -> bool:
    """Whether this machine's memory cannot hold the whole model now."""
    return info.size > memory_budget(0)


def _tell_row(number: int, found: RowNumbers, otherwise: RowNumbers) -> None:
    """Tell what row *number* gave, and how far that is from what it gives if read *otherwise*."""
    pairs = zip(found.cuts, otherwise.cuts, strict=True)
    noise = [None if a is None or b is None else differences(a, b) for a, b in pairs]
    logits = mx.stack(found.logits)
    scores = zip(found.scores, otherwise.scores, strict=True)
    _say(
        {
            "event": "row",
            "row": number,
            "cuts": [None if cut is None else _packed(cut) for cut in found.cuts],
            "cuts_noise": [None if cut is None else cut.tolist() for cut in noise],
            "logits": _packed(logits),
            "logits_noise": differences(logits, mx.stack(otherwise.logits)).tolist(),
            "scores": found.scores,
            "scores_noise": [_farthest(*pair) for pair in scores],
        }
    )


def _farthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    """By how many nats the log probabilities of two scores of a token differ."""
    values = zip((one["chosen"], *one["values"]), (other["chosen"], *other["values"]), strict=True)
    return max(abs(a - b) for a, b in values)


def main() -> int:
    """The command of the process."""
    parser = argparse.ArgumentParser(prog="sealring_model.verify.child")
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--bounds", required=True)
    parser.add_argument("--by-stage", action="store_true")
    options = parser.parse_args()
    keep_kernels_private()
    bounds = [int(bound) for bound in options.bounds.split(",")]
    rows = [
        CheckedRow(tuple(row["tokens"]), row["prompt"], tuple(map(tuple, row["alternatives"])))
        for row in json.loads(sys.stdin.readline())
    ]
    try:
        info = describe(options.model, options.adapter)
        if options.by_stage or _is_too_large(info):
            _say({"event": "by_stage"})
            told = by_stage(info, bounds, rows, _say_progress)
            for number, (found, otherwise) in enumerate(told):
                _tell_row(number, found, otherwise)
        else:
            _whole(options.model, options.adapter, bounds, rows)
    except (OSError, *FORWARD_ERRORS) as error:
        _say({"event": "error", "what": error_text(error)})
        return 1
    _say({"event": "done"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
