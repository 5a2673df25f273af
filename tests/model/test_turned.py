"""On a CPU under Linux matrices lie as they are multiplied, which changes no bit."""

import mlx.core as mx
import pytest
from mlx import nn
from sealring_model.stage import turned as module
from sealring_model.stage.turned import TurnedLinear, is_reference_blas, turn_weight, turned

ON_A_CPU = pytest.mark.skipif(not is_reference_blas(), reason="for a CPU under Linux")


class Odd(nn.Linear):
    """Does something else with its bias."""

    def __call__(self, inputs):
        return (inputs - self["bias"][0]) @ self["weight"].T


def strides(array):
    mx.eval(array)
    return memoryview(array).strides


def test_a_turned_array_has_the_same_values():
    array = mx.random.normal((2, 3, 5, 7))
    found = turned(array)
    assert mx.array_equal(found, array)
    assert strides(found)[-2:] == (4, 20)


@ON_A_CPU
@pytest.mark.parametrize("tokens", [1, 2, 5, 17, 64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [(512, 256), (64, 64), (100, 37), (7, 2)])
def test_a_linear_layer_gives_the_same_bits(tokens, bias, widths):
    layer = nn.Linear(*widths, bias=bias)
    inputs = mx.random.normal((2, tokens, widths[0]))
    wanted = layer(inputs)
    mx.eval(wanted)
    assert turn_weight(layer)
    assert turn_weight(layer)  # a layer at two paths of a model
    assert isinstance(layer, nn.Linear)
    assert isinstance(layer, TurnedLinear) is bias
    assert strides(layer.weight) == (4, 4 * widths[1])
    assert mx.array_equal(layer(inputs), wanted)


@ON_A_CPU
def test_an_embedding_that_is_the_output_head_too_gives_the_same_bits():
    layer = nn.Embedding(100, 64)
    ids, hidden = mx.array([[3, 99, 0]]), mx.random.normal((1, 5, 64))
    wanted = layer(ids), layer.as_linear(hidden)
    mx.eval(wanted)
    assert turn_weight(layer)
    assert mx.array_equal(layer(ids), wanted[0])
    assert mx.array_equal(layer.as_linear(hidden), wanted[1])


@pytest.mark.parametrize(
    "layer",
    [
        Odd(8, 8),
        nn.Conv1d(4, 4, 3),
        nn.RMSNorm(8),
        nn.QuantizedLinear(64, 64, bias=False),
        nn.SiLU(),
    ],
)
def test_other_layers_stay_as_they_are(layer):
    kind = type(layer)
    assert not turn_weight(layer)
    assert type(layer) is kind


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_other_types_stay_as_they_are(dtype):
    layer = nn.Linear(8, 16)
    layer.set_dtype(dtype)
    assert not turn_weight(layer)
    assert strides(layer.weight) == (16, 2)


def masks(rows, tokens, length):
    seen = mx.random.uniform(shape=(rows, 1, tokens, length)) < 0.7
    return {
        "none": None,
        "causal": "causal",
        "bool": seen,
        "added": mx.where(seen, 0.0, -1e9).astype(mx.float32),
    }


@ON_A_CPU
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added"])
@pytest.mark.parametrize("tokens", [1, 7, 8, 33])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
def test_attention_gives_the_same_bits(monkeypatch, mask, tokens, heads, kv_heads):
    rows, length, width = 2, 40, 64
    queries = mx.random.normal((rows, tokens, heads, width)).swapaxes(1, 2)
    room = [mx.random.normal((rows, kv_heads, 64, width)) for _ in range(2)]
    keys, values = (each[:, :, :length] for each in room)
    how = {"scale": 0.125, "mask": masks(rows, tokens, length)[mask]}
    attend = module.attention(mx.fast.scaled_dot_product_attention)
    found = attend(queries, keys, values, **how)
    mx.eval(found)
    monkeypatch.setattr(module, "pays", lambda _: False)  # where another test has installed it, too
    assert mx.array_equal(found, mx.fast.scaled_dot_product_attention(queries, keys, values, **how))


@ON_A_CPU
def test_keys_are_turned_for_eight_tokens_or_more(monkeypatch):
    seen = []

    def theirs(queries, keys, values, **_):
        seen.append(strides(keys)[-2:])
        return values

    attend = module.attention(theirs)
    keys = mx.random.normal((1, 2, 40, 64))
    for tokens in (1, 7, 8):
        queries = mx.random.normal((1, 2, tokens, 64))
        attend(queries, keys, keys, scale=1.0)
    half = keys.astype(mx.bfloat16)
    attend(queries.astype(mx.bfloat16), half, half, scale=1.0)
    assert seen == [(256, 4), (256, 4), (4, 160), (128, 2)]
