"""Scores of a prompt as clients see them: how likely each of its tokens was.

Text completions with ``echo`` and ``logprobs`` tell them in the columns that go on with the tokens
of the answer. ``prompt_logprobs`` tells them as vLLM does: a list with an object for each token,
which has the token itself and the likeliest ones in its place. The first token follows nothing: its
entry is null in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sealring_protocol.codec.local_messages import Scores

from sealring.api.replies import (
    Columns,
    Json,
    Offsets,
    TokenBytes,
    add_json,
    finite,
    logprob_columns,
)


class PromptScores:
    """Scores of *prompt*, made for the client as they come. *echoed* and *listed* are how many
    likeliest tokens the columns and the list have for each; None: there are no columns, or no
    list."""

    def __init__(
        self,
        prompt: Sequence[int],
        bytes_of: TokenBytes,
        echoed: int | None,
        listed: int | None,
    ) -> None:
        self._prompt = prompt
        self._bytes_of = bytes_of
        self._echoed = echoed
        self._listed = listed
        self._offsets = Offsets()
        # An empty prompt is refused later.
        rows = [(self._name(token), None, None, self._begin(token)) for token in prompt[:1]]
        self._columns = Columns()
        self._columns.add(logprob_columns(rows))
        self._entries = bytearray(b"null")

    def add(self, scores: Scores) -> int:
        """The next *scores*. Returns how many bytes more are kept because of them."""
        rows = []
        entries = []
        before = self._columns.size + len(self._entries)
        for token, chosen, rank, likeliest in self._tokens(scores):
            if self._echoed is not None:
                name = self._name(token)
                tops = {self._name(other): value for other, value in likeliest[: self._echoed]}
                best = {**tops, name: chosen} if tops else {}
                rows.append((name, chosen, best, self._begin(token)))
            if self._listed is not None:
                entries.append(self._entry(token, chosen, rank, likeliest[: self._listed]))
        self._columns.add(logprob_columns(rows))
        add_json(self._entries, entries)
        return self._columns.size + len(self._entries) - before

    def before(self, columns: Columns) -> Iterator[Json]:
        """The JSON of *columns*, which are an answer's, after those of the prompt, if that is
        echoed."""
        if self._echoed is None:
            return columns.whole()
        return columns.whole(self._columns, self._offsets.end)

    def listed(self) -> Iterator[Json]:
        """The field with the list, after a comma; nothing if there is none."""
        if self._listed is not None:
            yield from (b',"prompt_logprobs":[', self._entries, b"]")

    def _tokens(self, scores: Scores) -> Iterator[tuple[int, float, int, list[tuple[int, float]]]]:
        count = scores.alternatives
        tokens = self._prompt[scores.position : scores.end]
        for at, token in enumerate(tokens):
            part = slice(at * count, at * count + count)
            values = map(finite, scores.values[part])
            likeliest = list(zip(scores.ids[part], values, strict=True))
            yield token, finite(scores.chosen[at]), scores.ranks[at], likeliest

    def _entry(
        self, token: int, chosen: float, rank: int, likeliest: Sequence[tuple[int, float]]
    ) -> dict[str, Any]:
        told = {token: (chosen, rank)}
        for place, (other, value) in enumerate(likeliest, 1):
            told.setdefault(other, (value, place))
        return {
            str(each): {"logprob": value, "rank": place, "decoded_token": self._name(each)}
            for each, (value, place) in told.items()
        }

    def _begin(self, token: int) -> int:
        return self._offsets.next(self._bytes_of(token))

    def _name(self, token: int) -> str:
        return self._bytes_of(token).decode(errors="replace")
