"""Loads one rank's stage, or its shard of one: its tensors, its memory, what its rows will cost.

mlx-lm's own loader builds the model, renames weights and quantizes. This module steps in at the one
place where that loader has the weights by name, before they are renamed, and has `WeightReader`
choose those of this rank.

The model is built from arrays that are read when they are evaluated. `WeightReader.placeholders`
keeps those of this rank. Every other tensor becomes a placeholder that costs nothing, and that no
layer of this rank may depend on: its value is not a number, which the first run would show.

`WeightReader.read` then goes through the layers. It reads a layer's tensors, verifies them (it
hashes the memory that the weights are made from), evaluates what the model makes of them, one
parameter at a time, and lets the rest go. A tensor that is a parameter as it is goes as soon as it
has been copied, others once their layer is done. So a load never holds more than the rank's
weights, the tensors of one layer, and what comes between for one parameter.

Files of which the hub's hash is known are held to it meanwhile (`_held_to`). That hash is of a
whole file, and a rank reads the tensors of its own layers. So a rank hashes each file from which it
reads anything, in threads, while it reads. That costs about a second of a core for each GB, and
where two ranks share a file each reads all of it.

Of a model that is being fetched (`model_store`), nothing is read until all tensors of this rank
are here. What is read is then verified against the hashes of what came. A tensor that has changed
on the disk since is given up, and fetched again.

For tensor parallelism mlx-lm's models divide themselves: `shard` of their class replaces each
projection by the part of it that belongs to one member of a collective, and remembers the
collective for the sums between. It asks the collective for rank and size only. So it gets a
`StandInCollective`, and the shard is on the device before anybody has to wait for a peer. Once the
collective stands, it takes the stand-in's place in every module (`TpShard.join`); until then the
stage cannot run. Most families leave the output head whole. A head of its own (not one that is the
embedding again) is divided too, by lines of the vocabulary, and the logits are gathered. Every
member holds the whole embedding. The model is divided before any weight is read, so a load never
holds more than the shard and one layer.

Then the stage runs. The first run, of two tokens, measures what its caches cost a row. Further ones
do what rows will ask for: MLX has other kernels for a long chunk, a token and a batch, and what it
cannot compute shows here, before any row is there. The last one is traced only, and shows whether a
forward looks at values.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import hmac
import os
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs
import mlx.core as mx
from mlx import nn
from mlx.nn.layers.distributed import shard_linear
from sealring_protocol.codec.local_messages import Loaded
from sealring_protocol.codec.messages import CacheCost
from sealring_protocol.codec.tensor import DType
from sealring_protocol.words import STILL_FETCHED, part_here

from sealring_model.errors import FORWARD_ERRORS, LoadError, NotHereError, ReadError, lacks_memory
from sealring_model.loading.model_folder import Adapter, ModelInfo, other_quantization
from sealring_model.loading.model_store import PartialModel
from sealring_model.loading.weights import open_file, owner, read_json, tensors_of
from sealring_model.machine import drop_unloadable
from sealring_model.mlx_lm_import import mlx_lm, model_loader
from sealring_model.stage.caches import cost_of, is_trimmable
from sealring_model.stage.device import memory_of
from sealring_model.stage.outline import Outline, leaves
from sealring_model.stage.stage import PartStage, Stage, WholeStage, dummy_inputs

_CHUNK: Final = 64
"""Tokens of a chunk for which a GPU takes the kernels that it has for long ones. On a CPU few
tokens do, and take less time."""
_CHUNK_ON_CPU: Final = 3

_MAX_WORDS: Final = 400
"""Characters of mlx-lm's words for a fault: it names every tensor that it misses."""

_HEADS: Final = (nn.Linear, nn.QuantizedLinear)

_BUFFER: Final = 4 * 1024 * 1024

_THREADS: Final = 4
"""Threads that hash files, at most: a disk gives some 5 GB/s, and a core hashes one or two of
them."""

Fill = Callable[[dict[str, mx.array]], dict[str, mx.array]]
"""Makes the weights that a model is built with from those that mlx-lm loads lazily. Both have the
same names."""


@attrs.frozen
class LoadedStage:
    """A stage of layers *first* to *last* (excluded) that is ready to run.

    *read* bytes came from disk, *held* bytes are its weights. *hidden* is the width of its hidden
    states, *dtype* their dtype. Its caches cost *cost*, and can be cut to any length if they are
    *trimmable*. A forward that is *blind* never looks at a value.
    """

    stage: Stage
    first: int
    last: int
    hidden: int
    vocabulary: int
    dtype: DType
    cost: CacheCost
    trimmable: bool
    blind: bool
    read: int
    held: int

    @classmethod
    def measure(
        cls, info: ModelInfo, stage: Stage, first: int, last: int, read: int
    ) -> LoadedStage:
        """Run *stage*, of layers *first* to *last* of *info*'s model, for which *read* bytes were
        read. Raises `LoadError` if it needs other layers, and what MLX raises."""
        held = _held_by(stage)
        cost, trimmable = _measure(stage)
        mx.clear_cache()
        return cls(
            stage=stage,
            first=first,
            last=last,
            hidden=info.hidden,
            vocabulary=info.vocabulary,
            dtype=info.hop_dtype,
            cost=cost,
            trimmable=trimmable,
            blind=_is_blind(stage),
            read=read,
            held=held,
        )


@attrs.frozen(eq=False)
class TpShard:
    """A member's shard of the stage of layers *first* to *last* (excluded), which runs once the
    member has joined. *read* bytes came from disk, *held* bytes are its weights."""

    info: ModelInfo
    stage: Stage
    first: int
    last: int
    read: int
    held: int
    _stand_in: StandInCollective

    def join(self, collective: mx.distributed.Group) -> LoadedStage:
        """The stage as a part of *collective*, measured. Every member must call this at the same
        time."""
        for module in self.stage.modules():
            for name, value in list(vars(module).items()):
                if value is self._stand_in:
                    setattr(module, name, collective)
        return LoadedStage.measure(self.info, self.stage, self.first, self.last, self.read)


def load_stage(
    info: ModelInfo, first: int, last: int, has_read: Callable[[Loaded], None] | None = None
) -> LoadedStage:
    """Load layers *first* to *last* (excluded), and the ends too when *first* is 0. *has_read* is
    called once the weights are read, before the first run.

    Raises `LoadError` if a tensor does not match the manifest, or the model cannot be built or
    split like this.
    """
    reader = WeightReader(info, first, last)
    stage, loaded = _read_stage(info, reader, first, last)
    if has_read is not None:
        has_read(loaded)
    try:
        try:
            return LoadedStage.measure(info, stage, first, last, loaded.read)
        except RuntimeError as error:  # MLX's
            if not drop_unloadable(error):
                raise
        return LoadedStage.measure(info, stage, first, last, loaded.read)
    except LoadError:
        if name := reader.not_a_number():
            raise LoadError(
                f"tensor {name} has values that are no numbers (NaN or infinite): the model in "
                f"{info.folder} is damaged, or was converted wrongly"
            ) from None
        raise
    except RuntimeError as error:  # MLX's
        if lacks_memory(error):
            raise
        raise LoadError(lacks(info, error)) from error


def load_shard(
    info: ModelInfo,
    first: int,
    last: int,
    rank: int,
    size: int,
    has_read: Callable[[Loaded], None] | None = None,
) -> TpShard:
    """Load the shard of member *rank* of *size*, as `load_stage` loads all of a stage.

    Raises `LoadError` as that does, and if the model cannot be divided like this.
    """
    _check_divisible(info, size)
    stand_in = StandInCollective(rank, size)
    reader = WeightReader(info, first, last)
    stage, loaded = _read_stage(info, reader, first, last, stand_in)
    if has_read is not None:
        has_read(loaded)
    return TpShard(info, stage, first, last, loaded.read, loaded.held, stand_in)


def splits_of(info: ModelInfo) -> int:
    """A number whose divisors are the sizes that a collective may have; 0 if the model cannot be
    sharded: its class cannot, or it has an adapter."""
    if info.adapter is not None:
        return 0
    try:
        model_class, _ = model_loader()._get_classes(read_json(info.folder / "config.json"))
    except (AttributeError, LookupError, TypeError, ValueError):
        return 0  # loading says what is wrong
    return info.even if hasattr(model_class, "shard") else 0


def build_model(info: ModelInfo, fill: Fill) -> nn.Module:
    """mlx-lm's model of *info*, with the weights that *fill* gives, and its adapter. Nothing is
    evaluated."""
    loader = model_loader()
    real: list[Any] = []

    def classes(config: dict[str, Any]) -> tuple[type[nn.Module], type]:
        model_class, args_class = loader._get_classes(config)
        real.append(model_class)

        def sanitize(self: Any, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            if weights.keys() != info.entries.keys():
                raise ReadError("the weights changed while they were loaded")
            filled = fill(weights)
            clean = getattr(model_class, "sanitize", None)
            return filled if clean is None else clean(self, filled)

        return type(model_class.__name__, (model_class,), {"sanitize": sanitize}), args_class

    try:
        model, _ = loader.load_model(info.folder, lazy=True, get_model_classes=classes)
    except LoadError:
        raise
    except OSError as error:
        raise ReadError(f"cannot read the model: {error}") from error
    except FORWARD_ERRORS as error:
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        words = textwrap.shorten(said, _MAX_WORDS, placeholder=" ...")
        if form := other_quantization(read_json(info.folder / "config.json")):
            words = f"{form}. Its own words: {words}"
        raise LoadError(f"mlx-lm cannot load this {info.kind} model: {words}") from error
    except SystemExit:  # a class that needs another package says so on stderr, and exits
        raise LoadError(
            f"mlx-lm cannot load this {info.kind} model: its class stopped the process; what it "
            "needs is in the engine's log"
        ) from None
    model.__class__ = real[0]
    _check_weights(info, model)
    if info.adapter is not None:
        _put_into(model, info.adapter)
    return model


def lacks(info: ModelInfo, error: RuntimeError) -> str:
    """The words for *error*, in which MLX says that it cannot compute the model *info*."""
    return (
        f"MLX cannot run this {info.kind} model in {info.dtype.name} on this machine: "
        f"{str(error).rstrip('.')}. It may run in another dtype, or quantized: convert it with "
        "`mlx_lm.convert`"
    )


@attrs.frozen(eq=False)
class StandInCollective:
    """In place of a collective that is not there yet: says which member's part `shard` keeps."""

    _rank: int
    _size: int

    def rank(self) -> int:
        """This member's number."""
        return self._rank

    def size(self) -> int:
        """Members of the collective."""
        return self._size


class ShardedHead(nn.Module):
    """An output head of which each member of *collective* has some lines. Gives every member all
    logits."""

    def __init__(self, head: nn.Module, collective: Any) -> None:
        super().__init__()
        self.part = shard_linear(head, "all-to-sharded", group=collective)
        self.collective = collective

    def __call__(self, hidden: mx.array) -> mx.array:
        """The logits of *hidden*."""
        part = self.part(hidden)
        parts = mx.distributed.all_gather(part[None], group=self.collective)
        return mx.moveaxis(parts, 0, -2).reshape(*part.shape[:-1], -1)


def _read_stage(
    info: ModelInfo,
    reader: WeightReader,
    first: int,
    last: int,
    stand_in: StandInCollective | None = None,
) -> tuple[Stage, Loaded]:
    """The stage of layers *first* to *last* (excluded), with the weights that *reader* reads;
    divided for *stand_in* if there is one."""
    start = time.perf_counter_ns()
    model = build_model(info, reader.placeholders)
    outline = _outline_of(info, model, first, last)
    if stand_in is not None:
        _divide(info, model, stand_in)
    reader.read(model)
    stage = WholeStage(model) if outline is None else PartStage(model, outline, first, last)
    mx.eval(stage.parameters())
    took = (time.perf_counter_ns() - start) // 1000
    return stage, Loaded(reader.bytes_read, _held_by(stage), took)


def _held_by(stage: Stage) -> int:
    """Bytes of *stage*'s weights; an array that is used twice counts once."""
    return sum(a.nbytes for a in {id(a): a for _, a in leaves(stage.parameters())}.values())


def _outline_of(info: ModelInfo, model: nn.Module, first: int, last: int) -> Outline | None:
    """The outline that layers *first* to *last* (excluded) of *model* are cut by; None for all of
    them. Raises `LoadError` if the model cannot be cut there."""
    if first == 0 and last == len(info.layers):
        return None
    outline = Outline.of(model)
    for cut in (first, last):
        outline.hop(cut)
    gc.collect()  # the trials' classes, for their closures hold the weights as they were read
    return outline.narrowed() if info.narrow else outline


def _check_weights(info: ModelInfo, model: nn.Module) -> None:
    """Raise `LoadError` if a layer of *model* that multiplies as it is has packed weights: mlx-lm
    took them for others than they are."""
    for path, module in model.named_modules():
        weight = module.get("weight") if type(module) in (nn.Linear, nn.Embedding) else None
        if weight is not None and not mx.issubdtype(weight.dtype, mx.floating):
            form = other_quantization(read_json(info.folder / "config.json"))
            raise LoadError(
                f"{path}.weight has whole numbers ({weight.dtype}), which mlx-lm takes for weights "
                f"that are not quantized: {form or 'nothing says how they are quantized'}"
            )


def _put_into(model: nn.Module, adapter: Adapter) -> None:
    try:
        mlx_lm("tuner.utils").load_adapters(model, str(adapter.folder))
    except (OSError, *FORWARD_ERRORS) as error:
        words = " ".join(str(error).split())[:300]
        raise LoadError(
            f"the adapter in {adapter.folder} does not fit this model: {words}"
        ) from error
    model.eval()


def _check_divisible(info: ModelInfo, size: int) -> None:
    if info.adapter is not None:
        raise LoadError(
            "mlx-lm cannot share out a model with an adapter; fuse the two with mlx_lm.fuse, or "
            "use a pipeline"
        )
    if not splits_of(info):
        raise LoadError(
            f"mlx-lm has no sharding for {info.kind} models; they cannot be shared by several "
            "ranks, but a pipeline can split their layers"
        )
    if any(heads % size for heads in info.heads):
        heads = ", ".join(map(str, info.heads))
        raise LoadError(
            f"the model's heads ({heads}) do not divide among {size} ranks; a divisor of "
            f"{info.even} would do, and so would a pipeline"
        )


def _divide(info: ModelInfo, model: nn.Module, stand_in: StandInCollective) -> None:
    divided: Any = model
    try:
        divided.shard(stand_in)
        for module in model.modules():
            head = module.get("lm_head")
            if type(head) in _HEADS and not head["weight"].shape[0] % stand_in.size():
                module["lm_head"] = ShardedHead(head, stand_in)
    except (AssertionError, ValueError, TypeError, LookupError, RuntimeError) as error:
        raise LoadError(
            f"mlx-lm cannot share this {info.kind} model among {stand_in.size()} ranks: {error}"
        ) from error


def _measure(stage: Stage) -> tuple[CacheCost, bool]:
    """Run two tokens: what the caches cost a row, and whether they are trimmable. Raises
    `LoadError` if the stage needs other layers."""
    slots = stage.new_caches()
    outputs = stage.run(stage.dummy_inputs(1, 2), slots)
    if not all(mx.isfinite(output).all().item() for output in outputs):
        raise LoadError(
            "its first run gives values that are no numbers, though its weights are: the "
            "configuration is wrong, the dtype too narrow, or this stage depends on tensors of "
            "other layers, so that it cannot be split so"
        )
    if isinstance(stage, PartStage):
        _check_independence(stage)
    _try_steps(stage)
    return cost_of(slots), is_trimmable(slots)


def _try_steps(stage: Stage) -> None:
    """Run *stage* as steps will: a chunk of a prompt, a token after it, and a token of two rows in
    merged caches, with their logits. Raises what MLX raises."""
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    chunk = _CHUNK_ON_CPU if on_cpu else _CHUNK
    rows = [stage.new_caches(), stage.new_caches()]
    for tokens, slots in zip((chunk, 2), rows, strict=True):
        mx.eval(stage.run(stage.dummy_inputs(1, tokens), slots))
        mx.eval(stage.run(stage.dummy_inputs(1, 1), slots))
    if stage.hop_back:
        mx.eval(stage.logits(dummy_inputs(stage.hop_back, 2, 1)))
    try:
        merged = [type(pair[0]).merge(list(pair)) for pair in zip(*rows, strict=True)]
        outputs = stage.run(stage.dummy_inputs(2, 1), merged)
    except FORWARD_ERRORS:
        return  # a model whose rows are decoded one by one (`can_batch`)
    mx.eval(outputs)


def _check_independence(stage: PartStage) -> None:
    """Raise `LoadError` if what *stage* gives depends on what stands in for other ranks' parts: run
    it with one filler, and with another."""
    runs = []
    for stage.filler in (1, 0):
        slots = stage.new_caches()
        outputs: list[mx.array] = []
        for tokens in (3, 1):
            outputs += stage.run(stage.dummy_inputs(1, tokens), slots)
        if stage.hop_back:
            outputs.append(stage.logits(dummy_inputs(stage.hop_back, 1, 1)))
        runs.append(outputs)
    if not all(mx.array_equal(one, other).item() for one, other in zip(*runs, strict=True)):
        raise LoadError("this stage depends on what other ranks hold; it cannot be split so")


def _is_blind(stage: Stage) -> bool:
    """Whether the graph of a forward depends on shapes alone. MLX refuses to evaluate anything
    while it traces. Launches nothing."""
    slots = stage.new_caches()
    returned = dummy_inputs(stage.hop_back, 1, 1)
    return (
        _can_be_traced(lambda *given: stage.run(given, slots), stage.dummy_inputs(1, 1))
        and (not stage.hop_back or _can_be_traced(lambda *given: stage.logits(given), returned))
        # With tracing switched off this would succeed, and nothing is known.
        and not _can_be_traced(lambda given: given * given.sum().item(), [mx.zeros(1)])
    )


def _can_be_traced(function: Callable[..., Any], given: Sequence[mx.array]) -> bool:
    try:
        mx.compile(function)(*given)
    except FORWARD_ERRORS:
        return False
    return True


class WeightReader:
    """Reads the tensors of layers *first* to *last* (excluded), and of the ends if *first* is 0.
    *bytes_read* is how much that was.

    Raises `NotHereError` if some of them have not been fetched yet, and `LoadError` if they cannot
    be.
    """

    def __init__(self, info: ModelInfo, first: int, last: int) -> None:
        self._info: Final = info
        self._owned: Final = tensors_of(info.entries, len(info.layers), first, last)
        self._partial: Final = PartialModel.open(info.folder)
        if self._partial is not None:
            check_here(self._partial, [name for names in self._owned.values() for name in names])
        self._unread: dict[str, mx.array] = {}
        self.bytes_read = 0

    def placeholders(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """*weights*, which are not evaluated, with a placeholder for each of another rank."""
        owned = {name for names in self._owned.values() for name in names}
        self._unread = {name: lazy for name, lazy in weights.items() if name in owned}
        return {**placeholders(weights), **self._unread}

    def read(self, model: nn.Module) -> None:
        """Read the weights of *model*, which was built from `placeholders`.

        Raises `LoadError` if a tensor does not match the manifest, or a file is not the hub's, and
        `ReadError` if a file ends too early.
        """
        with _held_to(self._expected()):
            self._read_all(model)

    def not_a_number(self) -> str:
        """The first tensor of this rank with a value that is not finite; empty if there is none.
        Reads all of them again."""
        entries = [self._info.entries[name] for names in self._owned.values() for name in names]
        for file in sorted({entry.file for entry in entries}):
            arrays: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
            for entry in entries:
                array = arrays.get(entry.name) if entry.file == file else None
                if array is None or not mx.issubdtype(array.dtype, mx.floating):
                    continue
                if not mx.isfinite(array).all().item():
                    return entry.name
        return ""

    def _expected(self) -> dict[Path, str]:
        """The hub's hash of each file of which something is read, where it is known. A manifest,
        and what was fetched, have a hash of each tensor instead."""
        info = self._info
        if info.trusted or info.manifest is not None or self._partial is not None:
            return {}
        files = {info.entries[name].file for names in self._owned.values() for name in names}
        return {file: info.hub_hashes[file.name] for file in files if info.hub_hashes[file.name]}

    def _read_all(self, model: nn.Module) -> None:
        modules: dict[int, list[nn.Module]] = {}
        for path, module in model.named_modules():
            modules.setdefault(owner(f"{path}.", len(self._info.layers)), []).append(module)
        for layer, names in self._owned.items():
            self._read(names)
            name_of = {id(self._unread[name]): name for name in names}
            for module in modules.get(layer, ()):
                copied = [name_of[id(value)] for value in module.values() if id(value) in name_of]
                for kept in _own_copies(module):
                    mx.eval(kept)
                for name in copied:  # which two modules may share
                    self._unread.pop(name, None)
            for name in names:
                self._unread.pop(name, None)
            _give_back()

    def _read(self, names: Sequence[str]) -> None:
        try:
            mx.eval([self._unread[name] for name in names])
        except RuntimeError as error:  # MLX's, for a file that has become shorter
            raise ReadError(f"reading the weights failed: {error}") from None
        for name in names:
            self.bytes_read += self._info.entries[name].size
            if self._info.manifest is not None or self._partial is not None:
                self._verify(name, self._unread[name])

    def _verify(self, name: str, tensor: mx.array) -> None:
        content = memory_of(tensor).cast("B") if tensor.nbytes else b""
        found = hashlib.sha256(content).hexdigest()
        manifest, partial = self._info.manifest, self._partial
        if partial is not None and not hmac.compare_digest(partial.hashes[name], found):
            partial.drop([name])
            raise NotHereError(
                f"tensor {name} on the disk is not what was fetched; it is fetched again"
            )
        if manifest is not None and not hmac.compare_digest(manifest.get(name, ""), found):
            raise LoadError(f"tensor {name} does not match the manifest")


def check_here(partial: PartialModel, names: Sequence[str]) -> None:
    """Raise `NotHereError` unless the tensors *names* of *partial* are all here, or `LoadError` if
    they cannot be fetched."""
    if not partial.missing(names):
        return
    size = sum(partial.entries[name].size for name in names)
    # What changes from try to try stands after the ";": the rest is logged once.
    here = f"{part_here(partial.bytes_here(names), size)} are here"
    fault = partial.fault
    if fault is not None and fault.permanent:
        raise LoadError(
            f"its layers cannot be fetched: {fault.text}. Start this node again once that is "
            f"mended; {here}"
        )
    if fault is not None:
        raise NotHereError(f"its layers are held up on their way: {fault.text}; {here}")
    raise NotHereError(f"its {STILL_FETCHED}; {here}")


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
    names = [
        name
        for name, value in module.items()
        if isinstance(value, mx.array) and not name.startswith("_")
    ]
    for name in names:
        module[name] = mx.contiguous(module[name])
    return [module[name] for name in names]


def _give_back() -> None:
    """Give back the memory of what was read and is not needed any more. Linux's C library keeps
    it otherwise."""
    mx.clear_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def _held_to(files: Mapping[Path, str]) -> Iterator[None]:
    """Within the block *files* are hashed in threads. At its end raises `LoadError` if one has not
    its expected hash, and `ReadError` if it cannot be read."""
    stop = threading.Event()
    threads = min(_THREADS, max(1, (os.cpu_count() or 1) // 2), max(1, len(files)))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="hash")
    try:
        found = {file: pool.submit(_hash, file, stop) for file in files}
        yield
        for file, hashed in found.items():
            if not hmac.compare_digest(hashed.result(), files[file]):
                raise LoadError(
                    f"{file} is not the file that the hub has: its SHA-256 is "
                    f"{hashed.result()[:12]}..., the hub's {files[file][:12]}...; remove it and "
                    "fetch the model again, or say trust_weights = true"
                )
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _hash(file: Path, stop: threading.Event) -> str:
    """The SHA-256 of *file*, in hexadecimal; of a part of it once *stop* is set."""
    hashed = hashlib.sha256()
    buffer = memoryview(bytearray(_BUFFER))
    with open_file(file) as stream:
        while not stop.is_set():
            try:
                size = stream.raw.readinto(buffer)
            except OSError as error:
                raise ReadError(f"cannot read {file}: {error.strerror}") from None
            if not size:
                break
            hashed.update(buffer[:size])
    return hashed.hexdigest()
