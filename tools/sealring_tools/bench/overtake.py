"""The time to the first token of a short prompt while a long one is being read in.

A ring of two ranks, the normal path. The yardstick is what it may take: its own time alone, and two
chunks of the long prompt, which is the time that the long one takes alone over its chunks.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from sealring.local.ring import LocalNode, local_ring
from sealring_model.text.tokens import Tokenizer
from sealring_protocol.control.requests import SchedulerConfig
from sealring_tools.bench.measure import Result
from sealring_tools.bench.random_model import write_random_model
from sealring_tools.bench.texts import text_of

LONG: Final = 4000
"""Tokens of the long prompt."""

SHORT: Final = "A short question about a fox, number {}."
TURNS: Final = 3
_CHUNK: Final = SchedulerConfig().chunk


def measure() -> list[Result]:
    """Seconds to the first token, medians of alternating turns, 25 million parameters, f32."""
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        model = write_random_model(Path(folder))
        text = text_of(Tokenizer(model), LONG - 20)
        with local_ring(2, model) as (head, _):
            _first_token(head, SHORT.format("one"))
            alone, long, busy = [], [], []
            for turn in range(TURNS):
                alone.append(_first_token(head, SHORT.format(f"{turn} alone")))
                long.append(_first_token(head, f"{turn} {text}"))
                busy.append(_behind(head, f"{turn} again {text}", SHORT.format(f"{turn} behind")))
    chunk = statistics.median(long) / (LONG / _CHUNK)
    allowed = statistics.median(alone) + 2 * chunk
    what = f"first token behind a prompt of {LONG:,}"
    return [Result(what, "s", statistics.median(busy), allowed, "alone and 2 chunks")]


def _behind(head: LocalNode, long: str, short: str) -> float:
    """Seconds to the first token of *short*, asked when *long* is being read in."""
    reader = threading.Thread(target=_first_token, args=(head, long))
    reader.start()
    while not head.status()["requests"]:
        pass
    for _ in range(10):  # until some of it has been read
        head.status()
    took = _first_token(head, short)
    reader.join()
    return took


def _first_token(head: LocalNode, prompt: str) -> float:
    start = time.perf_counter()
    request = {"prompt": prompt, "raw": True, "max_tokens": 1}
    for event in head.ask("generate", request):
        if event["event"] in ("text", "done"):
            break
    return time.perf_counter() - start
