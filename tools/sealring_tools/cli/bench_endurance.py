"""The commands of `sealring bench` that find out what a ring bears: long work, and faults."""

from __future__ import annotations

from typing import Annotated, Literal

import cyclopts
from sealring.output import print_json, reporter
from sealring_tools.bench.fault_names import FAULTS, FaultName
from sealring_tools.cli.bench_tensor import AsList, Count
from sealring_trio.errors import FOUND_WRONG
from sealring_trio.files.models import TINY, find_whole_model


def soak(
    *,
    minutes: Annotated[float, cyclopts.Parameter(validator=cyclopts.validators.Number(gt=0))] = 30,
    ranks: Count = 2,
    model: str = TINY,
    json: bool = False,
) -> int:
    """Keep a ring busy for a long time, and see that nothing grows.

    Starts a ring and has clients ask, leave in the middle, cancel and err.
    Prints the memory of every process as time goes by. Exit code 3 if memory
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
    from sealring_tools.bench.shown import SoakTable, show_soak  # noqa: PLC0415
    from sealring_tools.bench.soak import describe, measure  # noqa: PLC0415

    table = SoakTable(quiet=json)
    done = measure(minutes, ranks, find_whole_model(model), reporter(), table.show)
    if json:
        print_json(describe(done))
    else:
        show_soak(done)
    return 0 if done.passed else FOUND_WRONG


def faults(
    *,
    fault: tuple[FaultName, ...] = FAULTS,
    times: Count = 20,
    strategy: Literal["pp", "tp"] = "tp",
    model: str = TINY,
    seed: int = 0,
    json: AsList = False,
) -> int:
    """Break parts of a ring while it answers, and see what becomes of the answers.

    Two real nodes generate two texts at once, and at a random token something
    is killed or frozen, raises, or goes away. Exit code 3 if a text came out
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
    """
    from sealring_tools.bench.faults import measure  # noqa: PLC0415
    from sealring_tools.bench.shown import show_faults  # noqa: PLC0415

    options = {"strategy": strategy}
    tell, found = reporter(), []
    for summary in measure(fault, times, find_whole_model(model), options, seed, tell):
        found.append(summary)
        tell(f"{summary.fault}: {'passed' if summary.passed else 'FAILED'}")
    show_faults(found, json)
    return 0 if all(summary.passed for summary in found) else FOUND_WRONG
