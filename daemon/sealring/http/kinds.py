"""What is special about each kind of request: its job for a text worker, its choices, and the shape
of its answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeVar

import attrs
from sealring_model.text.detokenizer import Vocabulary
from sealring_model.text.tokens import ParsedCall, ToolFormat
from sealring_trio.errors import OperationError

from sealring.dialects.anthropic import MessageShape
from sealring.dialects.chat import ChatShape, PromptScores, TextShape
from sealring.dialects.messages import PLAIN
from sealring.dialects.replies import About, AnswerText, Choice, Envelope, Shape
from sealring.dialects.responses_reply import ResponseShape, Wanted
from sealring.dialects.schema import ChatOptions, CompletionOptions
from sealring.generation.generation import Generator
from sealring.http.head import Kept, ResponseStore
from sealring.text.frames import Exceeded, Lost, ParsedRequest, Refused, TextQueueFull

log = logging.getLogger("sealring.api")

_TOLD: Final = 5
"""How often a response stands in its stream and beside it: as it begins (twice), as it ends, as it
is kept, and what was read of it."""

A = TypeVar("A", ChatOptions, CompletionOptions)


@attrs.frozen
class ChoiceContext:
    """What the choices of a request of *owner* share: the model's *words*, and the text workers of
    *generator*, whose work counts to *account*. The items *before* its own are of earlier
    *responses* that are kept."""

    generator: Generator
    words: Vocabulary
    owner: str
    account: str = ""
    responses: ResponseStore = attrs.field(factory=ResponseStore)
    before: tuple[bytes, ...] = ()


class ApiKind(Protocol[A]):
    """One kind of request. *name* is also that of its job in `texts`; *prompt* is the field of its
    prompt."""

    name: str
    prompt: str

    def options(self, told: Mapping[str, Any]) -> A:
        """The options in *told*, without the texts."""

    def limited_by(self, asked: A) -> str:
        """The field that says how long the answer may be."""

    def choices(self, asked: A, parsed: ParsedRequest, context: ChoiceContext) -> list[Choice]:
        """A choice to be filled for each answer."""

    def held(self, parsed: ParsedRequest) -> int:
        """Bytes of texts in *parsed* that stay until the answer is over."""

    def shape(self, asked: A, parsed: ParsedRequest, context: ChoiceContext, about: About) -> Shape:
        """The shape of the answer that *about* names."""


class ChatKind:
    """Chat completions."""

    name = "chat"
    prompt = "messages"

    def options(self, told: Mapping[str, Any]) -> ChatOptions:
        """The options in *told*, without the texts."""
        return ChatOptions.model_validate(told)

    def limited_by(self, asked: ChatOptions) -> str:
        """The newer name of the two, if the request has it."""
        return "max_completion_tokens" if asked.max_completion_tokens else "max_tokens"

    def choices(
        self, asked: ChatOptions, parsed: ParsedRequest, context: ChoiceContext
    ) -> list[Choice]:
        """A message for each."""
        words, told = context.words, parsed.told
        form = ToolFormat.known(*words.calls)
        plain = bool(told["plain"])
        tools = parsed.rest[: told["tools"]]
        calls = CallReader(context, tools, plain=plain)
        return [
            Choice(
                index,
                AnswerText(
                    words.think,
                    (PLAIN if plain else form) if tools else None,
                    told["callable"],
                    reasoning=told["reasoning"],
                    calling=told["calling"],
                    whole=form.whole,
                ),
                calls.read,
                single_call=asked.parallel_tool_calls is False,
            )
            for index in range(asked.n or 1)
        ]

    def held(self, parsed: ParsedRequest) -> int:
        """The tools."""
        return len(parsed.rest)

    def shape(
        self, asked: ChatOptions, parsed: ParsedRequest, context: ChoiceContext, about: About
    ) -> Shape:
        """OpenAI's messages."""
        envelope = Envelope(about, "chat.completion", "chat.completion.chunk", asked)
        bytes_of = context.words.token_bytes
        scores = None
        if asked.prompt_logprobs is not None:
            (prompt,) = parsed.prompts
            scores = PromptScores(prompt, bytes_of, None, asked.prompt_logprobs)
        old = bool(parsed.told["functions"])
        return ChatShape(envelope, asked.n or 1, bytes_of, asked.alternatives, scores, old=old)


class ResponsesKind(ChatKind):
    """OpenAI's responses."""

    name = "responses"
    prompt = "input"

    def limited_by(self, asked: ChatOptions) -> str:
        """Its only name."""
        return "max_output_tokens"

    def held(self, parsed: ParsedRequest) -> int:
        """The tools, the items, also one by one, and the fields that are repeated, in all `_TOLD`
        responses too."""
        echo = int(parsed.told["echo"])
        items = len(parsed.rest) - int(parsed.told["tools"]) - echo
        return len(parsed.rest) + items + _TOLD * echo

    def shape(
        self, asked: ChatOptions, parsed: ParsedRequest, context: ChoiceContext, about: About
    ) -> Shape:
        """Items, kept when they are complete unless the client said no."""
        told = parsed.told
        begin, end = told["tools"], told["tools"] + told["echo"]
        inputs = tuple(parsed.rest[end:].splitlines())

        def keep(response: bytes, outputs: tuple[bytes, ...]) -> None:
            kept = Kept(response, context.before, inputs, outputs, context.account)
            context.responses.keep(context.owner, about.id, kept)

        wanted = Wanted(parsed.rest[begin:end], told["names"], told["summary"])
        bytes_of = None if asked.alternatives is None else context.words.token_bytes
        most = asked.alternatives or 0
        return ResponseShape(about, wanted, bytes_of, keep if told["store"] else None, most)


class MessagesKind(ChatKind):
    """Anthropic's messages."""

    name = "messages"

    def limited_by(self, asked: ChatOptions) -> str:
        """Its only name."""
        return "max_tokens"

    def shape(
        self, asked: ChatOptions, parsed: ParsedRequest, context: ChoiceContext, about: About
    ) -> Shape:
        """Blocks."""
        streamed = bool(asked.stream)
        return MessageShape(about, len(parsed.prompts[0]), asked.limit, streamed=streamed)


class CompletionKind:
    """Text completions."""

    name = "completion"
    prompt = "prompt"

    def options(self, told: Mapping[str, Any]) -> CompletionOptions:
        """The options in *told*, without the texts."""
        return CompletionOptions.model_validate(told)

    def limited_by(self, asked: CompletionOptions) -> str:
        """Its only name."""
        return "max_tokens"

    def choices(
        self, asked: CompletionOptions, parsed: ParsedRequest, context: ChoiceContext
    ) -> list[Choice]:
        """The continuations of each prompt: plain text, in which nothing is told apart."""
        calls = CallReader(context, b"", plain=False)
        count = (asked.n or 1) * len(parsed.prompts)
        return [Choice(index, AnswerText(), calls.read) for index in range(count)]

    def held(self, parsed: ParsedRequest) -> int:
        """The texts that are echoed, once for each choice too."""
        choices = int(parsed.told["options"].get("n", 1))
        return sum(map(len, parsed.told["texts"])) * (1 + choices)

    def shape(
        self, asked: CompletionOptions, parsed: ParsedRequest, context: ChoiceContext, about: About
    ) -> Shape:
        """OpenAI's continuations."""
        envelope = Envelope(about, "text_completion", "text_completion", asked)
        bytes_of = context.words.token_bytes
        texts = parsed.told["texts"] or [""] * len(parsed.prompts)
        echoes = [text for text in texts for _ in range(asked.n or 1)]
        scores = [
            PromptScores(prompt, bytes_of, asked.echoed, asked.prompt_logprobs)
            for prompt in (() if asked.scores is None else parsed.prompts)
        ]
        return TextShape(envelope, echoes, bytes_of, asked.alternatives, scores)


@attrs.frozen
class CallReader:
    """Has a text worker read tool calls; *tools* is the JSON of the tools that may be called. They
    are *plain* JSON, or in the model's format."""

    context: ChoiceContext
    tools: bytes
    plain: bool

    async def read(self, text: str) -> list[ParsedCall]:
        """The calls in *text*; none if it is no call, or cannot be read within its limits."""
        about = {"tools": len(self.tools), "plain": self.plain}
        data = self.tools + text.encode("utf-8", "replace")
        try:
            told, _ = await self.context.generator.texts.run(
                "call", about, data, self.context.account
            )
        except (Exceeded, Lost, TextQueueFull, Refused, OperationError) as error:
            log.warning("a tool call of %d characters is given out as text: %s", len(text), error)
            return []
        return [ParsedCall(name, arguments, id) for name, arguments, id in told["calls"]]
