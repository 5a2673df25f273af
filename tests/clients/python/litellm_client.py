"""litellm as a library: chat, responses, messages, and text completions."""

from __future__ import annotations

import json
from typing import Any

import litellm
from features import (
    IMAGE,
    KEY,
    SCHEMA,
    SCRIPTED,
    STORY,
    TINY,
    WEATHER,
    CityName,
    ends,
    equal,
    feature,
    holds,
    is_city,
    raises,
    run,
    under_way,
)  # fmt: skip
from pydantic import BaseModel

# docs: connect
told = litellm.completion(
    api_base=f"{TINY}/v1",
    api_key=KEY,
    model="openai/tiny",
    messages=[{"role": "user", "content": "Hello."}],
    max_tokens=4,
)
# docs: end

FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
TINY_RING = {"api_base": f"{TINY}/v1", "api_key": KEY, "model": "openai/tiny", "max_retries": 0}
SCRIPTED_RING = TINY_RING | {"api_base": f"{SCRIPTED}/v1", "model": "openai/scripted"}
MESSAGES_RING = {"api_base": SCRIPTED, "api_key": KEY, "model": "anthropic/scripted"}


class City(BaseModel):
    city: CityName
    warm: bool


def says(text: Any) -> list[Any]:
    return [{"role": "user", "content": text}]


def chat(text: Any = STORY, **more: Any) -> Any:
    options = {**TINY_RING, "temperature": 0, "max_tokens": 16} | more
    return litellm.completion(messages=says(text), **options)


def play(text: str, **more: Any) -> Any:
    return litellm.completion(messages=says(text), **SCRIPTED_RING | more)


@feature("chat", "answer")
def answer() -> None:
    equal(told.usage.completion_tokens, 4)
    equal(play("fruit").choices[0].message.content, "apple banana cherry")


@feature("chat", "stream")
def stream() -> None:
    parts = [each.choices[0].delta.content or "" for each in play("fruit", stream=True)]
    equal("".join(parts), "apple banana cherry")


@feature("chat", "usage")
def usage() -> None:
    *_, last = chat(stream=True, stream_options={"include_usage": True})
    equal(last.usage.completion_tokens, 16)


@feature("chat", "stop")
def stop() -> None:
    equal(play("fruit", stop=["banana"]).choices[0].message.content, "apple ")


@feature("chat", "n")
def n() -> None:
    equal(len(chat(n=3, temperature=1).choices), 3)


@feature("chat", "seed")
def seed() -> None:
    one, two = (chat(seed=1, temperature=1).choices[0].message.content for _ in range(2))
    equal(one, two)


@feature("chat", "logprobs")
def logprobs() -> None:
    equal(len(chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content), 16)


@feature("chat", "forced tool")
def forced() -> None:
    message = (
        chat("Weather?", tools=TOOLS, tool_choice="required", max_tokens=600).choices[0].message
    )
    (call,) = message.tool_calls
    holds(json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), call)


@feature("chat", "tool")
def tool() -> None:
    (call,) = play("weather", tools=TOOLS).choices[0].message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)),
          ("get_weather", {"city": "Paris"}))  # fmt: skip


@feature("chat", "tool result")
def result() -> None:
    message = play("weather", tools=TOOLS).choices[0].message
    given = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    after = litellm.completion(
        messages=[*says("weather"), message, given], tools=TOOLS, **SCRIPTED_RING
    )
    equal(after.choices[0].message.content, "It is sunny in Paris.")


@feature("chat", "tool stream")
def tool_stream() -> None:
    whole = litellm.stream_chunk_builder(list(play("weather", tools=TOOLS, stream=True)))
    (call,) = whole.choices[0].message.tool_calls
    equal(json.loads(call.function.arguments), {"city": "Paris"})


@feature("chat", "schema")
def schema() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA, "strict": True}}
    answer = chat("A city?", response_format=form, max_tokens=600)
    is_city(json.loads(answer.choices[0].message.content))


@feature("chat", "typed")
def typed() -> None:
    answer = chat("A city?", response_format=City, max_tokens=600)
    is_city(City.model_validate_json(answer.choices[0].message.content).model_dump())


@feature("chat", "reasoning")
def reasoning() -> None:
    message = play("think").choices[0].message
    equal((message.reasoning_content.strip(), message.content), ("I ponder.", "The answer."))


@feature("chat", "wrong model")
def wrong_model() -> None:
    raises(litellm.NotFoundError, lambda: chat(model="openai/other"), "tiny")


@feature("chat", "bad field")
def bad_field() -> None:
    raises(litellm.BadRequestError, lambda: chat(temperature=9), "temperature")


@feature("chat", "wrong key")
def wrong_key() -> None:
    raises(litellm.AuthenticationError, lambda: chat(api_key="wrong"), "key")


@feature("chat", "image")
def image() -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
    raises(litellm.BadRequestError, lambda: chat([part]), "image")


@feature("chat", "embeddings")
def embeddings() -> None:
    raises((litellm.NotFoundError, litellm.BadRequestError), lambda: litellm.embedding(
        input=["x"], **TINY_RING), "embedding")  # fmt: skip


@feature("chat", "cancel")
def cancel() -> None:
    parts = play("endless", stream=True)
    next(iter(parts))
    equal(under_way(), 1)
    parts.completion_stream.close()
    ends()


@feature("completions", "answer")
def completion() -> None:
    options = TINY_RING | {"model": "text-completion-openai/tiny"}
    one = litellm.text_completion(prompt="Once upon", max_tokens=8, temperature=0, **options)
    parts = litellm.text_completion(
        prompt="Once upon", max_tokens=8, temperature=0, stream=True, **options
    )
    equal("".join(part.choices[0].text or "" for part in parts), one.choices[0].text)


@feature("responses", "answer")
def response() -> None:
    equal(litellm.responses(input="fruit", **SCRIPTED_RING).output_text, "apple banana cherry")


@feature("responses", "stream")
def response_stream() -> None:
    events = litellm.responses(input="fruit", stream=True, **SCRIPTED_RING)
    parts = [each.delta for each in events if each.type == "response.output_text.delta"]
    equal("".join(parts), "apple banana cherry")


@feature("responses", "tool")
def response_tool() -> None:
    tools: list[Any] = [{"type": "function", **FUNCTION}]
    (call,) = litellm.responses(input="weather", tools=tools, **SCRIPTED_RING).output
    equal((call.name, json.loads(call.arguments)), ("get_weather", {"city": "Paris"}))


@feature("messages", "answer")
def messages() -> None:
    answer = litellm.completion(messages=says("fruit"), **MESSAGES_RING)
    equal(answer.choices[0].message.content, "apple banana cherry")


@feature("messages", "stream")
def messages_stream() -> None:
    parts = litellm.completion(messages=says("fruit"), stream=True, **MESSAGES_RING)
    equal("".join(each.choices[0].delta.content or "" for each in parts), "apple banana cherry")


@feature("messages", "tool")
def messages_tool() -> None:
    answer = litellm.completion(messages=says("weather"), tools=TOOLS, **MESSAGES_RING)
    (call,) = answer.choices[0].message.tool_calls
    equal(json.loads(call.function.arguments), {"city": "Paris"})


@feature("messages", "reasoning")
def messages_reasoning() -> None:
    message = litellm.completion(messages=says("think"), **MESSAGES_RING).choices[0].message
    equal((message.reasoning_content.strip(), message.content), ("I ponder.", "The answer."))


@feature("messages", "wrong model")
def messages_wrong_model() -> None:
    raises(litellm.NotFoundError, lambda: litellm.completion(
        messages=says("x"), **MESSAGES_RING | {"model": "anthropic/other"}), "other")  # fmt: skip


run()
