"""Tokens per second of one row: mlx-lm's own loop, the executor in process, the engine child.

    python tests/model/bench_speed.py [--rounds 7] [--tokens 200]

The three take turns in one run, so that a slow spell of the machine strikes all of them.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from model_child import Child
from model_families import config_of, random_weights, reference_model, write_model
from model_rings import Author, Ring, place_of
from sealring_model.loading.mlx_lm_import import mlx_lm
from sealring_model.loading.model_folder import describe
from sealring_protocol.codec.messages import Decode, Join, Open, Prefill, Row

PROMPT = [(7 * i * i + 3 * i) % 8000 for i in range(64)]


def bench_model(folder: Path) -> Path:
    """A llama of 25 million parameters in f32."""
    config = config_of(
        "llama-tied",
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=7,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        vocab_size=8192,
    )
    return write_model(folder, config, random_weights(config))


def steps_for(author: Author, uid: int, count: int):
    yield author.write(open=(Open(uid),))
    yield author.write(work=Prefill(uid, 0, len(PROMPT) - 1), ids=tuple(PROMPT[:-1]))
    yield author.write(join=(Join(uid, 0),), ids=(PROMPT[-1],), work=Decode(0))
    for _ in range(count - 1):
        yield author.write(work=Decode(0))
    yield author.write(evict=(uid,))


class Stopwatch:
    """Times the decode steps after the first token, by the clock and by the processor's time."""

    def __init__(self, cpu: Callable[[], float] = time.process_time) -> None:
        self.stamps: list[float] = []
        self.cpu = cpu

    def token(self) -> None:
        self.stamps.append(time.perf_counter())
        if len(self.stamps) == 1:
            self.began = self.cpu()

    @property
    def figures(self) -> tuple[float, float]:
        """Tokens per second, and milliseconds of processor time per token."""
        count = len(self.stamps) - 1
        spent = self.cpu() - self.began
        return count / (self.stamps[-1] - self.stamps[0]), 1000 * spent / count


def cpu_of(pid: int) -> float:
    """Seconds of processor time that process *pid* has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def by_mlx_lm(model, count: int) -> tuple[float, float]:
    watch = Stopwatch()
    for _ in mlx_lm("generate").generate_step(mx.array(PROMPT), model, max_tokens=count):
        watch.token()
    return watch.figures


class InProcess:
    def __init__(self, folder: Path) -> None:
        self.ring = Ring(folder)
        self.uids = iter(range(1, 1000))

    def run(self, count: int) -> tuple[float, float]:
        uid = next(self.uids)
        self.ring.book.add(Row(uid))
        executor = self.ring.executors[0]
        waiting, watch = deque(), Stopwatch()
        for step in steps_for(self.ring.author, uid, count):
            waiting.append(executor.launch(step))
            if len(waiting) == 2 and executor.finish(waiting.popleft()).ids:
                watch.token()
        while waiting:
            executor.finish(waiting.popleft())
        return watch.figures


class ThroughChild:
    def __init__(self, folder: Path, window: int) -> None:
        self.child = Child(folder)
        self.child.info()
        info = describe(folder)
        self.child.start(place_of(info, (0, len(info.layers)), 0))
        self.author = Author()
        self.uids = iter(range(1, 1000))
        self.window = window

    def run(self, count: int) -> tuple[float, float]:
        uid = next(self.uids)
        self.child.send(Row(uid))
        watch = Stopwatch(lambda: cpu_of(self.child.process.pid))
        unanswered = 0
        for step in steps_for(self.author, uid, count):
            self.child.send(step)
            unanswered += 1
            if unanswered == self.window:
                self.take(watch)
                unanswered -= 1
        for _ in range(unanswered):
            self.take(watch)
        return watch.figures

    def take(self, watch: Stopwatch) -> None:
        done = self.child.receive()
        assert not done.failed, done.failed
        if done.ids:
            watch.token()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = bench_model(Path(root) / "m")
        model = reference_model(folder)
        in_process = InProcess(folder)
        child, slow = ThroughChild(folder, 2), ThroughChild(folder, 1)
        contenders = {
            "mlx-lm": lambda n: by_mlx_lm(model, n),
            "executor": in_process.run,
            "engine child, window 2": child.run,
            "engine child, window 1": slow.run,
        }
        rates = {name: [] for name in contenders}
        for run in contenders.values():
            run(20)
        for _ in range(options.rounds):
            for name, run in contenders.items():
                rates[name].append(run(options.tokens))
        base = statistics.median(rate for rate, _ in rates["mlx-lm"])
        top = max(rate for rate, _ in rates["mlx-lm"])
        print(f"{'':24} median  ratio    best  ratio  CPU ms/token")
        for name, figures in rates.items():
            middle = statistics.median(rate for rate, _ in figures)
            best = max(rate for rate, _ in figures)
            spent = statistics.median(cpu for _, cpu in figures)
            print(
                f"{name:24} {middle:6.1f} {middle / base:6.3f}  {best:6.1f} {best / top:6.3f} "
                f"{spent:7.2f}"
            )
        for each in (child, slow):
            each.child.__exit__()


if __name__ == "__main__":
    sys.exit(main())
