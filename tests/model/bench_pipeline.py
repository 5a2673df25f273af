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

import mlx.core as mx
from model_child import Child
from model_families import config_of, random_weights, reference_model, write_model
from model_rings import Author, hop_keys, place_of
from sealring_model.loading import describe
from sealring_model.upstream import mlx_lm
from sealring_protocol.codec.messages import Decode, Join, Logprobs, Open, Prefill, Row, Step

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

    def run(self, tokens: int, prompt: int) -> tuple[float, list[float], list[float]]:
        """Tokens per second; each rank's busy share; milliseconds that a step waited at each."""
        live = []
        for row in range(self.groups * self.rows):
            uid = next(self.uids)
            self.children[0].send(Row(uid, **self.sampling))
            ids = prompt_of(row, prompt)
            self.whole(open=(Open(uid),))
            self.whole(work=Prefill(uid, 0, prompt - 1), ids=tuple(ids[:-1]))
            live.append((uid, ids[-1]))
        groups = [live[g :: self.groups] for g in range(self.groups)]
        for g, rows in enumerate(groups):
            joins = tuple(Join(uid, g) for uid, _ in rows)
            self.whole(join=joins, ids=tuple(last for _, last in rows), work=Decode(g))
        left = dict.fromkeys(range(self.groups), tokens)
        busy = [0] * len(self.children)
        wait = [0] * len(self.children)
        of = {}
        began = time.perf_counter()
        window = 2 if len(self.children) == 1 else 1
        for _ in range(window):
            for g in left:
                self.start(g, left, of)
        while of:
            done = self.answer()
            passes = [*range(len(self.children)), 0]
            for rank, spent in zip(passes, done.spent, strict=False):
                busy[rank] += spent.compute_us
                wait[rank] += spent.wait_us
            self.start(of.pop(done.n), left, of)
        took = time.perf_counter() - began
        self.whole(evict=tuple(uid for uid, _ in live))
        steps = self.groups * tokens
        return (
            steps * self.rows / took,
            [us / 1e6 / took for us in busy],
            [us / 1e3 / steps for us in wait],
        )

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


def by_mlx_lm(model, rows: int, tokens: int, prompt: int) -> float:
    """Tokens per second of mlx-lm's own batches, after every row's first token."""
    generator = mlx_lm("generate").BatchGenerator(model, completion_batch_size=rows)
    generator.insert([prompt_of(row, prompt) for row in range(rows)], [tokens + 2] * rows)
    got = 0
    while got < rows:
        got += len(generator.next_generated())
    began, got = time.perf_counter(), 0
    while responses := generator.next_generated():
        got += len(responses)
    return got / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--size", type=int, default=25, choices=SIZES)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--prompt", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        dtype = mx.bfloat16 if options.bf16 else mx.float32
        folder = bench_model(Path(root) / "m", options.size, dtype)
        model = reference_model(folder)
        ring = Pipeline(folder, options.ranks, options.groups, options.rows)
        ours, theirs = [], []
        for _ in range(options.rounds + 1):
            ours.append(ring.run(options.tokens, options.prompt))
            rows = options.groups * options.rows
            theirs.append(by_mlx_lm(model, rows, options.tokens, options.prompt))
        rate = statistics.median(rate for rate, _, _ in ours[1:])
        base = statistics.median(theirs[1:])
        print(f"{rate:6.1f} tokens/s; BatchGenerator {base:6.1f}; ratio {rate / base:5.3f}")
        for rank in range(options.ranks):
            busy = statistics.median(each[1][rank] for each in ours[1:])
            wait = statistics.median(each[2][rank] for each in ours[1:])
            print(f"rank {rank}: device busy {busy:5.1%}, a step waits {wait:5.2f} ms")
        for child in ring.children:
            child.__exit__()


if __name__ == "__main__":
    sys.exit(main())
