"""``POST /v1/messages/count_tokens``: how long a prompt is, without an answer."""

from __future__ import annotations

import contextlib
from functools import partial

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from sealring_trio.api.errors import text_errors, timed_out
from sealring_trio.api.fields import headers_of
from sealring_trio.api.gate import Caller
from sealring_trio.api.head import ApiHead
from sealring_trio.api.streaming import ClientGone, attended


class CountTokens:
    """The ASGI endpoint: the tokens of a prompt, counted by making it."""

    def __init__(self, head: ApiHead) -> None:
        self._head = head

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        head, caller = self._head, scope["state"]["visitor"]
        with contextlib.suppress(ClientDisconnect, ClientGone):
            body = await head.bodies.read(Request(scope, receive), caller.account)
            head.check_serving()
            told = await attended(receive, partial(_count, head, body, caller))
            await JSONResponse(told)(scope, receive, send)


async def _count(head: ApiHead, body: bytes, caller: Caller) -> dict[str, int]:
    about = {"models": head.models}
    with trio.move_on_after(head.config.timeout), text_errors(caller.id):
        told, _ = await head.generator.texts.run("count", about, body, caller.account)
        caller.told.update(headers_of(told))
        return {"input_tokens": int(told["tokens"])}
    raise timed_out(head.config.timeout)
