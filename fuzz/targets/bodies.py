"""Bodies of HTTP requests: refused as OpenAI's clients expect, or jobs that the ring can take.

Input: which kind of request, then its body.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, cast

import attrs
from sealring_model import tiny
from sealring_model.text.tokens import Tokenizer
from sealring_protocol.codec.encoding import decode_local, encode
from sealring_trio.api.errors import ApiError
from sealring_trio.api.gate import Caller
from sealring_trio.api.kinds import ChatKind, ChoiceContext, CompletionKind
from sealring_trio.api.sampling import jobs
from sealring_trio.api.schema import MAX_CHOICES, MAX_STOPS
from sealring_trio.api.texts import chat, completion
from sealring_trio.node.generation import Generator
from sealring_trio.text.parsed import ParsedRequest

from fuzz.source import Source

CHAT: Final[Any] = ChatKind()
TEXT: Final[Any] = CompletionKind()
ASKED: Final = {"model": "m", "context": 2048}
VISITOR: Final = Caller("req-1", "", "", "", 0.0)
VOCABULARY: Final = 1500
LONGEST_ANSWER: Final = 4096
"""Bytes of the longest refusal."""

_TURN: Final = '"model":"m","messages":[{"role":"user","content":"x"}]'
_TOOL: Final = '{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}'
_CALL: Final = '{"id":"c","type":"function","function":{"name":"f","arguments":"{\\"a\\":1}"}}'
CHATS: Final = (
    f"{{{_TURN}}}",
    f'{{{_TURN},"n":2,"seed":-1,"temperature":0.5,"top_p":0.9,"top_k":-1,"min_p":0.1}}',
    f'{{{_TURN},"logprobs":true,"top_logprobs":20,"logit_bias":{{"7":-100,"8":1.5}}}}',
    f'{{{_TURN},"stop":["a","b"],"max_completion_tokens":5,"stream":true}}',
    f'{{{_TURN},"stream_options":{{"include_usage":true}},"presence_penalty":-2}}',
    f'{{{_TURN},"tools":[{_TOOL}],"tool_choice":"required","parallel_tool_calls":false}}',
    f'{{{_TURN},"tools":[{_TOOL}],"tool_choice":{{"type":"function","function":{{"name":"f"}}}}}}',
    f'{{{_TURN},"response_format":{{"type":"json_schema"}},"reasoning_effort":"none"}}',
    f'{{{_TURN},"chat_template_kwargs":{{"enable_thinking":false}},"modalities":["text"]}}',
    '{"model":"m","messages":[{"role":"developer","content":[{"type":"text","text":"y"}]},'
    f'{{"role":"assistant","tool_calls":[{_CALL}]}},'
    '{"role":"tool","tool_call_id":"c","content":"z"}]}',
)
TEXTS: Final = (
    '{"model":"m","prompt":"x"}',
    '{"model":"m","prompt":["x","y"],"echo":true,"logprobs":5,"n":2,"best_of":2}',
    '{"model":"m","prompt":[1,2,3],"max_tokens":1,"frequency_penalty":2,"suffix":null}',
    '{"model":"m","prompt":[[1],[2,1499]],"repetition_penalty":1.1,"user":"u","stop":"."}',
)


def seeds() -> Iterator[bytes]:
    """Requests with every field, whole and cut off."""
    _tokenizer()  # now, and not in the time of the first input
    for number, bodies in enumerate((CHATS, TEXTS)):
        for body in bodies:
            yield bytes([number]) + body.encode()
            yield bytes([number]) + body[:-3].encode()


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer(tiny.path())


def check(data: bytes) -> None:
    """What is not refused becomes rows with one encoding each, as many as were asked for."""
    source = Source(data)
    is_text, body = source.flag(), source.rest()
    context = ChoiceContext(cast(Generator, None), _tokenizer(), "")  # no call is read here
    try:
        work = completion if is_text else chat
        prepared = ParsedRequest.of(*work(_tokenizer(), ASKED, body, lambda stage: None))
        told = prepared.told["options"]
        asked = (TEXT if is_text else CHAT).options(told)
        made = list(jobs(asked, prepared, VOCABULARY, VISITOR))
    except ApiError as error:
        _check_refusal(error)
        return
    filled = (
        TEXT.choices(asked, prepared, context)
        if is_text
        else CHAT.choices(asked, prepared, context)
    )
    choices = asked.n or 1
    assert choices <= MAX_CHOICES
    assert len(made) == len(filled) == len(prepared.prompts) * choices
    for at, job in enumerate(made):
        row = job.sampling
        assert row.choice == at % choices
        assert decode_local(b"".join(encode(row))) == row
        assert row == attrs.evolve(made[0].sampling, choice=row.choice)
        assert len(job.stop) <= MAX_STOPS
        assert all(job.stop)
        assert job.prompt == prepared.prompts[at // choices]


def _check_refusal(error: ApiError) -> None:
    assert error.status in (400, 404)
    assert len(error.response().body) < LONGEST_ANSWER
