"""A model hub on this machine: the part of the hub's API that fetching takes, over real sockets.

The hub redirects requests for weights to a second server, which has the bytes. Both can be told to
misbehave: to be busy, to cut connections, to send a wrong byte, to ignore ranges, to stop.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of_a_person"

API = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/?]+)")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
RANGE = re.compile(r"bytes=(\d+)-(\d+)")
PAUSE = "1"  # seconds that a busy server asks to wait
_CHUNK = 64 * 1024


class StandIn:
    """The hub and the server with the bytes. *models* are folders by hub id."""

    def __init__(self, models: dict[str, Path]) -> None:
        self.models = models
        self.url = self.bytes_url = ""
        self.gated: set[str] = set()
        self.seen: list[tuple[str, str, str]] = []  # where, path, range
        self.authorized: list[tuple[str, bool]] = []  # where, with a token
        self.weights_sent = 0  # bytes
        self.busy = 0  # so many requests for weights are answered 429
        self.broken = 0  # so many are answered 503
        self.cut = 0  # so many end after half of what they should send
        self.wrong: dict[str, list[int]] = {}  # by file: offsets that come wrong, once each
        self.ranges = True
        self.small_ranges = True  # the same, of files that are no weights
        self.headers: dict[str, str] = {}  # in place of those of each part of weights
        self.expired = 0  # so many redirections are refused later
        self.stop_at: int | None = None  # bytes of weights, after which it falls silent
        self.fell_silent = threading.Event()
        self.ends = threading.Event()
        self._lock = threading.Lock()
        self._sending = 0

    def take(self, name: str) -> bool:
        """Whether it is to misbehave once more in the way *name*."""
        with self._lock:
            left: int = getattr(self, name)
            setattr(self, name, max(0, left - 1))
            return left > 0

    def sent(self, count: int) -> bool:
        """Count *count* bytes of weights; False if they are not to be sent."""
        with self._lock:
            if self.stop_at is not None and self.weights_sent + count > self.stop_at:
                self.fell_silent.set()
                return False
            self.weights_sent += count
            return True

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Within the block an answer is under way."""
        with self._lock:
            self._sending += 1
        try:
            yield
        finally:
            with self._lock:
                self._sending -= 1

    def speak_again(self) -> None:
        """Once whoever was answered is gone: end what was silent, and answer others."""
        self.ends.set()
        end = time.monotonic() + 30
        while self._sending:
            assert time.monotonic() < end
            time.sleep(0.01)
        self.ends.clear()
        self.fell_silent.clear()
        self.stop_at = None

    def requests(self, where: str) -> int:
        """Requests to "hub" or "bytes"."""
        return sum(one == where for one, _, _ in self.seen)


@contextlib.contextmanager
def stand_in(models: dict[str, Path]) -> Iterator[StandIn]:
    """A hub that has *models*."""
    hub = StandIn(models)
    servers = [_server(hub, where) for where in ("hub", "bytes")]
    hub.url, hub.bytes_url = (f"http://127.0.0.1:{one.server_address[1]}" for one in servers)
    threads = [threading.Thread(target=one.serve_forever, args=(0.05,)) for one in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        hub.ends.set()
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone is no news."""


def _server(hub: StandIn, where: str) -> _Server:
    class Handler(_Handler):
        pass

    Handler.hub, Handler.where = hub, where
    return _Server(("127.0.0.1", 0), Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandIn
    where: str

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        hub, wanted = self.hub, self.headers.get("Range", "")
        hub.seen.append((self.where, path, wanted))
        authorized = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        hub.authorized.append((self.where, authorized))
        if match := API.fullmatch(path):
            self._api(match[1], match[2], authorized=authorized)
        elif match := FILE.fullmatch(path):
            self._file(match[1], match[2], match[3], wanted, authorized=authorized)
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _api(self, model: str, revision: str, *, authorized: bool) -> None:
        hub = self.hub
        if model not in hub.models:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", COMMIT):
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            files = sorted(f for f in hub.models[model].iterdir() if f.is_file())
            siblings = [
                {"rfilename": file.name, "size": file.stat().st_size, "blobId": "0" * 40}
                | ({"lfs": _lfs(file)} if file.suffix == ".safetensors" else {})
                for file in files
            ]
            value = {"id": model, "sha": COMMIT, "siblings": siblings}
            self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file(self, model: str, commit: str, name: str, wanted: str, *, authorized: bool) -> None:
        hub = self.hub
        file = hub.models.get(model, Path("/nowhere")) / name
        weights = file.suffix == ".safetensors"
        if commit != COMMIT or not file.is_file():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        elif model in hub.gated and self.where == "hub" and not authorized:
            self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif weights and self.where == "hub":
            told = {"Location": hub.bytes_url + self.path, "X-Repo-Commit": COMMIT}
            self._answer(302, b"", told | {"X-Linked-Size": str(file.stat().st_size)})
        elif weights and hub.take("busy"):
            self._answer(429, b"", {"Retry-After": PAUSE})
        elif weights and hub.take("broken"):
            self._answer(503, b"", {})
        elif weights and hub.take("expired"):
            self._answer(403, b"", {})
        else:
            serves = hub.ranges if weights else hub.small_ranges
            with hub.sending():
                self._send(file, wanted if serves else "", weights=weights)

    def _send(self, file: Path, wanted: str, *, weights: bool) -> None:
        hub, size = self.hub, file.stat().st_size
        match = RANGE.fullmatch(wanted)
        begin, end = (int(match[1]), int(match[2]) + 1) if match else (0, size)
        if end > size:
            self._answer(416, b"", {})
            return
        self.send_response(206 if match else 200)
        headers = {"Content-Length": str(end - begin)}
        if match:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        for name, value in (headers | (hub.headers if weights else {})).items():
            self.send_header(name, value)
        self.end_headers()
        stop = begin + (end - begin) // 2 if weights and hub.take("cut") else end
        with file.open("rb") as stream:
            stream.seek(begin)
            while begin < stop:
                data = bytearray(stream.read(min(_CHUNK, stop - begin)))
                for at in set(hub.wrong.get(file.name, ())):
                    if begin <= at < begin + len(data):
                        data[at - begin] ^= 0xFF
                        hub.wrong[file.name].remove(at)
                if weights and not hub.sent(len(data)):
                    hub.ends.wait()
                    break
                self.wfile.write(data)
                begin += len(data)
        if begin < end:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@functools.cache
def _lfs(file: Path) -> dict[str, object]:
    content = file.read_bytes()
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
