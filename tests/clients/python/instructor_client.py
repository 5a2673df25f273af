"""instructor: values of a type, by tools and by JSON schema."""

from __future__ import annotations

from typing import Any

import instructor
from features import KEY, TINY, CityName, feature, holds, is_city, raises, run
from openai import OpenAI
from pydantic import BaseModel

# docs: connect
client = instructor.from_openai(OpenAI(base_url=f"{TINY}/v1", api_key=KEY, max_retries=0))
model = "tiny"
# docs: end


class City(BaseModel):
    """A city."""

    city: CityName
    warm: bool


def way(mode: Any, key: str = KEY) -> Any:
    openai = OpenAI(base_url=f"{TINY}/v1", api_key=key, max_retries=0)
    return instructor.from_openai(openai, mode=mode)


def city(client: Any, **more: Any) -> Any:
    options = {"model": model, "max_tokens": 600, "max_retries": 0} | more
    return client.chat.completions.create(
        messages=[{"role": "user", "content": "A city?"}], response_model=City, **options
    )


@feature("chat", "forced tool")
def by_tools() -> None:
    is_city(city(client).model_dump())


@feature("chat", "schema")
def by_schema() -> None:
    is_city(city(way(instructor.Mode.JSON_SCHEMA)).model_dump())


@feature("chat", "typed")
def typed() -> None:
    is_city(city(way(instructor.Mode.TOOLS_STRICT)).model_dump())
    is_city(city(way(instructor.Mode.JSON_SCHEMA)).model_dump())


@feature("responses", "typed")
def by_responses() -> None:
    told = way(instructor.Mode.RESPONSES_TOOLS).responses.create(
        model=model, input="A city?", response_model=City, max_output_tokens=600
    )
    is_city(told.model_dump())


@feature("chat", "stream")
def stream() -> None:
    parts = list(client.chat.completions.create_partial(
        model=model, messages=[{"role": "user", "content": "A city?"}], response_model=City,
        max_tokens=600,
    ))  # fmt: skip
    holds(parts, parts)  # a call comes in one piece
    is_city(parts[-1].model_dump())


@feature("chat", "wrong model")
def wrong_model() -> None:
    raises(Exception, lambda: city(client, model="other"), "other", "404")


@feature("chat", "bad field")
def bad_field() -> None:
    raises(Exception, lambda: city(client, top_p=9), "top_p", "400")


@feature("chat", "wrong key")
def wrong_key() -> None:
    raises(Exception, lambda: city(way(instructor.Mode.TOOLS, "wrong")), "key", "401")


run()
