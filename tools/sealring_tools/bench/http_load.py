"""Many chat requests at once, by a client that takes as little of the processor as it can.

What is measured shares its cores with whoever measures. So this client only collects bytes while
answers come, and reads them afterwards: HTTP's framing, the events of the stream, and the tokens
that its last event counts. Each request has a connection of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final

import attrs
import h11
import httpx2
import trio
from sealring_client import event_of
from sealring_trio.errors import OperationError

ANSWER_SECONDS: Final = 600.0
"""Seconds that all the answers together may take."""

_READ: Final = 1 << 16


@attrs.frozen
class Burst:
    """Requests that were sent at once: the *tokens* that came, in so many *seconds*."""

    tokens: int
    seconds: float

    @property
    def pace(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def burst(url: str, bodies: Sequence[dict[str, Any]]) -> Burst:
    """Send each of *bodies*, a chat request, to the API at *url*, all at once. The time is from the
    first byte sent to the last one received. Raises `OperationError`."""
    at = httpx2.URL(url)
    requests = [_request(at, {**_STREAMED, **body}) for body in bodies]
    began = time.perf_counter()
    try:
        answers = trio.run(_all, at.host, at.port, requests)
    except* OSError as errors:
        raise OperationError(f"{url} broke off: {errors.exceptions[0]}", "See its log.") from None
    except* trio.TooSlowError:
        late = f"{url} did not answer within {ANSWER_SECONDS:g} s"
        raise OperationError(late, "Ask for fewer tokens.") from None
    seconds = time.perf_counter() - began
    return Burst(sum(map(count_tokens, answers)), seconds)


_STREAMED: Final = {"stream": True, "stream_options": {"include_usage": True}}


def _request(at: httpx2.URL, body: dict[str, Any]) -> bytes:
    http, data = h11.Connection(h11.CLIENT), json.dumps(body).encode()
    headers = [
        ("host", f"{at.host}:{at.port}"),
        ("connection", "close"),
        ("content-type", "application/json"),
        ("content-length", str(len(data))),
    ]
    start = h11.Request(method="POST", target="/v1/chat/completions", headers=headers)
    parts = [http.send(event) for event in (start, h11.Data(data=data), h11.EndOfMessage())]
    return b"".join(part or b"" for part in parts)


async def _all(host: str, port: int | None, requests: Sequence[bytes]) -> list[bytes]:
    answers = [b""] * len(requests)

    async def one(number: int) -> None:
        answers[number] = await _answer(host, port, requests[number])

    with trio.fail_after(ANSWER_SECONDS):
        async with trio.open_nursery() as nursery:
            for number in range(len(requests)):
                nursery.start_soon(one, number)
    return answers


async def _answer(host: str, port: int | None, request: bytes) -> bytes:
    parts = []
    async with await trio.open_tcp_stream(host, port or 80) as stream:
        await stream.send_all(request)
        while data := await stream.receive_some(_READ):
            parts.append(data)
    return b"".join(parts)


def count_tokens(answer: bytes) -> int:
    """The tokens that *answer* says it has: the bytes of a streamed HTTP response. Raises
    `OperationError` if it is none, or an error."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("host", "-")]))
    http.send(h11.EndOfMessage())
    body, status = bytearray(), 0
    try:
        http.receive_data(answer)
        http.receive_data(b"")
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif not isinstance(event, h11.Event):
                raise OperationError("an answer ended early", "See the server's log.")
    except h11.RemoteProtocolError as error:
        raise OperationError(f"an answer is not HTTP: {error}", "See the server's log.") from None
    text = body.decode(errors="replace")
    if status != httpx2.codes.OK:
        raise OperationError(f"a request was refused: {status}: {text[:300]}", "See its log.")
    told = [each for line in text.splitlines() if (each := event_of(line)) is not None]
    counts = [each["usage"]["completion_tokens"] for each in told if each.get("usage")]
    if not counts:
        raise OperationError(f"an answer counts no tokens: {text[-300:]}", "See the server's log.")
    return int(counts[-1])
