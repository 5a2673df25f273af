"""`sealring bench faults`: what it breaks on a real ring, and its verdict."""

from __future__ import annotations

import pytest
from sealring_tools.bench import faults
from sealring_tools.bench.faults import Summary, Trial

from tests.io_trio.helpers import sealring


@pytest.mark.parametrize(
    "strategy",
    [pytest.param("tp", marks=pytest.mark.long), pytest.param("pp", marks=pytest.mark.slow)],
)
def test_a_request_goes_on_whatever_breaks(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "DETECTION", faults.LOST_AFTER)  # a busy machine may take longer
    monkeypatch.setattr(faults, "TOKENS", 16)
    broken = ["leader-engine-killed", "follower-engine-frozen", "forward-raises", "client-gone"]
    options = [option for fault in broken for option in ("--fault", fault)]
    done = sealring("bench", "faults", "--strategy", strategy, "--times", "1", *options, "--json")
    assert [(each["fault"], each["wrong"], each["passed"]) for each in done.json()] == [
        (fault, [], True) for fault in broken
    ]
    assert done.code == 0


@pytest.mark.parametrize(
    ("trials", "passed"),
    [
        ([(0.1, ()), (1.9, ())], True),
        ([(0.1, ()), (2.1, ())], False),
        ([(0.1, ()), (0.2, ("it hangs",))], False),
    ],
)
def test_the_verdict(trials: list[tuple[float, tuple[str, ...]]], passed: bool) -> None:
    made = [Trial("client-gone", 3, noticed, 4.0, wrong) for noticed, wrong in trials]
    summary = Summary.of("client-gone", made)
    assert summary.passed is passed
    assert summary.noticed[1] == max(noticed for noticed, _ in trials)
    assert list(summary.wrong) == [f"at token 3: {w}" for _, wrong in trials for w in wrong]
