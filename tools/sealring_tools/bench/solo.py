"""A ring of one rank by the normal path, beside mlx-lm's `stream_generate` in a process of its own.

Both detokenise, both are asked in turns, and both paces are taken where the text comes out: the
ring's at the client of the control socket, after daemon and engine; mlx-lm's in its loop.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Final

from sealring.local.reference import one_process, pace
from sealring.local.ring import LocalNode, local_ring
from sealring_tools.bench.measure import Result
from sealring_tools.bench.random_model import write_random_model
from sealring_tools.bench.yardstick import token_times

TURNS: Final = 7
TOKENS: Final = 128
PROMPT: Final = "Tell me a story about a fox and a river."


def measure() -> list[Result]:
    """Tokens a second, medians of alternating turns, greedy, f32, 25 million parameters."""
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        model = write_random_model(Path(folder))
        with local_ring(1, model) as (head,), one_process(model) as single:
            ours: list[float] = []
            yardstick: list[float] = []
            _ask(head)
            single.generate(PROMPT, TOKENS)
            for _ in range(TURNS):
                ours.append(_ask(head))
                yardstick.append(single.generate(PROMPT, TOKENS).tokens_per_s)
    rates = statistics.median(ours), statistics.median(yardstick)
    return [Result("one rank, 25M f32", "tokens/s", *rates, "mlx-lm stream_generate")]


def _ask(head: LocalNode) -> float:
    return pace(token_times(head.ask("generate", {"prompt": PROMPT, "max_tokens": TOKENS})))
