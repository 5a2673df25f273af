"""The yardstick of a verification: mlx-lm's whole model, watched, and sealring's parts of it."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from sealring_model.loading.model_folder import describe
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.verify import CheckedRow, RowNumbers, WatchedModel, by_stage, differences
from test_adapter import adapter

from tests.families.checkpoints import write
from tests.rows import rows

TOKENS = tuple((7 * i * i + 3 * i) % 251 for i in range(120))
ROWS = [
    CheckedRow(TOKENS, 110, ((1, 2),) * 10),
    CheckedRow(TOKENS[:5], 1, ((1, 2),) * 4),
]
FAMILIES = {"llama": (0, 1, 4), "gemma4": (0, 3, 4, 10), "kimi_k3": (0, 2, 4), "rwkv7": (0, 2, 4)}
"""By family, where it is cut."""


@pytest.fixture(scope="module", params=rows([*FAMILIES], "gemma4"))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("yardstick") / request.param, request.param)


def test_a_row_is_read_like_mlx_lm_reads_it_and_otherwise() -> None:
    row = CheckedRow(tuple(range(2100)), 2098, ((),) * 2)
    assert list(map(len, row.pieces())) == [2048, 49, 1, 1]
    assert [token for piece in row.pieces() for token in piece] == [*range(2099)]
    otherwise = list(row.pieces(otherwise=True))
    assert [token for piece in otherwise for token in piece] == [*range(2099)]
    assert set(map(len, otherwise[:-1])) == {96}
    assert [row.drawn(at) for at in (2096, 2097, 2098)] == [None, 0, 1]


def far(one: RowNumbers, other: RowNumbers) -> float:
    """The farthest that any number of two readings differs."""
    pairs = [
        *zip(one.cuts, other.cuts, strict=True),
        *zip(one.logits, other.logits, strict=True),
    ]
    found = [
        differences(a.reshape(-1, 3), b.reshape(-1, 3)).max().item()
        for a, b in pairs
        if a is not None and b is not None
    ]
    assert found
    return max(float(each) for each in found)


def test_the_whole_model_and_its_parts_tell_the_same(family: Path) -> None:
    bounds = FAMILIES[family.name]
    whole = WatchedModel(family, None, bounds)
    parts = by_stage(describe(family), bounds, ROWS, lambda *_: None)
    for row, (part, part_otherwise) in zip(ROWS, parts, strict=True):
        numbers = whole.numbers(row)
        assert [cut.shape[1] for cut in numbers.cuts if cut is not None] == [
            len(row.tokens) - 1
        ] * (len(bounds) - 1)
        assert len(numbers.logits) == len(numbers.scores) == len(row.tokens) - row.prompt
        assert far(numbers, part) < 1e-5
        assert [each["best"] for each in numbers.scores] == [each["best"] for each in part.scores]
        assert far(whole.numbers(row, otherwise=True), part_otherwise) < 1e-5


def test_watching_changes_nothing(family: Path) -> None:
    """The scores are of mlx-lm's own log probabilities."""
    row = ROWS[0]
    model = mlx_lm("utils").load_model(family)[0]
    cache = mlx_lm("models.cache").make_prompt_cache(model)
    scores = WatchedModel(family, None, FAMILIES[family.name]).numbers(row).scores
    position = 0
    for piece in row.pieces():
        logits = model(mx.array([piece]), cache=cache)[0, -1]
        position += len(piece)
        if (number := row.drawn(position - 1)) is not None:
            logprobs = logits - mx.logsumexp(logits)
            told = scores[number]
            assert told["best"] == mx.argmax(logits).item()
            assert told["chosen"] == pytest.approx(logprobs[row.tokens[position]].item(), abs=1e-5)
            assert told["values"] == pytest.approx(logprobs[mx.array([1, 2])].tolist(), abs=1e-5)


def test_an_adapter_is_used(tmp_path: Path) -> None:
    model = write(tmp_path / "llama", "llama")
    used = adapter(model, tmp_path / "adapter", dropout=0.5)
    bounds = FAMILIES["llama"]
    plain = WatchedModel(model, None, bounds).numbers(ROWS[0])
    adapted = WatchedModel(model, used, bounds).numbers(ROWS[0])
    assert far(plain, adapted) > 1e-2
    ((parts, _),) = by_stage(describe(model, used), bounds, ROWS[:1], lambda *_: None)
    assert far(adapted, parts) < 1e-5


def test_one_part_alone_has_no_cuts(tmp_path: Path) -> None:
    model = write(tmp_path / "llama", "llama")
    whole = WatchedModel(model, None, (0, 4)).numbers(ROWS[0])
    ((parts, otherwise),) = by_stage(describe(model), (0, 4), ROWS[:1], lambda *_: None)
    assert whole.cuts == parts.cuts == []
    assert far(whole, parts) < 1e-5
    assert len(otherwise.logits) == len(parts.logits)
