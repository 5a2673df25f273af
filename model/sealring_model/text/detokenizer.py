"""Token ids to text, piece by piece.

The decoder of most tokenizers says which bytes each token stands for: those of byte-level BPE, and
those made like SentencePiece's with a token for each byte. Their text is those bytes, decoded as
they come by Python's own decoder. All others decode the last tokens again with each token, and hold
back the end of their text as long as it may change.

The text of an answer is what it adds to the text of its prompt: the prompt's last tokens are taken
in first, and what comes after them is given out.
"""

from __future__ import annotations

import codecs
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sealring_model.errors import TextError
from sealring_model.mlx_lm_import import without_mlx

_SPM_SPACE: Final = "\u2581"
_SPM: Final = [
    {"type": "Replace", "pattern": {"String": _SPM_SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_SPM_STRIP: Final = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_BYTE_NAME: Final = len("<0xFF>")

_SEAM: Final = 8
"""Tokens at the end of a prompt that tell where its text is when the answer begins: a character
has four bytes at most, and so as many tokens."""

_WINDOW: Final = 64
"""Tokens that are decoded again with each token, at most."""

_CHARACTER: Final = 4
"""Bytes of a character, at most. So many tokens that complete none are not the beginning of one."""

_TAIL: Final = 4
"""Characters at the end that the next token may change: `` n't`` is the longest text from which
decoders take a space."""


class Detokenizer(ABC):
    """The text of one answer that goes on *after* the tokens of a prompt, piece by piece, in whole
    characters. Tokens that are *silent* have none."""

    def __init__(self, after: Sequence[int], silent: frozenset[int]) -> None:
        self._before = after[-_SEAM:]  # until it has been taken in
        self._silent = silent

    def add(self, token: int) -> str:
        """The text that *token* completes; it may be empty. A token that the tokenizer does not
        have, which a model with a wider output head may give, has none. Raises `TextError`."""
        return self._told(token)

    def finish(self) -> str:
        """The text that was held back. Call it after the last token. Raises `TextError`."""
        return self._told(None)

    def _told(self, token: int | None) -> str:
        try:
            before, self._before = self._before, ()
            for each in before:
                self._next(each)
            return self._finish() if token is None else self._next(token)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise TextError(f"the model's tokenizer makes no text of its tokens: {error}") from None

    def _next(self, token: int) -> str:
        return "" if token in self._silent else self._add(token)

    @abstractmethod
    def _add(self, token: int) -> str: ...

    @abstractmethod
    def _finish(self) -> str: ...


class ByteDetokenizer(Detokenizer):
    """Of a tokenizer whose tokens are *bytes_of*. With *trim* a space at the very beginning is left
    out."""

    def __init__(
        self,
        bytes_of: Callable[[int], bytes],
        after: Sequence[int],
        silent: frozenset[int],
        *,
        trim: bool,
    ) -> None:
        super().__init__(after, silent)
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._trim = trim

    def _add(self, token: int) -> str:
        return self._trimmed(self._decoder.decode(self._bytes_of(token)))

    def _finish(self) -> str:
        return self._trimmed(self._decoder.decode(b"", final=True))

    def _trimmed(self, text: str) -> str:
        if self._trim and text:
            self._trim = False
            return text.removeprefix(" ")
        return text


class WindowDetokenizer(Detokenizer):
    """Of any tokenizer, which *decode*s."""

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        after: Sequence[int],
        silent: frozenset[int],
    ) -> None:
        super().__init__((), silent)
        self._decode = decode
        self._ids = [token for token in after[-_SEAM:] if token not in silent]
        self._said = self._size = 0
        """Characters of their text that have been given out, or are the prompt's; and all."""
        self._broken: list[int] = []
        """How many tokens there were after each that completed no character, since one did."""
        if self._ids:
            text = decode(self._ids)
            self._said = len(text.rstrip("\N{REPLACEMENT CHARACTER}"))
            self._size = len(text)

    def _add(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(self._ids)
        ready = len(text.rstrip("\N{REPLACEMENT CHARACTER}"))
        if ready == len(text):
            self._broken = []
        elif len(text) > self._size and len(self._broken) < _CHARACTER:
            self._broken.append(len(self._ids))
        self._size = len(text)
        final = ready
        if len(self._broken) == _CHARACTER:  # only the last bytes may become a character
            final = max(ready, len(text) - _CHARACTER + 1)
        space = text.find(" ", max(0, final - _TAIL), final)
        piece = self._given(text, final if space < 0 else space)
        if ready == len(text):
            if len(self._ids) > _WINDOW:
                self._forget(text)
        elif self._broken and len(self._ids) > self._broken[-1] + _WINDOW:
            self._forget_broken(text, ready)
        return piece

    def _forget_broken(self, text: str, ready: int) -> None:
        """Forget tokens in the middle of those without a character, with which *text* ends from
        *ready*. The first stay: in some decoders they spoil all bytes after them."""
        ids = [*self._ids[: self._broken[-1] + _SEAM], *self._ids[-_SEAM:]]
        less = len(text) - len(last := self._decode(ids))
        if 0 <= less <= self._said and last == text[:ready] + text[ready + less :]:
            self._ids, self._said, self._size = ids, self._said - less, len(last)
        else:  # most of it is characters, but the end of each token is the beginning of one
            self._forget(text)

    def _forget(self, text: str) -> None:
        """Forget the tokens of *text* but for the last. Those may begin within a character, which
        has been given out."""
        for count in range(_SEAM, 2 * _SEAM):
            last = self._decode(self._ids[-count:])
            said = self._said - len(text) + len(last)
            whole = last.lstrip("\N{REPLACEMENT CHARACTER}")
            if said >= len(last) - len(whole) and text.endswith(whole) and (whole or not last):
                self._ids, self._said, self._size = self._ids[-count:], said, len(last)
                self._broken = []
                return

    def _finish(self) -> str:
        text = self._decode(self._ids)
        return self._given(text, len(text))

    def _given(self, text: str, end: int) -> str:
        start, self._said = self._said, max(self._said, end)
        return text[start:end]


def is_panic(error: BaseException) -> bool:
    """Whether *error* says that Rust code failed, such as a tokenizer's whose file is odd. It is no
    `Exception`, and nobody can import its class."""
    return type(error).__name__ == "PanicException"


class TokenTable:
    """The bytes of each token of *inner*, by the *read*er of its name in the vocabulary. Ids
    without a name stand for nothing. *strips* says whether the tokenizer puts a space before each
    text and takes it away again; *trims*, whether an answer in a conversation may begin with a
    space that nobody means."""

    def __init__(
        self, inner: Any, read: Callable[[str], bytes], *, strips: bool, trims: bool
    ) -> None:
        size = max(inner.get_vocab().values(), default=-1) + 1
        self._names: Final[list[str]] = [
            str(name or "") for name in inner.convert_ids_to_tokens(list(range(size)))
        ]
        self._read = read
        self.strips: Final = strips
        self.trims: Final = trims

    def __getitem__(self, token: int) -> bytes:
        """The bytes of *token*; maybe a part of a character."""
        return self._read(self._names[token]) if 0 <= token < len(self._names) else b""

    @classmethod
    def of(cls, inner: Any, decoder: Mapping[str, Any]) -> TokenTable | None:
        """That of the tokenizer *inner*, whose *decoder* is described; None if it is of another
        kind."""
        if decoder.get("type") == "ByteLevel":
            return cls(inner, _byte_level, strips=False, trims=True)
        steps = decoder.get("decoders")
        if steps in (_SPM, [*_SPM, _SPM_STRIP]):
            strips = steps != _SPM
            return cls(inner, _byte_fallback, strips=strips, trims=strips)
        return None


def _byte_level(name: str) -> bytes:
    """The bytes of a token whose characters stand for one each. Added tokens are plain text."""
    known = byte_alphabet()
    try:
        return bytes([known[char] for char in name])
    except KeyError:
        return name.encode()


def _byte_fallback(name: str) -> bytes:
    """The bytes of a token that is text, or one byte as ``<0xFF>``."""
    if len(name) == _BYTE_NAME and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes.fromhex(name[3:5])
        except ValueError:
            pass
    return name.replace(_SPM_SPACE, " ").encode()


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for."""
    return dict(without_mlx("tokenizer_utils")._byte_decoder())
