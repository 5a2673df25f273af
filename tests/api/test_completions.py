"""Text completions through the official client, on a real ring of two ranks."""

from __future__ import annotations

from typing import Any

import pytest
from sealring_model import tiny
from sealring_model.text.tokens import Tokenizer

from tests.api.conftest import Served

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny.path())


def test_text_goes_on(ring: Served) -> None:
    request = {"prompt": PROMPT, "raw": True, "max_tokens": 16}
    text = "".join(event.get("text", "") for event in ring.head.ask("generate", request))
    answer = ring.openai.completions.create(model="tiny", prompt=PROMPT, temperature=0)
    assert answer.choices[0].text == text  # 16 tokens, where nothing is said
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    streamed = ring.openai.completions.create(
        model="tiny", prompt=PROMPT, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == text


def test_many_prompts_as_text_and_as_ids(ring: Served, tokenizer: Tokenizer) -> None:
    texts = [PROMPT, "The fox"]
    ids = [tokenizer.encode(text) for text in texts]

    def ask(prompt: object, n: int = 1) -> list[str]:
        answer = ring.openai.completions.create(
            model="tiny",
            prompt=prompt,
            n=n,
            temperature=0,
            max_tokens=6,  # type: ignore[arg-type]
        )
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]

    one, two = ask(texts)
    assert ask(ids) == [one, two]
    assert ask(ids[0]) == [one]
    assert ask(texts, n=2) == [one, one, two, two]


def test_echo(ring: Served, tokenizer: Tokenizer) -> None:
    plain = ring.openai.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=4)
    for prompt in (PROMPT, tokenizer.encode(PROMPT)):
        echoed = ring.openai.completions.create(
            model="tiny", prompt=prompt, temperature=0, max_tokens=4, echo=True
        )
        assert echoed.choices[0].text == PROMPT + plain.choices[0].text


FOX = "Once \N{FOX FACE}"


def first_text(ring: Served, path: str, token: int, **body: Any) -> dict[str, Any]:
    """The choice whose one token is *token*."""
    bias = {"logit_bias": {str(token): 100}}
    answer = ring.post(
        {"model": "tiny", "temperature": 0, "max_tokens": 1, **bias, **body}, path
    ).json()
    choice: dict[str, Any] = answer["choices"][0]
    return choice


def test_the_first_token_s_text_is_whole(ring: Served, tokenizer: Tokenizer) -> None:
    """A space at the beginning stays where a text goes on, and a character that the prompt begins
    is the answer's; what is echoed and what follows are the text of all."""
    (was,) = tokenizer.encode(" was")
    ids = tokenizer.encode(FOX)
    assert len(ids) == 6
    path = "/v1/completions"
    for prompt, token, before, after in (
        (FOX, was, FOX, " was"),
        (ids, was, FOX, " was"),
        (ids[:-1], ids[-1], "Once ", "\N{FOX FACE}"),
    ):
        assert first_text(ring, path, token, prompt=prompt)["text"] == after
        told = first_text(ring, path, token, prompt=prompt, echo=True, logprobs=0)
        assert told["text"] == before + after
        begins = [0, 4, 5, 5, 5, 5, 6]  # "Once", a space, four bytes, and what follows
        assert told["logprobs"]["text_offset"] == begins[: len(told["logprobs"]["tokens"])]
    told = ring.post(
        {"model": "tiny", "prompt": PROMPT, "structured_outputs": {"regex": " was"}}, path
    ).json()
    assert told["choices"][0]["text"] == " was"


def test_only_an_answer_that_goes_on_with_a_message_begins_with_a_space(
    ring: Served, tokenizer: Tokenizer
) -> None:
    (was,) = tokenizer.encode(" was")
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "The fox"},
    ]
    for asked, text in (
        ({"messages": messages[:1]}, "was"),
        ({"messages": messages[:1], "structured_outputs": {"regex": " was"}}, " was"),
        ({"messages": messages, "continue_final_message": True}, " was"),
    ):
        choice = first_text(ring, "/v1/chat/completions", was, **asked)
        assert choice["message"]["content"] == text


def test_log_probabilities_in_columns(ring: Served) -> None:
    answer = ring.openai.completions.create(
        model="tiny", prompt=PROMPT, temperature=0, max_tokens=6, logprobs=3
    )
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None
    assert "".join(told.tokens) == answer.choices[0].text
    assert told.text_offset is not None
    assert told.text_offset[1] == len(told.tokens[0])
    for token, value, best in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert len(best) == 3
        assert max(best, key=best.__getitem__) == token
        assert best[token] == value


def test_stop_and_the_chosen_tokens_alone(ring: Served) -> None:
    answer = ring.openai.completions.create(
        model="tiny", prompt=PROMPT, temperature=0, max_tokens=40, stop=["was"], logprobs=0
    )
    assert "was" not in answer.choices[0].text
    assert answer.choices[0].finish_reason == "stop"
    told = answer.choices[0].logprobs
    assert told is not None
    assert set(map(str, told.top_logprobs or ())) == {"{}"}
