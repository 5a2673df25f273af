"""`sealring bench codec | handshake | hop | solo | length | batch | serve | soak`."""

from __future__ import annotations

from typing import Annotated, Literal

import cyclopts

from sealring_trio.bench.measure import Result
from sealring_trio.cli.output import print_json, print_table
from sealring_trio.models import find_model

Count = Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=1))]
Counts = tuple[Count, ...]

HELP = """\
Measure the protocol beside its yardsticks.

Ours and the yardstick take turns in the same run, and medians of many turns
are set beside each other, so the ratio holds on a busy machine too. Codec
and handshake use one thread for both ends.

    sealring bench codec
    sealring bench hop --json
"""

app = cyclopts.App(name="bench", help=HELP, help_format="rich")


@app.command
def codec(*, json: bool = False) -> None:
    """Messages to frames to messages, plain and sealed, beside OpenSSL.

    64-byte messages a second, and GB/s of tensor frames of 1 MiB, with the
    outer seal alone and with the inner seal too.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.codec import measure  # noqa: PLC0415 - each bench loads its own

    _print(measure(), json)


@app.command
def handshake(*, json: bool = False) -> None:
    """Full mutual handshakes a second, ML-KEM included, beside TLS 1.3.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.handshake import measure  # noqa: PLC0415

    _print(measure(), json)


@app.command
def hop(*, json: bool = False) -> None:
    """One hop of 8 KiB between two processes, beside a plain trio message.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.hop import measure  # noqa: PLC0415

    _print(measure(), json)


@app.command
def solo(*, json: bool = False) -> None:
    """A ring of one rank beside mlx-lm's own generator, 25M parameters, f32.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.solo import measure  # noqa: PLC0415

    _print(measure(), json)


@app.command
def length(*, json: bool = False) -> None:
    """Time per token late in a long answer beside early in it, 25M, f32.

    A ring of two ranks, and one process of mlx-lm in turns with it: attention
    reads a longer cache in both, and a ring adds nothing to that.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.length import measure  # noqa: PLC0415

    _print(measure(), json)


@app.command
def batch(
    *,
    size: Literal["25m", "450m"] = "25m",
    dtype: Literal["f32", "bf16"] = "f32",
    model: str | None = None,
    rows: Counts = (1, 4, 8),
    groups: Counts = (2,),
    ranks: Counts = (2,),
    layers: Counts = (),
    tokens: Count = 32,
    prompt: Count = 32,
    turns: Count = 3,
    check: bool = False,
    json: bool = False,
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
    dtype
        Its values.
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
    turns
        Turns that each side has.
    check
        Exit with 1 if a ratio is below its floor.
    json
        Print a JSON list.
    """
    from sealring_trio.bench.batch import Plan, measure, measure_random  # noqa: PLC0415

    plan = Plan(rows, groups, ranks, turns, tokens, prompt, layers)
    if model is None:
        results = measure_random(plan, size, dtype)
    else:
        folder = find_model(model)
        results = measure(plan, folder, folder.name)
    _print(results, json)
    return 1 if check and not all(result.holds for result in results) else 0


def _print(results: list[Result], json: bool) -> None:
    if json:
        print_json(
            [
                {
                    "name": result.name,
                    "unit": result.unit,
                    "ours": result.ours,
                    "yardstick": result.yardstick,
                    "yardstick_name": result.yardstick_name,
                    "ratio": result.ratio,
                    **({} if result.floor is None else {"floor": result.floor}),
                }
                for result in results
            ]
        )
        return
    floors = any(result.floor is not None for result in results)
    print_table(
        "Medians of alternating turns",
        ["what", "yardstick", "unit", "ours", "its", "ratio", *(["floor"] if floors else [])],
        [
            (
                result.name,
                result.yardstick_name,
                result.unit,
                _number(result.ours),
                _number(result.yardstick),
                f"{result.ratio:.2f}",
                *([_floor(result)] if floors else []),
            )
            for result in results
        ],
        numbers_from=3,
    )


def _floor(result: Result) -> str:
    if result.floor is None:
        return ""
    return f"{result.floor:.2f}{'' if result.holds else ' MISSED'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}" if value < 100 else f"{value:.1f}"
