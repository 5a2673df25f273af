"""What the process is told for its device."""

import os
import subprocess
import sys
from functools import partial

import mlx.core as mx
import pytest
from model_child import InThread
from model_rings import place_of
from sealring_model.loading.model_folder import describe
from sealring_model.stage import attention
from sealring_model.stage.device import LaunchSettings

ARENAS = """
import ctypes, sys, threading
from sealring_model.stage.device import use_one_arena
if sys.argv[1] == "share":
    use_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
gate = threading.Barrier(5)
def allocate():
    libc.malloc(5000)
    gate.wait()
    gate.wait()
for _ in range(4):
    threading.Thread(target=allocate).start()
gate.wait()
libc.fopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, out)
libc.fclose(out)
gate.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="arenas are those of Linux's C library")
@pytest.mark.parametrize(
    ("how", "environment", "one"),
    [("share", {}, True), ("plain", {}, False), ("share", {"MALLOC_ARENA_MAX": "8"}, False)],
)
def test_where_the_processor_computes_threads_share_an_arena(how, environment, one):
    """Unless whoever starts the engine has said otherwise."""
    bare = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    ran = subprocess.run(
        [sys.executable, "-c", ARENAS, how],
        env={**bare, **environment},
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    assert (ran.stdout.count("<heap ") == 1) == one


GRAPHS, OPERATIONS, CHECK = (
    "MLX_USE_CUDA_GRAPHS",
    "MLX_MAX_OPS_PER_BUFFER",
    "MLX_ENABLE_CACHE_THRASHING_CHECK",
)


@pytest.mark.parametrize(
    ("cuda", "said", "settings", "told"),
    [
        (True, {}, {"nccl": True, "layers": 0}, ("0", None, "0")),
        (True, {}, {"nccl": True, "layers": 16}, ("0", "106", "0")),
        (True, {}, {"nccl": False, "layers": 16}, (None, "106", "0")),
        (True, {}, {"nccl": False, "layers": 80}, (None, "533", "0")),
        (True, {}, {"nccl": False, "layers": 0}, (None, None, "0")),
        (False, {}, {"nccl": False, "layers": 16}, (None, None, None)),
        (True, {GRAPHS: "1"}, {"nccl": True, "layers": 0}, ("1", None, "0")),
        (True, {OPERATIONS: "50"}, {"nccl": False, "layers": 16}, (None, "50", "0")),
        (True, {CHECK: "1"}, {"nccl": False, "layers": 0}, (None, None, "1")),
    ],
)
def test_how_mlx_launches(cuda, said, settings, told, monkeypatch):
    monkeypatch.setattr(mx.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(os, "environ", said.copy())
    chosen = LaunchSettings()
    chosen.choose(**settings)
    chosen.choose(nccl=True, layers=100)  # too late
    assert tuple(map(os.environ.get, (GRAPHS, OPERATIONS, CHECK))) == told


def test_a_stage_larger_than_what_was_chosen_for_is_not_launched_at_once(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    chosen = LaunchSettings()
    assert not chosen.fits(1)
    chosen.choose(nccl=False, layers=8)
    assert [chosen.fits(layers) for layers in (7, 8, 9)] == [True, True, False]
    alone = LaunchSettings()
    alone.choose(nccl=False, layers=0)
    assert not alone.fits(1)


def test_an_engine_launches_nothing_before_mlx_is_told_how(models, monkeypatch):
    """It reads what it is told once, with the first launch. What is tried, where there is CUDA,
    before models are given it, is a launch too."""
    done = []

    def noted(real, *arrays):
        done.append("launched")
        return real(*arrays)

    for name in ("eval", "async_eval"):
        monkeypatch.setattr(mx, name, partial(noted, getattr(mx, name)))
    choose = LaunchSettings.choose

    def chosen(settings, **how):
        done.append("told")
        choose(settings, **how)

    monkeypatch.setattr(LaunchSettings, "choose", chosen)
    monkeypatch.setattr(attention, "install", lambda: mx.eval(mx.zeros(1) + 1))
    with InThread(models["llama"]) as child:
        child.info()
        assert not done
        child.start(place_of(describe(models["llama"]), (0, 2, 5), 1))
    assert done[:2] == ["told", "launched"]
