"""A real model whose every answer is known: a llama whose weights map each token to the next.

Embeddings are one-hot, attention and MLP add nothing, and the output head holds the table; so the
token after any other is certain, in any engine, and a whole script can be played by asking for its
first word. It is loaded, split, run and sampled like every other model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models

END = "<end>"

# A call that is held to its schema is forced in part, so its words are those that the forced text
# has in this vocabulary.
CALL = [
    '{"name": "get_weather", ',
    '"arguments": ',
    "{",
    '"city": "Paris"}',
    "}",
    "</tool_call>",
    END,
]

SCRIPTS = [
    # What the prompt ends with, and what follows.
    ["weather", "<tool_call>", *CALL],
    ["think", "<think>", "\nI ponder.", "\n", "</think>", "\n\n", "The answer.", END],
    ["fruit", "apple", " ban", "ana", " cherry", END],
    ["endless", "la", "la"],
    ["nothing", END],
]

TEMPLATE = (
    "{% for message in messages %}"
    "{% for tool_call in message.tool_calls or [] %}<tool_call>{{ tool_call.name }}"
    "{% endfor %}{{ message.content }}{% endfor %}"
)

CONTEXT = 1 << 20


def build(folder: Path, scripts: Sequence[Sequence[str]] = SCRIPTS) -> Path:
    """The model that plays *scripts*, in *folder*."""
    words = ["<unk>", *sorted({word for script in scripts for word in script})]
    ids = {word: number for number, word in enumerate(words)}
    size = len(words)
    follows = np.zeros((size, size), np.float32)
    for script in scripts:
        for word, after in pairwise(script):
            follows[ids[after], ids[word]] = 50
    hidden = -(-size // 4) * 4
    _write_weights(folder, size, hidden, follows)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": hidden,
        "intermediate_size": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "eos_token_id": ids[END],
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder, words)
    return folder


def _write_weights(folder: Path, size: int, hidden: int, follows: np.ndarray) -> None:
    def nearly_zero(*shape: int) -> np.ndarray:
        """What adds nothing, and is no part of a file that is missing either."""
        return np.full(shape, 1e-20, np.float32)

    head = np.zeros((size, hidden), np.float32)
    head[:, :size] = follows
    weights = {
        "model.embed_tokens.weight": np.eye(size, hidden, dtype=np.float32),
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": head,
    }
    for layer in range(2):
        name = f"model.layers.{layer}"
        weights |= {
            f"{name}.self_attn.q_proj.weight": nearly_zero(4, hidden),
            f"{name}.self_attn.k_proj.weight": nearly_zero(4, hidden),
            f"{name}.self_attn.v_proj.weight": nearly_zero(4, hidden),
            f"{name}.self_attn.o_proj.weight": nearly_zero(hidden, 4),
            f"{name}.mlp.gate_proj.weight": nearly_zero(4, hidden),
            f"{name}.mlp.up_proj.weight": nearly_zero(4, hidden),
            f"{name}.mlp.down_proj.weight": nearly_zero(hidden, 4),
            f"{name}.input_layernorm.weight": np.ones(hidden, np.float32),
            f"{name}.post_attention_layernorm.weight": np.ones(hidden, np.float32),
        }
    save_file(weights, folder / "model.safetensors", {"format": "mlx"})


def _write_tokenizer(folder: Path, words: list[str]) -> None:
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words[1:]])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
