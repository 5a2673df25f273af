"""A head that says what a test has it say: what a real one does not, or not when it is wanted."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import attrs

BREAKS: Final = "<breaks>"
"""A piece at which the connection breaks."""

DIES: Final = "<dies>"
"""A piece at which the head ends."""

COMMENT: Final = "<comment>"
"""A piece that is a comment instead, as a head sends while it waits."""


@attrs.define
class StrangeHead:
    """Answers the question that is a key of *answers* with its pieces, and tells *models*, once it
    has told its *refusals*, which are codes of errors. Its events are *numbered* if a client may
    come back to it, and then it has nothing of an answer. *asked* has the bodies that came."""

    answers: Mapping[str, Sequence[str | dict[str, str]]]
    model: str = "strange"
    health: dict[str, Any] = attrs.field(factory=lambda: {"why": [], "faults": []})
    doing: str = ""
    refusals: list[str] = attrs.field(factory=list)
    numbered: bool = False
    asked: list[dict[str, Any]] = attrs.field(factory=list)
    url: str = ""

    def get(self, path: str) -> tuple[int, Any]:
        """The status of what is at *path*, and that."""
        if path == "/v1/models" and self.refusals:
            error = {"code": self.refusals.pop(0), "message": "It cannot be asked."}
            return 503, {"error": error}
        if path.startswith("/v1/streams/"):
            return 404, {"error": {"code": "stream_not_found", "message": "There is none."}}
        return 200, {
            "/v1/models": {"data": [{"id": self.model}]},
            "/v1/cluster": {"ranks": [{"name": "desk", "layers": [0, 4]}]},
            "/health": self.health,
        }.get(path, {"doing": self.doing})

    def lines(self, body: dict[str, Any]) -> Iterator[str]:
        """The events that answer *body*."""
        self.asked.append(body)
        question = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        for number, piece in enumerate(self.answers[question]):
            if piece == BREAKS:
                raise ConnectionError
            if piece == DIES:
                raise SystemExit
            if piece == COMMENT:
                yield ": keepalive"
                continue
            delta = {"content": piece} if isinstance(piece, str) else piece
            name = f"id: chatcmpl-1:{number}\n" if self.numbered else ""
            yield f"{name}data: {json.dumps({'choices': [{'delta': delta}]}, ensure_ascii=False)}"
        done = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        yield f"data: {json.dumps(done)}"
        usage = {"prompt_tokens": 3, "completion_tokens": 5}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}"
        yield "data: [DONE]"


@contextlib.contextmanager
def strange_head(
    answers: Mapping[str, Sequence[str | dict[str, str]]], **more: Any
) -> Iterator[StrangeHead]:
    """One that listens, until the block ends."""
    head = StrangeHead(answers, **more)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            status, told = head.get(self.path)
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            try:
                for line in head.lines(body):
                    data = f"{line}\n\n".encode("utf-8", "surrogatepass")
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.write(b"0\r\n\r\n")
            except ConnectionError:
                self.close_connection = True
            except SystemExit:
                server.shutdown()
                server.server_close()
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    head.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield head
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
