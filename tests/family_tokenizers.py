"""Tokenizers and chat templates as families have them, made small."""

from __future__ import annotations

import functools
import io
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import sentencepiece
from sealring_model.text.tokens import Tokenizer
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Builder

CORPUS = [
    "The quick brown fox and the lazy dog. <b>What</b> is [this]? im_end |> <| end think user",
    "def main(args):\n    return {'name': args[0], \"x\": 1.5}\n\n\n  Grüße, 世界! 🦊 naïve café",
    "system user assistant tool_call tool_response INST start_of_turn eot_id channel message",
] * 4

CHATML = """
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}<tools>
{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{%- if content.startswith('<tool_response>') and content.endswith('</tool_response>') %}
{{- '<|tool_user|>' }}{% endif %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{%- set thoughts = '' %}
{%- if message.reasoning_content is string %}{% set thoughts = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}
{{- '<|im_start|>assistant\n' }}
{%- if thoughts %}{{ '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' }}{% endif %}
{{- content.lstrip('\n') }}
{%- for tool_call in message.tool_calls or [] %}{% set tool_call = tool_call.function %}
{{- '\n<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
{{- tool_call.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + content + '\n</tool_response><|im_end|>\n' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

LLAMA = """{{- bos_token }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}
{%- set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
{{- message.content | tojson if message.content is mapping else message.content }}<|eot_id|>
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}{% endif %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' }}
{{- message.tool_calls[0].function.name + '", "parameters": ' }}
{{- message.tool_calls[0].function.arguments | tojson }}}<|eot_id|>
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
{{- message.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}
{%- if tools %}{{ tools | tojson(indent=4) }}{% endif %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

MISTRAL = """
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}
{%- set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
{%- if not (message.role == 'tool' or message.tool_calls is defined) %}
{%- if (message.role == 'user') != (ns.index % 2 == 0) %}
{{- raise_exception('After the optional system message, conversation roles must alternate') }}
{%- endif %}{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
{%- if message.role == 'user' %}
{%- if tools and loop.last %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{%- if loop.last and system is defined %}{{ '[INST]' + system + '\n\n' + message.content }}
{%- else %}{{ '[INST]' + message.content }}{% endif %}{{ '[/INST]' }}
{%- elif message.tool_calls %}{{ '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}{{ ']' + eos_token }}
{%- elif message.role == 'assistant' %}{{ message.content + eos_token }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]{"content": ' + (message.content | tojson) + '}[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('Only user, assistant and tool roles are supported!') }}{% endif %}
{%- endfor %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = 'model' if message.role == 'assistant' else message.role %}
{{- '<start_of_turn>' + role + '\n' + message.content | trim + '<end_of_turn>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

HARMONY = """
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- if '<|channel|>analysis<|message|>' in (message.content or '') %}
{{- raise_exception('You have passed a message containing <|channel|> tags in the content.') }}
{%- endif %}
{%- if message.thinking %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{% endif %}
{%- if message.tool_calls %}
{{- '<|start|>assistant to=functions.' + message.tool_calls[0].function.name }}
{{- '<|channel|>commentary json<|message|>' + message.tool_calls[0].function.arguments | tojson }}
{{- '<|call|>' }}{% set ns = message.tool_calls[0].function.name %}
{%- else %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}{% endif %}
{%- elif message.role == 'tool' %}
{{- '<|start|>functions.x to=assistant<|channel|>commentary<|message|>' }}
{{- message.content | tojson + '<|end|>' }}
{%- else %}
{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- for tool in tools or [] %}{{ '// ' + (tool.function.description or '') + '\ntype ' }}
{{- tool.function.name + ' = (_: {\n' }}
{%- for name, spec in (tool.function.parameters.properties or {}).items() %}
{{- name + ': ' + (spec.type if spec.type in ['string', 'number'] else 'any') + ',\n' }}{% endfor %}
{{- '}) => any;\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

DEEPSEEK = """{{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ message.content }}
{%- elif message.role == 'user' %}{{ '<｜User｜>' + message.content }}
{%- elif message.role == 'tool' %}
{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
{%- elif message.tool_calls %}
{{- '<｜Assistant｜><｜tool▁call▁begin｜>' + message.tool_calls[0].function.name }}
{{- '<｜tool▁sep｜>' ~ message.tool_calls[0].function.arguments ~ '<｜tool▁call▁end｜>' }}
{%- else %}
{%- set content = message.content %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}
{%- for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"""


def words(text: str) -> tuple[str, ...]:
    """Those that *text* lists."""
    return tuple(text.split())


@attrs.frozen
class Kind:
    """A family's *template*; its tokenizer's *special* tokens, those added that are not so but
    *plain*, and *text*, which are no marks; and how it is *built*."""

    template: str
    special: tuple[str, ...] = attrs.field(converter=words)
    plain: tuple[str, ...] = attrs.field(default="", converter=words)
    text: tuple[str, ...] = ()
    built: Callable[[], Builder] = attrs.field(kw_only=True)
    normalized: bool = False

    @property
    def marks(self) -> list[str]:
        """What must not come from a text."""
        return [*self.special, *self.plain]


def byte_level(*, split: str = "", ignore_merges: bool = False) -> Builder:
    """Byte-level BPE, as of GPT-2, with a *split* as of Llama 3."""
    builder = Builder(models.BPE(ignore_merges=ignore_merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)
    builder.pre_tokenizer = level  # type: ignore[assignment]
    if split:
        cut = pre_tokenizers.Split(Regex(split), "isolated")
        builder.pre_tokenizer = pre_tokenizers.Sequence([cut, level])  # type: ignore[assignment]
    builder.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    builder.train_from_iterator(CORPUS, trainer)
    return builder


LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def llama() -> Builder:
    builder = byte_level(split=LLAMA_SPLIT, ignore_merges=True)
    bos = ("<|begin_of_text|>", 10_000)
    builder.post_processor = processors.Sequence(  # type: ignore[assignment]
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[bos]),
        ]
    )
    return builder


def chatml() -> Builder:
    builder = byte_level()
    builder.normalizer = normalizers.NFC()  # type: ignore[assignment]
    builder.post_processor = processors.ByteLevel(trim_offsets=True)  # type: ignore[assignment]
    return builder


def byte_fallback(before: str) -> Builder:
    """BPE over characters with a token for each byte. Spaces become ``▁`` by a *before*: a
    pre-tokenizer that puts one before the first text, or a normalizer."""
    builder = Builder(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    space = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    if before == "metaspace":
        builder.pre_tokenizer = space  # type: ignore[assignment]
    else:
        replace = normalizers.Replace(" ", "▁")
        prepend = [normalizers.Prepend("▁")] if before == "prepend" else []
        builder.normalizer = normalizers.Sequence([*prepend, replace])  # type: ignore[assignment]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=tokens, show_progress=False)
    builder.train_from_iterator([text.replace(" ", "▁") for text in CORPUS], trainer)
    described = json.loads(builder.to_str())
    described["added_tokens"] = described["added_tokens"][:1]
    builder = Builder.from_str(json.dumps(described))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if before != "replace":
        steps.append(decoders.Strip(" ", 1, 0))
    builder.decoder = decoders.Sequence(steps)  # type: ignore[assignment]
    return builder


@functools.cache
def piece_model(kind: str, symbols: tuple[str, ...] = ()) -> bytes:
    """A model of SentencePiece's, of *kind* unigram or bpe."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=made,
        model_type=kind,
        vocab_size=480 if kind == "bpe" else 400,
        byte_fallback=True,
        hard_vocab_limit=False,
        character_coverage=1.0,
        user_defined_symbols=list(symbols),
        normalization_rule_name="nmt_nfkc" if kind == "unigram" else "identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        num_threads=1,
    )
    return made.getvalue()


def unigram() -> Builder:
    """Unigram whose model knows the marks as pieces, and whose normalizer is NFKC."""
    letters = sorted({*"".join(CORPUS).replace(" ", "▁"), *"▁\n"})
    words = ["▁the", "▁fox", "▁and", "end", "im", "<|im_start|>", "<|im_end|>", "<think>"]
    pieces = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -20.0) for byte in range(256))]
    pieces += [(letter, -9.0) for letter in letters] + [(word, -2.0) for word in words]
    builder = Builder(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    builder.normalizer = normalizers.NFKC()  # type: ignore[assignment]
    builder.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")  # type: ignore[assignment]
    builder.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])  # type: ignore[assignment]
    return builder


QWEN = "<|im_start|> <|im_end|> <|endoftext|> <|tool_user|>"
QWEN_PLAIN = (
    "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response> <|fim_prefix|>"
)
MISTRAL_MARKS = (
    "<s> </s> [INST] [/INST] [TOOL_CALLS] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS]"
)
DEEPSEEK_PLAIN = (
    "<｜User｜> <｜Assistant｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> "
    "<｜tool▁output▁begin｜> <｜tool▁output▁end｜> <think> </think>"
)

KINDS = {
    "chatml": Kind(CHATML, QWEN, QWEN_PLAIN, built=chatml),
    "chatml, unigram": Kind(CHATML, QWEN, QWEN_PLAIN, built=unigram, normalized=True),
    "chatml, prepend": Kind(
        CHATML, QWEN, QWEN_PLAIN, built=functools.partial(byte_fallback, "prepend")
    ),
    "llama": Kind(
        LLAMA,
        "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|>",
        built=llama,
    ),
    "mistral": Kind(MISTRAL, MISTRAL_MARKS, built=functools.partial(byte_fallback, "metaspace")),
    "gemma": Kind(
        GEMMA,
        "<bos> <eos> <start_of_turn> <end_of_turn>",
        "<unused0>",
        ("\n\n", "▁▁", "<b>", "</b>"),
        built=functools.partial(byte_fallback, "replace"),
    ),
    "harmony": Kind(
        HARMONY, "<|start|> <|end|> <|message|> <|channel|> <|call|> <|return|>", built=byte_level
    ),
    "deepseek": Kind(
        DEEPSEEK,
        "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜>",
        DEEPSEEK_PLAIN,
        built=byte_level,
        normalized=True,
    ),
}


def saved(builder: Builder, kind: Kind, folder: Path) -> None:
    """*builder* as the tokenizer of *folder*, with the tokens and the template of *kind*."""
    for token in kind.special:
        builder.add_special_tokens([AddedToken(token, normalized=False, special=True)])
    for token in (*kind.plain, *kind.text):
        builder.add_tokens([AddedToken(token, normalized=kind.normalized, special=False)])
    described = json.loads(builder.to_str())
    ids = {token["content"]: token["id"] for token in described["added_tokens"]}
    for step in (described.get("post_processor") or {}).get("processors", ()):
        for name, told in step.get("special_tokens", {}).items():
            told["ids"] = [ids[name]]
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "tokenizer_config.json").write_text(json.dumps(config(kind)))
    (folder / "config.json").write_text("{}")


def config(kind: Kind) -> dict[str, Any]:
    """The settings of its tokenizer."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": kind.special[0],
        "eos_token": kind.special[1],
        "chat_template": kind.template,
        "clean_up_tokenization_spaces": False,
    }


@functools.cache
def tokenizer(name: str) -> Tokenizer:
    """That of a kind."""
    with tempfile.TemporaryDirectory() as folder:
        saved(KINDS[name].built(), KINDS[name], Path(folder))
        return Tokenizer(Path(folder))


def count(ids: Iterable[int], tokenizer: Tokenizer, marks: Iterable[str]) -> list[int]:
    """Those of *ids* that stand for *marks*."""
    known = tokenizer.ids()
    control = {known[mark] for mark in marks}
    return [token for token in ids if token in control]
