"""The texts of others in a prompt, without the power of a tokenizer's marks.

A chat template makes one string of a conversation, and the tokenizer makes control tokens of the
marks in it (``<|im_end|>``), whoever wrote them. So `Marks.guard` breaks each mark in the texts of
others before the template gets them: it puts `_BREAK`, a character that no text has, behind the
mark's first character. The template passes it on as it does any character, and finds no mark where
it looks for one. `Marks.encode` then finds the template's own marks alone. What is between two of
them loses its breaks, and is encoded as one text: its tokens are those of ordinary text.

A mark may also arise where a text meets the template's: ``<|im_`` before ``end|>``. So a text that
ends like the beginning of a mark, or begins like the end of one, has a break there, too. Templates
trim texts, so white space around one does not count.

A text may also be the inside of a mark: a template that writes ``<``, a key of a schema and ``>``
makes ``<think>`` of ``think``. Such a text has a break, unless it is a word that the template looks
up or compares.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

_BREAK: Final = "\ufdd0"
"""A noncharacter: Unicode keeps it out of texts that are interchanged."""

_ESCAPE: Final = "\ufdd1"
"""Stands before a digit for a noncharacter that a text has all the same."""

_WRITTEN: Final = "\\ufdd0"
"""The break as a template writes it that writes values as Python does, or as JSON in ASCII."""

_OURS: Final = re.compile(f"{_BREAK}|{re.escape(_WRITTEN)}|{_ESCAPE}[01]")
_CHARACTER: Final = re.compile(f"{_ESCAPE}[01]|.", re.DOTALL)
_MEANS: Final = {_ESCAPE + "0": _BREAK, _ESCAPE + "1": _ESCAPE}
_ESCAPED: Final = str.maketrans({char: escaped for escaped, char in _MEANS.items()})

_SHAPE: Final = re.compile(
    "role|content|name|reasoning_content|tool_calls|tool_call_id|id|type|function|description"
    "|parameters|arguments"
)
"""Keys of messages and tools, and values, that their readers look for: they are never broken."""

_HEAD: Final = 4
"""Characters of a mark that are searched for before all of it."""

_PROBE: Final = " a\n b1 "
"""A text that shows whether a class changes texts before it encodes them."""

_LIKE_A_MARK: Final = re.compile(r'[<\[\]@]..|\{[^"].|.*[|\uff5c]')
"""What begins an object of JSON is no mark."""

_HTML: Final = re.compile(
    "</?(?:a|abbr|b|blockquote|br|caption|center|code|dd|del|div|dl|dt|em|h[1-6]|hr|i|img|ins|kbd|li"
    "|mark|ol|p|pre|q|s|small|span|strike|strong|su[bp]|table|t[dhr]|tbody|tfoot|thead|u|ul|var)>"
)


def _is_control(content: str, *, special: bool) -> bool:
    """Whether an added token is a mark. Vocabularies also add what is plain text: runs of white
    space (GPT-NeoX, Gemma), HTML (Gemma), and words."""
    text = content.replace("\u2581", " ").strip()
    if special or not text:
        return bool(text)
    return not _HTML.fullmatch(text) and _LIKE_A_MARK.match(text) is not None


def is_guarded(text: str) -> bool:
    """Whether *text* was made of guarded texts, and differs from what it means."""
    return _OURS.search(text) is not None


def shortest(text: str) -> int:
    """A lower bound on the characters of `plain` *text*."""
    return len(text) - text.count(_BREAK) - text.count(_ESCAPE)


def plain(text: str) -> str:
    """*text* as it was before it was guarded."""
    return _OURS.sub(lambda found: _MEANS.get(found[0], ""), text)


class Marks:
    """The control tokens of *inner*, a tokenizer of transformers' whose padding and truncation are
    set, for *template*; None if that is code, which may look any word up."""

    def __init__(self, inner: Any, template: str | None) -> None:
        added = {int(number): token for number, token in inner.added_tokens_decoder.items()}
        special = {*map(int, inner.all_special_ids), *(n for n, t in added.items() if t.special)}
        control = {n: t for n, t in added.items() if _is_control(t.content, special=n in special)}
        self._inner: Final = inner
        self._template: Final = template
        self._added: Final = frozenset(added)
        self.ids: Final = frozenset(control)
        """The ids of control tokens."""
        self._never: Final = self.ids - {inner.unk_token_id}
        self._marks: Final = _Finder({token.content for token in control.values()} | {_WRITTEN})
        self._backend: Final[Any] = getattr(inner, "backend_tokenizer", None)
        normalizer = getattr(self._backend, "normalizer", None)
        self._normal: Final[Callable[[str], str]] = getattr(normalizer, "normalize_str", str)
        # The normalizer may make a mark of other characters. So what it makes is searched, too.
        alike = [t.content for t in control.values() if normalizer is not None and self._late(t)]
        self._alike: Final = _Finder(set(map(self._normal, alike)))
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
            return self._guard(value)
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

    def _guard(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._guard_text(value)
        if isinstance(value, dict):
            return {self._guard(key): self._guard(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._guard(each) for each in value]
        return value

    def _guard_text(self, text: str) -> str:
        if _BREAK in text or _ESCAPE in text:
            text = text.translate(_ESCAPED)
        if len(text) <= self._marks.most and self._compares(text):
            return text
        guarded = self._marks.broken(text)
        normal = self._normal(guarded)
        if self._alike.broken(normal) != normal:
            body = text.strip()  # what is around it is left for the template to trim
            begin = text.index(body)
            body = _CHARACTER.sub(rf"\g<0>{_BREAK}", body)
            return text[:begin] + body + text[begin + len(text.strip()) :]
        return guarded

    def _compares(self, word: str) -> bool:
        """Whether the template, or what is before it, looks *word* up or compares it."""
        if not word.isidentifier():
            return False
        if _SHAPE.fullmatch(word) or self._template is None:
            return True
        found = rf"""'{word}'|"{word}"|\.{word}\b"""
        return re.search(found, self._template) is not None

    def encode(self, text: str, *, around: bool) -> list[int]:
        """The ids of *text*, which a template made of guarded texts, with the special tokens that
        the model expects *around* it. Raises `ValueError` if the tokenizer makes a control token
        even of the parts of a mark."""
        if not self._whole:
            lead = self._inner.encode("", add_special_tokens=True) if around else []
            return [*lead, *(token for part in _parts(text) for token in self._encode_part(part))]
        encoded = self._backend.encode(text, add_special_tokens=around)
        tokens = [*zip(encoded.ids, encoded.offsets, encoded.special_tokens_mask, strict=True)]
        lead = next((n for n, (_, _, mask) in enumerate(tokens) if not mask), len(tokens))
        tail = next((n for n, (_, _, mask) in enumerate(tokens[::-1]) if not mask), 0)
        ids = encoded.ids[:lead]
        run: list[int] = []
        end = 0
        for token, (start, after), _ in tokens[lead : len(tokens) - tail]:
            one = after - start == 1 and text.startswith(_BREAK, after)  # a mark of one character
            if token in self._added and not one:
                ids += [*self._between(text, end, start, run), token]
                run, end = [], after
            else:
                run.append(token)
        return [*ids, *self._between(text, end, len(text), run), *encoded.ids[len(tokens) - tail :]]

    def among(self, ids: Sequence[int]) -> list[int]:
        """The control tokens among *ids*, in order, but for that of unknown words."""
        return [token for token in ids if token in self._never]

    def _between(self, text: str, start: int, end: int, ids: list[int]) -> list[int]:
        """The ids of *text* from *start* to *end*, which has no mark; *ids* with the breaks."""
        if not is_guarded(part := text[start:end]):
            return ids
        found = self._ordinary(plain(part), first=not start)
        if self._never.isdisjoint(found):
            return found
        # The model of some tokenizers knows marks as words.
        found = [token for piece in _parts(part) for token in self._ordinary(piece, first=False)]
        if made := self._never.intersection(found):
            name = self._inner.convert_ids_to_tokens(min(made))
            raise ValueError(f"this model's tokenizer cannot write {name!r} as ordinary text")
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

    def _encode_part(self, text: str) -> list[int]:
        return [int(token) for token in self._inner.encode(text, add_special_tokens=False)]


def _parts(text: str) -> Iterator[str]:
    """What is between the breaks of *text*."""
    return map(plain, filter(None, re.split(f"{_BREAK}|{re.escape(_WRITTEN)}", text)))


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

    def finds(self, text: str) -> bool:
        """Whether *text* has a mark."""
        return next(self._starts(text), None) is not None

    def _starts(self, text: str) -> Iterator[int]:
        for found in self._heads.finditer(text):
            at = found.start()
            if any(text[at : at + length] in self._marks for length in self._lengths):
                yield at

    def broken(self, text: str) -> str:
        """*text* with a break in each mark, and in what may become one with what is before or after
        it."""
        cuts = {at + 1 for at in self._starts(text)}
        trimmed = len(text) - len(text.lstrip()), len(text.rstrip())
        for begin, end in {(0, len(text)), trimmed} if text.strip() else ():
            if end - begin <= self.most and text[begin:end] in self._all:
                cuts.add(begin + 1)
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
