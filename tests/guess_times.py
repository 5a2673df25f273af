"""What guesses bring one row in virtual time, beside the same ring without.

``uv run python -m tests.guess_times`` prints tokens/s as a ratio to a ring that never guesses, for
stages whose step takes so much longer with each token that is read ahead as a CPU's does (bf16) or
as that of a device which waits for its memory. On a GPU a step of several tokens takes half as long
again as one of one, or twice as long where the processor is slow to launch it. What is launched
when its input comes takes longer: a step that begins with a guess, and the first of several that
read guesses ahead. An oracle guesses; a given share of it is right.
"""

from __future__ import annotations

from random import Random

from sealring_protocol.codec.messages import Decode, Step, StepDone
from sealring_protocol.control.requests import Request

from tests.node.test_prefill import LAYERS, STAGE, ring
from tests.sim.fake_engine import reference

SLOW = "GPU, slow processor"
SLOPES = {"CPU, bf16": 0.35, "CPU, f32": 1.0, "memory-bound": 0.03, "GPU": 0.03, SLOW: 0.03}
"""By how much of a step of one token each further one makes it longer."""
SEVERAL = {"GPU": 0.5, SLOW: 1.0}
"""By how much longer it takes to read any further tokens at all."""
NOT_AHEAD = {"GPU": 1.7, SLOW: 1.7}
FIRST = {"GPU": 0.8, SLOW: 0.8}
"""By how much longer a graph takes that is launched when its input comes: of a step that begins
with a guess, and of the first that reads several tokens."""

SHARES = (0.0, 0.5, 0.7, 0.9)


def paced(name, world):
    """The pace of stages of machine *name* that share one model among *world* ranks."""
    slope, several, late = SLOPES[name], SEVERAL.get(name, 0), NOT_AHEAD.get(name, 0)
    before = 0

    def pace(message):
        nonlocal before
        match message:
            case Step(work=Decode(ahead=ahead) as work):
                first = ahead > 0 and not (before or work.on_guess)
                before = ahead
                also = late * work.on_guess + several * (ahead > 0) + FIRST.get(name, 0) * first
                return 2 * STAGE / world * (1 + also + slope * ahead)
            case StepDone():
                return 0.0005
            case _:
                return 0.001

    return pace


def asked(cluster, token, count, share):
    """Virtual seconds of *count* tokens; *share* None: without guesses."""
    prompt = (token, 1, 2, 3)
    answer = reference(prompt, count, LAYERS)
    chance = Random(str((share, token)))
    guesses = () if share is None else [t if chance.random() < share else t + 1 for t in answer]
    uid = cluster.submit(Request(prompt, count, guesses=tuple(guesses)))
    cluster.run_until(lambda: cluster.tokens[uid])
    start = cluster.now
    cluster.run_until(lambda: len(cluster.tokens[uid]) == count)
    assert cluster.tokens[uid] == answer
    return cluster.now - start


def main() -> None:
    """Print all of it."""
    for name in SLOPES:
        for world in (1, 2, 3):
            print(f"{name}, {world} ranks: share: first answer of 40, of 128; sixth of 40, of 128")
            for share in SHARES:
                told = []
                for warm in (False, True):
                    for count in (40, 128):
                        cluster = ring(world, pace=paced(name, world))
                        plain = asked(ring(world, pace=paced(name, world)), 9, count, None)
                        for turn in range(5 if warm else 0):
                            asked(cluster, 20 + turn, 60, None if turn == 0 else share)
                        told.append(plain / asked(cluster, 9, count, share))
                print(f"  {share:.1f}: " + "  ".join(f"{ratio:.2f}" for ratio in told))


if __name__ == "__main__":
    main()
