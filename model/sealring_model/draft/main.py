"""The draft model: a process beside the engine of a head, which guesses the ring's next tokens.

    python -m sealring_model.draft.main --model FOLDER --fd N --vocabulary WIDTH
    python -m sealring_model.draft.main --model FOLDER --for MODEL

With ``--fd`` it follows the rows of a ring whose logits are *WIDTH* wide. It takes what the head
sends of its rows on the socket, and sends guesses. What has come is always taken before the next
forward, so that it does not fall behind by more than that; and nobody waits for it. It ends with
the head's end of the socket.

Each row has caches of its own. They hold the row's tokens and, after these, the guesses. When a
token comes that is not the one guessed, the guesses go and the caches are cut. A row that samples
is guessed by the draw that the ring will make: the same noise, from the row's seed, choice and the
token's position (`sampling.draw`), over the draft model's probabilities. The two draws agree
more often than two independent ones would, since the noise is common to both. The noise depends on
the width of the logits; so the draft's are made as wide as the ring's.

With ``--for`` it prints the bytes that the draft model in FOLDER takes of the head's memory, or
says why it cannot guess for the MODEL, and ends with 1: if it cannot be built, or has another
vocabulary. A guess is a token id, which can be right only where the same id stands for the same
text in both. (The widths of the output heads may differ: many models of one family pad them
differently.) Nodes and commands ask this process, since it builds the model and reads two
vocabularies: a node imports no MLX, and nobody ends by what a model's class does.
"""

from __future__ import annotations

import argparse
import copy
import math
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.messages import Row

from sealring_model.draft.frames import DraftFrame, DraftFrameKind, FrameReader, pack
from sealring_model.errors import FORWARD_ERRORS, LoadError, error_text
from sealring_model.loading.model_folder import ModelInfo, describe
from sealring_model.loading.structure import structure_of
from sealring_model.loading.weights import read_json
from sealring_model.machine import keep_kernels_private
from sealring_model.mlx_lm_import import mlx_lm, model_loader
from sealring_model.sampling.draw import LogitProcessor, LogitProcessors, sample
from sealring_model.stage.caches import FULL_CACHES, arrays
from sealring_model.text.tokens import Tokenizer

MOST_TOKENS: Final = 16_384
"""Tokens of all rows that a draft model follows, at most. A row that would exceed them is followed
no more."""

DEPTH: Final = 8
"""Tokens that are guessed ahead of a row, at most."""

CHUNK: Final = 256
"""Tokens of a prompt that are read before the next look at what the ring has drawn."""

_RECEIVE: Final = 1 << 20


class Drafter:
    """Guesses tokens with *model*, an mlx-lm model, for a ring whose logits are *vocabulary* wide.
    Raises what mlx-lm raises."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        self._model: Final = model
        self._vocabulary: Final = vocabulary
        self._rows: Final[dict[int, _Row]] = {}

    @property
    def busy(self) -> bool:
        """Whether `work` has something to do."""
        return any(row.wants for row in self._rows.values())

    def handle(self, frame: DraftFrame) -> None:
        """Take *frame*, in which the head reports on a row."""
        match frame.kind:
            case DraftFrameKind.OPEN if frame.row is not None:
                self._open(frame.uid, frame.row, frame.ids)
            case DraftFrameKind.TOKENS:
                self._tokens(frame.uid, frame.position, frame.ids)
            case DraftFrameKind.CLOSE:
                self._rows.pop(frame.uid, None)
            case _:
                raise ValueError(f"the head does not say {frame.kind.name}")

    def work(self) -> DraftFrame | None:
        """Run the model once for the row that has the fewest guesses. Its guesses, if there is a
        new one; None if only a chunk was read, or there is nothing to do."""
        waiting = {uid: row for uid, row in self._rows.items() if row.wants}
        if not waiting:
            return None
        uid = min(waiting, key=lambda uid: len(waiting[uid].guesses))
        row = waiting[uid]
        unread = row.unread
        if len(unread) > CHUNK:
            row.caches.read(unread[:CHUNK])
            row.caches.evaluate()
            return None
        logits = row.caches.read(unread)
        if row.caches.length == len(row.tokens):
            row.caches.keep()
        row.guesses.append(self._draw(row, logits))
        return DraftFrame(DraftFrameKind.GUESS, uid, len(row.tokens), tuple(row.guesses))

    def _open(self, uid: int, row: Row, tokens: Sequence[int]) -> None:
        processor = LogitProcessors(self._vocabulary).take(0, (row,))
        self._rows[uid] = _Row(row, list(tokens), DraftCaches(self._model), [processor])
        self._make_room()

    def _tokens(self, uid: int, position: int, ids: Sequence[int]) -> None:
        """Row *uid* has *ids* from *position* on. What is known of it already is left aside; a row
        that lacks some is followed no more."""
        row = self._rows.get(uid)
        if row is None:
            return
        if position > len(row.tokens):
            del self._rows[uid]
            return
        for token in ids[len(row.tokens) - position :]:
            self._token(row, token)
        self._make_room()

    def _token(self, row: _Row, token: int) -> None:
        if row.guesses and row.guesses[0] == token:
            row.guesses.pop(0)
            row.processors.pop(0)
        else:
            row.guesses.clear()
            row.caches.cut(len(row.tokens))
            row.processors = [_after(row.processors[0], token)]
        row.tokens.append(token)

    def _make_room(self) -> None:
        while sum(len(row.tokens) for row in self._rows.values()) > MOST_TOKENS:
            del self._rows[max(self._rows, key=lambda uid: len(self._rows[uid].tokens))]

    def _draw(self, row: _Row, logits: mx.array) -> int:
        """The next guess for *row*, from *logits* ``(vocabulary,)`` of the draft model."""
        lacking = self._vocabulary - logits.shape[0]
        if lacking > 0:
            logits = mx.pad(logits, (0, lacking), constant_values=-math.inf)
        logits = logits[None, : self._vocabulary]
        processor = row.processors[-1]
        if processor is not None:
            logits = processor.apply(logits)
        token = sample(logits, [row.row], [len(row.tokens) + len(row.guesses)])
        (guess,) = map(int, token.tolist())  # type: ignore[arg-type]
        row.processors.append(_after(processor, guess))
        return guess


@attrs.define(eq=False)
class _Row:
    """A row that is followed: its *tokens*, and the *guesses* that follow them. *processors* apply
    its penalties and bias to logits: one for the tokens, and one more after each guess."""

    row: Row
    tokens: list[int]
    caches: DraftCaches
    processors: list[LogitProcessor | None]
    guesses: list[int] = attrs.field(factory=list)

    @property
    def unread(self) -> list[int]:
        """The tokens, and then the guesses, that are not in the caches."""
        known, read = len(self.tokens), self.caches.length
        return self.tokens[read:] + self.guesses[max(0, read - known) :]

    @property
    def wants(self) -> bool:
        return len(self.guesses) < DEPTH


class DraftCaches:
    """Caches of *model* for one row, which can go back to a shorter row.

    Caches that hold every token are trimmed. Others (recurrent states, windows) are kept as they
    were before the guesses, and the row is read from there again. Both are mlx-lm's own. A copy of
    a cache shares its arrays: MLX copies one when it is next written to.
    """

    def __init__(self, model: Any) -> None:
        self._model: Final = model
        self._now: list[Any] = self._fresh()
        self.length = 0
        """Tokens that they hold."""
        self._kept: tuple[int, list[Any]] | None = None  # at a length, if they cannot be cut

    def read(self, ids: list[int]) -> mx.array:
        """Read *ids*; the logits after the last of them."""
        logits: mx.array = self._model(mx.array([ids], mx.uint32), cache=self._now)
        self.length += len(ids)
        return logits[0, -1]

    def evaluate(self) -> None:
        """Compute the caches."""
        mx.eval(arrays(self._now))

    def keep(self) -> None:
        """What is read from now on may be taken back."""
        if self._full:
            self._kept = None
        else:
            self._kept = self.length, copy.deepcopy(self._now)

    def cut(self, length: int) -> None:
        """Go back to the first *length* tokens, or to fewer of them."""
        if length >= self.length:
            return
        if self._full and self._can_cut:
            for cache in self._now:
                cache.trim(self.length - length)
            self.length = length
        elif self._kept is not None and self._kept[0] <= length:
            self.length, self._now = self._kept[0], copy.deepcopy(self._kept[1])
        else:
            self.length, self._now, self._kept = 0, self._fresh(), None

    @property
    def _full(self) -> bool:
        """Whether they hold every token, and so can always be cut."""
        return all(type(cache).__name__ in FULL_CACHES for cache in self._now)

    @property
    def _can_cut(self) -> bool:
        return all(cache.is_trimmable() for cache in self._now)

    def _fresh(self) -> list[Any]:
        made: list[Any] = mlx_lm("models.cache").make_prompt_cache(self._model)
        return made


def _after(processor: LogitProcessor | None, token: int) -> LogitProcessor | None:
    if processor is None:
        return None
    after = processor.after(mx.array([token], mx.uint32))
    mx.eval(*after.arrays)
    return after


def serve(sock: socket.socket, drafter: Drafter) -> None:
    """Guess for the head at *sock*, until that closes."""
    reader = FrameReader()
    while True:
        ready, _, _ = select.select([sock], [], [], 0 if drafter.busy else None)
        if ready:
            data = sock.recv(_RECEIVE)
            if not data:
                return
            for frame in reader.read(data):
                drafter.handle(frame)
        elif (guess := drafter.work()) is not None:
            sock.sendall(pack(guess))


def check_vocabulary(draft: Path, model: Path) -> None:
    """Raise `LoadError` with the reason if the models in the folders *draft* and *model* have not
    the same vocabulary, or one of them has none."""
    if _same_file(draft / "tokenizer.json", model / "tokenizer.json"):
        return
    guessed, drawn = token_ids(draft), token_ids(model)
    if len(guessed) != len(drawn):
        raise LoadError(
            f"it has {len(guessed)} tokens, and the model that it is to guess for has {len(drawn)}"
        )
    for text, number in drawn.items():
        other = guessed.get(text)
        if other != number:
            place = "is no token of it" if other is None else f"is its token {other}"
            raise LoadError(
                f"{text!r} {place}, and token {number} of the model that it guesses for"
            )


def token_ids(folder: Path) -> dict[str, int]:
    """The id of each token's text in the model in *folder*. Raises `LoadError`."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return Tokenizer(folder).ids()
    described = read_json(file)
    try:
        return _ids(described)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise LoadError(f"{file} has no vocabulary: {error!r}") from None


def _ids(described: Mapping[str, Any]) -> dict[str, int]:
    known = described["model"]["vocab"]
    if isinstance(known, list):  # of pairs with scores, in the order of their ids
        found = {str(entry[0]): number for number, entry in enumerate(known)}
    else:
        found = {str(text): int(number) for text, number in known.items()}
    added = {str(each["content"]): int(each["id"]) for each in described.get("added_tokens") or ()}
    return found | added


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def memory_of(info: ModelInfo) -> int:
    """Bytes of the draft model *info*: its weights, and the caches of as many tokens as it may
    follow, in one row. Raises `LoadError` if it cannot be built."""
    found = structure_of(info)
    layers = len(info.layers)
    return found.held(0, layers) + found.cache(0, layers, min(MOST_TOKENS, info.context))


def main() -> int:
    """The command of the child process."""
    parser = argparse.ArgumentParser(prog="sealring_model.draft.main")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--for", type=Path, dest="guessed_for")
    parser.add_argument("--fd", type=int)
    parser.add_argument("--vocabulary", type=int)
    options = parser.parse_args()
    keep_kernels_private()
    try:
        if options.guessed_for is not None:
            info = describe(options.model)  # first, for it looks which files are none
            check_vocabulary(options.model, options.guessed_for)
            print(memory_of(info))
            return 0
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with socket.socket(fileno=options.fd) as sock:
            model, _ = model_loader().load_model(options.model)
            sock.sendall(pack(DraftFrame(DraftFrameKind.READY)))
            serve(sock, Drafter(model, options.vocabulary))
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except (OSError, *FORWARD_ERRORS) as error:
        who = "" if options.guessed_for is not None else "sealring draft model: "
        print(f"{who}{error_text(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
