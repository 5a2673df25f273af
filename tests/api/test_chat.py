"""Chat completions through the official client, unmodified, on a real ring of two ranks."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.api.conftest import Served

STORY = "Tell me a story about a fox named Pip."
COUNT = "Count to twenty."


def test_the_answer_is_the_ring_s(ring: Served) -> None:
    events = list(ring.head.ask("generate", {"prompt": STORY, "max_tokens": 24}))
    text = "".join(event.get("text", "") for event in events)
    answer = ring.openai.chat.completions.create(**ring.chat(STORY, max_completion_tokens=24))
    assert answer.choices[0].message.content == text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens == events[-1]["prompt_tokens"]
    assert answer.usage.total_tokens == 24 + answer.usage.prompt_tokens
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.system_fingerprint


def test_a_stream_adds_up_to_the_whole(ring: Served) -> None:
    body = ring.chat(COUNT, max_tokens=64)
    whole = ring.openai.chat.completions.create(**body)
    chunks = list(
        ring.openai.chat.completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        )
    )
    *chunks, last = chunks
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    for name in ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"):
        assert getattr(last.usage, name) == getattr(whole.usage, name)
    assert last.usage.completion_tokens_details is not None
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_choices_have_seeds_of_their_own(ring: Served) -> None:
    body = ring.chat(STORY, max_tokens=12, temperature=1.2, seed=5)
    three = ring.openai.chat.completions.create(**body, n=3).choices
    texts = [choice.message.content for choice in three]
    assert [choice.index for choice in three] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert ring.openai.chat.completions.create(**body).choices[0].message.content == texts[0]
    streamed = ["", "", ""]
    for chunk in ring.openai.chat.completions.create(**body, n=3, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_unseeded_answers_differ(ring: Served) -> None:
    body = ring.chat(STORY, max_tokens=48) | {"temperature": 2.0}
    answers = [ring.openai.chat.completions.create(**body) for _ in range(4)]
    assert len({answer.choices[0].message.content for answer in answers}) > 1


@pytest.mark.parametrize("stop", [", 4", [", 4", "never"], ["7", " 4", ", 4"]])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_and_never_shows(
    ring: Served, stop: str | list[str], stream: bool
) -> None:
    body = ring.chat(COUNT, max_tokens=64, stop=stop)
    if stream:
        chunks = list(ring.openai.chat.completions.create(**body, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = ring.openai.chat.completions.create(**body).choices[0]
        text, reason = choice.message.content or "", choice.finish_reason
    assert text == "1, 2, 3"
    assert reason == "stop"


def test_a_stop_string_in_the_last_token(ring: Served) -> None:
    asked = ring.chat("Tell me a story.", max_tokens=9)
    text = ring.openai.chat.completions.create(**asked).choices[0].message.content
    assert text
    stop = next(text[at:] for at in range(len(text) - 1, -1, -1) if text.count(text[at:]) == 1)
    choice = ring.openai.chat.completions.create(**asked, stop=stop).choices[0]
    assert (choice.message.content, choice.finish_reason) == (text[: -len(stop)], "stop")


def test_log_probabilities(ring: Served) -> None:
    body = ring.chat(STORY, max_tokens=8, logprobs=True, top_logprobs=20)
    whole = ring.openai.chat.completions.create(**body).choices[0]
    assert whole.logprobs is not None
    entries = whole.logprobs.content
    assert entries is not None
    assert len(entries) == 8
    spelled = b"".join(bytes(entry.bytes or ()) for entry in entries).decode()
    assert spelled.strip() == whole.message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 20
        assert entry.logprob == entry.top_logprobs[0].logprob  # it was drawn greedily
        assert entry.token == entry.top_logprobs[0].token
        total = sum(math.exp(top.logprob) for top in entry.top_logprobs)
        assert 0.3 < total < 1.0001
    streamed = []
    for chunk in ring.openai.chat.completions.create(**body, stream=True):
        told = chunk.choices[0].logprobs
        streamed += told.content or [] if told else []
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]
    assert [e.logprob for e in streamed] == pytest.approx([e.logprob for e in entries], abs=1e-4)


def test_log_probabilities_of_the_chosen_alone(ring: Served) -> None:
    choice = ring.openai.chat.completions.create(
        **ring.chat(STORY, max_tokens=4, logprobs=True)
    ).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [entry.top_logprobs for entry in choice.logprobs.content] == [[], [], [], []]


def test_a_bias_and_penalties_change_what_is_drawn(ring: Served) -> None:
    body = ring.chat(COUNT, max_tokens=32)  # the tiny model is very sure how to
    plain = ring.openai.chat.completions.create(**body).choices[0].message.content
    told = ring.head.ask("generate", {"prompt": COUNT, "max_tokens": 1})
    (first,) = list(told)[-1]["token_ids"]
    changes: list[dict[str, Any]] = [
        {"logit_bias": {str(first): -100}},
        {"frequency_penalty": 2, "presence_penalty": 2},
        {"extra_body": {"repetition_penalty": 3.0}},
    ]
    for change in changes:
        other = ring.openai.chat.completions.create(**body, **change)
        assert other.choices[0].message.content != plain, change


def test_every_form_of_message(ring: Served) -> None:
    plain = ring.chat(STORY, max_tokens=8)
    parts = [{"type": "text", "text": STORY[:10]}, {"type": "text", "text": STORY[10:]}]
    split = plain | {"messages": [{"role": "user", "content": parts}]}
    texts = [
        ring.openai.chat.completions.create(**body).choices[0].message.content
        for body in (plain, split)
    ]
    assert texts[0] == texts[1]
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "Again.", "name": "bo"},
    ]
    system = ring.openai.chat.completions.create(**plain | {"messages": talk})
    talk[0]["role"] = "developer"
    developer = ring.openai.chat.completions.create(**plain | {"messages": talk})
    assert system.choices[0].message.content == developer.choices[0].message.content


@pytest.mark.slow
def test_a_hundred_at_once(ring: Served) -> None:
    prompts = [f"Count to {number}." for number in ("ten", "twenty", "thirty", "five")]
    bodies = [ring.chat(prompt, max_tokens=6) for prompt in prompts]
    alone = [
        ring.openai.chat.completions.create(**body).choices[0].message.content for body in bodies
    ]

    async def ask() -> list[str | None]:
        async with AsyncOpenAI(
            base_url=f"{ring.url}/v1", api_key="unused", max_retries=0, timeout=120
        ) as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(**bodies[i % 4]) for i in range(100))
            )
        return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(ask()) == alone * 25


def test_models(ring: Served) -> None:
    (model,) = ring.openai.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "sealring")
    full = ring.openai.models.retrieve("tiny")
    assert (full.id, full.created, full.owned_by) == (model.id, model.created, model.owned_by)
