"""Reads what a person types in a terminal: a line, or several.

prompt_toolkit edits the lines. A paste arrives in one piece, with its lines (bracketed paste). What
was typed is kept between sessions in a file of this user's alone, which Ctrl-R searches.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from sealring_trio.files.key_files import READABLE, WRITABLE, others_may, replace_file

from sealring.local.client import encodable

MAX_HISTORY: Final = 1 << 20
"""Bytes of the history beyond which its older half is dropped when a chat begins."""

_MODE: Final = 0o600
_ENTRY: Final = b"\n# "  # how prompt_toolkit begins an entry: with its time


def history_file() -> Path:
    """Where the history is kept: below the user's folder for state."""
    home = os.environ.get("HOME", "") or "~"
    default = "Library/Application Support" if sys.platform == "darwin" else ".local/state"
    state = os.environ.get("XDG_STATE_HOME", "") or str(Path(home, default))
    return Path(state, "sealring", "chat_history").expanduser().absolute()


def open_history(path: Path) -> tuple[History, str]:
    """The history in *path*, which is made if it is not there, and why it is not used. Empty if it
    is; else what is typed is kept for this session alone."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            fault = others_may(path.parent.stat(), WRITABLE) or others_may(status, READABLE)
            if not fault and not stat.S_ISREG(status.st_mode):
                fault = "it is no regular file"
            if fault:
                return InMemoryHistory(), f"{path} is not used: {fault}"
            if status.st_size > MAX_HISTORY:
                file.seek(-MAX_HISTORY // 2, os.SEEK_END)
                _, begin, rest = file.read(MAX_HISTORY).partition(_ENTRY)
                replace_file(path, begin + rest, _MODE)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return InMemoryHistory(), f"{path} cannot be used: {why}"
    return _KeptHistory(str(path)), ""


class _KeptHistory(FileHistory):
    """A file that may become full or be taken away without ending the chat."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(encodable(string))


class LineEditor:
    """Asks for a line at a time, or for several while what was typed *goes_on*. *words* are
    completed with Tab."""

    def __init__(
        self, history: History, words: Iterable[str], goes_on: Callable[[str], bool]
    ) -> None:
        self._goes_on: Final = goes_on
        self._session: Final[PromptSession[str]] = PromptSession(
            "> ",
            history=history,
            multiline=True,
            prompt_continuation="  ",
            key_bindings=self._keys(),
            completer=WordCompleter(list(words), sentence=True),
            complete_while_typing=False,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            output=create_output(always_prefer_tty=True),
        )

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        # Enter ends what is typed, unless it goes on. While Ctrl-R searches it ends that.
        @Condition
        def typing() -> bool:
            return not self._session.app.layout.is_searching

        @keys.add("enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if self._goes_on(buffer.text):
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @keys.add("c-c", filter=typing)
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt)

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        return keys

    def read(self) -> str:
        """What was typed. Raises `EOFError` for Ctrl-D, and `KeyboardInterrupt` for Ctrl-C in an
        empty line. Ctrl-C elsewhere empties the line."""
        return encodable(self._session.prompt())
