"""Caches that outlive their epoch: each rank cuts its own to what all have, and rows go on."""

import gc

import attrs
import mlx.core as mx
import pytest
from model_families import EVERY_KIND, FAMILIES, reference_tokens
from model_rings import Ring
from sealring_model.errors import LedgerError
from sealring_protocol.codec.messages import Decode, Join, KeptCache, Open, Prefill, TakeBack
from waiting_device import decoding_ring

PROMPT = [(5 * i * i + 11 * i) % 251 for i in range(50)]
OTHER = [*PROMPT[:30], *[(13 * i) % 251 for i in range(17)]]


def count(family: str) -> int:
    return FAMILIES[family]["num_hidden_layers"]


def takes_over(ring: Ring, uid: int, tokens: list[int], keep: int) -> None:
    """Row *uid* goes on from its kept cache, reads what that lacks, and joins group 0."""
    ring.announce(uid, tokens)
    ring.step(open=(Open(uid, uid, keep),))
    ring.read(uid, tokens[keep:-1], keep)
    ring.last[uid], ring.text[uid] = tokens[-1], []
    ring.decode(join=[uid])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("seal", [False, True])
def test_rows_go_on_from_what_was_kept_of_them(models, references, family, seal):
    """Of a group, alone in a group, half read, and a snapshot; the first rank is two steps on."""
    ring = Ring(models[family], (0, 2, count(family)), seal=seal)
    prompts = {ring.admit(prompt): prompt for prompt in (PROMPT[:31], OTHER, PROMPT[3:20])}
    one, two, alone = prompts
    ring.decode(join=[one, two])
    ring.decode(1, join=[alone])
    for _ in range(5):
        ring.decode()
    half = ring.admit(PROMPT[:21])
    handle = ring.save(half)
    said = {uid: list(ring.text[uid]) for uid in prompts}
    lengths = {uid: ring.author.ledger.length(uid) for uid in (*prompts, half)}
    first = ring.executors[0]
    for step in (
        ring.author.write(work=Decode(1)),
        ring.author.write(work=Prefill(half, 20, 5), ids=tuple(PROMPT[20:25])),
    ):
        assert not first.finish(first.launch(step)).failed
    kept = [KeptCache(uid, lengths[uid] - (uid == two)) for uid in (*prompts, half)]
    ring.next_epoch([*kept, KeptCache(handle, 20)])
    for uid in (two, alone, one):
        tokens = [*prompts[uid], *said[uid]]
        takes_over(ring, uid, tokens, lengths[uid] - (uid == two))
        while len(ring.text[uid]) < 8:
            ring.decode()
    for uid, prompt in prompts.items():
        text = [*said[uid], *ring.text[uid]]
        assert text == reference_tokens(references[family], prompt, len(text))
    takes_over(ring, half, PROMPT[:31], 20)
    assert ring.text[half] == reference_tokens(references[family], PROMPT[:31], 1)
    row = ring.open_from(handle, 17, [*PROMPT[:17], *OTHER[30:]])
    ring.decode(2, join=[row])
    assert ring.text[row] == reference_tokens(references[family], [*PROMPT[:17], *OTHER[30:]], 1)


@pytest.mark.parametrize("family", EVERY_KIND)
def test_what_is_whole_can_be_kept_of_every_kind(models, references, family):
    """Rows of a group, before and after windows have turned; and once more, without a step."""
    ring = Ring(models[family], (0, 2, count(family)))
    prompts = {ring.admit(prompt): prompt for prompt in (PROMPT[:12], OTHER[:31])}
    ring.decode(join=[*prompts])
    for _ in range(7):
        ring.decode()
    handle = ring.save(max(prompts))
    said = {uid: list(ring.text[uid]) for uid in prompts}
    kept = [KeptCache(uid, ring.author.ledger.length(uid)) for uid in prompts]
    kept.append(KeptCache(handle, ring.author.ledger.snaps[handle]))
    ring.next_epoch(kept)
    ring.next_epoch(kept)
    for uid, prompt in prompts.items():
        takes_over(ring, uid, [*prompt, *said[uid]], len(prompt) + 7)
    for _ in range(6):
        ring.decode()
    for uid, prompt in prompts.items():
        text = [*said[uid], *ring.text[uid]]
        assert text == reference_tokens(references[family], prompt, len(text))


@pytest.mark.parametrize("family", ["llama-sliding", "gpt-oss", "qwen3-next"])
def test_what_cannot_be_cut_is_not_kept_shorter(models, family):
    ring = Ring(models[family], (0, 2, count(family)))
    uid = ring.admit(PROMPT[:31])
    ring.decode(join=[uid])
    with pytest.raises(LedgerError, match="of 31 tokens cannot be cut to 30"):
        ring.next_epoch([KeptCache(uid, 30)])


def test_what_is_not_there_is_not_kept(models):
    ring = Ring(models["llama"], (0, 2, 5))
    uid = ring.admit(PROMPT[:31])
    with pytest.raises(LedgerError, match="of 30 tokens cannot be cut to 31"):
        ring.next_epoch([KeptCache(uid, 31)])
    ring = Ring(models["llama"], (0, 2, 5))
    with pytest.raises(LedgerError, match="no cache 7"):
        ring.next_epoch([KeptCache(7, 3)])


def test_after_a_failed_step_nothing_is_kept(models):
    ring = Ring(models["llama"], (0, 2, 5))
    uid = ring.admit(PROMPT[:31])
    first = ring.executors[0]
    assert first.finish(first.launch(ring.author.write(join=(Join(uid, 0),)))).failed
    with pytest.raises(LedgerError, match="a step has failed"):
        ring.next_epoch([KeptCache(uid, 30)])


def test_a_rank_that_had_other_layers_keeps_nothing(models):
    ring = Ring(models["llama"], (0, 2, 5))
    uid = ring.admit(PROMPT[:31])
    place = ring.places[1]
    for other in ({"bounds": (0, 3, 5)}, {"rank": 0}):
        with pytest.raises(LedgerError, match="other layers"):
            ring.executors[1].keep(attrs.evolve(place, kept=(KeptCache(uid, 30),), **other))


def test_guesses_are_not_kept(models, references):
    """Two were read ahead: one rank has taken them back, and the other has not."""
    ring = Ring(models["llama"], (0, 2, 5))
    uid = ring.admit(PROMPT[:31])
    ring.decode(join=[uid])
    wrong = [(token + 1) % 256 for token in ring.text[uid]] * 2
    assert ring.decode_ahead(wrong) == 2
    said = list(ring.text[uid])
    first = ring.executors[0]
    step = ring.author.write(back=(TakeBack(uid, 2),), work=Decode(0))
    assert not first.finish(first.launch(step)).failed
    ring.next_epoch([KeptCache(uid, 32)])
    takes_over(ring, uid, [*PROMPT[:31], *said], 32)
    for _ in range(5):
        ring.decode()
    text = [*said, *ring.text[uid]]
    assert text == reference_tokens(references["llama"], PROMPT[:31], len(text))


@pytest.mark.parametrize("seal", [False, True])
def test_what_was_launched_ahead_is_not_kept(models, references, seal):
    """Both devices wait in the next decode when the epoch ends."""
    ring, ranks = decoding_ring(models, seal=seal)
    (uid,) = ring.text
    said = list(ring.text[uid])
    assert ranks[1].held is not None
    keep = ring.author.ledger.length(uid)
    ring.next_epoch([KeptCache(uid, keep)])
    assert [device_io.held for device_io in ranks] == [None, None]
    takes_over(ring, uid, [*PROMPT[:20], *said], keep)
    while len(ring.text[uid]) < 20:
        ring.decode()
    text = [*said, *ring.text[uid]]
    assert text == reference_tokens(references["llama"], PROMPT[:20], len(text))


@pytest.mark.slow
def test_other_caches_are_freed_and_a_row_is_taken_over_without_a_copy(models):
    ring = Ring(models["llama"], (0, 5))
    prompt = PROMPT * 40
    kept, other = ring.admit(prompt), ring.admit(prompt)
    ring.decode(join=[kept, other])
    size = ring.executors[0].cache_bytes
    ring.next_epoch([KeptCache(kept, len(prompt))])
    gc.collect()
    assert ring.executors[0].cache_bytes < 0.6 * size
    mx.synchronize()
    active = mx.get_active_memory()
    mx.reset_peak_memory()
    takes_over(ring, kept, [*prompt, 7], len(prompt))
    assert mx.get_peak_memory() - active < 0.2 * size
