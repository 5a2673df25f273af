"""Anthropic's messages: as they are sent, and through the official client where it is installed."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from sealring.dialects.anthropic import MessagesRequest, convert
from sealring.dialects.fields import IGNORED_HEADER

from tests.api.conftest import PATIENCE, Served
from tests.api.test_shapes import events

PATH = "/v1/messages"
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def asks(served: Served, text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": served.model, "messages": messages, "max_tokens": 64, **more}


ANSWERS: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]], str, str | None]] = {
    # the prompt, what is asked beside it, the blocks, and why they end
    "text": ("fruit", {}, [{"text": "apple banana cherry"}], "end_turn", None),
    "nothing": ("nothing", {}, [], "end_turn", None),
    "cut off": ("endless", {"max_tokens": 3}, [{"text": "lalala"}], "max_tokens", None),
    "a stop sequence": (
        "fruit",
        {"stop_sequences": ["never", "banana"]},
        [{"text": "apple "}],
        "stop_sequence",
        "banana",
    ),
    "thinking": (
        "think",
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        [{"thinking": "I ponder.\n", "signature": "unsigned"}, {"text": "The answer."}],
        "end_turn",
        None,
    ),
    "a call": (
        "weather",
        {"tools": [TOOL]},
        [{"name": "get_weather", "input": {"city": "Paris"}}],
        "tool_use",
        None,
    ),
    "a call that must be": (
        "fruit",
        {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        [{"name": "get_weather", "input": {"city": "Paris"}}],
        "tool_use",
        None,
    ),
    "no call": (
        "weather",
        {"tools": [TOOL], "tool_choice": {"type": "none"}, "max_tokens": 1},
        [{"text": "<tool_call>"}],
        "max_tokens",
        None,
    ),
}


@pytest.mark.parametrize(
    ("text", "more", "blocks", "reason", "stop"), ANSWERS.values(), ids=ANSWERS
)
def test_answers_whole_and_streamed(
    team: Served,
    text: str,
    more: dict[str, Any],
    blocks: list[dict[str, Any]],
    reason: str,
    stop: str | None,
) -> None:
    whole = team.post(asks(team, text, **more), PATH)
    assert whole.headers["request-id"] == whole.json()["id"]
    told = whole.json()
    assert [
        {name: value for name, value in block.items() if name not in ("type", "id")}
        for block in told["content"]
    ] == blocks
    assert (told["stop_reason"], told["stop_sequence"]) == (reason, stop)
    begun, ping, *filled, ended, last = events(
        team.post(asks(team, text, **more, stream=True), PATH)
    )
    assert (ping, last) == ({"type": "ping"}, {"type": "message_stop"})
    message = begun["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert ended["delta"] == {"stop_reason": reason, "stop_sequence": stop}
    assert ended["usage"] == told["usage"]
    assert added_up(filled) == [
        {name: value for name, value in block.items() if name != "id"} for block in told["content"]
    ]


def added_up(filled: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that the events of a stream make, without ids. Each is begun, filled, ended."""
    blocks: list[dict[str, Any]] = []
    opened = False
    for each in filled:
        match each["type"]:
            case "content_block_start":
                assert not opened
                block = each["content_block"]
                block.pop("id", None)
                blocks.append(block)
                given, opened = "", True
            case "content_block_delta":
                match each["delta"]:
                    case {"type": "input_json_delta", "partial_json": part}:
                        given += part
                    case {"type": kind, **rest}:
                        ((name, value),) = rest.items()
                        assert kind == f"{name}_delta"
                        blocks[-1][name] += value
            case "content_block_stop":
                opened = False
                if given:
                    blocks[-1]["input"] = json.loads(given)
        assert each["index"] == len(blocks) - 1
    assert not opened
    return blocks


def test_a_limit_beyond_the_context(team: Served, ring: Served) -> None:
    body = asks(ring, "Tell me a story.", max_tokens=1 << 20)
    long = "fox " * 20_000
    refused = ring.post(asks(ring, long), PATH)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("prompt is too long: ")
    counted = ring.post({"model": ring.model, "messages": [{"role": "user", "content": long}]},
                        f"{PATH}/count_tokens")  # fmt: skip
    assert counted.json()["input_tokens"] > 2048
    answer = ring.post(body | {"temperature": 0}, PATH).json()
    assert answer["stop_reason"] in ("end_turn", "model_context_window_exceeded")


REFUSED: dict[str, tuple[dict[str, Any], int, str, str]] = {
    # what is changed, the status, the type of error, and what its message names
    "no limit": ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
    "no model": ({"model": "claude"}, 404, "not_found_error", "claude"),
    "no messages": ({"messages": []}, 400, "invalid_request_error", "messages"),
    "a role": ({"messages": [{"role": "tool", "content": "x"}]}, 400, "invalid_request_error",
               "messages.0.role"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400,
                 "invalid_request_error", "messages.0.content.0"),
    "a document": ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, 400,
                   "invalid_request_error", "document"),
    "a call without a result": ({"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f"}]},
    ]}, 400, "invalid_request_error", "result"),
    "a server's tool": ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400,
                        "invalid_request_error", "bash_20250124"),
    "another server": ({"mcp_servers": [{"url": "x"}]}, 400, "invalid_request_error", "server"),
    "an unknown choice": ({"tool_choice": {"type": "some"}}, 400, "invalid_request_error",
                          "tool_choice.type: Input should be 'auto', 'any'"),
    "too hot": ({"temperature": 1.5}, 400, "invalid_request_error", "temperature"),
    "a choice of none": ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tools"),
    "a call of nothing": ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]},
                                        {"role": "user", "content": "x"}]}, 400,
                          "invalid_request_error", "messages.0.content.0"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "status", "kind", "word"), REFUSED.values(), ids=REFUSED)
def test_refused(team: Served, change: dict[str, Any], status: int, kind: str, word: str) -> None:
    answer = team.post(asks(team, "fruit") | change, PATH)
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert (told["type"], told["error"]["type"]) == ("error", kind)
    assert word in told["error"]["message"]


def test_errors_of_all_kinds_have_anthropic_s_form(team: Served, ring: Served) -> None:
    def form(answer: httpx2.Response) -> tuple[int, str]:
        assert answer.headers["request-id"]
        assert set(answer.json()) == {"type", "error"}
        return answer.status_code, answer.json()["error"]["type"]

    http, json = team.http, {"content-type": "application/json"}
    assert form(http.get(f"{PATH}/nothing")) == (404, "not_found_error")
    assert form(http.get(PATH)) == (405, "invalid_request_error")
    assert form(http.post(PATH, content=b"{", headers=json)) == (400, "invalid_request_error")
    assert form(http.post(PATH, content=b"x")) == (415, "invalid_request_error")
    large = {**json, "content-length": str(9 << 20)}
    assert form(http.post(PATH, content=bytes(9 << 20), headers=large)) == (
        413,
        "request_too_large",
    )
    assert form(httpx2.post(team.url + PATH)) == (401, "authentication_error")
    wrong = {"x-api-key": "wrong"}
    assert form(httpx2.post(team.url + PATH, headers=wrong)) == (401, "authentication_error")
    evil = {"origin": "http://evil.example"}
    assert form(ring.http.post(PATH, headers=evil)) == (403, "permission_error")


def test_a_key_of_its_own_header(team: Served) -> None:
    key = team.http.headers["authorization"].removeprefix("Bearer ")
    headers = {"x-api-key": key, "anthropic-version": "2023-06-01", "anthropic-beta": "x,y"}
    answer = httpx2.post(team.url + PATH, json=asks(team, "fruit"), headers=headers)
    assert answer.status_code == 200
    assert team.trace(answer.json()["id"])["owner"] == "alice"


def test_an_agent_s_turns_become_messages() -> None:
    """What Claude Code sends: a system prompt in blocks, reminders, thinking, calls, results."""
    cached = {"cache_control": {"type": "ephemeral"}}
    body = {
        "model": "m",
        "max_tokens": 9,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"},
            {"type": "text", "text": "A", **cached},
            {"type": "text", "text": "B"},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "C"}]},
            {"role": "user", "content": "D"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "E", "signature": "unsigned"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "F"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "2", "name": "g", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "G", **cached},
                {"type": "tool_result", "tool_use_id": "2", "is_error": True,
                 "content": [{"type": "text", "text": "H"}]},
                {"type": "text", "text": "I"},
            ]},
            {"role": "system", "content": "J"},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, **cached}],
        "tool_choice": {"type": "tool", "name": "f"},
        "thinking": {"type": "disabled"},
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": []},
        "top_k": 3,
    }  # fmt: skip
    told = convert(MessagesRequest.model_validate(body)).model_dump(exclude_none=True)
    calls = told["messages"][2].pop("tool_calls")
    assert [(call["id"], call["function"]) for call in calls] == [
        ("1", {"name": "f", "arguments": '{"a": 1}'}),
        ("2", {"name": "g", "arguments": "{}"}),
    ]
    assert told["messages"] == [
        {"role": "system", "content": "A\n\nB"},
        {"role": "user", "content": "C\n\nD"},
        {"role": "assistant", "content": "F", "reasoning_content": "E"},
        {"role": "tool", "tool_call_id": "1", "content": "G"},
        {"role": "tool", "tool_call_id": "2", "content": "Error: H"},
        {"role": "user", "content": "I\n\n<system-reminder>\nJ\n</system-reminder>"},
    ]
    assert told["tool_choice"]["function"] == {"name": "f"}
    assert (told["reasoning_effort"], told["top_k"]) == ("none", 3)


SEARCHED = {
    "type": "web_search_tool_result",
    "tool_use_id": "s1",
    "content": [
        {"type": "web_search_result", "url": "https://a.example", "title": "Foxes",
         "encrypted_content": "AAAA", "page_age": None},
    ],
}  # fmt: skip
IN_TEXT: dict[str, tuple[dict[str, Any], str, str]] = {
    # a block, whose it is, and what the model reads
    "a document": (
        {"type": "document", "title": "T",
         "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
        "user", "T\nD",
    ),
    "a document of blocks": (
        {"type": "document",
         "source": {"type": "content", "content": [{"type": "text", "text": "D"}]}},
        "user", "D",
    ),
    "a text in base64": (
        {"type": "document",
         "source": {"type": "base64", "media_type": "text/plain", "data": "RA=="}},
        "user", "D",
    ),
    "a search result": (
        {"type": "search_result", "source": "https://a.example", "title": "T",
         "content": [{"type": "text", "text": "D"}], "citations": {"enabled": True}},
        "user", "T\nhttps://a.example\nD",
    ),
    "a tool reference": (
        {"type": "tool_result", "tool_use_id": "1",
         "content": [{"type": "tool_reference", "tool_name": "f"}]},
        "user", "[tool: f]",
    ),
    "what a server ran": (
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "fox"}},
        "assistant", '[server_tool_use: {"name": "web_search", "input": {"query": "fox"}}]',
    ),
    "what it found": (
        SEARCHED, "assistant",
        '[web_search_tool_result: {"content": [{"type": "web_search_result", '
        '"title": "Foxes", "url": "https://a.example"}]}]',
    ),
    "why it did not": (
        {"type": "web_search_tool_result", "tool_use_id": "s1",
         "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"}},
        "assistant",
        '[web_search_tool_result: {"content": {"type": "web_search_tool_result_error", '
        '"error_code": "unavailable"}}]',
    ),
    "an image of earlier": (
        {"type": "image", "source": {"type": "base64", "data": "AA=="}},
        "user", "[image left out: this model reads text alone]",
    ),
    "a file of earlier": (
        {"type": "document", "source": {"type": "url", "url": "https://a.example/x.pdf"}},
        "user", "[document left out: this model reads text alone]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("block", "role", "text"), IN_TEXT.values(), ids=IN_TEXT)
def test_blocks_that_are_text_here(
    team: Served, block: dict[str, Any], role: str, text: str
) -> None:
    others = {"user": "assistant", "assistant": "user"}
    turns = [{"role": role, "content": [block]}, {"role": others[role], "content": "Well."}]
    asked = {"model": team.model, "max_tokens": 9, "messages": turns}
    body = {**asked, "messages": [*turns, {"role": "user", "content": "fruit"}]}
    message, *_ = convert(MessagesRequest.model_validate(body)).messages
    # What a search found is no part of the answer, and stands with the user's next words.
    assert message.text.partition("\n\nWell.")[0] == text
    answer = team.post(body, PATH)
    assert answer.status_code == 200, answer.text
    assert answer.json()["content"] == [{"type": "text", "text": "apple banana cherry"}]
    named = "messages.0.content.0" if "left out" in text else None
    assert answer.headers.get(IGNORED_HEADER) == named
    if named:  # it cannot be left out of what is asked now
        last = team.post({**body, "messages": turns[:1]}, PATH)
        assert (last.status_code, named in last.text) == (400, True)


def test_an_answer_that_has_begun_goes_on(team: Served) -> None:
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": " fruit"}]
    for begun in ("fruit", [{"type": "text", "text": "fruit"}]):
        turns[1]["content"] = begun
        answer = team.post(asks(team, "x", messages=turns), PATH).json()
        assert answer["content"] == [{"type": "text", "text": "apple banana cherry"}]


def test_tools_that_a_server_would_run_are_left_out(team: Served) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}, TOOL]
    answer = team.post(asks(team, "weather", tools=tools), PATH)
    assert answer.headers[IGNORED_HEADER] == "tools.web_search_20250305"
    assert answer.json()["stop_reason"] == "tool_use"
    counted = team.post({"model": team.model, "messages": asks(team, "x")["messages"],
                         "tools": tools[:1]}, f"{PATH}/count_tokens")  # fmt: skip
    assert counted.headers[IGNORED_HEADER] == "tools.web_search_20250305"


def test_the_official_client(team: Served) -> None:
    anthropic = pytest.importorskip("anthropic", reason="uv sync --group clients")
    key = team.http.headers["authorization"].removeprefix("Bearer ")
    with anthropic.Anthropic(
        base_url=team.url, api_key=key, max_retries=0, timeout=PATIENCE
    ) as client:
        asked = asks(team, "weather", tools=[TOOL])
        made = client.messages.create(**asked)
        (use,) = made.content
        assert (made.stop_reason, use.type, use.input) == (
            "tool_use",
            "tool_use",
            {"city": "Paris"},
        )
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "think"}
        turns = [
            *asked["messages"],
            {"role": "assistant", "content": made.content},
            {"role": "user", "content": [result]},
        ]
        with client.messages.stream(**asked | {"messages": turns}) as stream:
            text = "".join(stream.text_stream)
            last = stream.get_final_message()
        assert text == "The answer."
        assert [block.type for block in last.content] == ["thinking", "text"]
        assert last.content[0].thinking == "I ponder.\n"
        counted = client.messages.count_tokens(model=team.model, messages=asked["messages"])
        assert counted.input_tokens == 1
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**asked | {"model": "claude"})
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="wrong").messages.create(**asked)
        image = {"role": "user", "content": [{"type": "image", "source": {}}]}
        with pytest.raises(anthropic.BadRequestError, match="image"):
            client.messages.create(**asked | {"messages": [image]})
