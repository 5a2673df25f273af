"""Whether answers hold to the schemas of the JSON Schema Test Suite: ``python -m
tests.schema_suite FOLDER``.

FOLDER has the suite's files of one draft, such as ``json/tests/draft2020-12`` of the sources of the
package ``jsonschema``. Every schema is either refused, as the API refuses it, or held: the tiny
model then answers several times at temperature 1, and each answer that comes to its end must be
valid by ``jsonschema``. Exit code 1 if one is not. ``--rows`` answers are drawn for each schema, of
``--tokens`` tokens at most.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
from sealring.structured.forms import json_grammar
from sealring_model import tiny
from sealring_model.loading.model_folder import describe
from sealring_model.sampling.constraints import Matchers
from sealring_model.text.grammars import fault, grammar_tokenizer
from sealring_model.text.tokens import Tokenizer

sys.path.insert(0, str(Path(__file__).parent / "model"))
from model_rings import Ring

PROMPT = "Tell me of a thing."


def schemas(folder: Path) -> Iterator[tuple[str, Any]]:
    """Every schema of the suite, with what it is called."""
    for file in sorted(folder.glob("*.json")):
        for case in json.loads(file.read_text()):
            yield f"{file.stem}: {case['description']}", case["schema"]


def answers(
    ring: Ring, prompt: list[int], grammar: bytes, seeds: Sequence[int], end: int, most: int
):
    """The tokens of a row for each of *seeds*, and whether it came to its end."""
    about = {"grammar": grammar, "ends": (end,), "temperature": 1.0}
    rows = [ring.admit(prompt, seed=seed, **about) for seed in seeds]
    texts: dict[int, list[int]] = {}
    ring.decode(join=rows)
    for _ in range(most):
        over = [uid for uid in rows if uid not in texts and ring.text[uid][-1] == end]
        over += [uid for uid in ring.over if uid in rows and uid not in texts]
        texts |= {uid: ring.text[uid] for uid in over}
        left = [uid for uid in rows if uid not in texts]
        if not left:
            ring.evict(*over)
            break
        ring.decode(evict=over)
    else:
        ring.evict(*[uid for uid in rows if uid not in texts])
    for uid in rows:
        if uid in ring.over:
            yield None, ring.over[uid][0].reason
        else:
            yield ring.text[uid], uid in texts


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    asked = parser.parse_args()
    folder = tiny.path()
    vocabulary = describe(folder).vocabulary
    known, words = grammar_tokenizer(folder, vocabulary), Tokenizer(folder)
    ring = Ring(folder, matchers=Matchers(folder, vocabulary))
    prompt = words.chat([{"role": "user", "content": PROMPT}])
    told: Counter[str] = Counter()
    wrong, reasons, began = [], Counter[str](), time.monotonic()
    for number, (name, schema) in enumerate(schemas(asked.folder)):
        if number < asked.first:
            continue
        if time.monotonic() > began + asked.seconds:
            print(f"go on with --first {number}")
            break
        text = json.dumps({"grammars": [json_grammar(schema)]})
        if why := fault(known, text):
            told["schemas refused"] += 1
            reasons[why.split(":")[0][:60]] += 1
            continue
        told["schemas held"] += 1
        seeds = range(asked.rows)
        for tokens, ended in answers(ring, prompt, text.encode(), seeds, 0, asked.tokens):
            if tokens is None:
                told["rows that could not go on"] += 1
                wrong.append(f"{name}: {ended}")
            elif not ended:
                told["answers cut off"] += 1
            else:
                answer = words.decode(tokens[:-1])
                try:
                    jsonschema.Draft202012Validator(schema).validate(json.loads(answer))
                    told["answers valid"] += 1
                except (jsonschema.ValidationError, ValueError) as error:
                    told["answers invalid"] += 1
                    wrong.append(f"{name}: {answer!r}: {str(error).splitlines()[0]}")
    for kind, count in sorted(told.items()):
        print(f"{count:6} {kind}")
    for reason, count in reasons.most_common(12):
        print(f"       {count:4} refused: {reason}")
    for line in wrong:
        print("WRONG", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
