"""llama-index's `OpenAILike`."""

# No annotations from the future: the client reads those of `get_weather` without its module.
import gc
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
from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

# docs: connect
llm = OpenAILike(
    api_base=f"{TINY}/v1",
    api_key=KEY,
    model="tiny",
    is_chat_model=True,
    is_function_calling_model=True,
    max_retries=0,
)
# docs: end


class City(BaseModel):
    """A city."""

    city: CityName
    warm: bool


def get_weather(city: CityName) -> str:
    """The weather."""
    return "sunny"


TOOL = FunctionTool.from_defaults(get_weather)


def tiny(**more: Any) -> OpenAILike:
    options: dict[str, Any] = {"api_base": f"{TINY}/v1", "api_key": KEY, "model": "tiny"}
    options |= {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0}
    return OpenAILike(**{**options, "temperature": 0, "max_tokens": 600} | more)


def scripted(**more: Any) -> OpenAILike:
    return tiny(api_base=f"{SCRIPTED}/v1", model="scripted", **more)


def says(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text)]


@feature("chat", "answer")
def answer() -> None:
    equal(llm.chat(says(STORY), max_tokens=16).raw.usage.completion_tokens, 16)
    equal(scripted().chat(says("fruit")).message.content, "apple banana cherry")


@feature("chat", "stream")
def stream() -> None:
    parts = [each.delta or "" for each in scripted().stream_chat(says("fruit"))]
    equal("".join(parts), "apple banana cherry")
    holds(len(parts) > 2, parts)


@feature("chat", "usage")
def usage() -> None:
    *_, last = scripted().stream_chat(says("fruit"), stream_options={"include_usage": True})
    holds(last.raw.usage.completion_tokens >= 4, last.raw)


@feature("chat", "stop")
def stop() -> None:
    equal(scripted().chat(says("fruit"), stop=["banana"]).message.content, "apple ")


@feature("chat", "seed")
def seed() -> None:
    way = tiny(temperature=1, max_tokens=8, additional_kwargs={"seed": 1})
    one, two = (way.chat(says(STORY)).message.content for _ in range(2))
    equal(one, two)


@feature("chat", "logprobs")
def logprobs() -> None:
    told = tiny(max_tokens=8, logprobs=True, top_logprobs=2).chat(says(STORY))
    equal(len(told.logprobs), 8)


@feature("chat", "forced tool")
def forced() -> None:
    told = tiny().chat_with_tools([TOOL], "Weather?", tool_required=True)
    (call,) = tiny().get_tool_calls_from_response(told)
    equal(call.tool_name, "get_weather")
    holds(call.tool_kwargs["city"] in ("Paris", "Rome"), call)


@feature("chat", "tool")
def tool() -> None:
    told = scripted().chat_with_tools([TOOL], "weather")
    (call,) = scripted().get_tool_calls_from_response(told)
    equal((call.tool_name, call.tool_kwargs), ("get_weather", {"city": "Paris"}))


@feature("chat", "tool result")
def result() -> None:
    told = scripted().predict_and_call([TOOL], "weather")
    equal(str(told), "sunny")
    message = scripted().chat_with_tools([TOOL], "weather").message
    (call,) = scripted().get_tool_calls_from_response(scripted().chat_with_tools([TOOL], "weather"))
    given = ChatMessage(role="tool", content="sunny", additional_kwargs={
        "tool_call_id": call.tool_id})  # fmt: skip
    after = scripted().chat_with_tools([TOOL], chat_history=[*says("weather"), message, given])
    equal(after.message.content, "It is sunny in Paris.")


@feature("chat", "tool stream")
def tool_stream() -> None:
    *_, last = scripted().stream_chat_with_tools([TOOL], "weather")
    (call,) = scripted().get_tool_calls_from_response(last)
    equal((call.tool_name, call.tool_kwargs), ("get_weather", {"city": "Paris"}))


@feature("chat", "typed")
def typed() -> None:
    for structured in (False, True):
        way = tiny(should_use_structured_outputs=structured).as_structured_llm(City)
        is_city(way.chat(says("A city?")).raw.model_dump())


@feature("chat", "wrong model")
def wrong_model() -> None:
    raises(openai.NotFoundError, lambda: tiny(model="other").chat(says("x")), "tiny")


@feature("chat", "bad field")
def bad_field() -> None:
    raises(openai.BadRequestError, lambda: llm.chat(says("x"), top_p=9), "top_p")


@feature("chat", "wrong key")
def wrong_key() -> None:
    raises(openai.AuthenticationError, lambda: tiny(api_key="wrong").chat(says("x")), "key")


@feature("chat", "image")
def image() -> None:
    said = ChatMessage(blocks=[TextBlock(text="?"), ImageBlock(
        image=IMAGE.encode(), image_mimetype="image/png")])  # fmt: skip
    raises(openai.BadRequestError, lambda: llm.chat([said]), "image")


@feature("chat", "cancel")
def cancel() -> None:
    parts = scripted(max_tokens=1 << 19).stream_chat(says("endless"))
    next(parts)
    equal(under_way(), 1)
    parts.close()
    del parts
    gc.collect()  # the client closes its connection no sooner
    ends()


@feature("completions", "answer")
def completion() -> None:
    way = tiny(is_chat_model=False, max_tokens=8)
    *_, last = way.stream_complete("Once upon")
    equal(last.text, way.complete("Once upon").text)


run()
