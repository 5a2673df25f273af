"""Text in and text out of a ring, on the head: the tokenizer's side of a request.

The node knows token ids alone. Here a prompt gets the model's chat template and becomes ids, and
ids become text again as they come, a piece whenever the bytes so far are whole characters.
"""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, Final

import pydantic
from sealring_model.tokens import Detokenizer, Tokenizer
from sealring_protocol.codec.messages import Row
from sealring_protocol.control.head import Head
from sealring_protocol.control.membership import MembershipState
from sealring_protocol.control.requests import FinishReason, Request, TokenOut
from sealring_protocol.errors import LocalProtocolError

from sealring_trio.control import Reply
from sealring_trio.errors import OperationError, UserError
from sealring_trio.runtime import Runtime, Stream
from sealring_trio.single import pace

Share = Annotated[float, pydantic.Field(ge=0, le=1)]
U32: Final = (1 << 32) - 1
U64: Final = (1 << 64) - 1


def _check_prompt(value: str) -> str:
    value.encode()  # lone surrogates, which JSON can carry, are no text (a ValueError)
    return value


class GenerateRequest(pydantic.BaseModel, extra="forbid", frozen=True):
    """What a client of the control socket asks for; see `sealring generate --help`."""

    do: str
    prompt: Annotated[str, pydantic.AfterValidator(_check_prompt)]
    raw: bool = False
    max_tokens: Annotated[int, pydantic.Field(ge=1, le=U32)] = 256
    temperature: Annotated[float, pydantic.Field(ge=0)] = 0.0
    top_p: Share = 1.0
    top_k: Annotated[int, pydantic.Field(ge=0, le=U32)] = 0
    min_p: Share = 0.0
    seed: Annotated[int, pydantic.Field(ge=0, le=U64)] | None = None


def read_request(fields: dict[str, Any]) -> GenerateRequest:
    """*fields* as a request. Raises `UserError` that names the field."""
    try:
        return GenerateRequest.model_validate(fields)
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        name = ".".join(map(str, fault["loc"]))
        raise UserError(f"{name}: {fault['msg']}", "See: sealring generate --help") from None


async def generate(
    runtime: Runtime, tokenizer: Tokenizer, asked: GenerateRequest, reply: Reply
) -> None:
    """Have the ring answer *asked*, and give the pieces to *reply* as they come.

    Raises `UserError` for a request that can never be done, `OperationError` when it failed.
    """
    prompt = _encode(tokenizer, asked)
    seed = asked.seed if asked.seed is not None else secrets.randbits(64)
    sampling = Row(
        uid=0,
        seed=seed,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
    )
    request = Request(tuple(prompt), asked.max_tokens, tokenizer.eos, sampling)
    if waiting := _missing(runtime):
        await reply({"event": "waiting", "text": f"waiting for {waiting}"})
    try:
        uid, stream = runtime.submit(request)
    except LocalProtocolError as error:
        raise UserError(
            f"the request cannot be done: {error}", "Change it and ask again."
        ) from None
    try:
        summary = await _pass_on(stream, tokenizer.stream(), reply)
    finally:
        runtime.cancel(uid)
    await reply({"event": "done", "prompt_tokens": len(prompt), "seed": seed, **summary})


def _encode(tokenizer: Tokenizer, asked: GenerateRequest) -> list[int]:
    if asked.raw:
        return tokenizer.encode(asked.prompt)
    try:
        return tokenizer.chat([{"role": "user", "content": asked.prompt}])
    except ValueError as error:
        raise UserError(str(error), "Try --raw, which leaves the template out.") from None


def _missing(runtime: Runtime) -> str:
    """Whom the ring still waits for, in words; empty when it is complete."""
    brain = runtime.node.brain
    if not isinstance(brain, Head) or brain.membership.state is MembershipState.SERVING:
        return ""
    members = runtime.node.roster.roster.members
    names = [f"rank {rank} ({members[rank].name})" for rank in brain.membership.missing]
    return ", ".join(names) or "the ring"


async def _pass_on(stream: Stream, words: Detokenizer, reply: Reply) -> dict[str, Any]:
    """Give out the text of *stream* as it comes; the summary of it."""
    tokens: list[int] = []
    times: list[float] = []
    unsaid = 0
    while isinstance(event := await stream.get(), TokenOut):
        times.append(time.perf_counter())
        tokens.append(event.token)
        unsaid += 1
        if text := words.add(event.token):
            await reply({"event": "text", "text": text, "count": unsaid})
            unsaid = 0
    if text := words.finish():
        await reply({"event": "text", "text": text, "count": unsaid})
    if event.reason not in (FinishReason.STOP, FinishReason.LENGTH):
        raise OperationError(
            f"the ring gave up on this request: {event.message or event.reason.value}",
            "The head's log says more. Ask again once 'sealring status' shows the ring ready.",
        )
    return {
        "reason": event.reason.value,
        "tokens": len(tokens),
        "token_ids": tokens,
        "tokens_per_s": round(pace(times), 2),
    }
