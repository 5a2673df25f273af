"""`sealring doctor`: what it finds on a machine, with the ring up and down, and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sealring.cli.doctor import has_aes
from sealring.local.node_socket import claimed
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring_trio.files.key_files import public_path
from sealring_trio.files.models import TINY, find_model

from tests.io_trio.helpers import sealring
from tests.serving import PATIENCE

RENEWED = {"coordinator_key": "coordinator.key"}
"""The config of a machine whose node renews its roster, which here is good for a day."""


@pytest.fixture
def configs(tmp_path: Path) -> list[Path]:
    return write_cluster(tmp_path, 2, find_model(TINY), options=RENEWED)


def run(*arguments: str | Path, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    place = {} if home is None else {"HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "sealring", "doctor", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **place},
    )


def findings(*arguments: str | Path, code: int) -> dict[str, list[dict[str, Any]]]:
    """What it finds, by check."""
    done = sealring("doctor", *arguments, "--json")
    assert done.code == code, done.out + done.err
    found: dict[str, list[dict[str, Any]]] = {}
    for each in done.json()["findings"]:
        found.setdefault(each["check"], []).append(each)
    return found


def change(config: Path, old: str, new: str) -> None:
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))


def test_a_machine_whose_ring_is_down_is_looked_at(configs: list[Path]) -> None:
    found = findings("--config", configs[0], code=3)  # the other node cannot be reached
    (reach,) = found["reach"]
    assert reach["state"] == "wrong"
    assert "rank1 at 127.0.0.1:" in reach["what"]
    assert "Connection refused" in reach["what"]
    assert "sealring doctor" in reach["advice"]
    assert [each["state"] for each in found["node"] + found["clock"]] == ["note", "note"]
    for check in ("versions", "descriptors", "config", "key", "roster", "model", "collectives"):
        assert [each["state"] for each in found[check]] == ["ok"], found[check]
    assert [each["state"] for each in found["spare"]] == ["note"]
    assert "sealring coordinator spare FILE" in found["spare"][0]["advice"]


def test_a_node_that_starts_is_not_called_absent(configs: list[Path]) -> None:
    with claimed(configs[0].parent / "rank0.state"):
        (node,) = findings("--config", configs[0], code=3)["node"]  # nor can the other be reached
    assert node["state"] == "unseen"
    assert "is starting" in node["what"]


@pytest.mark.slow
def test_a_ring_that_serves_is_right(configs: list[Path]) -> None:
    with running_node(configs[0]) as head, running_node(configs[1]) as rank:
        for node in (head, rank):
            wait_until_up(node)
        end = time.monotonic() + PATIENCE
        while head.status()["why"] or rank.status()["why"]:
            assert time.monotonic() < end
            time.sleep(0.1)
        for config, other in zip(configs, ("rank1", "rank0"), strict=True):
            found = findings("--config", config, code=0)
            (reach,) = found["reach"]
            assert reach["what"].startswith(f"{other} at 127.0.0.1:")
            assert "through lo" in reach["what"]
            assert reach["what"].endswith("; a link is up")
            assert found["clock"][0]["facts"] == {"compared": 1}
            assert found["node"][0]["state"] == "ok"
        text = run("--config", configs[0]).stdout
        assert "ok      node         the node runs: serving" in text


@pytest.mark.parametrize(
    ("fault", "check", "what", "advice"),
    [
        ("mode", "key", "others can read the private key", "chmod 600"),
        ("roster", "roster", "not signed", ""),
        ("expiry", "roster", "hours", "sealring roster renew"),
        ("model", "model", "nowhere/model", ""),
        ("state", "state", "is not yours alone", "chmod 700"),
        ("config", "config", "listem", ""),
        ("other", "roster", "is not in the roster", "Add its .pub file"),
        ("swapped", "roster", "has the key of 'rank1'", "give it the key of 'rank0'"),
        ("layers", "model", "layers = [1, 1] does not fit 2 ranks", "sealring plan --help"),
    ],
)
def test_what_is_not_right_is_told_with_what_mends_it(
    configs: list[Path], fault: str, check: str, what: str, advice: str
) -> None:
    config, folder = configs[0], configs[0].parent
    if fault == "mode":
        (folder / "rank0.key").chmod(0o644)
    elif fault == "roster":
        roster = folder / "demo.roster"
        roster.write_bytes(roster.read_bytes()[:-1] + b"?")
    elif fault == "expiry":
        change(config, 'coordinator_key = "coordinator.key"', "")
    elif fault == "model":
        change(config, f'model = "{find_model(TINY)}"', 'model = "/nowhere/model"')
    elif fault == "state":
        (folder / "rank0.state").mkdir()
        (folder / "rank0.state").chmod(0o777)
    elif fault == "config":
        change(config, "listen =", "listem =")
    elif fault == "swapped":
        change(config, 'key = "rank0.key"', 'key = "rank1.key"')
    elif fault == "layers":
        config.write_text(f"layers = [1, 1]\n{config.read_text()}")
    else:
        assert sealring("keygen", folder / "stranger.key").code == 0
        change(config, 'key = "rank0.key"', 'key = "stranger.key"')
    wrong = [
        each for each in findings("--config", config, code=3)[check] if each["state"] == "wrong"
    ]
    assert what in wrong[0]["what"]
    assert wrong[0]["advice"]
    assert advice in wrong[0]["advice"]


def test_a_report_names_nobody(configs: list[Path], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    sealring("doctor", "--config", configs[0], "--collect", report)
    text = report.read_text()
    assert {"versions", "key", "roster", "reach"} <= {
        each["check"] for each in json.loads(text)["findings"]
    }
    public = public_path(configs[0].parent / "rank0.key").read_text().strip()
    for secret in ("rank0", "rank1", "demo", "127.0.0.1", str(tmp_path), str(Path.home()), public):
        assert secret not in text, secret
    assert report.stat().st_mode & 0o077 == 0
    again = sealring("doctor", "--config", configs[0], "--collect", report)
    assert again.code == 2
    assert "already exists, and is left as it is" in again.err


@pytest.mark.parametrize(("limit", "state"), [("-Sn", "ok"), ("-Hn", "wrong")])
def test_a_node_raises_the_soft_limit_and_cannot_raise_the_hard_one(
    tmp_path: Path, limit: str, state: str
) -> None:
    doctor = f"{sys.executable} -m sealring doctor --config {tmp_path / 'none'} --json"
    done = subprocess.run(
        ["sh", "-c", f"ulimit -Sn 256 && ulimit {limit} 256 && exec {doctor}"],
        capture_output=True,
        text=True,
        check=False,
    )
    (found,) = [
        each for each in json.loads(done.stdout)["findings"] if each["check"] == "descriptors"
    ]
    assert found["state"] == state, found
    assert bool(found["advice"]) is (state == "wrong")


def test_without_a_config_it_says_where_it_looked(tmp_path: Path) -> None:
    done = run(home=tmp_path)
    assert done.returncode == 3
    assert "this machine is in no cluster: there is no" in done.stdout
    assert "--config FILE" in done.stdout


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("processor: 0\nflags\t\t: fpu aes sse\n", True),
        ("processor: 0\nFeatures\t: fp asimd aes\n", True),
        ("processor: 0\nflags\t\t: fpu sse\n", False),
        ("processor: 0\n", None),
    ],
)
def test_a_processor_with_aes_is_known_by_its_flags(
    tmp_path: Path, text: str, known: bool | None
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert has_aes(file) is known
    assert has_aes(tmp_path / "none") is None
