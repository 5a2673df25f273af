"""Tool calls and reasoning: from a real model's text to OpenAI's fields, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from tests.api.conftest import Served

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
OTHER: dict[str, Any] = {"type": "function", "function": {"name": "other"}}


STRICT = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}


@pytest.mark.parametrize("tool", [WEATHER, STRICT])
def test_a_tool_call(team: Served, tool: dict[str, Any]) -> None:
    choice = team.openai.chat.completions.create(**team.chat("weather", tools=[tool])).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert call.id.startswith("call_")


def test_a_tool_call_in_a_stream(team: Served) -> None:
    calls = []
    text = ""
    body = team.chat("weather", tools=[WEATHER], stream=True)
    for chunk in team.openai.chat.completions.create(**body):
        delta = chunk.choices[0].delta
        calls += delta.tool_calls or []
        text += delta.content or ""
    assert chunk.choices[0].finish_reason == "tool_calls"
    assert text == ""
    assert {call.index for call in calls} == {0}
    functions = [call.function for call in calls if call.function is not None]
    assert [function.name for function in functions if function.name] == ["get_weather"]
    arguments = "".join(function.arguments or "" for function in functions)
    assert json.loads(arguments) == {"city": "Paris"}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_call_that_must_be_is_begun_for_the_model(team: Served, choice: Any) -> None:
    body = team.chat("fruit", tools=[WEATHER, OTHER], tool_choice=choice)
    answer = team.openai.chat.completions.create(**body).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert call.function.name == "get_weather"


def test_without_tools_a_call_is_text(team: Served) -> None:
    for options in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        body = team.chat("weather", **options)
        message = team.openai.chat.completions.create(**body).choices[0].message
        assert message.tool_calls is None
        assert message.content is not None
        assert message.content.startswith("<tool_call>{")


def test_what_tools_gave_goes_back_to_the_model(team: Served) -> None:
    called = {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    }
    talk = [called, {"role": "tool", "tool_call_id": "call_1", "content": "fruit"}]
    body = team.chat("") | {"messages": talk, "tools": [WEATHER]}
    answer = team.openai.chat.completions.create(**body).choices[0]
    assert answer.message.content == "apple banana cherry"
    called["tool_calls"][0]["function"]["arguments"] = "{city"  # type: ignore[index]
    answer = team.openai.chat.completions.create(**body).choices[0]  # it was cut off, perhaps
    assert answer.message.content == "apple banana cherry"


def test_reasoning_is_told_apart(team: Served) -> None:
    choice = team.openai.chat.completions.create(**team.chat("think")).choices[0]
    assert choice.message.content == "The answer."
    both = dict.fromkeys(("reasoning_content", "reasoning"), "I ponder.\n")
    assert choice.message.model_extra == both
    content = reasoning = ""
    for chunk in team.openai.chat.completions.create(**team.chat("think", stream=True)):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += (delta.model_extra or {}).get("reasoning_content", "")
    assert (content, reasoning) == ("The answer.", "I ponder.\n")


def test_a_stop_string_over_several_tokens(team: Served) -> None:
    chunks = team.openai.chat.completions.create(**team.chat("fruit", stop="banana", stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "apple "
    whole = team.openai.chat.completions.create(**team.chat("fruit", stop="bandana"))
    assert whole.choices[0].message.content == "apple banana cherry"


def test_an_answer_of_nothing(team: Served) -> None:
    answer = team.openai.chat.completions.create(**team.chat("nothing"))
    assert answer.choices[0].message.content == ""
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
