"""Fields of other servers: served, refused by name, or named in a header; and the many ways in
which clients write the same thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sealring.dialects import fields, schema
from sealring.dialects.errors import ApiError
from sealring.dialects.fields import IGNORED, IGNORED_HEADER, REFUSED, TOOLS_HEADER
from sealring.dialects.schema import ChatRequest, CompletionRequest, read
from sealring.text.frames import ParsedRequest
from sealring.text_worker import JOBS
from sealring_model import tiny
from sealring_model.text.tokens import Tokenizer

from tests.api.conftest import Served
from tests.api.scripted import END, SCRIPTS

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello."}]}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "Hello."}
ENDPOINTS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "chat": (ChatRequest, CHAT),
    "completion": (CompletionRequest, TEXT),
}
FUNCTION = {"type": "function", "function": {"name": "f", "description": "Does it."}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}

WORDS = ["<unk>", *sorted({word for script in SCRIPTS for word in script})]
"""The scripted model's vocabulary."""


def checked(kind: type[Any], body: dict[str, Any]) -> Any:
    return read(kind, json.dumps(body).encode())


def job(tokenizer: Tokenizer, name: str, body: dict[str, Any]) -> ParsedRequest:
    """What a text worker makes of *body*."""
    asked = {"models": ["tiny"], "context": 0}
    told, data = JOBS[name](tokenizer, asked, json.dumps(body).encode(), lambda stage: None)
    return ParsedRequest.of(told, data)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny.path())


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a token below 0": ({"prompt": [1, -5]}, "prompt: a token id is out of range; ids are 0 or"),
    "such a list": ({"prompt": [[1], [1 << 40]]}, "prompt: a token id is out of range; ids are 0"),
    "no prompt": ({"prompt": {}}, "prompt: it is a text, a list of texts"),
    "no prediction": (
        {"prediction": {"type": "content", "content": 3}},
        "prediction.content: it is a text or a list of text parts.",
    ),
}


@pytest.mark.parametrize(("fields", "what"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_of_the_form_that_was_meant(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(ApiError) as caught:
        checked(CompletionRequest, TEXT | fields)
    assert caught.value.message.startswith(what)


# ---------------------------------------------------------------- refused, or ignored


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_answer_is_refused_by_name(name: str) -> None:
    refusal = REFUSED[name]
    for endpoint, (kind, body) in ENDPOINTS.items():
        if refusal.only not in ("", endpoint):
            continue
        assert name not in kind.model_fields, "it is refused, and served"
        with pytest.raises(ApiError, match=r"\w{4}") as caught:
            checked(kind, body | {name: 0.123})
        assert (caught.value.status, caught.value.param) == (400, name)
        assert caught.value.code == "unsupported_parameter"
        for value in (None, [], "", *refusal.unless):
            assert checked(kind, body | {name: value}).ignored == ()


def test_a_number_is_no_bool() -> None:
    with pytest.raises(ApiError):
        checked(ChatRequest, CHAT | {"mirostat": False})
    with pytest.raises(ApiError):
        checked(ChatRequest, CHAT | {"use_beam_search": 0})
    assert checked(CompletionRequest, TEXT | {"best_of": 3, "n": 3}).n == 3
    with pytest.raises(ApiError, match="best_of"):
        checked(CompletionRequest, TEXT | {"best_of": 3, "n": 2})


def test_what_has_no_effect_is_named(ring: Served) -> None:
    body = ring.chat("Hello.", max_tokens=1, seed=1, **dict.fromkeys(IGNORED, "x"))
    body |= {"surprise": 1, "nothing": None, "a\r\nb: c": 1, "stream_options": {"more": True}}
    for stream in (False, True):
        answer = ring.post(body | {"stream": stream})
        assert answer.status_code == 200, answer.text
        named = answer.headers[IGNORED_HEADER].split(", ")
        assert sorted(named) == sorted([*IGNORED, "surprise", "?", "stream_options.more"])
    assert IGNORED_HEADER not in ring.post(ring.chat("Hello.", max_tokens=1)).headers
    many = ring.post(ring.chat("x", max_tokens=1, **{f"x{n}": 1 for n in range(50)}))
    assert many.headers[IGNORED_HEADER].count(",") == fields.MAX_IGNORED
    assert many.headers[IGNORED_HEADER].endswith(", ...")


IN_VAIN: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/responses": (
        {
            **{"input": "x", "n": 1, "max_tokens": 1, "web_search_options": {}},
            **{"max_output_tokens": 1, "reasoning": {"effort": "low", "efort": 1}},
            "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
            **{"text": {"verbosity": "low"}, "truncation": "auto", "user": "ann"},
        },
        "max_tokens, web_search_options, reasoning.efort, temprature, "
        "include.reasoning.encrypted_content, text.verbosity, truncation, user, "
        "reasoning.effort",
    ),
    "/v1/messages": (
        {
            **{**CHAT, "max_tokens": 1, "output_config": {"x": 1}, "metadata": {"user_id": "x"}},
            "thinking": {"type": "disabled", "budget_tokens": 1024},
        },
        "output_config.x, metadata, thinking.budget_tokens, temprature, thinking",
    ),
    "/v1/messages/count_tokens": ({**CHAT, "sytem": "x", "max_tokens": 5}, "sytem, temprature"),
}


@pytest.mark.parametrize("path", IN_VAIN)
def test_other_apis_name_it_too(ring: Served, path: str) -> None:
    body, named = IN_VAIN[path]
    answer = ring.post({"model": ring.model, **body, "temprature": 1}, path)
    assert answer.status_code == 200, answer.text
    assert answer.headers[IGNORED_HEADER] == named


NEAR: dict[str, tuple[dict[str, Any], str]] = {
    "chat": ({"mesages": []}, "messages: Field required; the body has 'mesages'"),
    "completion": ({"promt": "x"}, "prompt: Field required; the body has 'promt'"),
    "responses": ({"inptu": "x"}, "input: Field required; the body has 'inptu'"),
    "chat of responses": (
        {"input": "x"},
        "messages: Field required; it is 'messages' here, and not 'input'",
    ),
    "responses of chat": (
        {"messages": []},
        "input: Field required; it is 'input' here, and not 'messages'",
    ),
    "completion of responses": (
        {"input": "x"},
        "prompt: Field required; it is 'prompt' here, and not 'input'",
    ),
    "messages": (
        {"messages": [{"role": "user", "contnt": "x"}], "max_tokens": 1},
        "messages.0.content: Field required; the body has 'contnt'",
    ),
    "count": ({"content": "x"}, "messages: Field required"),
}


@pytest.mark.parametrize("name", NEAR)
def test_the_name_that_may_be_meant(tokenizer: Tokenizer, name: str) -> None:
    body, said = NEAR[name]
    with pytest.raises(ApiError) as caught:
        job(tokenizer, name.partition(" ")[0], {"model": "tiny", **body})
    assert caught.value.message == said
    assert caught.value.code == "missing_required_parameter"


PLAIN: dict[str, tuple[str, dict[str, Any], str]] = {
    "none": ("chat", {**CHAT, "max_tokens": 0}, "max_tokens: it is at least 1, or -1"),
    "stops": (
        "chat",
        {**CHAT, "stop": ["a"] * 129},
        "stop: it is a text or a list of texts: at most 128 texts of 1,024 characters each",
    ),
    "a choice": (
        "chat",
        {**CHAT, "tool_choice": "any"},
        "tool_choice: it is 'none', 'auto', 'required' or {\"type\": \"function\", \"function\": ",
    ),
    "a choice in responses": (
        "responses",
        {"model": "tiny", "input": "x", "tool_choice": "any"},
        "tool_choice: it is 'none', 'auto', 'required' or {\"type\": \"function\", \"name\": ",
    ),
    "a choice in messages": (
        "messages",
        {**CHAT, "max_tokens": 1, "tool_choice": "auto"},
        "tool_choice: it is an object whose type is 'auto', 'any', 'tool' (with a name) or 'none'",
    ),
    "another's limit": ("chat", {**CHAT, "max_output_tokens": 5}, "This field is called 'max_tok"),
    "entries": (
        "responses",
        {"model": "tiny", "input": "x", "metadata": {str(at): "x" for at in range(17)}},
        "metadata: it has too many entries; it takes 16 at most",
    ),
}


@pytest.mark.parametrize(("name", "body", "said"), PLAIN.values(), ids=PLAIN)
def test_faults_in_plain_words(
    tokenizer: Tokenizer, name: str, body: dict[str, Any], said: str
) -> None:
    with pytest.raises(ApiError) as caught:
        job(tokenizer, name, body)
    assert caught.value.message.startswith(said)


@pytest.mark.parametrize("name", ["chat", "responses"])
def test_a_tool_may_have_the_shape_of_the_other_api(tokenizer: Tokenizer, name: str) -> None:
    flat = {"type": "function", "name": "f", "description": "Does it."}
    body = CHAT if name == "chat" else {"model": "tiny", "input": "Hello."}
    made = []
    for tool in (FUNCTION, flat):
        ref = {key: tool[key] for key in tool if key != "description"}
        asked = {**body, "tools": [tool], "tool_choice": ref}
        parsed = job(tokenizer, name, asked)
        tools = parsed.rest[: parsed.fields["tools"]]
        made.append((parsed.prompts, tools, parsed.fields["callable"], parsed.fields["ignored"]))
    assert made[0] == made[1]


def test_a_limit_of_chat_s_is_one_of_responses(tokenizer: Tokenizer) -> None:
    for limit in ({"max_tokens": 5}, {"max_completion_tokens": 5, "max_output_tokens": None}):
        parsed = job(tokenizer, "responses", {"model": "tiny", "input": "x", **limit})
        assert parsed.fields["options"]["max_completion_tokens"] == 5
        assert parsed.fields["ignored"] == []


def test_the_counts_so_far_in_each_chunk(ring: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = ring.chat("Count to twenty.", max_tokens=5, stream=True, stream_options=options)
    chunks = list(ring.openai.chat.completions.create(**body))
    counts = [chunk.usage.completion_tokens for chunk in chunks[1:] if chunk.usage]
    assert len(counts) == len(chunks) - 1
    assert counts == sorted(counts)
    assert 1 <= counts[0] < counts[-1] == 5


def test_settings_that_the_template_does_not_look_at(ring: Served, team: Served) -> None:
    told = {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}
    for served in (ring, team):
        answer = served.post(served.chat("nothing", max_tokens=1, **told))
        named = "chat_template_kwargs.enable_thinking, reasoning_effort"
        assert answer.headers[IGNORED_HEADER] == named


# ---------------------------------------------------------------- as liberal as others

PART = {"type": "input_text", "text": "Hello."}
LIBERAL: dict[str, dict[str, Any]] = {
    "as many tokens as there can be": {"max_tokens": -1, "stop_token_ids": list(range(200))[:128]},
    "floats that are whole": {"max_tokens": 2.0, "n": 1.0, "top_k": 0.0, "seed": 7.0},
    "floats as ints": {"temperature": 1, "top_p": 1, "min_p": 0, "presence_penalty": 0},
    "the likeliest alone": {"top_p": 0, "temperature": 1},
    "no stop": {"stop": ""},
    "no stops": {"stop": []},
    "stops and none": {"stop": ["", "zzz", "zzz"]},
    "many stops": {"stop": [f"zz{n}" for n in range(128)]},
    "no seed": {"seed": None, "top_k": -1, "logprobs": None, "max_completion_tokens": None},
    "logprobs as a number": {"logprobs": 2},
    "no logprobs": {"logprobs": False, "top_logprobs": 0},
    "more of a stream": {"stream_options": {"include_obfuscation": True}},
    "tools without a template for them": {"tools": [FUNCTION], "tool_choice": "auto"},
    "null contents": {"messages": [{"role": "user", "content": None}]},
    "parts": {
        "messages": [
            {"role": "developer", "content": [PART]},
            {"role": "user", "name": "ann", "content": [PART, {"type": "text", "text": "?"}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"role": "assistant", "content": None, "tool_calls": [], "refusal": None},
            {"role": "user", "content": "Why?"},
        ]
    },
    "a tool's answer in parts": {
        "messages": [
            {"role": "user", "content": "Do it."},
            {"role": "assistant", "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "c1", "content": [PART]},
        ]
    },
    "cut": {"truncate_prompt_tokens": 3},
    "cut to fit": {"truncate_prompt_tokens": -1},
    "goes on": {
        "continue_final_message": True,
        "messages": [
            {"role": "user", "content": "Count to twenty."},
            {"role": "assistant", "content": "1, 2,"},
        ],
    },
}


@pytest.mark.parametrize("change", LIBERAL.values(), ids=LIBERAL)
def test_what_clients_write(ring: Served, change: dict[str, Any]) -> None:
    answer = ring.post(ring.chat("Hello.", max_tokens=2) | change)
    assert answer.status_code == 200, answer.text


def test_one_number_in_many_forms() -> None:
    def limit(endpoint: str, **body: Any) -> int | None:
        kind, base = ENDPOINTS[endpoint]
        return checked(kind, base | body).limit

    given = (None, -1, -1.0, 5, 5.0)
    assert [limit("chat", max_tokens=n) for n in given] == [None, None, None, 5, 5]
    assert limit("chat", max_tokens=5, max_completion_tokens=-1) is None
    assert [limit("completion", max_tokens=n) for n in (None, -1, 0, 5)] == [16, None, 0, 5]
    told = [
        checked(ChatRequest, CHAT | body).alternatives
        for body in ({}, {"logprobs": False}, {"logprobs": True}, {"logprobs": 3})
    ]
    assert told == [None, None, 0, 3]
    both = {"logprobs": True, "top_logprobs": 4}
    assert checked(ChatRequest, CHAT | both).alternatives == 4
    told = [
        checked(CompletionRequest, TEXT | {"logprobs": value}).alternatives
        for value in (None, False, 0, True, 2)
    ]
    assert told == [None, None, 0, 1, 2]
    for wrong in (5.5, 1e300, "5", -2, True):
        with pytest.raises(ApiError):
            limit("chat", max_tokens=wrong)


def test_parts_that_are_not_served_are_named() -> None:
    for kind, why in fields.UNSERVED_PARTS.items():
        content = [PART, {"type": kind, kind: {"url": "data:,"}}]
        with pytest.raises(ApiError) as caught:
            checked(ChatRequest, CHAT | {"messages": [{"role": "user", "content": content}]})
        assert caught.value.param == "messages.0.content.1"
        assert caught.value.message.endswith(why)


def test_what_is_no_text_in_an_earlier_turn_is_left_out(ring: Served) -> None:
    """A conversation that had a picture once goes on."""
    for kind in fields.UNSERVED_PARTS:
        seen = {"role": "user", "content": [PART, {"type": kind, kind: {"url": "data:,"}}]}
        said = {"role": "assistant", "content": "A fox."}
        called = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
        result = {"role": "tool", "tool_call_id": "c1", "content": "done"}
        for after in ([said, {"role": "user", "content": "Why?"}], [called, result]):
            answer = ring.post(ring.chat("x", max_tokens=1, messages=[seen, *after]))
            assert answer.status_code == 200, answer.text
            assert answer.headers[IGNORED_HEADER] == "messages.0.content.1"
        goes_on = ring.chat("x", max_tokens=1, messages=[seen, said], continue_final_message=True)
        assert ring.post(goes_on).status_code == 400


def test_a_file_of_text_is_text() -> None:
    data = "data:text/markdown;charset=utf-8;base64,RG9n"
    for part in (
        {"type": "file", "file": {"filename": "a.md", "file_data": data}},
        {"type": "input_file", "filename": "a.md", "file_data": data},
    ):
        body = CHAT | {"messages": [{"role": "user", "content": [PART, part]}]}
        assert checked(ChatRequest, body).messages[0].text == "Hello.a.md:\nDog"
    for data in ("data:application/pdf;base64,RG9n", "data:text/plain;base64,////", "x", None):
        part = {"type": "file", "file": {"file_data": data}}
        with pytest.raises(ApiError, match="unless they are text"):
            checked(ChatRequest, CHAT | {"messages": [{"role": "user", "content": [part]}]})


# ---------------------------------------------------------------- functions, as they were

OLD: dict[str, Any] = {
    "functions": [
        {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        }
    ],
    "function_call": "auto",
}


def test_functions_of_older_clients(team: Served, tokenizer: Tokenizer) -> None:
    body = team.chat("weather", **OLD)
    whole = team.post(body)
    assert IGNORED_HEADER not in whole.headers
    (choice,) = whole.json()["choices"]
    call = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert choice["message"]["function_call"] == call
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"
    parts = [part[6:] for part in team.post(body | {"stream": True}).text.split("\n\n")[:-2]]
    chunks = [json.loads(part)["choices"][0] for part in parts]
    deltas = [c["delta"]["function_call"] for c in chunks if "function_call" in c["delta"]]
    assert [delta["name"] for delta in deltas if "name" in delta] == ["get_weather"]
    assert "".join(delta["arguments"] for delta in deltas) == call["arguments"]
    assert chunks[-1]["finish_reason"] == "function_call"
    none = team.post(body | {"function_call": "none", "max_tokens": 2}).json()
    assert "function_call" not in none["choices"][0]["message"]
    named = team.chat("fruit", **OLD | {"function_call": {"name": "get_weather"}})
    assert team.post(named).json()["choices"][0]["message"]["function_call"] == call
    both = team.post(body | {"tools": [{"type": "function", "function": OLD["functions"][0]}]})
    assert both.headers[IGNORED_HEADER] == "functions"
    assert both.json()["choices"][0]["message"]["tool_calls"][0]["function"] == call


def test_calls_of_functions_in_a_history(tokenizer: Tokenizer) -> None:
    def ids(call: dict[str, Any], result: dict[str, Any]) -> Any:
        talk = [*CHAT["messages"], {"role": "assistant", "content": None, **call}, result]
        return job(tokenizer, "chat", CHAT | {"messages": talk}).prompts

    function = {"name": "f", "arguments": '{"x": 1}'}
    new = {"tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    result = {"content": "done"}
    assert ids({"function_call": function}, {"role": "function", "name": "f", **result}) == ids(
        new, {"role": "tool", "tool_call_id": "call_1", **result}
    )


def test_thoughts_have_both_of_their_names(team: Served) -> None:
    body = team.chat("think")
    message = team.post(body).json()["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "I ponder.\n"
    parts = [part[6:] for part in team.post(body | {"stream": True}).text.split("\n\n")[:-2]]
    deltas = [json.loads(part)["choices"][0]["delta"] for part in parts]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == "I ponder.\n"
    for name in ("reasoning", "reasoning_content"):
        said = [{"role": "assistant", "content": "x", name: "y"}]
        asked = checked(ChatRequest, CHAT | {"messages": said})
        assert asked.messages[0].reasoning_content == "y"


# ---------------------------------------------------------------- what ends an answer


def text_of(served: Served, **options: Any) -> tuple[str, str]:
    """An answer's text and why it ended, which are the same in a stream."""
    body = served.chat("fruit", **options)
    whole = served.openai.chat.completions.with_raw_response.create(**body).http_response.json()
    (choice,) = whole["choices"]
    chunks = list(served.openai.chat.completions.create(**body, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == choice["message"]["content"]
    assert chunks[-1].choices[0].finish_reason == choice["finish_reason"]
    return streamed, choice["finish_reason"]


ENDS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "nothing said": ({}, ("apple banana cherry", "stop")),
    "a token": ({"stop_token_ids": [WORDS.index("ana")]}, ("apple ban", "stop")),
    "a token of several": (
        {"stop_token_ids": [WORDS.index(" cherry"), WORDS.index("la")]},
        ("apple banana", "stop"),
    ),
    "a text that shows": (
        {"stop": ["never", "nana c"], "include_stop_str_in_output": True},
        ("apple banana c", "stop"),
    ),
    "a text that does not": ({"stop": "nana c"}, ("apple ba", "stop")),
    "never": ({"ignore_eos": True, "max_tokens": 5}, (f"apple banana cherry{END}", "length")),
    "a token, whatever the end": (
        {"ignore_eos": True, "stop_token_ids": [WORDS.index(END)], "max_tokens": 9},
        ("apple banana cherry", "stop"),
    ),
}


@pytest.mark.parametrize(("options", "said"), ENDS.values(), ids=ENDS)
def test_what_ends_an_answer(team: Served, options: dict[str, Any], said: tuple[str, str]) -> None:
    extra = {"extra_body": options}
    assert text_of(team, **extra) == said


def test_special_tokens_are_left_out_if_that_is_asked(ring: Served, tokenizer: Tokenizer) -> None:
    def text(**options: Any) -> str:
        body = ring.chat("Count to twenty.", max_tokens=70, ignore_eos=True, **options)
        return str(ring.post(body).json()["choices"][0]["message"]["content"])

    (end,) = {name for name, number in tokenizer.ids().items() if number in tokenizer.eos}
    whole, left_out = text(), text(skip_special_tokens=True)
    assert end in whole
    assert text(skip_special_tokens=False) == whole
    assert end not in left_out
    assert left_out.startswith("1, 2, 3")


# ---------------------------------------------------------------- what a prompt is made of


def test_a_prompt_is_cut_at_its_beginning(tokenizer: Tokenizer) -> None:
    whole = job(tokenizer, "chat", CHAT).prompts[0]
    assert job(tokenizer, "chat", CHAT | {"truncate_prompt_tokens": 3}).prompts == [whole[-3:]]
    text = job(tokenizer, "completion", TEXT | {"truncate_prompt_tokens": 2, "echo": True})
    ids = tokenizer.encode("Hello.")[-2:]
    assert text.prompts == [tuple(ids)]
    assert text.fields["texts"] == [tokenizer.decode(ids)]


def test_where_the_answer_begins(tokenizer: Tokenizer) -> None:
    talk = [*CHAT["messages"], {"role": "assistant", "content": "I am"}]

    def text(**options: Any) -> str:
        body = CHAT | {"messages": talk} | options
        return tokenizer.decode(job(tokenizer, "chat", body).prompts[0])

    assert text(continue_final_message=True).endswith("I am")
    ended = text(add_generation_prompt=False)
    assert ended.startswith(text(continue_final_message=True))
    assert text().startswith(ended)
    assert len(text()) > len(ended) > len(text(continue_final_message=True))


FIM = {
    "<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>": "<|endoftext|>",
    "<｜fim▁begin｜>{before}<｜fim▁hole｜>{after}<｜fim▁end｜>": "",
    "[SUFFIX]{after}[PREFIX]{before}": "",
}


@pytest.mark.parametrize("form", FIM)
def test_gaps_are_filled_by_models_that_know_how(tmp_path: Path, form: str) -> None:
    marks = [mark for mark in form.replace("{before}", " ").replace("{after}", " ").split() if mark]
    marks += filter(None, [FIM[form]])
    rules = json.loads((tiny.path() / "tokenizer.json").read_text())
    first = len(rules["model"]["vocab"]) + len(rules["added_tokens"])
    model = rules["added_tokens"][0]
    rules["added_tokens"] += [
        model | {"id": first + at, "content": mark} for at, mark in enumerate(marks)
    ]
    for file in tiny.path().glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    knows = Tokenizer(tmp_path)
    made = job(knows, "completion", TEXT | {"prompt": "def f(", "suffix": "return 1"})
    assert knows.decode(made.prompts[0]) == form.format(before="def f(", after="return 1")
    assert made.ends == {knows.ids()[mark] for mark in marks}
    assert job(knows, "completion", TEXT).ends == frozenset()
    with pytest.raises(ApiError, match="text"):
        job(knows, "completion", {"model": "tiny", "prompt": [1, 2], "suffix": "x"})


# ---------------------------------------------------------------- tools in words


def test_tools_are_told_in_words_where_the_template_has_none(
    ring: Served, tokenizer: Tokenizer
) -> None:
    talk = [
        {"role": "user", "content": "Do it."},
        {"role": "assistant", "content": "Yes.", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    body = CHAT | {"messages": talk, "tools": [FUNCTION]}
    text = tokenizer.decode(job(tokenizer, "chat", body).prompts[0])
    assert '{"name": "f", "description": "Does it."}' in text
    assert 'Yes.\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>' in text
    assert "<tool_response>done</tool_response>" in text
    assert "Does it." not in tokenizer.decode(
        job(tokenizer, "chat", body | {"tool_choice": "none"}).prompts[0]
    )
    answer = ring.post(ring.chat("Do it.", max_tokens=2, tools=[FUNCTION]))
    assert answer.headers[TOOLS_HEADER] == "in-words"
    assert TOOLS_HEADER not in ring.post(ring.chat("Do it.", max_tokens=2)).headers
    tools = json.dumps([FUNCTION]).encode()
    said = b'{"name": "f", "arguments": {"x": 2}}'
    told, _ = JOBS["call"](tokenizer, {"tools": len(tools)}, tools + said, lambda stage: None)
    assert told == {"calls": [["f", '{"x": 2}', ""]]}


def test_stops_together_are_bounded() -> None:
    most = schema.MAX_STOP_TEXT // 1000
    assert len(checked(ChatRequest, CHAT | {"stop": [f"{n}" * 500 for n in range(9)]}).stops) == 9
    with pytest.raises(ApiError, match="stop"):
        checked(ChatRequest, CHAT | {"stop": ["x" * 1000] * (most + 1)})
