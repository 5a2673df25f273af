"""langchain-openai's `ChatOpenAI`, over chat completions and over responses."""

from __future__ import annotations

from typing import Any

import openai
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
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool as as_tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

# docs: connect
llm = ChatOpenAI(base_url=f"{TINY}/v1", api_key=KEY, model="tiny", max_retries=0)
# docs: end


class City(BaseModel):
    """A city."""

    city: CityName
    warm: bool


@as_tool
def get_weather(city: CityName) -> str:
    """The weather."""
    return "sunny"


def tiny(**more: Any) -> ChatOpenAI:
    options = {"model": "tiny", "max_retries": 0, "temperature": 0, "max_tokens": 600} | more
    return ChatOpenAI(**{"base_url": f"{TINY}/v1", "api_key": KEY} | options)


def scripted(**more: Any) -> ChatOpenAI:
    return tiny(base_url=f"{SCRIPTED}/v1", model="scripted", max_tokens=None, **more)


def both(name: str) -> Any:
    """The feature, over both APIs; the function takes the settings that choose one."""

    def keep(function: Any) -> Any:
        feature("chat", name)(lambda: function({}))
        feature("responses", name)(lambda: function({"use_responses_api": True}))
        return function

    return keep


@feature("chat", "answer")
def connected() -> None:
    holds(llm.invoke(STORY, max_tokens=16).usage_metadata["output_tokens"] == 16, "usage")


@both("answer")
def answer(api: dict[str, Any]) -> None:
    told = tiny(max_tokens=16, **api).invoke(STORY)
    equal(told.usage_metadata["output_tokens"], 16)
    equal(scripted(**api).invoke("fruit").text, "apple banana cherry")


@both("stream")
def stream(api: dict[str, Any]) -> None:
    parts = [each.text for each in scripted(**api).stream("fruit")]
    equal("".join(parts), "apple banana cherry")
    holds(len(parts) > 2, parts)


@both("usage")
def usage(api: dict[str, Any]) -> None:
    more = api or {"stream_usage": True}
    told = [each.usage_metadata for each in scripted(**more).stream("fruit")]
    (counted,) = filter(None, told)
    holds(counted["output_tokens"] >= 4, counted)


@feature("chat", "stop")
def stop() -> None:
    equal(scripted(stop=["banana"]).invoke("fruit").text, "apple ")


@feature("chat", "n")
def n() -> None:
    told = tiny(n=2, temperature=1, max_tokens=8).generate([[HumanMessage(STORY)]])
    equal(len(told.generations[0]), 2)


@feature("chat", "seed")
def seed() -> None:
    one, two = (tiny(seed=1, temperature=1, max_tokens=8).invoke(STORY).text for _ in range(2))
    equal(one, two)


@feature("chat", "logprobs")
def logprobs() -> None:
    told = tiny(logprobs=True, top_logprobs=2, max_tokens=8).invoke(STORY)
    equal(len(told.response_metadata["logprobs"]["content"]), 8)


@both("forced tool")
def forced(api: dict[str, Any]) -> None:
    for choice in ("any", "get_weather"):
        bound = tiny(**api).bind_tools([get_weather], tool_choice=choice)
        (call,) = bound.invoke("Weather?").tool_calls
        equal(call["name"], "get_weather")
        holds(call["args"]["city"] in ("Paris", "Rome"), call)


@both("tool")
def tool(api: dict[str, Any]) -> None:
    (call,) = scripted(**api).bind_tools([get_weather]).invoke("weather").tool_calls
    equal((call["name"], call["args"]), ("get_weather", {"city": "Paris"}))


@both("tool result")
def result(api: dict[str, Any]) -> None:
    bound = scripted(**api).bind_tools([get_weather])
    told = bound.invoke("weather")
    (call,) = told.tool_calls
    given = get_weather.invoke(call)
    holds(isinstance(given, ToolMessage), given)
    equal(bound.invoke([HumanMessage("weather"), told, given]).text, "It is sunny in Paris.")


@both("tool stream")
def tool_stream(api: dict[str, Any]) -> None:
    first, *rest = scripted(**api).bind_tools([get_weather]).stream("weather")
    whole: Any = first
    for each in rest:
        whole += each
    (call,) = whole.tool_calls
    equal((call["name"], call["args"]), ("get_weather", {"city": "Paris"}))


@both("schema")
def schema(api: dict[str, Any]) -> None:
    way = tiny(**api).with_structured_output(City.model_json_schema(), method="json_schema")
    is_city(way.invoke("A city?"))


@both("typed")
def typed(api: dict[str, Any]) -> None:
    for method in ("json_schema", "function_calling"):
        way = tiny(**api).with_structured_output(City, method=method)
        is_city(way.invoke("A city?").model_dump())


@feature("responses", "reasoning")
def reasoning() -> None:
    told = scripted(use_responses_api=True).invoke("think")
    equal(told.text, "The answer.")
    (thought,) = (each for each in told.content_blocks if each["type"] == "reasoning")
    holds("I ponder." in str(thought), thought)


@feature("responses", "go on")
def go_on() -> None:
    way = scripted(use_responses_api=True).bind_tools([get_weather])
    told = way.invoke("weather")
    given = get_weather.invoke(told.tool_calls[0])
    after = way.invoke([given], previous_response_id=told.response_metadata["id"])
    equal(after.text, "It is sunny in Paris.")


@both("wrong model")
def wrong_model(api: dict[str, Any]) -> None:
    raises(openai.NotFoundError, lambda: tiny(model="other", **api).invoke("x"), "tiny")


@both("bad field")
def bad_field(api: dict[str, Any]) -> None:
    raises(openai.BadRequestError, lambda: tiny(temperature=9, **api).invoke("x"), "temperature")


@both("wrong key")
def wrong_key(api: dict[str, Any]) -> None:
    raises(openai.AuthenticationError, lambda: tiny(api_key="wrong", **api).invoke("x"), "key")


@both("image")
def image(api: dict[str, Any]) -> None:
    part = {"type": "image", "base64": IMAGE, "mime_type": "image/png"}
    said = HumanMessage(content_blocks=[{"type": "text", "text": "What is it?"}, part])
    raises(openai.BadRequestError, lambda: tiny(**api).invoke([said]), "image")


@feature("chat", "embeddings")
def embeddings() -> None:
    way = OpenAIEmbeddings(base_url=f"{TINY}/v1", api_key=KEY, model="tiny", max_retries=0,
                           check_embedding_ctx_length=False)  # fmt: skip
    raises((openai.NotFoundError, openai.BadRequestError),
           lambda: way.embed_query("x"), "embedding")  # fmt: skip


@both("cancel")
def cancel(api: dict[str, Any]) -> None:
    parts = scripted(**api).stream("endless")
    next(parts)
    equal(under_way(), 1)
    parts.close()
    ends()


@feature("completions", "answer")
def completion() -> None:
    way = OpenAI(base_url=f"{TINY}/v1", api_key=KEY, model="tiny", max_retries=0, max_tokens=8,
                 temperature=0)  # fmt: skip
    equal("".join(way.stream("Once upon")), way.invoke("Once upon"))


run()
