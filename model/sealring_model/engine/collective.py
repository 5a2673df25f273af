"""Joins this process to a collective, over MLX's own distributed engine.

MLX reads its settings from the environment and, for its ring, from a file. Both are made here from
the typed fields of a GROUP message and nothing else; the file is removed once the collective
stands.

`mx.distributed.init` cannot be interrupted: it holds the GIL while it waits for peers, for ever if
need be, and a second call returns the first collective. So a process joins one collective in its
life, and its node ends the process when that takes too long. Should the node be gone, an alarm ends
the process a little after the deadline. The alarm has its default action, because no Python code
would run.

The collective is used only after a sum of ones over all members gives their number. Then two
medians are measured that show whether tensor parallelism pays: a sum of one row's hidden state, and
a forward of one token. They are measured in turns, and several sums in a row, as a token has them:
a machine that is busy for a while makes both slower, and not what is left of a token without its
sums. Every member measures the same number of times, for each waits for the others; a slow machine
measures fewer times, which the members agree on by summing what they have taken so far.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import mlx.core as mx
from sealring_protocol.codec.local_messages import Group
from sealring_protocol.codec.messages import Backend

from sealring_model.errors import CollectiveError
from sealring_model.loading.assemble import LoadedStage
from sealring_model.stage.device import MLX_DTYPES

_DEVICES: Final = "MLX_IBV_DEVICES"
_GRACE: Final = 1.0
"""Seconds after the deadline at which a process that still waits for peers ends itself."""
_WARM: Final = 2
_TIMES: Final = 5
_LEAST: Final = 3
"""Rounds that are timed at least, the first to warm up."""
_SECONDS: Final = 2.0
"""Of measuring, after which no other round begins but the least."""
_IN_A_ROW: Final = 16
"""Sums that are timed in a row, at most. A slow collective has to be up by the group's deadline."""


def check_backend(order: Group) -> None:
    """Raise `CollectiveError` unless this MLX can form the collective that *order* asks for."""
    if not mx.distributed.is_available(_name(order.backend)):
        raise CollectiveError(f"this MLX has no {_name(order.backend)} back end")
    if order.backend is Backend.JACCL and _DEVICES not in os.environ:
        raise CollectiveError(f"jaccl needs {_DEVICES} set to the file that lists the RDMA devices")


def join(order: Group) -> mx.distributed.Group:
    """The group that *order* describes, of which this process is now a member.

    Raises `CollectiveError` when it does not come about. May not return at all, see above.
    """
    check_backend(order)
    with _alarm(order.deadline_ms / 1000 + _GRACE), tempfile.TemporaryDirectory() as folder:
        os.environ.update(environment(order, Path(folder) / "hosts.json"))
        try:
            collective = mx.distributed.init(strict=True, backend=_name(order.backend))
            total = mx.distributed.all_sum(mx.array(1.0), group=collective).item()
        except (RuntimeError, ValueError) as error:
            raise CollectiveError(
                f"the {_name(order.backend)} group was not formed: {error}"
            ) from error
    if (collective.rank(), collective.size()) != (order.rank, order.size):
        raise CollectiveError(
            f"MLX made this member {collective.rank()} of {collective.size()}, "
            f"not {order.rank} of {order.size}"
        )
    if total != order.size:
        raise CollectiveError(f"a sum of ones over {order.size} members was {total:g}")
    return collective


def environment(order: Group, hostfile: Path) -> dict[str, str]:
    """The environment variables that MLX needs; for a ring, *hostfile* is written.

    Raises `CollectiveError` for an address that MLX does not take.
    """
    host, port = order.hosts[0]
    member = {"MLX_RANK": str(order.rank)}
    match order.backend:
        case Backend.RING:
            for other, _ in order.hosts:
                if ":" in other:
                    raise CollectiveError(f"MLX's ring takes IPv4 addresses, and {other} is none")
            hostfile.write_text(json.dumps([[f"{host}:{port}"] for host, port in order.hosts]))
            return {**member, "MLX_HOSTFILE": str(hostfile)}
        case Backend.JACCL:
            return {**member, "MLX_JACCL_COORDINATOR": f"{host}:{port}"}
        case _:
            size = {"MLX_WORLD_SIZE": str(order.size)}
            return {**member, **size, "NCCL_HOST_IP": host, "NCCL_PORT": str(port)}


def medians(collective: mx.distributed.Group, loaded: LoadedStage) -> tuple[int, int]:
    """Microseconds of a sum of one row's hidden state, among several in a row, and of a forward of
    one token."""
    hidden = mx.zeros((1, 1, loaded.hidden), MLX_DTYPES[loaded.dtype])
    inputs, slots = loaded.stage.dummy_inputs(1, 1), loaded.stage.new_caches()
    mx.eval(hidden, inputs)
    sums = min(_IN_A_ROW, 2 * (loaded.last - loaded.first) + 1)

    def token() -> mx.array:
        return loaded.stage.run(inputs, slots)[0]

    def total() -> mx.array:
        total = hidden
        for _ in range(sums):
            total = mx.distributed.all_sum(total, group=collective)
        return total

    took: list[tuple[int, int]] = []
    spent = 0.0
    while len(took) < _WARM + _TIMES and (len(took) < _LEAST or spent < _SECONDS):
        took.append((_us(total), _us(token)))
        ours = mx.array(sum(map(sum, took)) / 1e6)
        total_spent = mx.distributed.all_sum(ours, group=collective).item()
        spent = float(total_spent.real) / collective.size()
    timed = took[min(_WARM, len(took) - _LEAST + 1) :]
    sums_us, token_us = map(statistics.median, zip(*timed, strict=True))
    return round(sums_us / sums), round(token_us)


def _us(make: Callable[[], mx.array]) -> int:
    start = time.perf_counter_ns()
    mx.eval(make())
    return (time.perf_counter_ns() - start) // 1000


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """End the process if the block takes longer than *seconds*."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _name(backend: Backend) -> str:
    return backend.name.lower()
