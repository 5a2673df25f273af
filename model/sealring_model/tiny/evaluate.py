"""Measure how often the tiny model answers held-out questions exactly right.

A question counts when every token of the reply, its end included, is the model's first choice given
the tokens before it. That is the same as comparing greedy replies, at the price of one pass.
"""

import argparse
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from sealring_model.tiny import DEFAULT_PROMPT, path
from sealring_model.tiny.corpus import ASSISTANT, END, documents, render
from sealring_model.tiny.rows import VALIDATION_SEED, tokenizer
from sealring_model.tiny.world import Item

# Skills whose reply is settled by the question; the others may be answered in many ways.
EXACT = frozenset({
    "repeat", "reverse", "pick", "neighbour", "how_many", "count", "next_number", "add", "compare",
    "sort", "odd_one", "in_list", "recite", "after", "times", "memory", "passage", "facts",
    "greeting", "unknown",
})
SAMPLES = (
    "Hello!", "Who are you?", "What is sealring?", "Repeat these words: apple, river, dog, lamp.",
    "Reverse these words: one, two, three, four.", "Count from 7 to 22.", "What is 8 + 9?",
    "Mia has a red kite. Tom has a blue drum. Tom is at the harbour. What colour is the kite of "
    "Mia?", "Sort these numbers: 21, 4, 17, 9.", "Say the days of the week.",
    "Why is the sky blue?", "Tell me a story about a dragon named Bo.", DEFAULT_PROMPT,
)


def questions(each: int, seed: int) -> dict[str, list[Item]]:
    """Draw held-out questions with one right answer, so many of each skill."""
    drawn: dict[str, list[Item]] = defaultdict(list)
    for item in islice(documents(seed, validation=True), 400 * each):
        if item.skill in EXACT and len(drawn[item.skill]) < each:
            drawn[item.skill].append(item)
    return drawn


def right(model: Any, items: list[Item]) -> list[bool]:
    """Say for each item whether the model gives its last reply exactly."""
    encoded = [tokenizer().encode(render(item)).ids for item in items]
    starts = [
        len(tokenizer().encode(render(item).rsplit(ASSISTANT, 1)[0] + ASSISTANT).ids)
        for item in items
    ]
    width = max(map(len, encoded))
    tokens = np.zeros((len(items), width), dtype=np.int32)
    for row, ids in zip(tokens, encoded, strict=True):
        row[: len(ids)] = ids
    guesses = np.array(mx.argmax(model(mx.array(tokens[:, :-1])), axis=-1))
    return [
        bool((guesses[n, start - 1 : len(ids) - 1] == tokens[n, start : len(ids)]).all())
        for n, (ids, start) in enumerate(zip(encoded, starts, strict=True))
    ]


def report(model: Any, each: int, seed: int = VALIDATION_SEED) -> dict[str, float]:
    """Print and return the share of right answers for each skill."""
    shares = {}
    for skill, items in sorted(questions(each, seed).items()):
        items.sort(key=lambda item: len(render(item)))
        good = [ok for at in range(0, len(items), 32) for ok in right(model, items[at : at + 32])]
        shares[skill] = sum(good) / len(good)
        print(f"{skill:12} {100 * shares[skill]:5.1f} % of {len(good)}", flush=True)
    return shares


def show(model: Any, encoder: Any, prompts: tuple[str, ...]) -> None:
    """Print greedy replies, made the way a user makes them."""
    from mlx_lm import generate  # noqa: PLC0415 - slow, and not needed for measuring

    for prompt in prompts:
        ids = encoder.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True
        )
        reply = generate(model, encoder, ids, max_tokens=1200)
        print(f"> {prompt}\n{reply.removesuffix(END)}\n", flush=True)


def main() -> None:
    """Load the model with mlx-lm, measure it and show a few replies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=path(), help="folder of the model")
    parser.add_argument("--each", type=int, default=100, help="questions of each skill")
    parser.add_argument("--samples", action="store_true", help="print replies to set prompts")
    options = parser.parse_args()
    from mlx_lm import load  # noqa: PLC0415 - slow, and not needed for --help

    model, encoder = load(str(options.model))
    if options.samples:
        show(model, encoder, SAMPLES)
    else:
        report(model, options.each)


if __name__ == "__main__":
    main()
