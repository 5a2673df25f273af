"""The page at ``/``, its files below ``/dashboard/``, and the events that feed it.

The files need no key and reveal nothing; what the page shows comes from the API, with the key of
whoever looks at it.

A page that holds an API key must not run what others wrote, and a model may write anything. So
scripts and styles come from its own files alone, nothing is loaded from elsewhere, no text is ever
taken for markup, and no other page may frame it: `POLICY` has the browser enforce all of it. Its
scripts may make one policy of trusted types, ``sealring``, which begins the worker that reads
Markdown.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from functools import partial
from hashlib import sha256
from itertools import islice
from mimetypes import guess_type
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from sealring.dialects.errors import unavailable
from sealring.dialects.replies import event
from sealring.generation.trace import Trace
from sealring.http import state
from sealring.http.bodies import ClientGone, EventStream, attended
from sealring.http.connections import counted
from sealring.http.gate import Caller
from sealring.http.head import ApiHead
from sealring.http.metrics import Sample, columns

FILES: Final = Path(__file__).parent / "static"

POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types sealring",
    ]
)

PERIOD: Final = 1.0
"""Seconds between two events."""

SOON: Final = 0.1
"""Seconds until an event, if a machine knocks or somebody decides about one."""

MAX_LISTENERS: Final = 128
"""Most streams at once."""

MAX_LISTENERS_OF_ONE: Final = 16
"""Most streams of one account."""

PAST: Final = 12
"""Requests that are over in one event at most."""

_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # A newer sealring has newer files of the same names: the browser asks each time.
    "cache-control": "no-cache",
}


def routes() -> list[BaseRoute]:
    """The page, to be mounted in the head's app."""
    return [*files(), Route("/v1/cluster/events", Events(), methods=["GET"])]


def files() -> list[BaseRoute]:
    """The page's files alone."""
    given = _Files()
    return [Route("/", given.page), Mount("/dashboard", given)]


class _Files:
    """The files, which are read once. No disk or thread is asked for a stranger's request."""

    def __init__(self) -> None:
        paths = [path for path in FILES.rglob("*") if path.is_file()]
        self._files = {
            f"/dashboard/{path.relative_to(FILES).as_posix()}": _read(path) for path in paths
        }

    async def page(self, request: Request) -> Response:
        """``GET /``."""
        return self._answer(request, "/dashboard/index.html")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``GET /dashboard/...``."""
        request = Request(scope)
        if request.method not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        await self._answer(request, scope["path"])(scope, receive, send)

    def _answer(self, request: Request, path: str) -> Response:
        if (file := self._files.get(path)) is None:
            raise HTTPException(404)
        content, headers = file
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)


def _read(path: Path) -> tuple[bytes, dict[str, str]]:
    """What the file at *path* has, and the headers of its answer."""
    content, kind = path.read_bytes(), guess_type(path.name)[0] or "text/plain"
    kind += "; charset=utf-8" if kind.startswith("text/") else ""
    tag = f'"{sha256(content).hexdigest()[:32]}"'
    return content, {**_HEADERS, "content-type": kind, "etag": tag}


class Events:
    """The endpoint of ``/v1/cluster/events``: a stream with the state of the ring every second, and
    as soon as a machine knocks or somebody has decided about one.

    Each server-sent event has the ring as ``/v1/cluster`` has it, the samples since the last event,
    and the requests that have ended since, latest first. The first event has the last minutes, and
    the latest few requests. Nothing is repeated, so an event costs one second's worth of data. It
    is made once for all who listen.
    """

    def __init__(self) -> None:
        self._listeners: Counter[str] = Counter()
        self._news = News()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Feed one listener. Raises `ApiError` if there are too many."""
        head: ApiHead = scope["app"].state.head
        caller: Caller = scope["state"]["visitor"]
        stream = EventStream(send)
        if scope["method"] == "HEAD":
            await stream.open()
            await stream.close()
            return
        account = caller.account
        if self._listeners[account] >= MAX_LISTENERS_OF_ONE:
            text = f"{MAX_LISTENERS_OF_ONE} pages of yours are being fed already: close some."
            raise unavailable(text, "overloaded")
        if self._listeners.total() >= MAX_LISTENERS:
            raise unavailable(f"{MAX_LISTENERS} pages are being fed already.", "overloaded")
        with counted(self._listeners, account), contextlib.suppress(ClientGone):
            await attended(receive, partial(self._feed, head, caller, stream))

    async def _feed(self, head: ApiHead, caller: Caller, stream: EventStream) -> None:
        """Feed *stream* until *head* stops, or *caller* may not stay."""
        has = Seen()
        await stream.open()
        while caller.may_stay(head):
            changed = head.newcomers.changed()
            news, has = self._news.since(has, head)
            await stream.write(news)
            if head.generator.draining:
                break
            with trio.move_on_after(PERIOD):
                await changed.wait()
                await trio.sleep(SOON)
        await stream.close()


@attrs.frozen
class Seen:
    """What a listener has been sent: the samples until one, and the requests that had ended by
    then."""

    sampled_ms: int = 0
    ended: float = -math.inf


@attrs.define
class News:
    """The news, as they were at one moment of the last second, and the events that were
    made of it: one for all who have seen the same."""

    _taken: float = -math.inf
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _cluster: dict[str, Any] = attrs.field(factory=dict)
    _samples: list[Sample] = attrs.field(factory=list)
    _over: list[Trace] = attrs.field(factory=list)
    _latest: Seen = Seen()
    _events: dict[Seen, bytes] = attrs.field(factory=dict)

    def since(self, has: Seen, head: ApiHead) -> tuple[bytes, Seen]:
        """The event for a listener who *has* seen so much, and what he has seen with it."""
        fresh = SOON if self._changed.is_set() else PERIOD
        if trio.current_time() >= self._taken + fresh:
            self._take(head)
        if has not in self._events:
            samples = [each for each in self._samples if each.at_ms > has.sampled_ms]
            over = [each for each in self._over if (each.ended or 0.0) > has.ended]
            self._events[has] = event(
                {
                    "cluster": self._cluster,
                    "samples": columns(samples),
                    "over": [trace.describe() for trace in over],
                }
            )
        return self._events[has], self._latest

    def _take(self, head: ApiHead) -> None:
        """Take down how the ring is now."""
        self._taken = trio.current_time()
        self._changed = head.newcomers.changed()
        self._events.clear()
        self._cluster = state.describe(head)
        self._samples = list(head.history.samples)
        latest = islice(head.generator.tracer.latest, PAST)
        self._over = [trace for trace in latest if trace.ended is not None]
        self._latest = Seen(
            self._samples[-1].at_ms if self._samples else 0,
            (self._over[0].ended or 0.0) if self._over else -math.inf,
        )
