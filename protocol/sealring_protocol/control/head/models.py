"""How one node tells another that their models differ, so that an owner knows what to do.

The digest of a model takes in its manifest (``sealring.json``, the hashes of its weights). A
manifest on one side alone therefore makes another digest of the same model, and that is told as
what it is, by whichever side can know.
"""

from __future__ import annotations

from typing import Final

ONE_SIDED: Final = "only one of both has a manifest of the weights (sealring.json): "
"""How the reason begins where nothing but the manifest differs."""


def short(digest: bytes) -> str:
    """As much of *digest* as people compare."""
    return digest.hex()[:12]


def one_sided(has: str, lacks: str) -> str:
    """The node named *has* has a manifest, the node named *lacks* has none, and nothing else
    differs."""
    return f"{ONE_SIDED}{has} has one, {lacks} has none"


def differ(own: str, model: bytes, unpinned: bytes, peer: str, theirs: bytes) -> str:
    """Why the node named *own* with *model* (*unpinned* without its manifest, if it has one) takes
    no *peer* with the model *theirs*."""
    if unpinned and theirs == unpinned:
        return one_sided(own, peer)
    text = f"{peer} holds another model ({short(theirs)}) than {own} ({short(model)})"
    if not unpinned:
        text += f"; or {peer} alone has a manifest (sealring.json)"
    return text
