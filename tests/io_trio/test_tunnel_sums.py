"""The real thing: ranks of MLX's ring sum with each other through tunnels."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.io_trio.tunnel_sides import EPOCH, LOOPBACK, Side, sides
from tests.rows import rows
from tests.serving import PATIENCE

SUMS = """
import sys
import mlx.core as mx
group = mx.distributed.init(strict=True, backend="ring")
ones = mx.ones((2048,), mx.float32)
total = mx.array(0)
rounds = int(sys.argv[1])
while rounds:
    total = mx.distributed.all_sum(ones)
    mx.eval(total)
    rounds -= 1
    if rounds == -10:
        print("going", flush=True)
print(total.tolist() == [group.size()] * 2048, flush=True)
"""


@contextlib.contextmanager
def summing(made: list[Side], folder: Path, rounds: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The real thing: a rank of MLX's ring behind each relay, summing so often (-1: for ever)."""
    world = len(made)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for side in made:
            found = side.prepare(EPOCH)
            hosts = [[f"{LOOPBACK}:1"]] * world
            hosts[side.rank] = [f"{LOOPBACK}:{found.port}"]
            hosts[(side.rank + 1) % world] = [f"{LOOPBACK}:{found.relay}"]
            file = folder / f"hosts{side.rank}.json"
            file.write_text(json.dumps(hosts))
            process = subprocess.Popen(
                [sys.executable, "-c", SUMS, str(rounds)],
                env={**os.environ, "MLX_RANK": str(side.rank), "MLX_HOSTFILE": str(file)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            processes.append(process)
            side.pids = [process.pid]
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("world", rows([2, 3], 2))
async def test_a_ring_of_mlx_sums_through_relays(world: int, tmp_path: Path) -> None:
    async with sides(world) as made:
        with summing(made, tmp_path, 50) as processes:
            for process in processes:
                out, _ = await trio.to_thread.run_sync(process.communicate)
                assert out == b"True\n"


async def test_a_rank_that_hangs_on_a_frozen_one_is_freed(tmp_path: Path) -> None:
    async with sides() as (near, far):
        with summing([near, far], tmp_path, -1) as (hung, frozen):
            assert hung.stdout is not None
            assert await trio.to_thread.run_sync(hung.stdout.readline) == b"going\n"
            frozen.send_signal(signal.SIGSTOP)
            near.tunnels.end(EPOCH)
            with trio.fail_after(PATIENCE):
                _, told = await trio.to_thread.run_sync(hung.communicate)
            assert hung.returncode != 0
            assert b"[ring]" in told
