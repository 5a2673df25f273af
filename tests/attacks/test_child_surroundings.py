"""What a child process has of its node's surroundings: no secret of the environment, and, where it
needs nobody but its node, no network and no rights to gain."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio
from sealring.text.workers import TextWorkers
from sealring_model import tiny
from sealring_trio.processes.interpreter import child_environment
from sealring_trio.processes.namespace import why_not

SECRETS = {
    "HF_TOKEN": "hf_x",
    "HUGGING_FACE_HUB_TOKEN": "hf_x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "SEALRING_API_KEY": "sk-x",
    "SEALRING_CHAT_API_KEY": "sk-x",
    "OPENAI_API_KEY": "sk-x",
    "HTTPS_PROXY": "http://user:x@proxy",
    "SSH_AUTH_SOCK": "/x",
    "GITHUB_TOKEN": "x",
    "MLX_TOKEN": "x",
}
NEEDED = {
    "LC_ALL": "C.UTF-8",
    "LD_LIBRARY_PATH": "/x",
    "CUDA_VISIBLE_DEVICES": "0",
    "NCCL_DEBUG": "INFO",
    "MLX_METAL_FAST_SYNCH": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "SEALRING_MODELS": "/x",
    "XDG_CACHE_HOME": "/x",
}


def test_a_child_has_what_it_needs_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SECRETS | NEEDED).items():
        monkeypatch.setenv(name, value)
    given = child_environment({"MORE": "1"})
    assert not given.keys() & SECRETS.keys()
    assert given.items() >= (NEEDED | {"MORE": "1"}).items()
    assert {"PATH", "HOME"} <= given.keys() | ({"PATH", "HOME"} - os.environ.keys())


@asynccontextmanager
async def worker() -> AsyncIterator[psutil.Process]:
    """The process of a text worker that has done a job."""
    texts = TextWorkers(tiny.path())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(texts.serve)
        before = set(psutil.Process().children())
        await texts.run("prompt", {"context": 0, "limit": 1, "raw": True}, b"Once")
        (process,) = set(psutil.Process().children()) - before
        yield process
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, and namespaces")
async def test_a_text_worker_has_no_network_and_no_rights_to_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    async with worker() as process:
        folder = Path("/proc", str(process.pid))
        assert "NoNewPrivs:\t1" in (folder / "status").read_text()
        if os.geteuid() == 0:  # what is hidden is root's to read
            variables = (folder / "environ").read_bytes().decode().split("\0")
            assert not {each.partition("=")[0] for each in variables} & SECRETS.keys()
        if why_not():
            pytest.skip("this system gives no network namespace")
        devices = (folder / "net" / "dev").read_text()
        assert re.findall(r"^ *(\S+):", devices, re.M) == ["lo"]
