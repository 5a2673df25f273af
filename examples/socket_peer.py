"""The head of two ranks on blocking sockets: it has rank 1 compute two steps (README.md)."""

import json
import secrets
import select
import socket
import time
from array import array

import attrs
from sealring_protocol import errors
from sealring_protocol import link as links
from sealring_protocol.codec import messages as m
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.security import handshake, identity, roles, seal
from sealring_protocol.security.roster import SignedRoster

told = json.loads(input())
signer = identity.SoftwareSigner.from_scalar(int(told["scalar"], 16))
roster = SignedRoster.decode(bytes.fromhex(told["roster"]))
pinned, cluster = bytes.fromhex(told["coordinator"]), roster.roster.cluster
config = handshake.HandshakeConfig(signer.public_key, roster, pinned, secrets.randbits(64))
open_links, came = {}, []  # links, each with its socket; events that nobody has asked for yet


def expect(kind):
    """The first event of any link that is a *kind*; sends and receives until there is one."""
    while True:
        for link, sock in open_links.items():
            while (event := link.next_event()) is not None:
                if isinstance(event, links.SignatureRequested):
                    link.provide_signature(signer.sign(event.payload), time.monotonic())
                elif isinstance(event, links.LinkClosed):
                    raise SystemExit(f"the peer would not have it: {event.reason}")
                elif getattr(event, "failed", None):  # a rank may also say so of no step (0)
                    raise SystemExit(f"step {event.n} failed: {event.failed.message}")
                else:
                    came.append(event)
            sock.sendall(link.data_to_send())
        if found := [event for event in came if isinstance(event, kind)]:
            return came.pop(came.index(found[0]))
        due = max(0, min(link.next_timeout() for link in open_links) - time.monotonic())
        readable, _, _ = select.select(list(open_links.values()), [], [], due)
        for link, sock in open_links.items():
            if sock in readable:
                data = sock.recv(1 << 16)
                link.receive_data(data, time.monotonic()) if data else link.receive_eof()
            link.handle_timeout(time.monotonic())


def dial(purpose):
    peer, now, wall_ms = roster.roster.members[1].id, time.monotonic(), time.time_ns() // 10**6
    link = links.Link.dial(config, peer, purpose, now, wall_ms, secrets.token_bytes(96))
    open_links[link] = socket.create_connection(("127.0.0.1", told["port"]))
    return link, expect(links.LinkOpened)  # once up, the peer is who the roster says


control, _ = dial(roles.Purpose.CONTROL)
rank = expect(m.Hello)  # it presents itself: its model, how many layers that has, and its room
epoch, bounds = m.Epoch(config.instance, 1), (0, rank.layers // 2, rank.layers)
control.send(m.Bootstrap(epoch, m.Backend.PIPELINE, 1, True, 60_000, rank.model, bounds))
steps, up = dial(roles.Purpose.STEP)
expect(m.Ready)  # it has loaded its layers
ledger, sealer = Ledger(), seal.InnerSealer(up.suite, up.hop.send, cluster)
read = m.Step(epoch, 1, bytes(16), open=(m.Open(7),), work=m.Prefill(7, 0, 5))
decode = m.Step(epoch, 2, bytes(16), join=(m.Join(7, 3),), work=m.Decode(3))
for step, group, tokens in ((read, seal.PREFILL_GROUP, 5), (decode, 3, 1)):
    ledger.apply(step)
    hidden = array("f", (i / 100 for i in range(tokens * rank.hidden))).tobytes()
    at, back = (seal.InnerContext(epoch, step.n, group, bound, (7,)) for bound in bounds[1:])
    tensor = sealer.seal(at, rank.dtype, (1, tokens, rank.hidden), hidden)
    steps.send(attrs.evolve(step, digest=ledger.digest(step.n), tensors=(tensor,)))
    done = expect(m.StepDone)
result = seal.InnerOpener(up.suite, up.hop.receive, cluster).open(back, *done.tensors)
told = {"suite": up.suite.name, "bounds": bounds, "back": array("f", result).tolist()}
print(json.dumps(told))
for link, sock in open_links.items():
    link.close(errors.CloseCode.SHUTDOWN, "")
    sock.sendall(link.data_to_send())
