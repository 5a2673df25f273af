"""The fields of a request's body, checked before anything else happens.

Unknown fields are ignored, as OpenAI keeps adding new ones; a header of the answer names them.
Known fields that would change the answer, but cannot be honoured here, are refused by name: both
are in `fields`. What clients write in several ways (a whole number as 16.0, no stop as "") is taken
in all of them.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from sealring_protocol.limits import MAX_LOGPROBS

from sealring.api import fields
from sealring.api.conversation import (
    Function,
    Message,
    NamedFunction,
    NamedTool,
    Prediction,
    Tool,
    renew,
)
from sealring.api.errors import ApiError, invalid, named_as, unsupported
from sealring.api.held_schema import Held, ResponseFormat
from sealring.api.json_text import parse_json
from sealring.api.validation import from_validation
from sealring.api.values import (
    COMPLETION_TOKENS,
    MAX_CHOICES,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOP,
    MAX_STOP_TEXT,
    MAX_STOPS,
    MAX_TOOLS,
    MAX_VALUES,
    U32,
    Bias,
    Body,
    Ids,
    Limit,
    Logprobs,
    Model,
    Name,
    Number,
    Penalty,
    Several,
    Stop,
    Token,
    Whole,
)


class StreamOptions(Model):
    """What a stream sends besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampled(Held, Body):
    """What chat and text completions have in common."""

    model: Name
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Limit | None = None
    temperature: Annotated[float, Number(ge=0, le=2)] | None = None
    top_p: Annotated[float, Number(ge=0, le=1)] | None = None
    top_k: Annotated[int, Number(ge=-1, le=U32), Whole] | None = None
    min_p: Annotated[float, Number(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Number(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[Bias, pydantic.BeforeValidator(fields.few)] | None = None
    n: Annotated[int, Number(ge=1, le=MAX_CHOICES), Whole] | None = None
    prompt_logprobs: Logprobs | None = None
    seed: Annotated[int, Number(ge=-(1 << 63), lt=1 << 64), Whole] | None = None
    stop: (
        Stop
        | Annotated[
            list[Stop],
            Several(max_length=MAX_STOPS),
            pydantic.AfterValidator(partial(fields.short, MAX_STOP_TEXT)),
        ]
        | None
    ) = None
    stop_token_ids: Annotated[list[Token], Several(max_length=MAX_STOPS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    cache_salt: Annotated[str, pydantic.StringConstraints(max_length=MAX_STOP)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings. An empty one stops nothing."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(dict.fromkeys(filter(None, stops)))

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def counts_in_chunks(self) -> bool:
        """Whether each chunk of a stream tells the token counts so far."""
        return self.wants_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )


class Prompted(Model):
    """How a prompt becomes ids; the node needs none of it."""

    truncate_prompt_tokens: Limit | None = None
    add_special_tokens: bool | None = None


def _limit(tokens: int | None) -> int | None:
    """The most *tokens* of an answer; None for -1, which is what the context allows."""
    return None if tokens == -1 else tokens


class ChatOptions(Sampled):
    """The options of a chat completion, without its texts."""

    max_completion_tokens: Limit | None = None
    logprobs: bool | Annotated[int, Number(ge=0, le=MAX_LOGPROBS), Whole] | None = None
    top_logprobs: Logprobs | None = None
    parallel_tool_calls: bool | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer; None for what the context allows."""
        return _limit(self.max_completion_tokens or self.max_tokens)

    @property
    def alternatives(self) -> int | None:
        """Of how many likeliest tokens log probabilities are told; None if of none, not even of
        those that were drawn. A number in `logprobs` is that of older clients."""
        if not self.logprobs:
            return None
        named = self.top_logprobs
        return named if named is not None else int(self.logprobs is not True and self.logprobs)

    @property
    def scores(self) -> int | None:
        """The same of the tokens of the prompt."""
        return self.prompt_logprobs


class ChatRequest(ChatOptions, Prompted):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Several(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[Tool], Several(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    functions: Annotated[list[Function], Several(max_length=MAX_TOOLS)] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    prediction: Prediction | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], Several(max_length=MAX_PARTS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: list[str] | None = None

    def renew(self) -> None:
        """Say what older clients say, as it is said now: tools for functions, of which an answer
        calls one at most."""
        renew(self.messages)
        if not self.functions or self.tools:
            return
        self.tools = [Tool(type="function", function=each) for each in self.functions]
        chosen = self.function_call
        if isinstance(chosen, NamedFunction):
            self.tool_choice = NamedTool(type="function", function=chosen)
        else:
            self.tool_choice = chosen
        self.parallel_tool_calls = False

    @property
    def calls_functions(self) -> bool:
        """Whether calls are told as calls of functions, as older clients read them."""
        return bool(self.functions)


class CompletionOptions(Sampled):
    """The options of a text completion, without its texts."""

    max_tokens: Annotated[int, Number(ge=-1, le=U32), Whole] | None = None
    logprobs: bool | Annotated[int, Number(ge=0, le=MAX_LOGPROBS), Whole] | None = None
    echo: bool | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer, None for what the context allows; with 0 the prompt is
        read, and that is all."""
        return COMPLETION_TOKENS if self.max_tokens is None else _limit(self.max_tokens)

    @property
    def alternatives(self) -> int | None:
        """As in `ChatOptions`; here 0 tells those of the drawn tokens, and true is 1."""
        return None if self.logprobs is None or self.logprobs is False else int(self.logprobs)

    @property
    def echoed(self) -> int | None:
        """The same of the tokens of the prompt that comes first in the answer."""
        return self.alternatives if self.echo else None

    @property
    def scores(self) -> int | None:
        """The same of the tokens of the prompt, in either way of telling it."""
        told = [each for each in (self.echoed, self.prompt_logprobs) if each is not None]
        return max(told, default=None)


class CompletionRequest(CompletionOptions, Prompted):
    """The body of ``POST /v1/completions``."""

    prompt: (
        str
        | Ids
        | Annotated[list[str], Several(min_length=1, max_length=MAX_CHOICES)]
        | Annotated[list[Ids], Several(min_length=1, max_length=MAX_CHOICES)]
    )
    prediction: Prediction | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself, as text or as ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [part for part in self.prompt if not isinstance(part, int)]


M = TypeVar("M", bound=ChatRequest | CompletionRequest)
B = TypeVar("B", bound=Body)
P = TypeVar("P", bound=pydantic.BaseModel)


def parse(body: bytes) -> Any:
    """What the JSON text *body* says. Raises `ApiError`."""
    return parse_json(body, MAX_VALUES)


def read(model: type[M], body: bytes) -> M:
    """*body* as a *model*. Raises `ApiError` for the first fault in it."""
    return accepted(model, parse(body))


def accepted(model: type[M], told: Any) -> M:
    """*told*, which a client says, as a *model*. Raises `ApiError` for the first fault in it."""
    if isinstance(told, dict):
        fields.refuse(told, "chat" if issubclass(model, ChatRequest) else "completion")
    places: list[str] = []
    if isinstance(told, dict) and issubclass(model, ChatRequest) and "messages" in told:
        messages, places = fields.with_text_alone(told.get("messages"))
        told = {**told, "messages": messages}
    asked = whole_body(model, told, fields.REFUSED)
    asked._ignored += tuple(places)
    if isinstance(asked, ChatRequest):
        if asked.functions and asked.tools:
            asked._ignored += ("functions",)
            asked.functions = None
        asked.renew()
        with named_as(
            {"tools": "functions", "tool_choice": "function_call"} if asked.functions else {}
        ):
            return checked(asked)
    return checked(asked)


def whole_body(model: type[B], told: Any, passed: Container[str]) -> B:
    """*told* as a *model*, which knows its names that have no effect; those of *passed* ask for
    what is done anyway. Raises `ApiError` for the first fault in its form."""
    asked = validated(model, told)
    asked._ignored = fields.without_effect(told, asked, passed)
    return asked


def validated(model: type[P], value: Any) -> P:
    """*value* as a *model*. Raises `ApiError` for the first fault in its form."""
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        raise from_validation(error, value) from None


def checked(asked: M) -> M:
    """*asked*. Raises `ApiError` for what this server does not support in it, or what contradicts
    itself."""
    if asked.stream and asked.scores is not None:
        raise unsupported(
            "stream",
            "Log probabilities of a prompt ('prompt_logprobs', or 'echo' with 'logprobs') are not "
            "told in a stream; ask without 'stream'.",
        )
    fault = _chat_fault(asked) if isinstance(asked, ChatRequest) else _completion_fault(asked)
    fault = fault or _length_fault(asked)
    if fault is not None:
        raise fault
    return asked


def _chat_fault(asked: ChatRequest) -> ApiError | None:
    """What this server does not support, or what contradicts itself; None if nothing."""
    if asked.modalities not in (None, [], ["text"]):
        return unsupported("modalities", "This server gives text alone.")
    if asked.top_logprobs and asked.alternatives is None:
        return invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    if asked.continue_final_message and asked.add_generation_prompt:
        return invalid(
            "'continue_final_message' goes on with the last message, and 'add_generation_prompt' "
            "begins another; only one of them can be true.",
            "continue_final_message",
        )
    return _tool_fault(asked)


def _length_fault(asked: ChatRequest | CompletionRequest) -> ApiError | None:
    least = asked.min_tokens or 0
    if asked.limit and least > asked.limit:
        text = f"'min_tokens' is {least}, and the answer has {asked.limit} tokens at most."
        return invalid(text, "min_tokens")
    return None


def _tool_fault(asked: ChatRequest) -> ApiError | None:
    names = {tool.function.name for tool in asked.tools or ()}
    if isinstance(asked.tool_choice, NamedTool) and asked.tool_choice.function.name not in names:
        name = asked.tool_choice.function.name
        return invalid(f"tool_choice names '{name}', which is not among the tools.", "tool_choice")
    if asked.tool_choice == "required" and not names:
        return invalid("tool_choice is 'required', and there are no tools.", "tool_choice")
    return None


def _completion_fault(asked: CompletionRequest) -> ApiError | None:
    if asked.suffix and not all(isinstance(prompt, str) for prompt in asked.prompts):
        return invalid("'suffix' needs a prompt that is text.", "suffix")
    if asked.suffix and asked.truncate_prompt_tokens:
        return invalid("A prompt with a 'suffix' is not cut.", "truncate_prompt_tokens")
    if len(asked.prompts) * (asked.n or 1) > MAX_CHOICES:
        return invalid(f"A request has at most {MAX_CHOICES} choices over all its prompts.", "n")
    return None
