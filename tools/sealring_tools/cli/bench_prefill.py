"""The command of `sealring bench` that measures how long prompts are read."""

from __future__ import annotations

from typing import Annotated, Literal

import cyclopts
from sealring.output import reporter
from sealring_tools.bench.shown import report
from sealring_tools.cli.bench_tensor import AsList, Counts, ModelType, OtherModel, Turns

Rows = Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=0))]


def prefill(
    *,
    size: Literal["25m-even", "25m", "450m", "8b", "32b"] = "25m-even",
    dtype: ModelType = "f32",
    model: OtherModel = None,
    tokens: Counts = (512, 2048, 8192),
    ranks: Counts = (1, 2, 4),
    beside: Rows = 0,
    turns: Turns = 3,
    gpus: bool = False,
    new_lengths: bool = False,
    check: bool = False,
    json: AsList = False,
) -> int:
    """The time to read a long prompt, beside one process of mlx-lm.

    Rings of each number of ranks and one process take turns at the same
    prompts. A ring reads one chunk of a prompt on each stage at once. Each
    rank computes on one processor: leave the machine alone meanwhile.

        sealring bench prefill --ranks 2 --tokens 4096 --check
        sealring bench prefill --ranks 2 --tokens 4096 --beside 8 --check
        sealring bench prefill --gpus --size 8b --dtype bf16 --ranks 2

    Parameters
    ----------
    size
        Parameters of the random model; 25m-even has 8 layers, 25m has 7.
    tokens
        Tokens of each prompt, about; repeat the option for several numbers.
    ranks
        Ranks of the rings, likewise.
    beside
        Other rows that decode on the ring meanwhile. One process reads alone
        in any case.
    gpus
        Each rank has a CUDA device of its own; set up with the group cuda12 or
        cuda13. One process of mlx-lm has the first one.
    new_lengths
        Each turn's prompts are a few tokens longer: a device may plan anew for
        every length.
    check
        Exit with 3 if two ranks are below their floor from 4,000 tokens on,
        or a row beside waited longer than it may.
    """
    from sealring_tools.bench.gpus import gpu_places  # noqa: PLC0415
    from sealring_tools.bench.prefill import Setup, measure  # noqa: PLC0415
    from sealring_tools.bench.random_model import model_or_random  # noqa: PLC0415

    places = gpu_places(max(ranks)) if gpus else ()
    setup = Setup(tokens, ranks, beside, turns, new_lengths, places)
    with model_or_random(model, size, dtype) as (folder, name):
        results = measure(setup, folder, name, reporter())
    return report(results, json=json, check=check)
