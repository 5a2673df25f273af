"""How long a peer may be silent is in the config. What a longer silence costs."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from sealring_trio.files.models import TINY, find_model

from tests.operation.crowd import Listener, all_there, begin, head_of, streamed, urls
from tests.operation.machines import Machine, machines

CONTEXT: Final = 4000
"""Tokens at least of the prompt that a stall does not have read again."""

STALL: Final = 3.0
BUSY: Final = 4.0


@pytest.mark.long
def test_a_pause_within_the_patience_of_the_config_costs_no_link() -> None:
    with machines(2, patience=20) as (desk, shelf):
        for machine in (desk, shelf):
            machine.start()
        desk.wait_for_log("the ring is ready")
        desk.wait_for(lambda: desk.http("GET", "/health").status_code == 200, "health")
        shelf.stall()
        end = threading.Timer(4.0, shelf.resume)  # more than a config that says nothing allows
        end.start()
        assert desk.ask("Hello.", max_tokens=4).status_code == 200
        end.join()
        assert "rank 1 (shelf) is gone" not in desk.log
        assert desk.status()["epoch"] == 1


@pytest.mark.long
def test_a_stall_of_a_machine_has_a_long_context_not_read_again(tmp_path: Path) -> None:
    model = _with_a_long_context(tmp_path)
    with machines(3, guests=1, model=str(model)) as (*machines_of_ring, guest):
        ring = tuple(machines_of_ring)
        key = begin(ring)
        words = " ".join(f"{number} blue boats" for number in range(900))
        asked = {
            "model": model.name,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": 200,
            "ignore_eos": True,
            "seed": 7,
        }
        headers = {"authorization": f"Bearer {key}"}
        with guest.inside(), httpx2.Client(timeout=240, trust_env=False) as client:
            url = f"{urls(ring)[0]}/v1/chat/completions"
            answer = client.post(url, json=asked, headers=headers).json()
        assert answer["usage"]["prompt_tokens"] >= CONTEXT, answer
        expected = answer["choices"][0]["message"]["content"]
        head = head_of(ring, guest, key)
        follower = next(machine for machine in ring if machine is not head)
        listener = Listener(partial(streamed, ring, guest, key, asked, head.index))
        head.wait_for(lambda: len(listener.times) > 10, "tokens", 240)
        before, at = _prefills(ring, guest, key, head), time.monotonic()
        follower.stall()
        follower.wait_for(lambda: time.monotonic() > at + STALL, "end of the stall")
        follower.resume()
        assert listener.result() == expected
        silence = listener.silence(at, listener.times[-1])
        print(f"a stall of {STALL:g} s costs {silence:.1f} s")
        # The tokens of the step that was under way are read again, in one piece.
        assert _prefills(ring, guest, key, head) <= before + 1
        assert silence < STALL + BUSY * 1.0
        head.wait_for(lambda: all_there(ring), "all machines")


def _prefills(ring: Sequence[Machine], guest: Machine, key: str, head: Machine) -> float:
    """How many pieces of prompts *head* has had read."""
    headers = {"authorization": f"Bearer {key}"}
    with guest.inside(), httpx2.Client(timeout=60, trust_env=False) as client:
        url = f"{urls(ring, head.index)[0]}/metrics"
        (found,) = re.findall(
            r'^sealring_steps_total\{work="prefill"\} (\S+)$',
            client.get(url, headers=headers).text,
            re.MULTILINE,
        )
    return float(found)


def _with_a_long_context(folder: Path) -> Path:
    """The tiny model, which may read 8,192 tokens here."""
    model = Path(shutil.copytree(find_model(TINY), folder / "long"))
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    return model
