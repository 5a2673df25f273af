"""Every error in OpenAI's shape, with the status that its client turns into the right exception."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx2
import openai
import pytest
from sealring_model import tiny
from sealring_model.loading.model_folder import describe
from sealring_protocol.limits import MAX_BIAS

from tests.api.conftest import Served

CONTEXT = describe(tiny.path()).context
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello."}]
FUNCTION = {"type": "function", "function": {"name": "f"}}

REFUSED: dict[str, tuple[str, dict[str, Any], str, str | None]] = {
    # path, what is changed, code, param
    "no messages": (CHAT, {"messages": []}, "invalid_value", "messages"),
    "messages missing": (CHAT, {"messages": None}, "invalid_value", "messages"),
    "a role that is none": (
        CHAT,
        {"messages": [{"role": "boss", "content": "x"}]},
        "invalid_value",
        "messages.0.role",
    ),
    "an image": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "unsupported_parameter",
        "messages.0.content.0",
    ),
    "a part that is none": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
        "invalid_value",
        "messages.0.content",
    ),
    "too hot": (CHAT, {"temperature": 2.1}, "invalid_value", "temperature"),
    "a number as text": (CHAT, {"temperature": "1"}, "invalid_value", "temperature"),
    "no tokens wanted": (CHAT, {"max_tokens": 0}, "invalid_value", "max_tokens"),
    "too many choices": (CHAT, {"n": 129}, "invalid_value", "n"),
    "too many stops": (CHAT, {"stop": ["a"] * 129}, "invalid_value", "stop"),
    "stops too long together": (CHAT, {"stop": ["a" * 1000] * 17}, "invalid_value", "stop"),
    "a stop token beyond": (CHAT, {"stop_token_ids": [99999]}, "invalid_value", "stop_token_ids"),
    "an end and a beginning": (
        CHAT,
        {"continue_final_message": True, "add_generation_prompt": True},
        "invalid_value",
        "continue_final_message",
    ),
    "documents": (CHAT, {"documents": [{"text": "x"}]}, "unsupported_parameter", "documents"),
    "bias of a word": (CHAT, {"logit_bias": {"fox": 1}}, "invalid_value", "logit_bias.fox"),
    "bias beyond": (CHAT, {"logit_bias": {"99999": 1}}, "invalid_value", "logit_bias"),
    "bias twice": (CHAT, {"logit_bias": {"7": 1, "07": 2}}, "invalid_value", "logit_bias"),
    "too many logprobs": (
        CHAT,
        {"logprobs": True, "top_logprobs": 21},
        "invalid_value",
        "top_logprobs",
    ),
    "top without logprobs": (CHAT, {"top_logprobs": 3}, "invalid_value", "top_logprobs"),
    "a schema": (
        CHAT,
        {"response_format": {"type": "json_schema"}},
        "missing_required_parameter",
        "response_format.json_schema.schema",
    ),
    "speech": (CHAT, {"modalities": ["audio"]}, "unsupported_parameter", "modalities"),
    "an old function that is none": (
        CHAT,
        {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
        "invalid_value",
        "function_call",
    ),
    "a tool that is none": (
        CHAT,
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "invalid_value",
        "tool_choice",
    ),
    "tools required": (CHAT, {"tool_choice": "required"}, "invalid_value", "tool_choice"),
    "a template's own": (
        CHAT,
        {"chat_template_kwargs": {"chat_template": "{% for x in range(1000000000) %}{% endfor %}"}},
        "invalid_value",
        "chat_template_kwargs",
    ),
    "a template's messages": (
        CHAT,
        {"chat_template_kwargs": {"messages": []}},
        "invalid_value",
        "chat_template_kwargs",
    ),
    "where an answer begins": (
        CHAT,
        {"chat_template_kwargs": {"go_on": True}},
        "invalid_value",
        "chat_template_kwargs",
    ),
    "whether one begins": (
        CHAT,
        {"chat_template_kwargs": {"begin_answer": False}},
        "invalid_value",
        "chat_template_kwargs",
    ),
    "too many biases": (
        CHAT,
        {"logit_bias": {str(token): 1 for token in range(MAX_BIAS + 1)}},
        "invalid_value",
        "logit_bias",
    ),
    "a message that is none": (CHAT, {"messages": ["x"]}, "invalid_value", "messages.0"),
    "no prompt": (TEXT, {}, "missing_required_parameter", "prompt"),
    "nothing in the prompt": (TEXT, {"prompt": ""}, "empty_prompt", "prompt"),
    "nothing in one prompt": (TEXT, {"prompt": ["Hello", ""]}, "empty_prompt", "prompt"),
    "no ids": (TEXT, {"prompt": []}, "invalid_value", "prompt"),
    "mixed prompts": (TEXT, {"prompt": ["a", 1]}, "invalid_value", "prompt"),
    "an id beyond": (TEXT, {"prompt": [1, 99999]}, "invalid_value", "prompt"),
    "best of others": (TEXT, {"prompt": "x", "best_of": 3}, "unsupported_parameter", "best_of"),
    "a gap": (TEXT, {"prompt": "x", "suffix": "y"}, "unsupported_parameter", "suffix"),
    "scores of an echo in a stream": (
        TEXT,
        {"prompt": "x", "echo": True, "logprobs": 1, "stream": True},
        "unsupported_parameter",
        "stream",
    ),
    "scores of a prompt in a stream": (
        CHAT,
        {"prompt_logprobs": 1, "stream": True},
        "unsupported_parameter",
        "stream",
    ),
    "too many likeliest tokens": (
        CHAT,
        {"prompt_logprobs": 21},
        "invalid_value",
        "prompt_logprobs",
    ),
    "all of the vocabulary": (
        TEXT,
        {"prompt": "x", "prompt_logprobs": -1},
        "invalid_value",
        "prompt_logprobs",
    ),
    "choices over prompts": (TEXT, {"prompt": ["x"] * 65, "n": 2}, "invalid_value", "n"),
}


@pytest.mark.parametrize(("path", "change", "code", "param"), REFUSED.values(), ids=REFUSED)
def test_refused(
    ring: Served, path: str, change: dict[str, Any], code: str, param: str | None
) -> None:
    base = {"model": "tiny"} | ({"messages": HELLO} if path == CHAT else {})
    answer = ring.post(base | change, path)
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param)
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) > 10
    assert answer.headers["x-request-id"]
    assert answer.headers["x-should-retry"] == "false"


def test_the_log_says_what_was_wrong(ring: Served) -> None:
    wide = "x\n\u2028" * 1000
    for change, said in (
        ({"top_p": 2}, r"invalid_value \(top_p: Input should be less than .* 1\); "),
        ({"model": wide}, r"invalid_value \(model: .*\); "),
        ({"guided_json": wide}, r"invalid_value \('guided_json' is no JSON.\); "),
        (
            {"messages": [{"role": "user", "content": "fox " * 3000}]},
            r"context_length_exceeded \(messages: .* tokens.*\); ",
        ),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": wide}}},
            r"invalid_value \(tool_choice.*\); ",
        ),
        (
            {"guided_json": {"$ref": f"#/{wide}"}},
            r"unsupported_form \('guided_json' .*\.\.\.\); ",
        ),
    ):
        answer = ring.post({"model": "tiny", "messages": HELLO, **change})
        assert answer.status_code == 400, answer.text
        name = answer.headers["x-request-id"]
        ring.trace(name)
        log = ring.head.log.read_text().split("\n")
        (line,) = (line for line in log if f" {name}" in line and " ms: " in line)
        assert re.search(said + r"[0-9.]+ ms: body ", line), line
        assert "0 out" not in line
        assert "first token" not in line
        assert len(line) < 1000


IGNORED: dict[str, Any] = {
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "store": False,
    "user": "somebody",
    "verbosity": "low",
    "something_new": [1, {"x": None}],
    "parallel_tool_calls": True,
    "tools": [],
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "n": None,
    "stop": None,
    "top_k": -1,
    "reasoning_effort": "low",
}


def test_what_needs_no_answer_is_let_pass(ring: Served) -> None:
    answer = ring.post(ring.chat("Hello.", max_tokens=2, **IGNORED))
    assert answer.status_code == 200, answer.text


def test_the_context_is_full_and_the_numbers_say_how(ring: Served) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ring.openai.chat.completions.create(**ring.chat("fox " * 3000))
    assert caught.value.code == "context_length_exceeded"
    assert f"maximum context length is {CONTEXT} tokens" in caught.value.message
    assert "However, your prompt has " in caught.value.message
    assert "Please reduce its length" in caught.value.message


def test_a_model_that_is_not_there(ring: Served) -> None:
    for ask in (
        lambda: ring.openai.chat.completions.create(**ring.chat("x") | {"model": "gpt-4o"}),
        lambda: ring.openai.models.retrieve("gpt-4o"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()
        assert caught.value.code == "model_not_found"
        assert "there is 'tiny'" in caught.value.message


def test_a_ring_that_is_not_up(ring: Served) -> None:
    health, answer, ready, live = ring.alone
    assert live.status_code == 200
    assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
    assert any(reason.startswith("rank 1 (rank1)") for reason in ready.json()["reasons"])
    assert health.status_code == answer.status_code == 503
    error = answer.json()["error"]
    assert error["code"] == "ring_not_ready"
    for message in (" ".join(health.json()["faults"]), error["message"]):
        assert "rank 1 (rank1) cannot be reached at 127.0.0.1:" in message
        assert ": Connection refused" in message
    assert error["message"].startswith("The ring is not up: ")
    assert "start that node, correct its address in the roster" in error["message"]
    why = next(each for each in health.json()["why"] if each["rank"] == 1)
    assert why["cause"] == "unreachable"
    assert why["advice"].startswith("Nothing listens there")
    assert int(answer.headers["retry-after"]) >= 1
    assert "x-should-retry" not in answer.headers


def test_a_busy_ring_says_when_to_come_back(team: Served) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        team.openai.chat.completions.create(**team.chat("endless", n=128, max_tokens=5))
    assert caught.value.code == "rate_limit_exceeded"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30
    team.until("/v1/cluster", lambda told: told["requests"] == [] and told["ranks"][0]["rows"] == 0)


@pytest.mark.slow
def test_an_answer_that_takes_too_long(team: Served) -> None:
    async def ask() -> tuple[httpx2.Response, httpx2.Response]:
        headers = team.http.headers
        async with httpx2.AsyncClient(base_url=team.url, headers=headers, timeout=60) as http:
            body = team.chat("endless")
            return await asyncio.gather(
                http.post(CHAT, json=body), http.post(CHAT, json=body | {"stream": True})
            )

    whole, stream = asyncio.run(ask())
    assert whole.status_code == 504
    assert whole.json()["error"]["code"] == "timeout"
    assert stream.status_code == 200
    last = json.loads(stream.text.strip().rsplit("data: ", 1)[1])
    name = stream.headers["x-request-id"]
    assert last == {"id": name, **whole.json(), "resumable": False}
    assert team.trace(name)["state"] == "timeout"
