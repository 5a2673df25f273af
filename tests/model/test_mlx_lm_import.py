"""The doors to mlx_lm, each in a process of its own, as what has been imported stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(*lines: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", "\n".join(lines)], check=True)


def test_importing_mlx_lm_leaves_the_limits_alone() -> None:
    run(
        "import resource",
        "before = resource.getrlimit(resource.RLIMIT_NOFILE)",
        "from sealring_model.mlx_lm_import import mlx_lm, model_loader",
        "model_loader()",
        "mlx_lm('utils')",
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == before",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))",
        "assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64",
    )


def test_an_engine_imports_no_tokenizers_and_nothing_of_the_hub() -> None:
    run(
        "import sys, sealring_model.engine.main",
        "from sealring_model import tiny",
        "from sealring_model.loading.assemble import load_stage",
        "from sealring_model.loading.model_folder import describe",
        "info = describe(tiny.path())",
        "load_stage(info, 0, len(info.layers))",
        "found = {name.split('.')[0] for name in sys.modules}",
        "assert 'mlx_lm' in found",
        "assert not found & {'transformers', 'tokenizers', 'huggingface_hub'}, found",
    )


def test_mlx_lm_is_whole_for_whoever_else_uses_it() -> None:
    run(
        "from sealring_model.mlx_lm_import import model_loader",
        "ours, _ = model_loader()._get_classes({'model_type': 'llama'})",
        "import mlx_lm",
        "try:",
        "    mlx_lm.nothing",
        "except AttributeError as error:",
        "    assert 'nothing' in str(error)",
        "from mlx_lm import generate, load",
        "from mlx_lm.models.llama import Model",
        "assert Model is ours and callable(generate) and callable(load)",
        "import huggingface_hub",
        "assert callable(huggingface_hub.snapshot_download)",
    )


def test_a_tokenizer_does_not_import_pytorch(tmp_path: Path) -> None:
    """Where PyTorch is installed transformers would import it, and a text worker has not the memory
    for its libraries."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch is imported')")
    (tmp_path / "torch-2.99.0.dist-info").mkdir()
    (tmp_path / "torch-2.99.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.99.0\n"
    )
    run(
        "import sys",
        f"sys.path.insert(0, {str(tmp_path)!r})",
        "import importlib.util",
        "from sealring_model import tiny",
        "from sealring_model.text.tokens import Tokenizer",
        "assert Tokenizer(tiny.path()).encode('hello')",
        "assert 'torch' not in sys.modules",
        "assert importlib.util.find_spec('torch') is not None",
    )


def test_a_tokenizer_does_not_read_the_source_of_every_model() -> None:
    """As transformers does when it is imported whole, which takes as long as the rest of it."""
    run(
        "import sys",
        "opened = []",
        "sys.addaudithook(lambda event, about: event == 'open' and opened.append(str(about[0])))",
        "from sealring_model import tiny",
        "from sealring_model.text.tokens import Tokenizer",
        "assert Tokenizer(tiny.path()).encode('hello')",
        "models = [name for name in opened if '/transformers/models/' in name]",
        "assert any('tokenization_auto' in name for name in models)",
        "assert not any('bert' in name for name in models), models",
    )


def test_transformers_is_whole_for_whoever_else_uses_it() -> None:
    run(
        "from sealring_model import tiny",
        "from sealring_model.text.tokens import Tokenizer",
        "assert Tokenizer(tiny.path()).encode('hello')",
        "import transformers as early",
        "from transformers import AutoTokenizer, __version__",
        "assert not hasattr(early, '__nothing__')",
        "from transformers import BertConfig, BertTokenizerFast",
        "import transformers",
        "assert transformers.__version__ == __version__ == early.__version__",
        "assert transformers.AutoTokenizer is AutoTokenizer is early.AutoTokenizer",
        "assert early.BertConfig is transformers.BertConfig is BertConfig",
        "from transformers.models import bert",
        "assert bert.BertConfig is transformers.models.BertConfig is BertConfig",
        "try:",
        "    early.nothing",
        "except AttributeError as error:",
        "    assert 'nothing' in str(error)",
        "else:",
        "    raise AssertionError",
        "assert Tokenizer(tiny.path()).encode('hello')",
    )


def test_a_release_of_transformers_that_has_its_tokenizers_elsewhere_is_imported_whole() -> None:
    run(
        "import sys",
        "from sealring_model import mlx_lm_import, tiny",
        "from sealring_model.text.tokens import Tokenizer",
        "homes = mlx_lm_import._TRANSFORMERS['transformers']",
        "homes |= {'AutoTokenizer': 'nowhere', 'PreTrainedTokenizerFast': 'configuration_utils'}",
        "assert Tokenizer(tiny.path()).encode('hello')",
        "assert sys.modules['transformers'].BertConfig",
    )


def test_nothing_is_imported_to_find_that_there_is_no_tokenizer(tmp_path: Path) -> None:
    """An engine asks for one as it starts."""
    run(
        "import sys, pathlib",
        "from sealring_model.errors import LoadError",
        "from sealring_model.text.grammars import grammar_tokenizer",
        "try:",
        f"    grammar_tokenizer(pathlib.Path({str(tmp_path)!r}), 100)",
        "except LoadError as error:",
        "    assert 'has no tokenizer.json' in str(error)",
        "assert 'llguidance' in sys.modules and 'transformers' not in sys.modules",
    )
