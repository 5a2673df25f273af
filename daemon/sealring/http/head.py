"""What the API's modules share on one head: the generator, the model's name, the keys, and the
state.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final
from weakref import WeakKeyDictionary

import attrs
import trio
from sealring_model.text.tokens import has_chat_template
from sealring_protocol.diagnosis import starving
from sealring_protocol.link import Link
from sealring_trio.units import is_loopback

from sealring.dialects.errors import unavailable
from sealring.files.config import Config
from sealring.generation.generation import Generator
from sealring.http.bodies import Bodies
from sealring.http.history import History
from sealring.http.keys import ApiKeys
from sealring.http.metrics import Metrics
from sealring.http.tls import Tls
from sealring.text.workers import SharedBudget

# ---------------------------------------------------------------------- responses store
# Responses that are kept for ``previous_response_id`` and to be read again, in memory.
#
# Each account has so much room, and all together have some; the oldest go first. What one owner
# has kept, no other owner sees. Without known keys one account may have many owners, or one owner
# many accounts (`gate.Caller`).


MAX_KEPT: Final = 128 << 20
"""Bytes of all responses that are kept, with the items before them."""

MAX_KEPT_OF_ONE: Final = 32 << 20
MAX_KEPT_COUNT: Final = 256
"""Bytes and number of one account's."""

MAX_KEPT_ITEMS: Final = 1 << 17
"""Items of one account's. Memory: some 400 bytes for each that has an id of its own."""

MAX_KEPT_EACH: Final = 8 << 20
"""Bytes of one. A larger one is not kept."""


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

    def keep(self, owner: str, name: str, kept: Kept) -> None:
        """Keep response *name* for *owner*, if it is not too large; older ones make room."""
        if kept.size > MAX_KEPT_EACH:
            return
        self._owners.setdefault(owner, _Owned()).keep(name, kept)
        account = self._accounts.setdefault(kept.account, _Account())
        account.kept[owner, name] = None
        self._count(kept, 1)
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
        return True

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


# ---------------------------------------------------------------------- head


MAX_HELD: Final = 256 << 20
"""Bytes of texts that requests under way have for their answers, of their prompts as token ids, of
answers that are being made, and of those that wait for their clients. One caller has half at
most."""

LARGE: Final = 64 << 10
"""Bytes from which they count. Small ones are bounded by the connections, and are never refused for
what others hold."""

_RECENT = 32
_LONGEST_RETRY = 30


@attrs.define
class HeldBytes:
    """What one request of *owner* holds of the *budget*. It may grow until the request is over."""

    _budget: SharedBudget
    _owner: str
    _size: int = 0
    _taken: int = 0

    def grow(self, size: int) -> None:
        """Hold *size* bytes more; fewer if it is below 0. Raises `ApiError` if it would be too
        many."""
        self._size += size
        if self._size < LARGE or self._size <= self._taken:
            return
        if not self._budget.take(self._owner, self._size - self._taken):
            text = "The requests under way, and answers that their clients do not take, are large."
            raise unavailable(text, "overloaded")
        self._taken = self._size

    def end(self) -> None:
        """Hold nothing any more."""
        if self._taken:
            self._budget.give_back(self._owner, self._taken)
        self._size = self._taken = 0


@attrs.define
class ApiHead:
    """One head's API. *model* is the name that clients use. If the model has no chat template,
    conversations are continued as they stand."""

    generator: Generator
    config: Config
    model: str
    keys: ApiKeys
    tls: Tls | None = None
    metrics: Metrics = attrs.field(factory=Metrics)
    bodies: Bodies = attrs.field(factory=Bodies)
    responses: ResponseStore = attrs.field(factory=ResponseStore)
    held: SharedBudget = attrs.field(factory=lambda: SharedBudget(MAX_HELD))
    has_chat_template: bool = attrs.field(
        default=attrs.Factory(lambda self: has_chat_template(self.generator.model), takes_self=True)
    )
    began: int = attrs.field(factory=lambda: int(time.time()))
    history: History = attrs.field(
        default=attrs.Factory(lambda self: History(self.hops), takes_self=True)
    )
    _key_updates: int = 0
    _seen_updates: WeakKeyDictionary[Link, int] = attrs.field(factory=WeakKeyDictionary)

    def __attrs_post_init__(self) -> None:
        self.generator.tracer.observers += [self.metrics, self.history]
        self.metrics.watch(self)

    @property
    def models(self) -> list[str]:
        """The names that a request may give the model: its own, and those of the config."""
        return list(dict.fromkeys([self.model, *self.config.aliases]))

    @property
    def keys_needed(self) -> bool:
        """Whether a request needs a key now. Raises `UserError` when the key file cannot be
        read."""
        address = self.config.api
        if address is not None and not is_loopback(address[0]):
            return True
        return self.config.api_keys == "everywhere" and self.keys.made

    @property
    def hops(self) -> int:
        """Hops of a step round the ring, from each rank to the next and back; 1 for a single rank,
        which makes none."""
        return self.generator.runtime.node.world

    @property
    def fingerprint(self) -> str:
        """A name for this exact model. Where it is equal, answers with equal seeds are equal."""
        info = self.generator.runtime.node.engine_info
        return f"fp_{info.model.hex()[:12]}" if info else "fp_unknown"

    @contextmanager
    def holding(self, owner: str, size: int) -> Iterator[HeldBytes]:
        """Within, *size* bytes are held for a request of *owner*, which may grow. Raises `ApiError`
        if it would be too many."""
        holding = HeldBytes(self.held, owner)
        try:
            holding.grow(size)
            yield holding
        finally:
            holding.end()

    def check_serving(self) -> None:
        """Raises `ApiError` when no request can be answered now."""
        node = self.generator.runtime.node
        if node.rank:
            head = node.roster.roster.members[0].name
            raise unavailable(f"This node is rank {node.rank}; ask the head, {head}.", "not_head")
        if waiting := self.generator.missing():
            advice = dict.fromkeys(each.advice for each in self.generator.obstacles())
            message = " ".join(filter(None, (f"The ring is not up: {waiting}.", *advice)))
            raise unavailable(message, "ring_not_ready")

    def why(self) -> list[dict[str, Any]]:
        """The obstacles to serving, most telling first; empty if the ring serves."""
        now = trio.current_time()
        return [obstacle.describe(now) for obstacle in self.generator.obstacles()]

    def starved(self) -> list[dict[str, Any]]:
        """The engines that starve and slow the ring down, whether or not it serves."""
        runtime = self.generator.runtime
        return [each.describe(trio.current_time()) for each in starving(runtime.facts())]

    def retry_after(self) -> int:
        """Seconds after which a request may be accepted: about what requests have taken lately."""
        past = islice(self.generator.tracer.latest, _RECENT)
        totals = [trace.ended - trace.began for trace in past if trace.ended is not None]
        usual = statistics.median(totals) if totals else 1.0
        return max(1, min(_LONGEST_RETRY, round(usual)))

    def key_updates(self) -> int:
        """The number of key updates of the head's links. A link that broke counts as last seen."""
        for _, _, link in self.generator.runtime.links():
            seen = self._seen_updates.get(link, 0)
            # A link that broke has no keys. A tunnel's thread may be ahead of the event loop, to
            # which the link is still up.
            self._seen_updates[link] = latest = max(seen, link.key_updates)
            self._key_updates += latest - seen
        return self._key_updates
