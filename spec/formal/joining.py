"""The two roles of a join, from the specification's chapter on it; as `roles` has a link's.

A joiner (J) holds an invitation: the coordinator whose hash is in it, and a secret. An inviter (H)
has given some, and lets in whoever introduces himself: the person who decides is not in the model,
which is `--yes`. Of the suites there is one, since the transcripts treat it as a link's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from spec.formal.roles import JUNK, End, World, key_of, public_key_of
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

COORDINATOR: Final = "C"
FORGER: Final = "X"
"""A coordinator whose key the intruder has."""

Step = tuple[Term, "JoinRun", tuple[Term, ...]]


def secret_of(invitation: str) -> Term:
    """The secret of an invitation."""
    return secret(f"secret of {invitation}")


def signed_roster(members: tuple[str, ...], coordinator: str = COORDINATOR) -> Term:
    """A roster of *members*, signed by *coordinator*."""
    named = term("tuple", *map(public, members))
    signature = term("sign", key_of(coordinator), term("tuple", public("ROSTER"), named))
    return term("tuple", named, signature)


def unsigned_roster(members: tuple[str, ...]) -> Term:
    """A roster of *members* that nobody signed."""
    return term("tuple", term("tuple", *map(public, members)), JUNK)


@attrs.frozen
class JoinWorld(World):
    """A world in which strangers join members."""

    strangers: tuple[str, ...]


@attrs.frozen
class JoinRun(End[JoinWorld]):
    """One end of one join: a joiner (J) or an inviter (H)."""

    ANSWERS = "H"
    STALE = "stale-inviter"

    invitations: tuple[str, ...] = ()
    """The joiner's one, or those that the inviter has given, until it knows which one it is."""
    roster: Term | None = None
    """What the joiner stores."""

    @property
    def invitation(self) -> str:
        """The invitation of this join."""
        return self.invitations[0]

    @property
    def proved(self) -> bool:
        """This end takes the other for what it has shown to be."""
        return self.stage >= 2

    @property
    def complete(self) -> bool:
        """The newcomer has stored its roster, or is known to have."""
        return self.stage == 3

    # ------------------------------------------------------------ formulas

    def derive(self, label: str, *info: Term) -> Term:
        """Expand(PRK, P || label || info)."""
        assert self.prk is not None
        return term("expand", self.prk, public(label), *info)

    def secrets(self) -> tuple[Term, Term]:
        """The traffic secrets towards H, and towards J."""
        ends = (self.owner, self.peer) if self.role == "J" else (self.peer, self.owner)
        joiner, inviter = map(public, ends)
        t4 = self.transcripts[3]
        return (
            self.derive("traffic", public("0"), joiner, inviter, t4),
            self.derive("traffic", public("1"), inviter, joiner, t4),
        )

    def sealed(self, direction: int, *message: Term) -> Term:
        """*message* in the channel towards H (0) or J (1)."""
        return term("aead", term("expand", self.secrets()[direction]), public("frame"), *message)

    def _prk(self, ss_kem: Term, ss_x: Term) -> Term:
        own = secret_of(self.invitation)
        return {
            "no-secret": lambda: term("extract", ss_kem, ss_x),
            "secret-alone": lambda: term("extract", own),
            "x25519-alone": lambda: term("extract", ss_x, own),
            "ml-kem-alone": lambda: term("extract", ss_kem, own),
            "static-share": lambda: term("extract", ss_x, own),
        }.get(self.weak, lambda: term("extract", ss_kem, ss_x, own))()

    def _init(self, x: Term, ek: Term) -> Term:
        key = term("extract", public("join"), public_key_of(COORDINATOR))
        if self.weak != "no-secret":
            key = term("extract", public("join"), secret_of(self.invitation))
        return term("tuple", x, ek, term("mac", key, term("tuple", x, ek)))

    def _first(self, init: Term) -> Term:
        return term("hash", public("join"), public_key_of(COORDINATOR), init)

    def _proof(self, context: str, label: str, signer: str, transcript: Term, claims: Term) -> Term:
        """Claims, signature and MAC, as the right end makes them."""
        if self.weak == "one-context":
            context = "JOIN-RESP"
        payload = term("tuple", public(context), term("hash", transcript, claims))
        return self._maced(label, transcript, claims, term("sign", key_of(signer), payload))

    def _maced(self, label: str, transcript: Term, claims: Term, signature: Term) -> Term:
        maced = term("hash", transcript, claims, signature)
        tag = term("mac", self.derive(label, self.transcripts[1]), maced)
        return term("tuple", claims, signature, JUNK if self.weak == "no-mac" else tag)

    # --------------------------------------------------------------- joiner

    def dial(self) -> tuple[JoinRun, Term]:
        """Send JOIN_INIT."""
        init = self._init(share(self.private("x")), kem_key(self.private("k")))
        return attrs.evolve(self, stage=1, init=init), init

    def expect(self, intruder: Knowledge) -> Iterator[Step]:
        waiting = {
            ("J", 1): self._expect_resp,
            ("J", 2): self._expect_admit,
            ("H", 0): self._expect_init,
            ("H", 1): self._expect_fin,
            ("H", 2): self._expect_joined,
        }
        take = waiting.get((self.role, self.stage))
        return iter(()) if take is None else take(intruder)

    def _resp(self, shares: Term, proof: Term) -> Term:
        key = self.derive("kR", self.transcripts[1])
        return term("tuple", shares, term("aead", key, self.transcripts[1], proof))

    def _authorities(self) -> Iterator[tuple[str, Term, tuple[str, ...]]]:
        """The coordinators and rosters that a joiner takes, with the members of each."""
        members = self.world.members
        yield COORDINATOR, signed_roster(members), members
        if self.weak == "any-coordinator":
            yield FORGER, signed_roster(("E",), FORGER), ("E",)
        if self.weak == "unsigned-roster":
            yield COORDINATOR, unsigned_roster(("E",)), ("E",)
        if self.weak == "no-roster":
            yield COORDINATOR, signed_roster(members), (*members, "E")

    def _expect_resp(self, intruder: Knowledge) -> Iterator[Step]:
        x, k = self.private("x"), self.private("k")
        own, _ = encapsulated(kem_key(k), secret("r of intruder"))
        assert self.init is not None
        t1 = self._first(self.init)
        for theirs in list(intruder.shares()):
            for ct in {own, *intruder.ciphertexts()}:
                shares = term("tuple", theirs, ct)
                prk = self._prk(decapsulated(k, ct), agreed(x, theirs))
                at = attrs.evolve(self, transcripts=(t1, term("hash", t1, shares)), prk=prk)
                for coordinator, roster, members in self._authorities():
                    for inviter in members:
                        yield from at._take_resp(shares, coordinator, roster, inviter)

    def _take_resp(
        self, shares: Term, coordinator: str, roster: Term, inviter: str
    ) -> Iterator[Step]:
        t1, t2 = self.transcripts
        claims = term("tuple", public_key_of(coordinator), public(inviter), roster)
        proofs = [self._proof("JOIN-RESP", "mR", inviter, t2, claims)]
        if self.weak == "unsigned-resp":
            proofs.append(self._maced("mR", t2, claims, JUNK))
        for proof in proofs:
            resp = self._resp(shares, proof)
            t3 = term("hash", t1, resp)
            at = attrs.evolve(self, stage=2, peer=inviter, transcripts=(t1, t2, t3))
            fin = at._fin(self.owner, inviter)
            yield resp, at._after_fin(fin), (fin,)

    def _fin_claims(self, joiner: str, inviter: str) -> Term:
        named = () if self.weak == "fin-names-no-inviter" else (public(inviter),)
        return term("tuple", public(joiner), *named)

    def _seal_fin(self, proof: Term) -> Term:
        if self.weak == "open-fin":
            return proof
        return term("aead", self.derive("kI", self.transcripts[1]), self.transcripts[2], proof)

    def _fin(self, joiner: str, inviter: str) -> Term:
        t3, claims = self.transcripts[2], self._fin_claims(joiner, inviter)
        return self._seal_fin(self._proof("JOIN-FIN", "mI", joiner, t3, claims))

    def _after_fin(self, fin: Term) -> JoinRun:
        t4 = term("hash", self.transcripts[2], fin)
        return attrs.evolve(self, transcripts=(*self.transcripts, t4))

    def _expect_admit(self, intruder: Knowledge) -> Iterator[Step]:
        rosters = [signed_roster((*self.world.members, self.owner))]
        if self.weak == "unsigned-admit":
            rosters.append(unsigned_roster(("E", self.owner)))
        for roster in rosters:
            after = attrs.evolve(self, stage=3, roster=roster)
            yield self.sealed(1, public("ADMIT"), roster), after, (after.sealed(0, public("ok")),)

    # -------------------------------------------------------------- inviter

    def _expect_init(self, intruder: Knowledge) -> Iterator[Step]:
        for invitation in self.invitations:
            at = attrs.evolve(self, invitations=(invitation,))
            for theirs in list(intruder.shares()):
                for ek in list(intruder.kem_keys()):
                    yield at._take_init(theirs, ek)

    def _take_init(self, theirs: Term, ek: Term) -> Step:
        init, x = self._init(theirs, ek), self.private("x")
        ct, ss_kem = encapsulated(ek, self.private("r"))
        shares = term("tuple", share(x), ct)
        t1 = self._first(init)
        t2 = term("hash", t1, shares)
        prk = self._prk(ss_kem, agreed(x, theirs))
        at = attrs.evolve(self, stage=1, transcripts=(t1, t2), prk=prk, init=init)
        roster = signed_roster(self.world.members)
        claims = term("tuple", public_key_of(COORDINATOR), public(self.owner), roster)
        resp = at._resp(shares, at._proof("JOIN-RESP", "mR", self.owner, t2, claims))
        return init, attrs.evolve(at, transcripts=(t1, t2, term("hash", t1, resp))), (resp,)

    def _expect_fin(self, intruder: Knowledge) -> Iterator[Step]:
        for joiner in self.world.strangers:
            fins = [self._fin(joiner, self.owner)]
            if self.weak == "unsigned-fin":
                t3, claims = self.transcripts[2], self._fin_claims(joiner, self.owner)
                fins.append(self._seal_fin(self._maced("mI", t3, claims, JUNK)))
            for fin in fins:
                after = attrs.evolve(self, stage=2, peer=joiner)._after_fin(fin)
                roster = signed_roster((*self.world.members, joiner))
                yield fin, after, (after.sealed(1, public("ADMIT"), roster),)

    def _expect_joined(self, intruder: Knowledge) -> Iterator[Step]:
        yield self.sealed(0, public("ok")), attrs.evolve(self, stage=3), ()
