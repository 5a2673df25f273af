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
from functools import partial
from typing import Any, Final

from sealring_model.text.tokens import Tokenizer
from sealring_protocol.control.scheduler.requests import ContextOverflow

from sealring_trio.api import anthropic_input, responses_input
from sealring_trio.api.anthropic_body import CountRequest, MessagesRequest
from sealring_trio.api.errors import from_refusal, invalid, named_as, no_model, renamed, unsupported
from sealring_trio.api.held_schema import FORMS
from sealring_trio.api.holding import bad_sequences, chat_grammar, completion_grammar
from sealring_trio.api.messages import render, tokenise
from sealring_trio.api.replies import json_bytes
from sealring_trio.api.schema import (
    ChatOptions,
    ChatRequest,
    CompletionOptions,
    CompletionRequest,
    Sampled,
    parse,
    read,
    whole_body,
)
from sealring_trio.api.token_texts import detokenize, tokenize
from sealring_trio.api.told_tools import PLAIN
from sealring_trio.api.values import MAX_SCORED
from sealring_trio.text.frames import CALL, HOLD, READ, RENDER, TOKENISE
from sealring_trio.text.parsed import ID

Enter = Callable[[str], None]
Done = tuple[dict[str, Any], bytes]
Work = Callable[[Tokenizer, Mapping[str, Any], bytes, Enter], Done]


def chat(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The prompt of a chat completion: its ids, then its tools as JSON."""
    enter(READ)
    began = time.perf_counter()
    request = read(ChatRequest, body)
    return _chat(tokenizer, request, asked, began, enter)


def responses(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The prompt of a response, as `chat` has it; then the fields that the response repeats, as
    JSON, and the items of its input, as JSON in lines.

    The body comes after ``before`` bytes, the items of earlier responses, and ``referred`` bytes,
    those that it refers to; both in lines. If it names an earlier response or items, and has not
    got any, the job ends with that response's id as ``previous`` and theirs as ``references``, and
    is to be done again with them.
    """
    enter(READ)
    began = time.perf_counter()
    before, referred = int(asked.get("before", 0)), int(asked.get("referred", 0))
    end = before + referred
    wanted = responses_input.read_responses(body[end:])
    previous, references = wanted.previous_response_id, wanted.references
    if "before" not in asked and (previous is not None or references):
        missing = {"previous": previous, "references": references}
        return {"read": 0.0, "lengths": [0], **missing}, b""
    made = responses_input.convert(wanted, body[:before], body[before:end])
    with named_as(made.params):
        told, data = _chat(tokenizer, made.request, asked, began, enter)
    echo = json_bytes(made.echo)
    told |= {
        "echo": len(echo),
        "store": wanted.store is not False,
        "summary": bool(wanted.reasoning and wanted.reasoning.summary),
        "names": made.names,
        "ignored": [
            *wanted.ignored,
            *(renamed(name, made.params) for name in told["ignored"]),
            *(f"tools.{kind}" for kind in sorted({*made.ignored})),
        ],
    }
    return told, data + echo + b"\n".join(map(json_bytes, made.items))


def messages(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The prompt of one of Anthropic's messages, as `chat` has it. An answer that may be longer
    than the context gets what the context has, as Anthropic's API does it."""
    enter(READ)
    began = time.perf_counter()
    wanted = anthropic_input.read_messages(body)
    request, params = anthropic_input.convert(wanted), anthropic_input.params_of(wanted)
    with named_as(params):
        told, data = _chat(tokenizer, request, asked, began, enter, fit=True)
    told["ignored"] = [*wanted.ignored, *(renamed(name, params) for name in told["ignored"])]
    return told, data


def count(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The number of tokens of a prompt of Anthropic's."""
    enter(READ)
    wanted = whole_body(CountRequest, parse(body), MessagesRequest.model_fields)
    request, params = anthropic_input.convert(wanted), anthropic_input.params_of(wanted)
    with named_as(params):
        _check_model(request, asked)
        enter(RENDER)
        talk = render(tokenizer, request)
        enter(TOKENISE)
        ignored = [*wanted.ignored, *(renamed(name, params) for name in talk.ignored)]
        told = {"ignored": ignored, "adapted": [*talk.adapted]}
        return told | {"tokens": len(tokenise(tokenizer, talk).ids)}, b""


def _chat(
    tokenizer: Tokenizer,
    request: ChatRequest,
    asked: Mapping[str, Any],
    began: float,
    enter: Enter,
    *,
    fit: bool = False,
) -> Done:
    """The prompt of a conversation: its ids, then its tools as JSON. Its body has been read since
    *began*. With *fit* the answer's limit is what the context has, where it would be more."""
    _check_model(request, asked)
    seconds = time.perf_counter() - began
    enter(RENDER)
    talk = render(tokenizer, request)
    cut = _cut(request, asked["context"])
    if cut is None:
        _check_length(tokenizer, talk.text, asked["context"], "messages")
    enter(TOKENISE)
    opening = tokenise(tokenizer, talk, request.add_special_tokens)
    ids = opening.ids if cut is None else opening.ids[-cut:]
    room = asked["context"] - len(ids)
    fitted = fit and request.limit is not None and 0 < room < request.limit
    if fitted:
        request.max_completion_tokens = room
    _check_room(len(ids), request.limit, asked["context"], "messages")
    _check_scores(len(ids), request)
    predicted = _predicted(tokenizer, request, asked["context"])
    enter(HOLD)
    grammar = chat_grammar(tokenizer, request, talk, opening, asked.get("vocabulary", 0))
    tools = json.dumps(talk.tools).encode() if talk.tools else b""
    told = {
        "options": _options(request, ChatOptions),
        "read": seconds,
        "lengths": [len(ids)],
        "predicted": len(predicted),
        "tools": len(tools),
        "reasoning": opening.reasoning,
        "calling": opening.calling,
        # A form means every character of the answer.
        "opens": not (grammar or _goes_on(request)),
        "fitted": fitted,
        "ignored": [*request.ignored, *talk.ignored],
        "adapted": [*talk.adapted],
        "in_words": talk.in_words,
        "plain": talk.plain,
        "grammar": len(grammar),
        "bad": bad_sequences(tokenizer, request),
    }
    return told, _packed([ids, predicted]) + grammar + tools


def completion(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The prompts of a text completion: the ids of all of them; with ``echo`` their texts too."""
    enter(READ)
    began = time.perf_counter()
    request = read(CompletionRequest, body)
    _check_model(request, asked)
    seconds = time.perf_counter() - began
    enter(TOKENISE)
    context, cut = asked["context"], _cut(request, asked["context"])
    encode, ends = _encoder(tokenizer, request)
    prompts: list[list[int]] = []
    texts: list[str] = []
    for prompt in request.prompts:
        if isinstance(prompt, str):
            if cut is None:
                _check_length(tokenizer, prompt + (request.suffix or ""), context, "prompt")
            ids, text = encode(prompt), prompt
        else:
            ids, text = prompt, ""
        if cut is not None and len(ids) > cut:
            ids = ids[-cut:]
            text = tokenizer.shown(ids) if request.echo else ""
        _check_room(len(ids), request.limit, context, "prompt")
        if request.echo and not isinstance(prompt, str):
            text = tokenizer.shown(ids)
        prompts.append(ids)
        texts.append(text)
    _check_scores(sum(map(len, prompts)), request)
    predicted = _predicted(tokenizer, request, context)
    enter(HOLD)
    grammar = completion_grammar(tokenizer, request, asked.get("vocabulary", 0))
    told = {
        "options": _options(request, CompletionOptions),
        "read": seconds,
        "lengths": [len(ids) for ids in prompts],
        "predicted": len(predicted),
        "texts": texts if request.echo else [],
        "ignored": [*request.ignored],
        "ends": sorted(ends),
        "grammar": len(grammar),
        "bad": bad_sequences(tokenizer, request),
    }
    return told, _packed([*prompts, predicted]) + grammar


def prompt(tokenizer: Tokenizer, asked: Mapping[str, Any], data: bytes, enter: Enter) -> Done:
    """The ids of one message of a user's, or with ``raw`` of a text, for the control socket."""
    text = data.decode()
    enter(RENDER)
    if not asked["raw"]:
        try:
            talk = tokenizer.guard_messages([{"role": "user", "content": text}])
            text = tokenizer.render(talk)
        except ValueError as error:
            raise invalid(str(error)) from None
    _check_length(tokenizer, text, asked["context"], "prompt")
    enter(TOKENISE)
    try:
        ids = tokenizer.encode(text) if asked["raw"] else tokenizer.encode_rendered(text)
    except ValueError as error:
        raise invalid(f"{error}.") from None
    _check_room(len(ids), asked["limit"], asked["context"], "prompt")
    return {"read": 0.0, "lengths": [len(ids)]}, _packed([ids])


def call(tokenizer: Tokenizer, asked: Mapping[str, Any], data: bytes, enter: Enter) -> Done:
    """The tool calls in a text that follows the JSON of the tools; none if it is no call."""
    enter(CALL)
    form = PLAIN if asked.get("plain") else tokenizer.calls
    tools = json.loads(data[: asked["tools"]])
    try:
        calls = form.parse(data[asked["tools"] :].decode(), tools)
    except ValueError:
        return {"calls": []}, b""
    return {"calls": [[call.name, call.arguments, call.id] for call in calls]}, b""


JOBS: Final[Mapping[str, Work]] = {
    "chat": chat,
    "completion": completion,
    "responses": responses,
    "messages": messages,
    "count": count,
    "prompt": prompt,
    "call": call,
    "tokenize": tokenize,
    "detokenize": detokenize,
}


def _check_model(request: Sampled, asked: Mapping[str, Any]) -> None:
    if request.model not in asked["models"]:
        raise no_model(request.model, asked["models"])


def _goes_on(request: ChatRequest) -> bool:
    """Whether the answer goes on with a message of the prompt."""
    return bool(request.continue_final_message) or request.add_generation_prompt is False


def _cut(request: ChatRequest | CompletionRequest, context: int) -> int | None:
    """How many of a prompt's last tokens are kept; None for all. -1 keeps what fits into *context*
    (0: not known) with the answer."""
    if (asked := request.truncate_prompt_tokens) is None:
        return None
    if asked > 0:
        return asked
    return max(1, context - max(1, request.limit or 0)) if context else None


def _encoder(
    tokenizer: Tokenizer, request: CompletionRequest
) -> tuple[Callable[[str], list[int]], frozenset[int]]:
    """What makes ids of a prompt, and which ids end the answer beside the model's own. Raises
    `ApiError` for a suffix that the model does not know how to lead to."""
    around = request.add_special_tokens is not False
    suffix, fill_in = request.suffix, tokenizer.fill_in
    if not suffix:
        return partial(tokenizer.encode, around=around), frozenset()
    if fill_in is None:
        text = "This model has no tokens for filling gaps; it continues text."
        raise unsupported("suffix", text)
    lead = tokenizer.encode("") if around else []

    def encode(prompt: str) -> list[int]:
        return lead + fill_in.prompt(tokenizer.encode_part, prompt, suffix)

    return encode, fill_in.ends


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
    names = set(kind.model_fields) - FORMS
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


def _check_scores(tokens: int, request: ChatRequest | CompletionRequest) -> None:
    """Refuse a request whose answer would tell too many log probabilities of *tokens* tokens of
    prompts."""
    if request.scores is None:
        return
    told = tokens * (1 + request.scores) * (request.n or 1)
    if told > MAX_SCORED:
        raise invalid(
            f"The answer would have {told} log probabilities of the prompt: {1 + request.scores} "
            f"for each of {tokens} tokens, for each choice. At most {MAX_SCORED} are told at once: "
            "ask for fewer likeliest tokens, or for fewer or shorter prompts.",
            "logprobs" if request.prompt_logprobs is None else "prompt_logprobs",
        )


def _check_room(length: int, limit: int | None, context: int, param: str) -> None:
    """Refuse a prompt that the scheduler would refuse, before the ids travel to the node."""
    least = 1 if limit is None else limit
    if context and length + least > context:
        raise from_refusal(ContextOverflow(length, least, context), param, 0)
