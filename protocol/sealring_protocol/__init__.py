"""sealring/1: the sans-IO core. Events in, bytes out; the caller owns sockets, time and entropy.

`node.Node` is one rank, and `link.Link` one connection to a peer. Below them are the packages
`codec`, `security`, `links`, `control` and `diagnosis`. Nothing here touches a socket, clock,
thread, file or the system's entropy. `conformance` runs the vectors, and reads their files.
"""
