"""Messages of sealed frames, one encoding each (sections 8 and 9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from sealring_protocol.codec.encoding import to_fields
from sealring_protocol.codec.messages import (
    Accept,
    Addresses,
    Admit,
    Build,
    CacheCost,
    CannotServe,
    Close,
    Decode,
    Failure,
    FailureKind,
    Get,
    Hindrance,
    Join,
    KeptCache,
    Piece,
    Prefill,
    Reason,
    Row,
    StepDone,
    Waiting,
)
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Credit, Drop, Question, Reply

from spec.vectors.model import LIMIT, MALFORMED, Vector, refused, valid
from spec.vectors.plaintexts import (
    INFINITE,
    NAN,
    NOT_A_NUMBER,
    f64,
    flat,
    grown,
    plaintext_input,
    put,
    u16,
    u32,
    u64,
)
from spec.vectors.whole_messages import (
    BOOTSTRAP,
    CHECKED,
    CONSTRAINED,
    DATA,
    DONE,
    EPOCH,
    FAILURE,
    GOOD,
    HELLO,
    JOIN,
    LOCAL,
    PENALISED,
    PLAIN,
    PREPARE,
    PREPARED,
    READY,
    SEALED,
    STEP,
    TENSOR,
)
from spec.vectors.world import HOME_6

GIVEN: Final[Mapping[str, bytes]] = {"home_6": HOME_6}


Case = tuple[str, str, str, bytes]


def vectors() -> Iterator[Vector]:
    """Messages, whole and faulty."""
    for name, (about, message) in GOOD.items():
        data = flat(message)
        yield valid(
            f"message/{name}",
            "message",
            "CV-01 MS-19" if name == "pong-fetched" else "CV-01",
            about,
            plaintext_input(data),
            {"fields": to_fields(message)},
        )
    for cases, why in (
        (_common(), MALFORMED),
        (_small_messages(), MALFORMED),
        (_steps(), MALFORMED),
        (_tensors(), MALFORMED),
        (_beyond_limits(), LIMIT),
    ):
        for name, ids, about, data in cases:
            yield refused(f"message/{name}", "message", ids, about, plaintext_input(data), why)


def _common() -> Iterator[Case]:
    yield "empty", "MS-01", "no bytes at all", b""
    for code in (0x00, 0x01, 0x03, 0x12, 0x7F, 0x83, 0xFF):
        yield f"code-{code:02x}", "MS-01", f"code 0x{code:02x}", bytes([code]) + bytes(64)
    for local in LOCAL:
        data = flat(local)
        about = f"local message {local.CODE.name}, whole, in a sealed frame"
        yield f"local-{data[0]:02x}", "LM-01 MS-01", about, data
    yield "trailing", "CV-01", "a byte left over after PONG", flat(GOOD["pong"][1]) + b"\0"
    yield "cut", "CV-01", "PING without its last byte", flat(GOOD["ping-full"][1])[:-1]
    yield "step-trailing", "CV-01", "a byte left over after STEP", flat(STEP) + b"\0"


def _small_messages() -> Iterator[Case]:
    close = flat(Close(1, "abc"))
    yield "close-unprintable", "MS-02", "a reason with BEL", put(close, -1, b"\x07")
    yield "close-newline", "MS-02", "a reason with a line break", put(close, -2, b"\n")
    yield "close-utf8", "CV-03", "a reason that ends in half a character", put(close, -1, b"\xc3")
    yield "close-overlong", "CV-03", "/ in two bytes", put(close, -2, b"\xc0\xaf")
    yield "close-surrogate", "CV-03", "half of a surrogate pair", put(close, -3, b"\xed\xa0\x80")
    yield "close-cut", "CV-01", "a reason that is shorter than it says", put(close, 4, b"\x04")
    hello, ready = flat(HELLO), flat(READY)
    for code in (b"\0", b"\5"):
        about = f"HELLO with dtype {code[0]}"
        yield f"hello-dtype-{code[0]}", "MS-11 CV-01", about, put(hello, 35, code)
    yield "hello-cut", "CV-01", "HELLO without its last byte", hello[:-1]
    pinned = flat(attrs.evolve(HELLO, pins=(1,) * 14))
    yield "hello-pins-few", "MS-15", "12 layers, 13 pins", put(pinned, 54, u16(13))[:-8]
    for name, about, at, number in [
        ("steps-0", "step versions from 0", 48, 0),
        ("steps-none", "a newest step version before the oldest", 50, 1),
    ]:
        old = flat(attrs.evolve(HELLO, build=Build("0.1.0", 2, 3)))
        yield f"hello-{name}", "MS-20", f"HELLO with {about}", put(old, at, u16(number))
    named = flat(attrs.evolve(HELLO, build=Build("0.1.0")))
    yield "hello-version", "MS-20", "a version with BEL", put(named, -1, b"\x07")
    yield "prepared-portless", "MS-12", "PREPARED with port 0", put(flat(PREPARED), 17, u16(0))
    yield "ready-backwards", "MS-03", "READY with first after last", put(ready, 17, u16(10))
    trim = put(ready, 21, b"\2")
    yield "ready-trimmable", "MS-03 CV-05", "READY with trimmable 2", trim
    boot = flat(BOOTSTRAP)
    for name, about, at, field in [
        ("rank", "rank 2 of 2", 18, u16(2)),
        ("first", "a first bound of 1", 69, u16(1)),
        ("equal", "a rank without layers", 71, u16(6)),
        ("falls", "bounds that fall", 71, u16(7)),
        ("steps-0", "step version 0", 23, u16(0)),
        ("pipeline-trusted", "a pipeline beside the sealed links", 21, b"\1"),
    ]:
        yield f"bootstrap-{name}", "MS-04", f"BOOTSTRAP with {about}", put(boot, at, field)
    one = put(put(boot, 61, u16(1)), 18, u16(0))[:71]
    yield "bootstrap-one-bound", "MS-04", "BOOTSTRAP for no rank", one
    beside = flat(attrs.evolve(JOIN, trusted=True))
    for code in (b"\0", b"\5"):  # with all that any back end may have
        about = f"BOOTSTRAP with backend {code[0]}"
        yield f"bootstrap-backend-{code[0]}", "MS-04 CV-01", about, put(beside, 17, code)
    inner = put(boot, 20, b"\2")
    yield "bootstrap-checked-2", "MS-04 CV-05", "BOOTSTRAP with checked 2", put(boot, 22, b"\2")
    yield "bootstrap-inner", "MS-04 CV-05", "BOOTSTRAP with inner_seal 2", inner
    hosts = flat(GOOD["bootstrap-hosts"][1])
    yield "bootstrap-host", "CV-03", "a host that is no text", put(hosts, -3, b"\xff")
    yield from _collectives()
    some = flat(attrs.evolve(BOOTSTRAP, bounds=(0, 2, 4, 6), members=(0, 1, 3)))
    for name, about, *ranks in [
        ("first", "a ring without rank 0", 1, 2, 3),
        ("falls", "members that fall", 0, 4, 3),
        ("equal", "a member twice", 0, 3, 3),
        ("same", "members whose places are their ranks", 0, 1, 2),
    ]:
        data = some[:-6] + b"".join(map(u16, ranks))
        yield f"bootstrap-members-{name}", "MS-04", f"BOOTSTRAP with {about}", data
    fewer = put(some, 65, u16(2))[:-6] + u16(0) + u16(3)
    yield "bootstrap-members-fewer", "MS-04", "BOOTSTRAP with two members of three places", fewer
    yield "bootstrap-members-cut", "CV-01", "one member fewer than it says", some[:-2]
    yield from _keeping()


def _keeping() -> Iterator[Case]:
    two = flat(attrs.evolve(BOOTSTRAP, kept=(KeptCache(3, 7), KeptCache(5, 1))))
    for name, about, first, length in [
        ("zero", "the number 0 to keep", 0, 7),
        ("empty", "no token to keep", 3, 0),
        ("same", "one number twice to keep", 5, 7),
        ("falls", "numbers to keep that fall", 6, 7),
    ]:
        data = put(two, -24, u64(first) + u32(length))
        yield f"bootstrap-kept-{name}", "MS-04", f"BOOTSTRAP with {about}", data
    joined = put(flat(JOIN), 67, u16(1)) + u64(3) + u32(7)
    yield "bootstrap-hosts-kept", "MS-04", "BOOTSTRAP of a collective that keeps caches", joined
    yield "bootstrap-kept-cut", "CV-01", "one cache to keep fewer than it says", two[:-12]


def _collectives() -> Iterator[Case]:
    join, prepare = flat(JOIN), flat(PREPARE)
    first = 73 + 2 + len(JOIN.hosts[0][0])  # the port of the first host
    alone = put(put(join, 18, u16(0)), 63, u16(1))[: first + 2]
    piped, bounded = put(put(join, 17, b"\1"), 18, u16(0)), put(join, 61, u16(3))
    bounded = bounded[:69] + u16(0) + u16(6) + bounded[71:]
    for name, about, data in [
        ("hosts-pipeline", "hosts of a pipeline", piped),
        ("hosts-bounds", "a collective of three bounds", bounded),
        ("hosts-none", "a collective of no hosts", put(put(join, 63, u16(0)), 18, u16(0))[:73]),
        ("hosts-one", "a collective of one host", alone),
        ("hosts-rank", "rank 2 of 2 hosts", put(join, 18, u16(2))),
        ("hosts-port", "a port of one rank alone", put(prepare, -2, u16(40002))),
        ("hosts-no-port", "no port of one rank alone", put(join, first, u16(0))),
        ("jaccl-sealed", "JACCL within the sealed links", put(join, 17, b"\3")),
        ("nccl-sealed", "NCCL within the sealed links", put(join, 17, b"\4")),
    ]:
        yield f"bootstrap-{name}", "MS-04", f"BOOTSTRAP with {about}", data
    yield "bootstrap-trusted-2", "MS-04 CV-05", "BOOTSTRAP with trusted 2", put(join, 21, b"\2")
    yield "bootstrap-hosts-cut", "CV-01", "one host fewer than it says", put(join, 63, u16(3))
    opening, data = flat(GOOD["tunnel-open"][1]), flat(DATA)
    for name, about, tunnel in [
        ("event-3", "event 3, without data", put(opening, 18, b"\3")),
        ("event-3-data", "event 3, with data", put(data, 18, b"\3")),
        ("empty", "DATA without data", data[:19]),
        ("open-data", "OPEN with data", opening + b"\0"),
        ("close-data", "CLOSE with data", put(data, 18, b"\2")),
    ]:
        yield f"tunnel-{name}", "MS-09 CV-01", f"TUNNEL with {about}", tunnel
    yield "tunnel-cut", "CV-01", "TUNNEL without its event", opening[:18]
    yield from _fingerprints()
    yield from _waitings()
    yield from _addresses()
    yield from _weights()
    yield from _relayed()
    yield from _rows()


def _fingerprints() -> Iterator[Case]:
    data = flat(CHECKED)
    first, second = 27, 55  # where its tensors begin; each has its shape 12 bytes on
    flat3 = put(data[: second + 24] + bytes(8), second + 2, b"\3")
    turned = put(put(data, first + 20, u32(3)), second + 20, u32(3) + u32(2))
    five = put(data[:second] + bytes(5 * 24) + data[second:], first + 12, u32(5))
    for name, about, wrong in [
        ("one", "one tensor", put(data[:second], 26, b"\1")),
        ("three", "three tensors", put(data, 26, b"\3") + data[first:second]),
        ("dtype", "fingerprints in U32", put(data, second, b"\4")),
        ("sealed", "sealed fingerprints", put(data, second + 1, b"\1") + bytes(16)),
        ("flat", "fingerprints of three dimensions", flat3),
        ("turned", "fingerprints of two numbers", turned),
        ("rows", "two rows received, and one given", put(data, first + 16, u32(2))),
        ("tokens", "three tokens received, and two given", put(data, first + 20, u32(3))),
        ("five", "fingerprints of five arrays", five),
    ]:
        yield f"checked-{name}", "MS-18", f"CHECKED with {about}", wrong
    closing = put(data, 25, b"\2")
    yield "checked-closing-2", "MS-18 CV-05", "CHECKED with closing 2", closing
    yield "checked-cut", "CV-01", "CHECKED without its last byte", data[:-1]


def _waitings() -> Iterator[Case]:
    one = flat(Waiting((Reason(Hindrance.ABSENT, 1, "abc"),)))
    for name, about, data in [
        ("hindrance-0", "hindrance 0", put(one, 2, b"\0")),
        ("hindrance-11", "hindrance 11", put(one, 2, b"\x0b")),
        ("wordless", "a reason without words", put(one, 5, u16(0))[:7]),
    ]:
        yield f"waiting-{name}", "MS-10 CV-01", f"WAITING with {about}", data
    escape = put(one, -1, b"\x1b")
    yield "waiting-escape", "MS-10 MS-02", "a reason with ESC, for terminals", escape
    turned = put(flat(Waiting((Reason(Hindrance.ABSENT, 1, "abcd"),))), -3, "\u202e".encode())
    yield "waiting-turned", "MS-10 MS-02", "a reason that turns text around", turned
    yield "waiting-utf8", "CV-03", "a reason that ends in half a character", put(one, -1, b"\xc3")
    cannot = flat(CannotServe(EPOCH, FailureKind.LOAD, "abc"))
    for code in (b"\0", b"\x0b"):
        about = f"CANNOT_SERVE with kind {code[0]}"
        yield f"cannot-kind-{code[0]}", "MS-13 CV-01", about, put(cannot, 25, code)
    yield "cannot-escape", "MS-13 MS-02", "CANNOT_SERVE with ESC", put(cannot, -1, b"\x1b")
    yield "cannot-cut", "CV-01", "CANNOT_SERVE without its last byte", cannot[:-1]
    yield "waiting-cut", "CV-01", "one reason fewer than it says", put(one, 1, b"\2")


def _addresses() -> Iterator[Case]:
    one = flat(Addresses(2, ((bytes(16), 1),)))
    yield "addresses-port-0", "MS-21 CV-01", "ADDRESSES with port 0", put(one, -2, u16(0))
    yield "addresses-cut", "CV-01", "one address fewer than it says", put(one, 3, b"\2")
    yield "addresses-half", "CV-01", "half an address", one[:-9]
    yield "addresses-more", "CV-01", "a byte after the last address", one + b"\0"


def _weights() -> Iterator[Case]:
    get, piece = flat(Get("abcd", 0, 1)), flat(Piece(2, b"xy"))
    for name, about, data in [
        ("folder", "a name in a folder", put(get, -3, b"/")),
        ("backslash", "a name in a folder, as Windows has it", put(get, -3, b"\\")),
        ("root", "a name from the root on", put(get, -4, b"/")),
        ("dot", "the name of the folder itself", put(get, 13, u16(1))[:15] + b"."),
        ("dots", "the name of the folder above", put(get, 13, u16(2))[:15] + b".."),
        ("nul", "a name with NUL", put(get, -1, b"\0")),
        ("turned", "a name that turns text around", put(get, -3, "\u202e".encode())),
    ]:
        yield f"get-{name}", "MS-16", f"GET with {about}", data
    yield "get-utf8", "CV-03", "a name that ends in half a character", put(get, -1, b"\xc3")
    yield "get-cut", "CV-01", "GET without its last byte", get[:-1]
    told = flat(Piece(0, b"", "abc"))
    for name, about, data in [
        ("more", "more data than the file's size", put(piece, 1, u64(1))),
        ("sized-reason", "a reason, and a size", put(told, 1, u64(1))),
        ("both", "a reason, and data", put(piece, 13, u16(1)) + b"z"),
        ("escape", "a reason with ESC", put(told, -1, b"\x1b")),
    ]:
        yield f"piece-{name}", "MS-17", f"PIECE with {about}", data
    yield "piece-cut", "CV-01", "PIECE without its last byte", piece[:-1]


def _relayed() -> Iterator[Case]:
    ask = flat(Ask(1, Question("GET", b"/abc", False, "ab", ((b"hij", b"klm"),))))
    end = len(ask)
    for name, requirement, about, data in [
        ("secure", "MS-22 CV-05", "secure 2", put(ask, 13, b"\2")),
        ("method-small", "MS-22", "a method in small letters", put(ask, 18, b"get")),
        ("method-space", "MS-22", "a space in the method", put(ask, 19, b" ")),
        ("method-colon", "MS-22", "a colon in the method", put(ask, 20, b":")),
        ("method-none", "MS-22", "no method", put(ask, 9, u16(0))[:18] + ask[21:]),
        ("target-none", "MS-22", "no target", put(ask, 11, u16(0))[:21] + ask[25:]),
        ("target-star", "MS-22", "a target that is no path", put(ask, 21, b"*")),
        ("target-space", "MS-22", "a space in the target", put(ask, 22, b" ")),
        ("target-break", "MS-22", "a line break in the target", put(ask, 23, b"\r\n")),
        ("target-del", "MS-22", "DEL in the target", put(ask, 24, b"\x7f")),
        ("target-high", "MS-22", "é in the target", put(ask, 23, "é".encode())),
        ("client-nul", "MS-22 MS-02", "a client with NUL", put(ask, 26, b"\0")),
        ("client-utf8", "CV-03", "a client that ends in half a character", put(ask, 26, b"\xc3")),
        ("name-none", "MS-23", "a header field without a name", ask[:27] + u16(0) + ask[32:]),
        ("name-capital", "MS-23", "a name in capitals", put(ask, 29, b"HIJ")),
        ("name-colon", "MS-23", "a name with a colon", put(ask, 31, b":")),
        ("name-space", "MS-23", "a name with a space", put(ask, 30, b" ")),
        ("name-high", "MS-23", "a name that is no ASCII", put(ask, 30, "é".encode())),
        ("value-nul", "MS-23", "a value with NUL", put(ask, end - 1, b"\0")),
        ("value-return", "MS-23", "a value with a carriage return", put(ask, end - 2, b"\r")),
        ("value-feed", "MS-23", "a value with a line feed", put(ask, end - 3, b"\n")),
    ]:
        yield f"ask-{name}", requirement, f"ASK with {about}", data
    yield "ask-cut", "CV-01", "ASK without its last byte", ask[:-1]
    yield "ask-more", "CV-01", "fewer header fields than there are", put(ask, 16, u16(0))
    yield "ask-fewer", "CV-01", "a header field fewer than it says", put(ask, 16, u16(2))
    reply = flat(Reply(1, 200, ((b"hij", b"klm"),)))
    for name, requirement, about, data in [
        ("continue", "MS-24", "status 100", put(reply, 9, u16(100))),
        ("early", "MS-24", "status 199", put(reply, 9, u16(199))),
        ("late", "MS-24", "status 600", put(reply, 9, u16(600))),
        ("name", "MS-24 MS-23", "a name in capitals", put(reply, 15, b"H")),
        ("value", "MS-24 MS-23", "a value with a line feed", put(reply, -1, b"\n")),
        ("cut", "CV-01", "a byte fewer", reply[:-1]),
    ]:
        yield f"reply-{name}", requirement, f"REPLY with {about}", data
    body, bodiless = flat(BodyPart(1, b"ab", True)), flat(BodyPart(1, b"", True))
    for name, requirement, about, data in [
        ("last", "MS-25 CV-05", "last 2", put(body, 9, b"\2")),
        ("empty", "MS-25", "no data, and more to come", put(bodiless, 9, b"\0")),
        ("cut", "CV-01", "a byte fewer", body[:-1]),
    ]:
        yield f"body-bad-{name}", requirement, f"BODY with {about}", data
    credit, drop = flat(Credit(1, 1)), flat(Drop(1, "ab"))
    yield "credit-none", "MS-26", "CREDIT of no bytes", put(credit, 9, u32(0))
    yield "credit-cut", "CV-01", "CREDIT without its last byte", credit[:-1]
    yield "drop-escape", "MS-02", "DROP for a reason with ESC", put(drop, -1, b"\x1b")
    yield "drop-cut", "CV-01", "DROP without its last byte", drop[:-1]
    yield from _elections()


def _elections() -> Iterator[Case]:
    """Messages of elections that are none."""
    no_vote = flat(NoVote(1, 2, 3, NoVoteReason.VOTED))
    for message in (Candidacy(1, 2), Vote(1, 2, bytes(64)), Renew(1, 1), Renewed(4, 1, 5)):
        name = message.CODE.name
        about = f"{name} without its last byte"
        yield f"{name.lower()}-cut", "CV-01", about, flat(message)[:-1]
    yield "no-vote-cut", "CV-01", "NO_VOTE without its last byte", no_vote[:-1]
    yield "no-vote-0", "MS-27 CV-01", "NO_VOTE for reason 0", put(no_vote, -1, b"\0")
    yield "no-vote-8", "MS-27 CV-01", "NO_VOTE for reason 8", put(no_vote, -1, b"\x08")


def _long_relayed() -> Iterator[Case]:
    ask = flat(Ask(1, Question("M" * 16, b"/", False, "c" * 64)))
    method = put(ask, 9, u16(17))[:34] + b"M" + ask[34:]
    yield "ask-method-long", "MS-22 CV-02", "a method of 17 bytes", method
    client = put(ask, 14, u16(65)) + b"c"
    yield "ask-client-long", "MS-22 CV-02", "a client of 65 bytes", client
    wide = flat(Ask(1, Question("M", b"/" * 8192, False, "")))
    yield (
        "ask-target-long",
        "MS-22 CV-02",
        "a target of 8,193 bytes",
        put(wide, 11, u16(8193)) + b"/",
    )
    field = (b"h", b"a" * 65526)
    for name, requirement, full, at in [
        ("ask", "MS-23", flat(Ask(1, Question("M", b"/", False, "", (field,)))), 16),
        ("reply", "MS-24 MS-23", flat(Reply(1, 200, (field,))), 11),
    ]:
        more = put(full, at, u16(3)) + (u16(1) + b"h" + u16(0)) * 2
        yield f"{name}-headers", f"{requirement} CV-02", "65,541 bytes of header fields", more
    fields = ((b"h", b""),) * 128
    for name, requirement, full, at in [
        ("ask", "MS-23", flat(Ask(1, Question("M", b"/", False, "", fields))), 16),
        ("reply", "MS-24 MS-23", flat(Reply(1, 200, fields)), 11),
    ]:
        more = put(full, at, u16(129)) + u16(1) + b"h" + u16(0)
        yield f"{name}-fields", f"{requirement} CV-02", "129 header fields", more
    reply = flat(Reply(1, 200, ((b"h", b"a" * 65531),)))
    value = put(reply, 16, u16(65532)) + b"a"
    yield "reply-value-long", "MS-24 MS-23 CV-02", "a header field of 65,537 bytes", value
    body = grown(flat(BodyPart(1, b"", True)), 10, u32(65537), 65537)
    yield "body-long", "MS-25 CV-02", "65,537 bytes of a body", body
    credit = put(flat(Credit(1, 1)), 9, u32(131073))
    yield "credit-long", "MS-26 CV-02", "131,073 bytes of credit", credit
    drop = put(flat(Drop(1, "a" * 256)), 9, u16(257)) + b"a"
    yield "drop-long", "MS-02 CV-02", "a reason of 257 bytes", drop


def _rows() -> Iterator[Case]:
    row, full = flat(GOOD["row-full"][1]), flat(PENALISED)
    for name, about, data in [
        ("nan", "a temperature that is no number", put(row, 19, NAN)),
        ("cold", "a temperature below 0", put(row, 19, b"\xbf\xf0")),
        ("infinite", "an infinite temperature", put(row, 19, INFINITE)),
        ("top-p", "top_p 0", put(row, 27, bytes(8))),
        ("top-p-high", "top_p 1.5", put(row, 27, f64(1.5))),
        ("top-p-nan", "a top_p that is no number", put(row, 27, NOT_A_NUMBER)),
        ("min-p", "min_p 2", put(row, 39, f64(2.0))),
        ("min-p-low", "min_p -0.5", put(row, 39, f64(-0.5))),
        ("min-p-nan", "a min_p that is no number", put(row, 39, NOT_A_NUMBER)),
        ("repetition", "a repetition penalty of 0", put(row, 47, bytes(8))),
        ("repetition-infinite", "an infinite repetition penalty", put(row, 47, INFINITE)),
        ("repetition-nan", "a repetition penalty that is no number", put(row, 47, NOT_A_NUMBER)),
        ("presence", "an infinite penalty", put(row, 55, INFINITE)),
        ("frequency", "a penalty that is no number", put(row, 63, NAN)),
        ("logprobs", "21 alternatives", put(row, 71, b"\x15")),
        ("bias", "an infinite bias", put(full, 98, INFINITE)),
        ("generated", "4 of 3 tokens generated", put(full, 77, b"\x04")),
    ]:
        yield f"row-{name}", "MS-08 CV-01", f"ROW with {about}", data
    yield "row-history-cut", "CV-01", "a token missing", full[:-4]
    held, tail = flat(CONSTRAINED), len(CONSTRAINED.grammar)
    unended = put(held, len(held) - tail - 1, b"\0")
    yield "row-bad-unended", "MS-08 CV-01", "ROW with a bad sequence without an end", unended
    yield (
        "row-bad-last-2",
        "CV-01",
        "ROW with a last of 2",
        put(held, len(held) - tail - 6, b"\2"),
    )
    yield "row-grammar-cut", "CV-01", "a byte of the grammar missing", held[:-1]


def _steps() -> Iterator[Case]:
    idle, decode = flat(STEP), flat(attrs.evolve(STEP, work=Decode(1)))
    prefill = flat(attrs.evolve(STEP, work=Prefill(5, 2, 3)))
    ahead = flat(attrs.evolve(STEP, work=Decode(1, 3, 3)))
    join = flat(attrs.evolve(STEP, join=(Join(5, 0),)))
    for name, about, data in [
        ("work-4", "work 4", put(idle, 53, b"\4")),
        ("scored-nothing", "no tokens are read and scored", put(idle, 53, b"\3")),
        ("idle-target", "a target and no work", put(idle, 61, b"\1")),
        ("idle-position", "a position and no work", put(idle, 65, b"\1")),
        ("idle-count", "a count and no work", put(idle, 69, b"\1")),
        ("decode-position", "a decode without guesses that reads one", put(decode, 65, b"\1")),
        ("decode-ahead-many", "four guesses are read ahead, of three", put(ahead, 65, b"\4")),
        ("decode-ahead-17", "17 guesses are read ahead", put(ahead, 62, u32(17) + u32(17))),
        ("decode-17", "a decode of the 17th guess", put(decode, 69, b"\x11")),
        ("decode-256", "a decode of the 256th guess", put(decode, 68, b"\1")),
        ("decode-no-group", "a decode of group 65,535", put(decode, 60, u16(65535))),
        ("decode-group", "a decode of group 65,536", put(decode, 59, b"\1\0\0")),
        ("join-no-group", "a join to group 65,535", put(join, -2, u16(65535))),
        ("prefill-nothing", "a prefill of no tokens", put(prefill, 66, u32(0))),
    ]:
        yield f"step-{name}", "MS-06 CV-01", about, data
    failed = flat(attrs.evolve(STEP, failed=Failure(1, FailureKind.LOAD, "abc")))
    yield "step-failed-2", "CV-05", "failed is 2", put(failed, 76, b"\2")
    yield "step-failure-0", "MS-07 CV-01", "failure kind 0", put(failed, 79, b"\0")
    yield "step-failure-11", "MS-07 CV-01", "failure kind 11", put(failed, 79, b"\x0b")
    yield "step-failure-text", "MS-02", "a failure with ESC", put(failed, -1, b"\x1b")
    yield "step-failure-missing", "CV-01", "failed without a failure", put(idle, 76, b"\1")
    yield "step-ids-cut", "CV-01", "one id fewer than it says", put(idle, 74, b"\1")
    yield "step-list-cut", "CV-01", "4,096 evicts declared, none there", put(idle, 45, u16(4096))
    yield "step-tensor-missing", "CV-01", "a tensor declared, none there", put(idle, 75, b"\1")
    done = flat(StepDone(EPOCH, 1))
    failed = flat(StepDone(EPOCH, 1, failed=FAILURE))
    behind = failed[len(done) :]
    one_id, hidden = flat(StepDone(EPOCH, 1, ids=(7,))), flat(StepDone(EPOCH, 1, tensors=(PLAIN,)))
    tensor = hidden[len(done) :]
    for name, about, data in [
        ("ids-tensors", "ids and hidden states", put(one_id, 30, b"\1") + tensor),
        ("ids-failed", "ids and a failure", put(one_id, 31, b"\1") + behind),
        ("tensors-failed", "hidden states and a failure", put(hidden, 31, b"\1") + behind),
    ]:
        yield f"done-{name}", "MS-14", f"STEP_DONE with {about}", data
    yield "done-failed-2", "CV-05", "failed is 2", put(done, 31, b"\2")
    yield "done-ids-cut", "CV-02 CV-01", "1,048,576 ids, none there", put(done, 26, u32(1 << 20))


def _tensors() -> Iterator[Case]:
    head, data = 77, flat(TENSOR)
    for name, about, at, field in [
        ("dtype-0", "dtype 0", head, b"\0"),
        ("dtype-5", "dtype 5", head, b"\5"),
        ("sealed-2", "sealed 2", head + 1, b"\2"),
        ("zero", "a third byte that is not 0", head + 3, b"\1"),
        ("counter", "a counter, not sealed", head + 11, b"\1"),
    ]:
        yield f"tensor-{name}", "TN-01 CV-01", f"a tensor with {about}", put(data, at, field)
    yield "tensor-cut", "CV-01", "elements that are cut short", data[:-1]
    yield "tensor-long", "CV-01", "one byte more than the shape says", data + b"\0"
    grown = put(data, head + 12, u32(2))
    yield "tensor-shape", "CV-01 CV-02", "a shape that needs more than is there", grown
    sealed = flat(attrs.evolve(TENSOR, tensors=(SEALED,)))
    twice = put(sealed, head + 1, b"\2") + bytes(16)
    yield "tensor-sealed-twice", "TN-01 CV-05", "sealed 2, and room for two tags", twice
    once = put(sealed, head + 1, b"\2")
    yield "tensor-sealed-once", "TN-01 CV-05", "sealed 2, and room for one tag", once
    tag = put(sealed, head + 1, b"\0")
    plain = put(tag, head + 4, bytes(8))
    yield "tensor-untagged", "CV-01", "a tag on a tensor that is not sealed", plain


def _beyond_limits() -> Iterator[Case]:
    """What is counted is there each time, so that the limit alone refuses it."""
    longer = put(flat(Close(1, "a" * 256)), 3, u16(257)) + b"a"
    yield "close-long", "MS-02 CV-02", "a reason of 257 bytes", longer
    roster = grown(flat(Accept(bytes(32), 7, b"")), 41, u32(53390), 53390)
    yield "accept-roster-long", "RO-07 CV-02", "a roster of 53,390 bytes", roster
    admit = flat(Admit(b"", ""))
    given = grown(admit, 1, u32(53390), 53390)
    yield "admit-roster-long", "RO-07 CV-02", "a roster of 53,390 bytes", given
    given = grown(admit, 5, u16(4097), 4097)
    yield "admit-settings-long", "JN-25 CV-02", "settings of 4,097 bytes", given
    windowless = flat(attrs.evolve(READY, cost=CacheCost(1, 2)))
    windows = grown(windowless, len(windowless) - 2, u16(17), 17 * 12)
    yield "ready-windows", "MS-03 CV-02", "17 windows", windows
    yield "ready-layers", "MS-03 CV-02", "1,025 layers", put(flat(READY), 19, u16(1025))
    yield "hello-layers", "MS-11 CV-02", "1,025 layers", put(flat(HELLO), 33, u16(1025))
    pins = grown(flat(HELLO), 54, u16(1027), 1027 * 8)
    yield "hello-pins-many", "MS-11 CV-02", "1,027 pins", pins
    version = put(flat(attrs.evolve(HELLO, build=Build("v" * 64))), 52, u16(65)) + b"v"
    yield "hello-version-long", "MS-20 CV-02", "a version of 65 bytes", version
    one = flat(Waiting((Reason(Hindrance.ABSENT, 1, "a" * 256),)))
    yield "waiting-long", "MS-10 CV-02", "a reason of 257 bytes", put(one, 5, u16(257)) + b"a"
    short = flat(Waiting((Reason(Hindrance.ABSENT, 1, "a"),)))
    many = put(short, 1, b"\x11") + short[2:] * 16
    yield "waiting-17", "MS-10 CV-02", "17 reasons", many
    four = flat(Addresses(2, ((bytes(16), 1),) * 4))
    five = put(four, 3, b"\5") + four[-18:]
    yield "addresses-5", "MS-21 CV-02", "5 addresses", five
    cannot = flat(CannotServe(EPOCH, FailureKind.LOAD, "a" * 256))
    yield "cannot-long", "MS-13 CV-02", "257 bytes of words", put(cannot, 26, u16(257)) + b"a"
    get, piece = flat(Get("a", 0, 1 << 20)), flat(Piece(1 << 20))
    yield "get-long", "MS-16 CV-02", "1,048,577 bytes asked for", put(get, 9, u32((1 << 20) + 1))
    name = put(flat(Get("a" * 255, 0, 1)), 13, u16(256)) + b"a"
    yield "get-name", "MS-16 CV-02", "a name of 256 bytes", name
    data = grown(put(piece, 1, u64(1 << 21)), 9, u32((1 << 20) + 1), (1 << 20) + 1)
    yield "piece-long", "MS-17 CV-02", "1,048,577 bytes of data", data
    reason = put(flat(Piece(0, b"", "a" * 256)), 13, u16(257)) + b"a"
    yield "piece-reason", "MS-17 CV-02", "a reason of 257 bytes", reason
    yield from _long_relayed()
    yield from _long_bootstraps()
    row = flat(Row(5))
    yield "row-biases", "MS-08 CV-02", "1,025 biases", grown(row, 72, u16(1025), 1025 * 12)
    history = grown(row, 78, u32((1 << 20) + 1), 4 * ((1 << 20) + 1))
    yield "row-history", "MS-08 CV-02", "1,048,577 tokens of history", history
    ends = grown(row, 86, u16(257), 257 * 4)
    yield "row-ends", "MS-08 CV-02", "257 ends", ends
    bad = put(row, 88, u16(1025)) + (u32(7) + b"\1") * 1025
    yield "row-bad", "MS-08 CV-02", "1,025 tokens of bad sequences", bad
    grammar = grown(row, 90, u32((1 << 17) + 1), (1 << 17) + 1)
    yield "row-grammar", "MS-08 CV-02", "131,073 bytes of grammar", grammar
    yield from _long_steps()
    head, tensor = 77, flat(TENSOR)
    five = put(tensor, head + 2, b"\5")[: head + 12] + u32(1) * 5 + bytes(2)
    yield "tensor-dimensions", "TN-02 CV-02", "5 dimensions", five
    shape = u32(1) + u32(1) + u32((1 << 23) + 1)
    big = put(tensor, head + 12, shape)[: head + 24] + bytes((1 << 24) + 2)
    yield "tensor-bytes", "TN-02 CV-02", "16,777,218 bytes of elements", big
    huge = put(tensor, head + 12, b"\xff" * 12)
    yield "tensor-huge", "TN-02 CV-02", "a product beyond 64 bits", huge


def _long_bootstraps() -> Iterator[Case]:
    boot = flat(BOOTSTRAP)
    yield "bootstrap-layers", "MS-04 CV-02", "1,025 layers", put(boot, 73, u16(1025))
    bounds = put(boot, 61, u16(18))[:69] + b"".join(u16(bound) for bound in range(18))
    yield "bootstrap-bounds-18", "MS-04 CV-02", "18 bounds", bounds
    whole = attrs.evolve(JOIN, hosts=(("h", 1),) * 16)
    hosts = put(flat(whole), 63, u16(17)) + u16(1) + b"h" + u16(1)
    yield "bootstrap-hosts-17", "MS-04 CV-02", "17 hosts", hosts
    members = put(boot, 65, u16(17)) + b"".join(map(u16, range(17)))
    yield "bootstrap-members-17", "MS-04 CV-02", "17 members", members
    host = flat(attrs.evolve(JOIN, hosts=(("h" * 255, 1), ("h", 2))))
    longer = host[:73] + u16(256) + b"h" + host[75:]
    yield "bootstrap-host-long", "CV-02", "a host of 256 bytes", longer
    many = put(boot, 67, u16(4097)) + b"".join(u64(n) + u32(1) for n in range(1, 4098))
    yield "bootstrap-kept-4097", "MS-04 CV-02", "4,097 caches to keep", many


def _long_steps() -> Iterator[Case]:
    idle, done = flat(STEP), flat(StepDone(EPOCH, 1))
    lists = {"back": 9, "save": 16, "evict": 8, "drop": 8, "open": 20, "join": 10}
    for at, (what, size) in zip(range(41, 53, 2), lists.items(), strict=True):
        data = grown(idle, at, u16(4097), 4097 * size)
        yield f"step-{what}-4097", "MS-05 CV-02", f"{what}: 4,097 entries", data
    many = (1 << 20) + 1
    four = (PLAIN, PLAIN, PLAIN, PLAIN)
    fifth = flat(TENSOR)[77:]
    for name, bare, spent, ids, tensors, full in [
        ("step", idle, 70, 71, 75, attrs.evolve(STEP, tensors=four)),
        ("done", done, 25, 26, 30, attrs.evolve(DONE, spent=(), tensors=four)),
    ]:
        about = "1,048,577 ids"
        yield f"{name}-ids-many", "MS-05 CV-02", about, grown(bare, ids, u32(many), 4 * many)
        yield f"{name}-spent-18", "MS-05 CV-02", "18 times", grown(bare, spent, b"\x12", 18 * 12)
        data = put(flat(full), tensors, b"\5") + fifth
        yield f"{name}-tensors-5", "MS-05 CV-02", "5 tensors", data
    failed = flat(attrs.evolve(STEP, failed=Failure(1, FailureKind.LOAD, "a" * 256)))
    longer = put(failed, 80, u16(257)) + b"a"
    yield "step-failure-long", "MS-02 CV-02", "a failure of 257 bytes", longer
