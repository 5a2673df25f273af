"""What the head says of itself: whether it serves, the ring's state, its models, and the running
requests with their traces. Names, layers, sizes and times, and never a prompt or an answer.

A rank's node answers PING whatever its engine does. A link on which nothing came for longer than
`patience` in the config (at least `PING_TIMEOUT`) is dead, so a ring that serves has heard from
every rank within that time. The head's own engine is asked once a second, and answers between its
steps. An answer about health is brief where the request does not name this server as its host
(`gate`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

import attrs
import trio
from sealring_model.loading.model_folder import NO_LIMIT
from sealring_protocol.codec.messages import Progress
from sealring_protocol.control.effects import INSIDE, Standing
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Roster
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.config import SUITE_NAMES
from sealring_trio.files.rosters import left
from sealring_trio.node.service import this_build
from sealring_trio.units import wall_ms
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sealring.dialects.errors import ApiError, no_model
from sealring.files.cluster import describe_rights
from sealring.generation.status import (
    collective_of,
    describe_collective,
    describe_costs,
    describe_election,
    describe_fetching,
    describe_guesses,
    describe_roster,
    describe_seals,
    describe_trouble,
    hop_quantiles,
    span,
)
from sealring.generation.trace import Trace, Tracer
from sealring.http.gate import Caller
from sealring.http.head import ApiHead
from sealring.http.metrics import count_rows

_NOTHING: Final = Progress()
_AT_ONCE: Final = 16  # traces that are written before others have their turn

MAX_LIVE: Final = 64
"""Requests under way that the state of the ring has at most."""


def absent(standing: Standing, roster: Roster) -> list[dict[str, Any]]:
    """The members of *roster* that the ring has to go on without, and why."""
    now = trio.current_time()
    return [
        {"rank": rank, "name": roster.members[rank].name, "why": each.text(now)}
        for rank, each in standing.outside.items()
        if not each.chosen
    ]


async def health(request: Request) -> JSONResponse:
    """``GET /health``."""
    head: ApiHead = request.app.state.head
    why = head.why()
    found = [obstacle["text"] for obstacle in why]
    body: dict[str, Any] = {"status": "unavailable" if found else "ok"}
    if not request.state.brief:
        node = head.generator.runtime.node
        body |= {
            "ranks": len(node.ring),
            "degraded": absent(node.standing(), node.roster.roster),
            "faults": found,
            "roster": left(node.roster.roster, wall_ms()),
            "why": why,
            "starved": head.starved(),
        }
    if found:
        return JSONResponse(body, 503, {"Retry-After": "1"})
    return JSONResponse(body)


def not_ready(head: ApiHead) -> list[str]:
    """Why a request that came now would not be answered; empty if it would be."""
    found = [obstacle["text"] for obstacle in head.why()]
    if head.generator.draining:
        found.append(head.generator.refusal.replace("this node", "the head"))
    try:
        head.keys_needed  # noqa: B018  reads the file
    except UserError as error:
        found.append(error.what)
    waiting = count_rows(head.generator.tracer)["queued"]
    if waiting >= head.config.queue:
        found.append(f"the queue is full: {waiting} choices wait")
    return found


async def readyz(request: Request) -> JSONResponse:
    """``GET /readyz``: whether to send requests here."""
    found = not_ready(request.app.state.head)
    if found:
        body = {"status": "unavailable", "reasons": [] if request.state.brief else found}
        return JSONResponse(body, 503, {"Retry-After": "1"})
    return JSONResponse({"status": "ready", "reasons": []})


async def livez(request: Request) -> JSONResponse:
    """``GET /livez``: whether to let this process live. It does while its event loop answers: what
    keeps a ring from serving is seldom cured by another process."""
    return JSONResponse({"status": "alive"})


def describe(head: ApiHead) -> dict[str, Any]:
    """The ring as it is now. Sizes are bytes; times are microseconds unless their name says another
    unit."""
    runtime = head.generator.runtime
    node = runtime.node
    roster = node.roster.roster
    links = node.links()
    standing = node.standing()
    leads = node.rank == 0  # a newer roster may have made another node the head
    plan = standing.plan if leads else None
    known = node.engine_info
    latest = head.history.samples[-1] if head.history.samples else None
    why = head.why()
    strategy = plan.strategy.value if plan else ""
    return {
        "version": this_build().version,
        **describe_roster(roster),
        "head": describe_election(runtime),
        "activations": describe_seals(roster.inner_seal, strategy, collective_of(standing)),
        "suite": next((SUITE_NAMES[link.suite] for _, _, link in links if link.suite), "none"),
        "model": head.model,
        "model_digest": known.model.hex() if known else "",
        "context": 0 if not known or known.context == NO_LIMIT else known.context,
        "state": standing.state if leads else "gathering",
        "epoch": standing.epoch.counter if leads else 0,
        "strategy": strategy,
        "reason": plan.reason if plan else "",
        "collective": describe_collective(standing),
        "healthy": not why,
        "degraded": absent(standing, roster),
        "faults": [obstacle["text"] for obstacle in why],
        "why": why,
        "starved": head.starved(),
        "draining": head.generator.draining,
        "hop_us": hop_quantiles(runtime),
        "guesses": describe_guesses(runtime),
        "guess_ms": describe_costs(standing) if leads else {},
        "draft": None if runtime.drafts is None else runtime.drafts.describe(),
        "rows": count_rows(head.generator.tracer),
        "tokens_per_s": latest.tokens if latest else 0,
        "prompt_tokens_per_s": latest.prompt_tokens if latest else 0,
        "link_bytes": {"sent": runtime.bytes_sent, "received": runtime.bytes_received},
        "key_updates": head.key_updates(),
        "ranks": _ranks(head),
        "requests": [trace.describe() for trace in _first(head.generator.tracer.live)],
        "newcomers": head.newcomers.describe(),
    }


def _first(live: Iterable[Trace]) -> Iterable[Trace]:
    """`MAX_LIVE` of *live*, those that are still being read after all others."""
    return islice(sorted(live, key=lambda trace: trace.submitted is None), MAX_LIVE)


def _ranks(head: ApiHead) -> list[dict[str, Any]]:
    node = head.generator.runtime.node
    standing = node.standing()
    present, ready = standing.present, standing.ready
    plan = standing.plan if node.rank == 0 else None
    links = {(rank, purpose): link for rank, purpose, link in node.links()}
    ring = standing.ring
    summing = collective_of(standing)
    facts, now = head.generator.runtime.facts(), trio.current_time()
    tunnelled = summing is not None and not summing.trusted
    ranks = []
    for rank, member in enumerate(node.roster.roster.members):
        control = links.get((rank, Purpose.CONTROL))
        done = facts.progress.get(rank, _NOTHING)
        place = ring.index(rank) if rank in ring else None
        near = place in (1, len(ring) - 1)
        ranks.append(
            {
                "rank": rank,
                "name": member.name,
                "addresses": list(member.addresses),
                "trust": member.trust.name.lower(),
                "trouble": describe_trouble(facts, rank, now) if rank != node.rank else [],
                "present": rank in present,
                "ready": rank in ready,
                "in_ring": place is not None,
                "outside": standing.outside.get(rank, INSIDE).text(now),
                **describe_rights(member),
                "layers": [] if plan is None or place is None else span(plan.layers(place)),
                "sum_us": ready[rank].sum_us if rank in ready else 0,
                "token_us": ready[rank].token_us if rank in ready else 0,
                "room": ready[rank].room if rank in ready else 0,
                "memory": done.memory,
                "cache": done.cache,
                "rows": done.rows,
                **describe_fetching(done),
                "compute_us": done.compute_us,
                "seal_us": done.seal_us,
                "starved_us": done.starved_us,
                "links": {
                    "control": control is not None,
                    # The head sees its own links; those between others show in the state.
                    "step": (rank, Purpose.STEP) in links if near and not summing else None,
                },
                "tunnel": (rank, Purpose.TUNNEL) in links if near and tunnelled else None,
                "rtt_us": _us(control.keepalive.rtt) if control is not None else None,
            }
        )
    return ranks


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e6, 1)


async def cluster(request: Request) -> JSONResponse:
    """``GET /v1/cluster``; with ``?history=1``, the last minutes second by second too."""
    head: ApiHead = request.app.state.head
    body = describe(head)
    if request.query_params.get("history", "") not in ("", "0"):
        body["history"] = head.history.columns()
    return JSONResponse(body)


def _card(head: ApiHead, name: str) -> dict[str, Any]:
    info = head.generator.runtime.node.engine_info
    context = info.context if info and info.context != NO_LIMIT else None
    return {
        "id": name,
        "object": "model",
        "created": head.began,
        "owned_by": "sealring",
        "root": head.model,
        "context_length": context,
        "max_model_len": context,  # what clients of vLLM look for
        "chat_template": head.has_chat_template,
    }


async def models(request: Request) -> JSONResponse:
    """``GET /v1/models``."""
    head: ApiHead = request.app.state.head
    return JSONResponse({"object": "list", "data": [_card(head, name) for name in head.models]})


async def model(request: Request) -> JSONResponse:
    """``GET /v1/models/{id}``, with what the model can, null if its tokenizer cannot be read; and
    how answers are drawn where a request does not say."""
    head: ApiHead = request.app.state.head
    name = request.path_params["id"]
    if name not in head.models:
        raise no_model(name, head.models)
    more = {"sampling": head.generator.sampling, "capabilities": await _capabilities(head)}
    return JSONResponse(_card(head, name) | more)


async def _capabilities(head: ApiHead) -> dict[str, Any] | None:
    try:
        words = await head.generator.vocabulary()
    except OperationError:
        return None
    return {
        "chat": True,
        "completion": True,
        # in-words: the template has none, and the model may not keep to their description
        "tools": "in-words" if words.in_words else "template",
        "reasoning": bool(words.think[0]),
        "reasoning_effort": words.efforts,
        "fill_in_the_middle": words.fills,
        "logprobs": True,
        "structured_output": True,
        "embeddings": False,
        "vision": False,
        "audio": False,
    }


async def version(request: Request) -> JSONResponse:
    """``GET /version``."""
    return JSONResponse({"version": this_build().version})


@attrs.define
class LiveRequests:
    """``GET /v1/requests``: those under way, then the latest that are over. There may be a
    thousand, so the list is made once for all who ask at the same time."""

    _began: float = -math.inf
    _list: bytes = b""
    _making: trio.Lock = attrs.field(factory=trio.Lock)

    async def answer(self, request: Request) -> Response:
        """The list as it is now, or later."""
        asked = trio.current_time()
        async with self._making:
            if self._began < asked:
                began = trio.current_time()
                self._list = await _listed(request.app.state.head.generator.tracer)
                self._began = began
            return Response(self._list, media_type="application/json")


async def _listed(tracer: Tracer) -> bytes:
    """All requests of *tracer* as JSON; others have their turn after some."""
    written = []
    for number, each in enumerate([*tracer.live, *tracer.latest]):
        if number % _AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        written.append(json.dumps(each.describe()).encode())
    return b'{"object":"list","data":[' + b",".join(written) + b"]}"


async def trace(request: Request) -> JSONResponse:
    """``GET /v1/requests/{id}/trace``: where its time went, and what is done for it now."""
    found = _find(request)[0]
    doing = request.app.state.head.generator.tracer.doing(found)
    return JSONResponse({**found.describe(), "doing": doing})


async def cancel(request: Request) -> Response:
    """``DELETE /v1/requests/{id}``: end a request that is under way."""
    found, *others = _find(request)
    if any(each.ended is None for each in others):
        raise ApiError(
            409,
            f"Several requests under way are called '{found.asked}': name the one to be cancelled "
            "by the id of its answer, which /v1/requests has.",
            "request_ambiguous",
        )
    if found.ended is not None:
        raise ApiError(
            409, f"The request '{found.id}' is over already: {found.outcome}.", "request_over"
        )
    request.app.state.head.generator.withdraw(found)
    return JSONResponse({"id": found.id, "object": "request", "cancelled": True})


def _find(request: Request) -> list[Trace]:
    head: ApiHead = request.app.state.head
    name = request.path_params["id"]
    caller: Caller = request.scope["state"]["visitor"]
    found = head.generator.tracer.find(name, caller.name)
    if not found:
        raise ApiError(404, f"There is no request '{name}', or no longer.", "request_not_found")
    return found
