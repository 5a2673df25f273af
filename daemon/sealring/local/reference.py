"""mlx-lm by itself, for comparison with a ring: one process of it, or several split in its own way.

Run as ``python -m sealring.local.reference --model PATH``, always as a child, because it
imports MLX. It uses mlx-lm's own loading, chat template, `stream_generate` and `BatchGenerator`,
and nothing of sealring's stages, caches, sampling, scheduling or detokenising.

A child reads one JSON value a line and answers each with one line: first ``"load"``, then requests.
With ``--split pipeline`` or ``--split tensor`` it is a rank of mlx-lm's own pipeline, or of its own
tensor parallelism, over MLX's ring or NCCL. Every rank gets every request, and all compute the same
tokens. The ranks are started directly, because MLX's own launcher takes a core for itself. They
load once all are there, because a rank whose neighbour comes late gives up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

import attrs
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import OperationError
from sealring_trio.processes.interpreter import child_environment, run_module

# ---------------------------------------------------------------------- pace
# How fast tokens came.


def token_times(events: Iterable[Mapping[str, Any]]) -> list[float]:
    """When each token came: seconds of `time.perf_counter`, from the *events* of a ``generate``."""
    times: list[float] = []
    for event in events:
        if event["event"] == "text":
            times += [time.perf_counter()] * event["count"]
    return times


def pace(times: Sequence[float]) -> float:
    """Tokens a second after the first, from the *times* (s) at which they came; 0 if all came at
    once, as tokens without a text do."""
    took = times[-1] - times[0] if times else 0.0
    return (len(times) - 1) / took if took else 0.0


def joint_pace(times: Sequence[Sequence[float]]) -> float:
    """Tokens a second of all rows together, from the *times* (s) of each row's tokens.

    Only the time in which all of them run counts: from when the last has begun until the first has
    ended. Within it each row's own pace is taken, so that it does not matter how the edges fall.
    """
    begin = max(row[0] for row in times)
    end = min(row[-1] for row in times)
    return sum(pace([at for at in row if begin <= at <= end]) for row in times)


Split = Literal["pipeline", "tensor"]

DEADLINE: Final = 600.0
"""Seconds that a child may take to load, or to answer. A rank of MLX's ring whose peer is gone
would wait for ever."""


_ROUNDING: Final = 4.0
"""Units in the last place by which two ways to compute a log probability may differ."""


@attrs.frozen
class ReferenceAnswer:
    """A greedy answer: *tokens* without the end mark, *text*, and when each token came (s)."""

    tokens: tuple[int, ...]
    text: str
    times: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second after the first."""
        return pace(self.times)


@attrs.frozen
class Gap:
    """The difference of two log probabilities (*nats*), and the *unit* in the last place of the
    larger one, in the dtype that mlx-lm has them in."""

    nats: float
    unit: float

    @property
    def is_tie(self) -> bool:
        """Whether rounding alone may decide between the two tokens."""
        return self.nats <= _ROUNDING * self.unit


class MlxLmRaised(OperationError):
    """mlx-lm itself raised an error in its own process, so that there is nothing to compare with.
    *words* are its own."""

    def __init__(self, words: str) -> None:
        super().__init__(
            f"there is nothing to compare with, for mlx-lm itself raised an error: {words}",
            "Try another model, or --ranks 1 where mlx-lm cannot split this one.",
        )
        self.words = words


class Reference:
    """Running children; see `one_process` and `own_split`. Raises `OperationError` if one fails, a
    `MlxLmRaised` if mlx-lm says why."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes: Final = processes
        self._answers()  # all are there
        self._ask("load")

    def generate(
        self, prompt: str | Sequence[int], max_tokens: int, *, raw: bool = False
    ) -> ReferenceAnswer:
        """The answer to *prompt*: a text for the chat template, or with *raw* a text or ids."""
        request = {"prompt": prompt, "max_tokens": max_tokens, "raw": raw}
        answer = self._ask(request)[0]
        return ReferenceAnswer(tuple(answer["tokens"]), answer["text"], tuple(answer["times"]))

    def gap(self, prompt: str, after: int, token: int) -> Gap:
        """How much less likely *token* is to mlx-lm than the token that it chose, after the prompt
        and the first *after* tokens of its answer."""
        request = {"prompt": prompt, "max_tokens": after + 1, "raw": False, "token": token}
        return Gap(**self._ask(request)[0]["gap"])

    def pace(self, prompts: Sequence[Sequence[int]], tokens: int, *, stream: bool = False) -> float:
        """Tokens a second over all rows, each of which continues one of the *prompts* (ids) by
        *tokens*: with `BatchGenerator`, or the first row alone with `stream_generate`."""
        if stream:
            return self.generate(prompts[0], tokens, raw=True).tokens_per_s
        return joint_pace(self._ask({"prompts": prompts, "tokens": tokens})[0]["times"])

    def _ask(self, value: Any) -> list[dict[str, Any]]:
        line = json.dumps(value).encode() + b"\n"
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):  # its answer will be missing
                _pipe(process.stdin).write(line)
                _pipe(process.stdin).flush()
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        return [_read(process) for process in self._processes]


def _pipe(stream: Any) -> Any:
    if stream is None:
        raise ValueError("the child was started without pipes")
    return stream


def _read(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    stdout = _pipe(process.stdout)
    ready, _, _ = select.select([stdout], [], [], DEADLINE)
    line = stdout.readline() if ready else b""
    if not line:
        how = "ended early" if ready else f"said nothing for {DEADLINE:.0f} s"
        raise OperationError(
            f"an mlx-lm process for comparison {how}",
            "Its messages are above. Does mlx-lm know this model?",
        )
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise MlxLmRaised(answer["error"])
    return answer


@contextlib.contextmanager
def one_process(model: Path) -> Iterator[Reference]:
    """A child that has *model* loaded, ended with the block. Raises `OperationError`."""
    with _children(model, [{}], ()) as processes:
        yield Reference(processes)


@contextlib.contextmanager
def own_split(model: Path, ranks: int, split: Split, *, gpus: bool = False) -> Iterator[Reference]:
    """*ranks* processes of mlx-lm with *model* split in its own way, ended with the block: over
    MLX's ring, or on so many *gpus* over NCCL. Raises `OperationError`.
    """
    if gpus:
        at = {"NCCL_HOST_IP": "127.0.0.1", "NCCL_PORT": str(free_ports(1)[0])}
        at["MLX_WORLD_SIZE"] = str(ranks)
        places = [{**at, "MLX_RANK": str(r), "CUDA_VISIBLE_DEVICES": str(r)} for r in range(ranks)]
        options = ("--split", split, "--backend", "nccl")
        with _children(model, places, options) as processes:
            yield Reference(processes)
        return
    with tempfile.TemporaryDirectory(prefix="sealring-") as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(ranks)]))
        places = [{"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)} for rank in range(ranks)]
        with _children(model, places, ("--split", split)) as processes:
            yield Reference(processes)


@contextlib.contextmanager
def _children(
    model: Path, environments: Sequence[Mapping[str, str]], options: Sequence[str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = run_module("sealring_trio.processes.launcher", __name__, "--model", str(model))
    with contextlib.ExitStack() as stack:
        processes = []
        for environment in environments:
            process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=child_environment(environment),
            )
            stack.callback(_end, process)
            processes.append(process)
        yield processes


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


# ---------------------------------------------------------------------- the child


def serve(model: str, split: Split | None, backend: str = "ring") -> None:
    """The child: load *model*, then answer requests until standard input ends."""
    import mlx.core as mx  # noqa: PLC0415 - MLX, in this process only
    from sealring_model.machine import keep_kernels_private  # noqa: PLC0415
    from sealring_model.mlx_lm_import import mlx_lm  # noqa: PLC0415

    keep_kernels_private()
    utils = mlx_lm("utils")
    _say({"there": True})
    sys.stdin.readline()
    try:
        if split is not None:
            group = mx.distributed.init(strict=True, backend=backend)
            if backend == "nccl":
                # As its `sharded_load`, whose last sum is for a stream that NCCL does not have.
                network, _ = utils.load_model(Path(model), lazy=True)
                network.shard(group)
                mx.eval(network.parameters())
                tokenizer = utils.load_tokenizer(Path(model))
            else:
                groups = (group, None) if split == "pipeline" else (None, group)
                network, tokenizer = utils.sharded_load(model, *groups)
        else:
            network, config = utils.load_model(Path(model))
            tokenizer = _tokenizer(utils, Path(model), config.get("eos_token_id"))
        generate = mlx_lm("generate")
        _say({"ready": True})
        for line in sys.stdin:
            _say(_answer(generate, network, tokenizer, json.loads(line)))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever mlx-lm raises, in words
        words = " ".join(str(error).split())[:500]
        plain = words and isinstance(error, ValueError | OSError)
        _say({"error": words if plain else f"{type(error).__name__}: {words}"})


def _tokenizer(utils: Any, folder: Path, ends: Any) -> Any:
    """mlx-lm's tokenizer. Where transformers refuses a configuration that mlx-lm's model takes, the
    same one made without it, so that there is something to compare with."""
    from sealring_model.text.tokens import transformers_tokenizer  # noqa: PLC0415 - as above

    try:
        return utils.load_tokenizer(folder, eos_token_ids=ends)
    except Exception:  # noqa: BLE001 - whatever transformers raises
        inner = transformers_tokenizer(folder)
        ids = [ends] if isinstance(ends, int) else ends
        return utils.TokenizerWrapper(inner, eos_token_ids=ids)


def _answer(generate: Any, network: Any, tokenizer: Any, request: dict[str, Any]) -> dict[str, Any]:
    if "prompts" in request:
        return {"times": _batched(generate, network, request["prompts"], request["tokens"])}
    return _streamed(generate, network, tokenizer, request)


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _streamed(
    generate: Any, network: Any, tokenizer: Any, request: dict[str, Any]
) -> dict[str, Any]:
    prompt = request["prompt"]
    if not request["raw"] and tokenizer.has_chat_template:
        messages = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    tokens, text, times, gap = [], "", [], {}
    count = request["max_tokens"]
    for response in generate.stream_generate(network, tokenizer, prompt, max_tokens=count):
        text += response.text
        if response.finish_reason != "stop":
            tokens.append(int(response.token))
            times.append(time.perf_counter())
        if "token" in request:
            gap = _gap(response.logprobs, request["token"])
    return {"tokens": tokens, "text": text, "times": times, "gap": gap}


def _gap(logprobs: Any, token: int) -> dict[str, float]:
    """The fields of `Gap`, from mlx-lm's log probabilities of a step."""
    import mlx.core as mx  # noqa: PLC0415 - as above

    best = logprobs.max()
    size = max(1.0, abs(best.item()), abs(logprobs[token].item()))
    unit = float(mx.finfo(logprobs.dtype).eps) * 2.0 ** math.floor(math.log2(size))
    return {"nats": (best - logprobs[token]).item(), "unit": unit}


def _batched(
    generate: Any, network: Any, prompts: list[list[int]], tokens: int
) -> list[list[float]]:
    """When each row's tokens came (s)."""
    batch = generate.BatchGenerator(network, completion_batch_size=len(prompts))
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
    parser.add_argument("--model", required=True)
    parser.add_argument("--split", choices=get_args(Split))
    parser.add_argument("--backend", default="ring")
    options = parser.parse_args()
    serve(options.model, options.split, options.backend)
