"""Gives a running node another model, and the old one back if that cannot be served.

A model is part of all that a node has made: its engine, its caches, its tokenizer, what it says of
itself. So the node ends in good order inside its process (requests finish, links close), and begins
anew with the other model; what is told to the control socket meanwhile waits here. Other nodes see
one that was started again.

Each node of a ring is told by its own person. The ring serves again once all have the same model.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

import trio
from sealring_model.errors import LoadError
from sealring_model.loading.model_store import check_whole
from sealring_protocol.diagnosis import Obstacle, first_permanent
from sealring_trio.errors import OperationError, UserError
from sealring_trio.node.setup import NodeSetup

from sealring.files.config import Config
from sealring.generation.generation import Generator
from sealring.generation.status import describe_node
from sealring.service.control import Reply
from sealring.service.requests import Requests

log = logging.getLogger("sealring")

LOOK_SECONDS: Final = 0.25
DEATHS: Final = 2
"""Engines that may die before the new model is given up."""

OTHERS_SECONDS: Final = 10.0
"""Seconds for which the other ranks of a ring are waited for once the old model is back."""

_QUESTION: Final = {"do": "generate", "prompt": "Hello.", "max_tokens": 1}


class ModelSwitch:
    """Answers the control socket of a node across its lives, and says which life is next.

    *prepare* reads and checks all that a config names. It may take long, and raise `UserError`.
    """

    def __init__(self, prepare: Callable[[Config], NodeSetup[Config]]) -> None:
        self._prepare: Final = prepare
        self.lives = 0
        self._generator: Generator | None = None
        self._requests: Requests | None = None
        self._setup: NodeSetup[Config] | None = None
        self._began = trio.Event()
        self._answers: set[trio.CancelScope] = set()
        self._scope: trio.CancelScope | None = None  # of what is changed now
        self._ended = ""  # why the last life ended at once
        self.leave = trio.Event()
        """Set when the present life is to end; then `next` is the one after it."""
        self.next: NodeSetup[Config] | None = None

    def begin(self, setup: NodeSetup[Config], generator: Generator) -> None:
        """A life with *setup* has begun."""
        self.lives += 1
        self._setup, self._generator, self._requests = setup, generator, Requests(generator)
        self.next, self.leave = None, trio.Event()
        self._began.set()

    def over(self) -> None:
        """The present life is over, and nobody will answer what was asked in it."""
        for scope in self._answers:
            scope.cancel()

    def failed(self, errors: BaseExceptionGroup[UserError]) -> None:
        """The life that was next did not begin, because of *errors*."""
        found: BaseException = errors
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        self._ended = found.what if isinstance(found, UserError) else str(found)
        log.warning("the node cannot begin with another model: %s", self._ended)

    def stop(self) -> None:
        """The node stops: there is no next life."""
        self.next = None
        if self._scope is not None:
            self._scope.cancel()

    async def answer(self, request: dict[str, Any], reply: Reply) -> None:
        """Answer *request* of the control socket. Raises `UserError` or `OperationError`."""
        if request.get("do") == "use":
            await self._use(request, reply)
        elif self._requests is None or self.leave.is_set():
            raise OperationError("this node is about to begin", "Ask again soon.")
        else:
            await self._answer(self._requests, request, reply)

    async def _answer(self, requests: Requests, request: dict[str, Any], reply: Reply) -> None:
        """Answer *request* while this life lasts."""
        scope = trio.CancelScope()
        self._answers.add(scope)
        try:
            with scope:
                await requests.answer(request, reply)
        finally:
            self._answers.discard(scope)
        if scope.cancelled_caught:
            raise OperationError("the node ended this, to stop or to change", "Ask again.")

    # ---------------------------------------------------------------- another model

    async def _use(self, request: dict[str, Any], reply: Reply) -> None:
        model, seconds = request.get("model"), request.get("seconds")
        if not isinstance(model, str) or not isinstance(seconds, int | float):
            raise UserError("the request names no model", "See: sealring model use --help")
        old, generator = self._setup, self._generator
        if old is None or generator is None or self._scope is not None or self.leave.is_set():
            raise OperationError("this node is about to change or stop", "Ask again soon.")

        async def tell(line: dict[str, Any]) -> None:
            with contextlib.suppress(trio.BrokenResourceError):  # the change goes on without it
                await reply(line)

        # Whoever asked may leave; what has begun is ended in good order all the same.
        self._scope = trio.CancelScope(shield=True)
        try:
            with self._scope:
                await tell(await self._changed(old, generator, model, seconds, tell))
                return
        finally:
            self._scope = None
        raise OperationError("the node was stopped meanwhile", "Start it with the model it needs.")

    async def _changed(
        self, old: NodeSetup[Config], generator: Generator, model: str, seconds: float, tell: Reply
    ) -> dict[str, Any]:
        """Change from *old* to *model*. What to answer; raises `UserError` if *old* has stayed, or
        is back."""
        await tell({"event": "waiting", "text": f"describing {model}"})
        alone = generator.runtime.node.world == 1
        new = await trio.to_thread.run_sync(
            self._described, old.config, model, alone, abandon_on_cancel=True
        )  # a hub may be slow, and the node is to stop at once
        log.info("from now on with another model: %s", model)
        await tell({"event": "waiting", "text": "finishing what is under way"})
        if await self._live(new):
            try:
                why = await self._served(seconds, tell, alone=alone)
            except OperationError as error:
                fault = error.what
            else:
                return {"event": "done", "model": model, "serving": not why, "why": why}
            log.warning("back to the model %s: %s", old.config.model, fault)
            await tell({"event": "waiting", "text": f"{fault}; going back"})
            await self._live(old)
        else:
            fault = f"the node cannot begin with it: {self._ended}"
        again = await self._again(seconds if alone else min(seconds, OTHERS_SECONDS), tell)
        raise OperationError(
            f"{model} cannot be served: {fault}",
            f"The node has {old.config.model} again, and {again}.",
        )

    async def _again(self, seconds: float, tell: Reply) -> str:
        """Wait for *seconds* until the old model serves; whether it does, in words."""
        try:
            why = await self._served(seconds, tell, alone=False)
        except OperationError as error:
            why = [error.what]
        return f"the ring does not serve yet: {'; '.join(why)}" if why else "it serves"

    def _described(self, config: Config, model: str, alone: bool) -> NodeSetup[Config]:
        """The setup with *model*. Raises `UserError`."""
        if config.adapter is not None:
            raise UserError(
                f"{config.path} has an adapter, which is for the model that it names",
                "Stop the node, and start it with a config for the other model.",
            )
        new = self._prepare(config.model_copy(update={"model": model}))
        if alone:
            try:
                check_whole(new.model)
            except LoadError as error:
                raise UserError(str(error), "Then ask again.") from None
        return new

    async def _live(self, setup: NodeSetup[Config]) -> bool:
        """End the present life, and wait for that of *setup* to begin. False if it did not, and the
        one before has begun again."""
        self._began, self._ended = trio.Event(), ""
        self.next = setup
        self.leave.set()
        await self._began.wait()
        return not self._ended

    async def _served(self, seconds: float, tell: Reply, *, alone: bool) -> list[str]:
        """Wait for *seconds* until this life serves; why it does not, if that is for others to
        mend. Raises `OperationError` if this rank cannot."""
        generator, requests = self._generator, self._requests
        if generator is None or requests is None:
            raise OperationError("the node did not begin again", "See its log.")
        runtime, told = generator.runtime, ""
        why: list[str] = []
        with trio.move_on_after(seconds):
            while not generator.serving:
                if runtime.refused:
                    raise OperationError(runtime.refused, "")
                if (own := _own_obstacle(generator)) is not None:
                    raise OperationError(own.what, "")
                if runtime.engine.restarts >= DEATHS:
                    raise OperationError(f"its engine died: {runtime.engine.lost}", "")
                status = describe_node(runtime, generator.model, generator.leaving)
                why = [str(each["text"]) for each in status["why"]]
                if (text := "; ".join(why)) and text != told:
                    told = text
                    await tell({"event": "waiting", "text": text})
                await trio.sleep(LOOK_SECONDS)
            if runtime.node.rank == 0:
                await requests.answer(_QUESTION, _unheard)
            return []
        if alone:
            raise OperationError(f"it did not serve within {seconds:g} s: {'; '.join(why)}", "")
        return why or ["it has not answered yet"]


def _own_obstacle(generator: Generator) -> Obstacle | None:
    """What lasts of what keeps the ring from serving and is no other rank's; None if nothing."""
    own = (o for o in generator.obstacles() if o.rank is None and not o.from_head)
    return first_permanent(tuple(own))


async def _unheard(_: dict[str, Any]) -> None:
    """Takes an answer that nobody reads."""
