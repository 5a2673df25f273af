"""Streams of a ring that survive a broken connection. Needs httpx2 and nothing else.

    from sealring_client import RingClient

    with RingClient(["http://desk:7480", "http://mac:7480"], "KEY") as ring:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me a story."}]}
        for event in ring.stream("/v1/chat/completions", body):
            for choice in event["choices"]:
                print(choice["delta"].get("content", ""), end="", flush=True)

A request has an ``Idempotency-Key``, by which the ring makes its answer though the connection
breaks, and each event has a number. `ResumableStream` comes back by itself, and asks for what
follows the last event that it has: none is missing or comes twice. It asks where that came from,
and then the next URL if there are several; after a silence, the next at once. Another machine gives
the rest only to a client with an API key: without keys, the clients of each machine are callers of
their own. Where nobody has begun to answer, the request goes to each URL once; where somebody has,
and no event has come yet, it is sent again with its key. An answer that is not wanted any more is
withdrawn.

A server that numbers no events is asked, too; its broken streams are lost.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import httpx2

RESUME_SECONDS: Final = 60.0
"""Seconds for which a stream that broke is gone on with; a ring makes its answer for as long."""

SILENCE_SECONDS: Final = 90.0
"""Silence after which a connection is given up."""

KEEPALIVE: Final = "x-sealring-keepalive"
"""The header of a stream that says after how many seconds a ring breaks its silence."""

MISSED: Final = 2
"""How often a ring may fail to, before another URL is asked."""

HURRY_SECONDS: Final = 4.0
"""How long a machine may be silent at first that is asked for the rest, where others have it, too.
After each time in vain it has twice as long."""

CONNECT_SECONDS: Final = 10.0
HURRY_CONNECT_SECONDS: Final = 3.0
"""How long to connect may take at most where there is another URL: time for two tries."""

WITHDRAW_SECONDS: Final = 3.0
FIRST_PAUSE: Final = 0.1
LAST_PAUSE: Final = 2.0
"""Seconds before the first try to come back, and before each after the sixth."""

MAX_LINE: Final = 16 << 20
"""Bytes of one line of a stream; more is no event of this API."""

MAX_REPLY: Final = 4 << 20
"""Bytes of an error."""

_FIELDS: Final = (":", "data:", "event:", "id:", "retry:")
_DATA: Final = "data: "
_ID: Final = "id: "
_DONE: Final = "[DONE]"
_GONE: Final = "%s went away in the middle of the answer"
_LAST: Final = (
    "error",
    "message_stop",
    "response.completed",
    "response.incomplete",
    "response.failed",
)
"""The types of events that end a stream."""

_AGAIN: Final = (408, 429, 500, 502, 503, 504, 529)


class StreamRefused(Exception):
    """A server answered with an error: its *status* and its *body*."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the server answered {status}: {body[:1000].decode(errors='replace')}")
        self.status = status
        self.body = body


class StreamLost(Exception):
    """A stream broke, and cannot be resumed."""


def _nothing(_: str = "") -> None:
    """Nobody wants to hear."""


class RingClient:
    """A client of a ring whose API is at each of *urls*, with an API *key* if one is needed, or an
    answer is to go on at another of them; *verify* as httpx2 has it."""

    def __init__(
        self,
        urls: str | Sequence[str],
        key: str = "",
        *,
        resume_seconds: float = RESUME_SECONDS,
        verify: Any = True,
    ) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        several = not isinstance(urls, str) and len(urls) > 1
        connect = HURRY_CONNECT_SECONDS if several else CONNECT_SECONDS
        timeout = httpx2.Timeout(SILENCE_SECONDS, connect=connect)
        self._seconds = resume_seconds
        self._clients = [
            httpx2.Client(
                base_url=url.rstrip("/").removesuffix("/v1"),
                headers={"accept-encoding": "identity", **headers},
                timeout=timeout,
                verify=verify,
                trust_env=False,
            )
            for url in ([urls] if isinstance(urls, str) else urls)
        ]

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of the answer to *body* at *path*, as JSON says them. Raises `StreamRefused`,
        `StreamLost`, or `httpx2.TransportError` if nobody is reached."""
        return ResumableStream(self._clients, path, body, seconds=self._seconds).events()

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ResumableStream:
    """The answer to *body*, which asks for a stream, at *path* of any of *clients*. *headers* go
    with each request. *seconds* is how long it may take to come back. *silent* hears each comment
    that breaks the silence, and *broken* who did not go on with the answer, in words."""

    def __init__(
        self,
        clients: Sequence[httpx2.Client],
        path: str,
        body: Mapping[str, Any],
        *,
        seconds: float = RESUME_SECONDS,
        headers: Mapping[str, str] | None = None,
        timeout: Any = None,
        silent: Callable[[], None] = _nothing,
        broken: Callable[[str], None] = _nothing,
    ) -> None:
        self.name = f"sealring-{secrets.token_hex(8)}"
        """What the request is called (``x-request-id``), to find it while nothing has come."""

        self._clients = clients
        self._path = path
        self._body = {**body, "stream": True}
        self._seconds = seconds
        self._headers = {
            **(headers or {}),
            "idempotency-key": secrets.token_urlsafe(24),
            "x-request-id": self.name,
        }
        self._more = {} if timeout is None else {"timeout": timeout}
        self._silent = silent
        self._broken = broken
        self._at = 0  # the client that is asked
        self._source = 0  # the one from which the last event came
        self._stopped = False  # it has been silent for too long, or is not reached
        self._waits = 0  # in vain for who has the rest, since the stream broke
        self._left = 0  # requests that were given up: each may yet take the answer over
        self._last = ""  # the id of the last event
        self._answered = False  # somebody has begun to
        self._begun = False
        self._over = False

    def events(self) -> Generator[dict[str, Any]]:
        """The events; once. Closing the iterator withdraws the request. Raises as
        `RingClient.stream`, and `ValueError` if what comes is no stream of events."""
        try:
            yield from self._events()
            self._over = True
        except (StreamRefused, StreamLost, httpx2.HTTPError):
            self._over = True  # or nobody is there to hear of it
            raise
        finally:
            if not self._over:
                self._withdraw()

    def _events(self) -> Generator[dict[str, Any]]:
        end, tries = 0.0, 0  # since it broke
        while True:
            before, url = self._last, _base(self._client)
            why = yield from self._connection()
            if self._over:
                return
            if self._last == before or self._stopped:  # else it is there that the rest is
                self._at += 1
            if self._begun and not self._last:  # its events have no numbers
                raise why
            if not self._answered:
                if self._at >= len(self._clients):
                    raise why
                continue
            now = time.monotonic()
            if self._last != before or not end:
                end, tries, self._waits = now + self._seconds, 0, 0
            if now >= end:
                raise StreamLost(
                    f"{_words(why, url)}, and nobody had the rest of the answer"
                ) from why
            self._broken(_words(why, url))
            time.sleep(min(LAST_PAUSE, FIRST_PAUSE * 2**tries))
            tries += 1

    def _connection(self) -> Generator[dict[str, Any], None, Exception]:
        """The events that come on one connection; returns why it ended."""
        begun = self._stopped = False
        try:
            with self._asked() as response:
                begun = response.status_code == 200
                if begun:
                    self._answered = True
                    self._hurry(response)
                    yield from self._heard(response)
                    return StreamLost(_GONE % _base(self._client))
                refused = StreamRefused(response.status_code, _whole(response))
        except httpx2.TransportError as error:
            self._stopped = isinstance(error, httpx2.TimeoutException)
            self._waits += self._stopped
            self._left += not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            if not begun:
                return error
            lost = StreamLost(_GONE % _base(self._client))
            lost.__cause__ = error
            return lost
        if refused.status == 404 and self._last:
            raise StreamLost(self._forgotten()) from refused
        if refused.status not in _AGAIN:
            raise refused
        return refused

    @property
    def _client(self) -> httpx2.Client:
        return self._clients[self._at % len(self._clients)]

    def _forgotten(self) -> str:
        """Why who is asked has nothing of the answer."""
        source = self._clients[self._source]
        known = {*source.headers, *map(str.lower, self._headers)}
        if self._client is source or known & {"authorization", "x-api-key"}:
            return "the ring has the rest of the answer no longer"
        return f"without an API key only {_base(source)} gives the rest of the answer"

    def _asked(self) -> contextlib.AbstractContextManager[httpx2.Response]:
        """The answer to the request, or to what asks for the rest."""
        more = self._more
        if self._answered and len(self._clients) > 1:
            silence = min(SILENCE_SECONDS, HURRY_SECONDS * 2**self._waits)
            more = {"timeout": httpx2.Timeout(silence, connect=HURRY_CONNECT_SECONDS)}
        if not self._last:
            return self._client.stream(
                "POST", self._path, json=self._body, headers=self._headers, **more
            )
        headers = {"last-event-id": self._last}
        path = f"/v1/streams/{self._answer}"
        return self._client.stream("GET", path, headers=headers, **more)

    def _hurry(self, response: httpx2.Response) -> None:
        """Have *response* end after a silence that a ring would have broken, if there is another
        to ask."""
        seconds = response.headers.get(KEEPALIVE, "")
        if len(self._clients) > 1 and seconds.isascii() and seconds.isdecimal():
            silence = min(SILENCE_SECONDS, MISSED * max(1.0, float(seconds)))
            response.request.extensions["timeout"]["read"] = silence

    @property
    def _answer(self) -> str:
        return self._last.rpartition(":")[0]

    def _heard(self, response: httpx2.Response) -> Iterator[dict[str, Any]]:
        """The events of *response*. One that is only of this connection ends it."""
        name = ""
        for line in lines(response):
            if line.startswith(":"):
                self._silent()
            elif line.startswith(_ID):
                name = line.removeprefix(_ID)
            elif line.startswith(_DATA):
                event: dict[str, Any] = event_of(line) or {}
                if event.get("resumable") is True and self._returns(line):
                    return
                self._begun = True
                if line == _DATA + _DONE:
                    self._over = True
                    return
                self._last, self._source = name, self._at % len(self._clients)
                kind = event.get("type", "error" if "error" in event else "")
                self._over = kind in _LAST
                yield event
                if self._over:
                    return

    def _returns(self, line: str) -> bool:
        """Whether to come back after the event in *line*, which ends this connection: not if the
        answer is somebody else's now."""
        if "taken_over" not in line:
            return True
        self._left -= 1
        return self._left >= 0

    def _withdraw(self) -> None:
        """Have the ring make the answer no further, and keep nothing of it."""
        place = f"streams/{self._answer}" if self._last else f"requests/{self.name}"
        with (
            contextlib.suppress(httpx2.HTTPError),
            self._client.stream("DELETE", f"/v1/{place}", timeout=WITHDRAW_SECONDS),
        ):
            pass  # what it says matters to nobody, and may have no end


def lines(response: httpx2.Response) -> Iterator[str]:
    """The lines of a stream of events. Only a line feed ends one: an answer may hold what else
    Unicode has for that (U+2028, U+0085), which `httpx2.Response.iter_lines` cuts at too. Raises
    `ValueError` for a line that is too long, or none of an event."""
    begun = bytearray()
    for data in response.iter_raw():
        *whole, rest = data.split(b"\n")
        for line in whole:
            text = (begun + line).decode("utf-8", "replace").rstrip("\r")
            if text and not text.startswith(_FIELDS):
                raise ValueError("a line is none of an event")
            yield text
            begun.clear()
        begun += rest
        if len(begun) > MAX_LINE:
            raise ValueError("a line is too long")


def event_of(line: str) -> dict[str, Any] | None:
    """The event in a *line* of a stream; None for a line that has none."""
    if not line.startswith(_DATA) or line == _DATA + _DONE:
        return None
    event: dict[str, Any] = json.loads(line.removeprefix(_DATA))
    return event


def _base(client: httpx2.Client) -> str:
    return str(client.base_url).rstrip("/")


def _words(error: Exception, url: str) -> str:
    """What came of asking *url*, which ended with *error*, in words; the error has the details."""
    match error:
        case StreamLost():
            return str(error)
        case StreamRefused():
            return f"{url} answered {error.status}"
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            reason = str(error).rpartition("] ")[2] or "no answer in time"  # without its number
            return f"{url} is not reached ({reason})"
        case httpx2.TimeoutException():
            return f"{url} says nothing any more"
    return f"{url} went away"


def _whole(response: httpx2.Response) -> bytes:
    """The body of an error. Raises `ValueError` if it is too long."""
    data = bytearray()
    for piece in response.iter_raw():
        data += piece
        if len(data) > MAX_REPLY:
            raise ValueError("it says too much")
    return bytes(data)
