"""ROW's encoder and decoder, as in `writers` and `readers`."""

from __future__ import annotations

from sealring_protocol.codec.layouts import BAD, BIAS, ROW
from sealring_protocol.codec.messages import Row
from sealring_protocol.codec.readers import read_ids
from sealring_protocol.codec.wire import Buffer, Reader, at_most
from sealring_protocol.codec.writers import write_ids
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import MAX_BAD, MAX_BIAS, MAX_ENDS, MAX_GRAMMAR


def encode_row(m: Row) -> list[Buffer]:
    """The parts of ROW."""
    at_most(len(m.bias), MAX_BIAS, "biases")
    at_most(len(m.ends), MAX_ENDS, "ends")
    at_most(len(m.grammar), MAX_GRAMMAR, "bytes of a grammar")
    bad = [(token, at == len(ids)) for ids in m.bad for at, token in enumerate(ids, 1)]
    at_most(len(bad), MAX_BAD, "tokens of bad sequences")
    head = ROW.pack(
        m.CODE,
        m.uid,
        m.seed,
        m.choice,
        m.temperature,
        m.top_p,
        m.top_k,
        m.min_p,
        m.repetition,
        m.presence,
        m.frequency,
        m.logprobs,
        len(m.bias),
        m.generated,
        len(m.history),
        m.least,
        len(m.ends),
        len(bad),
        len(m.grammar),
    )
    bias = b"".join(BIAS.pack(token, value) for token, value in m.bias)
    return [
        head + bias + (write_ids(m.history) if m.history else b""),
        write_ids(m.ends),
        b"".join(BAD.pack(token, last) for token, last in bad) + m.grammar,
    ]


def decode_row(reader: Reader) -> Row:
    """Read ROW."""
    _, *fields, biased, generated, length, least, ends, bad, size = reader.unpack(ROW)
    if biased > MAX_BIAS:
        raise LimitExceeded(f"{biased} biases; the limit is {MAX_BIAS}")
    if ends > MAX_ENDS or bad > MAX_BAD or size > MAX_GRAMMAR:
        raise LimitExceeded("ROW declares more of what constrains a row than there may be")
    bias = tuple((token, value) for token, value in (reader.unpack(BIAS) for _ in range(biased)))
    history, ended = read_ids(reader, length), read_ids(reader, ends)
    sequences = _sequences(reader, bad)
    rest = [bias, history, generated, least, ended, sequences, reader.fixed(size)]
    return Row(*[*fields, *rest])


def _sequences(reader: Reader, count: int) -> tuple[tuple[int, ...], ...]:
    """Sequences of *count* tokens together, each with a mark on its last."""
    sequences: list[tuple[int, ...]] = []
    tokens: list[int] = []
    for token, last in (reader.unpack(BAD) for _ in range(count)):
        if last > 1:
            raise RemoteProtocolError("ROW has a field out of range")
        tokens.append(token)
        if last:
            sequences.append(tuple(tokens))
            tokens = []
    if tokens:
        raise RemoteProtocolError("the last bad sequence of a ROW has no end")
    return tuple(sequences)
