"""The lives of a node: which model each has, and how it changes from one to the next.

A model is part of all that a node has made: its engine, its caches, its tokenizer, what it says of
itself. So a node has one life for each model that it is given. A life ends in good order inside the
process (requests finish, links close), and the next begins with the other model, or with the old
one if the other cannot be served; what the owner asks meanwhile waits. Other nodes see one that was
started again.

A life may also have no model and no engine: that of a witness. It begins when a roster makes the
node one, and ends when a roster makes it a rank again (`ModelSwitch.follow_rights`).

Each node of a ring is changed by its own person. The ring serves again once all have one model.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from sealring_model.errors import LoadError
from sealring_model.loading.model_store import check_whole
from sealring_protocol.diagnosis import Obstacle, first_permanent
from sealring_trio.errors import OperationError, UserError
from sealring_trio.fetching.members import Pause
from sealring_trio.node.service import NodeSetup, needs_no_engine
from starlette.types import ASGIApp, Receive, Scope, Send

from sealring.files.config import REREAD, Config, load_config
from sealring.generation.generation import Generator
from sealring.generation.status import describe_node
from sealring.service.head_api import NodeApi
from sealring.service.requests import GenerateFields, Requests, UseFields, read_fields
from sealring.service.verification import Reply

log = logging.getLogger("sealring")

LOOK_SECONDS: Final = 0.25
"""Seconds between two looks at whether another model serves."""

DEATHS: Final = 2
"""Engines that may die before the new model is given up."""

OTHERS_SECONDS: Final = 10.0
"""Seconds for which the other ranks of a ring are waited for once the old model is back."""

_QUESTION: Final = GenerateFields(prompt="Hello.", max_tokens=1)


class ModelSwitch:
    """Answers the owner of a node across its lives, and says which life is next.

    *prepare* reads and checks all that a config names, as `head_api.prepare` does. It may take
    long, and raise `UserError`.
    """

    def __init__(self, prepare: Callable[[Config, Pause | None], NodeSetup[Config]]) -> None:
        self._prepare: Final = prepare
        self.lives = 0
        self._followed = 0  # the serial of the last roster for which a life was ended
        self._generator: Generator | None = None
        self._requests: Requests | None = None
        self._api: NodeApi | None = None
        self._setup: NodeSetup[Config] | None = None
        self._began = trio.Event()
        self._scope: trio.CancelScope | None = None  # of what is changed now
        self._ended = ""  # why the last life ended at once
        self._reread: Config | None = None  # the config's file, as it was read again last
        self.leave = trio.Event()
        """Set when the present life is to end; then `next` is the one after it."""
        self.next: NodeSetup[Config] | None = None

    def begin(self, setup: NodeSetup[Config], generator: Generator, api: NodeApi) -> None:
        """A life with *setup* has begun."""
        self.lives += 1
        self._setup, self._generator, self._requests = setup, generator, Requests(generator)
        self._api = api
        self.next, self.leave = None, trio.Event()
        self._began.set()

    def present(self) -> Generator | None:
        """The generator of the present life, or of the one before while the next begins."""
        return self._generator

    def over(self) -> None:
        """The present life is over, and nobody will answer what was asked in it."""
        if self._requests is not None:
            self._requests.over()

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

    def reread_into(self, config: Config) -> Config:
        """*config*, with what its file was found to say when it was read again."""
        return config if self._reread is None else config.reread(self._reread)

    async def reread(self) -> None:
        """Read the config and the certificate again. What is wrong is logged, and changes
        nothing."""
        setup, api = self._setup, self._api
        if setup is None or api is None:
            return  # what has not begun reads them as they are
        running = self.reread_into(setup.config)
        try:
            now = await trio.to_thread.run_sync(load_config, running.path, running.strategy)
        except UserError as error:
            log.warning(
                "SIGHUP: the node goes on with the config that it has: %s. %s",
                error.what,
                error.advice,
            )
        else:
            self._reread = now
            changed = running.differing(now)
            taken = [name for name in changed if name in REREAD]
            log.info("SIGHUP: the config is read again; changed: %s", ", ".join(taken) or "nothing")
            if later := [name for name in changed if name not in REREAD]:
                log.warning("changes of %s count from the node's next start", ", ".join(later))
        await api.reread(self.reread_into(setup.config))

    async def follow_rights(self) -> None:
        """End the present life, and have another begin, once a roster makes this node a witness or
        a rank that needs an engine. Until cancelled."""
        setup, generator = self._setup, self._generator
        if setup is None or generator is None:
            raise RuntimeError("no life has begun")
        while True:
            changed = generator.runtime.roster_changed
            roster = generator.runtime.node.roster.roster
            witness = needs_no_engine(roster, setup.identity.id)
            fits = setup.is_witness if witness else setup.has_engine
            if not fits and roster.serial != self._followed:
                self._followed = roster.serial
                what = "a witness, without an engine" if witness else "a rank, with an engine"
                log.info("roster %d makes this node %s", roster.serial, what)
                following = setup.without_engine() if witness else await self._as_rank(setup)
                while self._scope is not None:  # noqa: ASYNC110  the owner's change comes first
                    await trio.sleep(LOOK_SECONDS)
                if not self.leave.is_set():
                    self.next = following
                    self.leave.set()
            await changed.wait()

    async def _as_rank(self, setup: NodeSetup[Config]) -> NodeSetup[Config]:
        """The same node with an engine; if there can be none, with what is lacking for it. The
        config may have been given a model since the node began."""

        def prepared() -> NodeSetup[Config]:
            config = setup.config
            model = config.model or load_config(config.path, config.strategy).model
            return self._prepare(config.model_copy(update={"model": model}), _pause)

        try:
            return await trio.to_thread.run_sync(prepared, abandon_on_cancel=True)
        except UserError as error:
            log.warning("this node has no engine: %s. %s", error.what, error.advice)
            return setup.without_engine(error.what)

    def answer(self, name: str, body: bytes, reply: Reply) -> Awaitable[None]:
        """Answer the request *name*. Raises `UserError` or `OperationError`."""
        if name == "use":
            return self._use(read_fields(UseFields, body, "model use"), reply)
        if self._requests is None or self.leave.is_set():
            raise OperationError("this node is about to begin", "Ask again soon.")
        return self._requests.answer(name, body, reply)

    def api(self) -> ASGIApp | None:
        """The app of the API that this life serves, if it serves one."""
        app, requests = None if self._api is None else self._api.app, self._requests
        if app is None or requests is None:
            return None

        async def living(scope: Scope, receive: Receive, send: Send) -> None:
            with contextlib.suppress(OperationError), requests.living():
                await app(scope, receive, send)

        return living

    async def _use(self, asked: UseFields, reply: Reply) -> None:
        old, generator = self._setup, self._generator
        if old is None or generator is None or self._scope is not None or self.leave.is_set():
            raise OperationError("this node is about to change or stop", "Ask again soon.")
        if old.is_witness:
            name = generator.runtime.node.roster.roster.members[generator.runtime.node.rank].name
            raise UserError(
                f"'{name}' is a witness, which has no model",
                f"Make it a rank first: sealring machines rights {shlex.quote(name)} --no-witness",
            )
        # Whoever asked may leave; what has begun is ended in good order all the same.
        self._scope = trio.CancelScope(shield=True)
        try:
            with self._scope:
                await reply(await self._changed(old, generator, asked, reply))
                return
        finally:
            self._scope = None
        raise OperationError("the node was stopped meanwhile", "Start it with the model it needs.")

    async def _changed(
        self, old: NodeSetup[Config], generator: Generator, asked: UseFields, reply: Reply
    ) -> dict[str, Any]:
        """Change from *old* to the model that is *asked* for. What to answer; raises `UserError` if
        *old* has stayed, or is back."""
        model, seconds = asked.model, asked.seconds
        await reply({"event": "waiting", "text": f"describing {model}"})
        alone = generator.runtime.node.world == 1
        new = await trio.to_thread.run_sync(
            self._described, old.config, model, alone, abandon_on_cancel=True
        )  # a hub may be slow, and the node is to stop at once
        log.info("from now on with another model: %s", model)
        await reply({"event": "waiting", "text": "finishing what is under way"})
        if await self._live(new):
            try:
                why = await self._served(seconds, reply, alone=alone)
            except OperationError as error:
                fault = error.what
            else:
                return {"event": "done", "model": model, "serving": not why, "why": why}
            log.warning("back to the model %s: %s", old.config.model, fault)
            await reply({"event": "waiting", "text": f"{fault}; going back"})
            await self._live(old)
        else:
            fault = f"the node cannot begin with it: {self._ended}"
        again = await self._again(seconds if alone else min(seconds, OTHERS_SECONDS), reply)
        raise OperationError(
            f"{model} cannot be served: {fault}",
            f"The node has {old.config.model} again, and {again}.",
        )

    async def _again(self, seconds: float, reply: Reply) -> str:
        """Wait for *seconds* until the old model serves; whether it does, in words."""
        try:
            why = await self._served(seconds, reply, alone=False)
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
        new = self._prepare(config.model_copy(update={"model": model}), None)
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

    async def _served(self, seconds: float, reply: Reply, *, alone: bool) -> list[str]:
        """Wait for *seconds* until this life serves; why it does not, if that is for others to
        mend. Raises `OperationError` if this rank cannot."""
        generator, requests = self._generator, self._requests
        if generator is None or requests is None:
            raise OperationError("the node did not begin again", "See its log.")
        runtime, reported = generator.runtime, ""
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
                if (text := "; ".join(why)) and text != reported:
                    reported = text
                    await reply({"event": "waiting", "text": text})
                await trio.sleep(LOOK_SECONDS)
            if runtime.node.rank == 0:
                await requests.generate(_QUESTION, _unheard)
            return []
        if alone:
            raise OperationError(f"it did not serve within {seconds:g} s: {'; '.join(why)}", "")
        return why or ["it has not answered yet"]


def _pause(seconds: float) -> None:
    """Wait for *seconds* in a thread, or until nobody waits for it any more."""
    time.sleep(seconds)
    trio.from_thread.check_cancelled()


def _own_obstacle(generator: Generator) -> Obstacle | None:
    """What lasts of what keeps the ring from serving and is no other rank's; None if nothing."""
    own = (o for o in generator.obstacles() if o.rank is None and not o.from_head)
    return first_permanent(tuple(own))


async def _unheard(_: dict[str, Any]) -> None:
    """Takes an answer that nobody reads."""
