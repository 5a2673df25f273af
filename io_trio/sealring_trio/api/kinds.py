"""What is special about each kind of request: its body, its prompts, and its choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import attrs
from sealring_model.tokens import Tokenizer

from sealring_trio.api.chat import ChatChoice
from sealring_trio.api.completions import TextChoice
from sealring_trio.api.messages import converse
from sealring_trio.api.parsing import AnswerText
from sealring_trio.api.replies import Choice
from sealring_trio.api.schema import ChatRequest, CompletionRequest, read

A = TypeVar("A", ChatRequest, CompletionRequest)


@attrs.frozen
class Prepared:
    """The *prompts* as ids, and a choice to be filled for each answer."""

    prompts: list[tuple[int, ...]]
    choices: Sequence[Choice]


class Kind(Protocol[A]):
    """One kind of request: *prompt* is the field of its prompt, *whole* and *chunk* are the types
    of its answers."""

    name: str
    prompt: str
    whole: str
    chunk: str

    def read(self, body: bytes) -> A:
        """The request in *body*. Raises `ApiError`."""

    def prepare(self, asked: A, tokenizer: Tokenizer) -> Prepared:
        """The prompts, and a choice for each answer. It may run in a thread.

        Raises `ApiError`.
        """


class ChatKind:
    """Chat completions."""

    name = "chat"
    prompt = "messages"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def read(self, body: bytes) -> ChatRequest:
        """The request in *body*."""
        return read(ChatRequest, body)

    def prepare(self, asked: ChatRequest, tokenizer: Tokenizer) -> Prepared:
        """The conversation, and its choices."""
        talk = converse(tokenizer, asked)
        choices = [
            ChatChoice(
                index,
                AnswerText(
                    tokenizer.think,
                    tokenizer.tools if talk.tools else None,
                    talk.tools,
                    reasoning=talk.reasoning,
                    calling=talk.calling,
                ),
                single_call=asked.parallel_tool_calls is False,
                bytes_of=tokenizer.token_bytes if asked.logprobs else None,
            )
            for index in range(asked.n or 1)
        ]
        return Prepared([talk.ids], choices)


class CompletionKind:
    """Text completions."""

    name = "completion"
    prompt = "prompt"
    whole = "text_completion"
    chunk = "text_completion"

    def read(self, body: bytes) -> CompletionRequest:
        """The request in *body*."""
        return read(CompletionRequest, body)

    def prepare(self, asked: CompletionRequest, tokenizer: Tokenizer) -> Prepared:
        """The prompts, and the choices of each."""
        bytes_of = tokenizer.token_bytes if asked.logprobs is not None else None
        prompts: list[tuple[int, ...]] = []
        choices: list[Choice] = []
        for prompt in asked.prompts:
            if isinstance(prompt, str):
                ids, text = tokenizer.encode(prompt), prompt
            else:
                ids, text = prompt, tokenizer.decode(prompt) if asked.echo else ""
            prompts.append(tuple(ids))
            for _ in range(asked.n or 1):
                choices.append(TextChoice(len(choices), text if asked.echo else "", bytes_of))
        return Prepared(prompts, choices)
