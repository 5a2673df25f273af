"""Bodies of HTTP requests: refused as OpenAI's clients expect, or jobs that the ring can take.

Input: which kind of request, then its body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, cast

import attrs
from sealring.dialects.errors import ANTHROPIC, ApiError
from sealring.dialects.replies import About
from sealring.dialects.schema import MAX_CHOICES, MAX_STOPS
from sealring.generation.generation import Generator
from sealring.generation.trace import Trace
from sealring.http.gate import Caller, error_response
from sealring.http.generate import CHAT, COMPLETION, MESSAGES, RESPONSES, ChoiceContext, jobs
from sealring.http.kept import earlier
from sealring.text.frames import ParsedRequest
from sealring.text_worker import JOBS
from sealring_model import tiny
from sealring_model.text.tokens import Tokenizer
from sealring_protocol.codec.encoding import decode_local, encode

from fuzz.source import Source

KINDS: Final = (CHAT, COMPLETION, RESPONSES, MESSAGES)
ASKED: Final = {"models": ["m"], "context": 2048}
VISITOR: Final = Caller("req-1", "", "", "", "", 0.0)
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
    f'{{{_TURN},"max_tokens":-1,"stop_token_ids":[5],"ignore_eos":true,"cache_salt":"s"}}',
    f'{{{_TURN},"truncate_prompt_tokens":2,"continue_final_message":true,"x":1,"best_of":1}}',
    '{"model":"m","messages":[{"role":"user","content":[{"type":"refusal","refusal":"n"}]}]}',
    '{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}',
    '{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]},{"role":"assistant",'
    '"reasoning":"t","function_call":{"name":"f"}},{"role":"function","name":"f","content":"z"}],'
    '"functions":[{"name":"f"}],"function_call":{"name":"f"}}',
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
RESPONSES: Final = (
    '{"model":"m","input":"x","instructions":"y","stream":true,"metadata":{"a":"b"}}',
    '{"model":"m","input":[{"role":"developer","content":[{"type":"input_text","text":"x"}]},'
    '{"type":"reasoning","summary":[{"type":"summary_text","text":"y"}]},'
    '{"type":"function_call","name":"f","call_id":"c","arguments":"{}"},'
    '{"type":"function_call_output","call_id":"c","output":"z"},'
    '{"type":"custom_tool_call","name":"g","namespace":"n","call_id":"d","input":"i"}]}',
    '{"model":"m","input":"x","tools":[{"type":"custom","name":"f","format":{"type":"grammar",'
    '"syntax":"lark","definition":"d"}},{"type":"namespace","name":"n","tools":[{"type":'
    '"function","name":"g","parameters":{}}]},{"type":"web_search"}],"tool_choice":{"type":'
    '"allowed_tools","mode":"required","tools":[{"type":"custom","name":"f"}]}}',
    '{"model":"m","input":"x","previous_response_id":"r","text":{"format":{"type":"json_schema",'
    '"name":"n","schema":{}}},"reasoning":{"effort":"none","summary":"auto"}}',
)
MESSAGES: Final = (
    '{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"system":"y",'
    '"stop_sequences":["a"],"thinking":{"type":"adaptive"},"stream":true}',
    '{"model":"m","max_tokens":4000,"messages":[{"role":"user","content":[{"type":"text","text":'
    '"x"}]},{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"tool_use",'
    '"id":"c","name":"f","input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result",'
    '"tool_use_id":"c","is_error":true,"content":[{"type":"text","text":"z"}]}]}],"tools":[{"name":'
    '"f","input_schema":{}}],"tool_choice":{"type":"any","disable_parallel_tool_use":true}}',
    '{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"document","source":'
    '{"type":"text","data":"x"},"title":"t"},{"type":"image"}]},{"role":"assistant","content":'
    '[{"type":"server_tool_use","id":"s","name":"w","input":{}},{"type":"web_search_tool_result",'
    '"content":{"type":"e","error_code":"x"}}]},{"role":"user","content":[{"type":"search_result",'
    '"source":"u","content":[{"type":"text","text":"z"}]}]},{"role":"assistant","content":"y"}]}',
)


def seeds() -> Iterator[bytes]:
    """Requests with every field, whole and cut off."""
    _tokenizer()  # now, and not in the time of the first input
    for number, bodies in enumerate((CHATS, TEXTS, RESPONSES, MESSAGES)):
        for body in bodies:
            yield bytes([number]) + body.encode()
            yield bytes([number]) + body[:-3].encode()


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer(tiny.path())


def _read(kind: Any, about: dict[str, Any], body: bytes) -> Any:
    """What a text worker makes of *body*."""
    return JOBS[kind.name](_tokenizer(), about, body, lambda stage: None)


def check(data: bytes) -> None:
    """What is not refused becomes rows with one encoding each, as many as were asked for."""
    source = Source(data)
    kind, body = KINDS[source.below(len(KINDS))], source.rest()
    words = _tokenizer().words
    context = ChoiceContext(cast(Generator, None), words, "", "")  # no call is read here
    try:
        prepared = ParsedRequest.of(*_read(kind, ASKED, body))
        if "references" in prepared.fields:
            earlier(context.responses, "", prepared.fields)  # refuses names: nothing is kept here
            prepared = ParsedRequest.of(*_read(kind, {**ASKED, "before": 0, "referred": 0}, body))
        asked = kind.options.model_validate(prepared.fields["options"])
        made = list(jobs(asked, prepared, VOCABULARY, VISITOR, 0))
    except ApiError as error:
        _check_refusal(error)
        return
    filled = kind.choices(asked, prepared, context)
    trace = Trace("a", kind.name, "", began=0.0)
    shape = kind.shape(asked, prepared, context, About("a", 0, "m", "f", trace))
    json.loads(b"".join(shape.whole(trace)))
    choices = asked.n or 1
    assert choices <= MAX_CHOICES
    assert len(made) == len(filled) == len(prepared.prompts) * choices
    for at, job in enumerate(made):
        row = job.request.sampling
        assert row.choice == at % choices
        assert decode_local(b"".join(encode(row))) == row
        assert row == attrs.evolve(made[0].request.sampling, choice=row.choice)
        assert len(job.stop) <= MAX_STOPS
        assert all(job.stop)
        assert job.request.prompt == prepared.prompts[at // choices]


def _check_refusal(error: ApiError) -> None:
    assert error.status in (400, 404)
    assert len(error_response(error).body) < LONGEST_ANSWER
    assert len(error_response(error, ANTHROPIC).body) < LONGEST_ANSWER
