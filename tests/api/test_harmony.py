"""gpt-oss over HTTP: a real ring whose model answers in harmony, asked turn after turn with all
three APIs, with a template that refuses what gpt-oss's own refuses."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring_trio.collective.loopback import free_ports

from tests.api import scripted
from tests.api.conftest import Served, connected

BEGUN = "<|start|>assistant"
SCRIPT = [
    BEGUN,
    "<|channel|>analysis<|message|>",
    "Where",
    " is it?",
    "<|end|>",
    "<|start|>assistant<|channel|>commentary<|message|>",
    "I look.",
    "<|end|><|start|>assistant\n",
    "<|channel|>commentary to=functions.",
    "get_weather <|constrain|>json<|message|>",
    '{"city"',
    ': "Paris"}',
    "<|call|>",
    scripted.END,
]
TEMPLATE = """
{%- for message in messages %}
  {%- if message.role == 'system' %}<|start|>developer<|message|>{{ message.content }}<|end|>
  {%- elif message.role == 'assistant' %}
    {%- for field in ('content', 'thinking') %}
      {%- for channel in ('analysis', 'final') %}
        {%- if '<|channel|>' + channel + '<|message|>' in message[field] | default('') %}
          {{- raise_exception('You have passed a message containing <|channel|> tags.') }}
        {%- endif %}
      {%- endfor %}
    {%- endfor %}
    {%- if 'tool_calls' in message %}
      {%- if message.content and message.thinking %}
        {{- raise_exception('Cannot pass both content and thinking with tool calls!') }}
      {%- endif %}
      {%- if message.tool_calls | length > 1 %}
        {{- raise_exception('We assume max 1 tool call per message.') }}
      {%- endif %}
      {%- set thought = message.content or message.thinking %}
      {%- if thought %}
        {{- '<|start|>assistant<|channel|>analysis<|message|>' + thought + '<|end|>' }}
      {%- endif %}
      {%- set call = message.tool_calls[0].function %}
      {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json' }}
      {{- '<|message|>' + call.arguments | tojson + '<|call|>' }}
    {%- else %}
      {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
  {%- elif message.role == 'tool' %}
    {{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' }}
    {{- message.content | tojson + '<|end|>' }}
  {%- else %}<|start|>user<|message|>{{ message.content }}<|end|>
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}
"""

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
GIVEN = '{"city": "Paris"}'


@pytest.fixture(scope="module")
def oss() -> Iterator[Served]:
    """One rank of a model that writes harmony."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        model = folder / "oss"
        model.mkdir()
        scripted.build(model, [SCRIPT])
        (model / "chat_template.jinja").write_text(TEMPLATE)
        address = f"127.0.0.1:{free_ports(1)[0]}"
        (config,) = write_cluster(folder, 1, model, api=address)
        config.write_text("trust_weights = true\n" + config.read_text())  # most are zeros
        head = stack.enter_context(running_node(config))
        wait_until_up(head)
        served = stack.enter_context(connected(head, f"http://{address}", "", "oss"))
        served.until("/health", lambda told: told["status"] == "ok")
        yield served


@pytest.mark.slow
def test_chat_in_turns(oss: Served) -> None:
    tools = [{"type": "function", "function": WEATHER}]
    talk: list[Any] = [{"role": "user", "content": "Weather?"}]
    for _ in range(3):
        answer = oss.post({"model": "oss", "messages": talk, "tools": tools})
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        message = choice["message"]
        assert (message["reasoning_content"], message["content"]) == ("Where is it?", "I look.")
        (call,) = message["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": GIVEN}
        assert choice["finish_reason"] == "tool_calls"
        talk += [message, {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
    twice = [{**call, "id": "other"}, call]
    talk[1] = {**talk[1], "tool_calls": twice}
    talk.insert(3, {"role": "tool", "tool_call_id": "other", "content": "rain"})
    talk.append({"role": "assistant", "content": "Done.", "reasoning_content": "It is over."})
    talk.append({"role": "user", "content": "And now?"})
    assert oss.post({"model": "oss", "messages": talk, "tools": tools}).status_code == 200


@pytest.mark.slow
def test_a_stream(oss: Served) -> None:
    body = oss.chat("Weather?", tools=[{"type": "function", "function": WEATHER}], stream=True)
    reasoning = content = arguments = ""
    for chunk in oss.openai.chat.completions.create(**body):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += (delta.model_extra or {}).get("reasoning_content", "")
        for call in delta.tool_calls or []:
            arguments += (call.function and call.function.arguments) or ""
    assert (reasoning, content, arguments) == ("Where is it?", "I look.", GIVEN)


@pytest.mark.slow
def test_without_tools_there_are_no_marks(oss: Served) -> None:
    (choice,) = oss.post(oss.chat("Weather?")).json()["choices"]
    assert choice["message"]["content"] == "I look." + GIVEN
    assert choice["message"]["reasoning_content"] == "Where is it?"
    assert choice["finish_reason"] == "stop"
    skipped = oss.post(oss.chat("Weather?", skip_special_tokens=True)).json()["choices"][0]
    assert skipped["message"] == choice["message"]


@pytest.mark.slow
def test_thoughts_that_the_limit_cuts_off(oss: Served) -> None:
    (choice,) = oss.post(oss.chat("Weather?", max_tokens=2)).json()["choices"]
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] == "Where"
    assert choice["finish_reason"] == "length"


@pytest.mark.slow
def test_responses_in_turns(oss: Served) -> None:
    tools = [{"type": "function", **WEATHER}]
    body: dict[str, Any] = {"model": "oss", "input": "Weather?", "tools": tools}
    for _ in range(2):
        told = oss.post(body, "/v1/responses").json()
        thought, message, call = told["output"]
        assert thought["content"][0]["text"] == "Where is it?"
        assert message["content"][0]["text"] == "I look."
        assert (call["name"], call["arguments"]) == ("get_weather", GIVEN)
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        body |= {"previous_response_id": told["id"], "input": [output]}


@pytest.mark.slow
def test_messages_in_turns(oss: Served) -> None:
    tools = [{"name": "get_weather", "input_schema": WEATHER["parameters"]}]
    talk: list[Any] = [{"role": "user", "content": "Weather?"}]
    for _ in range(2):
        body = {"model": "oss", "max_tokens": 50, "messages": talk, "tools": tools}
        told = oss.post(body, "/v1/messages").json()
        assert [block["type"] for block in told["content"]] == ["thinking", "text", "tool_use"]
        assert told["content"][2]["input"] == json.loads(GIVEN)
        assert told["stop_reason"] == "tool_use"
        result = {"type": "tool_result", "tool_use_id": told["content"][2]["id"], "content": "x"}
        talk += [{"role": "assistant", "content": told["content"]}]
        talk += [{"role": "user", "content": [result]}]
