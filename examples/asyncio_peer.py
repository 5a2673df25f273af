"""Rank 1 of two on asyncio: it listens, takes rank 0's link, and doubles what it is given."""

import asyncio
import json
import time
from array import array
from secrets import randbits, token_bytes

from sealring_protocol import link as links
from sealring_protocol.codec.messages import Decode, Step, StepDone
from sealring_protocol.control.ledger import Ledger
from sealring_protocol.security.handshake import Admission, HandshakeConfig
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.security.seal import PREFILL_GROUP, InnerContext, InnerOpener, InnerSealer

ADMISSION = Admission(time.monotonic())  # what all connections together may cost
told = json.loads(input())
signer = SoftwareSigner.from_scalar(int(told["scalar"], 16))
roster = SignedRoster.decode(bytes.fromhex(told["roster"]))
pinned = bytes.fromhex(told["coordinator"])
config = HandshakeConfig(signer.public_key, roster, pinned, randbits(64))


async def events(link, reader, writer):
    """The link's events that ask for nothing, while it lives; sends and receives as it needs."""
    while link.next_timeout() is not None:
        match event := link.next_event():
            case None:
                writer.write(link.data_to_send())
                try:
                    async with asyncio.timeout_at(link.next_timeout()):
                        data = await reader.read(1 << 16)
                    link.receive_data(data, time.monotonic()) if data else link.receive_eof()
                except TimeoutError:
                    link.handle_timeout(time.monotonic())
            case links.SignatureRequested(payload):
                link.provide_signature(signer.sign(payload), time.monotonic())
            case links.EncapsulationRequested(key=key):
                secret, ciphertext = key.encapsulate()
                link.provide_encapsulation(ciphertext, secret, time.monotonic())
            case links.PeerProved():  # a real rank looks here whether it has such a link already
                link.admit(time.monotonic())
            case _:
                yield event


async def serve(reader, writer):
    ledger, source = Ledger(), writer.get_extra_info("peername")[0]
    now, wall_ms, entropy = time.monotonic(), time.time_ns() // 1_000_000, token_bytes(32)
    link = links.Link.accept(config, ADMISSION, source, now, wall_ms, entropy)
    async for event in events(link, reader, writer):
        if isinstance(event, links.LinkUp):  # from here on the peer is who the roster says
            opener = InnerOpener(event.suite, event.hop.receive, roster.roster.cluster)
            sealer = InnerSealer(event.suite, event.hop.send, roster.roster.cluster)
        elif isinstance(event, Step):
            link.send(answer(event, ledger, opener, sealer))
    writer.close()


def answer(step, ledger, opener, sealer):
    ledger.apply(step)  # raises where the step cannot be
    decode, (tensor,) = isinstance(step.work, Decode), step.tensors
    group = step.work.group if decode else PREFILL_GROUP
    rows = ledger.rows(group) if decode else (step.work.uid,)
    at, back = (InnerContext(step.epoch, step.n, group, bound, rows) for bound in (6, 12))
    data = array("f", (2 * element for element in array("f", opener.open(at, tensor)))).tobytes()
    sealed = sealer.seal(back, tensor.dtype, tensor.shape, data)
    return StepDone(step.epoch, step.n, tensors=(sealed,) * decode)


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


asyncio.run(main())
