"""`sealring verify`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sealring_trio.errors import FOUND_WRONG, UserError
from sealring_trio.files.config import CollectivesName, StrategyName
from sealring_trio.files.models import TINY, find_whole_model

from sealring.cli.options import AsJson, Count, Positive
from sealring.files.config import has_own_config, own_config
from sealring.files.models import find_whole_for_command
from sealring.local.node_socket import ask
from sealring.local.ring import local_ring
from sealring.output import print_json, print_table, reporter
from sealring.verify.answers import Ask
from sealring.verify.judge import (
    Options,
    Verified,
    as_json,
    difference_text,
    place_text,
)
from sealring.verify.judge import (
    verify as verify_ring,
)


def verify(
    *,
    config: Path | None = None,
    model: str | None = None,
    ranks: Positive | None = None,
    layers: str = "",
    strategy: StrategyName = "pp",
    collectives: CollectivesName = "sealed",
    thorough: bool = False,
    by_stage: bool = False,
    seed: Count | None = None,
    json: AsJson = False,
) -> int:
    """Check that a ring answers rightly, or find the rank that first goes wrong.

    Has the ring continue rows of random tokens: one of a single token, one
    longer than a chunk (and than a sliding window), one of 1,536 tokens, so
    many short ones that batches form, which join and leave at different steps,
    second turns of whole rows and of half a row, and a row with guesses of its
    tokens, of which some are wrong. What was tried is printed: no position
    beyond the longest row is.
    One mlx-lm process on this machine then computes the same. It compares
    every token with its log probabilities and, in an epoch that is begun for
    it, numbers that every rank sends of what it computed at each position,
    and names the first rank, layers, step, row and position that differ. Exit
    code 0 if the ring is right, 3 if not.

        sealring verify
        sealring verify --config desk.toml
        sealring verify --model models/llama-8b --ranks 3

    The first two are for a running ring whose head is on this machine: other
    requests wait a moment, and go on. The third starts a ring here first, as
    the first does on a machine that is in no cluster.

    Allowed differences, relative to the root mean square of a position: 0.001
    in f32, 0.02 in f16, 0.05 in bf16; in tensor parallelism 0.004, 0.04 and
    0.1; or, if that is more, 16 times what mlx-lm alone differs by when it
    reads the same in other pieces. A few positions may differ by more: 2 of
    1,000 in f32, 10 in 16 bits. A token may differ where the two are as likely
    but for rounding; it must be the likeliest by the ring's own numbers. All
    rows are greedy.

    Next: replace the engine, the weights or the machine of the rank that is
    named, and verify again with the printed --seed.

    Parameters
    ----------
    config
        The config of the head of a running ring; that of the default folder,
        if there is one and nothing is said of a ring on this machine.
    model
        Folder of a model, or its hub id, for a ring on this machine; the one
        that ships with sealring if left out.
    ranks
        Node processes of that ring; 2 if left out.
    layers
        Their layers, as 3,3,2; the head chooses if left out.
    strategy
        'pp': each rank has some of the layers. 'tp': each has its share of
        every layer.
    collectives
        As for 'sealring demo'.
    thorough
        More rows, longer ones, and more tokens of each.
    by_stage
        Compute with sealring's own stages, one after the other, in the memory
        of one. Done anyway where this machine cannot hold the model.
    seed
        Draw the rows from this number, which an earlier run printed.
    """
    with _ring(config, model, ranks, layers, (strategy, collectives)) as (asks, folder, adapter):
        options = Options(thorough, by_stage, seed, adapter)
        verified = verify_ring(asks, folder, options, reporter())
    if json:
        print_json(as_json(verified))
    else:
        _show(verified)
    return 0 if verified.passed else FOUND_WRONG


@contextlib.contextmanager
def _ring(
    config: Path | None,
    model: str | None,
    ranks: int | None,
    layers: str,
    options: tuple[str, str],
) -> Iterator[tuple[Ask, Path, Path | None]]:
    """The running ring of *config* or the default folder, or one that runs within the block; its
    model, and adapter."""
    here = model is not None or ranks is not None or bool(layers)
    if config is not None and here:
        raise UserError(
            "a config names a ring that runs, and has its own model and ranks",
            "Leave --model, --ranks and --layers out, or --config.",
        )
    if config is not None or (has_own_config() and not here):
        loaded = own_config(config)
        asks = partial(ask, loaded.control_socket, notice=reporter())
        yield asks, find_whole_for_command(loaded), loaded.adapter
        return
    counts = _counts(layers)
    world = ranks or len(counts) or 2
    if counts and len(counts) != world:
        raise UserError(f"--layers has {len(counts)} numbers, for {world} ranks", "Give as many.")
    folder = find_whole_model(model or TINY)
    named = dict(zip(("strategy", "collectives"), options, strict=True))
    with local_ring(world, folder, counts, options=named) as nodes:
        yield nodes[0].ask, folder, None


def _counts(layers: str) -> list[int]:
    try:
        return [int(count) for count in layers.split(",") if layers]
    except ValueError:
        raise UserError(f"--layers {layers}: these are no numbers", "Give some as 3,3,2.") from None


def _show(verified: Verified) -> None:
    answers, verdict = verified.answers, verified.verdict
    print_table(
        f"{len(answers.rows)} rows, {verdict.tokens} tokens, batches of up to {answers.batches}",
        ["what was compared", "numbers", "largest difference", "allowed"],
        [
            (
                f"{place_text(station.place, answers)}{'' if station.drawn else ' (prompts)'}",
                str(len(station.found)),
                f"{station.largest:.1g}",
                f"{station.limit:.1g}" if station.place.what != "scores" else "rounding",
            )
            for station in verdict.stations
        ],
    )
    print(f"\ntried: {verified.tried.text}")
    if verified.passed:
        rounding = f", {verdict.ties} of them ties" if verdict.ties else ""
        print(f"right: {verdict.tokens} tokens and all numbers{rounding}")
        return
    for place, steps in verdict.silent.items():
        print(f"\n{answers.called(place)} sent no numbers of {steps} steps")
    if verdict.first is not None:
        print(f"\nWRONG, first at {difference_text(verdict.first, answers)}")
    elif verified.served is not None:
        print(f"\nWRONG, and only as it serves: {difference_text(verified.served, answers)}")
    print(
        "Look at the weights of that rank (sealring digest), its mlx-lm and its machine; start its "
        f"node again, and verify the same rows: --seed {verified.seed}"
    )
