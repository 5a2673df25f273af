"""One question over all kinds of API: the same tokens, in each one's shape, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from sealring.dialects import anthropic as anthropic_input
from sealring.dialects import responses as responses_input
from sealring.dialects.anthropic import MessagesRequest
from sealring.dialects.errors import ApiError
from sealring.dialects.fields import ADAPTED_HEADER, OF_CHAT
from sealring.dialects.replies import json_bytes
from sealring.dialects.responses import ResponsesRequest
from sealring.dialects.schema import ChatRequest, parse, validated
from sealring.generation.trace import Trace, Tracer
from sealring.http.gate import error_response

from tests.api.conftest import Served
from tests.rows import rows

STORY = "Tell me a story about a fox named Pip."
MANY = 24


def events(answer: httpx2.Response) -> list[Any]:
    """The data of a stream's events that have a type, each of which is the event's name."""
    told = []
    for part in answer.text.split("\n\n")[:-1]:
        if not part.startswith(":"):
            name, data = part.split("\n")
            told.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {told[-1]['type']}"
    return told


def asked(served: Served, path: str, stream: bool) -> tuple[str, int, int]:
    """The text of an answer, and the numbers of tokens of its prompt and of itself."""
    common = {"model": served.model, "temperature": 0, "stream": stream}
    messages = [{"role": "user", "content": STORY}]
    match path:
        case "/v1/chat/completions":
            body = {"messages": messages, "max_tokens": MANY}
        case "/v1/responses":
            body = {"instructions": "Be brief.", "input": STORY, "max_output_tokens": MANY}
        case _:
            body = {"system": "Be brief.", "messages": messages, "max_tokens": MANY}
    if "chat" in path:
        body["messages"] = [{"role": "system", "content": "Be brief."}, *messages]
        body |= {"stream_options": {"include_usage": True}} if stream else {}
    answer = served.post(common | body, path)
    assert answer.status_code == 200, answer.text
    return read(path, answer, stream)


def read(path: str, answer: httpx2.Response, stream: bool) -> tuple[str, int, int]:
    match path:
        case "/v1/chat/completions" if stream:
            chunks = [json.loads(part[6:]) for part in answer.text.split("\n\n")[:-2]]
            text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
            usage = chunks[-1]["usage"]
            return text, usage["prompt_tokens"], usage["completion_tokens"]
        case "/v1/chat/completions":
            told, usage = answer.json(), answer.json()["usage"]
            text = told["choices"][0]["message"]["content"]
            return text, usage["prompt_tokens"], usage["completion_tokens"]
        case "/v1/responses":
            told = events(answer)[-1]["response"] if stream else answer.json()
            assert told["incomplete_details"] == {"reason": "max_output_tokens"}
            text = told["output"][0]["content"][0]["text"]
            if stream:
                assert text == "".join(e["delta"] for e in events(answer) if "delta" in e)
            return text, told["usage"]["input_tokens"], told["usage"]["output_tokens"]
        case _ if stream:
            told = events(answer)
            text = "".join(e["delta"]["text"] for e in told if e["type"] == "content_block_delta")
            delta, usage = told[-2]["delta"], told[-2]["usage"]
        case _:
            delta, usage = answer.json(), answer.json()["usage"]
            text = delta["content"][0]["text"]
    assert delta["stop_reason"] == "max_tokens"
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return text, prompt, usage["output_tokens"]


def test_one_question_has_one_answer(ring: Served) -> None:
    paths = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
    answers = {
        (path, stream): asked(ring, path, stream) for path in paths for stream in (False, True)
    }
    (text, prompt, tokens), *rest = set(answers.values())
    assert rest == [], answers
    assert len(text) > MANY
    assert tokens == MANY
    body = {
        "model": "tiny",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": STORY}]}],
    }
    counted = ring.post(body, "/v1/messages/count_tokens")
    assert counted.json() == {"input_tokens": prompt}


ASKED_FOR_MORE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # the field of the length, that of the prompt, and where the answer says why it ended
    "/v1/chat/completions": ("max_tokens", "messages", ("choices", "0", "finish_reason")),
    "/v1/completions": ("max_tokens", "prompt", ("choices", "0", "finish_reason")),
    "/v1/responses": ("max_output_tokens", "input", ("incomplete_details", "reason")),
    "/v1/messages": ("max_tokens", "messages", ("stop_reason",)),
}


@pytest.mark.parametrize("path", rows([*ASKED_FOR_MORE], "/v1/completions", "/v1/responses"))
def test_what_a_request_does_not_say_of_drawing_the_model_s_makers_do(
    ring: Served, path: str
) -> None:
    """The tiny model's say that it is not drawn at random."""
    said = {"messages": [{"role": "user", "content": STORY}], "input": STORY, "prompt": STORY}
    fields = {"/v1/responses": ["input"], "/v1/completions": ["prompt"]}.get(path, ["messages"])
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {"model": ring.model, limit: MANY, **{name: said[name] for name in fields}}

    def answer(**more: Any) -> Any:
        told = ring.post({**body, **more}, path)
        assert told.status_code == 200, told.text
        parts = told.json()
        parts = parts.get("choices") or parts.get("output") or parts.get("content")
        return json.dumps(parts[0].get("content") or parts[0].get("message") or parts[0]["text"])

    surest = answer(temperature=0)
    assert {answer() for _ in range(2)} == {surest}
    assert len({answer(temperature=1) for _ in range(6)}) > 1
    if path == "/v1/responses":
        assert ring.post(body, path).json()["temperature"] == 0


def test_the_card_says_how_answers_are_drawn(ring: Served, team: Served) -> None:
    assert ring.http.get("/v1/models/tiny").json()["sampling"] == {"temperature": 0.0}
    assert team.http.get("/v1/models/scripted").json()["sampling"] == {}  # as its config says


@pytest.mark.slow
@pytest.mark.parametrize("path", ASKED_FOR_MORE)
def test_an_answer_that_may_be_longer_than_the_context_gets_what_there_is(
    ring: Served, path: str
) -> None:
    limit, prompt, place = ASKED_FOR_MORE[path]
    context = ring.http.get("/v1/models/tiny").json()["context_length"]
    story = "Once upon a time there was a fox named Pip. " * 400
    ids = ring.post({"model": ring.model, "prompt": story}, "/tokenize").json()["tokens"]
    text = ring.post({"model": ring.model, "tokens": ids[: context - 14]}, "/detokenize")
    said: Any = text.json()["prompt"]
    if prompt == "messages":
        said = [{"role": "user", "content": said}]
    body = {"model": ring.model, "temperature": 0, prompt: said}
    whole, streamed = (
        ring.post({**body, "stream": stream, limit: 32_000}, path) for stream in (False, True)
    )
    for answer in (whole, streamed):
        assert answer.status_code == 200, answer.text
        assert answer.headers[ADAPTED_HEADER] == limit
    told = whole.json()
    usage = told["usage"]
    assert sum(usage.get(f"{name}_tokens", 0) for name in ("output", "completion")) <= 14
    for part in place:
        told = told[int(part)] if part.isdigit() else told[part]
    assert told in ("length", "max_output_tokens", "model_context_window_exceeded")
    long: Any = story * 2 if prompt != "messages" else [{"role": "user", "content": story * 2}]
    for stream in (False, True):
        fits = ring.post({**body, "stream": stream, limit: 1}, path)
        assert ADAPTED_HEADER not in fits.headers
        refused = ring.post({**body, "stream": stream, prompt: long, limit: 1}, path)
        assert refused.status_code == 400


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_a_stream_that_is_ended_says_so(team: Served, path: str) -> None:
    messages = [{"role": "user", "content": "endless"}]
    body = {"model": team.model, "stream": True, "input": "endless"}
    body |= {"messages": messages, "max_tokens": 1 << 30}
    with team.http.stream("POST", path, json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        name = answer.headers["x-request-id"]
        assert team.http.delete(f"/v1/requests/{name}").status_code == 200
        *_, kind, data = [line for line in lines if line]
    told = json.loads(data.removeprefix("data: "))
    assert team.trace(name)["state"] == "request_cancelled"
    if "responses" in path:
        assert kind == "event: response.failed"
        assert told["response"]["status"] == "failed"
        assert told["response"]["error"]["message"] == "The request was cancelled."
    else:
        assert kind == "event: error"
        assert told["error"]["message"] == "The request was cancelled."


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 1 << 65)
    | st.floats(-3, 3)
    | st.sampled_from(["", "x", "é", "\x00", "user", "assistant", "system", "text", "function"])
    | st.sampled_from(["custom", "namespace", "reasoning", "function_call", "tool_use", "any"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "role",
                    "content",
                    "text",
                    "name",
                    "input",
                    "id",
                    "call_id",
                    "tools",
                    "output",
                ]
            ),
            inner,
        )
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(sorted(ResponsesRequest.model_fields)), VALUES, max_size=4),
    st.dictionaries(st.sampled_from(sorted(MessagesRequest.model_fields)), VALUES, max_size=4),
)
def test_a_body_becomes_an_inner_request_or_is_refused(
    response: dict[str, Any], message: dict[str, Any]
) -> None:
    def responses() -> ChatRequest:
        body = json.dumps({"model": "m", "input": "x"} | response).encode()
        made = responses_input.convert(responses_input.read_responses(body), b"")
        lines = b"\n".join(map(json_bytes, made.items))
        again = {**response, "model": "m", "input": None}
        wanted = responses_input.read_responses(json.dumps(again).encode())
        assert responses_input.convert(wanted, lines).request == made.request
        return made.request

    def messages() -> ChatRequest:
        turns = [{"role": "user", "content": "x"}]
        body = {"model": "m", "max_tokens": 1, "messages": turns} | message
        return anthropic_input.convert(validated(MessagesRequest, parse(json.dumps(body).encode())))

    for convert in (responses, messages):
        given = made_or_refusal(convert)
        if isinstance(given, ApiError):
            assert given.status == 400
            assert len(error_response(given, "/v1/messages").body) < 1000
        else:
            assert given.messages


def made_or_refusal(convert: Callable[[], ChatRequest]) -> ChatRequest | ApiError:
    try:
        return convert()
    except ApiError as error:
        return error


@pytest.mark.parametrize("name", sorted(OF_CHAT))
def test_what_only_chat_has_is_refused_elsewhere(ring: Served, name: str) -> None:
    """Left aside it would change the answer without a word."""
    bodies = {
        "/v1/responses": {"model": ring.model, "input": "Hello."},
        "/v1/messages": {
            "model": ring.model,
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "Hello."}],
        },
    }
    for path, body in bodies.items():
        answer = ring.post({**body, name: 3}, path)
        assert answer.status_code == 400
        assert name in answer.json()["error"]["message"]


def test_a_name_that_a_client_chose_is_one_of_its_own() -> None:
    tracer = Tracer()
    for id, owner in (("a", "alice"), ("b", "bob")):
        tracer.begin(Trace(id, "chat", owner, began=0.0, asked="job-1"))
    assert [each.id for each in tracer.find("job-1", "alice")] == ["a"]
    assert [each.id for each in tracer.find("b", "alice")] == ["b"]
    assert tracer.find("job-1", "carol") == []


def test_what_is_done_for_a_request_that_waits() -> None:
    """In the words of the person who waits, from its header to its first token."""

    async def wait() -> None:
        tracer = Tracer()
        first, second = (Trace(id, "chat", "") for id in "ab")
        for trace in (first, second):
            tracer.begin(trace)
        told = [tracer.doing(second)]
        first.submitted, second.submitted = 1.0, 2.0
        told.append(tracer.doing(first))
        told.append(tracer.doing(second))
        second.opened = trio.current_time()
        second.prompt_tokens, second.cached_tokens, second.read_tokens = 9000, 1000, 2072
        told.append(tracer.doing(second))
        await trio.sleep(20)
        told.append(tracer.doing(second))
        second.first = trio.current_time()
        told.append(tracer.doing(second))
        reading = "reading your prompt: 3,072 of 9,000 tokens"
        assert told == [
            "reading the text of your request",
            "waiting for a place in the ring",
            "1 request is before yours",
            reading,
            f"{reading}; the ring stands still (for 20 s)",
            "",
        ]

    trio.run(wait, clock=trio.testing.MockClock(autojump_threshold=0))
