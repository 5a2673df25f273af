"""What a person did wrong or can put right, in words and without a traceback.

Every command ends with one of these or with success. A `UserError` is a mistake in what was typed
or written in a file (exit code 2); an `OperationError` is a sound request that could not be
carried out (exit code 1). Both say what happened and, in *advice*, what to do next. A command that
was carried out and found what should not be, such as other tokens, ends with `FOUND_WRONG`.
"""

from __future__ import annotations

from typing import ClassVar, Final

from sealring_protocol.errors import LocalProtocolError

FOUND_WRONG: Final = 3
"""The exit code of a check that was carried out, and was not passed."""


class UserError(Exception):
    """A mistake in a command line or a file. *advice* says how to put it right."""

    exit_code: ClassVar[int] = 2

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what)
        self.what = what
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.what}\n{self.advice}"


class OperationError(UserError):
    """The request was sound, but it could not be carried out."""

    exit_code: ClassVar[int] = 1


class Withdrawn(LocalProtocolError):
    """Somebody has cancelled the request before it had a row."""
