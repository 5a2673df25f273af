"""A hub, a proxy or a server with the bytes that is broken or hostile: whatever it says, fetching
ends with a fault in words, and takes bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session, constants
from sealring_model.loading import model_store
from sealring_model.loading.model_store import HubOrigin, WeightFile
from sealring_trio.fetching import hub as hub_module
from sealring_trio.fetching import source
from sealring_trio.fetching.hub import Hub, find_hub_model
from sealring_trio.fetching.source import FetchFault, content

MODEL = "someone/model-1"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PERSON_SECONDS = 20.0

Send = Callable[[bytes], None]
Answer = Callable[[str, Send], None]
"""Given a request and what sends bytes, answers it."""


@contextlib.contextmanager
def hostile(answer: Answer) -> Iterator[str]:
    """The address of a server that gives *answer*, and then closes the connection."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            lines = []
            while (line := self.rfile.readline().rstrip()) != b"":
                lines.append(line.decode("latin-1"))
            with contextlib.suppress(OSError):
                answer("\n".join(lines), self.request.sendall)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, block_on_close = True, False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def head(status: str, **headers: object) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def whole(body: bytes, status: str = "200 OK", **headers: object) -> Answer:
    return lambda _, send: send(head(status, Content_Length=len(body), **headers) + body)


def listing(*siblings: Any, sha: object = COMMIT) -> bytes:
    return json.dumps({"id": MODEL, "sha": sha, "siblings": siblings}).encode()


def file(name: Any, size: Any, sha256: Any = "a" * 64) -> dict[str, Any]:
    return {
        "rfilename": name,
        "size": size,
        "lfs": {"sha256": sha256, "size": size, "pointerSize": 1},
    }


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(model_store.VARIABLE, str(tmp_path / "store"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "_PAUSE", 0.0)
    return tmp_path / "store"


def refused(answer: Answer, model: str = MODEL) -> FetchFault:
    """How finding *model* fails on a hub that gives *answer*."""
    began = time.monotonic()
    with hostile(answer) as url, pytest.raises(FetchFault) as caught:
        find_hub_model(model, Hub(endpoint=url))
    assert time.monotonic() - began < PERSON_SECONDS
    return caught.value


# ---------------------------------------------------------------- the listing


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"\xff\xfe",
        b"5",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"sha": ' + b"9" * 5000 + b"}",
        listing(sha=5),
        listing(5),
        listing({}),
        listing(file(5, 5)),
        listing(file("config.json", "5")),
        listing(file("config.json", -5)),
        listing(file("config.json", 2.5)),
        listing(file("model.safetensors", 1 << 70)),
        listing(file("model.safetensors", 100, sha256=["a"])),
        listing(file("model.safetensors", 100, sha256="../a")),
        b'{"sha": "%s", "siblings": {}}' % COMMIT.encode(),
        b'{"sha": "%s", "siblings": 5}' % COMMIT.encode(),
    ],
    ids=lambda body: body[-30:].decode("latin-1") if len(body) < 300 else str(len(body)),
)
def test_a_listing_that_is_none(body: bytes) -> None:
    fault = refused(whole(body))
    assert fault.permanent
    assert "listing" in fault.text or "safetensors" in fault.text


@pytest.mark.parametrize(
    "name",
    [
        "../config.json",
        "/etc/config.json",
        "a/config.json",
        "a\\config.json",
        "config\0.json",
        "con\nfig.json",
        "\ud800.json",
        "x" * 300 + ".json",
        ".hidden.json",
        "sealring.partial.json",
        "Sealring.Partial.json",
    ],
)
def test_files_of_odd_names_are_not_asked_for(name: str) -> None:
    asked: list[str] = []

    def answer(request: str, send: Send) -> None:
        asked.append(request.split()[1])
        whole(listing(file(name, 5)))(request, send)

    assert "no model*.safetensors" in refused(answer).text
    assert len(asked) == 1


def test_a_listing_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_: str, send: Send) -> None:
        send(head("200 OK"))
        while True:
            send(b" " * 65536)

    assert "listing" in refused(answer).text


def test_a_listing_that_is_packed() -> None:
    assert "listing" in refused(whole(b"\x1f\x8b" + b"0" * 50, Content_Encoding="gzip")).text


def test_another_commit_than_the_one_that_was_asked_for() -> None:
    fault = refused(whole(listing(sha="f" * 40)), f"{MODEL}@{COMMIT}")
    assert "commit" in fault.text
    assert fault.permanent


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_small_file_that_is_not_what_the_listing_says(name: str) -> None:
    def answer(request: str, send: Send) -> None:
        if "/api/" in request:
            whole(listing(file(name, 2), file("model.safetensors", 100)))(request, send)
        else:
            whole(b"{}", "206 Partial Content", Content_Range="bytes 0-1/2")(request, send)

    assert f"{name} of {MODEL} came with wrong bytes" in refused(answer).text


def test_more_configuration_than_may_be() -> None:
    asked: list[str] = []

    def answer(request: str, send: Send) -> None:
        asked.append(request)
        files = [file(f"{n}.json", 200 << 20) for n in range(9)]
        whole(listing(*files, file("model.safetensors", 100)))(request, send)

    assert "256 MiB" in refused(answer).text
    assert len(asked) == 1


def test_more_headers_than_may_be() -> None:
    def answer(request: str, send: Send) -> None:
        if "/api/" in request:
            files = [file(f"model-{n}.safetensors", 1 << 40) for n in range(9)]
            whole(listing(*files))(request, send)
            return
        length = (30 << 20).to_bytes(8, "little")
        at = {"Content_Range": f"bytes 0-7/{1 << 40}"}
        whole(length, "206 Partial Content", **at)(request, send)

    assert "MiB of headers" in refused(answer).text


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize("status", ["401 No", "404 Not Found", "500 No", "418 Teapot"])
@pytest.mark.parametrize("body", [b"[]", b"5", b'{"errors": 5}', b"[" * 100_000])
def test_errors_whose_words_make_no_sense(status: str, body: bytes) -> None:
    refused(whole(body, status, Content_Type="application/json"))


@pytest.mark.parametrize("path", ["/api/", "/resolve/"])
def test_an_error_whose_words_do_not_end(path: str) -> None:
    def answer(request: str, send: Send) -> None:
        if path not in request:
            whole(listing(file("model.safetensors", 100)))(request, send)
            return
        send(head("404 Not Found"))
        while True:
            send(b"x" * 65536)

    refused(answer)


@pytest.mark.parametrize(
    "place",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "http://",
        "http://[",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "//",
        "http://" + "a" * 300 + "/",
        "http://\xff\xfe/",
        "http://xn--/",
        "http://a..b/",
        "gopher:x",
        "\\",
        "",
    ],
)
def test_a_redirection_to_nowhere(place: str) -> None:
    def answer(request: str, send: Send) -> None:
        if "/api/" in request:
            whole(listing(file("model.safetensors", 100)))(request, send)
        else:
            whole(b"", "302 Found", Location=place)(request, send)

    refused(answer)


@pytest.mark.parametrize(
    "place",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "169.254.169.254",
        "10.0.0.1",
        "[::ffff:10.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[fec0::1]",
    ],
)
def test_a_hub_in_the_internet_leads_into_this_network(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy stands for the internet, and would lead there."""
    asked = []

    def proxy(request: str, send: Send) -> None:
        asked.append(request.split()[1])
        if "8.8.8.8" in asked[-1]:
            whole(b"", "302 Found", Location=f"http://{place}:7480/api")(request, send)
        else:
            whole(listing(file("config.json", 5)))(request, send)

    with (
        internet(proxy, monkeypatch),
        pytest.raises(FetchFault, match=r"8.8.8.8 redirects to .*, which is in this net"),
    ):
        Hub(endpoint="http://8.8.8.8").list(MODEL, "main")
    assert len(asked) == 1


@contextlib.contextmanager
def internet(proxy: Answer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within the block a *proxy* stands for it, but for names that end with ``.example``."""
    with hostile(proxy) as url:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, ".example")
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, url)
        close_session()
        try:
            yield
        finally:
            close_session()


def resolving(names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each look-up of a name give the next of its addresses, and then the last again. An empty
    one: the name is not found."""
    real = socket.getaddrinfo

    def look_up(host: Any, *more: Any, **options: Any) -> Any:
        name = host if isinstance(host, str) else host.decode()
        name = name.encode("idna").decode()  # as Python does it
        found = names.get(name)
        if found is None:
            return real(host, *more, **options)
        address = found.pop(0) if len(found) > 1 else found[0]
        if not address:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return real(address, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("far.example", {"far.example": ["8.8.4.4", "127.0.0.1"]}),
        ("far.example", {"far.example": ["", "127.0.0.1"]}),
        (
            "xn--fa-hia.example",
            {"xn--fa-hia.example": ["127.0.0.1"], "fass.example": ["8.8.4.4"]},
        ),
    ],
    ids=["another address when it is connected to", "none at first", "two ways to encode a name"],
)
def test_a_name_that_leads_into_this_network_when_it_is_connected_to(
    place: str, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def inside(request: str, send: Send) -> None:
        asked.append(request)
        whole(listing(file("config.json", 5)))(request, send)

    with hostile(inside) as url:
        there = f"http://{place}:{url.rsplit(':', 1)[1]}/api"
        proxy = whole(b"", "302 Found", Location=there)
        resolving(names, monkeypatch)
        with (
            internet(proxy, monkeypatch),
            pytest.raises(FetchFault, match=r"8.8.8.8 redirects to .*, which is in this net"),
        ):
            Hub(endpoint="http://8.8.8.8").list(MODEL, "main")
    assert not any(asked)  # of a connection that carried nothing


def test_a_place_that_is_in_this_network_by_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = whole(bytes(100), "206 Partial Content", Content_Range="bytes 0-99/1000")
    asked = []

    def proxy(request: str, send: Send) -> None:
        asked.append(request.split()[1])
        if "8.8.8.8" in asked[-1]:
            whole(b"", "302 Found", Location="http://place.test/x")(request, send)
        else:
            part(request, send)

    resolving({"place.test": ["8.8.4.4", "127.0.0.1"]}, monkeypatch)
    with internet(proxy, monkeypatch):
        hub = Hub(endpoint="http://8.8.8.8")
        assert content(hub, ORIGIN, "model.safetensors", 0, 100) == bytes(100)
        with pytest.raises(FetchFault, match=r"8.8.8.8 redirects to .*, which is in this net"):
            content(hub, ORIGIN, "model.safetensors", 0, 100)
    assert [each for each in asked if "place.test" in each] == ["http://place.test/x"]


@pytest.mark.parametrize(("length", "count"), [(100, 1), (60_000, 2)])
def test_no_long_address_is_kept(length: int, count: int) -> None:
    part = whole(bytes(100), "206 Partial Content", Content_Range="bytes 0-99/1000")
    asked = []
    with hostile(part) as place:

        def redirect(request: str, send: Send) -> None:
            asked.append(request)
            there = f"{place}/x?{'a' * length}"
            whole(b"", "302 Found", Location=there)(request, send)

        with hostile(redirect) as url:
            hub = Hub(endpoint=url)
            for _ in range(2):
                assert content(hub, ORIGIN, "model.safetensors", 0, 100) == bytes(100)
    assert len(asked) == count


def test_few_addresses_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_MAX_PLACES", 2, raising=False)
    names = [f"model-{number}.safetensors" for number in range(3)]
    origin = HubOrigin(MODEL, "main", COMMIT, {name: WeightFile(1000, "") for name in names})
    part = whole(bytes(100), "206 Partial Content", Content_Range="bytes 0-99/1000")
    asked = []
    with hostile(part) as place:

        def redirect(request: str, send: Send) -> None:
            asked.append(request.split()[1].rsplit("/", 1)[1])
            whole(b"", "302 Found", Location=f"{place}/x")(request, send)

        with hostile(redirect) as url:
            hub = Hub(endpoint=url)
            for name in [*names, *reversed(names)]:
                content(hub, origin, name, 0, 100)
    assert asked == [*names, names[0]]


def test_a_redirection_in_circles() -> None:
    refused(whole(b"", "302 Found", Location="/api/again"))


def test_a_place_that_is_gone_is_asked_for_again() -> None:
    part = whole(bytes(100), "206 Partial Content", Content_Range="bytes 0-99/1000")
    place = ""

    def redirect(request: str, send: Send) -> None:
        whole(b"", "302 Found", Location=f"{place}/x")(request, send)

    with hostile(redirect) as url, hostile(part) as second:
        hub = Hub(endpoint=url)
        with hostile(part) as place:
            assert content(hub, ORIGIN, "model.safetensors", 0, 100) == bytes(100)
        place = second
        with pytest.raises(FetchFault, match="cannot be reached") as caught:
            content(hub, ORIGIN, "model.safetensors", 0, 100)
        assert not caught.value.permanent
        assert content(hub, ORIGIN, "model.safetensors", 0, 100) == bytes(100)


# ------------------------------------------------------------------ ranges

ORIGIN = HubOrigin(MODEL, "main", COMMIT, {"model.safetensors": WeightFile(1000, "")})


def read(answer: Answer) -> bytes:
    """The first 100 bytes of a file, from a hub that gives *answer*."""
    began = time.monotonic()
    try:
        with hostile(answer) as url:
            return content(Hub(endpoint=url), ORIGIN, "model.safetensors", 0, 100)
    finally:
        assert time.monotonic() - began < PERSON_SECONDS


@pytest.mark.parametrize(
    "told",
    [
        "",
        "bytes 0-98/1000",
        "bytes 0-99/999",
        f"bytes 0-99/{'9' * 5000}",
        "bytes 0-" + "9" * 5000 + "/*",
    ],
)
def test_another_range(told: str) -> None:
    with pytest.raises(FetchFault, match="another part"):
        read(whole(bytes(100), "206 Partial Content", Content_Range=told))


def test_a_range_that_does_not_end() -> None:
    def answer(_: str, send: Send) -> None:
        send(head("206 Partial Content", Content_Range="bytes 0-99/1000"))
        while True:
            send(b"x" * 65536)

    assert read(answer) == b"x" * 100


def test_bytes_that_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_SLOW_SECONDS", 0.2, raising=False)
    ends = threading.Event()

    def answer(_: str, send: Send) -> None:
        send(head("206 Partial Content", Content_Range="bytes 0-99/1000"))
        while not ends.wait(0.05):
            send(b"x")

    try:
        with pytest.raises(FetchFault, match="slow"):
            read(answer)
    finally:
        ends.set()


HEADS = {
    "a header without end": (b"HTTP/1.1 206 Partial Content\r\nX: ", b"a"),
    "one interim answer after another": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize(("first", "more"), HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("path", ["/api/", "/resolve/"])
def test_an_answer_that_never_begins(
    path: str, first: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_HEAD_SECONDS", 0.3)
    ends = threading.Event()

    def answer(request: str, send: Send) -> None:
        if path not in request:
            whole(listing(file("model.safetensors", 100)))(request, send)
            return
        send(first)
        while not ends.wait(0.02):
            send(more)

    try:
        assert "no answer has begun within" in refused(answer).text
    finally:
        ends.set()


def test_a_server_that_is_busy_and_names_no_time_is_not_asked_at_once() -> None:
    with pytest.raises(FetchFault) as caught:
        read(whole(b"", "429 Too Many", Retry_After="0"))
    assert caught.value.wait is None
    assert not caught.value.permanent


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\na:" + b" " * 60_000 + b"\0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b" " * 60_000 + b"\n\r\n",
    ],
    ids=["header", "chunk"],
)
def test_blanks_of_an_answer_take_linear_time(said: bytes) -> None:
    """They took many seconds, in which nothing else of the process ran."""
    with hostile(lambda _, send: send(said)) as url:
        with pytest.raises(FetchFault):  # what takes long the first time, such as imports
            Hub(endpoint=url).list(MODEL, "main")
        before = time.process_time()
        with pytest.raises(FetchFault):
            Hub(endpoint=url).list(MODEL, "main")
        assert time.process_time() - before < 1.0
