"""Answers that are held to a form: every field that gives one, through the official client."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from sealring_model import tiny
from sealring_model.text.grammars import grammar_tokenizer, matcher
from sealring_model.text.tokens import Tokenizer, ToolFormat
from sealring_trio.api.errors import ApiError
from sealring_trio.api.holding import chat_grammar
from sealring_trio.api.messages import Conversation, Opening, asked_tools
from sealring_trio.api.schema import ChatRequest, read
from sealring_trio.collective.ports import free_ports
from sealring_trio.local.ring import running_node, wait_until_up, write_cluster

from tests.api.conftest import Served, connected

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"enum": [1, 2, 3]},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/end"}]},
    },
    "required": ["name", "size", "next"],
    "additionalProperties": False,
    "$defs": {"end": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
}
BY_NAME = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "schema": ({"response_format": BY_NAME}, SCHEMA),
    "vllm-schema": ({"structured_outputs": {"json": SCHEMA}}, SCHEMA),
    "schema-text": ({"guided_json": json.dumps(SCHEMA)}, SCHEMA),
    "tight": ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, r"\S.*"),
    "choice": ({"structured_outputs": {"choice": ["yes", 'no "/']}}, r'yes|no "/'),
    "older-choice": ({"guided_choice": ["yes", "no"]}, "yes|no"),
    "regex": ({"structured_outputs": {"regex": r"\d{3}/[a-c]+\."}}, r"\d{3}/[a-c]+\."),
    "older-regex": ({"guided_regex": "a{2,4}"}, "a{2,4}"),
    "lark": ({"structured_outputs": {"grammar": 'start: "x" ("y" | "z")~3'}}, "x[yz]{3}"),
    "gbnf": ({"guided_grammar": 'root ::= "a" "b"? "c"'}, "ab?c"),
}
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
CITY["additionalProperties"] = False
NOTHING = {"type": "object", "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY, "strict": True}},
    {"type": "function", "function": {"name": "other", "parameters": NOTHING}},
]


def ask(ring: Served, **options: Any) -> Any:
    body = ring.chat("Tell me of a thing.", temperature=1, max_tokens=300, **options)
    extra = {name: body.pop(name) for name in [*body] if name.startswith(("guided", "struct"))}
    extra |= {name: body.pop(name) for name in ("bad_words", "min_tokens") if name in body}
    return ring.openai.chat.completions.create(**body, extra_body=extra)


@pytest.mark.parametrize("name", FORMS)
def test_each_field_holds_the_answer(ring: Served, name: str) -> None:
    fields, form = FORMS[name]
    for choice in ask(ring, n=3, seed=7, **fields).choices:
        assert choice.finish_reason == "stop"
        if isinstance(form, str):
            assert re.fullmatch(form, choice.message.content), choice.message.content
        else:
            jsonschema.validate(json.loads(choice.message.content), form)


def test_a_stream_and_a_text_completion_are_held_as_well(ring: Served) -> None:
    whole = ask(ring, seed=5, response_format=BY_NAME).choices[0].message.content
    chunks = ask(ring, seed=5, response_format=BY_NAME, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    answer = ring.openai.completions.create(
        model="tiny", prompt="Once", max_tokens=60, extra_body={"guided_regex": "[a-z ]{9}"}
    )
    assert re.fullmatch("[a-z ]{9}", answer.choices[0].text)


FORMAT = {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}
TOLD = [{"role": "user", "content": "Tell me of a thing."}]
OTHERS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "responses": ("/v1/responses", {"input": "Tell me.", "text": {"format": FORMAT}}, SCHEMA),
    "messages": (
        "/v1/messages",
        {"messages": TOLD, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        SCHEMA,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_apis_hold_an_answer_as_well(ring: Served, name: str) -> None:
    path, fields, form = OTHERS[name]
    limit = {"max_tokens" if path == "/v1/messages" else "max_output_tokens": 500}
    answer = ring.post({"model": "tiny", "temperature": 1, **limit, **fields}, path).json()
    if path == "/v1/messages":
        assert answer["stop_reason"] == "end_turn"
        (block,) = answer["content"]
    else:
        assert answer["status"] == "completed"
        ((block,),) = [item["content"] for item in answer["output"]]
    jsonschema.validate(json.loads(block["text"]), form)


def test_any_object_is_one_however_far_it_gets(ring: Served) -> None:
    form = {"text": {"format": {"type": "json_object"}}}
    body = {"model": "tiny", "temperature": 1, "max_output_tokens": 30, "input": "Tell me."}
    free, held = (ring.post(body | more, "/v1/responses").json() for more in ({}, form))
    first, second = (each["output"][0]["content"][0]["text"] for each in (free, held))
    assert not first.lstrip().startswith("{")
    assert second.lstrip().startswith("{")


STRICT: dict[str, tuple[str, dict[str, Any]]] = {
    "responses": (
        "/v1/responses",
        {
            "input": "Weather?",
            "tools": [{"type": "function", **TOOLS[0]["function"]}],
            "tool_choice": "required",
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "messages": TOLD,
            "max_tokens": 300,
            "tools": [{"name": "get_weather", "input_schema": CITY, "strict": True}],
            "tool_choice": {"type": "any"},
        },
    ),
}


@pytest.mark.parametrize("name", STRICT)
def test_the_other_apis_hold_a_strict_call(ring: Served, name: str) -> None:
    path, fields = STRICT[name]
    response = ring.post({"model": "tiny", "temperature": 1, **fields}, path)
    assert response.headers["x-sealring-tools"] == "as-json"
    answer = response.json()
    (call,) = answer["content" if path == "/v1/messages" else "output"]
    assert call["name"] == "get_weather"
    given = call["input"] if path == "/v1/messages" else json.loads(call["arguments"])
    jsonschema.validate(given, CITY)


def test_guesses_change_no_answer_that_has_a_form(ring: Served) -> None:
    asked = {"seed": 4, "response_format": BY_NAME}
    plain = ask(ring, **asked).choices[0].message.content
    for content in (plain, f"{{{plain}", "Something else entirely."):
        answer = ask(ring, **asked, prediction={"type": "content", "content": content})
        assert answer.choices[0].message.content == plain
    assert answer.usage.completion_tokens_details.rejected_prediction_tokens is not None


def test_tensor_parallelism_holds_an_answer_too(tmp_path: Path) -> None:
    """Several members draw the same tokens, each by masks of its own."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    configs = write_cluster(tmp_path, 2, tiny.path(), api=address, options={"strategy": "tp"})
    with contextlib.ExitStack() as stack:
        head, _ = [stack.enter_context(running_node(config)) for config in configs]
        wait_until_up(head)
        served = stack.enter_context(connected(head, f"http://{address}", "", "tiny"))
        served.until("/health", lambda told: told["status"] == "ok")
        assert served.http.get("/v1/cluster").json()["strategy"] == "tp"
        # A form without white space is over sooner, and each member masks as much for each token.
        for choice in ask(served, n=3, seed=7, **FORMS["tight"][0]).choices:
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "keyword": ({"guided_json": {"not": {}}}, "unsupported_form", "guided_json"),
    "format": (
        {"structured_outputs": {"json": {"format": "odd", "type": "string"}}},
        "unsupported_form",
        "structured_outputs.json",
    ),
    "no json": ({"guided_json": "{"}, "invalid_value", "guided_json"),
    "look-ahead": ({"guided_regex": "(?=a)b"}, "unsupported_form", "guided_regex"),
    "large": ({"guided_choice": ["x" * 99_999, "y" * 99_999]}, "unsupported_form", "guided_choice"),
    "costly": ({"guided_regex": "(a{900}){900}"}, "unsupported_form", "guided_regex"),
    "slow to compile": (
        {"guided_json": {"type": "integer", "multipleOf": 480_013}},
        "unsupported_form",
        "guided_json",
    ),
    "no grammar": ({"guided_grammar": "00"}, "invalid_value", "guided_grammar"),
    "a rule that is missing": ({"guided_grammar": "root ::= b"}, "invalid_value", "guided_grammar"),
    "two": ({"guided_regex": "a", "guided_choice": ["a"]}, "invalid_value", "guided_choice"),
    "none": ({"structured_outputs": {}}, "invalid_value", "structured_outputs"),
    "tag": (
        {"structured_outputs": {"choice": ["a"], "structural_tag": {"tags": []}}},
        "unsupported_parameter",
        "structured_outputs.structural_tag",
    ),
    "least": ({"min_tokens": 400}, "invalid_value", "min_tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_is_refused_with_the_reason(ring: Served, name: str) -> None:
    fields, code, param = REFUSED[name]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(ring, **fields)
    assert (refused.value.code, refused.value.param) == (code, param)


ODD = {"type": "strng"}
W = {"name": "w", "strict": True}
NAMED_AS: dict[str, tuple[str, dict[str, Any], str]] = {
    # path, what is asked, and the field that is blamed for it
    "chat": (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": ODD}}},
        "response_format.json_schema.schema",
    ),
    "responses": (
        "/v1/responses",
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": ODD}}},
        "text.format.schema",
    ),
    "no schema": (
        "/v1/responses",
        {"text": {"format": {"type": "json_schema", "name": "a"}}},
        "text.format.schema",
    ),
    "messages": (
        "/v1/messages",
        {"output_config": {"format": {"type": "json_schema", "schema": ODD}}},
        "output_config.format.schema",
    ),
    "no schema of a message's": (
        "/v1/messages",
        {"output_config": {"format": {"type": "json_schema"}}},
        "output_config.format.schema",
    ),
    "a tool": (
        "/v1/chat/completions",
        {"tools": [TOOLS[1], {"type": "function", "function": {**W, "parameters": ODD}}]},
        "tools.1.function.parameters",
    ),
    "a tool after one that is left out": (
        "/v1/responses",
        {"tools": [{"type": "web_search"}, {"type": "function", **W, "parameters": ODD}]},
        "tools.1.parameters",
    ),
    "a tool of several": (
        "/v1/responses",
        {
            "tools": [
                {
                    "type": "namespace",
                    "name": "n",
                    "tools": [{"type": "function", **W, "parameters": ODD}],
                }
            ]
        },
        "tools.0.tools.0.parameters",
    ),
    "a message's tool": (
        "/v1/messages",
        {"tools": [{**W, "input_schema": ODD}]},
        "tools.0.input_schema",
    ),
}


@pytest.mark.parametrize("name", NAMED_AS)
def test_what_is_not_held_has_the_name_that_the_client_gave_it(ring: Served, name: str) -> None:
    path, fields, param = NAMED_AS[name]
    own = {"input": "?"} if path == "/v1/responses" else {"messages": ring.chat("?")["messages"]}
    answer = ring.post({"model": ring.model, "max_tokens": 9, **own, **fields}, path)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error.get("param", param) == param
    assert "response_format" not in error["message"] or path == "/v1/chat/completions"
    subject = "The schema of the strict tool '" if "tools" in fields else f"'{param}' "
    assert error["message"].startswith(subject)


SAID: dict[str, tuple[dict[str, Any], str]] = {
    "parts that overlap": (
        {"guided_json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
        ": a oneOf whose parts overlap is not served; use anyOf.",
    ),
    "not": ({"guided_json": {"not": {}}}, ': "not" is not served in a schema; leave it out'),
    "no type": ({"guided_json": ODD}, ". Correct the schema: there is no type 'strng'."),
    "none fits": (
        {"guided_json": {"type": "integer", "minimum": 5, "maximum": 3}},
        ". Correct the schema: nothing fits it (minimum (5) is greater than maximum (3)).",
    ),
    "no names": (
        {"guided_json": {"type": "object", "required": 5}},
        ". Correct the schema: 'required' cannot be 5.",
    ),
    "a pointer": ({"guided_json": {"$ref": "#/x"}}, ". Correct the schema: '#/x', which a $ref"),
    "elsewhere": ({"guided_json": {"$ref": "http://a/b"}}, ": it names 'http://a/b', and nothing"),
    "a pattern": (
        {"guided_json": {"type": "string", "pattern": "(a"}},
        ". Correct the regular expression: unclosed group in '(a'.",
    ),
    "an expression": (
        {"guided_regex": "b(a"},
        ". Correct the regular expression: unclosed group in 'b(a'.",
    ),
    "look-ahead": ({"guided_regex": "(?=a)b"}, ": a regular expression with look-around is not"),
    "what the table lacks": (
        {"guided_grammar": "start: foo"},
        ': at 1(8): unknown name: "foo"',
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_why_a_form_is_not_held_is_said_for_who_sent_it(ring: Served, name: str) -> None:
    fields, said = SAID[name]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(ring, **fields)
    (param,) = fields
    assert refused.value.body["message"].startswith(f"'{param}' cannot be held{said}")  # type: ignore[index]


_MANY = range(300)
DEEP = "\n".join(
    [
        'start: "x" "y" t*',
        "t: " + " | ".join(f"r{at}" for at in _MANY),
        *(f"r{at}: /[a-z ]/ r{(at + 1) % 300}? r{at * 7 % 300}?" for at in _MANY),
    ]
)
"""A grammar whose first tokens cost little, and the third one very much."""
NOT_HELD: dict[str, tuple[dict[str, Any], str]] = {
    "too costly": ({"guided_grammar": DEEP}, "takes more than 10000 items of the parser"),
    "nothing left": ({"guided_choice": ["a"], "bad_words": ["a"]}, "no token that may follow"),
}


@pytest.mark.parametrize("name", NOT_HELD)
def test_a_form_that_cannot_be_held_further_is_the_fault_of_its_request(
    ring: Served, name: str
) -> None:
    """Which alone ends, while another answer goes on."""
    fields, why = NOT_HELD[name]
    expected = ask(ring, seed=3).choices[0].message.content
    beside = ask(ring, seed=3, stream=True)
    begun = next(beside).choices[0].delta.content or ""
    for n in (1, 2):
        with pytest.raises(openai.BadRequestError, match=why) as refused:
            ask(ring, n=n, **fields)
        assert refused.value.code == "form_not_held"
    with pytest.raises(openai.APIError, match=why) as ended:
        list(ask(ring, stream=True, **fields))
    assert ended.value.code == "form_not_held"
    rest = "".join(chunk.choices[0].delta.content or "" for chunk in beside)
    assert begun + rest == expected


def test_another_api_tells_of_a_form_that_is_not_held_in_its_own_words(ring: Served) -> None:
    names = {f"name_{at}": {"type": "string"} for at in range(1000)}
    schema = {"type": "object", "properties": names}
    text = {"format": {"type": "json_schema", "name": "thing", "schema": schema}}
    body = {"model": ring.model, "input": "Hello.", "stream": True, "text": text}
    events = ring.post(body, "/v1/responses").text
    told = json.loads(events.strip().rsplit("data: ", 1)[1])
    assert told["type"] == "response.failed"
    assert told["response"]["error"]["code"] == "invalid_prompt"
    assert "could not be held" in told["response"]["error"]["message"]


NAMED = [{"type": "function", "function": {"name": name}} for name in ("other", "get_weather")]


@pytest.mark.parametrize("choice", ["required", *NAMED])
def test_a_model_without_tools_calls_one_that_it_must(ring: Served, choice: Any) -> None:
    body = ring.chat("Weather?", temperature=1, tools=TOOLS, tool_choice=choice)
    response = ring.post(body)
    assert response.headers["x-sealring-tools"] == "as-json"
    (answer,) = response.json()["choices"]
    assert answer["finish_reason"] == "tool_calls"
    (call,) = answer["message"]["tool_calls"]
    assert choice in (
        "required",
        {"type": "function", "function": {"name": call["function"]["name"]}},
    )
    form = CITY if call["function"]["name"] == "get_weather" else NOTHING
    jsonschema.validate(json.loads(call["function"]["arguments"]), form)


def test_bad_words_and_the_least_length(ring: Served) -> None:
    plain = ask(ring, seed=2, logprobs=True)
    drawn = [each.token for each in plain.choices[0].logprobs.content]
    word = next(token for token in drawn if re.fullmatch(" [a-z]+", token))
    other = ask(ring, seed=2, logprobs=True, bad_words=[word]).choices[0].logprobs.content
    assert {word, word.lstrip()}.isdisjoint(each.token for each in other)
    least = plain.usage.completion_tokens + 20
    assert ask(ring, seed=2, min_tokens=least).usage.completion_tokens >= least


WEATHER = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
MARKED = {
    "json_tools": ("<tool_call>", "</tool_call>", WEATHER),
    "mistral": ("[TOOL_CALLS]", "", f"[{WEATHER}]"),
    "special": ("<|user|>", "<|sep|>", f"\n{WEATHER}\n"),
}


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("thinks", [False, True])
def test_calls_are_held_within_the_marks_of_the_format(name: str, thinks: bool) -> None:
    start, end, call = MARKED[name]
    tokenizer = Tokenizer(tiny.path())
    form = ToolFormat(start, end, "mistral" if name == "mistral" else "json_tools", None)  # type: ignore[arg-type]
    if thinks:
        tokenizer.think = ("<think>", "</think>")  # type: ignore[misc]
    tokens = grammar_tokenizer(tiny.path(), tokenizer.vocabulary)

    def takes(tool_choice: str, text: str) -> bool:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "tools": TOOLS}
        asked = read(ChatRequest, json.dumps({**body, "tool_choice": tool_choice}).encode())
        talk = Conversation("", asked_tools(asked), tool_choice == "required", form)
        opening = Opening([], reasoning=False, calling=talk.forced)
        held = chat_grammar(tokenizer, asked, talk, opening, tokenizer.vocabulary)
        ids = tokenizer.encode_part(text)
        follows = matcher(tokens, held.decode())
        return follows.try_consume_tokens(ids) == len(ids) and follows.is_accepting()

    wrong = call.replace("Oslo", "Bonn")
    assert takes("required", call + end)
    assert not takes("required", wrong + end)
    assert not takes("required", "Hello.")
    assert takes("auto", "Hello.")
    assert takes("auto", f"Hello. {start}{call}{end}")
    assert not takes("auto", f"Hello. {start}{wrong}{end}")
    assert takes("auto", "<think>hm</think> Hello.")
    if end:
        assert takes("required", f"{call}{end}\n{start}{call}{end}")


def test_calls_that_are_no_json_are_refused_where_they_are_strict() -> None:
    tokenizer = Tokenizer(tiny.path())
    form = ToolFormat("<c>", "</c>", "qwen3_coder", None)  # type: ignore[arg-type]
    for tools, refused in ((TOOLS, True), (TOOLS[1:], False)):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "tools": tools}
        asked = read(ChatRequest, json.dumps({**body, "tool_choice": "required"}).encode())
        talk = Conversation("", asked_tools(asked), forced=True, calls=form)
        opening = Opening([], reasoning=False, calling=True)
        with pytest.raises(ApiError, match="qwen3_coder") if refused else contextlib.nullcontext():
            assert chat_grammar(tokenizer, asked, talk, opening, 1280) == b""


def test_the_form_begins_after_the_reasoning(team: Served) -> None:
    body = team.chat("think", extra_body={"guided_choice": ["The answer.", "apple"]})
    message = team.openai.chat.completions.create(**body).choices[0].message
    assert message.content == "The answer."
    assert message.model_extra["reasoning_content"] == "I ponder.\n"
    other = team.chat("think", extra_body={"guided_choice": ["apple"]})
    message = team.openai.chat.completions.create(**other).choices[0].message
    assert message.content == "apple"
    assert message.model_extra["reasoning_content"] == "I ponder.\n"
