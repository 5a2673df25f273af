"""Texts of invitations (section 14.2), and the key that one gives (14.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sealring_protocol.errors import CloseCode

from spec.vectors.join_talk import PAPER, PINNED, SECRET, Paper
from spec.vectors.model import LIMIT, MALFORMED, Json, Vector, refused, valid
from spec.vectors.plain import PROTOCOLS, expand, hmac, sha256
from spec.vectors.world import entropy

GIVEN: Final[Mapping[str, bytes]] = {"pinned": PINNED, "secret": SECRET}
_LONGEST: Final = tuple(letter * 255 for letter in "abcd")


def vectors() -> Iterator[Vector]:
    """Texts, good and bad, and what an invitation's secret gives."""
    yield from _good()
    yield from _bad_texts()
    yield from _bad_contents()
    for label in ("one", "two"):
        yield _key(label)
    for suite in PROTOCOLS:
        yield _exchange(suite)


def _told(paper: Paper) -> Json:
    return {
        "addresses": list(paper.texts),
        "coordinator": paper.coordinator.hex(),
        "secret": paper.secret.hex(),
        "expires_s": paper.expires_s,
        "text": paper.words,
    }


def _good() -> Iterator[Vector]:
    plain = PAPER.words
    one = Paper(texts=("a:1",))
    for name, ids, about, text, paper in [
        ("two", "JN-02 JN-03 JN-04", "two addresses", plain, PAPER),
        ("one", "JN-04", "one address", one.words, one),
        _of("four", "four addresses, as long as may be", Paper(texts=_LONGEST)),
        _of("unicode", "an address that is not ASCII", Paper(texts=("bücher.example:1",))),
        _of("first-second", "it expires in 1970", Paper(expires_s=0)),
        _of("last-second", "it expires in 2106", Paper(expires_s=2**32 - 1)),
        ("upper", "JN-02", "in capitals, as a QR code has it", plain.upper(), PAPER),
        ("mixed", "JN-02", "in both cases", plain[:50].upper() + plain[50:], PAPER),
        ("blanks", "JN-02", "blanks and line ends around it", f" \t{plain}\r\n", PAPER),
        ("padded", "JN-02", "as many blanks as one likes", plain + " " * 2048, PAPER),
    ]:
        yield valid(f"invitation/{name}", "invitation", ids, about, {"text": text}, _told(paper))


def _of(name: str, about: str, paper: Paper) -> tuple[str, str, str, str, Paper]:
    return name, "JN-04", about, paper.words, paper


def _bad_texts() -> Iterator[Vector]:
    plain = PAPER.words
    whole = Paper(texts=("12:3",)).words  # its last character has bits that are not used
    last = "abcdefghijklmnopqrstuvwxyz234567".index(whole[-1])
    loose = whole[:-1] + "abcdefghijklmnopqrstuvwxyz234567"[last + 1]
    for name, about, text in [
        ("empty", "nothing", ""),
        ("prefix-alone", "the prefix alone", "sr1-"),
        ("no-prefix", "no prefix", plain.removeprefix("sr1-")),
        ("prefix-2", "another version", f"sr2-{plain.removeprefix('sr1-')}"),
        ("inner-blank", "a blank within", f"{plain[:40]} {plain[40:]}"),
        ("inner-line", "a line end within", f"{plain[:40]}\n{plain[40:]}"),
        ("no-break-space", "a no-break space after it", f"{plain}\u00a0"),
        ("padding", "with base32's padding", plain + "=" * (-(len(plain) - 4) % 8)),
        ("digit-1", "a 1", f"{plain[:40]}1{plain[41:]}"),
        ("kelvin", "a Kelvin sign, whose lower case is k", _kelvin(plain)),
        ("long-s", "a long s, whose capital is S", plain.replace("s", "\u017f", 1)),
        ("loose-bits", "a last character with bits that are not used", loose),
        ("odd-length", "a length that base32 does not give", f"{plain}{'a' * _odd(plain)}"),
    ]:
        yield _refused(name, "JN-02", about, text)
    about = "2,048 characters, which is no limit passed"
    yield _refused("long-enough", "JN-03", about, "sr1-" + "a" * 2044)
    about = "2,049 characters"
    yield _refused("long", "JN-02 CV-02", about, "sr1-" + "a" * 2045, LIMIT)


def _kelvin(text: str) -> str:
    at = text.index("k")
    return f"{text[:at]}\u212a{text[at + 1 :]}"


def _odd(text: str) -> int:
    """How many characters more give a length that is no whole number of bytes' own."""
    return next(n for n in range(1, 8) if (len(text) - 4 + n) % 8 in (1, 3, 6))


def _refused(name: str, ids: str, about: str, text: str, why: CloseCode = MALFORMED) -> Vector:
    return refused(f"invitation/{name}", "invitation", ids, about, {"text": text}, why)


def _bad_contents() -> Iterator[Vector]:
    plain = PAPER.words
    for name, about, text in [
        ("cut", "cut off", plain[:-8]),
        ("mistyped", "a letter mistyped", plain[:60] + _next(plain[60]) + plain[61:]),
        ("check", "a check of zeros", Paper(check=bytes(4)).words),
        ("check-alone", "three bytes", "sr1-aaaaa"),
    ]:
        yield _refused(name, "JN-03", about, text)
    for name, ids, about, paper, why in [
        ("no-address", "JN-04", "no address", Paper(texts=()), MALFORMED),
        (
            "five-addresses",
            "JN-04 CV-02",
            "five addresses",
            Paper(texts=tuple("abcde")),
            LIMIT,
        ),
        (
            "address-long",
            "JN-04 CV-02",
            "an address of 256 bytes",
            Paper(texts=("a" * 256,)),
            LIMIT,
        ),
        ("address-empty", "JN-04", "an empty address", Paper(texts=("a:1", "")), MALFORMED),
        ("address-twice", "JN-04", "an address twice", Paper(texts=("a:1", "a:1")), MALFORMED),
        ("address-hidden", "JN-04", "an ESC in an address", Paper(texts=("a\x1b:1",)), MALFORMED),
        ("address-utf8", "JN-04 CV-03", "no UTF-8", Paper(texts=(b"\xff:1",)), MALFORMED),
        ("few", "JN-04 CV-01", "two addresses, one there", Paper(count=3), MALFORMED),
        ("many", "JN-04 CV-01", "an address left over", Paper(count=1), MALFORMED),
        ("tail", "JN-04 CV-01", "a byte left over", Paper(tail=b"\0"), MALFORMED),
    ]:
        yield _refused(name, ids, about, paper.words, why)


def _next(letter: str) -> str:
    return "b" if letter == "a" else "a"


def _key(label: str) -> Vector:
    coordinator, secret = entropy(f"coordinator {label}", 32), entropy(f"secret {label}", 16)
    given = {"coordinator": coordinator.hex(), "secret": secret.hex()}
    output = {"key": hmac(b"sealring/1join", coordinator + secret).hex()}
    name = f"invitation/key-{label}"
    return valid(name, "join-key", "JN-07 KS-01 KS-02", "K_J", given, output)


def _exchange(suite: int) -> Vector:
    told = {name: entropy(f"{name} {suite}", 32) for name in ("coordinator", "ss_kem", "ss_x")}
    told |= {"secret": SECRET, "init": entropy("init", 1269), "shares": entropy("shares", 1130)}
    protocol = PROTOCOLS[suite]
    t1 = sha256(protocol, b"join", told["coordinator"], told["init"])
    t2 = sha256(t1, told["shares"])
    prk = hmac(sha256(protocol), told["ss_kem"] + told["ss_x"] + SECRET)
    output = {"t1": t1.hex(), "t2": t2.hex(), "prk": prk.hex()}
    for name in ("kR", "mR", "kI", "mI"):
        output[name] = expand(prk, protocol + name.encode() + t2).hex()
    given = {"suite": suite, **{name: data.hex() for name, data in told.items()}}
    about = "the transcripts, PRK and the four keys of a join"
    ids = "KS-01 KS-02 KS-03"
    return valid(f"invitation/exchange-{suite}", "join-exchange", ids, about, given, output)
