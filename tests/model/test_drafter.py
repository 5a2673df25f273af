"""The draft model: it follows rows, guesses as the ring draws, and goes back when it was wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import attrs
import mlx.core as mx
import pytest
from sealring_model.draft import main as module
from sealring_model.draft.frames import DraftFrame, DraftFrameKind, FrameReader, pack
from sealring_model.draft.main import CHUNK, DEPTH, Drafter
from sealring_model.mlx_lm_import import mlx_lm, model_loader
from sealring_model.sampling.draw import LogitProcessors, sample
from sealring_protocol.codec.encoding import encode
from sealring_protocol.codec.messages import Ping, Progress, Row

from tests.rows import rows

GREEDY = Row(1)
SAMPLED = Row(1, seed=5, choice=2, temperature=1.3, top_p=0.9)
PENALISED = Row(1, seed=9, temperature=0.8, repetition=1.3, frequency=0.5, bias=((7, 2.0),))
HEAD = struct.Struct(">BQIII")
ROW, PING = b"".join(encode(PENALISED)), b"".join(encode(Ping(1, Progress())))
PROMPT = tuple((7 * i * i + 3 * i) % 97 for i in range(40))


class Truth:
    """What a ring with the model in *folder* draws."""

    def __init__(self, folder: Path) -> None:
        self.model = model_loader().load_model(folder)[0]
        ids = mx.array([[1, 2]], mx.uint32)
        self.width = self.model(ids).shape[-1]

    def after(self, tokens: list[int], prompt: int, row: Row, count: int) -> list[int]:
        """The *count* tokens after *tokens*, of which *prompt* are the prompt's."""
        caches = mlx_lm("models.cache").make_prompt_cache(self.model)
        ids, drawn = tokens, list(tokens)
        for _ in range(count):
            logits = self.model(mx.array([ids], mx.uint32), cache=caches)[:, -1]
            if row.penalised or row.bias:
                known = attrs.evolve(row, history=tuple(drawn), generated=len(drawn) - prompt)
                processor = LogitProcessors(self.width).take(0, (known,))
                assert processor is not None
                logits = processor.apply(logits)
            ids = sample(logits, [row], [len(drawn)]).tolist()
            drawn += ids
        return drawn[len(tokens) :]


def opened(truth: Truth, row: Row, tokens: tuple[int, ...] = PROMPT) -> Drafter:
    drafts = Drafter(truth.model, truth.width)
    history = tokens if row.penalised else ()
    drafts.handle(DraftFrame(DraftFrameKind.OPEN, 1, 0, tokens, attrs.evolve(row, history=history)))
    return drafts


def run(drafts: Drafter) -> DraftFrame | None:
    """Work until there is nothing to do; the last guess."""
    last = None
    while drafts.busy:
        last = drafts.work() or last
    return last


ROWS = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize(
    "family",
    rows(
        ["llama", "llama-sliding", "gemma3", "gpt-oss", "qwen3-next"],
        "llama-sliding",
        "qwen3-next",
    ),
)
def test_the_same_model_is_always_right(models: dict[str, Path], family: str, kind: str) -> None:
    """With plain, rotating and recurrent caches; and after tokens that nobody guessed, too."""
    row = ROWS[kind]
    truth = Truth(models[family])
    drafts = opened(truth, row)
    tokens = list(PROMPT)
    for turn in range(6):
        guess = run(drafts)
        assert guess is not None
        assert (guess.kind, guess.uid, guess.position) == (DraftFrameKind.GUESS, 1, len(tokens))
        assert list(guess.ids) == truth.after(tokens, len(PROMPT), row, DEPTH)
        # Some of them are right, and then the ring says otherwise.
        right = list(guess.ids[: turn + 1])
        other = (guess.ids[turn + 1] + 1 + turn) % 90
        drafts.handle(DraftFrame(DraftFrameKind.TOKENS, 1, len(tokens), (*right, other)))
        tokens += [*right, other]


def test_it_says_each_guess_as_soon_as_it_has_it(models: dict[str, Path]) -> None:
    truth = Truth(models["llama"])
    drafts = opened(truth, GREEDY)
    wanted = truth.after(list(PROMPT), len(PROMPT), GREEDY, DEPTH + 1)
    for count in range(1, DEPTH + 1):
        assert drafts.work() == DraftFrame(
            DraftFrameKind.GUESS, 1, len(PROMPT), tuple(wanted[:count])
        )
    assert drafts.work() is None
    drafts.handle(DraftFrame(DraftFrameKind.TOKENS, 1, len(PROMPT), tuple(wanted[:1])))
    assert drafts.work() == DraftFrame(DraftFrameKind.GUESS, 1, len(PROMPT) + 1, tuple(wanted[1:]))


def test_a_long_prompt_is_read_in_pieces(models: dict[str, Path]) -> None:
    truth = Truth(models["llama"])
    tokens = PROMPT * 12
    drafts = opened(truth, GREEDY, tokens)
    assert len(tokens) > CHUNK
    assert drafts.work() is None  # and looks at what has come
    guess = drafts.work()
    assert guess is not None
    assert list(guess.ids) == truth.after(list(tokens), len(tokens), GREEDY, 1)


def test_rows_take_turns_and_leave(models: dict[str, Path]) -> None:
    truth = Truth(models["llama"])
    drafts = opened(truth, GREEDY)
    drafts.handle(DraftFrame(DraftFrameKind.OPEN, 2, 0, PROMPT[:5], Row(2)))
    order = [frame.uid for _ in range(4) if (frame := drafts.work()) is not None]
    assert order == [1, 2, 1, 2]
    drafts.handle(DraftFrame(DraftFrameKind.CLOSE, 1))
    drafts.handle(DraftFrame(DraftFrameKind.TOKENS, 1, len(PROMPT), (3,)))  # of a row that is gone
    last = run(drafts)
    assert last is not None
    assert last.uid == 2
    drafts.handle(
        DraftFrame(DraftFrameKind.TOKENS, 2, 9, (3,))
    )  # some are missing: it is followed no more
    assert not drafts.busy


def test_what_is_told_twice_counts_once(models: dict[str, Path]) -> None:
    truth = Truth(models["llama"])
    drafts = opened(truth, GREEDY)
    drafts.handle(DraftFrame(DraftFrameKind.TOKENS, 1, len(PROMPT) - 2, (*PROMPT[-2:], 5)))
    guess = drafts.work()
    assert guess is not None
    assert guess.position == len(PROMPT) + 1
    assert list(guess.ids) == truth.after([*PROMPT, 5], len(PROMPT), GREEDY, 1)


def test_memory_is_bounded(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 60)
    truth = Truth(models["llama"])
    drafts = opened(truth, GREEDY)
    drafts.handle(DraftFrame(DraftFrameKind.OPEN, 2, 0, PROMPT[:20], Row(2)))
    assert {frame.uid for _ in range(4) if (frame := drafts.work())} == {1, 2}
    drafts.handle(DraftFrame(DraftFrameKind.TOKENS, 2, 20, (1,)))  # the longest goes
    assert {frame.uid for _ in range(4) if (frame := drafts.work())} == {2}


@pytest.mark.parametrize("width", [-3, 5])
def test_another_width_of_the_output_head(models: dict[str, Path], width: int) -> None:
    """The noise is that of the ring's width, and no guess is beyond it."""
    truth = Truth(models["llama"])
    row = Row(1, seed=3, temperature=1.0)
    drafts = Drafter(truth.model, truth.width + width)
    drafts.handle(DraftFrame(DraftFrameKind.OPEN, 1, 0, PROMPT, row))
    guess = drafts.work()
    assert guess is not None
    logits = truth.model(mx.array([PROMPT], mx.uint32))[:, -1]
    if width > 0:
        logits = mx.pad(logits, ((0, 0), (0, width)), constant_values=-float("inf"))
    wanted = sample(logits[:, : truth.width + width], [row], [len(PROMPT)]).tolist()
    assert list(guess.ids) == wanted


FRAMES = [
    DraftFrame(DraftFrameKind.READY),
    DraftFrame(DraftFrameKind.OPEN, 7, 0, (1, 2, 3), PENALISED),
    DraftFrame(DraftFrameKind.TOKENS, 7, 3, (4,)),
    DraftFrame(DraftFrameKind.GUESS, (1 << 64) - 1, 4, (5, 6)),
    DraftFrame(DraftFrameKind.CLOSE, 7),
]


@pytest.mark.parametrize("size", [1, 3, 29, 1000])
def test_frames_arrive_in_any_pieces(size: int) -> None:
    data = b"".join(map(pack, FRAMES))
    reader = FrameReader()
    found = [
        frame
        for start in range(0, len(data), size)
        for frame in reader.read(data[start : start + size])
    ]
    assert found == FRAMES


@pytest.mark.parametrize(
    "data",
    [
        b"\x09" + bytes(20),
        b"\x04" + bytes(12) + b"\xff" * 8,
        HEAD.pack(DraftFrameKind.OPEN, 1, 0, 0, 1) + b"\xff",
        HEAD.pack(DraftFrameKind.OPEN, 1, 0, 0, len(ROW) - 1) + ROW[:-1],
        HEAD.pack(DraftFrameKind.OPEN, 1, 0, 0, len(PING)) + PING,
    ],
    ids=["kind", "size", "no-message", "cut", "no-row"],
)
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        list(FrameReader().read(data))
