"""`sealring up`."""

from __future__ import annotations

import faulthandler
import logging
import select
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts
import trio
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.config import StrategyName

from sealring.cli.options import LogFormatChoice
from sealring.files.config import Config, own_config
from sealring.local.node_socket import claimed
from sealring.logs import LogLevel, begin_log

if TYPE_CHECKING:
    from sealring.joining.door import Door


def up(
    config: Path | None = None,
    *,
    strategy: StrategyName | None = None,
    log: LogLevel = "info",
    log_format: LogFormatChoice = "text",
    log_file: Path | None = None,
    trace: bool = False,
    lifeline: Annotated[int | None, cyclopts.Parameter(show=False)] = None,
) -> None:
    """Run one node of a ring, until Ctrl-C.

    Without a config it is that of the cluster which 'sealring start' made or
    'sealring join' joined. Start one on every machine of the roster, in any
    order; each says what it waits for. The first member of the roster is the
    head until another is elected. Ask any of them. A config is a TOML file:

        key = "desk.key"           # from sealring keygen
        roster = "home.roster"     # from sealring roster sign
        coordinator = "coordinator.pub"
        listen = "0.0.0.0:7470"    # the roster's, or 0.0.0.0
        model = "models/llama-8b"  # a folder, hub id or "tiny"

    and, if you like: layers = [20, 12], memory = "24G", strategy = "pp",
    suites = ["chacha20-poly1305"], state = "desk.state", and for the head
    api = "127.0.0.1:7480" (or "off") and timeout = 600. Once there are API
    keys (sealring apikey new), it asks everybody for one; with
    api_keys = "beyond-loopback" it asks nobody on this machine. drain = 30
    is how many seconds requests may take to finish when the node is stopped.
    patience = 5 lets a peer be silent for 5 seconds before it is taken for lost.

    With strategy = "tp" every rank has a share of every layer, and the ranks
    sum up what they have several times a token; that goes through the sealed
    links unless collectives = "trusted-link". With "pp" each has some of the
    layers. "auto", the default, begins with "pp", tries "tp" when the ring is idle
    if times so far say that it may be faster, and keeps the faster. With tp = 2 this
    node's layers are shared by two processes, each with a GPU of its own.

        sealring up desk.toml

    Next, in a second terminal on the head's machine:

        sealring generate --config desk.toml --prompt "Hello."

    or any client of OpenAI's, with the base URL http://127.0.0.1:7480/v1.
    The page is at http://127.0.0.1:7480/.

    Parameters
    ----------
    config
        The node's config file, or the folder that has it as node.toml; that
        of the default folder if left out.
    strategy
        How the model is split, in place of what the config says: 'tp' gives
        each rank a share of every layer, 'pp' some of the layers, 'auto'
        chooses.
    log
        How much to say on standard error. At 'info' the head says in one line
        where the time of each request went.
    log_file
        File that the log is added to, in place of standard error. Once it is
        moved away, a new one is made.
    trace
        Say so of every step too.
    lifeline
        A socket's descriptor, for supervisors: 'up' is written there when the
        node is up, and the node stops when it goes dead.
    """
    begin_log(log, log_format, log_file, steps=trace)
    run_node(own_config(config, strategy), lifeline)


def run_node(
    settings: Config,
    lifeline: int | None = None,
    beside: Callable[[Door], Awaitable[None]] | None = None,
) -> None:
    """Run the node of *settings* until it ends, and *beside* as `service.serve` does. Raises
    `UserError`."""
    # A watchdog ends a node that hangs by SIGABRT. Then the log has where each thread was.
    faulthandler.enable(sys.__stderr__ or 2)  # a stand-in for sys.stderr may be no file
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the node is there to read its files again
    with claimed(settings.state):
        # These take half a second to import, which a mistake in the config need not wait for.
        from sealring_trio.node.runtime import NodeClock  # noqa: PLC0415

        from sealring.service.head_api import prepare  # noqa: PLC0415
        from sealring.service.service import serve  # noqa: PLC0415

        prepared = prepare(settings, partial(_pause, lifeline))
        try:
            trio.run(serve, prepared, lifeline, beside, clock=NodeClock())
        except BaseException as error:  # noqa: BLE001 - a fault of any kind is told
            raise _ending(error) from None


def _ending(error: BaseException) -> BaseException:
    """What to end with after *error*, which ended the node: what a person can mend, or else that
    it has a fault, which is logged."""
    faults = list(_leaves(error))
    for fault in faults:
        if isinstance(fault, UserError | KeyboardInterrupt):
            return fault
    logging.getLogger("sealring").critical("this node has a fault, and ends", exc_info=error)
    text = "; ".join(dict.fromkeys(f"{type(fault).__name__}: {fault}" for fault in faults))
    return OperationError(
        f"the node failed: {text}",
        "That is a fault of sealring's. Please report it, with the traceback in the log.",
    )


def _pause(lifeline: int | None, seconds: float) -> None:
    """Wait for *seconds*. Ends the process if the *lifeline* goes dead meanwhile."""
    if lifeline is None:
        time.sleep(seconds)
    elif select.select([lifeline], [], [], seconds)[0]:
        raise SystemExit(0)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
