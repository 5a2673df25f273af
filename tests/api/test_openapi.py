"""The description of the API says what the API does: all of it, and no answer is otherwise."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import jsonschema
import pytest
from sealring.http import app as unserved
from sealring.http.openapi import OPERATIONS, document
from sealring_trio.node.service import this_build

from tests.api.conftest import Served

CHAT = "/v1/chat/completions"


def place_of(document: dict[str, Any], path: str, method: str, status: int) -> dict[str, Any]:
    responses = document["paths"][path][method.lower()]["responses"]
    return dict(responses.get(str(status), responses["default"]))


def check(served: Served, answer: Any, path: str) -> Any:
    """That *answer* is one that the document has for *path*; its body."""
    told = document()
    response = place_of(told, path, answer.request.method, answer.status_code)
    kind = answer.headers["content-type"].partition(";")[0]
    content = response["content"][kind]
    body = answer.json() if kind == "application/json" else answer.text
    schema, bodies = content.get("schema"), [body]
    if kind == "text/event-stream":
        *events, last = (part.removeprefix("data: ") for part in body.rstrip().split("\n\n"))
        schema, bodies = content["x-event-data"], [json.loads(event) for event in events]
        assert last == "[DONE]"
    validator = jsonschema.Draft202012Validator(schema | {"components": told["components"]})
    for each in bodies:
        validator.validate(each)
    return body


def test_it_is_public_and_describes_every_body(team: Served) -> None:
    answer = httpx2.get(f"{team.url}/openapi.json")
    assert answer.status_code == 200
    assert answer.json() == json.loads(json.dumps(document()))
    assert answer.json()["openapi"].startswith("3.1")
    chat = document()["components"]["schemas"]["ChatRequest"]
    jsonschema.Draft202012Validator.check_schema(chat)
    assert "messages" in chat["required"]
    assert document()["paths"]["/health"]["get"]["security"] == []
    assert "security" not in document()["paths"][CHAT]["post"]


def test_every_answer_has_the_version_that_other_ranks_hear(ring: Served) -> None:
    cluster, version = (
        httpx2.get(f"{ring.url}/{path}").json() for path in ("v1/cluster", "version")
    )
    assert cluster["version"] == version["version"] == this_build().version
    assert document()["info"]["version"] == this_build().version


def test_answers_are_as_described(ring: Served) -> None:
    body = ring.chat("Tell me a story.", max_tokens=3)
    usage = {"include_usage": True, "continuous_usage_stats": True}
    for change in ({}, {"logprobs": True, "top_logprobs": 2, "n": 2}, {"stream_options": usage}):
        check(ring, ring.post(body | change), CHAT)
        check(ring, ring.post(body | change | {"stream": True}), CHAT)
    check(ring, ring.post(body | {"n": 0}), CHAT)
    text = {"model": "tiny", "prompt": "Hello", "max_tokens": 2}
    for change in ({}, {"logprobs": 2}, {"logprobs": 0}, {"echo": True, "n": 2}, {"prompt": []}):
        check(ring, ring.post(text | change, "/v1/completions"), "/v1/completions")
        if "prompt" not in change:
            streamed = ring.post(text | change | {"stream": True}, "/v1/completions")
            check(ring, streamed, "/v1/completions")
    name = ring.post(body).headers["x-request-id"]
    for place in OPERATIONS:
        method, path = place.split()
        if method == "GET" and path != "/v1/cluster/events":
            for id in ("tiny", name, "none") if "{id}" in path else ("",):
                check(ring, ring.http.get(path.replace("{id}", id)), path)
    check(ring, ring.http.delete(f"/v1/requests/{name}"), "/v1/requests/{id}")


def test_calls_and_reasoning_are_as_described(team: Served) -> None:
    tool = {"type": "function", "function": {"name": "get_weather"}}
    called = check(team, team.post(team.chat("weather", tools=[tool])), CHAT)
    assert called["choices"][0]["message"]["tool_calls"]
    check(team, team.post(team.chat("weather", tools=[tool], stream=True)), CHAT)
    nothing = {"model": "scripted", "prompt": "nothing", "logprobs": 2}
    check(team, team.post(nothing, "/v1/completions"), "/v1/completions")
    thought = check(team, team.post(team.chat("think")), CHAT)
    assert thought["choices"][0]["message"]["reasoning_content"]


# ---------------------------------------------------------------- smaller endpoints


def test_texts_and_ids(ring: Served) -> None:
    def tokens(**body: Any) -> dict[str, Any]:
        return dict(check(ring, ring.post(body, "/tokenize"), "/tokenize"))

    told = tokens(model="tiny", prompt="Tell me a story.", return_token_strs=True)
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert told["max_model_len"] == ring.http.get("/v1/models").json()["data"][0]["max_model_len"]
    bare = tokens(prompt="Tell me a story.", add_special_tokens=False)
    assert bare["token_strs"] is None
    assert told["tokens"][-bare["count"] :] == bare["tokens"]
    back = check(ring, ring.post({"tokens": bare["tokens"]}, "/detokenize"), "/detokenize")
    assert back == {"prompt": "Tell me a story."}
    body = ring.chat("Tell me a story.", max_tokens=1)
    talk = tokens(messages=body["messages"])
    assert talk["count"] == ring.post(body).json()["usage"]["prompt_tokens"]
    assert tokens(messages=body["messages"], add_generation_prompt=False)["count"] < talk["count"]


WRONG: dict[str, tuple[str, dict[str, Any], int, str | None]] = {
    "no text": ("/tokenize", {}, 400, "prompt"),
    "ids as a text": ("/tokenize", {"prompt": [1]}, 400, "prompt"),
    "another model": ("/tokenize", {"model": "gpt-4o", "prompt": "x"}, 404, "model"),
    "no messages": ("/tokenize", {"messages": []}, 400, "messages"),
    "a template": (
        "/tokenize",
        {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ 1 }}"},
        400,
        "chat_template",
    ),
    "an id beyond": ("/detokenize", {"tokens": [1, 99999]}, 400, "tokens"),
    "no ids": ("/detokenize", {"tokens": ["a"]}, 400, "tokens.0"),
}


@pytest.mark.parametrize(("path", "body", "status", "param"), WRONG.values(), ids=WRONG)
def test_no_texts_and_no_ids(
    ring: Served, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    answer = ring.post(body, path)
    check(ring, answer, path)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_the_model_under_each_of_its_names(team: Served) -> None:
    listed = check(team, team.http.get("/v1/models"), "/v1/models")["data"]
    assert [card["id"] for card in listed] == ["scripted", "gpt-4o", "org/other"]
    for name in ("gpt-4o", "org/other"):
        answer = team.post(team.chat("fruit") | {"model": name}).json()
        assert answer["model"] == name
        assert answer["choices"][0]["message"]["content"] == "apple banana cherry"
        card = team.http.get(f"/v1/models/{name}").json()
        assert (card["id"], card["root"]) == (name, "scripted")
    assert team.post(team.chat("fruit") | {"model": "gpt-4"}).status_code == 404
    can = team.http.get("/v1/models/scripted").json()["capabilities"]
    assert (can["tools"], can["reasoning"], can["fill_in_the_middle"]) == ("template", True, False)


def test_paths_of_other_servers(ring: Served) -> None:
    for path, says in unserved.UNSERVED.items():
        for method in ("GET", "POST"):
            answer = ring.http.request(method, path.replace("{rest:path}", "a/b"), json={})
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "endpoint_not_supported"
            assert answer.json()["error"]["message"] == says
    for path in ("/v1/v1/models", "/chat/completions"):
        assert "ends with /v1, once" in ring.post({}, path).json()["error"]["message"]
    for path in ("/v1/v1/messages", "/v1/v1/messages/count_tokens"):
        error = ring.post({}, path).json()["error"]
        assert "Anthropic's clients take the base URL without /v1." in error["message"]


def test_slashes_too_many(ring: Served, team: Served) -> None:
    for path in ("/v1/models/", "//v1//models", "/v1/models//"):
        assert ring.http.get(f"{ring.url}{path}").json()["data"][0]["id"] == "tiny"
    answer = ring.post(ring.chat("Hello.", max_tokens=1), f"{ring.url}//v1/chat/completions/")
    assert answer.json()["id"].startswith("chatcmpl-")
    for path in ("//v1/models", "/health/../v1/models", "/dashboard/../v1/models", "/v1/models/"):
        answer = httpx2.get(f"{team.url}{path}", headers={"host": "x"})
        assert answer.status_code in (401, 404), path  # no way around the keys
    assert httpx2.get(f"{team.url}/health/").status_code == 200
