"""Tokens/s of two checkouts' rings in turn: ``python -m tests.alternate CHECKOUT CHECKOUT``.

For an ablation: the second checkout is a worktree, with its own ``.venv``, in which one part is
switched off. Both rings of the tiny model stand at the same time, and are asked one after the
other, first one first, then the other first. So both see the same machine, and the median of the
ratios of pairs is the figure to trust. Each round starts both rings anew.

``python -m tests.alternate --succession`` has two rings of this checkout, which are asked by HTTP:
in the first one each machine may be head, and knows the answers under way; in the second one the
first machine alone. So it says what succession costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

_RING: Final = """
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from sealring_model.tiny import DEFAULT_PROMPT
try:
    from sealring_trio.files.models import TINY, find_model
    from sealring.local.reference import pace
    from sealring.local.ring import local_ring
except ImportError:  # before the rooms
    from sealring_tools.bench.measure import pace
    from sealring_trio.local_ring import local_ring
    from sealring_trio.models import TINY, find_model

ranks, strategy, rows = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
options = {"strategy": strategy, "collectives": "sealed"}
pool = ThreadPoolExecutor(rows)
with local_ring(ranks, find_model(TINY), options=options) as nodes:
    def answer(tokens):
        request = {"prompt": DEFAULT_PROMPT, "max_tokens": tokens}
        times = []
        for event in nodes[0].ask("generate", request):
            if event["event"] == "text":
                times += [time.perf_counter()] * event["count"]
        return times
    print("up", flush=True)
    for line in sys.stdin:
        print(sum(map(pace, pool.map(answer, [int(line)] * rows))), flush=True)
"""
"""Runs in either checkout, which may be older: it uses what both have, and no private name."""

_SUCCESSION: Final = """
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
import httpx2
from sealring.local.ring import free_ports, running_node, wait_until_up, write_cluster
from sealring_model.tiny import DEFAULT_PROMPT
from sealring_trio.files.models import TINY, find_model

ranks, strategy, rows = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
elects = sys.argv[4] == "True"
options = {"strategy": strategy, "collectives": "sealed"}
pool = ThreadPoolExecutor(rows)
with ExitStack() as stack:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    model = find_model(TINY)
    configs = write_cluster(folder, ranks, model, (), address, options, elects=elects)
    nodes = [stack.enter_context(running_node(config)) for config in configs]
    for node in nodes:
        wait_until_up(node)
    http = stack.enter_context(httpx2.Client(base_url=f"http://{address}", timeout=60))
    while http.get("/readyz").status_code != 200:
        time.sleep(0.1)
    name = http.get("/v1/models").json()["data"][0]["id"]
    def answer(tokens):
        asked = {"model": name, "prompt": DEFAULT_PROMPT, "max_tokens": tokens}
        asked |= {"stream": True, "ignore_eos": True, "temperature": 0}
        times = []
        with http.stream("POST", "/v1/completions", json=asked) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    assert "choices" in json.loads(line[6:]), line
                    times.append(time.perf_counter())
        return (tokens - 1) / (times[-1] - times[0])
    print("up", flush=True)
    for line in sys.stdin:
        print(sum(pool.map(answer, [int(line)] * rows)), flush=True)
"""


Side = tuple[Path, str, tuple[str, ...]]
"""A checkout, the program that has a ring of its code, and what that program is told."""


class CheckoutRing:
    """The ring of *side*, ended with the block."""

    def __init__(self, side: Side, stack: ExitStack) -> None:
        checkout, program, arguments = side
        self._process = subprocess.Popen(
            [str(checkout / ".venv/bin/python"), "-c", program, *arguments],
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.enter_context(self._process)
        self._line()

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError("a ring ended early; its messages are above")
        return line

    def pace(self, tokens: int) -> float:
        """Tokens/s of all rows, each an answer of *tokens*."""
        if self._process.stdin is None:
            raise ValueError("the ring was started without pipes")
        self._process.stdin.write(f"{tokens}\n")
        self._process.stdin.flush()
        return float(self._line())


def measure(sides: list[Side], pairs: int, tokens: int) -> list[tuple[float, float]]:
    """*pairs* of tokens/s, of the first and the second of *sides*, from one start of each."""
    found = []
    with ExitStack() as stack:
        rings = [CheckoutRing(side, stack) for side in sides]
        for each in rings:
            each.pace(min(50, tokens))  # to warm up
        for pair in range(pairs):
            order = rings if pair % 2 else rings[::-1]
            paces = {id(each): each.pace(tokens) for each in order}
            found.append((paces[id(rings[0])], paces[id(rings[1])]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path, nargs="*")
    parser.add_argument("--succession", action="store_true", help="with it, and without")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--strategy", choices=["pp", "tp"], default="pp")
    parser.add_argument("--rows", type=int, default=1, help="requests at once")
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=8)
    options = parser.parse_args()
    if len(options.checkouts) != (0 if options.succession else 2):
        parser.error("give two checkouts, or --succession alone")
    ring = (str(options.ranks), options.strategy, str(options.rows))
    sides = [(checkout, _RING, ring) for checkout in options.checkouts]
    if options.succession:
        sides = [(Path(), _SUCCESSION, (*ring, str(elects))) for elects in (True, False)]
    rows = []
    for _ in range(options.rounds):
        rows += measure(sides, options.pairs, options.tokens)
    ratios = sorted(first / second for first, second in rows)
    quarter = len(ratios) // 4
    print(
        json.dumps(
            {
                "pairs": len(rows),
                "first": round(statistics.median(row[0] for row in rows), 1),
                "second": round(statistics.median(row[1] for row in rows), 1),
                "ratio": round(statistics.median(ratios), 3),
                "quartiles": [round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)],
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
