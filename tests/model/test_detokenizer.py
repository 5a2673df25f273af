"""The text of an answer after a prompt, for tokenizers of every kind, beside their own decoder."""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_model import tiny
from sealring_model.text.tokens import Tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Builder

ALPHABET = pre_tokenizers.ByteLevel.alphabet()
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = st.lists(st.text(" abé世🦊\n", min_size=1, max_size=5), max_size=12, unique=True)
TEXTS = st.text(st.sampled_from(" abcé世🦊\n�\0"), max_size=10)


def saved(builder: Builder) -> Tokenizer:
    """*builder* as the tokenizer of a folder, loaded from it."""
    builder.add_special_tokens([AddedToken("<s>", normalized=False)])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        builder.save(str(folder / "tokenizer.json"))
        told = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<s>",
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(told))
        (folder / "config.json").write_text("{}")
        return Tokenizer(folder)


def byte_level(words: Sequence[str]) -> Tokenizer:
    """Byte-level BPE that knows *words*, as they are cut before."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces = [piece for word in words for piece, _ in level.pre_tokenize_str(word)]
    return merging(sorted(ALPHABET), pieces, level, decoders.ByteLevel())


def merging(letters: list[str], pieces: list[str], before: object, decoder: object) -> Tokenizer:
    """BPE over *letters* whose merges make *pieces* from left to right."""
    known, merges = dict.fromkeys(letters), {}
    for piece in pieces:
        for start, end in itertools.pairwise(itertools.accumulate(piece)):
            known[end] = None
            merges[start, end[len(start) :]] = None
    vocabulary = {token: number for number, token in enumerate(known)}
    builder = Builder(models.BPE(vocab=vocabulary, merges=list(merges), byte_fallback=True))
    builder.pre_tokenizer = before  # type: ignore[assignment]
    builder.decoder = decoder  # type: ignore[assignment]
    return saved(builder)


def sentence_piece(words: Sequence[str], *, strips: bool) -> Tokenizer:
    """One as of llama 2, with a token for each byte and for *words*. If it *strips*, each text gets
    a space before it."""
    pieces = [word.replace(" ", "▁") for word in words]
    letters = [*BYTES, *sorted({letter for piece in pieces for letter in piece} | {*"▁abc"})]
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer = merging(letters, pieces, None, decoders.Sequence(steps))
    backend = tokenizer._inner._tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁")] * strips + [normalizers.Replace(" ", "▁")]
    )
    return tokenizer


KINDS = {
    "byte level": byte_level,
    "sentence piece": functools.partial(sentence_piece, strips=False),
    "sentence piece that strips": functools.partial(sentence_piece, strips=True),
}


def said(tokenizer: Tokenizer, prompt: Sequence[int], answer: Sequence[int]) -> list[str]:
    """The pieces of *answer* after *prompt*."""
    stream = tokenizer.stream(prompt)
    return [*map(stream.add, answer), stream.finish()]


@functools.cache
def shipped() -> Tokenizer:
    return Tokenizer(tiny.path())


def check_seam(tokenizer: Tokenizer, ids: list[int], cut: int) -> None:
    """Of *ids*, whose text is well-formed, the first *cut* are a prompt."""
    prompt, answer = ids[:cut], ids[cut:]
    pieces = said(tokenizer, prompt, answer)
    assert tokenizer.shown(prompt) + "".join(pieces) == tokenizer.decode(ids)
    whole = tokenizer.decode(ids)
    if "�" not in whole:
        assert not any("�" in piece for piece in pieces)  # characters come whole


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_prompt_and_what_follows_are_the_text_of_all(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind](data.draw(WORDS))
    for _ in range(4):
        ids = tokenizer.encode(data.draw(TEXTS))
        check_seam(tokenizer, ids, data.draw(st.integers(0, len(ids))))


@settings(deadline=None)
@given(st.text(max_size=30), st.integers(0, 40), st.booleans())
def test_the_shipped_model_s(text: str, cut: int, marked: bool) -> None:
    tokenizer = shipped()
    ids = tokenizer.encode(text)
    ids[cut:cut] = [1] * marked  # <|user|>
    if marked and "�" in tokenizer.decode(ids):
        return  # the mark is within a character, which is none any more
    check_seam(tokenizer, ids, min(cut, len(ids)))


SEAMS = {
    # kind: the prompt, what follows, and its text after the prompt, as a text of its own, and after
    # nothing but a mark
    "byte level": ("ĠĠ", ["Ġ", "a"], (" a", "a", " a")),
    "sentence piece": ("▁", ["▁", "a"], (" a", " a", " a")),
    "sentence piece that strips": ("▁", ["▁", "a"], (" a", "a", "a")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_space_at_the_beginning(kind: str) -> None:
    """It is the answer's after a text. An answer in a conversation has none. After marks alone a
    tokenizer that puts a space before each text takes it away again."""
    tokenizer = KINDS[kind]([])
    ids, (before, names, texts) = tokenizer.ids(), SEAMS[kind]
    prompt, answer = [ids[before[0]]], [ids[name] for name in names]
    marks = [ids["<s>"]] * 2
    streams = (tokenizer.stream(after) for after in (prompt, None, marks))
    assert tuple("".join(map(s.add, answer)) + s.finish() for s in streams) == texts
    # A space that is a token of its own is given out at once.
    assert tokenizer.stream(prompt).add(answer[0]) == " "


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_that_the_prompt_begins_is_the_answer_s(kind: str) -> None:
    tokenizer = KINDS[kind]([])
    ids = tokenizer.encode("a🦊 ")
    fox = [at for at, token in enumerate(ids) if len(tokenizer.token_bytes(token)) == 1][-5:-1]
    for cut in fox[1:]:
        assert not tokenizer.shown(ids[:cut]).endswith("�")
        assert said(tokenizer, ids[:cut], ids[cut:])[: fox[-1] - cut + 1][-1] == "🦊"
        silent = tokenizer.stream(ids[:cut], special=False)
        assert "".join(map(silent.add, [tokenizer.ids()["<s>"], *ids[cut:]])) == "🦊 "


def test_words_of_a_tokenizer_whose_tokens_are_no_bytes() -> None:
    """Its decoder puts spaces between words, and knows by those before."""
    words = ["[UNK]", "paris", "of", "capital", "##s", "!"]
    builder = Builder(models.WordPiece({word: at for at, word in enumerate(words)}))
    builder.pre_tokenizer = pre_tokenizers.Whitespace()
    builder.decoder = decoders.WordPiece(cleanup=False)
    builder.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tokenizer = saved(builder)
    ids = tokenizer.encode("capitals of paris")
    for cut in range(1, len(ids)):
        text = "".join(said(tokenizer, ids[:cut], ids[cut:]))
        assert tokenizer.decode(ids[:cut]) + text == "capitals of paris"
