"""Answers that are held to a form: every field that gives one, through the official client."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jsonschema
import openai
import pytest
from llguidance import LLTokenizer
from sealring.dialects.messages import Conversation, Opening, asked_tools
from sealring.dialects.schema import ChatRequest, read
from sealring.http.gate import Caller
from sealring.http.generate import jobs
from sealring.local.ring import running_node, wait_until_up, write_cluster
from sealring.structured.holding import Holding, chat_grammar
from sealring.text.frames import ParsedRequest
from sealring_model import tiny
from sealring_model.text.grammars import grammar_tokenizer, matcher
from sealring_model.text.tokens import Tokenizer, ToolFormat
from sealring_trio.collective.loopback import free_ports

from tests.api.conftest import Served, connected
from tests.rows import rows

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
    "both names": (
        {"guided_regex": "a{2,4}", "structured_outputs": {"regex": "a{2,4}"}},
        "a{2,4}",
    ),
    "no address": (
        {"guided_json": {"$id": "Output Format", "$schema": "odd", **SCHEMA}},
        SCHEMA,
    ),
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
    body = ring.chat("Tell me of a thing.", **{"temperature": 1, "max_tokens": 300, **options})
    extra = {name: body.pop(name) for name in [*body] if name.startswith(("guided", "struct"))}
    extra |= {name: body.pop(name) for name in ("bad_words", "min_tokens") if name in body}
    return ring.openai.chat.completions.create(**body, extra_body=extra)


@pytest.mark.parametrize("name", FORMS)
def test_each_field_holds_the_answer(ring: Served, name: str) -> None:
    fields, form = FORMS[name]
    several = 1 if form is SCHEMA else 3  # white space makes its answers long
    for choice in ask(ring, n=several, seed=7, **fields).choices:
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


@pytest.mark.slow
def test_guesses_change_no_answer_that_has_a_form(ring: Served) -> None:
    asked = {"seed": 4, "response_format": BY_NAME}
    plain = ask(ring, **asked).choices[0].message.content
    for content in (plain, f"{{{plain}", "Something else entirely."):
        answer = ask(ring, **asked, prediction={"type": "content", "content": content})
        assert answer.choices[0].message.content == plain
    assert answer.usage.completion_tokens_details.rejected_prediction_tokens is not None


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "pattern": (
        {"structured_outputs": {"json": {"pattern": "(?=a)b", "type": "string"}}},
        "unsupported_form",
        "structured_outputs.json",
    ),
    "no json": ({"guided_json": "{"}, "invalid_value", "guided_json"),
    "look-ahead": ({"guided_regex": "(?=a)b"}, "unsupported_form", "guided_regex"),
    "large": ({"guided_choice": ["x" * 99_999, "y" * 99_999]}, "unsupported_form", "guided_choice"),
    "costly": ({"guided_regex": "(a{900}){900}"}, "unsupported_form", "guided_regex"),
    "slow to compile": (
        {"guided_json": {"type": "integer", "multipleOf": 120_011}},
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
    names = {f"name_{at}": {"type": "string"} for at in range(560)}  # more take long to compile
    schema = {"type": "object", "properties": names}
    text = {"format": {"type": "json_schema", "name": "thing", "schema": schema}}
    body = {"model": ring.model, "input": "Hello.", "stream": True, "text": text}
    events = ring.post(body, "/v1/responses").text
    told = json.loads(events.strip().rsplit("data: ", 1)[1])
    assert told["type"] == "response.failed"
    assert told["response"]["error"]["code"] == "invalid_prompt"
    assert "could not be held" in told["response"]["error"]["message"]


NAMED = [{"type": "function", "function": {"name": name}} for name in ("other", "get_weather")]


@pytest.mark.parametrize(
    "choice", rows({"required": "required", "other": NAMED[0], "weather": NAMED[1]}, "weather")
)
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


MOST = 80
"""Tokens of an answer that may have more than its usual 25."""


def test_bad_words_and_the_least_length(ring: Served) -> None:
    plain = ask(ring, seed=2, logprobs=True, max_tokens=MOST)
    drawn = [each.token for each in plain.choices[0].logprobs.content]
    word = next(token for token in drawn if re.fullmatch(" [a-z]+", token))
    other = ask(ring, seed=2, logprobs=True, max_tokens=MOST, bad_words=[word])
    tokens = {each.token for each in other.choices[0].logprobs.content}
    assert tokens.isdisjoint({word, word.lstrip()})
    least = plain.usage.completion_tokens + 20
    assert least < MOST
    longer = ask(ring, seed=2, max_tokens=MOST, min_tokens=least)
    assert longer.usage.completion_tokens >= least


WEATHER = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
MARKED = {
    "json_tools": ("<tool_call>", "</tool_call>", WEATHER),
    "mistral": ("[TOOL_CALLS]", "", f"[{WEATHER}]"),
    "special": ("<|user|>", "<|sep|>", f"\n{WEATHER}\n"),
}


@functools.cache
def spoken(*marks: str) -> tuple[Tokenizer, LLTokenizer]:
    """The tiny model's tokenizer, to which *marks* are tokens of their own."""
    folder = Path(tempfile.mkdtemp(prefix="sealring-"))
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(tiny.path() / file, folder)
    known = json.loads((folder / "tokenizer.json").read_text())
    like = known["added_tokens"][0]
    known["added_tokens"] += [
        {**like, "id": 1280 + at, "content": mark} for at, mark in enumerate(marks)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(known))
    for file in ("tokenizer_config.json", "config.json"):  # <|end|> ends other things, too
        told = (folder / file).read_text().replace('"<|end|>"', '"<|system|>"')
        (folder / file).write_text(json.dumps(json.loads(told) | {"eos_token_id": 3}))
    tokenizer = Tokenizer(folder)
    return tokenizer, grammar_tokenizer(folder, tokenizer.vocabulary)


def holding(
    form: ToolFormat,
    tools: list[Any],
    choice: str = "auto",
    think: str = "",
    *,
    marks: Sequence[str] = (),
    **more: Any,
) -> Holding:
    """What holds an answer of a model that writes calls in *form*, and thoughts up to *think*; its
    *marks* are tokens. It has 8 tokens of a prompt in a context of 208."""
    tokenizer = copy.copy(spoken(*marks)[0])
    tokenizer.calls = form  # type: ignore[misc]
    if think:
        tokenizer.think = ("<think>", think)  # type: ignore[misc]
    body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "tools": tools}
    asked = read(ChatRequest, json.dumps({**body, "tool_choice": choice, **more}).encode())
    forced = choice == "required"
    talk = Conversation("", asked_tools(asked), forced, form)
    opening = Opening([0] * 8, reasoning=bool(think) and not forced, calling=forced)
    size = tokenizer.vocabulary
    return chat_grammar(tokenizer, asked, talk, opening, vocabulary=size, context=208)


def takes(held: Holding, text: str, marks: Sequence[str] = ()) -> bool:
    """Whether *text* is a whole answer by what is *held*."""
    tokenizer, tokens = spoken(*marks)
    ids = tokenizer.encode_part(text)
    follows = matcher(tokens, held.grammar.decode())
    return follows.try_consume_tokens(ids) == len(ids) and follows.is_accepting()


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("think", ["", "</think>", "<|pad|>"])
def test_calls_are_held_within_the_marks_of_the_format(name: str, think: str) -> None:
    start, end, call = MARKED[name]
    form = ToolFormat(start, end, "mistral" if name == "mistral" else "json_tools", None)  # type: ignore[arg-type]
    must = holding(form, TOOLS, "required", think)
    wrong = call.replace("Oslo", "Bonn")
    assert takes(must, call + end)
    assert not takes(must, wrong + end)
    assert not takes(must, "Hello.")
    may, before = holding(form, TOOLS, "auto", think), f"hm {think} " if think else ""
    assert takes(may, f"{before}Hello.")
    assert takes(may, f"{before}Hello. {start}{call}{end}")
    assert not takes(may, f"{before}Hello. {start}{wrong}{end}")
    if end:
        assert takes(must, f"{call}{end}\n{start}{call}{end}")
    if name == "special" and think == "<|pad|>":  # a call within the thoughts
        assert takes(may, f"hm {start}{call}{end}")
        assert takes(may, f"hm {start}{call}{end} so{start}{call}{end} {think}Done.")
        assert not takes(may, f"hm {start}{wrong}{end}")


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "note": {"anyOf": [{"type": "string", "description": "Any."}, {"type": "null"}]},
        "size": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "on": {"type": "boolean"},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
        "code": {"type": "string", "maxLength": 4},
    },
    "required": ["city", "text", "count"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["red", "green"]}},
}
STRICTLY = [
    {"type": "function", "function": {"name": "get", "parameters": PERSON, "strict": True}},
    {"type": "function", "function": {"name": "get_all", "parameters": NOTHING}},
]
LEAST = {"city": "Oslo", "text": "", "count": 0}
RIGHT = [
    LEAST,
    LEAST | {"text": 'a\n\n  b </b> "c" {d} <parameter>\n', "count": -12},
    LEAST | {"note": None, "size": 2.5, "on": True, "tags": ["red", "green"], "code": "ab"},
    LEAST | {"note": "any\nnote", "size": None, "on": False, "tags": []},
]
WRONG = [
    {"city": "Bonn", "text": "", "count": 0},
    {"city": "Oslo", "count": 0},
    LEAST | {"count": "none"},
    LEAST | {"tags": ["blue"]},
    LEAST | {"code": "abcde"},
    LEAST | {"other": 1},
]


def _elements(template: str) -> Callable[[str, dict[str, Any]], str]:
    """What writes a call as the chat template of a format does."""
    templates = jinja2.Environment(keep_trailing_newline=True)
    templates.filters["tojson"] = json.dumps  # as transformers has it
    whole = templates.from_string(template)
    return lambda name, given: whole.render(name=name, given=given)


_VALUE = "{{ v if v is string else v | tojson }}"
_INVOKES = (
    '\n<PREinvoke name="{{ name }}">\n{% for k, v in given.items() %}'
    f'<PREparameter name="{{{{ k }}}}"KIND>{_VALUE}</PREparameter>\n{{% endfor %}}</PREinvoke>\n'
)
_KIND = " string=\"{{ 'true' if v is string else 'false' }}\""
_KEYS = (
    "{{ name }}\n{% for k, v in given.items() %}<PREarg_key>{{ k }}</PREarg_key>\n"
    f"<PREarg_value>{_VALUE}</PREarg_value>\n{{% endfor %}}"
)
_JSON = '{"name": "{{ name }}", "arguments": {{ given | tojson }}}'
_GEMMA = (
    '{% macro w(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is sequence %}'
    "[{% for e in v %}{{ w(e) }}{{ ',' if not loop.last }}{% endfor %}]{% else %}{{ v | tojson }}"
    "{% endif %}{% endmacro %}call:{{ name }}{{ '{' }}{% for k, v in given | dictsort %}"
    "{{ k }}:{{ w(v) }}{{ ',' if not loop.last }}{% endfor %}}"
)
RENDERED: dict[str, tuple[str, str, str]] = {
    # what opens a call, what closes it, and how it is written between
    "json_tools": ("<tool_call>", "</tool_call>", f"\n{_JSON}\n"),
    "mistral": ("[TOOL_CALLS]", "", f"[{_JSON}]"),
    "phi4_mini": ("<|tool_call|>", "<|/tool_call|>", f"[{_JSON}]"),
    "llama3": ("<|python_tag|>", "", _JSON.replace("arguments", "parameters")),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>functions.{{ name }}:0<|tool_call_argument_begin|>"
        "{{ given | tojson }}<|tool_call_end|>",
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>{{ given | tojson }}<｜tool▁call▁end｜>",
    ),
    "qwen3_coder": (
        "<tool_call>",
        "</tool_call>",
        "\n<function={{ name }}>\n{% for k, v in given.items() %}<parameter={{ k }}>\n"
        f"{_VALUE}\n</parameter>\n{{% endfor %}}</function>\n",
    ),
    "seed_oss": (
        "<seed:tool_call>",
        "</seed:tool_call>",
        "\n<function={{ name }}>\n{% for k, v in given.items() %}"
        f"<parameter={{{{ k }}}}>{_VALUE}</parameter>\n{{% endfor %}}</function>\n",
    ),
    "glm47": ("<tool_call>", "</tool_call>", _KEYS.replace("PRE", "")),
    "laguna": ("<tool_call>", "</tool_call>", _KEYS.replace("PRE", "").replace("\n", "")),
    "longcat": (
        "<longcat_tool_call>",
        "</longcat_tool_call>",
        _KEYS.replace("PRE", "longcat_"),
    ),
    "minimax_m2": (
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        _INVOKES.replace("PRE", "").replace("KIND", ""),
    ),
    "muse_spark": (
        "<atem:function_calls>",
        "</atem:function_calls>",
        _INVOKES.replace("PRE", "atem:").replace("KIND", ""),
    ),
    "deepseek_v32": (
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        _INVOKES.replace("PRE", "｜DSML｜").replace("KIND", _KIND),
    ),
    "minicpm5": (
        "<function name=",
        "</function>",
        '"{{ name }}">{% for k, v in given.items() %}'
        f'<param name="{{{{ k }}}}">{_VALUE}</param>{{% endfor %}}',
    ),
    "pythonic": (
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "[{{ name }}({% for k, v in given.items() %}{{ k }}={{ v | tojson }}"
        "{{ ', ' if not loop.last }}{% endfor %})]",
    ),
    "gemma4": ("<|tool_call>", "<tool_call|>", _GEMMA),
}


MARKS = (
    "<|tool_call|>", "<|/tool_call|>", "<|python_tag|>", "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<tool_call>", "</tool_call>", "<arg_key>",
    "</arg_key>", "<arg_value>", "</arg_value>", "<minimax:tool_call>", "</minimax:tool_call>",
    "｜DSML｜", "<|tool_call_start|>", "<|tool_call>", "<tool_call|>", '<|"|>', "[TOOL_CALLS]",
)  # fmt: skip
"""Marks that are tokens of their own to some models, and texts to others."""


@pytest.mark.parametrize("marks", rows({"texts": ((),), "tokens": (MARKS,)}, "tokens"))
@pytest.mark.parametrize("name", RENDERED)
def test_calls_in_every_format_are_held_as_the_template_writes_them(
    name: str, marks: Sequence[str]
) -> None:
    start, end, template = RENDERED[name]
    write = _elements(template)
    form = ToolFormat(start, end, name, None)  # type: ignore[arg-type]
    must = holding(form, STRICTLY, "required", marks=marks)
    may = holding(form, STRICTLY, marks=marks)
    for given in RIGHT:
        assert takes(must, write("get", given) + end, marks), given
        assert takes(may, f"Look: {start}{write('get', given)}{end}", marks), given
    assert takes(must, write("get_all", {}) + end, marks)
    for given in WRONG:
        if name != "gemma4" or "tags" not in given:
            assert not takes(must, write("get", given) + end, marks), given
            assert not takes(may, f"Look: {start}{write('get', given)}{end}", marks), given
    assert not takes(must, write("of_none", LEAST) + end, marks)
    assert takes(may, "No call.", marks)
    # Lists in gemma4's own notation are held to that alone.
    assert must.ignored == (("tools.0.function.strict",) if name == "gemma4" else ())
    beside = holding(form, STRICTLY, marks=marks, response_format=BY_NAME)
    assert takes(beside, f"{start}{write('get', LEAST)}{end}", marks)
    assert not takes(beside, f"{start}{write('get', WRONG[0])}{end}", marks)
    assert takes(beside, '{"name": "a", "size": 1, "next": null}', marks)
    assert not takes(beside, "Hello.", marks)


CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>")


def test_channels_are_held() -> None:
    """gpt-oss thinks, answers and calls in messages that name their channel."""
    form = ToolFormat("<|channel|>commentary to=functions.", "", "harmony", None)  # type: ignore[arg-type]
    thinks = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    says = thinks.replace("analysis", "commentary")
    final = "<|channel|>final<|message|>"
    right, wrong = (
        f"{form.start}get <|constrain|>json<|message|>{json.dumps(given)}"
        for given in (LEAST, WRONG[0])
    )
    free = holding(form, STRICTLY, marks=CHANNELS)
    beside = holding(form, STRICTLY, marks=CHANNELS, response_format=BY_NAME)
    thing = '{"name": "a", "size": 1, "next": null}'
    answers = [
        (f"{thinks}{final}Hello.", True, False),
        (f"{final}{thing}", True, True),
        (f"{thinks}{final}{thing}", True, True),
        (f"{thinks}{says}{right}", True, False),
        (f"{thinks}{right}", True, True),
        (right, True, True),
        (f"{thinks}{wrong}", False, False),
        (thinks, False, False),
        ("Hello.", False, False),
    ]
    for text, freely, formed in answers:
        assert takes(free, text, CHANNELS) is freely, text
        assert takes(beside, text, CHANNELS) is formed, text
    long = f"<|channel|>analysis<|message|>{'a' * 150}"
    rest = f"<|end|><|start|>assistant{final}{thing}"
    assert takes(beside, long[:-75] + rest, CHANNELS)
    assert not takes(beside, long + rest, CHANNELS)


def test_what_no_grammar_holds_of_a_strict_call_is_named() -> None:
    coder = ToolFormat("<tool_call>", "</tool_call>", "qwen3_coder", None)  # type: ignore[arg-type]
    properties = {
        "day": {"type": "string", "format": "date"},
        "set": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    }
    tool = {"name": "f", "strict": True, "parameters": {**PERSON, "properties": properties}}
    tools = [
        TOOLS[1],
        {"type": "function", "function": tool | {"parameters": {"properties": properties}}},
    ]
    place = "tools.1.function"
    held = holding(coder, tools)
    assert held.ignored == (f"{place}.parameters.format", f"{place}.parameters.uniqueItems")
    assert not takes(held, "<tool_call>\n<function=g>\n</function>\n</tool_call>")
    # A format that nothing here can hold: calls are what stands between their marks.
    other = ToolFormat("<c>", "</c>", "of_tomorrow", None)  # type: ignore[arg-type]
    assert holding(other, tools) == Holding(b"", (f"{place}.strict",))
    assert holding(other, tools, "required") == Holding(b"", (f"{place}.strict",))
    beside = holding(other, tools, response_format=BY_NAME)
    assert beside.ignored == (f"{place}.strict",)
    assert takes(beside, "<c>any</c>")
    assert takes(beside, '{"name": "a", "size": 1, "next": null}')
    assert not takes(beside, "Hello.")


@pytest.mark.parametrize("deep", [False, True])
def test_hostile_schemas_of_calls_are_bounded(deep: bool) -> None:
    coder = ToolFormat("<tool_call>", "</tool_call>", "qwen3_coder", None)  # type: ignore[arg-type]
    many = [{"$ref": f"#/$defs/{each}"} for each in "abcdefgh"] * 8
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"x": {"anyOf": many}, "y": {"type": "string", "maxLength": 10**9}},
        "$defs": {each: {"anyOf": many} for each in "abcdefgh"},
    }
    if deep:
        for _ in range(60):
            schema["properties"]["x"] = {"anyOf": [schema["properties"]["x"]]}
    began = time.process_time()
    tool = {"name": "f", "parameters": schema, "strict": True}
    held = holding(coder, [{"type": "function", "function": tool}])
    assert time.process_time() - began < 5
    assert held.ignored
    call = "<function=f>\n<parameter=y>\nabc\n</parameter>\n</function>\n"
    assert takes(held, f"<tool_call>\n{call}</tool_call>")


def test_the_form_begins_after_the_reasoning(team: Served) -> None:
    body = team.chat("think", extra_body={"guided_choice": ["The answer.", "apple"]})
    message = team.openai.chat.completions.create(**body).choices[0].message
    assert message.content == "The answer."
    assert message.model_extra["reasoning_content"] == "I ponder.\n"
    other = team.chat("think", extra_body={"guided_choice": ["apple"]})
    message = team.openai.chat.completions.create(**other).choices[0].message
    assert message.content == "apple"
    assert message.model_extra["reasoning_content"] == "I ponder.\n"


THINKING = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{% endif %}"
    "{# <tool_call>\n<function= #}"
)


@pytest.fixture(scope="module")
def coder() -> Iterator[Served]:
    """One rank of random weights that think, and write calls as Qwen3.5 and its like do."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sealring-")))
        model = folder / "coder"
        shutil.copytree(tiny.path(), model)
        known = json.loads((model / "tokenizer.json").read_text())
        for at, mark in ((3, "</think>"), (4, "<think>")):  # no text has what was there
            known["added_tokens"][at] |= {"content": mark, "special": False}
            known["model"]["vocab"][at][0] = mark
        (model / "tokenizer.json").write_text(json.dumps(known))
        settings = json.loads((model / "tokenizer_config.json").read_text())
        settings["chat_template"] = THINKING
        (model / "tokenizer_config.json").write_text(json.dumps(settings))
        address = f"127.0.0.1:{free_ports(1)[0]}"
        (config,) = write_cluster(folder, 1, model, api=address)
        head = stack.enter_context(running_node(config))
        wait_until_up(head)
        served = stack.enter_context(connected(head, f"http://{address}", "", "coder"))
        served.until("/health", lambda told: told["status"] == "ok")
        yield served


PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
OF_CITY = {
    "/v1/chat/completions": (TOOLS[:1], "required"),
    "/v1/responses": ([{"type": "function", **TOOLS[0]["function"]}], "required"),
    "/v1/messages": (
        [{"name": "get_weather", "input_schema": CITY, "strict": True}],
        {"type": "any"},
    ),
}


def of_schema(path: str, schema: Any) -> dict[str, Any]:
    """The field that asks for an answer of *schema*."""
    form = {"type": "json_schema", "name": "thing", "schema": schema}
    if path == "/v1/responses":
        return {"text": {"format": form}}
    if path == "/v1/messages":
        return {"output_config": {"format": form}}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def post(served: Served, path: str, most: int, **fields: Any) -> Any:
    """The response to a request with at most so many tokens of an answer."""
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    own = {"input": "Tell me."} if path == "/v1/responses" else {"messages": TOLD}
    body = {"model": "coder", "temperature": 1, limit: most, **own, **fields}
    response = served.post(body, path)
    assert response.status_code == 200, response.text
    return response


def parts_of(path: str, answer: Any) -> tuple[str, str, list[tuple[str, Any]]]:
    """The thoughts, the text and the calls of *answer*."""
    if path == "/v1/chat/completions":
        message = answer["choices"][0]["message"]
        calls = [each["function"] for each in message.get("tool_calls", ())]
        told = [(each["name"], json.loads(each["arguments"])) for each in calls]
        return message.get("reasoning_content") or "", message["content"] or "", told
    if path == "/v1/messages":
        blocks = answer["content"]
        thoughts = "".join(each.get("thinking", "") for each in blocks)
        text = "".join(each.get("text", "") for each in blocks)
        told = [(each["name"], each["input"]) for each in blocks if each["type"] == "tool_use"]
        return thoughts, text, told
    items = answer["output"]
    texts = {
        kind: "".join(
            part["text"] for item in items if item["type"] == kind for part in item["content"]
        )
        for kind in ("reasoning", "message")
    }
    calls = [item for item in items if item["type"] == "function_call"]
    told = [(each["name"], json.loads(each["arguments"])) for each in calls]
    return texts["reasoning"], texts["message"], told


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_strict_calls_in_xml_are_held_and_never_refused(coder: Served, path: str) -> None:
    tools, choice = OF_CITY[path]
    response = post(coder, path, 120, tools=tools, tool_choice=choice)
    assert "x-sealring-ignored" not in response.headers
    _, _, ((name, given), *_) = parts_of(path, response.json())
    assert name == "get_weather"
    jsonschema.validate(given, CITY)
    response = post(coder, path, 20, tools=tools)  # free to call
    assert "x-sealring-ignored" not in response.headers


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_a_form_begins_where_thinking_ends_and_that_has_a_bound(coder: Served, path: str) -> None:
    """Random weights never end their thoughts."""
    for beside in ({}, {"tools": OF_CITY[path][0]}):
        response = post(coder, path, 80, **of_schema(path, {"enum": ["Rome", "Oslo"]}), **beside)
        thoughts, text, calls = parts_of(path, response.json())
        assert thoughts
        assert calls or text in ('"Rome"', '"Oslo"')
        usage = response.json()["usage"]
        if not calls:  # half of the tokens are thoughts; then the mark, blank space and the text
            assert usage.get("completion_tokens", usage.get("output_tokens")) <= 65


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_a_schema_that_is_held_in_part_says_what_is_left_out(coder: Served, path: str) -> None:
    schema = {
        "$id": "Output Format",
        "anyOf": [
            {"type": "string", "format": "password", "maxLength": 3},
            {"type": "array", "items": {"enum": [1]}, "maxItems": 1, "uniqueItems": True},
        ],
    }
    no_thoughts: dict[str, Any] = {
        "/v1/chat/completions": {"reasoning_effort": "none"},
        "/v1/responses": {"reasoning": {"effort": "none"}},
        "/v1/messages": {"thinking": {"type": "disabled"}},
    }
    response = post(coder, path, 400, **of_schema(path, schema), **no_thoughts[path])
    param = {
        "/v1/chat/completions": "response_format.json_schema.schema",
        "/v1/responses": "text.format.schema",
        "/v1/messages": "output_config.format.schema",
    }[path]
    names = response.headers["x-sealring-ignored"].split(", ")
    assert {f"{param}.format", f"{param}.uniqueItems"} <= {*names}
    jsonschema.validate(json.loads(parts_of(path, response.json())[1]), schema)


def test_no_grammar_is_the_same_for_two_owners() -> None:
    """Engines keep what they have compiled by the grammar's text: how long another owner's takes
    would else say what was asked for before."""
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}], "n": 2}
    asked = read(ChatRequest, json.dumps(body).encode())
    grammar = json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]}).encode()
    parsed = ParsedRequest({}, [(1,)], (), b"", grammar=grammar)
    alice, bob, other = (
        {job.request.sampling.grammar for job in jobs(asked, parsed, 1280, caller, 0)}
        for caller in (
            Caller("1", "alice", "alice", "", "", 0.0),
            Caller("2", "bob", "bob", "", "", 0.0),
            Caller("3", "alice", "alice", "elsewhere", "", 0.0),
        )
    )
    assert len(alice) == len(bob) == len(other) == 1  # all choices of one request share it
    assert len(alice | bob | other) == 3
    for (grammar,) in (alice, bob, other):
        assert b"alice" not in grammar
        assert takes(Holding(grammar), "a")
        assert not takes(Holding(grammar), "b")
