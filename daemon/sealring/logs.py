"""A node's log: lines of text for people, or one JSON object a line for programs that collect logs.

It goes to standard error, or to a file. A program that rotates logs moves the file away: the next
line goes to a new one of the old name, with or without a SIGHUP. A line that cannot be written (a
full disk, say) is lost, and the node goes on.
"""

from __future__ import annotations

import json
import logging
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


def begin_log(
    level: LogLevel, style: LogFormat, file: Path | None = None, *, steps: bool = False
) -> None:
    """Begin the log of this process, at standard error unless a *file* is given, to which it is
    added. Each step is logged too if *steps*. Raises `UserError` if the file cannot be written."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
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
