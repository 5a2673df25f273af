"""Two GPUs of one host: tensor parallelism beside mlx-lm's own, a pipeline beside one GPU alone.

For a machine with two CUDA devices. The model is random, in bf16 and of the shapes of an 8B Llama.
Every rank is a node of its own with a device of its own; collectives go over NCCL, beside the
sealed links. All sides take turns in one run, and each has the devices alone in its turn.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

import attrs
from sealring.local.ring import local_ring
from sealring_model.text.tokens import Tokenizer
from sealring_tools.bench.batch import Case, Side, checked, make_prompts, ring_pace
from sealring_tools.bench.measure import Result
from sealring_tools.bench.random_model import SizeName, write_random_model
from sealring_tools.bench.yardstick import one_process, own_split

NCCL: Final[dict[str, str | float]] = {
    "strategy": "tp",
    "collectives": "trusted-link",
    "backend": "nccl",
}
"""Keys of the configs of ranks that share every layer over NCCL."""

THEIRS: Final = "mlx-lm tensor parallel"
THEIR_ONE: Final = "mlx-lm on one GPU"
TP: Final = "tensor parallel"
PP: Final = "pipeline"
ONE: Final = "one GPU"


@attrs.frozen
class Setup:
    """*rows* share a group; each gives *tokens* after about *prompt*. Every side is started anew in
    each of *turns*, and then measured *times* times. A measurement counts only while all rows
    decode, and the first of 64 rows has a hundred tokens before the last one begins."""

    rows: int = 32
    turns: int = 2
    times: int = 3
    tokens: int = 256
    prompt: int = 32


def gpu_places(ranks: int) -> list[dict[str, str]]:
    """What each of *ranks* finds in its environment, so that it has a CUDA device of its own."""
    return [{"CUDA_VISIBLE_DEVICES": str(device)} for device in range(ranks)]


Runs: TypeAlias = Mapping[Case, Callable[[], float]]
"""The cases of one side that is up, and how each is run; a run returns tokens a second."""


Split: TypeAlias = Literal["tensor", "pipeline", "both"]
"""Which of our ways to split the model are measured."""


def measure(
    setup: Setup, size: SizeName, tell: Callable[[str], None], split: Split = "both"
) -> list[Result]:
    """Tokens a second over all rows, medians. Raises `OperationError`."""
    one, many = Case(1, 1, 1), Case(1, 1, setup.rows)
    alone, few, both = Case(2, 1, 1), Case(2, 1, setup.rows), Case(2, 2, 2 * setup.rows)
    told = [
        ((TP, alone), (THEIRS, alone), 1.1),
        ((TP, few), (THEIRS, few), None),
        ((PP, alone), (ONE, one), 0.8),
        ((PP, both), (ONE, many), 1.5),
        ((TP, alone), (ONE, one), None),
        ((ONE, one), (THEIR_ONE, one), None),
        ((ONE, many), (THEIR_ONE, many), None),
    ]
    left_out = {"tensor": PP, "pipeline": TP, "both": None}[split]
    told = [line for line in told if line[0][0] != left_out]
    wanted = {side for ours, its, _ in told for side, _ in (ours, its)}
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        tell("writing the model")
        model = write_random_model(Path(folder), size, "bf16")
        sides = {name: up for name, up in _sides(setup, model).items() if name in wanted}
        found = _take_turns(setup, sides, tell)
    return [
        Result(
            f"{size} bf16, {ours[0]}, {ours[1]}", "tokens/s", found[ours], found[its], its[0], to
        )
        for ours, its, to in told
    ]


def _take_turns(
    setup: Setup,
    sides: Mapping[str, Callable[[], AbstractContextManager[Runs]]],
    tell: Callable[[str], None],
) -> dict[Side, float]:
    paces: dict[Side, list[float]] = {}
    for turn in range(1, setup.turns + 1):
        for name, up in sides.items():
            tell(f"turn {turn} of {setup.turns}: bringing up {name}")
            with up() as runs:
                for case, run in runs.items():
                    checked(name, run())  # warms up
                    found = [checked(name, run()) for _ in range(setup.times)]
                    paces.setdefault((name, case), []).extend(found)
                    shown = ", ".join(f"{pace:.1f}" for pace in found)
                    tell(f"turn {turn} of {setup.turns}: {name}, {case}: {shown} tokens/s")
    return {side: statistics.median(each) for side, each in paces.items()}


def _sides(setup: Setup, model: Path) -> dict[str, Callable[[], AbstractContextManager[Runs]]]:
    texts = make_prompts(2 * setup.rows, setup.prompt)
    ids = list(map(Tokenizer(model).encode, texts))

    @contextlib.contextmanager
    def theirs(ranks: int) -> Iterator[Runs]:
        split = own_split(model, ranks, "tensor", gpus=True) if ranks > 1 else one_process(model)
        with split as children:
            yield {
                Case(ranks, 1, rows): partial(
                    children.pace, ids[:rows], setup.tokens, stream=rows == 1
                )
                for rows in (1, setup.rows)
            }

    @contextlib.contextmanager
    def ours(ranks: int, groups: int, **options: str | float) -> Iterator[Runs]:
        options |= {"rows": setup.rows, "groups": groups}
        with local_ring(ranks, model, options=options, places=gpu_places(2)) as nodes:
            yield {
                Case(ranks, of, rows): partial(ring_pace, nodes[0], texts[:rows], setup.tokens)
                for of, rows in ((1, 1), (groups, groups * setup.rows))
            }

    return {
        THEIR_ONE: partial(theirs, 1),
        ONE: partial(ours, 1, 1),
        THEIRS: partial(theirs, 2),
        TP: partial(ours, 2, 1, **NCCL),
        PP: partial(ours, 2, 2),
    }
