"""Rank 1 of two on asyncio: it takes rank 0's links, and doubles what it is given (README.md)."""

import asyncio
import json
import time
from array import array
from secrets import randbits, token_bytes

from sealring_protocol import link as links
from sealring_protocol.codec import messages as m
from sealring_protocol.codec.tensor import DType
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.security import admission, handshake, identity, roles, seal
from sealring_protocol.security.roster import SignedRoster

ADMISSION = admission.Admission(time.monotonic())  # what all connections together may cost
told = json.loads(input())
signer = identity.SoftwareSigner.from_scalar(int(told["scalar"], 16))
roster = SignedRoster.decode(bytes.fromhex(told["roster"]))
pinned, cluster = bytes.fromhex(told["coordinator"]), roster.roster.cluster
config = handshake.HandshakeConfig(signer.public_key, roster, pinned, randbits(64))
model = bytes.fromhex(told["model"])
hello = m.Hello(model, told["layers"], DType.F32, told["hidden"], 1 << 30, tuple(told["pins"]))
epochs = {}  # the layers' bounds and the ledger of each


async def serve(reader, writer):
    source, _ = writer.get_extra_info("peername")
    clocks = (time.monotonic(), time.time_ns() // 10**6)
    link = links.Link.accept(config, ADMISSION, source, *clocks, token_bytes(32))
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
                link.provide_encapsulation(*reversed(key.encapsulate()), time.monotonic())
            case links.PeerProved():  # a real rank looks here whether it has such a link already
                link.admit(time.monotonic())
            case links.LinkOpened(hop=hop):  # from here on the peer is who the roster says
                seals = [seal.InnerOpener(event.suite, hop.receive, cluster)]
                seals.append(seal.InnerSealer(event.suite, hop.send, cluster))
                if event.purpose is roles.Purpose.CONTROL:
                    link.send(hello)
            case m.Bootstrap(epoch=epoch, bounds=bounds, kept=kept):
                epochs[epoch] = bounds, Ledger(kept)
                link.send(m.Ready(epoch, *bounds[1:], True, 1 << 30, m.CacheCost(0, 1)))
            case m.Step():
                link.send(m.StepDone(event.epoch, event.n, tensors=compute(event, *seals)))
    writer.close()


def compute(step, opener, sealer):
    (bounds, ledger), work = epochs[step.epoch], step.work
    ledger.apply(step)  # raises where the step cannot be
    if not step.tensors:  # rows come or go, no more
        return ()
    decode, (tensor,) = isinstance(work, m.Decode), step.tensors
    group = work.group if decode else seal.PREFILL_GROUP
    rows = ledger.groups[group] if decode else (work.uid,)
    at, back = (seal.InnerContext(step.epoch, step.n, group, bound, rows) for bound in bounds[1:])
    data = array("f", (2 * element for element in array("f", opener.open(at, tensor)))).tobytes()
    return (sealer.seal(back, tensor.dtype, tensor.shape, data),) * decode


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", told["port"])
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


asyncio.run(main())
