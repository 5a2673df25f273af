"""What is tried with one family, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import attrs
import mlx.core as mx
from sealring_model.errors import LoadError, error_text
from sealring_model.loading.assemble import load_stage, splits_of
from sealring_model.loading.model_folder import ModelInfo, describe
from sealring_model.loading.structure import Structure, structure_of
from sealring_model.mlx_lm_import import mlx_lm

from tests.families.checkpoints import CONFIGS, write

sys.path.insert(0, str(Path(__file__).parent.parent / "model"))
from model_collectives import Members
from model_rings import Ring, StepFailed

SAME, NONE = "same", "none"
ALONE = "(each row alone: mlx-lm's class cannot batch them)"
NO_SHARD = "(mlx-lm's class has no shard())"
SUMS = 1e-3
"""How far log probabilities may be off where sums are made in another order, in f32."""

PROMPT = tuple((7 * i * i + 3 * i) % 251 for i in range(40))
PARTS = (PROMPT[:25], PROMPT[25:], PROMPT[:1], PROMPT[1:2])
"""What is read one after the other: chunks of a prompt, and two tokens alone."""


@attrs.frozen
class Outcome:
    """How *family* fared: `SAME`, or what is not so, or why it was not tried (in brackets).

    *cuts* is for every split of two ranks, one of three, and ranks of one layer each.
    """

    family: str
    whole: str
    cuts: str
    batch: str
    prefix: str
    quantized: str
    tensor: str

    @property
    def is_right(self) -> bool:
        """Nothing is wrong: what is not the same is refused, or mlx-lm cannot do it either."""
        tried = (self.whole, self.cuts, self.batch, self.prefix, self.quantized, self.tensor)
        return all(each == SAME or each.startswith("(") for each in tried)


def check(family: str, folder: Path) -> Outcome:
    """Try *family*, with checkpoints in *folder*."""
    try:
        model = write(folder / "f32", family)
        expected = reference(model)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever mlx-lm raises
        why = f"(mlx-lm itself: {_words(error)})"
        return Outcome(family, why, why, why, why, why, why)
    try:
        info = describe(model)
        structure = structure_of(info)
    except LoadError as error:
        refused = f"(refused: {error})"
        return Outcome(family, refused, refused, refused, refused, refused, refused)
    bounds = _middle(info, structure.joined)
    return Outcome(
        family,
        whole=_attempt(lambda: _whole(info, structure, expected)),
        cuts=_attempt(lambda: _cuts(info, structure, expected)),
        batch=_attempt(lambda: _batch(model, bounds, structure)),
        prefix=_attempt(lambda: _prefix(model, bounds)),
        quantized=_attempt(lambda: _quantized(folder, family)),
        tensor=_attempt(lambda: _tensor(model, info, structure)),
    )


def _attempt(run: Callable[[], str]) -> str:
    try:
        return run()
    except StepFailed as error:
        return f"failed: {error}"
    except Exception as error:  # noqa: BLE001 - it is told
        return f"failed: {_words(error)}"


def _words(error: BaseException) -> str:
    return error_text(error) if isinstance(error, Exception) else f"it exits with {error}"


def reference(folder: Path) -> list[mx.array]:
    """The logits of mlx-lm's own model in *folder* after each of `PARTS`."""
    model = mlx_lm("utils").load_model(folder)[0]
    cache = mlx_lm("models.cache").make_prompt_cache(model)
    logits = [model(mx.array([part]), cache=cache)[:, -1, :] for part in PARTS]
    mx.eval(logits)
    return logits


class NotAsPlanned(Exception):
    """A rank holds another number of bytes than the plan says."""


def _chain(info: ModelInfo, structure: Structure, bounds: Sequence[int]) -> list[mx.array]:
    """The logits after each of `PARTS`, of stages with *bounds*."""
    loaded = [load_stage(info, first, last) for first, last in pairwise(bounds)]
    for rank in loaded:
        planned = structure.held(rank.first, rank.last)
        if rank.held != planned:
            raise NotAsPlanned(f"layers {rank.first} to {rank.last}: {rank.held}, not {planned}")
    stages = [rank.stage for rank in loaded]
    caches = [stage.new_caches() for stage in stages]
    found = []
    for part in PARTS:
        values: Sequence[mx.array] = [mx.array([part], mx.uint32)]
        for stage, slots in zip(stages, caches, strict=True):
            values = stage.run(values, slots)
        found.append(stages[0].logits(values))
    return found


def _compared(found: Sequence[mx.array], expected: Sequence[mx.array]) -> str:
    for part, (one, other) in enumerate(zip(found, expected, strict=True)):
        if not mx.array_equal(one, other):
            return f"logits of part {part} differ by {mx.abs(one - other).max().item():.2g}"
    return SAME


def _whole(info: ModelInfo, structure: Structure, expected: Sequence[mx.array]) -> str:
    return _compared(_chain(info, structure, (0, len(info.layers))), expected)


def _splits(layers: int, joined: Sequence[int]) -> list[tuple[int, ...]]:
    """Every split of two ranks, one of three, and ranks as small as can be."""
    free = [cut for cut in range(1, layers) if cut not in joined]
    splits = [(0, cut, layers) for cut in free]
    if len(free) > 1:
        splits.append((0, free[len(free) // 3], free[-1], layers))
        splits.append((0, *free, layers))
    return list(dict.fromkeys(splits))


def _cuts(info: ModelInfo, structure: Structure, expected: Sequence[mx.array]) -> str:
    layers = len(info.layers)
    for cut in structure.joined:
        try:
            load_stage(info, cut, layers)
        except LoadError:
            continue
        return f"layer {cut} is said to be joined, and loads"
    splits = _splits(layers, structure.joined)
    for bounds in splits:
        if (result := _compared(_chain(info, structure, bounds), expected)) != SAME:
            return f"split {bounds}: {result}"
    return SAME if splits else f"(held whole: {structure.reason})"


def _middle(info: ModelInfo, joined: Sequence[int]) -> tuple[int, ...]:
    """Bounds of two ranks, or of one."""
    free = [cut for cut in range(1, len(info.layers)) if cut not in joined]
    middle = (free[len(free) // 2],) if free else ()
    return (0, *middle, len(info.layers))


def _batch(folder: Path, bounds: tuple[int, ...], structure: Structure) -> str:
    """Four rows that join at different steps, one of which leaves: split and whole."""
    rows = _four_rows if structure.batches else _two_rows_alone
    texts = [rows(Ring(folder, each)) for each in (bounds, (0, bounds[-1]))]
    if texts[0] != texts[1]:
        return "rows in a batch differ from those of one rank"
    return SAME if structure.batches else ALONE


def _two_rows_alone(ring: Ring) -> dict[int, list[int]]:
    uids = [ring.admit(list(PROMPT[: 30 - 7 * at]), chunk=11, logprobs=0) for at in range(2)]
    for group, uid in enumerate(uids):
        ring.decode(group, join=[uid])
    for _ in range(4):
        for group in range(2):
            ring.decode(group)
    return ring.text


def _four_rows(ring: Ring) -> dict[int, list[int]]:
    uids = [ring.admit(list(PROMPT[: 30 - 7 * at]), chunk=11, logprobs=0) for at in range(4)]
    ring.decode(join=uids[:1])
    ring.decode(join=uids[1:3])
    ring.decode(join=uids[3:])
    ring.decode(evict=uids[1:2])
    for _ in range(4):
        ring.decode()
    return ring.text


def _tensor(folder: Path, info: ModelInfo, structure: Structure) -> str:
    """The rows of a batch with tensor parallelism of two processes, and of one rank: the same
    tokens, with log probabilities that differ by no more than another order of sums."""
    if not splits_of(info):
        return NO_SHARD
    rows = _four_rows if structure.batches else _two_rows_alone
    alone = Ring(folder)
    rows(alone)
    with Members(folder, size=2) as members:
        rows(members)
        if members.text != alone.text:
            return "tokens differ from those of one rank"
        off = max(
            abs(one.chosen - other.chosen)
            for uid, told in alone.told.items()
            for one, other in zip(told, members.told[uid], strict=True)
        )
    return SAME if off < SUMS else f"log probabilities are off by {off:.2g}"


def _prefix(folder: Path, bounds: tuple[int, ...]) -> str:
    """A second turn that begins with what the first left: split and whole."""
    texts = [_two_turns(Ring(folder, each)) for each in (bounds, (0, bounds[-1]))]
    return SAME if texts[0] == texts[1] else "a second turn differs from that of one rank"


def _two_turns(ring: Ring) -> dict[int, list[int]]:
    first = ring.admit(list(PROMPT[:21]))
    ring.decode(join=[first])
    for _ in range(3):
        ring.decode()
    handle = ring.save(first, evict=[first])
    said = [*PROMPT[:21], *ring.text[first][:-1]]
    second = ring.open_from(handle, len(said), [*said, *PROMPT[21:30]])
    ring.decode(join=[second])
    for _ in range(3):
        ring.decode()
    return ring.text


def _quantized(folder: Path, family: str) -> str:
    """4 bits, every split."""
    try:
        model = write(folder / "q4", family, bits=4)
        expected = reference(model)
    except Exception as error:  # noqa: BLE001 - whatever mlx-lm raises
        return f"(mlx-lm itself: {_words(error)})"
    info = describe(model)
    return _cuts(info, structure_of(info), expected)


FAMILIES = tuple(CONFIGS)
