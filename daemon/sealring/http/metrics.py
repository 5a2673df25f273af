"""What is counted as requests go on: metrics for Prometheus, and the last minutes for the page.

The traces feed counters and histograms (`Metrics`, `GenAi`), of which `History` takes a sample each
second. Gauges, and counters that the node keeps itself, are read when Prometheus asks: what every
node knows by `NodeCollector`, what the head alone knows by `_RingCollector`. Names follow
Prometheus' rules: base units, and ``_total`` for counters.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import sub
from typing import TYPE_CHECKING, Any, Final

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
from sealring_protocol.security.roles import Purpose
from sealring_trio.files.rosters import seconds_left
from sealring_trio.node.runtime import Runtime
from sealring_trio.units import wall_ms
from starlette.requests import Request
from starlette.responses import Response

from sealring.generation.generation import Generator
from sealring.generation.status import build_info
from sealring.generation.trace import Observer, Trace, Tracer

if TYPE_CHECKING:
    from sealring.http.head import ApiHead

PROVIDER: Final = "sealring"

OPERATIONS: Final = {"chat": "chat", "completion": "text_completion"}
"""The convention's names of the kinds of requests; others have their own."""

FINISHED: Final = frozenset({"stop", "length", "tool_calls", "resumed"})
"""How requests end that are no errors."""

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
    """OpenTelemetry's metrics of generative AI, by their names in Prometheus: dots become
    underscores, and the unit comes last. Dashboards that are made for any server of models find
    them here (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/).

    Buckets and attributes are those that the convention asks for. Each request is counted when it
    is over. A request with several choices has one first token, and its time for each further token
    is the mean over its choices."""

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
    "/v1/newcomers",
    "/health",
    "/metrics",
)


class MetricsPage:
    """The answer to Prometheus, made of all that is in the *registry*."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._page, self._made = b"", -PAGE_SECONDS  # when (trio's clock)
        self._making = trio.Lock()

    async def answer(self) -> Response:
        """The page, which is never older than the call. Callers within `PAGE_SECONDS` of the last
        page wait for the next one, and share it."""
        asked = trio.current_time()
        async with self._making:
            if self._made <= asked:
                await trio.sleep_until(self._made + PAGE_SECONDS)
                self._made = trio.current_time()
                self._page = generate_latest(self.registry)
            return Response(self._page, media_type=CONTENT_TYPE_LATEST)


class Metrics(Observer):
    """What is counted."""

    def __init__(self) -> None:
        self.page = MetricsPage()
        registry = self.page.registry
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
        # What rises with every step or token is counted in plain numbers, and collected when asked.
        self.steps = {"decode": [0, 0], "prefill": [0, 0], "none": [0, 0]}  # how many, us
        self.ranks: list[dict[str, int]] = []  # us by phase
        self.sample_us = 0
        self.generated = 0
        self.read = 0  # tokens of prompts
        self.hops = 0
        self.hop_us = 0.0  # of all of them

    def watch(self, head: ApiHead) -> None:
        """Read *head*'s gauges too, and name its model."""
        self._served = ServedModel(head.model, *(head.config.api or ("", 0)))
        self.page.registry.register(NodeCollector(lambda: head.generator))
        self.page.registry.register(_RingCollector(head))

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
                    hop = timing.away_us / len(timing.spent)
                    self._hop.observe(hop * _US)
                    self.hops += 1
                    self.hop_us += hop
            case Prefill(count=count):
                work = "prefill"
                self.read += count
            case _:
                work = "none"
        counts = self.steps[work]
        counts[0] += 1
        counts[1] += timing.total_us
        for number, spent in timing.by_rank:
            while len(self.ranks) <= number:
                self.ranks.append({"compute": 0, "wait": 0, "seal": 0})
            rank = self.ranks[number]
            rank["compute"] += spent.compute_us
            rank["wait"] += spent.wait_us
            rank["seal"] += spent.seal_us
        self.sample_us += timing.closing.compute_us

    def token(self, seconds: float, *, first: bool) -> None:
        """A request had its first token, or a choice its next."""
        (self._first if first else self._next).observe(seconds)
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


Values = float | Mapping[Any, float]
"""The value of a metric, or its values by those of its labels (a tuple of texts)."""


def _counter(name: str, about: str, values: Values, labels: Sequence[str] = ()) -> Metric:
    return _family(CounterMetricFamily(f"sealring_{name}", about, labels=labels), values)


def _gauge(name: str, about: str, values: Values, labels: Sequence[str] = ()) -> Metric:
    return _family(GaugeMetricFamily(f"sealring_{name}", about, labels=labels), values)


def _family(family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
    for key, value in (values if isinstance(values, Mapping) else {(): values}).items():
        family.add_metric(key, value)
    return family


class NodeCollector(Collector):
    """What a node of any rank knows of itself at the moment: nothing while *generator*, which is
    asked each time, gives none. It names no member."""

    def __init__(self, generator: Callable[[], Generator | None]) -> None:
        self._generator = generator

    def collect(self) -> Iterable[Metric]:
        """The families, with their values now."""
        yield InfoMetricFamily("sealring_build", "What runs here.", value=build_info())
        if (generator := self._generator()) is not None:
            yield from self._states(generator)
            yield from self._links(generator.runtime)

    def _states(self, generator: Generator) -> Iterable[Metric]:
        runtime = generator.runtime
        node = runtime.node
        obstacles = generator.obstacles()
        yield _gauge(
            "up",
            "Whether the ring serves; after the head, whether this rank does its part.",
            float(generator.serving),
        )
        causes = Counts((why.cause.value,) for why in obstacles)
        yield _gauge("obstacles", "What keeps the ring from serving, by cause.", causes, ["cause"])
        there = {node.rank} | {
            rank for rank, purpose, _ in runtime.links() if purpose is Purpose.CONTROL
        }
        # Ranks after the head are linked with the head, and not all with each other.
        seen = range(node.world) if node.rank == 0 else (0, node.rank)
        yield _gauge(
            "rank_up",
            "Whether a rank is there: this one, and those to which it has a control link. The head "
            "knows all ranks, another rank itself and the head.",
            {(str(rank),): float(rank in there) for rank in seen},
            ["rank"],
        )
        yield _gauge(
            "roster_expires_seconds",
            "Time until the roster expires and all links end; negative after that.",
            seconds_left(node.roster.roster, wall_ms()),
        )
        yield _gauge("roster_serial", "The roster in force.", node.roster.roster.serial)
        term = node.roster.roster.mandate.term
        yield _gauge("head_term", "The election of the present head; 0 without one.", term)
        yield _gauge(
            "head_leads",
            "1 on the head while it may answer: no other can have been elected.",
            float(node.leads(trio.current_time())),
        )
        yield _counter(
            "engine_restarts",
            "Engines of this node that ended and were replaced.",
            runtime.engine.restarts,
        )

    def _links(self, runtime: Runtime) -> Iterable[Metric]:
        moved = {("sent",): runtime.bytes_sent, ("received",): runtime.bytes_received}
        yield _counter("link_bytes", "Bytes over this node's links.", moved, ["direction"])
        rtts = {
            (str(rank), purpose.name.lower()): link.keepalive.rtt
            for rank, purpose, link in runtime.links()
            if link.keepalive.rtt is not None
        }
        yield _gauge("link_rtt_seconds", "A PING, there and back.", rtts, ["rank", "purpose"])


class _RingCollector(Collector):
    """What the head knows at the moment."""

    def __init__(self, head: ApiHead) -> None:
        self._head = head
        self._generator = head.generator
        self._runtime = head.generator.runtime

    def collect(self) -> Iterable[Metric]:
        """The families, with their values now."""
        yield from self._lives()
        yield from self._rows()
        yield from self._steps()
        yield from self._links()
        yield from self._ranks()

    def _lives(self) -> Iterable[Metric]:
        node = self._runtime.node
        if node.rank == 0:
            yield _counter("epochs", "Epochs begun.", node.standing().epoch.counter)
        if (tls := self._head.tls) is not None:
            yield _gauge(
                "tls_certificate_expires_seconds",
                "Time until the API's certificate expires; negative after that.",
                tls.seconds_left,
            )

    def _rows(self) -> Iterable[Metric]:
        rows = {(state,): count for state, count in count_rows(self._generator.tracer).items()}
        yield _gauge("rows", "Choices under way, by state.", rows, ["state"])
        waiting, running = count_requests(self._generator.tracer)
        yield _gauge(
            "requests_waiting", "Requests that have come and wait, be it to be read.", waiting
        )
        yield _gauge(
            "requests_running",
            "Requests whose prompt is read in, or whose answer is made.",
            running,
        )

    def _steps(self) -> Iterable[Metric]:
        counted = self._head.metrics
        yield _counter("tokens", "Tokens generated.", counted.generated)
        yield _counter(
            "guessed_tokens",
            "Tokens guessed for requests that are over, by outcome.",
            {("accepted",): self._runtime.accepted, ("rejected",): self._runtime.rejected},
            ["outcome"],
        )
        steps = {(work,): count for work, (count, _) in counted.steps.items()}
        yield _counter("steps", "Steps round the ring.", steps, ["work"])
        seconds = {(work,): us * _US for work, (_, us) in counted.steps.items()}
        yield _counter("step_seconds", "Time of steps.", seconds, ["work"])
        spent = {
            (str(number), phase): us * _US
            for number, rank in enumerate(counted.ranks)
            for phase, us in rank.items()
        }
        yield _counter(
            "rank_seconds",
            "What each rank did with steps: compute, wait (for its device), seal.",
            spent,
            ["rank", "phase"],
        )
        yield _counter(
            "sample_seconds",
            "The head's closing pass: norm, output head, sampling.",
            counted.sample_us * _US,
        )

    def _links(self) -> Iterable[Metric]:
        yield _counter(
            "key_updates",
            "Keys that the head's links have gone through.",
            self._head.key_updates(),
        )

    def _ranks(self) -> Iterable[Metric]:
        node = self._runtime.node
        standing = node.standing()
        if node.rank == 0:
            workers = node.roster.roster.workers
            inside = {(str(rank),): float(rank in node.ring) for rank in workers}
            yield _gauge("rank_in_ring", "1 if the rank is in the ring.", inside, ["rank"])
            chosen = {rank for rank, each in standing.outside.items() if each.chosen}
            spare = {(str(rank),): float(rank in chosen) for rank in workers}
            yield _gauge(
                "rank_spare",
                "1 if the rank is there, and left out because the ring is faster without it.",
                spare,
                ["rank"],
            )
        known = self._runtime.facts().progress
        shares = [
            known[rank].cache / ready.room
            for rank, ready in standing.ready.items()
            if ready.room and rank in known
        ]
        yield _gauge(
            "kv_cache_usage_ratio",
            "Part of the memory for caches that is taken, on the rank with the least left; 0 to 1.",
            min(1.0, max(shares, default=0.0)),
        )
        memory: dict[tuple[str, ...], float] = {}
        fetched: dict[tuple[str, ...], float] = {}
        for rank, progress in known.items():
            memory |= {(str(rank), "all"): progress.memory, (str(rank), "caches"): progress.cache}
            fetched |= {
                (str(rank), "all"): progress.fetch_bytes,
                (str(rank), "here"): progress.here,
            }
        yield _gauge("rank_memory_bytes", "Memory of each rank's engine.", memory, ["rank", "of"])
        yield _gauge(
            "rank_fetch_bytes",
            "Weights of each rank while it fetches some of them: all, and what is here; else 0.",
            fetched,
            ["rank", "of"],
        )
        yield _counter(
            "rank_starved_seconds",
            "Time that each rank's engine was ready to run and had no processor, or waited for "
            "memory to be read back from disk.",
            {(str(rank),): progress.starved_us * _US for rank, progress in known.items()},
            ["rank"],
        )


async def metrics(request: Request) -> Response:
    """``GET /metrics``."""
    head: ApiHead = request.app.state.head
    return await head.metrics.page.answer()


SAMPLES: Final = 300
"""The number of samples that are kept, one for each second."""


@attrs.frozen
class Sample:
    """One second: tokens generated and read in, requests waiting and being read in, rows that
    decode, and the mean of a hop in microseconds (None without a step)."""

    at_ms: int
    tokens: int
    prompt_tokens: int
    queued: int
    prefilling: int
    decoding: int
    hop_us: float | None


class History:
    """Takes a sample of *metrics* each second."""

    def __init__(self, metrics: Metrics) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._metrics = metrics
        self._before = (0, 0, 0, 0.0)  # what was counted at the last sample

    def sample(self, tracer: Tracer, now_ms: int) -> None:
        """A second is over."""
        rows, counted = count_rows(tracer), self._metrics
        now = counted.generated, counted.read, counted.hops, counted.hop_us
        tokens, read, hops, hop_us = map(sub, now, self._before)
        self._before = now
        hop = round(hop_us / hops, 1) if hops else None
        states = rows["queued"], rows["prefill"], rows["decode"]
        self.samples.append(Sample(now_ms, tokens, read, *states, hop))

    def columns(self) -> dict[str, list[Any]]:
        """The samples by column, the oldest first."""
        return columns(self.samples)


def columns(samples: Collection[Sample]) -> dict[str, list[Any]]:
    """*samples* by column."""
    names = [field.name for field in attrs.fields(Sample)]
    return {name: [getattr(sample, name) for sample in samples] for name in names}


def count_rows(tracer: Tracer) -> dict[str, int]:
    """How many choices wait, are read in, and decode."""
    counts = {"queued": 0, "prefill": 0, "decode": 0}
    for trace in tracer.live:
        if trace.state in counts:
            counts[trace.state] += trace.choices
    return counts


def count_requests(tracer: Tracer) -> tuple[int, int]:
    """How many requests wait (to be read, or in the queue), and how many have begun."""
    running = sum(trace.state in ("prefill", "decode") for trace in tracer.live)
    return len(tracer.live) - running, running
