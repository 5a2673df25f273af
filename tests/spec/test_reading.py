"""A decoder for STEP and STEP_DONE that knows nothing but the specification's tables."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sealring_protocol.conformance.result import plaintext

from tests.spec.files import SPEC, every, of_kinds
from tests.spec.test_spec import layout

TEXT = SPEC.read_text(encoding="utf-8")
SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}
LISTS = ("back", "save", "evict", "drop", "open", "join", "spent")


def entry(name: str) -> list[tuple[str, str]]:
    """Field and type of each part of a list's entry, as section 8.9 has it."""
    row = re.search(
        rf"^\| {name}[^|]*\| ([^|]+) \|$", TEXT.split("| then, for each |")[1], re.MULTILINE
    )
    assert row is not None
    parts = re.findall(r"([a-z ]+?) (u\d+|text)\b", re.sub(r"\([^)]*\)", "", row.group(1)))
    return [(field.strip(), kind) for field, kind in parts]


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        assert len(piece) == size
        self.at += size
        return piece

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def value(self, kind: str) -> Any:
        if kind == "text":
            return self.take(self.integer(2)).decode()
        number = self.integer(SIZES[kind])
        return str(number) if kind == "u64" else number

    def entry(self, name: str) -> Any:
        values = {field: self.value(kind) for field, kind in entry(name)}
        return values if len(values) > 1 else next(iter(values.values()))


def tensor(cursor: Cursor) -> dict[str, Any]:
    """Section 9."""
    table = TEXT.split("## 9. Tensors")[1].split("## 10")[0]
    fixed = {
        name: cursor.integer(int(size))
        for size, name in re.findall(r"^\| \d+ \| (\d+) \| ([a-z]+) \|", table, re.MULTILINE)
    }
    shape = [cursor.integer(4) for _ in range(fixed["dimensions"])]
    widths = {
        int(code): int(width)
        for code, width in re.findall(r"^\| (\d) \| [A-Z0-9]+ \| (\d) \|", table, re.MULTILINE)
    }
    size = widths[fixed["dtype"]]
    for dimension in shape:
        size *= dimension
    return {
        "dtype": fixed["dtype"],
        "sealed": bool(fixed["sealed"]),
        "counter": str(fixed["counter"]),
        "shape": shape,
        "data": cursor.take(size + 16 * fixed["sealed"]).hex(),
    }


STEPS = [
    vector["id"]
    for vector in of_kinds("message")
    if vector["result"] == "valid" and vector["output"]["fields"]["message"].startswith("STEP")
]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_read_by_the_tables_alone(name: str) -> None:
    fields = every()[name]["output"]["fields"]
    cursor = Cursor(plaintext(every()[name]["input"]))
    counts = {field: cursor.integer(size) for _, size, field in layout(fields["message"])}
    read: dict[str, Any] = {
        each: [cursor.entry(each) for _ in range(counts[each])] for each in LISTS if each in counts
    }
    read["ids"] = [cursor.integer(4) for _ in range(counts["ids"])]
    read["tensors"] = [tensor(cursor) for _ in range(counts["tensors"])]
    read["failed"] = cursor.entry("failure, if failed") if counts["failed"] else None
    assert cursor.at == len(cursor.data)
    assert read == {field: fields[field] for field in read}
