"""What `bench faults` can break: apart from how, which takes long to import."""

from __future__ import annotations

from typing import Final, Literal, get_args

FaultName = Literal[
    "leader-engine-killed",
    "follower-engine-killed",
    "follower-engine-frozen",
    "follower-node-killed",
    "forward-raises",
    "client-gone",
]
FAULTS: Final[tuple[FaultName, ...]] = get_args(FaultName)
