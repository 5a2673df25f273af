"""Two engines that share a model, beside mlx-lm's own tensor parallelism, both over MLX's ring.

    python tests/model/bench_groups.py [--rows 1] [--size 25] [--bf16] [--rounds 5]

This process hands the engines their steps, two in flight, with nothing between. mlx-lm's two
processes are started directly too, on the same weights, and run its `BatchGenerator`. They take
turns, so that a slow spell of the machine strikes both; who waits for a turn does not spin.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mlx.core as mx
from bench_pipeline import SIZES, bench_model, by_mlx_lm, prompt_of
from model_groups import Members, free_hosts, ring_of
from sealring_model.engine.group import environment
from sealring_model.loading.mlx_lm_import import mlx_lm
from sealring_protocol.codec.messages import Decode, Join


class Theirs:
    """mlx-lm on the two members of a ring."""

    def __init__(self, folder: Path) -> None:
        hosts = free_hosts(2)
        self.members = []
        for rank in (0, 1):
            extra = environment(ring_of(rank, 2, hosts), folder.parent / f"hosts{rank}.json")
            self.members.append(
                subprocess.Popen(
                    [sys.executable, __file__, "--member", str(folder)],
                    env={**os.environ, **extra},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def run(self, rows: int, tokens: int, prompt: int) -> float:
        """Tokens per second."""
        for member in self.members:
            member.stdin.write(f"{rows} {tokens} {prompt}\n")
            member.stdin.flush()
        return min([float(member.stdout.readline()) for member in self.members])

    def end(self) -> None:
        for member in self.members:
            member.communicate()


def be_member(folder: Path) -> None:
    """One of mlx-lm's processes: run what stdin asks for."""
    group = mx.distributed.init(strict=True, backend="ring")
    model, _ = mlx_lm("utils").load_model(folder, lazy=True)
    model.shard(group)
    mx.eval(model.parameters())
    for line in sys.stdin:
        print(by_mlx_lm(model, *map(int, line.split())).rate, flush=True)


def ours(members: Members, rows: int, tokens: int, prompt: int) -> float:
    """Tokens per second of *rows* rows, after every row's first token."""
    uids = [members.admit(prompt_of(row, prompt)) for row in range(rows)]
    joins = tuple(Join(uid, 0) for uid in uids)
    members.step(join=joins, ids=tuple(members.last[u] for u in uids), work=Decode(0))
    group = members.stages[0]

    def send() -> None:
        step = members.author.write(work=Decode(0))
        for child in group:
            child.send(step)

    send()
    began = time.perf_counter()
    for left in range(tokens, 0, -1):
        if left > 1:
            send()
        answers = [members.answer(group, member) for member in range(len(group))]
        assert answers[0].ids == answers[1].ids
    took = time.perf_counter() - began
    members.evict(*uids)
    return rows * tokens / took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--size", type=int, default=25, choices=SIZES)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--member", type=Path)
    options = parser.parse_args()
    if options.member is not None:
        be_member(options.member)
        return
    with tempfile.TemporaryDirectory() as root:
        dtype = mx.bfloat16 if options.bf16 else mx.float32
        folder = bench_model(Path(root) / "m", options.size, dtype)
        theirs = Theirs(folder)
        with Members(folder) as members:
            asked = (options.rows, options.tokens, options.prompt)
            ours(members, *asked)
            theirs.run(*asked)
            pairs = [(ours(members, *asked), theirs.run(*asked)) for _ in range(options.rounds)]
            print(members.grouped[0])
        theirs.end()
    for name, rates in zip(("engines", "mlx-lm"), zip(*pairs, strict=True), strict=True):
        print(f"{name:8} {statistics.median(rates):7.1f} tokens/s, {options.rows} rows")
    print(f"ratio {statistics.median(a / b for a, b in pairs):.3f}")


if __name__ == "__main__":
    sys.exit(main())
