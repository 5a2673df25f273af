"""Text completions through the official client, on a real ring of two ranks."""

from __future__ import annotations

import pytest
from sealring_model import tiny
from sealring_model.text.tokens import Tokenizer

from tests.api.conftest import Served

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny.path())


def test_text_goes_on(ring: Served) -> None:
    request = {"do": "generate", "prompt": PROMPT, "raw": True, "max_tokens": 16}
    text = "".join(event.get("text", "") for event in ring.head.ask(request))
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


def test_log_probabilities_in_columns(ring: Served) -> None:
    answer = ring.openai.completions.create(
        model="tiny", prompt=PROMPT, temperature=0, max_tokens=6, logprobs=3
    )
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None
    assert "".join(told.tokens).strip() == answer.choices[0].text.strip()
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
