"""Rows of tokens to train on, made in parallel from the corpus.

Whole documents fill a row one after another, so a row starts where a document starts, as a prompt
does. What the user says is read but not learnt: it cannot be guessed.
"""

from collections.abc import Iterator
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sealring_model.tiny import path
from tokenizers import Tokenizer

from training.corpus import (
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
SHORT_REPLY, LONG_WEIGHT = 48, 0.35


@cache
def tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a model once in each process."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def pack(seed: int, rows: int, length: int, validation: bool = False) -> Tokens:
    """Fill rows with documents; a document that runs over the end of its row is cut there."""
    separator = SPECIALS.index(SEPARATOR)
    packed = np.full((rows, length), SPECIALS.index(PAD), dtype=np.uint16)
    stream = documents(seed, validation)
    for row in packed:
        at = 0
        while at < length:
            ids = [*tokenizer(path()).encode(render(next(stream))).ids, separator][: length - at]
            row[at : at + len(ids)] = ids
            at += len(ids)
    return packed


def weights(rows: Tokens) -> NDArray[np.float32]:
    """Weigh the tokens that the model has to predict: replies and plain text, not what is asked.

    In long texts much is free choice, so a token there weighs less than one in a short reply, which
    is right or wrong.
    """
    asks = [SPECIALS.index(m) for m in (USER, SYSTEM)]
    answers = [SPECIALS.index(m) for m in (ASSISTANT, SEPARATOR)]
    mark = np.isin(rows, asks) * 1 + np.isin(rows, answers) * 2
    last = np.maximum.accumulate(np.where(mark > 0, np.arange(rows.shape[1]), 0), axis=1)
    asked = np.take_along_axis(mark, last, axis=1) == 1
    learnt = ~asked & (mark == 0) & (rows != SPECIALS.index(PAD))
    turn = last + np.arange(rows.shape[0])[:, None] * rows.shape[1]
    long = np.bincount(turn.ravel())[turn] > SHORT_REPLY
    return np.asarray(learnt * np.where(long, LONG_WEIGHT, 1.0), dtype=np.float32)


def stream(seed: int, first: int, chunks: int, length: int, workers: int) -> Iterator[Tokens]:
    """Yield chunks of rows in a fixed order, whatever the number of workers."""
    seeds = range(seed * 1_000_000 + first, seed * 1_000_000 + chunks)
    with get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(partial(pack, rows=CHUNK, length=length), seeds)
