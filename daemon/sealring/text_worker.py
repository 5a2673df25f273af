"""A text worker: a process that does the work for which a hostile text could take much time or
memory.

Templates come with a model and parsers of tool calls from mlx-lm, and either may take minutes over
a short text; the JSON of a large body and its tokens take seconds of the interpreter. In a process
of its own that holds up nobody: the node bounds the time of each stage, and kills a process that
exceeds it.

The process knows the tokenizer, does one job at a time and keeps nothing between two. Its memory is
limited where the platform can; the node looks as well. It ends with the node's end of the socket.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import resource
import socket
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import psutil  # type: ignore[import-untyped]
from sealring_model.errors import LoadError
from sealring_model.text.argument_types import value_kinds
from sealring_model.text.readers import Elements
from sealring_model.text.tokens import Tokenizer
from sealring_protocol.control.requests import ContextOverflow

from sealring.dialects import anthropic, schema
from sealring.dialects import responses as responses_api
from sealring.dialects.anthropic import CountRequest, MessagesRequest
from sealring.dialects.errors import (
    ApiError,
    from_refusal,
    invalid,
    named_as,
    no_model,
    renamed,
    unsupported,
)
from sealring.dialects.fields import MAX_IGNORED
from sealring.dialects.messages import PLAIN, Conversation, branches, render, tokenise
from sealring.dialects.replies import json_bytes
from sealring.dialects.responses import Converted, ResponsesRequest
from sealring.dialects.schema import (
    FORMS,
    MAX_LIKELY,
    MAX_SCORED,
    U32,
    ChatOptions,
    ChatRequest,
    CompletionOptions,
    CompletionRequest,
    Detokenize,
    TokenizeChat,
    TokenizeText,
    parse,
    read,
    whole_body,
)
from sealring.structured.holding import bad_sequences, chat_grammar, completion_grammar
from sealring.text.frames import (
    CALL,
    HOLD,
    ID,
    LOAD_MEMORY,
    LOAD_SECONDS,
    MEMORY,
    READ,
    RENDER,
    SIZES,
    TOKENISE,
    is_small,
    pack,
)

MAX_WRITTEN: Final = 64 << 20
"""Bytes of an answer; a body has 8 MiB at most, and each of its bytes may be a token."""

COUNTED: Final = 8
"""Contexts up to which the tokens of a conversation are counted: who counts wants to know whether
it fits."""

Enter = Callable[[str], None]
Done = tuple[dict[str, Any], bytes]
Work = Callable[[Tokenizer, Mapping[str, Any], bytes, Enter], Done]
"""A job: a function of the tokenizer, the request's fields, and bytes. It announces each stage that
it enters, since each has its own time limit. It returns the fields that the node must know, and
bytes that the node passes on unread. Every fault of a request is found here, and raised as
`ApiError`."""


def chat(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The prompt of a chat completion: its ids, then its tools as JSON."""
    enter(READ)
    began = time.perf_counter()
    return _chat(tokenizer, _Inner(read(ChatRequest, body)), asked, began, enter)


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
    wanted, made = _converted(asked, body)
    if made is None:
        return _missing(wanted), b""
    inner = _Inner(made.request, made.params, wanted.ignored, keeps=True)
    fields, data = _chat(tokenizer, inner, asked, began, enter)
    own = {name: asked.get("sampling", {}).get(name) for name in ("temperature", "top_p")}
    unsaid = {name: own[name] for name in own if getattr(wanted, name) is None}
    echo = json_bytes(made.echo | {name: own for name, own in unsaid.items() if own is not None})
    fields |= {
        "background": bool(wanted.background),
        "echo": len(echo),
        "store": wanted.store is not False,
        "summary": bool(wanted.reasoning and wanted.reasoning.summary),
        "names": made.names,
    }
    return fields, data + echo + b"\n".join(map(json_bytes, made.items))


def _converted(asked: Mapping[str, Any], body: bytes) -> tuple[ResponsesRequest, Converted | None]:
    """The request in *body*, which comes after items of earlier responses, and what it means; None
    if such items are still needed."""
    before, referred = int(asked.get("before", 0)), int(asked.get("referred", 0))
    end = before + referred
    wanted = responses_api.read_responses(body[end:])
    if "before" not in asked and (wanted.previous_response_id is not None or wanted.references):
        return wanted, None
    return wanted, responses_api.convert(wanted, body[:before], body[before:end])


def _missing(wanted: ResponsesRequest) -> dict[str, Any]:
    """The fields of a job that needs items of earlier responses for *wanted*."""
    named = {"previous": wanted.previous_response_id, "references": wanted.references}
    return {"read": 0.0, "lengths": [0], **named}


def messages(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The prompt of one of Anthropic's messages, as `chat` has it."""
    enter(READ)
    began = time.perf_counter()
    return _chat(tokenizer, _inner(anthropic.read_messages(body)), asked, began, enter)


def _inner(wanted: CountRequest) -> _Inner:
    return _Inner(anthropic.convert(wanted), anthropic.params_of(wanted), wanted.ignored)


def count(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The number of tokens of a prompt of Anthropic's, as JSON."""
    enter(READ)
    wanted = whole_body(CountRequest, parse(body), MessagesRequest.model_fields)
    fields, tokens = _count(tokenizer, _inner(wanted), asked, enter)
    return fields, json_bytes({"input_tokens": tokens})


def count_input(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The number of tokens of the prompt of a response, as JSON; the items of earlier responses
    come as in `responses`."""
    enter(READ)
    wanted, made = _converted(asked, body)
    if made is None:
        return _missing(wanted), b""
    inner = _Inner(made.request, made.params, wanted.ignored)
    fields, tokens = _count(tokenizer, inner, asked, enter)
    return fields, json_bytes({"object": "response.input_tokens", "input_tokens": tokens})


@attrs.frozen
class _Inner:
    """The *request* of a conversation that a body stands for, in which its fields are called by
    *params*. Those of the body that were *ignored* had no effect. Its answer *keeps* what it has
    sent even if that is streamed."""

    request: ChatRequest
    params: Mapping[str, str] = {}
    ignored: Sequence[str] = ()
    keeps: bool = False

    def changed(self, ignored: Iterable[str], adapted: Iterable[str]) -> dict[str, list[str]]:
        """The names of fields that had no effect, with those of the request that are *ignored*, and
        of those that were *adapted*."""
        return {
            "ignored": [*self.ignored, *(renamed(name, self.params) for name in ignored)],
            "adapted": [renamed(name, self.params) for name in adapted],
        }


def _count(
    tokenizer: Tokenizer, inner: _Inner, asked: Mapping[str, Any], enter: Enter
) -> tuple[dict[str, Any], int]:
    """The fields of *inner* for the node, and the number of its prompt's tokens."""
    request = inner.request
    with named_as(inner.params):
        _check_model(request.model, asked)
        enter(RENDER)
        talk = render(tokenizer, request)
        _check_length(tokenizer, talk.text, asked["context"], "messages", COUNTED)
        enter(TOKENISE)
        ids = tokenise(tokenizer, talk, request.add_special_tokens).ids
    return inner.changed([*request.ignored, *talk.ignored], talk.adapted), len(ids)


def _chat(
    tokenizer: Tokenizer, inner: _Inner, asked: Mapping[str, Any], began: float, enter: Enter
) -> Done:
    """The prompt of *inner*: its ids, then its tools as JSON. Its body has been read since
    *began*."""
    with named_as(inner.params):
        return _conversation(tokenizer, inner, asked, began, enter)


def _conversation(
    tokenizer: Tokenizer, inner: _Inner, asked: Mapping[str, Any], began: float, enter: Enter
) -> Done:
    request = inner.request
    _check_model(request.model, asked)
    seconds = time.perf_counter() - began
    enter(RENDER)
    talk = render(tokenizer, request)
    cut = _cut(request, asked["context"])
    if cut is None:
        _check_length(tokenizer, talk.text, asked["context"], "messages")
    enter(TOKENISE)
    opening = tokenise(tokenizer, talk, request.add_special_tokens)
    ids = opening.ids if cut is None else opening.ids[-cut:]
    _check_room(len(ids), request.limit, asked["context"], "messages")
    _check_scores(len(ids), request)
    adapted = _check_likely(request, [ids], asked["context"], keeps=inner.keeps)
    predicted = _predicted(tokenizer, request, asked["context"])
    parted = branches(tokenizer, talk, opening) if asked.get("branches") and cut is None else []
    enter(HOLD)
    held = chat_grammar(
        tokenizer,
        request,
        talk,
        opening,
        vocabulary=asked.get("vocabulary", 0),
        context=asked["context"],
    )
    tools = json.dumps(talk.tools).encode() if talk.tools else b""
    fields = {
        "options": _options(request, ChatOptions, asked),
        "read": seconds,
        "lengths": [len(ids)],
        "predicted": len(predicted),
        "tools": len(tools),
        "callable": _functions(talk),
        "reasoning": opening.reasoning,
        "calling": opening.calling,
        # A form means every character of the answer.
        "opens": not (held.grammar or _goes_on(request)),
        **inner.changed(
            [*request.ignored, *talk.ignored, *held.ignored], [*talk.adapted, *adapted]
        ),
        "functions": bool(request.functions),
        "in_words": talk.in_words,
        "plain": talk.plain,
        "grammar": len(held.grammar),
        "bad": bad_sequences(tokenizer, request),
        "branches": parted,
    }
    return fields, _packed([ids, predicted]) + held.grammar + tools


def completion(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The prompts of a text completion: the ids of all of them; with ``echo`` their texts too."""
    enter(READ)
    began = time.perf_counter()
    request = read(CompletionRequest, body)
    _check_model(request.model, asked)
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
    adapted = _check_likely(request, prompts, context)
    predicted = _predicted(tokenizer, request, context)
    enter(HOLD)
    held = completion_grammar(tokenizer, request, asked.get("vocabulary", 0))
    fields = {
        "options": _options(request, CompletionOptions, asked),
        "read": seconds,
        "lengths": [len(ids) for ids in prompts],
        "predicted": len(predicted),
        "texts": texts if request.echo else [],
        "ignored": [*request.ignored, *held.ignored],
        "adapted": adapted,
        "ends": sorted(ends),
        "grammar": len(held.grammar),
        "bad": bad_sequences(tokenizer, request),
        "branches": _turns(tokenizer, prompts) if asked.get("branches") else [],
    }
    return fields, _packed([*prompts, predicted]) + held.grammar


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


def tokenize(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The ids of a text, or of a conversation's prompt."""
    enter(READ)
    sent = schema.parse(body)
    fields: dict[str, Any] = {}
    request: TokenizeChat | TokenizeText
    if isinstance(sent, dict) and sent.get("messages") is not None:
        request = schema.accepted(TokenizeChat, sent)
        _check_model(request.model, asked)
        enter(RENDER)
        talk = render(tokenizer, request)
        _check_length(tokenizer, talk.text, asked["context"], "messages", COUNTED)
        fields = {"ignored": [*request.ignored, *talk.ignored], "adapted": [*talk.adapted]}
        enter(TOKENISE)
        ids = tokenise(tokenizer, talk, request.add_special_tokens).ids
    else:
        request = schema.validated(TokenizeText, sent)
        _check_model(request.model, asked)
        enter(TOKENISE)
        ids = tokenizer.encode(request.prompt, around=request.add_special_tokens is not False)
    return fields, _json(
        {
            "count": len(ids),
            "max_model_len": asked["context"] or None,
            "tokens": ids,
            "token_strs": tokenizer.names(ids) if request.return_token_strs else None,
        }
    )


def detokenize(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The text of ids."""
    enter(READ)
    request = schema.validated(Detokenize, schema.parse(body))
    _check_model(request.model, asked)
    enter(TOKENISE)
    if beyond := [token for token in request.tokens if token >= tokenizer.vocabulary]:
        text = f"There is no token {beyond[0]}; the vocabulary has {tokenizer.vocabulary}."
        raise invalid(text, "tokens")
    return {}, _json({"prompt": tokenizer.decode(request.tokens)})


def _check_model(name: str, asked: Mapping[str, Any]) -> None:
    if name and name not in asked["models"]:
        raise no_model(name, asked["models"])


def _json(answer: Mapping[str, Any]) -> bytes:
    data = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    if len(data) > MAX_WRITTEN:
        raise invalid(
            f"The answer would have more than {MAX_WRITTEN >> 20} MiB. Send less at once."
        )
    return data


JOBS: Final[Mapping[str, Work]] = {
    "chat": chat,
    "completion": completion,
    "responses": responses,
    "messages": messages,
    "count": count,
    "count_input": count_input,
    "prompt": prompt,
    "call": call,
    "tokenize": tokenize,
    "detokenize": detokenize,
}


def _functions(talk: Conversation) -> dict[str, Any]:
    """The functions that an answer in *talk* may call, with the types of their arguments where the
    model's calls do not say them."""
    format = talk.calls.format
    if format is None:
        return {}
    if isinstance(format.reader, Elements) or format.nested:
        return value_kinds(talk.tools, nested=format.nested)
    return {tool["function"]["name"]: {} for tool in talk.tools}


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


def _turns(tokenizer: Tokenizer, prompts: list[list[int]]) -> list[int]:
    """Where a prompt that a client rendered itself is likely to be left by later ones: after its
    first turn and its last, as far as the model's end marks show them. Nothing for several."""
    if len(prompts) != 1:
        return []
    ends = [at + 1 for at, token in enumerate(prompts[0]) if token in tokenizer.eos]
    return sorted({*ends[:1], *ends[-1:]})


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


def _options(
    request: ChatRequest | CompletionRequest, kind: type[Any], asked: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of *request*; how its answer is drawn as the model's makers say, where it does
    not."""
    names = set(kind.model_fields) - FORMS
    return {**asked.get("sampling", {}), **request.model_dump(include=names, exclude_none=True)}


def _packed(prompts: Iterable[list[int]]) -> bytes:
    ids = array(ID)
    for part in prompts:
        ids.extend(part)
    return ids.tobytes()


def _check_length(
    tokenizer: Tokenizer, text: str, context: int, param: str, contexts: int = 1
) -> None:
    """Refuse a prompt that cannot fit into so many *contexts* of *context* tokens (0: not known),
    before it is tokenised."""
    if context and (least := tokenizer.least(text)) > contexts * context:
        raise invalid(
            f"This model's maximum context length is {context} tokens. However, the "
            f"{len(text)} characters of '{param}' are at least {least} tokens, as none stands "
            f"for more than {tokenizer.longest:.0f}. Please reduce its length.",
            param,
            "context_length_exceeded",
        )


def _check_scores(tokens: int, request: ChatRequest | CompletionRequest) -> None:
    """Refuse a request whose answer would have too many log probabilities of *tokens* tokens of
    prompts."""
    if request.scores is None:
        return
    scores = tokens * (1 + request.scores) * (request.n or 1)
    if scores > MAX_SCORED:
        raise invalid(
            f"The answer would have {scores} log probabilities of the prompt: {1 + request.scores} "
            f"for each of {tokens} tokens, for each choice. At most {MAX_SCORED} are sent at once: "
            "ask for fewer likeliest tokens, or for fewer or shorter prompts.",
            "logprobs" if request.prompt_logprobs is None else "prompt_logprobs",
        )


def _check_likely(
    request: ChatRequest | CompletionRequest,
    prompts: Sequence[Sequence[int]],
    context: int,
    *,
    keeps: bool = False,
) -> list[str]:
    """Refuse a request whose answer would keep too many log probabilities until it is whole, after
    *prompts* in *context* (0: not known). If it does not say how long it may be, it may be as long
    as they allow. A stream has none of them, unless it *keeps* them. Returns the names of fields
    that were changed."""
    if request.alternatives is None or (request.stream and not keeps):
        return []
    each, choices = 1 + request.alternatives, len(prompts) * (request.n or 1)
    most = MAX_LIKELY // (each * choices)
    room = context - min(map(len, prompts)) if context else U32
    if min(room, U32 if request.limit is None else request.limit) <= most:
        return []
    if request.limit is None:
        request.max_tokens = most
        if isinstance(request, ChatRequest):
            request.max_completion_tokens = None
        return ["max_tokens"]
    named = isinstance(request, ChatRequest) and request.top_logprobs is not None
    raise invalid(
        f"The answer would have {min(room, request.limit) * each * choices} log probabilities: "
        f"{each} for each of {min(room, request.limit)} tokens, for each of {choices} choices. At "
        f"most {MAX_LIKELY} are kept for one answer: ask for fewer likeliest tokens, choices or "
        "tokens, or stream the answer.",
        "top_logprobs" if named else "logprobs",
    )


def _check_room(length: int, limit: int | None, context: int, param: str) -> None:
    """Refuse a prompt that the scheduler would refuse, before the ids travel to the node. An answer
    that may be longer than *context* gets what that has."""
    least = 1 if limit != 0 else 0
    if context and length + least > context:
        raise from_refusal(ContextOverflow(length, least, context), param, 0)


def main() -> None:
    """Do what comes on the socket ``--fd`` with the tokenizer of ``--model``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=LOAD_SECONDS)
    given = parser.parse_args()
    with socket.socket(fileno=given.fd) as node, contextlib.suppress(EOFError, OSError):
        _limit_memory(LOAD_MEMORY)  # others wrote the folder, too
        try:
            with _limited_time(given.seconds):
                tokenizer = Tokenizer(given.model)
                words, data = tokenizer.words.packed()
        except LoadError as error:
            node.sendall(pack({"failed": str(error)}))
            return
        gc.freeze()
        _limit_memory(MEMORY)
        node.sendall(pack({"ready": words}, data))
        del words, data
        while True:
            node.sendall(_answer(node, tokenizer, *_receive(node)))


def _answer(node: socket.socket, tokenizer: Tokenizer, asked: Any, data: bytes) -> bytes:
    def enter(stage: str) -> None:
        node.sendall(pack({"stage": stage}))

    try:
        fields, given = JOBS[asked["job"]](tokenizer, asked, data, enter)
    except ApiError as error:
        return pack({"refused": error.fields()})
    except (MemoryError, RecursionError):
        return pack({"refused": invalid("The text is too large or too deep.").fields()})
    # A header shows no more of them, and a body may have a hundred thousand.
    fields |= {
        name: fields[name][: MAX_IGNORED + 1] for name in ("ignored", "adapted") if name in fields
    }
    frame = pack({"done": fields}, given)
    if not is_small(frame[SIZES.size : len(frame) - len(given)]):
        return pack({"refused": invalid("The text has too many values.").fields()})
    return frame


def _receive(node: socket.socket) -> tuple[Any, bytes]:
    text, data = SIZES.unpack(_exactly(node, SIZES.size))
    return json.loads(_exactly(node, text)), _exactly(node, data)


def _exactly(node: socket.socket, size: int) -> bytes:
    got = bytearray(size)
    view = memoryview(got)
    while view:
        count = node.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return bytes(got)


@contextlib.contextmanager
def _limited_time(seconds: int) -> Iterator[None]:
    """Within the block the kernel ends the process after *seconds* more of processor time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    most = math.ceil(time.process_time()) + seconds
    with contextlib.suppress(OSError, ValueError):  # there is a lower limit already
        resource.setrlimit(resource.RLIMIT_CPU, (most, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _limit_memory(more: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = psutil.Process().memory_info().vms + more
    with contextlib.suppress(OSError, ValueError):  # macOS: the node's looks have to do
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


if __name__ == "__main__":
    main()
