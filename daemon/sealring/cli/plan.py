"""`sealring plan`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from sealring_model.loading.model_folder import ModelInfo
from sealring_protocol.control.head.trial import UNTRIED
from sealring_protocol.control.plan import (
    Plan,
    PlanRequest,
    Strategy,
    TooLittleRoom,
    make_plan,
)
from sealring_protocol.errors import LocalProtocolError
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.config import StrategyName
from sealring_trio.files.models import describe_model, find_model
from sealring_trio.units import format_size, parse_size

from sealring.cli.options import AsJson
from sealring.files.config import has_own_config, own_config
from sealring.files.models import engine_info, find_for_command, load_text, structure
from sealring.forecast import CONTEXT, PROMPT, Forecast, Workload, recommend, ways
from sealring.local.node_socket import ANSWER_SECONDS, NobodyThere, ask
from sealring.local.paces import known_machines
from sealring.output import print_facts, print_json, print_note, print_table, visible

if TYPE_CHECKING:
    from sealring_model.loading.structure import Structure


def plan(
    *,
    config: Path | None = None,
    model: str | None = None,
    memory: str | None = None,
    adapter: Path | None = None,
    draft: str | None = None,
    layers: str = "",
    strategy: StrategyName = "pp",
    context: int = 0,
    streams: int = 0,
    json: AsJson = False,
) -> None:
    """Say what each way to run a model would give, and which to take.

    With a config, or with that of the default folder, it asks the node of this
    machine what its ring has: memory, measured pace, hops. Best ask the head,
    once it has answered a request; machines that are away are left out. Without
    one, --memory says what each machine has, each is taken to be as fast as
    this one, and all paces are estimates.

        sealring plan --config desk.toml
        sealring plan --model models/llama-8b --memory 32G,24G
        sealring plan --model models/llama-8b --memory 32G,24G --layers 20,12
        sealring plan --model models/llama-8b --memory 32G,24G --strategy tp
        sealring plan --model models/llama-8b --memory 32G,24G --context 32768 --streams 4

    Builds the model without its weights, as the nodes do before they load
    anything, so it finds what they would refuse: a class that mlx-lm does not
    have, a tensor that is missing, a cut that is not possible, a tokenizer
    that cannot be loaded. Exit code 1 if the model cannot be served so. To see
    how fast this machine is, it runs some layers for a few seconds.

    It shows what a rank holds in memory, which may be more than its files:
    fp8 becomes bf16. While it loads, it also holds one layer's files. Running
    requests take memory for their caches: --streams rows of --context tokens.

    Next: put the same split into the head's config (layers = [20, 12]), or
    leave it out to have it worked out like this from each machine's memory.

    Parameters
    ----------
    config
        The config of this machine's node; that of the default folder if left
        out and there is one.
    model
        Folder of the model, a hub id, or 'tiny'; that of the config if left out.
    adapter
        Folder of an adapter of mlx-lm's (LoRA, DoRA) to use with the model.
    draft
        Folder or hub id of a draft model, which takes memory of the head.
    memory
        Memory of each rank for weights and caches, in rank order; what the
        nodes have if left out.
    layers
        Layers of each rank, if you want to choose.
    strategy
        'pp': each rank has some of the layers. 'tp': each has its share of
        every layer. 'auto' chooses.
    context
        Tokens of a row, prompt and answer, that its caches are to have room
        for. If left out: 4096, or what the model takes, and nothing is
        refused for it.
    streams
        Answers at once, each of which is a row. With several, the way is
        recommended that is fastest for them together. As the config says, or 1,
        if left out.
    """
    ring = _ring(config, model, memory)
    info = describe_model(ring.folder, adapter or ring.adapter)
    rooms = list(ring.rooms)
    counts = [_count(part) for part in layers.split(",")] if layers else []
    if context < 0 or streams < 0:
        raise UserError(
            f"--context {context} --streams {streams}: there are no fewer than 0 tokens or streams",
            "For example --context 32768 --streams 4.",
        )
    load_text(info.folder)
    found = structure(info)
    beside = _draft_memory(draft, info.folder, rooms[0]) if draft is not None else 0
    rooms[0] -= beside
    way = Strategy(strategy) if len(rooms) > 1 else Strategy.SINGLE
    request = PlanRequest(way, tuple(counts), against=UNTRIED)  # as a head begins
    engine = engine_info(info, found, rooms[0])
    try:
        made = make_plan(request, engine, rooms)
    except TooLittleRoom as error:
        raise OperationError(
            f"it does not fit: {error}", "Change --memory or --layers, or take a smaller model."
        ) from None
    except LocalProtocolError as error:
        raise OperationError(
            f"the model cannot be served so: {error}",
            "Change --strategy, --layers or the number of ranks, or take another model.",
        ) from None
    if context > info.context:
        raise UserError(
            f"--context {context}: the model takes {info.context} tokens", "Ask for no more."
        )
    asked = Workload(context or min(CONTEXT, info.context), streams or ring.streams)
    ranks = [_Rank.of(found, made, rank, room, asked) for rank, room in enumerate(rooms)]
    if context:
        _check_caches(ranks, asked)
    known = known_machines(info, found, rooms, ring.facts, asked.streams)
    found_ways = ways(engine, found.costs, known.machines, known.network, asked, request)
    chosen = recommend(found_ways, asked)
    if json:
        print_json(
            {
                **_describe(info, found, made, asked, ranks),
                "draft": beside,
                **_describe_ways(found_ways, chosen, asked, known.source),
                "taken": ring.taken,
            }
        )
        return
    _show(info, found, made, asked, ranks, beside)
    _show_ways(found_ways, chosen, asked, known.source)
    if ring.taken:
        print(f"The head says: {visible(ring.taken)}.")


@attrs.frozen
class _Ring:
    """What is planned for: the *folder* of the model with its *adapter*, bytes of each rank
    (*rooms*), for how many *streams* it is, what the head says of itself (*facts*), if it was
    asked, and what it has *taken*, in a line."""

    folder: Path
    adapter: Path | None
    rooms: tuple[int, ...]
    streams: int = 1
    facts: Mapping[str, Any] | None = None
    taken: str = ""


def _ring(config: Path | None, model: str | None, memory: str | None) -> _Ring:
    """What is asked for: by *config*, that of the default folder, or *model* and *memory*. Raises
    `UserError`."""
    rooms = tuple(_size(part) for part in memory.split(",")) if memory else ()
    if config is None and model is not None:
        return _Ring(find_model(model), None, rooms or (_own_room(0),))
    if config is None and not has_own_config():
        raise UserError(
            "nothing says what to plan for",
            "Name a model (--model, and --memory), or this machine's node (--config).",
        )
    settings = own_config(config)
    folder = find_for_command(settings, model or settings.needed_model)
    try:
        facts = next(ask(settings.control_socket, "status", seconds=ANSWER_SECONDS))
    except NobodyThere:
        print_note("no node of this config runs here: memory and pace of this machine, estimates")
        return _Ring(
            folder, settings.adapter, rooms or (_own_room(settings.memory or 0),), settings.streams
        )
    facts = _without_witnesses(facts)
    if rooms and len(rooms) != facts["world"]:
        raise UserError(
            f"--memory has {len(rooms)} sizes, and the ring {facts['world']} ranks",
            "Give one for each rank, in their order, or leave it out.",
        )
    had = {int(rank): size for rank, size in facts["rooms"].items()}
    if not rooms and len(had) < facts["world"]:
        if facts["rank"]:
            raise UserError(
                f"this node is rank {facts['rank']}, and the head knows what each rank has",
                f"Ask on the machine of the head, {facts['peers'][0]['name']}.",
            )
        facts = _without_those_away(facts, had.keys())
    # What was measured is of the model that runs.
    same = model is None and not facts["rank"]
    choice = facts.get("choice") or {"text": "", "compared": []}  # a head may be older
    if choice["compared"]:
        facts = facts | choice  # of the ring that it left
    return _Ring(
        folder,
        settings.adapter,
        rooms or tuple(had[rank] for rank in sorted(had)),
        settings.streams,
        facts if same else None,
        choice["text"] if same else "",
    )


def _without_witnesses(facts: dict[str, Any]) -> dict[str, Any]:
    """What a head says of itself (*facts*), of the machines alone that may be in a ring."""
    peers = [each for each in facts["peers"] if not each.get("witness")]  # it may be older
    return {**facts, "peers": peers, "world": len(peers) + 1}


def _without_those_away(facts: Mapping[str, Any], known: Collection[int]) -> dict[str, Any]:
    """What a head says of itself (*facts*), of the machines alone that are there, which it tells
    people. It has *known* what these ranks have. Raises `OperationError` if it has not heard yet
    from another that is there."""
    peers = {each["name"]: each for each in facts["peers"]}
    missing = [name for name, each in peers.items() if each["rank"] not in known]
    late = [name for name in missing if peers[name]["control"]]
    if late or facts["rank"] not in known:
        who = ", ".join(map(visible, late or [facts["name"]]))
        raise OperationError(
            f"the head does not know yet what memory {who} has", "Ask again in a few seconds."
        )
    away = ", ".join(f"{visible(name)} (rank {peers[name]['rank']})" for name in missing)
    are = "is" if len(missing) == 1 else "are"
    print_note(f"{away} {are} away: this is a plan of those that are there, in their order")
    return {**facts, "peers": [each for each in facts["peers"] if each["rank"] in known]}


def _own_room(limit: int) -> int:
    """Bytes for weights and caches on this machine, *limit* at most if it is given."""
    from sealring_model.machine import memory_budget  # noqa: PLC0415 - imports MLX

    return memory_budget(limit)


@attrs.frozen
class _Rank:
    """What one rank would hold, in bytes: *weights*, the most while it loads (*loading*), and the
    *caches* of the rows that were asked for."""

    layers: range
    memory: int
    weights: int
    loading: int
    caches: int

    @classmethod
    def of(cls, found: Structure, made: Plan, rank: int, room: int, asked: Workload) -> _Rank:
        """*rank* of the plan that was *made*, with *room* bytes."""
        layers = made.layers(rank)
        bounds = layers.start, layers.stop
        share = made.world if made.strategy is Strategy.TENSOR else 1
        # Each rank of a collective has its share of the layers; few classes share out the ends.
        ends = found.ends.held if share > 1 else 0
        weights = ends + (found.held(*bounds) - ends) // share
        # A layer is read whole by each rank of a collective, and cut then.
        loading = weights + found.peak(*bounds) - found.held(*bounds)
        caches = asked.rows * found.cache(*bounds, asked.context) // share
        return cls(layers, room, weights, loading, caches)

    @property
    def left(self) -> int:
        """Bytes beside weights and caches."""
        return self.memory - self.weights - self.caches


def _check_caches(ranks: list[_Rank], asked: Workload) -> None:
    for number, rank in enumerate(ranks):
        if rank.left < 0:
            raise OperationError(
                f"it does not fit: rank {number} would need {format_size(rank.caches)} for the "
                f"caches of {asked.rows} x {asked.context} tokens beside weights of "
                f"{format_size(rank.weights)}, and has {format_size(rank.memory)}",
                "Ask for a shorter --context or fewer --streams, or give that rank more --memory "
                "or fewer --layers.",
            )


def _draft_memory(draft: str, model: Path, room: int) -> int:
    """What the *draft* model takes of *room* bytes, beside the one in the folder *model*."""
    from sealring_trio.node.drafts import plan_draft  # noqa: PLC0415 - brings a whole node

    taken = plan_draft(draft, model).memory
    if taken >= room:
        raise OperationError(
            f"it does not fit: the draft model takes {format_size(taken)}, and rank 0 has "
            f"{format_size(room)}",
            "Give rank 0 more --memory, or take a smaller draft model.",
        )
    return taken


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise UserError(f"--memory: {error}", "One size for each rank: --memory 32G,24G") from None


def _count(text: str) -> int:
    if not text.strip().isdecimal():
        raise UserError(
            f"--layers: '{text}' is no number of layers", "One number for each rank: --layers 20,12"
        )
    return int(text)


def _notes(info: ModelInfo, found: Structure) -> list[str]:
    return [*info.notes, *([found.lacks] if found.lacks else [])]


def _hop_bytes(info: ModelInfo) -> int:
    return info.hidden * info.dtype.width


def _describe(
    info: ModelInfo, found: Structure, made: Plan, asked: Workload, ranks: list[_Rank]
) -> dict[str, object]:
    return {
        "model": str(info.folder),
        "kind": info.kind,
        "digest": info.digest.hex(),
        "layers": len(info.layers),
        "files": info.size,
        "weights": found.held(0, len(info.layers)),
        "fits": all(rank.left >= 0 for rank in ranks),
        "strategy": made.strategy.value,
        "reason": made.reason,
        "hidden_state_per_hop": _hop_bytes(info),
        "context": asked.context,
        "rows": asked.rows,
        "notes": _notes(info, found),
        "ranks": [
            {
                "rank": number,
                "layers": [rank.layers.start, rank.layers.stop],
                "weights": rank.weights,
                "most_while_loading": rank.loading,
                "caches": rank.caches,
                "memory": rank.memory,
                "left": rank.left,
            }
            for number, rank in enumerate(ranks)
        ],
    }


def _show(
    info: ModelInfo,
    found: Structure,
    made: Plan,
    asked: Workload,
    ranks: list[_Rank],
    beside: int,
) -> None:
    held = found.held(0, len(info.layers))
    on_disk = "" if held == info.size else f" ({format_size(info.size)} of files)"
    print_facts(
        [
            ("model", f"{info.folder} ({info.kind}, {len(info.layers)} layers)"),
            ("weights", f"{format_size(held)} in memory{on_disk}"),
            ("strategy", f"{made.strategy.value}: {made.reason}"),
            ("per hop", f"{format_size(_hop_bytes(info))} of hidden state for each row and token"),
            ("caches", f"{asked.rows} x {asked.context} tokens (--streams, --context)"),
            *([("draft model", f"{format_size(beside)} of rank 0's memory")] if beside else []),
            *(("note", note) for note in _notes(info, found)),
        ]
    )
    print_table(
        "It fits:" if all(rank.left >= 0 for rank in ranks) else "Weights fit, caches do not:",
        ["rank", "layers", "weights", "most while loading", "caches", "memory", "left"],
        [
            (
                f"{number} (head)" if number == 0 else str(number),
                f"{rank.layers.start} to {rank.layers.stop - 1}",
                format_size(rank.weights),
                format_size(rank.loading),
                format_size(rank.caches),
                format_size(rank.memory),
                format_size(rank.left) if rank.left >= 0 else f"-{format_size(-rank.left)}",
            )
            for number, rank in enumerate(ranks)
        ],
    )


def _describe_ways(
    found: Sequence[Forecast], chosen: tuple[Forecast, str] | None, asked: Workload, source: str
) -> dict[str, object]:
    return {
        "source": source,
        "streams": asked.streams,
        "recommended": chosen[0].name if chosen else None,
        "why": chosen[1] if chosen else "none has room for the caches",
        "ways": [
            {
                "name": way.name,
                "strategy": way.strategy,
                "machines": list(way.machines),
                "layers": [[each.start, each.stop] for each in way.layers],
                "weights": list(way.weights),
                "caches": list(way.caches),
                "engines": way.engines,
                "fits": way.fits,
                "longest_context": way.longest,
                "tokens_per_s": round(way.one, 2),
                "tokens_per_s_together": round(way.many, 2),
                "first_token_s": round(way.first, 3),
                "estimate": not way.measured,
            }
            for way in found
        ],
    }


def _show_ways(
    found: Sequence[Forecast], chosen: tuple[Forecast, str] | None, asked: Workload, source: str
) -> None:
    heads = [f"tok/s {number}" for number in (1, asked.streams)]
    print_table(
        f"\nWays to run it ({source}; e: the row is an estimate):",
        ["way", "weights", "caches", "engines", "context", *heads, "first"],
        [
            (
                way.name,
                format_size(sum(way.weights)),
                format_size(sum(way.caches)) if way.fits else "no room",
                f"{way.engines >> 20} MiB",
                str(way.longest),
                _paced(way.one, way),
                _paced(way.many, way),
                f"{way.first:.2f} s",
            )
            for way in found
        ],
    )
    print(
        f"tok/s: tokens/s of 1 stream, and of {asked.streams} together; first: to the first token\n"
        f"after a prompt of {PROMPT}; context: tokens of a row at most; bytes: of all ranks.\n"
        "Engines and first are always estimates.\n"
    )
    if chosen is None:
        print("Recommended: none has room for the caches; ask for a shorter --context.")
    else:
        print(f"Recommended: {visible(chosen[0].name)}. Why: {visible(chosen[1])}.")


def _paced(pace: float, way: Forecast) -> str:
    """A *pace* in tokens per second."""
    return f"{pace:.3g}{'' if way.measured else ' e'}"
