"""Whether the head serves, which models it has, and how many tokens a text has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio
from sealring_model.loading.model_folder import NO_LIMIT
from sealring_protocol.security.roles import Purpose
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.rosters import left
from sealring_trio.units import wall_ms
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from sealring.dialects.errors import ApiError, no_model, text_errors
from sealring.dialects.fields import headers_of
from sealring.http.gate import Caller
from sealring.http.head import ApiHead
from sealring.http.history import count_rows
from sealring.http.responses import earlier, with_items
from sealring.http.streaming import ClientGone, attended

# ---------------------------------------------------------------------- health
# Whether the head can answer requests now, and if not, why.
#
# A rank's node answers PING whatever its engine does. A link on which nothing came for longer
# than `patience` in the config (at least `PING_TIMEOUT`) is dead, so a ring that serves has heard
# from every rank within that time. The head's own engine is asked once a second, and answers
# between its steps.
#
# An answer is brief where the request does not name this server as its host (`gate`).


ENGINE_SECONDS: Final = 15.0
"""The head's own engine must have said something within this; a chunk of prefill may come first."""


def faults(head: ApiHead, why: Sequence[Mapping[str, Any]]) -> list[str]:
    """The reasons that keep the ring from answering; empty if there are none. *why* are its
    obstacles."""
    if why:
        return [obstacle["text"] for obstacle in why]
    try:
        head.check_serving()
    except ApiError as error:
        return [error.message]
    runtime = head.generator.runtime
    told = []
    silence = trio.current_time() - runtime.engine_heard
    if silence > ENGINE_SECONDS:
        told.append(f"rank 0: its engine has said nothing for {silence:.0f} s")
        told += [each["text"] for each in head.starved() if each["rank"] is None]
    up = {rank for rank, purpose, _ in runtime.links() if purpose is Purpose.CONTROL}
    for rank, member in enumerate(runtime.node.roster.roster.members):
        if rank and rank not in up:
            told.append(f"rank {rank} ({member.name}): its control link is down")
    return told


def describe(head: ApiHead) -> tuple[int, dict[str, Any]]:
    """The status, and the body, of ``GET /health``."""
    why = head.why()
    told = faults(head, why)
    node = head.generator.runtime.node
    body = {
        "status": "ok" if not told else "unavailable",
        "ranks": node.world,
        "faults": told,
        "roster": left(node.roster.roster, wall_ms()),
        "why": why,
        "starved": head.starved(),
    }
    return (503 if told else 200), body


async def health(request: Request) -> JSONResponse:
    """``GET /health``."""
    status, body = describe(request.app.state.head)
    if request.state.brief:
        body = {"status": body["status"]}
    headers = {"Retry-After": "1"} if status != 200 else None
    return JSONResponse(body, status, headers)


def not_ready(head: ApiHead) -> list[str]:
    """Why a request that came now would not be answered; empty if it would be."""
    told = faults(head, head.why())
    if head.generator.draining:
        told.append(head.generator.refusal.replace("this node", "the head"))
    try:
        head.keys_needed  # noqa: B018  reads the file
    except UserError as error:
        told.append(error.what)
    waiting = count_rows(head.generator.tracer)["queued"]
    if waiting >= head.config.queue:
        told.append(f"the queue is full: {waiting} choices wait")
    return told


async def readyz(request: Request) -> JSONResponse:
    """``GET /readyz``: whether to send requests here."""
    told = not_ready(request.app.state.head)
    if told:
        body = {"status": "unavailable", "reasons": [] if request.state.brief else told}
        return JSONResponse(body, 503, {"Retry-After": "1"})
    return JSONResponse({"status": "ready", "reasons": []})


async def livez(request: Request) -> JSONResponse:
    """``GET /livez``: whether to let this process live. It does while its event loop answers: what
    keeps a ring from serving is seldom cured by another process."""
    return JSONResponse({"status": "alive"})


# ---------------------------------------------------------------------- models
# ``GET /v1/models``: the one model, under each of its names.


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
        # in-words: the template has none, and the model may not keep to what it is told
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


# ---------------------------------------------------------------------- tokens
# ``POST /tokenize`` and ``/detokenize``, and how many tokens a prompt has (``count_tokens``,
# ``input_tokens``): a text worker does them, within its limits.


class Tokens:
    """The ASGI endpoint of one *job* of `texts.JOBS`, which writes the answer."""

    def __init__(self, head: ApiHead, job: str) -> None:
        self._head = head
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        caller: Caller = scope["state"]["visitor"]
        try:
            body = await self._head.bodies.read(Request(scope, receive), caller.account)
            data = await attended(receive, partial(self._ask, body, caller))
        except (ClientDisconnect, ClientGone):
            return
        await Response(data, media_type="application/json")(scope, receive, send)

    async def _ask(self, body: bytes, caller: Caller) -> bytes:
        head, generator = self._head, self._head.generator
        info = generator.runtime.node.engine_info
        about = {"models": head.models, "context": info.context if info else 0}
        with text_errors(caller.id):
            told, data = await generator.texts.run(self._job, about, body, caller.account)
            if "references" in told:
                before, referred = earlier(head.responses, caller.owner, told)
                body, sizes = with_items(body, before, referred)
                run = generator.texts.run
                told, data = await run(self._job, about | sizes, body, caller.account)
        caller.told.update(headers_of(told))
        return data
