"""The files of the trace: ``README.md`` for people, ``values.json`` for programs, ``session.pcap``
and ``session.keys`` for `sealring decode` and Wireshark. `spec.generate` writes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sealring_protocol.codec.wire import fields
from sealring_protocol.limits import AEAD_TAG

from spec.tables import FIELDS, THEN, size_of
from spec.trace import link
from spec.vectors.plain import PROTOCOLS, Keys, hmac, sha256, unseal
from spec.vectors.talk import ANSWERING, CT, DIALING, KEM, X_ANSWERING, X_DIALING
from spec.vectors.world import ADA, BEN, CLUSTER, COORDINATOR, HOME, NOW

HERE: Final = Path(__file__).parent
_LONG: Final = 64
_HEAD: Final = """\
# One link, byte by byte

Written by `python -m spec.generate`. The link is made of the keys and the entropy of the vectors:
ada, rank 0, dials ben, rank 1, for steps; ben accepts; ada asks for a sign of life and sends a step
with a sealed tensor; then she ends the link. Lines are `offset  field  bytes`. Byte strings of more
than 64 bytes are cut here; `values.json` has all of them whole. An offset counts from the first
byte of the frame, or of the plaintext.

`session.pcap` is the same link as a capture, and `session.keys` its traffic secrets:

```sh
sealring decode spec/trace/session.pcap --keys spec/trace/session.keys
tshark -X lua_script:spec/wireshark/sealring.lua -r spec/trace/session.pcap
```

None of these keys may be used for anything else: their private halves stand here.
"""


def values() -> dict[str, Any]:
    """Every value, in the order in which it comes about."""
    told = link.Link()
    talk = told.talk
    k_b = hmac(b"sealring/1adm", CLUSTER + BEN.public)
    return {
        "world": {
            "cluster": CLUSTER,
            "coordinator": COORDINATOR.public,
            "roster": HOME,
            "roster_digest": sha256(HOME[:-64]),
            "ada_scalar": ADA.scalar,
            "ada_public": ADA.public,
            "ada_id": ADA.id,
            "ada_instance": ADA.instance,
            "ben_scalar": BEN.scalar,
            "ben_public": BEN.public,
            "ben_id": BEN.id,
            "ben_instance": BEN.instance,
            "wall_ms": NOW,
        },
        "INIT": {
            "x_private": DIALING[:32],
            "x_I": X_DIALING.public_key().public_bytes_raw(),
            "kem_seed": DIALING[32:],
            "ek_I": KEM.public_key().public_bytes_raw(),
            "K_B": k_b,
            "tag": told.init[-32:],
            "frame": told.init,
        },
        "RESP": {
            "P": PROTOCOLS[talk.suite],
            "t1": talk.t1,
            "x_private": ANSWERING,
            "x_R": X_ANSWERING.public_key().public_bytes_raw(),
            "ct": CT,
            "ss_kem": told.ss_kem,
            "ss_x": told.ss_x,
            "R": told.resp[:1130],
            "t2": talk.t2,
            "PRK": talk.prk,
            "kR": talk.key_r,
            "mR": talk.mac_r,
            "kI": talk.key_i,
            "mI": talk.mac_i,
            **_sealed_part(talk.key_r, talk.t2, told.resp[1130:], "RESP"),
            "frame": told.resp,
            "t3": talk.t3,
        },
        "FIN": {
            **_sealed_part(talk.key_i, talk.t3 + told.fin[:9], told.fin[9:], "FIN"),
            "frame": told.fin,
            "t4": talk.t4,
        },
        "secrets": {
            f"{label}_{way}": talk.secret(label.encode(), direction)
            for label in ("traffic", "activation")
            for direction, way in ((0, "to_responder"), (1, "to_initiator"))
        },
        "inner": {
            "secret": told.activation,
            "key": Keys.of(told.activation).key,
            "iv": Keys.of(told.activation).iv,
            "nonce": Keys.of(told.activation).nonce(link.COUNTER),
            "associated": link.PLACE.encode(),
            "elements": link.ELEMENTS,
            "data": bytes(told.tensor.data),
        },
        "frames": [
            {
                "from": "ada" if sealed.to_answerer else "ben",
                "message": sealed.message,
                "seq": sealed.number,
                "key": sealed.keys.key,
                "iv": sealed.keys.iv,
                "nonce": sealed.nonce,
                "associated": sealed.frame[:8],
                "plaintext": sealed.plaintext,
                "frame": sealed.frame,
            }
            for sealed in told.frames
        ],
    }


def _sealed_part(key: bytes, associated: bytes, sealed: bytes, name: str) -> dict[str, bytes]:
    """What RESP or FIN seals, and how it proves its sender."""
    plaintext = unseal(1, key, bytes(12), sealed, associated)
    claims, signature, tag = plaintext[:-96], plaintext[-96:-32], plaintext[-32:]
    end = "R" if name == "RESP" else "I"
    return {f"c{end}": claims, f"s{end}": signature, f"mac{end}": tag, "associated": associated}


def _plain(value: Any) -> Any:
    """*value* as JSON has it: byte strings are hex, and u64s decimal strings."""
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case int() if value >> 32:
            return str(value)
    return value


def to_json() -> str:
    """``values.json``."""
    return json.dumps(_plain(values()), indent=1) + "\n"


# ------------------------------------------------------------------- for people


def to_markdown() -> str:
    """``README.md``."""
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    found = values()
    yield from _HEAD.splitlines()
    titles = {
        "world": "Who they are",
        "INIT": "INIT, ada to ben (5.2)",
        "RESP": "RESP, ben to ada (5.3)",
        "FIN": "FIN, ada to ben (5.4)",
        "secrets": "The link's secrets (6.2)",
        "inner": "The tensor, sealed between the engines (7.3)",
    }
    for name, title in titles.items():
        yield from ("", f"## {title}", "", "```")
        for field, value in found[name].items():
            if field == "frame":
                yield ""
                yield from _annotated(value, "FRAME", name)
            else:
                yield f"{field:24}{_short(value)}"
        yield "```"
    for frame in found["frames"]:
        name = frame["message"]
        yield from ("", f"## {name}, sealed frame {frame['seq']} of {frame['from']}")
        yield from ("", "```")
        for field in ("key", "iv", "nonce", "associated"):
            yield f"{field:24}{_short(frame[field])}"
        yield ""
        yield from _annotated(frame["plaintext"], "PING" if name == "PONG" else name)
        yield ""
        yield from _annotated(frame["frame"], "FRAME")
        yield "```"


def _annotated(data: bytes, *layouts: str) -> Iterator[str]:
    """*data* by the fields of *layouts*, and then by what follows them."""
    told: dict[str, int] = {}
    at = 0
    for name in layouts:
        for field, kind in fields(FIELDS[name]):
            told[field] = int.from_bytes(data[at : at + size_of(kind)], "big")
            yield _line(at, field, data[at : at + size_of(kind)])
            at += size_of(kind)
    for label, size in _following(layouts[-1], told, data[at:]):
        yield _line(at, label, data[at : at + size])
        at += size


def _following(name: str, told: dict[str, int], rest: bytes) -> Iterator[tuple[str, int]]:
    """What comes after the layout *name*, each part with its bytes."""
    if name in {"FRAME", "RESP", "FIN"}:
        yield "sealed", len(rest)
        return
    for field, each in THEN.get(name, ()):
        if each == "byte":
            yield field, told[field]
        elif each == "tensor" and told[field]:
            for part, kind in fields(FIELDS["TENSOR"]):
                yield f"tensor.{part}", size_of(kind)
            yield "tensor.shape", 4 * len(link.SHAPE)
            yield "tensor.data", len(link.ELEMENTS) + AEAD_TAG
        else:
            parts = [part.partition(" ") for part in each.split(", ")] if " " in each else []
            for _ in range(told[field]):
                for part, _, kind in parts:
                    yield f"{field}.{part}", size_of(kind)


def _line(at: int, label: str, data: bytes) -> str:
    return f"{at:6}  {label:18}{_short(data)}"


def _short(value: Any) -> str:
    if not isinstance(value, bytes):
        return str(value)
    if len(value) <= _LONG:
        return value.hex()
    return f"{value[:24].hex()} ... {value[-8:].hex()} ({len(value):,} bytes)"


# -------------------------------------------------------------------- a capture


def keys() -> str:
    """``session.keys``, as `keylog` in a node's config makes it."""
    talk = link.Link().talk
    secrets = (talk.t4, talk.secret(b"traffic", 0), talk.secret(b"traffic", 1))
    return " ".join(["SEALRING_1", str(talk.suite), *(each.hex() for each in secrets)]) + "\n"


def pcap() -> bytes:
    """``session.pcap``: a TCP connection on loopback, one packet for each frame."""
    told = link.Link()
    said = [(True, told.init), (False, told.resp), (True, told.fin)]
    said += [(sealed.to_answerer, sealed.frame) for sealed in told.frames]
    numbers = {True: 1000, False: 2000}
    packets = [_packet(True, numbers, 0x02, b""), _packet(False, numbers, 0x12, b"")]
    numbers = {way: number + 1 for way, number in numbers.items()}
    for outward, data in said:
        packets.append(_packet(outward, numbers, 0x18, data))
        numbers[outward] += len(data)
    parts = [struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 101)]
    for index, data in enumerate(packets):
        parts += [struct.pack("<IIII", NOW // 1000, 100 * index, len(data), len(data)), data]
    return b"".join(parts)


def _packet(outward: bool, numbers: dict[bool, int], flags: int, data: bytes) -> bytes:
    """An IPv4 packet with TCP, its checksums left out as a network card's offloading does."""
    ports = (40001, 7470) if outward else (7470, 40001)
    heads = (numbers[outward], numbers[not outward], 5 << 4, flags, 65535, 0, 0)
    tcp = struct.pack(">HHIIBBHHH", *ports, *heads) + data
    loopback = bytes([127, 0, 0, 1])
    head = (0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, loopback, loopback)
    return struct.pack(">BBHHHBBH4s4s", *head) + tcp


FILES: Final = {
    HERE / "README.md": lambda: to_markdown().encode(),
    HERE / "values.json": lambda: to_json().encode(),
    HERE / "session.keys": lambda: keys().encode(),
    HERE / "session.pcap": pcap,
}
