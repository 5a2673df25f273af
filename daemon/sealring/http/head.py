"""What the API's modules share on one head: the generator, the model's name, the keys, and the
state.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final
from weakref import WeakKeyDictionary

import attrs
import trio
from sealring_model.text.tokens import has_chat_template
from sealring_protocol.diagnosis import Cause, Obstacle, starving
from sealring_protocol.link import Link
from sealring_trio.units import is_loopback

from sealring.dialects.errors import unavailable
from sealring.files.config import Config
from sealring.generation.generation import Generator
from sealring.http.bodies import Bodies, HeldBytes
from sealring.http.kept import ResponseStore
from sealring.http.keys import ApiKeys
from sealring.http.metrics import History, Metrics
from sealring.http.records import AnswerRecords
from sealring.http.resume import KeptAnswers
from sealring.http.tls import Tls
from sealring.text.workers import SharedBudget

MAX_HELD: Final = 256 << 20
"""Bytes of texts that requests under way have for their answers, of their prompts as token ids, of
answers that are being made, and of those that wait for their clients. One caller has half at
most."""

_RECENT = 32
_LONGEST_RETRY = 30


@attrs.frozen
class Newcomers:
    """The machines that knock at this node's door: what everybody who may ask sees of them, and an
    event that is set, and replaced, when that changes."""

    describe: Callable[[], list[dict[str, Any]]]
    changed: Callable[[], trio.Event]


NO_NEWCOMERS: Final = Newcomers(list, trio.Event)
"""Those of a node without a door."""


@attrs.define
class ApiHead:
    """One head's API. *model* is the name that clients use. If the model has no chat template,
    conversations are continued as they stand."""

    generator: Generator
    config: Config
    model: str
    keys: ApiKeys
    tls: Tls | None = None
    newcomers: Newcomers = NO_NEWCOMERS
    metrics: Metrics = attrs.field(factory=Metrics)
    bodies: Bodies = attrs.field(factory=Bodies)
    answers: KeptAnswers = attrs.field(factory=KeptAnswers)
    records: AnswerRecords = attrs.field(factory=AnswerRecords)
    responses: ResponseStore = attrs.field(
        default=attrs.Factory(lambda self: self.records.responses, takes_self=True)
    )
    held: SharedBudget = attrs.field(factory=lambda: SharedBudget(MAX_HELD))
    has_chat_template: bool = attrs.field(
        default=attrs.Factory(lambda self: has_chat_template(self.generator.model), takes_self=True)
    )
    began: int = attrs.field(factory=lambda: int(time.time()))
    history: History = attrs.field(
        default=attrs.Factory(lambda self: History(self.metrics), takes_self=True)
    )
    _key_updates: int = 0
    _seen_updates: WeakKeyDictionary[Link, int] = attrs.field(factory=WeakKeyDictionary)

    def __attrs_post_init__(self) -> None:
        self.generator.tracer.observers.append(self.metrics)
        self.metrics.watch(self)
        self.answers.before = self.records.flush

    @property
    def models(self) -> list[str]:
        """The names that a request may give the model: its own, and those of the config."""
        return list(dict.fromkeys([self.model, *self.config.aliases]))

    @property
    def machine(self) -> str:
        """This node's name in its roster."""
        node = self.generator.runtime.node
        return node.roster.roster.members[node.rank].name

    @property
    def keys_needed(self) -> bool:
        """Whether a request needs a key now. Raises `UserError` when the key file cannot be
        read."""
        address = self.config.api
        if address is not None and not is_loopback(address[0]):
            return True
        return self.config.api_keys == "everywhere" and self.keys.made

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

    @property
    def moved(self) -> bool:
        """Whether this node is the head no more, as far as it knows: another may be."""
        return not self.generator.runtime.node.leads(trio.current_time())

    def check_serving(self) -> None:
        """Raises `ApiError` when no request can be answered now."""
        if refusal := self._elsewhere():
            raise unavailable(refusal, "not_head")
        if not self.generator.goes_on and (waiting := self.generator.missing()):
            advice = dict.fromkeys(each.advice for each in self.generator.obstacles())
            message = " ".join(filter(None, (f"The ring is not up: {waiting}.", *advice)))
            raise unavailable(message, "ring_not_ready")

    def _elsewhere(self) -> str:
        """Whom to ask, in words, if this node is the head no more; else empty."""
        node = self.generator.runtime.node
        if not node.rank:
            return ""
        return f"This node is rank {node.rank}; ask the head, {node.roster.roster.members[0].name}."

    def why(self) -> list[dict[str, Any]]:
        """What keeps requests from being answered, most informative first; empty if nothing
        does."""
        now = trio.current_time()
        elsewhere = self._elsewhere()
        mine = [Obstacle(Cause.NOT_HEAD, elsewhere)] if elsewhere else []
        found = mine or self.generator.obstacles()
        return [obstacle.describe(now) for obstacle in found]

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
