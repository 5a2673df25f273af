"""Who notices a change of the code: what `tools.rows` and `spec.mutate` have in common.

A change is tried in a process of its own, forked from one that has read the libraries and the
vectors already. It is noticed by a conformance vector, or else by a test of the rooms concerned;
both are tried in the order in which they are likely to notice.

Nothing of ours is imported here: `spec.mutate` gives a child changed modules, before anything else
imports them.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import cryptography.hazmat.primitives.asymmetric.mlkem
import cryptography.hazmat.primitives.serialization  # noqa: F401 - once, for all children

LEFT_OUT: Final = ("sealed-many", "sampling-key", "draw")
"""Kinds of vectors that are run for no change: the first takes a second each; the others take an
engine, and show nothing of a protocol's module."""

MEMORY_LIMIT: Final = 4 << 30

_FOLLOWER: Final = "tests/control/test_follower_states.py"
_CONTROL: Final = ("tests/control", "tests/node")
_LINK: Final = (
    "tests/link",
    "tests/node/test_hostile.py",
    "tests/node/test_meeting.py",
    "tests/node/test_new_rosters.py",
)
_TESTS: Final = {
    "sealring_protocol.codec": ("tests/codec", "tests/security", "tests/link"),
    "sealring_protocol.security": (
        *("tests/security", "tests/link"),
        *("tests/node/test_meeting.py", "tests/node/test_new_rosters.py"),
    ),
    "sealring_protocol.control.epoch.engine": ("tests/control/test_collective.py", *_CONTROL),
    "sealring_protocol.control.epoch.follower": (_FOLLOWER, *_CONTROL),
    "sealring_protocol.control.epoch.ledger": ("tests/control/test_ledger.py", "tests/control"),
    "sealring_protocol.control.epoch.pipeline": ("tests/control/test_pipeline.py", *_CONTROL),
    "sealring_protocol.control.epoch.tensor": ("tests/control/test_tensor_leader.py", *_CONTROL),
    "sealring_protocol.control.scheduler": ("tests/control/test_scheduler.py", *_CONTROL),
    "sealring_protocol.control": ("tests/control/test_epochs.py", "tests/control"),
    "sealring_protocol.joining": ("tests/joining/test_machines.py", "tests/joining"),
    "sealring_protocol.relay": ("tests/link/test_relay.py", "tests/node/test_relays.py"),
    "sealring_protocol.link": _LINK,
    "sealring_trio.engine": (
        "tests/io_trio/test_engine_group.py",
        "tests/io_trio/test_engine_group_orders.py",
        "tests/io_trio/test_engine_supervisor.py",
    ),
    "sealring_trio.net": ("tests/io_trio/test_wire.py",),
    "sealring_trio.collective": tuple(
        f"tests/io_trio/test_{name}.py" for name in ("carrier", "streams", "tunnel_links")
    ),
}
"""By the beginning of a module's name, the tests of its rooms. The first that fits counts."""

_FAMILIES: Final = {
    "sealring_protocol.codec.frame": ("frames",),
    "sealring_protocol.codec": ("messages", "local_messages"),
    "sealring_protocol.security.roles": ("permissions",),
    "sealring_protocol.security.roster": ("rosters", "evidence"),
    "sealring_protocol.security.id": ("signatures",),
    "sealring_protocol.security.seal": ("seals", "inner_seals"),
    "sealring_protocol.security": ("initiators", "responders"),
    "sealring_protocol.joining.invitation": ("invitations",),
    "sealring_protocol.joining": ("joiners", "inviters"),
    "sealring_protocol.control.epoch.ledger": ("ledgers",),
    "sealring_protocol.control": ("lockstep", "ranks"),
    "sealring_protocol.relay": ("relays",),
    "": ("sessions",),
}
"""In the same way, the families of vectors to begin with."""

Families = Mapping[str, list[Any]]


def tests_of(module: str) -> tuple[str, ...]:
    """The paths of the tests of *module*'s rooms, the likeliest to notice first."""
    return next(tests for part, tests in _TESTS.items() if module.startswith(part))


def vectors_of(module: str, families: Families) -> Iterator[tuple[Any, bool]]:
    """Every vector of *families* that is run for a change of *module*, and whether it is likely to
    be about that: those come first."""
    likely = next(names for part, names in _FAMILIES.items() if module.startswith(part))
    for name in sorted(families, key=lambda name: name not in likely):
        for vector in families[name]:
            if vector["kind"] not in LEFT_OUT:
                yield vector, name in likely


def limit(cpu_seconds: int) -> None:
    """Have the kernel end this process when it has computed for so long, or grows too large."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))


def in_a_fork(work: Callable[[], str], cpu_seconds: int, seconds: int = 0) -> str:
    """What *work* gives in a process of its own: who notices, or nothing. One that computes for
    more than *cpu_seconds*, or takes more than *seconds* (0: as long as it likes), is noticed."""
    return next(said for _, said in in_forks([work], 1, cpu_seconds, seconds))


def in_forks(
    works: Sequence[Callable[[], str]], at_once: int, cpu_seconds: int, seconds: int = 0
) -> Iterator[tuple[int, str]]:
    """What `in_a_fork` gives for each of *works*, with its index, as they end. *at_once* of them
    run at a time."""
    waiting, running = deque(enumerate(works)), selectors.DefaultSelector()
    while waiting or running.get_map():
        while waiting and len(running.get_map()) < at_once:
            index, work = waiting.popleft()
            fork = _Fork(index, *_begin(work, cpu_seconds, seconds))
            running.register(fork.pipe, selectors.EVENT_READ, fork)
        for key, _ in running.select():
            fork = key.data
            if data := os.read(fork.pipe, 1 << 16):
                fork.said += data
                continue
            running.unregister(fork.pipe)
            os.close(fork.pipe)
            _, status = os.waitpid(fork.child, 0)
            ended = not os.WIFSIGNALED(status)
            yield fork.index, fork.said.decode() if ended else "whoever waits: it did not end"


class _Fork:
    """A child that runs the work with *index*, and the *pipe* that tells what it gives."""

    def __init__(self, index: int, child: int, pipe: int) -> None:
        self.index, self.child, self.pipe = index, child, pipe
        self.said = b""


def _begin(work: Callable[[], str], cpu_seconds: int, seconds: int) -> tuple[int, int]:
    """Fork a child that does *work*. Returns its pid and the pipe that tells what *work* gives."""
    told, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        return child, told
    signal.alarm(seconds)
    limit(cpu_seconds)
    try:
        said = work()
    except BaseException as error:  # noqa: BLE001 - the child ends here, whatever it is
        said = f"whoever runs it: {error!r}"
    with open(tell, "wb") as pipe:
        pipe.write(said.encode())
    os._exit(0)
