"""How activations and sums are sealed between the ranks, in plain words."""

from __future__ import annotations

from typing import Protocol

from sealring_protocol.control.plan import Strategy


class Sums(Protocol):
    """The one property of a collective that is needed here."""

    @property
    def trusted(self) -> bool:
        """It goes beside the sealed links."""


def told_seals(inner_seal: bool, strategy: str, collective: Sums | None) -> str:
    """How activations or sums are sealed with this *strategy*; empty if none leave a rank."""
    if collective is not None:
        if collective.trusted:
            return "NOT SEALED: the ranks' sums go beside the sealed links"
        return "sums sealed from node to node; in the clear inside each node's process"
    if strategy != Strategy.PIPELINE.value:
        return ""
    if inner_seal:
        return "sealed from engine to engine; no node process holds them in the clear"
    return "sealed from node to node; in the clear inside each node's process (no inner seal)"
