"""Checks that no ``if`` makes, and the code with each of them gone.

A rule may be kept by a maximum, a table's entry, an argument or a condition whose body does not
raise. `spec.mutants` cannot tell these from other code, so they are told here: what stands in a
module, once, and what stands there when the rule is not kept.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen
class Swap:
    """In *module*, *new* in place of *old*: the requirement *rule* is not kept."""

    rule: str
    module: str
    old: str
    new: str


SWAPS: Final = (
    # A slow frame's bytes count for ever, or a long frame's no longer than a short one's.
    Swap(
        "LK-05",
        "link",
        "quiet <= patience or quiet <= patience + self._decoder.awaited / MIN_FRAME_RATE",
        "True",
    ),
    Swap("LK-05", "link", " + self._decoder.awaited / MIN_FRAME_RATE", ""),
    Swap(
        "LK-03",
        "link",
        "self._asked[0][0] != pong.echo",
        "pong.echo not in [echo for echo, _ in self._asked]",
    ),
    Swap("LK-03", "link", "self._asked.popleft()[1]", "self._asked[0][1]"),
    Swap(
        "LK-04",
        "security.admission",
        "min(float(self._rate), self._tokens + passed * self._rate)",
        "self._tokens",
    ),
    Swap(
        "LK-04",
        "security.admission",
        "min(float(self._rate), self._tokens + passed * self._rate)",
        "self._tokens + passed * self._rate",
    ),
    Swap(
        "LK-04",
        "security.admission",
        "min(float(self._rate), self._tokens + passed * self._rate)",
        "float(self._rate)",
    ),
    Swap(
        "HS-24",
        "security.initiator",
        "max(peer.serial, own.roster.serial)",
        "own.roster.serial",
    ),
    Swap(
        "HS-24",
        "security.initiator",
        "max(peer.serial, own.roster.serial)",
        "peer.serial",
    ),
    Swap(
        "HS-29",
        "link",
        "InitiatorState.WAIT_STORE: FRAME_HEADER + MAX_SEALED_BODY",
        "InitiatorState.WAIT_STORE: 0",
    ),
    Swap(
        "HS-29",
        "security.responder",
        "State.WAIT_STORE: {FrameKind.SEALED: CLOSE_BODY}",
        "State.WAIT_STORE: {FrameKind.SEALED: MAX_SEALED_BODY}",
    ),
    Swap(
        "HS-29",
        "security.responder",
        "State.WAIT_ADMIT: {FrameKind.SEALED: CLOSE_BODY}",
        "State.WAIT_ADMIT: {FrameKind.SEALED: MAX_SEALED_BODY}",
    ),
    Swap("HS-29", "security.responder", "1 + 2 + 2 + MAX_REASON", "1 + 2 + MAX_REASON"),
    Swap(
        "RO-15",
        "link",
        "self.renew(event.roster)",
        "self.renew(self._config.roster)",
    ),
    Swap(
        "RL-01",
        "link",
        "roster = event.roster.roster",
        "roster = self._config.roster.roster",
    ),
    Swap(
        "RO-13",
        "security.initiator",
        "ends = (config.node_id, self.peer.id)",
        "ends = (self.peer.id,)",
    ),
    Swap(
        "RO-13",
        "security.initiator",
        "ends = (config.node_id, self.peer.id)",
        "ends = (config.node_id,)",
    ),
    Swap("RO-13", "security.roster", "all(end in roster for end in ends)", "ends[0] in roster"),
    Swap("RO-13", "security.roster", "all(end in roster for end in ends)", "ends[-1] in roster"),
    Swap(
        "RO-04",
        "security.roster",
        """        _check_name(self.name)
        if self.serial < 1""",
        """        if not self.name.strip(" "):
            raise LocalProtocolError("blank")
        if self.serial < 1""",
    ),
    Swap(
        "AT-01",
        "security.roster",
        "for key in (self.subject, self.attester):",
        "for key in (self.subject,):",
    ),
    Swap(
        "AT-01",
        "security.roster",
        "for key in (self.subject, self.attester):",
        "for key in (self.attester,):",
    ),
    # Each part of MS-08, and each as it is when a number that is none passes.
    Swap(
        "MS-08",
        "codec.messages",
        "0 <= self.temperature < float(",
        "self.temperature < float(",
    ),
    Swap("MS-08", "codec.messages", 'self.temperature < float("inf")', "self.temperature"),
    Swap("MS-08", "codec.messages", "rule(0 < self.top_p <= 1", "rule(0 < self.top_p"),
    Swap("MS-08", "codec.messages", "rule(0 < self.top_p <= 1", "rule(self.top_p <= 1"),
    Swap(
        "MS-08",
        "codec.messages",
        "rule(0 < self.top_p <= 1",
        "rule(not (self.top_p <= 0 or self.top_p > 1)",
    ),
    Swap("MS-08", "codec.messages", "rule(0 <= self.min_p <= 1", "rule(0 <= self.min_p"),
    Swap("MS-08", "codec.messages", "rule(0 <= self.min_p <= 1", "rule(self.min_p <= 1"),
    Swap(
        "MS-08",
        "codec.messages",
        "rule(0 <= self.min_p <= 1",
        "rule(not (self.min_p < 0 or self.min_p > 1)",
    ),
    Swap("MS-08", "codec.messages", 'self.repetition < float("inf")', "self.repetition"),
    Swap(
        "MS-08",
        "codec.messages",
        'rule(0 < self.repetition < float("inf")',
        'rule(not (self.repetition <= 0 or self.repetition == float("inf"))',
    ),
    Swap("MS-08", "codec.messages", "(self.presence, self.frequency)))", "(self.frequency,)))"),
    Swap("MS-08", "codec.messages", "(self.presence, self.frequency)))", "(self.presence,)))"),
    Swap(
        "LG-01",
        "control.epoch.ledger",
        "self._longer(step.n, self._lengths[uid], 1 + ahead)",
        "(self._lengths[uid] + 1 + ahead) % (1 << 32)",
    ),
    Swap(
        "LG-01",
        "control.epoch.ledger",
        "self._longer(step.n, position, count)",
        "(position + count) % (1 << 32)",
    ),
    Swap(
        "EP-04",
        "control.membership",
        "if epoch.instance == self.epoch.instance and epoch.counter > self.epoch.counter:",
        "if epoch.counter > self.epoch.counter:",
    ),
)
