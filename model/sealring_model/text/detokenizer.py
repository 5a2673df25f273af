"""Token ids to text, piece by piece.

The decoder of most tokenizers says which bytes each token stands for: those of byte-level BPE, and
those made like SentencePiece's with a token for each byte. Their text is those bytes, decoded as
they come by Python's own decoder. All others decode the last tokens again with each token, and hold
back the end of their text as long as it may change.

The text of an answer is what it adds to the text of its prompt: the prompt's last tokens are taken
in first, and what comes after them is given out.

A `Finder` finds marks in such text: stop strings (`StopText`), and the marks around tool calls. A
mark may be split over pieces. So text that may be the beginning of a mark is held back until the
next piece decides: no part of a mark is ever given out, and no other text waits. The time is linear
in the text for each mark, however long the mark is and whatever it repeats (Knuth, Morris and
Pratt, "Fast pattern matching in strings", 1977): the event loop looks for what clients ask for.
"""

from __future__ import annotations

import codecs
import functools
import itertools
import json
import string
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from sealring_protocol.limits import MAX_ENDS

from sealring_model.errors import TextError
from sealring_model.loading.foreign_json import parse_foreign
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
"""Tokens at the end of a prompt that show where its text is when the answer begins: a character
has four bytes at most, and so as many tokens."""

_WINDOW: Final = 64
"""Tokens that are decoded again with each token, at most."""

_CHARACTER: Final = 4
"""Bytes of a character, at most. So many tokens that complete none are not the beginning of one."""

_TAIL: Final = 4
"""Characters at the end that the next token may change: `` n't`` is the longest text from which
decoders take a space."""

MAX_TOKENS: Final = 1 << 20
"""The most tokens of a vocabulary. The largest of today have 262,144."""

MAX_TEXTS: Final = 32 << 20
"""The most bytes of all tokens together."""

MAX_SPECIAL: Final = 1 << 17
"""The most special tokens."""

NO_DECODER: Final = "null"
"""The decoder of a tokenizer that has none: it puts a space between names."""

_ID: Final = "I"
"""The type code of an array of token ids."""

_MARK: Final = 1024
"""Characters of a mark around thoughts or calls, at most."""

_MAX_WINDOW: Final = 3 * _WINDOW
"""Tokens that are decoded again where nothing fits that was decoded before: only odd decoders make
text of which no part can be told apart."""

_MAX_WORK: Final = 16_384
"""Steps that making text of one token may take. Models have some 1,000. All tokens of a window,
some of them twice and more, take 50 ms."""

_CLEANED: Final = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)
"""What transformers replaces in a text that it cleans up."""

_DECODERS: Final[Mapping[str, Mapping[str, type]]] = {
    "BPEDecoder": {"suffix": str},
    "ByteFallback": {},
    "ByteLevel": {"add_prefix_space": bool, "trim_offsets": bool, "use_regex": bool},
    "CTC": {"pad_token": str, "word_delimiter_token": str, "cleanup": bool},
    "Fuse": {},
    "Metaspace": {"replacement": str, "prepend_scheme": str, "split": bool},
    "Replace": {"pattern": dict, "content": str},
    "Sequence": {"decoders": list},
    "Strip": {"content": str, "start": int, "stop": int},
    "WordPiece": {"prefix": str, "cleanup": bool},
}
"""The fields of each decoder of the tokenizers library, as it writes them."""

_STEP: Final = 16
"""What a step of a decoder takes for a token without characters."""

_CLEANUP: Final = 64
"""What it takes more if it cleans up, which is a dozen replacements."""

_INSERTED: Final = 32
"""What it takes for a text that it puts between characters."""


@attrs.frozen(slots=False)
class Vocabulary:
    """What a node knows of a model's tokens: it makes the text of answers, and loads no tokenizer.

    A process that has loaded one sends it (`packed`), and may have been taken over: what it sends
    is checked for types and sizes (`unpacked`).

    *size* is that of the vocabulary. *eos* end an answer, *special* stand for no text but for
    themselves, and *silent* are those that an answer leaves out unless they are asked for. *think*
    are the marks around thoughts, and *calls* the marks around a call and the name of its format,
    empty if none is read here. Tools are described *in_words*, if the template knows none;
    *efforts* says whether it knows how hard to think, *fills* whether the model fills gaps.

    Of most tokenizers each token is the bytes that it stands for. *strips* says whether the
    tokenizer puts a space before each text and takes it away again; *trims*, whether an answer in
    a conversation may begin with a space that nobody means. Of the others each is the token's name:
    the *decoder* of the tokenizers library, described in JSON, makes text of them, from which
    *cleanup* takes some spaces. *anchor* is then a text that may stand before any token.
    """

    size: int
    texts: bytes = attrs.field(repr=False)
    ends: Sequence[int] = attrs.field(repr=False)
    """Where each token ends in *texts*, after a zero."""
    special: frozenset[int]
    silent: frozenset[int]
    eos: frozenset[int]
    think: tuple[str, str] = ("", "")
    calls: tuple[str, str, str] = ("", "", "")
    in_words: bool = False
    efforts: bool = False
    fills: bool = False
    strips: bool = False
    trims: bool = False
    decoder: str = ""
    cleanup: bool = False
    anchor: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokens: Iterable[bytes], **fields: Any) -> Vocabulary:
        """That of *tokens* by id, empty for ids without one, with the other *fields*. Raises
        `ValueError` for more than a vocabulary may have."""
        tokens = list(tokens)
        ends = array(_ID, itertools.accumulate(map(len, tokens), initial=0))
        made = cls(texts=b"".join(tokens), ends=ends, **fields)
        made._check()
        return made

    def packed(self) -> tuple[dict[str, Any], bytes]:
        """Fields for JSON, and bytes, for `unpacked`."""
        flags = (self.strips, self.trims, self.cleanup, self.in_words, self.efforts, self.fills)
        fields = {
            "size": self.size,
            "eos": sorted(self.eos),
            "anchor": self.anchor,
            "names": (*self.think, *self.calls),
            "flags": flags,
            "decoder": self.decoder,
            "counts": [len(self.ends), len(self.special), len(self.silent)],
        }
        ids = array(_ID, [*self.ends, *self.special, *self.silent])
        return fields, ids.tobytes() + self.texts

    @classmethod
    def unpacked(cls, fields: Mapping[str, Any], data: bytes) -> Vocabulary:
        """That which was `packed`. Raises `ValueError` if it is none."""
        names, flags = _list(fields, "names", str, 5), _list(fields, "flags", bool, 6)
        counts = _list(fields, "counts", int, 3)
        size, decoder = fields.get("size"), fields.get("decoder")
        if (len(names), len(flags), len(counts)) != (5, 6, 3) or type(size) is not int:
            raise ValueError("a vocabulary without its fields")
        if not isinstance(decoder, str) or not all(0 <= each <= MAX_TOKENS + 1 for each in counts):
            raise ValueError("a vocabulary of other sizes")
        ids = array(_ID)
        begin = ids.itemsize * sum(counts)
        if len(data) < begin:
            raise ValueError("a vocabulary that is cut short")
        ids.frombytes(data[:begin])
        strips, trims, cleanup, in_words, efforts, fills = flags
        made = cls(
            size,
            data[begin:],
            ids[: counts[0]],
            frozenset(ids[counts[0] : counts[0] + counts[1]][: MAX_SPECIAL + 1]),
            frozenset(ids[counts[0] + counts[1] :][: MAX_SPECIAL + 1]),
            frozenset(_list(fields, "eos", int, MAX_ENDS)),
            (names[0], names[1]),
            (names[2], names[3], names[4]),
            in_words,
            efforts,
            fills,
            strips,
            trims,
            decoder,
            cleanup,
            tuple(_list(fields, "anchor", int, _SEAM)),
        )
        made._check()
        return made

    def _check(self) -> None:
        most = max(len(self.ends) - 1, self.size)
        if not 0 <= most <= MAX_TOKENS or len(self.texts) > MAX_TEXTS:
            raise ValueError(
                f"its tokens have ids up to {most:,} and {len(self.texts):,} bytes, and "
                f"{MAX_TOKENS:,} and {MAX_TEXTS:,} are the most"
            )
        if (special := max(len(self.special), len(self.silent))) > MAX_SPECIAL:
            raise ValueError(f"it has {special:,} special tokens, and {MAX_SPECIAL:,} are the most")
        if len(self.eos) > MAX_ENDS or not all(0 <= each < 1 << 32 for each in self.eos):
            raise ValueError("other tokens end its answers than there can be")
        if max(map(len, (*self.think, *self.calls))) > _MARK:
            raise ValueError(f"it has a mark of more than {_MARK:,} characters")
        if self.size < 0 or list(self.ends[:1]) != [0] or self.ends[-1] != len(self.texts):
            raise ValueError("a vocabulary whose tokens are not there")
        sizes = [after - before for before, after in itertools.pairwise(self.ends)]
        if min(sizes, default=0) < 0:
            raise ValueError("a vocabulary of tokens that overlap")
        check_decoder(max(sizes, default=0), self._described)

    def __getitem__(self, token: int) -> bytes:
        """The bytes of *token*, or of its name; none for an id without one."""
        if not 0 <= token < len(self.ends) - 1:
            return b""
        return self.texts[self.ends[token] : self.ends[token + 1]]

    def token_bytes(self, token: int) -> bytes:
        """The bytes that *token* adds to an answer; maybe a part of a character."""
        if not self.decoder:
            return self[token]
        try:
            # Some decoders take the space away that the first of all texts has.
            before = self.decode(self.anchor)
            return self.decode([*self.anchor, token]).removeprefix(before).encode()
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            return "\N{REPLACEMENT CHARACTER}".encode()

    def decode(self, ids: Sequence[int]) -> str:
        """The text that the decoder makes of *ids*."""
        text = self._decode([name.decode() for token in ids if (name := self[token])])
        for old, new in _CLEANED if self.cleanup else ():
            text = text.replace(old, new)
        return text

    @property
    def _described(self) -> Any:
        """The decoder; None if there is none. Raises `ForeignFault`."""
        return parse_foreign("decoder", self.decoder.encode()) if self.decoder else None

    @functools.cached_property
    def _decode(self) -> Callable[[list[str]], str]:
        if self.decoder == NO_DECODER:
            return " ".join
        from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - for such tokenizers alone

        model = '{"type": "WordLevel", "vocab": {}, "unk_token": ""}'
        decoder = json.dumps(self._described)  # what was checked, and no name twice
        text = f'{{"version": "1.0", "model": {model}, "decoder": {decoder}}}'
        decode: Callable[[list[str]], str] = Backend.from_str(text).decoder.decode
        return decode

    def stream(self, after: Sequence[int] | None = None, *, special: bool = True) -> Detokenizer:
        """A detokenizer for one answer, which without *special* leaves special tokens out. The
        answer goes on *after* the tokens of a prompt: its text is what it adds to theirs. None: it
        is a text of its own, as an answer in a conversation is, and has no space at its beginning,
        where most tokenizers put one."""
        silent: frozenset[int] = frozenset() if special else self.silent
        if self.decoder:
            return WindowDetokenizer(self.decode, after or (), silent)
        if after is None:
            trim = self.trims
        else:
            trim = self.strips and all(token in self.special for token in after)
        before = () if trim or after is None else after
        return ByteDetokenizer(self.__getitem__, before, silent, trim=trim)


class Detokenizer(ABC):
    """The text of one answer that goes on *after* the tokens of a prompt, piece by piece, in whole
    characters. Tokens that are *silent* have none."""

    def __init__(self, after: Sequence[int], silent: frozenset[int]) -> None:
        self._before = after[-_SEAM:]  # until it has been taken in
        self._silent = silent

    def add(self, token: int) -> str:
        """The text that *token* completes; it may be empty. A token that the tokenizer does not
        have, which a model with a wider output head may give, has none. Raises `TextError`."""
        return self._text_of(token)

    def finish(self) -> str:
        """The text that was held back. Call it after the last token. Raises `TextError`."""
        return self._text_of(None)

    def _text_of(self, token: int | None) -> str:
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
        elif len(self._ids) > _MAX_WINDOW:
            self._forget(text)
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
            fits = said >= len(last) - len(whole) and text.endswith(whole) and (whole or not last)
            if fits or len(self._ids) > _MAX_WINDOW:
                self._ids, self._said, self._size = self._ids[-count:], max(0, said), len(last)
                self._broken = []
                return

    def _finish(self) -> str:
        text = self._decode(self._ids)
        return self._given(text, len(text))

    def _given(self, text: str, end: int) -> str:
        start, self._said = self._said, max(self._said, end)
        return text[start:end]


def bytes_reader(decoder: Mapping[str, Any]) -> tuple[Callable[[str], bytes], bool, bool] | None:
    """What makes bytes of a token's name, for the tokenizer whose *decoder* is described, and
    whether it ``strips`` and ``trims``; None if its tokens are not bytes."""
    if decoder.get("type") == "ByteLevel":
        return _byte_level, False, True
    steps = decoder.get("decoders")
    if steps in (_SPM, [*_SPM, _SPM_STRIP]):
        return _byte_fallback, steps != _SPM, steps != _SPM
    return None


def check_decoder(longest: int, decoder: Mapping[str, Any] | None) -> None:
    """Raise `ValueError` for a token or a *decoder* that takes too long, where the *longest* token
    has so many characters: text is made where everybody waits."""
    work = longest if decoder is None else decoding_work(decoder, longest)
    if work > _MAX_WORK:
        raise ValueError(
            f"its longest token has {longest:,} characters, which its decoder makes text of in "
            f"{work:,.0f} steps, and {_MAX_WORK:,} are the most"
        )


def decoding_work(decoder: Mapping[str, Any], longest: int) -> float:
    """The steps, of some 10 ns each, in which the *decoder* of a fast tokenizer makes text of a
    token of *longest* characters, at most. Raises `ValueError` for a decoder that is not known, or
    searches with a regular expression."""
    work, size = 0.0, float(max(1, longest))
    rest: list[Any] = [decoder]
    while rest:
        step = rest.pop()
        kind = _kind(step)
        if kind == "Sequence":
            rest += reversed(step["decoders"])
        work += _STEP + _CLEANUP * bool(step.get("cleanup"))
        for old, new in _replacements(kind, step):
            work += size * (len(old) or _INSERTED)
            size = size * max(1.0, len(new) / len(old)) if old else size * (1 + len(new)) + len(new)
            work += size
        size += kind == "WordPiece"  # a space before each token
    return work


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for."""
    return dict(without_mlx("tokenizer_utils")._byte_decoder())


def is_panic(error: BaseException) -> bool:
    """Whether *error* says that Rust code failed, such as a tokenizer's whose file is odd. It is no
    `Exception`, and nobody can import its class."""
    return type(error).__name__ == "PanicException"


def _list(fields: Mapping[str, Any], name: str, kind: type, most: int) -> list[Any]:
    """Field *name*, if it is a list of *most* of *kind*. Raises `ValueError`."""
    value = fields.get(name)
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"a vocabulary without {name}")
    if not all(type(each) is kind for each in value):
        raise ValueError(f"a vocabulary of other {name} than there are")
    return value


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
        digits = name[3:5].removeprefix("+")  # which Rust takes before a digit, and no space
        if all(digit in string.hexdigits for digit in digits):
            return bytes([int(digits, 16)])
    return name.replace(_SPM_SPACE, " ").encode()


def _kind(step: Any) -> str:
    """The type of a decoder's *step*, which has the fields of its type and no other. Raises
    `ValueError`."""
    kind = step.get("type") if isinstance(step, dict) else None
    fields = _DECODERS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise ValueError("its decoder has a step of no type that is known here")
    shape = {name: type(value) for name, value in step.items()}
    if shape != {"type": str, **fields}:
        raise ValueError(f"its decoder has a step {kind} of other fields than it has")
    if kind == "Replace" and step["pattern"].keys() == {"Regex"}:
        raise ValueError("its decoder has a regular expression, which may take any time")
    if kind == "Replace" and [*map(type, step["pattern"].values())] != [str]:
        raise ValueError("its decoder replaces what is no text")
    return str(kind)


def _replacements(kind: str, step: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts that a *step* of a decoder replaces, and by what."""
    match kind:
        case "Replace":
            yield step["pattern"]["String"], step["content"]
        case "BPEDecoder":
            yield step["suffix"], " "
        case "CTC":
            yield step["pad_token"], ""
            yield step["word_delimiter_token"], " "
        case _:  # it makes each character one at most
            yield " ", " "


@attrs.frozen
class Found:
    """*mark* was found; *before* comes before it, and *after* has not been looked at."""

    before: str
    mark: str
    after: str


class _Begun:
    """How much of *mark* the text so far ends with. *mark* is not empty."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.size = 0  # characters; less than all of them
        # By the size of a beginning of the mark: that of the longest shorter beginning which it
        # ends with. It is known for those that the text has had, so a long mark costs nothing.
        self._shorter = [0, 0]

    def add(self, char: str) -> bool:
        """Go on with *char*; whether the mark is complete."""
        mark, size = self.mark, self._longest(self.size, char)
        self.size = size
        if size == len(mark):
            return True
        if size == len(self._shorter):
            self._shorter.append(self._longest(self._shorter[-1], mark[size - 1]))
        return False

    def _longest(self, size: int, char: str) -> int:
        """The size of the longest beginning that the beginning of *size* and *char* end with."""
        mark, shorter = self.mark, self._shorter
        while size and mark[size] != char:
            size = shorter[size]
        return size + (mark[size] == char)


class Finder:
    """Finds the first of *marks* to be complete in a text; of two with one end, the longer one. So
    it does not matter in which pieces the text comes."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = [_Begun(mark) for mark in marks]
        self._held = ""

    def add(self, text: str) -> Found | str:
        """What is found as *text* follows, once; or what is in no mark, whatever follows."""
        begun = self._marks
        if not begun:
            return text
        for at, char in enumerate(text):
            if ended := [each.mark for each in begun if each.add(char)]:
                mark = max(ended, key=len)
                whole = self._held + text[: at + 1]
                return Found(whole[: len(whole) - len(mark)], mark, text[at + 1 :])
        whole = self._held + text
        sure = len(whole) - max([each.size for each in begun])
        self._held = whole[sure:]
        return whole[:sure]

    def rest(self) -> str:
        """What was held back, when no text follows."""
        held, self._held = self._held, ""
        return held


class StopText:
    """The text of one answer up to the first of its stop strings, which is part of it if
    *shown*."""

    def __init__(self, stops: Sequence[str], *, shown: bool = False) -> None:
        self._finder = Finder(stops)
        self._shown = shown
        self.found = ""
        """The stop string that was reached."""

    def add(self, text: str) -> str:
        """What may be given out after *text*; nothing more once it is `found`."""
        if self.found:
            return ""
        found = self._finder.add(text)
        if isinstance(found, str):
            return found
        self.found = found.mark
        return found.before + found.mark if self._shown else found.before

    def rest(self) -> str:
        """What was held back, when no text follows."""
        return "" if self.found else self._finder.rest()
