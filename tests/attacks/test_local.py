"""Attacks from the same machine: by users who may write where a node is started or keeps its files,
and by what a terminal is shown."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sealring.cli import run
from sealring.files.config import load_config
from sealring.http.keys import read_keys
from sealring.local.chat_session import ChatSession
from sealring.local.client import HeadClient
from sealring_model.machine import keep_kernels_private
from sealring_trio.errors import UserError
from sealring_trio.files.key_files import (
    make_private_folder,
    read_key,
    read_public_key,
    replace_file,
)
from sealring_trio.files.rosters import read_roster

from tests.io_trio.helpers import as_process
from tests.rows import rows

INTRUDER = """
import os, sys
from pathlib import Path
here = Path(__file__).resolve()
(here.parent / "was-run").touch()
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != here.parent]
del sys.modules[here.stem]
__import__(here.stem)
"""
"""A module in another one's place, which leaves a trace and lets that one be imported."""


@pytest.fixture(scope="module")
def folders() -> Iterator[Path]:
    """Folders in which the processes of a ring have run that answers: ``there``, in which it was
    started, with modules of others; ``cache``; and ``tmp``, where others may write."""
    with tempfile.TemporaryDirectory() as folder:  # whose name leaves room for that of a socket
        place = Path(folder)
        there, tmp = place / "there", place / "tmp"
        there.mkdir()
        for name in ("resource", "attrs", "trio"):
            (there / f"{name}.py").write_text(INTRUDER)
        tmp.mkdir()
        tmp.chmod(0o1777)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sealring", "demo", "--max-tokens", "2", "--json"],
            cwd=there,
            env={**os.environ, "TMPDIR": str(tmp), "XDG_CACHE_HOME": str(place / "cache")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert json.loads(done.stdout)["identical"], done.stderr
        yield place


@pytest.mark.slow
def test_no_process_runs_code_of_the_folder_in_which_it_is_started(folders: Path) -> None:
    assert not (folders / "there" / "was-run").exists()


@pytest.mark.slow
def test_no_process_loads_kernels_that_others_may_have_put_there(folders: Path) -> None:
    """MLX loads what is in its folder under a kernel's name, and puts it below /tmp by itself."""
    assert not [path for path in (folders / "tmp").rglob("*") if path.name == "mlx"]
    kernels = folders / "cache" / "sealring" / "kernels"
    assert stat.S_IMODE(kernels.stat().st_mode) == 0o700


def linked(cache: Path) -> None:
    kernels = cache / "sealring" / "kernels"
    kernels.rmdir()
    (cache / "elsewhere").mkdir()
    (cache / "elsewhere").chmod(0o777)
    kernels.symlink_to(cache / "elsewhere")


UNSAFE: dict[str, Callable[[Path], Any]] = {
    "others may write": lambda cache: (cache / "sealring" / "kernels").chmod(0o777),
    "a group may write": lambda cache: (cache / "sealring" / "kernels").chmod(0o770),
    "others may replace it": lambda cache: (cache / "sealring").chmod(0o777),
    "is a link": linked,
    "another's": lambda cache: os.chown(cache / "sealring" / "kernels", 65534, 65534),
    "in another's": lambda cache: os.chown(cache / "sealring", 65534, 65534),
}


@pytest.mark.parametrize("spoil", UNSAFE.values(), ids=UNSAFE)
def test_kernels_are_kept_in_no_folder_that_others_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], Any]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", "")
    keep_kernels_private()
    kernels = tmp_path.resolve() / "cache" / "sealring" / "kernels"
    assert Path(os.environ["TMPDIR"]) == kernels
    try:
        spoil(tmp_path / "cache")
    except PermissionError:
        pytest.skip("only root gives files away")
    keep_kernels_private()
    chosen = Path(os.environ["TMPDIR"])
    assert chosen != kernels
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o700
    assert chosen.stat().st_uid == os.geteuid()


def test_no_folder_for_kernels_is_made_in_the_home_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root with another's HOME, as by sudo on macOS, left a folder that its owner could not use."""
    try:
        os.chown(tmp_path, 65534, 65534)
    except PermissionError:
        pytest.skip("only root gives files away")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", "")
    keep_kernels_private()
    assert "sealring-kernels-" in os.environ["TMPDIR"]
    assert not list(tmp_path.iterdir())


WHERE = """
import os
from sealring_model.machine import keep_kernels_private
keep_kernels_private()
print(os.environ["TMPDIR"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="user namespaces are Linux's")
def test_an_engine_of_root_in_its_namespace_tells_roots_folders_from_others(tmp_path: Path) -> None:
    """There, who is not root has no name; whoever he is, he could put his folder in its place."""
    kernels = tmp_path / "sealring" / "kernels"
    tmp_path.chmod(0o755)
    for owner, safe in [(0, True), (65534, False)]:
        kernels.mkdir(0o700, parents=True, exist_ok=True)
        try:
            os.chown(tmp_path, owner, owner)
        except PermissionError:
            pytest.skip("only root gives files away")
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", sys.executable, "-P", "-c", WHERE],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.stderr.startswith("unshare:"):
            pytest.skip(f"no user namespace can be made here: {done.stderr}")
        assert done.returncode == 0, done.stderr
        assert (Path(done.stdout.strip()) == kernels.resolve()) is safe


def test_kernels_are_kept_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("TMPDIR", "")
    for home in ("", "relative", "/proc/nowhere", "/dev/null"):
        monkeypatch.setenv("HOME", home)
        keep_kernels_private()
        assert "sealring-kernels-" in os.environ["TMPDIR"]


def test_every_process_that_computes_keeps_its_kernels_private() -> None:
    root = Path(__file__).parents[2]
    found = []
    for package in ("model/sealring_model", "io_trio/sealring_trio", "daemon/sealring"):
        for path in (root / package).rglob("*.py"):
            text = path.read_text()
            if "__main__" in text and ("import mlx" in text or "mlx_lm(" in text):
                found.append(path.name)
                assert "keep_kernels_private()" in text or path.name == "sums.py", path
    assert {"main.py", "reference.py"} <= set(found)


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 50_000) + " = 1",
        "[" + ".".join("a" * 50_000) + "]",
        "[" + " . ".join(['"a"'] * 30_000) + "]",
        "x = {" + ".".join(["'a'", "b"] * 20_000) + " = 1}",
    ],
    ids=["key", "table", "quoted", "inline"],
)
def test_a_key_of_very_many_parts_is_refused_at_once(tmp_path: Path, text: str) -> None:
    """What `tomllib` takes for one grows with the square of its parts."""
    file = tmp_path / "node.toml"
    file.write_text("# ...\n" + text + "\n")
    began = time.process_time()
    with pytest.raises(UserError, match=r"line 2: a key of more than 64 parts"):
        load_config(file)
    assert time.process_time() - began < 5.0


# ------------------------------------------------------------------ terminals

ESCAPES = "\x1b]0;taken\x07\x1b[2J\x9b31m"
"""Has a terminal change its title, forget what it shows, and write in red."""

DEEP_LIST = b"[" * 200_000


def said(delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"


def used(usage: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"


ENDED = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'

SERVERS: dict[str, tuple[bytes, bytes]] = {
    "another name": (json.dumps({"data": [{"id": ESCAPES}]}).encode(), said({"content": ESCAPES})),
    "models too deep": (DEEP_LIST, b""),
    "an error": (b'{"data":[{"id":"m"}]}', b'data: {"error":{"message":"\\u001b[2J"}}\n\n'),
    "an error that is a text": (b'{"data":[{"id":"m"}]}', b'data: {"error":"no"}\n\n'),
    "no JSON": (b'{"data":[{"id":"m"}]}', b"data: {\n\n"),
    "events too deep": (b'{"data":[{"id":"m"}]}', b"data: " + DEEP_LIST + b"\n\n"),
    "a list": (b'{"data":[{"id":"m"}]}', b"data: [1]\n\n"),
    "choices are a number": (b'{"data":[{"id":"m"}]}', b'data: {"choices":5}\n\n'),
    "a delta is a number": (b'{"data":[{"id":"m"}]}', said(5)),
    "content is a number": (b'{"data":[{"id":"m"}]}', said({"content": 5})),
    "content is no text": (b'{"data":[{"id":"m"}]}', said({"content": "\ud800"})),
    "usage is a text": (b'{"data":[{"id":"m"}]}', used("x") + ENDED),
    "usage has a text": (b'{"data":[{"id":"m"}]}', used({"prompt_tokens_details": "x"}) + ENDED),
    "very many tokens": (
        b'{"data":[{"id":"m"}]}',
        said({"content": "a"})
        + said({"content": "b"})
        + used({"completion_tokens": 10**400})
        + ENDED,
    ),
    "a name that is no text": (b'{"data":[{"id":"\\ud800"}]}', said({"content": "Hello."})),
}


@contextmanager
def answering(models: bytes, stream: bytes) -> Iterator[str]:
    """A server that says what it likes; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(models)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(stream)

        def answer(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("models", "stream"), SERVERS.values(), ids=SERVERS)
def test_whatever_a_server_says_is_no_traceback_and_no_order_to_a_terminal(
    models: bytes, stream: bytes
) -> None:
    with answering(models, stream) as url:
        code, *streams = as_process("chat", "--url", url, given=b"Hello.\n/stats\nHello.\n")
    assert code in (0, 1)
    for told in streams:
        assert b"Traceback" not in told
        assert not set(told.decode()) & set("\x07\x1b\x9b")


def test_a_conversation_goes_on_after_what_is_no_text() -> None:
    """It stands in the history, which the next request brings."""
    stream = said({"content": "\ud800"}) + ENDED
    with answering(b"", stream) as url, HeadClient(url) as http:
        talk = ChatSession(http, url, "m")
        assert [list(talk.ask("Hello.", print)) for _ in range(2)] == [[("content", "?")]] * 2


@pytest.mark.parametrize("encoding", rows(["utf-8", "latin-1", "ascii"], "ascii"))
def test_bytes_that_are_no_text_and_characters_that_a_terminal_lacks_are_replaced(
    encoding: str,
) -> None:
    stream = said({"content": "caf\xe9 \U0001f600"}) + ENDED
    with answering(b'{"data":[{"id":"m"}]}', stream) as url:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sealring", "chat", "--url", url],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            input=b"Hello, \xff.\nHello.\n",
            capture_output=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    text = "caf\xe9 \U0001f600".encode(encoding, "replace")
    assert done.stdout.splitlines() == [text, text]


def test_an_error_that_a_file_brought_gives_a_terminal_no_orders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text('key = "a"\n"\\u001b[2J" = 1\n')
    assert run(["status", "--config", str(tmp_path / "a.toml")]) == 2
    told = capsys.readouterr().err
    assert "unknown key" in told
    assert "\x1b" not in told


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("read", [read_key, read_keys, read_roster, read_public_key, load_config])
@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "zero\0byte"])
def test_what_is_no_file_is_refused_and_told(
    tmp_path: Path, read: Callable[[Any], object], name: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / name
    with pytest.raises(UserError):
        read(str(path) if read is read_public_key else path)


def test_a_file_is_replaced_through_no_link_that_others_put_there(tmp_path: Path) -> None:
    profile, target = tmp_path / "profile", tmp_path / "home.roster"
    profile.write_text("of the operator")
    target.with_name(f".{target.name}.{os.getpid()}.new").symlink_to(profile)
    replace_file(target, b"a roster")
    assert (profile.read_text(), target.read_bytes()) == ("of the operator", b"a roster")
    assert not target.is_symlink()


def test_a_state_folder_is_not_kept_where_everybody_may_replace_it(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(UserError, match="put another folder in its place"):
        make_private_folder(shared / "desk" / "state")
    shared.chmod(0o1777)  # as /tmp
    make_private_folder(shared / "desk" / "state")
