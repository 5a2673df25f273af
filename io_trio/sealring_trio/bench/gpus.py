"""Two GPUs of one host: tensor parallelism beside mlx-lm's own, a pipeline beside one GPU alone.

For a machine with two CUDA devices. The model is random, in bf16 and of the shapes of an 8B Llama.
Every rank is a node of its own with a device of its own; collectives go over NCCL, beside the
sealed links. All take turns in one run, and leave their devices idle between.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import attrs
from sealring_model.tokens import Tokenizer

from sealring_trio.bench.batch import Case, Side, make_prompts, ring_pace, take_turns
from sealring_trio.bench.measure import Result
from sealring_trio.bench.random_model import SizeName, write_random_model
from sealring_trio.bench.yardstick import own_split
from sealring_trio.local_ring import local_ring

_GPUS: Final = [{"CUDA_VISIBLE_DEVICES": str(device)} for device in range(2)]
_TENSOR: Final = {"strategy": "tp", "collectives": "trusted-link", "backend": "nccl"}

THEIRS: Final = "mlx-lm tensor parallel"
TP: Final = "tensor parallel"
PP: Final = "pipeline"
ONE: Final = "one GPU"


@attrs.frozen
class Plan:
    """*rows* share a group; each gives *tokens* after about *prompt*, in so many *turns*."""

    rows: int = 32
    turns: int = 3
    tokens: int = 128
    prompt: int = 32


def measure(plan: Plan, size: SizeName = "8b") -> list[Result]:
    """Tokens a second over all rows, medians. Raises `OperationError`."""
    one, many = Case(1, 1, 1), Case(1, 1, plan.rows)
    alone, few, both = Case(2, 1, 1), Case(2, 1, plan.rows), Case(2, 2, 2 * plan.rows)
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder, contextlib.ExitStack() as stack:
        model = write_random_model(Path(folder), size, "bf16")
        found = take_turns(_sides(plan, model, stack), plan.turns)
    told = [
        ((TP, alone), (THEIRS, alone), 1.1),
        ((TP, few), (THEIRS, few), None),
        ((PP, alone), (ONE, one), 0.8),
        ((PP, both), (ONE, many), 1.5),
        ((TP, alone), (ONE, one), None),
    ]
    return [
        Result(
            f"{size} bf16, {ours[0]}, {ours[1]}", "tokens/s", found[ours], found[its], its[0], to
        )
        for ours, its, to in told
    ]


def _sides(plan: Plan, model: Path, stack: contextlib.ExitStack) -> dict[Side, Callable[[], float]]:
    texts = make_prompts(2 * plan.rows, plan.prompt)
    ids = list(map(Tokenizer(model).encode, texts))
    theirs = stack.enter_context(own_split(model, 2, "tensor", gpus=True))
    rings: dict[str, tuple[int, dict[str, str | float]]] = {
        ONE: (1, {"groups": 1}),
        PP: (2, {"groups": 2}),
        TP: (2, {"groups": 1, **_TENSOR}),
    }
    sides: dict[Side, Callable[[], float]] = {}
    for rows in (1, plan.rows):
        case = Case(2, 1, rows)
        sides[THEIRS, case] = partial(theirs.pace, ids[:rows], plan.tokens, stream=rows == 1)
    for name, (ranks, options) in rings.items():
        nodes = local_ring(ranks, model, options={"rows": plan.rows, **options}, places=_GPUS)
        head = stack.enter_context(nodes)[0]
        for rows in (1, 2 * plan.rows if name == PP else plan.rows):
            case = Case(ranks, 2 if rows > plan.rows else 1, rows)
            sides[name, case] = partial(ring_pace, head, texts[:rows], plan.tokens)
    return sides
