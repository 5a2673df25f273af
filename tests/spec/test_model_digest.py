"""The model digest of 8.15, made here from the specification's words alone, is the one in use."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from sealring_model import tiny
from sealring_model.loading.model_folder import describe


class Number(str):
    """A number as it stands in its file."""


def canonical(value: Any) -> str:
    """The canonical text of *value*, whose numbers are `Number`s."""
    match value:
        case Number():
            return integer_or_float(value)
        case str():
            return '"' + "".join(map(escaped, value)) + '"'
        case dict():
            pairs = (f"{canonical(key)}:{canonical(value[key])}" for key in sorted(value))
            return "{" + ",".join(pairs) + "}"
        case list():
            return "[" + ",".join(map(canonical, value)) + "]"
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
    raise TypeError(value)


def escaped(character: str) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n"}
    short |= {"\f": "\\f", "\r": "\\r"}
    if character in short:
        return short[character]
    if "\u0020" <= character <= "\u007e":
        return character
    units = struct.unpack(
        f">{len(character.encode('utf-16-be')) // 2}H", character.encode("utf-16-be")
    )
    return "".join(f"\\u{unit:04x}" for unit in units)


def integer_or_float(text: Number) -> str:
    if re.fullmatch(r"-?\d+", text):
        return str(int(text))
    value = float(text)
    digits, _, exponent = fewest_digits(value).partition("e")
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    whole, power = digits.replace(".", ""), int(exponent)
    if value and not 1e-4 <= abs(value) < 1e16:
        rest = f".{whole[1:]}" if len(whole) > 1 else ""
        return f"{sign}{whole[0]}{rest}e{'-' if power < 0 else '+'}{abs(power):02}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{whole}"
    whole = whole.ljust(power + 2, "0")
    return f"{sign}{whole[: power + 1]}.{whole[power + 1 :]}"


def fewest_digits(value: float) -> str:
    """*value* as digits and exponent: of the shortest that give it back the nearest, and of two
    equally near the even one."""
    exact = Decimal(value)
    for size in range(1, 18):
        found = [
            shown
            for way in (ROUND_FLOOR, ROUND_CEILING)
            if float(shown := f"{Context(size, way).plus(exact):.{size - 1}e}") == value
        ]
        if found:
            return min(
                found,
                key=lambda text: (abs(Decimal(text) - exact), int(text.split("e")[0][-1]) % 2),
            )
    raise AssertionError("17 digits give every binary64 back")


def digest(folder: Path) -> bytes:
    def read(path: Path) -> Any:
        return json.loads(path.read_bytes(), parse_int=Number, parse_float=Number)

    headers = []
    for file in folder.glob("model*.safetensors"):
        data = file.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")], parse_int=Number)
        headers += [[n, t["dtype"], t["shape"]] for n, t in header.items() if n != "__metadata__"]
    manifest = folder / "sealring.json"
    told = {
        "config": read(folder / "config.json"),
        "headers": sorted(headers, key=lambda each: str(each[0])),
        "manifest": read(manifest)["tensors"] if manifest.exists() else None,
    }
    return hashlib.sha256(b"sealring model 1\n" + canonical(told).encode()).digest()


def test_the_tiny_models_digest() -> None:
    assert digest(tiny.path()) == describe(tiny.path()).digest


def test_a_model_with_everything_that_can_be_written(tmp_path: Path) -> None:
    for file in tiny.path().iterdir():
        if file.name != "sealring.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"text": 'é\u2028\U0001f600"\\\n\x01', "none": None, "yes": True, "Z": [], "a": {}}
    config |= {"numbers": [1e-5, 1e16, 123456.75, 0.0001, 1.0, -2.5e-7, 10**20, 1e22, 0.1, 0.0]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert digest(tmp_path) == describe(tmp_path).digest


@example(2.0**-24)
@example(623203260495222.75)
@example(5e-324)
@example(1.7976931348623157e308)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_is_written_as_said(value: float) -> None:
    assert integer_or_float(Number(repr(value))) == json.dumps(value)
