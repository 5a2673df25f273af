"""Every message: encode, decode, cut short at every length, longer by a byte, and hostile."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring_protocol import limits
from sealring_protocol.codec.codes import MessageCode
from sealring_protocol.codec.encoding import (
    CODECS,
    DECODERS,
    LOCAL_DECODERS,
    decode,
    decode_local,
    encode,
)
from sealring_protocol.codec.local_messages import Group, Logprobs, Scores
from sealring_protocol.codec.messages import (
    NO_LOGPROBS,
    Accept,
    Backend,
    Bootstrap,
    CacheCost,
    Checked,
    Close,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Get,
    Join,
    KeptCache,
    Open,
    Piece,
    Prefill,
    Prepared,
    Row,
    Step,
    StepDone,
    TakeBack,
    Tunnel,
    TunnelEvent,
)
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Credit, Drop, Question, Reply
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.codec.wire import Reader, clip, is_plain
from sealring_protocol.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError

from tests.codec.cases import DIGEST, EPOCH, LOCAL, MESSAGES, OPEN_ENDED, QUESTION

ALL = [(name, message, decode) for name, message in MESSAGES.items()]
ALL += [(name, message, decode_local) for name, message in LOCAL.items()]
IDS = [name for name, _, _ in ALL]


def flat(message):
    return b"".join(encode(message))


@pytest.mark.parametrize(("name", "message", "decoder"), ALL, ids=IDS)
def test_decoding_gives_the_message_back(name, message, decoder):
    data = flat(message)
    assert data[0] == message.CODE
    back = decoder(data)
    assert type(back) is type(message)
    assert back == message
    assert flat(back) == data


@pytest.mark.parametrize(("name", "message", "decoder"), ALL, ids=IDS)
def test_cut_short_at_any_length_it_is_refused(name, message, decoder):
    data = flat(message)
    for size in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decoder(data[:size])


@pytest.mark.parametrize(("name", "message", "decoder"), ALL, ids=IDS)
def test_a_trailing_byte_is_refused(name, message, decoder):
    with pytest.raises(RemoteProtocolError, match=r"trailing|only if, it is DATA"):
        decoder(flat(message) + b"\0")


@pytest.mark.parametrize(("name", "message", "decoder"), ALL, ids=IDS)
def test_a_changed_byte_gives_a_documented_error_or_another_message(name, message, decoder):
    data = bytearray(flat(message))
    for at in range(len(data)):
        for change in (1, 0x80, 0xFF):
            data[at] ^= change
            try:
                other = decoder(bytes(data))
            except RemoteProtocolError:
                pass
            else:
                assert flat(other) == bytes(data), "two encodings of one value"
            data[at] ^= change


CODES = st.sampled_from(sorted(MessageCode)).map(lambda code: bytes([code]))


@given(st.one_of(st.just(b""), CODES), st.binary(max_size=400))
def test_any_bytes_give_a_documented_error_or_a_message_with_that_encoding(code, rest):
    data = code + rest
    for decoder in (decode, decode_local):
        try:
            message = decoder(data)
        except RemoteProtocolError:
            continue
        assert flat(message) == data


WRITTEN_OUT = (Step, StepDone, Tunnel)
CASES = [
    (name, message)
    for name, message in {**MESSAGES, **LOCAL, **OPEN_ENDED}.items()
    if isinstance(message, WRITTEN_OUT)
]


@pytest.mark.parametrize(("name", "message"), CASES, ids=[name for name, _ in CASES])
def test_what_is_written_out_by_hand_is_what_its_row_says(name, message):
    """The same bytes; and of those bytes, changed and cut, the same value or the same error."""
    row = CODECS[type(message)]
    data = flat(message)
    assert b"".join(row.encode(message)) == data
    changed = [data[:size] for size in range(1, len(data) + 1)]
    for at in range(1, len(data)):
        changed += [data[:at] + bytes([data[at] ^ change]) + data[at + 1 :] for change in (1, 0xFF)]
    for each in changed:
        assert outcome(DECODERS[each[0]], each) == outcome(row.decode, each)


def outcome(decoder, data):
    try:
        return decoder(Reader(data))
    except (RemoteProtocolError, LocalProtocolError) as error:
        return type(error)


def test_every_message_has_a_row_and_every_row_a_message():
    by_code = {int(kind.CODE): kind for kind in CODECS}
    assert set(by_code) == set(DECODERS) | set(LOCAL_DECODERS)
    assert len(by_code) == len(CODECS)


def test_every_message_has_a_case():
    """Each goes there and back, and is cut and changed above."""
    assert {type(each) for each in (*MESSAGES.values(), *LOCAL.values())} == set(CODECS)


def test_local_messages_do_not_travel():
    for message in LOCAL.values():
        with pytest.raises(RemoteProtocolError, match="unknown message type"):
            decode(flat(message))
    for code in (MessageCode.INIT, MessageCode.RESP, MessageCode.FIN):
        with pytest.raises(RemoteProtocolError, match="unknown message type"):
            decode(bytes([code]))


def test_the_data_of_a_tunnel_end_where_the_plaintext_does():
    for message in OPEN_ENDED.values():
        data = flat(message)
        assert decode(data) == message
        for size in range(19, len(data)):
            if size == 19:
                with pytest.raises(RemoteProtocolError, match="data"):
                    decode(data[:size])
            else:
                assert decode(data[:size]) == attrs.evolve(message, data=data[19:size])
        with pytest.raises(RemoteProtocolError, match="unknown message type"):
            decode_local(data)


def kept(count):
    return tuple(KeptCache(n, 1) for n in range(1, count + 1))


def test_as_many_caches_are_kept_as_may_be():
    message = attrs.evolve(MESSAGES["bootstrap"], kept=kept(limits.MAX_KEPT))
    assert decode(flat(message)) == message


STEP = Step(EPOCH, 1, DIGEST)
TOO_MUCH = {
    "rows": attrs.evolve(STEP, evict=tuple(range(limits.MAX_ROWS + 1))),
    "backs": attrs.evolve(STEP, back=(TakeBack(1, 1),) * (limits.MAX_ROWS + 1)),
    "joins": attrs.evolve(STEP, join=(Join(1, 1),) * (limits.MAX_ROWS + 1)),
    "ids": attrs.evolve(STEP, ids=(1,) * (limits.MAX_IDS + 1)),
    "done-ids": StepDone(EPOCH, 1, ids=(1,) * (limits.MAX_IDS + 1)),
    "tensors": attrs.evolve(STEP, tensors=(Tensor(DType.F32, (), bytes(4)),) * 5),
    "digest": attrs.evolve(STEP, digest=b"short"),
    "u64": attrs.evolve(STEP, n=2**64),
    "negative": attrs.evolve(STEP, n=-1),
    "bounds": Bootstrap(EPOCH, Backend.PIPELINE, 0, True, 1, b"d" * 32, tuple(range(18))),
    "kept": attrs.evolve(MESSAGES["bootstrap"], kept=kept(limits.MAX_KEPT + 1)),
    "layers-beyond": attrs.evolve(MESSAGES["ready"], last=limits.MAX_LAYERS + 1),
    "hello-layers": attrs.evolve(MESSAGES["hello"], layers=limits.MAX_LAYERS + 1),
    "hello-model": attrs.evolve(MESSAGES["hello"], model=b"short"),
    "windows": attrs.evolve(MESSAGES["ready"], cost=CacheCost(0, 0, ((1, 1),) * 17)),
    "tensor-bytes": attrs.evolve(STEP, tensors=(Tensor(DType.F32, (2,), bytes(4)),)),
    "tensor-dimensions": attrs.evolve(STEP, tensors=(Tensor(DType.F16, (1,) * 5, bytes(2)),)),
    "tensor-counter": attrs.evolve(STEP, tensors=(Tensor(DType.F16, (1,), bytes(2), counter=1),)),
    "roster": attrs.evolve(MESSAGES["accept"], roster=bytes(limits.MAX_ELECTED + 1)),
    "transcript": attrs.evolve(MESSAGES["accept"], transcript=b""),
    "host": attrs.evolve(MESSAGES["bootstrap-hosts"], hosts=(("h" * 256, 1), ("h", 1))),
    "hosts": attrs.evolve(MESSAGES["bootstrap-hosts"], hosts=(("h", 1),) * 17),
    "port": attrs.evolve(MESSAGES["bootstrap-hosts"], hosts=(("h", 65536), ("h", 1))),
    "prepared-port": Prepared(EPOCH, 65536),
    "stream": Tunnel(EPOCH, 256, TunnelEvent.OPEN),
    "piece": Piece(1 << 30, bytes(limits.MAX_PIECE + 1)),
    "get-name": Get("x" * 256, 0, 1),
    "get-offset": Get("x", 2**64, 1),
    "members": Group(Backend.RING, 0, 17, 1),
    "backends": attrs.evolve(LOCAL["engine-info"], backends=256),
    "layers": attrs.evolve(LOCAL["engine-info"], layers=(1,) * (limits.MAX_LAYERS + 1)),
    "float": Row(1, top_k=-1),
}

TENSOR = Tensor(DType.F16, (1,), bytes(2))
PRINT = Tensor(DType.F32, (1, 1, 2, 3), bytes(24))
FAILURE = Failure(1, FailureKind.MEMORY, "no room")
INVALID = {
    "group": lambda: Decode(0xFFFF),
    "guesses": lambda: Decode(0, limits.MAX_GUESSED + 1),
    "join": lambda: Join(1, 0xFFFF),
    "prefill": lambda: Prefill(1, 0, 0),
    "ready-range": lambda: attrs.evolve(MESSAGES["ready"], first=10),
    "portless": lambda: Prepared(EPOCH, 0),
    "done-two": lambda: StepDone(EPOCH, 1, ids=(1,), tensors=(TENSOR,)),
    "done-failed-ids": lambda: StepDone(EPOCH, 1, ids=(1,), failed=FAILURE),
    "done-failed-tensors": lambda: StepDone(EPOCH, 1, tensors=(TENSOR,), failed=FAILURE),
    "bounds-empty": lambda: attrs.evolve(MESSAGES["bootstrap"], bounds=()),
    "bounds-one": lambda: attrs.evolve(MESSAGES["bootstrap"], bounds=(0,)),
    "bounds-start": lambda: attrs.evolve(MESSAGES["bootstrap"], bounds=(1, 3, 6)),
    "bounds-rise": lambda: attrs.evolve(MESSAGES["bootstrap"], bounds=(0, 3, 3)),
    "rank": lambda: attrs.evolve(MESSAGES["bootstrap"], rank=2),
    "collective-alone": lambda: attrs.evolve(MESSAGES["bootstrap-hosts"], hosts=(("h", 1),)),
    "collective-nowhere": lambda: attrs.evolve(MESSAGES["bootstrap-hosts"], hosts=()),
    "collective-rank": lambda: attrs.evolve(MESSAGES["bootstrap-hosts"], rank=2),
    "collective-bounds": lambda: attrs.evolve(MESSAGES["bootstrap-hosts"], bounds=(0, 3, 6)),
    "collective-ports": lambda: attrs.evolve(
        MESSAGES["bootstrap-hosts"], hosts=(("h", 1), ("h", 0))
    ),
    "collective-sealed": lambda: attrs.evolve(MESSAGES["bootstrap-trusted"], trusted=False),
    "pipeline-hosts": lambda: attrs.evolve(MESSAGES["bootstrap"], hosts=(("h", 1),) * 2),
    "kept-zero": lambda: KeptCache(0, 1),
    "kept-empty": lambda: KeptCache(1, 0),
    "kept-twice": lambda: attrs.evolve(MESSAGES["bootstrap"], kept=kept(1) * 2),
    "kept-falls": lambda: attrs.evolve(MESSAGES["bootstrap"], kept=kept(2)[::-1]),
    "collective-kept": lambda: attrs.evolve(MESSAGES["bootstrap-hosts"], kept=kept(1)),
    "pipeline-trusted": lambda: attrs.evolve(MESSAGES["bootstrap"], trusted=True),
    **{
        f"checked-{name}": lambda received=received, given=given: Checked(
            EPOCH, 1, False, received, given
        )
        for name, received, given in (
            ("dtype", PRINT, attrs.evolve(PRINT, dtype=DType.U32)),
            ("sealed", attrs.evolve(PRINT, sealed=True), PRINT),
            ("dimensions", PRINT, attrs.evolve(PRINT, shape=(1, 2, 3))),
            ("arrays", attrs.evolve(PRINT, shape=(5, 1, 2, 3)), PRINT),
            ("numbers", PRINT, attrs.evolve(PRINT, shape=(1, 1, 2, 2))),
            ("rows", PRINT, attrs.evolve(PRINT, shape=(1, 2, 2, 3))),
            ("tokens", PRINT, attrs.evolve(PRINT, shape=(1, 1, 1, 3))),
        )
    },
    "logprobs-pairs": lambda: Logprobs(1, 1, -1.0, (5,), ()),
    "logprobs-many": lambda: Logprobs(1, 1, -1.0, (5,) * 21, (-1.0,) * 21),
    "scores-none": lambda: Scores(1, 1, 1, (), ()),
    "scores-many": lambda: Scores(1, 1, 1, (-1.0,) * 257, (1,) * 257),
    "scores-first": lambda: Scores(1, 1, 0, (-1.0,), (1,)),
    "scores-ranks": lambda: Scores(1, 1, 1, (-1.0,), ()),
    "scores-pairs": lambda: Scores(1, 1, 1, (-1.0,), (1,), (5,), ()),
    "scores-uneven": lambda: Scores(1, 1, 1, (-1.0,) * 2, (1,) * 2, (5,) * 3, (-1.0,) * 3),
    "scores-likeliest": lambda: Scores(1, 1, 1, (-1.0,), (1,), (5,) * 21, (-1.0,) * 21),
    "prefill-scored": lambda: Prefill(1, 0, 0, True),
    "group-rank": lambda: Group(Backend.RING, 2, 2, 1),
    "group-hosts": lambda: Group(Backend.RING, 0, 2, 1, (("h", 1),)),
    "group-pipeline": lambda: Group(Backend.PIPELINE, 0, 2, 1),
    "get-long": lambda: Get("x", 0, limits.MAX_PIECE + 1),
    "get-folder": lambda: Get("a/b", 0, 1),
    "get-backslash": lambda: Get("a\\b", 0, 1),
    "get-above": lambda: Get("..", 0, 1),
    "get-hidden": lambda: Get("a\x00b", 0, 1),
    "piece-both": lambda: Piece(1, b"x", "no"),
    "piece-sized": lambda: Piece(1, b"", "no"),
    "piece-more": lambda: Piece(1, b"xy"),
    **{
        f"question-{name}": lambda changes=changes: attrs.evolve(QUESTION, **changes)
        for name, changes in {
            "methodless": {"method": ""},
            "small": {"method": "Get"},
            "method-space": {"method": "GET X"},
            "method-naive": {"method": "GÉT"},
            "method-long": {"method": "M" * (limits.MAX_METHOD + 1)},
            "targetless": {"target": b""},
            "absolute": {"target": b"http://desk/"},
            "target-space": {"target": b"/ HTTP/1.1"},
            "target-break": {"target": b"/\r\nhost: x"},
            "target-high": {"target": b"/\xe9"},
            "target-long": {"target": b"/" * (limits.MAX_TARGET + 1)},
            "client-hidden": {"client": "10.0.0.1\n"},
            "client-half": {"client": "\ud800"},
            "client-long": {"client": "é" * (limits.MAX_CLIENT // 2) + "x"},
        }.items()
    },
    **{
        f"{name}-{of}": lambda make=make, field=field: make((field,))
        for name, field in {
            "nameless": (b"", b"x"),
            "capital": (b"Host", b"x"),
            "colon": (b"host:", b"x"),
            "line": (b"host", b"x\r\ny: z"),
            "line-feed": (b"host", b"x\n"),
            "return": (b"host", b"x\r"),
            "nul": (b"host", b"\0"),
            "long": (b"h", bytes([0x20]) * (limits.MAX_HEADERS - 4)),
        }.items()
        for of, make in {
            "question": lambda headers: attrs.evolve(QUESTION, headers=headers),
            "reply": lambda headers: Reply(1, 200, headers),
        }.items()
    },
    "question-fields": lambda: attrs.evolve(
        QUESTION, headers=((b"h", b""),) * (limits.MAX_FIELDS + 1)
    ),
    "reply-fields": lambda: Reply(1, 200, ((b"h", b""),) * (limits.MAX_FIELDS + 1)),
    "reply-early": lambda: Reply(1, 199),
    "reply-late": lambda: Reply(1, 600),
    "body-empty": lambda: BodyPart(1, b""),
    "body-long": lambda: BodyPart(1, bytes(limits.MAX_BODY + 1)),
    "credit-none": lambda: Credit(1, 0),
    "credit-much": lambda: Credit(1, limits.STREAM_WINDOW + 1),
    "tunnel-empty": lambda: Tunnel(EPOCH, 0, TunnelEvent.DATA),
    "tunnel-open-data": lambda: Tunnel(EPOCH, 0, TunnelEvent.OPEN, b"x"),
    "temperature": lambda: Row(1, temperature=float("nan")),
    "top-p": lambda: Row(1, top_p=0.0),
    "min-p": lambda: Row(1, min_p=float("inf")),
    "bad": lambda: Row(1, bad=((),)),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_value_that_contradicts_itself_cannot_be_made(name):
    with pytest.raises(LocalProtocolError):
        INVALID[name]()


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_does_not_fit_is_the_callers_fault(name):
    with pytest.raises(LocalProtocolError):
        encode(TOO_MUCH[name])


def at_limit(count, at):
    """An idle step whose 16-bit list count at offset *at* is *count*, with nothing after it."""
    data = bytearray(flat(STEP))
    data[at : at + 2] = count.to_bytes(2, "big")
    return bytes(data)


@pytest.mark.parametrize("position", range(5))
def test_a_list_is_refused_on_its_declared_length(position):
    at = 1 + 8 + 8 + 8 + 16 + 2 * position
    with pytest.raises(LimitExceeded):
        decode(at_limit(limits.MAX_ROWS + 1, at))
    with pytest.raises(RemoteProtocolError, match="truncated"):
        decode(at_limit(limits.MAX_ROWS, at))


def test_requests_at_their_limits_travel():
    question = Question(
        "M" * limits.MAX_METHOD,
        b"/" * limits.MAX_TARGET,
        True,
        "é" * (limits.MAX_CLIENT // 2),
        ((b"h", b"x" * (limits.MAX_HEADERS // 2 - 5)),) * 2,
    )
    for full in (Ask(1, question), Reply(1, 200, ((b"h", b""),) * limits.MAX_FIELDS)):
        assert decode(flat(full)) == full
    full = BodyPart(1, bytes(limits.MAX_BODY))
    assert decode(flat(full)) == full


def test_header_fields_are_refused_on_the_length_that_they_declare():
    data = flat(Reply(1, 200, ((b"h", b"x" * 60_000), (b"h", b"x" * 5_000))))
    longer = data[:-5_002] + (5_527).to_bytes(2, "big")  # one more than fits; nothing follows
    with pytest.raises(LimitExceeded, match="header fields"):
        decode(longer)
    with pytest.raises(RemoteProtocolError, match="truncated"):
        decode(longer[:-2] + (5_526).to_bytes(2, "big"))


def test_header_fields_are_refused_on_the_number_that_they_declare():
    """Each takes 200 bytes of memory beside its own, and five on its way."""
    bare = attrs.evolve(QUESTION, headers=())
    for message in (Ask(1, bare), Reply(1, 200)):
        start = flat(message)
        count = len(start) - 2 if isinstance(message, Reply) else 16
        many = bytearray(start)
        many[count : count + 2] = (limits.MAX_FIELDS + 1).to_bytes(2, "big")
        with pytest.raises(LimitExceeded, match="header fields"):
            decode(bytes(many))
        many[count : count + 2] = limits.MAX_FIELDS.to_bytes(2, "big")
        with pytest.raises(RemoteProtocolError, match="truncated"):
            decode(bytes(many))


def test_a_stream_beyond_its_width_is_the_callers_fault():
    with pytest.raises(LocalProtocolError):
        encode(Drop(2**64))


def test_lists_at_their_limit_travel():
    full = attrs.evolve(STEP, evict=tuple(range(limits.MAX_ROWS)), ids=(1,) * limits.MAX_IDS)
    assert decode(flat(full)) == full


def test_declared_ids_beyond_the_limit_are_refused_before_they_are_read():
    data = bytearray(flat(StepDone(EPOCH, 1)))
    data[26:30] = (limits.MAX_IDS + 1).to_bytes(4, "big")
    with pytest.raises(LimitExceeded, match="token ids"):
        decode(bytes(data))


def test_a_tensor_that_declares_gigabytes_is_refused_at_its_header():
    small = flat(attrs.evolve(STEP, tensors=(Tensor(DType.F32, (1, 1), bytes(4)),)))
    huge = small[:-12] + (0xFFFFFFFF).to_bytes(4, "big") * 2 + small[-4:]
    with pytest.raises(LimitExceeded, match="declares"):
        decode(huge)


def test_reasons_are_made_printable_and_cut_on_a_character():
    sent = Close(1, "line\nbreak \x1b[31m" + "é" * 300)
    back = decode(flat(sent))
    assert back.reason.startswith("line\\u000abreak \\u001b[31m")
    assert len(back.reason.encode()) <= limits.MAX_REASON
    assert clip("é" * 300, 5) == "éé"


def test_an_unprintable_reason_from_a_peer_is_refused():
    data = bytearray(flat(Close(1, "abc")))
    data[-1] = 7
    with pytest.raises(RemoteProtocolError, match="unprintable"):
        decode(bytes(data))
    data[-1] = 0xFF
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        decode(bytes(data))


def test_costs_and_epochs():
    cost = CacheCost(100, 10, ((16, 3), (64, 1)))
    assert cost.of(0) == 100
    assert cost.of(20) == 100 + 200 + 48 + 20
    assert Epoch(1, 2) < Epoch(1, 3) < Epoch(2, 0)
    assert MESSAGES["bootstrap"].world == 2
    assert not MESSAGES["bootstrap"].joins
    assert MESSAGES["bootstrap-hosts"].world == 2
    assert MESSAGES["bootstrap-hosts"].joins
    assert not MESSAGES["bootstrap-prepare"].joins


def test_secrets_stay_out_of_logs():
    assert "s" * 32 not in repr(LOCAL["hop-key"])
    assert "73737373" not in repr(LOCAL["hop-key"])


def test_failures_know_their_rank_and_kind():
    done = decode(flat(StepDone(EPOCH, 1, failed=Failure(15, FailureKind.MEMORY, "x" * 999))))
    assert done.failed is not None
    assert done.failed.rank == 15
    assert len(done.failed.message) == limits.MAX_REASON


def test_a_row_that_says_nothing_draws_greedily_and_from_the_beginning():
    assert Open(5) == Open(5, 0, 0)
    plain = Row(5, 0, 0, 0.0, 1.0, 0, 0.0, 1.0, 0.0, 0.0, NO_LOGPROBS, (), (), 0)
    assert Row(5) == plain
    assert not plain.penalised


@pytest.mark.parametrize("penalty", ["repetition", "presence", "frequency"])
def test_each_penalty_alone_makes_history_matter(penalty):
    assert Row(5, **{penalty: 0.5}).penalised


def test_alternatives_are_at_most_so_many_or_not_told():
    for count in (limits.MAX_LOGPROBS + 1, NO_LOGPROBS - 1, NO_LOGPROBS + 1):
        with pytest.raises(LocalProtocolError, match="alternatives"):
            Row(5, logprobs=count)


def test_a_tensor_knows_its_bytes():
    assert Tensor(DType.F32, (3, 5), bytes(60)).nbytes == 60
    assert Tensor(DType.BF16, (2, 3, 5), bytes(76), True, 1).nbytes == 60  # without the tag


@pytest.mark.parametrize("size", [31, 33])
def test_a_transcript_of_another_size_is_the_callers_fault(size):
    with pytest.raises(LocalProtocolError, match="32 bytes"):
        encode(Accept(bytes(size), 1, b""))


HIDDEN = [
    *(0x00, 0x1F, 0x7F, 0x9F, 0xAD, 0x61C, 0x200B, 0x200F, 0x2028, 0x202E, 0x2060, 0x206F),
    *(0xFEFF, 0xFFF9, 0xFFFB),
]
PLAIN = [
    *(0x20, 0x7E, 0xA0, 0xAC, 0xAE, 0x61B, 0x61D, 0x200A, 0x2010, 0x2027, 0x202F, 0x205F, 0x2070),
    *(0xFEFE, 0xFF00, 0xFFF8, 0xFFFC),
]


def test_which_characters_hide():
    """The ends of each range, and their neighbours."""
    assert [code for code in HIDDEN if is_plain(chr(code))] == []
    assert [code for code in PLAIN if not is_plain(chr(code))] == []
