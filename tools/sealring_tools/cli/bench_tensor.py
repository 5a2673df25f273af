"""The commands of `sealring bench` that measure tensor parallelism."""

from __future__ import annotations

from typing import Annotated, Literal

import cyclopts
from sealring.output import reporter
from sealring_tools.bench.shown import report
from sealring_trio.files.models import describe_model, find_whole_model

Count = Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=1))]
Counts = tuple[Count, ...]
AsList = Annotated[bool, cyclopts.Parameter(help="Print a JSON list.")]
Check = Annotated[bool, cyclopts.Parameter(help="Exit with 3 if a ratio is below its floor.")]
ModelSize = Annotated[
    Literal["tiny", "25m", "450m"],
    cyclopts.Parameter(help="The tiny model, or a random one with so many parameters."),
]
ModelType = Annotated[Literal["f32", "bf16"], cyclopts.Parameter(help="Its values.")]
OtherModel = Annotated[
    str | None,
    cyclopts.Parameter(help="Another model's folder or hub id, in place of a random one."),
]
Turns = Annotated[Count, cyclopts.Parameter(help="Turns that each side has.")]


def comms(
    *,
    model: str | None = None,
    bytes: Count = 8192,
    layers: Count = 32,
    check: bool = False,
    json: AsList = False,
) -> int:
    """Summing a row's hidden state over two ranks: direct, relayed, sealed.

    Tensor parallelism sums twice a layer, which is the least time that a token
    takes. Four rings of two MLX processes take turns: connected directly,
    through one plain forwarder, through two, and through two real nodes and a
    sealed link.
    On one machine they share its cores with the relays; real hosts do not.

        sealring bench comms
        sealring bench comms --model models/llama-8b

    Parameters
    ----------
    model
        A model's folder or hub id, for its hidden size and layers.
    bytes
        Bytes of a row's hidden state, in place of a model's.
    layers
        Layers, likewise.
    check
        Exit with 3 if a sealed sum takes more than 5 times a direct one.
    """
    from sealring_tools.bench.comms import Shape, measure  # noqa: PLC0415 - each its own

    shape = Shape(bytes, layers)
    if model is not None:
        info = describe_model(find_whole_model(model))
        shape = Shape(info.hidden * info.dtype.width, len(info.layers))
    results = measure(shape)
    return report(results, json=json, check=check)


def tp(
    *,
    size: Literal["25m", "450m"] = "25m",
    dtype: ModelType = "f32",
    model: OtherModel = None,
    rows: Counts = (1, 4, 8),
    ranks: Count = 2,
    tokens: Count = 64,
    prompt: Count = 32,
    turns: Turns = 3,
    check: Check = False,
    json: AsList = False,
) -> int:
    """Tensor parallelism, beside mlx-lm's own with the same model and ranks.

    Ours on real node processes, once with its sums beside the sealed links
    (trusted-link) and once through them. Tokens a second over all rows. All
    ranks compute at once: leave the machine alone meanwhile.

        sealring bench tp
        sealring bench tp --size 450m --dtype bf16

    Parameters
    ----------
    size
        Parameters of the random model.
    rows
        Rows at once; repeat the option for several numbers.
    ranks
        Ranks of either side.
    tokens
        Tokens of each row.
    prompt
        Tokens of each prompt, about.
    """
    from sealring_tools.bench.random_model import model_or_random  # noqa: PLC0415
    from sealring_tools.bench.tensor import Setup, measure  # noqa: PLC0415

    setup = Setup(rows, ranks, turns, tokens, prompt)
    with model_or_random(model, size, dtype) as (folder, name):
        results = measure(setup, folder, name, reporter())
    return report(results, json=json, check=check)


def gpus(
    *,
    size: Literal["25m", "450m", "8b", "32b"] = "8b",
    split: Literal["tensor", "pipeline", "both"] = "both",
    rows: Count = 32,
    turns: Count = 2,
    tokens: Count = 256,
    check: Check = False,
    json: AsList = False,
) -> int:
    """Two GPUs of one host: tensor parallelism, a pipeline, and one GPU alone.

    For a Linux machine with two CUDA devices; set up with the group cuda12 or
    cuda13. Writes a random model of the given size (16 GB for 8b) to a
    temporary folder.

        sealring bench gpus
        sealring bench gpus --size 450m --json
        sealring bench gpus --split pipeline

    `bench speculate --gpus` and `bench prefill --gpus` measure one row with
    guesses, and long prompts, on such a machine.

    Parameters
    ----------
    size
        Parameters of the model.
    split
        How the model is split over two GPUs.
    rows
        Rows of a group; the pipeline has two such groups in flight.
    turns
        Turns; in each one, everybody is brought up again, and measured three
        times.
    tokens
        Tokens of each row.
    """
    from sealring_tools.bench.gpus import Setup, measure  # noqa: PLC0415

    results = measure(Setup(rows=rows, turns=turns, tokens=tokens), size, reporter(), split)
    return report(results, json=json, check=check)


def auto(
    *,
    size: ModelSize = "25m",
    dtype: ModelType = "f32",
    ranks: Count = 2,
    tokens: Count = 48,
    turns: Turns = 1,
    check: bool = False,
    json: AsList = False,
) -> int:
    """Seconds to a first answer with strategy auto, beside strategy pp.

    Each ring is started and asked at once. The one with auto is then left idle
    until it has tried tensor parallelism or said why not, which is told.

        sealring bench auto
        sealring bench auto --size 450m --dtype bf16 --tokens 20

    Parameters
    ----------
    ranks
        Ranks of each ring.
    tokens
        Tokens of the answer.
    check
        Exit with 3 if auto takes more than a quarter longer.
    """
    from sealring_tools.bench.auto import AutoSetup, measure  # noqa: PLC0415
    from sealring_tools.bench.random_model import model_or_random  # noqa: PLC0415

    with model_or_random(None, size, dtype, steady=True) as (folder, name):
        results = measure(AutoSetup(ranks, turns, tokens), folder, name, reporter())
    return report(results, json=json, check=check)
