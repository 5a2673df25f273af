"""Answers in every format, as each API has them: reasoning, content and calls, streamed as the
model writes them, and the same in one piece."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json
from sealring.dialects.replies import About
from sealring.generation.generation import Generator, TextPiece
from sealring.generation.trace import Trace
from sealring.http.generate import CHAT, MESSAGES, RESPONSES, ChoiceContext
from sealring.text.frames import ParsedRequest, checked
from sealring.text_worker import JOBS
from sealring_model import tiny
from sealring_model.text.tokens import Tokenizer
from sealring_protocol.control.requests import FinishReason, RequestDone

APIS = {kind.name: kind for kind in (CHAT, RESPONSES, MESSAGES)}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}},
}
FUNCTION = {"name": "f", "parameters": PARAMETERS}
TURN = {"role": "user", "content": "x"}
DSML = "｜DSML｜"
NS = "]<]minimax[>["
CALL = '{"name": "f", "arguments": {"city": "Paris", "days": 2}}'
GIVEN = '{"city": "Paris", "days": 2}'
TAGGED = (
    "\n<function=f>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n"
)


def dsml(space: str, name: str) -> str:
    return (
        f'<{DSML}{space}{name}>\n<{DSML}{space}invoke name="f">\n<{DSML}{space}parameter '
        f'name="city" string="true">Paris</{DSML}{space}parameter>\n<{DSML}{space}parameter '
        f'name="days" string="false">2</{DSML}{space}parameter>\n</{DSML}{space}invoke>\n'
        f"</{DSML}{space}{name}>"
    )


def elements(prefix: str) -> str:
    return (
        f'\n<{prefix}invoke name="f">\n<{prefix}parameter name="city">Paris</{prefix}parameter>\n'
        f'<{prefix}parameter name="days">2</{prefix}parameter>\n</{prefix}invoke>\n'
    )


def keyed(prefix: str) -> str:
    return (
        f"f\n<{prefix}arg_key>city</{prefix}arg_key>\n<{prefix}arg_value>Paris</{prefix}arg_value>"
        f"\n<{prefix}arg_key>days</{prefix}arg_key>\n<{prefix}arg_value>2</{prefix}arg_value>\n"
    )


FORMATS: dict[str, tuple[str, str, str]] = {
    # Its name, what its template has, and an answer that thinks, says "Yes." and calls f.
    "harmony": (
        "<|channel|>analysis<|message|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "Yes.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
        f"<|message|>{GIVEN}<|call|>",
        "",
    ),
    "mistral": (
        "[THINK][/THINK][TOOL_CALLS]",
        "[THINK]Hm.[/THINK]Yes.",
        f"[TOOL_CALLS]f[ARGS]{GIVEN}",
    ),
    "mistral's list": (
        "[THINK][/THINK][TOOL_CALLS]",
        "[THINK]Hm.[/THINK]Yes.",
        f"[TOOL_CALLS][{CALL}]",
    ),
    "minimax_m2": (
        "</think><minimax:tool_call>",
        "<think>Hm.</think>Yes.",
        f"<minimax:tool_call>{elements('')}</minimax:tool_call>",
    ),
    "minimax_m3": (
        f"</mm:think>{NS}",
        "<mm:think>Hm.</mm:think>Yes.",
        f'{NS}<tool_call>\n{NS}<invoke name="f">{NS}<city>Paris{NS}</city>{NS}<days>2{NS}</days>'
        f"{NS}</invoke>\n{NS}</tool_call>",
    ),
    "seed_oss": (
        "</seed:think><seed:tool_call>",
        "<seed:think>Hm.</seed:think>Yes.",
        f"<seed:tool_call>{TAGGED}</seed:tool_call>",
    ),
    "qwen3_coder": (
        "</think><tool_call>\n<function=",
        "<think>Hm.</think>Yes.",
        f"<tool_call>{TAGGED}</tool_call>",
    ),
    "json_tools": (
        "</think><tool_call> tool_call.name",
        "<think>Hm.</think>Yes.",
        f"<tool_call>\n{CALL}\n</tool_call>",
    ),
    "glm47": (
        "</think><arg_key>",
        "<think>Hm.</think>Yes.",
        f"<tool_call>{keyed('')}</tool_call>",
    ),
    "longcat": (
        "</longcat_think><longcat_tool_call>",
        "<longcat_think>Hm.</longcat_think>Yes.",
        f"<longcat_tool_call>{keyed('longcat_')}</longcat_tool_call>",
    ),
    "muse_spark": (
        "</think><atem:function_calls>",
        "<think>Hm.</think>Yes.",
        f"<atem:function_calls>{elements('atem:')}</atem:function_calls>",
    ),
    "kimi_k2": (
        "</think><|tool_calls_section_begin|>",
        "<think>Hm.</think>Yes.",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        f"{GIVEN}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "deepseek_v3": (
        "</think><｜tool▁calls▁begin｜>",
        "<think>Hm.</think>Yes.",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{GIVEN}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": (
        f"</think><{DSML}function_calls>",
        "<think>Hm.</think>Yes.",
        dsml("", "function_calls"),
    ),
    "deepseek_v4": (
        f"</think><{DSML}tool_calls>",
        "<think>Hm.</think>Yes.",
        dsml("", "tool_calls"),
    ),
    "deepseek_v4_1": (
        f"</think><{DSML} calls>",
        "<think>Hm.</think>Yes.",
        dsml(" ", "calls"),
    ),
    "llama3": (
        "</think><|python_tag|>",
        "<think>Hm.</think>Yes.",
        f"<|python_tag|>{CALL.replace('arguments', 'parameters')}",
    ),
    "phi4_mini": (
        "</think><|tool|><|/tool|>",
        "<think>Hm.</think>Yes.",
        f"<|tool_call|>[{CALL}]<|/tool_call|>",
    ),
    "phi4_mini's functools": (
        "</think><|tool|><|/tool|>",
        "<think>Hm.</think>Yes.",
        f"functools[{CALL}]",
    ),
}


@cache
def tokenizer_of(template: str) -> Tokenizer:
    """The tiny model's, with a chat template that has *template* in it."""
    return tokenizer_with(
        "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}"
        "{% if false %}" + "{{ '" + template.replace("\n", "\\n") + "' }}{% endif %}"
    )


@cache
def tokenizer_with(template: str = "", kind: str = "") -> Tokenizer:
    """The tiny model's with the chat *template*, or with one of mlx-lm's *kind*."""
    folder = Path(mkdtemp(prefix="sealring-"))
    for file in ("tokenizer.json", "config.json"):
        shutil.copy(tiny.path() / file, folder)
    told = json.loads((tiny.path() / "tokenizer_config.json").read_text())
    told |= {"chat_template": template or None, "chat_template_type": kind or None}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    found = Tokenizer(folder)
    shutil.rmtree(folder)
    return found


@attrs.frozen
class Answered:
    """An answer as a client has it."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = ""


def body_of(api: str, **more: Any) -> dict[str, Any]:
    match api:
        case "chat":
            tools: Any = [{"type": "function", "function": FUNCTION}]
            body: dict[str, Any] = {"messages": [TURN]}
        case "responses":
            tools = [{"type": "function", **FUNCTION}]
            body = {"input": "x"}
        case _:
            tools = [{"name": "f", "input_schema": PARAMETERS}]
            body = {"messages": [TURN], "max_tokens": 9}
    return {"model": "m", "tools": tools, **body, **more}


async def play(
    api: str,
    tokenizer: Tokenizer,
    pieces: list[str],
    reason: FinishReason = FinishReason.STOP,
    body: dict[str, Any] | None = None,
    **began: bool,
) -> tuple[Answered, Answered, int]:
    """The answer of *pieces*: put together from its events, whole, and the number of events with
    arguments."""
    kind: Any = APIS[api]
    data = json.dumps(body or body_of(api)).encode()
    asked = {"models": ["m"], "context": 4096}
    told, rest = JOBS[api](tokenizer, asked, data, lambda stage: None)
    told |= began
    checked(api, json.loads(json.dumps(told)), rest)  # what a worker says is what a node takes
    parsed = ParsedRequest.of(told, rest)
    context = ChoiceContext(cast(Generator, None), tokenizer.words, "")
    options = kind.options.model_validate(told["options"])
    trace = Trace("a", api, "", began=0.0)
    trace.tokens = 9  # as many as the limit allows
    made = About("a", 0, "m", "f", trace)
    shape = kind.shape(options, parsed, context, made)
    (choice,) = kind.choices(options, parsed, context)
    events: list[Any] = []
    for piece in pieces:
        if (delta := await choice.take(TextPiece((piece,), ()))) is not None:
            events += read_events(b"".join(map(shape.event, shape.add(delta))))
    delta = await choice.finish(RequestDone(0, reason))
    events += read_events(b"".join(map(shape.event, shape.add(delta))))
    events += read_events(shape.closing(trace))
    whole = json.loads(b"".join(shape.whole(trace)))
    streamed, parts = STREAMED[api](events)
    return streamed, WHOLE[api](whole), parts


def read_events(data: bytes) -> Iterator[Any]:
    for part in data.decode().split("\n\n"):
        text = part.rpartition("data: ")[2]
        if text and text != "[DONE]":
            yield json.loads(text)


def chat_streamed(events: list[Any]) -> tuple[Answered, int]:
    reasoning = content = finish = ""
    calls: list[list[str]] = []
    parts = 0
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            reasoning += delta.get("reasoning_content", "")
            content += delta.get("content") or ""
            finish = choice["finish_reason"] or finish
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"]["arguments"]
                parts += bool(call["function"]["arguments"])
    made = tuple((name, arguments) for name, arguments in calls)
    return Answered(reasoning, content, made, finish), parts


def chat_whole(body: Any) -> Answered:
    (choice,) = body["choices"]
    message = choice["message"]
    calls = tuple(
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    )
    thought = message.get("reasoning_content", "")
    return Answered(thought, message["content"] or "", calls, choice["finish_reason"])


def responses_streamed(events: list[Any]) -> tuple[Answered, int]:
    texts = {"response.reasoning_text.delta": "", "response.output_text.delta": ""}
    calls: list[list[str]] = []
    parts = 0
    for event in events:
        match event["type"]:
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                calls.append([event["item"]["name"], ""])
            case "response.function_call_arguments.delta":
                calls[-1][1] += event["delta"]
                parts += 1
            case "response.function_call_arguments.done":
                assert event["arguments"] == calls[-1][1]
            case kind if kind in texts:
                texts[kind] += event["delta"]
    made = tuple((name, arguments) for name, arguments in calls)
    return Answered(*texts.values(), made, events[-1]["response"]["status"]), parts


def responses_whole(body: Any) -> Answered:
    texts = {"reasoning": "", "message": ""}
    calls = []
    for item in body["output"]:
        if item["type"] == "function_call":
            calls.append((item["name"], item["arguments"]))
        else:
            texts[item["type"]] += "".join(part["text"] for part in item["content"])
    return Answered(*texts.values(), tuple(calls), body["status"])


def messages_streamed(events: list[Any]) -> tuple[Answered, int]:
    texts = {"thinking": "", "text": ""}
    calls: list[list[str]] = []
    parts = 0
    finish = ""
    for event in events:
        match event:
            case {"type": "content_block_start", "content_block": {"type": "tool_use"} as block}:
                calls.append([block["name"], ""])
            case {"delta": {"type": "input_json_delta", "partial_json": text}}:
                calls[-1][1] += text
                parts += 1
            case {"delta": {"type": "thinking_delta", "thinking": text}}:
                texts["thinking"] += text
            case {"delta": {"type": "text_delta", "text": text}}:
                texts["text"] += text
            case {"delta": {"stop_reason": finish}}:
                pass
    # The official client reads what has come of an object like this.
    read = [(name, from_json(given, allow_partial=True)) for name, given in calls]
    made = tuple((name, json.dumps(given)) for name, given in read)
    return Answered(*texts.values(), made, finish), parts


def messages_whole(body: Any) -> Answered:
    texts = {"thinking": "", "text": ""}
    calls = []
    for block in body["content"]:
        if block["type"] == "tool_use":
            calls.append((block["name"], json.dumps(block["input"])))
        else:
            texts[block["type"]] += block[block["type"]]
    return Answered(*texts.values(), tuple(calls), body["stop_reason"])


STREAMED = {"chat": chat_streamed, "responses": responses_streamed, "messages": messages_streamed}
WHOLE = {"chat": chat_whole, "responses": responses_whole, "messages": messages_whole}
CALLED = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}
ENDED = {"chat": "stop", "responses": "completed", "messages": "end_turn"}
CUT = {"chat": "length", "responses": "incomplete", "messages": "max_tokens"}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("template", "said", "call"), FORMATS.values(), ids=FORMATS)
async def test_thoughts_content_and_calls(template: str, said: str, call: str, api: str) -> None:
    tokenizer = tokenizer_of(template)
    text = said + call
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    streamed, whole, parts = await play(api, tokenizer, pieces)
    assert whole == Answered("Hm.", "Yes.", (("f", GIVEN),), CALLED[api])
    assert streamed == whole
    assert parts > 2, "the arguments are streamed as they are written"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("template", "said", "call"),
    [each for name, each in FORMATS.items() if name != "harmony"],
    ids=[name for name in FORMATS if name != "harmony"],
)
async def test_a_call_within_open_thoughts_is_a_call(
    template: str, said: str, call: str, api: str
) -> None:
    opening = said.partition("Hm.")[0]
    streamed, whole, _ = await play(api, tokenizer_of(template), [f"{opening}Hm.", call])
    assert whole == Answered("Hm.", "", (("f", GIVEN),), CALLED[api])
    assert streamed == whole
    streamed, whole, _ = await play(api, tokenizer_of(template), ["Hm.", call], reasoning=True)
    assert whole == streamed == Answered("Hm.", "", (("f", GIVEN),), CALLED[api])


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("reason", "finish"), [("STOP", ENDED), ("LENGTH", CUT)])
@pytest.mark.parametrize(("template", "said", "call"), FORMATS.values(), ids=FORMATS)
async def test_an_answer_that_ends_within_its_thoughts(
    template: str, said: str, call: str, reason: str, finish: dict[str, str], api: str
) -> None:
    text = said.partition("Hm.")[0] + "Hm."
    end = FinishReason[reason]
    streamed, whole, _ = await play(api, tokenizer_of(template), [text], end)
    assert whole == streamed == Answered("Hm.", "", (), finish[api])


@pytest.mark.parametrize("api", APIS)
async def test_a_call_that_is_cut_off(api: str) -> None:
    template = FORMATS["json_tools"][0]
    pieces = ['<tool_call>{"name": "f", "arguments": {"days": 2, "city": "Par', "is"]
    streamed, whole, _ = await play(api, tokenizer_of(template), pieces, FinishReason.LENGTH)
    given = '{"days": 2}' if api == "messages" else '{"days": 2, "city": "Paris'
    assert whole == streamed == Answered("", "", (("f", given),), CUT[api])


async def test_the_work_is_linear_in_the_parts_of_a_call() -> None:
    """Whose arguments are no object: Anthropic's API waits for all of them."""
    tokenizer = tokenizer_of(FORMATS["json_tools"][0])

    async def seconds(parts: int) -> float:
        pieces = ['<tool_call>{"name": "f", "arguments": [', *[f'"{"x" * 2000}", '] * parts]
        times = []
        for _ in range(2):
            began = time.process_time()
            await play("messages", tokenizer, [*pieces, "1]}</tool_call>"])
            times.append(time.process_time() - began)
        return min(times)

    assert await seconds(2_000) < 32 * await seconds(125), "16 times the parts"


ALL = [said + call for _, said, call in FORMATS.values()]
TEXTS = st.sampled_from(ALL) | st.lists(
    st.sampled_from([*ALL, "<think>", "</think>", "Hm", "<tool_call>", '{"name": "f"', "\n"]),
    max_size=4,
).map("".join)


@given(
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from(["chat", "responses"]),
    TEXTS,
    st.lists(st.integers(0, 400), max_size=8),
)
def test_what_is_streamed_joins_to_the_whole(
    name: str, api: str, text: str, places: list[int]
) -> None:
    import trio

    tokenizer = tokenizer_of(FORMATS[name][0])
    cuts = sorted({0, len(text), *(place for place in places if place < len(text))})
    pieces = [text[begin:end] for begin, end in itertools.pairwise(cuts)]

    async def both() -> None:
        streamed, whole, _ = await play(api, tokenizer, pieces)
        assert streamed == whole
        _, at_once, _ = await play(api, tokenizer, [text])
        assert at_once == whole

    trio.run(both)


CUSTOM = {"type": "custom", "name": "patch"}


async def test_the_input_of_a_custom_tool_is_streamed() -> None:
    tokenizer = tokenizer_of(FORMATS["json_tools"][0])
    text = 'a "quoted"\nline, \\ and \N{GRINNING FACE}'
    for arguments in (json.dumps({"input": text}), json.dumps({"input": text}, ensure_ascii=False)):
        call = f'<tool_call>{{"name": "patch", "arguments": {arguments}}}</tool_call>'
        deltas, given = await custom(tokenizer, list(call))
        assert "".join(deltas) == given == text
        assert len(deltas) > 10
    wrong = '<tool_call>{"name": "patch", "arguments": {"text": "x"}}</tool_call>'
    assert await custom(tokenizer, list(wrong)) == (['{"text": "x"}'], '{"text": "x"}')


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "abc', "abc"),  # cut off
        ('{"input": "abc\\', "abc"),
        ('{"input": "abc", "input": "xyz"}', "abc"),
        ('{"input": "a\\xb"}', "a\\xb"),
        ('{"input": "a\\ud800b"}', "a\\ud800b"),
        ('{"input": "a\\ud83d\\ude00b"}', "a\N{GRINNING FACE}b"),
        ('{"other": 1, "input": "abc"}', "abc"),
        ('{"input": 5}', '{"input": 5}'),
    ],
)
async def test_the_input_of_a_custom_tool_is_what_was_streamed(arguments: str, text: str) -> None:
    tokenizer = tokenizer_of(FORMATS["json_tools"][0])
    call = f'<tool_call>{{"name": "patch", "arguments": {arguments}'
    for pieces in (list(call), [call]):
        deltas, given = await custom(tokenizer, pieces)
        assert "".join(deltas) == given == text


async def custom(tokenizer: Tokenizer, pieces: list[str]) -> tuple[list[str], str]:
    """The deltas of a custom tool's input, and the whole of it."""
    kind = APIS["responses"]
    body = json.dumps({"model": "m", "input": "x", "tools": [CUSTOM]}).encode()
    told, rest = JOBS["responses"](
        tokenizer, {"models": ["m"], "context": 4096}, body, lambda stage: None
    )
    checked("responses", json.loads(json.dumps(told)), rest)
    parsed = ParsedRequest.of(told, rest)
    context = ChoiceContext(cast(Generator, None), tokenizer.words, "")
    options = kind.options.model_validate(told["options"])
    shape = kind.shape(
        options, parsed, context, About("a", 0, "m", "f", Trace("a", "", "", began=0.0))
    )
    (choice,) = kind.choices(options, parsed, context)
    events: list[Any] = []
    for piece in pieces:
        if (delta := await choice.take(TextPiece((piece,), ()))) is not None:
            events += read_events(b"".join(map(shape.event, shape.add(delta))))
    delta = await choice.finish(RequestDone(0, FinishReason.STOP))
    events += read_events(b"".join(map(shape.event, shape.add(delta))))
    kind_of = "response.custom_tool_call_input"
    deltas = [event["delta"] for event in events if event["type"] == f"{kind_of}.delta"]
    (given,) = (event["input"] for event in events if event["type"] == f"{kind_of}.done")
    return deltas, given


def prompt(tokenizer: Tokenizer, messages: list[Any], **more: Any) -> str:
    """The prompt of a conversation, as text."""
    body = json.dumps(body_of("chat", messages=messages, **more)).encode()
    asked = {"models": ["m"], "context": 1 << 16}
    parsed = ParsedRequest.of(*JOBS["chat"](tokenizer, asked, body, lambda stage: None))
    return tokenizer.decode(parsed.prompts[0])


def called(*ids: str) -> dict[str, Any]:
    """A turn of the assistant's with a call of each id."""
    function = {"name": "f", "arguments": GIVEN}
    calls = [{"id": id, "type": "function", "function": function} for id in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": f"result {id}"}


DEEPSEEK = """{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}
{{- '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' }}
{{- call.function.arguments + '<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}{% endfor %}
{%- endfor %}"""


def test_deepseek_is_told_of_tools_in_its_own_format() -> None:
    tokenizer = tokenizer_with(DEEPSEEK)
    text = prompt(tokenizer, [TURN, called("1"), result("1")])
    assert '"name": "f"' in text
    own = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{"ARGUMENT": "VALUE"}'
    assert own in text
    assert f"<｜tool▁call▁begin｜>f<｜tool▁sep｜>{GIVEN}<｜tool▁call▁end｜>" in text
    assert tokenizer.in_words
    assert not tokenizer_with(DEEPSEEK + "{{ tools }}").in_words


def test_mlx_lms_template_of_deepseek_v3_2_takes_calls() -> None:
    tokenizer = tokenizer_with(kind="deepseek_v32")
    text = prompt(tokenizer, [TURN, called("1"), result("1")])
    assert f'<{DSML}parameter name="city" string="true">Paris</{DSML}parameter>' in text
    assert tokenizer.calls.name == "deepseek_v32"


LLAMA = """{% for m in messages %}{% if 'tool_calls' in m %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls at once!') }}
{%- endif %}<|python_tag|>{{ m.tool_calls[0].function.arguments | tojson }}
{%- else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"""


def test_a_template_that_takes_one_call_in_a_message_gets_each_with_its_result() -> None:
    turns = [TURN, called("1", "2", "3"), result("3"), result("1"), result("2"), TURN]
    text = prompt(tokenizer_with(LLAMA), turns)
    call = f"<|python_tag|>{GIVEN}"
    told = "".join(f"{call}[tool]result {id}" for id in "123")
    assert text == f"[user]x{told}[user]x"


PHI = """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}
{%- if m.tools is defined %}<|tool|>{{ m.tools }}<|/tool|>{% endif %}<|end|>{% endfor %}"""


CUT_OFF = '{"city": "Par'


def cut_off(tokenizer: Tokenizer, arguments: str = CUT_OFF) -> tuple[str, list[str]]:
    """The prompt of a history in which a call has *arguments*, and how it was changed."""
    function = {"name": "f", "arguments": arguments}
    call = {"id": "a", "type": "function", "function": function}
    talk = [TURN, {"role": "assistant", "content": None, "tool_calls": [call]}, result("a")]
    body = json.dumps(body_of("chat", messages=talk)).encode()
    asked = {"models": ["m"], "context": 1 << 16}
    told, rest = JOBS["chat"](tokenizer, asked, body, lambda stage: None)
    return tokenizer.decode(ParsedRequest.of(told, rest).prompts[0]), told["adapted"]


def test_a_call_that_was_cut_off_can_be_sent_back() -> None:
    """As a text where the template takes one, and else within an object."""
    call = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}<|python_tag|>CALL{% endfor %}"
        "{% endfor %}"
    )
    given = "c.function.arguments"
    takes_text = tokenizer_with(call.replace("CALL", f"[{{{{ {given} }}}}]"))
    assert cut_off(takes_text) == (f"<|python_tag|>[{CUT_OFF}]", [])
    pairs = f"{{% for k, v in {given}.items() %}}[{{{{ k }}}}={{{{ v }}}}]{{% endfor %}}"
    takes_object = tokenizer_with(call.replace("CALL", pairs))
    for arguments in (CUT_OFF, "[1]", "Paris"):
        said = f"<|python_tag|>[arguments={arguments}]"
        assert cut_off(takes_object, arguments) == (said, ["tool-arguments-wrapped"])
    assert cut_off(takes_object, "null") == ("<|python_tag|>", ["tool-arguments-wrapped"])
    assert cut_off(takes_object, GIVEN) == ("<|python_tag|>[city=Paris][days=2]", [])
    prompt, changes = cut_off(tokenizer_with(DEEPSEEK))
    assert f"f<｜tool▁sep｜>{CUT_OFF}<｜tool▁call▁end｜>" in prompt
    assert changes == []


def test_phi_4_mini_gets_tools_with_the_system_message() -> None:
    text = prompt(tokenizer_with(PHI), [TURN, called("1"), result("1")])
    assert text == (
        f"<|system|><|tool|>{json.dumps([FUNCTION])}<|/tool|><|end|><|user|>x<|end|>"
        f'<|assistant|><|tool_call|>[{{"name": "f", "arguments": {GIVEN}}}]<|/tool_call|><|end|>'
        "<|tool_response|>result 1<|end|>"
    )
    system = {"role": "system", "content": "Be brief."}
    text = prompt(tokenizer_with(PHI), [system, TURN])
    assert text.startswith("<|system|>Be brief.<|tool|>[")
