"""The official client of Anthropic: messages."""

from __future__ import annotations

import json
from typing import Any

import anthropic
from anthropic import Anthropic
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
client = Anthropic(base_url=TINY, api_key=KEY, max_retries=0)
model = "tiny"
# docs: end
scripted = Anthropic(base_url=SCRIPTED, api_key=KEY, max_retries=0)
stranger = Anthropic(base_url=TINY, api_key="wrong", max_retries=0)

TOOLS: list[Any] = [
    {"name": "get_weather", "description": "The weather.", "input_schema": WEATHER, "strict": True}
]


class City(BaseModel):
    city: CityName
    warm: bool


def says(text: Any) -> list[Any]:
    return [{"role": "user", "content": text}]


def ask(text: Any = STORY, **more: Any) -> Any:
    options = {"max_tokens": 16} | more
    return client.messages.create(model=model, messages=says(text), **options)


def play(text: str, **more: Any) -> Any:
    return scripted.messages.create(
        model="scripted", messages=says(text), **{"max_tokens": 64} | more
    )


@feature("messages", "models")
def models() -> None:
    equal([each.id for each in client.models.list()], ["tiny"])
    equal(client.models.retrieve("tiny").id, "tiny")


@feature("messages", "answer")
def answer() -> None:
    told = ask()
    equal((told.usage.output_tokens, told.stop_reason), (16, "max_tokens"))
    equal(play("fruit").content[0].text, "apple banana cherry")


@feature("messages", "stream")
def stream() -> None:
    with scripted.messages.stream(
        model="scripted", messages=says("fruit"), max_tokens=64
    ) as events:
        equal("".join(events.text_stream), "apple banana cherry")


@feature("messages", "usage")
def usage() -> None:
    with client.messages.stream(model=model, messages=says(STORY), max_tokens=8) as events:
        told = events.get_final_message().usage
    read = told.input_tokens + (told.cache_read_input_tokens or 0)
    equal((told.output_tokens, read > 0), (8, True))


@feature("messages", "stop")
def stop() -> None:
    told = play("fruit", stop_sequences=["banana"])
    equal((told.content[0].text, told.stop_reason, told.stop_sequence),
          ("apple ", "stop_sequence", "banana"))  # fmt: skip


@feature("messages", "forced tool")
def forced() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        told = ask("Weather?", tools=TOOLS, tool_choice=choice, max_tokens=600)
        (call,) = told.content
        equal((call.name, told.stop_reason), ("get_weather", "tool_use"))
        holds(call.input["city"] in ("Paris", "Rome"), call)


@feature("messages", "tool")
def tool() -> None:
    told = play("weather", tools=TOOLS)
    (call,) = told.content
    equal((call.name, call.input, told.stop_reason), ("get_weather", {"city": "Paris"}, "tool_use"))


@feature("messages", "tool result")
def result() -> None:
    told = play("weather", tools=TOOLS)
    given = {"type": "tool_result", "tool_use_id": told.content[0].id, "content": "sunny"}
    after = scripted.messages.create(
        model="scripted", max_tokens=64, tools=TOOLS,
        messages=[*says("weather"), {"role": "assistant", "content": told.content}, *says([given])],
    )  # fmt: skip
    equal(after.content[0].text, "It is sunny in Paris.")


@feature("messages", "tool stream")
def tool_stream() -> None:
    with scripted.messages.stream(
        model="scripted", messages=says("weather"), max_tokens=64, tools=TOOLS
    ) as events:
        parts = [each.partial_json for each in events if each.type == "input_json"]
        (call,) = events.get_final_message().content
    equal((json.loads("".join(parts)), call.input), ({"city": "Paris"},) * 2)


@feature("messages", "schema")
def schema() -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    is_city(json.loads(ask("A city?", output_config=form, max_tokens=600).content[0].text))


@feature("messages", "typed")
def typed() -> None:
    told = client.messages.parse(
        model=model, messages=says("A city?"), output_format=City, max_tokens=600
    )
    is_city(told.parsed_output.model_dump())


@feature("messages", "reasoning")
def reasoning() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    thought, message = play("think", thinking=thinking, max_tokens=2048).content
    equal((thought.thinking.strip(), message.text), ("I ponder.", "The answer."))
    with scripted.messages.stream(
        model="scripted", messages=says("think"), max_tokens=2048, thinking=thinking
    ) as events:
        parts = [each.thinking for each in events if each.type == "thinking"]
        last = events.get_final_message()
    equal("".join(parts).strip(), "I ponder.")
    after = scripted.messages.create(
        model="scripted", max_tokens=64,
        messages=[*says("think"), {"role": "assistant", "content": last.content}, *says("fruit")],
    )  # fmt: skip
    equal(after.content[0].text, "apple banana cherry")


@feature("messages", "count")
def count() -> None:
    told = client.messages.count_tokens(model=model, messages=says(STORY))
    used = ask().usage
    equal(told.input_tokens, used.input_tokens + (used.cache_read_input_tokens or 0))


@feature("messages", "wrong model")
def wrong_model() -> None:
    raises(anthropic.NotFoundError, lambda: client.messages.create(
        model="other", messages=says("x"), max_tokens=1), "other", "tiny")  # fmt: skip


@feature("messages", "bad field")
def bad_field() -> None:
    raises(anthropic.BadRequestError, lambda: ask(extra_body={"temperature": 9}), "temperature")


@feature("messages", "wrong key")
def wrong_key() -> None:
    raises(anthropic.AuthenticationError, lambda: stranger.messages.create(
        model=model, messages=says("x"), max_tokens=1), "key")  # fmt: skip


@feature("messages", "image")
def image() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    raises(anthropic.BadRequestError,
           lambda: ask([{"type": "image", "source": source}]), "image")  # fmt: skip


@feature("messages", "cancel")
def cancel() -> None:
    with play("endless", stream=True, max_tokens=1 << 19) as events:
        next(iter(events))
        equal(under_way(), 1)
    ends()


run()
