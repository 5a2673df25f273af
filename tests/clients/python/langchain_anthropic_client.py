"""langchain-anthropic's `ChatAnthropic`."""

from __future__ import annotations

from typing import Any

import anthropic
from features import (
    IMAGE,
    KEY,
    SCRIPTED,
    STORY,
    TINY,
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
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool as as_tool
from pydantic import BaseModel

# docs: connect
llm = ChatAnthropic(base_url=TINY, api_key=KEY, model="tiny", max_tokens=1024, max_retries=0)
# docs: end


class City(BaseModel):
    """A city."""

    city: CityName
    warm: bool


@as_tool
def get_weather(city: CityName) -> str:
    """The weather."""
    return "sunny"


def tiny(**more: Any) -> ChatAnthropic:
    options = {"model": "tiny", "max_retries": 0, "max_tokens": 600} | more
    return ChatAnthropic(**{"base_url": TINY, "api_key": KEY} | options)


def scripted(**more: Any) -> ChatAnthropic:
    return tiny(base_url=SCRIPTED, model="scripted", **more)


@feature("messages", "answer")
def answer() -> None:
    told = llm.invoke(STORY, max_tokens=16)
    equal(told.usage_metadata["output_tokens"], 16)
    equal(scripted().invoke("fruit").text, "apple banana cherry")


@feature("messages", "stream")
def stream() -> None:
    parts = [each.text for each in scripted().stream("fruit")]
    equal("".join(parts), "apple banana cherry")


@feature("messages", "usage")
def usage() -> None:
    first, *rest = scripted().stream("fruit")
    whole: Any = first
    for each in rest:
        whole += each
    holds(whole.usage_metadata["output_tokens"] >= 4, whole.usage_metadata)


@feature("messages", "stop")
def stop() -> None:
    equal(scripted(stop=["banana"]).invoke("fruit").text, "apple ")


@feature("messages", "forced tool")
def forced() -> None:
    for choice in ("any", "get_weather"):
        (call,) = tiny().bind_tools([get_weather], tool_choice=choice).invoke("Weather?").tool_calls
        equal(call["name"], "get_weather")
        holds(call["args"]["city"] in ("Paris", "Rome"), call)


@feature("messages", "tool")
def tool() -> None:
    (call,) = scripted().bind_tools([get_weather]).invoke("weather").tool_calls
    equal((call["name"], call["args"]), ("get_weather", {"city": "Paris"}))


@feature("messages", "tool result")
def result() -> None:
    bound = scripted().bind_tools([get_weather])
    told = bound.invoke("weather")
    given = get_weather.invoke(told.tool_calls[0])
    equal(bound.invoke([HumanMessage("weather"), told, given]).text, "It is sunny in Paris.")


@feature("messages", "tool stream")
def tool_stream() -> None:
    first, *rest = scripted().bind_tools([get_weather]).stream("weather")
    whole: Any = first
    for each in rest:
        whole += each
    (call,) = whole.tool_calls
    equal((call["name"], call["args"]), ("get_weather", {"city": "Paris"}))


@feature("messages", "schema")
def schema() -> None:
    way = tiny().with_structured_output(
        {"title": "City", **City.model_json_schema()}, method="json_schema"
    )
    is_city(way.invoke("A city?"))


@feature("messages", "typed")
def typed() -> None:
    for method in ("json_schema", "function_calling"):
        is_city(tiny().with_structured_output(City, method=method).invoke("A city?").model_dump())


@feature("messages", "reasoning")
def reasoning() -> None:
    way = scripted(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2048)
    told = way.invoke("think")
    equal(told.text, "The answer.")
    (thought,) = (each for each in told.content_blocks if each["type"] == "reasoning")
    equal(thought["reasoning"].strip(), "I ponder.")
    after = way.invoke([HumanMessage("think"), told, HumanMessage("fruit")])
    equal(after.text, "apple banana cherry")


@feature("messages", "count")
def count() -> None:
    told = llm.invoke(STORY, max_tokens=1).usage_metadata["input_tokens"]
    equal(llm.get_num_tokens_from_messages([HumanMessage(STORY)]), told)


@feature("messages", "wrong model")
def wrong_model() -> None:
    raises(anthropic.NotFoundError, lambda: tiny(model="other").invoke("x"), "tiny")


@feature("messages", "bad field")
def bad_field() -> None:
    raises(anthropic.BadRequestError, lambda: tiny(top_p=9.0).invoke("x"), "top_p")


@feature("messages", "wrong key")
def wrong_key() -> None:
    raises(anthropic.AuthenticationError, lambda: tiny(api_key="wrong").invoke("x"), "key")


@feature("messages", "image")
def image() -> None:
    part = {"type": "image", "base64": IMAGE, "mime_type": "image/png"}
    said = HumanMessage(content_blocks=[{"type": "text", "text": "What is it?"}, part])
    raises(anthropic.BadRequestError, lambda: tiny().invoke([said]), "image")


@feature("messages", "cancel")
def cancel() -> None:
    parts = scripted(max_tokens=1 << 19).stream("endless")
    next(parts)
    equal(under_way(), 1)
    parts.close()
    ends()


run()
