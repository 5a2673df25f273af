"""`guesses = false`, and `--no-guesses`: no token is guessed, from wherever the guess may come."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from sealring.local.ring import LocalApi, local_api
from sealring_model import tiny

from tests.io_trio.helpers import sealring
from tests.serving import PATIENCE

PASSAGE = "Say the following again: the cat sat on the mat and the dog sat on the log."
TOLD = {"prompt": PASSAGE, "max_tokens": 48}
NONE = {"accepted": 0, "rejected": 0}


@pytest.fixture(scope="module", params=[True, False])
def api(request: pytest.FixtureRequest) -> Iterator[LocalApi]:
    """A ring that guesses, of one node as nothing else is asked of it, and one that does not."""
    ranks = 1 if request.param else 2
    with local_api(ranks, tiny.path(), options={"guesses": request.param}) as running:
        yield running


def guessing(api: LocalApi) -> bool:
    return "guesses = true" in api.nodes[0].config.read_text()


def details(usage: dict[str, Any]) -> dict[str, int]:
    told = usage["completion_tokens_details"]
    return {name: told[f"{name}_prediction_tokens"] for name in NONE}


@pytest.mark.slow
def test_none_is_taken_of_a_request(api: LocalApi) -> None:
    *_, first = api.nodes[0].ask("generate", TOLD)
    *_, again = api.nodes[0].ask("generate", {**TOLD, "guesses": first["token_ids"]})
    assert again["token_ids"] == first["token_ids"]
    assert (again["guesses"] != NONE) == guessing(api)


@pytest.mark.slow
def test_none_is_looked_up_nor_taken_of_a_prediction(api: LocalApi) -> None:
    body: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": PASSAGE}],
        "max_tokens": 48,
        "ignore_eos": True,
        "temperature": 0,
    }
    url = f"{api.url}/v1/chat/completions"
    text = httpx2.post(url, json=body, timeout=PATIENCE).json()["choices"][0]["message"]["content"]
    body["prediction"] = {"type": "content", "content": text}
    done = httpx2.post(url, json=body, timeout=PATIENCE).json()
    assert done["choices"][0]["message"]["content"] == text
    assert (details(done["usage"]) != NONE) == guessing(api)
    assert (api.nodes[0].status()["guesses"] != NONE) == guessing(api)


@pytest.mark.slow
def test_a_run_without_guesses_starts_a_ring() -> None:
    command = [sys.executable, "-m", "sealring", "run", "tiny", PASSAGE, "--no-guesses"]
    done = subprocess.run(
        [*command, "--temperature", "0", "--max-tokens", "48", "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert "a ring without guesses is started" in done.stderr
    assert details(json.loads(done.stdout)["usage"]) == NONE


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("serve", "--draft", "tiny", "--no-guesses"), "--draft names a model that guesses"),
        (("demo", "--draft", "tiny", "--no-guesses"), "--draft names a model that guesses"),
        (
            ("run", "tiny", "hello", "--no-guesses", "--url", "http://127.0.0.1:1"),
            "--no-guesses is for a ring that this command starts",
        ),
    ],
)
def test_what_cannot_go_together(arguments: tuple[str, ...], what: str) -> None:
    done = sealring(*arguments)
    assert done.code == 2
    assert what in done.err
