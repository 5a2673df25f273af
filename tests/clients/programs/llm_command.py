"""The `llm` command, with a model of its own configuration and without."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from features import KEY, SCHEMA, SCRIPTED, TINY, equal, feature, holds, is_city, run

# docs: connect
# language: yaml
MODELS = f"""
- model_id: sealring
  model_name: tiny
  api_base: "{TINY}/v1"
  api_key_name: sealring
  supports_tools: true
  supports_schema: true
"""
# docs: end
FUNCTIONS = '''
def get_weather(city: str) -> str:
    """The weather."""
    return "sunny"
'''


def llm(*arguments: str, wrong: bool = False, given: str = "") -> str:
    """What the command says, which fails if it is *wrong*."""
    done = subprocess.run(
        ["llm", *arguments], env=os.environ | {"LLM_USER_PATH": str(Path.cwd() / "llm")},
        capture_output=True, text=True, timeout=50, input=given, check=False,
    )  # fmt: skip
    equal((done.returncode != 0, done.stdout if done.returncode else ""), (wrong, ""))
    return (done.stderr if wrong else done.stdout).strip()


def at(url: str, model: str, *more: str, key: str = KEY, wrong: bool = False) -> str:
    """The command without any configuration."""
    return llm("openai", "endpoint", f"{url}/v1", "-m", model, "--key", key, *more, wrong=wrong)


@feature("chat", "models")
def models() -> None:
    equal(llm("openai", "endpoint", f"{TINY}/v1", "--models", "--key", KEY), "tiny")


@feature("chat", "answer")
def answer() -> None:
    holds(len(llm("-m", "sealring", "--no-stream", "-o", "max_tokens", "16", "Hello.")) > 8, "")
    equal(at(SCRIPTED, "scripted", "fruit", "--no-stream"), "apple banana cherry")


@feature("chat", "stream")
def stream() -> None:
    equal(at(SCRIPTED, "scripted", "fruit"), "apple banana cherry")


@feature("chat", "stop")
def stop() -> None:
    equal(at(SCRIPTED, "scripted", "fruit", "-o", "stop", "banana"), "apple")


@feature("chat", "tool result")
def result() -> None:
    told = at(SCRIPTED, "scripted", "weather", "--functions", FUNCTIONS)
    equal(told, "It is sunny in Paris.")


@feature("chat", "schema")
def schema() -> None:
    told = llm("-m", "sealring", "--schema", json.dumps(SCHEMA), "-o", "max_tokens", "600", "City?")
    is_city(json.loads(told))


@feature("chat", "wrong model")
def wrong_model() -> None:
    holds("tiny" in at(TINY, "other", "x", wrong=True), "the model")


@feature("chat", "bad field")
def bad_field() -> None:
    told = at(TINY, "tiny", "x", "-o", "top_p", "0.5", "-o", "max_tokens", "999999999", wrong=True)
    holds("400" in told, told)


@feature("chat", "wrong key")
def wrong_key() -> None:
    holds("key" in at(TINY, "tiny", "x", key="wrong", wrong=True), "the key")


@feature("responses", "stream")
def response() -> None:
    equal(at(SCRIPTED, "scripted", "fruit", "--responses"), "apple banana cherry")


@feature("responses", "tool result")
def response_result() -> None:
    told = at(SCRIPTED, "scripted", "weather", "--responses", "--functions", FUNCTIONS)
    equal(told, "It is sunny in Paris.")


Path("llm").mkdir()
Path("llm/extra-openai-models.yaml").write_text(MODELS)
llm("keys", "set", "sealring", "--value", KEY)
run()
