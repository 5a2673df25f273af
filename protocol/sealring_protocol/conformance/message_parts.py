"""The parts that messages share, as plain JSON objects, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sealring_protocol.codec.local_messages import (
    LocalMessage,
)
from sealring_protocol.codec.messages import (
    NO_WORK,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Message,
    NoWork,
    Ping,
    Pong,
    Prefill,
    Progress,
    Reason,
    Spent,
    Step,
    StepDone,
    Work,
)
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.conformance.files import Json, u64

ToFields = Mapping[type[Any], Callable[[Any], dict[str, Json]]]
"""By class: converts a message to an object, without its name."""

FromFields = Mapping[str, Callable[[dict[str, Json]], Message | LocalMessage]]
"""By name: converts an object to its message."""

COUNTERS: Final = (
    "steps_received",
    "steps_answered",
    "compute_us",
    "seal_us",
    "rows",
    "memory",
    "cache",
    "starved_us",
    "fetched_bytes",
    "fetch_bytes",
)
"""Fields of a PING or PONG."""

DTYPES: Final = {int(dtype): dtype for dtype in DType}


def epoch_fields(epoch: Epoch) -> dict[str, Json]:
    """The epoch that a message names."""
    return {"instance": u64(epoch.instance), "counter": u64(epoch.counter)}


def read_epoch(f: dict[str, Json]) -> Epoch:
    """The inverse of `epoch_fields`."""
    return Epoch(int(f["instance"]), int(f["counter"]))


def progress_fields(m: Ping | Pong) -> dict[str, Json]:
    """The whole of a PING or PONG."""
    counters = {name: u64(getattr(m.progress, name)) for name in COUNTERS}
    return {"echo": u64(m.echo), **counters}


def read_progress(f: dict[str, Json]) -> Progress:
    """The counters of a PING or PONG."""
    return Progress(*(int(f[name]) for name in COUNTERS))


def hosts_fields(hosts: tuple[tuple[str, int], ...]) -> list[Json]:
    """Addresses of a collective's members."""
    return [{"host": host, "port": port} for host, port in hosts]


def read_hosts(f: dict[str, Json]) -> tuple[tuple[str, int], ...]:
    """The inverse of `hosts_fields`."""
    return tuple((host["host"], host["port"]) for host in f["hosts"])


def work_fields(work: Work) -> dict[str, Json]:
    """The work of a step."""
    match work:
        case NoWork():
            return {"work": 0, "target": "0", "position": 0, "count": 0}
        case Prefill(uid, position, count, scored):
            return {
                "work": 3 if scored else 1,
                "target": u64(uid),
                "position": position,
                "count": count,
            }
        case Decode(group, guessed, ahead):
            return {"work": 2, "target": u64(group), "position": ahead, "count": guessed}


def read_work(f: dict[str, Json]) -> Work:
    """The inverse of `work_fields`."""
    works: tuple[Callable[[], Work], ...] = (
        lambda: NO_WORK,
        lambda: Prefill(int(f["target"]), f["position"], f["count"]),
        lambda: Decode(int(f["target"]), f["count"], f["position"]),
        lambda: Prefill(int(f["target"]), f["position"], f["count"], True),
    )
    return works[f["work"]]()


def tail_fields(m: Step | StepDone) -> dict[str, Json]:
    """What follows the fixed part of a STEP or STEP_DONE."""
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
    """The inverse of `tensor_fields`."""
    data = bytes.fromhex(f["data"])
    return Tensor(DTYPES[f["dtype"]], tuple(f["shape"]), data, f["sealed"], int(f["counter"]))


def read_tail(f: dict[str, Json]) -> dict[str, Any]:
    """The inverse of `tail_fields`, as keyword arguments."""
    told = f["failed"]
    failed = Failure(told["rank"], FailureKind(told["kind"]), told["message"]) if told else None
    tensors = tuple(read_tensor(tensor) for tensor in f["tensors"])
    spent = tuple(Spent(s["compute"], s["wait"], s["seal"]) for s in f["spent"])
    return {"spent": spent, "ids": tuple(f["ids"]), "tensors": tensors, "failed": failed}


def reason_fields(reason: Reason) -> dict[str, Json]:
    """A reason of WAITING field by field."""
    return {"hindrance": int(reason.hindrance), "rank": reason.rank, "text": reason.text}
