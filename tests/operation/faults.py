"""Random faults in a row, in a ring of three machines under streams that never end early.

    uv run python -m tests.operation.faults --count 100 --seed 1

Eight streams are always under way, each by the shipped client with the URLs of all machines, and
begin anew as they end. Each fault hits a machine at random, the head every other time: its node or
its engine is killed, it is stopped for a while, it is cut off, it can send nothing or hears
nothing, its disk is full while it is killed, its node is ended in good order and started, or the
place of the head moves. Then it is mended. Each text has to be the one that was given while nothing
happened. A line a fault says how long no stream had a token. It ends with status 1 at the first
text that differs or stream that fails. Needs root, on Linux.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs

from tests.operation.crowd import Listener, all_there, alone, begin, body, head_of, streamed
from tests.operation.machines import Machine, machines

STREAMS: Final = 8
TOKENS: Final = 300
LOGGED: Final = 20_000
"""Characters of each machine's log that are shown where something is broken."""

KINDS: Final = (
    "node killed",
    "engine killed",
    "stopped for 3 s",
    "stopped for 15 s",
    "cut off for 8 s",
    "cut off for 20 s",
    "sends nothing for 12 s",
    "hears nothing for 12 s",
    "disk full and killed",
    "restarted",
    "head moved",
)


@attrs.define(eq=False)
class Crowd:
    """Streams that begin anew as they end, and what they have to say."""

    ring: tuple[Machine, ...]
    guest: Machine
    key: str
    dice: random.Random
    tokens: int
    expected: list[str] = attrs.field(init=False)
    live: list[tuple[int, Listener]] = attrs.field(init=False)
    done: int = 0

    def __attrs_post_init__(self) -> None:
        asked = [body(number, self.tokens) for number in range(STREAMS)]
        self.expected = [alone(self.ring, self.guest, self.key, each) for each in asked]
        self.live = [(number, self._begin(number)) for number in range(STREAMS)]

    def _begin(self, number: int) -> Listener:
        asked, first = body(number, self.tokens), self.dice.randrange(len(self.ring))
        return Listener(partial(streamed, self.ring, self.guest, self.key, asked, first))

    def look(self) -> None:
        """Check the streams that are over, and begin them anew. Raises `AssertionError`."""
        for place, (number, listener) in enumerate(self.live):
            if listener.over:
                text = listener.result()
                assert text == self.expected[number], (number, text, self.expected[number])
                self.done += 1
                self.live[place] = number, self._begin(number)
            elif not self.expected[number].startswith(listener.text):
                raise AssertionError((number, listener.text, self.expected[number]))

    def until(self, found: Callable[[], bool], seconds: float, what: str) -> None:
        """Look until *found*. Raises `TimeoutError` after *seconds*."""
        end = time.monotonic() + seconds
        while not found():
            self.look()
            if time.monotonic() > end:
                raise TimeoutError(f"{what} took longer than {seconds:g} s")
            time.sleep(0.05)

    def wait(self, seconds: float) -> None:
        """Look for *seconds*."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end, seconds + 60, "a pause")

    @property
    def heard(self) -> int:
        """Parts that the live streams have had."""
        return sum(len(listener.times) for _, listener in self.live) + self.done * self.tokens


def strike(kind: str, machine: Machine, crowd: Crowd) -> None:
    """Have *kind* happen to *machine*, and mend it."""
    others = [other for other in crowd.ring if other is not machine]
    match kind.split():
        case ["node", "killed"]:
            machine.kill()
            crowd.wait(crowd.dice.uniform(0, 12))
            machine.start()
        case ["engine", "killed"]:
            machine.kill_engine()
        case ["stopped", "for", seconds, _]:
            machine.stall()
            crowd.wait(float(seconds))
            machine.resume()
        case [*what, "for", seconds, _]:
            for other in others:
                machine.way_to(other).passes = what == ["hears", "nothing"]
                other.way_to(machine).passes = what == ["sends", "nothing"]
            crowd.wait(float(seconds))
            for other in others:
                machine.way_to(other).passes = other.way_to(machine).passes = True
        case ["disk", *_]:
            machine.fill_disk()
            machine.kill()
            crowd.wait(crowd.dice.uniform(0, 8))
            machine.free_disk()
            machine.start()
        case ["restarted"]:
            machine.stop()
            machine.start()
        case _:
            to = crowd.dice.choice(others)
            moved = machine.run("head", "move", to.name, "--config", machine.config)
            print(f"   to {to.name}: {(moved.out or moved.err).strip()[:100]}", flush=True)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="faults in a row [100]")
    parser.add_argument("--seed", type=int, default=1, help="which faults they are [1]")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"of a stream [{TOKENS}]")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    silences: list[float] = []
    with machines(3, guests=1) as (*all_machines, guest):
        ring = tuple(all_machines)
        crowd = Crowd(ring, guest, begin(ring), dice, options.tokens)
        for number in range(1, options.count + 1):
            crowd.wait(dice.uniform(0.5, 3))
            head = head_of(ring, guest, crowd.key)
            kind = dice.choice(KINDS)
            hit_head = dice.random() < 0.5 or kind == "head moved"
            machine = head if hit_head else dice.choice([m for m in ring if m is not head])
            at = time.monotonic()
            try:
                strike(kind, machine, crowd)
                before = crowd.heard
                crowd.until(lambda before=before: crowd.heard > before + 8, 90, "the next tokens")  # type: ignore[misc]
            except BaseException:
                print(f"{number:3} {machine.name}: {kind}, in which this came:", flush=True)
                for each in ring:
                    print(f"--- {each.name}\n{each.log[-LOGGED:]}", flush=True)
                raise
            everybody = [each for _, each in crowd.live]
            silence = min(each.silence(at, time.monotonic()) for each in everybody)
            silences.append(silence)
            place = "the head" if machine is head else "a follower"
            print(
                f"{number:3} {machine.name} ({place}): {kind}; {silence:.1f} s without a token; "
                f"{crowd.done} streams whole",
                flush=True,
            )
            crowd.until(lambda: all_there(ring), 120, "the return of all machines")
    silences.sort()
    print(
        f"{options.count} faults, {crowd.done} streams whole, each as alone; silence: median "
        f"{silences[len(silences) // 2]:.1f} s, longest {silences[-1]:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
