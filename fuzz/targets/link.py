"""A link that is up, fed by a member who seals whatever it likes: whole against split.

Input: who dialed and what for, how to cut, then deliveries: sealed plaintexts, raw bytes, time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from sealring_protocol.codec.messages import Ping, Pong, Progress
from sealring_protocol.conformance.result import End, whole
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.security.roles import Purpose

from fuzz.people import begun, bitten
from fuzz.source import Source
from spec.vectors.ends import Delivery, answerer
from spec.vectors.plaintexts import flat
from spec.vectors.talk import Talk
from spec.vectors.whole_messages import GOOD
from spec.vectors.world import ADA, CAT

PLAINTEXTS: Final = tuple(
    flat(message)
    for message in (
        *(message for _, message in GOOD.values()),
        *(Ping(echo, Progress()) for echo in range(3)),
        *(Pong(echo, Progress()) for echo in range(3)),
    )
    if len(flat(message)) < 600
)

_EDGE: Final = 40


def seeds() -> Iterator[bytes]:
    """Every good message by itself, in one place after the other, and mixtures in each.

    Which message may be sent in which place is a table, which the vectors go through.
    """
    places = [bytes(place) for place in itertools.product(range(2), range(len(Purpose)))]
    for at, place in zip(range(len(PLAINTEXTS)), itertools.cycle(places), strict=False):
        yield place + bytes([5, 0, 0, at, 0, 0])
    for place in places:
        yield place + bytes([1, 0]) + bytes([0, 5, 0, 0]) * 30
        yield place + bytes([9, 1, 3, 70, 0, 9, 0, 0, 3, 90, 3, 90])
        yield place + bytes([9, 0, 1, 20]) + bytes(20)
        yield place + bytes([9, 0, 0, 6, 0, 0, 2, 1, 0, 0, 0, 4])


def check(data: bytes) -> None:
    """The same comes of it however it is cut, and what comes out was sealed, in order."""
    source = Source(data)
    dialer, purpose = source.pick((ADA, CAT)), 1 + source.below(len(Purpose))
    size, end = 1 + source.below(60), source.flag()
    talk = begun(dialer=dialer)
    talk.purpose = purpose
    talk.fin()
    sealed: list[bytes] = []
    up: tuple[Delivery, ...] = (0.01, talk.init_frame), (0.02, talk.fin_frame)
    given = answerer(talk, *up, *_deliveries(source, talk, sealed), end=end)
    one = run(given, 1 << 24)
    other = run(given, size)
    assert one.output() == other.output()
    assert type(one.error) is type(other.error)
    _holds(one, sealed)


def run(given: object, size: int) -> End:
    """An end with deliveries cut to pieces of *size*."""
    assert isinstance(given, dict)
    end = End(given)

    def cut(data: bytes) -> Sequence[bytes]:
        return whole(data) if size >= len(data) else _pieces(data, size)

    end.run(cut)
    return end


def _pieces(data: bytes, size: int) -> list[bytes]:
    """Small pieces where a frame begins and ends, and the middle of a long one whole."""
    first = range(0, min(_EDGE, len(data)), size)
    last = range(max(0, len(data) - _EDGE), len(data), size)
    edges = sorted({*first, *last, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def _deliveries(source: Source, talk: Talk, sealed: list[bytes]) -> Iterator[Delivery]:
    now, number = 0.03, 0
    while not source.empty and number < 120:
        match source.below(5):
            case 0 | 4:
                plaintext = bitten(source, source.pick(PLAINTEXTS))
                sealed.append(plaintext)
                yield now, talk.to_answerer(number, plaintext)
                number += 1
            case 1:
                yield now, source.take(source.below(60))
            case 2:
                sealed.append(source.pick(PLAINTEXTS))
                yield now, bitten(source, talk.to_answerer(number, sealed[-1]))
                number += 1
            case _:
                now = round(now + source.below(200) / 100, 2)
                yield now, b""


def _holds(end: End, sealed: list[bytes]) -> None:
    """Documented errors alone, and no message that was not sealed, nor out of order."""
    assert end.error is None or isinstance(end.error, RemoteProtocolError), end.error
    left = iter(sealed)
    assert all(message in left for message in end.messages)
    output = end.output()
    assert output["link"] is not None
    assert output["told"] is None or end.error is not None
