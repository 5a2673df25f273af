"""A pipeline of engines with several groups in flight, beside one process of mlx-lm.

    python tests/model/bench_pipeline.py [--ranks 2] [--groups 2] [--rows 4] [--size 25] [--bf16]

The engines are real child processes that this process hands each other's messages, with nothing
else between them. Beside tokens per second it tells what part of the time each rank's device
worked, and how long a step waited for it: what a pipeline loses, it loses there. mlx-lm's
`BatchGenerator` takes turns with it, with as many rows at once as all groups together.
"""

import argparse
import selectors
import statistics
import sys
import tempfile
import time
from pathlib import Path

import attrs
import mlx.core as mx
from bench_speed import cpu_of
from model_child import Child
from model_families import config_of, random_weights, reference_model, write_model
from model_rings import Author, hop_keys, place_of
from sealring_model.loading.mlx_lm_import import mlx_lm
from sealring_model.loading.model_folder import describe
from sealring_protocol.codec.local_messages import Logprobs
from sealring_protocol.codec.messages import Decode, Join, Open, Prefill, Row, Step

SIZES = {
    25: {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 7,
         "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192},
    450: {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
          "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000},
}  # fmt: skip


def bench_model(folder: Path, size: int, dtype: mx.Dtype) -> Path:
    """A llama of *size* million parameters."""
    config = config_of("llama-tied", head_dim=64, **SIZES[size])
    config["torch_dtype"] = str(dtype).removeprefix("mlx.core.")
    weights = {name: value.astype(dtype) for name, value in random_weights(config).items()}
    return write_model(folder, config, weights)


@attrs.frozen
class Figures:
    """Tokens per second; milliseconds of processor time per token; then of each rank, its device's
    busy share, and milliseconds that a step waited for it."""

    rate: float
    cpu: float
    busy: tuple[float, ...] = ()
    waited: tuple[float, ...] = ()


def prompt_of(row: int, length: int) -> list[int]:
    return [(7 * i * i + 3 * i + 101 * row) % 8000 for i in range(length)]


class Pipeline:
    """Engines in a ring, and as many steps under way as there are groups."""

    def __init__(self, folder: Path, ranks: int, groups: int, rows: int, **sampling) -> None:
        info = describe(folder)
        layers = len(info.layers)
        bounds = tuple(layers * rank // ranks for rank in range(ranks + 1))
        self.children = [Child(folder, timeout=600) for _ in range(ranks)]
        self.selector = selectors.DefaultSelector()
        for rank, child in enumerate(self.children):
            child.info()
            for key in hop_keys(rank, ranks):
                child.send(key)
            child.start(place_of(info, bounds, rank, ranks > 1))
            self.selector.register(child.sock, selectors.EVENT_READ, rank)
        self.author = Author()
        self.uids = iter(range(1, 1 << 30))
        self.groups, self.rows, self.sampling = groups, rows, sampling

    def run(self, tokens: int, prompt: int) -> Figures:
        """Decode *tokens* for every row."""
        live = [self.admit(row, prompt) for row in range(self.groups * self.rows)]
        for g in range(self.groups):
            rows = live[g :: self.groups]
            joins = tuple(Join(uid, g) for uid, _ in rows)
            self.whole(join=joins, ids=tuple(last for _, last in rows), work=Decode(g))
        left = dict.fromkeys(range(self.groups), tokens)
        ranks = len(self.children)
        busy, wait = [0] * ranks, [0] * ranks
        of: dict[int, int] = {}
        began, cpu = time.perf_counter(), self.cpu()
        for _ in range(2 if ranks == 1 else 1):
            for g in left:
                self.start(g, left, of)
        while of:
            done = self.answer()
            for rank, spent in zip([*range(ranks), 0], done.spent, strict=False):
                busy[rank] += spent.compute_us
                wait[rank] += spent.wait_us
            self.start(of.pop(done.n), left, of)
        took, cpu = time.perf_counter() - began, self.cpu() - cpu
        self.whole(evict=tuple(uid for uid, _ in live))
        steps = self.groups * tokens
        return Figures(
            steps * self.rows / took,
            1000 * cpu / steps / self.rows,
            tuple(us / 1e6 / took for us in busy),
            tuple(us / 1e3 / steps for us in wait),
        )

    def admit(self, row: int, prompt: int) -> tuple[int, int]:
        """Read a prompt; the row's uid and last token."""
        uid, ids = next(self.uids), prompt_of(row, prompt)
        self.children[0].send(Row(uid, **self.sampling))
        self.whole(open=(Open(uid),))
        self.whole(work=Prefill(uid, 0, prompt - 1), ids=tuple(ids[:-1]))
        return uid, ids[-1]

    def cpu(self) -> float:
        """Seconds of processor time of all engines."""
        return sum(cpu_of(child.process.pid) for child in self.children)

    def start(self, group: int, left: dict[int, int], of: dict[int, int]) -> None:
        if left[group]:
            left[group] -= 1
            step = self.author.write(work=Decode(group))
            of[step.n] = group
            self.children[0].send(step)

    def whole(self, **fields) -> None:
        self.children[0].send(self.author.write(**fields))
        self.answer()

    def answer(self):
        """Hand messages on until a step is over; its answer."""
        while True:
            for key, _ in self.selector.select():
                message = self.children[key.data].receive()
                if isinstance(message, Logprobs):
                    continue
                assert not message.failed, message.failed
                if isinstance(message, Step):
                    self.children[key.data + 1].send(message)
                elif message.tensors:
                    self.children[0].send(message)
                else:
                    return message


def by_mlx_lm(model, rows: int, tokens: int, prompt: int) -> Figures:
    """mlx-lm's own batches, after every row's first token."""
    generator = mlx_lm("generate").BatchGenerator(model, completion_batch_size=rows)
    generator.insert([prompt_of(row, prompt) for row in range(rows)], [tokens + 2] * rows)
    got = 0
    while got < rows:
        got += len(generator.next_generated())
    began, cpu, got = time.perf_counter(), time.process_time(), 0
    while responses := generator.next_generated():
        got += len(responses)
    cpu = 1000 * (time.process_time() - cpu) / got
    return Figures(got / (time.perf_counter() - began), cpu)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--size", type=int, default=25, choices=SIZES)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--prompt", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        dtype = mx.bfloat16 if options.bf16 else mx.float32
        folder = bench_model(Path(root) / "m", options.size, dtype)
        model = reference_model(folder)
        ring = Pipeline(folder, options.ranks, options.groups, options.rows)
        rows = options.groups * options.rows
        ring.run(3, options.prompt)
        by_mlx_lm(model, rows, 3, options.prompt)
        ours, theirs = [], []
        for _ in range(options.rounds):
            ours.append(ring.run(options.tokens, options.prompt))
            theirs.append(by_mlx_lm(model, rows, options.tokens, options.prompt))
        for name, figures in (("ring", ours), ("BatchGenerator", theirs)):
            rate, cpu = (statistics.median(getattr(f, x) for f in figures) for x in ("rate", "cpu"))
            print(f"{name:14} {rate:6.1f} tokens/s, {cpu:6.2f} ms of processor time per token")
        ratio = statistics.median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
        print(f"ratio {ratio:.3f}")
        for rank in range(options.ranks):
            busy = statistics.median(each.busy[rank] for each in ours)
            wait = statistics.median(each.waited[rank] for each in ours)
            print(f"rank {rank}: device busy {busy:5.1%}, a step waits {wait:5.2f} ms")
        for child in ring.children:
            child.__exit__()


if __name__ == "__main__":
    sys.exit(main())
