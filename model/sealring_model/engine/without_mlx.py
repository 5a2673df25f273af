"""The end of an engine that cannot import MLX: its node is told why, as of a model that it cannot
read, and so the head is."""

from __future__ import annotations

import argparse
import socket
import sys
from typing import NoReturn

from sealring_protocol.codec.messages import NO_EPOCH, CannotServe

from sealring_model.channel import Channel
from sealring_model.errors import LoadError, error_text


def end_without_mlx(error: ImportError) -> NoReturn:
    """Tell the node at ``--fd`` that there is no MLX here, for *error*, and exit."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--fd", type=int, required=True)
    channel = Channel(socket.socket(fileno=parser.parse_known_args()[0].fd))
    channel.open()
    fault = LoadError(
        f"MLX cannot be loaded: {error}",
        "install it for this machine's device (in a checkout: uv sync, with --no-group cpu "
        "--group cuda13 for CUDA)",
    )
    why = error_text(fault)
    channel.send(CannotServe(NO_EPOCH, fault.KIND, why))
    channel.finish()
    print(f"sealring engine: {why}", file=sys.stderr)
    sys.exit(2)
