"""A text worker that was taken over: it answers each job with what stands in a file of its model.

What it is given after ``--model`` is a folder; the file is called ``says``, and holds whole frames.
Where there is a file ``begins``, it begins with these; where there is one called ``drips``, it
gives out byte after byte. Where there is one called ``signal``, it ends by that signal instead.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from pathlib import Path
from typing import Any

from sealring.text.frames import SIZES, pack
from sealring_model.text.detokenizer import Vocabulary

WORDS: dict[str, Any] = {
    "size": 0,
    "special": frozenset[int](),
    "silent": frozenset[int](),
    "eos": frozenset[int](),
}
"""Of a model without any."""

PAUSE = 0.02
"""Seconds between two bytes: shorter than the node's looks at a worker that says nothing."""


def main() -> None:
    """Answer until the node closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seconds", type=int)
    given = parser.parse_args()
    with socket.socket(fileno=given.fd) as node, node.makefile("rb") as jobs:
        begins = given.model / "begins"
        told, data = Vocabulary.of((), **WORDS).packed()
        node.sendall(begins.read_bytes() if begins.exists() else pack({"ready": told}, data))
        while head := jobs.read(SIZES.size):
            jobs.read(sum(SIZES.unpack(head)))
            if (given.model / "signal").exists():
                os.kill(os.getpid(), int((given.model / "signal").read_text()))
            says = (given.model / "says").read_bytes()
            if not (given.model / "drips").exists():
                node.sendall(says)
                continue
            for byte in says:
                node.sendall(bytes([byte]))
                time.sleep(PAUSE)


if __name__ == "__main__":
    main()
