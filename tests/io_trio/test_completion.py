"""`sealring completion`: what a shell offers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from sealring.cli import COMMANDS

from tests.io_trio.helpers import sealring

ASK = """\
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$(($# - 2))
COMPREPLY=()
_sealring
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = sealring("completion", "bash")
    assert (done.code, done.err) == (0, "")
    path = tmp_path_factory.mktemp("completion") / "sealring"
    path.write_text(done.out)
    return path


def offered(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of *words*."""
    command = ["bash", "--norc", "-c", ASK, "bash", str(script), "sealring", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    return {word.strip() for word in done.stdout.splitlines()}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "some", "none"),
    [
        ([""], set(COMMANDS), set()),
        (["se"], {"serve", "service"}, {"status"}),
        (["service", ""], {"install", "uninstall", "status", "logs"}, {"serve"}),
        (["up", "--log-"], {"--log-format", "--log-file"}, {"--lifeline"}),
        (["up", "--log-format", ""], {"text", "json"}, set()),
        (["completion", ""], {"bash", "zsh", "fish"}, set()),
    ],
)
def test_bash_completes(script: Path, words: list[str], some: set[str], none: set[str]) -> None:
    found = offered(script, *words)
    assert some <= found
    assert not none & found


@pytest.mark.parametrize(
    ("shell", "begins"), [("zsh", "#compdef sealring"), ("fish", "# Fish completion for sealring")]
)
def test_other_shells_get_a_script_of_their_own(shell: str, begins: str) -> None:
    done = sealring("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(begins)
    for name in COMMANDS:
        assert name in done.out
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=done.out, check=True, text=True)
