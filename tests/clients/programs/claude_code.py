"""Claude Code, asked once without a terminal."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from features import KEY, SCRIPTED, ends, equal, feature, holds, run, under_way

# docs: connect
# language: sh
CONNECT = f"""
export ANTHROPIC_BASE_URL={SCRIPTED}
export ANTHROPIC_AUTH_TOKEN={KEY}
export ANTHROPIC_MODEL=scripted
export ANTHROPIC_DEFAULT_HAIKU_MODEL=scripted
"""
# docs: end
VARIABLES = dict(line.removeprefix("export ").split("=", 1) for line in CONNECT.split("\n")[1:-1])


def ask(text: str, *options: str, **settings: str) -> Any:
    """What it says of its answer to *text*."""
    done = subprocess.run(
        ["claude", "-p", text, "--output-format", "json", *options],
        env=os.environ | VARIABLES | settings, capture_output=True, text=True, timeout=50,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    holds(done.stdout.startswith("{"), (done.stdout, done.stderr))
    return json.loads(done.stdout)


@feature("messages", "answer")
def answer() -> None:
    told = ask("Name a fruit")
    equal((told["result"], told["is_error"]), ("apple banana cherry", False))


@feature("messages", "stream")
def stream() -> None:
    done = subprocess.run(
        ["claude", "-p", "Name a fruit", "--output-format", "stream-json", "--verbose",
         "--include-partial-messages"],
        env=os.environ | VARIABLES, capture_output=True, text=True, timeout=50,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines()]
    inner = [each["event"] for each in events if each["type"] == "stream_event"]
    deltas = [each["delta"] for each in inner if each["type"] == "content_block_delta"]
    equal("".join(each.get("text", "") for each in deltas), "apple banana cherry")


@feature("messages", "tool result")
def result() -> None:
    """It runs a command that the model asks for, and gives the model what that said."""
    told = ask("What is the weather", "--allowedTools", "Bash")
    equal((told["result"], told["num_turns"]), ("It is sunny in Paris.", 2))


@feature("messages", "reasoning")
def reasoning() -> None:
    equal(ask("Please ponder", MAX_THINKING_TOKENS="2048")["result"], "The answer.")


@feature("messages", "wrong model")
def wrong_model() -> None:
    told = ask("x", ANTHROPIC_MODEL="other")
    holds(told["is_error"] and "other" in told["result"], told)


@feature("messages", "wrong key")
def wrong_key() -> None:
    told = ask("x", ANTHROPIC_AUTH_TOKEN="wrong")
    equal((told["is_error"], told["api_error_status"]), (True, 401))


@feature("messages", "cancel")
def cancel() -> None:
    with subprocess.Popen(
        ["claude", "-p", "go on, endless", "--output-format", "stream-json", "--verbose",
         "--include-partial-messages"],
        env=os.environ | VARIABLES, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while "content_block_delta" not in (line := process.stdout.readline()):
            holds(line, "it ended")
        holds(under_way() >= 1, "nothing is under way")
        process.terminate()
        process.communicate(timeout=30)
    ends()


Path(".claude").mkdir(exist_ok=True)
run()
