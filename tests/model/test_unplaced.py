"""Decodes that read guesses and are launched before it is known where in their row they begin."""

from random import Random

import mlx.core as mx
import pytest
from model_families import FAMILIES, config_of, random_weights, reference_tokens, write_model
from model_rings import SAMPLING, Ring, stage_of
from sealring_model import lookahead
from sealring_model.lookahead import can_run_unplaced
from sealring_model.stage import attention
from sealring_model.stage.device import PinnedIO
from sealring_protocol.codec.messages import Decode, Join, Open, TakeBack
from waiting_device import PROMPT, decoding_ring, launch_eagerly, waiting_ring

AHEAD = 4


class Guesser:
    """Has the only row of *ring* read guesses, of which so many are right as it is told."""

    def __init__(self, ring: Ring, text: list[int], vocabulary: int = 251) -> None:
        self.ring = ring
        self.text = text
        self.vocabulary = vocabulary
        self.back = 0

    def step(self, right: int, ahead: int = AHEAD) -> None:
        (said,) = self.ring.text.values()
        guesses = self.text[len(said) : len(said) + ahead]
        guesses[right:] = [(token + 1) % self.vocabulary for token in guesses[right:]]
        self.back = self.ring.decode_ahead(guesses, self.back)
        assert said == self.text[: len(said)]


def text_of(references, family="llama", count=400):
    return reference_tokens(references[family], PROMPT[:20], count)


@pytest.mark.parametrize("bounds", [(0, 2, 5), (0, 1, 3, 5)])
def test_the_device_has_a_decode_of_guesses_before_it_is_known_where_it_begins(
    models, references, bounds
):
    ring, ranks = decoding_ring(models, bounds=bounds)
    guesser = Guesser(ring, text_of(references))
    for right in (0, 2, 4):
        guesser.step(right)
    for device_io in ranks:
        device_io.waited = device_io.missed = 0
    for right in (4, 0, 0, 3, 1, 4, 4, 2, 0, 1, 3):
        guesser.step(right)
    assert [device_io.missed for device_io in ranks] == [0] * len(ranks)
    # Rank 0 waits for what comes back, and for the tokens to read.
    assert [device_io.waited for device_io in ranks] == [22] + [11] * (len(ranks) - 1)


@pytest.mark.parametrize("sampling", SAMPLING[1:])
def test_the_same_is_drawn(models, sampling):
    alone = Ring(models["llama"]).generate(PROMPT[:20], 60, **sampling)
    ring, ranks = waiting_ring(models)
    ring.decode(join=[ring.admit(PROMPT[:20], **sampling)])
    for _ in range(9):
        ring.decode()
    guesser = Guesser(ring, alone)
    for right in (0, 2, 4, 4, 1, 0, 3, 2, 4, 1, 2):
        guesser.step(right)
    assert all(device_io.waited for device_io in ranks)


def test_where_caches_grow_nothing_is_launched_ahead(models, references):
    """For CUDA that is another graph."""
    ring, ranks = decoding_ring(models)
    guesser = Guesser(ring, text_of(references))
    (said,) = ring.text.values()
    for _ in range(4):
        guesser.step(AHEAD)
    unlike = []
    while len(said) < 300:
        before, held = [device_io.waited for device_io in ranks], ring.executors[1].cache_bytes
        guesser.step(AHEAD)
        if [device_io.waited - at for device_io, at in zip(ranks, before, strict=True)] != [2, 1]:
            unlike.append(ring.executors[1].cache_bytes > held)
    assert unlike == [True]


def test_the_first_graph_of_so_many_tokens_does_not_wait(models, references):
    """It has what the device has not done yet, though steps of so many tokens have been done. So
    the device would do that while it waits, and lose patience."""
    ring, (_, last) = decoding_ring(models)
    guesser = Guesser(ring, text_of(references))
    for ahead in (1, 4, 8):
        last.waited = last.missed = last.ready = 0
        guesser.step(0, ahead)
        assert (last.waited, last.missed, last.ready) == (0, 1, 1)  # missed: one of fewer tokens
        guesser.step(0, ahead)
        assert (last.waited, last.missed, last.ready) == (1, 1, 1)


def test_a_graph_of_many_tokens_takes_fewer(models, references):
    """So a row with fewer guesses than most takes no other, and one without any none either."""
    ring, ranks = decoding_ring(models)
    guesser = Guesser(ring, text_of(references))
    guesser.step(1, 6)
    for device_io in ranks:
        device_io.waited = device_io.missed = 0
    for right, ahead in ((0, 6), (1, 3), (1, 1), (0, 2), (5, 5), (0, 6)):
        guesser.step(right, ahead)
    assert [(device_io.waited, device_io.missed) for device_io in ranks] == [(12, 0), (6, 0)]
    ring.decode()
    assert [(device_io.waited, device_io.missed) for device_io in ranks] == [(14, 0), (7, 0)]


def test_what_was_launched_and_is_not_wanted_leaves_no_trace(models, references):
    """More guesses than there ever were, a snapshot: each comes where others were launched."""
    ring, ranks = decoding_ring(models)
    text = text_of(references)
    guesser = Guesser(ring, text)
    ((uid, said),) = ring.text.items()
    for size in (2, 2, 4, 4, 8, 8):
        guesser.step(1, size)
    assert [device_io.missed for device_io in ranks] == [2, 3]  # rank 0 had begun the plain one
    for _ in range(4):
        guesser.step(AHEAD)
    while guesser.back:
        guesser.step(AHEAD)
    handle = ring.save(uid)
    assert [device_io.missed for device_io in ranks] == [3, 4]
    for _ in range(8):
        guesser.step(AHEAD)
    ring.decode()
    assert said == text[: len(said)]
    again = ring.open_from(handle, 20 + 5, [*PROMPT[:20], *text[:6]], 6)
    ring.decode(evict=[uid], join=[again])
    assert ring.text[again] == text[6:7]


def test_a_device_that_loses_patience_writes_behind_all_tokens(models, references):
    ring, ranks = decoding_ring(models)
    guesser = Guesser(ring, text_of(references))
    for right in (4, 3, 2, 4, 1):
        guesser.step(right)
    for _ in range(20):
        for device_io in ranks:
            device_io.time_out()
        guesser.step(3)
    assert all(device_io.missed > 2 for device_io in ranks)


def test_what_is_sealed_is_told_in_its_turn(models, references):
    ring, ranks = decoding_ring(models, seal=True)
    ring.early_fill = lambda: True
    guesser = Guesser(ring, text_of(references))
    for right in (4, 3, 2):
        guesser.step(right)
    for device_io in ranks:
        device_io.waited = device_io.missed = 0
    for right in (4, 1, 0, 0, 4, 4, 2):
        guesser.step(right)
    assert [(device_io.waited, device_io.missed) for device_io in ranks] == [(14, 0), (7, 0)]


def test_a_closing_pass_of_several_tokens_is_told_early(models, references):
    """And the decode behind it waits from then on."""
    ring, (device_io, _) = decoding_ring(models, seal=True)
    guesser = Guesser(ring, text_of(references))
    for right in (4, 3, 2):
        guesser.step(right)
    head, last = ring.executors
    (said,) = ring.text.values()
    guesses = tuple(guesser.text[len(said) : len(said) + AHEAD])
    uid, back = next(iter(ring.text)), guesser.back
    step = ring.author.write(back=(TakeBack(uid, back),), ids=guesses, work=Decode(0, AHEAD, AHEAD))
    away = head.finish(head.launch(step))
    ring._idle(head)
    done = last.finish(last.launch(away))
    waited = device_io.waited
    head.fill_early(done)
    assert device_io.waited == waited + 1
    assert device_io.held.is_timed
    assert head.finish(head.close(done)).ids == tuple(text_of(references)[len(said) :][:5])
    assert head.device_waits


def test_a_row_that_comes_back_reads_the_token_that_it_is_given(models, references, monkeypatch):
    """Under its old number, and with another text, where a third had its place meanwhile."""
    launch_eagerly(monkeypatch)
    ring, _ = decoding_ring(models)
    guesser = Guesser(ring, text_of(references))
    uid = next(iter(ring.text))
    for right in (4, 3, 2, 4):
        guesser.step(right)
    third, other = ring.admit(PROMPT[:5]), PROMPT[7:30]
    ring.step(evict=(uid,), join=(Join(third, 0),), ids=(PROMPT[4],))
    ring.announce(uid, other)
    ring.step(open=(Open(uid),))
    ring.read(uid, other[:-1], 0)
    ring.step(evict=(third,), join=(Join(uid, 0),), ids=(other[-1],))
    ring.text = {uid: []}
    again = Guesser(ring, reference_tokens(references["llama"], other, 40))
    for right in (4, 0, 3, 2):
        again.step(right)


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_whose_caches_hold_every_token_can_do_it_and_no_others(models, family):
    layers = FAMILIES[family]["num_hidden_layers"]
    for span in ((0, layers // 2), (layers // 2, layers)):
        stage = stage_of(models[family], *span).stage
        kinds = {type(cache).__name__ for cache in stage.new_caches()}
        assert can_run_unplaced(stage) == (kinds == {"KVCache"})


@pytest.mark.parametrize("span", [(0, 2), (2, 5)])
@pytest.mark.parametrize("fault", ["looks", "forgets", "sees all", "sees little"])
def test_a_stage_that_takes_another_place_or_looks_at_it_cannot(models, monkeypatch, fault, span):
    stage = stage_of(models["llama"], *span).stage
    run, mask = lookahead.run_unplaced, lookahead._UnplacedCache.make_mask
    if fault.startswith("sees"):

        def other(cache, tokens, **_):
            own = mask(cache, tokens)
            return mx.ones_like(own) if fault == "sees all" else own & ~mx.roll(own, 1, axis=-1)

        monkeypatch.setattr(lookahead._UnplacedCache, "make_mask", other)
        assert not can_run_unplaced(stage)
        return

    def wrong(stage, inputs, slots, place):
        if fault == "looks" and place.item() > 0:
            return run(stage, inputs, slots, place)
        return run(stage, inputs, slots, mx.zeros_like(place))

    monkeypatch.setattr(lookahead, "run_unplaced", wrong)
    assert not can_run_unplaced(stage)


class Prompted(Ring):
    """A ring in one process whose ranks share a device, so that each looks ahead just before its
    message comes: while a rank waits nobody else can use the device. *waits* counts those."""

    waits = 0

    def _done(self, executor, launch, message):
        self._idle(executor)
        self.waits += executor.device_waits
        return self._finished(executor, launch(message))

    def _finished(self, executor, in_flight):
        with_idle, self.idle = self.idle, lambda: 0
        try:
            return super()._finished(executor, in_flight)
        finally:
            self.idle = with_idle


@pytest.mark.cuda
@pytest.mark.parametrize("ahead", [1, 4, 8, 16])
def test_a_cuda_device_computes_what_it_would_have(tmp_path, ahead):
    config = config_of(
        "llama", head_dim=64, hidden_size=256, intermediate_size=512, torch_dtype="bfloat16"
    )
    weights = {name: a.astype(mx.bfloat16) for name, a in random_weights(config).items()}
    folder = write_model(tmp_path / "wide", config, weights)
    attention.install()
    texts, random = [], Random(ahead)
    plan = [random.randrange(ahead + 1) for _ in range(150)]
    for wait in (False, True):
        ring = Prompted(
            folder,
            (0, 2, 5),
            idle=lambda wait=wait: 9 * wait,
            device_io=lambda wait=wait: PinnedIO(device_waits=wait),
        )
        uid = ring.admit(PROMPT[:20])
        ring.decode(join=[uid])
        for _ in range(9):
            ring.decode()
        said, back = ring.text[uid], 0
        known = texts[0] if texts else None
        for right in plan:
            if known is None:  # nothing is known of the text yet
                guesses = [random.randrange(256) for _ in range(ahead)]
            else:
                guesses = known[len(said) : len(said) + ahead]
                guesses[right:] = [(token + 1) % 256 for token in guesses[right:]]
                if len(guesses) < ahead:
                    break
            back = ring.decode_ahead(guesses, back)
        texts.append(said)
        if known is not None:
            assert said == known[: len(said)]
            assert ring.waits > len(said) // (1 + ahead)
