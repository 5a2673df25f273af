"""pydantic-ai: agents over chat completions, responses and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anthropic import AsyncAnthropic
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
    run,
    under_way,
)  # fmt: skip
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

# docs: connect
provider = OpenAIProvider(base_url=f"{TINY}/v1", api_key=KEY)
agent = Agent(OpenAIChatModel("tiny", provider=provider))  # or OpenAIResponsesModel
# docs: end


class City(BaseModel):
    """A city."""

    city: CityName
    warm: bool


def model(api: str, name: str = "tiny", key: str = KEY) -> Any:
    url = SCRIPTED if name == "scripted" else TINY
    if api == "messages":
        anthropic = AsyncAnthropic(base_url=url, api_key=key, max_retries=0)
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=anthropic))
    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    return kind(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key=key))


SHORT: Any = {"max_tokens": 600}
APIS = ("chat", "responses", "messages")


def each_api(name: str) -> Callable[[Any], Any]:
    """The feature, over each API, whose name the function takes."""

    def keep(function: Any) -> Any:
        for api in APIS:
            feature(api, name)(lambda api=api: _through(function, api))
        return function

    def _through(function: Any, api: str) -> None:
        import asyncio

        asyncio.run(asyncio.wait_for(function(api), 60))

    return keep


@feature("chat", "answer")
async def connected() -> None:
    holds((await agent.run(STORY, model_settings=SHORT)).output, "no text")


@each_api("answer")
async def answer(api: str) -> None:
    told = await Agent(model(api, "scripted")).run("fruit", model_settings=SHORT)
    equal(told.output, "apple banana cherry")
    usage = told.usage() if callable(told.usage) else told.usage
    holds(usage.output_tokens >= 4, usage)


@each_api("stream")
async def stream(api: str) -> None:
    async with Agent(model(api, "scripted")).run_stream("fruit", model_settings=SHORT) as told:
        parts = [each async for each in told.stream_text(delta=True, debounce_by=None)]
    equal("".join(parts), "apple banana cherry")


@each_api("usage")
async def usage(api: str) -> None:
    async with Agent(model(api, "scripted")).run_stream("fruit", model_settings=SHORT) as told:
        await told.get_output()
    counted = told.usage() if callable(told.usage) else told.usage
    holds(counted.output_tokens >= 4, counted)


@feature("chat", "stop")
async def stop() -> None:
    told = await Agent(model("chat", "scripted")).run(
        "fruit", model_settings={"stop_sequences": ["banana"]}
    )
    equal(told.output, "apple ")


@feature("chat", "seed")
async def seed() -> None:
    settings: Any = {"seed": 1, "temperature": 1.0, "max_tokens": 8}
    one, two = [(await agent.run(STORY, model_settings=settings)).output for _ in range(2)]
    equal(one, two)


def with_weather(api: str) -> Any:
    player = Agent(model(api, "scripted"))

    @player.tool_plain
    def get_weather(city: CityName) -> str:
        """The weather."""
        equal(city, "Paris")
        return "sunny"

    return player


@each_api("tool result")
async def result(api: str) -> None:
    told = await with_weather(api).run("weather", model_settings=SHORT)
    equal(told.output, "It is sunny in Paris.")


@each_api("tool stream")
async def tool_stream(api: str) -> None:
    async with with_weather(api).run_stream("weather", model_settings=SHORT) as told:
        equal(await told.get_output(), "It is sunny in Paris.")


@each_api("typed")
async def typed(api: str) -> None:
    ways: list[Any] = [ToolOutput(City)]
    if api != "messages":  # pydantic-ai does so for Anthropic's own models alone
        ways.append(NativeOutput(City))
    for way in ways:
        told = await Agent(model(api), output_type=way).run("A city?", model_settings=SHORT)
        is_city(told.output.model_dump())


@feature("chat", "schema")
async def schema() -> None:
    told = await Agent(model("chat"), output_type=NativeOutput(City, strict=False)).run(
        "A city?", model_settings=SHORT
    )
    is_city(told.output.model_dump())


@each_api("reasoning")
async def reasoning(api: str) -> None:
    settings: Any = {"max_tokens": 2048}
    if api == "messages":
        settings["anthropic_thinking"] = {"type": "enabled", "budget_tokens": 1024}
    player = Agent(model(api, "scripted"))
    told = await player.run("think", model_settings=settings)
    equal(told.output, "The answer.")
    parts = [part for message in told.all_messages() for part in message.parts]
    (thought,) = (part for part in parts if isinstance(part, ThinkingPart))
    holds("I ponder." in str(thought), thought)
    after = await player.run("fruit", message_history=told.all_messages(), model_settings=settings)
    equal(after.output, "apple banana cherry")


async def refused(status: int, wrong: Any, *words: str, **options: Any) -> None:
    try:
        got = await Agent(wrong).run(options.pop("say", "x"), **options)
    except ModelHTTPError as error:
        equal(error.status_code, status)
        for word in words:
            holds(word in str(error).lower(), error)
    else:
        raise AssertionError(got)


@each_api("wrong model")
async def wrong_model(api: str) -> None:
    await refused(404, model(api, "other"), "other")


@each_api("bad field")
async def bad_field(api: str) -> None:
    await refused(400, model(api), "top_p", model_settings={"top_p": 9.0})


@each_api("wrong key")
async def wrong_key(api: str) -> None:
    await refused(401, model(api, key="wrong"), "key")


@each_api("image")
async def image(api: str) -> None:
    import base64

    part = BinaryContent(base64.b64decode(IMAGE), media_type="image/png")
    await refused(400, model(api), "image", say=["What is it?", part])


@each_api("cancel")
async def cancel(api: str) -> None:
    import asyncio

    player = Agent(model(api, "scripted"))

    async def listen(begun: asyncio.Event) -> None:
        settings: Any = {"max_tokens": 1 << 19}
        async with player.run_stream("endless", model_settings=settings) as told:
            async for _ in told.stream_text(delta=True, debounce_by=None):
                begun.set()

    begun = asyncio.Event()
    task = asyncio.create_task(listen(begun))
    await begun.wait()
    equal(await asyncio.to_thread(under_way), 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(ends)


run()
