"""`sealring status`: how a ring is, by the API of its head, or what a node knows, by its socket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sealring_protocol.codec.messages import Build
from sealring_protocol.diagnosis import Cause
from sealring_protocol.words import ago, lasting, part_here
from sealring_trio.errors import OperationError, UserError
from sealring_trio.units import format_size

from sealring.cli.members import print_rights
from sealring.cli.options import NO_KEY, Access, AsJson, head_at
from sealring.files.cluster import head_text, unusual_rights
from sealring.files.config import has_own_config, own_config
from sealring.local.node_socket import NobodyThere, answer_of
from sealring.output import guesses_text, print_facts, print_json, print_table, visible


def status(
    *,
    config: Path | None = None,
    url: str | None = None,
    access: Access = NO_KEY,
    json: AsJson = False,
) -> None:
    """Show how a ring is: what its head says of it, or what one of its nodes knows.

    With a config it asks the node of this machine that has it: which machine
    is the head, its part, its peers, its pace, and why its links are down. So
    it does on a machine that began a cluster or joined one. Elsewhere, or
    with --url, it asks the head's API, as that of 'sealring serve'.

        sealring status
        sealring status --url http://desk:7480
        sealring status --config desk.toml

    Parameters
    ----------
    config
        The config of the node, as given to 'sealring up'; that of the default
        folder, if there is one and no --url is given.
    url
        The head's address; http://127.0.0.1:7480 if left out.
    """
    if config is None and (url is not None or not has_own_config()):
        _show_ring(url, access, json=json)
        return
    if url is not None:
        raise UserError(
            "a config names a node of this machine, and a URL a head", "Give one of the two."
        )
    facts = _asked(config)
    if json:
        print_json(facts)
        return
    print_facts([(name, value) for name, value in _facts(facts) if value])
    _print_obstacles(facts["why"], facts["starved"])
    print_table(
        "peers",
        ["rank", "name", "control link", "step link", "tunnel link"],
        [
            (
                str(peer["rank"]),
                peer["name"],
                *(_link(peer[link]) for link in ("control", "step", "tunnel")),
            )
            for peer in facts["peers"]
        ],
        numbers_from=9,
    )
    print_rights(facts["peers"])
    for peer in facts["peers"]:
        if peer.get("outside"):
            print(f"\nwithout {visible(peer['name'])}: {visible(peer['outside'])}")
    shown = {obstacle["what"] for obstacle in facts["why"]}
    for peer in facts["peers"]:
        for trouble in peer["trouble"]:
            if trouble["what"] not in shown:
                print(f"\n{visible(trouble['link'])} link: {visible(trouble['text'])}")
    if facts["strangers"]:
        print("\nconnections that this node refused, of whoever was there:")
        for stranger in facts["strangers"]:
            when = ago(stranger["last_s"])
            times = "" if stranger["tries"] == 1 else f", {stranger['tries']} times"
            source, reason = visible(stranger["source"]), visible(stranger["reason"])
            print(f"    {source}: {reason} ({when}{times})")


def _asked(config: Path | None) -> dict[str, Any]:
    """What the node of *config*, or of the default folder, says. Raises `UserError`."""
    try:
        return answer_of(own_config(config).control_socket, "status")
    except NobodyThere as error:
        if config is not None:
            raise
        raise OperationError(
            error.what,
            "Start it: sealring up. For a ring of 'sealring serve', give its address: --url URL.",
        ) from None


def _show_ring(url: str | None, access: Access, *, json: bool) -> None:
    """Show the ring whose head is at *url*, or at the usual address. Raises `UserError`."""
    from sealring.local import client  # noqa: PLC0415 - a tenth of a second, for this alone

    base = head_at(url)
    with access.client(base) as http:
        try:
            ring = client.cluster_at(http, base)
        except client.HeadUnreachable as error:
            raise OperationError(
                error.what, f"{error.advice} For a node of 'sealring up': --config CONFIG."
            ) from None
    if json:
        print_json(ring)
        return
    try:
        _show(base, ring)
    except (ArithmeticError, LookupError, TypeError, AttributeError, ValueError):
        raise client.no_api(base) from None


def _show(url: str, ring: dict[str, Any]) -> None:
    rows, guesses = ring["rows"], ring["guesses"]
    facts = [
        ("head", url),
        ("version", ring["version"]),
        ("state", _state(ring)),
        ("cluster", ring["cluster"]),
        ("roster", ring["roster_left"]),
        ("model", ring["model"]),
        ("strategy", f"{ring['strategy']}: {ring['reason']}" if ring["reason"] else ""),
        ("epoch", str(ring["epoch"])),
        ("activations", ring["activations"]),
        (
            "choices",
            f"{rows['decode']} are answered, {rows['prefill']} are read in, {rows['queued']} wait",
        ),
        (
            "pace",
            f"{ring['tokens_per_s']} tokens/s of answers, {ring['prompt_tokens_per_s']} of prompts",
        ),
        ("guesses", guesses_text(guesses)),
        ("a token takes", _costs(ring.get("guess_ms", {}))),  # a head may be older
        ("draft model", _draft(ring.get("draft"))),
    ]
    print_facts([(name, value) for name, value in facts if value])
    print_rights(ring["ranks"])
    for rank in ring["ranks"]:
        if rank.get("outside"):  # a head may be older
            print(f"\nwithout {visible(rank['name'])}: {visible(rank['outside'])}")
    whys = ring["why"] or [{"text": fault, "advice": ""} for fault in ring["faults"]]
    _print_obstacles(whys, ring["starved"])
    print_table(
        "ranks",
        ["rank", "name", "layers", "state", "memory", "caches", "rows"],
        [_rank(rank) for rank in ring["ranks"]],
        numbers_from=4,
    )


def _state(ring: dict[str, Any]) -> str:
    """How the ring is. Its state may be "serving" while something else is missing, which is shown
    below: the tokenizer, say."""
    if ring["healthy"]:
        return "serving"
    return "not serving" + ("" if ring["state"] == "serving" else f" ({ring['state']})")


def _rank(rank: dict[str, Any]) -> tuple[str, ...]:
    layers = rank["layers"]
    state = "ready" if rank["ready"] else "loads" if rank["present"] else "away"
    if not rank.get("in_ring", True):  # a head may be older
        state = "left out"
    if rank.get("witness"):
        state = "witness" if rank["links"]["control"] else "witness, away"
    return (
        str(rank["rank"]),
        rank["name"],
        f"{layers[0]} to {layers[1] - 1}" if layers else "-",
        state,
        format_size(rank["memory"]),
        format_size(rank["cache"]),
        str(rank["rows"]),
    )


def _print_obstacles(whys: list[dict[str, Any]], starved: list[dict[str, Any]]) -> None:
    """What is in the way, and what to do; or else which engines are slow."""
    kind = "not serving" if whys else "slow"
    for obstacle in whys or starved:
        print(f"\n{kind}: {visible(str(obstacle['text']))}")
        if obstacle["advice"]:
            print(f"    {visible(str(obstacle['advice']))}")
    print()


def _version(facts: dict[str, Any]) -> str:
    """The version of the node's program; at the head also those of the others that differ."""
    oldest, newest = facts["steps"]
    own = Build(facts["version"], oldest, newest).text
    others = [
        f"{peer['name']} {peer['version']}"
        for peer in facts["peers"]
        if peer["version"] not in ("", own)
    ]
    return "; ".join([own, *others])


def _facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """What a node says of itself, for people. It may be of an older release, and say less."""
    layers, hop = facts["layers"], facts["hop_us"]
    return [
        ("node", f"{facts['name']}, rank {facts['rank']} of {facts['world']} ({facts['role']})"),
        ("rights", unusual_rights(facts)),
        ("head", _head(facts)),
        ("version", _version(facts)),
        ("state", _node_state(facts)),
        ("cluster", f"{facts['cluster']}, trust {facts['trust']}"),
        ("roster", f"serial {facts['serial']}, {facts['roster_left']}"),
        ("as the head", facts["head_fault"] and f"it could not serve: {facts['head_fault']}"),
        ("put out by", _outs(facts["peers"])),
        *(("addresses", _addresses(peer)) for peer in facts["peers"]),
        ("model", facts["model"] and f"{facts['model']} ({facts['model_digest'][:16]}...)"),
        ("strategy", f"{facts['strategy']}: {facts['reason']}" if facts["reason"] else ""),
        ("ring", _ring(facts)),
        ("choice", (facts.get("choice") or {"text": ""})["text"]),
        ("epoch", str(facts["epoch"])),
        ("layers", f"{layers[0]} to {layers[1] - 1}" if layers else "none yet"),
        ("fetching", _fetching(facts)),
        ("weights held", format_size(facts["weights_held"])),
        ("weights read", format_size(facts["weights_read"])),
        ("memory", format_size(facts["memory"])),
        ("suite", facts["suite"]),
        ("activations", facts["activations"]),
        ("hop", f"{_took(hop['p50'])} median, {_took(hop['p99'])} at p99" if hop else ""),
        ("links", facts["slow_links"]),
        ("guesses", guesses_text(facts["guesses"])),
        ("a token takes", _costs(facts["guess_ms"])),
        ("draft model", _draft(facts["draft"])),
        ("engine", _engine(facts)),
        ("its processes", _members(facts["members"])),
        *(
            (f"sums with rank {peer['rank']}", peer["collective"])
            for peer in facts["peers"]
            if peer["collective"]
        ),
    ]


def _ring(facts: dict[str, Any]) -> str:
    """Who is in the ring, where this node knows that it is not everybody."""
    ranks = sorted([facts, *facts["peers"]], key=lambda rank: int(rank["rank"]))
    inside = facts.get("ring", ())
    if len(inside) in (0, sum(not rank.get("witness") for rank in ranks)):
        return ""
    names = ", ".join(str(ranks[rank]["name"]) for rank in inside)
    return f"{names}: {len(inside)} of {len(ranks)} machines"


def _head(facts: dict[str, Any]) -> str:
    """Which machine is the head, unless it is this one by the roster."""
    head = facts.get("head")
    if head is not None and head["term"]:  # the node may be older
        return head_text(head["name"], head)
    return next((str(peer["name"]) for peer in facts["peers"] if not peer["rank"]), "")


def _addresses(peer: dict[str, Any]) -> str:
    """How the addresses of *peer* answer; empty if it has one that does, and no other, or if
    none was tried."""
    routes = peer.get("routes", ())
    tried = [route for route in routes if route["trouble"] or route["ms"] is not None]
    known = sorted(tried, key=lambda route: (bool(route["trouble"]), route["ms"] or 0.0))
    texts = [
        f"does not answer at {route['address']}: {route['trouble']}"
        if route["trouble"]
        else f"answers at {route['address']} in {route['ms']} ms"
        for route in known
    ]
    dull = len(routes) == 1 and not any(route["trouble"] for route in tried)
    return "" if dull or not texts else f"{peer['name']} {', '.join(texts)}"


def _outs(peers: list[dict[str, Any]]) -> str:
    names = ", ".join(peer["name"] for peer in peers if peer["put_out"])
    return names and f"{names}: their newer roster does not name this node"


def _fetching(facts: dict[str, Any]) -> str:
    """How far the ranks are that fetch weights, as far as this node hears."""
    ranks = sorted([facts, *facts["peers"]], key=lambda rank: int(rank["rank"]))
    return "; ".join(
        f"rank {rank['rank']} ({rank['name']}): "
        f"{part_here(rank['fetched_bytes'], rank['fetch_bytes'])}"
        for rank in ranks
        if rank["fetch_bytes"]
    )


def _engine(facts: dict[str, Any]) -> str:
    if not facts["model"]:
        return "none: a witness needs none" if facts.get("witness") else "none"
    pids = ", ".join(map(str, facts["engine_pids"])) or "none"
    lost = f"; {facts['engine_lost']}" if facts["engine_lost"] else ""
    return f"pid {pids}, {facts['engine_state']}, restarted {facts['engine_restarts']} times{lost}"


def _members(members: dict[str, Any] | None) -> str:
    if members is None:
        return ""
    if not members["backend"]:
        return f"{members['size']}, not yet a group"
    return (
        f"{members['size']}, each with a share of every layer; {members['backend']}, a sum takes "
        f"{_took(members['sum_us'])}; sums are {members['sums']}"
    )


def _node_state(facts: dict[str, Any]) -> str:
    state = facts["state"]
    if any(each["cause"] == Cause.OUTSIDE.value for each in facts["why"]):
        state = "left out"
    elif state == "serving" and facts["why"]:
        state = "not serving"
    elif state == "serving" and facts["role"] == "rank":
        state = "ready (the head's status says whether the ring serves)"
    return f"{state}, for {lasting(facts['state_s'])}"


def _took(microseconds: float) -> str:
    """A time for people: 123 us, 4.57 ms."""
    if microseconds < 1000:
        return f"{microseconds:.0f} us"
    return f"{microseconds / 1000:.3g} ms"


def _link(up: bool) -> str:
    return "up" if up else "-"


def _costs(guess_ms: Mapping[str, float]) -> str:
    """How long a token takes without guesses; empty if that is not known. What else there is, is
    for programs (``--json``)."""
    return f"{guess_ms['plain']:.3g} ms without guesses" if "plain" in guess_ms else ""


def _draft(draft: Mapping[str, Any] | None) -> str:
    """Which draft model there is, and how it is; empty if there is none."""
    if draft is None:
        return ""
    fault = f" ({draft['fault']})" if draft["fault"] else ""
    return f"{draft['model']}, {draft['state']}{fault}"
