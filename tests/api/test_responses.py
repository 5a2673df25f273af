"""OpenAI's responses through the official client, unmodified, and as they are sent."""

from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

import httpx2
import openai
import pytest
from sealring.dialects.replies import About, Delta, Finish, json_bytes
from sealring.dialects.responses import ResponseShape, ResponsesRequest, Wanted, convert
from sealring.generation.trace import Trace
from sealring.http import kept as responses_store
from sealring.http.kept import Kept, ResponseStore
from sealring.text_worker import JOBS
from sealring_model import tiny
from sealring_model.text.readers import CallEnd, CallPart, CallStart
from sealring_model.text.tokens import Tokenizer

from tests.api.conftest import Served
from tests.api.test_shapes import events
from tests.api.test_tools import WEATHER
from tests.io_trio.helpers import sealring

PATH = "/v1/responses"
REF = "item_reference"
TOOL: dict[str, Any] = {"type": "function", **WEATHER["function"]}

BEGUN = ["created", "in_progress"]
MESSAGE = ["output_item.added", "content_part.added"]
WRITTEN = ["output_text.done", "content_part.done", "output_item.done"]
STREAMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    # What is asked, and the events but for deltas of text.
    "text": ({"input": "fruit"}, [*BEGUN, *MESSAGE, *WRITTEN, "completed"]),
    "nothing": ({"input": "nothing"}, [*BEGUN, *MESSAGE, *WRITTEN, "completed"]),
    "cut off": (
        {"input": "endless", "max_output_tokens": 3},
        [*BEGUN, *MESSAGE, *WRITTEN, "incomplete"],
    ),
    "reasoning": (
        {"input": "think"},
        [
            *BEGUN,
            *MESSAGE,
            *("reasoning_text.done", "content_part.done", "output_item.done"),
            *MESSAGE,
            *WRITTEN,
            "completed",
        ],
    ),
    "a summary": (
        {"input": "think", "reasoning": {"summary": "auto"}},
        [
            *BEGUN,
            *("output_item.added", "reasoning_summary_part.added"),
            *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
            *MESSAGE,
            *WRITTEN,
            "completed",
        ],
    ),
    "a call": (
        {"input": "weather", "tools": [TOOL]},
        [
            *BEGUN,
            "output_item.added",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ],
    ),
    "a custom call": (
        {"input": "weather", "tools": [{"type": "custom", "name": "get_weather"}]},
        [
            *BEGUN,
            "output_item.added",
            "custom_tool_call_input.done",
            "output_item.done",
            "completed",
        ],
    ),
}


@pytest.mark.parametrize(("asked", "order"), STREAMS.values(), ids=STREAMS)
def test_the_events_of_a_stream(team: Served, asked: dict[str, Any], order: list[str]) -> None:
    body = {"model": team.model, "temperature": 0, **asked}
    told = events(team.post(body | {"stream": True}, PATH))
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    kinds = [each["type"].removeprefix("response.") for each in told]
    assert [kind for kind in kinds if not kind.endswith(".delta")] == order
    done: list[Any] = []
    text = ""
    for each in told:
        kind = each["type"]
        if "output_index" in each:
            assert each["output_index"] == len(done)
        if kind.endswith("_item.added"):
            text, name = "", each["item"]["id"]
        elif "item_id" in each:
            assert each["item_id"] == name
        if kind.endswith(".delta"):
            text += each["delta"]
        elif kind.endswith(("text.done", "arguments.done", "input.done")):
            assert text == each.get("text", each.get("arguments", each.get("input")))
        elif kind.endswith("_item.done"):
            done.append(each["item"])
    last = told[-1]["response"]
    assert last["output"] == done
    assert last == team.http.get(f"{PATH}/{last['id']}").json()
    whole = team.post(body, PATH).json()
    for changed in ("id", "created_at", "completed_at", "output"):
        last.pop(changed), whole.pop(changed)
    assert whole == last


def test_the_client_s_own_stream(team: Served) -> None:
    with team.openai.responses.stream(
        model=team.model, input="think", tools=[TOOL], include=["message.output_text.logprobs"]
    ) as stream:
        kinds = {event.type for event in stream}
        made = stream.get_final_response()
    assert {"response.reasoning_text.delta", "response.output_text.delta"} <= kinds
    assert made.output_text == "The answer."
    thought, message = made.output
    assert thought.type == "reasoning"
    assert [part.text for part in thought.content or ()] == ["I ponder.\n"]
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert "".join(entry.token for entry in part.logprobs or ()).strip() == "The answer."
    assert made.usage is not None
    assert made.usage.output_tokens == 6
    assert made.usage.output_tokens_details.reasoning_tokens == 4


def test_the_client_s_own_stream_of_an_answer_that_is_cut_off(team: Served) -> None:
    """As docs/clients.md says."""
    asked = {"model": team.model, "input": "endless", "max_output_tokens": 3}
    with team.openai.responses.stream(**asked) as stream:
        last = [*stream][-1]
        with pytest.raises(RuntimeError, match=r"Didn't receive a `response.completed` event"):
            stream.get_final_response()
    assert last.type == "response.incomplete"
    assert last.response.output_text
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_a_call_and_what_it_gave(team: Served) -> None:
    asked: list[Any] = [{"role": "user", "content": "weather"}]
    create = team.openai.responses.create
    made = create(model=team.model, input=asked, tools=[TOOL], tool_choice="required", store=False)
    (call,) = made.output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Paris"}')
    given = {"type": "function_call_output", "call_id": call.call_id, "output": "fruit"}
    again = create(model=team.model, input=[*asked, call.to_dict(), given], tools=[TOOL])
    assert again.output_text == "apple banana cherry"
    with pytest.raises(openai.NotFoundError):
        team.openai.responses.retrieve(made.id)


def test_a_call_that_was_cut_off_is_gone_on_from(team: Served) -> None:
    create = team.openai.responses.create
    first = create(model=team.model, input="weather", tools=[TOOL], max_output_tokens=4)
    (call,) = first.output
    assert call.type == "function_call"
    with pytest.raises(json.JSONDecodeError):
        json.loads(call.arguments)
    given: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "fruit"}
    more = create(model=team.model, input=[given], tools=[TOOL], previous_response_id=first.id)
    assert more.output_text == "apple banana cherry"


def test_a_conversation_goes_on(team: Served) -> None:
    create = team.openai.responses.create
    first = create(model=team.model, input="think", metadata={"a": "b"}, instructions="nothing")
    second = create(model=team.model, input="fruit", previous_response_id=first.id)
    third = create(model=team.model, input="nothing", previous_response_id=second.id)
    assert first.metadata == {"a": "b"}
    assert second.output_text == "apple banana cherry"
    assert second.previous_response_id == first.id
    assert third.usage is not None
    sent = ["think", "The answer.", "fruit", "apple", " ban", "ana", " cherry", "nothing"]
    assert third.usage.input_tokens == len(sent)  # without the first instructions
    (item,) = team.openai.responses.input_items.list(second.id).data
    assert item.type == "message"
    team.openai.responses.delete(first.id)
    for gone in (first.id, "resp_none"):
        with pytest.raises(openai.NotFoundError) as caught:
            create(model=team.model, input="fruit", previous_response_id=gone)
        assert (caught.value.code, caught.value.param) == (
            "response_not_found",
            "previous_response_id",
        )
    more = create(model=team.model, input="fruit", previous_response_id=second.id)
    assert more.output_text == "apple banana cherry"
    with pytest.raises(openai.BadRequestError, match="background"):
        team.openai.responses.cancel(second.id)


def test_nobody_sees_another_s(team: Served) -> None:
    made = team.openai.responses.create(model=team.model, input="fruit")
    config = team.head.config
    other = sealring("apikey", "new", "carol", "--config", config, "--json").json()["key"]
    with httpx2.Client(base_url=team.url, headers={"x-api-key": other}) as http:
        assert http.get(f"{PATH}/{made.id}").status_code == 404
        assert http.get(f"{PATH}/{made.id}/input_items").status_code == 404
        assert http.delete(f"{PATH}/{made.id}").status_code == 404
        body = {"model": team.model, "input": "fruit", "previous_response_id": made.id}
        assert http.post(PATH, json=body).status_code == 404
        theirs, nobody = (
            http.post(PATH, json={"model": team.model, "input": [{"type": REF, "id": name}]})
            for name in (made.output[0].id, "msg_none")
        )
        assert theirs.status_code == nobody.status_code == 404
        told = theirs.json()["error"]
        assert told["message"].startswith(f"Item with id '{made.output[0].id}' not found.")
        told["message"] = told["message"].replace(made.output[0].id or "", "msg_none")
        assert told == nobody.json()["error"]
    assert team.openai.responses.retrieve(made.id).output == made.output
    assert sealring("apikey", "revoke", "carol", "--config", config).code == 0


def test_items_are_referred_to(team: Served) -> None:
    """By their ids, as the AI SDK sends what the server has told and kept: in the answer's order or
    another, from the output or the input, of several responses, beside an earlier response."""
    asked = [{"id": "msg_of_mine", "role": "user", "content": "fruit"}]
    first = team.post({"model": team.model, "input": asked}, PATH).json()
    stream = team.post({"model": team.model, "input": "think", "stream": True}, PATH)
    thought, said = events(stream)[-1]["response"]["output"]
    call = team.post({"model": team.model, "input": "weather", "tools": [TOOL]}, PATH).json()
    call = call["output"][0]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "x"}

    def ask(*items: Any, **more: Any) -> dict[str, Any]:
        body = {"model": team.model, "input": [*items], "tools": [TOOL], **more}
        answer = team.post(body, PATH)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def ref(item: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"type": REF, "id": item["id"], **more}

    whole = [asked[0], first["output"][0], thought, said, call, result, asked[0] | {"id": "other"}]
    one = ask(*whole)
    refs = [ref(each) for each in (asked[0], first["output"][0], thought)]
    two = ask(*refs, {"id": said["id"]}, ref(call), result, {"role": "user", "content": "fruit"})
    assert two["usage"]["input_tokens"] == one["usage"]["input_tokens"] > len(whole)
    texts = [each["content"][0]["text"] for each in (one["output"][0], two["output"][0])]
    assert texts == ["apple banana cherry"] * 2
    # What has been referred to is kept as itself, under its id, and can be referred to again.
    listed = team.http.get(f"{PATH}/{two['id']}/input_items?order=asc&limit=5").json()["data"]
    assert [each["id"] for each in listed] == [each["id"] for each in whole[:5]]
    assert listed[4]["arguments"] == call["arguments"]
    assert team.http.delete(f"{PATH}/{first['id']}").status_code == 200
    three = ask(ref(first["output"][0]), asked[0], previous_response_id=two["id"])
    assert three["usage"]["input_tokens"] > two["usage"]["input_tokens"]
    assert three["output"][0]["content"][0]["text"] == "apple banana cherry"
    # An item that was not kept, and what cannot be meant.
    own = ask(asked[0], store=False)["output"][0]
    for items, status, code in (
        ([ref(own)], 404, "item_not_found"),
        ([ref(said), ref(said)], 400, "invalid_value"),
        ([{"type": REF}], 400, "missing_required_parameter"),
    ):
        error = team.post({"model": team.model, "input": items}, PATH)
        assert (error.status_code, error.json()["error"]["code"]) == (status, code), error.text


def test_the_items_of_an_input(team: Served) -> None:
    texts = ["one", "two", "three", "fruit"]
    items = [{"id": f"item {at}", "role": "user", "content": text} for at, text in enumerate(texts)]
    made = team.post({"model": team.model, "input": items}, PATH).json()

    def listed(**query: Any) -> tuple[list[str], bool]:
        told = team.http.get(f"{PATH}/{made['id']}/input_items", params=query).json()
        ids = [item["id"].removeprefix("item ") for item in told["data"]]
        assert [told["first_id"], told["last_id"]] == [f"item {i}" for i in (ids[0], ids[-1])]
        return ids, told["has_more"]

    assert listed() == (["3", "2", "1", "0"], False)
    assert listed(order="asc", limit=2) == (["0", "1"], True)
    assert listed(order="asc", limit=2, after="item 1") == (["2", "3"], False)
    for wrong in ({"limit": 0}, {"limit": "x"}, {"order": "up"}, {"after": "item 9"}):
        answer = team.http.get(f"{PATH}/{made['id']}/input_items", params=wrong)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in wrong


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    # what is changed, and what is blamed
    "no model here": ({"model": "other"}, "model"),
    "nothing": ({"input": None}, "input"),
    "a number": ({"input": 3}, "input"),
    "an image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input.0.content.0",
    ),
    "an image that a tool gave": (
        {
            "input": [
                {
                    "type": "function_call_output",
                    "call_id": "1",
                    "output": [{"type": "input_image", "image_url": "x"}],
                }
            ]
        },
        "input.0.output.0",
    ),
    "another's item": ({"input": [{"type": "computer_call", "id": "x"}]}, "input.0"),
    "nobody's message": ({"input": [{"content": "x"}]}, "input.0.role"),
    "a nameless call": ({"input": [{"type": "function_call", "call_id": "x"}]}, "input.0"),
    "a hosted tool": ({"tools": [{"type": "file_search"}]}, "tools"),
    "a shell": ({"tools": [{"type": "local_shell"}]}, "tools"),
    "a server's tool": ({"tools": [{"type": "mcp", "server_url": "x"}]}, "tools"),
    "two of one name": ({"tools": [TOOL, {"type": "custom", "name": "get_weather"}]}, "tools"),
    "a choice of none": ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice"),
    "an unknown choice": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}},
        "tool_choice",
    ),
    "in the background": ({"background": True}, "background"),
    "a conversation": ({"conversation": "c"}, "conversation"),
    "a template": ({"prompt": {"id": "p"}}, "prompt"),
    "too hot": ({"temperature": 3}, "temperature"),
    "too many log probabilities": (
        {"max_output_tokens": 1 << 19, "top_logprobs": 9},
        "top_logprobs",
    ),
    "a template's own": ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    "much metadata": ({"metadata": {str(at): "x" for at in range(17)}}, "metadata"),
    "long metadata": ({"metadata": {"x": "x" * 513}}, "metadata.x"),
}


@pytest.mark.parametrize(("change", "param"), REFUSED.values(), ids=REFUSED)
def test_refused(team: Served, change: dict[str, Any], param: str) -> None:
    answer = team.post({"model": team.model, "input": "fruit"} | change, PATH)
    assert answer.status_code == (404 if "model" in change else 400), answer.text
    assert answer.json()["error"]["param"] == param


def test_what_is_no_text_in_an_earlier_turn_is_left_out(team: Served) -> None:
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
    found = {"type": "web_search_call", "id": "ws_1", "status": "completed",
             "action": {"type": "search", "query": "fox"}}  # fmt: skip
    said = {"role": "assistant", "content": "A fox."}
    called = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": "fruit"}
    ask = {"role": "user", "content": "fruit"}
    for items in ([picture, said, ask], [picture, found, said, ask], [picture, called, result]):
        answer = team.post({"model": team.model, "input": items}, PATH)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-sealring-ignored"] == "input.0.content.0"
        last = {"model": team.model, "previous_response_id": answer.json()["id"], "input": "fruit"}
        after = team.post(last, PATH)
        assert after.status_code == 200, after.text
        assert after.headers["x-sealring-ignored"] == "previous_response_id"
    refused = team.post({"model": team.model, "input": [said, picture]}, PATH)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input.1.content.0")
    made = convert(ResponsesRequest.model_validate({"model": "m", "input": [found, said]}), b"")
    assert made.request.messages[0].text == (
        '[web_search_call: {"action": {"type": "search", "query": "fox"}}]'
    )
    data = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,RG9n"}
    asked = {"model": "m", "input": [{"role": "user", "content": [data]}]}
    made = convert(ResponsesRequest.model_validate(asked), b"")
    assert made.request.messages[0].text == "a.txt:\nDog"


def test_the_tokens_of_a_prompt_are_counted(team: Served) -> None:
    def count(**body: Any) -> Any:
        return team.post({"model": team.model, **body}, f"{PATH}/input_tokens")

    first = team.post({"model": team.model, "input": "fruit"}, PATH).json()
    assert count(input="fruit").json() == {
        "object": "response.input_tokens",
        "input_tokens": first["usage"]["input_tokens"],
    }
    more = {"previous_response_id": first["id"], "input": "weather", "instructions": "think"}
    second = team.post({"model": team.model, **more}, PATH).json()
    assert count(**more).json()["input_tokens"] == second["usage"]["input_tokens"]
    lost = count(previous_response_id="resp_x", input="x")
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "response_not_found")
    assert count(input="x", tempo=1).headers["x-sealring-ignored"] == "tempo"
    compact = team.post({"model": team.model, "input": "x"}, f"{PATH}/compact")
    assert compact.status_code == 404
    assert compact.json()["error"]["code"] == "endpoint_not_supported"
    assert "summary" in compact.json()["error"]["message"]


def test_what_is_left_out_is_told(team: Served) -> None:
    tools = [{"type": "web_search", "external_web_access": True}, {"type": "tool_search"}, TOOL]
    for stream in (False, True):
        body = {"model": team.model, "input": "fruit", "tools": tools, "stream": stream}
        answer = team.post(body, PATH)
        assert answer.headers["x-sealring-ignored"] == "tools.tool_search, tools.web_search"


def test_an_agent_s_turns_become_messages() -> None:
    """What Codex sends: instructions, a developer's message, free-text tools, namespaces, and the
    items of the turns before."""
    free = {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": {
        "type": "grammar", "syntax": "lark", "definition": "start: LINE"}}  # fmt: skip
    group = {"type": "namespace", "name": "mcp", "tools": [TOOL]}
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "B"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "C"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "D"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "E"}]},
        {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": 'F"'},
        {"type": "function_call", "call_id": "2", "name": "get_weather", "namespace": "mcp",
         "arguments": "{}"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "G"},
        {"type": "function_call_output", "call_id": "2", "output": [
            {"type": "input_text", "text": "H"}]},
        {"type": "message", "role": "assistant", "content": "I"},
        {"type": "message", "role": "assistant", "content": "J"},
        {"type": "message", "role": "user", "content": "K"},
    ]  # fmt: skip
    body = {"model": "m", "instructions": "A", "input": items, "tools": [free, group],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [
                {"type": "custom", "name": "apply_patch"}]},
            "reasoning": {"effort": "low"}}  # fmt: skip
    made = convert(ResponsesRequest.model_validate(body), b"")
    told = made.request.model_dump(exclude_none=True)
    calls = told["messages"][2].pop("tool_calls")
    assert [(call["id"], call["function"]) for call in calls] == [
        ("1", {"name": "apply_patch", "arguments": '{"input": "F\\""}'}),
        ("2", {"name": "mcp__get_weather", "arguments": "{}"}),
    ]
    assert told["messages"] == [
        {"role": "system", "content": "A\n\nB"},
        {"role": "user", "content": "C"},
        {"role": "assistant", "content": "E", "reasoning_content": "D"},
        {"role": "tool", "tool_call_id": "1", "content": "G"},
        {"role": "tool", "tool_call_id": "2", "content": "H"},
        {"role": "assistant", "content": "I"},
        {"role": "assistant", "content": "J"},
        {"role": "user", "content": "K"},
    ]
    (tool,) = told["tools"]
    assert tool["function"]["name"] == "apply_patch"
    about = tool["function"]["parameters"]["properties"]["input"]["description"]
    assert about.endswith("(lark):\nstart: LINE")
    assert (told["tool_choice"], told["reasoning_effort"]) == ("required", "low")
    assert made.names["mcp__get_weather"] == ("get_weather", "mcp", False)
    about = About("r", 0, "m", "f", Trace("r", "responses", "", began=0.0))
    shape = ResponseShape(about, Wanted(b"{}", made.names, False), None, None)
    calls = [
        ("apply_patch", '{"input": "L"}', "3"),
        ("apply_patch", "no JSON", "4"),
        ("mcp__get_weather", "{}", "5"),
    ]
    said = tuple(
        part
        for name, arguments, id in calls
        for part in (CallStart(name, id), CallPart(arguments), CallEnd())
    )
    told = [
        json.loads(shape.event(event).split(b"data: ")[1])
        for event in shape.add(Delta(0, said, (), finish=Finish("tool_calls")))
    ]
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert [(each["type"], each["call_id"], each.get("input")) for each in done] == [
        ("custom_tool_call", "3", "L"),
        ("custom_tool_call", "4", "no JSON"),
        ("function_call", "5", None),
    ]
    assert (done[2]["name"], done[2]["namespace"]) == ("get_weather", "mcp")


def test_the_items_before_are_read_with_the_body() -> None:
    tokenizer = Tokenizer(tiny.path())
    before = b'{"id":"a","role":"user","content":"x"}\n{"id":"b","role":"assistant","content":"y"}'
    about = {"models": ["m"], "context": 0}

    def lengths(body: bytes, **more: Any) -> Any:
        return JOBS["responses"](tokenizer, about | more, body, lambda stage: None)[0]["lengths"]

    body = b'{"model":"m","previous_response_id":"r","input":"z"}'
    assert lengths(body) == [0]
    turns = b',{"role":"assistant","content":"y"},{"role":"user","content":"z"}]}'
    whole = b'{"model":"m","input":[{"role":"user","content":"x"}' + turns
    assert lengths(before + body, before=len(before)) == lengths(whole)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"MAX_KEPT": 100, "MAX_KEPT_OF_ONE": 60, "MAX_KEPT_COUNT": 3, "MAX_KEPT_EACH": 40}
    for name, value in limits.items():
        monkeypatch.setattr(responses_store, name, value)
    store = ResponseStore()

    def keep(owner: str, name: str, size: int) -> None:
        store.keep(owner, name, Kept(b"x" * (size - 1), (), (b"y",), (), account=owner))

    def kept(owner: str) -> list[str]:
        return [name for name in "abcdefg" if store.find(owner, name)]

    keep("one", "a", 41)  # too large by itself
    assert kept("one") == []
    for name in "abcd":
        keep("one", name, 10)  # more than three
    assert kept("one") == ["b", "c", "d"]
    keep("one", "e", 40)  # more than 60 bytes
    assert kept("one") == ["c", "d", "e"]
    assert store.find("two", "e") is None
    for name in "ab":
        keep("two", name, 30)  # more than 100 bytes of all: the oldest of whoever has most
    assert (kept("one"), kept("two")) == (["d", "e"], ["b"])
    assert store.drop("one", "e")
    assert not store.drop("one", "e")
    for name in "cdefg":
        keep("three", name, 20)
    assert kept("three") == ["e", "f", "g"]
    assert (kept("one"), kept("two")) == (["d"], ["b"])


def test_kept_responses_of_all_keys_from_one_address_count_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(responses_store, "MAX_KEPT", 1000)
    monkeypatch.setattr(responses_store, "MAX_KEPT_OF_ONE", 500)
    store = ResponseStore()

    def keep(owner: str, name: str, account: str, size: int = 10) -> None:
        store.keep(owner, name, Kept(b"x" * size, (), (), (), account))

    keep("honest", "r", "known", 400)
    keep("shared", "r", "address 1")
    keep("shared", "s", "address 2")
    for at in range(1000):
        keep(f"unknown {at}", "r", "address 1")
    assert store.find("honest", "r")
    assert (store.find("shared", "r"), store.find("unknown 949", "r")) == (None, None)
    assert store.find("shared", "s")  # of another address
    assert all(store.find(f"unknown {at}", "r") for at in range(950, 1000))
    assert store.drop("shared", "s")
    assert not store.drop("shared", "s")


def test_room_for_a_response_is_made_at_once_however_many_have_kept_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def calls(accounts: int) -> int:
        """Calls of Python functions by the `keep` after so many."""
        monkeypatch.setattr(responses_store, "MAX_KEPT", 10 * accounts)
        store = ResponseStore()
        kept = [Kept(b"x" * 10, (), (), (), f"address {at}") for at in range(accounts + 1)]
        for at, each in enumerate(kept[:-1]):
            store.keep(f"unknown {at}", "r", each)
        made = 0

        def count(frame: FrameType, event: str, arg: object) -> None:
            nonlocal made
            made += event == "call"

        sys.setprofile(count)
        try:
            store.keep("one more", "r", kept[-1])
        finally:
            sys.setprofile(None)
        assert store.find("one more", "r")
        assert not store.find("unknown 0", "r")
        return made

    assert calls(5000) == calls(10)


def test_a_kept_item_is_found_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_store, "MAX_KEPT_ITEMS", 5)
    store = ResponseStore()

    def item(name: str, text: str = "") -> bytes:
        return json_bytes({"id": name, "text": text})

    def keep(name: str, *items: tuple[bytes, ...]) -> None:
        store.keep("one", name, Kept(b"", *items, account="one"))

    def found(owner: str, *names: str) -> list[bytes]:
        return [*store.items(owner, [json_bytes(name) for name in names]).values()]

    keep("r", (), (item("a"), item('"\\')), (item("b", "old"),))
    assert found("one", "a", '"\\', "c") == [item("a"), item('"\\')]
    assert found("two", "a") == found("one") == found("one", "") == []
    keep("s", (), (), (item("b", "new"),))
    assert found("one", "b") == [item("b", "new")]
    store.drop("one", "s")
    assert found("one", "b") == [item("b", "old")]
    keep("u", (), (), (item("b", "new"),))
    store.drop("one", "u")
    assert found("one", "b", "c") == [item("b", "old")]
    keep("t", (item("a"), item("b")), (item("c"),), ())
    assert len(found("one", "a", "b", "c", '"\\')) == 3  # six would be too many
    assert store.find("one", "r") is None
