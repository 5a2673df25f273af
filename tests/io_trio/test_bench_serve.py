"""`sealring bench serve` and `bench soak`: a short load on a real ring, and their verdicts."""

from __future__ import annotations

from typing import Any

import pytest
from sealring.local import client
from sealring_tools.bench import load, soak
from sealring_tools.bench.load import SCENARIOS, prompt
from sealring_tools.bench.phases import Spread, decompose
from sealring_tools.bench.soak import Process, Reading

from tests.io_trio.helpers import Outcome, sealring
from tests.serving import Served

SMALL = ("--requests", "6", "--concurrency", "3", "--max-tokens", "6", "--max-parse-ms", "100")


def bench(served: Served, *options: str) -> Outcome:
    return sealring("bench", "serve", "--url", served.url, *SMALL, *options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--whole", "--users", "2")], ids=["streamed", "whole"])
def test_a_load_is_answered_and_set_out_by_phase(served: Served, options: tuple[str, ...]) -> None:
    done = bench(served, "--check", "--json", *options)
    (report,) = done.json()
    assert (report["passed"], report["errors"], done.code) == (True, [], 0)
    assert report["tokens"] > 6
    assert list(report["phases_ms"]) == [
        "body",
        "parse",
        "tokenise",
        "queue",
        "prefill",
        "compute of rank 0",
        "compute of rank 1",
        "sample",
        "wait",
        "seal",
        "hop",
        "turn",
        "detokenise",
        "first token",
        "total",
    ]
    for spread in report["phases_ms"].values():
        assert 0 <= spread["p50"] <= spread["p95"] <= spread["max"]
        assert 0 < spread["mean"] <= spread["max"]
    # The head ends a request a moment after its client has the answer.
    assert report["phases_ms"]["total"]["mean"] < 2 * report["client_ms"]["total"]["mean"]
    assert [verdict["name"] for verdict in report["limits"]] == [
        "errors",
        "phases missing",
        "parse, mean ms",
        "other answers alone",
    ]


@pytest.mark.slow
def test_a_limit_that_is_broken(served: Served) -> None:
    done = bench(served, "--max-total-ms", "0.1")
    assert done.code == 3
    assert "of at most 0.1: BROKEN" in done.out
    assert "load: FAILED" in done.out
    assert "compute of rank 1" in done.out


@pytest.mark.slow
def test_requests_that_fail(served: Served) -> None:
    done = bench(served, "--chars", "30000", "--json")
    (report,) = done.json()
    assert done.code == 3
    assert len([error for error in report["errors"] if ": 400: This model's maximum" in error]) == 6
    assert report["limits"][0] == {"name": "errors", "found": 6, "limit": 0, "holds": False}


def test_nobody_answers() -> None:
    done = sealring("bench", "serve", "--url", "127.0.0.1:1")
    assert (done.code, "no head answers at http://127.0.0.1:1" in done.err) == (1, True)


@pytest.mark.slow
def test_a_scenario_for_more_rings_than_there_are(served: Served) -> None:
    done = bench(served, "--scenario", "two-models")
    assert done.code == 2
    assert "'two-models' is spread over 2 rings, and there is one" in done.err
    assert "--start" in done.err


def test_prompts_have_their_size_and_begin_differently() -> None:
    largest = SCENARIOS["large"]
    prompts = [prompt(number, largest.chars) for number in range(largest.requests)]
    assert all(10_000 <= len(text) < 10_020 for text in prompts)
    assert len({text[:12] for text in prompts}) == largest.requests


def test_a_spread() -> None:
    assert Spread.of([float(value) for value in range(1, 101)]) == Spread(50.5, 50.5, 95, 100)
    assert Spread.of([3.0]) == Spread(3, 3, 3, 3)


def test_phases_that_are_missing() -> None:
    whole: dict[str, Any] = {"parse": 1.0, "compute": [1.0, 2.0], "first_token": None}
    _, faults = decompose([{"tokens": 0, "phases_ms": whole}, {"tokens": 1, "phases_ms": whole}])
    assert "1 traces have no first token" in faults
    assert "2 traces have no queue" in faults
    assert "2 traces have no parse" not in faults


@pytest.mark.long
def test_a_short_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = client.settings

    def closing(url: str, key: str) -> dict[str, Any]:
        """Each connection for one request, so that none has to time out."""
        arguments = kept(url, key)
        return {**arguments, "headers": {**arguments["headers"], "connection": "close"}}

    monkeypatch.setattr(client, "settings", closing)
    monkeypatch.setattr(soak, "LOAD", load.Load("soak", 6, 1, users=3, chars=40, max_tokens=8))
    monkeypatch.setattr(soak, "SAMPLES", 8)
    monkeypatch.setattr(soak, "SLACK", 1 << 30)  # caches fill up at first
    done = sealring("bench", "soak", "--minutes", "0.06", "--ranks", "1", "--json")
    report = done.json()
    assert (done.code, report["faults"], report["passed"]) == (0, [], True)
    assert report["deeds"]["answered"] > 0
    assert report["idle"]["rows"] == report["idle"]["requests"] == 0
    assert list(report["idle"]["processes"]) == ["rank0", "rank0 engine"]


def reading(memory: int = 100 << 20, files: int = 9, tasks: int = 5, rows: int = 0) -> Reading:
    return Reading(0, {"rank0": Process(memory, files, 3)}, {"rank0": tasks}, rows, 0, 0)


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        (reading(files=11), "rank0: 2 open files more than at the start"),
        (reading(tasks=6), "rank0: 1 tasks more than at the start"),
        (reading(rows=2), "2 rows and 0 requests are left"),
    ],
)
def test_what_is_left_is_told(after: Reading, fault: str) -> None:
    assert soak.left(reading(), after) == [fault]
    assert soak.left(reading(), reading()) == []


def test_growth_is_told() -> None:
    flat = [reading(100 << 20)] * 40
    rising = [reading((100 + minute) << 20) for minute in range(40)]
    assert soak.growth(flat) == []
    assert soak.growth(rising) == ["rank0: its memory grew by 20.0 MiB"]
