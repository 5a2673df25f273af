"""How a head ends: what runs is finished, what is new is refused, and nobody can hold it up.

It comes last, for it ends the team's ring.
"""

from __future__ import annotations

import json
import signal
import socket
from typing import Any

import pytest

from tests.api.conftest import PATIENCE, TIMEOUT, UNDER_WAY, Served

CHAT = "/v1/chat/completions"


def deaf_client(team: Served) -> socket.socket:
    """One that asks for a stream without end and takes nothing of it."""
    body = team.chat("endless", n=8, logprobs=True, top_logprobs=16, stream=True)
    content = json.dumps(body).encode()
    header = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: {team.http.headers['authorization']}\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", int(team.url.rsplit(":", 1)[1])))
    over: set[str] = {told["id"] for told in team.http.get("/v1/requests").json()["data"]}
    client.sendall(header.encode() + content)

    def stuck(told: dict[str, Any]) -> bool:
        """The latest request has had all its time, and cannot end: what it sends is not taken.

        A slow machine makes too little in that time to fill what the kernel keeps: ask again.
        """
        latest = told["data"][0] if told["data"] else None
        if latest is None or latest["id"] in over:
            return False
        if latest["state"] not in UNDER_WAY:
            over.add(latest["id"])
            client.sendall(header.encode() + content)
            return False
        return bool(latest["phases_ms"]["total"] > 1000 * (TIMEOUT + 0.5))

    team.until("/v1/requests", stuck)
    return client


@pytest.mark.long
def test_what_runs_is_finished_and_what_is_new_is_refused(team: Served) -> None:
    process = team.head.process
    body = team.chat("endless", max_tokens=100, stream=True)
    with deaf_client(team), team.http.stream("POST", CHAT, json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        health = team.until("/health", lambda told: told["status"] != "ok")
        assert health["faults"][0].startswith("this node is shutting down: it finishes ")
        assert health["why"][0]["cause"] == "draining"
        refused = team.post(team.chat("nothing"))
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert refused.headers["retry-after"]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
        told = [json.loads(part) for part in data]
        assert told[-1]["choices"][0]["finish_reason"] == "length"
        text = "".join(part["choices"][0]["delta"].get("content", "") for part in told)
        assert text.count("la") > 50
        process.send_signal(signal.SIGTERM)  # it need not wait for the deaf client
        assert process.wait(PATIENCE) == 0
    log = team.head.log.read_text()
    assert "closing the links" in log
    assert "Traceback" not in log
