"""What the masks of one row may cost, in seconds of a processor.

llguidance's own limits bound the work of a mask (`text/grammars.py` `LIMITS`), but not closely: the
same work takes 2 ms for one grammar and 100 ms for another. A mask is made by the compute thread
while the device makes the logits, and all rows of a batch wait for the last of both. So a row whose
masks take too long ends. Its tokens are drawn as ever until then: ranks that draw the same row
agree on them, though each has a clock of its own, and only the head's says that the row is over.

Of forms that people use, in a vocabulary of 150,000, a mask takes 0.02 to 0.8 ms on average, and
3 ms at most.
"""

from __future__ import annotations

from typing import Final

MASK_SECONDS: Final = 0.05
"""Seconds that one mask may take."""

MEAN_SECONDS: Final = 0.003
"""Seconds that a row's masks may take on average, beyond `BURST_SECONDS` in all."""

BURST_SECONDS: Final = 0.05


class MaskTime:
    """The time that the masks of one row have taken."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._masks = 0

    def add(self, seconds: float, masks: int = 1) -> str:
        """So many *masks* took *seconds* more. Why the row must end, or nothing."""
        self._seconds += seconds
        self._masks += masks
        if seconds > MASK_SECONDS * max(1, masks):
            return (
                f"its grammar took {_ms(seconds)} ms of a processor to find what may follow one "
                f"token; {_ms(MASK_SECONDS)} ms is the limit"
            )
        if self._seconds > BURST_SECONDS + MEAN_SECONDS * self._masks:
            return (
                f"its grammar took {_ms(self._seconds)} ms of a processor for {self._masks} "
                f"tokens; {_ms(MEAN_SECONDS)} ms for each is the limit, and "
                f"{_ms(BURST_SECONDS)} ms in all are free"
            )
        return ""


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"
