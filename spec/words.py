"""What the generated tables say in words: one entry for each value of the code's own enums.

Where the code documents a value itself, its words are taken from there.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Final, TypeVar

from sealring_protocol.codec.election_messages import NoVoteReason
from sealring_protocol.codec.messages import Backend, FailureKind, Hindrance
from sealring_protocol.codec.tensor import DType
from sealring_protocol.errors import CloseCode
from sealring_protocol.security.keys import Label, SignContext, Suite

E = TypeVar("E", bound=Enum)

CLOSE: Final = {
    CloseCode.SHUTDOWN: "nothing is wrong; the sender ends this link",
    CloseCode.PROTOCOL_ERROR: "what the peer sent is malformed or out of place",
    CloseCode.LIMIT_EXCEEDED: "beyond a limit of section 13",
    CloseCode.AUTHENTICATION_FAILED: "a tag, MAC, signature or identity does not verify; one "
    "class for all, so that it tells an attacker nothing",
    CloseCode.DUPLICATE_LINK: "there is such a link already (5.5)",
    CloseCode.ROSTER_CONFLICT: "two rosters with one serial",
    CloseCode.MODEL_MISMATCH: "the two ranks hold different models",
    CloseCode.ROLE_VIOLATION: "a member sent what its role may not (section 10)",
    CloseCode.ROSTER_EXPIRED: "the roster that admitted the peer no longer counts",
    CloseCode.TIMEOUT: "a deadline has passed",
    CloseCode.POLICY_MISMATCH: "the two ends disagree on a policy, or on trusted collectives",
    CloseCode.REPLACED: "a link with a newer life of the peer takes, or has taken, this one's "
    "place (5.5)",
    CloseCode.INTERNAL_ERROR: "the sender's own fault",
    CloseCode.NOT_READY: "not now; try again",
    CloseCode.REFUSED: "to who asks to join: not with this invitation, or not this machine (14.5); "
    "to who brings up an API link: there is none between these two (11.14)",
    CloseCode.VERSION_MISMATCH: "the two programs have no step version in common (8.5)",
}

FAILURES: Final = {
    FailureKind.ENGINE_ERROR: "the forward failed",
    FailureKind.ENGINE_LOST: "the engine died or was replaced",
    FailureKind.LEDGER: "the step (11.3), or what was drawn (11.9), is not what the head has",
    FailureKind.LINK_LOST: "a link that the epoch needs is gone",
    FailureKind.DEADLINE: "no answer in time",
    FailureKind.MEMORY: "no room",
    FailureKind.INTEGRITY: "a tensor did not open, or is not what belongs here",
    FailureKind.LOAD: "the weights could not be read, or are still to come",
    FailureKind.GROUP: "the collective did not come up, or broke (11.7)",
    FailureKind.UNSERVABLE: "the rank can never serve this model with this plan",
}

BACKENDS: Final = {
    Backend.PIPELINE: "a chain of ranks, each with its own layers",
    Backend.RING: "tensor parallelism over TCP, each rank with its two neighbours",
    Backend.JACCL: "tensor parallelism over RDMA; cannot be sealed",
    Backend.NCCL: "tensor parallelism over NCCL; cannot be sealed",
}

HINDRANCES: Final = {
    Hindrance.ABSENT: "there is no control link with that rank",
    Hindrance.REFUSED: "the head and that rank refuse each other, for their rosters or policies",
    Hindrance.MODEL: "the head and that rank hold different models, or manifests",
    Hindrance.ENGINE: "that rank's engine has not said what its model is, or is gone",
    Hindrance.PLAN: "there is no plan; the ranks may have too little room for the model",
    Hindrance.FAILED: "that rank could not do what an epoch asked of it",
    Hindrance.COLLECTIVE: "the collective did not come up, or broke (11.7)",
    Hindrance.LINK: "a link of that rank that an epoch needs did not come up, or broke",
    Hindrance.UNSERVABLE: "that rank, or no rank, can serve this model as it is asked for",
    Hindrance.OUTSIDE: "the ring goes on without that rank",
}

NO_VOTES: Final = {
    NoVoteReason.HEAD_SEEN: "it is head, or sees its head, or did a moment ago",
    NoVoteReason.VOTED: "it has voted otherwise in this term, or in a later one",
    NoVoteReason.STALE: "the term is over, or too far ahead",
    NoVoteReason.NO_HEAD: "that member may not be head, or the sender may not propose it",
    NoVoteReason.ASKING: "it asks for votes itself, and comes before the other",
    NoVoteReason.BUSY: "it stores another vote",
    NoVoteReason.TOO_OFTEN: "it has voted for this candidate again and again",
}

DTYPES: Final = {
    DType.F32: "IEEE 754 binary32",
    DType.F16: "IEEE 754 binary16",
    DType.BF16: "the upper half of a binary32",
    DType.U32: "unsigned",
}

SUITES: Final = {
    Suite.AES256GCM: "AES-256-GCM (NIST SP 800-38D)",
    Suite.CHACHA20POLY1305: "ChaCha20-Poly1305 (RFC 8439)",
}

CONTEXTS: Final = {
    SignContext.RESP: '`P ‖ "RESP" ‖ H(t2 ‖ cR)`, by the responder (5.3)',
    SignContext.FIN: '`P ‖ "FIN" ‖ H(t3 ‖ cI)`, by the initiator (5.4)',
    SignContext.JOIN_RESP: '`P ‖ "JOIN-RESP" ‖ H(t2 ‖ cH)`, by the inviter (14.4)',
    SignContext.JOIN_FIN: '`P ‖ "JOIN-FIN" ‖ H(t3 ‖ cJ)`, by the joiner (14.5)',
    SignContext.ROSTER: '`"sealring/1" ‖ "ROSTER" ‖ digest`, by the coordinator (3.2)',
    SignContext.SPARE: '`"sealring/1" ‖ "SPARE" ‖ H(cluster ‖ spare)`, by the pinned key (3.2)',
    SignContext.COORDINATOR: '`"sealring/1" ‖ "COORDINATOR" ‖ H(cluster ‖ number ‖ coordinator)`, '
    "by the spare coordinator (3.2)",
    SignContext.EVIDENCE: '`"sealring/1" ‖ "EVIDENCE" ‖ digest`, by an attester (3.3)',
    SignContext.VOTE: '`"sealring/1" ‖ "VOTE" ‖ H(digest ‖ term ‖ head)`, by a voter (3.4)',
}

LABELS: Final = {
    Label.ADMISSION: ("salt of Extract, 5.2", "K_B"),
    Label.JOIN: ("salt of Extract, 14.3; t1, 14.4", "K_J; a join's transcript"),
    Label.RESPONDER_KEY: ("Expand of PRK, 5.3", "kR"),
    Label.RESPONDER_MAC: ("Expand of PRK, 5.3", "mR"),
    Label.INITIATOR_KEY: ("Expand of PRK, 5.3", "kI"),
    Label.INITIATOR_MAC: ("Expand of PRK, 5.3", "mI"),
    Label.TRAFFIC: ("Expand of PRK, 6.2", "a traffic secret"),
    Label.ACTIVATION: ("Expand of PRK, 6.2", "an activation secret"),
    Label.KEY: ("Expand of a secret", "AEAD key, 32 bytes"),
    Label.IV: ("Expand of a secret", "iv, 12 bytes"),
    Label.NEXT: ("Expand of a secret", "the next secret"),
}


def docs_of_assignments(module: ModuleType) -> dict[str, str]:
    """The strings that stand under the module's assignments, by name."""
    return dict(_documented(ast.parse(inspect.getsource(module)).body))


def docs_of_members(kind: type[E]) -> dict[E, str]:
    """The strings that stand under an enum's members."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    if not isinstance(body, ast.ClassDef):
        raise TypeError(f"{kind.__name__} is no class")
    return {kind[name]: text for name, text in _documented(body.body)}


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, after in itertools.pairwise(body):
        match statement, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())
