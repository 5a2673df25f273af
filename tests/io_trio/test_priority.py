"""A node comes before its engine on a busy processor, and neither comes after strangers."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import psutil
import pytest
from sealring_trio.processes import launcher
from sealring_trio.processes.launcher import NICE, NICE_TO_ALL, SHORT_NS, slice_ns

from tests.io_trio.conftest import Ring


def has_slices() -> bool:
    """Whether this kernel lets a thread choose its slice, asked of another process."""
    code = "from sealring_trio.processes.launcher import *; print(int(ask_short_slice()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "1"


slices = pytest.mark.skipif(not has_slices(), reason="this kernel has no slices of one's own")

CHILD = """
import json, os, sys
from sealring_trio.processes import launcher
launcher._set_slice(0)  # whoever runs the tests may have another
if sys.argv[1] == "short":
    launcher.ask_short_slice()
before = launcher.slice_ns()
if os.fork() == 0:
    os.setsid()
    launcher.give_way()
    print(json.dumps([before, launcher.slice_ns(), os.nice(0)]), flush=True)
    os._exit(0)
os.wait()
"""


def given_way(how: str) -> list[int]:
    """The slice of a parent, and the slice and niceness of its child that gave way."""
    command = [sys.executable, "-c", CHILD, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told: list[int] = json.loads(done.stdout)
    return told


@slices
def test_an_engine_of_a_node_with_a_short_slice_is_as_nice_as_any() -> None:
    before, after, nice = given_way("short")
    assert before == SHORT_NS
    assert after > SHORT_NS
    assert nice == os.nice(0)


def test_without_a_short_slice_the_engine_is_nicer() -> None:
    before, after, nice = given_way("usual")
    assert before == after
    assert nice == min(19, os.nice(0) + NICE)


@pytest.mark.parametrize("how", ["short", "usual"])
def test_what_comes_last_does_so_in_either_case(how: str) -> None:
    program = CHILD.replace("launcher.give_way()", "launcher.give_way_to_all()")
    command = [sys.executable, "-c", program, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    _, after, nice = json.loads(done.stdout)
    assert nice == min(19, os.nice(0) + NICE_TO_ALL)
    assert after != SHORT_NS or not has_slices()


@slices
def test_in_a_ring_nodes_have_short_slices_and_engines_are_no_nicer(ring: Ring) -> None:
    list(ring.nodes[0].ask("generate", {"prompt": "Hello.", "max_tokens": 1}))  # all run
    for node in ring.nodes:
        (engine,) = node.status()["engine_pids"]
        assert slice_ns(node.process.pid) == SHORT_NS
        assert slice_ns(engine) > SHORT_NS
        assert psutil.Process(engine).nice() == psutil.Process(node.process.pid).nice()


@slices
def test_niceness_and_policy_stay() -> None:
    code = "import os; from sealring_trio.processes.launcher import *; os.nice(7); "
    code += "ask_short_slice(); print(os.nice(0), slice_ns()); "
    code += "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
    code += "ask_short_slice(); print(os.sched_getscheduler(0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(os.nice(0) + 7), str(SHORT_NS), str(os.SCHED_IDLE)]


def test_a_machine_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not launcher.ask_short_slice()
    assert slice_ns() == 0


def test_the_launcher_imports_little() -> None:
    code = "import sys; import sealring_trio.processes.launcher; print('trio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
