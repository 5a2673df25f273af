"""One process with plain mlx-lm: what a ring's tokens and speed are compared with.

Run as ``python -m sealring_trio.local.single --model PATH``, always as a child, for it imports MLX:
it says ``{"ready": true}``, then reads one JSON request a line and answers each with one line. It
uses mlx-lm's own `load`, chat template and `stream_generate`, and nothing of sealring's stages,
caches, sampling or detokenising.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from sealring_trio.errors import OperationError
from sealring_trio.local.pace import pace
from sealring_trio.processes.interpreter import run_module


@attrs.frozen
class SingleAnswer:
    """What one process gave: *tokens* without the end mark, *text*, and the *times* (s) of each."""

    tokens: tuple[int, ...]
    text: str
    times: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        """Its pace."""
        return pace(self.times)


class Single:
    """A running child; see `single_process`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._read()

    def generate(self, prompt: str, max_tokens: int, *, raw: bool = False) -> SingleAnswer:
        """Greedy text for *prompt*. Raises `OperationError` when the child fails."""
        stdin = self._process.stdin
        if stdin is None:
            raise ValueError("the child has no standard input")
        request = {"prompt": prompt, "max_tokens": max_tokens, "raw": raw}
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        answer = self._read()
        return SingleAnswer(tuple(answer["tokens"]), answer["text"], tuple(answer["times"]))

    def _read(self) -> dict[str, Any]:
        stdout = self._process.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            raise OperationError(
                "the single process for comparison ended early",
                "Its messages are above. Does mlx-lm know this model?",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def single_process(model: Path) -> Iterator[Single]:
    """A child that has *model* loaded, ended when the block ends.

    Raises `OperationError` when it cannot load.
    """
    process = subprocess.Popen(
        run_module("sealring_trio.local.single", "--model", str(model)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Single(process)
    finally:
        process.kill()
        process.communicate()


def serve(model: str) -> None:
    """The child: load *model*, then answer requests until standard input ends."""
    # MLX, in this process only.
    from sealring_model.loading.kernel_cache import keep_kernels_private  # noqa: PLC0415
    from sealring_model.loading.mlx_lm_import import mlx_lm  # noqa: PLC0415

    keep_kernels_private()
    network, tokenizer = mlx_lm("utils").load(model)
    stream_generate = mlx_lm("generate").stream_generate
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        prompt = request["prompt"]
        if not request["raw"]:
            messages = [{"role": "user", "content": prompt}]
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        responses = stream_generate(network, tokenizer, prompt, max_tokens=request["max_tokens"])
        print(json.dumps(_collect(responses)), flush=True)


def _collect(responses: Iterator[Any]) -> dict[str, Any]:
    tokens, text, times = [], "", []
    for response in responses:
        text += response.text
        if response.finish_reason != "stop":
            tokens.append(int(response.token))
            times.append(time.perf_counter())
    return {"tokens": tokens, "text": text, "times": times}


if __name__ == "__main__":
    serve(sys.argv[sys.argv.index("--model") + 1])
