"""Sizes and addresses, as people write them."""

from __future__ import annotations

import pytest
from sealring_trio.units import format_address, format_size, parse_address, parse_size

SIZES = {
    "1": 1,
    "512M": 512 << 20,
    "24G": 24 << 30,
    "24GiB": 24 << 30,
    " 1.5 g ": 3 << 29,
    "2T": 2 << 40,
    "7kb": 7 << 10,
}
NO_SIZES = ["", "G", "-1G", "0", "0G", "12X", "1,5G", "1e9", "ten"]
ADDRESSES = {
    "localhost:1": ("localhost", 1),
    "0.0.0.0:7470": ("0.0.0.0", 7470),
    "[::1]:65535": ("::1", 65535),
    "[fe80::1%eth0]:80": ("fe80::1%eth0", 80),
}
NO_ADDRESSES = [
    "",
    "host",
    "host:",
    ":80",
    "host:0",
    "host:65536",
    "::1:80",
    "[::1]",
    "a b:80",
    "host:8o",
]


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", NO_SIZES)
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.00 GiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(("text", "address"), ADDRESSES.items())
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert format_address(*address) == text


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="is no address"):
        parse_address(text)
