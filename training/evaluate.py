"""Measure how often the tiny model answers held-out questions exactly right.

A question counts when every token of the reply, its end included, is the model's first choice given
the tokens before it. That is the same as comparing greedy replies, at the price of one pass.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
from sealring_model.machine import keep_kernels_private
from sealring_model.tiny import DEFAULT_PROMPT, path

from training.corpus import ASSISTANT, END, documents, held_out, render
from training.journeys import long_story
from training.rows import VALIDATION_SEED, tokenizer
from training.world import Item

# Skills whose reply is settled by the question; the others may be answered in many ways.
EXACT = frozenset(
    {
        "add",
        "after",
        "compare",
        "count",
        "facts",
        "greeting",
        "how_many",
        "in_list",
        "memory",
        "multiply",
        "neighbour",
        "next_number",
        "odd_one",
        "passage",
        "pick",
        "recite",
        "repeat",
        "reverse",
        "sort",
        "subtract",
        "times",
        "unknown",
        "word_sum",
    }
)
SAMPLES = (
    "Hello!",
    "Who are you?",
    "What is sealring?",
    "Repeat these words: apple, river, dog, lamp.",
    "Reverse these words: one, two, three, four.",
    "Count from 7 to 22.",
    "What is 8 + 9?",
    "Mia has a red kite. Tom has a blue drum. Tom is at the harbour. What colour is the kite of "
    "Mia?",
    "Sort these numbers: 21, 4, 17, 9.",
    "Say the days of the week.",
    "Why is the sky blue?",
    "Tell me a story about a dragon named Bo.",
    DEFAULT_PROMPT,
)


def questions(each: int, seed: int) -> dict[str, list[Item]]:
    """Draw held-out questions with one right answer, so many of each skill."""
    drawn: dict[str, list[Item]] = defaultdict(list)
    stream = documents(seed, validation=True)
    while sum(map(len, drawn.values())) < each * len(EXACT):
        item = next(stream)
        if item.skill in EXACT and len(drawn[item.skill]) < each:
            drawn[item.skill].append(item)
    return drawn


def right(model: Any, items: list[Item], encode: Callable[[str], list[int]]) -> list[bool]:
    """Say for each item whether the model gives its last reply exactly."""
    encoded = [encode(render(item)) for item in items]
    starts = [len(encode(render(item).rsplit(ASSISTANT, 1)[0] + ASSISTANT)) for item in items]
    width = max(map(len, encoded))
    tokens = np.zeros((len(items), width), dtype=np.int32)
    for row, ids in zip(tokens, encoded, strict=True):
        row[: len(ids)] = ids
    guesses = np.array(mx.argmax(model(mx.array(tokens[:, :-1])), axis=-1))
    return [
        bool((guesses[n, start - 1 : len(ids) - 1] == tokens[n, start : len(ids)]).all())
        for n, (ids, start) in enumerate(zip(encoded, starts, strict=True))
    ]


def report(model: Any, folder: Path, each: int) -> dict[str, float]:
    """Print and return the share of right answers for each skill."""
    shares = {}

    def encode(text: str) -> list[int]:
        return list(tokenizer(folder).encode(text).ids)

    for skill, items in sorted(questions(each, VALIDATION_SEED).items()):
        items.sort(key=lambda item: len(render(item)))
        parts = [items[at : at + 32] for at in range(0, len(items), 32)]
        good = [ok for part in parts for ok in right(model, part, encode)]
        shares[skill] = sum(good) / len(good)
        print(f"{skill:12} {100 * shares[skill]:5.1f} % of {len(good)}", flush=True)
    return shares


def reply(model: Any, encoder: Any, prompt: str) -> str:
    """Return the greedy reply to a prompt, made the way a user makes it."""
    from mlx_lm import generate  # noqa: PLC0415 - slow, and not needed for measuring

    ids = encoder.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True
    )
    return str(generate(model, encoder, ids, max_tokens=1500)).removesuffix(END)


def kept(story: str) -> bool:
    """Say whether a journey remembers at its end every gift and every helper, in order."""
    gifts = re.findall(r"gave (?:him|her) an? ([a-z]+ [a-z]+)\.", story)
    helpers = re.findall(r"met an? ([a-z]+) who", story)
    bag = re.search(r"took out (.*?)\.", story)
    friends = re.search(r"thought of (.*?)\.", story)
    return bool(
        gifts
        and bag
        and friends
        and re.findall(r"the ([a-z]+ [a-z]+)", bag[1].replace(" and", ",")) == gifts
        and re.findall(r"the ([a-z]+)", friends[1]) == helpers
    )


def remembered(model: Any, encoder: Any, count: int) -> None:
    """Print how many long stories, about heroes that were held out, remember what they told."""
    rng = Random(VALIDATION_SEED)  # noqa: S311 - which questions are asked is no secret
    stories: list[str] = []
    while len(stories) < count:
        item = long_story(rng)
        prompt = item.turns[0][1]
        if held_out(item) and "the journey of" in prompt:
            stories.append(reply(model, encoder, prompt))
    print(
        f"{'long story':12} {100 * sum(map(kept, stories)) / len(stories):5.1f} % of "
        f"{len(stories)} remember all gifts and helpers; their mean length is "
        f"{sum(len(encoder.encode(s)) for s in stories) / len(stories):.0f} tokens"
    )


def main() -> None:
    """Load the model with mlx-lm, measure it and show a few replies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=path(), help="folder of the model")
    parser.add_argument("--each", type=int, default=100, help="questions of each skill")
    parser.add_argument("--stories", type=int, default=20, help="long stories to check")
    parser.add_argument("--samples", action="store_true", help="only print replies to set prompts")
    options = parser.parse_args()
    keep_kernels_private()
    from mlx_lm import load  # noqa: PLC0415 - slow, and not needed for --help

    model, encoder = load(str(options.model))
    if options.samples:
        for prompt in SAMPLES:
            print(f"> {prompt}\n{reply(model, encoder, prompt)}\n", flush=True)
        return
    report(model, options.model, options.each)
    if options.stories:
        remembered(model, encoder, options.stories)


if __name__ == "__main__":
    main()
