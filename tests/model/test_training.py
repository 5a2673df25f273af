"""What the tiny model was made with still makes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sealring_model import tiny

from training import vocabulary


@pytest.mark.long
def test_the_corpus_gives_the_tokenizer_that_ships(tmp_path: Path) -> None:
    vocabulary.save(vocabulary.build(60_000, 1), tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (tiny.path() / name).read_bytes()
