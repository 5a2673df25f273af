"""What a node says of itself: while it loads, when that failed, while it ends, and to a monitor."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time

import pytest
from sealring_model.loading.weights import read_entries, write_manifest
from sealring_trio.files.models import TINY, find_model

from tests.operation.machines import PATIENCE, Machine, machines
from tests.operation.test_rosters import Stream

pytestmark = pytest.mark.long


def shown(machine: Machine) -> str:
    """The line of `sealring status` about its state."""
    out = machine.run("status", "--config", machine.config).out
    return next(line for line in out.splitlines() if line.startswith("state"))


def test_a_rank_does_not_say_that_it_serves_before_it_does() -> None:
    with machines(2) as (desk, shelf):
        shelf.start()
        shelf.wait_for_log("is rank 1 of 2")
        shelf.wait_for(lambda: shelf.status()["model_digest"], "description of the model")
        assert "waiting for the head" in shown(shelf)
        desk.start()
        end = time.monotonic() + PATIENCE
        seen: list[str] = []
        while "ready: epoch" not in shelf.log:
            assert time.monotonic() < end, shelf.log
            state = shelf.status()["state"]
            if "ready: epoch" not in shelf.log:
                seen.append(state)
        assert "serving" not in seen
        assert set(seen) <= {"waiting for the head", "gathering", "loading"}, seen
        desk.wait_for_health()
        assert "ready (the head's status says" in shown(shelf)


def test_a_rank_whose_layers_do_not_load_says_so() -> None:
    with machines(2) as (desk, shelf):
        for machine in (desk, shelf):
            folder = machine.folder / "model"
            shutil.copytree(find_model(TINY), folder)
            write_manifest(folder)
            machine.configure(model="model")
        # A byte beyond the sample that the ranks compare.
        entry = read_entries(shelf.folder / "model")["model.layers.7.mlp.up_proj.weight"]
        data = bytearray(entry.file.read_bytes())
        data[entry.offset + 4096] ^= 1
        entry.file.write_bytes(data)
        for machine in (desk, shelf):
            machine.start()
        fault = "does not match the manifest"
        shelf.wait_until_told(f"this node cannot serve this model: .*{fault}")
        # It is tried again every few seconds, and then loads for a moment.
        shelf.wait_for(lambda: shelf.status()["state"] == "cannot serve", "failed state")
        shelf.wait_for(lambda: "cannot serve" in shown(shelf), "failed state in what is shown")
        desk.wait_until_told(rf"rank 1 \(shelf\) cannot serve.*: .*{fault}")


def test_a_monitor_learns_of_lives_and_a_drain_has_its_limit() -> None:
    with machines(2, drain=1) as (desk, shelf):
        for machine in (desk, shelf):
            machine.start()
        desk.wait_for_health()
        version = desk.status()["version"]
        assert re.fullmatch(r"\d+\.\d+.*", version)
        line = rf"^version +{re.escape(version)} \(steps 1\)$"
        for machine in (desk, shelf):
            out = machine.run("status", "--config", machine.config).out
            assert re.search(line, out, re.MULTILINE), out

        before = metrics(desk)
        build = next(name for name in before if name.startswith("sealring_build_info"))
        for part in (f'version="{version}"', "python=", "mlx="):
            assert part in build
        assert before["sealring_roster_expires_seconds"] > 80 * 86_400
        os.kill(desk.status()["engine_pid"], signal.SIGKILL)
        desk.wait_for(lambda: metrics(desk)["sealring_engine_restarts_total"] == 1, "restart")
        desk.wait_for_health()
        assert metrics(desk)["sealring_epochs_total"] > before["sealring_epochs_total"]

        desk.way_to(shelf).delay = 0.05  # so that what runs cannot finish in time
        stream = Stream(desk, 1500)
        assert stream.begun.wait(PATIENCE)
        begun = time.monotonic()
        desk.node.process.send_signal(signal.SIGTERM)
        desk.wait_for_log("finishing 1 request, for 1 s at most")
        refused = desk.ask("Hello.", max_tokens=4)
        assert refused.status_code == 503
        assert "shutting down" in refused.text
        (why,) = desk.http("GET", "/health").json()["why"]
        assert "shutting down: it finishes 1 request, for " in why["text"]
        assert desk.node.process.wait(PATIENCE) == 0
        took = time.monotonic() - begun
        assert took > 1, "it did not let anything finish"
        assert took < 20, f"{took} s; its limit is 1"
        desk.wait_for_log("what has not finished is ended: 1 request")
        stream.end()


def metrics(machine: Machine) -> dict[str, float]:
    """By name and labels."""
    lines = machine.http("GET", "/metrics").text.splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    }


def test_a_rank_says_what_the_head_says_of_too_little_room() -> None:
    with machines(2, memory="1M") as (desk, shelf):
        for machine in (desk, shelf):
            machine.start()
        words = r"the model's weights take [^(]*\d[^(]*"
        desk.wait_until_told(words)
        shelf.wait_until_told(f"the head says: {words}")
        # The head may still load its tokenizer, too.
        whys = (machine.status()["why"] for machine in (desk, shelf))
        head, rank = (next(e for e in why if e["cause"] == "too_little_room") for why in whys)
        assert rank["what"] == f"the head says: {head['what']}"
        out = shelf.run("status", "--config", shelf.config).out
        assert f"not serving: the head says: {head['what']}" in out
        shelf.wait_for_log(f"not serving: the head says: {head['what']}")


def test_a_rank_says_which_other_rank_the_head_waits_for() -> None:
    with machines(3) as (desk, shelf, _den):
        for machine in (desk, shelf):
            machine.start()
        shelf.wait_until_told(r"the head says: rank 2 \(den\) cannot be reached at ")
        told = [each for each in shelf.status()["why"] if each["from_head"]]
        assert ("unreachable", 2) in [(each["cause"], each["rank"]) for each in told]
