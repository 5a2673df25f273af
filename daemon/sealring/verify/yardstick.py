"""The rows of a ring, computed again on this machine by a child process without a ring.

See `sealring_model.verify.child`. Teacher-forced: it reads the tokens that the ring drew, so that
one wrong token does not make all after it differ.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from sealring_trio.errors import OperationError
from sealring_trio.processes.interpreter import child_environment, run_module

from sealring.verify.answers import Fingerprint, RingRow, unpacked

_MODULE: Final = "sealring_model.verify.child"


@attrs.frozen
class Score:
    """Log probabilities here: of the ring's token (*chosen*), of the *best* token (*best_value*),
    and of the ring's alternatives (*values*). *unit* is the unit in their last place, in the
    logits' dtype."""

    best: int
    best_value: float
    chosen: float
    values: tuple[float, ...]
    unit: float


@attrs.frozen
class Expected:
    """What one row gives: at each cut (after each part of the model) by tensor and position, None
    where nothing can be told; the logits of each token drawn; and its scores.

    The *noise* of each is how far it is from itself if the row is read in other pieces: relative
    deviations, and nats of scores.
    """

    cuts: tuple[tuple[tuple[Fingerprint, ...], ...] | None, ...]
    logits: tuple[Fingerprint, ...]
    scores: tuple[Score, ...]
    cuts_noise: tuple[tuple[float, ...] | None, ...]
    logits_noise: tuple[float, ...]
    scores_noise: tuple[float, ...]


def compute(
    model: Path,
    adapter: Path | None,
    bounds: Sequence[int],
    rows: Sequence[RingRow],
    *,
    by_stage: bool,
    progress: Callable[[int, int], None],
) -> tuple[list[Expected], bool]:
    """What the *rows* give in *model* with its *adapter*, cut at *bounds*; and whether it was done
    *by_stage*. Raises `OperationError`."""
    asked = [
        {
            "tokens": row.tokens,
            "prompt": len(row.prompt),
            "alternatives": [drawn.ids for drawn in row.drawn],
        }
        for row in rows
    ]
    options = ["--model", str(model), "--bounds", ",".join(map(str, bounds))]
    options += ["--by-stage"] if by_stage else []
    options += ["--adapter", str(adapter)] if adapter is not None else []
    command = run_module("sealring_trio.processes.launcher", _MODULE, *options)
    found: dict[int, Expected] = {}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment()
    ) as child:
        try:
            _write(child, asked)
            for line in child.stdout or ():
                event = json.loads(line)
                match event["event"]:
                    case "by_stage":
                        by_stage = True
                    case "progress":
                        progress(event["done"], event["of"])
                    case "row":
                        found[event["row"]] = _expected(event)
                    case "error":
                        raise OperationError(
                            f"this machine cannot compute the model itself: {event['what']}",
                            "With --by-stage it needs the memory of one rank's layers alone.",
                        )
        finally:
            child.kill()
    if len(found) != len(rows):
        raise OperationError(
            "the process that computes the model for comparison ended early",
            "Its messages are above. With --by-stage it needs less memory.",
        )
    return [found[number] for number in range(len(rows))], by_stage


def _write(child: subprocess.Popen[bytes], asked: Any) -> None:
    if child.stdin is None:
        raise ValueError("the child was started without pipes")
    try:
        child.stdin.write(json.dumps(asked).encode() + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        pass  # its answer will be missing


def _expected(event: dict[str, Any]) -> Expected:
    return Expected(
        tuple(None if cut is None else _parts(cut) for cut in event["cuts"]),
        tuple(unpacked(event["logits"]["data"])),
        tuple(
            Score(
                score["best"],
                score["best_value"],
                score["chosen"],
                tuple(score["values"]),
                score["unit"],
            )
            for score in event["scores"]
        ),
        tuple(None if cut is None else tuple(cut) for cut in event["cuts_noise"]),
        tuple(event["logits_noise"]),
        tuple(event["scores_noise"]),
    )


def _parts(cut: dict[str, Any]) -> tuple[tuple[Fingerprint, ...], ...]:
    numbers = list(unpacked(cut["data"]))
    tokens = cut["shape"][1]
    return tuple(tuple(numbers[at : at + tokens]) for at in range(0, len(numbers), tokens))
