"""The files of `deploy/`: what they name exists, and what is to be restarted is."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import yaml
from sealring.cli import build_app
from sealring.files.config import Config

from docs.api import SECTIONS

DEPLOY = Path(__file__).parents[2] / "deploy"


# ------------------------------------------------------------------- alerts


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    assert group.keys() == {"name", "rules"}
    return group["rules"]


def test_each_alert_is_whole_and_asks_for_a_metric_that_exists() -> None:
    known = set(re.findall(r"`(\w+)`", SECTIONS["metrics"]()))
    assert {"sealring_rank_up", "sealring_build_info"} <= known
    asked = set()
    for rule in rules():
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "action"}
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))
        named = set(re.findall(r"\b(?:sealring|gen_ai)_\w+|\bup\b", rule["expr"]))
        assert named, rule["alert"]
        asked |= named
    assert asked - {"up"} <= known, asked - known
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_prometheus_takes_the_alerts() -> None:
    command = ["promtool", "check", "rules", str(DEPLOY / "alerts.yml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# ------------------------------------------------------------------- LeaderWorkerSet


def test_the_leader_worker_set_restarts_single_ranks_and_names_what_is_there() -> None:
    settings, ring = yaml.safe_load_all((DEPLOY / "leaderworkerset.yaml").read_text())
    config = tomllib.loads(settings["data"]["node.toml"])
    assert config.keys() <= Config.model_fields.keys()
    Config.model_validate(config)
    assert (ring["apiVersion"], ring["kind"]) == (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
    )
    group = ring["spec"]["leaderWorkerTemplate"]
    assert group["restartPolicy"] == "None"
    pod = group["workerTemplate"]["spec"]
    assert "restartPolicy" not in pod  # Always
    (node,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] == config["drain"] + 30
    ports = {port["name"]: port["containerPort"] for port in node["ports"]}
    assert ports["ring"] == int(config["listen"].rpartition(":")[2])
    assert ports["health"] == int(config["health"].rpartition(":")[2])
    probes = {name: node[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")}
    assert probes["liveness"] == {"path": "/livez", "port": "health"}
    assert probes["readiness"] == {"path": "/readyz", "port": "health"}
    (keys,) = (volume["secret"] for volume in pod["volumes"] if volume["name"] == "keys")
    assert [item["path"] for item in keys["items"]] == [
        f"{rank}/node.key" for rank in range(group["size"])
    ]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in node["volumeMounts"]} == volumes
    mounts = {mount["mountPath"] for mount in node["volumeMounts"]}
    for name in ("key", "roster", "coordinator", "state"):
        assert any(config[name].startswith(mount) for mount in mounts), name
    _, call, _ = build_app("up").parse_args(node["args"], exit_on_error=False)
    assert str(call.arguments["config"]) == "/etc/sealring/config/node.toml"
    assert "/etc/sealring/config" in mounts


# ------------------------------------------------------------------- a container


def test_the_image_takes_what_is_there_and_runs_a_node() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    copied = [word for line in lines if line[0] == "COPY" for word in line[1:-1]]
    assert {"pyproject.toml", "protocol", "daemon"} <= set(copied)
    for name in copied:
        assert (DEPLOY.parent / name).exists(), name
    (command,) = (" ".join(line[1:]) for line in lines if line[0] == "CMD")
    _, call, _ = build_app("up").parse_args(yaml.safe_load(command), exit_on_error=False)
    assert call.arguments["log_format"] == "json"
    assert ["STOPSIGNAL", "SIGTERM"] in lines
    assert ["USER", "sealring"] in lines


# ------------------------------------------------------------------- Slurm

SRUN = """\
#!/bin/bash
echo "srun $*" >> "$SAID"
while [ "${1:0:2}" = "--" ]; do shift; done
setsid --wait "$@" &
task=$!
trap 'kill -KILL -- "-$task"' TERM INT
wait "$task"
"""
"""Stands for Slurm: it runs one rank, here, in a group of its own. As srun does, it kills that rank
when it is told to end."""

NODE = """\
#!/bin/bash
echo "node $1 $2" >> "$SAID"
read -r _ _ _ parent own _ < "/proc/$$/stat"
read -r _ _ _ _ step _ < "/proc/$parent/stat"
echo "$own $step" > "$GROUPS_FILE"
code=$(head -n 1 "$CODES"); sed -i 1d "$CODES"
[ "$code" = stay ] || exit "$code"
trap 'echo drained >> "$SAID"; exit 0' TERM
echo up > "$READY"
while true; do read -t 0.05 <> <(:); done
"""
"""Stands for a node: it ends with each code in turn, or stays until SIGTERM."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the stand-ins. What still runs at the end of a test that failed is killed:
    otherwise a rank would start its node again for ever."""
    for name, text in (("srun", SRUN), ("node", NODE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    os.mkfifo(tmp_path / "ready")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("SAID", "CODES", "READY", "GROUPS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("SEALRING_COMMAND", "node")
    monkeypatch.setenv("SEALRING_PAUSE", "0")
    monkeypatch.setenv("SEALRING_RING", "/shared")
    yield tmp_path
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("SAID") == str(tmp_path / "said"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def start(cluster: Path, *codes: str) -> subprocess.Popen[bytes]:
    (cluster / "codes").write_text("\n".join(codes) + "\n")
    command = ["bash", str(DEPLOY / "sealring.sbatch")]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)


def said(cluster: Path) -> list[str]:
    return (cluster / "said").read_text().splitlines()


@pytest.mark.skipif(shutil.which("setsid") is None, reason="there is no setsid")
def test_a_rank_is_started_again_until_its_config_is_wrong(cluster: Path) -> None:
    assert start(cluster, "1", "137", "2").wait(60) == 2
    first, *nodes = said(cluster)
    for option in ("--no-kill", "--kill-on-bad-exit=0", "--wait=0"):
        assert option in first.split()
    assert len(nodes) == 3
    assert re.fullmatch(r"node up /shared/[\w.-]+\.toml", nodes[0])


@pytest.mark.skipif(shutil.which("setsid") is None, reason="there is no setsid")
def test_the_end_of_the_job_drains_a_rank_and_starts_no_other(cluster: Path) -> None:
    with (cluster / "ready").open("r+b", buffering=0) as ready:
        job = start(cluster, "1", "stay")
        assert select.select([ready], [], [], 60)[0], "the second node is not up"
    own, step = map(int, (cluster / "groups_file").read_text().split())
    assert own != step, (
        "the node has the signal of its step, and that of its rank: it does not drain"
    )
    for group in (job.pid, step):  # as scancel does
        os.killpg(group, signal.SIGTERM)
    assert job.wait(60) == 0
    assert said(cluster)[3:] == ["drained"]
