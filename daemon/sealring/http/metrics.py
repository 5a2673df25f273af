"""``GET /metrics``: counters, histograms and gauges for Prometheus.

The traces feed counters and histograms as requests go on. Gauges, and counters that the node keeps
itself, are read when Prometheus asks (`_RingCollector`). Names follow Prometheus' rules: base
units, and ``_total`` for counters. `GenAi` has those of OpenTelemetry's names.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import attrs
import trio
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from sealring_protocol.codec.messages import Decode, Prefill
from sealring_protocol.control.effects import StepTiming
from sealring_trio.files.rosters import seconds_left
from sealring_trio.units import wall_ms
from starlette.requests import Request
from starlette.responses import Response

from sealring.generation.status import build_info
from sealring.generation.trace import Trace
from sealring.http.history import count_requests, count_rows

if TYPE_CHECKING:
    from sealring.http.head import ApiHead

# ---------------------------------------------------------------------- gen ai
# OpenTelemetry's metrics of generative AI, by their names in Prometheus: dots become underscores,
# and the unit comes last (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/).
#
# Dashboards that are made for any server of models find them here. Buckets and attributes are
# those that the convention asks for. Each request is counted when it is over. A request with
# several choices has one first token, and its time for each further token is the mean over its
# choices.


PROVIDER: Final = "sealring"

OPERATIONS: Final = {"chat": "chat", "completion": "text_completion"}
"""The convention's names of the kinds of requests; others have their own."""

FINISHED: Final = frozenset({"stop", "length", "tool_calls"})
"""How choices end that are no errors."""

_COMMON: Final = (
    "gen_ai_operation_name",
    "gen_ai_provider_name",
    "gen_ai_request_model",
    "gen_ai_response_model",
    "server_address",
    "server_port",
)

_DURATION: Final = tuple(0.01 * 2**power for power in range(14))
_FIRST: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_NEXT: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS: Final = tuple(4**power for power in range(14))


@attrs.frozen
class ServedModel:
    """Which *model* is served, and where."""

    model: str
    address: str
    port: int


class GenAi:
    """The metrics of one head."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._duration = _gen_ai(
            registry,
            "gen_ai_server_request_duration_seconds",
            "Whole requests, of OpenTelemetry's convention.",
            _DURATION,
            ["error_type"],
        )
        self._first = _gen_ai(
            registry,
            "gen_ai_server_time_to_first_token_seconds",
            "To the first token of requests that succeeded, of OpenTelemetry's convention.",
            _FIRST,
            [],
        )
        self._next = _gen_ai(
            registry,
            "gen_ai_server_time_per_output_token_seconds",
            "For each token after the first of requests that succeeded, of OpenTelemetry's "
            "convention.",
            _NEXT,
            [],
        )
        self._tokens = _gen_ai(
            registry,
            "gen_ai_client_token_usage",
            "Tokens of a request, of OpenTelemetry's convention.",
            _TOKENS,
            ["gen_ai_token_type"],
        )

    def over(self, trace: Trace, served: ServedModel) -> None:
        """The request of *trace* is over."""
        common = (
            OPERATIONS.get(trace.kind, trace.kind),
            PROVIDER,
            *(served.model, served.model),
            *(served.address, str(served.port)),
        )
        succeeded = bool(trace.outcome) and FINISHED.issuperset(trace.outcome.split(","))
        if trace.ended is not None:
            error = "" if succeeded else trace.outcome
            self._duration.labels(*common, error).observe(trace.ended - trace.began)
        if trace.prompt_tokens:
            self._tokens.labels(*common, "input").observe(trace.prompt_tokens)
        if trace.tokens:
            self._tokens.labels(*common, "output").observe(trace.tokens)
        if not succeeded or trace.first is None or trace.ended is None:
            return
        self._first.labels(*common).observe(trace.first - trace.began)
        later = trace.tokens - trace.choices
        if later > 0:
            seconds = (trace.ended - trace.first) * max(1, trace.choices) / later
            self._next.labels(*common).observe(seconds)


def _gen_ai(
    registry: CollectorRegistry,
    name: str,
    about: str,
    buckets: tuple[float, ...],
    labels: list[str],
) -> Histogram:
    return Histogram(name, about, [*_COMMON, *labels], buckets=buckets, registry=registry)


# ---------------------------------------------------------------------- metrics


PAGE_SECONDS: Final = 1.0
"""Time between two pages. Each takes the event loop 4 ms, and three times that or more once
requests of all kinds have ended in many ways."""

_US: Final = 1e-6

_SHORT: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
_TOKEN: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_LONG: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)

_PATHS: Final = (
    "/livez",
    "/readyz",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/models",
    "/tokenize",
    "/detokenize",
    "/v1/cluster",
    "/v1/requests",
    "/health",
    "/metrics",
)


class Metrics:
    """What is counted; an `Observer` of the traces."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self.registry = CollectorRegistry()
        self._gen_ai = GenAi(registry)
        self._served = ServedModel("", "", 0)
        self._http = Counter(
            "sealring_http_requests",
            "HTTP requests answered.",
            ["path", "status"],
            registry=registry,
        )
        self._requests = Counter(
            "sealring_requests",
            "Requests that generate, by how they ended.",
            ["outcome"],
            registry=registry,
        )
        self._prompts = Counter(
            "sealring_prompt_tokens",
            "Tokens of prompts: read in, and known from before.",
            ["kind"],
            registry=registry,
        )
        self._parse = _histogram(registry, "parse_seconds", "Checking of a request's body.", _SHORT)
        self._queue = _histogram(registry, "queue_seconds", "Waiting for a place.", _LONG)
        self._first = _histogram(
            registry, "time_to_first_token_seconds", "From a request's header on.", _LONG
        )
        self._next = _histogram(
            registry, "inter_token_latency_seconds", "Between tokens of a choice.", _TOKEN
        )
        self._total = _histogram(registry, "request_seconds", "Whole requests.", _LONG)
        self._hop = _histogram(
            registry,
            "hop_latency_seconds",
            "Mean of the hops of a decode step: neither work, nor waiting, nor sealing.",
            _SHORT,
        )
        # What rises with every step or token is counted in plain numbers, and told when asked.
        self.steps = {"decode": [0, 0], "prefill": [0, 0], "none": [0, 0]}  # how many, us
        self.ranks: list[dict[str, int]] = []  # us by phase
        self.sample_us = 0
        self.generated = 0
        self._page, self._made = b"", -PAGE_SECONDS  # when (trio's clock)
        self._making = trio.Lock()

    def watch(self, head: ApiHead) -> None:
        """Read *head*'s gauges too, and name its model."""
        self._served = ServedModel(head.model, *(head.config.api or ("", 0)))
        self.registry.register(_RingCollector(head))

    async def page(self) -> bytes:
        """The answer to Prometheus, which is never older than the call. Callers within
        `PAGE_SECONDS` of the last page wait for the next one, and share it."""
        asked = trio.current_time()
        async with self._making:
            if self._made <= asked:
                await trio.sleep_until(self._made + PAGE_SECONDS)
                self._made = trio.current_time()
                self._page = generate_latest(self.registry)
            return self._page

    def answered(self, path: str, status: int) -> None:
        """A request to *path* got *status*."""
        known = next((p for p in _PATHS if path == p or path.startswith(f"{p}/")), "other")
        self._http.labels(known, str(status)).inc()

    def step(self, timing: StepTiming) -> None:
        """A step went round."""
        match timing.work:
            case Decode():
                work = "decode"
                if len(timing.spent) > 1:  # a single rank has no hops
                    self._hop.observe(timing.away_us * _US / len(timing.spent))
            case Prefill():
                work = "prefill"
            case _:
                work = "none"
        counts = self.steps[work]
        counts[0] += 1
        counts[1] += timing.total_us
        while len(self.ranks) < len(timing.spent):
            self.ranks.append({"compute": 0, "wait": 0, "seal": 0})
        for spent, rank in zip(timing.spent, self.ranks, strict=False):
            rank["compute"] += spent.compute_us
            rank["wait"] += spent.wait_us
            rank["seal"] += spent.seal_us
        self.sample_us += timing.closing.compute_us

    def first_token(self, seconds: float) -> None:
        """A request had its first token."""
        self._first.observe(seconds)
        self.generated += 1

    def next_token(self, seconds: float) -> None:
        """A choice had its next token."""
        self._next.observe(seconds)
        self.generated += 1

    def over(self, trace: Trace) -> None:
        """A request is over."""
        self._requests.labels(trace.outcome).inc()
        self._gen_ai.over(trace, self._served)
        self._parse.observe(trace.parse)
        if trace.opened is not None and trace.submitted is not None:
            self._queue.observe(trace.opened - trace.submitted)
        if trace.ended is not None:
            self._total.observe(trace.ended - trace.began)
        self._prompts.labels("read").inc(max(0, trace.prompt_tokens - trace.cached_tokens))
        self._prompts.labels("cached").inc(trace.cached_tokens)


def _histogram(
    registry: CollectorRegistry, name: str, about: str, buckets: tuple[float, ...]
) -> Histogram:
    return Histogram(f"sealring_{name}", about, buckets=buckets, registry=registry)


class _RingCollector(Collector):
    """What the node knows at the moment."""

    def __init__(self, head: ApiHead) -> None:
        self._head = head

    def collect(self) -> Iterable[Metric]:
        """The families, with their values now."""
        yield from self._rows()
        yield from self._steps()
        yield from self._links()
        yield from self._ranks()
        yield from self._lives()

    def _lives(self) -> Iterable[Metric]:
        node = self._head.generator.runtime.node
        if node.rank == 0:
            yield CounterMetricFamily(
                "sealring_epochs", "Epochs begun.", value=node.standing().epoch.counter
            )
        yield CounterMetricFamily(
            "sealring_engine_restarts",
            "Engines of the head that ended and were replaced.",
            value=self._head.generator.runtime.engine.restarts,
        )
        yield InfoMetricFamily("sealring_build", "What runs here.", value=build_info())
        obstacles = GaugeMetricFamily(
            "sealring_obstacles", "What keeps the ring from serving, by cause.", labels=["cause"]
        )
        for cause, count in Counts(why["cause"] for why in self._head.why()).items():
            obstacles.add_metric([cause], count)
        yield obstacles

    def _rows(self) -> Iterable[Metric]:
        rows = GaugeMetricFamily("sealring_rows", "Choices under way, by state.", labels=["state"])
        for state, count in count_rows(self._head.generator.tracer).items():
            rows.add_metric([state], count)
        yield rows
        waiting, running = count_requests(self._head.generator.tracer)
        yield GaugeMetricFamily(
            "sealring_requests_waiting",
            "Requests that have come and wait, be it to be read.",
            value=waiting,
        )
        yield GaugeMetricFamily(
            "sealring_requests_running",
            "Requests whose prompt is read in, or whose answer is made.",
            value=running,
        )
        serving = self._head.generator.serving
        roster = self._head.generator.runtime.node.roster.roster
        yield GaugeMetricFamily(
            "sealring_roster_expires_seconds",
            "Time until the roster expires and all links end; negative after that.",
            value=seconds_left(roster, wall_ms()),
        )
        yield GaugeMetricFamily("sealring_up", "Whether the ring serves.", value=float(serving))

    def _steps(self) -> Iterable[Metric]:
        counted = self._head.metrics
        tokens = CounterMetricFamily("sealring_tokens", "Tokens generated.")
        tokens.add_metric([], counted.generated)
        steps = CounterMetricFamily("sealring_steps", "Steps round the ring.", labels=["work"])
        seconds = CounterMetricFamily("sealring_step_seconds", "Time of steps.", labels=["work"])
        for work, (count, total_us) in counted.steps.items():
            steps.add_metric([work], count)
            seconds.add_metric([work], total_us * _US)
        ranks = CounterMetricFamily(
            "sealring_rank_seconds",
            "What each rank did with steps: compute, wait (for its device), seal.",
            labels=["rank", "phase"],
        )
        for number, rank in enumerate(counted.ranks):
            for phase, spent in rank.items():
                ranks.add_metric([str(number), phase], spent * _US)
        guesses = CounterMetricFamily(
            "sealring_guessed_tokens",
            "Tokens guessed for requests that are over, by outcome.",
            labels=["outcome"],
        )
        runtime = self._head.generator.runtime
        guesses.add_metric(["accepted"], runtime.accepted)
        guesses.add_metric(["rejected"], runtime.rejected)
        sample = CounterMetricFamily(
            "sealring_sample_seconds", "The head's closing pass: norm, output head, sampling."
        )
        sample.add_metric([], counted.sample_us * _US)
        yield from (tokens, guesses, steps, seconds, ranks, sample)

    def _links(self) -> Iterable[Metric]:
        runtime = self._head.generator.runtime
        moved = CounterMetricFamily(
            "sealring_link_bytes", "Bytes over the head's links.", labels=["direction"]
        )
        moved.add_metric(["sent"], runtime.bytes_sent)
        moved.add_metric(["received"], runtime.bytes_received)
        yield moved
        updates = CounterMetricFamily(
            "sealring_key_updates", "Keys that the head's links have gone through."
        )
        updates.add_metric([], self._head.key_updates())
        yield updates
        rtt = GaugeMetricFamily(
            "sealring_link_rtt_seconds", "A PING, there and back.", labels=["rank", "purpose"]
        )
        for rank, purpose, link in runtime.links():
            if link.keepalive.rtt is not None:
                rtt.add_metric([str(rank), purpose.name.lower()], link.keepalive.rtt)
        yield rtt

        if (tls := self._head.tls) is not None:
            yield GaugeMetricFamily(
                "sealring_tls_certificate_expires_seconds",
                "Time until the API's certificate expires; negative after that.",
                value=tls.seconds_left,
            )

    def _ranks(self) -> Iterable[Metric]:
        memory = GaugeMetricFamily(
            "sealring_rank_memory_bytes", "Memory of each rank's engine.", labels=["rank", "of"]
        )
        fetched = GaugeMetricFamily(
            "sealring_rank_fetch_bytes",
            "Weights of each rank while it fetches some of them: all, and what is here; else 0.",
            labels=["rank", "of"],
        )
        starved = CounterMetricFamily(
            "sealring_rank_starved_seconds",
            "Time that each rank's engine was ready to run and had no processor, or waited for "
            "memory to be read back from disk.",
            labels=["rank"],
        )
        runtime = self._head.generator.runtime
        progresses = runtime.facts().progress
        ready = runtime.node.standing().ready
        shares = [
            progresses[rank].cache / told.room
            for rank, told in ready.items()
            if told.room and rank in progresses
        ]
        yield GaugeMetricFamily(
            "sealring_kv_cache_usage_ratio",
            "Part of the memory for caches that is taken, on the rank with the least left; 0 to 1.",
            value=min(1.0, max(shares, default=0.0)),
        )
        for rank, progress in progresses.items():
            memory.add_metric([str(rank), "all"], progress.memory)
            memory.add_metric([str(rank), "caches"], progress.cache)
            fetched.add_metric([str(rank), "all"], progress.fetch_bytes)
            fetched.add_metric([str(rank), "here"], progress.here)
            starved.add_metric([str(rank)], progress.starved_us * _US)
        yield from (memory, fetched, starved)


async def metrics(request: Request) -> Response:
    """``GET /metrics``."""
    head: ApiHead = request.app.state.head
    return Response(await head.metrics.page(), media_type=CONTENT_TYPE_LATEST)
