"""A text worker that was taken over: it answers each job with what stands in a file of its model.

What it is given after ``--model`` is a folder; the file is called ``says``, and holds whole frames.
Where there is a file ``begins``, it begins with these.
"""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

from sealring_trio.text_frames import SIZES, pack


def main() -> None:
    """Answer until the node closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    given = parser.parse_args()
    with socket.socket(fileno=given.fd) as node, node.makefile("rb") as jobs:
        begins = given.model / "begins"
        node.sendall(begins.read_bytes() if begins.exists() else pack({"ready": True}))
        while head := jobs.read(SIZES.size):
            jobs.read(sum(SIZES.unpack(head)))
            node.sendall((given.model / "says").read_bytes())


if __name__ == "__main__":
    main()
