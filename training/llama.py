"""The tiny model's shape, and a plain llama to train it with.

The names of the weights are those of the Hugging Face layout, so what is trained here is what
``mlx_lm`` loads. There is no cache: training sees whole rows.
"""

from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import silu
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm

from training.vocabulary import SIZE

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 160, 8, 8, 4, 16, 320
EPS, THETA, CONTEXT = 1e-5, 10_000.0, 2048
END_ID = 0


def config() -> dict[str, Any]:
    """Return config.json of the trained model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "eos_token_id": END_ID,
        "torch_dtype": "float32",
    }


class Attention(Module):
    """Causal attention with rotary positions and shared KV heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def __call__(self, x: mx.array) -> Any:
        """Let every position read those before it."""
        rows, length, _ = x.shape

        def heads(y: mx.array) -> mx.array:
            return y.reshape(rows, length, -1, HEAD_DIM).transpose(0, 2, 1, 3)

        def turned(y: mx.array) -> mx.array:
            return mx.fast.rope(
                heads(y), HEAD_DIM, traditional=False, base=THETA, scale=1.0, offset=0
            )

        mixed = mx.fast.scaled_dot_product_attention(
            turned(self.q_proj(x)),
            turned(self.k_proj(x)),
            heads(self.v_proj(x)),
            scale=HEAD_DIM**-0.5,
            mask="causal",
        )
        return self.o_proj(mixed.transpose(0, 2, 1, 3).reshape(rows, length, -1))


class Mlp(Module):
    """The gated feed-forward part of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = Linear(HIDDEN, INNER, bias=False)
        self.up_proj = Linear(HIDDEN, INNER, bias=False)
        self.down_proj = Linear(INNER, HIDDEN, bias=False)

    def __call__(self, x: mx.array) -> Any:
        """Work on every position alone."""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(Module):
    """One layer: attention, then the feed-forward part, each on a normed residual."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.mlp = Mlp()
        self.input_layernorm = RMSNorm(HIDDEN, eps=EPS)
        self.post_attention_layernorm = RMSNorm(HIDDEN, eps=EPS)

    def __call__(self, x: mx.array) -> Any:
        """Add both parts to the residual."""
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(Module):
    """Embedding, layers and the last norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = Embedding(SIZE, HIDDEN)
        self.layers = [Layer() for _ in range(LAYERS)]
        self.norm = RMSNorm(HIDDEN, eps=EPS)


class Llama(Module):
    """The whole model; the embedding also makes the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Body()

    def __call__(self, tokens: mx.array) -> Any:
        """Return the logits after every token."""
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x)
        return self.model.embed_tokens.as_linear(self.model.norm(x))
