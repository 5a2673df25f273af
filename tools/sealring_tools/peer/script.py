"""A peer that does what a file says: one JSON object for each line, done in order.

======================================== =====================================================
``{"send": {"message": "READY", ...}}``  send this message, with all of its fields
``{"expect": {"message": "STEP", ...}}`` wait for the next message; it must have these fields
``{"wait": 1.5}``                        let so many seconds pass
``{"close": 0, "reason": "done"}``       end the link
======================================== =====================================================

Fields have the specification's names, as in the conformance vectors: byte strings are hex, and
integers of 64 bits are decimal strings. After the last line the link is ended.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from sealring_protocol.codec.encoding import from_fields, to_fields
from sealring_protocol.errors import CloseCode, SealringError
from sealring_tools.peer.line import Line
from sealring_trio.errors import OperationError, UserError

ANSWER_SECONDS: Final = 30.0
"""Seconds that ``expect`` waits."""

_VERBS: Final = ("send", "expect", "wait", "close")


@attrs.frozen
class Script:
    """What *path* says, line by line."""

    path: Path
    lines: tuple[tuple[int, dict[str, Any]], ...]

    async def play(self, line: Line) -> None:
        """Do it on *line*, once that is up. Raises `OperationError` where the peer differs."""
        if await line.up() is None:
            raise OperationError("the link did not come up", "The lines above say why.")
        for number, order in self.lines:
            match order:
                case {"send": fields}:
                    self._send(line, number, fields)
                case {"expect": fields}:
                    await self._expect(line, number, fields)
                case {"wait": seconds}:
                    await trio.sleep(seconds)
                case {"close": code}:
                    line.close(code, str(order.get("reason", "")))
        line.close()  # or a script without "close" would stay until the other end goes

    def _send(self, line: Line, number: int, fields: dict[str, Any]) -> None:
        try:
            line.send(from_fields(fields))  # type: ignore[arg-type]
        except KeyError as error:
            raise self._mistake(number, f"there is no message or field {error}") from None
        except (AttributeError, SealringError, TypeError, ValueError) as error:
            raise self._mistake(number, str(error)) from None

    async def _expect(self, line: Line, number: int, fields: dict[str, Any]) -> None:
        wanted = json.dumps(fields)
        try:
            with trio.fail_after(ANSWER_SECONDS):
                message = await line.receive()
        except trio.TooSlowError:
            text = f"nothing came within {ANSWER_SECONDS:.0f} s; line {number} expects {wanted}"
            raise OperationError(text, "The lines above are all that was said.") from None
        found = {} if message is None else to_fields(message)
        differing = [name for name in fields if found.get(name) != fields[name]]
        if message is None or differing:
            came = "the link ended" if message is None else f"{found['message']} came"
            text = f"{came}, and line {number} expects {wanted}"
            names = ", ".join(differing)
            raise OperationError(text, f"It differs in: {names}.")

    def _mistake(self, number: int, text: str) -> UserError:
        return UserError(f"{self.path}, line {number}: {text}", "See: sealring peer --help")


def read_script(path: Path) -> Script:
    """The script in the file at *path*. Raises `UserError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the script {path}: {error}", "It is a text file.") from None
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            order = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path}, line {number}, is no JSON: {error}", "See: sealring peer --help"
            ) from None
        if not isinstance(order, dict) or not any(verb in order for verb in _VERBS):
            raise UserError(
                f"{path}, line {number}, says nothing that a peer can do",
                f"A line has one of: {', '.join(_VERBS)}.",
            )
        if mistake := _mistake(order):
            raise UserError(f"{path}, line {number}: {mistake}", "See: sealring peer --help")
        lines.append((number, order))
    return Script(path, tuple(lines))


def _mistake(order: dict[str, Any]) -> str:
    """What keeps a peer from doing *order*; empty if nothing that can be seen before."""
    match order:
        case {"send": what} if not isinstance(what, dict):
            return "'send' takes an object with the fields of a message"
        case {"expect": what} if not isinstance(what, dict):
            return "'expect' takes an object with fields of a message"
        case {"wait": what} if type(what) not in (int, float) or not 0 <= what < math.inf:
            return "'wait' takes a number of seconds"
        case {"close": what} if type(what) is not int or what not in list(CloseCode):
            return f"'close' takes a code of CLOSE, 0 to {max(CloseCode):d}"
    return ""
