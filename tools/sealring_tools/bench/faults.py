"""Breaks parts of a ring while it answers, again and again, and checks the answers.

A ring of real nodes generates two texts at once. At a random token something breaks: an engine is
killed or frozen, a whole node is killed (and started again, as a supervisor would), a forward
raises, or a client goes away. Both texts must be those of a ring in which nothing breaks, and so
must the next one. The head must notice within `DETECTION` seconds. No process may be left that is
not needed.

A forward that raises is the one fault that cannot be caused from outside. So the nodes are started
with a `sitecustomize` on their path that, on SIGUSR1, makes every forward raise until the next
epoch; no code of sealring knows of it. (A single forward that raised might have been built ahead,
and would be built again when it is due.)
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs
import psutil  # type: ignore[import-untyped]
from sealring.local.ring import LocalNode, local_ring, running_node, wait_until_up
from sealring_tools.bench.fault_names import FaultName
from sealring_trio.errors import OperationError

DETECTION: Final = 2.0
"""Seconds after which the head must know, whatever broke."""

TOKENS: Final = 32
PROMPTS: Final = ("Tell me a story about a fox named Pip.", "Count to twenty.")
LOST_AFTER: Final = 60.0
"""Seconds after which an answer that has not come counts as lost."""

_PAUSE: Final = 0.02
_SITE: Final = """
import signal


def fail(*_):
    raise RuntimeError("a forward that was made to raise")


def fail_from_now_on(*_):
    from sealring_model.stage import stage
    from sealring_model.engine.executor import Executor

    begin = Executor.__init__
    runs = {kind: kind.run for kind in (stage.WholeStage, stage.PartStage)}

    def begin_anew(self, *args, **kwargs):
        Executor.__init__ = begin
        for kind, run in runs.items():
            kind.run = run
        begin(self, *args, **kwargs)

    Executor.__init__ = begin_anew
    for kind in runs:
        kind.run = fail


signal.signal(signal.SIGUSR1, fail_from_now_on)
"""


@attrs.frozen
class Trial:
    """One fault: seconds until the head noticed (0 where there is nothing to notice), seconds until
    both texts were complete, and what was wrong."""

    fault: FaultName
    token: int
    noticed: float
    whole: float
    wrong: tuple[str, ...]


@attrs.frozen
class Summary:
    """All trials of one fault. Times are seconds."""

    fault: FaultName
    times: int
    noticed: tuple[float, float]
    """Median and greatest."""
    whole: tuple[float, float]
    wrong: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Nothing was wrong, and it was noticed in time."""
        return not self.wrong and self.noticed[1] <= DETECTION

    @classmethod
    def of(cls, fault: FaultName, trials: list[Trial]) -> Summary:
        """The summary of *trials*."""
        noticed, whole = ([getattr(t, name) for t in trials] for name in ("noticed", "whole"))
        return cls(
            fault,
            len(trials),
            (statistics.median(noticed), max(noticed)),
            (statistics.median(whole), max(whole)),
            tuple(f"at token {t.token}: {wrong}" for t in trials for wrong in t.wrong),
        )


def measure(
    faults: tuple[FaultName, ...],
    times: int,
    model: Path,
    options: Mapping[str, str | float],
    seed: int,
    tell: Callable[[str], None],
) -> Iterator[Summary]:
    """Each of *faults* so many *times* on a ring of two ranks with *model* and config *options*.

    Raises `OperationError` when it does not come up.
    """
    chance = random.Random(seed)
    with Ring.started(model, options) as ring:
        for fault in faults:
            trials = []
            for number in range(times):
                trials.append(ring.trial(fault, chance))
                tell(f"{fault} {number + 1} of {times}: {trials[-1].whole:.1f} s")
            yield Summary.of(fault, trials)


class Ring:
    """Two nodes, and their answers when nothing breaks."""

    def __init__(self, nodes: list[LocalNode], path: str, stack: contextlib.ExitStack) -> None:
        self._nodes = nodes
        self._path = path
        self._stack = stack
        # Its threads end with the nodes that they ask; to wait for them before would be for ever.
        self._pool = ThreadPoolExecutor(len(PROMPTS) + 1)
        self._expected = [_last(self._ask(prompt)) for prompt in PROMPTS]

    @classmethod
    @contextlib.contextmanager
    def started(cls, model: Path, options: Mapping[str, str | float]) -> Iterator[Ring]:
        """Two ranks with *model* and config *options*."""
        with contextlib.ExitStack() as stack:
            site = stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-"))
            (Path(site) / "sitecustomize.py").write_text(_SITE)
            path = os.pathsep.join(filter(None, (site, os.environ.get("PYTHONPATH"))))
            # Nodes that are started again end after the head, as those that they replace do.
            again = stack.enter_context(contextlib.ExitStack())
            places = [{"PYTHONPATH": path}] * 2
            nodes = stack.enter_context(local_ring(2, model, options=options, places=places))
            yield cls(nodes, path, again)

    def trial(self, fault: FaultName, chance: random.Random) -> Trial:
        """Break something at a random token of a text, while another is under way too."""
        token = chance.randrange(1, TOKENS // 2)
        engines = [psutil.Process(pid) for node in self._nodes for pid in _engines(node)]
        other = self._pool.submit(_last, self._ask(PROMPTS[1]))
        said = self._ask(PROMPTS[0])
        for _ in range(token):
            next(said)
        before = self._state()
        began = time.perf_counter()
        self._do(fault, chance)
        wrong, noticed = [], 0.0
        if fault == "client-gone":
            said.close()  # type: ignore[attr-defined]
        else:
            text = self._pool.submit(_last, said)
            noticed = self._until_noticed(before, began)
            wrong += self._compare("the text", text, 0)
        wrong += self._compare("the other text", other, 1)
        whole = time.perf_counter() - began
        after = self._pool.submit(_last, self._ask(PROMPTS[0]))
        wrong += self._compare("the next text", after, 0)
        return Trial(fault, token, noticed, whole, (*wrong, *self._left(engines)))

    def _compare(self, what: str, said: Future[list[int]], number: int) -> list[str]:
        """What is wrong with *what*, which should be the answer to prompt *number*."""
        try:
            if said.result(LOST_AFTER) == self._expected[number]:
                return []
        except TimeoutError:
            return [f"{what} was not whole after {LOST_AFTER:.0f} s"]
        except OperationError as error:
            return [f"{what} failed: {error.what}"]
        return [f"{what} is another than without the fault"]

    def _do(self, fault: FaultName, chance: random.Random) -> None:
        head, follower = self._nodes
        match fault:
            case "leader-engine-killed":
                _signal(head, signal.SIGKILL)
            case "follower-engine-killed":
                _signal(follower, signal.SIGKILL)
            case "follower-engine-frozen":
                _signal(follower, signal.SIGSTOP)
            case "forward-raises":
                _signal(chance.choice(self._nodes), signal.SIGUSR1)
            case "follower-node-killed":
                follower.process.kill()
                follower.process.wait()
                again = running_node(follower.config, place={"PYTHONPATH": self._path})
                self._nodes[1] = self._stack.enter_context(again)
            case "client-gone":
                pass

    def _ask(self, prompt: str) -> Iterator[dict[str, Any]]:
        return self._nodes[0].ask("generate", {"prompt": prompt, "max_tokens": TOKENS})

    def _state(self) -> tuple[int, str]:
        status = self._nodes[0].status()
        return status["epoch"], status["state"]

    def _until_noticed(self, before: tuple[int, str], began: float) -> float:
        """Seconds from *began* until the head is in another state than *before*."""
        while (spent := time.perf_counter() - began) < LOST_AFTER:
            if self._state() != before:
                return time.perf_counter() - began
            time.sleep(_PAUSE)
        return spent

    def _left(self, before: list[psutil.Process]) -> list[str]:
        """Processes of *before* that nobody needs, and requests that have not ended: what should
        not be left, in words."""
        wait_until_up_again(self._nodes[1])
        end = time.monotonic() + LOST_AFTER
        while time.monotonic() < end:
            needed = {pid for node in self._nodes for pid in _engines(node)}
            old = [process for process in before if process.pid not in needed]
            _, alive = psutil.wait_procs(old, timeout=0)
            requests = self._nodes[0].status()["requests"]
            if not alive and not requests:
                return []
            time.sleep(_PAUSE)
        return [f"{len(alive)} engines and {requests} requests are left"]


def wait_until_up_again(node: LocalNode) -> None:
    """Wait for a *node* that may have been started a moment ago. Raises `OperationError`."""
    with contextlib.suppress(OperationError):
        node.status()
        return
    wait_until_up(node)


def _last(said: Iterator[dict[str, Any]]) -> list[int]:
    *_, done = said
    return list(done["token_ids"])


def _engines(node: LocalNode) -> list[int]:
    return list(node.status()["engine_pids"])


def _signal(node: LocalNode, number: signal.Signals) -> None:
    for pid in _engines(node):
        psutil.Process(pid).send_signal(number)
