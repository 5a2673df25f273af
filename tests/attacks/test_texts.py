"""Texts that cost more than they should, in a real worker.

The ring's links are served by the thread that runs these tests: what it spends is what they would
wait for.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import psutil
import pytest
import trio
from sealring.dialects.errors import ApiError, invalid, text_errors
from sealring.dialects.fields import MAX_IGNORED
from sealring.dialects.replies import MAX_CALL
from sealring.generation.generation import Generator
from sealring.generation.trace import Trace
from sealring.http.generate import CHAT, CallReader, ChoiceContext
from sealring.text import workers as text_workers
from sealring.text.frames import (
    CALL,
    RENDER,
    SIZES,
    Exceeded,
    Lost,
    Refused,
    TextQueueFull,
    pack,
)
from sealring.text.workers import TextWorkers
from sealring_model import tiny
from sealring_model.text.detokenizer import Vocabulary
from sealring_model.text.tokens import Tokenizer
from sealring_trio.errors import OperationError

from tests.attacks.taken_text_worker import WORDS

SPARE = 1.0
"""Seconds of this thread's processor that one attack may cost; a peer is lost after 1.5."""

TEMPLATE = """{% set text = messages[0]['content'] %}
{%- if text == 'endless' %}
{%- for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}
{%- endfor %}{% endfor %}
{%- elif text == 'range' %}{% for a in range(10**9) %}{% endfor %}
{%- elif text == 'at once' %}{{ 'x' * 10**11 }}
{%- elif text == 'more and more' %}{% set box = namespace(all='x') %}
{%- for a in range(64) %}{% set box.all = box.all ~ box.all %}{% endfor %}
{%- elif text == 'reach' %}{{ ''.__class__.__mro__[1].__subclasses__() }}
{%- elif text == 'attr' %}{{ (''|attr('__class__')).__name__ }}
{%- elif text == 'change' %}{{ messages.append(1) }}
{%- elif text == 'format' %}{{ '{0.__class__.__init__.__globals__}'.format(messages) }}
{%- elif text == 'import' %}{% include '/etc/passwd' %}
{%- else %}{{ text }}{% endif %}"""


def variant(folder: Path, **settings: str) -> Path:
    """The tiny model's tokenizer in *folder*, with other *settings*."""
    folder.mkdir()
    for name in ("tokenizer.json", "config.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny.path() / name).read_bytes())
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    for template in folder.glob("*.jinja"):
        template.unlink()
    return folder


@contextmanager
def spared() -> Iterator[None]:
    """Of this thread's processor the block takes `SPARE` at most."""
    began = time.thread_time()
    yield
    assert time.thread_time() - began < SPARE


@asynccontextmanager
async def unspared(model: Path) -> AsyncIterator[TextWorkers]:
    """Text workers with the tokenizer in *model*."""
    texts = TextWorkers(model)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(texts.serve)
        yield texts
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def workers(model: Path) -> AsyncIterator[TextWorkers]:
    """Text workers with the tokenizer in *model*, for one attack."""
    async with unspared(model) as texts:
        with spared():
            yield texts


def ask(text: str) -> bytes:
    """A body with one message."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


ABOUT = {"models": ["m"], "context": 2048}


async def outcome(texts: TextWorkers, job: str, data: bytes, owner: str = "", **about: Any) -> str:
    """What becomes of a job of *owner*'s, in words."""
    try:
        told, _ = await texts.run(job, ABOUT | about, data, owner)
    except (Refused, Exceeded, TextQueueFull, Lost) as error:
        return f"{type(error).__name__}: {error}"
    return str(told)


async def test_a_worker_is_started_once_and_again_if_it_is_killed() -> None:
    """A start takes seconds of a core, which the ring would have computed tokens in: a job that
    comes while the first worker starts begins no other. And one that dies while it has nothing to
    do costs no job."""
    before = set(psutil.Process().children())
    async with workers(tiny.path()) as texts:
        assert "'lengths': [5]" in await outcome(texts, "chat", ask("Hello."))
        (worker,) = set(psutil.Process().children()) - before
        worker.kill()
        ended = partial(os.waitid, os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        await trio.to_thread.run_sync(ended)
        assert "'lengths': [5]" in await outcome(texts, "chat", ask("Hello."))


TEMPLATES = {
    "endless": "Exceeded: the chat template took longer than 2 s",
    "range": "Refused: the chat template refuses these messages: Range too big",
    "at once": "Refused: the chat template refuses these messages: MemoryError",
    "more and more": "MemoryError|chat template took (more than 1 GiB of memory|longer than 2 s)",
    "reach": "Refused: .* access to attribute '__class__' of 'str' object is unsafe",
    "attr": "Refused: .* access to attribute '__class__' of 'str' object is unsafe",
    "change": "Refused: .* access to attribute 'append' of 'list' object is unsafe",
    "format": "Refused: .* access to attribute '__init__' of 'Undefined' object is unsafe",
    "import": "Refused: the chat template refuses these messages: no loader",
}


async def test_a_template_reaches_nothing_and_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_workers, "MEMORY", 1 << 30)
    monkeypatch.setitem(cast(Any, text_workers.STAGE_SECONDS), RENDER, 2.0)
    async with workers(variant(tmp_path / "m", chat_template=TEMPLATE)) as texts:
        for text, wanted in TEMPLATES.items():
            assert re.search(wanted, await outcome(texts, "chat", ask(text))), text
            assert "'lengths'" in await outcome(texts, "chat", ask("The next one is served."))


async def test_arguments_that_are_no_text_end_no_worker(tmp_path: Path) -> None:
    """JSON within JSON may name half of a character, which no tokenizer takes."""
    template = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    model = variant(tmp_path / "m", chat_template=template, tool_parser_type="glm47")
    async with workers(model) as texts:
        for text, wanted in {
            '{"a": "\\ud800"}': "Refused: .* surrogates not allowed",
            '{"\\udc00": 1}': "Refused: .* surrogates not allowed",
            '{"a": "\\ud83e\\udd8a"}': "'lengths'",
        }.items():
            function = {"name": "f", "arguments": text}
            call = {"id": "a", "type": "function", "function": function}
            message = {"role": "assistant", "content": "x", "tool_calls": [call]}
            body = json.dumps({"model": "m", "messages": [message]}).encode()
            assert re.search(wanted, await outcome(texts, "chat", body)), text


TOOLS = json.dumps([{"type": "function", "function": {"name": "f"}}]).encode()

CALLS = {
    "gemma4": "call:f{" * 4_000,
    "kimi_k3": "<|open|>call" * 20_000,
}
"""Texts over which mlx-lm's parsers take minutes; function_gemma's takes seconds. Other formats
have readers of linear time."""


@pytest.mark.slow
@pytest.mark.parametrize("parser", CALLS)
async def test_a_hostile_tool_call_costs_its_worker_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    parser: str,
) -> None:
    text = CALLS[parser]
    monkeypatch.setitem(cast(Any, text_workers.STAGE_SECONDS), CALL, 0.5)
    assert len(text) <= MAX_CALL
    model = variant(tmp_path / "m", tool_parser_type=parser)
    async with workers(model) as texts:
        hands = ChoiceContext(cast(Any, Mock(texts=texts)), Mock(), "")
        assert await CallReader(hands, TOOLS, plain=False).read(text) == []
        (line,) = [record for record in caplog.records if "given out as text" in record.message]
        assert "reading a tool call took longer than 0.5 s" in line.message
        assert "'lengths'" in await outcome(texts, "chat", ask("The next one is served."))


BODY = b'{"model": "m", "prompt": %s}'

BODIES = {
    "deep": (b"[" * 8_000_000, "Refused: The body has more than"),
    "deep, and few": (b"[" * 100_000, "Refused: The body is not valid JSON: recursion limit"),
    "objects": (BODY % (b"[" + b'{"a":[]},' * 900_000 + b"1]"), "Refused: The body has more than"),
    "long numbers": (BODY % (b"[" + b"9" * 8_000_000 + b"]"), "Refused: "),
    "many numbers": (BODY % (b"[" + b"1," * 4_000_000 + b"1]"), "Refused: The body has more than"),
    "prompts": (BODY % (b"[" + b"[1]," * 900_000 + b"[1]]"), "Refused: "),
    "quotes": (BODY % (b'"' + b'\\"' * 4_000_000 + b'"'), "context length"),
    "half quotes": (b'{"' + b'\\"' * 4_000_000, "Refused: The body is not valid JSON"),
}


@pytest.mark.slow
async def test_large_bodies_are_read_beside_the_ring_one_at_a_time() -> None:
    async with workers(tiny.path()) as texts, trio.open_nursery() as nursery:

        async def one(body: bytes, wanted: str, owner: str) -> None:
            told = await outcome(texts, "completion", body, owner)
            assert re.search(wanted, told), told

        for number, (body, wanted) in enumerate(BODIES.values()):
            nursery.start_soon(one, body, wanted, f"owner {number % 2}")
        await trio.testing.wait_all_tasks_blocked()
        assert "'lengths'" in await outcome(texts, "chat", ask("Short ones go on."))


async def test_who_has_many_large_texts_waiting_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_workers, "MAX_WAITING", 2000)
    body = ask("a" * 600)
    async with workers(tiny.path()) as texts, trio.open_nursery() as nursery:
        nursery.start_soon(outcome, texts, "chat", body, "greedy")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert await outcome(texts, "chat", body, "greedy") == "TextQueueFull: "
        assert "'lengths'" in await outcome(texts, "chat", body, "modest")
        assert await outcome(texts, "chat", ask("a" * 2000), "third") == "TextQueueFull: "


def in_turn(table: Mapping[str, Any], *daily: str) -> list[Any]:
    """Values for a parameter: the *daily* rows of *table* one after the other, since each row alone
    would start two workers; and all others, which is slow."""
    rest = [row for name, row in table.items() if name not in daily]
    rows = [table[name] for name in daily]
    return [
        pytest.param(rows, id=", ".join(daily)),
        pytest.param(rest, id="all others", marks=pytest.mark.slow),
    ]


def frame(text: bytes) -> bytes:
    return SIZES.pack(len(text), 0) + text


SAYINGS = {
    "deep": frame(b"[" * 1_000_000),
    "no JSON": frame(b"\xff"),
    "no object": frame(b"1"),
    "very many values": frame(b'{"done": [' + b"{}," * 7_000_000 + b"1]}"),
    "very many texts": frame(b'{"done": [' + b'"",' * 7_000_000 + b"1]}"),
    "nothing": frame(b"{}"),
    "no fields": frame(b'{"refused": 1}'),
    "no answer": frame(b'{"done": [1]}'),
    "an unknown stage": frame(b'{"stage": "rest"}'),
    "no stage": frame(b'{"stage": [1]}'),
    "a stage without end": frame(b'{"stage": "%s"}' % CALL.encode()) * 2,
}


@pytest.mark.parametrize("says", in_turn(SAYINGS, "no JSON", "no answer", "a stage without end"))
async def test_a_worker_that_was_taken_over_is_ended_and_its_caller_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: list[bytes]
) -> None:
    monkeypatch.setattr(text_workers, "MODULE", "tests.attacks.taken_text_worker")
    async with unspared(tmp_path) as texts:
        for wrong in says:
            (tmp_path / "says").write_bytes(wrong)
            with spared():
                told = await outcome(texts, "chat", b"")
            assert re.match("(Lost: the|Wrong: a) text worker ", told), wrong[:40]
            (tmp_path / "says").write_bytes(frame(b'{"done": {"calls": []}}'))
            assert await outcome(texts, "call", b"") == "{'calls': []}", wrong[:40]


TOLD: dict[str, Any] = {
    "options": {"model": "m"},
    "read": 0.5,
    "lengths": [1],
    "predicted": 0,
    "tools": 2,
    "callable": {"f": {"x": {"types": ["object"], "fields": {"y": {"texts": ["a"]}}}}},
    "reasoning": False,
    "calling": False,
    "opens": True,
    "ignored": ["user"],
    "adapted": [],
    "functions": False,
    "in_words": False,
    "plain": False,
    "grammar": 0,
    "bad": [[1, 2]],
    "branches": [],
}
REFUSED: dict[str, Any] = invalid("No.", "x").fields()
deep: dict[str, Any] = {}
for _ in range(400):
    deep = {"items": deep}
WRONG: dict[str, dict[str, Any]] = {
    "another field": {"done": TOLD | {"more": 1}},
    "a field less": {"done": {name: TOLD[name] for name in TOLD if name != "plain"}},
    "a number for a switch": {"done": TOLD | {"opens": 1}},
    "a text for a number": {"done": TOLD | {"tools": "2"}},
    "tools that are not there": {"done": TOLD | {"tools": 3}},
    "tools before the beginning": {"done": TOLD | {"tools": -1}},
    "a token beyond all": {"done": TOLD | {"bad": [[1 << 32]]}},
    "a token below all": {"done": TOLD | {"bad": [[-1]]}},
    "very many tokens": {"done": TOLD | {"branches": [1] * 100_000}},
    "very many prompts": {"done": TOLD | {"lengths": [0] * 1_000}},
    "no time": {"done": TOLD | {"read": float("nan")}},
    "no functions": {"done": TOLD | {"callable": {"f": {"x": {"types": 5}}}}},
    "no end of types": {"done": TOLD | {"callable": {"f": {"x": deep}}}},
    "names that are none": {"done": TOLD | {"ignored": [1]}},
    "no options": {"done": TOLD | {"options": []}},
    "options that there are not": {"done": TOLD | {"options": {"model": "m", "n": "many"}}},
    "no error": {"refused": {}},
    "no status": {"refused": REFUSED | {"status": 200}},
    "no header": {"refused": REFUSED | {"headers": {"x": "a\r\nset-cookie: b"}}},
    "an endless error": {"refused": REFUSED | {"message": "x" * (33 << 20)}},
}


@pytest.mark.parametrize(
    "says",
    in_turn(
        WRONG,
        "another field",
        "tools that are not there",
        "a token beyond all",
        "very many prompts",
        "no options",
        "no header",
        "an endless error",
    ),
)
async def test_what_a_taken_worker_says_is_looked_at_field_by_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: list[dict[str, Any]]
) -> None:
    """It is ended, and its request alone gets a 500."""
    monkeypatch.setattr(text_workers, "MODULE", "tests.attacks.taken_text_worker")
    data = b"\x07\0\0\0[]"

    def check(fields: Mapping[str, Any]) -> None:
        CHAT.options.model_validate(fields["options"])

    others = set(psutil.Process().children())  # of other tests
    async with unspared(tmp_path) as texts:
        for wrong in says:
            (tmp_path / "says").write_bytes(pack(wrong, data))
            before = set(psutil.Process().children()) - others
            none = pytest.raises(ApiError, match="an answer that is none")
            with spared(), none as raised, text_errors("a"):
                await texts.run("chat", ABOUT, b"", check=check)
            assert raised.value.status == 500
        (tmp_path / "says").write_bytes(pack({"done": TOLD}, data))
        assert (await texts.run("chat", ABOUT, b"", check=check))[0] == TOLD
        assert not before & {each for each in psutil.Process().children() if each.is_running()}


ANSWERS = {
    "nothing": {},
    "no prompt": {"lengths": [], "read": 0.0},
    "more than there is": {"lengths": [2], "read": 0.0},
    "less than nothing": {"lengths": [2, -1], "read": 0.0},
    "no lengths": {"lengths": [[1]], "read": 0.0},
    "no list": {"lengths": 1, "read": 0.0},
    "no time": {"lengths": [1], "read": []},
}


@pytest.mark.parametrize("told", in_turn(ANSWERS, "nothing", "less than nothing", "no time"))
async def test_a_prompt_that_a_taken_worker_makes_up_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(text_workers, "MODULE", "tests.attacks.taken_text_worker")
    generator = Generator(Mock(), tmp_path)
    generator.runtime.node.engine_info = None
    trace = Trace("id", "chat", "", began=0.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generator.texts.serve)
        for wrong in told:
            (tmp_path / "says").write_bytes(pack({"done": wrong}, bytes(4)))
            with pytest.raises(Lost, match="an answer that is none"):
                await generator.parse("prompt", {}, b"", "", trace)
        (tmp_path / "says").write_bytes(
            pack({"done": {"lengths": [1, 0], "read": 1.5}}, b"\x07\0\0\0rest")
        )
        parsed = await generator.parse("prompt", {}, b"", "", trace)
        assert (parsed.prompts, parsed.rest) == ([(7,), ()], b"rest")
        assert (trace.parse, trace.prompt_tokens) == (1.5, 1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("begins", [SAYINGS["deep"], SAYINGS["no object"]], ids=["deep", "no"])
async def test_a_worker_that_begins_with_what_is_no_message_ends_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bytes
) -> None:
    monkeypatch.setattr(text_workers, "MODULE", "tests.attacks.taken_text_worker")
    (tmp_path / "begins").write_bytes(begins)
    async with workers(tmp_path) as texts:
        with pytest.raises(OperationError, match=r"no text worker starts: .* no message"):
            await outcome(texts, "chat", b"")


REGEX: dict[str, Any] = {"pattern": {"Regex": "(a+)+$"}, "content": ""}
DECODERS = {
    "no steps": {"type": "Sequence"},
    "steps that are none": {"type": "Sequence", "decoders": ["x", None]},
    "no list of steps": {"type": "Sequence", "decoders": 5},
    "no fields": {"type": "CTC"},
    "no pattern": {"type": "Replace"},
    "a pattern that is none": {"type": "Replace", "pattern": "x", "content": ""},
    "a pattern of no text": {"type": "Replace", "pattern": {"String": 5}, "content": ""},
    "two patterns": {"type": "Replace", "pattern": {"String": "x", "Regex": "x"}, "content": ""},
    "a number for a text": {"type": "BPEDecoder", "suffix": 5},
    "a field more": {"type": "Fuse", "decoders": []},
    "no type": REGEX,
    "a type of another case": {"type": "replace", **REGEX},
    "a type that is none": {"type": []},
    "no decoder": {},
    "a step of no type": {"type": "Sequence", "decoders": [REGEX]},
    "very many spaces": {
        "type": "Sequence",
        "decoders": [{"type": "WordPiece", "prefix": "##", "cleanup": True}] * 6500,
    },
    "a text without end": {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 99_999},
}


async def test_a_long_text_of_a_worker_s_is_one_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_workers, "MODULE", "tests.attacks.taken_text_worker")
    text = ',[{:"\\' * 500_000
    (tmp_path / "says").write_bytes(pack({"done": {"calls": [["f", text, "1"]]}}))
    async with workers(tmp_path) as texts:
        told, _ = await texts.run("call", {})
        assert told["calls"][0][1] == text


async def test_an_answer_too_many_is_not_the_next_job_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_workers, "MODULE", "tests.attacks.taken_text_worker")
    (tmp_path / "says").write_bytes(frame(b'{"done": {"calls": []}}') * 2)
    async with workers(tmp_path) as texts:
        assert await outcome(texts, "call", b"") == "{'calls': []}"
        told = await outcome(texts, "call", b"")
        assert told == "Lost: the text worker said more than it was asked"


FAILED = {
    "hidden characters": ("\x1b[2J\u202e\ud800no", r"^\\u001b\[2J\\u202e.*no$"),
    "no text": ([[]] * 1_000, "no text worker starts: .* no message"),
    "no text, and large": ([[]] * 1_000_000, "no text worker starts: .* no message"),
}


@pytest.mark.parametrize(("failed", "wanted"), FAILED.values(), ids=FAILED)
async def test_why_a_worker_loads_nothing_is_a_text_that_can_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: Any, wanted: str
) -> None:
    monkeypatch.setattr(text_workers, "MODULE", "tests.attacks.taken_text_worker")
    (tmp_path / "begins").write_bytes(pack({"failed": failed}))
    async with workers(tmp_path) as texts:
        with pytest.raises(OperationError) as raised:
            await texts.vocabulary()
        assert re.search(wanted, raised.value.what)


NO_WORDS: dict[str, tuple[dict[str, Any], bytes]] = {
    "a size less than nothing": ({"size": -1}, b""),
    "a size without end": ({"size": 1 << 40}, b""),
    "no size": ({"size": True}, b""),
    "tokens that are not there": ({"counts": [1000, 0, 0]}, b""),
    "less than no tokens": ({"counts": [-1, 1, 1]}, b""),
    "no tokens": ({"counts": [0, 0, 0]}, b""),
    "tokens that overlap": ({"counts": [3, 0, 0]}, array("I", [0, 9, 0]).tobytes()),
    "a token without end": (
        {"counts": [2, 0, 0]},
        array("I", [0, 99_999]).tobytes() + bytes(99_999),
    ),
    "very many special ones": ({"counts": [1, 200_000, 0]}, array("I", range(200_001)).tobytes()),
    "an end beyond all": ({"eos": [1 << 40]}, b""),
    "very many ends": ({"eos": [1] * 100_000}, b""),
    "a mark without end": ({"names": ["x" * 10_000, "", "", "", ""]}, b""),
    "marks that are none": ({"names": [1, 2, 3, 4, 5]}, b""),
    "a decoder that searches": (
        {"decoder": json.dumps({"type": "Replace", "pattern": {"Regex": "."}, "content": ""})},
        b"",
    ),
    "a decoder that is deep": ({"decoder": "[" * 90_000}, b""),
    "a decoder that is none": ({"decoder": "[1]"}, b""),
    "a decoder that is deep in itself": (
        {"decoder": '{"type": "Sequence", "decoders": [' * 900 + "]}" * 900},
        b"",
    ),
    **{
        f"a decoder with {name}": ({"decoder": json.dumps(decoder)}, b"")
        for name, decoder in DECODERS.items()
    },
}


@pytest.mark.parametrize(("wrong", "data"), NO_WORDS.values(), ids=NO_WORDS)
def test_what_a_taken_worker_says_of_the_tokens_is_looked_at(
    wrong: dict[str, Any], data: bytes
) -> None:
    told, right = Vocabulary.of((), **WORDS).packed()
    told = json.loads(json.dumps(told))
    assert Vocabulary.unpacked(told, right).token_bytes(0) == b""
    with pytest.raises(ValueError, match=r"vocabulary|most|answers|mark|decoder|nested"):
        Vocabulary.unpacked(told | wrong, data or right)


def test_a_decoder_is_given_to_the_library_as_it_was_checked() -> None:
    """Of two types in one step Python takes the last, and the library the first."""
    decoder = '{"type": "Replace", "type": "Fuse", "pattern": {"Regex": "a"}, "content": ""}'
    with pytest.raises(ValueError, match="other fields"):
        Vocabulary.of([b"a"], decoder=decoder, **WORDS)
    decoder = '{"type": "Replace", "pattern": {"Regex": "a"}, "pattern": {"String": "b"}, '
    words = Vocabulary.of([b"ab"], decoder=decoder + '"content": "c"}', **WORDS)
    assert words.decode([0]) == "ac"


async def test_a_worker_whose_decoder_is_none_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_workers, "MODULE", "tests.attacks.taken_text_worker")
    told, data = Vocabulary.of((), **WORDS).packed()
    (tmp_path / "begins").write_bytes(pack({"ready": told | {"decoder": '{"type": "CTC"}'}}, data))
    async with workers(tmp_path) as texts:
        with pytest.raises(OperationError, match="said nothing of its tokens"):
            await texts.vocabulary()


async def test_a_worker_that_says_nothing_of_the_tokens_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_workers, "MODULE", "tests.attacks.taken_text_worker")
    (tmp_path / "begins").write_bytes(pack({"ready": {"size": 5}}))
    async with workers(tmp_path) as texts:
        with pytest.raises(OperationError, match="said nothing of its tokens"):
            await texts.vocabulary()


async def test_a_worker_that_says_byte_after_byte_has_no_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_workers, "MODULE", "tests.attacks.taken_text_worker")
    monkeypatch.setattr(text_workers, "ACCEPT_SECONDS", 0.5)
    (tmp_path / "says").write_bytes(frame(b" " * 1_000))
    (tmp_path / "drips").touch()
    async with workers(tmp_path) as texts:
        with trio.fail_after(10):
            assert (
                await outcome(texts, "chat", b"")
                == "Exceeded: reading the job took longer than 0.5 s"
            )


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="no real-time signals here")
async def test_a_worker_that_a_signal_without_a_name_ends_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_workers, "MODULE", "tests.attacks.taken_text_worker")
    number = signal.SIGRTMIN + 3
    (tmp_path / "signal").write_text(str(number))
    async with workers(tmp_path) as texts:
        told = await outcome(texts, "chat", b"")
        assert (
            told == f"Lost: the text worker was lost (signal {number}); it was at reading the job"
        )
        (tmp_path / "signal").unlink()
        (tmp_path / "says").write_bytes(frame(b'{"done": {}}'))
        assert await outcome(texts, "detokenize", b"") == "{}"


async def test_a_prompt_that_cannot_fit_is_refused_by_its_length() -> None:
    hopeless = "The quick brown fox. " * 350_000
    async with workers(tiny.path()) as texts:
        for job, body in {
            "chat": ask(hopeless),
            "completion": json.dumps({"model": "m", "prompt": ["x", hopeless]}).encode(),
            "prompt": hopeless.encode(),
        }.items():
            told = await outcome(texts, job, body, raw=False, limit=1)
            assert re.search("context length is 2048 .* at least 525...? tokens", told), told
        (worker,) = [one for one in texts._idle if one.memory()][:1]
        assert worker.memory() - worker.loaded < 200 << 20


async def test_tokens_are_counted_of_what_might_fit_a_few_times() -> None:
    async def told(job: str, text: str) -> str:
        sent: dict[str, Any] = json.loads(ask(text))
        body = {"model": "m", "input": text} if job == "count_input" else sent
        return await outcome(texts, job, json.dumps(body).encode())

    async with workers(tiny.path()) as texts:
        for job in ("count", "count_input", "tokenize"):
            assert "ignored" in await told(job, "fox " * 20_000)  # and does not fit
            assert "context length is 2048" in await told(job, "fox " * 200_000)


IMAGE: dict[str, Any] = {"type": "image"}
SAID = [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "hi"}]


async def test_parts_that_are_left_out_make_one_text() -> None:
    """Each has 17 bytes, and its text has three times as many."""
    async with workers(tiny.path()) as texts:

        async def tokens(job: str, *parts: dict[str, Any]) -> tuple[int, list[str]]:
            talk = [{"role": "user", "content": parts}, *SAID]
            field = "input" if job == "count_input" else "messages"
            body = json.dumps({"model": "m", field: talk}).encode()
            told, data = await texts.run(job, ABOUT, body)
            counted: dict[str, int] = json.loads(data)
            assert len(told["ignored"]) <= MAX_IGNORED + 1
            return counted.get("count") or counted["input_tokens"], told["ignored"]

        for job in ("count", "count_input", "tokenize"):
            one, named = await tokens(job, IMAGE)
            many, several = await tokens(job, *[IMAGE] * 1000)
            assert (len(named), len(several)) == (1, MAX_IGNORED + 1)
            assert many == one
            text = {"type": "text", "text": "and"}
            again, _ = await tokens(job, IMAGE, text, IMAGE)
            assert again > 1.5 * one


async def test_a_caller_who_leaves_frees_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_workers, "GRACE", 0.1)
    async with workers(variant(tmp_path / "m", chat_template=TEMPLATE)) as texts:
        await outcome(texts, "chat", ask("It has started."))
        with trio.move_on_after(0.5) as left:
            await texts.run("chat", ABOUT, ask("endless"))
        assert left.cancelled_caught
        assert "'lengths'" in await outcome(texts, "chat", ask("The next one is served."))


def test_no_text_has_fewer_tokens_than_its_length_tells() -> None:
    tokenizer = Tokenizer(tiny.path())
    longest = max((tokenizer.decode([token]) for token in range(tokenizer.vocabulary)), key=len)
    for text in (longest * 50, " " * 1000, "é世🦊" * 99, "<|user|>" * 40, "\n" * 77):
        assert tokenizer.least(text) <= len(tokenizer.encode(text))
    assert tokenizer.least(longest * 50) > 0.9 * len(tokenizer.encode(longest * 50))
