"""Clients as people have them, with their own defaults, in front of a real ring.

Some begin with HTTP/2, or offer it. None of them may harm the node, and each that speaks HTTP/1.1
too gets its answer.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import httpx2
import pytest

from tests.api.conftest import PATIENCE, Served

JAVA = """
import java.net.URI;
import java.net.http.*;

class Ask {
    public static void main(String[] given) throws Exception {
        var http = HttpClient.newHttpClient();  // which prefers HTTP/2, and offers it
        var health = HttpRequest.newBuilder(URI.create(given[0] + "/health")).build();
        var body = "{\\"model\\":\\"tiny\\",\\"prompt\\":\\"Hello.\\",\\"max_tokens\\":2}";
        var ask = HttpRequest.newBuilder(URI.create(given[0] + "/v1/completions"))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(body)).build();
        for (var request : new HttpRequest[] {health, ask, ask, health}) {
            var answer = http.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.version());
        }
    }
}
"""

ASK = '{"model":"tiny","prompt":"Hello.","max_tokens":2}'


def node_lives(ring: Served) -> None:
    assert httpx2.get(f"{ring.url}/health", timeout=PATIENCE).json()["status"] == "ok"
    assert ring.head.process.poll() is None


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="no java: apt-get install default-jdk")
def test_java(ring: Served, tmp_path: Path) -> None:
    source = tmp_path / "Ask.java"
    source.write_text(JAVA)
    done = run("java", source, ring.url)
    assert done.stdout.splitlines() == ["200 HTTP_1_1"] * 4, done
    node_lives(ring)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl: apt-get install curl")
@pytest.mark.parametrize("option", ["--http1.1", "--http1.0", "--http2"])
def test_curl(ring: Served, option: str) -> None:
    common = ["curl", option, "-sS", "-o", "/dev/null", "-w", "%{http_code} %{http_version}\n"]
    if option == "--http2" and "HTTP2" not in run("curl", "--version").stdout:
        pytest.skip("this curl has no HTTP/2")
    assert run(*common, f"{ring.url}/health").stdout == "200 1.1\n"
    posted = run(
        *common, "-H", "Content-Type: application/json", "-d", ASK, f"{ring.url}/v1/completions"
    )
    assert posted.stdout == "200 1.1\n", posted
    node_lives(ring)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl: apt-get install curl")
def test_curl_that_begins_with_http_2(ring: Served) -> None:
    for _ in range(3):
        done = run(
            "curl", "--http2-prior-knowledge", "-sS", "-d", ASK, f"{ring.url}/v1/completions"
        )
        assert done.returncode != 0
        assert done.stderr.startswith("curl: ")
    node_lives(ring)


@pytest.mark.parametrize("http1", [True, False], ids=["offers", "begins"])
def test_httpx(ring: Served, http1: bool) -> None:
    with httpx2.Client(base_url=ring.url, http1=http1, http2=True, timeout=PATIENCE) as http:
        for _ in range(3):
            for ask in (lambda: http.get("/health"), lambda: http.post("/v1/models", content=ASK)):
                if http1:
                    assert ask().http_version == "HTTP/1.1"
                else:
                    with pytest.raises(httpx2.HTTPError):
                        ask()
    node_lives(ring)


def test_data_on_a_stream_that_was_refused(ring: Served) -> None:
    """The bytes that ended a node: what Java and httpx send, without either."""
    host, port = ring.url.removeprefix("http://").split(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    headers = bytes((0, 0, 3, 1, 4, 0, 0, 0, 1)) + b"\x83\x86\x84"  # POST / with a body to come
    data = bytes((0, 0, 2, 0, 1, 0, 0, 0, 1)) + b"{}"
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as sock:
        sock.sendall(preface + headers)
        got = sock.recv(1 << 16)
        sock.sendall(data)
        while part := sock.recv(1 << 16):
            got += part
    assert got.startswith(b"HTTP/1.1 505 ")
    node_lives(ring)
