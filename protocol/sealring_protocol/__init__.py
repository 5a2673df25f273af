"""sealring/1: the sans-IO core. Events in, bytes out; the caller owns sockets, time and entropy.

`node.Node` is a rank's brain and `link.Link` one peer's connection; below them are the rooms
`codec`, `security` and `control`. Nothing here touches a socket, clock, thread, file or the
system's entropy.
"""
