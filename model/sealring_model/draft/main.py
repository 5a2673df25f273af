"""The process of a draft model, which runs beside the engine of a head.

    python -m sealring_model.draft.main --fd N --model FOLDER --vocabulary WIDTH

It takes what the head tells of its rows on the socket, and tells guesses (`frames`). What has come
is always taken before the next forward, so that it does not fall behind by more than that; and
nobody waits for it. It ends with the head's end of the socket.
"""

from __future__ import annotations

import argparse
import select
import signal
import socket
import sys
from pathlib import Path

from sealring_model.draft.drafter import Drafter
from sealring_model.draft.frames import DraftFrame, DraftFrameKind, FrameReader, pack
from sealring_model.errors import FORWARD_ERRORS, error_text
from sealring_model.loading.kernel_cache import keep_kernels_private
from sealring_model.mlx_lm_import import model_loader

_RECEIVE = 1 << 20


def serve(sock: socket.socket, drafter: Drafter) -> None:
    """Guess for the head at *sock*, until that closes."""
    reader = FrameReader()
    while True:
        ready, _, _ = select.select([sock], [], [], 0 if drafter.busy else None)
        if ready:
            data = sock.recv(_RECEIVE)
            if not data:
                return
            for frame in reader.read(data):
                drafter.handle(frame)
        elif (guess := drafter.work()) is not None:
            sock.sendall(pack(guess))


def main() -> int:
    """The command of the child process."""
    parser = argparse.ArgumentParser(prog="sealring_model.draft.main")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_kernels_private()
    with socket.socket(fileno=options.fd) as sock:
        try:
            model, _ = model_loader().load_model(options.model)
            sock.sendall(pack(DraftFrame(DraftFrameKind.READY)))
            serve(sock, Drafter(model, options.vocabulary))
        except (BrokenPipeError, ConnectionResetError):
            return 0
        except FORWARD_ERRORS as error:
            print(f"sealring draft model: {error_text(error)}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
