"""Rows of tokens to train on, made in parallel from the corpus.

Whole documents fill a row one after another, so a row starts where a document starts, as a prompt
does. What the user says is read but not learnt: it cannot be guessed.
"""

from collections.abc import Iterator
from functools import cache, partial
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from sealring_model.tiny import path
from sealring_model.tiny.corpus import (
    ASSISTANT,
    PAD,
    SEPARATOR,
    SPECIALS,
    SYSTEM,
    USER,
    documents,
    render,
)

Tokens = NDArray[np.uint16]
# Validation streams have seeds of their own.
VALIDATION_SEED = 1_000_000_007
CHUNK = 64


@cache
def tokenizer() -> Tokenizer:
    """Load the tokenizer once in each process."""
    return Tokenizer.from_file(str(path() / "tokenizer.json"))


def pack(seed: int, rows: int, length: int, validation: bool = False) -> Tokens:
    """Fill rows with documents; a document that runs over the end of its row is cut there."""
    separator = SPECIALS.index(SEPARATOR)
    packed = np.full((rows, length), SPECIALS.index(PAD), dtype=np.uint16)
    stream = documents(seed, validation)
    for row in packed:
        at = 0
        while at < length:
            ids = [*tokenizer().encode(render(next(stream))).ids, separator][: length - at]
            row[at : at + len(ids)] = ids
            at += len(ids)
    return packed


def learnt(rows: Tokens) -> NDArray[np.bool_]:
    """Mark the tokens that the model has to predict: replies and plain text, not what is asked."""
    asks = [SPECIALS.index(m) for m in (USER, SYSTEM)]
    answers = [SPECIALS.index(m) for m in (ASSISTANT, SEPARATOR)]
    mark = np.isin(rows, asks) * 1 + np.isin(rows, answers) * 2
    last = np.maximum.accumulate(np.where(mark > 0, np.arange(rows.shape[1]), 0), axis=1)
    asked = np.take_along_axis(mark, last, axis=1) == 1
    return np.asarray(~asked & (mark == 0) & (rows != SPECIALS.index(PAD)), dtype=np.bool_)


def stream(seed: int, first: int, chunks: int, length: int, workers: int) -> Iterator[Tokens]:
    """Yield chunks of rows in a fixed order, whatever the number of workers."""
    seeds = range(seed + first, seed + chunks)
    with get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(partial(pack, rows=CHUNK, length=length), seeds)
