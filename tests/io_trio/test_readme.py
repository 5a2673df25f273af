"""The README's two machines, word by word: its files, its commands, two nodes and an answer."""

from __future__ import annotations

import contextlib
import fnmatch
import re
import shlex
import tempfile
from pathlib import Path

import pytest
from sealring.local.ring import running_node, wait_until_up
from sealring_trio.collective.loopback import free_ports

from tests.io_trio.helpers import sealring

README = Path(__file__).parents[2] / "README.md"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The `sealring` commands of the shell blocks, in order, as words."""
    lines = "\n".join(blocks(text, "sh")).splitlines()
    split = [shlex.split(line, comments=True) for line in lines]
    return [words[3:] for words in split if words[:3] == ["uv", "run", "sealring"]]


@pytest.mark.slow
def test_two_nodes_as_the_readme_says(monkeypatch: pytest.MonkeyPatch) -> None:
    text = README.read_text(encoding="utf-8")
    section = text.split("## Two machines by hand")[1].split("\n## ")[0]
    written_ports = ("7470", "7471", "7480", "7481")
    ports = dict(zip(written_ports, map(str, free_ports(4)), strict=True))
    for written, free in ports.items():
        section = section.replace(written, free)
    (config,) = blocks(section, "toml")
    words = commands(section)
    ups = [Path(command[1]) for command in words if command[0] == "up"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        monkeypatch.chdir(folder)
        (folder / ups[0]).write_text(config)
        second = config.replace(ups[0].stem, ups[1].stem)
        for ours, its in (("7470", "7471"), ("7480", "7481")):
            second = second.replace(ports[ours], ports[its])
        (folder / ups[1]).write_text(second)
        for command in words:
            if command[0] == "up":
                wait_until_up(stack.enter_context(running_node(folder / command[1])))
                continue
            done = sealring(*command)
            assert done.code == 0, done.err
            assert done.out.strip()
    assert {"keygen", "roster", "up", "generate", "status"} <= {command[0] for command in words}


def test_what_the_readme_makes_in_the_checkout_is_no_change_of_it() -> None:
    text = README.read_text(encoding="utf-8")
    made = {word for line in commands(text) for word in line if word.endswith((".key", ".pub"))}
    ignored = (README.parent / ".gitignore").read_text().splitlines()
    for name in {*made, "home.roster", "desk.state/"}:
        assert any(fnmatch.fnmatch(name, pattern) for pattern in ignored), name
