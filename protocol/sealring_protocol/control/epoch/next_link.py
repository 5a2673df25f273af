"""The link to the next rank: whether it is up, how long it is waited for, what keeps it away.

Either end of a link may dial it. When this end cannot, the other one may; when neither can, the
head, and so whoever asks it, is to hear that and not wait for a rank that seems to take its time.
"""

from __future__ import annotations

from typing import Final

from sealring_protocol.limits import MAX_REASON

LINK_SECONDS: Final = 12.0
"""Time for the link, once all else is there: two dials of either end that find nobody. It doubles
each time that it is in vain, up to `LONGEST_LINK_SECONDS`."""

LONGEST_LINK_SECONDS: Final = 60.0


class NextLink:
    """The link of the rank called *own* to the one called *peer*. Times are monotonic seconds."""

    def __init__(self, own: str, peer: str) -> None:
        self.up = False
        """It is there."""
        self._names = own, peer
        self._why = ""
        self._seconds = LINK_SECONDS
        self._ends: float | None = None

    def begin(self, now: float) -> None:
        """From here on nothing but the link is missing."""
        if self._ends is None:
            self._ends = now + self._seconds

    def end(self) -> None:
        """It is there, or not waited for any more."""
        self._ends = None
        self._why = ""

    def came(self) -> None:
        """It is there."""
        self.up = True
        self.end()
        self._seconds = LINK_SECONDS

    def lost(self) -> None:
        """It is gone."""
        self.up = False

    def unreached(self, why: str) -> None:
        """A dial of this end found nobody: *why*."""
        self._why = why

    @property
    def deadline(self) -> float | None:
        """When it has been waited for long enough; None while nothing is known to keep it away."""
        return self._ends if self._why else None

    def give_up(self) -> str:
        """The deadline has passed; what there is to say of it."""
        own, peer = self._names
        text = f"{own} cannot reach {peer} {self._why}, nor {peer} {own}"
        self.end()
        self._seconds = min(2 * self._seconds, LONGEST_LINK_SECONDS)
        return text.encode()[:MAX_REASON].decode(errors="ignore")
