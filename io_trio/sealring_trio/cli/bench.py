"""The commands of `sealring bench`."""

from __future__ import annotations

from typing import Annotated, Literal

import cyclopts

from sealring_trio.bench.fault_names import FAULTS, FaultName
from sealring_trio.bench.shown import describe_report, print_results, report, show_report
from sealring_trio.cli.bench_tensor import Count, Counts, comms, gpus, tp
from sealring_trio.cli.output import print_json, teller
from sealring_trio.files.models import TINY, find_model

FromZero = Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=0))]
Limit = Annotated[float, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=0))]

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
def serve(
    *,
    url: tuple[str, ...] = (),
    api_key: tuple[str, ...] = (),
    start: bool = False,
    ranks: Count = 2,
    model: str = TINY,
    scenario: Literal["streaming", "whole", "two-models", "burst", "users", "large", "all"]
    | None = None,
    requests: Count = 30,
    concurrency: Count = 5,
    users: Count = 1,
    chars: Count = 200,
    whole: bool = False,
    max_tokens: Count = 64,
    check: bool = False,
    max_errors: FromZero = 0,
    max_parse_ms: Limit = 1.0,
    max_queue_ms: Limit | None = None,
    max_first_token_ms: Limit | None = None,
    max_total_ms: Limit | None = None,
    json: bool = False,
) -> int:
    """Put a load on the HTTP API, and tell where the time went.

    Sends requests from several users at once, to a head that runs or to one
    that it starts (--start), and sets out by phase what the head's traces say
    of them. Exit code 1 if a limit is broken.

        sealring bench serve --start
        sealring bench serve --start --scenario all --check
        sealring bench serve --url http://desk:7480 --requests 200 --users 8

    Scenarios, as requests and how many at once: streaming, 30 and 5; whole,
    20 and 5, in one piece; two-models, 50 and 10 over two rings; burst, 60
    and 20; users, 40 and 15 from 10 users; large, 100 and 100 with 10 KB each.

    Parameters
    ----------
    url
        The head's address; http://127.0.0.1:7480 if left out. Give two, and a
        scenario for two rings is spread over them.
    api_key
        A key, where one is needed; repeat it for several users.
    start
        Start a ring for it, or two.
    ranks
        Ranks of the ring that is started.
    model
        Its model; the one that ships with sealring if left out.
    scenario
        A load with a name, in place of the following options; 'all' for each
        of them in turn.
    requests
        Requests altogether.
    concurrency
        Requests at once.
    users
        Users that they come from.
    chars
        Characters of each prompt.
    whole
        Have answers in one piece, not streamed.
    max_tokens
        The most tokens of an answer.
    check
        Make each request again by itself, and compare. For models in f32.
    max_errors
        Requests that may fail.
    max_parse_ms
        Limit for the mean of checking a request's body.
    max_queue_ms
        Limit for the 95th percentile of waiting for a place.
    max_first_token_ms
        Limit for the 95th percentile of the time to the first token.
    max_total_ms
        Limit for the 95th percentile of whole requests.
    json
        Print a JSON list, with an object for each load.
    """
    from sealring_trio.bench import serve as bench  # noqa: PLC0415
    from sealring_trio.bench.load import SCENARIOS, Load  # noqa: PLC0415
    from sealring_trio.local import client  # noqa: PLC0415

    tell = teller()
    own = Load("load", requests, concurrency, users, chars, stream=not whole, max_tokens=max_tokens)
    loads = list(SCENARIOS.values()) if scenario == "all" else [SCENARIOS.get(str(scenario), own)]
    limits = bench.Limits(max_errors, max_parse_ms, max_queue_ms, max_first_token_ms, max_total_ms)
    if start:
        rings = max(each.rings for each in loads)
        targets = bench.started(rings, ranks, find_model(model), tell)
    else:
        urls = [client.base_url(each) for each in url or (client.DEFAULT_URL,)]
        key = client.api_key(None)
        targets = bench.running(urls, api_key or ((key,) if key else ()))
    reports = []
    with targets as found:
        for report in bench.measure(loads, found, limits, check=check, tell=tell):
            reports.append(report)
            if not json:
                show_report(report)
    if json:
        print_json([describe_report(report) for report in reports])
    return 0 if all(report.passed for report in reports) else 1


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
    done = measure(minutes, ranks, find_model(model), teller(), table.show)
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
    for summary in measure(fault, times, find_model(model), options, seed, tell):
        found.append(summary)
        tell(f"{summary.fault}: {'passed' if summary.passed else 'FAILED'}")
    show_faults(found, json)
    return 0 if all(summary.passed for summary in found) else 1
