"""Messages as they should be, from which the vectors are made."""

from __future__ import annotations

from typing import Final

import attrs
from sealring_protocol.codec.election_messages import (
    Candidacy,
    NoVote,
    NoVoteReason,
    Renew,
    Renewed,
    Vote,
)
from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Group,
    Grouped,
    HopKey,
    Loaded,
    LocalMessage,
    Logprobs,
    RowOver,
    Scores,
)
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Accept,
    Addresses,
    Admit,
    Backend,
    Bootstrap,
    Build,
    CacheCost,
    CannotServe,
    Checked,
    Close,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Get,
    Hello,
    Hindrance,
    Join,
    Joined,
    KeptCache,
    Message,
    Open,
    Piece,
    Ping,
    Pong,
    Prefill,
    Prepared,
    Progress,
    Ready,
    Reason,
    Row,
    Save,
    Spent,
    Step,
    StepDone,
    TakeBack,
    Tunnel,
    TunnelEvent,
    Waiting,
)
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Credit, Drop, Question, Reply
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.limits import NO_RANK

from spec.vectors.world import HOME_6, entropy

EPOCH: Final = Epoch(0x1122334455667788, 3)
MODEL: Final = entropy("model", 32)
DIGEST: Final = entropy("ledger digest", 16)
PLAIN: Final = Tensor(DType.BF16, (1, 2, 3), bytes(range(12)))
SEALED: Final = Tensor(DType.F32, (2, 2), bytes(range(32)), sealed=True, counter=99)
FAILURE: Final = Failure(2, FailureKind.ENGINE_ERROR, "ValueError: shapes (3,4) and (5,)")
READY: Final = Ready(
    EPOCH, 3, 9, trimmable=False, room=12345, cost=CacheCost(1, 2, ((128, 64), (1024, 32)))
)
HELLO: Final = Hello(MODEL, 12, DType.F32, 160, 1 << 34)
BOOTSTRAP: Final = Bootstrap(EPOCH, Backend.PIPELINE, 1, True, 60000, MODEL, (0, 3, 6))
PREPARE: Final = Bootstrap(EPOCH, Backend.RING, 1, True, 60000, MODEL, (0, 12), (("", 0), ("", 0)))
JOIN: Final = attrs.evolve(
    PREPARE, deadline_ms=20000, hosts=(("10.0.0.1", 40001), ("10.0.0.2", 40002))
)
PREPARED: Final = Prepared(EPOCH, 40002)
JOINED: Final = attrs.evolve(READY, first=0, last=12, sum_us=57, token_us=5900)
PENALISED: Final = Row(
    7,
    repetition=1.25,
    presence=-0.5,
    frequency=2.0,
    logprobs=20,
    bias=((3, -100.0), (2**32 - 1, 0.5)),
    history=(9, 8, 7),
    generated=2,
)
CONSTRAINED: Final = Row(
    8,
    history=(9, 8),
    generated=1,
    least=2**32 - 1,
    ends=(0, 2**32 - 1),
    bad=((5,), (6, 2**32 - 1)),
    grammar='start: "ä" | /[0-9]+/'.encode(),
)
DATA: Final = Tunnel(EPOCH, 1, TunnelEvent.DATA, bytes(range(16)))
WAITING: Final = Waiting(
    (
        Reason(Hindrance.ABSENT, 2, "rank 2 (den) cannot be reached at den:9000: refused"),
        Reason(Hindrance.PLAN, NO_RANK, "the ranks have room for 1 MiB"),
    )
)
_IPV4: Final = bytes(10) + b"\xff\xff"
ADDRESSES: Final = Addresses(
    2, ((bytes(16), 7470), (bytes.fromhex("20010db8" + "00" * 11 + "05"), 65535))
)
GET: Final = Get("model-00001-of-00002.safetensors", 1 << 33, 1 << 18)
QUESTION: Final = Question(
    "POST",
    b"/v1/completions?a=%20",
    False,
    "fd00::7",
    ((b"host", b"desk:8000"), (b"x-empty", b""), (b"x-latin", b"na\xefve\t!")),
)
ASK: Final = Ask(1, QUESTION)
REPLY: Final = Reply(1, 200, ((b"content-type", b"text/event-stream"),))
PIECE: Final = Piece(1 << 34, bytes(range(16)))
CANNOT: Final = CannotServe(EPOCH, FailureKind.LOAD, "no such file")
STEP: Final = Step(EPOCH, 1, DIGEST)
PRINT: Final = Tensor(DType.F32, (1, 1, 2, 3), bytes(range(24)))
CHECKED: Final = Checked(EPOCH, 4, False, Tensor(DType.F32, (0, 1, 2, 3), b""), PRINT)
SCORED: Final = Step(
    EPOCH, 1, DIGEST, work=Prefill(5, 2**32 - 1, 3, True), ids=(1, 2, 2**32 - 1, 0)
)
FULL: Final = Step(
    EPOCH,
    4,
    DIGEST,
    back=(TakeBack(10, 16), TakeBack(2**64 - 1, 255)),
    save=(Save(5, 90), Save(6, 91)),
    evict=(1, 2, 3),
    drop=(4, 88),
    open=(Open(7), Open(8, 90, 17)),
    join=(Join(5, 0), Join(6, 1)),
    work=Prefill(7, 2**32 - 1, 1),
    ids=(9, 8, 7),
    tensors=(PLAIN, SEALED, Tensor(DType.F16, (), bytes(2)), Tensor(DType.U32, (0, 4), b"")),
    spent=(Spent(1, 2, 3), Spent(4, 5, 2**32 - 1)),
)
DONE: Final = StepDone(EPOCH, 6, tensors=(SEALED,), spent=(Spent(1500, 20, 3),))
TENSOR: Final = attrs.evolve(STEP, work=Decode(0), tensors=(PLAIN,))

LOCAL: Final[tuple[LocalMessage, ...]] = (
    EngineInfo(MODEL, DType.F32, 160, 1024, 2048, True, 1 << 34, 655360, (1, 2), 8, 0b100),
    HopKey(True, 1, entropy("cluster", 32), entropy("activation secret", 32)),
    Loaded(1, 2, 3),
    Logprobs(4, 7, -0.25),
    Scores(4, 7, 1, (-0.25,), (1,)),
    RowOver(4, 7, "its grammar cannot be followed"),
    Group(Backend.RING, 1, 2, 60000),
    Grouped(2, 57, 5900),
)
"""One of each message that goes between a node and its engine alone."""

GOOD: Final[dict[str, tuple[str, Message]]] = {
    "accept": ("ACCEPT without a roster", Accept(bytes(range(32)), 7, b"")),
    "accept-roster": ("ACCEPT with a roster", Accept(bytes(32), 6, HOME_6)),
    "ping-zero": ("PING of a node that has done nothing", Ping(0, Progress())),
    "ping-full": ("every counter of PING", Ping(2**64 - 1, Progress(*range(1, 11)))),
    "pong": ("PONG", Pong(77, Progress(steps_received=9, starved_us=2**64 - 1))),
    "pong-fetched": (
        "PONG of a rank that says that it has more than it needs",
        Pong(77, Progress(fetched_bytes=2**64 - 1, fetch_bytes=1)),
    ),
    "close": ("CLOSE without a reason", Close(0, "")),
    "close-reason": ("a reason beyond ASCII", Close(6, "another model — naïve")),
    "close-longest": ("a reason of 256 bytes", Close(1, "é" * 128)),
    "close-unknown": ("an unknown close code is taken", Close(65535, "from the future")),
    "hello": ("HELLO", HELLO),
    "hello-most": (
        "1,024 layers, and all that a field holds",
        Hello(MODEL, 1024, DType.U32, 2**32 - 1, 2**64 - 1),
    ),
    "hello-pins": (
        "HELLO of a rank that holds the second of two layers",
        Hello(MODEL, 2, DType.F32, 160, 1 << 34, (0, 5, 0, 2**64 - 1), Build("0.3.0", 2, 5)),
    ),
    "hello-newest": (
        "the longest version, and the last step version alone",
        attrs.evolve(HELLO, build=Build("é" * 32, 2**16 - 1, 2**16 - 1)),
    ),
    "prepared": ("PREPARED", PREPARED),
    "prepared-last": ("the last port", Prepared(EPOCH, 65535)),
    "ready": ("READY, with windows", READY),
    "ready-most": (
        "1,024 layers and 16 windows",
        attrs.evolve(READY, last=1024, cost=CacheCost(1, 2, tuple((w, 1) for w in range(1, 17)))),
    ),
    "ready-joined": ("READY of a rank that has joined", JOINED),
    "ready-long": (
        "times at their limit",
        attrs.evolve(JOINED, sum_us=2**32 - 1, token_us=2**32 - 1),
    ),
    "bootstrap": ("BOOTSTRAP of a pipeline", BOOTSTRAP),
    "bootstrap-steps": ("the last step version", attrs.evolve(BOOTSTRAP, steps=2**16 - 1)),
    "bootstrap-16": (
        "16 ranks, the last layer at its limit",
        attrs.evolve(BOOTSTRAP, rank=15, bounds=(*range(16), 1024)),
    ),
    "bootstrap-members": (
        "a ring that leaves ranks out",
        attrs.evolve(BOOTSTRAP, members=(0, 65535)),
    ),
    "bootstrap-kept": (
        "caches that are kept, the numbers and lengths at their limits",
        attrs.evolve(BOOTSTRAP, kept=(KeptCache(1, 1), KeptCache(2**64 - 1, 2**32 - 1))),
    ),
    "bootstrap-hosts-members": (
        "a collective that leaves ranks out",
        attrs.evolve(JOIN, members=(0, 3)),
    ),
    "bootstrap-prepare": ("BOOTSTRAP to prepare for a ring", PREPARE),
    "bootstrap-join": ("BOOTSTRAP to join it", JOIN),
    "bootstrap-trusted": (
        "a collective beside the sealed links",
        attrs.evolve(JOIN, backend=Backend.NCCL, trusted=True),
    ),
    "bootstrap-hosts": (
        "hosts that are no addresses of IPv4",
        Bootstrap(
            EPOCH, Backend.JACCL, 0, False, 1, MODEL, (0, 6), (("::1", 9000), ("h", 1)), True
        ),
    ),
    "bootstrap-hosts-16": (
        "16 hosts, and the last of 16 ranks",
        attrs.evolve(JOIN, rank=15, hosts=tuple((f"h{port}", port) for port in range(1, 17))),
    ),
    "bootstrap-ring-trusted": (
        "a ring beside the sealed links",
        attrs.evolve(JOIN, trusted=True),
    ),
    "step-idle": ("a step that does nothing", STEP),
    "step-spent-17": (
        "times of 17 passes",
        attrs.evolve(STEP, spent=tuple(Spent(us) for us in range(17))),
    ),
    "tensor-4": (
        "a tensor of 4 dimensions",
        attrs.evolve(STEP, tensors=(Tensor(DType.F16, (1, 1, 1, 2), bytes(4)),)),
    ),
    "step-decode": ("a decode with a plain tensor", TENSOR),
    "step-decode-sealed": (
        "a decode with a sealed tensor",
        attrs.evolve(STEP, n=2**64 - 1, work=Decode(7), tensors=(SEALED,), spent=(Spent(5),)),
    ),
    "step-guess": ("a decode of the 16th guess", attrs.evolve(TENSOR, work=Decode(1, 16))),
    "step-ahead": (
        "a decode that reads 16 guesses ahead",
        attrs.evolve(STEP, work=Decode(1, 16, 16), ids=tuple(range(16))),
    ),
    "step-guess-ahead": (
        "a decode that begins with the 9th guess and reads seven ahead",
        attrs.evolve(STEP, work=Decode(1, 16, 7), ids=tuple(range(8))),
    ),
    "step-guess-id": (
        "a row joins, and its group decodes a guess: a token id for each",
        attrs.evolve(STEP, join=(Join(5, 1),), work=Decode(1, 1), ids=(8, 2**32 - 1)),
    ),
    "step-prefill": (
        "a prefill that opens its row",
        attrs.evolve(STEP, open=(Open(5),), work=Prefill(5, 0, 3), ids=(1, 2, 2**32 - 1)),
    ),
    "step-scored": ("a prefill that is scored, with the token after it", SCORED),
    "step-full": ("every list of a step, and every dtype", FULL),
    "step-failed": ("a step that failed", attrs.evolve(STEP, work=Decode(0), failed=FAILURE)),
    "step-failed-group": (
        "a step that failed for its collective",
        attrs.evolve(STEP, failed=Failure(1, FailureKind.GROUP, "a peer has gone")),
    ),
    "done": ("STEP_DONE with hidden states", DONE),
    "done-empty": ("STEP_DONE of a prefill", StepDone(EPOCH, 7)),
    "done-ids": ("STEP_DONE with ids", StepDone(EPOCH, 8, ids=(5, 6, 7), spent=(Spent(1),))),
    "done-failed": ("STEP_DONE that failed", StepDone(EPOCH, 9, failed=FAILURE)),
    "cannot-load": ("a rank that cannot load", CANNOT),
    "cannot-read": (
        "a rank whose engine cannot read its model",
        CannotServe(NO_EPOCH, FailureKind.UNSERVABLE, "a file is missing"),
    ),
    "cannot-join": (
        "a rank that cannot join",
        CannotServe(EPOCH, FailureKind.GROUP, "the sum was 1.0, not 2.0"),
    ),
    "cannot-step": (
        "a rank that cannot go on from a step on, in 256 bytes",
        CannotServe(EPOCH, FailureKind.ENGINE_ERROR, "é" * 128, 2**64 - 1),
    ),
    "bootstrap-checked": ("BOOTSTRAP of a checked epoch", attrs.evolve(BOOTSTRAP, checked=True)),
    "checked": ("fingerprints of rank 0, which receives ids", CHECKED),
    "checked-closing": (
        "fingerprints of the head's second pass",
        Checked(EPOCH, 2**64 - 1, True, PRINT, PRINT),
    ),
    "checked-4": (
        "fingerprints of 4 arrays, for two rows",
        Checked(
            EPOCH,
            5,
            False,
            Tensor(DType.F32, (4, 2, 1, 3), bytes(96)),
            Tensor(DType.F32, (1, 2, 1, 3), bytes(24)),
        ),
    ),
    "row-greedy": ("a greedy row", Row(5)),
    "row-full": ("a row that samples", Row(6, 2**64 - 1, 3, 0.75, 0.9375, 40, 0.0625)),
    "row-min-p-1": ("a row that keeps the likeliest alone", Row(6, temperature=0.75, min_p=1.0)),
    "row-penalised": (
        "a row with penalties, biases, log probabilities and a history",
        PENALISED,
    ),
    "row-constrained": (
        "a row with a least length, ends, bad sequences and a grammar",
        CONSTRAINED,
    ),
    "row-constrained-most": (
        "256 ends, 1,024 tokens of bad sequences and 131,072 bytes of grammar",
        Row(5, ends=(0,) * 256, bad=((7,),) * 1023 + ((8,),), grammar=b"a" * (1 << 17)),
    ),
    "row-biases-1024": (
        "as many biases as there may be",
        Row(5, bias=((0, 0.0),) * 1024),
    ),
    "accept-longest": ("a roster of 53,389 bytes", Accept(bytes(32), 7, bytes(53389))),
    "admit": ("ADMIT", Admit(HOME_6, '{"model": "naïve"}')),
    "admit-bare": ("ADMIT of nothing", Admit(b"", "")),
    "admit-settings": ("settings of 4,096 bytes", Admit(b"", "é\n" * 1365 + "x")),
    "joined": ("JOINED", Joined()),
    "waiting": ("WAITING with a reason of a rank, and one of none", WAITING),
    "waiting-nothing": ("reasons are withdrawn", Waiting()),
    "waiting-16": (
        "16 reasons, the first of 256 bytes, with every hindrance",
        Waiting(tuple(Reason(Hindrance(1 + i % 9), i, "é" * (8 if i else 128)) for i in range(16))),
    ),
    "addresses": ("ADDRESSES with that of the connection, and one of IPv6", ADDRESSES),
    "addresses-none": ("a member listens nowhere any more", Addresses(65535)),
    "addresses-4": (
        "as many addresses as there may be, of IPv4",
        Addresses(1, tuple((_IPV4 + bytes([10, 0, 0, i]), 1 + i) for i in range(4))),
    ),
    "get": ("a piece of a file is asked for", GET),
    "get-listing": ("the listing is asked for", Get("", 0, 1 << 20)),
    "get-furthest": (
        "the name is of 255 bytes, at the last offset",
        Get("é" * 127 + "x", 2**64 - 1, 0),
    ),
    "get-dotted": ("a name that begins with dots", Get("...json", 0, 1)),
    "piece": ("a piece of a file", PIECE),
    "piece-empty": ("an empty file", Piece(0)),
    "piece-beyond": ("nothing, beyond the end of a file", Piece(2**64 - 1)),
    "piece-whole": ("all of a file of 12 bytes", Piece(12, bytes(range(12)))),
    "piece-none": ("why there is none, in 256 bytes", Piece(0, b"", "é" * 128)),
    "ask": ("a request of a client, for the head", ASK),
    "ask-bare": ("the least request", Ask(2, Question("GET", b"/", False, ""))),
    "ask-full": (
        "every field at its limit, and every character of a method and of a name",
        Ask(
            2**64 - 1,
            Question(
                "Z0!#$%&'*+-.^_`|",
                b"/" + bytes(range(0x21, 0x7F)) + b"~" * 8097,
                True,
                "é" * 32,
                (
                    (b"!#$%&'*+-.^_`|~09az", b"\x01\t \x7f\xff"),
                    (b"x", b""),
                    (b"x", b"a" * 65498),
                ),
            ),
        ),
    ),
    "reply": ("an answer begins", REPLY),
    "reply-least": ("the least status, and no header fields", Reply(2**64 - 1, 200)),
    "reply-most": ("the greatest status", Reply(1, 599, ((b"h", b""), (b"h", b"")))),
    "reply-full": ("as many header fields as there may be", Reply(1, 200, ((b"h", b""),) * 128)),
    "body": ("a part of a body", BodyPart(1, bytes(range(16)))),
    "body-last": ("the last part of a body", BodyPart(2**64 - 1, b"x", True)),
    "body-empty": ("a body ends", BodyPart(1, b"", True)),
    "credit": ("the least credit", Credit(1, 1)),
    "credit-most": ("the greatest credit", Credit(2**64 - 1, 131072)),
    "drop": ("a stream is given up, for a reason of 256 bytes", Drop(1, "é" * 128)),
    "drop-bare": ("without a reason", Drop(2**64 - 1)),
    "candidacy": ("a member asks for a vote", Candidacy(1, 2)),
    "candidacy-last": ("the last term, and the last member", Candidacy(2**64 - 1, 2**16 - 1)),
    "vote": ("a vote", Vote(1, 2, bytes(range(64)))),
    **{
        f"no-vote-{reason.name.lower().replace('_', '-')}": (
            f"no vote: {reason.name}",
            NoVote(3, 1, 2**64 - reason, reason),
        )
        for reason in NoVoteReason
    },
    "renew": ("the first head asks for its lease", Renew(0, 1)),
    "renew-last": ("the last term, and the last count", Renew(2**64 - 1, 2**64 - 1)),
    "renewed": ("a lease is renewed", Renewed(0, 1)),
    "renewed-not": ("a lease is not renewed: for a later term", Renewed(4, 7, 5)),
    "tunnel-open": ("a connection of a collective begins", Tunnel(EPOCH, 0, TunnelEvent.OPEN)),
    "tunnel-data": ("bytes of it", DATA),
    "tunnel-close": ("it ends", Tunnel(EPOCH, 255, TunnelEvent.CLOSE)),
}
