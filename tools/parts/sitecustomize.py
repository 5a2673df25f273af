"""Switches parts of look-ahead off and on in engines, for `tools.ablate`.

Its folder is on PYTHONPATH, so Python imports this module as it starts. In an engine a thread waits
for the engine's modules, puts a switch at each part, and then reads the file of the
parts that are off again and again. So one ring, whose device no other process shares, runs with and
without a part in turn.
"""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATH = Path(os.environ["SEALRING_PARTS_OFF"])
READ_SECONDS = 0.02

off: set[str] = set()


def switched(owner: Any, name: str, part: str, without: Any) -> None:
    """Where *part* is off, instances of *owner* have *without* as their attribute *name*."""

    def get(self: Any) -> Any:
        return without if part in off else self.__dict__[name]

    def put(self: Any, value: Any) -> None:
        self.__dict__[name] = value

    setattr(owner, name, property(get, put))


def switched_call(owner: Any, name: str, part: str, without: Callable[..., Any]) -> None:
    """Where *part* is off, the method *name* of *owner* is *without*."""
    whole = getattr(owner, name)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        return (without if part in off else whole)(self, *arguments, **named)

    setattr(owner, name, call)


def rewritten(owner: Any, name: str, lines: dict[str, str]) -> None:
    """The method *name* of *owner* has other *lines* in place of its own, with `off` in reach."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    for line, other in lines.items():
        if source.count(line) != 1:
            raise RuntimeError(f"{owner.__name__}.{name} has no such line: {line}")
        source = source.replace(line, other)
    space = {**vars(sys.modules[owner.__module__]), "off": off}
    exec("from __future__ import annotations\n" + source, space)
    setattr(owner, name, space[name])


def put_switches() -> None:
    """Put a switch at each part of `PARTS` of `tools.ablate`."""
    from sealring_model.channel import Channel  # noqa: PLC0415
    from sealring_model.engine.executor import Executor, Forward  # noqa: PLC0415
    from sealring_model.lookahead import Lookahead  # noqa: PLC0415
    from sealring_model.stage.device import DeviceIO, PinnedIO  # noqa: PLC0415

    loop: Any = sys.modules["__main__"].EngineLoop  # type: ignore[attr-defined]
    switched(Executor, "builds_ahead", "building", without=False)
    switched(Executor, "launches_ahead", "launching", without=False)
    switched(Executor, "_places_late", "unplaced", without=False)
    switched(Lookahead, "_launches_ahead", "launching", without=False)
    switched(Lookahead, "_graph_builder", "thread", without=None)
    switched(Forward, "_gates", "gate", without=False)
    switched_call(Channel, "intercept_next", "early", lambda *_: None)
    switched_call(PinnedIO, "outlet", "pinned", DeviceIO.outlet)
    poll = loop._should_poll.fget
    loop._should_poll = property(lambda self: "polling" not in off and poll(self))
    unbuilt = "sorted(awaiting_logits.keys() - self._closings.keys())"
    rewritten(
        Lookahead,
        "build",
        {
            unbuilt: f"(() if 'closing' in off else {unbuilt})",
            "if not self._to_build:": "if not self._to_build or 'decode' in off:",
        },
    )


def follow() -> None:
    """The thread's work."""
    while not hasattr(sys.modules["__main__"], "main"):
        time.sleep(READ_SECONDS)
    put_switches()
    PATH.with_name(f"ready {os.getpid()}").touch()
    while True:
        off.clear()
        off.update(PATH.read_text().split())
        time.sleep(READ_SECONDS)


if any("engine" in word for word in sys.orig_argv):
    threading.Thread(target=follow, daemon=True).start()
