"""The commands of `sealring bench` that measure how tokens are drawn."""

from __future__ import annotations

from typing import Annotated, Literal

import cyclopts
from sealring.output import reporter
from sealring_tools.bench.shown import report
from sealring_tools.cli.bench_tensor import (
    AsList,
    Check,
    Count,
    Counts,
    ModelSize,
    ModelType,
    OtherModel,
    Turns,
)

Share = Annotated[float, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=0, lte=1))]


def batch(
    *,
    size: Literal["25m", "450m"] = "25m",
    dtype: ModelType = "f32",
    model: str | None = None,
    rows: Counts = (1, 4, 8),
    groups: Counts = (2,),
    ranks: Counts = (2,),
    layers: Counts = (),
    tokens: Count = 48,
    prompt: Count = 8,
    turns: Turns = 3,
    check: Check = False,
    json: AsList = False,
) -> int:
    """Rows x groups x ranks, beside mlx-lm's batches and its own pipeline.

    Every combination of --rows, --groups and --ranks on a real ring of node
    processes, beside one process of mlx-lm with as many rows (and for one
    row its stream_generate too), and mlx-lm's own pipeline of as many ranks.
    Tokens a second over all rows. Several processes compute in turns: leave
    the machine alone meanwhile.

        sealring bench batch
        sealring bench batch --size 450m --dtype bf16 --rows 1 --rows 8

    Parameters
    ----------
    size
        Parameters of the random model.
    model
        Another model's folder or hub id, in place of a random one. mlx-lm's
        pipeline must know its family.
    rows
        Rows at once; repeat the option for several numbers.
    groups
        Groups that the rows are spread over, likewise.
    ranks
        Ranks of the ring, likewise.
    layers
        Layers of each rank, one option for each; by memory if left out.
    tokens
        Tokens of each row.
    prompt
        Tokens of each prompt, about.
    """
    from sealring_tools.bench.batch import Setup, measure  # noqa: PLC0415
    from sealring_tools.bench.random_model import model_or_random  # noqa: PLC0415

    setup = Setup(rows, groups, ranks, turns, tokens, prompt, layers)
    with model_or_random(model, size, dtype) as (folder, name):
        results = measure(setup, folder, name, reporter())
    return report(results, json=json, check=check)


def speculate(
    *,
    size: Literal["25m", "450m", "8b"] = "25m",
    dtype: ModelType = "f32",
    model: OtherModel = None,
    share: tuple[Share, ...] = (0.0, 0.6, 0.7, 0.8, 0.9),
    ranks: Count = 2,
    layers: Counts = (),
    tokens: Count = 128,
    turns: Turns = 5,
    ahead: Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=0))]
    | None = None,
    strategy: Literal["pp", "tp"] = "pp",
    lookup: bool = False,
    gpus: bool = False,
    check: Check = False,
    json: AsList = False,
) -> int:
    """One row with guessed tokens in flight, beside mlx-lm and the ring without.

    An oracle guesses: it knows the answer, and a given share of its guesses is
    right. With --lookup the tiny model answers, and guesses are looked up in
    the prompt and the answer so far, as a ring does that is not told
    otherwise. Leave the machine alone meanwhile.

        sealring bench speculate
        sealring bench speculate --size 450m --dtype bf16 --share 0.7
        sealring bench speculate --gpus --size 8b --dtype bf16 --share 0.7
        sealring bench speculate --lookup
        sealring bench speculate --ranks 1 --size 450m --dtype bf16

    Parameters
    ----------
    size
        Parameters of the random model.
    share
        Share of guesses that are right; repeat the option for several.
    ranks
        Ranks of the ring.
    layers
        Layers of each rank, one option for each; by memory if left out.
    tokens
        Tokens of the answer.
    ahead
        Guesses that a row reads with one step, at most; as the ring chooses if
        left out.
    strategy
        tp gives each of several ranks a share of every layer, over loopback or,
        with --gpus, NCCL.
    lookup
        The tiny model with looked-up guesses, in place of an oracle.
    gpus
        Each rank has a CUDA device of its own; set up with the group cuda12 or
        cuda13. One process of mlx-lm has the first one before the ring is up, and
        after it has ended.
    """
    from sealring_tools.bench.gpus import NCCL, gpu_places  # noqa: PLC0415
    from sealring_tools.bench.random_model import model_or_random  # noqa: PLC0415
    from sealring_tools.bench.speculate import Setup, measure, measure_lookup  # noqa: PLC0415

    options: dict[str, str | float] = {} if ahead is None else {"ahead": ahead}
    if strategy == "tp":
        options |= NCCL if gpus else {"strategy": "tp", "collectives": "shared-loopback"}
    places = gpu_places(ranks) if gpus else ()
    exact = model is None
    setup = Setup(ranks, share, tokens, turns, layers, places, options, exact)
    if lookup:
        return report(measure_lookup(setup, reporter()), json=json, check=check)
    with model_or_random(model, size, dtype, steady=True) as (folder, name):
        results = measure(setup, folder, name, reporter())
    return report(results, json=json, check=check)


def masks(
    *,
    size: ModelSize = "25m",
    ranks: Count = 1,
    tokens: Count = 128,
    turns: Turns = 5,
    check: Check = False,
    json: AsList = False,
) -> int:
    """An answer that is held to a form, beside the same ring's free answers.

    The random models are of f32. Leave the machine alone meanwhile.

        sealring bench masks
        sealring bench masks --size tiny --ranks 2

    Parameters
    ----------
    ranks
        Ranks of the ring.
    tokens
        Tokens of the answer.
    """
    from sealring_tools.bench.masks import Setup, measure  # noqa: PLC0415
    from sealring_tools.bench.random_model import model_or_random  # noqa: PLC0415

    with model_or_random(None, size, "f32") as (folder, name):
        results = measure(Setup(ranks, tokens, turns), folder, name, reporter())
    return report(results, json=json, check=check)


def plan(
    *,
    size: Literal["tiny", "25m", "450m", "8b"] = "25m",
    dtype: ModelType = "f32",
    tokens: Count = 64,
    turns: Turns = 5,
    gpus: bool = False,
    check: bool = False,
    json: AsList = False,
) -> int:
    """What `sealring plan` says of one and two ranks, beside what they give.

    A ring of one and a ring of two take turns with one stream, without
    guesses. Each head is asked what it measured meanwhile. What a plan says
    without a node is beside it, as the estimate that it is.

        sealring bench plan
        sealring bench plan --size 450m --dtype bf16 --tokens 12 --turns 4
        sealring bench plan --gpus --size 8b --dtype bf16

    Parameters
    ----------
    size
        The tiny model, or a random one with so many parameters.
    tokens
        Tokens of an answer.
    gpus
        Each rank has a CUDA device of its own; set up with the group cuda12 or
        cuda13. The ring of one shares the first one with a rank of the other.
    check
        Exit with 3 if a figure that is no estimate is off by more than a fifth.
    """
    from sealring_tools.bench.gpus import gpu_places  # noqa: PLC0415
    from sealring_tools.bench.plan import PlanSetup, measure  # noqa: PLC0415
    from sealring_tools.bench.random_model import model_or_random  # noqa: PLC0415

    setup = PlanSetup(turns, tokens, gpu_places(2) if gpus else ())
    with model_or_random(None, size, dtype, steady=True) as (folder, name):
        results = measure(setup, folder, name, reporter())
    return report(results, json=json, check=check)
