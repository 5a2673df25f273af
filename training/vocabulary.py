"""The tokenizer: 1,280 pieces, nearly all of them whole words of the small world.

It is a unigram model over bytes. Any text can be encoded, and the words of the corpus are one token
each; merges would spend half of so small a vocabulary on parts of words. A word that is not in the
vocabulary is spelled byte by byte, and so are numbers above 30, digit by digit.
"""

import argparse
import json
import math
from collections import Counter
from itertools import islice
from pathlib import Path

from sealring_model.tiny import path
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from training.corpus import END, PAD, SPECIALS, documents, render

SIZE = 1280
LARGEST_NUMBER = 30
# Far below the score of any word, so that bytes are used only where no word fits.
BYTE_SCORE = -30.0
# Loops over the messages; a reply is opened when the caller asks for a generation prompt.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _is_word(piece: str) -> bool:
    """Say whether a piece may become a token: large numbers may not, their digits are tokens."""
    number = piece.lstrip("Ġ")
    return not number.isdigit() or int(number) <= LARGEST_NUMBER


def build(count: int, seed: int) -> Tokenizer:
    """Make the tokenizer of the most frequent words in the first documents of a corpus."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    counts: Counter[str] = Counter()
    for item in islice(documents(seed), count):
        for _, text in item.turns:
            counts.update(piece for piece, _ in splitter.pre_tokenize_str(text))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = sorted((w for w in counts if len(w) > 1 and _is_word(w)), key=lambda w: (-counts[w], w))
    words = words[: SIZE - len(SPECIALS) - len(alphabet)]
    total = sum(counts.values())
    pieces = [(mark, 0.0) for mark in SPECIALS]
    pieces += [(letter, BYTE_SCORE) for letter in alphabet]
    pieces += [(word, math.log(counts[word] / total)) for word in words]
    tokenizer = Tokenizer(models.Unigram(pieces))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in SPECIALS])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer and its settings in the Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def main() -> None:
    """Train the tokenizer and say how short it writes the corpus."""
    parser = argparse.ArgumentParser(description="Train the tiny model's tokenizer.")
    parser.add_argument("--out", type=Path, default=path(), help="folder of the model")
    parser.add_argument("--count", type=int, default=60_000, help="documents to learn from")
    parser.add_argument("--seed", type=int, default=1, help="seed of these documents")
    options = parser.parse_args()
    tokenizer = build(options.count, options.seed)
    save(tokenizer, options.out)
    text = "".join(render(item) for item in islice(documents(options.seed + 1), 2000))
    tokens = len(tokenizer.encode(text).ids)
    print(f"{tokenizer.get_vocab_size()} pieces, {len(text) / tokens:.2f} characters a token")


if __name__ == "__main__":
    main()
