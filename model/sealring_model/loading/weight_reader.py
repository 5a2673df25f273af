"""Reads and verifies the tensors of one rank, layer by layer.

mlx-lm builds a model from arrays that are read when they are evaluated. `WeightReader.placeholders`
keeps those of this rank. Every other tensor becomes a placeholder that costs nothing, and that no
layer of this rank may depend on: its value is not a number, which the first run would show.

`WeightReader.read` then goes through the layers. It reads a layer's tensors, verifies them (it
hashes the memory that the weights are made from), evaluates what the model makes of them, and lets
the rest go. So a load never holds more than the rank's weights and one layer.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

import mlx.core as mx
from mlx import nn

from sealring_model.errors import LoadError, ReadError
from sealring_model.loading.model_folder import ModelInfo
from sealring_model.loading.weights import ENDS, owner
from sealring_model.stage.tensors import memory_of


class WeightReader:
    """Reads the tensors of layers *first* to *last* (excluded), and of the ends if *first* is 0.
    *bytes_read* is how much that was."""

    def __init__(self, info: ModelInfo, first: int, last: int) -> None:
        self._info: Final = info
        self._owned: Final[dict[int, list[str]]] = {layer: [] for layer in range(first, last)}
        if first == 0:
            self._owned[ENDS] = []
        for name in info.entries:
            self._owned.get(owner(name, len(info.layers)), []).append(name)
        self._unread: dict[str, mx.array] = {}
        self.bytes_read = 0

    def placeholders(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """*weights*, which are not evaluated, with a placeholder for each of another rank."""
        owned = {name for names in self._owned.values() for name in names}
        self._unread = {name: lazy for name, lazy in weights.items() if name in owned}
        return {**placeholders(weights), **self._unread}

    def read(self, model: nn.Module) -> None:
        """Read the weights of *model*, which was built from `placeholders`.

        Raises `LoadError` if a tensor does not match the manifest, and `ReadError` if a file ends
        too early.
        """
        modules: dict[int, list[nn.Module]] = {}
        for path, module in model.named_modules():
            modules.setdefault(owner(f"{path}.", len(self._info.layers)), []).append(module)
        for layer, names in self._owned.items():
            self._read(names)
            mx.eval([kept for module in modules.get(layer, ()) for kept in _own_copies(module)])
            for name in names:
                del self._unread[name]
            mx.clear_cache()

    def _read(self, names: Sequence[str]) -> None:
        try:
            mx.eval([self._unread[name] for name in names])
        except RuntimeError as error:  # MLX's, for a file that has become shorter
            raise ReadError(f"reading the weights failed: {error}") from None
        for name in names:
            self.bytes_read += self._info.entries[name].size
            if self._info.manifest is not None:
                self._verify(name, self._unread[name], self._info.manifest.get(name, ""))

    def _verify(self, name: str, tensor: mx.array, expected: str) -> None:
        content = memory_of(tensor).cast("B") if tensor.nbytes else b""
        if not hmac.compare_digest(expected, hashlib.sha256(content).hexdigest()):
            raise LoadError(f"tensor {name} does not match the manifest")


def placeholders(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """A placeholder for each of *weights*, which are not evaluated."""
    return {name: _absent(lazy) for name, lazy in weights.items()}


def _absent(lazy: mx.array) -> mx.array:
    """A placeholder for a tensor of another rank: like *lazy*, and never evaluated."""
    if mx.issubdtype(lazy.dtype, mx.floating):
        return mx.full(lazy.shape, float("nan"), lazy.dtype)
    return mx.zeros(lazy.shape, lazy.dtype)


def _own_copies(module: nn.Module) -> list[mx.array]:
    """*module*'s own parameters, each made to hold no more memory than it needs."""
    kept = []
    for name, value in list(module.items()):
        if isinstance(value, mx.array) and not name.startswith("_"):
            module[name] = mx.contiguous(value)
            kept.append(module[name])
    return kept
