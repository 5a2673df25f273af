"""``spec/sealring-1.json`` is enough to read every message: a reader made of it alone does so."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from sealring_protocol.conformance.result import plaintext

from spec import tables
from spec.vectors import permissions
from tests.spec.files import every, of_kinds
from tests.spec.test_spec import TEXTS, layout

TOLD = json.loads(tables.FILE.read_text(encoding="utf-8"))
MESSAGES = [each for each in of_kinds("message", "local-message") if each["result"] == "valid"]
PAIRS = {"scores", "likeliest", "bias", "alternatives"}
"""Lists whose entries are pairs in the vectors."""


class Reading:
    """Reads one plaintext by the tables."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.data)
        return self.data[self.at - size : self.at]

    def one(self, kind: str) -> Any:
        """A value of type *kind*, as the vectors tell it."""
        match kind:
            case "f64":
                return struct.unpack(">d", self.take(8))[0]
            case "u64":
                return str(int.from_bytes(self.take(8), "big"))
            case "bool":
                return bool(self.take(1)[0])
            case "text":
                return self.take(int(self.one("u16"))).decode()
            case "string":
                return self.take(int(self.one("u16"))).hex()
            case "rest":
                return self.take(len(self.data) - self.at).hex()
            case "tensor":
                return self.tensor()
            case _ if kind.startswith("bytes "):
                return self.take(int(kind.removeprefix("bytes "))).hex()
            case _:
                return int.from_bytes(self.take(int(kind.removeprefix("u")) // 8), "big")

    def tensor(self) -> dict[str, Any]:
        head = {field["name"]: self.one(field["type"]) for field in TOLD["layouts"]["TENSOR"]}
        shape = [self.one("u32") for _ in range(head.pop("dimensions"))]
        head.pop("zero")
        width = {dtype["code"]: dtype["width"] for dtype in TOLD["dtypes"]}[head["dtype"]]
        elements = 1
        for size in shape:
            elements *= size
        tag = TOLD["limits"]["AEAD_TAG"]["value"] if head["sealed"] else 0
        return {**head, "shape": shape, "data": self.take(elements * width + tag).hex()}

    def message(self) -> dict[str, Any]:
        """The whole plaintext."""
        (name, told), *_ = [
            (name, each) for name, each in TOLD["messages"].items() if each["code"] == self.data[0]
        ]
        fields = {f["name"]: self.one(f["type"]) for f in TOLD["layouts"][told["layout"]]}
        del fields["code"]
        for then in told["then"]:
            fields[then["field"]] = self.entries(then, fields.get(then["field"]))
        assert self.at == len(self.data)
        return {"message": name, **fields}

    def entries(self, then: dict[str, Any], count: Any) -> Any:
        match then.get("type"):
            case "rest":
                return self.one("rest")
            case "byte":
                data = self.take(int(count))
                return data.decode() if then["field"] in TEXTS else data.hex()
            case str() as kind:
                return [self.one(kind) for _ in range(int(count))]
        named = [(field["name"], field["type"]) for field in then["fields"]]
        found = [{name: self.one(kind) for name, kind in named} for _ in range(int(count))]
        if then["field"] == "failed":
            return found[0] if found else None
        return [list(each.values()) for each in found] if then["field"] in PAIRS else found


@pytest.mark.parametrize("name", [vector["id"] for vector in MESSAGES])
def test_the_tables_read_every_message(name: str) -> None:
    vector = every()[name]
    read = Reading(plaintext(vector["input"])).message()
    assert read == vector["output"]["fields"]


@pytest.mark.parametrize("name", [*TOLD["messages"]])
def test_the_specification_has_the_same_layouts(name: str) -> None:
    told = TOLD["messages"][name]
    if told["frames"] == ["handshake"]:
        return  # the specification's tables of these count from the frame's header
    mine = [(f["at"], f["size"], f["name"]) for f in TOLD["layouts"][told["layout"]]]
    assert mine == layout(name)


@pytest.mark.parametrize("name", ["INIT", "RESP"])
def test_handshake_messages_have_the_lengths_that_their_state_takes(name: str) -> None:
    message = TOLD["messages"][name]
    size = sum(field["size"] for field in TOLD["layouts"][name])
    for then in message["then"]:
        size += sum(tables.size_of(field["type"]) for field in then["fields"])
        size += TOLD["limits"]["AEAD_TAG"]["value"]
    state = {"INIT": ("responder", "WAIT_INIT"), "RESP": ("initiator", "WAIT_RESP")}[name]
    assert TOLD["takes"][state[0]][state[1]] == {"handshake": size}


def test_each_message_has_a_vector_that_is_valid_and_its_senders() -> None:
    """Another implementation that reads a message only to refuse it would pass all others."""
    sealed = {name for name, each in TOLD["messages"].items() if "sealed" in each["frames"]}
    shown = {vector["output"]["fields"]["message"] for vector in MESSAGES}
    assert sealed <= shown
    assert sealed == set(permissions.ALL)
