"""How modules of ours become processes, by this interpreter and from where it is installed, and
how they end.

``python -m`` looks for modules in the current folder first. Whoever can write there, a folder that
is shared or a model that came from elsewhere, would have his ``json.py`` run by every process of a
node. This module imports the standard library alone, as `namespace` needs it.
"""

from __future__ import annotations

import signal
import sys


def run_module(module: str, *arguments: str) -> list[str]:
    """The command that runs *module* with *arguments*, and no module of the current folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


def signal_name(number: int) -> str:
    """What signal *number* is called. Of the real-time ones only the first and last have names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
