"""Conversations that a strict template refuses are made to fit, on each API, and a header says how;
nothing is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring.dialects.errors import ApiError
from sealring.dialects.fields import ADAPTED_HEADER, headers_of
from sealring.dialects.messages import CHANGES
from sealring.text.frames import ParsedRequest
from sealring.text_worker import JOBS

from tests import family_tokenizers as families
from tests.family_tokenizers import KINDS, tokenizer

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def asked(name: str, job: str, body: dict[str, Any]) -> tuple[str, str]:
    """The prompt that a text worker makes of *body* for the template of a kind, and the header."""
    made, about = tokenizer(name), {"models": ["tiny"], "context": 0}
    data = json.dumps({"model": "tiny"} | body).encode()
    told, ids = JOBS[job](made, about, data, lambda stage: None)
    header = headers_of(told).get(ADAPTED_HEADER, "")
    return made.decode(ParsedRequest.of(told, ids).prompts[0]), header


def of(*turns: str) -> list[dict[str, Any]]:
    """Messages of *turns*, such as ``user: Hello.``"""
    return [{"role": role, "content": text} for role, text in (t.split(": ", 1) for t in turns)]


CALL = {"id": "call_0123456789abcdef", "type": "function"}
CALL["function"] = {"name": "look", "arguments": "{}"}  # type: ignore[assignment]
CALLS = [CALL, CALL | {"id": "b" * 9}]
RESULT = {"role": "tool", "tool_call_id": CALL["id"], "content": "Rain."}
CALLED = {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}
OTHER = RESULT | {"tool_call_id": "b" * 9, "content": "Sun."}

CASES: dict[str, tuple[str, list[Any], str]] = {
    "a system message in the middle": (
        "mistral",
        of("user: Hi.", "assistant: Yes?", "system: Be brief.", "user: How?"),
        "system-wrapped, turns-joined",
    ),
    "a developer in the middle": (
        "mistral",
        of("system: Be kind.", "user: Hi.", "assistant: Yes?", "developer: Be brief."),
        "system-wrapped",
    ),
    "two users in a row": ("gemma", of("user: Hi.", "user: How?"), "turns-joined"),
    "two answers in a row": (
        "mistral",
        of("user: Hi.", "assistant: Yes?", "assistant: Well?", "user: How?"),
        "turns-joined",
    ),
    "the assistant first": (
        "mistral",
        of("system: Be kind.", "assistant: Yes?", "user: How?"),
        "user-added",
    ),
    "a system message where there is none": (
        "gemma",
        of("system: Be kind.", "user: How?"),
        "system-to-user",
    ),
    "two system messages": (
        "mistral",
        of("system: Be kind.", "developer: Be brief.", "user: How?"),
        "system-joined",
    ),
    "all at once": (
        "gemma",
        of("system: A.", "developer: B.", "assistant: C.", "system: D.", "user: E.", "user: F."),
        "",
    ),
    "a result where the template has no tools": (
        "gemma",
        [*of("user: Look."), CALLED, RESULT, *of("user: And?")],
        "turns-joined",
    ),
    "two calls where there may be one": (
        "llama",
        [*of("user: Look."), CALLED | {"tool_calls": CALLS}, RESULT, OTHER, *of("user: And?")],
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_conversation_is_made_to_fit(case: str) -> None:
    name, messages, header = CASES[case]
    prompt, said = asked(name, "chat", {"messages": messages})
    assert said == header or not header
    for message in messages:
        assert message["content"] in prompt
    told = [each["content"] for each in messages if each["role"] not in ("system", "developer")]
    assert [*map(prompt.index, told)] == sorted(map(prompt.index, told))


STRICT = """{%- for message in messages %}
{%- if message.role == 'tool' and not (loop.previtem is defined
    and (loop.previtem.role == 'tool' or loop.previtem.tool_calls is defined)) %}
{{- raise_exception('a result without a call') }}{% endif %}
{%- if message.tool_calls is defined %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}
{%- if message.tool_calls[0].id | length != 9 %}{{ raise_exception('ids of length 9') }}{% endif %}
{{- '[TOOL_CALLS]' + message.tool_calls[0].id }}{% endif %}
{%- if message.role != 'system' or loop.first %}{{ '[INST]' + message.content }}
{{- message.tool_call_id }}{% endif %}{% endfor %}"""


def of_template(
    tmp_path: Any, template: str, messages: list[Any], tools: list[Any] = TOOLS
) -> tuple[str, str]:
    """The prompt that *template* makes of *messages*, and their changes."""
    families.saved(KINDS["mistral"].built(), KINDS["mistral"], tmp_path)
    config = families.config(KINDS["mistral"]) | {"chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    made = families.Tokenizer(tmp_path)
    body = json.dumps({"model": "tiny", "messages": messages, "tools": tools}).encode()
    told, ids = JOBS["chat"](made, {"models": ["tiny"], "context": 0}, body, lambda stage: None)
    return made.decode(ParsedRequest.of(told, ids).prompts[0]), ", ".join(told["adapted"])


def test_ids_and_several_calls(tmp_path: Any) -> None:
    talk = [*of("user: Look."), CALLED | {"tool_calls": CALLS}, OTHER, RESULT, *of("user: And?")]
    prompt, said = of_template(tmp_path, STRICT, talk)
    assert said == "tool-call-ids-shortened, tool-calls-split"
    first, other = prompt.split("[TOOL_CALLS]")[1][:9], prompt.split("[TOOL_CALLS]")[2][:9]
    assert {first, other} >= {"b" * 9}
    assert prompt.count(first) == prompt.count(other) == 2  # the call and its result
    assert CALL["id"] not in prompt
    for text in ("I look.", "Rain.", "Sun.", "And?"):
        assert text in prompt


def test_a_result_without_a_call(tmp_path: Any) -> None:
    prompt, said = of_template(tmp_path, STRICT, [*of("user: Look."), RESULT, *of("user: And?")])
    assert said == "tool-results-wrapped"
    assert "<tool_response>\nRain.\n</tool_response>" in prompt


def test_a_message_that_the_template_leaves_out(tmp_path: Any) -> None:
    """It refuses nothing; but the message would be lost."""
    prompt, said = of_template(
        tmp_path, STRICT, of("user: Look.", "system: Be brief.", "user: And?")
    )
    assert said == "system-wrapped"
    assert "<system-reminder>\nBe brief.\n</system-reminder>" in prompt


SWITCHES = """{% set system = messages[0].content -%}
{{ 'off' if '/no_think' in system else 'on' }}: {{ '' -}}
{{ system.replace('/no_think', '').replace('/think', '').strip() | upper }}
{%- for message in messages[1:] %} {{ message.content }}{% endfor %}"""


@pytest.mark.parametrize(
    ("said", "prompt"),
    [
        ("/no_think", "off:  Hi."),
        ("Be kind. /no_think", "off: BE KIND. Hi."),
        ("/think", "on:  Hi."),
        ("Be kind. /think", "on: BE KIND. Hi."),
    ],
)
def test_a_system_message_that_the_template_changes(said: str, prompt: str, tmp_path: Any) -> None:
    """As SmolLM3's and Nemotron's take out their switches: it is not left out."""
    talk = of(f"system: {said}", "user: Hi.")
    assert of_template(tmp_path, SWITCHES, talk, []) == (prompt, "")


def test_what_fits_is_not_changed() -> None:
    for name in KINDS:
        talk = of("user: Hi.", "assistant: Yes?", "user: How?")
        prompt, said = asked(name, "chat", {"messages": talk})
        assert said == ""
        assert prompt == tokenizer(name).decode(tokenizer(name).chat(talk))


def test_what_no_change_makes_fit_has_the_template_s_reason(tmp_path: Any) -> None:
    with pytest.raises(ApiError, match="never"):
        of_template(tmp_path, "{{ raise_exception('never') }}", of("user: Hi.", "system: A."))


ROLES = st.sampled_from(["system", "developer", "user", "assistant"])


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("name", ["mistral", "gemma", "llama", "chatml", "deepseek"])
@given(roles=st.lists(ROLES, min_size=1, max_size=7))
def test_any_order_of_roles_is_served_and_nothing_lost(name: str, roles: list[str]) -> None:
    messages = [{"role": role, "content": f"text {at}."} for at, role in enumerate(roles)]
    prompt, said = asked(name, "chat", {"messages": messages})
    for message in messages:
        assert prompt.count(message["content"]) == 1
    assert set(filter(None, said.split(", "))) <= CHANGES.keys()


def test_on_the_other_apis() -> None:
    turns = of("system: Be kind.", "user: Hi.", "user: How?")
    body = {"input": turns, "store": False}
    prompt, said = asked("gemma", "responses", body)
    assert said == "turns-joined, system-to-user"
    assert "Be kind.\n\nHi.\n\nHow?" in prompt
    body = {"max_tokens": 5, "system": "Be kind.", "messages": turns[1:]}
    prompt, said = asked("gemma", "messages", body)
    assert said == "system-to-user"  # this API itself joins what a user says
    assert "Be kind.\n\nHi.\n\nHow?" in prompt
    made, data = tokenizer("gemma"), json.dumps({"model": "tiny"} | body).encode()
    told, _ = JOBS["count"](made, {"models": ["tiny"], "context": 0}, data, lambda stage: None)
    assert headers_of(told)[ADAPTED_HEADER] == "system-to-user"
    data = json.dumps({"model": "tiny", "messages": turns}).encode()
    told, _ = JOBS["tokenize"](made, {"models": ["tiny"], "context": 0}, data, lambda stage: None)
    assert headers_of(told)[ADAPTED_HEADER] == "turns-joined, system-to-user"
