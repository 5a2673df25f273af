"""Streams of an API link: one end, what its owner does and what its peer sends (11.14)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sealring_protocol.codec.messages import Message
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Credit, Drop, Question, Reply
from sealring_protocol.errors import CloseCode

from spec.vectors.model import LIMIT, MALFORMED, Json, Vector, refused, u64, valid
from spec.vectors.plaintexts import flat

ASK: Final = Ask(1, Question("GET", b"/", False, ""))
HALF: Final = BodyPart(1, bytes(65536))
END: Final = BodyPart(1, b"", True)
REPLY: Final = Reply(1, 200)
GIVEN: Final[Mapping[str, bytes]] = {"half": flat(HALF)}


def got(*messages: Message) -> list[Json]:
    """The peer sends *messages*."""
    return [{"got": flat(message).hex()} for message in messages]


def sends(*messages: Message) -> list[Json]:
    """The owner sends *messages*."""
    return [{"sends": flat(message).hex()} for message in messages]


def takes(size: int) -> list[Json]:
    """The owner consumes *size* bytes of what came on stream 1."""
    return [{"takes": u64(1), "size": size}]


ASKED: Final = sends(ASK)
REQUESTED: Final = sends(ASK, END)
AT_HEAD: Final = got(ASK)

Case = tuple[str, str, bool, Sequence[Json], Sequence[Message], int]
"""Requirements, what it is about, whether the end asks, the course, what it sends by itself after
its owner's messages, and how many streams are left."""

COURSES: Final[dict[str, Case]] = {
    "whole": (
        "RQ-01 RQ-02",
        "a request and its answer, at the rank",
        True,
        [*REQUESTED, *got(REPLY, BodyPart(1, b"text"), END)],
        (),
        0,
    ),
    "whole-head": (
        "RQ-01 RQ-02",
        "a request and its answer, at the head",
        False,
        [*got(ASK, BodyPart(1, b"{}", True)), *sends(REPLY, BodyPart(1, b"text", True))],
        (),
        0,
    ),
    "early": (
        "RQ-02",
        "the answer is whole before the request is",
        False,
        [*got(ASK, BodyPart(1, b"a")), *sends(REPLY, END), *got(BodyPart(1, b"b"), END)],
        (),
        0,
    ),
    "early-drop": (
        "RQ-02 RQ-06",
        "the head wants no more of a request that it has answered, and the rank lets go",
        True,
        [*ASKED, *got(REPLY, END, Drop(1, "no more")), *sends(Drop(1))],
        (),
        0,
    ),
    "two": (
        "RQ-01",
        "two streams at a time, of which the second is answered first",
        False,
        [*got(ASK, Ask(2, ASK.question), END, BodyPart(2, b"", True)), *sends(Reply(2, 404))],
        (),
        2,
    ),
    "window": (
        "RQ-04",
        "as much as the credit allows, and a part without data",
        True,
        [*REQUESTED, *got(REPLY, HALF, HALF, END)],
        (),
        0,
    ),
    "credit": (
        "RQ-04 RQ-05",
        "what the owner has consumed comes back as credit, and is used again",
        True,
        [*REQUESTED, *got(REPLY, HALF, HALF), *takes(131072), *got(HALF, HALF)],
        (Credit(1, 131072),),
        1,
    ),
    "credit-again": (
        "RQ-05",
        "each byte gives credit once",
        True,
        [*REQUESTED, *got(REPLY, HALF, HALF), *takes(65536), *takes(65536)],
        (Credit(1, 65536), Credit(1, 65536)),
        1,
    ),
    "credit-half": (
        "RQ-05",
        "no credit before half a window was consumed",
        True,
        [*REQUESTED, *got(REPLY, HALF, HALF), *takes(65535)],
        (),
        1,
    ),
    "credit-from-half": (
        "RQ-05",
        "credit for all that was consumed since the last",
        True,
        [*REQUESTED, *got(REPLY, HALF, HALF), *takes(65535), *takes(3)],
        (Credit(1, 65538),),
        1,
    ),
    "credit-whole": (
        "RQ-05",
        "a body that is whole needs no credit",
        True,
        [*ASKED, *got(REPLY, HALF, HALF, END), *takes(131072)],
        (),
        1,
    ),
    "credit-used": (
        "RQ-04",
        "credit for what was sent",
        True,
        [*sends(ASK, HALF, HALF), *got(Credit(1, 65536), Credit(1, 65536)), *sends(HALF, END)],
        (),
        1,
    ),
    "credit-late": (
        "RQ-04",
        "credit that crosses the end of a stream",
        False,
        [*got(ASK, END), *sends(REPLY, HALF, END), *got(Credit(1, 65536))],
        (),
        0,
    ),
    "credit-given-up": (
        "RQ-04",
        "credit that crosses DROP, more than there could be",
        True,
        [*sends(ASK, Drop(1, "gone")), *got(Credit(1, 131072))],
        (),
        1,
    ),
    "given-up": (
        "RQ-02",
        "what was under way when a stream was given up",
        True,
        [*REQUESTED, *sends(Drop(1, "gone")), *got(REPLY, HALF)],
        (),
        1,
    ),
    "given-up-answered": (
        "RQ-06",
        "DROP is answered by DROP, and the stream is over",
        True,
        [*REQUESTED, *sends(Drop(1, "gone")), *got(REPLY, Drop(1))],
        (),
        0,
    ),
    "crossed": (
        "RQ-06",
        "DROP of a stream that is over has crossed its end",
        False,
        [*got(ASK, END), *sends(REPLY, END), *got(Drop(1, "gone"))],
        (),
        0,
    ),
    "given-up-asking": (
        "RQ-02 RQ-06",
        "a whole answer that crosses DROP before the request was whole",
        True,
        [*ASKED, *sends(Drop(1, "gone")), *got(REPLY, HALF, END, Drop(1))],
        (),
        0,
    ),
    "left-answered": (
        "RQ-02 RQ-06",
        "the head lets go of an answer while the request is under way",
        True,
        [*ASKED, *got(REPLY, Drop(1, "no")), *sends(Drop(1))],
        (),
        0,
    ),
    "given-up-whole": (
        "RQ-02 RQ-06",
        "the end of an answer that crosses DROP ends the stream",
        True,
        [*REQUESTED, *sends(Drop(1, "gone")), *got(REPLY, HALF, END)],
        (),
        0,
    ),
    "given-up-early": (
        "RQ-02 RQ-06",
        "the end of a request that crosses DROP, after the answer",
        False,
        [*AT_HEAD, *sends(REPLY, END, Drop(1, "no more")), *got(HALF, END)],
        (),
        0,
    ),
    "given-up-asked": (
        "RQ-02",
        "the end of a request that crosses DROP, before the answer",
        False,
        [*AT_HEAD, *sends(Drop(1, "no")), *got(HALF, END)],
        (),
        1,
    ),
    "given-up-again": (
        "RQ-03 RQ-06",
        "the end of a request that crosses DROP, and a stream in its place",
        False,
        [
            *got(*(Ask(n, ASK.question) for n in range(1, 257))),
            *sends(REPLY, END, Drop(1, "no more")),
            *got(END, Ask(257, ASK.question)),
        ],
        (),
        256,
    ),
    "both": (
        "RQ-06",
        "both ends let go at once",
        False,
        [*AT_HEAD, *sends(Drop(1, "mine")), *got(Drop(1, "yours"))],
        (),
        0,
    ),
    "left": (
        "RQ-03 RQ-06",
        "a stream that the peer has dropped counts until this end lets go",
        False,
        got(ASK, END, Drop(1, "gone")),
        (),
        1,
    ),
    "again": (
        "RQ-01 RQ-03",
        "as many streams as there may be, and one in the place of another",
        False,
        [
            *got(*(Ask(n, ASK.question) for n in range(1, 257)), Drop(1)),
            *sends(Drop(1)),
            *got(Ask(257, ASK.question)),
        ],
        (),
        256,
    ),
}

_FULL: Final = got(*(Ask(n, ASK.question) for n in range(1, 257)))

FAULTS: Final[dict[str, tuple[str, str, bool, Sequence[Json], Message, CloseCode]]] = {
    "first": ("RQ-01", "a first stream that is not 1", False, [], Ask(2, ASK.question), MALFORMED),
    "zero": ("RQ-01", "stream 0", False, [], Ask(0, ASK.question), MALFORMED),
    "twice": ("RQ-01", "the same stream twice", False, AT_HEAD, ASK, MALFORMED),
    "skipped": ("RQ-01", "a stream too far", False, AT_HEAD, Ask(3, ASK.question), MALFORMED),
    "many": ("RQ-03", "257 streams", False, _FULL, Ask(257, ASK.question), LIMIT),
    "many-left": (
        "RQ-03",
        "257 streams, of which this end has not let one go that the peer dropped",
        False,
        [*_FULL, *got(Drop(7))],
        Ask(257, ASK.question),
        LIMIT,
    ),
    "many-given-up": (
        "RQ-03",
        "257 streams, of which the peer has not let one go that this end dropped",
        False,
        [*_FULL, *sends(Drop(7))],
        Ask(257, ASK.question),
        LIMIT,
    ),
    "body-early": ("RQ-02", "an answer's body before REPLY", True, ASKED, END, MALFORMED),
    "reply-twice": ("RQ-02", "two REPLYs", True, [*ASKED, *got(REPLY)], REPLY, MALFORMED),
    "reply-over": (
        "RQ-02",
        "REPLY of a stream that is over",
        True,
        [*REQUESTED, *got(REPLY, END)],
        REPLY,
        MALFORMED,
    ),
    "reply-never": ("RQ-02", "REPLY of no stream", True, ASKED, Reply(2, 200), MALFORMED),
    "after-last": (
        "RQ-02",
        "more of a body after its last part",
        True,
        [*ASKED, *got(REPLY, END)],
        BodyPart(1, b"x"),
        MALFORMED,
    ),
    "after-last-head": (
        "RQ-02",
        "more of a request after its last part",
        False,
        got(ASK, END),
        BodyPart(1, b"x"),
        MALFORMED,
    ),
    "body-over": (
        "RQ-02",
        "a body of a stream that is over",
        False,
        [*got(ASK, END), *sends(REPLY, END)],
        BodyPart(1, b"x"),
        MALFORMED,
    ),
    "body-never": ("RQ-02", "a body of no stream", False, [], BodyPart(1, b"x"), MALFORMED),
    "after-drop": (
        "RQ-02",
        "a body after DROP",
        False,
        got(ASK, Drop(1)),
        BodyPart(1, b"x"),
        MALFORMED,
    ),
    "after-given-up": (
        "RQ-02",
        "more of a request after its last part, of a stream that this end has given up",
        False,
        [*got(ASK, END), *sends(Drop(1))],
        BodyPart(1, b"x"),
        MALFORMED,
    ),
    "after-given-up-early": (
        "RQ-02",
        "more of an answer after its last part, of a stream that this end has given up",
        True,
        [*ASKED, *got(REPLY, END), *sends(Drop(1))],
        BodyPart(1, b"x"),
        MALFORMED,
    ),
    "drop-twice": ("RQ-02", "two DROPs", False, got(ASK, Drop(1)), Drop(1), MALFORMED),
    "drop-never": ("RQ-06", "DROP of no stream", False, AT_HEAD, Drop(2), MALFORMED),
    "drop-zero": ("RQ-06", "DROP of stream 0", False, AT_HEAD, Drop(0), MALFORMED),
    "window-passed": (
        "RQ-04",
        "a byte more than the credit",
        True,
        [*REQUESTED, *got(REPLY, HALF, HALF)],
        BodyPart(1, b"x"),
        LIMIT,
    ),
    "window-given-up": (
        "RQ-04",
        "a byte more than the credit, of a stream that this end has given up",
        True,
        [*REQUESTED, *got(REPLY, HALF), *sends(Drop(1)), *got(HALF)],
        BodyPart(1, b"x"),
        LIMIT,
    ),
    "window-credited": (
        "RQ-04",
        "a byte more than the credit that was given in between",
        True,
        [*REQUESTED, *got(REPLY, HALF, HALF), *takes(65536), *got(HALF)],
        BodyPart(1, b"x"),
        LIMIT,
    ),
    "credit-much": ("RQ-04", "credit for what was not sent", True, ASKED, Credit(1, 1), LIMIT),
    "credit-twice": (
        "RQ-04",
        "credit twice for one part",
        True,
        [*ASKED, *sends(HALF), *got(Credit(1, 65536))],
        Credit(1, 1),
        LIMIT,
    ),
    "credit-never": ("RQ-04", "credit of no stream", True, ASKED, Credit(2, 1), MALFORMED),
}


def _heard(course: Sequence[Json], ignored: Sequence[Message]) -> list[str]:
    quiet = [flat(message).hex() for message in ignored]
    heard = [move["got"] for move in course if "got" in move]
    for each in quiet:
        del heard[len(heard) - 1 - heard[::-1].index(each)]
    return heard


IGNORED: Final[Mapping[str, Sequence[Message]]] = {
    "credit-late": (Credit(1, 65536),),
    "credit-given-up": (Credit(1, 131072),),
    "given-up": (REPLY, HALF),
    "given-up-asking": (REPLY, HALF, END, Drop(1)),
    "given-up-whole": (REPLY, HALF, END),
    "given-up-early": (HALF, END),
    "given-up-asked": (HALF, END),
    "given-up-again": (END,),
    "given-up-answered": (REPLY, Drop(1)),
    "crossed": (Drop(1, "gone"),),
    "both": (Drop(1, "yours"),),
    "window-given-up": (HALF,),
}
"""What of a course comes too late for the owner to hear of it."""

LEFT: Final[Mapping[str, int]] = {
    "first": 0,
    "zero": 0,
    "many": 256,
    "many-left": 256,
    "many-given-up": 256,
    "reply-over": 0,
    "body-over": 0,
    "body-never": 0,
}
"""The streams that are left before the fault, where that is not 1."""


def _output(name: str, course: Sequence[Json], more: Sequence[Message], streams: int) -> Json:
    sent = [move["sends"] for move in course if "sends" in move]
    return {
        "sent": [*sent, *(flat(message).hex() for message in more)],
        "heard": _heard(course, IGNORED.get(name, ())),
        "streams": streams,
    }


def vectors() -> Iterator[Vector]:
    """Courses of one end; in a faulty one the last message is refused."""
    for name, (ids, about, asks, course, more, streams) in COURSES.items():
        given = {"asks": asks, "course": list(course)}
        output = _output(name, course, more, streams)
        yield valid(f"relay/{name}", "relay", ids, about, given, output)
    for name, (ids, about, asks, course, fault, why) in FAULTS.items():
        given = {"asks": asks, "course": [*course, *got(fault)]}
        credit = [Credit(1, 65536)] if name == "window-credited" else []
        output = _output(name, course, credit, LEFT.get(name, 1))
        yield refused(f"relay/{name}", "relay", ids, about, given, why, output=output)
