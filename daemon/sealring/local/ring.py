"""Starts a whole ring on this machine: throwaway keys and roster, and one real `sealring up` per
rank.

Nothing here is a shortcut: the nodes are the processes that a cluster has, talking over TCP on
loopback with the same handshakes. Each is held by a lifeline, a socket pair whose other end the
node watches: the node says there when it is up, and stops when the line goes dead, so no node
outlives whoever started it, however that ends. Only processes started here are ever signalled.

A node is up when it listens. The ring serves when every rank has loaded its layers, which the API's
``/health`` says, with what it still waits for.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from sealring_protocol.limits import MAX_WORLD
from sealring_protocol.security.roster import sign_roster
from sealring_trio.collective.loopback import free_ports
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.key_files import public_path
from sealring_trio.files.models import describe_model, model_name
from sealring_trio.net.connecting import check_port
from sealring_trio.processes.interpreter import run_module, signal_name
from sealring_trio.units import format_address, wall_ms

from sealring.files.cluster import build_roster, create_key, make_draft, make_member
from sealring.files.config import NO_API
from sealring.files.models import check_text
from sealring.local.node_socket import ask

START_TIMEOUT: Final = 60.0
"""Seconds from the start of a node until it says that it is up."""

END_SECONDS: Final = 10.0
"""Seconds from the end of a node's lifeline to the end of its process, which may still write its
reason to the log."""

STOP_TIMEOUT: Final = 40.0
"""Seconds that a node may take to stop in good order. It lets requests finish, for 30 at most."""

POLL_SECONDS: Final = 0.2
END_REQUESTS_SECONDS: Final = 5.0
"""Seconds that the head has to end its requests with a reason, before the ring is stopped."""

LOOPBACK: Final = "127.0.0.1"
_WILD: Final = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104  what stands for every address
_OPTIONS: Final = {"strategy": "pp", "group_timeout": 60.0, "min_ranks": 0}
"""Config keys that a caller may override. On one machine no measurement of links is needed, ranks
that share its cores may need long to find each other, and none goes away for good."""

_COMPLAINT: Final = "sealring: "
"""How a command begins that says why it ends."""

_LAST: Final = '"level": "critical"'
"""What the JSON line of a log has that says so."""

_DAY_MS: Final = 24 * 3600 * 1000
_UP: Final = "SEALRING_UP_"  # how variables begin that stand for options of `sealring up`
Setting = str | float | Sequence[str]
"""The value of a key in a node's config."""

Report = Callable[[str], None]
"""Hears what is waited for."""


@attrs.frozen
class LocalNode:
    """A running node: its config, its process, its log and its control socket."""

    name: str
    config: Path
    log: Path
    control: Path
    process: subprocess.Popen[bytes]
    lifeline: socket.socket

    def ask(self, name: str, fields: Mapping[str, Any] = {}) -> Iterator[dict[str, Any]]:
        """Send the request *name* to the node; yields the lines of the answer."""
        return ask(self.control, name, fields)

    def log_tail(self) -> str:
        """The end of its log, for whoever has to explain what went wrong."""
        lines = self.log.read_text(errors="replace").splitlines()[-8:]
        return "\n".join(["its log ends with:", *lines])

    def ending(self) -> str:
        """Why its process ended, once its lifeline has gone dead."""
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "it stopped working, and its process goes on"
        if code < 0:
            return f"{signal_name(-code)} killed it"
        lines = self.log.read_text(errors="replace").splitlines()
        for line in reversed(lines):
            if line.startswith(_COMPLAINT):
                return line.removeprefix(_COMPLAINT)
            if line.startswith("{") and _LAST in line:  # see `sealring.logs.JsonLines`
                return str(json.loads(line)["text"])
        return f"it exited with code {code}"

    def keep_log(self) -> Path:
        """A copy of its log, in a file that stays."""
        handle, path = tempfile.mkstemp(prefix=f"sealring-{self.name}-", suffix=".log")
        with open(handle, "wb") as file:
            file.write(self.log.read_bytes())
        return Path(path)

    def status(self) -> dict[str, Any]:
        """What `sealring status` shows."""
        return next(self.ask("status"))


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
            self._end_requests(f"{node.name} has ended: {why}")
            raise OperationError(
                f"{node.name} (pid {node.process.pid}) has ended: {why}; {node.log_tail()}",
                f"Its whole log is kept in {node.keep_log()}; put that right, and start again.",
            )

    def _end_requests(self, why: str) -> None:
        """Have the head, if it is there, end its requests because of *why*."""
        with contextlib.suppress(UserError):  # of a head that has ended, too
            list(ask(self.nodes[0].control, "end", {"why": why}, END_REQUESTS_SECONDS))


@contextlib.contextmanager
def local_ring(
    ranks: int,
    model: Path,
    layers: Sequence[int] = (),
    api: str = NO_API,
    options: Mapping[str, Setting] = {},
    flags: Sequence[str] = (),
    places: Sequence[Mapping[str, str]] = (),
    api_key: str = "",
) -> Iterator[list[LocalNode]]:
    """*ranks* nodes of a throwaway cluster with *model*, in rank order; all end with the block, the
    head first, so that what it still answers has the ring to do it. *api* is the address of its
    HTTP API, and *api_key* the key that it asks for, if it asks for one; *options* are other keys
    of the nodes' configs, *flags* more of `sealring up`'s, and *places* what each rank finds in its
    environment besides.

    Raises `UserError` for a number of ranks that cannot be, `OperationError` when a node does
    not start.
    """
    check_ring(ranks, model)
    with contextlib.ExitStack() as stack:
        # Short, for the sockets' sake.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        configs = write_cluster(folder, ranks, model, layers, api, options)
        if api_key:
            from sealring.http.keys import KEY_FILE, add_key  # noqa: PLC0415 - as in `setup`

            add_key(folder / f"{configs[0].stem}.state" / KEY_FILE, "serve", api_key)
        nodes = [
            stack.enter_context(running_node(config, flags, places[rank] if places else {}))
            for rank, config in reversed(list(enumerate(configs)))
        ][::-1]
        for node in nodes:
            wait_until_up(node)
        try:
            yield nodes
        except BaseException:
            for node in nodes:  # nothing is left to be answered, so they stop side by side
                node.process.terminate()
            raise


@contextlib.contextmanager
def local_api(
    ranks: int,
    model: Path,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    options: Mapping[str, Setting] = {},
    flags: Sequence[str] = (),
    api_key: str = "",
    certificate: Path | None = None,
    report: Report = lambda _: None,
) -> Iterator[LocalApi]:
    """A ring of *ranks* with *model* that serves at *port* (0: any free one) of *host*, and ends
    with the block; see `ring.local_ring`. It speaks TLS with *certificate*, if there is one, whose
    keys of the config are in *options*. *report* hears what it waits for. Raises `UserError`
    for what is impossible, `OperationError` when the ring does not come up."""
    from sealring.local import client  # noqa: PLC0415 - a tenth of a second, for rings with an API

    check_ring(ranks, model)
    port = free_port(port, host)
    trust = None
    if certificate is not None:
        trust = client.trusting(certificate)
        trust.check_hostname = False  # it is trusted because it is this very one
    report(f"starting {ranks} node{'s' if ranks != 1 else ''}")
    address = format_address(host, port)
    with local_ring(ranks, model, (), address, options, flags, api_key=api_key) as nodes:
        scheme = "http" if certificate is None else "https"
        url = f"{scheme}://{format_address(_WILD.get(host, host), port)}"
        api = LocalApi(nodes, url, model_name(model))
        _wait_until_serving(api, trust, report)
        yield api


def check_ring(ranks: int, model: Path) -> None:
    """Raise `UserError` if no ring of so many *ranks* can serve *model*: it has too few layers, or
    no tokenizer."""
    if not 1 <= ranks <= MAX_WORLD:
        raise UserError(f"{ranks} ranks cannot be", f"A ring has 1 to {MAX_WORLD}.")
    layers = len(describe_model(model).layers)
    if ranks > layers:
        raise UserError(
            f"{ranks} ranks are too many for a model of {layers} layers",
            "Each rank has at least one layer.",
        )
    check_text(model)


def free_port(port: int, host: str) -> int:
    """*port* if it is free at *host*, or a free one for 0. Raises `OperationError`."""
    if not port:
        return free_ports(1)[0]
    check_port(host, port, "Choose another with --port or --host.")
    return port


def guess_options(draft: str | None, model: Path, *, no_guesses: bool) -> dict[str, Setting]:
    """The keys of a head's config by which *draft*, if it is given, guesses for the model in the
    folder *model*, or nothing is guessed. Raises `UserError`."""
    if draft is None:
        return {"guesses": False} if no_guesses else {}
    if no_guesses:
        raise UserError(
            "--draft names a model that guesses tokens, and --no-guesses has none guessed",
            "Give one of the two.",
        )
    # Imported late: it brings a whole node with it, and most rings have no draft model.
    from sealring_trio.node.drafts import OPTION, find_draft  # noqa: PLC0415

    return {"draft": str(find_draft(draft, model, OPTION).folder)}


def write_cluster(
    folder: Path,
    ranks: int,
    model: Path,
    layers: Sequence[int] = (),
    api: str = NO_API,
    options: Mapping[str, Setting] = {},
    *,
    elects: bool = False,
) -> list[Path]:
    """Keys, a signed roster and a config for each rank, in *folder*; the configs. The first rank
    alone is ever the head, and has an API, at the address *api*; unless the cluster *elects* heads:
    then each rank has one."""
    coordinator = create_key(folder / "coordinator.key")
    names = [f"rank{rank}" for rank in range(ranks)]
    ports = free_ports(ranks)
    draft = make_draft("demo", secrets.token_bytes(32), inner_seal=True, fixed_head=not elects)
    apis = [api] + [NO_API] * (ranks - 1)
    if elects:
        apis[1:] = [f"127.0.0.1:{port}" for port in free_ports(ranks)[1:]]
    members = [
        make_member(
            name, create_key(folder / f"{name}.key").public_key, [f"127.0.0.1:{port}"], None, None
        )
        for name, port in zip(names, ports, strict=True)
    ]
    now = wall_ms()
    draft = draft.model_copy(update={"member": members})
    signed = sign_roster(build_roster(draft, 1, now, now + _DAY_MS), coordinator)
    (folder / "demo.roster").write_bytes(signed.encode())
    configs = []
    for rank, (name, port) in enumerate(zip(names, ports, strict=True)):
        lines = [
            f'key = "{name}.key"',
            'roster = "demo.roster"',
            f'coordinator = "{public_path(folder / "coordinator.key").name}"',
            f'listen = "127.0.0.1:{port}"',
            f'model = "{model}"',
            f'api = "{apis[rank]}"',
            *([f"layers = {list(layers)}"] if layers else []),
            *(f"{key} = {json.dumps(value)}" for key, value in {**_OPTIONS, **options}.items()),
        ]
        configs.append(folder / f"{name}.toml")
        configs[-1].write_text("\n".join(lines) + "\n")
    return configs


@contextlib.contextmanager
def running_node(
    config: Path,
    flags: Sequence[str] = (),
    place: Mapping[str, str] = {},
    program: str = "sealring",
) -> Iterator[LocalNode]:
    """A `sealring up` for *config*, ended with the block. It may not be up yet. *program* is the
    module that is `sealring`."""
    ours, theirs = socket.socketpair()
    log = config.with_suffix(".log")
    with ours, theirs, log.open("ab") as sink:
        command = run_module(program, "up", str(config), *flags)
        process = subprocess.Popen(
            [*command, "--lifeline", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**_environment(), **place},
        )
        theirs.close()
        state = config.parent / f"{config.stem}.state"
        try:
            yield LocalNode(config.stem, config, log, state / "control.sock", process, ours)
        finally:
            stop_process(process)


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End *process* in good order, or kill it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_up(node: LocalNode) -> None:
    """Wait for *node* to say that it is up. Raises `OperationError` when it ends instead."""
    node.lifeline.settimeout(START_TIMEOUT)
    try:
        said = node.lifeline.recv(16)
    except TimeoutError:
        said = b""
    if not said:
        raise OperationError(
            f"{node.name} did not start: {node.ending()}; {node.log_tail()}",
            "Put that right first.",
        )


def _environment() -> dict[str, str]:
    """This process's environment, without what a person has set for `sealring up` of their own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_UP)}


def _wait_until_serving(api: LocalApi, trust: ssl.SSLContext | None, report: Report) -> None:
    import httpx2  # noqa: PLC0415 - as above

    from sealring.local import client  # noqa: PLC0415

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
            report("; ".join(fault.rstrip(".") for fault in faults))
            if api.dead(POLL_SECONDS) is not None:
                api.check()
