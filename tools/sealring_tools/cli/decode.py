"""`sealring decode`."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from sealring_tools.capture.decoding import Decoder, Event, read_key_log
from sealring_tools.capture.packets import read_segments
from sealring_tools.capture.streams import Streams
from sealring_trio.errors import OperationError


def decode(capture: Path, *, keys: Path | None = None, json: bool = False) -> None:
    """Show what the links in CAPTURE said, message by message.

    CAPTURE is pcap or pcapng, as tcpdump and Wireshark write them, from
    before the links came up. The keys come from a node that was started with
    keylog = "FILE" in its config; without them, only handshakes and sizes
    show. Tensors stay sealed, and so does what a join says after its
    handshake: their keys are not in that file.

        tcpdump -i any -w ring.pcap tcp port 7470
        sealring decode ring.pcap --keys desk.keys

    Take 'keylog' out of the config again, and delete the file: whoever has it
    reads all that was recorded.

    Parameters
    ----------
    capture
        The file with the recorded packets.
    keys
        The file that 'keylog' in a node's config names.
    json
        Print one JSON object for each message, one to a line.
    """
    secrets = [] if keys is None else read_key_log(keys)
    streams, first, shown = Streams(), None, 0
    for event in Decoder(secrets).events(streams.follow(read_segments(capture))):
        first = event.time if first is None else first
        shown += 1
        print(json_module.dumps(attrs.asdict(event)) if json else _line(event, event.time - first))
    for source, destination in streams.missing():
        print(f"sealring: bytes from {source} to {destination} are missing", file=sys.stderr)
    if not shown:
        raise OperationError(
            f"{capture} holds no link of sealring/1",
            "Record from before the nodes start, with the port that they listen at.",
        )


def _line(event: Event, at: float) -> str:
    fields = " ".join(f"{name}={_short(value)}" for name, value in _telling(event.fields))
    ends = f"{event.source} > {event.destination}"
    told = f"{event.what} {event.size} bytes {fields}".rstrip()
    return f"{at:12.6f} {event.connection:>3} {ends} {told}"


def _telling(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that hold something."""
    return ((name, value) for name, value in fields.items() if value not in ([], "", None, "0", 0))


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value if len(value) <= 40 else f"{value[:32]}..."
    return json_module.dumps(value, separators=(",", ":"))
