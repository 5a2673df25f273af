"""``POST /tokenize`` and ``/detokenize``, and how many tokens a prompt has (``count_tokens``,
``input_tokens``): a text worker does them, within its limits."""

from __future__ import annotations

from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sealring.api.errors import text_errors
from sealring.api.fields import headers_of
from sealring.api.gate import Caller
from sealring.api.head import ApiHead
from sealring.api.responses import earlier, with_items
from sealring.api.streaming import ClientGone, attended


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
        with self._head.holding(caller.account, len(data)):
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
