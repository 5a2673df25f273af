"""The jobs of a text worker for ``/tokenize`` and ``/detokenize``: they write the whole answer,
which the node passes on unread."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from sealring_model.text.tokens import Tokenizer

from sealring.api import schema
from sealring.api.errors import invalid, no_model
from sealring.api.messages import render, tokenise
from sealring.api.token_schema import Detokenize, TokenizeChat, TokenizeText
from sealring.text.frames import READ, RENDER, TOKENISE

MAX_TOLD: Final = 64 << 20
"""Bytes of an answer; a body has 8 MiB at most, and each of its bytes may be a token."""

Enter = Callable[[str], None]
Done = tuple[dict[str, Any], bytes]


def tokenize(tokenizer: Tokenizer, asked: Mapping[str, Any], body: bytes, enter: Enter) -> Done:
    """The ids of a text, or of a conversation's prompt."""
    enter(READ)
    sent = schema.parse(body)
    told: dict[str, Any] = {}
    request: TokenizeChat | TokenizeText
    if isinstance(sent, dict) and sent.get("messages") is not None:
        request = schema.accepted(TokenizeChat, sent)
        _check_model(request.model, asked)
        enter(RENDER)
        talk = render(tokenizer, request)
        told = {"ignored": [*talk.ignored], "adapted": [*talk.adapted]}
        enter(TOKENISE)
        ids = tokenise(tokenizer, talk, request.add_special_tokens).ids
    else:
        request = schema.validated(TokenizeText, sent)
        _check_model(request.model, asked)
        enter(TOKENISE)
        ids = tokenizer.encode(request.prompt, around=request.add_special_tokens is not False)
    return told, _json(
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


def _json(told: Mapping[str, Any]) -> bytes:
    data = json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    if len(data) > MAX_TOLD:
        raise invalid(f"The answer would have more than {MAX_TOLD >> 20} MiB. Send less at once.")
    return data
