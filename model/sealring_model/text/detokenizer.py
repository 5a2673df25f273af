"""Token ids to text, with mlx-lm's streaming detokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from sealring_model.errors import TextError

_SPM: Final = ["Replace", "ByteFallback", "Fuse"]


class Detokenizer:
    """The text of one answer, piece by piece, in whole characters. Tokens that are *silent* have
    none."""

    def __init__(self, streaming: Any, silent: frozenset[int] = frozenset()) -> None:
        self._streaming = streaming
        self._silent = silent

    def add(self, token: int) -> str:
        """The text that *token* completes; it may be empty. A token that the tokenizer does not
        have, which a model with a wider output head may give, has none. Raises `TextError`."""
        table = getattr(self._streaming, "tokenmap", None)
        if token in self._silent or (table is not None and not token < len(table)):
            return ""
        return self._segment(self._streaming.add_token, token)

    def finish(self) -> str:
        """The text that was held back. Call it after the last token. Raises `TextError`."""
        return self._segment(self._streaming.finalize)

    def _segment(self, step: Callable[..., None], *tokens: int) -> str:
        try:
            step(*tokens)
            return str(self._streaming.last_segment)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise TextError(f"the model's tokenizer makes no text of its tokens: {error}") from None


def is_panic(error: BaseException) -> bool:
    """Whether *error* says that Rust code failed, such as a tokenizer's whose file is odd. It is no
    `Exception`, and nobody can import its class."""
    return type(error).__name__ == "PanicException"


def streaming_class(helpers: ModuleType, folder: Path) -> Any:
    """mlx-lm's detokenizer for the tokenizer's decoder; the naive one works for all."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return helpers.NaiveStreamingDetokenizer
    decoder = json.loads(file.read_text("utf-8")).get("decoder") or {}
    steps = [step.get("type") for step in decoder.get("decoders", ())]
    if decoder.get("type") == "ByteLevel":
        return lambda inner: helpers.BPEStreamingDetokenizer(_WithoutGaps(inner))
    if steps in (_SPM, [*_SPM, "Strip"]):
        trims = steps != _SPM
        return lambda inner: helpers.SPMStreamingDetokenizer(_WithoutGaps(inner), trim_space=trims)
    return helpers.NaiveStreamingDetokenizer


class _WithoutGaps:
    """A tokenizer as mlx-lm's detokenizers take it to be: one that has all ids below its length.
    Ids between others that stand for nothing have the empty text."""

    def __init__(self, inner: Any) -> None:
        self._inner: Final = inner

    def __len__(self) -> int:
        return max(self._inner.get_vocab().values(), default=-1) + 1

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [token or "" for token in self._inner.convert_ids_to_tokens(ids)]
