"""One table of messages that drives encoding, decoding, truncation and trailing data."""

from __future__ import annotations

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
    RowReady,
    Scores,
)
from sealring_protocol.codec.messages import (
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

EPOCH = Epoch(0x1122334455667788, 3)
DIGEST = bytes(range(16))
QUESTION = Question(
    "POST",
    b"/v1/chat/completions?a=%20",
    False,
    "fd00::7",
    ((b"host", b"desk:8000"), (b"x-empty", b""), (b"x-latin", b"na\xefve\t!")),
)
BF16 = Tensor(DType.BF16, (1, 2, 3), bytes(range(12)))
SEALED = Tensor(DType.F32, (2, 2), bytes(range(32)), sealed=True, counter=99)
FAILURE = Failure(2, FailureKind.ENGINE_ERROR, "ValueError: shapes (3,4) and (5,)")

MESSAGES: dict[str, Message] = {
    "accept": Accept(bytes(range(32)), 7, b""),
    "accept-with-roster": Accept(bytes(32), 2**64 - 1, b"a roster"),
    "ping": Ping(1, Progress()),
    "ping-full": Ping(2**64 - 1, Progress(*range(1, 11))),
    "pong": Pong(77, Progress(steps_received=9)),
    "waiting": Waiting(),
    "waiting-why": Waiting(
        (Reason(Hindrance.ABSENT, 1, "naïve"), Reason(Hindrance.PLAN, 65535, "x"))
    ),
    "addresses": Addresses(1, ((bytes(16), 7470), (bytes(range(16)), 65535))),
    "addresses-none": Addresses(63),
    "close": Close(0, ""),
    "close-reason": Close(6, "another model — naïve"),
    "close-unknown-code": Close(65535, "from the future"),
    "hello": Hello(b"m" * 32, 24, DType.BF16, 4096, 1 << 40),
    "hello-pins": Hello(b"m" * 32, 2, DType.BF16, 4096, 1 << 40, (0, 1, 2, 2**64 - 1)),
    "hello-version": Hello(b"m" * 32, 2, DType.BF16, 4096, 1, (0, 1, 2, 3), Build("é" * 32, 2, 3)),
    "prepared": Prepared(EPOCH, 40001),
    "ready": Ready(EPOCH, 3, 9, False, 12345, CacheCost(1, 2, ((128, 64), (1024, 32)))),
    "bootstrap": Bootstrap(EPOCH, Backend.PIPELINE, 1, True, 60000, b"d" * 32, (0, 3, 6)),
    "bootstrap-hosts": Bootstrap(
        EPOCH, Backend.RING, 0, False, 1, b"d" * 32, (0, 6), (("::1", 9000), ("host", 1))
    ),
    "bootstrap-prepare": Bootstrap(
        EPOCH, Backend.RING, 1, True, 1, b"d" * 32, (0, 6), (("", 0), ("", 0))
    ),
    "bootstrap-trusted": Bootstrap(
        EPOCH, Backend.NCCL, 1, True, 1, b"d" * 32, (0, 6), (("a", 1), ("b", 2)), True
    ),
    "bootstrap-checked": Bootstrap(
        EPOCH, Backend.PIPELINE, 1, True, 60000, b"d" * 32, (0, 3, 6), checked=True
    ),
    "bootstrap-kept": Bootstrap(
        EPOCH,
        Backend.PIPELINE,
        1,
        True,
        60000,
        b"d" * 32,
        (0, 3, 6),
        kept=(KeptCache(7, 4000), KeptCache(2**64 - 1, 2**32 - 1)),
    ),
    "checked": Checked(
        EPOCH,
        3,
        False,
        Tensor(DType.F32, (0, 1, 2, 3), b""),
        Tensor(DType.F32, (2, 1, 2, 3), bytes(range(48))),
    ),
    "checked-closing": Checked(
        EPOCH,
        2**64 - 1,
        True,
        Tensor(DType.F32, (1, 2, 1, 3), bytes(24)),
        Tensor(DType.F32, (1, 2, 1, 3), bytes(24)),
    ),
    "ready-joined": Ready(EPOCH, 0, 12, False, 12345, CacheCost(1, 2), 2**32 - 1, 5900),
    "step-idle": Step(EPOCH, 1, DIGEST),
    "step-decode": Step(EPOCH, 2, DIGEST, work=Decode(1), tensors=(BF16,)),
    "step-decode-sealed": Step(
        EPOCH, 2**64 - 1, DIGEST, work=Decode(0xFFFE), tensors=(SEALED,), spent=(Spent(5),)
    ),
    "step-guess": Step(EPOCH, 2, DIGEST, work=Decode(1, 16), tensors=(BF16,)),
    "step-scored": Step(EPOCH, 3, DIGEST, work=Prefill(5, 7, 2, True), ids=(1, 2, 2**32 - 1)),
    "step-prefill": Step(
        EPOCH, 3, DIGEST, open=(Open(5),), work=Prefill(5, 0, 3), ids=(1, 2, 2**32 - 1)
    ),
    "step-everything": Step(
        EPOCH,
        4,
        DIGEST,
        back=(TakeBack(9, 1), TakeBack(10, 255)),
        save=(Save(5, 90), Save(6, 91)),
        evict=(1, 2, 3),
        drop=(4, 88),
        open=(Open(7), Open(8, 90, 17)),
        join=(Join(5, 0), Join(6, 1)),
        work=Prefill(7, 2**32 - 1, 1),
        ids=(9, 8, 7),
        tensors=(BF16, SEALED, Tensor(DType.F16, (), bytes(2)), Tensor(DType.U32, (0, 4), b"")),
        spent=(Spent(1, 2, 3), Spent(4, 5, 2**32 - 1)),
    ),
    "step-failed": Step(EPOCH, 5, DIGEST, work=Decode(0), failed=FAILURE),
    "done": StepDone(EPOCH, 6, tensors=(SEALED,), spent=(Spent(1500),)),
    "done-empty": StepDone(EPOCH, 7),
    "done-ids": StepDone(EPOCH, 8, ids=(5, 6, 7), spent=(Spent(1), Spent(2))),
    "done-failed": StepDone(EPOCH, 9, failed=FAILURE),
    "cannot": CannotServe(EPOCH, FailureKind.GROUP, "1.0"),
    "cannot-step": CannotServe(EPOCH, FailureKind.MEMORY, "", 2**64 - 1),
    "row": Row(5),
    "row-full": Row(6, 2**64 - 1, 3, 0.7, 0.95, 40, 0.05),
    "row-penalised": Row(
        7,
        repetition=1.25,
        presence=-0.5,
        frequency=2.0,
        logprobs=20,
        bias=((3, -100.0), (2**32 - 1, 0.5)),
        history=(9, 8, 7),
        generated=2,
    ),
    "row-constrained": Row(
        8,
        history=(9, 8),
        generated=1,
        least=2**32 - 1,
        ends=(0, 2**32 - 1),
        bad=((5,), (6, 7)),
        grammar=b"start: /[0-9]+/",
    ),
    "get": Get("model.safetensors", 1 << 33, 1 << 20),
    "get-listing": Get("", 0, 0),
    "piece": Piece(1 << 34, bytes(range(9))),
    "piece-empty": Piece(0),
    "piece-reason": Piece(0, b"", "no such file — naïve"),
    "ask": Ask(1, QUESTION),
    "ask-bare": Ask(2**64 - 1, Question("M-SEARCH", b"/", True, "")),
    "reply": Reply(7, 599, ((b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"))),
    "reply-bare": Reply(1, 200),
    "body": BodyPart(1, bytes(range(9))),
    "body-last": BodyPart(1, b"x", True),
    "body-empty": BodyPart(2**64 - 1, b"", True),
    "credit": Credit(3, 1 << 17),
    "drop": Drop(3, "the client has gone — naïve"),
    "drop-bare": Drop(3),
    "candidacy": Candidacy(3, 2),
    "vote": Vote(2**64 - 1, 0, bytes(range(64))),
    "no-vote": NoVote(3, 2, 4, NoVoteReason.TOO_OFTEN),
    "renew": Renew(0, 1),
    "renewed": Renewed(3, 2**64 - 1),
    "renewed-not": Renewed(3, 8, 4),
    "admit": Admit(b"a roster", '{"model": "naïve"}'),
    "admit-bare": Admit(b"", ""),
    "joined": Joined(),
    "tunnel-open": Tunnel(EPOCH, 0, TunnelEvent.OPEN),
    "tunnel-close": Tunnel(EPOCH, 255, TunnelEvent.CLOSE),
}

OPEN_ENDED: dict[str, Message] = {
    "tunnel-data": Tunnel(EPOCH, 1, TunnelEvent.DATA, bytes(range(9)))
}
"""Whose data go to the end of the plaintext: cut or grown they are other messages."""

LOCAL: dict[str, LocalMessage] = {
    "engine-info": EngineInfo(
        b"m" * 32, DType.F32, 160, 1024, 2048, True, 1 << 34, 655360, (1, 2, 3), 8, 0b10100
    ),
    "engine-info-joined": EngineInfo(
        b"m" * 32, DType.F32, 160, 1024, 2048, True, 0, 0, (1,) * 5, joined=(2, 4), reason="shared"
    ),
    "hop-key": HopKey(True, 1, b"c" * 32, b"s" * 32),
    "hop-key-in": HopKey(False, 2, b"c" * 32, b"s" * 32),
    "logprobs": Logprobs(4, 7, -0.25),
    "logprobs-full": Logprobs(2**64 - 1, 7, -0.25, (5, 6), (-0.25, -3.5)),
    "scores": Scores(4, 7, 1, (-0.25,), (1,)),
    "scores-full": Scores(2**64 - 1, 7, 3, (-0.25, -9.0), (1, 2**32 - 1), (5, 6), (-0.25, -3.5)),
    "row-over": RowOver(4, 7, "its grammar cannot be followed"),
    "row-complete": RowOver(4, 7),
    "row-ready": RowReady(EPOCH, 7),
    "row-not-ready": RowReady(EPOCH, 7, "too costly"),
    "loaded": Loaded(1, 2, 3),
    "group-share": Group(Backend.RING, 1, 2, 60000),
    "group-join": Group(Backend.NCCL, 0, 2, 20000, (("127.0.0.1", 40001), ("h", 1))),
    "grouped": Grouped(2, 57, 5900),
}
