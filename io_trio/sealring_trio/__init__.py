"""Runs sealring nodes on trio: sockets, engine processes and the `sealring` command."""
