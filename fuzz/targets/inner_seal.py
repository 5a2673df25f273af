"""The inner seal's opener against a model: tensors of every counter, in and out of their place.

Input: the suite, then tensors: where the counter goes, what is lied about, which bytes are bent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import attrs
from sealring_protocol.codec.messages import Epoch
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.errors import (
    AuthenticationFailed,
    LimitExceeded,
    PolicyMismatch,
    RemoteProtocolError,
)
from sealring_protocol.limits import MAX_INNER_SKIP
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.seal import InnerContext, InnerOpener, InnerSealer

from fuzz.expect import raised
from fuzz.people import Field, Say, bitten, lies, number, one_of
from fuzz.source import Source
from spec.vectors.inner_seals import ELEMENTS, PLACE, SECRET
from spec.vectors.plain import inner_sealed
from spec.vectors.world import CLUSTER, OTHER_CLUSTER

CONTEXT: Final = InnerContext(
    Epoch(PLACE.instance, PLACE.counter), PLACE.n, PLACE.group, 12, (5, 9)
)
LEAPS: Final = (1, 1, 1, 2, 60, 64, 65535, 65536, MAX_INNER_SKIP, MAX_INNER_SKIP + 1, 0, -1)
PLACES: Final[dict[str, Field]] = {
    "cluster": one_of(OTHER_CLUSTER, CLUSTER),
    "instance": number(8),
    "counter": number(8),
    "n": number(8),
    "group": number(2),
    "boundary": number(2),
    "dtype": one_of(2, 3, 4),
    "shape": one_of((1, 2, 2), (4,), (2, 2, 1), ()),
    "uids": one_of((9, 5), (5,), (), (5, 9, 9)),
}


def seeds() -> Iterator[bytes]:
    """Every leap, and every lie."""
    for suite in range(2):
        for leap in range(len(LEAPS)):
            yield bytes([suite]) + bytes([0, 0, 0, leap, 0, 0, 0, 0]) * 3
        for lie in range(len(PLACES)):
            yield bytes([suite, 0, 0, 0, 0, 1, lie, 0, 0, 0, 0])
        yield bytes([suite, 1, 0, 0, 0, 0, 0])


def check(data: bytes) -> None:
    """It opens exactly what was sealed for its place, in order; then nothing after a failure."""
    source = Source(data)
    suite = source.pick((1, 2))
    opener = InnerOpener(Suite(suite), SECRET, CLUSTER)
    sealer = InnerSealer(Suite(suite), SECRET, CLUSTER)
    last, dead = -1, None
    while not source.empty:
        plain = source.below(8) == 1
        counter = last + LEAPS[source.number(3) % len(LEAPS)]
        say = lies(source, PLACES)
        sealed = b"" if counter < 0 else _sealed(suite, counter, say)
        bent = bitten(source, sealed)
        tensor = Tensor(DType.F32, PLACE.shape, bent, not plain, max(0, counter))
        error = raised(functools.partial(_opens, opener, tensor))
        assert error is None or isinstance(error, RemoteProtocolError)
        if dead is not None:
            assert error is dead
            continue
        honest = bent == sealed and attrs.evolve(PLACE, **say) == PLACE
        expected = _expected(plain, tensor.counter, last, honest and counter >= 0)
        assert type(error) is expected if expected else error is None
        dead = error
        if error is None:
            if counter == last + 1 and counter < 64:
                _same(sealer, counter, tensor)
            last = counter


def _sealed(suite: int, counter: int, say: Say) -> bytes:
    return inner_sealed(suite, SECRET, counter, ELEMENTS, attrs.evolve(PLACE, **say))


def _opens(opener: InnerOpener, tensor: Tensor) -> None:
    assert opener.open(CONTEXT, tensor) == ELEMENTS


def _expected(plain: bool, counter: int, last: int, honest: bool) -> type[Any] | None:
    if plain:
        return PolicyMismatch
    if counter <= last:
        return AuthenticationFailed
    if counter - last - 1 > MAX_INNER_SKIP:
        return LimitExceeded
    return None if honest else AuthenticationFailed


def _same(sealer: InnerSealer, counter: int, tensor: Tensor) -> None:
    """The sealer, as long as it has sealed as many, makes the same bytes."""
    mine = sealer.seal(CONTEXT, DType.F32, PLACE.shape, ELEMENTS)
    if mine.counter == counter:
        assert mine == tensor
