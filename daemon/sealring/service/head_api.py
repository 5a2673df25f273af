"""The HTTP API of a node: what it needs, and serving it at whatever rank.

The head answers by itself, and every other node passes requests on to it (`http.relay`). A newer
roster may make another member the head while the ring runs: then the two change over, and neither
closes its port. A node keeps one `ApiHead` for its life, so its counters go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from sealring_model.text.tokens import has_chat_template
from sealring_protocol.diagnosis import Cause
from sealring_protocol.security.roles import Purpose
from sealring_trio.errors import UserError
from sealring_trio.fetching.members import Pause
from sealring_trio.files.models import model_name
from sealring_trio.node import service as node_service
from sealring_trio.node.service import NodeSetup
from sealring_trio.units import format_address, is_loopback, is_unspecified, wall_ms

from sealring.dialects.errors import ApiError, no_majority, unavailable
from sealring.files.cluster import read_coordinator_key
from sealring.files.config import Config
from sealring.files.models import NO_TEMPLATE, check_text
from sealring.generation.generation import Generator
from sealring.generation.status import describe_trouble
from sealring.http.keys import KEY_FILE, read_keys
from sealring.http.settings import keep, told, used
from sealring.http.tls import read_pair
from sealring.joining.door import Door

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from sealring.http.head import ApiHead
    from sealring.http.http1 import ApiServer
    from sealring.http.tls import Tls

log = logging.getLogger("sealring")


def prepare(config: Config, pause: Pause | None = time.sleep) -> NodeSetup[Config]:
    """As `sealring_trio.node.service.prepare`, and check the coordinator's key, where it lies here,
    and what a head alone needs. Raises `UserError`."""
    setup = node_service.prepare(config, pause)
    if config.coordinator_key is not None:
        _check_coordinator_key(config.coordinator_key, setup)
    if setup.roster.roster.rank(setup.identity.id) == 0:
        check_text(setup.model)
        check_api(config)
        if not has_chat_template(setup.model):
            log.warning(NO_TEMPLATE)
    return setup


def _check_coordinator_key(path: Path, setup: NodeSetup[Config]) -> None:
    """Raise `UserError` unless the key at *path* signs rosters. One from before a change of the
    coordinator keeps no node from beginning: the change came without a hand on this machine."""
    roster = setup.roster.roster
    try:
        read_coordinator_key(path, roster.coordinator(setup.identity.coordinator))
    except UserError as error:
        if roster.appointment is None:
            raise
        log.warning("%s. %s", error.what, error.advice)


def check_api(config: Config) -> None:
    """Raise `UserError` when the API would listen beyond loopback without a key, at the address
    that is for other nodes, or cannot speak the TLS that *config* asks for."""
    if config.api is None:
        return
    if config.listen[1] == config.api[1] and (
        config.listen[0] == config.api[0] or is_unspecified(config.listen[0])
    ):
        raise UserError(
            f"{config.path}: 'listen' and 'api' are one address, {format_address(*config.api)}",
            "Other nodes dial 'listen', and clients 'api': give each a port of its own, as 7470 "
            "and 7480.",
        )
    if config.tls is not None:
        read_pair(*config.tls)
    if is_loopback(config.api[0]):
        return
    if not read_keys(config.state / KEY_FILE).keys:
        raise UserError(
            f"{config.path}: the API listens beyond loopback, at "
            f"{format_address(*config.api)}, and there are no API keys",
            f"The head needs one of its own: sealring apikey new NAME --config {config.path}",
        )


def head_fault(config: Config, model: Path) -> Callable[[], str]:
    """What says what would keep the node of *config* from serving as the head, and what to do;
    nothing if nothing would. It reads keys and certificates each time, but the *model*'s tokenizer
    now alone: a large one keeps the GIL for 20 ms."""
    text = _fault(partial(check_text, model))
    return lambda: text or _fault(partial(check_api, config))


def _fault(check: Callable[[], None]) -> str:
    try:
        check()
    except UserError as error:
        return f"{error.what}. {error.advice}"
    return ""


_NO_LINK: Final = "the link to the head (%s) is coming up, unless its config says api = 'off'"

_DRAIN_LOOK: Final = 0.05  # seconds between looks at what is still under way
_LAST_SECONDS: Final = 1.0  # for clients to take why their answers end


class NodeApi:
    """Serves the API of *generator*'s node as *config* says: as the head, or at another rank by
    passing requests on to it. Newcomers knock at *door*."""

    def __init__(self, generator: Generator, config: Config, door: Door) -> None:
        # An import that a node's start does not wait for.
        from sealring.http.front import Front  # noqa: PLC0415
        from sealring.http.records import AnswerRecords  # noqa: PLC0415 - as above
        from sealring.http.relay import RelayedRequests, RelayStreams  # noqa: PLC0415 - as above
        from sealring.http.succession import Ring  # noqa: PLC0415 - as above

        self._generator = generator
        self._runtime = generator.runtime
        self._config = config
        self._door = door
        self._tls: Tls | None = None
        self._head: ApiHead | None = None  # once the node has been the head
        self._head_app: ASGIApp | None = None  # which it has then
        self._page_app: ASGIApp | None = None  # once somebody has looked at it without a head
        self._led = False
        self._settings = b""  # which a head has told, and that are not kept yet
        self._untold = ""  # why this head tells none, if it does not
        self._nursery: trio.Nursery | None = None  # while it runs
        self._server: ApiServer | None = None  # while it listens
        self._streams = RelayStreams(self._runtime.node.relay, self._runtime.send_relayed)
        self._runtime.relayed = self._streams.hear
        self.records = AnswerRecords()
        self.records.settled = self._settled
        self.ring = Ring(self.records, self._leading)
        self._members = RelayedRequests(self._streams, self._app, self._name_of, self.ring.tell)
        self._front = Front(
            self._streams,
            lambda: self._config,
            self._is_head,
            self._app,
            lambda: self._name_of(0),
            lambda: generator.refusal,
            self._why_not,
            self._page,
            self._patience,
            self.records.encoded,
            lambda: self._name_of(self._runtime.node.rank),
            lambda: self._runtime.node.cut_off(trio.current_time()),
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Raises `UserError` or `OperationError` if the node is the head
        from the start and cannot serve. Later, and at another rank, such an error is only logged:
        the ring runs on."""
        # An import that a node's start does not wait for.
        from sealring.http.succession import hear_of_answers  # noqa: PLC0415

        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self._is_head() and self._config.api is not None:
                check_api(self._config)
                await self._listen(nursery, self._config.api)
                self._led = True
            task_status.started()
            nursery.start_soon(self._members.serve)
            nursery.start_soon(self._sample)
            nursery.start_soon(self.records.run)
            nursery.start_soon(hear_of_answers, self._streams, self.records)
            while True:
                changed = self._runtime.roster_changed
                self._front.turned()
                await self._follow(nursery)
                await changed.wait()

    @property
    def app(self) -> ASGIApp | None:
        """What it serves; None if its config says that it has no API."""
        return None if self._config.api is None else self._front

    async def finish(self, seconds: float) -> None:
        """Let the requests that are passed on finish, for *seconds* at most, and end the rest. The
        generator refuses new ones, and waits for those that this node answers."""
        if self._is_head():
            return
        await self._passed_on(seconds)
        if left := self._front.under_way:
            log.warning("requests that are still passed on are ended: %d", left)
        text = f"The answer ends before it is complete: {self._generator.refusal}."
        self._front.end_all(unavailable(text, "shutting_down"))
        await self._passed_on(_LAST_SECONDS)

    async def _passed_on(self, seconds: float) -> None:
        """Wait until no request is passed on, for *seconds* at most."""
        with trio.move_on_after(seconds):
            while self._front.under_way:  # noqa: ASYNC110 - as in `drain`
                await trio.sleep(_DRAIN_LOOK)

    async def close(self) -> None:
        """Stop listening, and let the connections end."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def reread(self, config: Config) -> None:
        """From now on with what *config* says of `REREAD`, and with the pair that the files of its
        certificate hold. Keys are read again at each request."""
        self._config = config
        self._use_settings()
        if self._tls is not None:
            await self._tls.look()

    def _use_settings(self) -> None:
        """Have the head's app, if there is one, go by the config as it is, or by what the head
        before has told."""
        if self._head is None:
            return
        config = self._config
        try:
            config = used(config, first=self._is_first)
        except UserError as error:
            log.warning("this node goes by its own config: %s. %s", error.what, error.advice)
        self._head.config = config
        self._generator.sample_as(own=config.sampling == "model")

    def _tell_settings(self) -> None:
        """Have the successors know what the next head needs, as it is now."""
        if self._head is None:
            return
        try:
            data = told(self._head.config, self._head.keys)
        except UserError as error:
            if error.what != self._untold:
                log.warning("the next head is told no settings: %s. %s", error.what, error.advice)
            self._untold = error.what
            return
        self._untold = ""
        if data != self.records.settings:
            self.records.settle(data)

    async def _keep_settings(self) -> None:
        """Keep what the head has told of its settings, if that is new."""
        data, self._settings = self._settings, b""
        if not data:
            return
        try:
            await trio.to_thread.run_sync(keep, self._config.state, data)
        except UserError as error:
            log.warning("the head's settings are not kept: %s. %s", error.what, error.advice)
        except ValueError as error:
            log.warning("the head's settings are not kept: %s", error)

    def _settled(self, data: bytes) -> None:
        self._settings = data

    @property
    def _is_first(self) -> bool:
        """Whether this node is the first of its roster's own order."""
        node = self._runtime.node
        return node.roster.roster.index(node.rank) == 0

    def _is_head(self) -> bool:
        return self._runtime.node.rank == 0

    @property
    def _relayed(self) -> str:
        """What becomes of requests at another rank; the head's name is to go in."""
        node = self._runtime.node
        if node.roster.roster.members[node.rank].sees_texts:
            return "what is asked there is passed on to the head, %s"
        return "the roster lets this machine see no texts: what is asked there is for the head, %s"

    def _name_of(self, rank: int) -> str:
        return self._runtime.node.roster.roster.members[rank].name

    async def _follow(self, nursery: trio.Nursery) -> None:
        """Listen, if the node does not yet, and take up the part of its present rank."""
        address, leads, led = self._config.api, self._is_head(), self._led
        self._led = leads
        if leads and not led:
            await self._keep_settings()
            self.records.leave_all()
            nursery.start_soon(self.ring.take_up)
        if led and not leads and self._head is not None:
            self._head.answers.move()
        if address is None:
            if leads:
                log.info("this node is the head, and its config says api = 'off': it has no API")
            return
        if led and not leads:
            text = "this node is the head no more; its API passes requests on to %s"
            log.info(text, self._name_of(0))
        try:
            if self._server is None:
                await self._listen(nursery, address)
                if not leads:
                    log.info(self._relayed, self._name_of(0))
            elif leads and not led:
                log.info("this node is the head now, and its API answers by itself")
            if leads:
                check_api(self._config)
                self._app()
                if not led:
                    self._use_settings()
        except UserError as error:
            what = "is the head now, and serves no API" if leads else "serves no API"
            mend = "Mend that, and start it again"
            log.warning("this node %s: %s. %s. %s", what, error.what, mend, error.advice)

    async def _listen(self, nursery: trio.Nursery, address: tuple[str, int]) -> None:
        """Listen at *address*. Raises `UserError` or `OperationError`."""
        from sealring.http.http1 import ApiServer  # noqa: PLC0415 - as above
        from sealring.http.tls import Tls  # noqa: PLC0415 - as above

        if self._tls is None and self._config.tls is not None:
            self._tls = Tls.read(*self._config.tls)
        if self._is_head():
            self._app()
        server = ApiServer(address, self._front, self._tls)
        await nursery.start(server.run)
        self._server = server
        self._warn(address[0])

    def _warn(self, host: str) -> None:
        """Log who may ask without a key, at an API on *host*. Raises `UserError` if the keys cannot
        be read."""
        head, config = self._head, self._config
        if not is_loopback(host) or (head is not None and head.keys_needed):
            return
        if head is not None and head.keys.made:
            log.warning(
                "it asks for no key on loopback, as the config says: whoever reaches this "
                "address has the API, through a proxy too"
            )
        keys = "there are no keys" if head is not None else "the head may ask for no keys"
        for name, allowed in (
            ("allowed_hosts", config.hosts),
            ("allowed_origins", config.origins),
        ):
            if allowed.everyone:
                log.warning(
                    '%s = ["*"], and %s: every web page that a browser on this '
                    "machine opens can use the API. Make a key (sealring apikey new), or name "
                    "those that may",
                    name,
                    keys,
                )

    def _patience(self) -> float:
        """Seconds that a request waits for the next head: none where nobody else may be it."""
        from sealring.http.front import NEXT_HEAD_SECONDS  # noqa: PLC0415 - as above

        return NEXT_HEAD_SECONDS if len(self._runtime.node.roster.roster.heads) > 1 else 0.0

    def _app(self) -> ASGIApp:
        """What answers as the head, for clients of this machine and of others."""
        if not self._is_head():
            return _not_head
        if self._head_app is None:
            # Imports that only a head pays for.
            from sealring.dashboard.pages import routes  # noqa: PLC0415
            from sealring.http.app import build_app  # noqa: PLC0415
            from sealring.http.head import ApiHead  # noqa: PLC0415
            from sealring.http.http1 import most_connections  # noqa: PLC0415
            from sealring.http.keys import ApiKeys  # noqa: PLC0415
            from sealring.service.newcomers import NewcomersApi, newcomers_at  # noqa: PLC0415

            self._head = ApiHead(
                self._generator,
                self._config,
                model_name(self._generator.model),
                ApiKeys(self._config.state / KEY_FILE),
                self._tls,
                newcomers_at(self._door),
                records=self.records,
            )
            self._use_settings()
            if self._nursery is not None:
                self._nursery.start_soon(self._head.answers.run)
            pages = [*NewcomersApi(self._door, self._config).routes(), *routes()]
            app = build_app(self._head, pages, most_connections(), self.ring.hurry)
            self._head_app = self.ring.beside(app)
        return self._head_app

    def _leading(self) -> ApiHead | None:
        """The API's state if this node is the head; else None."""
        self._app()
        return self._head if self._is_head() else None

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The files of the page, where the head cannot give them."""
        if self._page_app is None:
            # Only who looks at the page needs them.
            from starlette.applications import Starlette  # noqa: PLC0415

            from sealring.dashboard.pages import files  # noqa: PLC0415

            self._page_app = Starlette(routes=files())
        await self._page_app(scope, receive, send)

    def _why_not(self) -> ApiError | None:
        """The error if no request can be passed on, or this head may not answer; None if one
        can."""
        runtime, now = self._runtime, trio.current_time()
        node, name = runtime.node, self._name_of(0)
        if not node.rank:
            return no_majority(why) if (why := node.why_unled(now)) else None
        if not node.roster.roster.members[node.rank].sees_texts:
            text = f"The roster does not let this machine see texts. Ask the head, {name}."
            error = unavailable(text, "no_texts")
            error.headers = {"x-should-retry": "false"}  # a roster says so, and lasts
            return error
        if self._streams.up:
            return None
        found = [
            (each.text(now), each.advice)
            for each in self._generator.obstacles()
            if each.cause is Cause.NO_MAJORITY or (each.rank == 0 and not each.from_head)
        ] or [
            (each["text"], each["advice"])
            for each in describe_trouble(runtime.facts(), 0, now)
            if each["link"] == Purpose.API.name.lower()
        ]
        why = "; ".join(text for text, _ in found) or _NO_LINK % name
        advice = " ".join(dict.fromkeys(advice for _, advice in found if advice))
        text = f"No request can be passed on: {why}. {advice}"
        return unavailable(text.rstrip(), "no_head")

    async def _sample(self) -> None:
        while True:
            await trio.sleep(1.0)
            await self._keep_settings()
            if self._head is not None and self._is_head():
                self._tell_settings()
                self._head.key_updates()
                self._head.history.sample(self._generator.tracer, wall_ms())


async def _not_head(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a member that asked when this node had just become a follower."""
    raise unavailable("This node is the head no more.", "not_head")
