"""The jobs of a text worker for the API and the control socket: from bodies to token ids, and tool
calls.

Each job is a function of the tokenizer, the request's fields, and bytes. It announces each stage
that it enters, since each has its own time limit. It returns the fields that the node must know,
and bytes that the node passes on unread. Every fault of a request is found here, and raised as
`ApiError`.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sealring_model.text.tokens import Tokenizer
from sealring_protocol.control.scheduler.requests import ContextOverflow

from sealring_trio.api.errors import ApiError, from_refusal, invalid
from sealring_trio.api.messages import render, tokenise
from sealring_trio.api.schema import (
    ChatOptions,
    ChatRequest,
    CompletionOptions,
    CompletionRequest,
    M,
    read,
)
from sealring_trio.text.frames import CALL, READ, RENDER, TOKENISE
from sealring_trio.text.parsed import ID

Enter = Callable[[str], None]
Done = tuple[dict[str, Any], bytes]
Work = Callable[[Tokenizer, Mapping[str, Any], bytes, Enter], Done]


def chat(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The prompt of a chat completion: its ids, then its tools as JSON."""
    request, seconds = _read(ChatRequest, asked, body, enter)
    enter(RENDER)
    talk = render(tokenizer, request)
    _check_length(tokenizer, talk.text, asked["context"], "messages")
    enter(TOKENISE)
    opening = tokenise(tokenizer, talk)
    _check_room(len(opening.ids), request.limit, asked["context"], "messages")
    predicted = _predicted(tokenizer, request, asked["context"])
    tools = json.dumps(talk.tools).encode() if talk.tools else b""
    told = {
        "options": _options(request, ChatOptions),
        "read": seconds,
        "lengths": [len(opening.ids)],
        "predicted": len(predicted),
        "tools": len(tools),
        "reasoning": opening.reasoning,
        "calling": opening.calling,
    }
    return told, _packed([opening.ids, predicted]) + tools


def completion(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The prompts of a text completion: the ids of all of them; with ``echo`` their texts too."""
    request, seconds = _read(CompletionRequest, asked, body, enter)
    enter(TOKENISE)
    context = asked["context"]
    prompts: list[list[int]] = []
    texts: list[str] = []
    for prompt in request.prompts:
        if isinstance(prompt, str):
            _check_length(tokenizer, prompt, context, "prompt")
            ids, text = tokenizer.encode(prompt), prompt
        else:
            ids, text = prompt, ""
        _check_room(len(ids), request.limit, context, "prompt")
        if request.echo and not isinstance(prompt, str):
            text = tokenizer.decode(ids)
        prompts.append(ids)
        texts.append(text)
    predicted = _predicted(tokenizer, request, context)
    told = {
        "options": _options(request, CompletionOptions),
        "read": seconds,
        "lengths": [len(ids) for ids in prompts],
        "predicted": len(predicted),
        "texts": texts if request.echo else [],
    }
    return told, _packed([*prompts, predicted])


def prompt(tokenizer: Tokenizer, asked: Mapping[str, Any], data: bytes, enter: Enter) -> Done:
    """The ids of one message of a user's, or with ``raw`` of a text, for the control socket."""
    text = data.decode()
    enter(RENDER)
    if not asked["raw"]:
        try:
            text = tokenizer.render([{"role": "user", "content": text}])
        except ValueError as error:
            raise invalid(str(error)) from None
    _check_length(tokenizer, text, asked["context"], "prompt")
    enter(TOKENISE)
    ids = tokenizer.encode(text) if asked["raw"] else tokenizer.encode_rendered(text)
    _check_room(len(ids), asked["limit"], asked["context"], "prompt")
    return {"read": 0.0, "lengths": [len(ids)]}, _packed([ids])


def call(tokenizer: Tokenizer, asked: Mapping[str, Any], data: bytes, enter: Enter) -> Done:
    """The tool calls in a text that follows the JSON of the tools; none if it is no call."""
    enter(CALL)
    if tokenizer.tools is None:
        return {"calls": []}, b""
    tools = json.loads(data[: asked["tools"]])
    try:
        calls = tokenizer.tools.parse(data[asked["tools"] :].decode(), tools)
    except ValueError:
        return {"calls": []}, b""
    return {"calls": [[call.name, call.arguments, call.id] for call in calls]}, b""


JOBS: Final[Mapping[str, Work]] = {
    "chat": chat,
    "completion": completion,
    "prompt": prompt,
    "call": call,
}


def _read(kind: type[M], asked: Mapping[str, Any], body: bytes, enter: Enter) -> tuple[M, float]:
    enter(READ)
    began = time.perf_counter()
    request = read(kind, body)
    if request.model != asked["model"]:
        message = f"The model '{request.model}' does not exist here; there is '{asked['model']}'."
        raise ApiError(404, message, "model_not_found", param="model")
    return request, time.perf_counter() - began


def _predicted(
    tokenizer: Tokenizer, request: ChatRequest | CompletionRequest, context: int
) -> list[int]:
    """The ids of what the answer is likely to contain; as many as *context* (0: not known) holds.
    Raises `ApiError` for a text that cannot be in an answer whole."""
    if request.prediction is None:
        return []
    text = request.prediction.text
    _check_length(tokenizer, text, context, "prediction")
    ids = tokenizer.encode_part(text)
    return ids[:context] if context else ids


def _options(request: ChatRequest | CompletionRequest, kind: type[Any]) -> dict[str, Any]:
    names = set(kind.model_fields) - {"user"}
    return request.model_dump(include=names, exclude_none=True)


def _packed(prompts: Iterable[list[int]]) -> bytes:
    ids = array(ID)
    for part in prompts:
        ids.extend(part)
    return ids.tobytes()


def _check_length(tokenizer: Tokenizer, text: str, context: int, param: str) -> None:
    """Refuse a prompt that cannot fit into *context* (0: not known), before it is tokenised."""
    if context and (least := tokenizer.least(text)) > context:
        raise invalid(
            f"This model's maximum context length is {context} tokens. However, the "
            f"{len(text)} characters of '{param}' are at least {least} tokens, as none stands "
            f"for more than {tokenizer.longest:.0f}. Please reduce its length.",
            param,
            "context_length_exceeded",
        )


def _check_room(length: int, limit: int, context: int, param: str) -> None:
    """Refuse a prompt that the scheduler would refuse, before the ids travel to the node."""
    least = max(1, limit)
    if context and length + least > context:
        raise from_refusal(ContextOverflow(length, least, context), param, 0)
