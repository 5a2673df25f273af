"""Messages as plain JSON objects with the specification's field names, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Group,
    Grouped,
    HopKey,
    Loaded,
    LocalMessage,
    Logprobs,
)
from sealring_protocol.codec.messages import (
    NO_WORK,
    Accept,
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Close,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Hello,
    Join,
    Message,
    NoWork,
    Open,
    Ping,
    Pong,
    Prefill,
    Prepared,
    Progress,
    Ready,
    Row,
    Save,
    Spent,
    Step,
    StepDone,
    Tunnel,
    TunnelEvent,
    Work,
)
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.codec.waiting import Hindrance, Reason, Waiting
from sealring_protocol.conformance.files import Json, u64

COUNTERS: Final = (
    "steps_received",
    "steps_answered",
    "compute_us",
    "seal_us",
    "rows",
    "memory",
    "cache",
    "starved_us",
)

_DTYPES: Final = {int(dtype): dtype for dtype in DType}


def to_fields(message: Message | LocalMessage) -> dict[str, Json]:
    """*message* field by field, its name under ``message``."""
    return {"message": message.CODE.name, **_TO[type(message)](message)}


def from_fields(fields: dict[str, Json]) -> Message | LocalMessage:
    """What `to_fields` told."""
    return _FROM[fields["message"]](fields)


def _epoch(epoch: Epoch) -> dict[str, Json]:
    return {"instance": u64(epoch.instance), "counter": u64(epoch.counter)}


def _read_epoch(f: dict[str, Json]) -> Epoch:
    return Epoch(int(f["instance"]), int(f["counter"]))


def _progress(m: Ping | Pong) -> dict[str, Json]:
    counters = {name: u64(getattr(m.progress, name)) for name in COUNTERS}
    return {"echo": u64(m.echo), **counters}


def _read_progress(f: dict[str, Json]) -> Progress:
    return Progress(*(int(f[name]) for name in COUNTERS))


def _accept(m: Accept) -> dict[str, Json]:
    return {"transcript": m.transcript.hex(), "serial": u64(m.serial), "roster": m.roster.hex()}


def _hello(m: Hello) -> dict[str, Json]:
    return {
        "model": m.model.hex(),
        "layers": m.layers,
        "dtype": int(m.dtype),
        "hidden": m.hidden,
        "room": u64(m.room),
    }


def _read_hello(f: dict[str, Json]) -> Hello:
    model = bytes.fromhex(f["model"])
    return Hello(model, f["layers"], _DTYPES[f["dtype"]], f["hidden"], int(f["room"]))


def _ready(m: Ready) -> dict[str, Json]:
    return {
        **_epoch(m.epoch),
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
        _read_epoch(f),
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
        **_epoch(m.epoch),
        "backend": int(m.backend),
        "rank": m.rank,
        "inner_seal": m.inner_seal,
        "trusted": m.trusted,
        "deadline_ms": m.deadline_ms,
        "model": m.model.hex(),
        "bounds": list(m.bounds),
        "hosts": _hosts(m.hosts),
    }


def _hosts(hosts: tuple[tuple[str, int], ...]) -> list[Json]:
    return [{"host": host, "port": port} for host, port in hosts]


def _read_hosts(f: dict[str, Json]) -> tuple[tuple[str, int], ...]:
    return tuple((host["host"], host["port"]) for host in f["hosts"])


def _read_bootstrap(f: dict[str, Json]) -> Bootstrap:
    return Bootstrap(
        _read_epoch(f),
        Backend(f["backend"]),
        f["rank"],
        f["inner_seal"],
        f["deadline_ms"],
        bytes.fromhex(f["model"]),
        tuple(f["bounds"]),
        _read_hosts(f),
        f["trusted"],
    )


def _work(work: Work) -> dict[str, Json]:
    match work:
        case NoWork():
            return {"work": 0, "target": "0", "position": 0, "count": 0}
        case Prefill(uid, position, count):
            return {"work": 1, "target": u64(uid), "position": position, "count": count}
        case Decode(group):
            return {"work": 2, "target": u64(group), "position": 0, "count": 0}


def _read_work(f: dict[str, Json]) -> Work:
    works: tuple[Callable[[], Work], ...] = (
        lambda: NO_WORK,
        lambda: Prefill(int(f["target"]), f["position"], f["count"]),
        lambda: Decode(int(f["target"])),
    )
    return works[f["work"]]()


def _tail(m: Step | StepDone) -> dict[str, Json]:
    return {
        "spent": [{"compute": s.compute_us, "wait": s.wait_us, "seal": s.seal_us} for s in m.spent],
        "ids": list(m.ids),
        "tensors": [tensor_fields(tensor) for tensor in m.tensors],
        "failed": None
        if m.failed is None
        else {"rank": m.failed.rank, "kind": int(m.failed.kind), "message": m.failed.message},
    }


def tensor_fields(tensor: Tensor) -> dict[str, Json]:
    """A tensor field by field."""
    return {
        "dtype": int(tensor.dtype),
        "sealed": tensor.sealed,
        "counter": u64(tensor.counter),
        "shape": list(tensor.shape),
        "data": bytes(tensor.data).hex(),
    }


def read_tensor(f: dict[str, Json]) -> Tensor:
    """What `tensor_fields` told."""
    data = bytes.fromhex(f["data"])
    return Tensor(_DTYPES[f["dtype"]], tuple(f["shape"]), data, f["sealed"], int(f["counter"]))


def _read_tail(f: dict[str, Json]) -> dict[str, Any]:
    told = f["failed"]
    failed = Failure(told["rank"], FailureKind(told["kind"]), told["message"]) if told else None
    tensors = tuple(read_tensor(tensor) for tensor in f["tensors"])
    spent = tuple(Spent(s["compute"], s["wait"], s["seal"]) for s in f["spent"])
    return {"spent": spent, "ids": tuple(f["ids"]), "tensors": tensors, "failed": failed}


def _step(m: Step) -> dict[str, Json]:
    return {
        **_epoch(m.epoch),
        "n": u64(m.n),
        "digest": m.digest.hex(),
        "save": [{"uid": u64(save.uid), "handle": u64(save.handle)} for save in m.save],
        "evict": [u64(uid) for uid in m.evict],
        "drop": [u64(number) for number in m.drop],
        "open": [
            {"uid": u64(row.uid), "handle": u64(row.handle), "keep": row.keep} for row in m.open
        ],
        "join": [{"uid": u64(join.uid), "group": join.group} for join in m.join],
        **_work(m.work),
        **_tail(m),
    }


def _read_step(f: dict[str, Json]) -> Step:
    return Step(
        _read_epoch(f),
        int(f["n"]),
        bytes.fromhex(f["digest"]),
        save=tuple(Save(int(save["uid"]), int(save["handle"])) for save in f["save"]),
        evict=tuple(int(uid) for uid in f["evict"]),
        drop=tuple(int(number) for number in f["drop"]),
        open=tuple(Open(int(row["uid"]), int(row["handle"]), row["keep"]) for row in f["open"]),
        join=tuple(Join(int(join["uid"]), join["group"]) for join in f["join"]),
        work=_read_work(f),
        **_read_tail(f),
    )


def _done(m: StepDone) -> dict[str, Json]:
    return {**_epoch(m.epoch), "n": u64(m.n), **_tail(m)}


def _info(m: EngineInfo) -> dict[str, Json]:
    return {
        "model": m.model.hex(),
        "dtype": int(m.dtype),
        "hidden": m.hidden,
        "vocabulary": m.vocabulary,
        "context": m.context,
        "trimmable": m.trimmable,
        "splits": m.splits,
        "backends": m.backends,
        "room": u64(m.room),
        "ends": u64(m.ends),
        "layers": [u64(size) for size in m.layers],
    }


def _read_info(f: dict[str, Json]) -> EngineInfo:
    return EngineInfo(
        bytes.fromhex(f["model"]),
        _DTYPES[f["dtype"]],
        f["hidden"],
        f["vocabulary"],
        f["context"],
        f["trimmable"],
        int(f["room"]),
        int(f["ends"]),
        tuple(int(size) for size in f["layers"]),
        f["splits"],
        f["backends"],
    )


def _hop(m: HopKey) -> dict[str, Json]:
    return {
        "outgoing": m.outgoing,
        "suite": m.suite,
        "cluster": m.cluster.hex(),
        "secret": m.secret.hex(),
    }


def _row(m: Row) -> dict[str, Json]:
    return {
        "uid": u64(m.uid),
        "seed": u64(m.seed),
        "choice": m.choice,
        "temperature": m.temperature,
        "top_p": m.top_p,
        "top_k": m.top_k,
        "min_p": m.min_p,
        "repetition": m.repetition,
        "presence": m.presence,
        "frequency": m.frequency,
        "logprobs": m.logprobs,
        "bias": [list(pair) for pair in m.bias],
        "generated": m.generated,
        "history": list(m.history),
    }


def _logprobs(m: Logprobs) -> dict[str, Json]:
    return {
        "n": u64(m.n),
        "uid": u64(m.uid),
        "chosen": m.chosen,
        "alternatives": [list(pair) for pair in zip(m.ids, m.values, strict=True)],
    }


def _read_logprobs(f: dict[str, Json]) -> Logprobs:
    ids = tuple(token for token, _ in f["alternatives"])
    values = tuple(value for _, value in f["alternatives"])
    return Logprobs(int(f["n"]), int(f["uid"]), f["chosen"], ids, values)


def _group(m: Group) -> dict[str, Json]:
    return {
        "backend": int(m.backend),
        "rank": m.rank,
        "size": m.size,
        "deadline_ms": m.deadline_ms,
        "hosts": _hosts(m.hosts),
    }


def _read_group(f: dict[str, Json]) -> Group:
    backend = Backend(f["backend"])
    return Group(backend, f["rank"], f["size"], f["deadline_ms"], _read_hosts(f))


def _tunnel(m: Tunnel) -> dict[str, Json]:
    said: dict[str, Json] = {"stream": m.stream, "event": int(m.event)}
    return {**_epoch(m.epoch), **said, "data": bytes(m.data).hex()}


def _read_tunnel(f: dict[str, Json]) -> Tunnel:
    event = TunnelEvent(f["event"])
    return Tunnel(_read_epoch(f), f["stream"], event, bytes.fromhex(f["data"]))


def reason_fields(reason: Reason) -> dict[str, Json]:
    """A reason of WAITING field by field."""
    return {"hindrance": int(reason.hindrance), "rank": reason.rank, "text": reason.text}


def _read_waiting(f: dict[str, Json]) -> Waiting:
    told = f["reasons"]
    return Waiting(tuple(Reason(Hindrance(r["hindrance"]), r["rank"], r["text"]) for r in told))


def read_row(f: dict[str, Json]) -> Row:
    """A ROW from its fields."""
    rest = {name: f[name] for name in _ROW if name in f}
    lists: dict[str, Any] = {
        "bias": tuple((token, value) for token, value in f.get("bias", ())),
        "history": tuple(f.get("history", ())),
    }
    return Row(int(f["uid"]), int(f["seed"]), **rest, **lists)


_ROW: Final = (
    "choice",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition",
    "presence",
    "frequency",
    "logprobs",
    "generated",
)


_TO: Final[dict[type[Any], Callable[[Any], dict[str, Json]]]] = {
    Accept: _accept,
    Ping: _progress,
    Pong: _progress,
    Close: lambda m: {"why": m.code, "reason": m.reason},
    Hello: _hello,
    Prepared: lambda m: {**_epoch(m.epoch), "port": m.port},
    Ready: _ready,
    Bootstrap: _bootstrap,
    Step: _step,
    StepDone: _done,
    EngineInfo: _info,
    HopKey: _hop,
    Row: _row,
    Logprobs: _logprobs,
    Loaded: lambda m: {"read": u64(m.read), "held": u64(m.held), "load_us": u64(m.load_us)},
    CannotServe: lambda m: {
        **_epoch(m.epoch),
        "n": u64(m.n),
        "kind": int(m.kind),
        "reason": m.reason,
    },
    Tunnel: _tunnel,
    Waiting: lambda m: {"reasons": [reason_fields(reason) for reason in m.reasons]},
    Group: _group,
    Grouped: lambda m: {"size": m.size, "sum_us": m.sum_us, "token_us": m.token_us},
}

_FROM: Final[dict[str, Callable[[dict[str, Json]], Message | LocalMessage]]] = {
    "ACCEPT": lambda f: Accept(
        bytes.fromhex(f["transcript"]), int(f["serial"]), bytes.fromhex(f["roster"])
    ),
    "PING": lambda f: Ping(int(f["echo"]), _read_progress(f)),
    "PONG": lambda f: Pong(int(f["echo"]), _read_progress(f)),
    "CLOSE": lambda f: Close(f["why"], f["reason"]),
    "HELLO": _read_hello,
    "PREPARED": lambda f: Prepared(_read_epoch(f), f["port"]),
    "READY": _read_ready,
    "BOOTSTRAP": _read_bootstrap,
    "STEP": _read_step,
    "STEP_DONE": lambda f: StepDone(_read_epoch(f), int(f["n"]), **_read_tail(f)),
    "ENGINE_INFO": _read_info,
    "HOP_KEY": lambda f: HopKey(
        f["outgoing"], f["suite"], bytes.fromhex(f["cluster"]), bytes.fromhex(f["secret"])
    ),
    "ROW": read_row,
    "LOGPROBS": _read_logprobs,
    "LOADED": lambda f: Loaded(int(f["read"]), int(f["held"]), int(f["load_us"])),
    "CANNOT_SERVE": lambda f: CannotServe(
        _read_epoch(f), FailureKind(f["kind"]), f["reason"], int(f["n"])
    ),
    "TUNNEL": _read_tunnel,
    "WAITING": _read_waiting,
    "GROUP": _read_group,
    "GROUPED": lambda f: Grouped(f["size"], f["sum_us"], f["token_us"]),
}
