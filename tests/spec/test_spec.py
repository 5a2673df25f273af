"""The specification and the vectors' files: nothing has drifted, and nothing is missing."""

from __future__ import annotations

import functools
import json
import re
import struct
from collections import Counter
from typing import Any

import jsonschema  # type: ignore[import-untyped,unused-ignore]
import pytest
from sealring_protocol.conformance.result import plaintext

import spec.generate
from spec.vectors.generate import FAMILIES, text_of
from tests.spec.files import SCHEMA, SPEC, VECTORS, every, family, of_kinds

TEXT = SPEC.read_text(encoding="utf-8")
DEFINED = re.findall(r"\*\*\[([A-Z]{2}-\d\d)\]\*\*(†?)", TEXT)


def test_generated_sections_are_what_the_code_says() -> None:
    assert spec.generate.drifted(TEXT) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_vectors_are_what_their_generator_makes(name: str) -> None:
    assert (VECTORS / f"{name}.json").read_text(encoding="ascii") == text_of(name)


def test_there_is_no_file_without_a_generator() -> None:
    files = {path.stem for path in VECTORS.glob("*.json")}
    assert files == {*FAMILIES, "schema"}


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(SCHEMA.read_text(encoding="ascii"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", FAMILIES)
def test_files_follow_the_schema(name: str) -> None:
    assert [error.message for error in validator().iter_errors(family(name))] == []


# ---------------------------------------------------------------- requirements


def test_every_requirement_has_one_id() -> None:
    counted = Counter(name for name, _ in DEFINED)
    assert [name for name, times in counted.items() if times > 1] == []


def test_ids_count_up() -> None:
    """Each section's ids are 01, 02, ... so that none is lost without a trace."""
    numbers: dict[str, list[int]] = {}
    for name, _ in DEFINED:
        numbers.setdefault(name[:2], []).append(int(name[3:]))
    for prefix, found in numbers.items():
        assert sorted(found) == list(range(1, len(found) + 1)), prefix


def test_references_lead_somewhere() -> None:
    assert set(re.findall(r"\[([A-Z]{2}-\d\d)\]", TEXT)) == {name for name, _ in DEFINED}


def test_every_requirement_has_a_vector_unless_it_says_that_none_can() -> None:
    named = {each for vector in every().values() for each in vector["requirements"]}
    assert named == {name for name, dagger in DEFINED if not dagger}


def test_every_must_stands_in_a_requirement() -> None:
    """Outside of generated sections, a line with MUST is a numbered requirement."""
    plain = re.sub(r"<!-- generated.*?<!-- end -->", "", TEXT, flags=re.DOTALL)
    loose = [line for line in plain.splitlines() if "MUST" in line and not line.startswith("- **[")]
    assert [line for line in loose if not line.startswith("Words: MUST")] == []


def test_most_vectors_are_faulty() -> None:
    faulty = sum(vector["result"] != "valid" for vector in every().values())
    assert faulty / len(every()) > 0.6


# --------------------------------------------------------------------- layouts

_ROW = re.compile(r"^\| (\d+) \| (\d+) \| ([a-z_]+) \|", re.MULTILINE)


def layout(message: str) -> list[tuple[int, int, str]]:
    """The rows (offset, size, field) of the table under the heading that names *message*."""
    heading = re.search(rf"^### .*\b{message} 0x.*$", TEXT, re.MULTILINE)
    assert heading is not None
    section = TEXT[heading.end() :].split("\n#", 1)[0]
    table = section.split("\n\n| at |", 1)[1].split("\n\n", 1)[0]
    return [(int(at), int(size), name) for at, size, name in _ROW.findall(table)]


def as_bytes(value: Any, size: int) -> bytes:
    """What a field of *size* bytes must hold, given its value in a vector."""
    match value:
        case bool() | None | dict():
            return int(bool(value)).to_bytes(size, "big")
        case int():
            return value.to_bytes(size, "big")
        case float():
            return struct.pack(">d", value)
        case list():
            return len(value).to_bytes(size, "big")
        case str() if value.isdecimal() and size == 8:
            return int(value).to_bytes(size, "big")
        case str() if size in (16, 32, 64):
            return bytes.fromhex(value)
    raise AssertionError(value)


MESSAGES = [v for v in of_kinds("message", "local-message") if v["result"] == "valid"]
TEXTS = ("reason", "name", "settings", "version", "method", "client")
"""Names of the fields that are texts and not bytes, which the tables do not say. A new one belongs
here."""
BLOBS = {"PIECE": ("data",), "BODY": ("data",), "ASK": ("target",)}
"""Fields of these messages that are bytes with their length."""


@pytest.mark.parametrize("name", [vector["id"] for vector in MESSAGES])
def test_layout_tables_fit_the_vectors(name: str) -> None:
    fields = dict(every()[name]["output"]["fields"])
    data = plaintext(every()[name]["input"])
    message = fields.pop("message")
    fields["code"] = data[0]
    blobs = ("roster", "grammar", *BLOBS.get(message, ()))
    for text in (*TEXTS, *blobs):  # told by their length
        if text in fields:
            encoded = bytes.fromhex(fields[text]) if text in blobs else fields[text].encode()
            fields[text] = list(encoded)
    rest = 0
    if message == "TUNNEL":  # to the end of the plaintext
        rest = len(fields.pop("data")) // 2
    end = 0
    for at, size, field in layout(message):
        assert at == end, "a gap in the table"
        end = at + size
        assert data[at:end] == as_bytes(fields[field], size), field
    assert set(fields) == {field for _, _, field in layout(message)}
    if not any(isinstance(value, list | dict) and value for value in fields.values()):
        assert end + rest == len(data)


@pytest.mark.parametrize(
    ("heading", "total"), [("### 5.2 INIT", 1269), ("### 5.3 RESP", 1333), ("## 4. Frames", 8)]
)
def test_tables_of_frames_have_no_gap(heading: str, total: int) -> None:
    table = TEXT.split(heading, 1)[1].split("\n\n| at |", 1)[1].split("\n\n", 1)[0]
    end = 0
    for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", table, re.MULTILINE):
        assert int(at) == end
        end += int(size)
    assert end == total
