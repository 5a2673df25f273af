"""How the API is reached: the names and pages that it lets in, TLS, and what it says of each
request to whoever watches."""

from __future__ import annotations

import io
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring.files.origins import (
    AllowedHosts,
    AllowedOrigins,
    check_host,
    check_origin,
    parse_authority,
    parse_origin,
)
from sealring.local import client
from sealring.local.ring import write_cluster
from sealring_model import tiny
from sealring_trio.units import is_loopback

from tests.api.certificates import write_pair
from tests.api.conftest import LET_IN, Served
from tests.io_trio.helpers import sealring
from tests.serving import serving

# ------------------------------------------------------------------- names

HOSTS = ["host.docker.internal", "*.Lan.Example", "192.168.1.10", "fd00::1", "mymac.local."]

HOST_CASES = {
    "localhost": True,
    "LOCALHOST:7480": True,
    "localhost.": True,
    "127.0.0.1:7480": True,
    "127.9.8.7": True,
    "[::1]:7480": True,
    "[0:0:0:0:0:0:0:1]": True,
    "host.docker.internal:7480": True,
    "Host.Docker.Internal.:1": True,
    "a.lan.example": True,
    "a.b.lan.example": True,
    "192.168.1.10:7480": True,
    "[FD00:0::1]": True,
    "mymac.local": True,
    "lan.example": False,  # the wildcard has a label of its own
    ".lan.example": False,
    "evil-lan.example": False,
    "a.lan.example.evil.example": False,
    "host.docker.internal.evil.example": False,
    "127.0.0.1.evil.example": False,
    "localhost.evil.example": False,
    "evil.example": False,
    "192.168.1.1": False,
    "[fd00::2]": False,
    "": False,
    ".": False,
    "localhost..": False,
    "localhost:": False,
    "localhost:0": False,
    "localhost:99999": False,
    "localhost:7480:7480": False,
    "localhost:-1": False,
    "localhost:७": False,
    "user@localhost": False,
    "evil.example@localhost": False,
    "localhost@evil.example": False,
    "localhost#evil.example": False,
    "localhost/evil.example": False,
    "localhost?evil.example": False,
    "localhost\\evil.example": False,
    "localhost,evil.example": False,
    "localhost evil.example": False,
    "localhost\t": False,
    "lo%63alhost": False,
    "[::1": False,
    "::1": False,
    "[::1%25lo]": False,
    "[localhost]": False,
    "[::1]evil.example": False,
    "127.1": False,
    "0x7f.0.0.1": False,
    "2130706433": False,
    "0.0.0.0": False,
    "ｌocalhost": False,
}


@pytest.mark.parametrize(("given", "allowed"), HOST_CASES.items())
def test_hosts(given: str, allowed: bool) -> None:
    rules = AllowedHosts([check_host(name) for name in HOSTS])
    place = parse_authority(given)
    assert (place is not None and rules.allow(place.host)) is allowed


ORIGINS = [
    "https://chat.example",
    "http://192.168.1.10:3000",
    "app://obsidian.md",
    "https://*.apps.example:8443",
    "vscode-webview://*",
]

ORIGIN_CASES = {
    "https://chat.example": True,
    "HTTPS://CHAT.example.": True,
    "https://chat.example:443": True,
    "http://192.168.1.10:3000": True,
    "app://obsidian.md": True,
    "https://a.b.apps.example:8443": True,
    "vscode-webview://0abc123def": True,
    "http://chat.example": False,
    "https://chat.example:444": False,
    "https://chat.example.evil.example": False,
    "https://evil.example#https://chat.example": False,
    "https://evil.example@chat.example": False,
    "https://chat.example/": False,
    "https://chat.example https://evil.example": False,
    "http://192.168.1.10": False,
    "app://obsidian.md.evil": False,
    "apps://obsidian.md": False,
    "https://apps.example:8443": False,
    "https://a.apps.example": False,
    "vscode-webview://": False,
    "vscode-webview://a/../b": False,
    "vscode-webview:a": False,
    "null": False,
    "": False,
    "*": False,
    "://": False,
}


@pytest.mark.parametrize(("given", "allowed"), ORIGIN_CASES.items())
def test_origins(given: str, allowed: bool) -> None:
    assert AllowedOrigins([check_origin(name) for name in ORIGINS]).allow(given) is allowed


@given(st.text(max_size=20) | st.text("a1f.:[]@%*-/ \\", max_size=20))
def test_nothing_but_loopback_is_loopback(text: str) -> None:
    place = parse_authority(text)
    if place is not None:
        assert AllowedHosts().allow(place.host) == is_loopback(place.host)
        assert "@" not in place.host
        assert parse_authority(f"[{place.host}]" if ":" in place.host else place.host) is not None
    page = parse_origin(f"http://{text}")
    assert (page is None) == (place is None)
    assert not AllowedOrigins().allow(text)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('allowed_hosts = ["http://a.example"]', "is no name of a host"),
        ('allowed_hosts = ["a.example:80"]', "has a port"),
        ('allowed_hosts = ["*.*.example"]', "is no name of a host"),
        ('allowed_hosts = ["a.*"]', "is no name of a host"),
        ('allowed_hosts = ["müller.local"]', "is no name of a host"),
        ('allowed_origins = ["null"]', "any page can have itself called 'null'"),
        ('allowed_origins = ["chat.example"]', "is no origin"),
        ('allowed_origins = ["https://*"]', "is no origin"),
        ('allowed_origins = ["https://a.example/path"]', "is no origin"),
        ('tls_key = "a.key"', "'tls_certificate' is not"),
        ('tls_certificate = "none.crt"\ntls_key = "none.key"', "cannot read the TLS certificate"),
    ],
)
def test_a_config_that_cannot_be(tmp_path: Path, line: str, what: str) -> None:
    (config,) = write_cluster(tmp_path, 1, tiny.path(), api="127.0.0.1:7480")
    config.write_text(f"{config.read_text()}{line}\n")
    done = sealring("up", config)
    assert done.code == 2
    assert what in done.err


# ------------------------------------------------------------------- a head that lets some in

(NAME,) = LET_IN["allowed_hosts"]
PAGE, _ = LET_IN["allowed_origins"]


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_name_that_is_allowed(ring: Served) -> None:
    for host in (NAME, f"{NAME}:7480", f"{NAME.upper()}."):
        answer = ring.http.get("/v1/models", headers={"host": host})
        assert answer.status_code == 200
        # Its own page has that name too, and is no foreign one.
        page = f"http://{host.lower().rstrip('.')}"
        answer = ring.http.get("/v1/models", headers={"host": host, "origin": page})
        assert answer.status_code == 200
    answer = ring.http.get("/v1/models", headers={"host": "mymac.local:7480"})
    assert code(answer) == (403, "wrong_host")
    assert 'allowed_hosts = ["mymac.local"]' in answer.json()["error"]["message"]


REBINDING = [
    b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n",
    b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n",
    b"GET http://localhost@evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n",
    b"GET http://evil.example@localhost/v1/models HTTP/1.1\r\nHost: localhost\r\n",
    b"GET HTTP://EVIL.example:80/v1/models HTTP/1.1\r\nHost: localhost\r\n",
    b"GET /v1/models HTTP/1.0\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost, evil.example\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: localhost\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: \r\n",
    b"OPTIONS /v1/models HTTP/1.1\r\nHost: evil.example\r\nOrigin: app://obsidian.md\r\n"
    b"Access-Control-Request-Method: GET\r\n",
]
MALFORMED = [
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nhost: localhost\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost : localhost\r\n",
    b"GET /v1/models HTTP/1.1\r\n",
]


@pytest.mark.parametrize("said", [*REBINDING, *MALFORMED])
def test_a_rebound_name_gets_nothing(ring: Served, said: bytes) -> None:
    url = httpx2.URL(ring.url)
    with socket.create_connection((url.host, url.port or 80), timeout=60) as sock:
        sock.sendall(said + b"Connection: close\r\n\r\n")
        with sock.makefile("rb") as answer:
            got = answer.read()
    status = 400 if said in MALFORMED else 403
    assert got.startswith(b"HTTP/1.1 %d " % status), got
    assert b'"object"' not in got


def test_a_page_that_is_allowed(ring: Served) -> None:
    asked = "authorization, content-type, X-Stainless-Lang, anthropic-version, x-evil, a b, openai-"
    preflight = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": asked,
        "access-control-request-private-network": "true",
    }
    told = ring.http.options("/v1/chat/completions", headers=preflight)
    assert (told.status_code, told.content) == (204, b"")
    assert told.headers["access-control-allow-origin"] == PAGE
    assert "POST" in told.headers["access-control-allow-methods"]
    assert told.headers["access-control-allow-headers"] == (
        "authorization, content-type, x-stainless-lang, anthropic-version"
    )
    assert told.headers["access-control-allow-private-network"] == "true"
    assert "Origin" in told.headers["vary"]
    assert "access-control-allow-credentials" not in told.headers
    # What it then gets, an error or not, it may read.
    page = {"origin": PAGE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    answers = [
        ring.http.post("/v1/chat/completions", json=body, headers=page)
        for body in (ring.chat("Hello.", max_tokens=2), {"model": "tiny"}, [])
    ]
    answers += [ring.http.get(path, headers=page) for path in ("/v1/models", "/v1/none")]
    assert [answer.status_code for answer in answers] == [200, 400, 400, 200, 404]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "Origin" in answer.headers["vary"]
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "app://obsidian.md.evil", "http://127.0.0.1:1"]
)
def test_a_page_that_is_not(ring: Served, origin: str) -> None:
    asks = {"origin": origin, "access-control-request-method": "POST"}
    for answer in (
        ring.http.options("/v1/chat/completions", headers=asks),
        ring.http.get("/v1/models", headers={"origin": origin}),
        ring.http.get("/health", headers={"origin": origin}),
    ):
        assert code(answer) == (403, "wrong_origin")
        assert "access-control-allow-origin" not in answer.headers
        assert "Origin" in answer.headers["vary"]
        hint = "allowed_origins" in answer.json()["error"]["message"]
        assert hint == (origin != "null")
    # Nor does an origin that is allowed let one in that is not beside it.
    two = [("origin", PAGE), ("origin", origin)]
    assert code(ring.http.get("/v1/models", headers=two)) == (403, "wrong_origin")


# ------------------------------------------------------------------- what others call a request

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SOUND = f"00-{TRACE}-{SPAN}-01"

PARENTS: dict[str, bool] = {
    SOUND: True,
    f"00-{TRACE}-{SPAN}-00": True,
    f"cc-{TRACE}-{SPAN}-01-what.the.future.brings": True,
    f"00-{TRACE}-{SPAN}-01-more": False,
    f"ff-{TRACE}-{SPAN}-01": False,
    f"00-{'0' * 32}-{SPAN}-01": False,
    f"00-{TRACE}-{'0' * 16}-01": False,
    f"00-{TRACE.upper()}-{SPAN}-01": False,
    f"00-{TRACE}-{SPAN}": False,
    f"00-{TRACE[1:]}-{SPAN}-01": False,
    f"cc-{TRACE}-{SPAN}-01more": False,
    "": False,
    "x" * 5000: False,
}


@pytest.mark.parametrize(("parent", "taken"), PARENTS.items())
def test_a_trace_is_taken_up_or_begun(ring: Served, parent: str, taken: bool) -> None:
    answer = ring.http.get("/v1/models", headers={"traceparent": parent})
    found = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-0[0-3]", answer.headers["traceparent"])
    assert found
    assert (found[1] == TRACE) is taken
    assert found[2] != SPAN


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"], "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        (["a=1", "b@c=2 ,,"], "a=1,b@c=2"),
        (["a=1,a=2"], None),
        (["A=1"], None),
        (["a=1,b"], None),
        ([",".join(f"a{n}=1" for n in range(33))], None),
        (["a=" + "x" * 257], None),
    ],
)
def test_the_state_of_a_trace(ring: Served, state: list[str], told: str | None) -> None:
    headers = [("traceparent", SOUND), *(("tracestate", each) for each in state)]
    answer = ring.http.get("/v1/models", headers=headers)
    assert answer.headers.get("tracestate") == told
    assert answer.headers["traceparent"].startswith(f"00-{TRACE}-")
    assert "tracestate" not in ring.http.get("/v1/models", headers=headers[1:]).headers


def test_a_request_is_found_by_what_its_client_calls_it(ring: Served) -> None:
    headers = {"x-request-id": "order-42:a", "traceparent": SOUND}
    body = ring.chat("Hello.", max_tokens=2)
    answer = ring.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.headers["x-request-id"] == "order-42:a"
    own = answer.json()["id"]
    assert own.startswith("chatcmpl-")
    for name in (own, "order-42:a"):
        told = ring.trace(name)
        assert (told["id"], told["request_id"], told["trace_id"]) == (own, "order-42:a", TRACE)
    log = ring.head.log.read_text()
    assert re.search(rf"{own}, called order-42:a, trace {TRACE}: length;", log)
    for wrong in ("a b", "", "x" * 129, "a/b", 'a"b', "a\xe9", "<a>"):
        given = {"x-request-id": wrong.encode("latin1")}
        answer = ring.http.get("/v1/models", headers=given)
        assert answer.headers["x-request-id"].startswith("req-")
    # Nobody can pass for another's request by its id.
    given = {"x-request-id": own}
    again = ring.http.post("/v1/chat/completions", json=body, headers=given)
    assert again.json()["id"] != own
    assert ring.http.get(f"/v1/requests/{own}/trace").json()["request_id"] == "order-42:a"


# ------------------------------------------------------------------- whoever watches


def test_those_who_ask_for_metrics_at_once_share_a_page(ring: Served) -> None:
    """One takes the event loop milliseconds."""

    def page(_: int) -> str:
        return httpx2.get(f"{ring.url}/metrics").text

    with ThreadPoolExecutor(16) as clients:
        pages = set(clients.map(page, range(16)))
    assert len(pages) <= 4  # each counts those that were answered before it
    assert "sealring_up 1.0" in pages.pop()


def test_probes_and_metrics(ring: Served) -> None:
    assert ring.http.get("/livez").json() == {"status": "alive"}
    assert ring.http.get("/readyz").json() == {"status": "ready", "reasons": []}
    ring.post(ring.chat("Tell me.", max_tokens=4, n=2))
    ring.post({"model": "tiny"})
    text = ring.http.get("/metrics").text
    port = ring.url.rpartition(":")[2]
    served = {
        'gen_ai_operation_name="chat"',
        'gen_ai_provider_name="sealring"',
        'gen_ai_request_model="tiny"',
        'gen_ai_response_model="tiny"',
        'server_address="127.0.0.1"',
        f'server_port="{port}"',
    }

    def value(name: str, more: str = "") -> float:
        found = re.search(
            rf"^{name}{re.escape('{' + more + '}' if more else '')} (\S+)$", text, re.M
        )
        assert found, name
        return float(found[1])

    def labels(name: str) -> list[str]:
        return sorted(set(re.findall(rf"^{name}_count{{(.*)}}", text, re.M)))

    failed = labels("gen_ai_server_request_duration_seconds")
    assert any('error_type=""' in each for each in failed)
    assert any('error_type="missing_required_parameter"' in each for each in failed)
    usage = [set(each.split(",")) for each in labels("gen_ai_client_token_usage")]
    for kind in ("input", "output"):
        assert served | {f'gen_ai_token_type="{kind}"'} in usage
    first = labels("gen_ai_server_time_to_first_token_seconds")
    assert served in [set(each.split(",")) for each in first]
    assert labels("gen_ai_server_time_per_output_token_seconds") == first
    for edge in ("0.01", "81.92"):
        assert f'le="{edge}"' in text
    assert value("sealring_requests_waiting") == value("sealring_requests_running") == 0
    assert 0 <= value("sealring_kv_cache_usage_ratio") <= 1


# ------------------------------------------------------------------- serve, with all of it


@pytest.mark.slow
def test_serve_with_tls_and_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = write_pair(tmp_path)
    secret = "a-key-of-more-than-16-characters"
    monkeypatch.setenv("SEALRING_API_KEY", secret)
    monkeypatch.setenv("SEALRING_SERVE_RANKS", "1")
    monkeypatch.setenv("SEALRING_SERVE_ALLOWED_ORIGINS", f"{PAGE} https://chat.example")
    monkeypatch.setenv("SEALRING_UP_LOG", "nonsense")  # for another node, and not for serve's
    options = ("--host", "0.0.0.0", "--tls-certificate", certificate, "--tls-key", key)
    with serving(*map(str, options)) as served:
        assert served.url.startswith("https://127.0.0.1:")
        assert len(served.about["ranks"]) == 1
        monkeypatch.delenv("SEALRING_API_KEY")
        with httpx2.Client(
            **{**client.settings(served.url, "", client.trusting(certificate)), "timeout": 60.0}
        ) as http:
            assert http.get("/").status_code == 200
            assert http.get("/readyz").status_code == 200
            refused = http.get("/v1/models", headers={"origin": PAGE})
            assert code(refused) == (401, "invalid_api_key")
            assert refused.headers["access-control-allow-origin"] == PAGE
            assert http.get("/metrics").status_code == 401
            bearer = {"authorization": f"Bearer {secret}"}
            text = http.get("/metrics", headers=bearer).text
            (left,) = re.findall(r"^sealring_tls_certificate_expires_seconds (\S+)$", text, re.M)
            assert 29 * 86_400 < float(left) < 31 * 86_400
        keyed = tmp_path / "api.key"
        keyed.touch(0o600)
        keyed.write_text(f"{secret}\n")
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello.\n"))
        url = ("chat", "--url", served.url)
        done = sealring(*url, "--certificate", certificate, "--api-key-file", keyed)
        assert (done.code, done.err) == (0, ""), done
        assert done.out.strip()
        done = sealring(*url, "--api-key-file", keyed)
        assert done.code == 1
        assert "--certificate" in done.err
        done = sealring("chat", "--url", served.url.replace("https", "http"))
        assert "speaks TLS" in done.err
    for bad, what in (("short", "16 to 256 characters"), ("", "there is no API key")):
        monkeypatch.setenv("SEALRING_API_KEY", bad)
        done = sealring("serve", "--host", "0.0.0.0", "--port", "0")
        assert done.code == 2
        assert what in done.err
