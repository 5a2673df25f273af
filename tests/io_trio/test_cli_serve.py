"""`sealring serve`: what it starts, how it ends, and mistakes."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from sealring_trio.files.models import TINY, find_model

from tests.io_trio.helpers import sealring, until
from tests.io_trio.test_no_guesses import NONE, PASSAGE, details
from tests.serving import PATIENCE, Served, serving


def test_it_says_where_everything_is(served: Served) -> None:
    assert served.about["api"] == f"{served.url}/v1"
    assert served.about["model"] == "tiny"
    assert [rank["layers"] for rank in served.about["ranks"]] == [[0, 4], [4, 8]]
    assert served.ask("Hello.", max_tokens=4).json()["usage"]["completion_tokens"] == 4
    page = httpx2.get(served.about["page"])
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>sealring</title>" in page.text


def test_its_status_needs_no_config(served: Served) -> None:
    done = sealring("status", "--url", served.url)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"state +serving\n", done.out)
    assert re.search(r"rank0 .*0 to 3 .*ready.*\n.*rank1 .*4 to 7 .*ready", done.out)
    told = sealring("status", "--url", served.url, "--json").json()
    assert [rank["name"] for rank in told["ranks"]] == ["rank0", "rank1"]


@pytest.mark.parametrize(
    ("options", "code", "what", "advice"),
    [
        (["--url", "http://127.0.0.1:1"], 1, "no head answers at http://127.0.0.1:1", "--config"),
        (["--url", "http://127.0.0.1:1", "--config", "a"], 2, "a node of this machine", "one of"),
        (["--config", "none.toml"], 2, "no config file at none.toml", ""),
    ],
)
def test_a_status_of_nobody(options: list[str], code: int, what: str, advice: str) -> None:
    done = sealring("status", *options)
    assert done.code == code
    assert what in done.err
    assert advice in done.err


def test_a_status_of_a_port_that_is_for_nodes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)

        refused = pool.submit(refuse)
        done = sealring("status", "--url", f"127.0.0.1:{server.getsockname()[1]}")
        refused.result()
    assert done.code == 1
    assert "closed the connection without an answer" in done.err
    assert "Is that the API's address? A node's own port" in done.err


@pytest.mark.slow
def test_an_interrupt_finishes_what_runs_of_a_node_without_guesses_that_logs_json() -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me a story."}]}
    options = ("--ranks", "1", "--no-guesses", "--log-format", "json")
    with serving(*options) as running, httpx2.Client(timeout=PATIENCE) as http:
        done = running.ask(PASSAGE, temperature=0, max_tokens=48).json()
        assert details(done["usage"]) == NONE
        url = f"{running.url}/v1/chat/completions"
        with http.stream("POST", url, json={**body, "stream": True}) as response:
            lines = response.iter_lines()
            first = next(lines)
            running.interrupt()
            rest = list(lines)
        assert first.startswith("data: ")
        assert rest[-2:] == ["data: [DONE]", ""]
        assert running.process.wait(PATIENCE) == 0
        assert running.process.stderr is not None
        err = running.process.stderr.read()
    said = [json.loads(line)["text"] for line in err.splitlines()]  # and nothing but JSON
    assert said[0] == "starting 1 node"
    assert any(line.startswith("chatcmpl-") for line in said), said


def how_it_ended(running: Served) -> str:
    """What `serve` says of a node that has ended."""
    assert running.process.wait(PATIENCE) == 1
    assert running.process.stderr is not None
    return running.process.stderr.read()


def kept_log(told: str) -> str:
    """The log that *told* names, which is removed."""
    match = re.search(r"Its whole log is kept in (\S+);", told)
    assert match, told
    path = Path(match[1])
    text = path.read_text()
    path.unlink()
    return text


@pytest.mark.slow
def test_a_head_that_is_killed_ends_it_with_the_reason() -> None:
    with serving("--ranks", "1") as running:
        pid = running.about["ranks"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        told = how_it_ended(running)
    assert f"rank0 (pid {pid}) has ended: SIGKILL killed it; its log ends with:" in told
    assert "Traceback" not in told
    assert "the API is at" in kept_log(told)


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_it_and_clients_are_told_which() -> None:
    """In the middle of their answers, one of which is a stream."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "ignore_eos": True,
    }
    with serving("--ranks", "2") as running, httpx2.Client(timeout=PATIENCE) as http:
        url = f"{running.url}/v1/chat/completions"
        with (
            ThreadPoolExecutor() as threads,
            http.stream("POST", url, json={**body, "stream": True}) as response,
        ):
            whole = threads.submit(httpx2.post, url, json=body, timeout=PATIENCE)
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            until(lambda: http.get(f"{running.url}/v1/cluster").json()["rows"]["decode"] == 2)
            pid = running.about["ranks"][1]["pid"]
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            *_, last = (line for line in lines if line)
            answers = [json.loads(last.removeprefix("data: ")), whole.result().json()]
            took = time.monotonic() - killed
        told = how_it_ended(running)
    said = "The ring gave up on this request: rank1 has ended: SIGKILL killed it."
    assert [answer["error"]["message"] for answer in answers] == [said, said]
    assert took < 8  # which is sooner than a ring that is down is given up
    assert f"rank1 (pid {pid}) has ended: SIGKILL killed it; its log ends with:" in told
    assert "Traceback" not in told
    assert "stopping" not in kept_log(told)


FAULTY = """
import os, sys
if "up" in sys.orig_argv:
    from sealring.http.metrics import History
    def sample(*_):
        if os.path.exists(os.environ["FAULT"]):
            raise KeyError("a fault that a test has made")
    History.sample = sample
"""


@pytest.mark.slow
def test_the_word_on_collectives_reaches_the_nodes_and_one_that_fails_ends_it_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails by an exception that no part of a node expects, raised in one of its tasks."""
    (tmp_path / "sitecustomize.py").write_text(FAULTY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAULT", str(tmp_path / "fault"))
    with serving("--strategy", "tp", "--collectives", "trusted-link") as running:
        cluster = httpx2.get(f"{running.url}/v1/cluster", timeout=PATIENCE).json()
        assert cluster["activations"].startswith("NOT SEALED")
        (tmp_path / "fault").touch()
        told = how_it_ended(running)
    reason = "the node failed: KeyError: 'a fault that a test has made'"
    assert re.search(rf"rank0 \(pid \d+\) has ended: {re.escape(reason)}; its log ends", told)
    log = kept_log(told)
    assert "this node has a fault, and ends" in log
    assert "Traceback (most recent call last):" in log
    assert 'sitecustomize.py", line' in log
    assert "please report" in log.lower()


@pytest.mark.parametrize(
    ("options", "what", "advice"),
    [
        (["--ranks", "9"], "9 ranks are too many for a model of 8 layers", "at least one layer"),
        (["--ranks", "0"], "--ranks", "sealring serve --help"),
        (["--model", "./none"], "cannot find the model", "'tiny'"),
        (["--port", "70000"], "--port", "sealring serve --help"),
    ],
)
def test_mistakes(options: list[str], what: str, advice: str) -> None:
    done = sealring("serve", "--port", "0", *options)
    assert done.code == 2
    assert what in done.err
    assert advice in done.err
    assert done.out == ""


def model_with(folder: Path, tokenizer: str) -> Path:
    """The tiny model in *folder*, with *tokenizer* as its tokenizer.json; without one if empty."""
    names = ("config.json", "model.safetensors", "tokenizer_config.json")
    for name in names:
        shutil.copy(find_model(TINY) / name, folder / name)
    if tokenizer:
        (folder / "tokenizer.json").write_text(tokenizer)
    return folder


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_model_without_a_tokenizer_starts_no_node(tmp_path: Path, command: str) -> None:
    done = sealring(command, "--json", "--model", model_with(tmp_path, ""))
    assert done.code == 2
    assert "has no tokenizer.json" in done.err
    assert "starting" not in done.err
    assert json.loads(done.out)["error"]["exit_code"] == 2


@pytest.mark.parametrize("tokenizer", ["{}", '{"version": "1.0", "model": 7}'])
def test_a_plan_refuses_a_tokenizer_that_cannot_be_read(tmp_path: Path, tokenizer: str) -> None:
    model = model_with(tmp_path, tokenizer)
    done = sealring("plan", "--model", model, "--memory", "1G")
    assert done.code == 2
    assert f"the tokenizer of {model} cannot be loaded" in done.err
    assert "Fetch the model again" in done.err
    assert done.out == ""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_tokenizer_that_cannot_be_read_ends_it_with_the_reason(
    tmp_path: Path, command: str
) -> None:
    model = model_with(tmp_path, '{"version": "1.0", "model": 7}')
    done = subprocess.run(
        [sys.executable, "-m", "sealring", command, "--ranks", "1", "--model", model],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert f"the tokenizer of {model} cannot be loaded" in done.stderr
    assert "Fetch the model again" in done.stderr
    assert "Traceback" not in done.stderr
    assert "should not happen" not in done.stderr


@pytest.mark.parametrize("command", ["serve", "demo", "run"])
def test_settings_of_a_tokenizer_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    model = Path(shutil.copytree(find_model(TINY), tmp_path / "model"))
    for template in model.glob("*.jinja"):
        template.unlink()
    (model / "tokenizer_config.json").write_text("[1]")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    given = [model, "Hello."] if command == "run" else ["--model", model]
    done = sealring(command, *given)
    assert done.code == 2
    assert "tokenizer_config.json does not hold a JSON object" in done.err
    assert "Traceback" not in done.err


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = sealring("serve", "--port", str(port))
    assert done.code == 1  # as of 'up'
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use\n" in done.err
    assert "--port" in done.err
