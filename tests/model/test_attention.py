"""Attention of a decode with a mask, as one kernel, on machines that have CUDA."""

import time

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring_model.stage import attention
from sealring_model.stage.attention import attend, few, few_masked, fits

SCALE = 0.09
GOOD = {"rows": 3, "groups": 2, "queries": 4, "length": 37, "width": 128, "dtype": mx.bfloat16}


def made(rows=3, groups=2, queries=4, length=37, width=128, dtype=mx.bfloat16, seed=0):
    """Queries, and keys and values as they stand in a cache that has room for more."""
    key = mx.random.split(mx.random.key(seed), 3)
    room = length + 11
    return (
        mx.random.normal((rows, groups * queries, 1, width), key=key[0]).astype(dtype),
        mx.random.normal((rows, groups, room, width), key=key[1]).astype(dtype)[..., :length, :],
        mx.random.normal((rows, groups, room, width), key=key[2]).astype(dtype)[..., :length, :],
    )


def padded(rows, length, pads):
    """The mask of left-padded rows."""
    return mx.arange(length)[None, None, None] >= mx.array(pads[:rows])[:, None, None, None]


def expected(queries, keys, values, mask):
    """In f32, by hand."""
    times = queries.shape[1] // keys.shape[1]
    keys, values = (mx.repeat(x.astype(mx.float32), times, axis=1) for x in (keys, values))
    scores = (queries.astype(mx.float32)[:, :, :, None] * keys[:, :, None]).sum(-1) * SCALE
    weights = mx.softmax(mx.where(mask, scores, -mx.inf), axis=-1)
    return (weights[..., None] * values[:, :, None]).sum(-2)


def close(found, wanted, dtype):
    return mx.abs(found.astype(mx.float32) - wanted).max() < (
        0.02 if dtype == mx.bfloat16 else 4e-3
    )


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize(
    ("queries", "width"), [(1, 64), (4, 128), (8, 128), (7, 64), (16, 64), (4, 256), (1, 256)]
)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 190])
def test_it_is_what_it_is_by_hand(dtype, queries, width, length):
    of = made(queries=queries, width=width, dtype=dtype, length=length)
    mask = padded(3, length, [0, length - 1, length // 2])
    assert fits(*of, mask)
    assert close(attend(*of, SCALE, mask), expected(*of, mask), dtype)


@pytest.mark.cuda
def test_many_rows_and_keys():
    of = made(rows=32, groups=8, length=2000)
    mask = padded(32, 2000, [61 * row for row in range(32)])
    assert close(attend(*of, SCALE, mask), expected(*of, mask), mx.bfloat16)


@pytest.mark.cuda
def test_one_mask_for_all_rows_and_holes_in_it():
    of = made(rows=4, length=90)
    for mask in (padded(1, 90, [20]), mx.arange(90)[None, None, None] % 3 == 1):
        assert close(attend(*of, SCALE, mask), expected(*of, mask), mx.bfloat16)
    broadcast = mx.broadcast_to(mask, (4, 1, 1, 90))
    assert close(attend(*of, SCALE, broadcast), expected(*of, mask), mx.bfloat16)


@pytest.mark.cuda
def test_arrays_may_be_laid_out_in_any_way():
    queries, keys, values = made(rows=4, length=50)
    mask = padded(4, 50, [3, 0, 9, 49])
    wanted = expected(queries, keys, values, mask)
    turned = [
        mx.contiguous(queries.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
        mx.contiguous(keys.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2),
        mx.contiguous(values.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3),
    ]
    column = mx.contiguous(mask.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0)
    assert close(attend(*turned, SCALE, column), wanted, mx.bfloat16)


@pytest.mark.cuda
def test_a_row_that_sees_nothing_gives_zeros_and_disturbs_nobody():
    of = made(rows=2, length=40)
    mask = padded(2, 40, [40, 7])
    found = attend(*of, SCALE, mask)
    assert not found[0].astype(mx.float32).any()
    assert close(found[1], expected(*of, mask)[1], mx.bfloat16)


@pytest.mark.cuda
def test_keys_need_not_begin_where_much_can_be_read_at_once():
    queries, keys, values = made(length=50)
    mask = padded(3, 50, [3, 0, 9])
    for at in (1, 4, 9):
        of = (queries[..., :64], keys[..., at : at + 64], values[..., at : at + 64])
        assert close(attend(*of, SCALE, mask), expected(*of, mask), mx.bfloat16)


@pytest.mark.cuda
@pytest.mark.parametrize("wrong", [mx.nan, mx.inf])
def test_what_is_not_a_number_stays_none(wrong):
    """Nothing plausible is made of it. Other rows and heads have nothing to do with it."""
    queries, keys, values = made(length=50)
    mask = padded(3, 50, [3, 0, 9])
    there = (mx.arange(3) == 1)[:, None, None, None] & (mx.arange(2) == 0)[None, :, None, None]
    bad = there & (mx.arange(50) == 30)[None, None, :, None]
    of = (mx.abs(queries), mx.where(bad, mx.array(wrong, keys.dtype), keys), values)
    found = attend(*of, SCALE, mask).astype(mx.float32)
    none = mx.isnan(found)
    assert none[1, :4].all()
    assert none.sum().item() == 4 * 128
    wanted = expected(mx.abs(queries), keys, values, mask)
    assert close(mx.where(none, 0.0, found), mx.where(none, 0.0, wanted), mx.bfloat16)


@pytest.mark.cuda
def test_scores_far_apart_do_not_overflow():
    queries, keys, values = made(rows=2, length=70)
    of = (queries * 100, keys * 100, values)
    mask = padded(2, 70, [0, 30])
    assert close(attend(*of, SCALE, mask), expected(*of, mask), mx.bfloat16)


@pytest.mark.cuda
def test_once_installed_models_use_it_where_it_fits(monkeypatch):
    """And MLX's own elsewhere."""
    theirs = mx.fast.scaled_dot_product_attention
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", theirs)
    used = []
    monkeypatch.setattr(attention, "attend", lambda *of: used.append(of) or attend(*of))
    attention.install.cache_clear()
    attention.install()
    attention.install()  # does nothing more
    used.clear()  # it has been tried
    of = made()
    mask = padded(3, 37, [0, 5, 9])
    found = mx.fast.scaled_dot_product_attention(*of, scale=SCALE, mask=mask)
    assert close(found, theirs(*of, scale=SCALE, mask=mask).astype(mx.float32), mx.bfloat16)
    assert len(used) == 1
    for mask in (None, "causal"):
        mx.eval(mx.fast.scaled_dot_product_attention(*of, scale=SCALE, mask=mask))
    assert len(used) == 1


@pytest.fixture
def installed(monkeypatch):
    """Attention as an engine has it."""
    theirs = mx.fast.scaled_dot_product_attention
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", theirs)
    attention.install.cache_clear()
    attention.install()


@pytest.mark.cuda
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("tokens", [2, 3, 5, 9, 17])
@pytest.mark.parametrize("width", [64, 128])
def test_a_few_tokens_are_read_in_causal_order(tokens, width):
    for length in (tokens, tokens + 1, 200):
        _, keys, values = made(rows=1, width=width, length=length)
        queries = mx.random.normal((1, 8, tokens, width)).astype(mx.bfloat16)
        assert few(queries, keys, values, "causal")
        found = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=SCALE, mask="causal"
        )
        for at in range(tokens):
            mask = (mx.arange(length) <= length - tokens + at)[None, None, None]
            wanted = expected(queries[:, :, at : at + 1], keys, values, mask)
            assert close(found[:, :, at : at + 1], wanted, mx.bfloat16)


@pytest.mark.parametrize(
    ("change", "tokens", "mask", "does"),
    [
        ({}, 1, "causal", False),
        ({}, 2, "causal", True),
        ({}, 17, "causal", True),
        ({}, 18, "causal", False),
        ({"length": 5}, 5, "causal", True),
        ({"length": 4}, 5, "causal", False),
        ({"length": 9000}, 5, "causal", True),
        ({"rows": 2}, 5, "causal", False),
        ({"dtype": mx.float32}, 5, "causal", False),
        ({}, 5, None, False),
        ({}, 5, mx.ones((1, 1, 5, 37), mx.bool_), False),
    ],
)
def test_what_counts_as_a_few_tokens(change, tokens, mask, does):
    queries, keys, values = made(**GOOD | {"rows": 1} | change)
    assert few(mx.repeat(queries, tokens, axis=2), keys, values, mask) is does


@pytest.mark.cuda
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("tokens", [1, 2, 9, 17])
@pytest.mark.parametrize("width", [64, 128])
def test_a_few_tokens_see_what_their_mask_says(tokens, width):
    _, keys, values = made(rows=1, width=width, length=300)
    queries = mx.random.normal((1, 8, tokens, width)).astype(mx.bfloat16)
    mask = mx.arange(300) <= (mx.arange(tokens) * 7 + 100)[:, None]
    assert few_masked(queries, keys, values, mask)
    found = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=SCALE, mask=mask)
    for at in range(tokens):
        wanted = expected(queries[:, :, at : at + 1], keys, values, mask[None, None, at])
        assert close(found[:, :, at : at + 1], wanted, mx.bfloat16)


@pytest.mark.parametrize(
    ("change", "tokens", "mask", "does"),
    [
        ({}, 5, mx.ones((5, 37), mx.bool_), True),
        ({}, 1, mx.ones((1, 37), mx.bool_), True),
        ({}, 18, mx.ones((18, 37), mx.bool_), False),
        ({}, 5, mx.ones((4, 37), mx.bool_), False),
        ({}, 5, mx.ones((5, 36), mx.bool_), False),
        ({}, 5, mx.ones((5, 37), mx.bfloat16), False),
        ({}, 5, "causal", False),
        ({"rows": 2}, 5, mx.ones((5, 37), mx.bool_), False),
        ({"dtype": mx.float32}, 5, mx.ones((5, 37), mx.bool_), False),
    ],
)
def test_what_counts_as_a_few_tokens_with_a_mask(change, tokens, mask, does):
    queries, keys, values = made(**GOOD | {"rows": 1} | change)
    assert few_masked(mx.repeat(queries, tokens, axis=2), keys, values, mask) is does


@pytest.mark.cuda
def test_where_it_does_not_compile_nothing_is_installed(monkeypatch):
    def refused(*_):
        raise RuntimeError("no compiler")

    theirs = mx.fast.scaled_dot_product_attention
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", theirs)
    monkeypatch.setattr(attention, "attend", refused)
    attention.install.cache_clear()
    attention.install()
    assert mx.fast.scaled_dot_product_attention is theirs


@pytest.mark.parametrize(
    ("change", "does"),
    [
        ({}, True),
        ({"dtype": mx.float16}, True),
        ({"dtype": mx.float32}, False),
        ({"width": 64}, True),
        ({"width": 96}, False),
        ({"width": 256}, True),
        ({"queries": 8}, True),
        ({"queries": 9}, False),
        ({"queries": 8, "width": 256}, False),
        ({"length": 32 * 6}, True),
        ({"length": 32 * 6 + 1}, False),
        ({"rows": 1, "length": 64}, True),
    ],
)
def test_what_it_can_do(change, does):
    of = made(**GOOD | change)
    rows, length = of[0].shape[0], of[1].shape[2]
    assert fits(*of, padded(rows, length, [0] * rows)) is does


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 1, 1, 37), mx.float32),
        ((3, 8, 1, 37), mx.bool_),
        ((37,), mx.bool_),
        ((2, 1, 1, 37), mx.bool_),
        ((3, 1, 1, 36), mx.bool_),
    ],
)
def test_masks_that_it_does_not_take(shape, dtype):
    assert not fits(*made(**GOOD), mx.ones(shape, dtype))


@pytest.mark.parametrize("mask", [None, "causal"])
def test_masks_that_are_no_arrays(mask):
    assert not fits(*made(**GOOD), mask)


def test_it_is_for_one_token_and_keys_like_values():
    queries, keys, values = made(**GOOD)
    mask = padded(3, 37, [0, 0, 0])
    assert fits(queries, keys, values, mask)
    assert not fits(mx.concatenate([queries, queries], axis=2), keys, values, mask)
    assert not fits(queries, keys, values[..., :64], mask)
    assert not fits(queries, keys, values.astype(mx.float16), mask)
    assert not fits(queries[:, :7], keys, values, mask)
    assert not fits(queries, keys[:, :, :0], values[:, :, :0], mask[..., :0])


@pytest.mark.skipif(mx.cuda.is_available(), reason="is installed there")
def test_nothing_is_installed_without_cuda():
    theirs = mx.fast.scaled_dot_product_attention
    attention.install.cache_clear()
    attention.install()
    assert mx.fast.scaled_dot_product_attention is theirs


@given(length=st.integers(1, 100_000), data=st.data())
def test_blocks_are_the_tokens_in_order(length, data):
    tokens = data.draw(st.integers(1, length))
    found = list(attention.blocks(tokens, length))
    assert [of.first for of in found] == [length - tokens, *(of.last for of in found[:-1])]
    assert found[-1].last == length
    for of in found:
        size = of.end - of.begin
        assert of.begin <= of.first < of.last <= of.end
        assert of.begin % size == 0
        assert size <= (512 if of.end <= 16_384 else 1024) or of.end <= 2048


def test_blocks_are_few():
    """Each has a plan, which takes as long as hundreds of uses, and MLX keeps 256 of them."""
    rows = [attention.blocks(n, n) for n in (*range(1, 2049), 131_072)]
    found = {(of.begin, of.end) for row in rows for of in row}
    whole = [(0, size) for size in (32, 64, 128, 256, 512, 1024, 1536, 2048)]
    near = [(begin, begin + 512) for begin in range(512, 16_384, 512)]
    far = [(begin, begin + 1024) for begin in range(16_384, 131_072, 1024)]
    assert found == {*whole, *near, *far}
    assert len(found) < 256


PLANNED = [
    (2, 2),
    (23, 23),
    (18, 500),
    (500, 500),
    (512, 1300),
    (500, 1301),
    (1500, 1601),
    (40, 2500),
]


@pytest.mark.cuda
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("tokens", "length"), PLANNED)
def test_tokens_of_any_number_are_as_they_are_without_others_around_them(tokens, length, rows):
    _, keys, values = made(rows=rows, length=length)
    queries = mx.random.normal((rows, tokens, 8, 128)).astype(mx.bfloat16).transpose(0, 2, 1, 3)
    assert attention.is_planned(queries, keys, values, "causal")
    theirs = mx.fast.scaled_dot_product_attention
    shapes = []

    def seen(*of, **others):
        shapes.append((of[0].shape[2], of[1].shape[2]))
        return theirs(*of, **others)

    found = attention.attend_planned(seen, queries, keys, values, scale=SCALE)
    assert shapes == [(of.end - of.begin, of.end) for of in attention.blocks(tokens, length)]
    assert found.shape == queries.shape
    wanted = theirs(queries, keys, values, scale=SCALE, mask="causal")
    assert close(found, wanted.astype(mx.float32), mx.bfloat16)


@pytest.mark.cuda
@pytest.mark.usefixtures("installed")
def test_a_length_that_is_new_needs_no_plan():
    """A plan takes tens of milliseconds, and the plans of usual lengths are made at first."""
    took = []
    for length in (500, 490, 480, 471, 460, 455):
        _, keys, values = made(rows=1, groups=8, length=length)
        queries = mx.random.normal((1, length, 32, 128)).astype(mx.bfloat16).transpose(0, 2, 1, 3)
        mx.eval(queries, keys, values)
        began = time.perf_counter()
        found = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=SCALE, mask="causal"
        )
        mx.eval(found)
        took.append(time.perf_counter() - began)
    assert max(took[1:]) < 0.02
