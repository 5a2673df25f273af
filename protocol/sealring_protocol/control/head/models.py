"""The error texts for nodes whose models differ, so that their owner knows what to do.

A model's digest covers its manifest (``sealring.json``, the hashes of its weights). The same model
with a manifest on one side only therefore has two digests. The side that can tell says so.
"""

from __future__ import annotations

from typing import Final

ONE_SIDED: Final = "only one of both has a manifest of the weights (sealring.json): "
"""The start of the reason if only the manifest differs."""


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
