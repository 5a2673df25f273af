"""A simulated cluster in which no two heads that were elected ever lead at one moment."""

from __future__ import annotations

from sealring_protocol.control.requests import FinishReason, Request
from sealring_protocol.voting import Leadership

from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.hosts import Host

LAYERS = 6
PROMPT = (4, 5, 6)


class Ring(Cluster):
    """A cluster whose head may be lost."""

    def step(self, until: float = float("inf")) -> bool:
        stepped = super().step(until)
        leaders = self.leaders()
        if len(leaders) > 1:
            elected = [host.name for host in leaders if not self.led(host).taken]
            assert len(elected) < 2, f"two heads: {elected} lead at {self.now}"
        return stepped

    def leaders(self) -> list[Host]:
        """Who leads now."""
        return [h for h in self.hosts.values() if h.alive and h.node.leads(h.clock(self.now))]

    def led(self, host: Host) -> Leadership:
        """Who is head, as *host* sees it."""
        return host.node.election(host.clock(self.now))

    def serves(self, host: Host) -> bool:
        """Whether *host* answers requests."""
        return host.alive and host.node.serving and host.node.leads(host.clock(self.now))

    def answers(self, host: Host) -> None:
        """*host* answers a request as one machine would."""
        self.ask_at(host)
        uid = self.submit(Request(PROMPT, 12))
        self.run_until(lambda: self.all_done, 30)
        assert self.done[uid].reason is FinishReason.LENGTH, self.done[uid]
        assert self.tokens[uid] == reference(PROMPT, 12, LAYERS)

    def others(self, *names: str) -> list[Host]:
        """All hosts but those."""
        return [host for name, host in self.hosts.items() if name not in names]

    def cut_off(self, name: str, *, hears: bool = False, is_heard: bool = False) -> None:
        """Nothing reaches *name* from now on unless it *hears*, nor leaves it unless it
        *is_heard*."""
        for other in self.others(name):
            self.network.dead |= set() if hears else {(other.name, name)}
            self.network.dead |= set() if is_heard else {(name, other.name)}
