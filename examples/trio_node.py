"""A node within a program of its own: ``python trio_node.py CONFIG ID [ID ...]`` runs the node of
CONFIG, a TOML file. If it is the head, the ring continues the prompt, which is token ids, by 16
tokens; if not, it serves until it is interrupted."""

import sys
from pathlib import Path

import trio
from sealring_protocol.control.requests import Request, RequestDone, TokenOut
from sealring_trio.errors import UserError
from sealring_trio.files.config import NodeFile, load_file
from sealring_trio.node.runtime import NodeClock, Runtime
from sealring_trio.node.service import build_runtime, prepare, running


async def continued(runtime: Runtime, prompt: tuple[int, ...]) -> list[int]:
    """The tokens with which the ring goes on with *prompt*. It may wait for the ring to be up."""
    await runtime.informed.wait()  # until the engine has said what its model is
    uid, stream = runtime.submit(Request(prompt, max_tokens=16), known=lambda uid: None)
    tokens: list[int] = []
    try:
        while True:
            for event in await stream.take():
                match event:
                    case TokenOut(token=token):
                        tokens.append(token)
                    case RequestDone(message=""):
                        return tokens
                    case RequestDone(message=why):
                        raise SystemExit(f"the ring gave up: {why}")
    finally:
        runtime.forget(uid)


async def main(config: Path, prompt: tuple[int, ...]) -> None:
    try:
        setup = prepare(load_file(config, NodeFile))
    except UserError as error:
        raise SystemExit(str(error)) from None
    async with running(setup, build_runtime(setup)) as runtime:
        if runtime.node.rank:
            await trio.sleep_forever()
        print(*await continued(runtime, prompt))


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), tuple(map(int, sys.argv[2:])), clock=NodeClock())
