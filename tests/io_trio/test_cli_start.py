"""`sealring start`, `join` and `machines`, as processes on loopback; and mistakes."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest
from sealring.cli.doorway import print_invitation
from sealring.joining.founding import MemberFiles, Settings, found
from sealring_protocol.joining.invitation import INVITATION_SECRET, Invitation
from sealring_trio.collective.loopback import free_ports

from tests.io_trio.helpers import as_process, sealring
from tests.io_trio.terminal import Terminal
from tests.serving import PATIENCE


def two_in_a_row() -> int:
    """A free port, after which the next is free as well: that of the door."""
    while True:
        first, second = free_ports(2)
        if second == first + 1:
            return first


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one, for the sockets' sake."""
    with tempfile.TemporaryDirectory(prefix="sealring-") as made:
        yield Path(made)


class Command:
    """`sealring` with *arguments* as a process, whose output is read line by line."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sealring", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        self.seen = ""

    def until(self, pattern: str) -> re.Match[str]:
        """Read until *pattern*, in what no `until` has taken yet."""
        assert self.process.stdout is not None
        while not (match := re.search(pattern, self.seen, re.DOTALL)):
            line = self.process.stdout.readline()
            assert line, self.seen
            self.seen += line
        self.seen = self.seen[match.end() :]
        return match

    def interrupted(self) -> int:
        """Ctrl-C; its exit code."""
        self.process.send_signal(signal.SIGINT)
        out, _ = self.process.communicate(timeout=PATIENCE)
        self.seen += out
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def start(folder: Path, *options: str) -> tuple[Command, str]:
    """A cluster of one in *folder*/desk, and the address of its API."""
    port, (api,) = two_in_a_row(), free_ports(1)
    places = ("--listen", f"127.0.0.1:{port}", "--api", f"127.0.0.1:{api}")
    command = Command("start", folder / "desk", *places, "--name", "desk", *options)
    return command, f"http://127.0.0.1:{api}"


def announced(command: Command) -> dict[str, Any]:
    """What it says as JSON, once it serves."""
    return dict(json.loads(command.until(r"\{\n.*?\n\}")[0]))


def join(folder: Path, invitation: str, name: str = "den") -> Command:
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    return Command("join", invitation, folder / name, "--listen", listen, "--name", name)


def ask(head: Command, url: str) -> dict[str, Any]:
    """An answer of the ring, once *head* says that it serves."""
    head.until("the ring is ready: epoch")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4}
    answer = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_two_machines_in_two_commands(folder: Path) -> None:
    began, url = start(folder, "--yes", "--json")
    with began:
        about = announced(began)
        assert about["command"] == f"sealring join {about['invitation']}"
        assert about["api"] == f"{url}/v1"
        with join(folder, about["invitation"]) as joined:
            words = joined.until(r"fingerprint is (\w+-\w+-\w+-\w+)\n")[1]
            began.until(f"fingerprint {words} from 127.0.0.1 wants to join: den, ")
            joined.until("joined home as den")
            joined.until("ready: epoch")
            assert ask(began, url)["usage"]["completion_tokens"] == 4
            ranks = httpx2.get(f"{url}/v1/cluster", timeout=PATIENCE).json()["ranks"]
            assert [rank["name"] for rank in ranks] == ["desk", "den"]
            listed = sealring(
                "machines", "list", "--config", folder / "den" / "node.toml", "--json"
            )
            machines = listed.json()["machines"]
            assert [(each["name"], each["here"]) for each in machines] == [
                ("desk", False),
                ("den", True),
            ]
            assert machines[1]["fingerprint"] == words
            assert joined.interrupted() == 0
        assert began.interrupted() == 0
    assert {path.name for path in (folder / "den").iterdir()} == {
        "cluster.roster",
        "coordinator.pub",
        "node.key",
        "node.pub",
        "node.state",
        "node.toml",
    }
    again = sealring("start", folder / "den")
    assert again.code == 2
    assert f"sealring up {folder / 'den'}" in again.err


@pytest.mark.slow
def test_a_machine_that_was_put_out_comes_back(folder: Path) -> None:
    config, its = folder / "desk" / "node.toml", folder / "den" / "node.toml"
    began, url = start(folder, "--yes", "--json")
    with began:
        with join(folder, announced(began)["invitation"]) as joined:
            joined.until("ready: epoch")
            key = (folder / "den" / "node.key").read_bytes()
            removed = sealring("machines", "remove", "den", "--config", config)
            assert removed.code == 0, removed.err
            invite = ("machines", "invite", "--config", config, "--json")
            invitation = sealring(*invite).json()["invitation"]
            joined.until(r"To come back, ask for an invitation there \(sealring machines invite\)")
            told = sealring("machines", "list", "--config", its)
            assert "This machine was put out of home: desk has a newer roster" in told.out
            assert "sealring machines invite" in told.out
            runs = sealring("join", invitation, folder / "den")
            assert runs.code == 1
            assert "stop it" in runs.err
            assert joined.interrupted() == 0
        with Command("join", invitation, folder / "den") as joined:
            joined.until("joined home as den")  # which the first lets in (--yes)
            joined.until("ready: epoch")
            assert ask(began, url)["usage"]["completion_tokens"] == 4
            assert (folder / "den" / "node.key").read_bytes() == key


def test_the_files_of_another_cluster_are_in_the_way(folder: Path) -> None:
    found(MemberFiles.at(folder / "den"), Settings("den", ("127.0.0.1", 7999), "off", "tiny"))
    done = sealring("join", invitation(), folder / "den")
    assert done.code == 2
    assert "this machine is in a cluster already" in done.err
    assert f"mv {folder / 'den'} {folder / 'den'}.before" in done.err


@pytest.mark.slow
def test_a_join_that_is_cancelled_and_one_that_a_command_accepts(folder: Path) -> None:
    began, url = start(folder, "--json")
    config = folder / "desk" / "node.toml"
    with began:
        invitation = announced(began)["invitation"]
        with join(folder, invitation) as cancelled:
            cancelled.until("waiting for a yes at desk")
            assert cancelled.interrupted() == 130
        began.until("den has left before it joined: it was stopped there")
        assert not (folder / "den").exists()
        nobody = sealring("machines", "accept", "--config", config)
        assert (nobody.code, nobody.out) == (2, "")
        assert "nobody waits to join" in nobody.err
        with join(folder, invitation) as refused:
            began.until("wants to join: den")
            done = sealring("machines", "refuse", "den", "--config", config)
            assert (done.code, done.err) == (0, "")
            refused.until("desk does not let this machine join: a person there has said no")
            assert refused.process.wait(PATIENCE) == 1
        invited = sealring("machines", "invite", "--config", config, "--json").json()
        with join(folder, invited["invitation"]) as joined:
            began.until("wants to join: den")
            waiting = sealring("machines", "list", "--config", config)
            assert " wants to join: den, " in waiting.out
            listed = sealring("machines", "list", "--config", config, "--json").json()
            digits = listed["waiting"][0]["id"][:8]
            away = config.parent / "coordinator.key"
            kept = away.rename(folder / "kept.key")
            text = config.read_text()
            missing = sealring("machines", "accept", "den", "--config", config)
            assert missing.code == 2
            assert "no coordinator's key" in missing.err
            assert config.read_text() == text
            done = sealring("machines", "accept", digits, "--config", config, "--key", kept)
            assert (done.code, done.out) == (0, "den is a member now, of roster 2\n"), done.err
            joined.until("ready: epoch")
            assert ask(began, url)["usage"]["completion_tokens"] == 4


@pytest.mark.slow
def test_a_person_at_the_terminal_says_yes(folder: Path) -> None:
    port, (api,) = two_in_a_row(), free_ports(1)
    places = ("--listen", f"127.0.0.1:{port}", "--api", f"127.0.0.1:{api}")
    with Terminal("start", str(folder / "desk"), *places, "--name", "desk") as terminal:
        told = terminal.until(r"sealring join (sr1-\w+)")
        assert f"http://127.0.0.1:{api}/v1" in told
        assert str(folder / "desk" / "coordinator.key") in told
        invitation = told.split()[-1]
        terminal.until("[\u2580\u2584\u2588]")  # squares of the QR code
        terminal.until("this terminal shows its key and asks whether it may join")
        terminal.type("yes\n")  # before anybody has knocked
        with join(folder, invitation) as joined:
            asked = terminal.until(r"Let it in\? \[y/n\] ")
            assert (
                len(re.findall(r"fingerprint \w+-\w+-\w+-\w+ from .* wants to join: den, ", asked))
                == 1
            )
            terminal.type("\n")
            terminal.until(r"Type yes or no.*Let it in\? \[y/n\] ")
            terminal.type("y\n")
            joined.until("joined home as den")
            terminal.until("den is a member: home has 2 machines")
            config = folder / "desk" / "node.toml"
            terminal.until(f"sealring status --config {config}")
            terminal.until(f"sealring chat --url http://127.0.0.1:{api}\r\n")
            joined.until("ready: epoch")
        terminal.interrupt("stopping")


@pytest.mark.slow
def test_a_yes_that_comes_too_late_is_none_for_the_next_machine(folder: Path) -> None:
    port = two_in_a_row()
    places = ("--listen", f"127.0.0.1:{port}", "--api", "off")
    with Terminal("start", str(folder / "desk"), *places, "--name", "desk") as terminal:
        invitation = terminal.until(r"sealring join (sr1-\w+)").split()[-1]
        with join(folder, invitation) as joined:
            terminal.until(r"Let it in\? \[y/n\] ")
            joined.interrupted()
        terminal.until("den has left")
        terminal.type("y\n")
        with join(folder, invitation, "other") as joined:
            terminal.until(r"wants to join: other, .* Let it in\? \[y/n\] ")
            terminal.type("n\n")
            joined.until("a person there has said no")
        terminal.interrupt("stopping")


@pytest.mark.slow
def test_each_terminal_says_what_another_decided(folder: Path) -> None:
    """One has begun the cluster and another has invited; a command decides."""
    port = two_in_a_row()
    places = ("--listen", f"127.0.0.1:{port}", "--api", "off")
    config = ("--config", str(folder / "desk" / "node.toml"))
    with Terminal("start", str(folder / "desk"), *places, "--name", "desk") as terminal:
        terminal.until("asks whether it may join")
        for decision, told in (
            ("refuse", "den was refused at another terminal"),
            ("accept", "den was let in at another terminal"),
        ):
            with Terminal("machines", "invite", *config) as inviting:
                invitation = inviting.until(r"sealring join (sr1-\w+)").split()[-1]
                with join(folder, invitation) as joined:
                    words = joined.until(r"fingerprint is (\S+)")[1]
                    inviting.until(r"Let it in\? \[y/n\] ")
                    terminal.until(r"Let it in\? \[y/n\] ")
                    inviting.interrupt(f"den still waits: sealring machines accept {words} ")
                    assert inviting.ended() == 130
                    done = sealring("machines", decision, "den", *config)
                    assert done.code == 0, done.err
                    terminal.until(told)
                    joined.process.send_signal(signal.SIGINT)
        terminal.interrupt("stopping")


@pytest.mark.slow
def test_a_node_outlives_its_terminal(folder: Path) -> None:
    port = two_in_a_row()
    places = ("--listen", f"127.0.0.1:{port}", "--api", "off")
    config = folder / "desk" / "node.toml"
    with Terminal("start", str(folder / "desk"), *places, "--name", "desk") as terminal:
        invitation = terminal.until(r"sealring join (sr1-\w+)").split()[-1]
        with join(folder, invitation) as joined:
            terminal.until(r"Let it in\? \[y/n\] ")
            terminal.hang_up()
            done = sealring("machines", "accept", "den", "--config", config)
            assert (done.code, done.out) == (0, "den is a member now, of roster 2\n"), done.err
            joined.until("ready: epoch")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(PATIENCE) == 0


def test_mistakes_of_an_invitation(folder: Path) -> None:
    for wrong, why in {
        "sr1-abc": "it is not whole",
        "hello": "an invitation begins with sr1-",
        "": "an invitation begins with sr1-",
    }.items():
        done = sealring("join", wrong, folder / "den")
        assert done.code == 2
        assert f"this is no invitation: {why}" in done.err
        assert "Copy the whole line" in done.err
        code, out, err = as_process("join", "-", folder / "den", given=f"{wrong}\n".encode())
        assert (code, out, err.decode()) == (2, b"", done.err)
    assert "there is no such option" in sealring("join", "--yes").err
    named = sealring("join", invitation(), folder / "den", "--name", "d\u0435n")
    assert "--name d\u0435n has letters beyond ASCII" in named.err
    assert not (folder / "den").exists()


def invitation(*addresses: str) -> str:
    """One of nobody, at loopback if no *addresses* are given."""
    secret = bytes(INVITATION_SECRET)
    return Invitation(addresses or ("127.0.0.1:1",), bytes(32), secret, 1 << 31).encode()


@pytest.mark.parametrize(
    ("which", "purpose", "advice"),
    [
        ("node", "for other machines", "Give another address: --listen HOST:PORT"),
        ("door", "for newcomers", "It is the port after that of --listen"),
        ("api", "for the API", "--api HOST:PORT"),
    ],
)
def test_a_port_that_is_taken_leaves_no_files(
    folder: Path, which: str, purpose: str, advice: str
) -> None:
    port, (api,) = two_in_a_row(), free_ports(1)
    taken = {"node": port, "door": port + 1, "api": api}[which]
    places = ("--listen", f"127.0.0.1:{port}", "--api", f"127.0.0.1:{api}")
    with socket.create_server(("127.0.0.1", taken)):
        done = sealring("start", folder / "desk", *places)
    assert done.code == 1
    assert f"cannot listen at 127.0.0.1:{taken} {purpose}" in done.err
    assert advice in done.err
    assert not (folder / "desk").exists()


def test_no_port_follows_the_last(folder: Path) -> None:
    done = sealring("start", folder / "desk", "--listen", "127.0.0.1:65535", "--api", "off")
    assert done.code == 1
    assert "It is the port after that of --listen" in done.err


def test_the_command_to_type_is_as_this_one_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setenv("UV", "/usr/bin/uv")
    given = invitation()
    print_invitation(given, 0, "tiny")
    assert f"    sealring join {given}\n" in capsys.readouterr().out
    (tmp_path / "pyproject.toml").touch()
    print_invitation(given, 0, "tiny")
    assert f"    uv run sealring join {given}\n" in capsys.readouterr().out
    monkeypatch.delenv("UV")
    print_invitation(given, 0, "tiny")
    assert f"    sealring join {given}\n" in capsys.readouterr().out


def test_a_model_that_is_a_folder_is_named_beside_the_invitation(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """It is not sent, and a machine that joined without it had to be told so afterwards."""
    for model, told in ((str(folder), True), ("tiny", False), ("owner/name", False)):
        print_invitation(invitation(), 0, model)
        said = capsys.readouterr().out
        assert (f"add --model FOLDER: {model}" in said) is told


def test_who_listens_at_loopback_does_not_invite_other_machines(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    print_invitation(invitation(), 0, "tiny")
    assert "In another terminal of this machine, within" in capsys.readouterr().out
    print_invitation(invitation("192.168.1.7:1", "127.0.0.1:1"), 0, "tiny")
    assert "On another machine, within" in capsys.readouterr().out
    joining = ("--listen", f"127.0.0.1:{free_ports(1)[0]}", "--no-discover")
    done = sealring("join", invitation(), folder / "den", *joining)
    assert done.code == 1
    assert "127.0.0.1:1: Connection refused" in done.err
    assert "on the machine alone that gave it, which listens at loopback" in done.err
    assert "0.0.0.0:PORT" in done.err


def test_a_start_that_fails_leaves_no_files(folder: Path) -> None:
    port = str(two_in_a_row())
    done = sealring("start", folder / "desk", "--listen", f"127.0.0.1:{port}", "--model", "./none")
    assert done.code == 2
    assert "cannot find the model" in done.err
    assert not (folder / "desk").exists()


@pytest.fixture
def user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user of this machine."""
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.mark.parametrize(
    "command", [("up",), ("model", "use", "tiny"), ("apikey", "list")], ids=" ".join
)
def test_without_a_cluster_commands_say_how_to_get_one(
    user: Path, command: tuple[str, ...]
) -> None:
    done = sealring(*command)
    assert done.code == 2
    assert "this machine is in no cluster" in done.err
    assert "sealring start" in done.err
    with contextlib.suppress(FileNotFoundError):
        assert not list(user.iterdir())


def test_commands_find_the_config_of_the_default_folder(user: Path) -> None:
    """Those that ask its node say that none runs, and start no ring of their own."""
    files = MemberFiles.at(None)
    found(files, Settings("desk", ("127.0.0.1", two_in_a_row()), "off", "tiny"))
    for command in (
        ("model", "use", "tiny"),
        ("verify",),
        ("profile", "--seconds", "1"),
        ("roster", "install", files.roster),
    ):
        done = sealring(*command)
        assert (done.code, "no node is running here" in done.err) == (1, True), done.err
    for name, told in (("alice", True), ("bob", False)):  # the first key closes the API
        done = sealring("apikey", "new", name)
        assert (done.code, "from now on the API asks for a key" in done.err) == (0, told)
    assert "alice" in sealring("apikey", "list").out
