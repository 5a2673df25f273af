"""``GET /v1/models``: the one model, under each of its names."""

from __future__ import annotations

from typing import Any

from sealring_model.loading.model_folder import NO_LIMIT
from sealring_trio.errors import OperationError
from starlette.requests import Request
from starlette.responses import JSONResponse

from sealring.api.errors import no_model
from sealring.api.head import ApiHead


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
        tokenizer = await head.generator.tokenizer()
    except OperationError:
        return None
    return {
        "chat": True,
        "completion": True,
        # in-words: the template has none, and the model may not keep to what it is told
        "tools": "in-words" if tokenizer.in_words else "template",
        "reasoning": bool(tokenizer.think[0]),
        "reasoning_effort": tokenizer.takes("reasoning_effort"),
        "fill_in_the_middle": tokenizer.fill_in is not None,
        "logprobs": True,
        "structured_output": True,
        "embeddings": False,
        "vision": False,
        "audio": False,
    }
