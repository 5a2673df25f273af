"""The errors of an engine, each with the failure kind that peers get.

These are errors that a user can cause or mend: a model that is missing, a tensor that is not what
the manifest says, a step that does not fit the ledger, too little memory. The engine answers them
with a `Failure` of their kind. Anything else is an ENGINE_ERROR.
"""

from __future__ import annotations

from typing import ClassVar, Final

from sealring_protocol.codec.messages import Failure, FailureKind
from sealring_protocol.codec.wire import clip
from sealring_protocol.errors import SealringError
from sealring_protocol.limits import MAX_REASON

_MAX_WHAT: Final = 4096
"""Bytes of what a `LoadError` says is wrong."""


class ModelError(Exception):
    """Base of the errors of this package."""

    KIND: ClassVar[FailureKind] = FailureKind.ENGINE_ERROR


class LoadError(ModelError):
    """The model is missing, incomplete, not what its manifest says, or cannot be split like this.
    Trying again does not help. *what* is the fault, and *cure* what mends it, if that is known.
    A file's own words in *what* may be any: they are cut, and hidden characters are escaped."""

    KIND = FailureKind.UNSERVABLE

    def __init__(self, what: str = "", cure: str = "") -> None:
        what = clip(what[:_MAX_WHAT], _MAX_WHAT)
        super().__init__(f"{what}; {cure}" if cure else what)
        self.what, self.cure = what, cure


class ReadError(LoadError):
    """The weights could not be read this time."""

    KIND = FailureKind.LOAD


class NotHereError(ReadError):
    """Weights that are needed have not been fetched yet."""


class LedgerError(ModelError):
    """A step does not fit what this rank holds."""

    KIND = FailureKind.LEDGER


class IntegrityError(ModelError):
    """Hidden states did not open, or came in another form than the epoch's policy asks for."""

    KIND = FailureKind.INTEGRITY


class CollectiveError(ModelError):
    """The collective could not be formed, or this process cannot be a member."""

    KIND = FailureKind.GROUP


class CacheMemoryError(ModelError):
    """A step needs more memory than this rank may use."""

    KIND = FailureKind.MEMORY


class TextError(ModelError):
    """The tokenizer cannot make text of tokens."""


FORWARD_ERRORS: Final = (
    ModelError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    AssertionError,
    NameError,
    ImportError,
)
"""What a model's class may raise as it is built or run. It is answered, and does not end the
process."""


def error_text(error: Exception) -> str:
    """The words for *error* that peers get, within `MAX_REASON`."""
    named = isinstance(error, ModelError | SealringError)
    return clip(str(error) if named else f"{type(error).__name__}: {error}", MAX_REASON)


def failure_of(error: Exception, rank: int) -> Failure:
    """The failure that *rank* reports for *error*, of a step or a model."""
    text = error_text(error)
    kind = FailureKind.ENGINE_ERROR
    if isinstance(error, ModelError):
        kind = error.KIND
    elif isinstance(error, SealringError):
        kind = FailureKind.LEDGER
    elif lacks_memory(error):
        kind = FailureKind.MEMORY
    return Failure(rank, kind, text)


def failure_of_loading(error: Exception) -> FailureKind:
    """The kind of failure that *error* is if loading layers raised it. What a file or the memory
    does may be otherwise the next time; anything else fails again."""
    if isinstance(error, ModelError):
        return error.KIND
    if isinstance(error, OSError):
        return FailureKind.LOAD
    return FailureKind.MEMORY if lacks_memory(error) else FailureKind.UNSERVABLE


def lacks_memory(error: Exception) -> bool:
    """Whether *error* says that there is too little memory."""
    text = str(error)
    return isinstance(error, MemoryError) or "malloc" in text or "out of memory" in text
