"""The fields of a request's body, checked before anything else happens.

Unknown fields are ignored, as OpenAI keeps adding new ones. Known fields that would change the
answer, but cannot be honoured here, are refused by name (`refuse_unsupported`): an answer that
ignored them would be wrong.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

import pydantic
from pydantic_core import from_json
from sealring_protocol.limits import MAX_BIAS, MAX_LOGPROBS

from sealring_trio.api.errors import ApiError, from_validation, invalid, unsupported

U32: Final = (1 << 32) - 1

MAX_CHOICES: Final = 128
"""Choices of one request, over all its prompts."""

MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 1024
MAX_TOOLS: Final = 512
MAX_PROMPT_IDS: Final = 1 << 20
"""Entries of a conversation, of a message, of the tools, and of a prompt given as ids."""

MAX_VALUES: Final = 2 * MAX_PROMPT_IDS
"""Values in a body, counted before they are made. Memory: some 100 bytes for each."""

COMPLETION_TOKENS: Final = 16
"""Tokens of a text completion that says nothing of it, as OpenAI has it."""

MAX_SCORED: Final = 1 << 17
"""Log probabilities of prompts in one answer: for each token its own and those of the likeliest
ones. Memory: some 200 bytes for each."""

MAX_STOPS: Final = 16
MAX_STOP: Final = 1024
"""Stop strings, and the characters of one: text is held back until it cannot become one."""

Number = pydantic.Field
Several = partial(pydantic.Field, fail_fast=True)
"""A list. One fault is told; a list of a million faults is not gone through for the rest."""

Penalty = Annotated[float, Number(ge=-2, le=2)]
Logprobs = Annotated[int, Number(ge=0, le=MAX_LOGPROBS)]
Count = Annotated[int, Number(ge=1, le=U32)]
Stop = Annotated[str, pydantic.StringConstraints(min_length=1, max_length=MAX_STOP)]
Name = Annotated[str, pydantic.StringConstraints(min_length=1, max_length=256)]
Token = Annotated[int, Number(ge=0, le=U32)]
Ids = Annotated[list[Token], Several(min_length=1, max_length=MAX_PROMPT_IDS)]
Bias = dict[
    Annotated[str, pydantic.StringConstraints(pattern=r"^[0-9]{1,10}$")],
    Annotated[float, Number(ge=-100, le=100)],
]


def _few(bias: Any) -> Any:
    """Refuses too many entries before any is validated: each of half a million could have a
    fault."""
    if isinstance(bias, dict) and len(bias) > MAX_BIAS:
        raise ValueError(f"at most {MAX_BIAS} tokens may have a bias")
    return bias


class Model(pydantic.BaseModel):
    """A part of a body: exact types, no infinities, unknown fields left aside."""

    model_config = pydantic.ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class StreamOptions(Model):
    """What a stream sends besides the text."""

    include_usage: bool | None = None


class Sampled(Model):
    """What chat and text completions have in common."""

    model: Name
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Number(ge=0, le=2)] | None = None
    top_p: Annotated[float, Number(gt=0, le=1)] | None = None
    top_k: Annotated[int, Number(ge=-1, le=U32)] | None = None
    min_p: Annotated[float, Number(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Number(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[Bias, pydantic.BeforeValidator(_few)] | None = None
    n: Annotated[int, Number(ge=1, le=MAX_CHOICES)] | None = None
    prompt_logprobs: Logprobs | None = None
    seed: Annotated[int, Number(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: Stop | Annotated[list[Stop], Several(max_length=MAX_STOPS)] | None = None
    user: str | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


class Function(Model):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Model):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function


class NamedFunction(Model):
    """The function that has to be called."""

    name: Name


class NamedTool(Model):
    """The tool that has to be called."""

    type: Literal["function"]
    function: NamedFunction


class TextPart(Model):
    """A part of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(Model):
    """A call that the model made; *arguments* is a JSON text."""

    name: str
    arguments: str = "{}"


class CalledTool(Model):
    """A tool call of an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Model):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Several(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[CalledTool], Several(max_length=MAX_PARTS)] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """Its content in one piece."""
        return _joined(self.content or "")


class Prediction(Model):
    """What the answer is likely to contain."""

    type: Literal["content"]
    content: str | Annotated[list[TextPart], Several(max_length=MAX_PARTS)]

    @property
    def text(self) -> str:
        """Its content in one piece."""
        return _joined(self.content)


def _joined(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class ResponseFormat(Model):
    """The form that the answer must have."""

    type: Name


class ChatOptions(Sampled):
    """The options of a chat completion, without its texts."""

    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    parallel_tool_calls: bool | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer; None for what the context allows."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """How many likeliest tokens are told with each of the answer; None: not even its own log
        probability."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def scores(self) -> int | None:
        """The same of the tokens of the prompt."""
        return self.prompt_logprobs


class ChatRequest(ChatOptions):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Several(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[Tool], Several(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    prediction: Prediction | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: list[str] | None = None
    # Known, and refused.
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    web_search_options: Any = None


class CompletionOptions(Sampled):
    """The options of a text completion, without its texts."""

    max_tokens: Annotated[int, Number(ge=0, le=U32)] | None = None
    logprobs: Logprobs | None = None
    echo: bool | None = None

    @property
    def limit(self) -> int:
        """The most tokens of an answer; with 0 the prompt is read, and that is all."""
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """How many likeliest tokens are told with each of the answer; None: not even its own log
        probability."""
        return self.logprobs

    @property
    def echoed(self) -> int | None:
        """The same of the tokens of the prompt that comes first in the answer."""
        return self.logprobs if self.echo else None

    @property
    def scores(self) -> int | None:
        """The same of the tokens of the prompt, in either way of telling it."""
        told = [each for each in (self.echoed, self.prompt_logprobs) if each is not None]
        return max(told, default=None)


class CompletionRequest(CompletionOptions):
    """The body of ``POST /v1/completions``."""

    prompt: (
        str
        | Ids
        | Annotated[list[str], Several(min_length=1, max_length=MAX_CHOICES)]
        | Annotated[list[Ids], Several(min_length=1, max_length=MAX_CHOICES)]
    )
    prediction: Prediction | None = None
    best_of: int | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself, as text or as ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [part for part in self.prompt if not isinstance(part, int)]


M = TypeVar("M", ChatRequest, CompletionRequest)
T = TypeVar("T", bound=Model)

REFUSED: Final[Mapping[str, str]] = {
    "functions": "'functions' is the old form of 'tools'; use that.",
    "function_call": "'function_call' is the old form of 'tool_choice'; use that.",
    "audio": "This server gives text alone.",
    "web_search_options": "This server does not search the web.",
}
"""Fields that are known and always refused, with what is said of each."""


def read(model: type[M], body: bytes) -> M:
    """*body* as a *model*. Raises `ApiError` for the first fault in it."""
    return checked(validated(model, parse(body)))


def validated(model: type[T], value: Any) -> T:
    """*value* as a *model*. Raises `ApiError` for the first fault in its form."""
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        raise from_validation(error) from None


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
    if fault is not None:
        raise fault
    return asked


_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def parse(body: bytes) -> Any:
    """What the JSON text *body* says. Raises `ApiError`.

    By itself, since faults that are found while a text is parsed keep copies of what they blame,
    one for each form that a field may have. The collector would go again and again through what
    grows here. How deep a body goes and how many digits a number has is bounded by the parser.
    """
    bare = _TEXT.sub(b"", body)
    if sum(map(bare.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise invalid(f"The body has more than {MAX_VALUES} values.", code="too_many_values")
    gc.disable()
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"The body is not valid JSON: {error}", code="invalid_json") from None
    finally:
        gc.enable()


def _chat_fault(asked: ChatRequest) -> ApiError | None:
    """What this server does not support, or what contradicts itself; None if nothing."""
    for name, message in REFUSED.items():
        if getattr(asked, name) is not None:
            return unsupported(name, message)
    if asked.modalities not in (None, [], ["text"]):
        return unsupported("modalities", "This server gives text alone.")
    if asked.response_format is not None and asked.response_format.type != "text":
        return unsupported(
            "response_format",
            f"response_format '{asked.response_format.type}' is not supported: answers are not "
            "held to a schema here. Use 'text', and ask for the form in the prompt.",
        )
    if asked.top_logprobs is not None and not asked.logprobs:
        return invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    return _tool_fault(asked)


def _tool_fault(asked: ChatRequest) -> ApiError | None:
    names = {tool.function.name for tool in asked.tools or ()}
    if isinstance(asked.tool_choice, NamedTool) and asked.tool_choice.function.name not in names:
        name = asked.tool_choice.function.name
        return invalid(f"tool_choice names '{name}', which is not among the tools.", "tool_choice")
    if asked.tool_choice == "required" and not names:
        return invalid("tool_choice is 'required', and there are no tools.", "tool_choice")
    return None


def _completion_fault(asked: CompletionRequest) -> ApiError | None:
    if asked.suffix:
        return unsupported("suffix", "This server continues text; it does not fill gaps.")
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        return unsupported("best_of", "'best_of' other than 'n' is not supported.")
    if len(asked.prompts) * (asked.n or 1) > MAX_CHOICES:
        return invalid(f"A request has at most {MAX_CHOICES} choices over all its prompts.", "n")
    return None
