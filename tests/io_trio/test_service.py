"""`sealring service`: units that systemd takes, property lists of launchd, and what is removed."""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from sealring.files.cluster import create_key
from sealring.local.node_socket import claimed

from tests.io_trio.helpers import Outcome, sealring

CONFIG = """\
key = "desk.key"
roster = "home.roster"
coordinator = "coordinator.pub"
listen = "127.0.0.1:7470"
model = "tiny"
drain = 44.5
"""

TOOL = """\
#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
test "$1 $2" = "--user $FAILS" && { echo "no bus" >&2; exit 1; }
exit 0
"""
"""Stands for systemctl, journalctl, launchctl and tail, none of which may change this machine."""


@pytest.fixture(params=["home", 'a home with $HOME, 100% and "quotes"'])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config, where services of the user go too."""
    folder: Path = tmp_path / request.param
    folder.mkdir()
    create_key(folder / "desk.key")
    (folder / "desk.toml").write_text(CONFIG)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("systemctl", "journalctl", "launchctl", "tail"):
        (tools / name).write_text(TOOL)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FAILS", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HF_HOME", raising=False)
    return folder


def service(word: str, home: Path, *options: str) -> Outcome:
    return sealring("service", word, home / "desk.toml", *options)


def printed(home: Path, *options: str) -> str:
    """The file that would be written."""
    done = service("install", home, "--dry-run", *options)
    assert (done.code, done.err) == (0, "")
    return done.out.partition("\n")[2].partition("# Then: ")[0]


def calls(home: Path) -> list[str]:
    """What the tools have been called with since the last look."""
    path = home.parent / "calls"
    said = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return said


def unit_path(home: Path) -> Path:
    return home.parent / "config/systemd/user/sealring-desk.service"


# ------------------------------------------------------------------- files


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
@pytest.mark.parametrize("options", [("--user",), ("--system", "--account", "daemon")])
def test_systemd_takes_the_unit(home: Path, options: tuple[str, ...]) -> None:
    unit = home.parent / "sealring-desk.service"
    unit.write_text(printed(home, "--manager", "systemd", *options))
    manager = "--user" if options == ("--user",) else "--system"
    runtime = home.parent / "runtime"
    runtime.mkdir(mode=0o700)
    surroundings = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}

    def verify() -> subprocess.CompletedProcess[str]:
        command = ["systemd-analyze", manager, "verify", str(unit)]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, env=surroundings
        )

    done = verify()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    unit.write_text(unit.read_text().replace("OOMPolicy", "OOMPolicies"))
    assert "OOMPolicies" in verify().stderr, "it would not have noticed"


def test_a_unit_says_how_it_stops_and_what_is_restarted(home: Path) -> None:
    lines = printed(home, "--manager", "systemd", "--system", "--account", "daemon").splitlines()
    for line in (
        "User=daemon",
        "TimeoutStopSec=75",  # the drain, rounded up, and 30 s
        "KillMode=mixed",
        "OOMPolicy=continue",
        "Restart=on-failure",
        "RestartPreventExitStatus=2",
        "WantedBy=multi-user.target",
    ):
        assert line in lines
    (start,) = (line for line in lines if line.startswith("ExecStart="))
    assert start.endswith(("/desk.toml", '/desk.toml"'))
    assert not re.search(r"(?<!\$)\$(?!\$)|(?<!%)%(?!%)", start)  # nothing is replaced in it


def test_a_unit_of_the_machine_prepares_a_gpu_that_the_node_may_not(home: Path) -> None:
    tool = home.parent / "tools/nvidia-modprobe"
    options = ("--manager", "systemd", "--system", "--account", "daemon")
    assert str(tool) not in printed(home, *options)
    tool.write_text(TOOL)
    tool.chmod(0o755)
    assert f"\nExecStartPre=-+{tool} -c 0 -u\n" in printed(home, *options)
    assert str(tool) not in printed(home, "--manager", "systemd")


def test_a_property_list(home: Path) -> None:
    text = printed(home, "--manager", "launchd", "--account", "daemon")
    known = plistlib.loads(text.encode())
    config = str(home / "desk.toml")
    assert known["ProgramArguments"][-4:] == ["up", config, "--log-file", str(home / "desk.log")]
    assert known["UserName"] == "daemon"
    assert known["KeepAlive"] == {"SuccessfulExit": False}
    assert known["ExitTimeOut"] == 75
    assert "EnvironmentVariables" not in known
    agent = plistlib.loads(printed(home, "--manager", "launchd", "--user").encode())
    assert known.keys() - agent.keys() == {"UserName"}


@pytest.mark.parametrize("manager", ["systemd", "launchd"])
def test_no_secret_of_the_shell_is_in_a_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, manager: str
) -> None:
    for name in ("SEALRING_API_KEY", "HF_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "a-secret")
    monkeypatch.setenv("HF_HOME", "/models of mine")
    text = printed(home, "--manager", manager, "--user")
    assert "a-secret" not in text
    assert "/models of mine" in text


# ------------------------------------------------------------------- what is done


def test_install_and_uninstall(home: Path) -> None:
    done = service("install", home, "--manager", "systemd")
    assert (done.code, done.err) == (0, "")
    assert unit_path(home).read_text() == printed(home, "--manager", "systemd")
    assert calls(home) == [
        "systemctl --user daemon-reload",
        "systemctl --user enable sealring-desk",
        "systemctl --user restart --no-block sealring-desk",
    ]
    assert service("install", home, "--manager", "systemd").code == 0  # again, as after a change
    calls(home)
    beside = unit_path(home).with_name("sealring-laptop.service")
    beside.write_text("mine")
    (unit_path(home).parent / "sealring-desk.service.d").mkdir()
    done = service("uninstall", home, "--manager", "systemd")
    assert done.code == 0
    assert "Your own changes of it stay" in done.out
    assert calls(home) == [
        "systemctl --user disable --now sealring-desk",
        "systemctl --user daemon-reload",
    ]
    assert sorted(path.name for path in unit_path(home).parent.iterdir()) == [
        "sealring-desk.service.d",
        "sealring-laptop.service",
    ]
    assert sorted(path.name for path in home.iterdir()) == ["desk.key", "desk.pub", "desk.toml"]
    assert "there is no service sealring-desk here" in service("uninstall", home).err


def test_an_install_says_what_comes_next(home: Path) -> None:
    config = shlex.quote(str(home / "desk.toml"))
    with claimed(home / "desk.state"):
        done = service("install", home, "--manager", "systemd")
        assert "A node of this config runs already" in done.out
        # Again, as after a change: that node may be the service's own.
        assert "runs already" not in service("install", home, "--manager", "systemd").out
    assert f"\nSee: sealring service status {config}\n" in done.out
    assert "sudo loginctl enable-linger " in done.out
    done = service("install", home, "--manager", "systemd", "--name", "mine")
    assert "runs already" not in done.out
    assert "\nSee: sealring service status --name mine\n" in done.out


def test_the_config_of_a_folder_and_of_the_user(home: Path) -> None:
    (home / "desk.toml").rename(home / "node.toml")
    done = sealring("service", "install", home, "--manager", "systemd", "--dry-run")
    assert (done.code, "/sealring-node.service" in done.out) == (0, True)
    nothing = sealring("service", "install", "--manager", "systemd", "--dry-run")
    assert (nothing.code, "this machine is in no cluster: there is no" in nothing.err) == (2, True)
    shutil.copytree(home, home.parent / "config" / "sealring")
    done = sealring("service", "install", "--manager", "systemd", "--dry-run")
    assert (done.code, "/config/sealring/node.toml" in done.out) == (0, True)


def test_a_file_of_somebody_else_stays(home: Path) -> None:
    unit_path(home).parent.mkdir(parents=True)
    unit_path(home).write_text("[Service]\nExecStart=/bin/true\n")
    for word in ("install", "uninstall"):
        done = service(word, home, "--manager", "systemd")
        assert done.code == 2
        assert "was not written by 'sealring service install'" in done.err
    assert unit_path(home).read_text() == "[Service]\nExecStart=/bin/true\n"
    assert calls(home) == []


def test_an_install_that_fails_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS", "enable")
    done = service("install", home, "--manager", "systemd")
    assert done.code == 1
    assert "'systemctl --user enable sealring-desk' failed: no bus" in done.err
    assert not unit_path(home).exists()


def test_an_agent(home: Path) -> None:
    path = home.parent / "Library/LaunchAgents/sealring-desk.plist"
    assert service("install", home, "--manager", "launchd", "--user").code == 0
    domain = f"gui/{os.getuid()}"
    assert calls(home) == [f"launchctl bootstrap {domain} {path}"]
    assert service("status", home, "--manager", "launchd").code == 0
    assert service("logs", home, "--manager", "launchd", "--lines", "3").code == 0
    assert calls(home) == [
        f"launchctl print {domain}/sealring-desk",
        f"tail -n 3 {home / 'desk.log'}",
    ]
    assert service("uninstall", home, "--manager", "launchd").code == 0
    assert calls(home) == [f"launchctl bootout {domain}/sealring-desk"]
    assert not path.exists()


def test_status_and_logs(home: Path) -> None:
    service("install", home, "--manager", "systemd")
    calls(home)
    assert service("status", home, "--manager", "systemd").code == 0
    assert service("logs", home, "--manager", "systemd", "--follow").code == 0
    assert calls(home) == [
        "systemctl --user --no-pager --full status sealring-desk",
        "journalctl --no-pager --lines=50 --follow --quiet --user-unit=sealring-desk.service",
    ]


MISTAKES = {
    "both": (["--system", "--user"], "--system and --user exclude each other"),
    "an account of a user's": (["--user", "--account", "x"], "a service of your own runs as you"),
    "a name": (["--name", "../x"], "'../x' cannot be a service's name"),
}


@pytest.mark.parametrize(("options", "what"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(home: Path, options: list[str], what: str) -> None:
    done = service("install", home, "--manager", "systemd", *options)
    assert (done.code, what in done.err) == (2, True)
    assert calls(home) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root has root's keys")
def test_a_node_does_not_run_as_root(home: Path) -> None:
    done = service("install", home, "--system", "--dry-run")
    assert done.code == 2
    assert "is root's, and a node should not run as root" in done.err
    os.chown(home / "desk.key", 1, 1)
    assert "\nUser=daemon\n" in printed(home, "--manager", "systemd", "--system")
