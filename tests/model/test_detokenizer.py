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
from sealring_model.text.detokenizer import Vocabulary, bytes_reader, check_decoder
from sealring_model.text.grammars import grammar_tokenizer, matcher
from sealring_model.text.tokens import Tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Builder

from tests.family_tokenizers import piece_model
from tests.rows import rows

ALPHABET = pre_tokenizers.ByteLevel.alphabet()
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = st.lists(st.text(" abé世🦊\n", min_size=1, max_size=5), max_size=12, unique=True)
TEXTS = st.text(st.sampled_from(" abcé世🦊\n�\0"), max_size=10)


def saved(builder: Builder, **settings: object) -> Tokenizer:
    """*builder* as the tokenizer of a folder with *settings*, loaded from it."""
    builder.add_special_tokens([AddedToken("<s>", normalized=False)])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        builder.save(str(folder / "tokenizer.json"))
        told = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<s>",
            "clean_up_tokenization_spaces": False,
            **settings,
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


MODEL_CLASSES = ["LlamaTokenizer", "GemmaTokenizer", "T5Tokenizer", "XLNetTokenizer", ""]


@functools.cache
def piece(kind: str, name: str) -> Tokenizer:
    """SentencePiece's *kind* as a ``tokenizer.model`` alone, for the class *name* of
    transformers'."""
    with tempfile.TemporaryDirectory() as folder:
        write_piece(kind, name, Path(folder))
        return Tokenizer(Path(folder))


def write_piece(kind: str, name: str, folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(piece_model(kind))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    if name:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))


def word_piece(*, cleanup: bool, later: bool = False) -> Tokenizer:
    """WordPiece, whose decoder takes the spaces before punctuation away if it *cleanup*s; so does
    transformers *later*."""
    words = [
        "[UNK]",
        "paris",
        "of",
        "the",
        "capital",
        "##s",
        *"!?.,'stn",
        "##t",
        "ve",
        "##.",
        "##1",
    ]
    builder = Builder(models.WordPiece({word: at for at, word in enumerate(words)}))
    builder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    builder.decoder = decoders.WordPiece(cleanup=cleanup)  # type: ignore[assignment]
    return saved(builder, clean_up_tokenization_spaces=later)


def other_decoder(decoder: object) -> Tokenizer:
    """BPE over characters and bytes, with another *decoder*."""
    words = ["▁the", "▁fox", "fox</w>", "the</w>", "▁▁", "ß", "Ж", "🦊", "\n"]
    letters = [*BYTES, *sorted({letter for word in words for letter in word} | {*"▁ abc.,'!?"})]
    return merging(letters, words, None, decoder)


OTHERS = {
    **{
        f"{kind}, {name or 'no class'}": functools.partial(piece, kind, name)
        for kind in ("bpe", "unigram")
        for name in MODEL_CLASSES
    },
    "word piece": functools.partial(word_piece, cleanup=False),
    "word piece that cleans up": functools.partial(word_piece, cleanup=True),
    "word piece that is cleaned up": functools.partial(word_piece, cleanup=False, later=True),
    "bytes and metaspace": lambda: other_decoder(
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    ),
    "metaspace": lambda: other_decoder(decoders.Metaspace(prepend_scheme="never")),
    "bytes alone": lambda: other_decoder(
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    ),
    "ends of words": lambda: other_decoder(decoders.BPEDecoder()),
}
ANY = functools.cache(lambda name: OTHERS[name]())


@settings(max_examples=80, deadline=None)
@pytest.mark.parametrize(
    "name", rows([*OTHERS], *(name for name in OTHERS if "unigram" not in name))
)
@given(data=st.data())
def test_the_parts_of_any_tokenizer_s_text_are_the_text(name: str, data: st.DataObject) -> None:
    """Nothing is given out twice, left out, or in halves of a character."""
    tokenizer = ANY(name)
    words = [
        "the fox ",
        "ßЖ",
        "👨\u200d👩\u200d👧",
        "\n    ",
        "x == y",
        " ' ",
        "n't",
        " .",
        "世界",
        "capitals",
    ]
    texts = st.lists(st.sampled_from(words) | TEXTS, max_size=40).map("".join)
    known = st.sampled_from(sorted(tokenizer.ids().values()))
    ids = data.draw(texts.map(tokenizer.encode_part) | st.lists(known, max_size=90))
    whole = tokenizer.decode(ids)
    if "�" in whole:  # ill-formed: the decoder may take characters back that were whole
        ids = [token for token in ids if not tokenizer.names([token])[0].startswith("<0x")]
        whole = tokenizer.decode(ids)
    pieces = said(tokenizer, (), ids)
    assert "".join(pieces) == whole
    assert "�" in whole or not any("�" in piece for piece in pieces)


WITH_BYTES = ["bytes and metaspace", "bytes alone", "metaspace"]
"""Kinds with a token for each byte whose texts are decoded again with each token."""


def bytes_of(tokenizer: Tokenizer) -> list[int]:
    """The token of each byte."""
    known = tokenizer.ids()
    return [known[byte] for byte in BYTES]


@settings(max_examples=80, deadline=None)
@pytest.mark.parametrize("name", WITH_BYTES)
@given(data=st.data())
def test_the_parts_of_broken_bytes_are_the_text(name: str, data: st.DataObject) -> None:
    """However many there are, and whatever follows."""
    tokenizer, known = ANY(name), bytes_of(ANY(name))
    runs = st.lists(st.sampled_from([0x80, 0xC3, 0xE4, 0xB8, 0x96, 0xF0, 0xFF]), max_size=90)
    ids: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        texts = data.draw(st.sampled_from(["the fox ", "", "the", " . "]))
        ids += [token for token in tokenizer.encode_part(texts) if token not in known]
        ids += [known[0xFF], *(known[byte] for byte in data.draw(runs))]
        ids += [known[0xFF]] * data.draw(st.sampled_from([0, 0, 3, 200]))
    assert "".join(said(tokenizer, (), ids)) == tokenizer.decode(ids)


def test_the_text_of_a_tokenizer_model_alone() -> None:
    """As it was seen: a letter twice, an emoji four times, an indentation short of a space."""
    tokenizer = piece("bpe", "LlamaTokenizer")
    for text in ("ßЖ", "👨\u200d👩\u200d👧\u200d👦", "if x:\n    y = 1\n        z"):
        pieces = said(tokenizer, (), tokenizer.encode_part(text))
        assert "".join(pieces) == tokenizer.decode(tokenizer.encode_part(text)) == text
        assert len([piece for piece in pieces if piece]) > 1


LONG_TEXTS: list[tuple[str, bytes]] = [
    ("bpe, LlamaTokenizer", b""),
    ("bpe, T5Tokenizer", b""),
    ("word piece", b""),
    ("bytes alone", b"\xff"),
    ("bytes and metaspace", b"\xf0\x9f"),
    ("bytes alone", "世".encode()),
]


@pytest.mark.parametrize(("name", "broken"), LONG_TEXTS, ids=repr)
def test_a_long_text_costs_no_more_for_each_token(
    name: str, broken: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one of *broken* bytes, after one that is none: they are given out as they come."""
    tokenizer = ANY(name)
    decoded = 0
    decode = Vocabulary.decode

    def counting(words: Vocabulary, ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(words, ids)

    ids = tokenizer.encode_part("the fox of paris ! " * 200)
    if broken:
        ids = [bytes_of(tokenizer)[byte] for byte in b"\xff" + broken * (1200 // len(broken))]
    whole = tokenizer.decode(ids)
    monkeypatch.setattr(Vocabulary, "decode", counting)
    parts = said(tokenizer, (), ids)
    assert "".join(parts) == whole
    assert len(parts[-1]) < 8
    assert len(ids) * bool(tokenizer.words.decoder) <= decoded <= 80 * len(ids)


@pytest.mark.parametrize("name", ["<0x  >", "<0x+A>", "<0xe9>", "<0x\t\t>", "<0x++>", "<0x-1>"])
def test_the_name_of_a_byte_is_what_the_library_takes_for_one(name: str) -> None:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    builder = Builder(models.BPE())
    builder.decoder = decoder = decoders.Sequence(steps)  # type: ignore[assignment]
    reader = bytes_reader(json.loads(builder.to_str())["decoder"])
    assert reader is not None
    assert reader[0](name).decode(errors="replace") == decoder.decode([name])


EVERY = [
    decoders.BPEDecoder(),
    decoders.ByteFallback(),
    decoders.ByteLevel(),
    decoders.CTC(),
    decoders.Fuse(),
    decoders.Metaspace(),
    decoders.Replace("a", "b"),
    decoders.Strip(" ", 1, 0),
    decoders.WordPiece(),
]


@pytest.mark.parametrize("decoder", [*EVERY, decoders.Sequence(EVERY)], ids=repr)
def test_every_decoder_of_the_library_is_known(decoder: object) -> None:
    builder = Builder(models.BPE())
    builder.decoder = decoder  # type: ignore[assignment]
    check_decoder(200, json.loads(builder.to_str())["decoder"])


def test_a_text_of_which_no_part_can_be_told_apart_costs_no_more_for_each_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last letter is the first that was said."""
    pairs = {"type": "Replace", "pattern": {"String": "aa"}, "content": "b"}
    decoder = json.dumps({"type": "Sequence", "decoders": [{"type": "Fuse"}, pairs]})
    none = frozenset[int]()
    words = Vocabulary.of(
        [b"a", b"aa"], size=2, special=none, silent=none, eos=none, decoder=decoder
    )
    most, decode = 0, Vocabulary.decode

    def counting(words: Vocabulary, ids: Sequence[int]) -> str:
        nonlocal most
        most = max(most, len(ids))
        return decode(words, ids)

    monkeypatch.setattr(Vocabulary, "decode", counting)
    stream = words.stream(())
    said = "".join(map(stream.add, [0, *[1] * 1000])) + stream.finish()
    assert most < 200
    assert 990 < len(said) < 1010


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("name", MODEL_CLASSES)
def test_a_form_can_be_held_with_a_tokenizer_model_alone(
    kind: str, name: str, tmp_path: Path
) -> None:
    """Whatever tokens are drawn among those that it allows, the text is the form's."""
    write_piece(kind, name, tmp_path)
    words, form = Tokenizer(tmp_path), "yes, the fox and"
    if name not in ("T5Tokenizer", "XLNetTokenizer"):  # whose decoders know no bytes
        form += ":\n    'ßЖ 🦊'"
    known = grammar_tokenizer(tmp_path, words.vocabulary)
    for last in (False, True):
        held = matcher(known, f"start: {json.dumps(form)}")
        ids: list[int] = []
        while not held.is_accepting() and len(ids) < 99:
            mask = int.from_bytes(held.compute_bitmask(), "little")
            allowed = [token for token in range(words.vocabulary) if mask >> token & 1]
            assert allowed
            assert not held.get_error()
            ids.append(allowed[-1 if last else 0])
            held.consume_token(ids[-1])
        stream = words.stream()
        assert "".join(map(stream.add, ids)) + stream.finish() == form
