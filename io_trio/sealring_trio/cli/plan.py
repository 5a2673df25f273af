"""`sealring plan`."""

from __future__ import annotations

from sealring_model.loading.model_folder import ModelInfo
from sealring_protocol.control.head.partition import TooLittleRoom
from sealring_protocol.control.head.plan import Plan, PlanRequest, Strategy, make_plan
from sealring_protocol.errors import LocalProtocolError

from sealring_trio.cli.output import print_facts, print_json, print_table
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.config import StrategyName
from sealring_trio.files.models import check_text, describe_model, engine_info, find_model
from sealring_trio.files.units import format_size, parse_size


def plan(
    *,
    model: str,
    memory: str,
    layers: str = "",
    strategy: StrategyName = "pp",
    json: bool = False,
) -> None:
    """Work out which machine would hold which layers, and whether that fits.

    Builds the model without its weights, as the nodes do before they load
    anything, so it finds what they would refuse: a class that mlx-lm does not
    have, a tensor that is missing, layers that cannot be parted. Needs no
    other machine. Exit code 1 if the model cannot be served so.

        sealring plan --model models/llama-8b --memory 32G,24G
        sealring plan --model models/llama-8b --memory 32G,24G --layers 20,12
        sealring plan --model models/llama-8b --memory 32G,24G --strategy tp

    Next: put the same split into the head's config (layers = [20, 12]), or
    leave it out to have it worked out like this from each machine's memory.

    Parameters
    ----------
    model
        Folder of the model, a hub id, or 'tiny'.
    memory
        Memory of each rank for weights and caches, in rank order.
    layers
        Layers of each rank, if you want to choose.
    strategy
        'pp': each rank has some of the layers. 'tp': each has its share of
        every layer. 'auto' chooses.
    json
        Print one JSON object.
    """
    info = describe_model(find_model(model))
    check_text(info.folder)
    rooms = [_size(part) for part in memory.split(",")]
    counts = [_count(part) for part in layers.split(",")] if layers else []
    request = PlanRequest(Strategy(strategy) if len(rooms) > 1 else Strategy.SINGLE, tuple(counts))
    try:
        made = make_plan(request, engine_info(info, rooms[0]), rooms)
    except TooLittleRoom as error:
        raise OperationError(
            f"it does not fit: {error}", "Change --memory or --layers, or take a smaller model."
        ) from None
    except LocalProtocolError as error:
        raise OperationError(
            f"the model cannot be served so: {error}",
            "Change --strategy, --layers or the number of ranks, or take another model.",
        ) from None
    if json:
        print_json(_describe(info, rooms, made))
    else:
        _show(info, rooms, made)


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


def _hop_bytes(info: ModelInfo) -> int:
    return info.hidden * info.dtype.width


def _describe(info: ModelInfo, rooms: list[int], made: Plan) -> dict[str, object]:
    return {
        "model": str(info.folder),
        "kind": info.kind,
        "digest": info.digest.hex(),
        "layers": len(info.layers),
        "weights": info.size,
        "fits": True,
        "strategy": made.strategy.value,
        "reason": made.reason,
        "hidden_state_per_hop": _hop_bytes(info),
        "notes": list(info.notes),
        "ranks": [
            {
                "rank": rank,
                "layers": [made.split.layers(rank).start, made.split.layers(rank).stop],
                "weights": weights,
                "memory": rooms[rank],
                "left_for_caches": rooms[rank] - weights,
            }
            for rank, weights in enumerate(made.split.weights)
        ],
    }


def _show(info: ModelInfo, rooms: list[int], made: Plan) -> None:
    print_facts(
        [
            ("model", f"{info.folder} ({info.kind}, {len(info.layers)} layers)"),
            ("weights", format_size(info.size)),
            ("strategy", f"{made.strategy.value}: {made.reason}"),
            ("per hop", f"{format_size(_hop_bytes(info))} of hidden state for each row and token"),
            *(("note", note) for note in info.notes),
        ]
    )
    print_table(
        "It fits:",
        ["rank", "layers", "of them", "weights", "memory", "left for caches"],
        [
            (
                f"{rank} (head)" if rank == 0 else str(rank),
                f"{made.split.layers(rank).start} to {made.split.layers(rank).stop - 1}",
                str(len(made.split.layers(rank))),
                format_size(weights),
                format_size(rooms[rank]),
                format_size(rooms[rank] - weights),
            )
            for rank, weights in enumerate(made.split.weights)
        ],
    )
