"""What the answer is likely to contain (`prediction`), through the official client."""

from __future__ import annotations

from typing import Any

import pytest
from sealring.dialects.errors import ApiError
from sealring.text.frames import ParsedRequest
from sealring.text_worker import chat
from sealring_model import tiny
from sealring_model.text.tokens import Tokenizer

from tests.api.conftest import Served

COUNT = "Count to twenty."


def test_a_prediction_changes_no_answer(ring: Served) -> None:
    """Right, wrong, in parts or none: the text is the same, and `usage` tells of guesses."""
    body = ring.chat(COUNT, max_tokens=64)
    plain = ring.openai.chat.completions.create(**body).choices[0].message.content
    assert plain
    parts = [{"type": "text", "text": plain[:9]}, {"type": "text", "text": plain[9:]}]
    for content in (plain, parts, "Something else entirely.", ""):
        answer = ring.openai.chat.completions.create(
            **body, prediction={"type": "content", "content": content}
        )
        assert answer.choices[0].message.content == plain
        assert answer.usage is not None
        told = answer.usage.completion_tokens_details
        assert told is not None
        assert told.accepted_prediction_tokens is not None
        assert told.rejected_prediction_tokens is not None
        assert told.accepted_prediction_tokens <= answer.usage.completion_tokens


def test_a_right_prediction_is_guessed_from(ring: Served) -> None:
    """A sampled text, in which nothing repeats."""
    body = ring.chat("Tell me a story.", max_tokens=64, temperature=1.3, seed=11)
    plain = ring.openai.chat.completions.create(**body)
    text = plain.choices[0].message.content
    assert text
    answer = ring.openai.chat.completions.create(
        **body, prediction={"type": "content", "content": text}
    )
    assert answer.choices[0].message.content == text
    counts = [
        details.accepted_prediction_tokens or 0
        for told in (plain, answer)
        if told.usage and (details := told.usage.completion_tokens_details)
    ]
    assert counts[1] > counts[0]


def test_a_text_completion_takes_one_too(ring: Served) -> None:
    body = {"model": "tiny", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}
    plain = ring.post(body, "/v1/completions").json()
    predicted = {"type": "content", "content": plain["choices"][0]["text"]}
    answer = ring.post({**body, "prediction": predicted}, "/v1/completions").json()
    assert answer["choices"] == plain["choices"]
    assert "accepted_prediction_tokens" in answer["usage"]["completion_tokens_details"]


@pytest.mark.parametrize(
    "prediction",
    [
        "a text",
        {"content": "a"},
        {"type": "content"},
        {"type": "text", "content": "a"},
        {"type": "content", "content": [{"type": "image_url", "text": "a"}]},
        {"type": "content", "content": 5},
    ],
)
def test_what_is_no_prediction(ring: Served, prediction: Any) -> None:
    answer = ring.post(ring.chat(COUNT, prediction=prediction))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("prediction")


def test_a_prediction_that_no_answer_can_hold(ring: Served) -> None:
    content = "word " * 200_000
    answer = ring.post(ring.chat(COUNT, prediction={"type": "content", "content": content}))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("prediction", "context_length_exceeded")


def test_a_text_worker_reads_it() -> None:
    """Its ids come after the prompt's, and no more of them than the context holds."""
    tokenizer = Tokenizer(tiny.path())
    text = "one, two, three, four"
    ids = tokenizer.encode_part(text)
    asked = {"models": ["tiny"], "context": 0}

    def read(context: int, content: str = text) -> ParsedRequest:
        body = (
            '{"model": "tiny", "messages": [{"role": "user", "content": "Count."}], '
            f'"prediction": {{"type": "content", "content": "{content}"}}}}'
        )
        told, data = chat(tokenizer, {**asked, "context": context}, body.encode(), str)
        return ParsedRequest.of(told, data)

    whole = read(0)
    assert whole.prediction == tuple(ids)
    assert whole.prompts == [tuple(tokenizer.chat([{"role": "user", "content": "Count."}]))]
    assert whole.rest == b""
    assert read(0, "").prediction == ()
    context = len(whole.prompts[0]) + 1
    long = ", ".join(["one"] * context)
    assert read(context, long).prediction == tuple(tokenizer.encode_part(long)[:context])
    with pytest.raises(ApiError):
        read(context, "word " * 10_000)
