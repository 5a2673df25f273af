"""Starts a whole ring on this machine with its HTTP API (`ring.local_ring`), and waits until it
serves.

A node says that it is up when it listens; the ring serves when every rank has loaded its layers,
which the API's ``/health`` tells, with what it still waits for.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import httpx2

from sealring_trio.collective.ports import free_ports
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.models import model_name
from sealring_trio.local import client
from sealring_trio.local.ring import LocalNode, check_ring, local_ring

POLL_SECONDS: Final = 0.2

Tell = Callable[[str], None]


@attrs.frozen
class LocalApi:
    """A running ring: its *nodes* in rank order, where its API is, and its model's name."""

    nodes: list[LocalNode]
    url: str
    model: str

    def dead(self, seconds: float = 0.0) -> LocalNode | None:
        """A node that has ended; waits for one so many *seconds* at most."""
        lines = {node.lifeline: node for node in self.nodes}
        ended, _, _ = select.select(list(lines), [], [], seconds)
        return lines[ended[0]] if ended else None

    def check(self) -> None:
        """Raise `OperationError` when a node has ended."""
        if (node := self.dead()) is not None:
            why = node.ending()
            raise OperationError(
                f"{node.name} (pid {node.process.pid}) has ended: {why}; {node.log_tail()}",
                f"Its whole log is kept in {node.keep_log()}; put that right, and start again.",
            )


@contextlib.contextmanager
def local_api(
    ranks: int,
    model: Path,
    *,
    port: int = 0,
    layers: Sequence[int] = (),
    options: Mapping[str, str | float] = {},
    flags: Sequence[str] = (),
    tell: Tell = lambda _: None,
) -> Iterator[LocalApi]:
    """A ring of *ranks* with *model* that serves at *port* (0: any free one) of loopback, and ends
    with the block; see `ring.local_ring`. *tell* is called with what it waits for. Raises
    `UserError` for what is impossible, `OperationError` when the ring does not come up."""
    check_ring(ranks, model)
    port = check_port(port)
    tell(f"starting {ranks} node{'s' if ranks != 1 else ''}")
    address = f"127.0.0.1:{port}"
    with local_ring(ranks, model, layers, address, options, flags) as nodes:
        api = LocalApi(nodes, f"http://{address}", model_name(model))
        _wait_until_serving(api, tell)
        yield api


def check_port(port: int) -> int:
    """*port* if it is free on loopback, or a free one for 0. Raises `UserError`."""
    if not port:
        return free_ports(1)[0]
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise UserError(
            f"cannot listen at port {port}: {error.strerror}",
            "Choose another with --port, or stop what listens there.",
        ) from None
    return port


def _wait_until_serving(api: LocalApi, tell: Tell) -> None:
    with httpx2.Client(**client.settings(api.url, "")) as http:
        while True:
            try:
                response = http.get("/health")
                health = response.json()
                faults = [why["what"] for why in health["why"]] or health["faults"]
                for why in health["why"]:
                    if why["permanent"]:
                        raise OperationError(f"the ring cannot serve: {why['what']}", why["advice"])
            except httpx2.HTTPError:
                faults = ["the head does not answer yet"]
            if not faults:
                return
            tell("; ".join(fault.rstrip(".") for fault in faults))
            if api.dead(POLL_SECONDS) is not None:
                api.check()
