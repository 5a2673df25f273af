"""What each part of look-ahead brings: ``python -m tools.ablate --gpus --size 8b``.

One ring of two ranks runs with all parts, and without each of them in turn (`tools/parts`). A round
asks for the same answers with every choice of parts, in another order each time; a choice's figure
is the median over rounds of its pace by that of the whole in the same round, with quartiles. A part
that brings less than 3 % on every device goes.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from sealring.local.ring import LocalNode, local_ring
from sealring_tools.bench.batch import make_prompts, ring_pace
from sealring_tools.bench.gpus import gpu_places
from sealring_tools.bench.random_model import write_random_model
from sealring_tools.bench.speculate import one_answer, same_answer, spoilt

from tools.arguments import command

PARTS: Final = {
    "building": "building ahead: all of it",
    "decode": "of that, the next decode",
    "closing": "of that, the closing pass",
    "launching": "launching ahead on inlets that wait",
    "gate": "the gate",
    "thread": "the thread that builds",
    "early": "filling an inlet early",
    "polling": "busy polling for the next message",
    "pinned": "outlets in pinned memory",
    "unplaced": "graphs whose place comes with their input",
}
SETTLE_SECONDS: Final = 0.1
"""Time in which engines have read which parts are off."""
SWITCHES: Final = Path(__file__).resolve().parent / "parts"


def ratios(
    ask: Callable[[], float], parts: Sequence[str], rounds: int, off: Path
) -> dict[str, list[float]]:
    """The pace without each of *parts* by that of the whole ("" has two of a round), by part."""
    found: dict[str, list[float]] = {part: [] for part in ("", *parts)}
    for number in range(rounds + 1):
        turns = ["", "", *parts]
        random.Random(number).shuffle(turns)
        paces: dict[str, list[float]] = {}
        for part in turns:
            off.write_text(part)
            time.sleep(SETTLE_SECONDS)
            paces.setdefault(part, []).append(ask())
            said = f"round {number}, without {part or 'nothing'}: {paces[part][-1]:.1f} tokens/s"
            print(said, file=sys.stderr)
        if number:  # the first warms up
            whole = statistics.mean(paces[""])
            found[""].append(whole)
            for part in parts:
                found[part].append(paces[part][0] / whole)
    return found


def show(name: str, found: dict[str, list[float]]) -> None:
    """Print a table."""
    print(f"\n{name}: {statistics.median(found.pop('')):.1f} tokens/s with all parts")
    print(f"{'without':45}{'median':>8}{'quartiles':>16}")
    for part, each in found.items():
        low, middle, high = statistics.quantiles(each, n=4)
        print(f"{PARTS[part]:45}{middle:8.3f}{low:9.3f} {high:6.3f}", flush=True)


def guessed(head: LocalNode, text: str, tokens: int, share: float) -> Callable[[], float]:
    """Asks for one answer, of which a *share* is guessed right."""
    answer: Sequence[int] = one_answer(head, text, tokens, guesses=())[1]["token_ids"]
    return partial(same_answer, head, text, answer, spoilt(answer, share), lambda _: None)


def main() -> int:
    """Measure, and print a table for each load."""
    parser = command("tools.ablate", __doc__)
    parser.add_argument("--size", default="25m")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--gpus", action="store_true", help="a GPU for each rank")
    parser.add_argument("--rows", type=int, default=32, help="of a group; there are two groups")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--loads", default="row,groups,guesses")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--strategy", default="pipeline")
    asked = parser.parse_args()
    parts = asked.parts.split(",")
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        off = Path(folder) / "off"
        off.touch()
        model = write_random_model(Path(folder), asked.size, asked.dtype)
        paths = [str(SWITCHES), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        os.environ["SEALRING_PARTS_OFF"] = str(off)
        options = {"rows": asked.rows, "groups": 2, "ahead": 8}
        places = gpu_places(2) if asked.gpus else ()
        texts = make_prompts(2 * asked.rows, 32)
        print("starting the ring", file=sys.stderr)
        with local_ring(2, model, options=options, places=places) as (head, *_):
            loads: dict[str, Callable[[], float]] = {
                "row": lambda: one_answer(head, texts[0], asked.tokens, guesses=())[0],
                "groups": partial(ring_pace, head, texts, asked.tokens),
                "guesses": guessed(head, texts[0], asked.tokens, 0.7),
            }
            if len(list(off.parent.glob("ready *"))) != 2:
                raise SystemExit("an engine has no switches: its parts have other names now")
            for load in asked.loads.split(","):
                show(load, ratios(loads[load], parts, asked.rounds, off))
    return 0


if __name__ == "__main__":
    sys.exit(main())
