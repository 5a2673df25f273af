"""The link to the next rank: whether it is up, how long to wait for it, and why it fails.

Either end may dial. If one end cannot, the other may; if neither can, this rank reports that to the
head, so that nobody takes it for a rank that is merely slow.
"""

from __future__ import annotations

from typing import Final

from sealring_protocol.limits import MAX_REASON

LINK_SECONDS: Final = 12.0
"""Seconds to wait for the link once everything else is ready: enough for two failed dials from each
end. It doubles after each failure, up to `LONGEST_LINK_SECONDS`."""

LONGEST_LINK_SECONDS: Final = 60.0


class NextLink:
    """The link from the rank named *own* to the one named *peer*. Times are monotonic seconds."""

    def __init__(self, own: str, peer: str) -> None:
        self.up = False
        """The link is up."""
        self._names = own, peer
        self._why = ""
        self._seconds = LINK_SECONDS
        self._ends: float | None = None

    def begin(self, now: float) -> None:
        """Start the wait: only the link is missing now."""
        if self._ends is None:
            self._ends = now + self._seconds

    def end(self) -> None:
        """Stop the wait."""
        self._ends = None
        self._why = ""

    def came(self) -> None:
        """The link is up."""
        self.up = True
        self.end()
        self._seconds = LINK_SECONDS

    def lost(self) -> None:
        """The link is down."""
        self.up = False

    def unreached(self, why: str) -> None:
        """A dial from this end failed: *why*."""
        self._why = why

    @property
    def deadline(self) -> float | None:
        """When to give up; None until a dial has failed."""
        return self._ends if self._why else None

    def give_up(self) -> str:
        """The deadline has passed. Returns the reason to report."""
        own, peer = self._names
        text = f"{own} cannot reach {peer} {self._why}, nor {peer} {own}"
        self.end()
        self._seconds = min(2 * self._seconds, LONGEST_LINK_SECONDS)
        return text.encode()[:MAX_REASON].decode(errors="ignore")
