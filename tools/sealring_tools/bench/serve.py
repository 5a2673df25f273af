"""Puts a load on real rings through their HTTP API, and checks limits on times and errors.

The client's side is `load`; where the time went is read from the traces that the head keeps, and
set out by phase. With a check, every request is made again by itself afterwards, and must give the
same text: what a model in f32 says does not depend on who else is being answered.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import httpx2
import trio
from sealring.local import client
from sealring.local.ring import local_api
from sealring_tools.bench import load
from sealring_tools.bench.load import Load, Outcome, Target
from sealring_tools.bench.phases import Spread, decompose
from sealring_tools.bench.random_model import write_random_model
from sealring_trio.errors import UserError

SECOND_MODEL: Final = "5m"
"""What a second ring has, where a load is spread over two."""


@attrs.frozen
class Limits:
    """What a load must stay within; None for no limit. Times in milliseconds."""

    errors: int = 0
    parse_mean: float | None = 1.0
    queue_p95: float | None = None
    first_token_p95: float | None = None
    total_p95: float | None = None


@attrs.frozen
class Verdict:
    """One limit: its name, what was found and what is allowed."""

    name: str
    found: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether it was kept."""
        return self.found <= self.limit


@attrs.frozen
class Report:
    """How a load went. *client* has the times that the clients saw, *phases* those of the head's
    traces."""

    load: Load
    seconds: float
    tokens: int
    errors: list[str]
    phases: dict[str, Spread]
    client: dict[str, Spread]
    verdicts: list[Verdict]

    @property
    def passed(self) -> bool:
        """Whether every limit was kept."""
        return all(verdict.holds for verdict in self.verdicts)


def measure(
    loads: Sequence[Load],
    targets: Sequence[Target],
    limits: Limits,
    *,
    check: bool,
    tell: Callable[[str], None],
) -> Iterator[Report]:
    """Put each of *loads* on the *targets* in turn. Raises `OperationError`."""
    for each in loads:
        if each.rings > len(targets):
            raise UserError(
                f"'{each.name}' is spread over {each.rings} rings, and there is one",
                "Give a second one with --url, or let it start them: --start",
            )
        tell(f"{each.name}: {each.requests} requests, {each.concurrency} at once")
        todo = load.asks(each, targets[: each.rings])
        began = time.perf_counter()
        outcomes = trio.run(load.run, todo, each.concurrency)
        seconds = time.perf_counter() - began
        traces = _traces(outcomes)
        again: list[Outcome] = []
        if check:
            tell(f"{each.name}: each of them again, by itself")
            again = trio.run(load.run, todo, 1)
        yield _report(each, seconds, outcomes, traces, again, limits)


def _traces(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """What the heads know of the requests that were answered. Raises `OperationError`."""
    wanted = {outcome.id for outcome in outcomes if not outcome.error}
    traces = []
    for url, key in {(o.ask.target.url, o.ask.key): None for o in outcomes}:
        with httpx2.Client(**client.settings(url, key)) as http:
            try:
                response = http.get("/v1/requests")
            except httpx2.HTTPError as error:
                raise client.unreachable(url, error) from None
            if response.status_code != 200:
                raise client.refused(response)
            for trace in response.json()["data"]:
                if trace["id"] in wanted:
                    wanted.discard(trace["id"])
                    traces.append(trace)
    return traces


def _report(
    each: Load,
    seconds: float,
    outcomes: Sequence[Outcome],
    traces: Sequence[dict[str, Any]],
    again: Sequence[Outcome],
    limits: Limits,
) -> Report:
    errors = [f"request {o.ask.number}: {o.error}" for o in outcomes if o.error]
    good = [outcome for outcome in outcomes if not outcome.error]
    phases, missing = decompose(traces)
    if len(traces) < len(good):
        missing.append(f"{len(good) - len(traces)} requests have no trace")
    first = [outcome.first_s * 1e3 for outcome in good if outcome.first_s is not None]
    seen = {"total": [outcome.total_s * 1e3 for outcome in good], "first text": first}
    verdicts = [
        Verdict("errors", len(errors), limits.errors),
        Verdict("phases missing", len(missing), 0),
    ]
    for name, phase, of, limit in (
        ("parse, mean ms", "parse", "mean", limits.parse_mean),
        ("queue, p95 ms", "queue", "p95", limits.queue_p95),
        ("first token, p95 ms", "first token", "p95", limits.first_token_p95),
        ("total, p95 ms", "total", "p95", limits.total_p95),
    ):
        if limit is not None and phase in phases:
            verdicts.append(Verdict(name, getattr(phases[phase], of), limit))
    if again:
        alone = {outcome.ask.number: outcome for outcome in again}
        other = [o for o in good if alone[o.ask.number].answer != o.answer]
        errors += [f"request {o.ask.number}: gave another answer by itself" for o in other]
        verdicts.append(Verdict("other answers alone", len(other), 0))
    return Report(
        each,
        seconds,
        sum(trace["tokens"] for trace in traces),
        errors + missing,
        phases,
        {name: Spread.of(values) for name, values in seen.items() if values},
        verdicts,
    )


@contextlib.contextmanager
def running(urls: Sequence[str], keys: Sequence[str]) -> Iterator[list[Target]]:
    """The APIs at *urls*, which run already. Raises `OperationError`."""
    targets = []
    for url in urls:
        with httpx2.Client(**client.settings(url, keys[0] if keys else "")) as http:
            targets.append(Target(url, client.model_at(http, url)["id"], tuple(keys)))
    yield targets


@contextlib.contextmanager
def started(
    rings: int, ranks: int, model: Path, tell: Callable[[str], None]
) -> Iterator[list[Target]]:
    """*rings* local rings of *ranks* each: the first one with *model*, a second one with another.
    Raises `OperationError`."""
    with contextlib.ExitStack() as stack:
        models = [model]
        if rings > 1:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
            second = folder / f"random-{SECOND_MODEL}"
            second.mkdir()
            models.append(write_random_model(second, SECOND_MODEL))
        apis = [stack.enter_context(local_api(ranks, each, report=tell)) for each in models]
        yield [Target(api.url, api.model, ()) for api in apis]
