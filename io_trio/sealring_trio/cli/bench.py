"""The commands of `sealring bench`."""

from __future__ import annotations

from typing import Annotated, Literal

import cyclopts

from sealring_trio.bench.fault_names import FAULTS, FaultName
from sealring_trio.bench.shown import print_results, report
from sealring_trio.cli.bench_prefill import prefill
from sealring_trio.cli.bench_serve import serve
from sealring_trio.cli.bench_tensor import Count, Counts, comms, gpus, tp
from sealring_trio.cli.output import print_json, teller
from sealring_trio.files.models import TINY, find_whole_model

Share = Annotated[float, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=0, lte=1))]

HELP = """\
Measure the protocol beside its yardsticks.

Ours and the yardstick take turns in the same run, and medians of many turns
are set beside each other, so the ratio holds on a busy machine too. Codec
and handshake use one thread for both ends.

    sealring bench codec
    sealring bench hop --json
"""

app = cyclopts.App(name="bench", help=HELP)


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

    print_results(measure(), json)


@app.command
def handshake(*, json: bool = False) -> None:
    """Full mutual handshakes a second, ML-KEM included, beside TLS 1.3.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.handshake import measure  # noqa: PLC0415

    print_results(measure(), json)


@app.command
def hop(*, json: bool = False) -> None:
    """One hop of 8 KiB between two processes, beside a plain trio message.

    And its parts, measured in the same way: a node's socket code alone, with
    the cipher, and with the message's encoding.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.hop import measure  # noqa: PLC0415

    print_results(measure(), json)


@app.command
def solo(*, json: bool = False) -> None:
    """A ring of one rank beside mlx-lm's own generator, 25M parameters, f32.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.solo import measure  # noqa: PLC0415

    print_results(measure(), json)


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

    print_results(measure(), json)


@app.command
def overtake(*, json: bool = False) -> None:
    """Time to the first token of a short prompt behind one of 4,000 tokens.

    Beside what it may take: its own time alone and two chunks of the other.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    from sealring_trio.bench.overtake import measure  # noqa: PLC0415

    print_results(measure(), json)


app.command(comms)
app.command(tp)
app.command(gpus)
app.command(prefill)


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
    tokens: Count = 48,
    prompt: Count = 8,
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
    from sealring_trio.bench.batch import Setup, measure  # noqa: PLC0415
    from sealring_trio.bench.random_model import model_or_random  # noqa: PLC0415

    setup = Setup(rows, groups, ranks, turns, tokens, prompt, layers)
    with model_or_random(model, size, dtype) as (folder, name):
        results = measure(setup, folder, name, teller())
    return report(results, json=json, check=check)


@app.command
def speculate(
    *,
    size: Literal["25m", "450m", "8b"] = "25m",
    dtype: Literal["f32", "bf16"] = "f32",
    model: str | None = None,
    share: tuple[Share, ...] = (0.0, 0.6, 0.7, 0.8, 0.9),
    ranks: Count = 2,
    layers: Counts = (),
    tokens: Count = 128,
    turns: Count = 5,
    ahead: Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=0))]
    | None = None,
    strategy: Literal["pp", "tp"] = "pp",
    lookup: bool = False,
    gpus: bool = False,
    check: bool = False,
    json: bool = False,
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
    dtype
        Its values.
    model
        Another model's folder or hub id, in place of a random one.
    share
        Share of guesses that are right; repeat the option for several.
    ranks
        Ranks of the ring.
    layers
        Layers of each rank, one option for each; by memory if left out.
    tokens
        Tokens of the answer.
    turns
        Turns that each side has.
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
        cuda13. One process of mlx-lm has the first one.
    check
        Exit with 1 if a ratio is below its floor.
    json
        Print a JSON list.
    """
    from sealring_trio.bench.gpus import NCCL, gpu_places  # noqa: PLC0415
    from sealring_trio.bench.random_model import model_or_random  # noqa: PLC0415
    from sealring_trio.bench.speculate import Setup, measure, measure_lookup  # noqa: PLC0415

    options: dict[str, str | float] = {} if ahead is None else {"ahead": ahead}
    if strategy == "tp":
        options |= NCCL if gpus else {"strategy": "tp", "collectives": "shared-loopback"}
    places = gpu_places(ranks) if gpus else ()
    exact = model is None and dtype == "f32"
    setup = Setup(ranks, share, tokens, turns, layers, places, options, exact)
    if lookup:
        return report(measure_lookup(setup, teller()), json=json, check=check)
    with model_or_random(model, size, dtype) as (folder, name):
        results = measure(setup, folder, name, teller())
    return report(results, json=json, check=check)


@app.command
def masks(
    *,
    size: Literal["tiny", "25m", "450m"] = "25m",
    ranks: Count = 1,
    tokens: Count = 128,
    turns: Count = 5,
    check: bool = False,
    json: bool = False,
) -> int:
    """An answer that is held to a form, beside the same ring's free answers.

    Leave the machine alone meanwhile.

        sealring bench masks
        sealring bench masks --size tiny --ranks 2

    Parameters
    ----------
    size
        The tiny model, or a random one with so many parameters, in f32.
    ranks
        Ranks of the ring.
    tokens
        Tokens of the answer.
    turns
        Turns that each side has.
    check
        Exit with 1 if a ratio is below its floor.
    json
        Print a JSON list.
    """
    from sealring_trio.bench.masks import Setup, measure  # noqa: PLC0415
    from sealring_trio.bench.random_model import model_or_random  # noqa: PLC0415

    named = TINY if size == "tiny" else None
    with model_or_random(named, "25m" if size == "tiny" else size, "f32") as (folder, _):
        results = measure(Setup(ranks, tokens, turns), folder, f"{size} f32", teller())
    return report(results, json=json, check=check)


app.command(serve)


@app.command
def soak(
    *,
    minutes: Annotated[float, cyclopts.Parameter(validator=cyclopts.validators.Number(gt=0))] = 30,
    ranks: Count = 2,
    model: str = TINY,
    json: bool = False,
) -> int:
    """Keep a ring busy for a long time, and see that nothing grows.

    Starts a ring and has clients ask, leave in the middle, cancel and err.
    Prints the memory of every process as time goes by. Exit code 1 if memory
    grew, an answer changed, or a row, file, thread or task is left at the
    end.

        sealring bench soak
        sealring bench soak --minutes 2 --ranks 3

    Parameters
    ----------
    minutes
        How long.
    ranks
        Ranks of the ring.
    model
        Its model, in f32; the one that ships with sealring if left out.
    json
        Print one JSON object at the end.
    """
    from sealring_trio.bench.shown import SoakTable, show_soak  # noqa: PLC0415
    from sealring_trio.bench.soak import describe, measure  # noqa: PLC0415

    table = SoakTable(quiet=json)
    done = measure(minutes, ranks, find_whole_model(model), teller(), table.show)
    if json:
        print_json(describe(done))
    else:
        show_soak(done)
    return 0 if done.passed else 1


@app.command
def faults(
    *,
    fault: tuple[FaultName, ...] = FAULTS,
    times: Count = 20,
    strategy: Literal["pp", "tp"] = "tp",
    model: str = TINY,
    seed: int = 0,
    json: bool = False,
) -> int:
    """Break parts of a ring while it answers, and see what becomes of the answers.

    Two real nodes generate two texts at once, and at a random token something
    is killed or frozen, raises, or goes away. Exit code 1 if a text came out
    other than without the fault, if the head took more than 2 s to notice, or
    if a process or a request is left over.

        sealring bench faults
        sealring bench faults --strategy pp --fault follower-node-killed --times 5

    Parameters
    ----------
    fault
        What breaks; repeat the option for several. All of them if left out.
    times
        How often each does.
    strategy
        How the model is split: a pipeline, or tensor parallelism.
    model
        The model, in f32; the one that ships with sealring if left out.
    seed
        What decides at which tokens.
    json
        Print a JSON list.
    """
    from sealring_trio.bench.faults import measure  # noqa: PLC0415
    from sealring_trio.bench.shown import show_faults  # noqa: PLC0415

    options = {"strategy": strategy}
    tell, found = teller(), []
    for summary in measure(fault, times, find_whole_model(model), options, seed, tell):
        found.append(summary)
        tell(f"{summary.fault}: {'passed' if summary.passed else 'FAILED'}")
    show_faults(found, json)
    return 0 if all(summary.passed for summary in found) else 1
