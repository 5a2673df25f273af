"""mlx-lm by itself, for comparison with a ring: a process of it.

Run as ``python -m sealring.local.reference --model PATH``, always as a child, because it
imports MLX. It uses mlx-lm's own loading, chat template and `stream_generate`, and nothing of
sealring's stages, caches, sampling, scheduling or detokenising.

A child reads one JSON value a line and answers each with one line: first ``"load"``, then requests.
Children that are to load together do so once all are there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from sealring_trio.errors import OperationError
from sealring_trio.processes.interpreter import child_environment, run_module

# ---------------------------------------------------------------------- pace
# How fast tokens came.


def pace(times: Sequence[float]) -> float:
    """Tokens a second after the first, from the *times* (s) at which they came; 0 if all came at
    once, as tokens without a text do."""
    took = times[-1] - times[0] if times else 0.0
    return (len(times) - 1) / took if took else 0.0


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
    """Running children; see `one_process`. Raises `OperationError` if one fails, a
    `MlxLmRaised` if mlx-lm says why."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes: Final = processes
        self._answers()  # all are there
        self.ask("load")

    def generate(
        self, prompt: str | Sequence[int], max_tokens: int, *, raw: bool = False
    ) -> ReferenceAnswer:
        """The answer to *prompt*: a text for the chat template, or with *raw* a text or ids."""
        request = {"prompt": prompt, "max_tokens": max_tokens, "raw": raw}
        answer = self.ask(request)[0]
        return ReferenceAnswer(tuple(answer["tokens"]), answer["text"], tuple(answer["times"]))

    def gap(self, prompt: str, after: int, token: int) -> Gap:
        """How much less likely *token* is to mlx-lm than the token that it chose, after the prompt
        and the first *after* tokens of its answer."""
        request = {"prompt": prompt, "max_tokens": after + 1, "raw": False, "token": token}
        return Gap(**self.ask(request)[0]["gap"])

    def ask(self, value: Any) -> list[dict[str, Any]]:
        """What each child answers to *value*."""
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
    with children(__name__, model) as processes:
        yield Reference(processes)


@contextlib.contextmanager
def children(
    module: str,
    model: Path,
    options: Sequence[str] = (),
    environments: Sequence[Mapping[str, str]] = ({},),
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A process for each of *environments* that runs *module*, and so `serve`, with *model* and
    *options*; ended with the block."""
    command = run_module("sealring_trio.processes.launcher", module, "--model", str(model))
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


def answer(network: Any, tokenizer: Any, request: dict[str, Any]) -> dict[str, Any]:
    """What `Reference.generate` and `gap` ask for."""
    from sealring_model.mlx_lm_import import mlx_lm  # noqa: PLC0415 - as below

    prompt = request["prompt"]
    if not request["raw"] and tokenizer.has_chat_template:
        messages = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    tokens, text, times, gap = [], "", [], {}
    stream, count = mlx_lm("generate").stream_generate, request["max_tokens"]
    for response in stream(network, tokenizer, prompt, max_tokens=count):
        text += response.text
        if response.finish_reason != "stop":
            tokens.append(int(response.token))
            times.append(time.perf_counter())
        if "token" in request:
            gap = _gap(response.logprobs, request["token"])
    return {"tokens": tokens, "text": text, "times": times, "gap": gap}


def load(model: Path) -> tuple[Any, Any]:
    """The network and the tokenizer of *model*, by mlx-lm."""
    from sealring_model.mlx_lm_import import mlx_lm  # noqa: PLC0415 - as below

    utils = mlx_lm("utils")
    network, config = utils.load_model(model)
    return network, _tokenizer(utils, model, config.get("eos_token_id"))


def serve(
    model: Path,
    load: Callable[[Path], tuple[Any, Any]] = load,
    answer: Callable[[Any, Any, dict[str, Any]], dict[str, Any]] = answer,
) -> None:
    """The child: *load* *model*, then *answer* requests until standard input ends."""
    from sealring_model.machine import keep_kernels_private  # noqa: PLC0415 - MLX, in a child only
    from sealring_model.mlx_lm_import import mlx_lm  # noqa: PLC0415

    keep_kernels_private()
    mlx_lm("generate")  # it takes long, and children that load together wait for each other then
    _say({"there": True})
    sys.stdin.readline()
    try:
        loaded = load(model)
        _say({"ready": True})
        for line in sys.stdin:
            _say(answer(*loaded, json.loads(line)))
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


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _gap(logprobs: Any, token: int) -> dict[str, float]:
    """The fields of `Gap`, from mlx-lm's log probabilities of a step."""
    import mlx.core as mx  # noqa: PLC0415 - as above

    best = logprobs.max()
    size = max(1.0, abs(best.item()), abs(logprobs[token].item()))
    unit = float(mx.finfo(logprobs.dtype).eps) * 2.0 ** math.floor(math.log2(size))
    return {"nats": (best - logprobs[token]).item(), "unit": unit}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, type=Path)
    serve(parser.parse_args().model)
