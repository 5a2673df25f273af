"""Chat templates as families have them, and tokenizers whose every word is a token.

The templates are short, and do what matters to prefixes as the families' own do it: how an answer
is opened, and which thoughts of earlier answers they drop.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models

WORDS: Final = tuple(f"w{number:02}." for number in range(80))
"""What messages are made of."""

_PLAIN = ("\n", "system", "developer", "user", "assistant", "model", "tool", "thought")
_CHANNELS = ("analysis", "commentary", "final", "functions")
_LAST = (
    "{%- set n = namespace(last=-1) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{%- set n.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
)
_SYSTEM = (
    "{%- for tool in tools or [] -%}{{ tool.function.description }}{%- endfor -%}"
    "{%- if messages[0].role == 'system' -%}{{ messages[0].content }}{%- endif -%}"
)


def _chatml(thinks: str) -> str:
    """Qwen's, which shows the thoughts of answers where *thinks* holds."""
    return (
        _LAST + "{{- '<|im_start|>system\n' -}}" + _SYSTEM + "{{- '<|im_end|>\n' -}}"
        "{%- if messages[-1].role == 'system' -%}{{ raise_exception('no user') }}{%- endif -%}"
        "{%- for m in messages -%}"
        "{%- if m.role == 'user' -%}{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' -}}"
        "{%- elif m.role == 'tool' -%}{{- '<|im_start|>user\n<tool_response>' + m.content"
        " + '</tool_response><|im_end|>\n' -}}"
        "{%- elif m.role == 'assistant' -%}{{- '<|im_start|>assistant\n' -}}"
        "{%- if " + thinks + " -%}"
        "{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' -}}{%- endif -%}"
        "{{- m.content -}}{%- for call in m.tool_calls or [] -%}"
        "{{- '<tool_call>' + call.function.name + '</tool_call>' -}}{%- endfor -%}"
        "{{- '<|im_end|>\n' -}}{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n<think>\n' -}}{%- endif -%}"
    )


_GEMMA = (
    "{{- '<bos><|turn>system\n' -}}" + _SYSTEM + "{{- '<turn|>\n' -}}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'user' -%}{{- '<|turn>user\n' + m.content + '<turn|>\n' -}}"
    "{%- elif m.role == 'tool' -%}{{- '<|turn>tool\n' + m.content + '<turn|>\n' -}}"
    "{%- elif m.role == 'assistant' -%}{{- '<|turn>model\n' + m.content -}}"
    "{%- for call in m.tool_calls or [] -%}"
    "{{- '<|tool_call>' + call.function.name + '<tool_call|>' -}}{%- endfor -%}"
    "{{- '<turn|>\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|turn>model\n<|channel>thought\n' -}}{%- endif -%}"
)

_HARMONY = (
    _LAST + "{{- '<|start|>system<|message|>' -}}" + _SYSTEM + "{{- '<|end|>' -}}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'user' -%}{{- '<|start|>user<|message|>' + m.content + '<|end|>' -}}"
    "{%- elif m.role == 'tool' -%}{{- '<|start|>functions<|channel|>commentary<|message|>'"
    " + m.content + '<|end|>' -}}"
    "{%- elif m.role == 'assistant' -%}"
    "{%- if m.tool_calls -%}{%- if m.reasoning_content and loop.index0 > n.last -%}"
    "{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.reasoning_content + '<|end|>' -}}"
    "{%- endif -%}{{- '<|start|>assistant<|channel|>commentary<|message|>'"
    " + m.tool_calls[0].function.name + '<|call|>' -}}"
    "{%- else -%}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' -}}"
    "{%- endif -%}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}"
)

_R1 = (
    "{{- '<bos>' -}}" + _SYSTEM + "{%- for m in messages -%}"
    "{%- if m.role == 'user' -%}{{- '<user>' + m.content -}}"
    "{%- elif m.role == 'tool' -%}{{- '<tool_output>' + m.content -}}"
    "{%- elif m.role == 'assistant' -%}"
    "{{- '<assistant>' + m.content.split('</think>')[-1] -}}"
    "{%- for call in m.tool_calls or [] -%}"
    "{{- '<tool_call>' + call.function.name + '</tool_call>' -}}{%- endfor -%}"
    "{{- '<eos>' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<assistant><think>\n' -}}{%- endif -%}"
)

_QWEN_MARKS = (
    *("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
TEMPLATES: Final = {
    "Qwen3.5": (_chatml("loop.index0 > n.last"), _QWEN_MARKS),
    "Qwen3.6": (_chatml("true"), _QWEN_MARKS),
    "Gemma 4": (
        _GEMMA,
        ("<bos>", "<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|channel>"),
    ),
    "gpt-oss": (
        _HARMONY,
        ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>"),
    ),
    "thoughts dropped": (
        _R1,
        (
            *("<bos>", "<eos>", "<user>", "<assistant>", "<tool_output>"),
            *("<think>", "</think>", "<tool_call>", "</tool_call>"),
        ),
    ),
}
"""By family, its chat template and its special tokens."""


def write_tokenizer(folder: Path, family: str) -> Path:
    """The tokenizer and the template of *family*, in *folder*, for fewer than 128 ids."""
    template, marks = TEMPLATES[family]
    words = ["<unk>", *_PLAIN, *_CHANNELS, *WORDS]
    vocabulary = {word: number for number, word in enumerate([*words, *marks])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.decoder = decoders.Fuse()
    made.add_tokens([AddedToken(word, normalized=False) for word in words[1:]])
    made.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in marks])
    made.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        **({"eos_token": "<eos>"} if "<eos>" in marks else {}),
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
        "tool_parser_type": "json_tools",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
