"""A profile as a table for people, and as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sealring.cli.output import print_facts, print_table
from sealring.profiling.balance import balance_of
from sealring.profiling.parts import Parts, RankParts, parts_of
from sealring.profiling.recording import Recording
from sealring.profiling.slow_links import slow_links_of

_MS: Final = 1e3
_WHO: Final = {
    "node": "node",
    "launch": "engine: builds and launches graphs",
    "rest": "engine: its other threads",
}


def describe(recordings: Sequence[Recording], seconds: float) -> dict[str, Any]:
    """The profile of *seconds* as JSON. Times are milliseconds for each step, as means, unless
    their names say another unit."""
    decode, prefill = parts_of(recordings, "decode"), parts_of(recordings, "prefill")
    place = recordings[0].place
    return {
        "seconds": round(seconds, 3),
        "names": place["names"],
        "strategy": place["strategy"],
        "recorded_ranks": [recording.rank for recording in recordings],
        "decode": None if decode is None else _parts(decode),
        "prefill": None if prefill is None else _parts(prefill),
        "processors": _processors(recordings, decode),
        "balance": _balance(place, decode),
        "slow_links": _slow_links(place, prefill),
    }


def _slow_links(place: Mapping[str, Any], prefill: Parts | None) -> list[dict[str, Any]]:
    """Links of a pipeline that hold up the reading of prompts."""
    if prefill is None or place["strategy"] != "pp":
        return []
    return [
        {"rank": link.rank, "wire_ms": _ms(link.wire), "compute_ms": _ms(link.compute)}
        for link in slow_links_of(prefill.ranks)
    ]


def _balance(place: Mapping[str, Any], decode: Parts | None) -> dict[str, Any] | None:
    """A better split of a pipeline's layers, if there is one."""
    layers = [end - begin for begin, end in itertools.pairwise(place["bounds"])]
    if decode is None or place["strategy"] != "pp" or [*decode.ranks] != [*range(len(layers))]:
        return None
    closing = decode.closing.compute if decode.closing is not None else 0.0
    compute = [decode.ranks[rank].compute for rank in range(len(layers))]
    found = balance_of(layers, compute, closing)
    if found is None:
        return None
    return {"layers": list(found.layers), "now": layers, "gain": round(found.gain, 3)}


def _parts(parts: Parts) -> dict[str, Any]:
    return {
        "steps": parts.steps,
        "tokens_per_step": round(parts.tokens, 3),
        "steps_under_way": round(parts.under_way, 3),
        "token_ms": _ms(parts.token),
        "step_ms": _ms(parts.step),
        "head_ms": _ms(parts.head),
        "ranks": [{"rank": rank, **_rank(each)} for rank, each in parts.ranks.items()],
        "closing": None if parts.closing is None else _rank(parts.closing),
    }


def _rank(each: RankParts) -> dict[str, float | None]:
    return {
        "waiting_ms": _ms(each.waiting),
        "compute_ms": _ms(each.compute),
        "sealing_ms": _ms(each.sealing),
        "node_ms": _ms(each.node),
        "wire_ms": _ms(each.wire),
    }


def _processors(recordings: Sequence[Recording], decode: Parts | None) -> list[dict[str, Any]]:
    """Processor time of each rank's processes by all decode steps; the whole time without one."""
    steps = max(1, decode.steps) if decode is not None else 1
    return [
        {
            "rank": each.rank,
            "who": who,
            "ran_ms": _ms(ran / steps),
            "waited_ms": _ms(waited / steps),
        }
        for each in recordings
        for who, (ran, waited) in each.used().items()
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * _MS, 4)


def show(told: dict[str, Any]) -> None:
    """Print what `describe` told."""
    for work in ("decode", "prefill"):
        if told[work] is not None:
            _show_parts(work, told[work], told)
    if told["processors"]:
        print()
        print_table(
            "Milliseconds of a processor for each decode step",
            ["rank", "who", "ran", "ready, without one"],
            [
                (
                    str(each["rank"]),
                    _WHO[each["who"]],
                    _cell(each["ran_ms"]),
                    _cell(each["waited_ms"]),
                )
                for each in told["processors"]
            ],
            numbers_from=2,
        )
    _show_balance(told["balance"])
    for link in told["slow_links"]:
        print()
        print(
            f"A chunk of a prompt takes {link['wire_ms']:.1f} ms from rank {link['rank']} to the "
            f"next, and {link['compute_ms']:.1f} ms in it: the link holds up the reading of "
            'prompts. For a model in F32, hop_dtype = "bf16" in all configs halves what it '
            "carries, and rounds."
        )


def _show_balance(balance: dict[str, Any] | None) -> None:
    if balance is not None:
        print()
        print(
            f"The longest stage takes {balance['gain']:.2f} times as long as with layers = "
            f"{balance['layers']} in the head's config, in place of {balance['now']}. "
            "It bounds several rows, long prompts and guesses; one row alone gains nothing else."
        )


def _show_parts(work: str, parts: dict[str, Any], told: dict[str, Any]) -> None:
    names, columns = told["names"], ("waiting", "compute", "sealing", "node", "wire")
    rows = [(f"{each['rank']} {names[each['rank']]}", each) for each in parts["ranks"]]
    if parts["closing"] is not None:
        rows.append((f"0 {names[0]}, draws the token", parts["closing"]))
    print_table(
        f"{work}: milliseconds of a step",
        ["rank", *columns],
        [(who, *(_cell(each[f"{column}_ms"]) for column in columns)) for who, each in rows],
    )
    facts = [("steps", f"{parts['steps']}, of {parts['tokens_per_step']:.1f} tokens each")]
    if parts["step_ms"]:
        under_way = f"{parts['steps_under_way']:.1f} under way at once"
        facts.append(("a step takes", f"{parts['step_ms']:.2f} ms, {under_way}"))
    if work == "decode" and parts["token_ms"]:
        facts.append(("a row has a token", f"each {parts['token_ms']:.2f} ms (median)"))
        facts.append(("head, between steps", f"{parts['head_ms']:.2f} ms"))
    print_facts(facts)
    print()


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
