"""What can go wrong on the side that computes, each with the failure kind it is told as.

These are the errors that a user can cause or mend: a model that is not there, a tensor that is
not what the manifest says, a step that does not fit the ledger, memory that does not suffice.
The engine turns them into a `Failure` of their kind; anything else is an ENGINE_ERROR.
"""

from __future__ import annotations

from typing import ClassVar, Final

from sealring_protocol.codec.messages import Failure, FailureKind
from sealring_protocol.codec.wire import clip
from sealring_protocol.errors import SealringError
from sealring_protocol.limits import MAX_REASON


class ModelError(Exception):
    """Base of the errors of this package."""

    KIND: ClassVar[FailureKind] = FailureKind.ENGINE_ERROR


class LoadError(ModelError):
    """The model is missing, incomplete, not what its manifest says, or cannot be split so."""

    KIND = FailureKind.LOAD


class LedgerError(ModelError):
    """A step does not fit what this rank holds."""

    KIND = FailureKind.LEDGER


class IntegrityError(ModelError):
    """An activation did not open, or came in another form than the epoch's policy asks for."""

    KIND = FailureKind.INTEGRITY


class CollectiveError(ModelError):
    """The collective group could not be formed, or this process cannot be of it."""

    KIND = FailureKind.GROUP


class CacheMemoryError(ModelError):
    """A step needs more memory than this rank may use."""

    KIND = FailureKind.MEMORY


FORWARD_ERRORS: Final = (
    ModelError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
)
"""What a forward of some model may raise; all of it is answered, none of it ends the process."""


def error_text(error: Exception) -> str:
    """What a peer is told of *error*."""
    named = isinstance(error, ModelError | SealringError)
    return clip(str(error) if named else f"{type(error).__name__}: {error}", MAX_REASON)


def failure_of(error: Exception, rank: int) -> Failure:
    """The failure of *rank* that *error*, one of a step's or a model's, is."""
    text = error_text(error)
    kind = FailureKind.ENGINE_ERROR
    if isinstance(error, ModelError):
        kind = error.KIND
    elif isinstance(error, SealringError):
        kind = FailureKind.LEDGER
    elif isinstance(error, MemoryError) or "malloc" in text or "out of memory" in text:
        kind = FailureKind.MEMORY
    return Failure(rank, kind, text)
