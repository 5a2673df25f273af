"""The bodies of requests: their fields, their checks, and what a fault in one is called.

Unknown fields are ignored, as OpenAI keeps adding new ones; a header of the answer names them.
Known fields that would change the answer, but cannot be honoured here, are refused by name: both
are in `fields`. What clients write in several ways (a whole number as 16.0, no stop as "") is taken
in all of them.
"""

from __future__ import annotations

import difflib
import gc
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, Literal, TypeVar

import pydantic
from pydantic_core import from_json
from sealring_protocol.limits import MAX_BAD, MAX_BIAS, MAX_GRAMMAR, MAX_LOGPROBS

from sealring.dialects import fields
from sealring.dialects.errors import ApiError, invalid, named_as, unsupported

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

MAX_LIKELY: Final = 800_000
"""Log probabilities of the tokens of an answer that is kept until it is whole, over all choices: of
each token its own and those of the likeliest ones. Memory: some 80 bytes for each."""

MAX_STOPS: Final = 128
MAX_STOP: Final = 1024
MAX_STOP_TEXT: Final = 16 << 10
"""Stop strings, the characters of one, and of all: each piece of text is compared with all."""


def _few(bias: Any) -> Any:
    """Refuses too many entries before any is validated: each of half a million could have a
    fault."""
    if isinstance(bias, dict) and len(bias) > MAX_BIAS:
        raise ValueError(f"at most {MAX_BIAS} tokens may have a bias")
    return bias


def _short(most: int, texts: list[str]) -> list[str]:
    """*texts*. Raises `ValueError` if they have more than *most* characters together."""
    if sum(map(len, texts)) > most:
        raise ValueError(f"they have more than {most} characters")
    return texts


def _some(value: int) -> int:
    """*value*. Raises `ValueError` if it is 0."""
    if not value:
        raise ValueError("it is at least 1, or -1 for what the context allows")
    return value


def _whole(value: Any) -> Any:
    """*value*, or the whole number that it is: some languages write 16 as 16.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Number = pydantic.Field
Several = partial(pydantic.Field, fail_fast=True)
"""A list. One fault is reported; a list of a million faults is not gone through for the rest."""

Whole = pydantic.BeforeValidator(_whole)
Penalty = Annotated[float, Number(ge=-2, le=2)]
Logprobs = Annotated[int, Number(ge=0, le=MAX_LOGPROBS), Whole]
Count = Annotated[int, Number(ge=1, le=U32), Whole]
Limit = Annotated[
    int,
    Number(ge=-1, le=U32, json_schema_extra={"not": {"const": 0}}),
    pydantic.AfterValidator(_some),
    Whole,
]
"""A number of tokens; -1 for what the context allows, as llama.cpp and its like have it."""

Stop = Annotated[str, pydantic.StringConstraints(max_length=MAX_STOP)]
Name = Annotated[str, pydantic.StringConstraints(min_length=1, max_length=256)]
Token = Annotated[int, Number(ge=0, le=U32), Whole]
Ids = Annotated[list[Token], Several(min_length=1, max_length=MAX_PROMPT_IDS)]
Bias = dict[
    Annotated[str, pydantic.StringConstraints(pattern=r"^[0-9]{1,10}$")],
    Annotated[float, Number(ge=-100, le=100)],
]


class Model(pydantic.BaseModel):
    """A part of a body: exact types, no infinities, unknown fields left aside."""

    model_config = pydantic.ConfigDict(
        strict=True, extra="ignore", allow_inf_nan=False, serialize_by_alias=True
    )


class Body(Model):
    """A whole body."""

    _ignored: tuple[str, ...] = ()

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names in the body that have no effect."""
        return self._ignored


class Function(Model):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _OfFunction(Model):
    """What is of a function, which it has as an object; or flat, as in the Responses API."""

    type: Literal["function"]

    @pydantic.model_validator(mode="before")
    @classmethod
    def _nested(cls, given: Any) -> Any:
        if isinstance(given, dict) and "name" in given and "function" not in given:
            function = {name: value for name, value in given.items() if name != "type"}
            return {"type": given.get("type"), "function": function}
        return given


class Tool(_OfFunction):
    """A tool; functions are the only kind."""

    function: Function


class NamedFunction(Model):
    """The function that has to be called."""

    name: Name


class NamedTool(_OfFunction):
    """The tool that has to be called."""

    function: NamedFunction


class TextPart(Model):
    """A part of a message; the second and third kind are the Responses API's."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class RefusalPart(Model):
    """A part of an earlier answer that refused."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """What it says."""
        return self.refusal


Parts = Annotated[list[TextPart | RefusalPart], Several(max_length=MAX_PARTS)]


class HistoryFunction(Model):
    """A call that the model made; *arguments* is a JSON text, or what it says."""

    name: str
    arguments: str | dict[str, Any] | None = None


class CalledTool(Model):
    """A tool call of an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: HistoryFunction


class Message(Model):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Parts | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[CalledTool], Several(max_length=MAX_PARTS)] | None = None
    function_call: HistoryFunction | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """Its content in one piece."""
        return _joined(self.content or "")


def renew(messages: Iterable[Message]) -> None:
    """Say what older clients say of functions in *messages* as tools, and thoughts under their one
    name."""
    latest = ""
    for at, message in enumerate(messages):
        if message.reasoning_content is None:
            message.reasoning_content = message.reasoning
        if (called := message.function_call) is not None and not message.tool_calls:
            latest = f"call_{at}"
            message.tool_calls = [CalledTool(id=latest, function=called)]
        if message.role == "function":
            message.role, message.tool_call_id = "tool", latest or f"call_{message.name}"


class Prediction(Model):
    """What the answer is likely to contain."""

    type: Literal["content"]
    content: str | Parts

    @property
    def text(self) -> str:
        """Its content in one piece."""
        return _joined(self.content)


def _joined(content: str | Sequence[TextPart | RefusalPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


MAX_OPTIONS: Final = 4096
"""Texts that a choice may be of."""

Text = Annotated[str, pydantic.StringConstraints(min_length=1, max_length=MAX_GRAMMAR)]
Options = Annotated[list[Text], Several(min_length=1, max_length=MAX_OPTIONS)]
Schema = dict[str, Any] | bool | Text
"""A JSON schema, or its text."""


class JsonSchema(Model):
    """A schema, and what it is called."""

    name: Annotated[str, pydantic.StringConstraints(max_length=256)] | None = None
    description: str | None = None
    form: Annotated[dict[str, Any] | bool | None, pydantic.Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Model):
    """The form that the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Model):
    """The form that the answer must have, in vLLM's words: one of *json*, *regex*, *choice*,
    *grammar* and *json_object*."""

    form: Annotated[Schema | None, pydantic.Field(alias="json")] = None
    regex: Text | None = None
    choice: Options | None = None
    grammar: Text | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: Text | None = None
    disable_additional_properties: bool | None = None
    structural_tag: Any = None


class Held(Model):
    """What constrains an answer's tokens. ``structured_outputs`` is vLLM's, and ``guided_…`` its
    older names."""

    min_tokens: Annotated[int, pydantic.Field(ge=0, lt=1 << 31)] | None = None
    bad_words: Annotated[list[Text], Several(max_length=MAX_BAD)] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Options | None = None
    guided_grammar: Text | None = None
    guided_whitespace_pattern: Text | None = None


FORMS: Final = frozenset(Held.model_fields) - {"min_tokens"}
"""Those of the fields that the node has no need of."""


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
    logit_bias: Annotated[Bias, pydantic.BeforeValidator(_few)] | None = None
    n: Annotated[int, Number(ge=1, le=MAX_CHOICES), Whole] | None = None
    prompt_logprobs: Logprobs | None = None
    seed: Annotated[int, Number(ge=-(1 << 63), lt=1 << 64), Whole] | None = None
    stop: (
        Stop
        | Annotated[
            list[Stop],
            Several(max_length=MAX_STOPS),
            pydantic.AfterValidator(partial(_short, MAX_STOP_TEXT)),
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
        """Whether each chunk of a stream has the token counts so far."""
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
        """Of how many likeliest tokens log probabilities are given; None if of none, not even of
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
        """As in `ChatOptions`; here 0 gives those of the drawn tokens, and true is 1."""
        return None if self.logprobs is None or self.logprobs is False else int(self.logprobs)

    @property
    def echoed(self) -> int | None:
        """The same of the tokens of the prompt that comes first in the answer."""
        return self.alternatives if self.echo else None

    @property
    def scores(self) -> int | None:
        """The same of the tokens of the prompt, in either way."""
        asked = [each for each in (self.echoed, self.prompt_logprobs) if each is not None]
        return max(asked, default=None)


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


class TokenizeChat(ChatRequest):
    """A conversation whose prompt is wanted as ids, with the fields of a chat completion."""

    model: Name = ""
    return_token_strs: bool | None = None


class TokenizeText(Model):
    """A text whose ids are wanted."""

    model: Name = ""
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class Detokenize(Model):
    """Ids whose text is wanted."""

    model: Name = ""
    tokens: Annotated[list[Token], Several(max_length=MAX_PROMPT_IDS)]


M = TypeVar("M", bound=ChatRequest | CompletionRequest)
B = TypeVar("B", bound=Body)
P = TypeVar("P", bound=pydantic.BaseModel)


def parse(body: bytes) -> Any:
    """What the JSON text *body* says. Raises `ApiError`."""
    return parse_json(body, MAX_VALUES)


def read(model: type[M], body: bytes) -> M:
    """*body* as a *model*. Raises `ApiError` for the first fault in it."""
    return accepted(model, parse(body))


def accepted(model: type[M], sent: Any) -> M:
    """*sent*, which a client says, as a *model*. Raises `ApiError` for the first fault in it."""
    if isinstance(sent, dict):
        fields.refuse(sent, "chat" if issubclass(model, ChatRequest) else "completion")
    places: list[str] = []
    if isinstance(sent, dict) and issubclass(model, ChatRequest) and "messages" in sent:
        messages, places = fields.with_text_alone(sent.get("messages"))
        sent = {**sent, "messages": messages}
    asked = whole_body(model, sent, fields.REFUSED)
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


def whole_body(model: type[B], sent: Any, passed: Container[str]) -> B:
    """*sent* as a *model*, which knows its names that have no effect; those of *passed* ask for
    what is done anyway. Raises `ApiError` for the first fault in its form."""
    asked = validated(model, sent)
    asked._ignored = fields.without_effect(sent, asked, passed)
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
            "given in a stream; ask without 'stream'.",
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


Place = tuple[int | str, ...]

_LONGEST_PART: Final = 64  # of a place in a body: a client may have put anything there
_MOST_NAMES: Final = 256  # of an object, among which a near one is looked for

_FORMS: Final[Mapping[str, str]] = {
    "content": "a text or a list of text parts",
    "arguments": "a JSON text, or an object",
    "logprobs": "true or false, or of how many of the likeliest tokens, at most 20",
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
    "stop": f"a text or a list of texts: at most {MAX_STOPS} texts of {MAX_STOP:,} characters "
    f"each, and {MAX_STOP_TEXT:,} characters in all",
    "output": "a text or a list of text parts",
    "system": "a text or a list of text blocks",
    "tool_choice": "'none', 'auto', 'required' or "
    '{"type": "function", "function": {"name": ...}} of the tools',
}
"""What fields look like that have several forms, of which validation blames the wrong one."""

_RESPONSES_CHOICE: Final = (
    "'none', 'auto', 'required' or {\"type\": \"function\", \"name\": ...} of the tools"
)
_MESSAGES_CHOICE: Final = "an object whose type is 'auto', 'any', 'tool' (with a name) or 'none'"
_OWN_FORMS: Final[Mapping[str, Mapping[str, str]]] = {
    "ResponsesRequest": {"tool_choice": _RESPONSES_CHOICE},
    "MessagesRequest": {"tool_choice": _MESSAGES_CHOICE},
    "CountRequest": {"tool_choice": _MESSAGES_CHOICE},
}
"""The same, by the class of the body, where it has other forms than chat completions."""

_ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    "messages": ("input", "prompt"),
    "input": ("messages", "prompt"),
    "prompt": ("messages", "input"),
}
"""What a field is called in other APIs."""

_BEYOND: Final = ("greater_than_equal", "less_than_equal")
_BEYOND_TEXT: Final = (
    "a token id is out of range; ids are 0 or more, and below the size of the vocabulary"
)
"""What is said of a prompt of ids, one of which is none."""

_FIELDS: Final = (("type",), ("name",))
"""Places within a field of one form: where there are several, the form comes first."""

_REASONS: Final[Mapping[str, str]] = {
    "model_type": "Input should be an object",
    "too_long": "it has too many entries; it takes {max_length} at most",
    "too_short": "it has too few entries; it needs {min_length} or more",
    "value_error": "{error}",
}
"""What is said of faults by their kind, where pydantic speaks to who programs with it."""


def from_validation(error: pydantic.ValidationError, body: Any) -> ApiError:
    """The error for the first fault that validation found in *body*."""
    faults = error.errors(include_url=False, include_input=False)
    fault = faults[0]
    place = fault["loc"]
    if fault["type"] == "missing":
        return missing(place, body)
    for depth, part in enumerate(place):
        if part == "prompt" and any(each["type"] in _BEYOND for each in faults):
            return invalid(f"{part}: {_BEYOND_TEXT}.", part)
        if part in _FORMS and place[depth + 1 :] not in _FIELDS:
            param = _name(place[: depth + 1])
            forms = {**_FORMS, **_OWN_FORMS.get(error.title, {})}
            return invalid(f"{param}: it is {forms[str(part)]}.", param)
    said = _REASONS.get(fault["type"])
    reason = fault["msg"] if said is None else said.format(**fault.get("ctx", {}))
    param = _name(place)
    return invalid(f"{param}: {reason}" if param else reason, param or None)


def missing(place: Place, body: Any) -> ApiError:
    """The error for a field that *body* lacks at *place*. It names the one that may be meant."""
    reason = "Field required"
    param = _name(place)
    other = next((name for name in _ELSEWHERE.get(param, ()) if name in body), "")
    if other:
        reason += f"; it is '{param}' here, and not '{other}'"
    elif near := _near(place, body):
        reason += f"; the body has '{near}'"
    return invalid(f"{param}: {reason}", param, "missing_required_parameter")


def _near(place: Place, body: Any) -> str:
    """The name nearest to the last of *place* in the object that should have it; empty for none."""
    *before, wanted = place
    for part in before:
        try:
            body = body[part]
        except (LookupError, TypeError):  # the place also names the form that was expected there
            return ""
    names = islice(body, _MOST_NAMES) if isinstance(body, dict) else ()
    short = [name for name in names if len(name) <= _LONGEST_PART]
    return next(iter(difflib.get_close_matches(str(wanted), short, 1)), "")


def _name(place: Place) -> str:
    return ".".join(str(part)[:_LONGEST_PART] for part in place if part != "[key]")


_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def parse_json(body: bytes, most: int) -> Any:
    """What the JSON text *body* says, of *most* values. Raises `ApiError`.

    By itself, since faults that are found while a text is parsed keep copies of what they blame,
    one for each form that a field may have. The collector would go again and again through what
    grows here. How deep a body goes and how many digits a number has is bounded by the parser.
    """
    bare = _TEXT.sub(b"", body)
    if sum(map(bare.count, (b",", b"[", b"{"))) > most:
        raise invalid(f"The body has more than {most} values.", code="too_many_values")
    gc.disable()
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"The body is not valid JSON: {error}", code="invalid_json") from None
    finally:
        gc.enable()
