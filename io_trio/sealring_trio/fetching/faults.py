"""What keeps a model from being fetched."""

from __future__ import annotations

import errno

from sealring_model.errors import LoadError

REACH_IT = "See that this machine reaches it, name a mirror (HF_ENDPOINT)"
"""What helps against a hub that does not answer."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


class FetchFault(Exception):
    """Nothing, or nothing more, can be fetched; *text* says why, for people.

    What is *permanent* fails again unless somebody does something. Anything else may be tried again
    after *wait* seconds, if the server named a time.
    """

    def __init__(self, text: str, *, permanent: bool, wait: float | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.permanent = permanent
        self.wait = wait


def fault_of(error: FetchFault | LoadError | OSError) -> FetchFault:
    """The fault for an *error* of fetching: of the disk, or of what was fetched."""
    if isinstance(error, FetchFault):
        return error
    if isinstance(error, OSError):
        return _disk_fault(error)
    return FetchFault(str(error), permanent=True)


def _disk_fault(error: OSError) -> FetchFault:
    """The fault for an *error* of writing what was fetched."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        text = f"the disk is full{where}; make room, or name another folder in SEALRING_MODELS"
    else:
        text = f"what was fetched cannot be written{where}: {error.strerror or error}"
    return FetchFault(text, permanent=True)
