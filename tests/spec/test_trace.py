"""The trace of one link: the implementation finds the same values, and opens all of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sealring_protocol.codec.encoding import decode
from sealring_protocol.codec.messages import Epoch, Step
from sealring_protocol.security.handshake import (
    Direction,
    TrafficSecrets,
    admission_key,
    chain,
    first_transcript,
    key_exchange,
    link_secrets,
)
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.security.seal import PREFILL_GROUP, InnerContext, InnerOpener
from sealring_tools.capture.decoding import Decoder, read_key_log
from sealring_tools.capture.packets import read_segments
from sealring_tools.capture.streams import Streams

from spec.trace import link, make

TOLD: dict[str, Any] = json.loads((make.HERE / "values.json").read_text(encoding="ascii"))


def value(section: str, name: str) -> bytes:
    return bytes.fromhex(TOLD[section][name])


def test_the_schedule_gives_the_values() -> None:
    suite = Suite.AES256GCM
    world = {name: value("world", name) for name in ("cluster", "ben_public", "ada_id", "ben_id")}
    assert admission_key(world["cluster"], world["ben_public"]) == value("INIT", "K_B")
    t1 = first_transcript(suite, world["cluster"], world["ben_public"], value("INIT", "frame"))
    t2 = chain(t1, value("RESP", "R"))
    t3 = chain(t1, value("RESP", "frame"))
    t4 = chain(t3, value("FIN", "frame"))
    told = [value("RESP", name) for name in ("t1", "t2", "t3")] + [value("FIN", "t4")]
    assert [t1, t2, t3, t4] == told
    keys = key_exchange(suite, value("RESP", "ss_kem"), value("RESP", "ss_x"), t2)
    found = (keys.prk, keys.responder_key, keys.responder_mac, keys.initiator_key)
    assert found == tuple(value("RESP", name) for name in ("PRK", "kR", "mR", "kI"))
    out = link_secrets(keys, Direction.TO_RESPONDER, world["ada_id"], world["ben_id"], t4)
    back = link_secrets(keys, Direction.TO_INITIATOR, world["ben_id"], world["ada_id"], t4)
    names = ("traffic_to_responder", "activation_to_responder")
    assert out == tuple(value("secrets", name) for name in names)
    names = ("traffic_to_initiator", "activation_to_initiator")
    assert back == tuple(value("secrets", name) for name in names)


def test_the_roster_is_the_coordinators() -> None:
    roster = SignedRoster.decode(value("world", "roster"))
    roster.verify(value("world", "coordinator"))
    ids = [value("world", name) for name in ("ada_id", "ben_id")]
    assert [member.id for member in roster.roster.members[:2]] == ids


def test_the_engine_opens_the_tensor() -> None:
    plaintexts = {frame["message"]: bytes.fromhex(frame["plaintext"]) for frame in TOLD["frames"]}
    step = decode(plaintexts["STEP"])
    assert isinstance(step, Step)
    place = link.PLACE
    epoch = Epoch(place.instance, place.counter)
    at = InnerContext(epoch, place.n, PREFILL_GROUP, place.boundary, place.uids)
    opener = InnerOpener(Suite.AES256GCM, value("inner", "secret"), value("world", "cluster"))
    assert opener.open(at, step.tensors[0]) == value("inner", "elements")


def test_the_capture_opens_with_the_keys_beside_it() -> None:
    secrets = read_key_log(make.HERE / "session.keys")
    traffic = [value("secrets", f"traffic_to_{end}") for end in ("responder", "initiator")]
    assert secrets == [TrafficSecrets(Suite.AES256GCM, value("FIN", "t4"), *traffic)]
    segments = read_segments(make.HERE / "session.pcap")
    events = list(Decoder(secrets).events(Streams().follow(segments)))
    names = [frame["message"] for frame in TOLD["frames"]]
    assert [event.what for event in events] == ["INIT", "RESP", "FIN", *names]


def test_every_frame_is_told_whole() -> None:
    frames = [TOLD[name]["frame"] for name in ("INIT", "RESP", "FIN")]
    frames += [frame["frame"] for frame in TOLD["frames"]]
    digests = {hashlib.sha256(bytes.fromhex(frame)).hexdigest() for frame in frames}
    assert len(digests) == 8
