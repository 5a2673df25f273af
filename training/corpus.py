"""The training text: an endless, seeded stream of documents about a small world.

Nothing is downloaded and nobody else's text is used; ``python -m training.corpus``
prints a few documents.
"""

import argparse
import zlib
from collections.abc import Callable, Iterator
from random import Random

from training import chats, facts, journeys, passages, skills, stories
from training.world import Item

END, USER, ASSISTANT, SYSTEM, SEPARATOR, PAD = SPECIALS = (
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|sep|>",
    "<|pad|>",
)
MARKS = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM}
# One in this many keys is kept out of training.
HOLD_OUT = 25

# The share of documents from each part; stories are long, so a few make much text.
SHARES = (
    (skills.MAKERS, 36),
    (passages.MAKERS, 36),
    (facts.MAKERS, 11),
    (chats.MAKERS, 10),
    (stories.MAKERS, 4.5),
    (journeys.MAKERS, 2.5),
)
Maker = Callable[[Random], Item]


def makers() -> list[tuple[Maker, float]]:
    """List every maker of documents with its share of the corpus."""
    return [
        (maker, share * weight / sum(w for _, w in group))
        for group, share in SHARES
        for maker, weight in group
    ]


def held_out(item: Item) -> bool:
    """Say whether an item belongs to the validation set; it depends on the content alone."""
    return zlib.crc32(f"{item.skill}:{item.key}".encode()) % HOLD_OUT == 0


def _careless(rng: Random, text: str, exact: bool) -> str:
    """Write as people do: sometimes without the first capital, the full stop or with a please.

    Where the reply repeats the question exactly, the full stop stays.
    """
    if rng.random() < 0.08:
        text = text[:1].lower() + text[1:]
    if rng.random() < 0.12 and not exact:
        text = text.rstrip(".")
    if rng.random() < 0.04:
        text = f"Please {text[:1].lower()}{text[1:]}"
    return text


def documents(seed: int, validation: bool = False) -> Iterator[Item]:
    """Yield training items for ever, or validation items, as the seed decides."""
    rng = Random(seed)  # noqa: S311 - a corpus, not a secret
    choices = makers()
    made, shares = [m for m, _ in choices], [s for _, s in choices]
    while True:
        for maker in rng.choices(made, shares, k=256):
            item = maker(rng)
            if held_out(item) != validation:
                continue
            if item.turns[0][0] == "user":
                first = ("user", _careless(rng, item.turns[0][1], item.skill == "repeat"))
                item = Item(item.skill, item.key, (first, *item.turns[1:]))
            yield item


def render(item: Item) -> str:
    """Write an item as the model reads it."""
    if item.turns[0][0] == "text":
        return item.turns[0][1] + END
    return "".join(f"{MARKS[role]}{text}{END}" for role, text in item.turns)


def main() -> None:
    """Print some documents."""
    parser = argparse.ArgumentParser(description="Print documents of the tiny model's corpus.")
    parser.add_argument("--count", type=int, default=20, help="how many documents to print")
    parser.add_argument("--seed", type=int, default=0, help="which stream of documents to print")
    parser.add_argument("--validation", action="store_true", help="print held-out documents")
    options = parser.parse_args()
    stream = documents(options.seed, options.validation)
    for _ in range(options.count):
        item = next(stream)
        print(f"[{item.skill}] {render(item)}")


if __name__ == "__main__":
    main()
