"""A rank that sums on command, for `bench.comms`; run as a child, for it imports MLX.

As ``--rank R --hosts JSON`` it joins the ring of MLX by itself. As ``--fd N``, which is how a node
starts its engine, it is an engine without a model behind it: it says that it has the one that
ships with sealring, joins when its node says so, and has nothing more to do with steps. Either way
it then connects to the socket ``--commands PATH``, says who it is, and for each line that comes,
the JSON of how many bytes to sum how often, answers with the median of it, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import queue
import socket
import statistics
import threading
import time
from typing import Any, Final

import attrs

ROOM: Final = 1 << 30


def main() -> None:
    """The command of the child process."""
    parser = argparse.ArgumentParser(prog="sealring_tools.bench.sums")
    parser.add_argument("--commands", required=True)
    parser.add_argument("--fd", type=int)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--hosts", type=json.loads, default=[])
    options = parser.parse_args()
    if options.fd is not None:
        rank, group = _as_engine(socket.socket(fileno=options.fd))
    else:
        rank, group = options.rank, _alone(options.rank, options.hosts)
    _obey(options.commands, rank, group)


def _alone(rank: int, hosts: list[tuple[str, int]]) -> Any:
    from sealring_model.engine.collective import join  # noqa: PLC0415 - MLX, in this process only
    from sealring_protocol.codec.local_messages import Group  # noqa: PLC0415
    from sealring_protocol.codec.messages import Backend  # noqa: PLC0415

    places = tuple((host, port) for host, port in hosts)
    return join(Group(Backend.RING, rank, len(hosts), 60_000, places))


def _as_engine(sock: socket.socket) -> tuple[int, Any]:
    """The rank, and the group, that the node at the other end of *sock* has this process join."""
    from sealring_model import tiny  # noqa: PLC0415 - as above
    from sealring_model.channel import Channel, ChannelClosed  # noqa: PLC0415
    from sealring_model.engine.collective import join  # noqa: PLC0415
    from sealring_model.loading.model_folder import describe  # noqa: PLC0415
    from sealring_model.loading.structure import describe_engine, structure_of  # noqa: PLC0415
    from sealring_protocol.codec.local_messages import Group, Grouped, Loaded  # noqa: PLC0415
    from sealring_protocol.codec.messages import (  # noqa: PLC0415
        Backend,
        Bootstrap,
        CacheCost,
        Ping,
        Pong,
        Progress,
        Ready,
    )

    info = describe(tiny.path())
    channel = Channel(sock)
    channel.open()
    orders: queue.Queue[Group] = queue.Queue()
    places: list[Bootstrap] = []

    def listen() -> None:
        try:
            while True:
                match channel.receive():
                    case Ping(echo=echo):
                        channel.send(Pong(echo, Progress()))
                    case Bootstrap() as place:
                        places.append(place)
                        channel.send(Loaded(0, 0, 0))
                    case Group() as order if order.hosts:
                        orders.put(order)
                    case _:
                        pass
        except ChannelClosed:
            return  # the channel ends the process, if nobody else does

    threading.Thread(target=listen, daemon=True).start()
    described = describe_engine(info, structure_of(info), ROOM)
    channel.send(attrs.evolve(described, splits=2, backends=1 << Backend.RING))
    order = orders.get()
    group = join(order)
    channel.send(Grouped(order.size, 1, 1))
    layers = len(info.layers)
    channel.send(
        Ready(
            places[-1].epoch,
            0,
            layers,
            trimmable=True,
            room=ROOM,
            cost=CacheCost(0, 1),
        )
    )
    return order.rank, group


def _obey(path: str, rank: int, group: Any) -> None:
    """Sum as often as is asked, until nobody asks any more."""
    with socket.socket(socket.AF_UNIX) as commands:
        commands.connect(path)
        commands.sendall(json.dumps({"rank": rank}).encode() + b"\n")
        for line in commands.makefile("rb"):
            command = json.loads(line)
            median = _median_us(group, command["bytes"], command["rounds"])
            commands.sendall(json.dumps({"us": median}).encode() + b"\n")


def _median_us(group: Any, size: int, rounds: int) -> float:
    import mlx.core as mx  # noqa: PLC0415 - as above

    row = mx.ones((size // 2,), mx.bfloat16)
    mx.eval(row)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        mx.eval(mx.distributed.all_sum(row, group=group))
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    main()
