"""How the rows of a request are drawn: from OpenAI's fields to the ring's `Row`."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from typing import TypeVar

import attrs
from sealring_protocol.codec.messages import NO_LOGPROBS, Row

from sealring.api.errors import invalid
from sealring.api.gate import Caller
from sealring.api.schema import ChatOptions, CompletionOptions, Sampled
from sealring.daemon.generation import Job
from sealring.text.parsed import ParsedRequest

_U64 = (1 << 64) - 1
_OWNERS = secrets.token_bytes(32)  # so that no rank can tell who an owner is
N = TypeVar("N", int, float)


def jobs(
    asked: ChatOptions | CompletionOptions,
    parsed: ParsedRequest,
    vocabulary: int,
    caller: Caller,
) -> Iterator[Job]:
    """A job for each choice of each prompt, in the order of their indices. Raises `ApiError`."""
    scope = f"{caller.scope} salt {asked.cache_salt}" if asked.cache_salt else caller.scope
    grammar = _owned(parsed.grammar, f"{caller.owner}\n{scope}")
    row = attrs.evolve(_row(asked, vocabulary), grammar=grammar, bad=parsed.bad)
    ends = frozenset(asked.stop_token_ids or ()) | parsed.ends
    if beyond := [token for token in asked.stop_token_ids or () if token >= vocabulary]:
        raise invalid(
            f"stop_token_ids names token {beyond[0]}; the vocabulary has {vocabulary}.",
            "stop_token_ids",
        )
    for prompt in parsed.prompts:
        for choice in range(asked.n or 1):
            sampling = attrs.evolve(row, choice=choice)
            scores = asked.scores is not None and choice == 0  # the prompt is the same for all
            yield Job(
                prompt,
                asked.limit,
                sampling,
                asked.stops,
                caller.owner,
                scope,
                parsed.prediction,
                scores=scores,
                stop_tokens=ends,
                stop_shown=bool(asked.include_stop_str_in_output),
                endless=bool(asked.ignore_eos),
                special=asked.skip_special_tokens is not True,
                opens=parsed.opens,
                min_tokens=asked.min_tokens or 0,
                branches=parsed.branches,
            )


def _owned(grammar: bytes, owner: str) -> bytes:
    """*grammar* as a text that no other *owner* has: engines keep what they have compiled, and how
    long one takes would else say what another asked for. llguidance passes over the member."""
    if not grammar:
        return b""
    mark = hashlib.blake2b(owner.encode(), key=_OWNERS, digest_size=16).hexdigest()
    return b'{"owner":"%s",' % mark.encode() + grammar.removeprefix(b"{")


def _row(asked: ChatOptions | CompletionOptions, vocabulary: int) -> Row:
    return Row(
        uid=0,
        seed=secrets.randbits(64) if asked.seed is None else asked.seed & _U64,
        temperature=_or(asked.temperature, 1.0),
        top_p=asked.top_p or 1.0,
        # The likeliest tokens that make up no share at all are the likeliest one.
        top_k=1 if asked.top_p == 0 else max(0, asked.top_k or 0),
        min_p=_or(asked.min_p, 0.0),
        repetition=_or(asked.repetition_penalty, 1.0),
        presence=_or(asked.presence_penalty, 0.0),
        frequency=_or(asked.frequency_penalty, 0.0),
        logprobs=_logprobs(asked),
        bias=_bias(asked, vocabulary),
    )


def _or(value: N | None, default: N) -> N:
    return default if value is None else value


def _logprobs(asked: ChatOptions | CompletionOptions) -> int:
    """As many as either the answer or the prompt is to be told with."""
    told = [each for each in (asked.alternatives, asked.scores) if each is not None]
    return max(told, default=NO_LOGPROBS)


def _bias(asked: Sampled, vocabulary: int) -> tuple[tuple[int, float], ...]:
    pairs = sorted((int(token), value) for token, value in (asked.logit_bias or {}).items())
    for token, _ in pairs:
        if token >= vocabulary:
            raise invalid(
                f"logit_bias names token {token}; the vocabulary has {vocabulary}.", "logit_bias"
            )
    if len({token for token, _ in pairs}) < len(pairs):
        raise invalid("logit_bias names a token twice.", "logit_bias")
    return tuple(pairs)
