"""A pipeline stage of any mlx-lm model: layers ``first`` to ``last`` of it, and nothing else.

mlx-lm's models know nothing of stages. Each builds its masks from ``cache[some index]``, loops over
``layers`` with its own kinds and patterns, and then applies its final norm. So a stage keeps the
model's shape and replaces parts:

- The list of layers keeps its full length. A layer of another rank becomes a `_Passthrough`, which
  returns its input and keeps the plain attributes of the original.
- On a later rank the first owned layer takes the hidden states that came in, and ignores its
  argument. The embedding gives zeros of the right length, which nothing reads.
- The final norm becomes the identity, because hidden states leave a stage before it.
- The list of caches keeps its full length, too. The entry of a layer of another rank is an owned
  layer's cache of the same class and window, so that masks come out right. Where there is none, it
  is a cache of its own that stays empty and whose mask nobody reads.

Rank 0 closes the ring: it has the embedding, the norm and the output head. Its head is a second
view of the same model, in which every layer passes its input on and the last layer gives the hidden
states that came back. So whatever a family does after its layers (scaling, soft caps) is done, too.

Arrays are batch first: token ids ``(rows, tokens)``, hidden states ``(rows, tokens, hidden)``,
logits ``(rows, vocabulary)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from sealring_model.errors import LoadError
from sealring_model.loading.mlx_lm_import import mlx_lm

_NORMS: Final = ("norm", "ln_f", "final_layernorm", "norm_f", "final_norm", "embedding_norm")


_NOTHING: Final = mx.array(0.0)


class _Passthrough(nn.Module):
    """In place of a layer: returns its input, and keeps the layer's plain attributes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name, value in {**vars(layer), **layer}.items():
            if isinstance(value, int | float | str | tuple | None) and not hasattr(self, name):
                setattr(self, name, value)

    def __call__(self, hidden: mx.array, *_: Any, **__: Any) -> mx.array:
        return hidden


class _StageInput:
    """Holds the received hidden states for the layer that takes them."""

    def __init__(self) -> None:
        self.hidden = _NOTHING

    @contextmanager
    def holding(self, hidden: mx.array) -> Iterator[None]:
        """Within the block *hidden* is there to be taken; afterwards nothing keeps its memory."""
        self.hidden = hidden
        try:
            yield
        finally:
            self.hidden = _NOTHING


class _Source(_Passthrough):
    """In place of the last layer, in the head: gives the hidden states that came back."""

    def __init__(self, layer: nn.Module, stage_input: _StageInput) -> None:
        super().__init__(layer)
        self._stage_input = stage_input

    def __call__(self, *_: Any, **__: Any) -> mx.array:
        return self._stage_input.hidden


class _Identity(nn.Module):
    """In place of the final norm."""

    def __call__(self, hidden: mx.array) -> mx.array:
        return hidden


class _Zeros(nn.Module):
    """In place of the embedding, on a rank that has none."""

    def __init__(self, hidden: int, dtype: mx.Dtype) -> None:
        super().__init__()
        self._hidden = hidden
        self._dtype = dtype

    def __call__(self, tokens: mx.array) -> mx.array:
        return mx.zeros((*tokens.shape, self._hidden), self._dtype)


def _receiving(layer: nn.Module, stage_input: _StageInput) -> nn.Module:
    """*layer*, its class changed to take its first argument from *stage_input*."""
    kind: Any = type(layer)

    def call(self: Any, _: mx.array, *args: Any, **kwargs: Any) -> Any:
        return kind.__call__(self, stage_input.hidden, *args, **kwargs)

    layer.__class__ = type(kind.__name__, (kind,), {"__call__": call})
    return layer


def _twin(module: nn.Module, **parts: Any) -> nn.Module:
    """A second module with the attributes of *module*, some replaced by *parts*."""
    kind: Any = type(module)
    twin: nn.Module = kind.__new__(kind)
    dict.update(twin, module)
    vars(twin).update(vars(module))
    dict.update(twin, parts)
    return twin


def _body(model: nn.Module) -> tuple[tuple[str, ...], str]:
    """The path of the module that runs *model*'s layers, and its name for their list."""
    if len(_prototypes(model)) != len(model.layers):
        raise LoadError(f"{type(model).__module__} shares caches among layers; it cannot be split")
    first = model.layers[0]
    waiting: list[tuple[tuple[str, ...], nn.Module]] = [((), model)]
    while waiting:
        path, module = waiting.pop(0)
        for name, value in module.items():
            if isinstance(value, list) and value and value[0] is first:
                return path, name
            if isinstance(value, nn.Module):
                waiting.append(((*path, name), value))
    raise LoadError(f"{type(model).__module__} keeps its layers where they cannot be split")


def _prototypes(model: nn.Module) -> list[Any]:
    """Fresh caches for one row of the whole model."""
    return list(mlx_lm("models.cache").make_prompt_cache(model))


def _at(model: nn.Module, path: Sequence[str]) -> Any:
    module: Any = model
    for name in path:
        module = module[name]
    return module


def _with(model: nn.Module, path: Sequence[str], module: nn.Module) -> nn.Module:
    """A second view of *model*, with *module* at *path*."""
    if not path:
        return module
    return _twin(model, **{path[0]: _with(model[path[0]], path[1:], module)})


class Layout:
    """Where a stage's caches stand in the full-length list that the model takes.

    A stage keeps one cache per *slot*: one for each owned layer in order, then one empty stand-in
    for each kind of cache that only other ranks have.
    """

    def __init__(self, prototypes: Sequence[Any], first: int, last: int) -> None:
        by_kind: dict[tuple[Any, ...], int] = {}
        places: dict[int, int] = {}
        picked: list[int] = list(range(first, last))
        for slot, layer in enumerate(picked):
            by_kind.setdefault(_kind(prototypes[layer]), slot)
            places[layer] = slot
        for layer, cache in enumerate(prototypes):
            if layer not in places:
                slot = by_kind.setdefault(_kind(cache), len(picked))
                if slot == len(picked):
                    picked.append(layer)
                places[layer] = slot
        self.picked: Final = tuple(picked)
        self.owned: Final = last - first
        self._places: Final = tuple(places[layer] for layer in range(len(prototypes)))

    def spread(self, slots: Sequence[Any]) -> list[Any]:
        """The full-length list, with each of *slots* in all its places."""
        return [slots[place] for place in self._places]


def _kind(cache: Any) -> tuple[Any, ...]:
    """Two caches of the same kind (class and window) give the same mask."""
    return type(cache), getattr(cache, "max_size", None), getattr(cache, "chunk_size", None)


class Stage:
    """One rank's part of a model."""

    def __init__(self, model: nn.Module, first: int, last: int) -> None:
        self._model = model
        prototypes = self._make_caches()
        self.layout: Final = Layout(prototypes, first, last)
        for cache in prototypes:
            if not hasattr(type(cache), "merge"):
                raise LoadError(f"{type(cache).__name__} caches cannot be batched")

    def _make_caches(self) -> list[Any]:
        return _prototypes(self._model)

    def new_caches(self) -> list[Any]:
        """Fresh caches for one row, one per slot of the layout."""
        full = self._make_caches()
        return [full[layer] for layer in self.layout.picked]

    def parameters(self) -> Any:
        """Every array that this stage holds, as a tree."""
        return self._model.parameters()

    def modules(self) -> list[nn.Module]:
        """Every module that this stage runs."""
        return self._model.modules()

    def run(self, inputs: mx.array, slots: Sequence[Any]) -> mx.array:
        """Run the layers over *inputs*, ids or hidden states, and write *slots*' caches."""
        raise NotImplementedError

    def logits(self, outputs: mx.array) -> mx.array:
        """Logits of the last token of every row, from the *outputs* of the last stage's `run`."""
        raise NotImplementedError


class WholeStage(Stage):
    """The whole model, unchanged. Its `run` takes token ids, and gives the logits of every
    token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, 0, len(_prototypes(model)))

    def run(self, inputs: mx.array, slots: Sequence[Any]) -> mx.array:
        """Logits ``(rows, tokens, vocabulary)`` of ids ``(rows, tokens)``."""
        return self._model(inputs, cache=self.layout.spread(slots))

    def logits(self, outputs: mx.array) -> mx.array:
        """The last token's part of *outputs*."""
        return outputs[:, -1, :]


class FirstStage(Stage):
    """Embedding and first layers; and for the closing pass, final norm and output head."""

    def __init__(self, model: nn.Module, last: int) -> None:
        path, name = _body(model)
        body = _at(model, path)
        layers = body[name]
        rest = [_Passthrough(layer) for layer in layers]
        self._stage_input = _StageInput()
        closing = [*rest[:-1], _Source(layers[-1], self._stage_input)]
        self._head = _with(model, path, _twin(body, **{name: closing}))
        kept = [*layers[:last], *rest[last:]]
        self._body = _twin(body, **{name: kept, _norm_name(body): _Identity()})
        super().__init__(_with(model, path, self._body), 0, last)

    def parameters(self) -> Any:
        """Every array that this stage holds, as a tree."""
        return [self._body.parameters(), self._head.parameters()]

    def modules(self) -> list[nn.Module]:
        """Every module that this stage runs."""
        return [*self._model.modules(), *self._head.modules()]

    def run(self, inputs: mx.array, slots: Sequence[Any]) -> mx.array:
        """Hidden states ``(rows, tokens, hidden)`` of ids ``(rows, tokens)``."""
        return self._body(inputs, cache=self.layout.spread(slots))

    def logits(self, outputs: mx.array) -> mx.array:
        """Logits of the last token of every row, from the last rank's hidden states."""
        tokens = mx.zeros((outputs.shape[0], 1), mx.int32)
        with self._stage_input.holding(outputs[:, -1:, :]):
            return self._head(tokens)[:, -1, :]


class LaterStage(Stage):
    """Layers of a later rank: hidden states in, hidden states out."""

    def __init__(
        self, model: nn.Module, first: int, last: int, hidden: int, dtype: mx.Dtype
    ) -> None:
        path, name = _body(model)
        body = _at(model, path)
        self._stage_input = _StageInput()
        layers: list[nn.Module] = [_Passthrough(layer) for layer in body[name]]
        layers[first:last] = body[name][first:last]
        layers[first] = _receiving(layers[first], self._stage_input)
        parts: dict[str, Any] = {name: layers, _norm_name(body): _Identity()}
        for child, value in body.items():
            if isinstance(value, nn.Embedding | nn.QuantizedEmbedding):
                parts[child] = _Zeros(hidden, dtype)
        self._body = _twin(body, **parts)
        _check_owned(self._body, name)
        super().__init__(_with(model, path, self._body), first, last)

    def parameters(self) -> Any:
        """Every array that this stage holds, as a tree."""
        return self._body.parameters()

    def run(self, inputs: mx.array, slots: Sequence[Any]) -> mx.array:
        """Hidden states of the same shape as *inputs*, ``(rows, tokens, hidden)``."""
        tokens = mx.zeros(inputs.shape[:2], mx.int32)
        with self._stage_input.holding(inputs):
            return self._body(tokens, cache=self.layout.spread(slots))


def _norm_name(body: nn.Module) -> str:
    for name in _NORMS:
        if isinstance(body.get(name), nn.Module):
            return name
    raise LoadError(f"{type(body).__module__} has no final norm that is known here")


def _check_owned(body: nn.Module, layers: str) -> None:
    """A later rank may hold parameters of its layers only, as no other tensors have been read."""
    for name, value in body.items():
        if name != layers and list(_arrays(value)):
            raise LoadError(
                f"{type(body).__module__} keeps parameters in {name}, outside its layers; "
                "it cannot be split"
            )


def _arrays(value: Any) -> Iterator[mx.array]:
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, dict):
        for child in value.values():
            yield from _arrays(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _arrays(child)
