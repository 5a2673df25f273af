"""What a call raised, as a value to look at."""

from __future__ import annotations

from collections.abc import Callable

from sealring_protocol.errors import SealringError


def raised(call: Callable[[], object]) -> SealringError | None:
    """The documented error that *call* raises, if it does; any other goes on up."""
    try:
        call()
    except SealringError as error:
        return error
    return None
