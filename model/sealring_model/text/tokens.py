"""Text to token ids and back, for the process that faces clients.

The tokenizer is the model's own, through transformers; `detokenizer` streams its text. Each model
writes its thoughts and calls in a format of its own: `formats` has those that are read here, and
mlx-lm has parsers for others.

Importing this module costs nothing; making the first `Tokenizer` imports transformers, which takes
a second or more. A `Tokenizer` may be used from several threads. Templates and parsers are other
people's code, which a hostile text may keep busy for minutes: call `render` and `ToolFormat.parse`
in a process of their own.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import attrs
from sealring_protocol.limits import MAX_ENDS

from sealring_model.errors import LoadError
from sealring_model.loading.weights import check_json, check_size, read_json
from sealring_model.mlx_lm_import import without_mlx
from sealring_model.text.argument_types import value_kinds
from sealring_model.text.detokenizer import (
    NO_DECODER,
    Detokenizer,
    Vocabulary,
    byte_alphabet,
    bytes_reader,
    check_decoder,
    is_panic,
)
from sealring_model.text.formats import (
    CHANNEL,
    USUAL,
    CallFormat,
    call_format,
    format_named,
    thought_marks,
)
from sealring_model.text.marks import Marks, shortest
from sealring_model.text.readers import CallEnd, CallPart, CallStart, Reading

_TOO_LONG: Final = "sequence-length-is-longer-than-the-specified-maximum"

_FAULTS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
)
"""What code raises that takes a text for well-formed when it is not, or is nested too deep."""

_READ: Final = (
    "added_tokens.json",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "normalizer.json",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
)
"""Files that transformers parses, whose values are counted before."""

_WEIGHTS: Final = (
    *(".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ggml", ".npz", ".npy", ".h5", ".msgpack"),
    *(".onnx", ".onnx_data", ".ot", ".tflite", ".nemo", ".zip", ".gz", ".tar", ".parquet"),
    *(".jsonl", ".dat", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".mp3", ".mp4", ".wav"),
)
"""What the names of files end in that no tokenizer is read from."""

_MAX_FILE: Final = 64 << 20
"""Bytes of another file. A tokenizer may name any for itself, and a library reads it whole."""

_TOKENIZERS: Final = ("*.model", "*.tiktoken", "vocab.json", "vocab.txt")
"""Files that a tokenizer is made from where there is no tokenizer.json."""

_TEMPLATE_FILE: Final = "chat_template.json"
"""Has the chat template of models whose processor transformers loads, beside the tokenizer."""

_GAPS: Final = 1 << 16
"""Ids without a word, at most, beside as many as there are words: lists have a place for each."""

_TAIL: Final = 16
"""Tokens at the end of a prompt that are searched for the mark that opens the reasoning."""

_GREATEST: Final = (1 << 32) - 1

_MOST: Final = MAX_ENDS // 4
"""Ids that may end all answers: the tokenizer and each request add some to them."""

_SETTINGS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0, 2),
    "top_p": (1e-6, 1),
    "top_k": (0, (1 << 32) - 1),
    "min_p": (0, 1),
    "repetition_penalty": (1e-6, 10),
}
"""What may be said of drawing, with the least and the most of it."""

_MARKS: Final = (
    # before the text that comes first, before the one that comes last, before the middle
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite 4
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SantaCoder 2, Granite 3
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)

_SUFFIX_FIRST: Final = ("[PREFIX]", "[SUFFIX]")  # Codestral: the middle just follows the prefix

_ENDS: Final = (
    "<|endoftext|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<fim_pad>",
    "<fim-pad>",
    "<file_sep>",
    "<filename>",
    "<|cursor|>",
    "▁<EOT>",
    "<EOT>",
)
"""Tokens that end a middle: what separated files in the training data."""

_COMPOSED: Final = 4
"""Characters that composition (NFC, NFKC) makes into one, at most: four for U+1F82 and its like."""

_KEEPING: Final = {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}
"""Pre-tokenizers that cut a text and drop nothing."""


class Tokenizer:
    """The tokenizer of the model in a folder.

    Raises `LoadError` if the folder has none that transformers can load.
    """

    def __init__(self, folder: Path) -> None:
        helpers = without_mlx("tokenizer_utils")
        try:
            inner = transformers_tokenizer(folder)
            # The scheduler refuses a prompt beyond the context; transformers need not warn.
            inner.deprecation_warnings[_TOO_LONG] = True
            described = _described(inner)
            _check_words(inner)
            longest = max(map(len, inner.get_vocab()), default=0)
            check_decoder(longest, (described or {}).get("decoder"))
            template = _own_template(inner)
            self.tools: Final = _tool_format(helpers, inner)
            """How the model writes tool calls; None if its template has none."""
            self.calls: Final = self.tools or ToolFormat.of(USUAL)
            """How it writes them once it is asked to: in its own way, or in `USUAL`."""
            self.format: Final = self.calls.format
            """The row of `formats` that says more of it; None for a format of mlx-lm's."""
            self._inner: Final[Any] = helpers.TokenizerWrapper(
                inner, _no_stream, chat_template=template
            )
            ends = eos_ids(folder) | frozenset(self._inner.eos_token_ids)
            self.eos: Final = ends | _ends(self.format, inner)
            """Ids that end an answer."""
            self.has_chat: Final = bool(self._inner.has_chat_template)
            own = inspect.signature(inner.apply_chat_template).parameters.keys()
            ours = inspect.signature(self.render).parameters.keys() - {"settings"}
            self.reserved: Final = {"self", *ours, *own} - {"thinking", "enable_thinking"}
            """Settings of `apply_chat_template` and of `render` that callers may not pass, such as
            the template itself."""
            self.folder: Final = folder
            self.vocabulary: Final = len(self._inner)
            self.longest: Final = _longest(described)
            """Characters that one token can stand for, at most; infinity if there is no bound."""
            self.special: Final = frozenset(map(int, inner.all_special_ids)) | _special(described)
            """Ids of tokens that stand for no text but for themselves."""
            self.think: Final = _think(self.format, inner, self._inner)
            """The marks around the model's reasoning; empty if it has none."""
            self.fill_in: Final = FillIn.of(inner.get_vocab())
            """How it is asked for the text between two others; None if it does not know that."""
            self._settings: Final = None if template else _template_text(inner)
            # The first call sets the tokenizer's padding and truncation. Later calls change
            # nothing, so threads do not race.
            self.encode("")
            self._marks: Final = Marks(inner, self._settings)
            self.words: Final = self._words(inner, described)
            """What a node has to know of its tokens."""
        except LoadError:
            raise
        except BaseException as error:  # a bad file makes a library raise anything
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            why = "it takes too much memory" if isinstance(error, MemoryError) else error
            raise LoadError(f"the tokenizer of {folder} cannot be loaded: {why}") from None

    def _words(self, inner: Any, described: Mapping[str, Any] | None) -> Vocabulary:
        """What a node has to know of the tokens of *inner*, which *described* is made of. Of a
        tokenizer that transformers has written in Python, a token is its text after another."""
        fields = {
            "size": self.vocabulary,
            "eos": self.eos,
            "special": self.special,
            "silent": self._silent,
            "think": self.think,
            "calls": (
                self.calls.start,
                self.calls.end,
                self.format.name if self.format is not None else "",
            ),
            "in_words": self.in_words,
            "efforts": self.takes("reasoning_effort"),
            "fills": self.fill_in is not None,
        }
        ids = range(max(inner.get_vocab().values(), default=-1) + 1)
        anchor = self.encode_part("a")[:4]
        if described is None:
            before = self.decode(anchor)
            texts = (self.decode([*anchor, each]).removeprefix(before) for each in ids)
            return Vocabulary.of((text.encode() for text in texts), trims=True, **fields)
        names, decoder = self.names(ids), described.get("decoder")
        if (reader := bytes_reader(decoder or {})) is not None:
            read, strips, trims = reader
            return Vocabulary.of(map(read, names), strips=strips, trims=trims, **fields)
        forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
        fits = described["model"].get("type") != "BPE" or getattr(inner, forced, False)
        return Vocabulary.of(
            map(str.encode, names),
            decoder=json.dumps(decoder) if decoder else NO_DECODER,
            cleanup=bool(fits and inner.clean_up_tokenization_spaces),
            anchor=tuple(anchor),
            **fields,
        )

    @property
    def in_words(self) -> bool:
        """Whether the model needs its tools described in words, for its template does not."""
        if self.tools is None:
            return True
        return self.format is not None and bool(self.format.written) and not self.takes("tools")

    @property
    def whole(self) -> CallFormat | None:
        """As `ToolFormat.whole`."""
        return self.calls.whole

    def encode(self, text: str, *, around: bool = True) -> list[int]:
        """The ids of *text*, with the special tokens that the model expects *around* it."""
        return [int(token) for token in self._inner.encode(text, add_special_tokens=around)]

    def encode_part(self, text: str) -> list[int]:
        """The ids of *text* in the middle of a row, without special tokens around it."""
        return self.encode(text, around=False)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of *ids*."""
        return str(self._inner.decode(list(ids)))

    def ids(self) -> dict[str, int]:
        """The id of each token, by what the vocabulary has for its text."""
        return {str(text): int(number) for text, number in self._inner.get_vocab().items()}

    def names(self, ids: Sequence[int]) -> list[str]:
        """What the vocabulary has for each of *ids*; empty for those that it lacks."""
        return [str(name or "") for name in self._inner.convert_ids_to_tokens(list(ids))]

    def takes(self, setting: str) -> bool:
        """Whether the chat template looks at *setting*. Code in place of a template may."""
        if self._settings is None:
            return self.has_chat
        return re.search(rf"\b{re.escape(setting)}\b", self._settings) is not None

    def token_bytes(self, token: int) -> bytes:
        """The bytes that *token* adds to an answer; maybe a part of a character."""
        return self.words.token_bytes(token)

    def least(self, text: str) -> int:
        """A lower bound on the tokens of *text*, found without encoding it."""
        return math.ceil(shortest(text) / self.longest)

    def guard(self, value: Any) -> Any:
        """*value*, a tool or a setting, for `render`: the marks in its texts, which others wrote,
        will be ordinary text. Raises `ValueError`."""
        return self._marks.guard(value)

    def guard_messages(self, messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """*messages* for `render`, as `guard` does it: but for their roles, and for the marks
        around the thoughts that an answer of the model's begins with. Raises `ValueError`."""
        guarded = []
        for message in messages:
            role, content = message["role"], message.get("content")
            guarded.append(self._marks.guard(dict(message)) | {"role": role})
            if role == "assistant" and isinstance(content, str) and self.whole is None:
                guarded[-1]["content"] = self._marks.guard_answer(content, self.think)
        return guarded

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        begin_answer: bool = True,
        go_on: bool = False,
        **settings: Any,
    ) -> str:
        """The text of a conversation up to where the model's answer begins; unless *begin_answer*
        only up to the end of the last message, or with *go_on* of its content, which goes on.

        *messages* have ``role`` and ``content``; *tools* and *settings* are for the chat template.
        What others wrote in them has to pass `guard` before, or its marks become control tokens.
        A model without a template gets the contents as lines. Raises `ValueError` if the template
        refuses them. A template is the model's code: it reaches nothing of this process (jinja's
        immutable sandbox), but may take any time and memory. So a server calls this in a process
        that can be ended.
        """
        if not self.has_chat:
            return "\n".join(message["content"] or "" for message in messages)
        from jinja2.exceptions import TemplateError  # noqa: PLC0415 - transformers brings it

        write = functools.partial(
            self._inner.apply_chat_template,
            add_generation_prompt=begin_answer and not go_on,
            continue_final_message=go_on,
            tokenize=False,
        )
        given: list[Any] = [
            list(map(dict, messages)),
            {"tools": list(map(dict, tools)) or None, **settings},
        ]
        try:
            text = str(write(given[0], **given[1]))
            if (bare := self._marks.bare(given)) != given:
                text = self._marks.chosen(text, str(write(bare[0], **bare[1])))
            text.encode()  # raises for lone surrogates, which arguments of a call may have
        except (TemplateError, ValueError, *_FAULTS) as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"the chat template refuses these messages: {reason}") from None
        return text

    def encode_rendered(self, text: str, *, around: bool | None = None) -> list[int]:
        """The ids of a conversation's *text*, which has the special tokens from its template;
        with *around* those of `encode` too. Raises `ValueError` if the tokenizer cannot but make
        control tokens of what others wrote."""
        around = not self.has_chat if around is None else around
        return self._marks.encode(text, around=around)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        **settings: Any,
    ) -> list[int]:
        """The ids of a conversation that `render` makes of what others wrote."""
        talk, guarded = self.guard_messages(messages), [self.guard(dict(tool)) for tool in tools]
        given = {name: self.guard(value) for name, value in settings.items()}
        return self.encode_rendered(self.render(talk, guarded, **given))

    def opens_thinking(self, prompt: Sequence[int]) -> bool:
        """Whether the answer to *prompt* begins inside the model's reasoning."""
        start = self.think[0]
        tail, opening = list(prompt[-_TAIL:]), self.encode_part(start)
        while opening and opening[0] not in self._marks.ids:
            del opening[0]  # a space that the tokenizer puts before a text
        if not opening:  # the mark is no control token of this model's
            return bool(start) and self.decode(tail).rstrip().endswith(start)
        while tail and tail[-1] not in self._marks.ids and not self.decode(tail[-1:]).strip():
            del tail[-1]
        return tail[-len(opening) :] == opening

    def stream(self, after: Sequence[int] | None = None, *, special: bool = True) -> Detokenizer:
        """As `Vocabulary.stream`."""
        return self.words.stream(after, special=special)

    def shown(self, prompt: Sequence[int]) -> str:
        """The text of *prompt* before an answer, which begins with the character that the prompt
        may have begun: with the text of ``stream(prompt)`` it is the text of all."""
        text = self.decode(prompt)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            return text
        stream = self.stream(())
        return "".join(map(stream.add, prompt))

    @functools.cached_property
    def _silent(self) -> frozenset[int]:
        """The special tokens, but for those of the marks around reasoning and tool calls."""
        marks = [*self.think, self.calls.start, self.calls.end]
        if self.format is not None:
            marks += [*self.format.starts, *self.format.inner]
        known = self._inner.added_tokens_decoder.items()
        return frozenset(
            int(number)
            for number, token in known
            if token.special and not any(str(token) in mark for mark in marks)
        )


@attrs.frozen
class ToolFormat:
    """How a model writes a tool call: the marks around it, and what reads the text between: the
    reader of *format*, as the text comes, or else a parser of mlx-lm's.

    An empty *end* means that a call lasts to the end of the answer. *name* is that of the format.
    """

    start: str
    end: str
    name: str
    _read: Callable[[str, Any], Any] | None = attrs.field(default=None, repr=False)
    format: CallFormat | None = attrs.field(default=None, repr=False)

    @classmethod
    def of(cls, format: CallFormat) -> ToolFormat:
        """Calls in *format*."""
        return cls(format.start, format.end, format.name, None, format)

    @classmethod
    def known(cls, start: str, end: str, name: str) -> ToolFormat:
        """Calls between *start* and *end* in the format *name*; empty if none is read here."""
        format = format_named(name) if name else None
        return cls(start, end, name, None, format)

    @property
    def whole(self) -> CallFormat | None:
        """The format of the model's answers, if the whole of them has one; else None."""
        return self.format if self.format is not None and self.format.whole else None

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]]) -> list[ParsedCall]:
        """The calls in *text* of functions among *tools*; among them a call of another is one
        without a name. Raises `ValueError` if there are none."""
        if self.format is not None:
            return _calls_read(self.format, text, tools)
        if self._read is None:
            raise ValueError("no parser")
        try:
            read = self._read(text, list(tools))
            calls = [_tool_call(call) for call in (read if isinstance(read, list) else [read])]
        except _FAULTS as error:
            # The parsers expect a model to keep to its format.
            raise ValueError(f"no tool call: {error}") from None
        known = {tool["function"]["name"] for tool in tools}
        if not any(call.name in known for call in calls):
            raise ValueError("no call of a tool that there is")
        return [call if call.name in known else _unknown(call) for call in calls]


@attrs.frozen
class ParsedCall:
    """A call of function *name*; *arguments* is a JSON text, *id* empty if the model gave none.
    Without a name it is no call: *arguments* is a text for the reader."""

    name: str
    arguments: str
    id: str = ""


@attrs.frozen
class FillIn:
    """How a model that knows it is asked for the text between two others.

    Such a model was trained on texts whose middle was moved to the end, with tokens of its own
    before each part (Bavarian et al., https://arxiv.org/abs/2207.14255). Nothing but those tokens'
    names says that a model knows it; the names here are of the families that have documented them.

    These are the ids of the marks before each part, and the *ends* of a middle. *middle* is None if
    the middle follows the first part, which comes last then.
    """

    prefix: int
    suffix: int
    middle: int | None
    ends: frozenset[int]

    @classmethod
    def of(cls, ids: Mapping[str, int]) -> FillIn | None:
        """That of a vocabulary; None if its model knows none."""
        for marks in (*_MARKS, _SUFFIX_FIRST):
            if all(mark in ids for mark in marks):
                prefix, suffix, *rest = (ids[mark] for mark in marks)
                ends = {ids[end] for end in _ENDS if end in ids} | {prefix, suffix, *rest}
                return cls(prefix, suffix, rest[0] if rest else None, frozenset(ends))
        return None

    def prompt(self, encode: Callable[[str], list[int]], before: str, after: str) -> list[int]:
        """The ids that ask for what comes between *before* and *after*."""
        first, last = [self.prefix, *encode(before)], [self.suffix, *encode(after)]
        return last + first if self.middle is None else [*first, *last, self.middle]


def check_tokenizer(folder: Path) -> None:
    """Raise `LoadError` if the model in *folder* has no tokenizer, or one that is code to be run.
    Imports nothing."""
    for file in (*folder.glob("*"), *folder.glob("additional_chat_templates/*")):
        if file.name in _READ and file.is_file():
            check_json(file)
        elif file.suffix not in _WEIGHTS and file.exists() and not file.is_dir():
            check_size(file, _MAX_FILE)
    settings = folder / "tokenizer_config.json"
    others = read_json(settings).get("fast_tokenizer_files") if settings.exists() else None
    if others and others != ["tokenizer.json"]:
        raise LoadError(f"{settings} has other files for tokenizer.json: fast_tokenizer_files")
    if (folder / "tokenizer.json").exists():
        return
    if code := _own_code(folder):
        raise LoadError(
            f"the tokenizer of {folder} is code of the model's own ({code}), which sealring does "
            "not run, and there is no tokenizer.json"
        )
    if not any(any(folder.glob(name)) for name in _TOKENIZERS):
        raise LoadError(f"{folder} has no tokenizer.json, and no tokenizer of another kind")


def has_chat_template(folder: Path) -> bool:
    """Whether the model in *folder* says how a conversation is written down. Reads no tokenizer.

    Raises `LoadError` if a file cannot be read.
    """
    names = ("chat_template.jinja", _TEMPLATE_FILE, "additional_chat_templates/*.jinja")
    if any(any(folder.glob(name)) for name in names):
        return True
    file = folder / "tokenizer_config.json"
    settings = read_json(file) if file.exists() else {}
    return bool(settings.get("chat_template") or settings.get("chat_template_type"))


def eos_ids(folder: Path) -> frozenset[int]:
    """The ids that end an answer, as the model's generation settings or configuration say. Raises
    `LoadError` for what are no ids, or too many."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        value = read_json(file).get("eos_token_id") if file.exists() else None
        ids = value if isinstance(value, list) else [value] if type(value) is int else []
        if not ids:
            continue
        if not all(type(token) is int for token in ids):
            raise LoadError(f"{file} has {ids!r:.80} for eos_token_id, which are no token ids")
        # No token has another id, so it ends nothing: -1 says that no token ends an answer.
        ends = frozenset(token for token in ids if 0 <= token <= _GREATEST)
        if len(ends) > _MOST:
            raise LoadError(
                f"{file} has {len(ends)} token ids for eos_token_id, of {_MOST} at most"
            )
        return ends
    return frozenset()


def own_sampling(folder: Path) -> dict[str, float]:
    """How the makers of the model in *folder* have its answers drawn, by the names of the API; with
    temperature 0 if not at random. What they do not say, or what makes no sense, is left out."""
    file = folder / "generation_config.json"
    try:
        said = read_json(file) if file.exists() else {}
    except LoadError:
        return {}  # the tokenizer says so
    found: dict[str, float] = {}
    for name, (least, most) in _SETTINGS.items():
        value = said.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if least <= value <= most:  # which NaN is not
            found[name] = int(value) if name == "top_k" else float(value)
    if said.get("do_sample") is False:
        found["temperature"] = 0.0
    return found


def transformers_tokenizer(folder: Path) -> Any:
    """transformers' tokenizer of the model in *folder*, also where transformers refuses its
    configuration, or its tokenizer is code and there is a tokenizer.json beside; with the chat
    template that transformers gives to the model's processor."""
    inner = _loaded(folder)
    file = folder / _TEMPLATE_FILE
    if inner.chat_template is None and file.exists():
        inner.chat_template = _template_of(read_json(file).get("chat_template"), file)
    return inner


def longest_token(rules: Mapping[str, Any], alphabet: Collection[str]) -> float:
    """The most characters that one token can stand for, by the *rules* of a fast tokenizer (its
    ``tokenizer.json``); infinity if they set no bound. *alphabet* has the characters that stand for
    bytes in a byte-level vocabulary.

    Tokenising takes microseconds and hundreds of bytes for each character. With this bound, a text
    that can never fit is refused by its length alone. It is exact arithmetic over the parts that
    are known not to drop or merge characters without limit. Where a part may do so there is no
    bound: an unknown word that becomes one token, a normalizer that collapses spaces, an added
    token that swallows the spaces beside it.
    """
    added = rules.get("added_tokens") or []
    model = rules.get("model") or {}
    steps = rules.get("pre_tokenizer"), rules.get("normalizer")
    entries = model.get("vocab") or ()
    words = {entry if isinstance(entry, str) else entry[0] for entry in entries}
    words |= {token["content"] for token in added}
    if (
        not words
        or any(token.get("lstrip") or token.get("rstrip") for token in added)
        or not _keeps(steps[0])
        or not (_knows_bytes(model, steps, words, alphabet) or _shows_unknown(model))
    ):
        return math.inf
    return max(1, *map(len, words)) * _merged(steps[1])


def _calls_read(
    format: CallFormat, text: str, tools: Sequence[Mapping[str, Any]]
) -> list[ParsedCall]:
    """The calls in *text*, which is all of a call in *format*. Raises `ValueError`."""
    if format.reader is None:
        raise ValueError("no reader")
    kinds = value_kinds(tools, nested=format.nested)
    reading = Reading(format.reader, kinds, format.start, format.end)
    calls: list[ParsedCall] = []
    parts: list[str] = []
    for part in reading.add(text) + reading.end():
        match part:
            case CallStart(name, id):
                calls.append(ParsedCall(name, "", id))
                parts = []
            case CallPart(more):
                parts.append(more)
            case CallEnd():
                calls[-1] = attrs.evolve(calls[-1], arguments="".join(parts))
    if not calls:
        raise ValueError("no call of a tool that there is")
    return calls


def _unknown(call: ParsedCall) -> ParsedCall:
    """*call*, of a function that there is not, as a text."""
    text = f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'
    return ParsedCall("", text)


def _tool_call(call: Mapping[str, Any]) -> ParsedCall:
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str):
        raise TypeError("a function's name is a text")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    parsed = ParsedCall(name, arguments, str(call.get("id") or ""))
    for text in attrs.astuple(parsed):
        text.encode()  # lone surrogates, which JSON can carry, are no text (a ValueError)
    return parsed


def _own_code(folder: Path) -> str:
    """The class of the model's own that is to be its tokenizer; empty if there is none."""
    file = folder / "tokenizer_config.json"
    classes = read_json(file).get("auto_map") if file.exists() else None
    named = classes.get("AutoTokenizer") if isinstance(classes, dict) else classes
    names = named if isinstance(named, list) else [named]
    return next((name for name in names if isinstance(name, str)), "")


def _template_of(value: Any, file: Path) -> str | dict[str, str]:
    """The chat template that *file* has as *value*, or several by name. Raises `LoadError`."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        value = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
    texts = [*value, *value.values()] if isinstance(value, dict) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise LoadError(f"{file} has no text, nor texts by name, for chat_template")
    return dict(value)


def _loaded(folder: Path) -> Any:
    import transformers  # noqa: PLC0415 - a second, only here

    check_tokenizer(folder)
    local = {"local_files_only": True, "trust_remote_code": False}
    if _own_code(folder):  # tokenizer.json says all that the code would do
        return transformers.PreTrainedTokenizerFast.from_pretrained(folder, **local)
    settings = read_json(folder / "config.json")
    kind = str(settings.get("model_type", ""))
    # Its class would refuse what mlx-lm takes, such as null for a size, and make an object of each
    # thing that it counts. The tokenizer needs to know which class it is, and no value but one.
    try:
        config = transformers.CONFIG_MAPPING[kind]()
    except Exception:  # noqa: BLE001  an unknown kind, or one that cannot be without values
        config = type("UncheckedConfig", (transformers.PreTrainedConfig,), {"model_type": kind})()
    config.tokenizer_class = settings.get("tokenizer_class")
    return transformers.AutoTokenizer.from_pretrained(folder, config=config, **local)


def _described(inner: Any) -> dict[str, Any] | None:
    """What a fast tokenizer is made of; None for a slow one."""
    backend = getattr(inner, "backend_tokenizer", None)
    return None if backend is None else dict(json.loads(backend.to_str()))


def _check_words(inner: Any) -> None:
    words = inner.get_vocab().values()
    if max(words, default=0) > 2 * len(words) + _GAPS:
        raise ValueError(f"it has {len(words):,} words, and one of them has id {max(words):,}")


def _special(described: dict[str, Any] | None) -> frozenset[int]:
    added = (described or {}).get("added_tokens") or ()
    return frozenset(token["id"] for token in added if token.get("special"))


def _longest(described: dict[str, Any] | None) -> float:
    return math.inf if described is None else longest_token(described, byte_alphabet().keys())


def _own_template(inner: Any) -> Any:
    name = inner.init_kwargs.get("chat_template_type")
    return without_mlx(f"chat_templates.{name}").apply_chat_template if name else None


def _template_text(inner: Any) -> str:
    template = inner.chat_template or ""
    return template if isinstance(template, str) else "\n".join(map(str, template.values()))


def _tool_format(helpers: ModuleType, inner: Any) -> ToolFormat | None:
    """How the model writes calls, as its folder names it or its template shows; None if neither
    says it."""
    settings = inner.init_kwargs
    name = settings.get("tool_parser_type") or settings.get("chat_template_type")
    format = format_named(str(name)) if name else None
    if format is None and not settings.get("tool_parser_type"):
        format = call_format(_template_text(inner), inner.get_vocab())
    if format is not None:
        return ToolFormat.of(format)
    # mlx-lm looks at one template only; there may be several, such as one for tools.
    shown = SimpleNamespace(chat_template=_template_text(inner), get_vocab=inner.get_vocab)
    name = settings.get("tool_parser_type") or helpers._infer_tool_parser(shown)
    if name is None:
        return None
    parser = without_mlx(f"tool_parsers.{name}")
    return ToolFormat(parser.tool_call_start, parser.tool_call_end, name, parser.parse_tool_call)


def _think(format: CallFormat | None, inner: Any, wrapped: Any) -> tuple[str, str]:
    if format is not None and format.whole:
        return CHANNEL
    marks = thought_marks(_template_text(inner), inner.get_vocab())
    return marks or (wrapped.think_start or "", wrapped.think_end or "")


def _ends(format: CallFormat | None, inner: Any) -> frozenset[int]:
    """The tokens that end an answer in *format*, beside those that the folder names."""
    if format is None or not format.whole:
        return frozenset()
    known = inner.get_vocab()
    return frozenset(int(known[mark]) for mark in ("<|return|>", "<|call|>") if mark in known)


def _no_stream(_inner: Any) -> None:
    """In place of mlx-lm's detokenizers, which may go back over what they gave out."""


def _knows_bytes(
    model: Mapping[str, Any],
    steps: Iterable[Mapping[str, Any] | None],
    words: Collection[str],
    alphabet: Collection[str],
) -> bool:
    """Whether the vocabulary has a token for every byte, so that no text has an unknown part."""
    if model.get("type") not in ("BPE", "Unigram"):
        return False
    if model.get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in words for byte in range(256))
    return any(map(_to_bytes, steps)) and all(char in words for char in alphabet)


def _to_bytes(step: Mapping[str, Any] | None) -> bool:
    if step is None:
        return False
    parts = step.get("pretokenizers") or step.get("normalizers") or ()
    return step["type"] == "ByteLevel" or any(map(_to_bytes, parts))


def _shows_unknown(model: Mapping[str, Any]) -> bool:
    """Whether each unknown character has a token of its own, or makes the tokenizer fail."""
    if model.get("type") == "BPE":
        return model.get("unk_token") is not None and not model.get("fuse_unk")
    return model.get("type") == "Unigram" and model.get("unk_id") is None


def _keeps(step: Mapping[str, Any] | None) -> bool:
    """Whether a pre-tokenizer leaves no character out."""
    if step is None or step.get("type") in _KEEPING:
        return True
    if step["type"] == "Sequence":
        return all(map(_keeps, step["pretokenizers"]))
    return step["type"] in ("Split", "Punctuation") and step.get("behavior") != "Removed"


def _merged(step: Mapping[str, Any] | None) -> float:
    """How many characters a normalizer makes into one, at most."""
    if step is None or step["type"] == "Prepend":
        return 1
    match step["type"]:
        case "Sequence":
            return math.prod(map(_merged, step["normalizers"]))
        case "NFC" | "NFKC":
            return _COMPOSED
        case "NFD" | "NFKD" | "ByteLevel":
            return 1
        case "Replace" if (literal := step["pattern"].get("String")) and step["content"]:
            return max(1.0, len(literal) / len(step["content"]))
        case _:
            return math.inf
