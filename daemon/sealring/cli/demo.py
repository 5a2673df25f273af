"""`sealring demo`."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

import attrs
from sealring_model.text.tokens import has_chat_template
from sealring_model.tiny import DEFAULT_PROMPT
from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.frame import Frame, FrameKind
from sealring_protocol.codec.messages import Epoch, StepDone
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.limits import FRAME_HEADER
from sealring_protocol.security.keys import Suite
from sealring_protocol.security.seal import (
    InnerContext,
    InnerOpener,
    InnerSealer,
    OpeningChannel,
    SealingChannel,
)
from sealring_trio.errors import FOUND_WRONG, OperationError
from sealring_trio.files.config import SUITES, CollectivesName, StrategyName
from sealring_trio.files.models import TINY, describe_model, find_whole_model
from sealring_trio.units import format_size

from sealring.cli.options import AsJson, Positive
from sealring.files.models import NO_TEMPLATE, check_text
from sealring.local.reference import MlxLmRaised, ReferenceAnswer, one_process, pace
from sealring.local.ring import LocalNode, Setting, guess_options, local_ring
from sealring.output import (
    guesses_text,
    note_cut_off,
    print_facts,
    print_json,
    print_table,
    progress,
    visible,
)

# ---------------------------------------------------------------------- sealing
# What sealing alone costs a hop: the work of both engines and both nodes, without the rest.


_TRIPS: Final = 400
_SECRET: Final = bytes(range(32))
_EPOCH: Final = Epoch(1, 1)


def seal_microseconds(hidden: int, dtype: DType, suite: Suite) -> float:
    """Microseconds to seal and open one row's hidden state of *hidden* elements, inner seal and
    outer frame, both ends; the median."""
    shape = (1, 1, hidden)
    data = os.urandom(Tensor(dtype, shape, b"").nbytes)
    context = InnerContext(_EPOCH, 1, 0, 1, (1,))
    inner_seal = InnerSealer(suite, _SECRET, bytes(32))
    inner_open = InnerOpener(suite, _SECRET, bytes(32))
    outer_seal, outer_open = SealingChannel(suite, _SECRET), OpeningChannel(suite, _SECRET)
    spent = []
    for _ in range(_TRIPS):
        times = [perf_counter()]
        tensor = inner_seal.seal(context, dtype, shape, data)
        times.append(perf_counter())
        parts = encode(StepDone(_EPOCH, 1, tensors=(tensor,)))
        times.append(perf_counter())
        sealed = bytes(outer_seal.seal(parts))
        times.append(perf_counter())
        frame = Frame(FrameKind.SEALED, sealed[:FRAME_HEADER], sealed[FRAME_HEADER:])
        times.append(perf_counter())
        plaintext = outer_open.open(frame)
        times.append(perf_counter())
        message = decode(plaintext)
        times.append(perf_counter())
        inner_open.open(context, message.tensors[0])  # type: ignore[union-attr]
        times.append(perf_counter())
        spent.append(sum(times[1::2]) - sum(times[::2]))
    return statistics.median(spent) * 1e6


DRAFT_SECONDS: Final = 300.0
"""Seconds that a draft model may take to load."""

LOOK_SECONDS: Final = 0.1

_GAVE_UP: Final = (
    "If these are MLX's words, it lacks what this model needs on this machine: convert the model "
    "to another dtype or quantize it (`mlx_lm.convert`), or take another."
)


@attrs.frozen
class RingAnswer:
    """What the ring answered, and its pace as the client saw it."""

    tokens: tuple[int, ...]
    text: str
    tokens_per_s: float


def demo(
    *,
    ranks: Positive = 2,
    prompt: str | None = None,
    max_tokens: Positive = 200,
    model: str = TINY,
    draft: str | None = None,
    no_guesses: bool = False,
    strategy: StrategyName = "pp",
    collectives: CollectivesName = "sealed",
    json: AsJson = False,
) -> int:
    """Run a whole ring on this machine and prove that its tokens are right.

    Makes throwaway keys and a signed roster, starts one node process per
    rank on loopback, each with its own layers of the model (or, with
    --strategy tp, with its share of every layer), streams the answer, and
    then asks one plain mlx-lm process the same. Exit code 3 if the tokens
    differ by more than rounding; 1 if the ring cannot serve, or mlx-lm itself
    fails, so that nothing is proved.

        sealring demo
        sealring demo --ranks 3 --prompt "Count to twenty."
        sealring demo --strategy tp

    Next: sealring keygen --help, to do the same on machines of your own.

    Parameters
    ----------
    ranks
        Node processes; each holds a part of the layers.
    prompt
        What to ask; a prompt that shows the model off if left out.
    max_tokens
        The most tokens to give.
    model
        Folder of another model in f32, or its hub id.
    draft
        Folder or hub id of a small model with the same vocabulary, which
        guesses tokens. They may come sooner, and are the same.
    no_guesses
        Guess no tokens ahead.
    strategy
        'pp': each rank has some of the layers. 'tp': each has its share of
        every layer, and all sum up what they have. 'auto' chooses.
    collectives
        'shared-loopback' has those sums within reach of every user of this
        machine, where engines can have no network of their own.
        'trusted-link' has them go beside the sealed links.
    """
    folder = find_whole_model(model)
    info = describe_model(folder)
    asked = prompt if prompt is not None else DEFAULT_PROMPT
    check_text(folder)
    if not has_chat_template(folder):
        _say(json, f"{NO_TEMPLATE[0].upper()}{NO_TEMPLATE[1:]}.")
    _say(json, f"Starting {ranks} node processes on loopback ...")
    options: dict[str, Setting] = {"strategy": strategy, "collectives": collectives}
    options |= guess_options(draft, folder, no_guesses=no_guesses)
    with local_ring(ranks, folder, options=options) as nodes:
        _say(json, f"Every link is sealed. The prompt: {asked}\n")
        if draft is not None:
            _say(json, "Loading the draft model ...")
            _wait_for_draft(nodes[0])
        try:
            answer = _ask(nodes[0], asked, max_tokens, json)
        except OperationError as error:
            if any(why["permanent"] for why in nodes[0].status()["why"]):
                raise  # it says all
            logs = "\n".join(f"{node.name}: {node.log_tail()}" for node in nodes)
            raise OperationError(f"{logs}\n{error.what}", _GAVE_UP) from None
        states = [node.status() for node in nodes]
    _say(json, "\nThe same with one mlx-lm process, to compare ...\n")
    yardstick, first, gap, raised = None, None, None, ""
    try:
        with one_process(folder) as single:
            yardstick = single.generate(asked, max_tokens)
            first = _first_difference(answer.tokens, yardstick.tokens)
            if first is not None and first < len(answer.tokens):
                gap = single.gap(asked, first, answer.tokens[first])
    except MlxLmRaised as error:
        raised = error.words
    sealing = 0.0
    if ranks > 1:
        sealing = seal_microseconds(info.hidden, info.dtype, SUITES[states[0]["suite"]])
    report = _report(answer, yardstick, states, sealing, info.size)
    report |= {"first_difference": first, "tie": gap is not None and gap.is_tie}
    report["gap_nats"] = None if gap is None else gap.nats
    report["mlx_lm_raised"] = raised
    if json:
        print_json(report)
    else:
        _show(report)
    if raised:
        raise OperationError(
            f"the ring answered, and nothing shows whether rightly: mlx-lm itself raised an error "
            f"with this model: {visible(raised)}",
            "'sealring verify' compares token ids, without mlx-lm's tokenizer. A release of mlx-lm "
            "that has this model may do, or another conversion of it.",
        )
    return 0 if report["identical"] or report["tie"] else FOUND_WRONG


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where the two differ; None if they do not."""
    if one == other:
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _say(json: bool, text: str) -> None:
    if not json:
        print(text, flush=True)


def _ask(head: LocalNode, prompt: str, max_tokens: int, json: bool) -> RingAnswer:
    tokens: list[int] = []
    text, reason, times = "", "", []
    with contextlib.ExitStack() as waiting:
        report = _unsaid if json else waiting.enter_context(progress())
        report(
            "waiting for the first token: the engines start, load their layers and read the prompt"
        )
        for event in head.ask("generate", {"prompt": prompt, "max_tokens": max_tokens}):
            if event["event"] == "waiting":
                report(event["text"])
            elif event["event"] == "text":
                waiting.close()
                times += [time.perf_counter()] * event["count"]
                text += event["text"]
                if not json:
                    print(visible(event["text"]), end="", flush=True)
            elif event["event"] == "done":
                tokens, reason = event["token_ids"], event["reason"]
    _say(json, "")
    if reason == "length" and not json:
        note_cut_off(max_tokens)
    return RingAnswer(tuple(tokens), text, pace(times))


def _unsaid(_: str) -> None:
    """Says nothing: a program reads one JSON object."""


def _wait_for_draft(head: LocalNode) -> None:
    """Wait until the draft model guesses, so that the answer shows what it brings. Raises
    `OperationError` if it does not."""
    end = time.monotonic() + DRAFT_SECONDS
    while (draft := head.status()["draft"])["state"] != "guessing":
        if draft["state"] == "given up" or time.monotonic() > end:
            raise OperationError(
                f"the draft model does not guess: {draft['fault'] or 'it has not been loaded'}",
                "Try another, or none.",
            )
        time.sleep(LOOK_SECONDS)


def _report(
    answer: RingAnswer,
    single: ReferenceAnswer | None,
    states: list[dict[str, Any]],
    sealing: float,
    weights: int,
) -> dict[str, Any]:
    head = states[0]
    hop = head["hop_us"]
    return {
        "identical": None if single is None else answer.tokens == single.tokens,
        "tokens": len(answer.tokens),
        "token_ids": list(answer.tokens),
        "single_token_ids": None if single is None else list(single.tokens),
        "text": answer.text,
        "ring_tokens_per_s": round(answer.tokens_per_s, 1),
        "single_tokens_per_s": None if single is None else round(single.tokens_per_s, 1),
        "hop_us": hop,
        "guesses": head["guesses"],
        "seal_us": round(sealing, 1),
        "seal_share": round(sealing / hop["p50"], 3) if hop else 0.0,
        "suite": head["suite"],
        "inner_seal": head["inner_seal"],
        "activations": head["activations"],
        "strategy": head["strategy"],
        "reason": head["reason"],
        "collectives": sorted({p["collective"] for p in head["peers"] if p["collective"]}),
        "ranks": [
            {
                "rank": state["rank"],
                "layers": state["layers"],
                "weights_read": state["weights_read"],
                "weights_held": state["weights_held"],
                "share": round(state["weights_held"] / weights, 3),
                "memory": state["memory"],
            }
            for state in states
        ],
    }


def _verdict(report: dict[str, Any]) -> str:
    if report["identical"]:
        return "yes"
    if report["mlx_lm_raised"]:
        return "not compared: mlx-lm itself raised an error"
    first, gap = report["first_difference"], report["gap_nats"]
    if report["tie"]:
        return f"up to token {first + 1}, where the model has a tie (the two differ by {gap:.1g})"
    return f"NO: token {first + 1} is another" + ("" if gap is None else f" (by {gap:.2g} nats)")


def _show(report: dict[str, Any]) -> None:
    print_table(
        "Who held what",
        ["rank", "layers", "share", "weights read", "weights held", "memory of its engine"],
        [
            (
                str(rank["rank"]),
                f"{rank['layers'][0]} to {rank['layers'][1] - 1}",
                f"{rank['share']:.0%}",
                format_size(rank["weights_read"]),
                format_size(rank["weights_held"]),
                format_size(rank["memory"]),
            )
            for rank in report["ranks"]
        ],
    )
    hop = report["hop_us"]
    facts = [
        ("tokens", str(report["tokens"])),
        ("ring", f"{report['ring_tokens_per_s']} tokens/s ({report['strategy']})"),
        *(
            [("one process", f"{report['single_tokens_per_s']} tokens/s (mlx-lm)")]
            if report["single_tokens_per_s"] is not None
            else []
        ),
        ("strategy", f"{report['strategy']}: {report['reason']}"),
        ("activations", report["activations"]),
        *(
            [("guesses", guesses_text(report["guesses"]))]
            if any(report["guesses"].values())
            else []
        ),
        *(("sums", text) for text in report["collectives"]),
    ]
    if hop:
        facts += [
            ("hop", f"{hop['p50']:.0f} us median, {hop['p99']:.0f} us at p99"),
            (
                "sealing",
                f"{report['seal_us']} us of it, {report['seal_share']:.0%} ({report['suite']})",
            ),
        ]
    facts.append(("tokens identical", _verdict(report)))
    print_facts(facts)
