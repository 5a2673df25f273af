"""What a hop costs an engine beside computing: hidden states in and out of the child process.

    python tests/model/bench_hop.py

The child is the middle rank of three, with one layer so small that what is left is the way in
and out: socketpair, frames, the inner seal, and MLX's memory. The time that the child calls
compute is taken off.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import attrs
import mlx.core as mx
from model_child import Child
from model_families import config_of, random_weights, write_model
from model_rings import EPOCH, Author, hop_keys, place_of
from sealring_model.engine.activation_seal import PlainHops, SealedHops
from sealring_model.loading.model_folder import describe
from sealring_protocol.codec.messages import Decode, Join, Open, Prefill
from sealring_protocol.codec.tensor import DType
from sealring_protocol.security.seal import PREFILL_GROUP, InnerContext

HIDDEN = 4096
BOUNDS = (0, 1, 2, 3)


def thin_model(folder: Path) -> Path:
    """Wide hidden states in bf16, and hardly any arithmetic."""
    config = config_of(
        "llama", hidden_size=HIDDEN, intermediate_size=8, num_hidden_layers=3,
        num_attention_heads=1, num_key_value_heads=1, head_dim=8, vocab_size=64,
    )  # fmt: skip
    weights = {k: v.astype(mx.bfloat16) for k, v in random_weights(config).items()}
    return write_model(folder, config, weights)


def rounds(folder: Path, tokens: int, seal: bool, count: int = 30) -> tuple[float, float]:
    """Microseconds there and back beside computing, and of them the seal's (both ways)."""
    info = describe(folder)
    head = SealedHops() if seal else PlainHops()
    data = bytes(tokens * HIDDEN * 2)
    with Child(folder) as child:
        child.info()
        for rank in (0, 1) if seal else ():
            for key in hop_keys(rank, 3):
                (head.take if rank == 0 else child.send)(key)
        child.start(place_of(info, BOUNDS, 1, seal))
        author = Author()
        child.send(author.write(open=(Open(1),)))
        child.receive()
        times, position = [], 0
        before = child.progress().seal_us
        for i in range(count):
            if tokens == 1:
                joins = {"join": (Join(1, 0),)} if i == 0 else {}
                step = author.write(work=Decode(0), **joins)
                group = 0
            else:
                step = author.write(work=Prefill(1, position, tokens))
                group = PREFILL_GROUP
            position += tokens
            context = InnerContext(EPOCH, step.n, group, 1, (1,))
            tensor = head.seal(context, DType.BF16, (1, tokens, HIDDEN), data)
            step = attrs.evolve(step, tensors=(tensor,))
            start = time.perf_counter()
            child.send(step)
            done = child.receive()
            took = 1e6 * (time.perf_counter() - start)
            assert not done.failed, done.failed
            times.append(took - sum(spent.compute_us for spent in done.spent))
        sealing = child.progress().seal_us - before
    return statistics.median(times), sealing / count


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = thin_model(Path(root) / "m")
        for tokens in (1, 64, 512, 1024):
            for seal in (False, True):
                total, sealing = rounds(folder, tokens, seal)
                print(
                    f"{tokens:5} tokens, {tokens * HIDDEN * 2 / 1024:7.0f} KiB each way, "
                    f"{'sealed' if seal else 'plain ':6}: {total:7.0f} us beside computing, "
                    f"{sealing:6.0f} us of them sealing"
                )


if __name__ == "__main__":
    sys.exit(main())
