"""Codex, asked once without a terminal."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from features import KEY, SCRIPTED, ends, equal, feature, holds, run, under_way

# docs: connect
# language: toml
CONFIG = f"""
model = "scripted"
model_provider = "sealring"
web_search = "disabled"

[model_providers.sealring]
name = "sealring"
base_url = "{SCRIPTED}/v1"
env_key = "SEALRING_KEY"
wire_api = "responses"
"""
# docs: end
COMMAND = ["codex", "exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access"]


def environment(key: str = KEY) -> dict[str, str]:
    return os.environ | {"SEALRING_KEY": key}


def ask(text: str, *options: str, key: str = KEY) -> list[Any]:
    """The events of its answer to *text*."""
    done = subprocess.run(
        [*COMMAND, *options, text], env=environment(key), capture_output=True, text=True,
        timeout=55, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    holds(events, done.stderr)
    return events


def items(events: list[Any], kind: str) -> list[Any]:
    done = [each["item"] for each in events if each["type"] == "item.completed"]
    return [item for item in done if item["type"] == kind]


@feature("responses", "stream")
def stream() -> None:
    events = ask("Name a fruit")
    equal([item["text"] for item in items(events, "agent_message")], ["apple banana cherry"])


@feature("responses", "usage")
def usage() -> None:
    last = ask("Name a fruit")[-1]
    equal(last["type"], "turn.completed")
    holds(last["usage"]["output_tokens"] >= 4, last)


@feature("responses", "tool result")
def result() -> None:
    """It runs a command that the model asks for, and gives the model what that said."""
    events = ask("What is the weather")
    (command,) = items(events, "command_execution")
    equal((command["aggregated_output"].strip(), command["exit_code"]), ("sunny", 0))
    equal(items(events, "agent_message")[-1]["text"], "It is sunny in Paris.")


@feature("responses", "reasoning")
def reasoning() -> None:
    events = ask("Please ponder", "-c", "model_reasoning_summary=detailed",
                 "-c", "model_supports_reasoning_summaries=true")  # fmt: skip
    equal([item["text"] for item in items(events, "agent_message")], ["The answer."])
    (thought,) = items(events, "reasoning")
    equal(thought["text"].strip(), "I ponder.")


@feature("responses", "wrong model")
def wrong_model() -> None:
    told = json.dumps(ask("x", "--model", "other"))
    holds("turn.failed" in told and "does not exist here" in told, told)


@feature("responses", "wrong key")
def wrong_key() -> None:
    told = json.dumps(ask("x", key="wrong"))
    holds("turn.failed" in told and "401" in told, told)


@feature("responses", "cancel")
def cancel() -> None:
    with subprocess.Popen(
        [*COMMAND, "go on, endless"], env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        while not under_way():
            equal(process.poll(), None)
        process.terminate()
        process.wait(30)
    ends()


Path(".codex").mkdir(exist_ok=True)
Path(".codex/config.toml").write_text(CONFIG)
run()
