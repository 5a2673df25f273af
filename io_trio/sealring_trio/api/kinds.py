"""What is special about each kind of request: its job for a text worker, and its choices."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import attrs
from sealring_model.text.tokens import Tokenizer, ToolCall

from sealring_trio.api.chat import ChatChoice
from sealring_trio.api.completions import TextChoice
from sealring_trio.api.parsing import AnswerText
from sealring_trio.api.replies import Choice
from sealring_trio.api.schema import ChatOptions, CompletionOptions
from sealring_trio.errors import OperationError
from sealring_trio.node.generation import Generator
from sealring_trio.text.frames import Exceeded, Lost, Refused, TextQueueFull
from sealring_trio.text.parsed import ParsedRequest

log = logging.getLogger("sealring.api")

A = TypeVar("A", ChatOptions, CompletionOptions)


@attrs.frozen
class ChoiceContext:
    """What the choices of a request share: the *tokenizer*, and the text workers of *generator*
    for *owner*."""

    generator: Generator
    tokenizer: Tokenizer
    owner: str


class Kind(Protocol[A]):
    """One kind of request. *name* is also that of its job in `texts`; *prompt* is the field of its
    prompt, *whole* and *chunk* are the types of its answers."""

    name: str
    prompt: str
    whole: str
    chunk: str

    def options(self, told: Mapping[str, Any]) -> A:
        """The options in *told*, without the texts."""

    def choices(self, asked: A, parsed: ParsedRequest, context: ChoiceContext) -> Sequence[Choice]:
        """A choice to be filled for each answer."""


class ChatKind:
    """Chat completions."""

    name = "chat"
    prompt = "messages"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def options(self, told: Mapping[str, Any]) -> ChatOptions:
        """The options in *told*, without the texts."""
        return ChatOptions.model_validate(told)

    def choices(
        self, asked: ChatOptions, parsed: ParsedRequest, context: ChoiceContext
    ) -> list[ChatChoice]:
        """A message for each."""
        tokenizer, told = context.tokenizer, parsed.told
        calls = CallReader(context, parsed.rest)
        return [
            ChatChoice(
                index,
                AnswerText(
                    tokenizer.think,
                    tokenizer.tools if parsed.rest else None,
                    reasoning=told["reasoning"],
                    calling=told["calling"],
                ),
                calls.read,
                single_call=asked.parallel_tool_calls is False,
                bytes_of=tokenizer.token_bytes if asked.logprobs else None,
            )
            for index in range(asked.n or 1)
        ]


class CompletionKind:
    """Text completions."""

    name = "completion"
    prompt = "prompt"
    whole = "text_completion"
    chunk = "text_completion"

    def options(self, told: Mapping[str, Any]) -> CompletionOptions:
        """The options in *told*, without the texts."""
        return CompletionOptions.model_validate(told)

    def choices(
        self, asked: CompletionOptions, parsed: ParsedRequest, context: ChoiceContext
    ) -> list[TextChoice]:
        """The continuations of each prompt."""
        bytes_of = context.tokenizer.token_bytes if asked.logprobs is not None else None
        texts = parsed.told["texts"] or [""] * len(parsed.prompts)
        each = asked.n or 1
        return [
            TextChoice(index, texts[index // each], bytes_of) for index in range(each * len(texts))
        ]


@attrs.frozen
class CallReader:
    """Has a text worker read tool calls; *tools* is the JSON of the tools that may be called."""

    context: ChoiceContext
    tools: bytes

    async def read(self, text: str) -> list[ToolCall]:
        """The calls in *text*; none if it is no call, or cannot be read within its limits."""
        about = {"tools": len(self.tools)}
        data = self.tools + text.encode("utf-8", "replace")
        try:
            told, _ = await self.context.generator.texts.run(
                "call", about, data, self.context.owner
            )
        except (Exceeded, Lost, TextQueueFull, Refused, OperationError) as error:
            log.warning("a tool call of %d characters is given out as text: %s", len(text), error)
            return []
        return [ToolCall(name, arguments, id) for name, arguments, id in told["calls"]]
