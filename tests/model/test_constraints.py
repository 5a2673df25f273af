"""Rows that may not have every token: the real engine, alone and in rings, with guesses and
without, and after it was read in anew."""

import itertools
import json
import random
import threading
from concurrent.futures import CancelledError
from functools import cache

import jsonschema
import mlx.core as mx
import pytest
from llguidance import LLMatcher
from model_rings import Ring, bounds_for
from sealring_model.errors import LoadError
from sealring_model.loading.model_folder import describe
from sealring_model.sampling.constraints import Constraint, Constraints, Matchers
from sealring_model.text import grammars
from sealring_model.text.grammars import MaskTime, fault, grammar_tokenizer, matcher
from sealring_model.text.tokens import Tokenizer
from sealring_model.tiny import path
from sealring_protocol.codec.messages import Epoch, Row
from waiting_device import WaitingDeviceIO

from tests.rows import rows

TINY = path()
LAYERS = len(describe(TINY).layers)
VOCABULARY = describe(TINY).vocabulary
WORDS = (VOCABULARY + 31) // 32
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": 3, "maximum": 4000},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
GRAMMAR = LLMatcher.grammar_from_json_schema(SCHEMA, {"whitespace_flexible": False}).encode()
END = 0


@cache
def matchers() -> Matchers:
    return Matchers(TINY, VOCABULARY)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(TINY)


def ring(world: int = 1, **about) -> Ring:
    return Ring(TINY, bounds_for(LAYERS, world), matchers=matchers(), **about)


def prompt(text: str = "Tell me of a thing.") -> list[int]:
    return tokenizer().chat([{"role": "user", "content": text}])


def until_end(ring: Ring, uid: int, most: int = 120) -> list[int]:
    ring.decode(join=[uid])
    while ring.text[uid][-1] != END and len(ring.text[uid]) < most:
        ring.decode()
    ring.evict(uid)
    return ring.text[uid]


def constrained(seed: int, **more) -> dict:
    return {"grammar": GRAMMAR, "ends": (END,), "temperature": 1.0, "seed": seed, **more}


@cache
def alone(seed: int) -> list[int]:
    one = ring()
    return until_end(one, one.admit(prompt(), **constrained(seed)))


def test_what_was_built_ahead_and_dropped_is_no_token_of_a_grammar():
    """Its device no longer waited when the hidden states came, every other time."""
    late = itertools.cycle((False, True))
    waits = ring(2, idle=lambda: 9, device_io=lambda: WaitingDeviceIO(lambda: next(late)))
    for seed in range(3):
        uid = waits.admit(prompt(), **constrained(seed))
        assert until_end(waits, uid) == alone(seed)
    assert waits.device_io[0].missed
    assert waits.device_io[0].waited


@pytest.mark.parametrize("seed", range(6))
def test_a_row_is_held_to_its_grammar_and_then_ends(seed):
    *tokens, last = alone(seed)
    assert last == END
    jsonschema.validate(json.loads(tokenizer().decode(tokens)), SCHEMA)


@pytest.mark.parametrize(
    ("world", "idle"),
    rows([(world, idle) for world in (1, 2, 3) for idle in (0, 3)], (1, 3), (3, 0)),
)
def test_every_ring_gives_the_same_text_beside_free_rows(world, idle):
    several = ring(world, idle=lambda: idle)
    free = ring(world).generate(prompt("Hi."), 20)
    held, loose = several.admit(prompt(), **constrained(1)), several.admit(prompt("Hi."))
    several.decode(join=[held, loose])
    for _ in range(19):
        several.decode()
    assert several.text[loose] == free
    assert several.text[held] == alone(1)[:20]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_guesses_read_ahead_change_nothing(world, right):
    expected, chance, one = alone(2), random.Random(3), ring(world)
    uid = one.admit(prompt(), **constrained(2))
    one.decode(join=[uid])
    back = 0
    while len(one.text[uid]) < len(expected) - 5:
        at = len(one.text[uid])
        guesses = [
            token if chance.random() < right else chance.randrange(VOCABULARY)
            for token in expected[at : at + 4]
        ]
        back = one.decode_ahead(guesses, back)
    assert one.text[uid] == expected[: len(one.text[uid])]
    assert not one.over


@pytest.mark.parametrize("world", [1, 2])
def test_a_row_that_is_read_in_anew_goes_on_as_before(world):
    expected, first = alone(3), ring(world)
    uid = first.admit(prompt(), **constrained(3))
    first.decode(join=[uid])
    for _ in range(9):
        first.decode()
    first.evict(uid)
    so_far, second = first.text[uid], ring(world)
    again = second.admit([*prompt(), *so_far], generated=len(so_far), **constrained(3))
    assert so_far + until_end(second, again) == expected


def test_log_probabilities_are_of_the_model_and_not_of_the_mask():
    plain, held = ring(), ring()
    free = plain.admit(prompt(), logprobs=3)
    uid = held.admit(prompt(), logprobs=3, **constrained(1))
    plain.decode(join=[free])
    held.decode(join=[uid])
    (first,), (second,) = plain.told[free], held.told[uid]
    assert (first.ids, first.values) == (second.ids, second.values)
    assert second.chosen <= first.values[0]


def test_an_end_does_not_come_before_the_least_length():
    one = ring()
    free = one.generate(prompt(), 60)
    early = free.index(END)
    late = one.generate(prompt(), 60, ends=(END,), least=len(prompt()) + early + 5)
    assert late[:early] == free[:early]
    assert END not in late[: early + 5]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_bad_sequence_never_comes(length):
    one = ring()
    free = one.generate(prompt(), 24)
    bad = tuple(free[6 : 6 + length])
    text = one.generate(prompt(), 24, ends=(END,), bad=(bad, (5, 5)))
    assert bad not in {tuple(text[at : at + length]) for at in range(24)}
    if length > 1:
        assert text[:6] == free[:6]


@pytest.mark.parametrize(
    ("grammar", "without", "why"),
    [
        (b"no grammar at all", b"", "cannot be followed"),
        (b"start: /(a{900}){900}/", b"", "its grammar"),
        (b'start: "Q"', b"Q", "no token that may follow"),
    ],
)
def test_a_row_that_cannot_go_on_says_why_and_the_others_go_on(grammar, without, why):
    tokens = range(VOCABULARY) if without else ()
    bad = tuple((at,) for at in tokens if without in tokenizer().token_bytes(at))
    one = ring()
    free = ring().generate(prompt("Hi."), 3)
    held = one.admit(prompt(), grammar=grammar, ends=(END,), bad=bad)
    loose = one.admit(prompt("Hi."))
    one.decode(join=[held, loose])
    one.decode()
    one.decode()
    assert one.text[loose] == free
    assert why in one.over[held][0].reason
    assert set(one.over) == {held}


def test_a_row_without_an_end_is_complete_where_its_grammar_is():
    one = ring()
    uid = one.admit(prompt(), grammar=b'start: "yes" | "no"')
    one.decode(join=[uid])
    while uid not in one.over:
        one.decode()
    assert not one.over[uid][0].reason
    assert tokenizer().decode(one.text[uid][:-1]) in ("yes", "no")


def test_the_bits_are_those_that_the_matcher_gives_token_by_token():
    """For the places of guesses, of which the second is not allowed."""
    plain = matcher(grammar_tokenizer(TINY, VOCABULARY), GRAMMAR.decode())
    constraint = Constraint(Row(1, grammar=GRAMMAR, ends=(END,)), WORDS, matchers())
    first, *rest = alone(1)
    bits, _, over = constraint.allowed(9, [first, END, *rest])
    assert over is None
    assert bits[0] == plain.compute_bitmask()[: 4 * WORDS]
    plain.consume_token(first)
    assert bits[1] == plain.compute_bitmask()[: 4 * WORDS]
    assert set(bits[2:]) == {b"\xff" * (4 * WORDS)}
    constraint.add(first)
    assert constraint.allowed(10, ())[0] == [bits[1]]


def test_a_mask_leaves_what_it_allows_as_it_is():
    constraints = Constraints(40, None)
    row = Row(1, ends=(3, 39), least=8)
    both = [constraints.of(row), None]
    logits = mx.arange(80, dtype=mx.float32).reshape(2, 40)
    masked = constraints.masks(both, [7, 7], ()).apply(logits)
    changed = {(r, c) for r in range(2) for c in range(40) if masked[r, c] != logits[r, c]}
    assert changed == {(0, 3), (0, 39)}
    assert masked[0, 3].item() == -mx.inf
    assert mx.array_equal(constraints.masks(both, [8, 8], ()).apply(logits), logits)


def test_a_grammar_whose_first_token_takes_long_is_refused(monkeypatch):
    known = grammar_tokenizer(TINY, VOCABULARY)
    assert not fault(known, 'start: "a"')
    monkeypatch.setattr(grammars, "MASK_SECONDS", -1.0)
    assert "one token" in fault(known, 'start: "a"')


def test_a_row_is_prepared_beside_and_told_of_in_order():
    """With the tokens that it has so far; also one that cannot be followed, or takes too long."""
    told = []
    made = Matchers(TINY, VOCABULARY, told.append)
    so_far = tuple(alone(1)[:5])
    rows = [
        Row(1, grammar=GRAMMAR),
        Row(2, grammar=b"no grammar at all"),
        Row(3, grammar=b"start: /(a{900}){900}/"),
        Row(4, grammar=GRAMMAR, history=(7, 8, *so_far), generated=5),
        Row(5, grammar=b'start: "a"', history=(3,), generated=1),
    ]
    *_, last = [made.begin(row, Epoch(1, 2)) for row in rows]
    last.result()
    assert [(ready.epoch, ready.uid) for ready in told] == [(Epoch(1, 2), at) for at in range(1, 6)]
    reasons = [ready.reason for ready in told]
    assert [bool(why) for why in reasons] == [False, True, True, False, True]
    assert "cannot be followed" in reasons[1]
    assert "50 ms is the limit" in reasons[2]
    assert "doesn't satisfy the grammar" in reasons[4]
    plain = matcher(grammar_tokenizer(TINY, VOCABULARY), GRAMMAR.decode())
    plain.consume_tokens(list(so_far))
    assert made.take(rows[3]).result().compute_bitmask() == plain.compute_bitmask()


def test_nothing_is_made_for_rows_that_are_gone():
    """They are told of all the same, each once and in order, and as such that may go on: a row that
    was read in anew meanwhile has another ROW under way."""
    told, started, go_on = [], threading.Event(), threading.Event()

    def tell(ready):
        told.append(ready)
        started.set()
        assert go_on.wait(60)

    made = Matchers(TINY, VOCABULARY, tell)
    made.load().result()
    costly = b"start: /(a{900}){900}/"
    made.begin(Row(1, grammar=GRAMMAR), Epoch(1, 2))
    assert started.wait(60)
    gone = [made.begin(Row(at, grammar=costly), Epoch(1, 2)) for at in (2, 3)]
    again = Row(3, grammar=GRAMMAR)
    last = made.begin(again, Epoch(1, 2))
    made.forget(2)
    go_on.set()
    last.result()
    assert [(ready.uid, ready.reason) for ready in told] == [(1, ""), (2, ""), (3, ""), (3, "")]
    for future in gone:
        with pytest.raises(CancelledError):
            future.result()
    assert made.take(again).result().compute_bitmask()


def test_a_tokenizer_that_cannot_be_read_is_told_of(tmp_path):
    told = []
    made = Matchers(tmp_path, VOCABULARY, told.append)
    with pytest.raises(LoadError):
        made.begin(Row(1, grammar=GRAMMAR), Epoch(1, 2)).result()
    assert told[0].uid == 1
    assert told[0].reason


@pytest.mark.parametrize(
    ("each", "masks", "why"),
    [
        (0.0029, 2000, ""),
        (0.049, 1, ""),
        (0.051, 1, "one token"),
        (0.004, 200, "3 ms for each"),
        (0.04, 6, "3 ms for each"),
    ],
)
def test_masks_may_take_so_long(each, masks, why):
    spent = MaskTime()
    told = [spent.add(each) for _ in range(masks)]
    assert why in told[-1] if why else not any(told)


def test_the_masks_of_several_places_may_take_as_long_as_each():
    assert not MaskTime().add(0.06, 4)
    assert "one token" in MaskTime().add(0.24, 4)


def test_a_row_whose_masks_take_too_long_is_over_and_its_tokens_are_those_of_ever(monkeypatch):
    """So ranks that draw the same row agree, though one of them is slow."""
    monkeypatch.setattr(grammars, "MASK_SECONDS", -1.0)
    one = ring()
    held, loose = one.admit(prompt(), **constrained(1)), one.admit(prompt("Hi."))
    one.decode(join=[held, loose])
    for _ in range(5):
        one.decode()
    assert one.text[held] == alone(1)[:6]
    assert {(over.uid, "one token" in over.reason) for over in one.over[held]} == {(held, True)}
    assert set(one.over) == {held}
