"""`sealring_client`: streams that go on over connections that break."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any

import attrs
import httpx2
import pytest
import sealring_client
from sealring_client import ResumableStream, RingClient, StreamLost, StreamRefused
from sealring_trio.collective.loopback import free_ports

from tests.api.conftest import Served
from tests.api.test_resume import CHAT, LONG, MESSAGES, RESPONSES, TEXT, asking
from tests.io_trio.strange_head import BREAKS, strange_head
from tests.serving import PATIENCE


@attrs.define
class Cutter:
    """A relay to *target* that cuts each connection after so many bytes of answers, by *cuts*."""

    target: int
    cuts: Iterator[int]
    url: str = ""
    connections: int = 0

    def serve(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = server.accept()
                threading.Thread(target=self._one, args=(near,), daemon=True).start()

    def _one(self, near: socket.socket) -> None:
        left = next(self.cuts)
        self.connections += 1
        with near, socket.create_connection(("127.0.0.1", self.target)) as far:
            threading.Thread(target=_pass_on, args=(near, far), daemon=True).start()
            with contextlib.suppress(OSError):
                while left > 0 and (data := far.recv(min(left, 4096))):
                    near.sendall(data)
                    left -= len(data)
            for end in (near, far):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)


@contextlib.contextmanager
def cutting(team: Served, *sizes: int) -> Iterator[Cutter]:
    """Cuts the first connections after *sizes* bytes, and no other."""
    cuts = itertools.chain(sizes, itertools.repeat(1 << 30))
    cutter = Cutter(int(team.url.rpartition(":")[2]), cuts)
    with socket.create_server(("127.0.0.1", 0)) as server:
        cutter.url = f"http://127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=cutter.serve, args=(server,), daemon=True).start()
        try:
            yield cutter
        finally:
            server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealring_client, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(sealring_client, "LAST_PAUSE", 0.01)


def key_of(team: Served) -> str:
    return str(team.http.headers["authorization"]).removeprefix("Bearer ")


def text_of(events: Any) -> str:
    """The text of *events*."""
    text = ""
    for event in events:
        for choice in event.get("choices", ()):
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        delta = event.get("delta", "")
        text += delta if isinstance(delta, str) else delta.get("text", "")
    return text


@pytest.mark.parametrize("path", [CHAT, TEXT, MESSAGES, RESPONSES])
def test_a_stream_goes_on_over_any_number_of_connections(team: Served, path: str) -> None:
    # In the header, between events and within them; and one that is not reached at all.
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    sizes = [3000, 200, 900, 901, 902, 1000, 0, 1500]
    with cutting(team, *sizes) as cutter, RingClient([nobody, cutter.url], key_of(team)) as ring:
        assert text_of(ring.stream(path, asking(team, path))) == "la" * LONG
        assert cutter.connections == len(sizes) + 1


def test_a_connection_that_breaks_before_the_first_event(team: Served) -> None:
    """A long prompt takes minutes: the answer has begun, and is made once."""
    with cutting(team, 600, 0) as cutter, RingClient(cutter.url, key_of(team)) as ring:
        assert text_of(ring.stream(CHAT, asking(team, CHAT))) == "la" * LONG
        assert cutter.connections == 3
    with cutting(team, 0) as cutter, RingClient(cutter.url, key_of(team)) as ring:
        with pytest.raises(httpx2.TransportError):
            list(ring.stream(CHAT, asking(team, CHAT)))
        assert cutter.connections == 1


def test_a_follower_that_loses_the_head_before_the_first_event() -> None:
    """It says so by an event, which is none of the answer: that goes on at the head."""
    lost = b': keep-alive\n\ndata: {"id": "", "error": {"code": "x"}, "resumable": true}\n\n'
    rest = b'id: chatcmpl-1:0\ndata: {"choices": [{"text": "la"}]}\n\ndata: [DONE]\n\n'
    given, keys = [lost, rest], []

    class Follower(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            keys.append(self.headers["idempotency-key"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(given.pop(0))

        def log_message(self, *_: object) -> None:
            """Not here."""

    with HTTPServer(("127.0.0.1", 0), Follower) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with RingClient(f"http://127.0.0.1:{server.server_port}") as ring:
            assert text_of(ring.stream(TEXT, {})) == "la"
        server.shutdown()
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_the_rest_is_asked_for_where_the_answer_is(team: Served) -> None:
    """At another URL there may be nothing of it."""
    with cutting(team, 4000) as cutter:
        with RingClient([cutter.url, f"{team.url}/none"], key_of(team)) as ring:
            assert text_of(ring.stream(CHAT, asking(team, CHAT))) == "la" * LONG
        assert cutter.connections == 2


def test_who_wants_no_more_withdraws(team: Served) -> None:
    with RingClient(f"{team.url}/v1", key_of(team)) as ring:
        stream = ring.stream(CHAT, asking(team, CHAT, max_tokens=1 << 16))
        name = next(stream)["id"]
        stream.close()
    assert team.trace(name)["state"] == "request_cancelled"
    assert team.http.get(f"/v1/streams/{name}").status_code == 404


def test_what_cannot_be_gone_on_with(team: Served) -> None:
    key = key_of(team)
    with RingClient(team.url, key) as ring:
        with pytest.raises(StreamRefused) as caught:
            list(ring.stream(CHAT, {"model": "none", "messages": []}))
        assert caught.value.status in (400, 404)
        gone = ring.stream(CHAT, asking(team, CHAT, max_tokens=1 << 16))
        name = next(gone)["id"]
        assert team.http.delete(f"/v1/requests/{name}").status_code == 200
        last = list(gone)[-1]
        assert (last["error"]["code"], last["resumable"]) == ("request_cancelled", False)
    with cutting(team, 4000) as cutter, httpx2.Client(base_url=cutter.url) as http:
        http.headers["authorization"] = team.http.headers["authorization"]
        stream = ResumableStream(
            [http],
            CHAT,
            asking(team, CHAT, max_tokens=400),
            broken=lambda _: team.http.delete(f"/v1/streams/{names[0]}"),
        )
        names: list[str] = []
        with pytest.raises(StreamLost, match="no longer"):
            names.extend(event["id"] for event in stream.events())
    with strange_head({"x": ["half", BREAKS]}) as head, RingClient(head.url) as ring:
        events = ring.stream(CHAT, {"messages": [{"content": "x"}]})
        assert next(events)["choices"]
        with pytest.raises(StreamLost):
            next(events)
        assert len(head.asked) == 1
    with RingClient(head.url) as ring, pytest.raises(httpx2.ConnectError):
        list(ring.stream(CHAT, {}))


class Broken(BaseHTTPRequestHandler):
    """A machine that begins an answer, and does not go on."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'id: chatcmpl-1:0\ndata: {"choices": [{"text": "la"}]}\n\n')

    def do_GET(self) -> None:
        self.send_error(503)

    def log_message(self, *_: object) -> None:
        """Not here."""


class Empty(Broken):
    """One that has nothing of an answer."""

    def do_GET(self) -> None:
        self.send_error(404)


@pytest.mark.parametrize("key", ["", "k"])
def test_without_a_key_the_other_machines_have_nothing(key: str) -> None:
    """Their clients are other callers, so what they say is no word on the answer."""
    with (
        serving(Broken) as first,
        serving(Empty) as second,
        RingClient([first, second], key) as ring,
        pytest.raises(StreamLost) as caught,
    ):
        list(ring.stream(TEXT, {}))
    forgotten = "the ring has the rest of the answer no longer"
    keyless = f"without an API key only {first} gives the rest of the answer"
    assert str(caught.value) == (forgotten if key else keyless)


def test_why_a_stream_is_lost_is_said_in_plain_words() -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    asked = 0
    failures: list[Exception] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal asked
        asked += 1
        if asked == 1:
            first = b'id: chatcmpl-1:0\ndata: {"choices": [{"text": "la"}]}\n\n'
            return httpx2.Response(200, stream=httpx2.ByteStream(first))
        if asked == 2:
            return httpx2.Response(503, stream=httpx2.ByteStream(b"{}"))
        failure = failures[(asked - 3) % len(failures)]
        raise failure

    refused = "[Errno 111] Connection refused"
    failures += [httpx2.ReadError("x"), httpx2.ReadTimeout("x"), httpx2.ConnectTimeout("")]
    failures += [httpx2.ConnectError(refused)]
    heard: list[str] = []
    with httpx2.Client(base_url=nobody, transport=httpx2.MockTransport(answer)) as client:
        stream = ResumableStream([client], TEXT, {}, seconds=0.2, broken=heard.append)
        with pytest.raises(StreamLost) as caught:
            list(stream.events())
    assert heard[:6] == [
        f"{nobody} went away in the middle of the answer",
        f"{nobody} answered 503",
        f"{nobody} went away",
        f"{nobody} says nothing any more",
        f"{nobody} is not reached (no answer in time)",
        f"{nobody} is not reached (Connection refused)",
    ]
    said = str(caught.value)
    assert said.endswith(", and nobody had the rest of the answer")
    assert "Errno" not in said
    assert isinstance(caught.value.__cause__, httpx2.TransportError)


def test_how_long_a_stream_is_gone_on_with(team: Served) -> None:
    with (
        cutting(team, 4000, *[0] * 1000) as cutter,
        RingClient(cutter.url, key_of(team), resume_seconds=0.1) as ring,
        pytest.raises(StreamLost, match="nobody had the rest"),
    ):
        list(ring.stream(CHAT, asking(team, CHAT, max_tokens=400)))
    assert cutter.connections > 3


class Other(BaseHTTPRequestHandler):
    """A machine that has the rest of an answer."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        rest = b'id: chatcmpl-1:1\ndata: {"choices": [{"text": "lu"}]}\n\ndata: [DONE]\n\n'
        self.wfile.write(rest if self.headers["last-event-id"] == "chatcmpl-1:0" else b"")

    def log_message(self, *_: object) -> None:
        """Not here."""


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server of *handler*."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_machine_that_has_stopped_is_left_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """It breaks the silence no more, as it has said it would, though its kernel takes connections;
    asked again, it says nothing either."""
    monkeypatch.setattr(sealring_client, "MISSED", 0.1)
    monkeypatch.setattr(sealring_client, "HURRY_SECONDS", 0.1)
    woken = threading.Event()
    asked: list[str] = []

    class Stopped(Other):
        def do_POST(self) -> None:
            asked.append("POST")
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("x-sealring-keepalive", "2")
            self.end_headers()
            self.wfile.write(b'id: chatcmpl-1:0\ndata: {"choices": [{"text": "la"}]}\n\n')
            woken.wait(PATIENCE)

        def do_GET(self) -> None:
            asked.append("GET")
            woken.wait(PATIENCE)

    class Absent(Other):
        """It does not know yet who is head."""

        def do_GET(self) -> None:
            if "GET" in asked:
                super().do_GET()
            else:
                self.send_error(503)

    with serving(Stopped) as first, serving(Absent) as second:
        with RingClient([first, second]) as ring:
            assert text_of(ring.stream(TEXT, {})) == "lalu"
        woken.set()
    assert (asked[0], set(asked[1:])) == ("POST", {"GET"})


@pytest.mark.parametrize("given_up", [True, False])
def test_an_own_request_that_was_given_up_may_take_the_answer_over(given_up: bool) -> None:
    """It reaches the head late, and has nobody behind it. Where none was given up, it is somebody
    else who reads the answer now."""
    asked: list[httpx2.Request] = []
    first = b'id: chatcmpl-1:0\ndata: {"choices": [{"text": "la"}]}\n\n'
    taken = b'data: {"error": {"code": "taken_over"}, "resumable": true}\n\n'
    rest = b'id: chatcmpl-1:1\ndata: {"choices": [{"text": "lu"}]}\n\ndata: [DONE]\n\n'

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        if len(asked) == 2 and given_up:
            raise httpx2.ReadTimeout("no answer", request=request)
        parts = [first, taken, rest] if not given_up else [first, b"", taken, rest]
        return httpx2.Response(200, stream=httpx2.ByteStream(parts[len(asked) - 1]))

    with httpx2.Client(base_url="http://ring", transport=httpx2.MockTransport(answer)) as client:
        events = list(ResumableStream([client], TEXT, {}).events())
    assert ("error" in events[-1]) is not given_up
    assert text_of(events) == ("lalu" if given_up else "la")


@pytest.mark.parametrize(
    ("count", "says", "silence"),
    [
        (2, {"x-sealring-keepalive": "2"}, 2.0 * sealring_client.MISSED),
        (2, {"x-sealring-keepalive": "1e9"}, sealring_client.SILENCE_SECONDS),
        (2, {"x-sealring-keepalive": "9" * 400}, sealring_client.SILENCE_SECONDS),
        (2, {"x-sealring-keepalive": "0"}, 1.0 * sealring_client.MISSED),
        (2, {}, sealring_client.SILENCE_SECONDS),
        (1, {"x-sealring-keepalive": "2"}, sealring_client.SILENCE_SECONDS),
    ],
)
def test_how_long_a_stream_may_be_silent(count: int, says: dict[str, str], silence: float) -> None:
    """As long as ever where nobody says how often it speaks, or nobody else is there to ask."""
    asked: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return httpx2.Response(200, headers=says, stream=httpx2.ByteStream(b"data: [DONE]\n\n"))

    def client() -> httpx2.Client:
        return httpx2.Client(
            base_url="http://ring",
            transport=httpx2.MockTransport(answer),
            timeout=sealring_client.SILENCE_SECONDS,
        )

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client()) for _ in range(count)]
        assert list(ResumableStream(clients, TEXT, {}).events()) == []
    (request,) = asked
    assert request.extensions["timeout"]["read"] == silence
