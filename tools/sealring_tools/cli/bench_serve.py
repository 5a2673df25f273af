"""`sealring bench serve`."""

from __future__ import annotations

from typing import Annotated, Literal

import cyclopts
from sealring.output import print_json, reporter
from sealring_tools.bench.shown import describe_report, report, show_report
from sealring_tools.cli.bench_tensor import Count, Counts
from sealring_trio.errors import FOUND_WRONG, UserError
from sealring_trio.files.models import TINY, find_whole_model

SizeName = Literal["tiny", "25m", "450m"]
FromZero = Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=0))]
Limit = Annotated[float, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=0))]


def serve(
    *,
    url: tuple[str, ...] = (),
    api_key: tuple[str, ...] = (),
    start: bool = False,
    ranks: Counts = (),
    model: str = TINY,
    scenario: Literal["streaming", "whole", "two-models", "burst", "users", "large", "all"]
    | None = None,
    requests: Count = 30,
    concurrency: Counts = (),
    users: Count = 1,
    chars: Count = 200,
    whole: bool = False,
    max_tokens: Count = 64,
    beside: Literal["mlx-lm"] | None = None,
    size: tuple[SizeName, ...] = ("tiny", "25m"),
    turns: Count = 5,
    busy: FromZero = 0,
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
    of them. Exit code 3 if a limit is broken.

        sealring bench serve --start
        sealring bench serve --start --scenario all --check
        sealring bench serve --url http://desk:7480 --requests 200 --users 8

    With --beside mlx-lm it starts rings and mlx_lm.server with the same model,
    and sends both the same requests in turns: so many at once, streamed, the
    tokens of all answers over the time until the last has ended. Several
    processes compute in turns: leave the machine alone meanwhile.

        sealring bench serve --beside mlx-lm
        sealring bench serve --beside mlx-lm --size tiny --concurrency 8 --busy 2

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
        Ranks of the ring that is started, 2 if left out; with --beside of each
        ring, 1 and 2 if left out: repeat the option for several.
    model
        Its model; the one that ships with sealring if left out.
    scenario
        A load with a name, in place of the following options; 'all' for each
        of them in turn.
    requests
        Requests altogether.
    concurrency
        Requests at once, 5 if left out; with --beside 8 and 32: repeat the
        option for several.
    users
        Users that they come from.
    chars
        Characters of each prompt.
    whole
        Have answers in one piece, not streamed.
    max_tokens
        The most tokens of an answer.
    beside
        Measure beside another server.
    size
        With --beside: the tiny model, or a random one with so many parameters,
        in f32; repeat the option for several.
    turns
        With --beside: turns that each side has.
    busy
        With --beside: processes of usual priority that compute all the time.
    check
        Make each request again by itself, and compare. For models in f32. With
        --beside: exit with 1 if a ratio is below its floor.
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
    if beside is not None:
        from sealring_tools.bench.beside import Setup  # noqa: PLC0415
        from sealring_tools.bench.beside import measure as measure_beside  # noqa: PLC0415

        setup = Setup(concurrency or (8, 32), ranks or (1, 2), turns, max_tokens, busy)
        return report(list(measure_beside(setup, size, reporter())), json=json, check=check)
    if len(ranks) > 1 or len(concurrency) > 1:
        raise UserError("several --ranks or --concurrency are for --beside mlx-lm", "Give one.")
    from sealring.local import client  # noqa: PLC0415
    from sealring_tools.bench import serve as bench  # noqa: PLC0415
    from sealring_tools.bench.load import SCENARIOS, Load  # noqa: PLC0415

    tell = reporter()
    at_once = concurrency[0] if concurrency else 5
    own = Load("load", requests, at_once, users, chars, stream=not whole, max_tokens=max_tokens)
    loads = list(SCENARIOS.values()) if scenario == "all" else [SCENARIOS.get(str(scenario), own)]
    limits = bench.Limits(max_errors, max_parse_ms, max_queue_ms, max_first_token_ms, max_total_ms)
    if start:
        rings = max(each.rings for each in loads)
        targets = bench.started(rings, ranks[0] if ranks else 2, find_whole_model(model), tell)
    else:
        urls = [client.base_url(each) for each in url or (client.DEFAULT_URL,)]
        key = client.api_key(None)
        targets = bench.running(urls, api_key or ((key,) if key else ()))
    reports = []
    with targets as found:
        for each in bench.measure(loads, found, limits, check=check, tell=tell):
            reports.append(each)
            if not json:
                show_report(each)
    if json:
        print_json([describe_report(each) for each in reports])
    return 0 if all(each.passed for each in reports) else FOUND_WRONG
