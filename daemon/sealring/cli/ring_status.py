"""`sealring status` without a config: how a ring is, as the API of its head tells it."""

from __future__ import annotations

from typing import Any

from sealring_trio.errors import OperationError
from sealring_trio.units import format_size

from sealring.cli.access import Access, head_at
from sealring.output import (
    print_facts,
    print_json,
    print_table,
    told_costs,
    told_draft,
    told_guesses,
    visible,
)


def show_ring(url: str | None, access: Access, *, json: bool) -> None:
    """Show the ring whose head is at *url*, or at the usual address. Raises `UserError`."""
    from sealring.local import client  # noqa: PLC0415 - a tenth of a second, for this alone

    base = head_at(url)
    with access.client(base) as http:
        try:
            told = client.cluster_at(http, base)
        except client.Unreachable as error:
            raise OperationError(
                error.what, f"{error.advice} For a node of 'sealring up': --config CONFIG."
            ) from None
    if json:
        print_json(told)
        return
    try:
        _show(base, told)
    except (ArithmeticError, LookupError, TypeError, AttributeError, ValueError):
        raise client.no_api(base) from None


def _show(url: str, told: dict[str, Any]) -> None:
    rows, guesses = told["rows"], told["guesses"]
    facts = [
        ("head", url),
        ("version", told["version"]),
        ("state", _state(told)),
        ("cluster", told["cluster"]),
        ("roster", told["roster_left"]),
        ("model", told["model"]),
        ("strategy", f"{told['strategy']}: {told['reason']}" if told["reason"] else ""),
        ("epoch", str(told["epoch"])),
        ("activations", told["activations"]),
        (
            "choices",
            f"{rows['decode']} decode, {rows['prefill']} are read in, {rows['queued']} wait",
        ),
        ("pace", f"{told['tokens_per_s']} tokens/s, {told['prompt_tokens_per_s']} of prompts"),
        ("guesses", told_guesses(guesses)),
        ("a token takes", told_costs(told.get("guess_ms", {}))),  # a head may be older
        ("draft model", told_draft(told.get("draft"))),
    ]
    print_facts([(name, value) for name, value in facts if value])
    whys = told["why"] or [{"text": fault, "advice": ""} for fault in told["faults"]]
    for why in whys:
        print_obstacle("not serving", why)
    for engine in [] if whys else told["starved"]:
        print_obstacle("slow", engine)
    print()
    print_table(
        "ranks",
        ["rank", "name", "layers", "state", "memory", "caches", "rows"],
        [_rank(rank) for rank in told["ranks"]],
        numbers_from=4,
    )


def _state(told: dict[str, Any]) -> str:
    """How the ring is. Its state may be "serving" while something else is missing, which is told
    below: the tokenizer, say."""
    if told["healthy"]:
        return "serving"
    return "not serving" + ("" if told["state"] == "serving" else f" ({told['state']})")


def _rank(rank: dict[str, Any]) -> tuple[str, ...]:
    layers = rank["layers"]
    state = "ready" if rank["ready"] else "loads" if rank["present"] else "away"
    return (
        str(rank["rank"]),
        rank["name"],
        f"{layers[0]} to {layers[1] - 1}" if layers else "-",
        state,
        format_size(rank["memory"]),
        format_size(rank["cache"]),
        str(rank["rows"]),
    )


def print_obstacle(kind: str, told: dict[str, Any]) -> None:
    """What is in the way, and what to do."""
    print(f"\n{kind}: {visible(str(told['text']))}")
    if told["advice"]:
        print(f"    {visible(str(told['advice']))}")
