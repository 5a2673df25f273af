"""OpenTelemetry's metrics of generative AI, by their names in Prometheus: dots become underscores,
and the unit comes last (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/).

Dashboards that are made for any server of models find them here. Buckets and attributes are those
that the convention asks for. Each request is counted when it is over. A request with several
choices has one first token, and its time for each further token is the mean over its choices.
"""

from __future__ import annotations

from typing import Final

import attrs
from prometheus_client import CollectorRegistry, Histogram

from sealring.daemon.trace import Trace

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
