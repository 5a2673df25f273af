"""The yardstick's process: computes rows of a ring again, and says numbers of every position.

    python -m sealring_model.verify --model FOLDER --bounds 0,4,8 [--by-stage]

It reads one JSON value, the rows, from standard input, and answers with lines: ``progress``, and
for each row ``row`` with the fingerprints at each cut, of the logits of each token drawn, and the
scores of the tokens. Each row is read twice, the second time in other pieces: how far that differs
is what rounding alone does (*noise*). By default mlx-lm runs the whole model (`WatchedModel`). With
``--by-stage``, or if memory does not hold it, only the layers between two bounds are in memory at a
time (`by_stage`).
"""

from __future__ import annotations

import argparse
import base64
import copy
import gc
import json
import math
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import attrs
import mlx.core as mx
from mlx import nn

from sealring_model.engine.fingerprints import of_hop, of_logits
from sealring_model.errors import FORWARD_ERRORS, error_text
from sealring_model.loading.assemble import load_stage
from sealring_model.loading.model_folder import ModelInfo, describe
from sealring_model.machine import keep_kernels_private, memory_budget
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.stage.outline import (
    Carried,
    HopTensor,
    Outline,
    arguments_of,
    leaves,
    new_caches,
    override_call,
    part_at,
)
from sealring_model.stage.stage import Stage, joined, some_tokens

CHUNK: Final = 2048
"""Tokens of a prompt that are read at once, as mlx-lm does."""

_OTHER_CHUNK: Final = 96
"""The same where a row is read a second time, to see what rounding alone does."""


class WatchedModel:
    """The model in *folder*, with an *adapter* if there is one, watched at the cuts between the
    layers in *bounds*.

    mlx-lm loads the model, makes its caches and runs its own loop over its own layers. Each layer
    notes those of its arguments and outputs that a hop of the ring would carry, and changes
    nothing. What is split in a ring is in one piece here, so nothing stands in for anything.

    Raises what mlx-lm raises, and `LoadError` for a cut that cannot be.
    """

    def __init__(self, folder: Path, adapter: Path | None, bounds: Sequence[int]) -> None:
        self._model: Final[Any] = mlx_lm("utils").load_model(folder)[0]
        if adapter is not None:
            mlx_lm("tuner.utils").load_adapters(self._model, str(adapter))
            self._model.eval()
        self._noted: dict[Carried, mx.array] = {}
        self.hops: tuple[tuple[HopTensor, ...], ...] = ()
        """What passes each cut after the first; empty if there is one part alone."""
        if len(bounds) > 2:
            outline = Outline.of(self._model)
            self.hops = tuple(outline.hop(cut) for cut in bounds[1:])
            self._watch(part_at(self._model, outline.place))

    def _watch(self, layers: Sequence[nn.Module]) -> None:
        parts = {part for hop in self.hops for tensor in hop for part in tensor.parts}
        for number, layer in enumerate(layers):
            mine = [part for part in parts if part.layer == number]
            if mine:
                self._watch_layer(layer, mine)

    def _watch_layer(self, layer: nn.Module, parts: Sequence[Carried]) -> None:
        run = type(layer).__call__

        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = arguments_of(args, kwargs)
            self._note(parts, arguments, is_argument=True)
            output = run(layer, *args, **kwargs)
            self._note(parts, dict(leaves(output)), is_argument=False)
            return output

        override_call(layer, call)

    def _note(
        self, parts: Sequence[Carried], found: Mapping[Any, Any], *, is_argument: bool
    ) -> None:
        for part in parts:
            if part.is_argument == is_argument:
                key = part.path[0] if is_argument else part.path
                # A copy, for the loop may assign to parts of an array.
                self._noted[part] = copy.copy(found[key])

    def run(self, ids: Sequence[int], caches: list[Any]) -> tuple[mx.array, list[list[mx.array]]]:
        """Logits ``(tokens, vocabulary)`` of the next *ids* of a row, and what passed each cut."""
        self._noted.clear()
        logits: mx.array = self._model(mx.array([ids], mx.uint32), cache=caches)[0]
        passed = [[joined(tensor, self._noted) for tensor in hop] for hop in self.hops]
        return logits, passed

    def numbers(self, row: CheckedRow, *, otherwise: bool = False) -> RowNumbers:
        """What *row* gives; read *otherwise*, see `CheckedRow.pieces`."""
        caches, found = new_caches(self._model), RowNumbers()
        cuts: list[list[mx.array]] = [[] for _ in self.hops]
        begin = 0
        for piece in row.pieces(otherwise=otherwise):
            logits, passed = self.run(piece, caches)
            numbers = [hop_numbers(*pair) for pair in zip(self.hops, passed, strict=True)]
            mx.eval([each for each in numbers if each is not None])
            for cut, each in zip(cuts, numbers, strict=True):
                if each is not None:
                    cut.append(each)
            for at in range(max(0, row.prompt - 1 - begin), len(piece)):
                found.draw(row, begin + at, logits[at])
            begin += len(piece)
        found.cuts = [mx.concatenate(cut, axis=1) if cut else None for cut in cuts]
        return found


def by_stage(
    info: ModelInfo,
    bounds: Sequence[int],
    rows: Sequence[CheckedRow],
    progress: Callable[[int, int], None],
) -> list[tuple[RowNumbers, RowNumbers]]:
    """What the *rows* give in the model of *info*, cut at *bounds*, and what they give if they
    are read otherwise. Raises `LoadError`.

    The ring's own stages compute them, one after the other, each over all positions of all rows
    before the next is loaded. So the memory needed is that of the largest part, and of what passes
    the cuts for every position. The first part is loaded a second time at the end, for its output
    head.
    """
    pairs = [(_Read(row, otherwise=False), _Read(row, otherwise=True)) for row in rows]
    reads = [read for pair in pairs for read in pair]
    parts = len(bounds)
    stage: Stage | None = None
    for done, (first, last) in enumerate(pairwise(bounds)):
        stage = None
        gc.collect()
        mx.clear_cache()
        stage = load_stage(info, first, last).stage
        for read in reads:
            read.run(stage)
        progress(done + 1, parts)
    if parts > 2:
        stage = None
        gc.collect()
        mx.clear_cache()
    head = stage or load_stage(info, 0, bounds[1]).stage
    for read in reads:
        read.end(head)
    progress(parts, parts)
    return [(one.found, other.found) for one, other in pairs]


@attrs.frozen
class CheckedRow:
    """A row of the ring: its *tokens*, of which the first *prompt* are its prompt, and for each
    further one the ids that the ring found likeliest (*alternatives*)."""

    tokens: tuple[int, ...]
    prompt: int
    alternatives: tuple[tuple[int, ...], ...]

    def pieces(self, *, otherwise: bool = False) -> Iterator[tuple[int, ...]]:
        """What is read at once: chunks of the prompt without its last token, then single tokens.
        The last token of all is not read. *otherwise*: in smaller chunks to the end, two tokens at
        least where there are two."""
        read, chunk = self.prompt - 1, CHUNK
        if otherwise:
            read, chunk = len(self.tokens) - 1, _OTHER_CHUNK
        for begin in range(0, read, chunk):
            yield self.tokens[begin : min(read, begin + chunk)]
        for token in self.tokens[read:-1]:
            yield (token,)

    def drawn(self, position: int) -> int | None:
        """The number of the token that was drawn when the one at *position* was read."""
        number = position + 1 - self.prompt
        return number if number >= 0 else None


@attrs.define
class RowNumbers:
    """What one row gave: fingerprints at each cut ``(tensors, tokens, 3)``, of the logits of each
    token that was drawn ``(3,)``, and scores."""

    cuts: list[mx.array | None] = attrs.field(factory=list)
    logits: list[mx.array] = attrs.field(factory=list)
    scores: list[dict[str, Any]] = attrs.field(factory=list)

    def draw(self, row: CheckedRow, position: int, logits: mx.array) -> None:
        """After the token at *position* was read there were *logits* ``(vocabulary,)``."""
        number = row.drawn(position)
        if number is not None:
            self.logits.append(logits_numbers(logits))
            token = row.tokens[position + 1]
            self.scores.append(score(logits, token, row.alternatives[number]))


def hop_numbers(tensors: Sequence[HopTensor], arrays: Sequence[mx.array]) -> mx.array | None:
    """The fingerprints of what one row passed on, ``(tensors, tokens, 3)``."""
    found = of_hop(tensors, arrays)
    return None if found is None else found[:, 0]


def logits_numbers(logits: mx.array) -> mx.array:
    """The fingerprint of *logits* ``(vocabulary,)``, ``(3,)``."""
    return of_logits(logits[None])[0, 0, 0]


def differences(one: mx.array, other: mx.array) -> mx.array:
    """By how much fingerprints of *other* ``(..., tokens, 3)`` differ from those of *one*, relative
    to the root mean square, over all tensors: ``(tokens,)``."""
    sizes = mx.abs(one - other).max(axis=-1) / mx.maximum(mx.abs(one[..., 2]), 1e-30)
    return sizes.reshape(-1, sizes.shape[-1]).max(axis=0)


def score(logits: mx.array, token: int, alternatives: Sequence[int]) -> dict[str, Any]:
    """The score of *token*, which the ring drew, by *logits* ``(vocabulary,)``: how likely it is
    here, the likeliest token here, and how likely the ring's *alternatives* are. Log probabilities
    are in f32. The *unit* is that in the last place of the larger of two, in the logits' dtype."""
    exact = logits.astype(mx.float32)
    exact = exact - mx.logsumexp(exact)
    best = mx.argmax(logits).item()
    wanted: Any = exact[mx.array([best, token, *alternatives], mx.uint32)].tolist()
    size = max(1.0, abs(wanted[0]), abs(wanted[1]))
    unit = float(mx.finfo(logits.dtype).eps) * 2.0 ** math.floor(math.log2(size))
    return {
        "best": best,
        "best_value": wanted[0],
        "chosen": wanted[1],
        "values": wanted[2:],
        "unit": unit,
    }


class _Read:
    """A row on its way through the stages, in *pieces*; *passed* is what each gave last."""

    def __init__(self, row: CheckedRow, *, otherwise: bool) -> None:
        self.row: Final = row
        self.pieces: Final = list(row.pieces(otherwise=otherwise))
        self.found: Final = RowNumbers()
        self.passed: list[Sequence[mx.array]] = [
            [mx.array([piece], mx.uint32)] for piece in self.pieces
        ]

    def run(self, stage: Stage) -> None:
        slots, numbers = stage.new_caches(), []
        for at, piece in enumerate(self.passed):
            self.passed[at] = stage.run(piece, slots)
            mx.eval(self.passed[at])
            if stage.hop_out and (each := hop_numbers(stage.hop_out, self.passed[at])) is not None:
                mx.eval(each)
                numbers.append(each)
        if stage.hop_out:
            self.found.cuts.append(mx.concatenate(numbers, axis=1) if numbers else None)

    def end(self, head: Stage) -> None:
        begin = 0
        for ids, passed in zip(self.pieces, self.passed, strict=True):
            for at in range(max(0, self.row.prompt - 1 - begin), len(ids)):
                # The head takes the last token of what came back.
                upto = passed if at + 1 == len(ids) else _first(head, passed, at + 1)
                self.found.draw(self.row, begin + at, head.logits(upto)[0])
            begin += len(ids)


def _first(stage: Stage, arrays: Sequence[mx.array], tokens: int) -> list[mx.array]:
    if not stage.hop_back:
        return [array[:, :tokens] for array in arrays]
    return [
        some_tokens(tensor, array, slice(tokens))
        for tensor, array in zip(stage.hop_back, arrays, strict=True)
    ]


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _say_progress(done: int, of: int) -> None:
    _say({"event": "progress", "done": done, "of": of})


def _packed(array: mx.array) -> dict[str, Any]:
    numbers: Any = array.reshape(-1).tolist()
    data = struct.pack(f"<{len(numbers)}f", *numbers)
    return {"shape": array.shape, "data": base64.b64encode(data).decode()}


def _whole(
    folder: Path, adapter: Path | None, bounds: Sequence[int], rows: Sequence[CheckedRow]
) -> None:
    model = WatchedModel(folder, adapter, bounds)
    for number, row in enumerate(rows):
        _say_row(number, model.numbers(row), model.numbers(row, otherwise=True))
        _say_progress(number + 1, len(rows))


def _say_row(number: int, found: RowNumbers, otherwise: RowNumbers) -> None:
    """Say what row *number* gave, and how far that is from what it gives if read *otherwise*."""
    pairs = zip(found.cuts, otherwise.cuts, strict=True)
    noise = [None if a is None or b is None else differences(a, b) for a, b in pairs]
    logits = mx.stack(found.logits)
    scores = zip(found.scores, otherwise.scores, strict=True)
    _say(
        {
            "event": "row",
            "row": number,
            "cuts": [None if cut is None else _packed(cut) for cut in found.cuts],
            "cuts_noise": [None if cut is None else cut.tolist() for cut in noise],
            "logits": _packed(logits),
            "logits_noise": differences(logits, mx.stack(otherwise.logits)).tolist(),
            "scores": found.scores,
            "scores_noise": [_farthest(*pair) for pair in scores],
        }
    )


def _farthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    """By how many nats the log probabilities of two scores of a token differ."""
    values = zip((one["chosen"], *one["values"]), (other["chosen"], *other["values"]), strict=True)
    return max(abs(a - b) for a, b in values)


def main() -> int:
    """The command of the process."""
    parser = argparse.ArgumentParser(prog="sealring_model.verify")
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--bounds", required=True)
    parser.add_argument("--by-stage", action="store_true")
    options = parser.parse_args()
    keep_kernels_private()
    bounds = [int(bound) for bound in options.bounds.split(",")]
    rows = [
        CheckedRow(tuple(row["tokens"]), row["prompt"], tuple(map(tuple, row["alternatives"])))
        for row in json.loads(sys.stdin.readline())
    ]
    try:
        info = describe(options.model, options.adapter)
        if options.by_stage or info.size > memory_budget(0):
            _say({"event": "by_stage"})
            pairs = by_stage(info, bounds, rows, _say_progress)
            for number, (found, otherwise) in enumerate(pairs):
                _say_row(number, found, otherwise)
        else:
            _whole(options.model, options.adapter, bounds, rows)
    except (OSError, *FORWARD_ERRORS) as error:
        _say({"event": "error", "what": error_text(error)})
        return 1
    _say({"event": "done"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
