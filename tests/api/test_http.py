"""The API at the level of HTTP: bodies, keys, origins, limits, and clients that leave."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI
from sealring.http.bodies import MAX_BODY
from sealring.http.http1 import MAX_HEADER

from tests.api.conftest import Served
from tests.io_trio.helpers import sealring

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def code(answer: httpx2.Response) -> tuple[int, str]:
    """The status, and the code of the error."""
    return answer.status_code, answer.json()["error"]["code"]


BODIES: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "nothing": (b"", JSON, 400, "invalid_json"),
    "half an object": (b'{"model": "tiny"', JSON, 400, "invalid_json"),
    "a list": (b"[]", JSON, 400, "invalid_value"),
    "a lone surrogate": (b'{"model": "\\ud800"}', JSON, 400, "invalid_json"),
    "no UTF-8": (b'{"model": "\xff"}', JSON, 400, "invalid_json"),
    "nested without end": (b"[" * 100_000, JSON, 400, "invalid_json"),
    "a form": (
        b"model=tiny",
        {"content-type": "application/x-www-form-urlencoded"},
        415,
        "unsupported_media_type",
    ),
    "unnamed": (b"{}", {}, 415, "unsupported_media_type"),
    "compressed": (b"{}", {**JSON, "content-encoding": "gzip"}, 415, "unsupported_media_type"),
    "too large": (b" " * (MAX_BODY + 1), JSON, 413, "request_too_large"),
}


@pytest.mark.parametrize(("body", "headers", "status", "error"), BODIES.values(), ids=BODIES)
def test_bodies(
    ring: Served, body: bytes, headers: dict[str, str], status: int, error: str
) -> None:
    answer = ring.http.post(CHAT, content=body, headers=headers)
    assert code(answer) == (status, error)


def test_a_body_that_does_not_say_how_large_it_is(ring: Served) -> None:
    def parts(size: int) -> Iterator[bytes]:
        for start in range(0, size, 1 << 20):
            yield b" " * min(1 << 20, size - start)

    assert code(ring.http.post(CHAT, content=parts(MAX_BODY + 1), headers=JSON))[0] == 413
    answer = ring.http.post(CHAT, content=parts(MAX_BODY), headers=JSON)
    assert code(answer) == (400, "invalid_json")


def test_a_body_that_is_too_large_is_not_asked_for(ring: Served) -> None:
    url = httpx2.URL(ring.url)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
    said = f"{head}Content-Length: {MAX_BODY + 1}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=60) as sock:
        sock.sendall(said.encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_header_that_is_too_large(ring: Served) -> None:
    for size in (MAX_HEADER, 8 * MAX_HEADER):
        with httpx2.Client(base_url=ring.url) as client:
            answer = client.get("/health", headers={"x-padding": "x" * size})
            assert answer.status_code == 431


@pytest.mark.parametrize(
    ("method", "path", "error"),
    [
        ("GET", "/v1/nothing", (404, "not_found")),
        ("GET", CHAT, (405, "method_not_allowed")),
        ("POST", "/v1/models", (405, "method_not_allowed")),
        ("DELETE", "/v1/requests/none", (404, "request_not_found")),
        ("GET", "/v1/requests/none/trace", (404, "request_not_found")),
    ],
)
def test_what_is_not_there(ring: Served, method: str, path: str, error: tuple[int, str]) -> None:
    assert code(ring.http.request(method, path)) == error


def test_every_answer_has_an_id_and_guards_itself(ring: Served) -> None:
    answers = [ring.http.get("/health"), ring.http.get("/v1/nothing"), ring.http.get("/metrics")]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 3
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


# ------------------------------------------------------------------- keys and origins


def test_keys_are_needed_beyond_loopback(team: Served) -> None:
    with httpx2.Client(base_url=team.url) as stranger:
        assert stranger.get("/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/v1/cluster", "/v1/nothing"):
            assert code(stranger.get(path)) == (401, "invalid_api_key")
        for given in ("Bearer sk-sealring-wrong", "Basic YTpi", "Bearer", "Bearer \xe9"):
            answer = stranger.get("/v1/models", headers={"authorization": given.encode("latin1")})
            assert code(answer) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
    with (
        OpenAI(base_url=f"{team.url}/v1", api_key="wrong", max_retries=0) as wrong,
        pytest.raises(openai.AuthenticationError),
    ):
        wrong.models.list()


def test_keys_come_and_go_while_the_head_runs(team: Served) -> None:
    config = team.head.config
    made = sealring("apikey", "new", "bob", "--config", config, "--json").json()
    assert made["name"] == "bob"
    stored = (team.head.control.parent / "api_keys.json").read_text()
    assert made["key"] not in stored
    headers = {"authorization": f"Bearer {made['key']}"}
    answer = httpx2.post(team.url + CHAT, json=team.chat("nothing"), headers=headers)
    assert answer.status_code == 200
    assert team.trace(answer.json()["id"])["owner"] == "bob"
    listed = sealring("apikey", "list", "--config", config, "--json").json()
    assert [entry["name"] for entry in listed] == ["alice", "bob"]
    assert sealring("apikey", "revoke", "bob", "--config", config).code == 0
    assert code(httpx2.get(f"{team.url}/v1/models", headers=headers))[0] == 401


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"host": "evil.example"}, "wrong_host"),
        ({"host": "127.0.0.1.evil.example:80"}, "wrong_host"),
        ({"host": "[::1"}, "wrong_host"),
        ({"host": ""}, "wrong_host"),
        ({"origin": "http://evil.example"}, "wrong_origin"),
        ({"origin": "null"}, "wrong_origin"),
        ({"origin": "http://127.0.0.1:1"}, "wrong_origin"),
        ({"origin": "http://["}, "wrong_origin"),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, "wrong_site"),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, "wrong_site"),
    ],
)
def test_a_page_of_another_origin_gets_nothing(
    ring: Served, headers: dict[str, str], error: str
) -> None:
    assert code(ring.http.get("/v1/cluster", headers=headers)) == (403, error)
    answer = ring.http.post(CHAT, json=ring.chat("Hello."), headers=headers)
    assert code(answer) == (403, error)


def test_a_proxy_may_name_another_host_to_the_page_and_to_probes(ring: Served) -> None:
    """As nginx's plain ``proxy_pass`` does, and HAProxy's check, which names none."""
    behind = {"host": "upstream", "origin": "http://proxy.example", "sec-fetch-site": "cross-site"}
    for path in ("/", "/dashboard/main.js"):
        answer = ring.http.get(path, headers=behind)
        assert answer.status_code == 200
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert code(ring.http.get("/v1/models", headers=behind)) == (403, "wrong_host")
    assert code(ring.http.get("/dashboard/../v1/models", headers=behind))[0] in (403, 404)
    address = ("127.0.0.1", int(ring.url.rsplit(":", 1)[1]))
    for path in ("/health", "/livez", "/readyz"):
        with socket.create_connection(address, timeout=30) as plain, plain.makefile("rb") as got:
            plain.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            assert got.readline() == b"HTTP/1.1 200 OK\r\n"
        assert ring.http.get(path, headers={"host": "www"}).status_code == 200
        # Pages of other sites still get nothing.
        assert ring.http.get(path, headers={"origin": "http://evil.example"}).status_code == 403
    # What the ring consists of is told to none that DNS rebinding leads here.
    assert ring.http.get("/health", headers={"host": "evil.example"}).json() == {"status": "ok"}
    assert "ranks" in ring.http.get("/health").json()


def test_the_status_line_has_a_reason(ring: Served) -> None:
    """Without one, h2load takes every answer for a failure."""
    for path, reason in {
        "/livez": "OK",
        "/v1/nothing": "Not Found",
        "/v1/chat/completions": "Method Not Allowed",
    }.items():
        assert ring.http.get(path).reason_phrase == reason
        stream = ring.http.post(CHAT, json=ring.chat("Hi.", stream=True, max_tokens=1))
    assert stream.reason_phrase == "OK"


def test_its_own_pages_and_names_do(ring: Served) -> None:
    port = ring.url.rsplit(":", 1)[1]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        headers = {"host": host, "origin": f"http://{host}"}
        assert ring.http.get("/v1/models", headers=headers).status_code == 200


def test_a_link_on_another_site_may_lead_here(ring: Served) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert ring.http.get("/v1/models", headers=headers).status_code == 200


# ------------------------------------------------------------------- streams and clients


def events(text: str) -> list[Any]:
    """The data of a stream's events, but for the last, which ends it."""
    *parts, end, nothing = text.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_a_stream_as_it_is_sent(ring: Served) -> None:
    answer = ring.post(ring.chat("Count to ten.", max_tokens=6, stream=True))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    told = events(answer.text)
    assert {part["id"] for part in told} == {answer.headers["x-request-id"]}
    assert {part["object"] for part in told} == {"chat.completion.chunk"}
    assert "usage" not in told[0]
    assert told[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert told[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("last", [b"[DONE]", b'"finish_reason":"length"'])
def test_a_client_that_leaves_with_the_last_bytes_has_had_its_answer(
    ring: Served, last: bytes
) -> None:
    body = json.dumps(ring.chat("Count.", max_tokens=3, stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    names = []
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", httpx2.URL(ring.url).port or 0)) as raw:
            raw.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            got = b""
            while last not in got:
                got += raw.recv(1 << 16)
        found = re.search(rb"x-request-id: (\S+)", got)
        assert found, got
        names.append(found[1].decode())
    assert {ring.trace(name)["state"] for name in names} == {"length"}


def nobody_left(served: Served) -> None:
    """Every row is gone, on every rank."""
    served.until(
        "/v1/cluster",
        lambda told: not told["requests"] and not any(rank["rows"] for rank in told["ranks"]),
    )


def test_a_client_that_leaves_in_the_middle_of_a_stream(ring: Served) -> None:
    body = ring.chat("Tell me a story about a fox named Pip.", max_tokens=1500, stream=True)
    with ring.http.stream("POST", CHAT, json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
    assert ring.trace(answer.headers["x-request-id"])["state"] == "client_gone"
    nobody_left(ring)


def test_a_client_that_does_not_wait(team: Served) -> None:
    with pytest.raises(openai.APITimeoutError):
        team.openai.with_options(timeout=0.3).chat.completions.create(**team.chat("endless"))
    nobody_left(team)
    told = team.http.get("/v1/requests").json()["data"][0]
    assert told["state"] == "client_gone"


def test_a_request_is_cancelled_by_its_id(team: Served) -> None:
    with team.http.stream("POST", CHAT, json=team.chat("endless", stream=True)) as answer:
        lines = answer.iter_lines()
        next(lines)
        name = answer.headers["x-request-id"]
        running = team.http.get("/v1/cluster").json()["requests"]
        assert [told["id"] for told in running] == [name]
        gone = team.http.delete(f"/v1/requests/{name}")
        assert gone.json() == {"id": name, "object": "request", "cancelled": True}
        last = [line for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_cancelled"
    assert team.trace(name)["state"] == "request_cancelled"
    assert code(team.http.delete(f"/v1/requests/{name}")) == (409, "request_over")
    nobody_left(team)


# ------------------------------------------------------------------- what it tells


def test_a_trace_says_where_the_time_went(ring: Served) -> None:
    answer = ring.post(ring.chat("Count to twenty.", max_tokens=24))
    told = ring.trace(answer.json()["id"])
    phases = told["phases_ms"]
    assert told["state"] == answer.json()["choices"][0]["finish_reason"]
    assert told["tokens"] == answer.json()["usage"]["completion_tokens"]
    assert told["doing"] == ""
    assert told["cached_tokens"] + told["read_tokens"] == told["prompt_tokens"] - 1
    assert len(phases["compute"]) == 2
    assert min(phases["compute"]) > 0
    assert min(phases[name] for name in ("parse", "tokenise", "queue", "sample", "hop")) > 0
    steps = sum(phases["compute"]) + sum(phases[n] for n in ("sample", "wait", "seal", "hop"))
    before = sum(phases[name] for name in ("body", "parse", "tokenise", "queue"))
    assert before + steps + phases["turn"] == pytest.approx(phases["total"], rel=1e-3)
    assert phases["turn"] < phases["total"] / 2
    assert phases["queue"] < phases["first_token"] < phases["total"]
    timing = answer.headers["server-timing"]
    assert {"parse", "prefill", "rank0", "rank1", "total"} <= set(re.findall(r"(\w+);dur=", timing))
    log = ring.head.log.read_text()
    (line,) = [line for line in log.splitlines() if told["id"] in line]
    assert " INFO " in line
    for word in ("queue", "prefill", "rank 0", "rank 1", "sample", "hop", "first token"):
        assert word in line


def test_every_step_is_told_when_asked_for(team: Served) -> None:
    answer = team.post(team.chat("fruit"))
    told = team.trace(answer.json()["id"])
    lines = [line for line in team.head.log.read_text().splitlines() if " step " in line]
    assert len(lines) >= told["steps"] >= 4
    guess = r"(, on guess \d+)?(, \d+ guess(es)? read ahead)?"
    decode = rf"decode of group \d+, rows [\d, ]+{guess}"
    form = rf"step \d+: ({decode}|prefill of row .*|no work): [\d.]+ ms: "
    for line in lines:
        assert re.search(form + r"rank 0 [\d.]+ \(wait [\d.]+, seal [\d.]+\)", line), line


def use_well(ring: Served) -> None:
    """Have so much said that the keys of a hop change, which the first do after 64 frames."""
    for _ in range(20):
        if ring.http.get("/v1/cluster").json()["key_updates"]:
            return
        ring.post(ring.chat("Count to twenty.", max_tokens=40))


def test_the_cluster(ring: Served) -> None:
    use_well(ring)
    told = ring.http.get("/v1/cluster?history=1").json()
    assert (told["state"], told["strategy"], told["healthy"]) == ("serving", "pp", True)
    assert (told["model"], told["suite"], told["trust"]) == ("tiny", "aes-256-gcm", "software")
    assert told["epoch"] >= 1
    assert [rank["layers"] for rank in told["ranks"]] == [[0, 4], [4, 8]]
    for rank in told["ranks"]:
        assert rank["ready"]
        assert min(rank["room"], rank["memory"], rank["compute_us"]) > 0
    assert told["ranks"][1]["links"] == {"control": True, "step": True}
    assert told["hop_us"]["p50"] > 0
    assert told["link_bytes"]["sent"] > 10_000
    assert told["key_updates"] >= 1
    history = told["history"]
    assert {len(column) for column in history.values()} == {len(history["tokens"])}


def causes(health: Any) -> list[str]:
    return [why["cause"] for why in health["why"]]


@pytest.mark.slow
def test_a_rank_that_hangs_makes_the_ring_unhealthy(ring: Served) -> None:
    (rank,) = ring.others
    rank.process.send_signal(signal.SIGSTOP)
    try:
        ring.until("/health", lambda told: causes(told) == ["link_broken"])
        ring.until("/health", lambda told: causes(told) == ["no_answer"])
        refused = ring.post(ring.chat("Hello."))
        assert code(refused) == (503, "ring_not_ready")
        assert refused.headers["retry-after"]
    finally:
        rank.process.send_signal(signal.SIGCONT)
    ring.until("/health", lambda told: told["status"] == "ok")
    answer = ring.post(ring.chat("Hello.", max_tokens=1))
    assert answer.status_code == 200


def test_metrics(ring: Served) -> None:
    use_well(ring)
    ring.post(ring.chat("Hello.", max_tokens=4))
    ring.until("/v1/cluster", lambda told: told["ranks"][1]["rtt_us"])
    answer = ring.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    values = {
        name: float(value)
        for name, value in (
            line.rsplit(" ", 1) for line in answer.text.splitlines() if line[0] != "#"
        )
    }
    assert values["sealring_up"] == 1
    assert values["sealring_tokens_total"] >= 4
    assert values['sealring_http_requests_total{path="/v1/chat/completions",status="200"}'] >= 1
    for name in (
        "sealring_time_to_first_token_seconds_count",
        "sealring_inter_token_latency_seconds_sum",
        "sealring_queue_seconds_count",
        "sealring_hop_latency_seconds_count",
        'sealring_rank_seconds_total{phase="compute",rank="1"}',
        'sealring_rank_seconds_total{phase="seal",rank="0"}',
        'sealring_link_bytes_total{direction="received"}',
        'sealring_link_rtt_seconds{purpose="control",rank="1"}',
        'sealring_rank_memory_bytes{of="all",rank="1"}',
        "sealring_key_updates_total",
        "sealring_sample_seconds_total",
    ):
        assert values[name] > 0, name
    assert values['sealring_rows{state="queued"}'] == 0


def test_ordinary_requests_are_parsed_in_less_than_a_millisecond(ring: Served) -> None:
    names = [ring.post(ring.chat("Hello.", max_tokens=1)).json()["id"] for _ in range(10)]
    spent = [ring.trace(name)["phases_ms"]["parse"] for name in names]
    assert sum(spent) / len(spent) < 1
