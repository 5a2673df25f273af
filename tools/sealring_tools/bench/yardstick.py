"""mlx-lm by itself as a yardstick: batches in one process of it, or several split in its own way.

The children are those of `sealring.local.reference`, which also use `BatchGenerator`. With
``--split pipeline`` or ``--split tensor`` a child is a rank of mlx-lm's own pipeline, or of its own
tensor parallelism, over MLX's ring or NCCL. Every rank gets every request, and all compute the same
tokens. The ranks are started directly, because MLX's own launcher takes a core for itself. They
load once all are there, because a rank whose neighbour comes late gives up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from sealring.local.reference import Reference, answer, children, load, pace, serve
from sealring_trio.collective.loopback import free_ports

Split = Literal["pipeline", "tensor"]


def token_times(events: Iterable[Mapping[str, Any]]) -> list[float]:
    """When each token came: seconds of `time.perf_counter`, from the *events* of a ``generate``."""
    times: list[float] = []
    for event in events:
        if event["event"] == "text":
            times += [time.perf_counter()] * event["count"]
    return times


def joint_pace(times: Sequence[Sequence[float]]) -> float:
    """Tokens a second of all rows together, from the *times* (s) of each row's tokens.

    Only the time in which all of them run counts: from when the last has begun until the first has
    ended. Within it each row's own pace is taken, so that it does not matter how the edges fall.
    """
    begin = max(row[0] for row in times)
    end = min(row[-1] for row in times)
    return sum(pace([at for at in row if begin <= at <= end]) for row in times)


class Yardstick(Reference):
    """Running children; see `one_process` and `own_split`."""

    def pace(self, prompts: Sequence[Sequence[int]], tokens: int, *, stream: bool = False) -> float:
        """Tokens a second over all rows, each of which continues one of the *prompts* (ids) by
        *tokens*: with `BatchGenerator`, or the first row alone with `stream_generate`."""
        if stream:
            return self.generate(prompts[0], tokens, raw=True).tokens_per_s
        return joint_pace(self.ask({"prompts": prompts, "tokens": tokens})[0]["times"])


@contextlib.contextmanager
def one_process(model: Path) -> Iterator[Yardstick]:
    """A child that has *model* loaded, ended with the block. Raises `OperationError`."""
    with children(__name__, model) as processes:
        yield Yardstick(processes)


@contextlib.contextmanager
def own_split(model: Path, ranks: int, split: Split, *, gpus: bool = False) -> Iterator[Yardstick]:
    """*ranks* processes of mlx-lm with *model* split in its own way, ended with the block: over
    MLX's ring, or on so many *gpus* over NCCL. Raises `OperationError`.
    """
    if gpus:
        at = {"NCCL_HOST_IP": "127.0.0.1", "NCCL_PORT": str(free_ports(1)[0])}
        at["MLX_WORLD_SIZE"] = str(ranks)
        places = [{**at, "MLX_RANK": str(r), "CUDA_VISIBLE_DEVICES": str(r)} for r in range(ranks)]
        options = ("--split", split, "--backend", "nccl")
        with children(__name__, model, options, places) as processes:
            yield Yardstick(processes)
        return
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(ranks)]))
        places = [{"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)} for rank in range(ranks)]
        with children(__name__, model, ("--split", split), places) as processes:
            yield Yardstick(processes)


def _load(split: Split | None, backend: str, model: Path) -> tuple[Any, Any]:
    if split is None:
        return load(model)
    import mlx.core as mx  # noqa: PLC0415 - MLX, in this process only
    from sealring_model.mlx_lm_import import mlx_lm  # noqa: PLC0415

    utils = mlx_lm("utils")
    group = mx.distributed.init(strict=True, backend=backend)
    if backend != "nccl":
        groups = (group, None) if split == "pipeline" else (None, group)
        network, tokenizer = utils.sharded_load(str(model), *groups)
        return network, tokenizer
    # As its `sharded_load`, whose last sum is for a stream that NCCL does not have.
    network, _ = utils.load_model(model, lazy=True)
    network.shard(group)
    mx.eval(network.parameters())
    return network, utils.load_tokenizer(model)


def _answer(network: Any, tokenizer: Any, request: dict[str, Any]) -> dict[str, Any]:
    if "prompts" not in request:
        return answer(network, tokenizer, request)
    return {"times": _batched(network, request["prompts"], request["tokens"])}


def _batched(network: Any, prompts: list[list[int]], tokens: int) -> list[list[float]]:
    """When each row's tokens came (s)."""
    from sealring_model.mlx_lm_import import mlx_lm  # noqa: PLC0415 - as above

    batch = mlx_lm("generate").BatchGenerator(network, completion_batch_size=len(prompts))
    uids = batch.insert(prompts, [tokens] * len(prompts))
    times: dict[int, list[float]] = {uid: [] for uid in uids}
    while responses := batch.next_generated():
        now = time.perf_counter()
        for response in responses:
            times[response.uid].append(now)
    batch.close()
    return list(times.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--split", choices=get_args(Split))
    parser.add_argument("--backend", default="ring")
    options = parser.parse_args()
    serve(options.model, partial(_load, options.split, options.backend), _answer)
