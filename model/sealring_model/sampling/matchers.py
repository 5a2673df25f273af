"""Compiles the grammars of rows, beside the compute thread.

A grammar is compiled when its ROW comes, in a thread of its own, so that it is ready when the row's
prompt has been read. Only a row's first token waits for it. The tokenizer is made in that thread,
too, before there is a row. Rows with equal grammars share what has been compiled, by copies. The
tokenizers' libraries are imported in that thread: only the head's engine needs them.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from llguidance import LLMatcher, LLTokenizer

_KEPT: Final = 8
"""Compiled grammars that are kept, beside those that are being compiled. One may take 20 MiB."""


class Matchers:
    """Matchers of grammars over *vocabulary* tokens of the model in *folder*."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self._folder: Final = folder
        self._vocabulary: Final = vocabulary
        self._compiler: Final = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._compiled: Final[dict[bytes, Future[LLMatcher]]] = {}

    def load(self) -> Future[LLTokenizer]:
        """Make the tokenizer, so that the first grammar need not wait for it. Returns at once."""
        return self._compiler.submit(lambda: self._tokenizer)

    @functools.cached_property
    def _tokenizer(self) -> LLTokenizer:
        from sealring_model.text.grammars import grammar_tokenizer  # noqa: PLC0415  see above

        return grammar_tokenizer(self._folder, self._vocabulary)

    def begin(self, grammar: bytes) -> Future[LLMatcher]:
        """Compile *grammar*, unless it has been. Returns at once."""
        known = self._compiled.pop(grammar, None)
        if known is None:
            known = self._compiler.submit(self._compile, grammar)
        self._compiled[grammar] = known  # the latest is last
        done = [text for text, each in self._compiled.items() if each.done() and each is not known]
        for text in done[: max(0, len(done) - _KEPT)]:
            del self._compiled[text]
        return known

    def new(self, grammar: bytes) -> tuple[LLMatcher, list[int]]:
        """A matcher for one row of *grammar*, at its beginning, and the ids that it takes for ends.
        Waits until it is compiled. A fault of the grammar is the matcher's. Raises `LoadError` if
        the model's tokenizer cannot be read."""
        compiled = self.begin(grammar).result().deep_copy()
        return compiled, list(self._tokenizer.eos_tokens)

    def _compile(self, grammar: bytes) -> LLMatcher:
        from sealring_model.text.grammars import matcher  # noqa: PLC0415  see above

        return matcher(self._tokenizer, grammar.decode("utf-8", "replace"))
