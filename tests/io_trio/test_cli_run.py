"""`sealring run`: one question, by a ring that is there or by one of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sealring.http import front
from sealring.local import client
from sealring_client import ResumableStream

from tests.io_trio.helpers import Outcome, as_process
from tests.io_trio.strange_head import BREAKS, DIES, strange_head
from tests.io_trio.terminal import PROMPT, Terminal
from tests.serving import PATIENCE, Served

RUN = [sys.executable, "-m", "sealring", "run"]
ASKED = ("--temperature", "0", "--max-tokens", "12")


def run(*arguments: str, stdin: str | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run it without a terminal."""
    given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run(
        [*RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **given,
        **more,
    )


def run_here(*arguments: str) -> Outcome:
    """Run it without a terminal or a process of its own."""
    code, out, err = as_process("run", *arguments)
    return Outcome(code, out.decode(), err.decode())


def test_a_ring_that_is_there_answers(served: Served) -> None:
    asked = served.ask("Count to twenty.", temperature=0, max_tokens=12).json()
    text = asked["choices"][0]["message"]["content"]
    done = run("tiny", "Count to twenty.", *ASKED, "--url", served.url)
    assert (done.returncode, done.stdout) == (0, f"{text}\n")
    cut = "sealring: the answer is cut off at max_tokens\n"
    assert done.stderr == f"sealring: the ring at {served.url} answers\n{cut}"
    done = run("tiny", "-", *ASKED, "--json", "--url", served.url, stdin="Count to twenty.\n")
    assert done.returncode == 0, done
    told = json.loads(done.stdout)
    assert (told["answer"], told["finish_reason"]) == (text, "length")
    assert told["usage"]["completion_tokens"] == 12
    assert told["ring"] == {"url": served.url, "started": False, "machines": ["rank0", "rank1"]}
    assert 0 <= told["times_s"]["first_text"] <= told["times_s"]["answer"]


def test_what_is_asked() -> None:
    body: dict[str, Any] = {"model": "strange", "stream": True}
    body["stream_options"] = {"include_usage": True}
    with strange_head({"the text\n\nsummarise": ["short"], "go on": ["raw"]}) as head:
        options = ("--system", "Be brief.", "--seed", "7", "--top-p", "0.5", "--url", head.url)
        done = run("strange", "summarise", *options, stdin="the text\n")
        assert done.stdout == "short\n"
        opening = {"role": "system", "content": "Be brief."}
        question = {"role": "user", "content": "the text\n\nsummarise"}
        chosen = {"seed": 7, "top_p": 0.5}
        assert head.asked.pop() == {**body, "messages": [opening, question], **chosen}
        done = run("strange", "--raw", "--url", head.url, stdin="go on")
        assert head.asked.pop() == {**body, "prompt": "go on", "max_tokens": 256}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for temporary files whose path is short, for the sockets' sake."""
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        yield Path(folder)


def test_a_ring_of_its_own(place: Path) -> None:
    """Nothing but the answer on standard output, and no process afterwards."""
    env = {**os.environ, "TMPDIR": str(place)}
    first = run("tiny", "Count to twenty.", *ASKED, "--json", env=env)
    told = json.loads(first.stdout)
    assert told["ring"]["started"]
    assert told["answer"]
    assert "no ring here serves tiny: one is started" in first.stderr
    assert not list(place.iterdir())


@pytest.mark.slow
def test_an_interrupt_ends_the_ring_too(place: Path) -> None:
    with subprocess.Popen(
        [*RUN, "tiny", "Tell me a long story about a fox named Pip."],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(place)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert not list(place.iterdir())


def test_in_a_terminal_without_a_prompt_it_is_a_chat(served: Served, tmp_path: Path) -> None:
    arguments = ("run", "tiny", "--url", served.url, "--no-history", "--system", "Be brief.")
    with Terminal(*arguments, XDG_STATE_HOME=str(tmp_path)) as terminal:
        terminal.until("/help shows the commands")
        terminal.until(PROMPT)
        terminal.type("/stats\r")
        terminal.until("rank0, rank1.*?" + PROMPT)
        terminal.type("\x04")
        assert terminal.ended() == 0
    assert not list(tmp_path.iterdir())


def test_an_answer_that_breaks_off() -> None:
    with strange_head({"hello": ["half an ans", BREAKS]}) as head:
        done = run_here("strange", "hello", "--url", head.url)
    assert (done.code, done.out) == (1, "half an ans\n")
    assert "went away" in done.err
    assert "Traceback" not in done.err


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key of the environment, and little patience."""
    for name in client.KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client, "ResumableStream", partial(ResumableStream, seconds=0.2))
    monkeypatch.setattr(client, "NEXT_HEAD_PAUSE", 0.0)


KEYLESS = (
    "sealring: without an API key an answer goes on at no other machine; to make one, on the "
    "head's machine: sealring apikey new NAME\n"
)


def test_an_answer_whose_machine_dies(hasty: None) -> None:
    with strange_head({"hello": ["half an ans", DIES]}, numbered=True) as head:
        done = run_here("strange", "hello", "--url", head.url)
    assert (done.code, done.out) == (1, "half an ans\n")
    refused = f"{head.url} is not reached (Connection refused), and"
    assert done.err == (
        f"sealring: the ring at {head.url} answers\n"
        f"sealring: {head.url} went away in the middle of the answer, and the rest is asked for "
        "...\n"
        f"sealring: {refused} the rest is asked for ...\n"
        f"sealring: {refused} nobody had the rest of the answer\n"
        "Ask again. With another machine's URL too (--url A,B), and an API key, an answer goes on "
        "there.\n"
    )


def test_without_a_key_no_other_machine_has_the_rest(hasty: None) -> None:
    broken = partial(strange_head, {"hello": ["half an ans", DIES]}, numbered=True)
    with broken() as head, strange_head({}) as other:
        urls = f"{head.url},{other.url}"
        done = run_here("strange", "hello", "--url", urls)
    assert (done.code, done.out) == (1, "half an ans\n")
    assert done.err.startswith(f"{KEYLESS}sealring: the ring at {urls} answers\n")
    assert done.err.endswith(
        f"sealring: without an API key only {head.url} gives the rest of the answer\n"
        "Ask again, with an API key; on the head's machine: sealring apikey new NAME\n"
    )
    with broken() as head, strange_head({}) as other:
        urls = f"{head.url},{other.url}"
        done = run_here("strange", "hello", "--url", urls, "--api-key", "k")
    assert KEYLESS not in done.err
    assert done.err.endswith(
        "sealring: the ring has the rest of the answer no longer\n"
        "The head's log says more. Ask again.\n"
    )


def test_a_machine_that_has_no_head_yet(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.NEXT_HEAD_SECONDS == front.NEXT_HEAD_SECONDS  # as a request for an answer waits
    refusals = ["no_head", "no_head", "not_head", "head_lost", "no_majority"]
    waits = "sealring: there is no head, and the next one is waited for ...\n"
    with strange_head({"hello": ["hi"]}, refusals=refusals[:]) as head:
        done = run_here("strange", "hello", "--url", head.url)
        assert (done.code, done.out) == (0, "hi\n")
        assert done.err == f"{waits}sealring: the ring at {head.url} answers\n"
        head.refusals += ["no_texts"]
        done = run_here("strange", "hello", "--url", head.url)
        assert (done.code, waits in done.err) == (1, False)
        monkeypatch.setattr(client, "NEXT_HEAD_SECONDS", 0.0)
        head.refusals += ["no_head"]
        done = run_here("strange", "hello", "--url", head.url)
    assert (done.code, done.out) == (1, "")
    assert done.err == "sealring: It cannot be asked.\nOr ask another machine: --url URL.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["tiny", "hello", "--url", "http://127.0.0.1:1"], 1, "no head answers"),
        (["./none", "hello"], 2, "cannot find the model"),
        (["models/none", "hello"], 2, "there is no folder models/none; if you mean the hub's"),
        (["tinny", "hello"], 2, "Did you mean 'tiny'? Give a folder"),
        (["tiny", " "], 2, "there is no prompt"),
        (["tiny", "hello", "--raw", "--system", "x"], 2, "--raw takes a prompt"),
        (["tiny", "hello", "--temperature", "3"], 2, "--temperature"),
    ],
)
def test_mistakes(arguments: list[str], code: int, what: str) -> None:
    done = run_here(*arguments)
    assert done.code == code
    assert what in done.err
    assert done.out == ""


def test_another_model_is_not_asked_for_it(served: Served) -> None:
    done = run_here("owner/other", "hello", "--url", served.url)
    assert done.code == 2
    assert f"the head at {served.url} serves tiny, and not owner/other" in done.err
    done = run_here("nowhere", "hello", "--url", served.url)
    assert done.code == 2
    assert f"the head at {served.url} serves tiny, and not nowhere" in done.err
