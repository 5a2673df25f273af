"""Text to token ids and back, for the process that faces clients.

The tokenizer is the model's own, through transformers; the streaming detokenizers are mlx-lm's,
which give out text in whole characters and in time linear in the tokens. mlx-lm's package imports
MLX as soon as it is touched, and a node's daemon does without, so its one module of tokenizer
helpers is loaded from its file alone.

Importing this module costs nothing; making the first `Tokenizer` imports transformers (1.3 s).
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from sealring_model.errors import LoadError
from sealring_model.weights import read_json

_SPM: Final = ["Replace", "ByteFallback", "Fuse"]


@functools.cache
def _helpers() -> ModuleType:
    """mlx-lm's ``tokenizer_utils``, without the package around it."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    package = importlib.util.find_spec("mlx_lm")
    if package is None or not package.submodule_search_locations:
        raise LoadError("mlx-lm is not installed")
    file = Path(package.submodule_search_locations[0]) / "tokenizer_utils.py"
    spec = importlib.util.spec_from_file_location("sealring_model._tokenizer_utils", file)
    if spec is None or spec.loader is None:
        raise LoadError("this mlx-lm has no tokenizer_utils")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Detokenizer:
    """The text of one answer, piece by piece, in whole characters."""

    def __init__(self, streaming: Any) -> None:
        self._streaming = streaming

    def add(self, token: int) -> str:
        """The text that *token* completes; often one word, sometimes none."""
        self._streaming.add_token(token)
        return str(self._streaming.last_segment)

    def finish(self) -> str:
        """The text that was held back, when no token follows."""
        self._streaming.finalize()
        return str(self._streaming.last_segment)


class Tokenizer:
    """The tokenizer of the model in a folder.

    Raises `LoadError` when the folder has none that transformers can load.
    """

    def __init__(self, folder: Path) -> None:
        helpers = _helpers()
        try:
            inner = helpers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise LoadError(f"the tokenizer of {folder} cannot be loaded: {error}") from None
        self._inner: Final[Any] = helpers.TokenizerWrapper(inner, _streaming_class(helpers, folder))
        self.eos: Final = _eos_ids(folder) | frozenset(self._inner.eos_token_ids)
        self.has_chat: Final = bool(self._inner.has_chat_template)

    def encode(self, text: str) -> list[int]:
        """The ids of *text*, with the special tokens that the model expects around it."""
        return [int(token) for token in self._inner.encode(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of *ids*."""
        return str(self._inner.decode(list(ids)))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids of a conversation up to where the model's answer begins.

        *messages* have ``role`` and ``content``. A model without a chat template gets their
        contents as lines. Raises `ValueError` when the template does not take them.
        """
        if not self.has_chat:
            return self.encode("\n".join(message["content"] for message in messages))
        from jinja2.exceptions import TemplateError  # noqa: PLC0415 - transformers brings it

        try:
            ids = self._inner.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True
            )
        except TemplateError as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from None
        return [int(token) for token in ids]

    def stream(self) -> Detokenizer:
        """A detokenizer for one answer."""
        return Detokenizer(self._inner.detokenizer)


def _eos_ids(folder: Path) -> frozenset[int]:
    """The ids that end an answer, as the model's generation settings or configuration say."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        value = read_json(file).get("eos_token_id") if file.exists() else None
        if isinstance(value, int):
            return frozenset((value,))
        if isinstance(value, list) and value:
            return frozenset(int(token) for token in value)
    return frozenset()


def _streaming_class(helpers: ModuleType, folder: Path) -> Any:
    """mlx-lm's detokenizer that fits the tokenizer's decoder; the naive one fits all."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return helpers.NaiveStreamingDetokenizer
    decoder = json.loads(file.read_text("utf-8")).get("decoder") or {}
    steps = [step.get("type") for step in decoder.get("decoders", ())]
    if decoder.get("type") == "ByteLevel":
        return helpers.BPEStreamingDetokenizer
    if steps == _SPM:
        return functools.partial(helpers.SPMStreamingDetokenizer, trim_space=False)
    if steps == [*_SPM, "Strip"]:
        return helpers.SPMStreamingDetokenizer
    return helpers.NaiveStreamingDetokenizer
