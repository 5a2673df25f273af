"""Messages between a node and its engine as plain JSON objects, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Group,
    Grouped,
    HopKey,
    Loaded,
    Logprobs,
    RowOver,
    RowReady,
    Scores,
)
from sealring_protocol.codec.messages import (
    Backend,
    Row,
)
from sealring_protocol.conformance.files import Json, u64
from sealring_protocol.conformance.message_parts import (
    DTYPES,
    FromFields,
    ToFields,
    epoch_fields,
    hosts_fields,
    read_epoch,
    read_hosts,
)


def _info(m: EngineInfo) -> dict[str, Json]:
    return {
        "model": m.model.hex(),
        "dtype": int(m.dtype),
        "hidden": m.hidden,
        "vocabulary": m.vocabulary,
        "context": m.context,
        "trimmable": m.trimmable,
        "batches": m.batches,
        "splits": m.splits,
        "backends": m.backends,
        "room": u64(m.room),
        "ends": u64(m.ends),
        "head": m.head,
        "hop": m.hop,
        "ahead": m.ahead,
        "layers": [u64(size) for size in m.layers],
        "joined": list(m.joined),
        "reason": m.reason,
        "pins": [u64(pin) for pin in m.pins],
    }


def _read_info(f: dict[str, Json]) -> EngineInfo:
    return EngineInfo(
        bytes.fromhex(f["model"]),
        DTYPES[f["dtype"]],
        f["hidden"],
        f["vocabulary"],
        f["context"],
        f["trimmable"],
        int(f["room"]),
        int(f["ends"]),
        tuple(int(size) for size in f["layers"]),
        f["splits"],
        f["backends"],
        tuple(f["joined"]),
        f["reason"],
        f["batches"],
        tuple(map(int, f["pins"])),
        f["head"],
        f["hop"],
        f["ahead"],
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
        "least": m.least,
        "ends": list(m.ends),
        "bad": [
            {"token": token, "last": at == len(ids)}
            for ids in m.bad
            for at, token in enumerate(ids, 1)
        ],
        "grammar": m.grammar.hex(),
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


def _scores(m: Scores) -> dict[str, Json]:
    return {
        "n": u64(m.n),
        "uid": u64(m.uid),
        "position": m.position,
        "scores": [list(pair) for pair in zip(m.chosen, m.ranks, strict=True)],
        "likeliest": [list(pair) for pair in zip(m.ids, m.values, strict=True)],
    }


def _read_scores(f: dict[str, Json]) -> Scores:
    columns = (
        tuple(pair[at] for pair in f[name]) for name in ("scores", "likeliest") for at in (0, 1)
    )
    return Scores(int(f["n"]), int(f["uid"]), f["position"], *columns)


def _group(m: Group) -> dict[str, Json]:
    return {
        "backend": int(m.backend),
        "rank": m.rank,
        "size": m.size,
        "deadline_ms": m.deadline_ms,
        "hosts": hosts_fields(m.hosts),
    }


def _read_group(f: dict[str, Json]) -> Group:
    backend = Backend(f["backend"])
    return Group(backend, f["rank"], f["size"], f["deadline_ms"], read_hosts(f))


def read_row(f: dict[str, Json]) -> Row:
    """A ROW from its fields."""
    rest = {name: f[name] for name in _ROW if name in f}
    lists: dict[str, Any] = {
        "bias": tuple((token, value) for token, value in f.get("bias", ())),
        "history": tuple(f.get("history", ())),
        "ends": tuple(f.get("ends", ())),
        "bad": _sequences(f.get("bad", ())),
        "grammar": bytes.fromhex(f.get("grammar", "")),
    }
    return Row(int(f["uid"]), int(f["seed"]), **rest, **lists)


def _sequences(told: Iterable[dict[str, Json]]) -> tuple[tuple[int, ...], ...]:
    sequences: list[list[int]] = [[]]
    for entry in told:
        sequences[-1].append(entry["token"])
        if entry["last"]:
            sequences.append([])
    return tuple(map(tuple, filter(None, sequences)))


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
    "least",
)


LOCAL_TO: Final[ToFields] = {
    EngineInfo: _info,
    HopKey: _hop,
    Row: _row,
    Logprobs: _logprobs,
    Scores: _scores,
    RowOver: lambda m: {"n": u64(m.n), "uid": u64(m.uid), "reason": m.reason},
    RowReady: lambda m: {**epoch_fields(m.epoch), "uid": u64(m.uid), "reason": m.reason},
    Loaded: lambda m: {"read": u64(m.read), "held": u64(m.held), "load_us": u64(m.load_us)},
    Group: _group,
    Grouped: lambda m: {"size": m.size, "sum_us": m.sum_us, "token_us": m.token_us},
}

LOCAL_FROM: Final[FromFields] = {
    "ENGINE_INFO": _read_info,
    "HOP_KEY": lambda f: HopKey(
        f["outgoing"], f["suite"], bytes.fromhex(f["cluster"]), bytes.fromhex(f["secret"])
    ),
    "ROW": read_row,
    "LOGPROBS": _read_logprobs,
    "SCORES": _read_scores,
    "ROW_OVER": lambda f: RowOver(int(f["n"]), int(f["uid"]), f["reason"]),
    "ROW_READY": lambda f: RowReady(read_epoch(f), int(f["uid"]), f["reason"]),
    "LOADED": lambda f: Loaded(int(f["read"]), int(f["held"]), int(f["load_us"])),
    "GROUP": _read_group,
    "GROUPED": lambda f: Grouped(f["size"], f["sum_us"], f["token_us"]),
}
