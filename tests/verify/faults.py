"""Faults that are planted in one rank's engine, each by changing one thing that it runs.

`faulty_node` starts a node whose engine is `faulty_engine`; that plants the fault named by the
environment variable `FAULT`, and is an engine like any other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import mlx.core as mx
from sealring_model.engine import main as engine
from sealring_model.engine.executor import Executor, Forward
from sealring_model.engine.fingerprints import Fingerprints
from sealring_model.engine.hidden_io import HiddenIO
from sealring_model.loading.assemble import LoadedStage
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.sampling import rows
from sealring_model.stage import caches
from sealring_model.stage.caches import Undo
from sealring_model.stage.outline import override_call
from sealring_model.stage.stage import Layout, PartStage

VARIABLE: Final = "SEALRING_TEST_FAULT"
"""Names the fault."""


def wrong_mask() -> None:
    """Every token of a chunk sees those after it."""
    mlx_lm("models.llama").create_attention_mask = lambda *_, **__: None


def cache_off_by_one() -> None:
    """The last token of each chunk is missing in the caches."""

    def run(stage: PartStage, inputs: Sequence[mx.array], slots: Sequence[Any]) -> Any:
        outputs = original(stage, inputs, slots)
        if inputs[0].shape[1] > 1:
            for slot in slots:
                slot.trim(1)
        return outputs

    original, PartStage.run = PartStage.run, run


def swapped_rows() -> None:
    """Rows of a batch change places."""

    def run(stage: PartStage, inputs: Sequence[mx.array], slots: Sequence[Any]) -> Any:
        return tuple(output[::-1] for output in original(stage, inputs, slots))

    original, PartStage.run = PartStage.run, run


def skipped_layer() -> None:
    """The second layer of the rank gives what it takes."""
    _after_loading(lambda stage: override_call(stage._owned_layers[1], lambda x, *_, **__: x))


def wrong_weights() -> None:
    """A tensor of the rank is larger by two hundredths."""

    def change(stage: PartStage) -> None:
        projection = stage._owned_layers[0].self_attn.o_proj
        projection.weight = projection.weight * 1.02
        mx.eval(projection.weight)

    _after_loading(change)


def lying_stand_in() -> None:
    """What stands in for other ranks' caches knows no offset. While it loads it does: a stage that
    depends on what it does not know is refused then."""

    def forget(_: PartStage) -> None:
        Layout.advance = lambda *_, **__: None

    _after_loading(forget)


def rounded_on_the_wire() -> None:
    """Hidden states leave as bf16 would have them."""

    def send(io: HiddenIO, step: Any, context: Any, hidden: Any, others: Any = ()) -> Any:
        rounded = [array.astype(mx.bfloat16).astype(array.dtype) for array in hidden]
        return original(io, step, context, rounded, others)

    original, HiddenIO.start_and_send = HiddenIO.start_and_send, send


def wrong_head() -> None:
    """The output head's logits are too large."""

    def logits(stage: PartStage, outputs: Sequence[mx.array], tokens: int = 1) -> mx.array:
        return original(stage, outputs, tokens) * 1.03

    original, PartStage.logits = PartStage.logits, logits


def wrong_draw() -> None:
    """The second likeliest token is drawn."""

    def sample(logits: mx.array, *_: Any) -> mx.array:
        best = mx.argmax(logits, axis=-1, keepdims=True)
        others = mx.put_along_axis(logits, best, mx.array(-mx.inf), axis=-1)
        return mx.argmax(others, axis=-1).astype(mx.uint32)

    rows.sample = sample


def wrong_ahead() -> None:
    """Graphs that are built ahead give something else."""
    ahead = threading.local()

    def build(forward: Forward, batch: int, tokens: int) -> Any:
        ahead.builds = True
        try:
            return original_build(forward, batch, tokens)
        finally:
            ahead.builds = False

    def run(stage: PartStage, inputs: Sequence[mx.array], slots: Sequence[Any]) -> Any:
        outputs = original_run(stage, inputs, slots)
        if not getattr(ahead, "builds", False):
            return outputs
        return tuple(output[..., ::-1] for output in outputs)

    original_build, Forward.build_decode = Forward.build_decode, build
    original_run, PartStage.run = PartStage.run, run


def wrong_far_on() -> None:
    """What is read beyond position 700 comes out larger."""

    def run(stage: PartStage, inputs: Sequence[mx.array], slots: Sequence[Any]) -> Any:
        outputs = original(stage, inputs, slots)
        held = max((getattr(slot, "_idx", slot.offset) for slot in slots), default=0)
        if held <= 700:
            return outputs
        far = mx.arange(held - outputs[0].shape[1], held) >= 700
        return tuple(mx.where(far[:, None], output * 1.1, output) for output in outputs)

    original, PartStage.run = PartStage.run, run


def cut_too_late() -> None:
    """A snapshot that is cut keeps a token too many."""
    original = caches._trim
    caches._trim = lambda cache, excess: original(cache, excess - 1)


def guesses_that_stay() -> None:
    """Of the guesses that are taken back, one stays in the caches."""

    def take_back(undo: Undo, batch: int, slots: Sequence[Any], count: int) -> None:
        original(undo, batch, slots, count)
        for slot in slots:
            slot.offset += 1

    original, Undo.take_back = Undo.take_back, take_back


def slowness() -> None:
    """Each step takes 40 ms longer."""

    def finish(executor: Executor, in_flight: Any) -> Any:
        time.sleep(0.04)
        return original(executor, in_flight)

    original, Executor.finish = Executor.finish, finish


def silence() -> None:
    """It tells no fingerprints."""
    Fingerprints.messages = lambda _: ()


def emptiness() -> None:
    """It tells fingerprints of no tensor."""
    told = Fingerprints._tensor
    Fingerprints._tensor = lambda own, _: told(own, None)


def _after_loading(change: Callable[[PartStage], object]) -> None:
    def load(*arguments: Any) -> LoadedStage:
        loaded = original(*arguments)
        assert isinstance(loaded.stage, PartStage)
        change(loaded.stage)
        return loaded

    original, engine.load_stage = engine.load_stage, load


FAULTS: Final = {
    fault.__name__: fault
    for fault in (
        wrong_mask,
        cache_off_by_one,
        swapped_rows,
        skipped_layer,
        wrong_weights,
        lying_stand_in,
        rounded_on_the_wire,
        wrong_head,
        wrong_draw,
        wrong_ahead,
        wrong_far_on,
        cut_too_late,
        guesses_that_stay,
        slowness,
        silence,
        emptiness,
    )
}
