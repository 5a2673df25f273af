"""Rows computed again with one part of the model in memory at a time.

Sealring's own stages do it: those of the ring, one after the other, each over all positions of all
rows before the next is loaded. So the memory needed is that of the largest part, and of what passes
the cuts for every position. The first part is loaded a second time at the end, for its output head.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import mlx.core as mx

from sealring_model.loading.assemble import load_stage
from sealring_model.loading.model_folder import ModelInfo
from sealring_model.stage.stage import Stage, some_tokens
from sealring_model.verify.numbers import CheckedRow, RowNumbers, hop_numbers


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
        """Pass *stage*."""
        slots, told = stage.new_caches(), []
        for at, piece in enumerate(self.passed):
            self.passed[at] = stage.run(piece, slots)
            mx.eval(self.passed[at])
            if stage.hop_out and (each := hop_numbers(stage.hop_out, self.passed[at])) is not None:
                mx.eval(each)
                told.append(each)
        if stage.hop_out:
            self.found.cuts.append(mx.concatenate(told, axis=1) if told else None)

    def end(self, head: Stage) -> None:
        """Pass the output head of *head*."""
        begin = 0
        for ids, passed in zip(self.pieces, self.passed, strict=True):
            for at in range(max(0, self.row.prompt - 1 - begin), len(ids)):
                # The head takes the last token of what came back.
                upto = passed if at + 1 == len(ids) else _first(head, passed, at + 1)
                self.found.draw(self.row, begin + at, head.logits(upto)[0])
            begin += len(ids)


def _first(stage: Stage, arrays: Sequence[mx.array], tokens: int) -> list[mx.array]:
    """The first *tokens* of *arrays*."""
    if not stage.hop_back:
        return [array[:, :tokens] for array in arrays]
    return [
        some_tokens(tensor, array, slice(tokens))
        for tensor, array in zip(stage.hop_back, arrays, strict=True)
    ]


def by_stage(
    info: ModelInfo,
    bounds: Sequence[int],
    rows: Sequence[CheckedRow],
    progress: Callable[[int, int], None],
) -> list[tuple[RowNumbers, RowNumbers]]:
    """What the *rows* give in the model of *info*, cut at *bounds*, and what they give if they
    are read otherwise. Raises `LoadError`."""
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
