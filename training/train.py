"""Train the tiny model that ships with sealring, from nothing but the corpus in this package.

Weights are kept in float32 and computed with in bfloat16; what is saved are the bfloat16 values in
float32, which are exactly the weights that the loss was measured with. A checkpoint lets a later
run go on where an earlier one stopped.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.nn.losses import cross_entropy
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from sealring_model.machine import keep_kernels_private
from sealring_model.tiny import path

from training import rows
from training.llama import END_ID, Llama, config

Tree = Any


def loss_of(model: Llama, tokens: mx.array, weights: mx.array) -> Any:
    """Return the weighted mean loss over some rows."""
    logits = model(tokens[:, :-1]).astype(mx.float32)
    losses = cross_entropy(logits, tokens[:, 1:])
    weights = weights[:, 1:]
    return (losses * weights).sum() / weights.sum()


def to_bfloat16(params: Tree) -> Tree:
    """Round every weight to the precision that the model computes in."""
    return tree_map(lambda p: p.astype(mx.bfloat16), params)


def batch(tokens: rows.Tokens) -> tuple[mx.array, mx.array]:
    """Hand rows to MLX, with the weight of each token."""
    return mx.array(tokens.astype("int32")), mx.array(rows.weights(tokens))


def optimizer(steps: int, peak: float, embedding_peak: float) -> optim.Optimizer:
    """Make the optimizers: Muon for the matrices of the layers, Adam for all else."""

    def schedule(top: float) -> Any:
        warm = max(1, min(200, steps // 10))
        rise = optim.linear_schedule(top / warm, top, warm)
        return optim.join_schedules([rise, optim.cosine_decay(top, steps - warm)], [warm])

    muon = optim.Muon(learning_rate=schedule(peak), momentum=0.95, weight_decay=0.0)
    adam = optim.AdamW(learning_rate=schedule(embedding_peak), betas=[0.9, 0.98], weight_decay=0.0)
    return optim.MultiOptimizer(
        [muon, adam], [lambda name, weight: weight.ndim == 2 and "embed" not in name]
    )


def _flat(tree: Tree) -> dict[str, mx.array]:
    pairs: Any = tree_flatten(tree)
    return dict(pairs)


def _read(file: Path) -> Tree:
    arrays: Any = mx.load(str(file))
    return tree_unflatten(list(arrays.items()))


class Training:
    """The state of a run: weights, optimizer, and the step that was reached."""

    def __init__(self, options: argparse.Namespace) -> None:
        mx.random.seed(options.seed)
        self.model = Llama()
        self.params = self.model.trainable_parameters()
        self.rule = optimizer(options.steps, options.rate, options.embedding_rate)
        self.rule.init(self.params)
        self.step = 0
        mx.eval(self.params, self.rule.state)

    def compiled(self) -> Callable[[mx.array, mx.array], mx.array]:
        """Return one compiled step, which updates the state in place."""
        state: list[Tree] = [{"params": self.params}, self.rule.state]

        def loss(params: Tree, tokens: mx.array, weights: mx.array) -> mx.array:
            self.model.update(to_bfloat16(params))
            return loss_of(self.model, tokens, weights)

        def step(tokens: mx.array, weights: mx.array) -> mx.array:
            value, grads = mx.value_and_grad(loss)(state[0]["params"], tokens, weights)
            state[0]["params"] = self.rule.apply_gradients(grads, state[0]["params"])
            return value

        fast = mx.compile(step, inputs=state, outputs=state)

        def run(tokens: mx.array, weights: mx.array) -> mx.array:
            value = fast(tokens, weights)
            self.params = state[0]["params"]
            return value

        return run

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        mx.save_safetensors(str(folder / "params.safetensors"), _flat(self.params))
        mx.save_safetensors(str(folder / "rule.safetensors"), _flat(self.rule.state))
        (folder / "step.json").write_text(json.dumps({"step": self.step}))

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        self.params = _read(folder / "params.safetensors")
        self.rule.state = _read(folder / "rule.safetensors")
        self.step = json.loads((folder / "step.json").read_text())["step"]

    def rounded(self) -> Llama:
        """Return the model as it is saved."""
        self.model.update(to_bfloat16(self.params))
        return self.model


def validate(model: Llama, length: int, count: int = 64) -> float:
    """Return the loss on held-out documents."""
    tokens = rows.pack(rows.VALIDATION_SEED, count, length, validation=True)
    losses = [loss_of(model, *batch(tokens[at : at + 16])).item() for at in range(0, count, 16)]
    return sum(map(float, losses)) / len(losses)


def export(model: Llama, folder: Path) -> None:
    """Write the weights and their configuration in the Hugging Face layout."""
    weights = {k: v.astype(mx.float32) for k, v in _flat(model.trainable_parameters()).items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(), indent=2) + "\n")
    generation = {"eos_token_id": END_ID, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def train(options: argparse.Namespace) -> None:
    """Train until the steps or the minutes are used up, then write a checkpoint and the weights."""
    start = time.monotonic()
    run = Training(options)
    if options.resume:
        run.load(options.resume)
    sizes = sum(p.size for p in _flat(run.params).values())
    print(f"{sizes} parameters; {options.rows * options.context} tokens a step", flush=True)
    step = run.compiled()
    chunk_steps = rows.CHUNK // options.rows
    recent: list[mx.array] = []
    data = rows.stream(
        options.seed,
        run.step // chunk_steps,
        math.ceil(options.steps / chunk_steps),
        options.context + 1,
        options.workers,
    )
    for chunk in data:
        for at in range(0, rows.CHUNK, options.rows):
            recent.append(step(*batch(chunk[at : at + options.rows])))
            mx.eval(run.params, run.rule.state, recent[-1])
            run.step += 1
            if run.step % 100 == 0:
                mean = sum(r.item() for r in recent) / len(recent)
                print(
                    f"step {run.step} loss {mean:.4f} {time.monotonic() - start:.0f} s", flush=True
                )
                recent = []
        if run.step >= options.steps or time.monotonic() - start > options.minutes * 60:
            break
    model = run.rounded()
    print(
        f"step {run.step} validation loss {validate(model, options.context + 1):.4f}, "
        f"{run.step * options.rows * options.context} tokens, "
        f"{time.monotonic() - start:.0f} s",
        flush=True,
    )
    if options.checkpoint:
        run.save(options.checkpoint)
    options.out.mkdir(parents=True, exist_ok=True)
    export(model, options.out)


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Example: python -m training.train --workers 14 "
        "--checkpoint run. Train the tokenizer first (training.vocabulary) if the "
        "corpus has new words, and measure afterwards (training.evaluate).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, default=path(), help="folder for the weights (default: the package's)")
    add("--steps", type=int, default=8600, help="length of the whole schedule, in steps")
    add("--minutes", type=float, default=math.inf, help="stop early after so many minutes")
    add("--rows", type=int, default=32, choices=(8, 16, 32, 64), help="rows in a step")
    add("--context", type=int, default=2048, help="tokens in a row")
    add("--rate", type=float, default=0.02, help="highest learning rate of the matrices")
    add("--embedding-rate", type=float, default=0.004, help="highest learning rate of the rest")
    add("--seed", type=int, default=0, help="seed of the first weights and of the corpus")
    add("--workers", type=int, default=1, help="processes that make the corpus")
    add("--checkpoint", type=Path, help="folder to write the state of the run to")
    add("--resume", type=Path, help="folder of a checkpoint to go on from")
    options = parser.parse_args()
    keep_kernels_private()
    train(options)


if __name__ == "__main__":
    main()
