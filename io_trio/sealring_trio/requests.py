"""What the control socket of a node answers: `generate` on the head, `status` on every rank."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import trio
from sealring_model.errors import LoadError
from sealring_model.tokens import Tokenizer

from sealring_trio.config import Config
from sealring_trio.control import Reply
from sealring_trio.errors import OperationError, UserError
from sealring_trio.generation import generate, read_request
from sealring_trio.runtime import Runtime
from sealring_trio.status import describe_node


class Requests:
    """Answers the clients of one node. The tokenizer is loaded once, in a thread."""

    def __init__(self, runtime: Runtime, config: Config, model: Path) -> None:
        self._runtime = runtime
        self._config = config
        self._model = model
        self._loading = trio.Lock()
        self._tokenizer: Tokenizer | None = None

    async def answer(self, request: dict[str, Any], reply: Reply) -> None:
        """Answer *request* by calls of *reply*. Raises `UserError` or `OperationError`."""
        match request.get("do"):
            case "status":
                await reply({"event": "status", **describe_node(self._runtime, self._model)})
            case "generate":
                asked = read_request(request)
                self._check_head()
                tokenizer = await self.tokenizer()
                await self._runtime.informed.wait()
                await generate(self._runtime, tokenizer, asked, reply)
            case other:
                raise UserError(f"the node does not know '{other}'", "It knows: generate, status.")

    def _check_head(self) -> None:
        node = self._runtime.node
        if node.rank:
            head = node.roster.roster.members[0].name
            raise OperationError(
                f"this node is rank {node.rank}, which takes no requests",
                f"Ask on the machine of the head, {head}.",
            )

    async def warm_up(self) -> None:
        """Have the tokenizer ready before the first request; a fault is told to who asks."""
        if not self._runtime.node.rank:
            with contextlib.suppress(OperationError):
                await self.tokenizer()

    async def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, loaded when it is first asked for. Raises `OperationError`."""
        async with self._loading:
            if self._tokenizer is None:
                try:
                    self._tokenizer = await trio.to_thread.run_sync(partial(Tokenizer, self._model))
                except LoadError as error:
                    raise OperationError(str(error), "Fetch the model again.") from None
            return self._tokenizer
