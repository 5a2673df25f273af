"""Rank 0 of two on a blocking socket: it dials rank 1, has it read a prompt, and decodes a token.

The link is pure: it takes bytes and the time, and gives events and bytes to send. All that it has
no way to do itself (sockets, clock, entropy, signing) is here. README.md says what it is given.
"""

import json
import secrets
import socket
import struct
import sys
import time

import attrs
from sealring_protocol.codec.messages import Decode, Epoch, Join, Open, Prefill, Step, StepDone
from sealring_protocol.codec.tensor import DType
from sealring_protocol.control.ledger import Ledger
from sealring_protocol.errors import CloseCode
from sealring_protocol.link import Link, LinkUp, SignatureRequested
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.security.seal import PREFILL_GROUP, InnerContext, InnerOpener, InnerSealer

HIDDEN, PROMPT, GROUP, UID, BOUNDS = 16, 5, 3, 7, (0, 6, 12)


def next_event(link, sock, signer):
    """The link's next event that asks for nothing; sends and receives as it needs."""
    while True:
        match event := link.next_event():
            case None:
                sock.sendall(link.data_to_send())
                sock.settimeout(max(link.next_timeout() - time.monotonic(), 0.001))
                try:
                    data = sock.recv(1 << 16)
                    link.receive_data(data, time.monotonic()) if data else link.receive_eof()
                except TimeoutError:
                    link.handle_timeout(time.monotonic())
            case SignatureRequested(payload):
                link.provide_signature(signer.sign(payload), time.monotonic())
            case _:
                return event


told = json.loads(input())
signer = SoftwareSigner.from_scalar(int(told["scalar"], 16))
roster = SignedRoster.decode(bytes.fromhex(told["roster"]))
coordinator, cluster = bytes.fromhex(told["coordinator"]), roster.roster.cluster
config = HandshakeConfig(signer.public_key, roster, coordinator, secrets.randbits(64))
peer, now, wall_ms = roster.roster.members[1].id, time.monotonic(), time.time_ns() // 1_000_000
sock = socket.create_connection(("127.0.0.1", told["port"]))
link = Link.dial(config, peer, Purpose.STEP, now, wall_ms, secrets.token_bytes(96))
up = next_event(link, sock, signer)
if not isinstance(up, LinkUp):
    sys.exit(f"the peer would not have it: {up}")  # once up, the peer is who the roster says
sealer = InnerSealer(up.hop.suite, up.hop.send, cluster)
opener = InnerOpener(up.hop.suite, up.hop.receive, cluster)
epoch, ledger = Epoch(config.instance, 1), Ledger()
read = Step(epoch, 1, bytes(16), open=(Open(UID),), work=Prefill(UID, 0, PROMPT))
decode = Step(epoch, 2, bytes(16), join=(Join(UID, GROUP),), work=Decode(GROUP))
for step, group, tokens in ((read, PREFILL_GROUP, PROMPT), (decode, GROUP, 1)):
    ledger.apply(step)
    count, shape = tokens * HIDDEN, (1, tokens, HIDDEN)
    hidden = struct.pack(f"<{count}f", *range(count))
    context = InnerContext(epoch, step.n, group, BOUNDS[1], (UID,))
    sealed = sealer.seal(context, DType.F32, shape, hidden)
    link.send(attrs.evolve(step, digest=ledger.digest(step.n), tensors=(sealed,)))
    done = next_event(link, sock, signer)
    if not isinstance(done, StepDone) or done.failed is not None:
        sys.exit(f"the step failed: {done}")
back = opener.open(InnerContext(epoch, decode.n, GROUP, BOUNDS[2], (UID,)), done.tensors[0])
link.close(CloseCode.SHUTDOWN, "")
sock.sendall(link.data_to_send())
print(json.dumps({"suite": up.suite.name, "steps": 2, "back": struct.unpack("<16f", back)}))
