"""The error texts for nodes whose models or builds differ, so that their owner knows what to do.

A model's digest covers its manifest (``sealring.json``, the hashes of its weights). The same model
with a manifest on one side only therefore has two digests. The side that can tell says so.

Models of one digest may still have other weights. Their pins tell that (the specification, 8.15):
the first is of the hashes of the files, the others of samples of the ends and of each layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Hello
from sealring_protocol.control.effects import Level, Note, Shut
from sealring_protocol.control.plan import HeadConfig
from sealring_protocol.errors import CloseCode
from sealring_protocol.security.roles import Purpose

ONE_SIDED: Final = "only one of both has a manifest of the weights (sealring.json): "
"""The start of the reason if only the manifest differs."""


OTHER_BUILD: Final = "they are not of one build of sealring: "
"""The start of the reason if the two programs differ."""


def short(digest: bytes) -> str:
    """The first 12 hexadecimal digits of *digest*, for people to compare."""
    return digest.hex()[:12]


def one_sided(has: str, lacks: str) -> str:
    """The reason if only the node named *has* has a manifest, and nothing else differs."""
    return f"{ONE_SIDED}{has} has one, {lacks} has none"


def differ(own: str, model: bytes, unpinned: bytes, peer: str, theirs: bytes) -> str:
    """Why the node named *own* rejects *peer*. *model* and *theirs* are the digests of their
    models; *unpinned* is that of *own*'s without its manifest (empty if it has none)."""
    if unpinned and theirs == unpinned:
        return one_sided(own, peer)
    text = f"{peer} holds another model ({short(theirs)}) than {own} ({short(model)})"
    if not unpinned:
        text += f"; or {peer} alone has a manifest (sealring.json)"
    return text


def compare(
    config: HeadConfig,
    info: EngineInfo | None,
    rank: int,
    hello: Hello,
    present: Mapping[int, Hello],
) -> Shut | Note | None:
    """What the head, whose model is *info* (None while unknown), does about *rank*, which said
    *hello*: it ends the link if that has another model, or other weights than a rank that is
    *present*. It warns if such weights are to be trusted. None if all is the same."""
    if rank and config.build and hello.build not in (0, config.build):
        own, name = config.names[0], config.names[rank]
        reason = f"{OTHER_BUILD}{name} is of {hello.build:016x}, {own} of {config.build:016x}"
        return Shut(rank, Purpose.CONTROL, CloseCode.POLICY_MISMATCH, reason)
    if info is None:
        return None
    other = _why_other_model(config, info, rank, hello)
    weights = "" if other else _why_other_weights(config, info, rank, hello, present)
    if weights and config.trust_weights:
        return Note(Level.WARNING, f"taken for trust_weights = true: {weights}")
    reason = other or weights
    return Shut(rank, Purpose.CONTROL, CloseCode.MODEL_MISMATCH, reason) if reason else None


def _why_other_model(config: HeadConfig, info: EngineInfo, rank: int, hello: Hello) -> str:
    """Why *rank* has another model than the head; empty if it has not."""
    own, name = config.names[0], config.names[rank]
    if hello.model != info.model:
        return differ(own, info.model, config.unpinned, name, hello.model)
    if hello.dtype is not info.dtype:
        return (
            f"{name} has hidden states in {hello.dtype.name} between ranks, and {own} in "
            f"{info.dtype.name}; set hop_dtype alike in both configs"
        )
    return ""


def _why_other_weights(
    config: HeadConfig, info: EngineInfo, rank: int, hello: Hello, present: Mapping[int, Hello]
) -> str:
    """Why the weights of *rank* are not those of the ranks that are *present*, or cannot be told
    from them; empty if they are the same."""
    own, name = config.names[0], config.names[rank]
    if not rank or not info.pins:
        return ""
    known = {peer: other.pins for peer, other in present.items()} | {0: info.pins}
    known.pop(rank, None)
    for peer, pins in known.items():
        if reason := _weights_difference(config.names[peer], pins, name, hello.pins):
            return reason
    if any(a and b for pins in known.values() for a, b in zip(pins, hello.pins, strict=False)):
        return ""
    unknown = f"what {name} has of the weights cannot be compared with what {own} has"
    if config.trust_weights:
        return unknown
    return f"{unknown}; trust_weights = true in {own}'s config does without"


def _weights_difference(own: str, pins: Sequence[int], peer: str, theirs: Sequence[int]) -> str:
    """How the weights of the node named *peer*, with the pins *theirs*, differ from those of *own*,
    with *pins*; empty if they do not. The files' pin decides only where no other does."""
    both = [(at, a == b) for at, (a, b) in enumerate(zip(pins, theirs, strict=False)) if a and b]
    others = [at - 1 for at, same in both if not same]
    if len(both) > 1 and others[:1] == [-1]:
        others.pop(0)  # the same tensors may be in other files
    if not others:
        return ""
    where = "" if others == [-1] else f" in {_parts(others)}"
    return f"{peer} has other weights than {own}{where}"


def _parts(numbers: Sequence[int]) -> str:
    """The parts *numbers* (rising) as text: 0 the ends, from 1 on the layers."""
    layers = [number - 1 for number in numbers if number]
    told = ["the ends"] if numbers[0] == 0 else []
    for _, run in groupby(enumerate(layers), lambda pair: pair[1] - pair[0]):
        first, *_, last = [layer for _, layer in run] * 2
        told.append(f"layer {first}" if first == last else f"layers {first} to {last}")
    return ", ".join(told)
