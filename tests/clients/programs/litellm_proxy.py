"""LiteLLM's proxy before the ring: what comes to it over any API goes on to the ring."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import openai
from features import (
    KEY,
    SCHEMA,
    SCRIPTED,
    STORY,
    TINY,
    WEATHER,
    equal,
    feature,
    holds,
    is_city,
    raises,
    run,
)  # fmt: skip

# docs: connect
# language: yaml
CONFIG = f"""
model_list:
  - model_name: tiny
    litellm_params:
      model: openai/tiny
      api_base: {TINY}/v1
      api_key: {KEY}
# docs: end
  - model_name: scripted
    litellm_params:
      model: openai/scripted
      api_base: {SCRIPTED}/v1
      api_key: {KEY}
  - model_name: claude
    litellm_params:
      model: anthropic/scripted
      api_base: {SCRIPTED}
      api_key: {KEY}
  - model_name: other
    litellm_params:
      model: openai/other
      api_base: {TINY}/v1
      api_key: {KEY}
litellm_settings:
  num_retries: 0
general_settings:
  master_key: sk-proxy
"""
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]


def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


PORT = free_port()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="sk-proxy", max_retries=0)


def says(text: Any) -> list[Any]:
    return [{"role": "user", "content": text}]


def play(text: str, **more: Any) -> Any:
    options = {"model": "scripted"} | more
    return client.chat.completions.create(messages=says(text), **options)


@feature("chat", "models")
def models() -> None:
    holds({"tiny", "scripted"} <= {each.id for each in client.models.list()}, "models")


@feature("chat", "answer")
def answer() -> None:
    told = client.chat.completions.create(model="tiny", messages=says(STORY), max_tokens=8)
    equal(told.usage.completion_tokens, 8)
    equal(play("fruit").choices[0].message.content, "apple banana cherry")


@feature("chat", "stream")
def stream() -> None:
    parts = [part.choices[0].delta.content or "" for part in play("fruit", stream=True)]
    equal("".join(parts), "apple banana cherry")


@feature("chat", "tool")
def tool() -> None:
    (call,) = play("weather", tools=TOOLS).choices[0].message.tool_calls
    equal(json.loads(call.function.arguments), {"city": "Paris"})


@feature("chat", "schema")
def schema() -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}}
    told = client.chat.completions.create(
        model="tiny", messages=says("City?"), response_format=form, max_tokens=600
    )
    is_city(json.loads(told.choices[0].message.content or ""))


@feature("chat", "wrong model")
def wrong_model() -> None:
    raises(openai.NotFoundError, lambda: play("x", model="other"), "other")


@feature("responses", "answer")
def response() -> None:
    equal(client.responses.create(model="scripted", input="fruit").output_text,
          "apple banana cherry")  # fmt: skip


@feature("responses", "stream")
def response_stream() -> None:
    events = client.responses.create(model="scripted", input="fruit", stream=True)
    parts = [each.delta for each in events if each.type == "response.output_text.delta"]
    equal("".join(parts), "apple banana cherry")


def message(model: str, **more: Any) -> Any:
    """What the proxy's Anthropic API says, through to *model*."""
    body = {"model": model, "max_tokens": 64, "messages": says("fruit")} | more
    ask = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/messages", json.dumps(body).encode(),
        {"content-type": "application/json", "x-api-key": "sk-proxy"},
    )  # fmt: skip
    with urllib.request.urlopen(ask, timeout=50) as told:
        return json.load(told)


@feature("messages", "answer")
def messages() -> None:
    for model in ("scripted", "claude"):
        told = message(model)
        equal([each["text"] for each in told["content"]], ["apple banana cherry"])


def wait_until_up(process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 400
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health/liveliness", timeout=5).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(Path("log").read_text()[-800:]) from None
        else:
            return


Path("proxy.yaml").write_text(CONFIG)
with open("log", "wb") as log:
    process = subprocess.Popen(
        ["litellm", "--config", "proxy.yaml", "--host", "127.0.0.1", "--port", str(PORT)],
        stdout=log, stderr=log,
    )  # fmt: skip
    try:
        wait_until_up(process)
        run()
    finally:
        process.terminate()
        process.wait(30)
