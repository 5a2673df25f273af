"""Responses that are kept for ``previous_response_id`` and to be read again, in memory: the store,
and the endpoints by which they are read, listed item by item, and deleted.

Each account has so much room, and all together have some; the oldest go first. What one owner has
kept, no other owner sees. Without known keys one account may have many owners, or one owner many
accounts (`gate.Caller`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sealring.dialects.errors import ApiError, invalid, unsupported
from sealring.dialects.replies import json_bytes
from sealring.http.resume import Resumed, forgotten, found, resumed

if TYPE_CHECKING:
    from sealring.http.gate import Caller
    from sealring.http.head import ApiHead

MAX_KEPT: Final = 128 << 20
"""Bytes of all responses that are kept, with the items before them."""

MAX_KEPT_OF_ONE: Final = 32 << 20
MAX_KEPT_COUNT: Final = 256
"""Bytes and number of one account's."""

MAX_KEPT_ITEMS: Final = 1 << 17
"""Items of one account's. Memory: some 400 bytes for each that has an id of its own."""

MAX_KEPT_EACH: Final = 8 << 20
"""Bytes of one. A larger one is not kept."""

_PATH: Final = "/v1/responses"
_ITEMS: Final = 20
_MOST_ITEMS: Final = 100
_ID: Final = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*+")')


@attrs.frozen
class Kept:
    """A *response*, and the items of its conversation: those *before* its input, its *inputs* and
    its *outputs*. Each is JSON, and each item begins with its id. It counts to *account*."""

    response: bytes
    before: tuple[bytes, ...]
    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]
    account: str

    @property
    def items(self) -> tuple[bytes, ...]:
        """The whole conversation."""
        return self.before + self.inputs + self.outputs

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return len(self.response) + sum(map(len, self.items))


@attrs.define
class _Owned:
    """What one owner has kept, by name, and the items by their id: those of one id by the name of
    their response, the latest last. A look at all of them would take 0.1 s."""

    kept: dict[str, Kept] = attrs.field(factory=dict)
    items: dict[bytes, dict[str, bytes]] = attrs.field(factory=dict)

    def keep(self, name: str, kept: Kept) -> None:
        """Keep response *name*."""
        self.kept[name] = kept
        for item in kept.items:
            self.items.setdefault(id_of(item), {})[name] = item

    def drop(self, name: str) -> Kept:
        """Drop response *name*."""
        dropped = self.kept.pop(name)
        for known in set(map(id_of, dropped.items)):
            del self.items[known][name]
            if not self.items[known]:
                del self.items[known]
        return dropped

    def item(self, known: bytes) -> bytes | None:
        """The latest item whose id is *known*, as JSON; None if there is none."""
        return next(reversed(self.items.get(known, {}).values()), None)


@attrs.define
class _Account:
    """The owner and name of each response that counts to one account, the oldest first; their
    bytes and items."""

    kept: dict[tuple[str, str], None] = attrs.field(factory=dict)
    size: int = 0
    items: int = 0

    @property
    def full(self) -> bool:
        """Whether it is more than one account may have."""
        many = len(self.kept) > MAX_KEPT_COUNT or self.items > MAX_KEPT_ITEMS
        return many or self.size > MAX_KEPT_OF_ONE


class ResponseStore:
    """What all owners have kept."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owned] = {}
        self._accounts: dict[str, _Account] = {}
        # By the bits of their size: to make room takes as long for many accounts as for one.
        self._by_bits: defaultdict[int, dict[str, None]] = defaultdict(dict)
        self._size = 0
        self.changed: Callable[[str, str], None] = lambda owner, name: None
        """Hears whose response is kept or dropped, and its name."""

    def keep(self, owner: str, name: str, kept: Kept) -> None:
        """Keep response *name* for *owner*, if it is not too large; older ones make room."""
        if kept.size > MAX_KEPT_EACH:
            return
        self.drop(owner, name)  # which the head before may have told already
        self._owners.setdefault(owner, _Owned()).keep(name, kept)
        account = self._accounts.setdefault(kept.account, _Account())
        account.kept[owner, name] = None
        self._count(kept, 1)
        self.changed(owner, name)
        while account.full:
            self.drop(*next(iter(account.kept)))
        while self._size > MAX_KEPT:
            most = max(bits for bits, names in self._by_bits.items() if names)
            largest = self._accounts[next(iter(self._by_bits[most]))]
            self.drop(*next(iter(largest.kept)))

    def find(self, owner: str, name: str) -> Kept | None:
        """Response *name* of *owner*; None if it is not kept."""
        owned = self._owners.get(owner)
        return owned.kept.get(name) if owned is not None else None

    def items(self, owner: str, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Of *owner*'s items those that *ids* name, which are JSON; of two with one id the later
        one."""
        owned = self._owners.get(owner)
        found = {} if owned is None else {each: owned.item(each) for each in ids}
        return {each: item for each, item in found.items() if item is not None}

    def drop(self, owner: str, name: str) -> bool:
        """Drop response *name* of *owner*; whether there was one."""
        if self.find(owner, name) is None:
            return False
        owned = self._owners[owner]
        dropped = owned.drop(name)
        if not owned.kept:
            del self._owners[owner]
        del self._accounts[dropped.account].kept[owner, name]
        self._count(dropped, -1)
        self.changed(owner, name)
        return True

    @property
    def names(self) -> list[tuple[str, str]]:
        """The owner and name of each response."""
        return [(owner, name) for owner, owned in self._owners.items() for name in owned.kept]

    def _count(self, kept: Kept, sign: int) -> None:
        """Count *kept* to its account, or no more if *sign* is -1."""
        account = self._accounts[kept.account]
        self._by_bits[account.size.bit_length()].pop(kept.account, None)
        account.size += sign * kept.size
        account.items += sign * len(kept.items)
        self._size += sign * kept.size
        if account.kept:
            self._by_bits[account.size.bit_length()][kept.account] = None
        else:
            del self._accounts[kept.account]


def id_of(item: bytes) -> bytes:
    """The id of *item*, which it begins with, as JSON."""
    found = _ID.match(item)
    return found[1] if found is not None else b"null"


def _not_kept(name: str, param: str | None = None) -> ApiError:
    """The error for a response that is not there."""
    message = (
        f"There is no response '{name}', or no longer: the head keeps the latest of each key in "
        "memory, unless 'store' is false."
    )
    if param is not None:
        message += " Send the conversation again."
    return ApiError(404, message, "response_not_found", param=param)


def earlier(
    responses: ResponseStore, owner: str, fields: Mapping[str, Any]
) -> tuple[tuple[bytes, ...], bytes, dict[str, int]]:
    """What a request of *owner* needs of earlier responses, as the *fields* of its job say: the
    items before its own; these and those that it refers to, as bytes to stand before its body; and
    the sizes of both, for the job that is done again. Raises `ApiError`."""
    before: tuple[bytes, ...] = ()
    if (name := fields["previous"]) is not None:
        if (kept := responses.find(owner, name)) is None:
            raise _not_kept(name, "previous_response_id")
        before = kept.items
    referred = b"\n".join(_referred(responses, owner, fields["references"]))
    items = b"\n".join(before)
    return before, items + referred, {"before": len(items), "referred": len(referred)}


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


def _find(request: Request) -> tuple[Kept, ResponseStore, str]:
    """The response that *request* names, where it is kept, and for which owner."""
    head: ApiHead = request.app.state.head
    caller: Caller = request.scope["state"]["visitor"]
    kept = head.responses.find(caller.owner, name := request.path_params["id"])
    if kept is None:
        raise _not_kept(name)
    return kept, head.responses, caller.owner


async def retrieve(request: Request) -> Response | Resumed:
    """``GET /v1/responses/{id}``: the response, or with ``stream`` its events from one on."""
    answer = found(request, _PATH)
    if request.query_params.get("stream", "false") != "false":
        if answer is None:
            _find(request)
            raise unsupported(
                "stream",
                "The events of this response are not kept: its request had neither 'background' "
                "nor an Idempotency-Key, or others have needed the room.",
            )
        return resumed(request)
    if answer is not None and answer.so_far is not None:
        return Response(answer.so_far("in_progress"), media_type="application/json")
    return Response(_find(request)[0].response, media_type="application/json")


async def delete(request: Request) -> JSONResponse:
    """``DELETE /v1/responses/{id}``, with its events. One under way ends."""
    name = request.path_params["id"]
    if not forgotten(request, _PATH):
        _find(request)
    caller: Caller = request.scope["state"]["visitor"]
    request.app.state.head.responses.drop(caller.owner, name)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


async def cancel(request: Request) -> Response:
    """``POST /v1/responses/{id}/cancel``: end one that is made in the background."""
    answer = found(request, _PATH)
    if answer is not None and answer.so_far is not None:
        response = Response(answer.so_far("cancelled"), media_type="application/json")
        answer.withdraw()
        return response
    _find(request)
    name = request.path_params["id"]
    raise invalid(
        f"The response '{name}' is over, or not made in the background. One that is not ends with "
        "its connection, or by DELETE /v1/requests/{id}.",
        "id",
        "not_in_background",
    )


async def input_items(request: Request) -> Response:
    """``GET /v1/responses/{id}/input_items``: those of its own input, the latest first unless
    ``order`` is ``asc``."""
    kept, query = _find(request)[0], request.query_params
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
