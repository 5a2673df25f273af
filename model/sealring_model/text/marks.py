"""The texts of others in a prompt, without the power of a tokenizer's marks.

A chat template makes one string of a conversation, and the tokenizer makes control tokens of the
marks in it (``<|im_end|>``), whoever wrote them. So `Marks.guard` breaks each mark in the texts of
others before the template gets them: it puts `_BREAK`, a character that no text has, behind the
mark's first character. The template passes it on as it does any character, and finds no mark where
it looks for one. `Marks.encode` then finds the template's own marks alone. If the text without
breaks has the same control tokens at the same places, its tokens are the answer. Else what is
between two marks loses its breaks, and is encoded as one text: its tokens are those of ordinary
text.

A mark may also arise where a text meets the template's: ``<|im_`` before ``end|>``. So a text that
ends like the beginning of a mark, or begins like the end of one, has a break there, too. Templates
trim texts, so white space around one does not count.

A text may also be a part of a mark: a template that writes ``<``, a key of a schema and ``>`` makes
``<think>`` of ``think``. Such a text has a `_SOFT` break before it and behind it, unless it is a
word that the template looks up or compares. Some templates sort such texts, or look for ``/think``.
So where the template writes other words of the texts without these breaks (`Marks.bare`), but no
more marks, those words are taken (`Marks.chosen`).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

_BREAK: Final = "\ufdd0"
"""A noncharacter: Unicode keeps it out of texts that are interchanged."""

_ESCAPE: Final = "\ufdd1"
"""Stands before a digit for a noncharacter that a text has all the same."""

_SOFT: Final = "\ufdd2"
"""A break around a text that is a part of a mark."""

_BEFORE: Final = "\ufdd3"
_BEHIND: Final = "\ufdd4"
"""Breaks around a mark of one character, or around each character that a normalizer changes."""

_WRITTEN: Final = "\\ufdd"
"""How a break begins as a template writes it that writes values as Python does, or as JSON in
ASCII."""

_SPELLED: Final = re.compile(r"\\u(fdd[0-4])")
_BREAKS: Final = re.compile(rf"[{_BREAK}{_SOFT}{_BEFORE}{_BEHIND}]")
_OURS: Final = re.compile(rf"{_BREAKS.pattern}|{_ESCAPE}[0-4]")
_CHARACTER: Final = re.compile(f"{_ESCAPE}[0-4]|.", re.DOTALL)
_MEANS: Final = {
    f"{_ESCAPE}{n}": char for n, char in enumerate((_BREAK, _ESCAPE, _SOFT, _BEFORE, _BEHIND))
}
_ESCAPED: Final = str.maketrans({char: escaped for escaped, char in _MEANS.items()})

_SHAPE: Final = re.compile(
    "role|content|name|reasoning_content|tool_calls|tool_call_id|id|type|function|description"
    "|parameters|arguments"
)
"""Keys of messages and tools, and values, that their readers look for: they are never broken."""

_HEAD: Final = 4
"""Characters of a mark that are searched for before all of it."""

_LONGEST: Final = 1024
"""Characters of a mark, at most: each of its beginnings and ends is kept."""

_PROBE: Final = " a\n b1 "
"""A text that shows whether a class changes texts before it encodes them."""

_LIKE_A_MARK: Final = re.compile(r'[<\[\]@]..|\{[^"].|.*[|\uff5c]')
"""What begins an object of JSON is no mark."""

_HTML: Final = re.compile(
    "</?(?:a|abbr|b|blockquote|br|caption|center|code|dd|del|div|dl|dt|em|h[1-6]|hr|i|img|ins|kbd|li"
    "|mark|ol|p|pre|q|s|small|span|strike|strong|su[bp]|table|t[dhr]|tbody|tfoot|thead|u|ul|var)>"
)


_LOOKED: Final = re.compile(r"""(?<=')\w+(?=')|(?<=")\w+(?=")|(?<=\.)\w+""")
"""A word that a template looks up or compares: in quotes, or after a dot."""

_REPLACES: Final = re.compile(r"""replace\(\s*(['"])(.*?)\1\s*,\s*(['"])(.*?)\3""")
"""Where a template writes one text for another, both of which stand there."""


def _is_control(content: str, *, special: bool) -> bool:
    """Whether an added token is a mark. Vocabularies also add what is plain text: runs of white
    space (GPT-NeoX, Gemma), HTML (Gemma), and words."""
    text = content.replace("\u2581", " ").strip()
    if special or not text:
        return bool(text)
    return not _HTML.fullmatch(text) and _LIKE_A_MARK.match(text) is not None


def is_guarded(text: str) -> bool:
    """Whether *text* was made of guarded texts, and differs from what it means."""
    return _OURS.search(text) is not None or _SPELLED.search(text) is not None


def shortest(text: str) -> int:
    """A lower bound on the characters of `plain` *text*."""
    return len(text) - sum(map(text.count, _MEANS.values()))


def plain(text: str) -> str:
    """*text* as it was before it was guarded."""
    return _OURS.sub(lambda found: _MEANS.get(found[0], ""), _unspelled(text))


def _unspelled(text: str) -> str:
    return _SPELLED.sub(lambda found: chr(int(found[1], 16)), text)


class Marks:
    """The control tokens of *inner*, a tokenizer of transformers' whose padding and truncation are
    set, for *template*; None if that is code, which may look any word up."""

    def __init__(self, inner: Any, template: str | None) -> None:
        added = {int(number): token for number, token in inner.added_tokens_decoder.items()}
        special = {*map(int, inner.all_special_ids), *(n for n, t in added.items() if t.special)}
        control = {n: t for n, t in added.items() if _is_control(t.content, special=n in special)}
        bare = {n: inner.convert_ids_to_tokens(n) or "" for n in special - added.keys()}
        own = {n: name for n, name in bare.items() if _is_control(name, special=True)}
        names = {n: str(token.content) for n, token in control.items()}
        self._names: Final = names | own | _pieces(inner)
        if (longest := max(map(len, self._names.values()), default=0)) > _LONGEST:
            raise ValueError(
                f"it has a mark of {longest:,} characters, and {_LONGEST:,} are the most"
            )
        self._inner: Final = inner
        self._looked: Final = None if template is None else {*_LOOKED.findall(template)}
        found = _REPLACES.findall(template or "")
        self._replaced: Final = dict.fromkeys((old, new) for _, old, _, new in found if old)
        self._added: Final = frozenset(added)
        self.ids: Final = frozenset(self._names)
        """The ids of control tokens."""
        self._unknown: Final = inner.unk_token_id
        self._marks: Final = _Finder({*self._names.values(), _WRITTEN})
        self._backend: Final[Any] = getattr(inner, "backend_tokenizer", None)
        normalizer = getattr(self._backend, "normalizer", None)
        self._normal: Final[Callable[[str], str]] = getattr(normalizer, "normalize_str", str)
        # The normalizer may make a mark of other characters. So what it makes is searched, too.
        alike = [t.content for t in control.values() if normalizer is not None and self._late(t)]
        self._alike: Final = _Finder(set(map(self._normal, alike)))
        self._ones: Final = _one_of({mark for mark in self._names.values() if len(mark) == 1})
        self._whole: Final = self._backend is not None and self._encodes_alike()

    def _late(self, token: Any) -> bool:
        """Whether *token* is found in normalized text: by itself, or by a model that has it."""
        return bool(token.normalized) or self._backend.model.token_to_id(token.content) is not None

    def _encodes_alike(self) -> bool:
        """Whether `_ordinary` gives this tokenizer's tokens, and its normalizer keeps breaks."""
        if _BREAK not in self._normal(f"a{_BREAK}b"):
            return False
        expected = self._inner.encode(_PROBE, add_special_tokens=False)
        found = self._backend.encode(_PROBE, add_special_tokens=False).ids
        return bool(expected == found == self._ordinary(_PROBE, first=True))

    def guard(self, value: Any) -> Any:
        """*value* with the marks broken in each text that is in it. Raises `ValueError` if it is
        nested too deep."""
        try:
            return _changed(value, self._guard_text)
        except RecursionError:
            text = "the chat template refuses these messages: they are nested too deep"
            raise ValueError(text) from None

    def guard_answer(self, text: str, think: tuple[str, str]) -> str:
        """`guard` for an answer of the model's, but for the *think* marks around the thoughts that
        it begins with: templates look for them. Without the first of them the second is not one: it
        may be what the answer quotes."""
        start, end = think
        begin = len(text) - len(text.lstrip())
        thoughts, ended, rest = text[begin + len(start) :].partition(end) if end else ("", "", "")
        if not (start and ended and text.startswith(start, begin)):
            return self._guard_text(text)
        return text[:begin] + start + self._guard_text(thoughts) + ended + self._guard_text(rest)

    def _guard_text(self, text: str) -> str:
        if shortest(text) < len(text):
            text = text.translate(_ESCAPED)
        if len(text) <= self._marks.most and self._compares(text):
            return text
        text = self._kept_apart(text)
        if not (body := text.strip()):  # what is around it is left for the template to trim
            return text
        if self._ones.search(text):
            guarded = self._ones.sub(rf"{_BEFORE}\g<0>{_BEHIND}", self._marks.broken(text))
        elif self._marks.is_part(body):
            guarded = text.replace(body, f"{_SOFT}{body}{_SOFT}")
        else:
            guarded = self._marks.broken(text)
        normal = self._normal(guarded)
        if self._alike.is_part(normal.strip()) or self._alike.broken(normal) != normal:
            return text.replace(body, _CHARACTER.sub(rf"{_BEFORE}\g<0>{_BEHIND}", body))
        return guarded

    def _kept_apart(self, text: str) -> str:
        """*text* with breaks where a mark would arise once the template has taken its words out of
        it, or written others for them: Nemotron's and SmolLM3's take out ``/think``."""
        changed, arises = text, False
        for old, new in self._replaced:
            if old in changed:
                changed = changed.replace(old, new)
                arises |= next(self._marks.found(changed), None) is not None
        if not arises:
            return text
        for old, new in self._replaced:
            apart = f"{old[:1]}{_BREAK}{old[1:]}" if new else f"{old}{_BREAK}"
            text = text.replace(old, apart)
        return text

    def _compares(self, word: str) -> bool:
        """Whether the template, or what is before it, looks *word* up or compares it."""
        if not word.isidentifier():
            return False
        return self._looked is None or word in self._looked or _SHAPE.fullmatch(word) is not None

    def bare(self, value: Any) -> Any:
        """*value*, which is guarded, without the breaks around texts that are parts of marks."""
        return _changed(value, lambda text: text.replace(_SOFT, ""))

    def chosen(self, guarded: str, bare: str) -> str:
        """*guarded*, which a template made of guarded values; or *bare*, which it made of the same
        if they are `bare`, where its words are others and none of them completed a mark."""
        guarded = _unspelled(guarded)
        if not self._whole or plain(guarded) == plain(bare):
            return guarded
        marks = self._count(guarded)
        same = marks == self._count(guarded.replace(_SOFT, "")) == self._count(bare)
        return bare if same else guarded

    def _count(self, text: str) -> Counter[str]:
        found = (*self._marks.found(text), *self._alike.found(self._normal(text)))
        return Counter(mark for _, mark in found)

    def encode(self, text: str, *, around: bool) -> list[int]:
        """The ids of *text*, which a template made of guarded texts, with the special tokens that
        the model expects *around* it. Raises `ValueError` if the tokenizer makes a control token
        even of the parts of a mark."""
        if not self._whole:
            return self._encode_parts(_unspelled(text), around=around)
        if not is_guarded(text):
            return list(map(int, self._inner.encode(text, add_special_tokens=around)))
        text = _unspelled(text)
        meant = plain(text)
        simply = self._backend.encode(meant, add_special_tokens=around)
        encoded = self._backend.encode(text, add_special_tokens=around)
        if self._places(simply, meant) == self._places(encoded, text):
            return list(simply.ids)
        tokens = [*zip(encoded.ids, encoded.offsets, encoded.special_tokens_mask, strict=True)]
        lead = next((n for n, (_, _, mask) in enumerate(tokens) if not mask), len(tokens))
        tail = next((n for n, (_, _, mask) in enumerate(tokens[::-1]) if not mask), 0)
        ids = encoded.ids[:lead]
        run: list[int] = []
        end = 0
        for token, (start, after), _ in tokens[lead : len(tokens) - tail]:
            if self._is_added(token, text, start, after):
                ids += [*self._between(text, end, start, run), token]
                run, end = [], after
            else:
                run.append(token)
        return [*ids, *self._between(text, end, len(text), run), *encoded.ids[len(tokens) - tail :]]

    def _is_added(self, token: int, text: str, start: int, after: int) -> bool:
        """Whether *token* is an added one, which *text* has from *start* to *after*: no unknown
        word, nor a mark of one character that others wrote."""
        if token not in self._added:
            return False
        if text.endswith(_BEFORE, 0, start) and text.startswith(_BEHIND, after):
            return False
        return token != self._unknown or bool(self._count(text[start:after]))

    def _places(self, encoded: Any, text: str) -> list[tuple[int, int, int]]:
        """The control tokens of *encoded*, which is *text*: each with its place in what that means,
        and its length."""
        places, at, before = [], 0, 0
        for token, (start, after) in zip(encoded.ids, encoded.offsets, strict=True):
            if token in self.ids and start < after and self._is_added(token, text, start, after):
                at, before = at + len(plain(text[before:start])), start
                places.append((token, at, after - start))
        return places

    def _between(self, text: str, start: int, end: int, ids: list[int]) -> list[int]:
        """The ids of *text* from *start* to *end*, which has no mark; *ids* with the breaks."""
        if not is_guarded(part := text[start:end]):
            return ids
        found = self._ordinary(plain(part), first=not start)
        if self.ids.isdisjoint(found):
            return found
        # The model of some tokenizers knows marks as words. No piece has one: a control token that
        # is of unknown words is so here.
        found = [token for piece in _parts(part) for token in self._ordinary(piece, first=False)]
        if made := self.ids.intersection(found) - {self._unknown}:
            raise _unwritable(self._inner.convert_ids_to_tokens(min(made)))
        return found

    def _ordinary(self, text: str, *, first: bool) -> list[int]:
        """The ids of *text* without added tokens, *first* in a prompt or not."""
        from tokenizers import PreTokenizedString  # noqa: PLC0415 - transformers brings it

        if not text:
            return []
        if first:
            cut = PreTokenizedString(text)
        else:  # some pre-tokenizers put a space before the first text
            cut = PreTokenizedString("x" + text)
            cut.split(lambda _, whole: [whole[1:]])
        if (normalizer := self._backend.normalizer) is not None:
            cut.normalize(normalizer.normalize)
        if (pre_tokenizer := self._backend.pre_tokenizer) is not None:
            pre_tokenizer.pre_tokenize(cut)
        model = self._backend.model  # a new object each time
        return [token.id for piece, *_ in cut.get_splits() for token in model.tokenize(piece)]

    def _encode_parts(self, text: str, *, around: bool) -> list[int]:
        """`encode` for a tokenizer that changes texts, or does not say where a token is."""
        if one := re.search(f"{_BEFORE}({self._ones.pattern}){_BEHIND}", text):
            raise _unwritable(one[1])
        parts, meant = [*_parts(text)], plain(text)
        places, at = [], 0
        for part in parts:
            places += [(at + place, mark) for place, mark in self._marks.found(part)]
            at += len(part)
        counts = sum(map(self._count, parts), Counter[str]())
        own = sum((Counter(self._alone(part)) for part in parts), Counter[str]())
        lead = self._inner.encode("", add_special_tokens=True) if around else []
        if [*self._marks.found(meant)] == places and self._count(meant) == counts:
            ids = self._inner.encode(meant, add_special_tokens=around)
        else:
            found = (self._inner.encode(part, add_special_tokens=False) for part in parts)
            ids = [*lead, *itertools.chain.from_iterable(found)]
        # Its class or its model may change texts, and make a mark of what is none before.
        made = Counter(self._names.get(token, "") for token in ids if token != self._unknown)
        own.update(self._names.get(token, "") for token in lead)
        if more := {mark for mark in made - own if mark}:
            raise _unwritable(min(more))
        return list(map(int, ids))

    def _alone(self, text: str) -> Iterator[str]:
        """The marks in *text*, each the longest of those that begin there, and none within
        another."""
        end = 0
        for at, mark in dict(self._marks.found(text)).items():
            if at >= end:
                yield mark
                end = at + len(mark)


def _pieces(inner: Any) -> dict[int, str]:
    """The marks that the SentencePiece model of a tokenizer in Python finds in texts, though they
    are no added tokens."""
    model = getattr(inner, "sp_model", None)
    if model is None:
        return {}
    return {
        int(inner.convert_tokens_to_ids(piece)): piece.replace("\u2581", " ")
        for n in range(len(model))
        # A piece of the user's has no score, as a byte and what no text has.
        if not (model.GetScore(n) or model.IsByte(n) or model.IsControl(n) or model.IsUnknown(n))
        and _is_control(piece := model.IdToPiece(n), special=False)
    }


def _unwritable(mark: str) -> ValueError:
    return ValueError(f"this model's tokenizer cannot write {mark!r} as ordinary text")


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_changed(key, change): _changed(each, change) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_changed(each, change) for each in value]
    return value


def _parts(text: str) -> Iterator[str]:
    return map(plain, filter(None, _BREAKS.split(text)))


class _Finder:
    """Finds *marks* in texts."""

    def __init__(self, marks: Collection[str]) -> None:
        self._marks: Final = frozenset(marks)
        self._lengths: Final = sorted({len(mark) for mark in marks})
        self.most: Final = max(self._lengths, default=1) - 1
        parts = [(mark[:n], mark[n:]) for mark in marks for n in range(1, len(mark))]
        # Where a longer text ends or begins with letters of a mark is no sign of one.
        self._begin: Final = {part for part, _ in parts if not part.isalnum()}
        self._end: Final = {part for _, part in parts if not part.isalnum()}
        self._all: Final = "\n".join(marks)
        tails: dict[str, set[str]] = {}
        for mark in marks:
            tails.setdefault(mark[0], set()).add(mark[1:_HEAD])
        heads = (
            f"{re.escape(first)}(?={'|'.join(map(re.escape, sorted(rest)))})"
            for first, rest in tails.items()
        )
        self._heads: Final = re.compile("|".join(heads) or r"(?!)")
        self._firsts: Final = _one_of(tails)
        self._lasts: Final = _one_of({mark[-1] for mark in marks})

    def is_part(self, text: str) -> bool:
        """Whether *text* is a part of a mark, and has none."""
        if not 0 < len(text) <= self.most or text not in self._all:
            return False
        return next(self.found(text), None) is None

    def found(self, text: str) -> Iterator[tuple[int, str]]:
        """The marks in *text* and where they begin, also those that overlap."""
        for head in self._heads.finditer(text):
            at = head.start()
            room = len(text) - at
            parts = (text[at : at + length] for length in self._lengths if length <= room)
            yield from ((at, part) for part in parts if part in self._marks)

    def broken(self, text: str) -> str:
        """*text* with a break in each mark, and in what may become one with what is before or after
        it."""
        cuts = {at + 1 for at, _ in self.found(text)}
        trimmed = len(text) - len(text.lstrip()), len(text.rstrip())
        for begin, end in {(0, len(text)), trimmed} if text.strip() else ():
            for found in self._firsts.finditer(text, max(begin, end - self.most), end):
                if text[found.start() : end] in self._begin:
                    cuts.add(found.start() + 1)
            for found in self._lasts.finditer(text, begin, min(end, begin + self.most)):
                if text[begin : found.end()] in self._end:
                    cuts.add(found.end() - 1)
        ends = [0, *sorted(cuts), len(text)]
        return _BREAK.join(text[a:b] for a, b in itertools.pairwise(ends)) if cuts else text


def _one_of(characters: Collection[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(characters))) or "(?!)")
