"""A text worker: a process that does the work for which a hostile text could take much time or
memory.

Templates come with a model and parsers of tool calls from mlx-lm, and either may take minutes over
a short text; the JSON of a large body and its tokens take seconds of the interpreter. In a process
of its own that holds up nobody: the node bounds the time of each stage, and kills a process that
exceeds it.

The process knows the tokenizer, does one job at a time and keeps nothing between two. Its memory is
limited where the platform can; the node looks as well. It ends with the node's end of the socket.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import resource
import socket
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from sealring_model.errors import LoadError
from sealring_model.text.tokens import Tokenizer

from sealring.api.errors import ApiError, invalid
from sealring.api.texts import JOBS
from sealring.text.frames import MEMORY, SIZES, pack


def main() -> None:
    """Do what comes on the socket ``--fd`` with the tokenizer of ``--model``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    given = parser.parse_args()
    with socket.socket(fileno=given.fd) as node, contextlib.suppress(EOFError, OSError):
        _limit_memory()  # a file of the folder may be large, too
        try:
            tokenizer = Tokenizer(given.model)
        except LoadError as error:
            node.sendall(pack({"failed": str(error)}))
            return
        gc.freeze()
        _limit_memory()
        node.sendall(pack({"ready": True}))
        while True:
            node.sendall(_answer(node, tokenizer, *_receive(node)))


def _answer(node: socket.socket, tokenizer: Tokenizer, asked: Any, data: bytes) -> bytes:
    def enter(stage: str) -> None:
        node.sendall(pack({"stage": stage}))

    try:
        told, given = JOBS[asked["job"]](tokenizer, asked, data, enter)
    except ApiError as error:
        return pack({"refused": error.fields()})
    except (MemoryError, RecursionError):
        return pack({"refused": invalid("The text is too large or too deep.").fields()})
    return pack({"done": told}, given)


def _receive(node: socket.socket) -> tuple[Any, bytes]:
    text, data = SIZES.unpack(_exactly(node, SIZES.size))
    return json.loads(_exactly(node, text)), _exactly(node, data)


def _exactly(node: socket.socket, size: int) -> bytes:
    got = bytearray(size)
    view = memoryview(got)
    while view:
        count = node.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return bytes(got)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = psutil.Process().memory_info().vms + MEMORY
    with contextlib.suppress(OSError, ValueError):  # macOS: the node's looks have to do
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


if __name__ == "__main__":
    main()
