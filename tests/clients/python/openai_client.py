"""The official client of OpenAI: chat, completions, responses."""

from __future__ import annotations

import json
from typing import Any

import openai
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
from openai import OpenAI
from pydantic import BaseModel

# docs: connect
client = OpenAI(base_url=f"{TINY}/v1", api_key=KEY, max_retries=0)
model = "tiny"
# docs: end
scripted = OpenAI(base_url=f"{SCRIPTED}/v1", api_key=KEY, max_retries=0)
stranger = OpenAI(base_url=f"{TINY}/v1", api_key="wrong", max_retries=0)

FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
JSON: Any = {
    "type": "json_schema",
    "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
}


class City(BaseModel):
    city: CityName
    warm: bool


def says(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def chat(text: str = STORY, **more: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 16} | more
    return client.chat.completions.create(model=model, messages=says(text), **options)


def play(text: str, **more: Any) -> Any:
    return scripted.chat.completions.create(
        model="scripted", messages=says(text), temperature=0, **more
    )


@feature("chat", "models")
def models() -> None:
    equal([each.id for each in client.models.list()], ["tiny"])
    equal(client.models.retrieve("tiny").id, "tiny")


@feature("chat", "answer")
def answer() -> None:
    told = chat()
    equal(told.usage.completion_tokens, 16)
    equal(told.choices[0].finish_reason, "length")
    equal(play("fruit").choices[0].message.content, "apple banana cherry")


@feature("chat", "stream")
def stream() -> None:
    whole = chat().choices[0].message.content
    parts = [each.choices[0].delta.content or "" for each in chat(stream=True)]
    equal("".join(parts), whole)
    holds(len(parts) > 3, parts)


@feature("chat", "usage")
def usage() -> None:
    *_, last = chat(stream=True, stream_options={"include_usage": True})
    equal(last.choices, [])
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")  # how many were guessed varies
    equal(*(tuple(getattr(each, name) for name in counts) for each in (last.usage, chat().usage)))


@feature("chat", "stop")
def stop() -> None:
    told = play("fruit", stop=["banana"]).choices[0]
    equal((told.message.content, told.finish_reason), ("apple ", "stop"))


@feature("chat", "n")
def n() -> None:
    told = chat(n=3, temperature=1, seed=1).choices
    equal([each.index for each in told], [0, 1, 2])
    holds(len({each.message.content for each in told}) > 1, told)


@feature("chat", "seed")
def seed() -> None:
    texts = [chat(temperature=1, seed=at).choices[0].message.content for at in (1, 1, 2)]
    equal(texts[0], texts[1])
    holds(texts[0] != texts[2], texts)


@feature("chat", "logprobs")
def logprobs() -> None:
    choice = chat(logprobs=True, top_logprobs=2).choices[0]
    told = choice.logprobs.content
    equal("".join(each.token for each in told), choice.message.content)
    for each in told:
        equal((len(each.top_logprobs), each.top_logprobs[0].token), (2, each.token))


@feature("chat", "forced tool")
def forced() -> None:
    for choice in ("required", NAMED):
        told = chat("Weather?", tools=TOOLS, tool_choice=choice, max_tokens=600).choices[0]
        (call,) = told.message.tool_calls
        equal(call.function.name, "get_weather")
        holds(json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), call)


@feature("chat", "tool")
def tool() -> None:
    told = play("weather", tools=TOOLS).choices[0]
    (call,) = told.message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments), told.finish_reason),
          ("get_weather", {"city": "Paris"}, "tool_calls"))  # fmt: skip


@feature("chat", "tool result")
def result() -> None:
    message = play("weather", tools=TOOLS).choices[0].message
    (call,) = message.tool_calls
    told = scripted.chat.completions.create(
        model="scripted",
        messages=[*says("weather"), message,
                  {"role": "tool", "tool_call_id": call.id, "content": "sunny"}],
        tools=TOOLS,
    )  # fmt: skip
    equal(told.choices[0].message.content, "It is sunny in Paris.")


@feature("chat", "tool stream")
def tool_stream() -> None:
    with scripted.chat.completions.stream(
        model="scripted", messages=says("weather"), tools=TOOLS
    ) as events:
        for _ in events:
            pass
        (call,) = events.get_final_completion().choices[0].message.tool_calls or ()
    equal((call.function.name, json.loads(call.function.arguments)),
          ("get_weather", {"city": "Paris"}))  # fmt: skip


@feature("chat", "schema")
def schema() -> None:
    is_city(json.loads(chat(response_format=JSON, max_tokens=600).choices[0].message.content))


@feature("chat", "typed")
def typed() -> None:
    told = client.chat.completions.parse(
        model=model, messages=says("A city?"), response_format=City, temperature=0, max_tokens=600
    )
    is_city(told.choices[0].message.parsed.model_dump())


@feature("chat", "reasoning")
def reasoning() -> None:
    message = play("think").choices[0].message
    equal((message.reasoning_content.strip(), message.content), ("I ponder.", "The answer."))
    parts = [each.choices[0].delta for each in play("think", stream=True)]
    equal(
        "".join(getattr(part, "reasoning_content", None) or "" for part in parts).strip(),
        "I ponder.",
    )
    equal("".join(part.content or "" for part in parts), "The answer.")


@feature("chat", "wrong model")
def wrong_model() -> None:
    raises(openai.NotFoundError, lambda: client.chat.completions.create(
        model="other", messages=says("x")), "other", "tiny")  # fmt: skip


@feature("chat", "bad field")
def bad_field() -> None:
    error = raises(openai.BadRequestError, lambda: chat(temperature=9), "temperature")
    equal(error.param, "temperature")


@feature("chat", "wrong key")
def wrong_key() -> None:
    raises(openai.AuthenticationError, stranger.models.list, "key")


@feature("chat", "image")
def image() -> None:
    part: Any = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
    raises(openai.BadRequestError, lambda: client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": [part]}]), "image")  # fmt: skip


@feature("chat", "embeddings")
def embeddings() -> None:
    raises((openai.NotFoundError, openai.BadRequestError),
           lambda: client.embeddings.create(model=model, input="x"), "embedding")  # fmt: skip


@feature("chat", "cancel")
def cancel() -> None:
    with play("endless", stream=True) as parts:
        next(iter(parts))
        equal(under_way(), 1)
    ends()


@feature("completions", "answer")
def completion() -> None:
    told = client.completions.create(model=model, prompt="Once upon", max_tokens=8, temperature=0)
    equal((told.usage.completion_tokens, told.choices[0].finish_reason), (8, "length"))
    parts = client.completions.create(
        model=model, prompt="Once upon", max_tokens=8, temperature=0, stream=True
    )
    equal("".join(part.choices[0].text for part in parts), told.choices[0].text)


@feature("completions", "echo")
def echo() -> None:
    told = client.completions.create(
        model=model, prompt="Once upon", max_tokens=4, temperature=0, echo=True, logprobs=1
    ).choices[0]
    holds(told.text.startswith("Once upon"), told.text)
    equal("".join(told.logprobs.tokens), told.text)
    equal(told.logprobs.token_logprobs[0], None)
    holds(all(each <= 0 for each in told.logprobs.token_logprobs[1:]), told.logprobs)


RESPONSE_TOOLS: list[Any] = [{"type": "function", **FUNCTION, "strict": True}]


def respond(text: Any, **more: Any) -> Any:
    return scripted.responses.create(model="scripted", input=text, **more)


@feature("responses", "answer")
def response() -> None:
    told = client.responses.create(model=model, input=STORY, temperature=0, max_output_tokens=16)
    equal((told.output_text, told.status), (chat().choices[0].message.content, "incomplete"))
    equal(respond("fruit").output_text, "apple banana cherry")


@feature("responses", "stream")
def response_stream() -> None:
    with scripted.responses.stream(model="scripted", input="fruit") as events:
        parts = [each.delta for each in events if each.type == "response.output_text.delta"]
        last = events.get_final_response()
    equal(("".join(parts), last.output_text), ("apple banana cherry",) * 2)
    holds(last.usage.output_tokens, last)


@feature("responses", "forced tool")
def response_forced() -> None:
    told = client.responses.create(
        model=model, input="Weather?", tools=RESPONSE_TOOLS, tool_choice="required",
        max_output_tokens=600,
    )  # fmt: skip
    (call,) = told.output
    equal((call.type, call.name), ("function_call", "get_weather"))
    holds(json.loads(call.arguments)["city"] in ("Paris", "Rome"), call)


@feature("responses", "tool")
def response_tool() -> None:
    (call,) = respond("weather", tools=RESPONSE_TOOLS).output
    equal((call.name, json.loads(call.arguments)), ("get_weather", {"city": "Paris"}))


@feature("responses", "tool result")
def response_result() -> None:
    told = respond("weather", tools=RESPONSE_TOOLS)
    items = [*says("weather"), *told.output]
    result = {"type": "function_call_output", "call_id": told.output[0].call_id, "output": "sunny"}
    equal(respond([*items, result], tools=RESPONSE_TOOLS).output_text, "It is sunny in Paris.")


@feature("responses", "go on")
def response_goes_on() -> None:
    told = respond("weather", tools=RESPONSE_TOOLS)
    result = {"type": "function_call_output", "call_id": told.output[0].call_id, "output": "sunny"}
    after = respond([result], tools=RESPONSE_TOOLS, previous_response_id=told.id)
    equal(after.output_text, "It is sunny in Paris.")
    equal(scripted.responses.retrieve(after.id).output_text, after.output_text)


@feature("responses", "tool stream")
def response_tool_stream() -> None:
    with scripted.responses.stream(
        model="scripted", input="weather", tools=RESPONSE_TOOLS
    ) as events:
        parts = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
        (call,) = events.get_final_response().output
    equal(json.loads("".join(parts)), {"city": "Paris"})
    equal(json.loads(call.arguments), {"city": "Paris"})


@feature("responses", "schema")
def response_schema() -> None:
    form: Any = {
        "format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
    }
    told = client.responses.create(model=model, input="A city?", text=form, max_output_tokens=600)
    is_city(json.loads(told.output_text))


@feature("responses", "typed")
def response_typed() -> None:
    told = client.responses.parse(
        model=model, input="A city?", text_format=City, max_output_tokens=600
    )
    is_city(told.output_parsed.model_dump())


@feature("responses", "reasoning")
def response_reasoning() -> None:
    thought, message = respond("think").output
    equal(thought.content[0].text.strip(), "I ponder.")
    equal(message.content[0].text, "The answer.")


@feature("responses", "wrong model")
def response_wrong_model() -> None:
    raises(openai.NotFoundError, lambda: client.responses.create(model="other", input="x"), "tiny")


@feature("responses", "bad field")
def response_bad_field() -> None:
    raises(openai.BadRequestError, lambda: respond("x", temperature=9), "temperature")


@feature("responses", "wrong key")
def response_wrong_key() -> None:
    raises(openai.AuthenticationError,
           lambda: stranger.responses.create(model=model, input="x"), "key")  # fmt: skip


@feature("responses", "image")
def response_image() -> None:
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"}
    raises(openai.BadRequestError,
           lambda: respond([{"role": "user", "content": [part]}]), "image")  # fmt: skip


@feature("responses", "cancel")
def response_cancel() -> None:
    with respond("endless", stream=True) as events:
        next(iter(events))
        equal(under_way(), 1)
    ends()


run()
