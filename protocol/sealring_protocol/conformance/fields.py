"""Messages as plain JSON objects with the specification's field names, and back.

Messages between nodes are here; messages between a node and its engine are in `local_fields`.
"""

from __future__ import annotations

from typing import Final

from sealring_protocol.codec.local_messages import (
    LocalMessage,
)
from sealring_protocol.codec.messages import (
    Accept,
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Checked,
    Close,
    FailureKind,
    Get,
    Hello,
    Hindrance,
    Join,
    Message,
    Open,
    Piece,
    Ping,
    Pong,
    Prepared,
    Ready,
    Reason,
    Save,
    Step,
    StepDone,
    TakeBack,
    Tunnel,
    TunnelEvent,
    Waiting,
)
from sealring_protocol.conformance.files import Json, u64
from sealring_protocol.conformance.local_fields import LOCAL_FROM, LOCAL_TO
from sealring_protocol.conformance.message_parts import (
    DTYPES,
    FromFields,
    ToFields,
    epoch_fields,
    hosts_fields,
    progress_fields,
    read_epoch,
    read_hosts,
    read_progress,
    read_tail,
    read_tensor,
    read_work,
    reason_fields,
    tail_fields,
    tensor_fields,
    work_fields,
)


def to_fields(message: Message | LocalMessage) -> dict[str, Json]:
    """The fields of *message*, with its name under ``message``."""
    return {"message": message.CODE.name, **_TO[type(message)](message)}


def from_fields(fields: dict[str, Json]) -> Message | LocalMessage:
    """The message in *fields*, the inverse of `to_fields`."""
    return _FROM[fields["message"]](fields)


def _accept(m: Accept) -> dict[str, Json]:
    return {"transcript": m.transcript.hex(), "serial": u64(m.serial), "roster": m.roster.hex()}


def _hello(m: Hello) -> dict[str, Json]:
    return {
        "model": m.model.hex(),
        "layers": m.layers,
        "dtype": int(m.dtype),
        "hidden": m.hidden,
        "room": u64(m.room),
        "build": u64(m.build),
        "pins": [u64(pin) for pin in m.pins],
    }


def _read_hello(f: dict[str, Json]) -> Hello:
    model = bytes.fromhex(f["model"])
    pins = tuple(map(int, f["pins"]))
    about = DTYPES[f["dtype"]], f["hidden"], int(f["room"]), pins, int(f["build"])
    return Hello(model, f["layers"], *about)


def _ready(m: Ready) -> dict[str, Json]:
    return {
        **epoch_fields(m.epoch),
        "first": m.first,
        "last": m.last,
        "trimmable": m.trimmable,
        "room": u64(m.room),
        "fixed": u64(m.cost.fixed),
        "per_token": u64(m.cost.per_token),
        "sum_us": m.sum_us,
        "token_us": m.token_us,
        "windows": [{"tokens": tokens, "bytes": u64(cost)} for tokens, cost in m.cost.windows],
    }


def _read_ready(f: dict[str, Json]) -> Ready:
    windows = tuple((window["tokens"], int(window["bytes"])) for window in f["windows"])
    return Ready(
        read_epoch(f),
        f["first"],
        f["last"],
        f["trimmable"],
        int(f["room"]),
        CacheCost(int(f["fixed"]), int(f["per_token"]), windows),
        f["sum_us"],
        f["token_us"],
    )


def _bootstrap(m: Bootstrap) -> dict[str, Json]:
    return {
        **epoch_fields(m.epoch),
        "backend": int(m.backend),
        "rank": m.rank,
        "inner_seal": m.inner_seal,
        "trusted": m.trusted,
        "checked": m.checked,
        "deadline_ms": m.deadline_ms,
        "model": m.model.hex(),
        "bounds": list(m.bounds),
        "hosts": hosts_fields(m.hosts),
    }


def _read_bootstrap(f: dict[str, Json]) -> Bootstrap:
    return Bootstrap(
        read_epoch(f),
        Backend(f["backend"]),
        f["rank"],
        f["inner_seal"],
        f["deadline_ms"],
        bytes.fromhex(f["model"]),
        tuple(f["bounds"]),
        read_hosts(f),
        f["trusted"],
        f["checked"],
    )


def _step(m: Step) -> dict[str, Json]:
    return {
        **epoch_fields(m.epoch),
        "n": u64(m.n),
        "digest": m.digest.hex(),
        "back": [{"uid": u64(back.uid), "count": back.count} for back in m.back],
        "save": [{"uid": u64(save.uid), "handle": u64(save.handle)} for save in m.save],
        "evict": [u64(uid) for uid in m.evict],
        "drop": [u64(number) for number in m.drop],
        "open": [
            {"uid": u64(row.uid), "handle": u64(row.handle), "keep": row.keep} for row in m.open
        ],
        "join": [{"uid": u64(join.uid), "group": join.group} for join in m.join],
        **work_fields(m.work),
        **tail_fields(m),
    }


def _read_step(f: dict[str, Json]) -> Step:
    return Step(
        read_epoch(f),
        int(f["n"]),
        bytes.fromhex(f["digest"]),
        back=tuple(TakeBack(int(back["uid"]), back["count"]) for back in f["back"]),
        save=tuple(Save(int(save["uid"]), int(save["handle"])) for save in f["save"]),
        evict=tuple(int(uid) for uid in f["evict"]),
        drop=tuple(int(number) for number in f["drop"]),
        open=tuple(Open(int(row["uid"]), int(row["handle"]), row["keep"]) for row in f["open"]),
        join=tuple(Join(int(join["uid"]), join["group"]) for join in f["join"]),
        work=read_work(f),
        **read_tail(f),
    )


def _done(m: StepDone) -> dict[str, Json]:
    return {**epoch_fields(m.epoch), "n": u64(m.n), **tail_fields(m)}


def _checked(m: Checked) -> dict[str, Json]:
    tensors = [tensor_fields(tensor) for tensor in (m.received, m.given)]
    return {**epoch_fields(m.epoch), "n": u64(m.n), "closing": m.closing, "tensors": tensors}


def _read_checked(f: dict[str, Json]) -> Checked:
    return Checked(read_epoch(f), int(f["n"]), f["closing"], *map(read_tensor, f["tensors"]))


def _tunnel(m: Tunnel) -> dict[str, Json]:
    said: dict[str, Json] = {"stream": m.stream, "event": int(m.event)}
    return {**epoch_fields(m.epoch), **said, "data": bytes(m.data).hex()}


def _read_tunnel(f: dict[str, Json]) -> Tunnel:
    event = TunnelEvent(f["event"])
    return Tunnel(read_epoch(f), f["stream"], event, bytes.fromhex(f["data"]))


def _read_waiting(f: dict[str, Json]) -> Waiting:
    told = f["reasons"]
    return Waiting(tuple(Reason(Hindrance(r["hindrance"]), r["rank"], r["text"]) for r in told))


_TO: Final[ToFields] = {
    **LOCAL_TO,
    Accept: _accept,
    Ping: progress_fields,
    Pong: progress_fields,
    Close: lambda m: {"why": m.code, "reason": m.reason},
    Hello: _hello,
    Prepared: lambda m: {**epoch_fields(m.epoch), "port": m.port},
    Ready: _ready,
    Bootstrap: _bootstrap,
    Step: _step,
    StepDone: _done,
    CannotServe: lambda m: {
        **epoch_fields(m.epoch),
        "n": u64(m.n),
        "kind": int(m.kind),
        "reason": m.reason,
    },
    Checked: _checked,
    Tunnel: _tunnel,
    Get: lambda m: {"offset": u64(m.offset), "length": m.length, "name": m.name},
    Piece: lambda m: {"size": u64(m.size), "data": bytes(m.data).hex(), "reason": m.reason},
    Waiting: lambda m: {"reasons": [reason_fields(reason) for reason in m.reasons]},
}

_FROM: Final[FromFields] = {
    **LOCAL_FROM,
    "ACCEPT": lambda f: Accept(
        bytes.fromhex(f["transcript"]), int(f["serial"]), bytes.fromhex(f["roster"])
    ),
    "PING": lambda f: Ping(int(f["echo"]), read_progress(f)),
    "PONG": lambda f: Pong(int(f["echo"]), read_progress(f)),
    "CLOSE": lambda f: Close(f["why"], f["reason"]),
    "HELLO": _read_hello,
    "PREPARED": lambda f: Prepared(read_epoch(f), f["port"]),
    "READY": _read_ready,
    "BOOTSTRAP": _read_bootstrap,
    "STEP": _read_step,
    "STEP_DONE": lambda f: StepDone(read_epoch(f), int(f["n"]), **read_tail(f)),
    "CANNOT_SERVE": lambda f: CannotServe(
        read_epoch(f), FailureKind(f["kind"]), f["reason"], int(f["n"])
    ),
    "CHECKED": _read_checked,
    "TUNNEL": _read_tunnel,
    "WAITING": _read_waiting,
    "GET": lambda f: Get(f["name"], int(f["offset"]), f["length"]),
    "PIECE": lambda f: Piece(int(f["size"]), bytes.fromhex(f["data"]), f["reason"]),
}
