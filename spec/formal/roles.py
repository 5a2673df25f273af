"""The two roles of the handshake as sections 5 and 6 of the specification have them.

A role that waits for a message knows which one it would take, but for the fields that its peer
chooses. So each `expect_...` gives, for every choice of those fields, the one message that passes
all checks and the run after it. The search asks the intruder whether it can make that message: to
relay what an honest end sent is one way of making it. A weakness takes a check or an ingredient
away, and the messages that then pass are given as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final, Generic, TypeVar

import attrs

from spec.formal.terms import (
    Knowledge,
    Term,
    agreed,
    decapsulated,
    encapsulated,
    kem_key,
    public,
    secret,
    share,
    term,
)

CLUSTER: Final = public("cluster")
SUITES: Final = ("1", "2")
OFFERS: Final = ("12", "2")
"""The sets that can be offered, and of which R does not take the same suite."""
ROSTERS: Final = ("old", "new")
JUNK: Final = public("junk")

Step = tuple[Term, "Run", tuple[Term, ...]]
"""A message that is taken, the run after it, and what is sent then."""


def key_of(node: str) -> Term:
    """A node's private signing key."""
    return secret(f"key of {node}")


def public_key_of(node: str) -> Term:
    """A node's public key, which the roster tells everyone."""
    return public(f"public key of {node}")


def _protocol(suite: str) -> Term:
    return public(f"sealring/1 suite {suite}")


@attrs.frozen
class World:
    """Who is a member, and what is weakened."""

    members: tuple[str, ...]
    weak: str


W = TypeVar("W", bound=World)


@attrs.frozen
class End(Generic[W]):
    """One end of one exchange, a link's handshake or a join, and what it believes."""

    ANSWERS: ClassVar[str]
    """The role that waits for the other."""
    STALE: ClassVar[str]
    """The weakness in which that role uses its shares again."""

    world: W = attrs.field(repr=False, eq=False)
    role: str
    owner: str
    number: int
    peer: str = ""
    stage: int = 0
    transcripts: tuple[Term, ...] = ()
    """t1 to t4, as far as they are known."""
    prk: Term | None = None
    init: Term | None = None

    @property
    def label(self) -> str:
        """This end for people."""
        return f"{self.owner} ({self.role}{self.number})"

    @property
    def weak(self) -> str:
        """The weakness of the world."""
        return self.world.weak

    def private(self, kind: str) -> Term:
        """A number that this run draws."""
        reused = self.role == self.ANSWERS and self.weak in {self.STALE, "static-share"}
        return secret(f"{kind} of {self.owner}" + ("" if reused else f" {self.role}{self.number}"))

    def secrets(self) -> tuple[Term, Term]:
        """The traffic secrets towards the end that answers, and towards the other."""
        raise NotImplementedError

    def dial(self) -> tuple[Any, Term]:
        """Send the first message."""
        raise NotImplementedError

    def expect(self, intruder: Knowledge) -> Iterator[tuple[Term, Any, tuple[Term, ...]]]:
        """Every message that this end takes now, whatever its fields, and what follows."""
        raise NotImplementedError


@attrs.frozen
class LinkWorld(World):
    """A world in which nodes dial each other, and which roster each holds."""

    rosters: dict[str, str] = attrs.field(hash=False)

    @property
    def names_in_claims(self) -> bool:
        return self.weak != "loose-claims"


@attrs.frozen
class Run(End[LinkWorld]):
    """One end of one handshake: an initiator (I) or a responder (R)."""

    ANSWERS = "R"
    STALE = "stale-responder"

    offer: str = ""
    suite: str = ""
    rosters: tuple[str, str] = ("", "")
    """The responder's and the initiator's, as this end sees them."""

    @property
    def complete(self) -> bool:
        """This end takes its peer for verified, and itself for accepted."""
        return self.stage == (3 if self.role == "I" else 2)

    # ------------------------------------------------------------ formulas

    def derive(self, label: str, *info: Term) -> Term:
        """Expand(PRK, P || label || info)."""
        assert self.prk is not None
        return term("expand", self.prk, _protocol(self.suite), public(label), *info)

    def secrets(self) -> tuple[Term, Term]:
        """The traffic secrets towards R, and towards I."""
        ends = (self.owner, self.peer) if self.role == "I" else (self.peer, self.owner)
        initiator, responder = (public(end) for end in ends)
        t4 = self.transcripts[3]
        towards = [("0", initiator, responder), ("1", responder, initiator)]
        if self.weak == "no-names-in-keys":
            towards = [(direction, CLUSTER, CLUSTER) for direction, _, _ in towards]
        to_r, to_i = (self.derive("traffic", public(d), s, r, t4) for d, s, r in towards)
        return to_r, to_i

    def _first(self, responder: str, offer: str, x: Term, ek: Term, suite: str) -> Term:
        init = _init(responder, offer, x, ek)
        if self.weak == "offer-not-in-transcript":
            init = term("tuple", x, ek)
        return term("hash", _protocol(suite), CLUSTER, public_key_of(responder), init)

    def _prk(self, ss_kem: Term, ss_x: Term) -> Term:
        if self.weak in {"x25519-alone", "static-share"}:
            return term("extract", ss_x)
        if self.weak == "ml-kem-alone":
            return term("extract", ss_kem)
        return term("extract", ss_kem, ss_x)

    def _proof(self, context: str, label: str, signer: str, transcript: Term, claims: Term) -> Term:
        """Claims, signature and MAC, as the right end makes them."""
        signed = term("hash", transcript, claims)
        if self.weak == "one-context":
            context = "RESP"
        payload = term("tuple", _protocol(self.suite), public(context), signed)
        signature = term("sign", key_of(signer), payload)
        maced = term("hash", transcript, claims, signature)
        tag = term("mac", self.derive(label, self.transcripts[1]), maced)
        if self.weak in {"open-fin-without-mac", "no-mac"}:
            tag = JUNK
        return term("tuple", claims, signature, tag)

    def _unsigned(self, label: str, transcript: Term, claims: Term) -> Term:
        """The same, where nobody looks at the signature."""
        maced = term("hash", transcript, claims, JUNK)
        tag = term("mac", self.derive(label, self.transcripts[1]), maced)
        return term("tuple", claims, JUNK, tag)

    # ---------------------------------------------------------------- RESP

    def _resp_claims(self, responder: str, roster: str) -> Term:
        told = public(roster) if self.world.names_in_claims else JUNK
        return term("tuple", public(responder), told)

    def _resp(self, shares: Term, plaintext: Term, roster: str) -> Term:
        sealed = term("aead", self.derive("kR", self.transcripts[1]), public("RESP"), plaintext)
        beside = () if self.world.names_in_claims else (public(roster),)
        return term("tuple", shares, sealed, *beside)

    def _after_resp(self, resp: Term) -> Term:
        sealed = term("tuple", *resp.args[:2])  # what a loose claim adds is in no transcript
        return term("hash", self.transcripts[0], sealed)

    # ----------------------------------------------------------------- FIN

    def _fin_claims(self, initiator: str, responder: str, roster: str) -> Term:
        told = public(roster) if self.world.names_in_claims else JUNK
        named = () if self.weak == "fin-names-no-responder" else (public(responder),)
        return term("tuple", public(initiator), *named, told)

    def _fin(self, plaintext: Term, roster: str) -> Term:
        beside = () if self.world.names_in_claims else (public(roster),)
        if self.weak in {"open-fin", "open-fin-without-mac"}:
            return term("tuple", plaintext, *beside)
        key = self.derive("kI", self.transcripts[1])
        return term("tuple", term("aead", key, self.transcripts[2], plaintext), *beside)

    def _after_fin(self, fin: Term) -> Run:
        t4 = term("hash", self.transcripts[2], fin.args[0])
        return attrs.evolve(self, transcripts=(*self.transcripts, t4))

    def _accept(self) -> Term:
        key = term("expand", self.secrets()[1], public("key"))
        return term("aead", key, public("ACCEPT"), self.transcripts[3])

    # ----------------------------------------------------------- initiator

    def dial(self) -> tuple[Run, Term]:
        """Send INIT, with both suites on offer."""
        offer = OFFERS[0]
        init = _init(self.peer, offer, share(self.private("x")), kem_key(self.private("k")))
        return attrs.evolve(self, stage=1, offer=offer, init=init), init

    def expect(self, intruder: Knowledge) -> Iterator[Step]:
        waiting = {
            ("I", 1): self._expect_resp,
            ("I", 2): self._expect_accept,
            ("R", 0): self._expect_init,
            ("R", 1): self._expect_fin,
        }
        take = waiting.get((self.role, self.stage))
        return iter(()) if take is None else take(intruder)

    def _expect_resp(self, intruder: Knowledge) -> Iterator[Step]:
        x, k = self.private("x"), self.private("k")
        own, _ = encapsulated(kem_key(k), secret("r of intruder"))
        for suite in self.offer:
            t1 = self._first(self.peer, self.offer, share(x), kem_key(k), suite)
            for theirs in list(intruder.shares()):
                for ct in {own, *intruder.ciphertexts()}:
                    shares = term("tuple", public(suite), theirs, ct)
                    t2 = term("hash", t1, shares)
                    prk = self._prk(decapsulated(k, ct), agreed(x, theirs))
                    at = attrs.evolve(self, suite=suite, transcripts=(t1, t2), prk=prk)
                    for roster in ROSTERS:
                        yield from at._take_resp(shares, roster)

    def _take_resp(self, shares: Term, roster: str) -> Iterator[Step]:
        t2, claims = self.transcripts[1], self._resp_claims(self.peer, roster)
        signers = [self.peer]
        if self.weak == "any-members-signature":
            signers = list(self.world.members)
        proofs = [self._proof("RESP", "mR", signer, t2, claims) for signer in signers]
        if self.weak == "unsigned-resp":
            proofs.append(self._unsigned("mR", t2, claims))
        for proof in proofs:
            resp = self._resp(shares, proof, roster)
            t3 = self._after_resp(resp)
            mine = self.world.rosters[self.owner]
            following = attrs.evolve(
                self, stage=2, rosters=(roster, mine), transcripts=(*self.transcripts, t3)
            )
            claim = following._fin_claims(self.owner, self.peer, mine)
            fin = following._fin(following._proof("FIN", "mI", self.owner, t3, claim), mine)
            yield resp, following._after_fin(fin), (fin,)

    def _expect_accept(self, intruder: Knowledge) -> Iterator[Step]:
        yield self._accept(), attrs.evolve(self, stage=3), ()

    # ----------------------------------------------------------- responder

    def _expect_init(self, intruder: Knowledge) -> Iterator[Step]:
        for offer in OFFERS:
            suite = min(offer)  # R likes suite 1 better
            for theirs in list(intruder.shares()):
                for ek in list(intruder.kem_keys()):
                    yield self._take_init(offer, suite, theirs, ek)

    def _take_init(self, offer: str, suite: str, theirs: Term, ek: Term) -> Step:
        init = _init(self.owner, offer, theirs, ek)
        x = self.private("x")
        ct, ss_kem = encapsulated(ek, self.private("r"))
        shares = term("tuple", public(suite), share(x), ct)
        t1 = self._first(self.owner, offer, theirs, ek, suite)
        t2 = term("hash", t1, shares)
        prk = self._prk(ss_kem, agreed(x, theirs))
        at = attrs.evolve(
            self, stage=1, offer=offer, suite=suite, transcripts=(t1, t2), prk=prk, init=init
        )
        mine = self.world.rosters[self.owner]
        claims = at._resp_claims(self.owner, mine)
        resp = at._resp(shares, at._proof("RESP", "mR", self.owner, t2, claims), mine)
        t3 = at._after_resp(resp)
        return init, attrs.evolve(at, transcripts=(t1, t2, t3), rosters=(mine, "")), (resp,)

    def _expect_fin(self, intruder: Knowledge) -> Iterator[Step]:
        t3 = self.transcripts[2]
        for peer in self.world.members:
            if peer == self.owner:
                continue
            for roster in ROSTERS:
                claims = self._fin_claims(peer, self.owner, roster)
                proofs = [self._proof("FIN", "mI", peer, t3, claims)]
                if self.weak == "unsigned-fin":
                    proofs.append(self._unsigned("mI", t3, claims))
                for proof in proofs:
                    fin = self._fin(proof, roster)
                    rosters = (self.rosters[0], roster)
                    after = attrs.evolve(self, stage=2, peer=peer, rosters=rosters)._after_fin(fin)
                    yield fin, after, (after._accept(),)


def _init(responder: str, offer: str, x: Term, ek: Term) -> Term:
    """INIT. Its tag is under a key that every reader of a roster has, and the intruder is one."""
    told = (public(f"offer {offer}"), x, ek)
    admission = term("extract", CLUSTER, public_key_of(responder))
    return term("tuple", *told, term("mac", admission, term("tuple", *told)))
