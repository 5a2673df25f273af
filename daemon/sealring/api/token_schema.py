"""The bodies of ``/tokenize`` and ``/detokenize``, which are vLLM's."""

from __future__ import annotations

from typing import Annotated

from sealring.api.schema import ChatRequest
from sealring.api.values import MAX_PROMPT_IDS, Model, Name, Several, Token


class TokenizeChat(ChatRequest):
    """A conversation whose prompt is to be told as ids, with the fields of a chat completion."""

    model: Name = ""
    return_token_strs: bool | None = None


class TokenizeText(Model):
    """A text whose ids are to be told."""

    model: Name = ""
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class Detokenize(Model):
    """Ids whose text is to be told."""

    model: Name = ""
    tokens: Annotated[list[Token], Several(max_length=MAX_PROMPT_IDS)]
