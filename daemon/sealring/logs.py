"""A node's log: lines of text for people, or one JSON object a line for programs that collect logs.

It goes to standard error, or to a file. A program that rotates logs moves the file away: the next
line goes to a new one of the old name, with or without a SIGHUP. A line that cannot be written (a
full disk, say, or a full pipe that nobody reads) is lost, and the node goes on.
"""

from __future__ import annotations

import json
import logging
import os
import select
import stat
import sys
import time
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final, Literal

from sealring_trio.errors import UserError

log = logging.getLogger("sealring")

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

_TEXT: Final = "%(asctime)s %(levelname)-7s %(message)s"


class JsonLines(logging.Formatter):
    """Makes one JSON object of a record, in ASCII: ``time`` (RFC 3339, UTC), ``level``, ``logger``,
    ``text``, and ``exception`` (a traceback) where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The object, in one line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _LogFile(WatchedFileHandler):
    """A log file that is opened anew once it has been moved away."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write *record*. Opening the file anew may fail, which is no reason to end a node."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


class _Pipe(logging.Handler):
    """Writes to a pipe, or a socket, no more than it takes at once: a log that is read slowly, or
    not at all, holds up no node. Lines that find it full are lost, and counted in the next."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._rest = b""  # of a line that was begun
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write *record*, unless the pipe is full."""
        try:
            data = self._line(record)
        except Exception:  # noqa: BLE001 - a mistake in a record ends no node, as with any handler
            self.handleError(record)
            return
        if self._lost:
            lines = "1 line was" if self._lost == 1 else f"{self._lost:,} lines were"
            text = f"{lines} lost: the reader of the log was slow"
            about = logging.LogRecord(log.name, logging.WARNING, "", 0, text, None, None)
            data = self._line(about) + data
        try:
            self._rest = self._write(self._rest)
            left = self._rest or self._write(data)
        except OSError:  # its reader has gone
            left = data
        if self._rest or left == data:
            self._lost += 1
        else:
            self._rest, self._lost = left, 0

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _write(self, data: bytes) -> bytes:
        """What does not fit of *data*. A pipe that has room takes `select.PIPE_BUF` bytes without
        waiting; to make it non-blocking would make it so for all that write to it."""
        while data and self._room.poll(0):
            data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
        return data


def _at_stderr() -> logging.Handler:
    try:
        descriptor = sys.stderr.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):  # there is none, or a test's
        return logging.StreamHandler(sys.stderr)
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return _Pipe(descriptor)
    return logging.StreamHandler(sys.stderr)


def begin_log(
    level: LogLevel, style: LogFormat, file: Path | None = None, *, steps: bool = False
) -> None:
    """Begin the log of this process, at standard error unless a *file* is given, to which it is
    added. Each step is logged too if *steps*. Raises `UserError` if the file cannot be written."""
    handler = _at_stderr()
    if file is not None:
        try:
            handler = _LogFile(file, encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"cannot write the log to {file}: {error.strerror}",
                "Name a file in a folder that is there and that you may write to: --log-file FILE",
            ) from None
    handler.setFormatter(JsonLines() if style == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("sealring.steps").setLevel(logging.INFO if steps else logging.WARNING)


def log_error(error: UserError) -> bool:
    """Log the *error* that ends this process, unless its log is text at standard error, where it is
    printed anyway. True if it is not to be printed: each line there is a JSON object."""
    for handler in logging.getLogger().handlers:
        lines = isinstance(handler.formatter, JsonLines)
        if lines or isinstance(handler, _LogFile):
            log.critical("%s. %s", error.what, error.advice)
            return lines
    return False
