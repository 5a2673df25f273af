"""Responses that are kept: read again, listed item by item, deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sealring.dialects.errors import ApiError, invalid, unsupported
from sealring.dialects.replies import json_bytes
from sealring.http.gate import Caller
from sealring.http.head import MAX_KEPT_EACH, ApiHead, Kept, ResponseStore, id_of

_ITEMS: Final = 20
_MOST_ITEMS: Final = 100


def not_kept(name: str, param: str | None = None) -> ApiError:
    """The error for a response that is not there."""
    message = (
        f"There is no response '{name}', or no longer: the head keeps the latest of each key in "
        "memory, unless 'store' is false."
    )
    if param is not None:
        message += " Send the conversation again."
    return ApiError(404, message, "response_not_found", param=param)


def earlier(
    responses: ResponseStore, owner: str, told: Mapping[str, Any]
) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """What a request of *owner* needs of earlier responses, as its job *told*: the items before its
    own, and those that it refers to. Raises `ApiError`."""
    before: tuple[bytes, ...] = ()
    if (name := told["previous"]) is not None:
        if (kept := responses.find(owner, name)) is None:
            raise not_kept(name, "previous_response_id")
        before = kept.items
    return before, _referred(responses, owner, told["references"])


def with_items(
    body: bytes, before: Sequence[bytes], referred: Sequence[bytes]
) -> tuple[bytes, dict[str, int]]:
    """*body* after the items of earlier responses, and the sizes of these, for its job."""
    first, second = b"\n".join(before), b"\n".join(referred)
    return first + second + body, {"before": len(first), "referred": len(second)}


def _referred(responses: ResponseStore, owner: str, names: Sequence[str]) -> tuple[bytes, ...]:
    """The items called *names* of *owner*'s kept responses. Raises `ApiError`, which is the same
    for an item that another owner has and for one that nobody has."""
    ids = [json_bytes(name) for name in names]
    found = responses.items(owner, ids)
    for name, each in zip(names, ids, strict=True):
        if each not in found:
            message = (
                f"Item with id '{name}' not found. The head keeps the items of each key's latest "
                "responses in memory, unless 'store' is false: send the item itself."
            )
            raise ApiError(404, message, "item_not_found", param="input")
    items = tuple(found[each] for each in ids)
    if sum(map(len, items)) > MAX_KEPT_EACH:
        raise invalid(
            f"The items that 'input' refers to have more than {MAX_KEPT_EACH >> 20} MiB.", "input"
        )
    return items


def _find(request: Request) -> Kept:
    head: ApiHead = request.app.state.head
    caller: Caller = request.scope["state"]["visitor"]
    name = request.path_params["id"]
    kept = head.responses.find(caller.owner, name)
    if kept is None:
        raise not_kept(name)
    return kept


async def retrieve(request: Request) -> Response:
    """``GET /v1/responses/{id}``."""
    if request.query_params.get("stream", "false") != "false":
        raise unsupported("stream", "A response that is over is not streamed again.")
    return Response(_find(request).response, media_type="application/json")


async def delete(request: Request) -> JSONResponse:
    """``DELETE /v1/responses/{id}``."""
    _find(request)
    head: ApiHead = request.app.state.head
    caller: Caller = request.scope["state"]["visitor"]
    name = request.path_params["id"]
    head.responses.drop(caller.owner, name)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


async def cancel(request: Request) -> Response:
    """``POST /v1/responses/{id}/cancel``."""
    _find(request)
    name = request.path_params["id"]
    raise invalid(
        f"The response '{name}' is over. None is made in the background here; what is under way "
        "ends with its connection, or by DELETE /v1/requests/{id}.",
        "id",
        "not_in_background",
    )


async def input_items(request: Request) -> Response:
    """``GET /v1/responses/{id}/input_items``: those of its own input, the latest first unless
    ``order`` is ``asc``."""
    kept, query = _find(request), request.query_params
    limit, order = query.get("limit", str(_ITEMS)), query.get("order", "desc")
    if not (limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= _MOST_ITEMS):
        raise invalid(f"limit is from 1 to {_MOST_ITEMS}.", "limit")
    if order not in ("asc", "desc"):
        raise invalid("order is 'asc' or 'desc'.", "order")
    items = list(kept.inputs if order == "asc" else reversed(kept.inputs))
    ids = [id_of(item) for item in items]
    begin = 0
    if (after := query.get("after")) is not None:
        named = json_bytes(after)
        if named not in ids:
            raise invalid(f"There is no item '{after}' in the input.", "after")
        begin = ids.index(named) + 1
    end = begin + int(limit)
    first, last = (ids[begin:end][:1] + ids[begin:end][-1:]) or (b"null", b"null")
    body = b'{"object":"list","data":[%b],"first_id":%b,"last_id":%b,"has_more":%b}'
    more = b"true" if end < len(items) else b"false"
    shown = b",".join(items[begin:end])
    return Response(body % (shown, first, last, more), media_type="application/json")
