"""Messages as terms, and what an intruder can make of those that it has seen.

A term is an operation over terms. Equal terms are one object, so comparing them costs nothing.
Cryptography is perfect: a sealed term opens with its key alone, a hash says nothing of what went
in, and a signature is made by its key or not at all. What the intruder can do is `Knowledge.can`;
what an observer reads off a message that it cannot open is `Knowledge.visible`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator


class Term:
    """One operation and what it is over; made by `term` alone, which makes each one once."""

    __slots__ = ("args", "name", "op")

    def __init__(self, op: str, name: str, args: tuple[Term, ...]) -> None:
        self.op, self.name, self.args = op, name, args

    def __repr__(self) -> str:
        inner = ", ".join([self.name] * bool(self.name) + [repr(arg) for arg in self.args])
        return f"{self.op}({inner})" if self.args else self.name


@functools.cache
def _interned(op: str, name: str, args: tuple[Term, ...]) -> Term:
    return Term(op, name, args)


def public(name: str) -> Term:
    """A constant that everyone knows: a label, a node's name, a roster."""
    return _interned("public", name, ())


def secret(name: str) -> Term:
    """A number that its maker alone knows, until it is leaked."""
    return _interned("secret", name, ())


def term(op: str, *args: Term) -> Term:
    """*op* over *args*. Anyone who has all of *args* can make it."""
    return _interned(op, "", args)


def share(private: Term) -> Term:
    """The X25519 public key of *private*."""
    return term("share", private)


def agreed(private: Term, theirs: Term) -> Term:
    """The X25519 secret of *private* and the share *theirs*; the same from either side."""
    return term("dh", *sorted((private, theirs.args[0]), key=id))


def kem_key(private: Term) -> Term:
    """The ML-KEM encapsulation key of *private*."""
    return term("ek", private)


def encapsulated(ek: Term, entropy: Term) -> tuple[Term, Term]:
    """The ciphertext and the secret that *entropy* gives for *ek*."""
    return term("ct", ek, entropy), term("ss", ek, entropy)


def decapsulated(private: Term, ciphertext: Term) -> Term:
    """What ML-KEM gives: the secret, or for another key's ciphertext one that nobody else has."""
    ek, entropy = ciphertext.args
    if ek is kem_key(private):
        return term("ss", ek, entropy)
    return term("rejected", private, ciphertext)


class Knowledge:
    """What the intruder has, taken apart as far as it goes."""

    __slots__ = ("_made", "_sealed", "known")

    def __init__(self, terms: Iterable[Term] = ()) -> None:
        self.known: set[Term] = set()
        self._sealed: list[Term] = []
        self._made: dict[Term, bool] = {}
        self.add(terms)

    def with_(self, terms: Iterable[Term]) -> Knowledge:
        """This and *terms*."""
        grown = Knowledge()
        grown.known, grown._sealed = set(self.known), list(self._sealed)
        grown.add(terms)
        return grown

    def add(self, terms: Iterable[Term]) -> None:
        """Learn *terms*, and open with them what was shut."""
        self._take(terms)
        self._made.clear()
        while opened := [t for t in self._sealed if self.can(t.args[0])]:
            self._made.clear()
            for sealed in opened:
                self._sealed.remove(sealed)
                self._take(sealed.args[2:])

    def _take(self, terms: Iterable[Term]) -> None:
        for one in terms:
            if one in self.known:
                continue
            self.known.add(one)
            if one.op == "tuple":
                self._take(one.args)
            elif one.op == "sign":  # ECDSA does not show what it signs; this is the stronger thief
                self._take(one.args[1:])
            elif one.op == "aead":
                self._sealed.append(one)

    def can(self, wanted: Term) -> bool:
        """The intruder can make *wanted*."""
        made = self._made.get(wanted)
        if made is None:
            made = self._made[wanted] = wanted in self.known or self._compose(wanted)
        return made

    def _compose(self, wanted: Term) -> bool:
        match wanted.op:
            case "public":
                return True
            case "secret":
                return False
            case "dh":
                a, b = wanted.args
                return any(self.can(x) and self.can(share(y)) for x, y in ((a, b), (b, a)))
            case "ss":
                ek, entropy = wanted.args
                return (self.can(ek) and self.can(entropy)) or (
                    self.can(ek.args[0]) and self.can(term("ct", ek, entropy))
                )
        return all(self.can(arg) for arg in wanted.args)

    def shares(self) -> Iterator[Term]:
        """The X25519 public keys that it has."""
        return (t for t in self.known if t.op == "share")

    def kem_keys(self) -> Iterator[Term]:
        """The ML-KEM keys that it has."""
        return (t for t in self.known if t.op == "ek")

    def ciphertexts(self) -> Iterator[Term]:
        """The ML-KEM ciphertexts that it has."""
        return (t for t in self.known if t.op == "ct")

    def visible(self, message: Term) -> set[str]:
        """The names that can be read off *message*, or tested by guessing.

        What is sealed with a key that the intruder lacks, or depends on a number that it lacks,
        shows nothing; a signature is tested with every member's public key, so it shows whose it
        is; a hash of things that can be guessed shows them.
        """
        match message.op:
            case "public":
                return {message.name}
            case "aead" | "mac" if not self.can(message.args[0]):
                return set()
            case "aead":
                return set().union(*(self.visible(arg) for arg in message.args[1:]))
            case "sign":
                signer, signed = message.args
                return {signer.name.removeprefix("key of ")} | self.visible(signed)
            case "hash" if not self.can(message):
                return set()
        return set().union(*(self.visible(arg) for arg in message.args))
