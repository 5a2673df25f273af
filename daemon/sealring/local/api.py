"""Starts a whole ring on this machine with its HTTP API (`ring.local_ring`), and waits until it
serves.

A node says that it is up when it listens; the ring serves when every rank has loaded its layers,
which the API's ``/health`` tells, with what it still waits for.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import httpx2
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.models import model_name
from sealring_trio.units import format_address

from sealring.local import client
from sealring.local.control_client import ask
from sealring.local.ring import LocalNode, Setting, check_ring, local_ring

POLL_SECONDS: Final = 0.2

TELL_SECONDS: Final = 5.0
"""Seconds that the head has to end its requests with a reason, before the ring is stopped."""

LOOPBACK: Final = "127.0.0.1"
_WILD: Final = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104  what stands for every address

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
        """Raise `OperationError` when a node has ended. Requests under way end with the reason."""
        if (node := self.dead()) is not None:
            why = node.ending()
            self._tell_clients(f"{node.name} has ended: {why}")
            raise OperationError(
                f"{node.name} (pid {node.process.pid}) has ended: {why}; {node.log_tail()}",
                f"Its whole log is kept in {node.keep_log()}; put that right, and start again.",
            )

    def _tell_clients(self, why: str) -> None:
        """Have the head, if it is there, end its requests because of *why*."""
        with contextlib.suppress(UserError):  # of a head that has ended, too
            list(ask(self.nodes[0].control, {"do": "end", "why": why}, TELL_SECONDS))


@contextlib.contextmanager
def local_api(
    ranks: int,
    model: Path,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    layers: Sequence[int] = (),
    options: Mapping[str, Setting] = {},
    flags: Sequence[str] = (),
    api_key: str = "",
    certificate: Path | None = None,
    tell: Tell = lambda _: None,
) -> Iterator[LocalApi]:
    """A ring of *ranks* with *model* that serves at *port* (0: any free one) of *host*, and ends
    with the block; see `ring.local_ring`. It speaks TLS with *certificate*, if there is one, whose
    keys of the config are in *options*. *tell* is called with what it waits for. Raises `UserError`
    for what is impossible, `OperationError` when the ring does not come up."""
    check_ring(ranks, model)
    port = check_port(port, host)
    trust = None
    if certificate is not None:
        trust = client.trusting(certificate)
        trust.check_hostname = False  # it is trusted because it is this very one
    tell(f"starting {ranks} node{'s' if ranks != 1 else ''}")
    address = format_address(host, port)
    with local_ring(ranks, model, layers, address, options, flags, api_key=api_key) as nodes:
        scheme = "http" if certificate is None else "https"
        url = f"{scheme}://{format_address(_WILD.get(host, host), port)}"
        api = LocalApi(nodes, url, model_name(model))
        _wait_until_serving(api, trust, tell)
        yield api


def check_port(port: int, host: str = LOOPBACK) -> int:
    """*port* if it is free at *host*, or a free one for 0. Raises `OperationError`."""
    if not port:
        return free_ports(1)[0]
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except OSError as error:
        raise OperationError(
            f"cannot listen at {format_address(host, port)}: "
            f"{str(error.strerror).partition(' (')[0]}",
            "Choose another with --port or --host, or stop what listens there.",
        ) from None
    return port


def _wait_until_serving(api: LocalApi, trust: ssl.SSLContext | None, tell: Tell) -> None:
    with httpx2.Client(**client.settings(api.url, "", trust)) as http:
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
