"""What the answers of every API look like, for ``/openapi.json`` and for tests."""

from __future__ import annotations

from typing import Any, Literal

import pydantic

# ---------------------------------------------------------------------- answer schema
# What answers look like, for ``/openapi.json`` and for tests that compare real answers with it.
#
# Answers are made as plain objects, which costs the event loop less. These models are their
# description: a field that is missing here, or too many, fails a test.


class Told(pydantic.BaseModel):
    """A part of an answer."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")


class ErrorBody(Told):
    """What went wrong. *code* is for programs, *message* for people; *param* names the field of the
    body that is to blame."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(Told):
    """An answer that is an error."""

    error: ErrorBody


class PromptDetails(Told):
    """Of the prompt's tokens."""

    cached_tokens: int


class PromptScore(Told):
    """A token in a place of the prompt; *rank* 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


PromptScores = list[dict[str, PromptScore] | None]
"""For each token of the prompt what it and the likeliest ones have, by id; None for the first."""


class CompletionDetails(Told):
    """Of the answer's tokens: those that were guessed rightly, and guesses that were wrong."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Told):
    """The counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TokenLogprob(Told):
    """A token, its log probability and its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(TokenLogprob):
    """The token that was drawn, and the likeliest ones in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Told):
    """Log probabilities of a message."""

    content: list[ChosenLogprob]
    refusal: None


class CalledFunction(Told):
    """What is called; *arguments* is a JSON text."""

    name: str
    arguments: str


class ToolCall(Told):
    """A call that the client is to make."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Told):
    """The model's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None


class ChatChoice(Told):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]


class ChatAnswer(Told):
    """A whole chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptScores | None = None


class FunctionDelta(Told):
    """What is called; *arguments* are more of the JSON text that was sent before."""

    name: str | None = None
    arguments: str


class CallDelta(Told):
    """More of a call; *index* is its number among those of the message. Its id and name come
    first."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class MessageDelta(Told):
    """What is new in a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None


class ChatChunkChoice(Told):
    """What is new in one of the answers."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None


class ChatChunk(Told):
    """The data of an event of a chat completion's stream; the last event's is ``[DONE]``."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class TextLogprobs(Told):
    """Log probabilities in columns, one entry for each token; *text_offset* is in characters."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Told):
    """One of the continuations."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]
    prompt_logprobs: PromptScores | None = None


class TextChunkChoice(TextChoice):
    """What is new in one of the continuations."""

    finish_reason: Literal["stop", "length"] | None  # type: ignore[assignment]


class TextChunk(Told):
    """The data of an event of a text completion's stream; the last event's is ``[DONE]``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChunkChoice]
    usage: Usage | None = None


class TextAnswer(Told):
    """A whole text completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage


class Card(Told):
    """The model under one of its names; *root* is its own."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    context_length: int | None
    max_model_len: int | None
    chat_template: bool


class Cards(Told):
    """The model under each of its names."""

    object: Literal["list"]
    data: list[Card]


class Capabilities(Told):
    """What the model can. *tools* are ``in-words`` where its template has none."""

    chat: bool
    completion: bool
    tools: Literal["template", "in-words"]
    reasoning: bool
    reasoning_effort: bool
    fill_in_the_middle: bool
    logprobs: bool
    structured_output: bool
    embeddings: bool
    vision: bool
    audio: bool


class Sampling(Told):
    """How the model's makers have its answers drawn; what they do not say is left out."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class FullCard(Card):
    """The model, how its answers are drawn where a request does not say, and what it can; null if
    its tokenizer cannot be read."""

    sampling: Sampling
    capabilities: Capabilities | None


class Tokenized(Told):
    """The ids of a text or of a conversation's prompt, and their number."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Told):
    """The text of ids."""

    prompt: str


class Version(Told):
    """What runs here."""

    version: str


class Health(Told):
    """Whether the ring can answer now, and if not, why."""

    status: Literal["ok", "unavailable"]
    ranks: int
    faults: list[str]
    roster: str
    why: list[dict[str, Any]]
    starved: list[dict[str, Any]]


class Alive(Told):
    """That the process lives."""

    status: Literal["alive"]


class Readiness(Told):
    """Whether to send requests here, and why not."""

    status: Literal["ready", "unavailable"]
    reasons: list[str]


class Cluster(pydantic.BaseModel):
    """The state of the ring. It has more than is told here, and changes with versions."""

    version: str
    model: str
    healthy: bool
    faults: list[str]
    ranks: list[dict[str, Any]]
    requests: list[dict[str, Any]]


class TraceAnswer(Told):
    """Where the time of one request went."""

    id: str
    request_id: str
    trace_id: str
    kind: str
    owner: str
    began_ms: int
    state: str
    choices: int
    prompt_tokens: int
    cached_tokens: int
    read_tokens: int
    tokens: int
    tokens_per_s: float
    accepted_guesses: int
    rejected_guesses: int
    steps: int
    phases_ms: dict[str, Any]


class TraceNow(TraceAnswer):
    """The same, and in words what is done for it until its first token."""

    doing: str


class Traces(Told):
    """The requests under way, then the latest that are over."""

    object: Literal["list"]
    data: list[TraceAnswer]


class Cancelled(Told):
    """A request that has been ended."""

    id: str
    object: Literal["request"]
    cancelled: Literal[True]


# ---------------------------------------------------------------------- shape answers
# What answers of OpenAI's responses and Anthropic's messages look like, in the same way.


class StreamEvent(pydantic.BaseModel):
    """One event of a stream, of which each *type* has fields of its own."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow")

    type: str


class InputDetails(Told):
    """Of the input's tokens."""

    cached_tokens: int


class OutputDetails(Told):
    """Of the output's tokens."""

    reasoning_tokens: int


class ResponseUsage(Told):
    """The counts of tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFault(Told):
    """Why a response failed."""

    code: str
    message: str


class Incomplete(Told):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseAnswer(pydantic.BaseModel):
    """A response. It repeats fields of the request, too."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow")

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete", "failed", "in_progress"]
    error: ResponseFault | None
    incomplete_details: Incomplete | None
    model: str
    output: list[dict[str, Any]]
    usage: ResponseUsage | None


class ResponseDeleted(Told):
    """A response that is kept no longer."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(Told):
    """Items of a response's input."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class MessageUsage(pydantic.BaseModel):
    """The counts of tokens; what was cached is no input."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow")

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int


class MessageAnswer(Told):
    """A message of Anthropic's."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class InputTokens(Told):
    """The length of a response's prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class TokenCount(Told):
    """How many tokens a prompt has."""

    input_tokens: int


class MessageFault(Told):
    """What went wrong, in Anthropic's words."""

    type: str
    message: str


class MessageError(pydantic.BaseModel):
    """An answer below ``/v1/messages`` that is an error."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow")

    type: Literal["error"]
    error: MessageFault
