"""Multi-token prediction: no class of mlx-lm keeps such layers. A newer one that does fails here.

`docs/models.md` has the table. A model's own prediction layers would be a third source of guesses,
beside look-up and a draft model (`Node.guess`).
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from mlx.utils import tree_flatten
from sealring_model.mlx_lm_import import model_loader

ROOT = Path(__file__).parents[2]
CONFIGS: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/families/configs.json").read_text())

DROP = {
    "bailing_hybrid",
    "bailing_moe_v3",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v41",
    "ernie4_5_moe",
    "exaone_moe",
    "glm4_moe",
    "glm4_moe_lite",
    "kimi_k3",
    "kimi_linear",
    "longcat_flash",
    "mimo",
    "mimo_v2_flash",
    "nemotron_h",
    "qwen3_5",
    "qwen3_next",
    "step3p5",
}
"""The classes of mlx-lm that name such layers in their source."""

INHERIT = {"glm_moe_dsa", "kimi_k25", "longcat_flash_ngram", "qwen3_5_moe"}
"""Those that leave it to one of them."""

_NAMED = re.compile(r"mtp|nextn|mpt_layer|multi.token.prediction", re.IGNORECASE)


def test_these_are_the_classes_that_name_such_layers() -> None:
    spec = find_spec("mlx_lm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]) / "models"
    assert {file.stem for file in folder.glob("*.py") if _NAMED.search(file.read_text())} == DROP


def test_the_table_tells_of_all_of_them() -> None:
    text = (ROOT / "docs/models.md").read_text()
    part = text.partition("## Layers that predict further tokens")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", part)) >= DROP | INHERIT


@pytest.mark.parametrize("family", sorted((DROP | INHERIT) & CONFIGS.keys()))
def test_none_has_a_module_for_them(family: str) -> None:
    """Not even if the configuration asks for some."""
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers")
    config = {**CONFIGS[family], **dict.fromkeys(keys, 1)}
    found, arguments = model_loader()._get_classes(config)
    model = found(arguments.from_dict(config))
    beyond = f"layers.{len(model.layers)}."
    for name, _ in tree_flatten(model.parameters()):
        assert not _NAMED.search(name)
        assert beyond not in name
